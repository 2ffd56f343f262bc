"""Luminal beside onnxruntime, OpenVINO and PyTorch: ``python -m benchmarks``.

Every model is timed in several fresh processes. In each, all implementations get the same inputs and as many threads,
and take turns; a time is the median of its runs there, and a ratio the median over the processes of the ratios of such
times.

With ``--write docs/benchmarks.md``, what was measured joins the measurements of other runs in ``docs/benchmarks.json``
as it comes, and the page is written from all of them: a run may be stopped, and gone on with by ``--resume``.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import apart, attention, report, tables
from benchmarks.progress import Work
from benchmarks.results import Results
from benchmarks.suite import CASES, DECODER_LAYERS, LASTING, PRECISIONS, Case, Setting

ATTENTION = "attention"
BATCHES = sorted({batch for case in CASES.values() for batch in case.batches})


def main(
    only: Annotated[
        str, typer.Option(help=f"names of models, or '{ATTENTION}', with commas between; default: all")
    ] = "",
    precision: Annotated[str, typer.Option(help=f"{', '.join(PRECISIONS)}, with commas between")] = "fp32",
    batch: Annotated[
        str, typer.Option(help=f"{', '.join(map(str, BATCHES))}, with commas between; 32 is for some models alone")
    ] = "1",
    threads: Annotated[str, typer.Option(help="numbers of threads, with commas between")] = "2",
    processes: Annotated[int, typer.Option(min=1, help="fresh processes for each model")] = 5,
    runs: Annotated[
        int, typer.Option(min=3, help=f"timed runs of each in a process; more where these take under {LASTING:g} s")
    ] = 15,
    layers: Annotated[int, typer.Option(min=1, max=DECODER_LAYERS, help="layers of the decoder")] = 4,
    quick: Annotated[bool, typer.Option("--quick", help="one process and five runs: a first look")] = False,
    write: Annotated[Path | None, typer.Option(help=tables.WRITE)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="keep what this machine has measured, and go on from there")
    ] = False,
) -> None:
    """Time luminal beside onnxruntime, OpenVINO and PyTorch."""
    if quick:
        processes, runs = 1, 5
    names = tables.among(only, [*CASES, ATTENTION], "--only")
    precisions = tables.precisions(precision, PRECISIONS)
    batches = [int(size) for size in tables.among(batch, list(map(str, BATCHES)), "--batch")]
    counts = tables.numbers(threads, "--threads")
    if resume and write is None:
        raise typer.BadParameter("there is nothing to go on from without --write", param_hint="--resume")
    found = Results(tables.measurements(write))
    # All of a setting before the next, so that a run that is stopped leaves whole tables.
    cells = [
        (case, Setting(*choice))
        for choice in itertools.product(precisions, batches, counts)
        for case in CASES.values()
        # Decoders in float32, of which the file in integers is made, are more than the quantiser takes.
        if case.name in names and choice[1] in case.batches and not (choice[0] == "int8" and case.decoder)
    ]
    failed = _models(cells, found, layers, processes, runs, 0.0 if quick else LASTING, resume, write)
    with_attention = ATTENTION in names and "fp32" in precisions and 1 in batches
    for number in counts if with_attention else ():
        if not (resume and found.get(f"{report.ATTENTION}{number}", here=True)):
            found.put(f"{report.ATTENTION}{number}", [asdict(head) for head in attention.measure(number, runs)])
        if write is not None:
            report.write(found, write)
    console = Console(width=190)
    measured = [result for result in report.results(found) if (result.case, result.setting) in cells]
    for setting, group in report.by_setting(measured).items():
        console.print(str(setting), highlight=False)
        console.print(tables.terminal(report.headings(setting), report.rows(group), 2 if setting.main else 1))
        console.print(report.summary(group), highlight=False)
        if setting.precision != "fp32":
            console.print(tables.terminal(report.error_headings(setting), report.error_rows(group), left=1))
    for number in counts if with_attention else ():
        console.print(tables.terminal(attention.HEADINGS, attention.rows(report.heads(found, number))))
    for line in failed:
        print(line, file=sys.stderr)
    if failed:
        raise typer.Exit(1)


def _models(
    cells: list[tuple[Case, Setting]],
    found: Results,
    layers: int,
    processes: int,
    runs: int,
    lasting: float,
    resume: bool,
    write: Path | None,
) -> list[str]:
    """Measure models in settings; returns what failed."""
    kept = {cell: report.kept(found, *cell, layers)[:processes] if resume else [] for cell in cells}
    pieces = [(cell, number) for cell in cells for number in range(len(kept[cell]), processes)]
    work = Work([report.expected(found, *cell) for cell, _ in pieces])
    failed = []
    for cell in cells:
        samples = kept[cell]
        case, setting = cell
        with tempfile.TemporaryDirectory(prefix="luminal-benchmarks-") as folder:
            for number in range(len(samples), processes):
                work.begin(f"{case.title}; {setting}: process {number + 1} of {processes}")
                options = {
                    "name": case.name, "setting": asdict(setting), "folder": folder, "layers": layers, "runs": runs,
                    "lasting": lasting, "with_kernels": number == 0,
                }  # fmt: skip
                try:
                    sample = apart.run("benchmarks.measure", options)
                except subprocess.CalledProcessError as error:
                    failed.append(f"{case.title}; {setting}: {error.returncode} from its process")
                    work.end()
                    continue
                samples.append({**sample, "seconds": work.end()})
                found.put(report.part(case.name, setting), {"layers": layers, "samples": samples})
        if write is not None:
            report.write(found, write)
    return failed


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
