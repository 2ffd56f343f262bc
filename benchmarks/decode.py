"""A decoder's step beside llama.cpp's: ``python -m benchmarks.decode``."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import apart, decoding, llama, report, tables, zoo
from benchmarks.progress import Work
from benchmarks.results import Results


def main(
    only: Annotated[str, typer.Option(help=f"{', '.join(decoding.TITLES)}, with commas between; default: all")] = "",
    layers: Annotated[int, typer.Option(min=1, max=zoo.LAYERS, help="layers of the decoder")] = zoo.LAYERS,
    threads: Annotated[str, typer.Option(help="numbers of threads, with commas between")] = "2",
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 31,
    write: Annotated[Path | None, typer.Option(help=tables.WRITE)] = None,
) -> None:
    """Time a decoder's step beside llama.cpp's, with weights of several kinds."""
    if llama.missing():
        raise typer.BadParameter(f"{' and '.join(llama.missing())} is missing: {llama.INSTALL}", param_hint="llama.cpp")
    kinds, counts = tables.among(only, decoding.TITLES, "--only"), tables.numbers(threads, "--threads")
    if "bf16" in kinds and only:
        tables.precisions("bf16", ["bf16"])
    found = Results(tables.measurements(write))
    pieces = list(itertools.product(kinds, counts))
    work, failed = Work([None] * len(pieces)), []
    for kind, number in pieces:
        work.begin(f"{decoding.TITLES[kind]}, threads: {number}")
        options = {"kind": kind, "layers": layers, "threads": number, "runs": runs}
        try:
            found.put(f"{decoding.PREFIX}{kind}/{number}", apart.run("benchmarks.decoding", options))
        except subprocess.CalledProcessError as error:
            failed.append(f"{kind}: {error}")
        work.end()
        if write is not None:
            report.write(found, write)
    console = Console(width=170)
    for number in counts:
        steps = {kind: step for (kind, n), step in decoding.parts(found).items() if n == number and kind in kinds}
        console.print(f"threads: {number}")
        console.print(tables.terminal(decoding.HEADINGS, decoding.cells(steps), left=1))
    for line in failed:
        print(line, file=sys.stderr)
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
