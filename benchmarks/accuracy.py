"""The models at their real sizes, compared with PyTorch, onnxruntime and float64: ``make accuracy``.

Each model goes through each front end in a process of its own, which frees its memory at the end. The errors are
relative to the largest magnitude of an output, the worst over outputs and inputs.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table

import luminal
from benchmarks import errors, machine, zoo
from benchmarks.suite import CASES, DECODER_LAYERS, chosen
from luminal import destination
from luminal.comparison import Report
from luminal.core import config
from luminal.display import Display
from luminal.module import Module

FRONT_ENDS = ("PyTorch", "ONNX")
KINDS = ("fixed", "symbolic")
LIMIT = 1e-5
FEW = 4  # layers of a decoder of symbolic sizes, or in a single step: they have all its kernels


@dataclass(frozen=True)
class Line:
    """What came of one model through one front end, at the sizes of its example (``kind`` "fixed") or with symbolic
    dimensions.

    ``error`` is from float32 PyTorch, ``exact`` from float64, and ``reference`` from there to the framework
    ``compared``; ``agrees`` is the verdict of ``luminal.diff``. ``parameters`` are in millions, ``seconds`` in all.
    """

    model: str
    front_end: str
    kind: str
    parameters: float
    error: float
    exact: float
    reference: float
    compared: str
    agrees: bool
    seconds: float

    @property
    def ok(self) -> bool:
        return self.agrees and self.error <= LIMIT


def measure(name: str, front_end: str, kind: str, layers: int, display: Display) -> Line:
    """Compile a model, and compare it."""
    start = time.perf_counter()
    display.report("make the model", 0.0)
    case = CASES[name]
    model = case.build(layers)
    if kind == "fixed":
        model = model._replace(dims={})
    display.report("make the model", 1.0)
    if front_end == "PyTorch":
        report = luminal.diff(model.module, model.inputs, dims=model.dims, progress=display.report)
        error = report.worst
    else:
        report, error = _through_onnx(model, display)
    print(report, file=sys.stderr)
    exact = errors.worst(row.exact.relative for row in _rows(report))
    reference = errors.worst(row.reference.relative for row in _rows(report))
    parameters = sum(p.numel() for p in model.module.parameters()) / 1e6
    seconds = time.perf_counter() - start
    return Line(case.title, front_end, kind, parameters, error, exact, reference, report.reference, report.ok, seconds)


def _rows(report: Report) -> list[luminal.comparison.Row]:
    return [row for trial in report.trials for row in trial.rows]


def _through_onnx(model: zoo.Model, display: Display) -> tuple[Report, float]:
    """The comparison with onnxruntime, and the error from PyTorch on the model's own inputs."""
    with torch.no_grad():
        expected = model.module(*model.inputs)
    with tempfile.TemporaryDirectory() as folder:
        display.report("export to ONNX", 0.0)
        path = zoo.to_onnx(model, Path(folder, "model.onnx"), dynamic=bool(model.dims))
        display.report("export to ONNX", 1.0)
        module = luminal.compile(path, dims=model.bounds, progress=display.report)
        assert isinstance(module, Module)
        found = module.library.run([value.numpy() for value in model.inputs])
        outputs = expected if isinstance(expected, tuple) else (expected,)
        pairs = zip(found, outputs, strict=True)
        error = errors.worst(errors.relative(array, np.asarray(tensor.numpy())) for array, tensor in pairs)
        del module, found
        return luminal.diff(path, dims=model.bounds, progress=display.report), error


# ---- output --------------------------------------------------------------------------------------------------------

HEADINGS = (
    "model",
    "parameters",
    "from",
    "sizes",
    "from PyTorch",
    "from float64",
    "compared with",
    "its own",
    "verdict",
)


def cells(line: Line) -> tuple[str, ...]:
    """The cells of a table under ``HEADINGS``."""
    return (
        line.model, f"{line.parameters:.1f} M", line.front_end, line.kind, f"{line.error:.1e}", f"{line.exact:.1e}",
        line.compared, f"{line.reference:.1e}", "agrees" if line.ok else "differs",
    )  # fmt: skip


def markdown(lines: Sequence[Line]) -> str:
    """The page for ``docs/``."""
    page = [
        "# Accuracy",
        "",
        "`make accuracy`: largest errors relative to the largest magnitude of an output, the worst over all outputs. "
        "`from PyTorch` is luminal's distance from float32 PyTorch, at most 1e-5; `from float64` that from the graph "
        "evaluated in double precision, and `its own` the same for the framework that `luminal.diff` compares with. "
        "Inputs are the examples of `benchmarks/suite.py`, and drawn ones, for `symbolic` at sizes that leave tails "
        "and at the smallest; weights are random but for MiniLM's. With symbolic sizes, and in a single "
        f"step, the decoder has {FEW} layers.",
        "",
        machine.describe() + ".",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(cells(line)) + " |" for line in lines),
    ]
    return "\n".join(page) + "\n"


def _apart(name: str, front_end: str, kind: str, layers: int, keep: Path | None) -> Line:
    """``measure`` in a process of its own, with a cache of its own: the weights of these models are large. What it
    finds stays in the folder ``keep``, and is not measured again."""
    known = keep / f"{name}-{front_end}-{kind}-{layers}.json" if keep is not None else None
    if known is not None and known.is_file():
        return Line(**json.loads(known.read_text()))
    command = [sys.executable, "-m", "benchmarks.accuracy", "--models", name, "--front-end", front_end]
    command += ["--sizes", kind, "--layers", str(layers), "--json"]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, config.CACHE.variable: cache}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    if known is not None:
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(done.stdout)
    return Line(**json.loads(done.stdout))


def main(
    models: Annotated[str, typer.Option(help="names of models, with commas between; default: all")] = "",
    front_end: Annotated[str, typer.Option(help="PyTorch or ONNX; default: both")] = "",
    sizes: Annotated[str, typer.Option(help="fixed or symbolic; default: both")] = "",
    layers: Annotated[int, typer.Option(min=1, max=DECODER_LAYERS, help="layers of the decoder")] = DECODER_LAYERS,
    write: Annotated[Path | None, typer.Option(help="the page to write")] = Path("docs/accuracy.md"),
    keep: Annotated[
        Path | None, typer.Option(help="a folder of results, to go on from where a run was stopped")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="measure one model here, and print the result")] = False,
) -> None:
    """Compare the models at their real sizes; the exit code is 1 where one differs."""
    warnings.simplefilter("ignore")  # what PyTorch's exporters say of themselves
    try:
        cases = chosen(models.split(",") if models else None)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--models") from error
    if as_json:
        with Display(Console(stderr=True)) as display:
            print(json.dumps(asdict(measure(cases[0].name, front_end, sizes, layers, display))))
        return
    if write is not None:
        destination.file(write, "--write")
    lines: list[Line] = []
    for case, end, kind in itertools.product(cases, FRONT_ENDS, KINDS):
        if front_end in ("", end) and sizes in ("", kind):
            print(f"\n{case.title} from {end}, {kind}", file=sys.stderr)
            depth = layers if kind == "fixed" and not case.step else min(layers, FEW)
            lines.append(_apart(case.name, end, kind, depth, keep))
    table = Table(box=box.SIMPLE_HEAD)
    for heading in HEADINGS:
        table.add_column(heading)
    for line in lines:
        table.add_row(*cells(line))
    Console(width=140).print(table)
    if write is not None and not (models or front_end or sizes or layers < DECODER_LAYERS):
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(markdown(lines), encoding="utf-8")
    if not all(line.ok for line in lines):
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
