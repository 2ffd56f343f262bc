"""What is counted of luminal's kernels and of Triton's for the same work, as rows that JSON holds."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu import subjects
from benchmarks.gpu.machine import Machine
from benchmarks.gpu.static import quantised
from luminal.core import target as targets
from luminal.core.errors import BuildError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.program import ir as program
from luminal.core.target import Target
from luminal.frontends.fx import importer
from luminal.machine_code import tools
from luminal.machine_code.kernels import PROCESSORS, Kernel, counted, cycles, launches
from luminal.machine_code.sass import CLASSES
from luminal.machine_code.tools import Image, assembled, disassembled

OURS, TRITON = "luminal", "Triton"
TARGETS = ("cuda:sm_80", "cuda:sm_90")

QUANTISED = {False: (1, 4096, 1024), True: (1, 256, 8)}  # rows, terms, columns
PROMPTS = {False: (512, 4096, 1024), True: (32, 256, 32)}  # the same, of a prompt
IN_PROMPTS = ("Q8_0 by float32", "Q8_0 by q8", "Q4_0 by q8", "Q4_K by q8", "Q6_K by q8")

PEERS = Path(__file__).parent / "peers.py"

Row = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """What is computed: rows, terms and columns of a product, or of one with quantised weights; batch, heads, length
    and width of attention; rows and columns. In bfloat16, but for quantised weights."""

    kind: str
    sizes: tuple[int, ...]

    @property
    def what(self) -> str:
        return f"{self.kind} {' x '.join(map(str, self.sizes))}"

    @property
    def products(self) -> int:
        """Multiply-adds; 0 where the work is bound by memory."""
        if self.kind == "product" or self.kind in quantised.KINDS:
            return math.prod(self.sizes)
        if "attention" not in self.kind:
            return 0
        batch, heads, length, width = self.sizes
        pairs = length * (length + 1) // 2 if self.kind.startswith("causal") else length * length
        return 2 * batch * heads * pairs * width

    @property
    def units(self) -> float:
        """What counts are divided by: thousands of multiply-adds, or KiB that have to be read and written."""
        return self.products / 1000 if self.products else 2 * 2 * math.prod(self.sizes) / 1024

    @cached_property
    def graph(self) -> Graph:
        """The work as luminal imports it."""
        if self.kind in quantised.KINDS:
            return quantised.graph(self.kind, self.sizes)
        module, inputs = self.module()
        return importer.load(module, inputs)

    def module(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """The work for luminal's front end, and inputs, whose values do not matter."""
        if self.kind == "product":
            m, k, n = self.sizes
            return subjects.Product(), (_empty(m, k), _empty(k, n))
        if "attention" in self.kind:
            return subjects.Attention(self.kind.startswith("causal")), tuple(_empty(*self.sizes) for _ in range(3))
        return {"softmax": subjects.Softmax, "norm": subjects.Norm}[self.kind](), (_empty(*self.sizes),)


def _empty(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def works(tiny: bool) -> list[Work]:
    """What is looked at: that of ``benchmarks.gpu``, without the product of one row, which Triton has no tile for, and
    without the largest, whose loop is that of the next."""
    products = [Work("product", sizes) for sizes in subjects.PRODUCTS[tiny][1:] if sizes[0] > 1]
    attentions = [Work(kind, subjects.ATTENTION[tiny]) for kind in ("attention", "causal attention")]
    rows_ = [Work(kind, subjects.ROWS[tiny]) for kind in ("softmax", "norm")]
    prompts = [Work(kind, PROMPTS[tiny]) for kind in IN_PROMPTS]
    return [*products, *attentions, *rows_, *(Work(kind, QUANTISED[tiny]) for kind in quantised.KINDS), *prompts]


def row(work: Work, architecture: int, who: str, how: str, kernels: Sequence[Row]) -> Row:
    """A row of the report: ``per`` are counts for each unit of the work."""
    limits: Counter[str] = Counter()
    for kernel in kernels:
        limits += Counter(cycles(kernel, architecture))
    total: Counter[str] = Counter()
    loop: Counter[str] = Counter()
    for kernel in kernels:
        total += Counter(kernel["issued"])
        loop += Counter(kernel["loop"] or kernel["issued"])
    moved = {space: sum(kernel["moved"][space].get("bytes", 0) for kernel in kernels) for space in ("global", "shared")}
    moved["shared"] += sum(kernel["operands"] for kernel in kernels)
    return {
        "what": work.what, "kind": work.kind, "sizes": work.sizes, "architecture": f"sm_{architecture}", "who": who,
        "how": how, "kernels": list(kernels), "unit": "1,000 multiply-adds" if work.products else "KiB",
        "per": {name: total[name] / work.units for name in CLASSES},
        "per_loop": {name: loop[name] / work.units for name in CLASSES},
        "bytes": {space: count / (work.products or 1024 * work.units) for space, count in moved.items()},
        "cycles": {name: count / work.units for name, count in limits.items()},
    }  # fmt: skip


# ---- both compilers --------------------------------------------------------------------------------------------------


def _tile(kernel: program.Kernel) -> str:
    """The tile of a block, and its warps; empty where the kernel has none."""
    tiles = [s for s in kernel.scheduled.schedule if isinstance(s, Stage)]
    warps = f"{kernel.nest.threads // 32} warps"
    warps += f", {kernel.nest.copiers // 32} that copy" * bool(kernel.nest.copiers)
    return (
        f"{tiles[0].rows} x {tiles[0].columns} x {tiles[0].depth}, {1 + tiles[0].ahead} stages, {warps}"
        if tiles
        else ""
    )


def ours(work: Work, target: str, folders: tuple[str, ...]) -> Row:
    """luminal's kernels, by its default schedules."""
    return _compiled(work, targets.parse(target), folders)


def _compiled(work: Work, target: Target, folders: tuple[str, ...]) -> Row:
    made = compile_graph(work.graph, target)
    kernels = launches(made, target, folders)
    how = "; ".join(filter(None, map(_tile, made.kernels))) or f"{kernels[0].threads // 32} warps"
    return row(work, kernels[0].architecture, OURS, how, [counted(kernel) for kernel in kernels])


def candidates(work: Work, target: str, folders: tuple[str, ...]) -> list[Row]:
    """luminal's kernels by each of the schedules that ``benchmarks.gpu`` would try on a device, the default first and
    each once."""
    found: dict[str, Row] = {}
    for variant in Machine(target).variants().values():
        goal = targets.parse(target) if variant is None else variant
        made = compile_graph(work.graph, goal)
        key = repr([kernel.nest for kernel in made.kernels])
        if key not in found:
            found[key] = _compiled(work, goal, folders)
    return list(found.values())


def theirs(
    work: Work, architectures: Sequence[int], python: str, folders: tuple[str, ...]
) -> tuple[str, list[Row], list[str]]:
    """Triton's version, the best of its kernels for each architecture, and what it could not compile."""
    request = {"architectures": architectures, "works": [{"kind": work.kind, "sizes": work.sizes}]}
    with tempfile.TemporaryDirectory(prefix="luminal-") as name:
        folder = Path(name)
        command = [python, str(PEERS), str(folder), json.dumps(request)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise BuildError(f"{python} could not compile Triton's kernels:\n  {run.stderr.strip()[-2000:]}")
        listed = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
        rows: dict[int, Row] = {}
        failed = []
        for made in listed["kernels"]:
            architecture = made["architecture"]
            about = f"{work.what}, sm_{architecture}, {made['how']}"
            if "failed" in made:
                failed.append(f"{about}: {made['failed']}")
                continue
            key = (folder / f"{made['file']}.cubin").read_bytes()  # sizes are no part of it
            image = _PEERS[key] = _PEERS.get(key) or _peer(made, folder, folders)
            if not PROCESSORS[architecture].occupancy(made["threads"], image.registers, image.shared):
                failed.append(f"{about}: takes more than a processor has")
                continue
            kernel = Kernel(image, architecture, made["threads"], tuple(made["grid"]), made["arguments"])
            found = row(work, architecture, TRITON, made["how"], [counted(kernel)])
            known = rows.get(architecture)
            if known is None or cost(found) < cost(known):
                rows[architecture] = found
    return listed["version"], list(rows.values()), failed


_PEERS: dict[bytes, Image] = {}  # Triton's kernels that were read, by their machine code


def _peer(made: Row, folder: Path, folders: tuple[str, ...]) -> Image:
    """One of Triton's kernels."""
    code = disassembled(folder / f"{made['file']}.cubin", folders)[made["kernel"]]
    goal = f"sm_{made['architecture']}" + "a" * (made["architecture"] >= 90)
    uses = assembled(folder / f"{made['file']}.ptx", goal, made["assembler"])
    return Image(code, uses["registers"], uses["spilled"], max(made["shared"], uses["shared"]))


def cost(found: Row) -> tuple[float, float]:
    """What the best is chosen by: the highest of the limits, where processors without a block wait for the others; then
    what is issued."""
    processors = PROCESSORS[tools.number(found["architecture"])].count
    blocks = max(kernel["blocks"] for kernel in found["kernels"])
    waiting = math.ceil(blocks / processors) * processors / blocks
    return waiting * max(found["cycles"].values()), sum(found["per"].values())


def folders_of(path: str) -> tuple[str, ...]:
    """The folder of Triton's own programs."""
    told = subprocess.run(
        [path, "-c", "import triton; print(triton.__path__[0])"], capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise BuildError(f"{path} has no Triton: {(told.stderr.strip().splitlines() or ['it does not start'])[-1]}")
    return (str(Path(told.stdout.strip()) / "backends/nvidia/bin"),)
