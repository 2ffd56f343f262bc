"""Single contractions beside what the machine can do at most: ``python -m benchmarks.contractions``."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import products, report, tables
from benchmarks.progress import Work
from benchmarks.results import Results
from benchmarks.suite import PRECISIONS
from luminal.display import Display


def main(
    only: Annotated[str, typer.Option(help=f"{' or '.join(products.KINDS)}; default: both")] = "",
    precision: Annotated[str, typer.Option(help="fp32 or bf16, with a comma between for both")] = "fp32",
    threads: Annotated[str, typer.Option(help="numbers of threads, with commas between")] = "2",
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 15,
    first: Annotated[int, typer.Option(min=0, help="only so many shapes of each, for a first look; 0: all")] = 0,
    write: Annotated[Path | None, typer.Option(help=tables.WRITE)] = None,
) -> None:
    """Time single contractions beside what the machine can do at most."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    kinds, precisions = tables.among(only, products.KINDS, "--only"), tables.precisions(precision, products.MEASURED)
    pieces = list(itertools.product(precisions, tables.numbers(threads, "--threads"), kinds))
    if first and write is not None:
        raise typer.BadParameter("a first look is not written", param_hint="--first")
    found, console = Results(tables.measurements(write)), Console(width=170)
    work = Work([products.SECONDS[kind] for _, _, kind in pieces])
    for precision, number, kind in pieces:
        work.begin(f"{kind}, {PRECISIONS[precision]}, threads: {number}")
        with Display(Console(stderr=True)) as display:
            rows = products.measure(kind, precision, number, runs, first, display)
        work.end()
        found.put(f"{products.PREFIX}{kind}/{precision}/{number}", [asdict(row) for row in rows])
        console.print(tables.terminal(products.HEADINGS, products.cells(rows, precision), left=1))
        console.print(products.summary(kind, precision, number, rows), highlight=False)
        if write is not None:
            report.write(found, write)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
