"""What tuning gains: each model by formula and as tuned, one beside the other. ``python -m benchmarks.tuning``

The records are those of a file of their own, which is made anew unless ``--records`` names one to go on with.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import report, searching, tables
from benchmarks.goals import FASTER
from benchmarks.progress import Work
from benchmarks.results import Results
from benchmarks.suite import CASES
from luminal.core import config
from luminal.display import Display
from luminal.tuning.search import QUICK


def main(
    only: Annotated[str, typer.Option(help="names of models, with commas between; default: those with goals")] = "",
    threads: Annotated[int, typer.Option(min=1, help="of a run")] = 2,
    budget: Annotated[
        float, typer.Option(help="seconds to tune each model for; 0: take the records as they are")
    ] = QUICK,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 31,
    records: Annotated[Path | None, typer.Option(help="the file of records to read and to add to")] = None,
    write: Annotated[Path | None, typer.Option(help=tables.WRITE)] = None,
) -> None:
    """Tune models of the suite, and time them by formula and as tuned."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    names = tables.among(only or ",".join(FASTER["fp32"]), CASES, "--only")
    found, rows = Results(tables.measurements(write)), []
    work = Work([2 * budget] * len(names))
    with tempfile.TemporaryDirectory(prefix="luminal-records-") as folder:
        os.environ[config.CACHE.variable] = str(Path(folder, "cache"))
        for name in names:
            work.begin(CASES[name].title)
            with Display(Console(stderr=True)) as display:
                kept = records or Path(folder, "records")
                rows.append(searching.measure(CASES[name], threads, budget, runs, kept, display))
            work.end()
            found.put(searching.part(CASES[name], threads), asdict(rows[-1]))
    Console(width=140).print(tables.terminal(searching.HEADINGS, searching.cells(rows), left=1))
    if write is not None:
        report.write(found, write)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
