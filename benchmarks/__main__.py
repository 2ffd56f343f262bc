"""Luminal beside onnxruntime, OpenVINO and PyTorch: ``python -m benchmarks``.

Every model is timed in several fresh processes. In each, all implementations get the same inputs and as many threads,
and take turns; a time is the median of its runs there, and a ratio the median over the processes of the ratios of such
times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import attention, report
from benchmarks.suite import DECODER_LAYERS, Case, chosen
from luminal import destination


def _measure(case: Case, folder: Path, layers: int, threads: int, runs: int) -> report.Sample:
    """One sample, by a process of its own, whose progress is shown here."""
    options = {"name": case.name, "folder": str(folder), "layers": layers, "threads": threads, "runs": runs}
    # The thread counts of OpenMP and MKL that a shell may have set are not those asked for.
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", json.dumps(options)],
        stdout=subprocess.PIPE, text=True, check=True, env=environment,
    )  # fmt: skip
    return report.sample(json.loads(done.stdout.splitlines()[-1]))


def _shown(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def main(
    models: Annotated[str, typer.Option(help="names of models, with commas between; default: all")] = "",
    threads: Annotated[int, typer.Option(min=1, help="threads of every implementation")] = 2,
    processes: Annotated[int, typer.Option(min=1, help="fresh processes for each model")] = 5,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each in a process")] = 15,
    layers: Annotated[int, typer.Option(min=1, max=DECODER_LAYERS, help="layers of the decoder")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="one process and five runs: a first look")] = False,
    with_attention: Annotated[bool, typer.Option("--attention/--no-attention", help="long attention too")] = True,
    write: Annotated[Path | None, typer.Option(help="write table and chart here: docs/benchmarks.md")] = None,
) -> None:
    """Time luminal beside onnxruntime, OpenVINO and PyTorch."""
    if quick:
        processes, runs = 1, 5
    try:
        cases = chosen(models.split(",") if models else None)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--models") from error
    if write is not None:
        destination.file(write, "--write")
    results: list[report.Result] = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="luminal-benchmarks-") as folder:
            samples = []
            for number in range(processes):
                print(f"\n{case.title}: process {number + 1} of {processes}", file=sys.stderr)
                samples.append(_measure(case, Path(folder), layers, threads, runs))
        title = f"{case.title}, {layers} of {DECODER_LAYERS} layers" if case.decoder else case.title
        results.append(report.Result(title, tuple(samples)))
    heads = attention.measure(threads, runs) if with_attention else []
    console = Console(width=170)
    console.print(_shown(report.HEADINGS, report.rows(results)))
    console.print(report.summary(results), highlight=False)
    if heads:
        console.print(_shown(attention.HEADINGS, attention.rows(heads)))
    if write is not None:
        write.parent.mkdir(parents=True, exist_ok=True)
        chart = write.with_suffix(".svg")
        chart.write_text(report.chart(results), encoding="utf-8")
        write.write_text(report.page(results, heads, chart.name, threads, processes, runs), encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
