"""Luminal beside onnxruntime and PyTorch: ``python -m benchmarks``.

Every implementation gets the same inputs and as many threads, and they take turns in one process; a time is the median
of its runs. Compile times are from an ONNX file or an ExportedProgram to a callable: first with an empty cache, then
with what that left.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import torch
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

import luminal
from benchmarks import machine, zoo
from luminal.comparison.references import session_options
from luminal.core import config
from luminal.display import Display
from luminal.frontends.fx.export import export
from luminal.module import Module
from luminal.timing import Timing, interleaved, text

MODELS: dict[str, Callable[[int], zoo.Model]] = {
    "MiniLM-L6, 1 x 128 tokens": lambda layers: zoo.minilm(batch=1, seq=128),
    "MiniLM-L6, 8 x 128 tokens": lambda layers: zoo.minilm(batch=8, seq=128),
    "ResNet-50, 1 x 3 x 224 x 224": lambda layers: zoo.resnet50(batch=1),
    "TinyLlama's decoder, 1 x 64 tokens": lambda layers: zoo.tinyllama(layers, batch=1, seq=64),
}
FRAMEWORKS = ("onnxruntime", "torch")


@dataclass(frozen=True)
class Compiled:
    """A module, the seconds that it took to compile without and with the cache, and the growth of memory meanwhile."""

    module: Module
    cold: float
    cached: float
    memory: int


@dataclass(frozen=True)
class Result:
    """Times by implementation (a front end of luminal, or a framework), and what compiling took by front end."""

    model: str
    times: dict[str, Timing]
    compiled: dict[str, Compiled]


def measure(name: str, model: zoo.Model, threads: int, runs: int, display: Display) -> Result:
    """Compile ``model`` through both front ends, and time it beside the frameworks."""
    with tempfile.TemporaryDirectory() as folder, _cache(Path(folder, "cache")):
        path = Path(folder, "model.onnx")
        with _stage(display, f"{name}: export"):
            program = export(model.module, model.inputs, model.dims)
            zoo.to_onnx(model, path)
        bounds = {key: value for key, value in model.dims.items() if _is_range(value)}
        compiled = {
            "PyTorch": _compile(program, model.dims, threads, display, f"{name}, from PyTorch"),
            "ONNX": _compile(path, bounds, threads, display, f"{name}, from ONNX"),
        }
        times = _time(name, model, path, {k: c.module for k, c in compiled.items()}, threads, runs, display)
    return Result(name, times, compiled)


def _is_range(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, tuple) and all(isinstance(v, int) for v in value))


@contextmanager
def _stage(display: Display, name: str) -> Iterator[None]:
    display.report(name, 0.0)
    yield
    display.report(name, 1.0)


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """Compile into a cache of its own."""
    before = os.environ.get(config.CACHE.variable)
    os.environ[config.CACHE.variable] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[config.CACHE.variable]
        else:
            os.environ[config.CACHE.variable] = before


def _compile(source: Any, dims: Any, threads: int, display: Display, what: str) -> Compiled:
    seconds: list[float] = []
    memory = 0
    for temperature in ("cold", "cached"):
        with _stage(display, f"{what}: compile, {temperature}"), machine.Peak() as peak:
            start = time.perf_counter()
            module = luminal.compile(source, dims=dims, threads=threads)
            seconds.append(time.perf_counter() - start)
        memory = max(memory, peak.bytes)
    assert isinstance(module, Module)
    return Compiled(module, seconds[0], seconds[1], memory)


def _time(
    name: str,
    model: zoo.Model,
    path: Path,
    modules: dict[str, Module],
    threads: int,
    runs: int,
    display: Display,
) -> dict[str, Timing]:
    arrays = [np.ascontiguousarray(value.numpy()) for value in model.inputs]
    session = onnxruntime.InferenceSession(path, session_options(threads), providers=["CPUExecutionProvider"])
    feeds = {value.name: array for value, array in zip(session.get_inputs(), arrays, strict=True)}
    contenders: dict[str, Callable[[], object]] = {
        **{key: _bound(module, arrays) for key, module in modules.items()},
        "onnxruntime": lambda: session.run(None, feeds),
        "torch": lambda: model.module(*model.inputs),
    }
    with torch.inference_mode():
        return interleaved(contenders, runs, watch=lambda done, total: display.report(f"{name}: time", done / total))


def _bound(module: Module, arrays: list[NDArray[Any]]) -> Callable[[], object]:
    return lambda: module.library.run(arrays)


# ---- output --------------------------------------------------------------------------------------------------------

FRONT = ("model", "luminal from", "/ onnxruntime", "/ torch")
HEADINGS = (*FRONT, "luminal", "onnxruntime", "torch", "compile", "cached", "memory")


def rows(results: list[Result]) -> Iterator[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``: ratios of times first, then the times."""
    for result in results:
        for front_end, compiled in result.compiled.items():
            ours = result.times[front_end].median
            theirs = [result.times[framework].median for framework in FRAMEWORKS]
            yield (
                result.model,
                front_end,
                *(f"{ours / other:.2f}" for other in theirs),
                *(text(seconds) for seconds in (ours, *theirs, compiled.cold, compiled.cached)),
                f"{compiled.memory / 2**30:.2f} GiB",
            )


def table(results: list[Result]) -> Table:
    found = Table(box=box.SIMPLE_HEAD)
    for number, heading in enumerate(HEADINGS):
        found.add_column(heading, justify="left" if number < 2 else "right", overflow="fold")
    for row in rows(results):
        found.add_row(*row)
    return found


def markdown(results: list[Result], threads: int, layers: int) -> str:
    """The page for ``docs/``."""
    lines = [
        "# Benchmarks",
        "",
        f"`python -m benchmarks`, {threads} threads: medians of interleaved runs in one process, and how many times "
        "another's time luminal takes (below 1 is faster). onnxruntime's threads do not spin between runs, which would "
        "slow the others down and does not change its own times. `compile` is from a file or an ExportedProgram to a "
        "callable with an empty cache, `cached` once more with what that left, `memory` the growth of resident memory "
        f"meanwhile, compilers included. The decoder has TinyLlama-1.1B's widths and {layers} of its 22 layers.",
        "",
        machine.describe() + ".",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * 2 + "---:|" * (len(HEADINGS) - 2),
        *("| " + " | ".join(row) + " |" for row in rows(results)),
    ]
    return "\n".join(lines) + "\n"


def main(
    models: Annotated[list[str] | None, typer.Argument(help="parts of names; default: all models")] = None,
    threads: Annotated[int, typer.Option(help="threads of every implementation")] = 2,
    runs: Annotated[int, typer.Option(help="timed runs of each")] = 21,
    layers: Annotated[int, typer.Option(help="layers of the decoder, up to 22")] = 4,
    write: Annotated[Path | None, typer.Option(help="write the table to this page, docs/benchmarks.md")] = None,
) -> None:
    """Time luminal beside onnxruntime and PyTorch."""
    wanted = [n for n in MODELS if not models or any(part.lower() in n.lower() for part in models)]
    if not wanted:
        raise typer.BadParameter(f"no model is called {models}; there are {', '.join(MODELS)}")
    warnings.simplefilter("ignore")  # what PyTorch's exporters say of themselves
    torch.set_num_threads(threads)
    results: list[Result] = []
    with Display(Console(stderr=True)) as display:
        for name in wanted:
            results.append(measure(name, MODELS[name](layers), threads, runs, display))
    Console(width=150).print(table(results))
    if write is not None:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(markdown(results, threads, layers), encoding="utf-8")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
