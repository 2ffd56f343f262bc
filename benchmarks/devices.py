"""The kernels of the models at their real sizes, compiled for GPUs by nvcc: ``python -m benchmarks.devices``.

Nothing runs, so no GPU is needed. For each model and architecture: how many kernels there are, the registers and the
shared memory of the one that takes most of them, what threads spill to memory, and what the compiler warned of. The
exit code is 1 where anything is spilled or warned of.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

import luminal
from benchmarks.suite import chosen
from luminal.codegen import build, render
from luminal.core import target as targets
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.display import Display

TARGETS = ("cuda:sm_80", "cuda:sm_90", "cuda:sm_100")
LAYERS = 2  # of the decoder: they have all its kernels


@dataclass(frozen=True)
class Line:
    """What became of one model for one architecture. ``registers`` are those of a thread, ``shared`` the bytes of a
    block, each of the kernel that takes most; ``spilled`` the bytes of all kernels."""

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
    built = build.build(bundle, None, lambda what, done, total: display.report(stage, done / max(total, 1)))
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


def main(
    models: Annotated[str, typer.Option(help="names of models, with commas between; default: all")] = "",
    target: Annotated[str, typer.Option(help="targets, with commas between")] = ",".join(TARGETS),
    symbolic: Annotated[bool, typer.Option(help="with symbolic sizes instead of those of the examples")] = False,
) -> None:
    """Compile the kernels of models for GPUs, and say what they take."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    try:
        cases = chosen(models.split(",") if models else None)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--models") from error
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("model", "target", "kernels", "registers", "shared", "spilled", "warnings", "time"):
        table.add_column(heading)
    lines: list[Line] = []
    for case in cases:
        print(f"\n{case.title}", file=sys.stderr)
        model = case.build(LAYERS)
        graph = luminal.read(model.module, model.inputs, dims=model.dims if symbolic else None)
        with Display(Console(stderr=True)) as display:
            lines += [measure(case.title, graph, name, display) for name in target.split(",")]
    for line in lines:
        table.add_row(
            line.model, line.target, str(line.kernels), str(line.registers), f"{line.shared} B",
            f"{line.spilled} B", str(len(line.warnings)), f"{line.seconds:.0f} s",
        )  # fmt: skip
    Console(width=140).print(table)
    for warning in dict.fromkeys(warning for line in lines for warning in line.warnings):
        print(warning)
    if not all(line.ok for line in lines):
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
