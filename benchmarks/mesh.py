"""A model on two ranks beside one, as it runs and as it was foretold. ``python -m benchmarks.mesh``

One rank alone with one thread and with two, and two ranks with one thread each, take turns, each in processes of its
own; what a rank takes is the median of its runs, the slowest rank's counts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

import luminal
from benchmarks import tables
from benchmarks.progress import Work
from benchmarks.suite import CASES, Case
from luminal.timing import text

HEADINGS = ("model", "ranks x threads", "foretold", "measured", "ratio", "of one rank with two threads")
WAYS = ((1, 1), (1, 2), (2, 1))  # ranks, threads of each
ROUNDS = 3  # that the ways take turns


def main(
    only: Annotated[str, typer.Option(help="names of models, with commas between")] = "minilm,bert-base,gpt2",
    runs: Annotated[int, typer.Option(min=3, help="timed runs in each turn")] = 15,
    link: Annotated[str, typer.Option(help="what joins two processes of this machine")] = "5GB/s,20us",
) -> None:
    """Time models on two ranks of this machine beside one, and compare with the forecast."""
    warnings.simplefilter("ignore")  # what PyTorch's exporter says of itself
    names = tables.among(only, CASES, "--only")
    work, rows = Work([60.0] * len(names)), []
    for name in names:
        work.begin(CASES[name].title)
        rows += measure(CASES[name], runs, link)
        work.end()
    Console(width=140).print(tables.terminal(HEADINGS, rows, left=1))


def measure(case: Case, runs: int, link: str) -> list[tuple[str, ...]]:
    """A row for each way of running ``case``."""
    model = case.build(2)
    with tempfile.TemporaryDirectory(prefix="luminal-mesh-") as folder:
        root = Path(folder)
        alone = luminal.compile(model.module, model.inputs, name="alone")
        assert isinstance(alone, luminal.Module)
        alone.export(root / "1", python_module=False)
        mesh = {"tensor": 2}
        divided = luminal.compile(model.module, model.inputs, name="divided", mesh=mesh, link=link)
        divided.export(root / "2", python_module=False)
        names = alone.input_names
        np.savez(root / "inputs.npz", **{n: x.numpy() for n, x in zip(names, model.inputs, strict=True)})
        outlooks = {
            threads: luminal.plan(model.module, model.inputs, mesh=mesh, link=link, threads=threads)
            for threads in (1, 2)
        }  # fmt: skip
        found: dict[tuple[int, int], list[float]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way in WAYS:
                found[way].append(timed(root, *way, runs))
    foretold = {
        (1, 1): outlooks[1].alone["main"].seconds, (1, 2): outlooks[2].alone["main"].seconds,
        (2, 1): outlooks[1].divided["main"].seconds,
    }  # fmt: skip
    measured = {way: statistics.median(seconds) for way, seconds in found.items()}
    return [
        (
            case.title, f"{way[0]} x {way[1]}", text(foretold[way]), text(measured[way]),
            f"{measured[way] / foretold[way]:.2f}", f"{measured[1, 2] / measured[way]:.2f}x",
        )
        for way in WAYS
    ]  # fmt: skip


def timed(root: Path, ranks: int, threads: int, runs: int) -> float:
    """Seconds of a run, on so many ranks with so many threads each."""
    command = [sys.executable, "-m", "benchmarks.mesh_rank", str(root / str(ranks)), str(root / "inputs.npz")]
    command += [str(threads), str(runs), str(root / "seconds")]
    if ranks > 1:
        mpirun = Path(sys.executable).with_name("mpirun")
        command = [str(mpirun if mpirun.exists() else "mpirun"), "-n", str(ranks), *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise typer.BadParameter(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    files = sorted(root.glob("seconds.*"))
    seconds = max(float(statistics.median(json.loads(file.read_text()))) for file in files)
    for file in files:
        file.unlink()
    return seconds


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
