"""The kernels of the models at their real sizes, compiled for GPUs by nvcc: ``python -m benchmarks.devices``.

Nothing runs, so no GPU is needed. For each model and architecture: how many kernels there are, the registers and the
shared memory of the one that takes most of them, what threads spill to memory, and what the compiler warned of. The
exit code is 1 where anything is spilled or warned of.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import luminal
from benchmarks import machine
from benchmarks.suite import Case, chosen
from luminal import destination
from luminal.codegen import build, render, toolchain
from luminal.core import config
from luminal.core import target as targets
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.display import Display

TARGETS = ("cuda:sm_80", "cuda:sm_90", "cuda:sm_100")
LAYERS = 2  # of the decoder: they have all its kernels


@dataclass(frozen=True)
class Line:
    """What became of one model for one architecture. ``registers`` are those of a thread, ``shared`` the bytes of a
    block, each of the kernel that takes most; ``spilled`` the bytes of all kernels. ``seconds`` are from the graph to
    the library, with an empty cache."""

    model: str
    target: str
    kernels: int
    registers: int
    shared: int
    spilled: int
    warnings: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.spilled and not self.warnings


def measure(title: str, graph: Graph, target: str, display: Display) -> Line:
    """Compile a graph for a GPU."""
    start, stage = time.perf_counter(), f"compile for {target}"
    display.report(stage, 0.0)
    goal = targets.parse(target)
    program = compile_graph(graph, goal)
    bundle = render.render(program, goal)
    with tempfile.TemporaryDirectory() as folder:
        built = build.build(bundle, Path(folder), lambda what, done, total: display.report(stage, done / max(total, 1)))
    uses = [use for kernel in built.resources.values() for use in kernel.values()]
    if len(built.resources) != len(program.kernels):
        raise RuntimeError(f"nvcc said of {len(built.resources)} kernels of {len(program.kernels)} what they take")
    return Line(
        title,
        target,
        len(program.kernels),
        max(use["registers"] for use in uses),
        max(use["shared"] for use in uses),
        sum(use["spilled"] for use in uses),
        built.warnings,
        time.perf_counter() - start,
    )


HEADINGS = ("model", "target", "kernels", "registers", "shared", "spilled", "warnings", "time")


def cells(line: Line) -> tuple[str, ...]:
    """The cells of a table under ``HEADINGS``."""
    return (
        line.model, line.target, str(line.kernels), str(line.registers), f"{line.shared} B", f"{line.spilled} B",
        str(len(line.warnings)), f"{line.seconds:.0f} s",
    )  # fmt: skip


def markdown(lines: Sequence[Line], compiler: str) -> str:
    """The page for ``docs/``. ``compiler`` is what nvcc says of its version."""
    release = re.search(r"release .*V(\S+)", compiler)
    page = [
        "# NVIDIA's GPUs",
        "",
        "`python -m benchmarks.devices --write docs/devices.md`: the kernels of the models at the sizes of "
        "`benchmarks/suite.py`, float32, compiled by nvcc with the default schedules. Nothing runs. `registers` are "
        "those of a thread and `shared` the memory of a block, each of the kernel that takes most; `spilled` is what "
        "threads of all kernels keep in memory for want of registers. `time` is from the graph to the library, with an "
        f"empty cache. The decoder has {LAYERS} layers, which have all its kernels.",
        "",
        f"nvcc {release[1] if release else compiler}; {machine.describe()}.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * 2 + "---:|" * (len(HEADINGS) - 2),
        *("| " + " | ".join(cells(line)) + " |" for line in lines),
    ]
    return "\n".join(page) + "\n"


def known(case: Case, target: str, symbolic: bool, keep: Path | None, display: Display) -> Line:
    """``measure`` for a case. What it finds stays in the folder ``keep``, and is not measured again."""
    file = None if keep is None else keep / f"{case.name}-{target}{'-symbolic' if symbolic else ''}.json"
    if file is not None and file.is_file():
        found = json.loads(file.read_text())
        return Line(**{**found, "warnings": tuple(found["warnings"])})
    model = case.build(LAYERS)
    line = measure(
        case.title, luminal.read(model.module, model.inputs, dims=model.dims if symbolic else None), target, display
    )
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(line)))
    return line


def main(
    models: Annotated[str, typer.Option(help="names of models, with commas between; default: all")] = "",
    target: Annotated[str, typer.Option(help="targets, with commas between")] = ",".join(TARGETS),
    symbolic: Annotated[bool, typer.Option(help="with symbolic sizes instead of those of the examples")] = False,
    write: Annotated[Path | None, typer.Option(help="write the table here: docs/devices.md")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="a folder of results, to go on from where a run was stopped")
    ] = None,
) -> None:
    """Compile the kernels of models for GPUs, and say what they take."""
    os.environ[config.NO_CACHE.variable] = "1"
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    try:
        cases = chosen(models.split(",") if models else None)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--models") from error
    if write is not None:
        destination.file(write, "--write")
    lines: list[Line] = []
    for case, name in itertools.product(cases, target.split(",")):
        print(f"\n{case.title}", file=sys.stderr)
        with Display(Console(stderr=True)) as display:
            lines.append(known(case, name, symbolic, keep, display))
    table = Table(box=box.SIMPLE_HEAD)
    for heading in HEADINGS:
        table.add_column(heading)
    for line in lines:
        table.add_row(*cells(line))
    Console(width=140).print(table)
    if write is not None:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(markdown(lines, toolchain.find_nvcc().version), encoding="utf-8")
    for warning in dict.fromkeys(warning for line in lines for warning in line.warnings):
        print(warning)
    if not all(line.ok for line in lines):
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
