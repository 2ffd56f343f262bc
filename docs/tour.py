"""What every stage prints for one small model, and what each target took, written into the pages beside this script:
``python docs/tour.py``.

The pages hold the text that explains; between ``<!-- tour: NAME -->`` and ``<!-- end -->`` stands what this script
produces. ``--check`` changes nothing and fails where a page is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import luminal
from luminal.codegen import render
from luminal.core import ir, movement, printer, structured, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, hyperbolic
from luminal.core.ir import Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.choose import cpu
from luminal.core.schedule.fusion.text import fusion_text
from luminal.core.schedule.lower import clusters
from luminal.core.schedule.nest.text import nest_text
from luminal.core.schedule.program import ir as program

PAGES = [Path(__file__).with_name(name) for name in ("architecture.md", "adding-a-target.md")]
BLOCK = re.compile(r"(<!-- tour: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
TARGET = targets.AVX2
GRID = targets.GPUS["cuda:sm_90"]


# [model]
class Block(nn.Module):
    """A feed-forward layer, a norm, and attention of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.gelu(self.up(x), approximate="tanh")
        h = self.norm(x + self.down(h))
        weights = torch.softmax(h @ h.transpose(1, 2) / 4, dim=-1)
        return weights @ h


DIMS = {"batch": (8, 32), "x": {0: "batch"}}
# [end]


def block() -> nn.Module:
    """The model, with weights that are the same on every machine."""
    model = Block().eval()
    for number, parameter in enumerate(model.parameters()):
        values = (torch.arange(parameter.numel()) + number) % 13 - 6
        parameter.data = (values / 8).reshape(parameter.shape)
    return model


# ---- cutting down ----------------------------------------------------------------------------------------------------


def lines(text: str, *patterns: str) -> str:
    """The lines of ``text`` in which one of ``patterns`` is found; dots where others are left out."""
    result: list[str] = []
    for line in text.splitlines():
        if any(re.search(pattern, line) for pattern in patterns):
            result.append(line)
        elif not result or result[-1].strip() != "...":
            result.append(" " * (len(line) - len(line.lstrip())) + "...")
    return "\n".join(result)


def bare(text: str) -> str:
    """``text`` without the comments that name source operators."""
    return re.sub(r"  # .*", "", text)


def narrow(text: str, width: int = 116) -> str:
    """``text`` with what stands beyond the page's edge left out."""
    return "\n".join(line if len(line) <= width else f"{line[: width - 4]} ..." for line in text.splitlines())


def between(text: str, first: str, last: str) -> str:
    """``text`` from the line that holds ``first`` to the one before ``last``."""
    return text[text.index(first) : text.index(last)].rstrip()


# ---- the stages ------------------------------------------------------------------------------------------------------


def views() -> str:
    """Five movements, which are one node."""
    batch, length = sym.var("batch", 1, 32), sym.var("length", 1, 256)
    x = ir.input_("x", (batch, length, 12), types.f32)
    rows = movement.reshape(x, (batch * length, 12))
    heads = movement.permute(movement.reshape(rows, (batch, length, 3, 4)), (0, 2, 1, 3))
    shifted = movement.pad(movement.slice_(heads, 2, 0, length - 1), (0, 0, 1, 0), (0, 0, 0, 0))
    return "\n".join(printer.lines(ir.topological([shifted])))


def recurrence() -> str:
    """The steps of a loop over kernels."""
    time = sym.var("time", 1, 256)
    x, matrix = ir.input_("x", (time, 8, 32), types.f32), ir.input_("matrix", (64, 64), types.f32)
    weight = ir.constant(np.ones((64, 32), np.float32))

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        h = hyperbolic.tanh(contraction.matmul(carried[0], matrix) + contraction.linear(element[0], weight))
        return [h], [h]

    _, (states,) = structured.scan(step, [ir.constant(np.zeros((8, 64), np.float32))], [x])
    graph = ir.Graph("recurrence", (x, matrix), (("states", states),), tuple(sym.variables(time)))
    return between(program.text(compile_graph(graph, TARGET)) + "end", "  entry", "end")


# The files that are one GPU's alone, by what they are for: Metal's, then CUDA's.
FILES = {
    "the language: a dialect": (["codegen/dialect_metal.py"], ["codegen/dialect_cuda.py"]),
    "template of a kernel": (["codegen/templates/metal/kernel*"], ["codegen/templates/cuda/kernel*"]),
    "matrix fragments": (
        ["runtime/include/luminal/device/fragment_simdgroup.hpp"],
        ["runtime/include/luminal/device/fragment_mma.hpp"],
    ),
    "host code: what is generated": (
        ["codegen/metal.py", "codegen/templates/metal/[!k]*"],
        ["codegen/cuda.py", "codegen/templates/cuda/[!k]*"],
    ),
    "host code: headers": (["runtime/include/luminal/metal/*"], ["runtime/include/luminal/cuda/*"]),
    "stand-in for the driver": (["runtime/emulator/metal_runtime.cpp"], ["runtime/emulator/cuda_driver.cpp"]),
}
# What both stand on and CPUs do not need.
SHARED = {
    "schedules of blocks of threads": [
        "core/grid.py",
        "core/schedule/choose/grid.py",
        "core/schedule/grid/*.py",
    ],
    "code generation": [
        "codegen/dialect_device.py",
        "codegen/threads.py",
        "codegen/products.py",
        "codegen/emulation.py",
    ],
    "functions of kernels": ["runtime/include/luminal/device/[!f]*", "runtime/include/luminal/device/f[!r]*"],
    "emulator": ["runtime/emulator/emulator.*", "runtime/emulator/fiber.hpp", "runtime/emulator/device.hpp"],
}


def length(patterns: list[str]) -> int:
    """The lines of the files that match ``patterns``."""
    found = [path for pattern in patterns for path in sorted(PAGES[0].parent.parent.glob(pattern))]
    assert found, patterns
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in found)


def lengths() -> Iterator[str]:
    """A table of the lines that each GPU took, and of those that both share."""
    yield "| | Metal | CUDA |"
    yield "|---|---:|---:|"
    rows = {what: [length(patterns) for patterns in both] for what, both in FILES.items()}
    for what, (metal, cuda) in rows.items():
        yield f"| {what} | {metal} | {cuda} |"
    sums = [sum(column) for column in zip(*rows.values(), strict=True)]
    yield f"| **in all** | **{sums[0]}** | **{sums[1]}** |"
    for what, patterns in SHARED.items():
        yield f"| shared: {what} | {length(patterns)} | |"


def excerpts() -> Iterator[tuple[str, str, str]]:
    """The name of each excerpt, the language of its text, and the text."""
    yield "lengths", "markdown", "\n".join(lengths())
    yield "model", "python", between(Path(__file__).read_text(encoding="utf-8"), "class Block", "# [end]")
    yield "views", "text", views()
    yield "loop", "text", recurrence()

    graph = luminal.read(block(), (torch.zeros(8, 24, 16),), dims=DIMS, name="block")
    reached: dict[str, Any] = {}
    compiled = compile_graph(graph, TARGET, reached.__setitem__)
    imported, canonical = printer.text(graph), printer.text(reached["canonical"])
    yield "graph", "text", narrow(lines(imported, "^graph", "dim ", "Input", "# .*'linear'", r"up\.", "# aten.softmax"))
    yield "before", "text", lines(imported, "# aten.div").strip(".\n")
    yield "after", "text", lines(canonical, "# aten.div").strip(".\n")
    yield "prepared", "text", bare(lines(printer.text(reached["prepared"]), "# aten.linear.* 'linear' ", "'matmul' "))

    arranged = reached["arranged"]
    fusion = arranged.fusion
    yield "fusion", "text", fusion_text(arranged)

    norm = next(c for c in fusion.clusters if c.kind == "row")
    lowered = clusters.lower(norm, arranged, TARGET)
    yield "serial", "text", narrow(nest_text(lowered.nest))
    chosen = cpu.choose(norm, lowered, TARGET)
    schedule, row = chosen.schedule, chosen.nest
    yield "schedule", "text", "\n".join(map(str, schedule))
    yield "nest", "text", narrow(nest_text(row))

    first = fusion.clusters[0]
    nest = cpu.choose(first, clusters.lower(first, arranged, TARGET), TARGET).nest
    yield "tile", "text", narrow(nest_text(nest))

    chain = next(c for c in fusion.clusters if c.chain is not None)
    lowered = clusters.lower(chain, arranged, TARGET)
    yield "chain", "text", narrow(nest_text(lowered.nest))
    yield "stream", "text", narrow(nest_text(cpu.choose(chain, lowered, TARGET).nest))

    on_grid = compile_graph(graph, GRID)
    staged = next(k.nest for k in on_grid.kernels if k.name.startswith("contraction"))
    yield "grid", "text", narrow(nest_text(staged))
    rows = next(k.nest for k in on_grid.kernels if k.name.startswith("row"))
    yield "threads", "text", narrow(nest_text(rows))

    kept = ("^program", "dim ", r"kernel \d", "buffer", "entry", "    (in|out) ", "# aten", " shares of ")
    yield "program", "text", bare(lines(program.text(compiled), *kept))
    files = render.render(compiled, TARGET).files
    kernel = next(kernel.name for kernel in compiled.kernels if kernel.nest == row)
    yield "kernel", "cpp", between(files[f"kernels/{kernel}.cpp"], "//", "}  // namespace LM")
    steps = between(files[render.LIBRARY], "void run_main", "constexpr Dim")
    yield "library", "cpp", f"{steps.partition('    });')[0]}    }});\n    ...\n}}"


def fenced(language: str, text: str) -> str:
    """``text`` as it stands on a page: a table, or a block of code."""
    return f"{text}\n" if language == "markdown" else f"```{language}\n{text.rstrip()}\n```\n"


def main() -> int:
    found = {name: fenced(language, text) for name, language, text in excerpts()}
    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    wanted = {match["name"] for page in pages.values() for match in BLOCK.finditer(page)}
    unknown = sorted(wanted ^ set(found))
    if unknown:
        print(f"the pages and this script do not hold the same excerpts: {', '.join(unknown)}", file=sys.stderr)
        return 2
    new = {path: BLOCK.sub(lambda m: f"{m[1]}{found[m['name']]}{m[3]}", page) for path, page in pages.items()}
    if "--check" in sys.argv[1:]:
        old = [path.name for path in PAGES if new[path] != pages[path]]
        print(f"out of date: {', '.join(old)}: run python docs/tour.py" if old else "up to date")
        return int(bool(old))
    for path, page in new.items():
        path.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
