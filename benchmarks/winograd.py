"""What minimal filtering gains: ``python -m benchmarks.winograd``."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import filtering, report, tables
from benchmarks.progress import Work
from benchmarks.results import Results
from luminal.display import Display


def main(
    only: Annotated[str, typer.Option(help=f"{', '.join(filtering.MODELS)}, with commas between; default: all")] = "",
    threads: Annotated[str, typer.Option(help="numbers of threads, with commas between")] = "2",
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 31,
    write: Annotated[Path | None, typer.Option(help=tables.WRITE)] = None,
) -> None:
    """Time convolutional networks with minimal filtering and without."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    names, counts = tables.among(only, filtering.MODELS, "--only"), tables.numbers(threads, "--threads")
    found, console = Results(tables.measurements(write)), Console(width=170)
    work = Work([None] * (len(names) * len(counts)))
    for number in counts:
        rows = []
        for name in names:
            work.begin(f"{filtering.MODELS[name][0]}, threads: {number}")
            with Display(Console(stderr=True)) as display:
                rows.append(filtering.measure(name, number, runs, display))
            work.end()
        found.put(f"{filtering.PREFIX}{number}", [asdict(row) for row in rows])
        console.print(f"threads: {number}")
        console.print(tables.terminal(filtering.HEADINGS, filtering.cells(rows), left=1))
    if write is not None:
        report.write(found, write)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
