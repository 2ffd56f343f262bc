"""One model timed in one process: ``python -m benchmarks.measure MODEL FOLDER``, a line of JSON on standard output.

All that compiling leaves stays in ``FOLDER``, for the processes that follow.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import luminal
from benchmarks import machine, peers, zoo
from benchmarks.suite import CASES
from luminal.core import config, symbolic
from luminal.core import target as targets
from luminal.core.program import Program
from luminal.display import Display
from luminal.frontends.fx.export import export
from luminal.module import Module
from luminal.peak import Peak, Probe
from luminal.timing import interleaved

FRONT_ENDS = ("PyTorch", "ONNX")
KINDS = ("fixed", "symbolic")


@dataclass(frozen=True)
class Compiled:
    """What it took to compile a model through one front end: seconds, and bytes of memory, compilers included. Where
    the folder held it already, the seconds are those of finding it."""

    seconds: float
    memory: int


@dataclass(frozen=True)
class Sample:
    """What one process measured.

    ``times`` are medians in seconds, by contender: "luminal PyTorch fixed" and so on, or a peer's name.
    ``operations`` and ``bytes`` are what the model needs at least: those of its contractions, and inputs, outputs and
    weights read or written once. ``peak`` is what the machine reached, in operations and bytes a second.
    """

    times: dict[str, float]
    compiled: dict[str, Compiled]
    operations: int
    bytes: int
    peak: Peak


def measure(name: str, folder: Path, layers: int, threads: int, runs: int, display: Display) -> Sample:
    """Open every contender for a model, and time them taking turns."""
    torch.set_num_threads(threads)
    with _stage(display, "make the model"):
        model = CASES[name].build(layers)
    os.environ[config.CACHE.variable] = str(folder / "luminal")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    files = {kind: folder / kind / "model.onnx" for kind in KINDS}
    for kind, path in files.items():
        if not path.exists():
            path.parent.mkdir(parents=True)
            with _stage(display, f"export to ONNX, {kind}"):
                zoo.to_onnx(model, path, dynamic=kind == "symbolic")
    modules, compiled = _compile(model, files, threads, display)
    probe = Probe(targets.detect(), threads)
    peak = probe.measure()
    arrays = [np.ascontiguousarray(value.numpy()) for value in model.inputs]
    contenders: dict[str, peers.Run] = {key: _bound(module, arrays) for key, module in modules.items()}
    for peer, make in peers.PEERS.items():
        with _stage(display, f"open {peer}"):
            contenders[peer] = make(model, files["fixed"], threads)
            contenders[peer]()
    found = interleaved(contenders, runs, watch=lambda done, total: display.report("time", done / total))
    program = modules["luminal PyTorch fixed"].program
    assert program is not None
    return Sample(
        {key: timing.median for key, timing in found.items()},
        compiled,
        sum(int(symbolic.evaluate(step.operations, {})) for step in program.entries[0].launches),
        _bytes(program),
        peak | probe.measure(),
    )


def _compile(
    model: zoo.Model, files: dict[str, Path], threads: int, display: Display
) -> tuple[dict[str, Module], dict[str, Compiled]]:
    """The model through both front ends, at the sizes of its inputs and with its symbolic dimensions."""
    modules: dict[str, Module] = {}
    compiled: dict[str, Compiled] = {}
    for kind in KINDS:
        dims = model.dims if kind == "symbolic" else None
        sources = {"PyTorch": export(model.module, model.inputs, dims), "ONNX": files[kind]}
        for front_end, source in sources.items():
            key = f"luminal {front_end} {kind}"
            bounds = model.bounds if front_end == "ONNX" and kind == "symbolic" else dims
            with _stage(display, f"compile from {front_end}, {kind}"), machine.Peak() as memory:
                start = time.perf_counter()
                module = luminal.compile(source, dims=bounds, threads=threads)
                seconds = time.perf_counter() - start
            assert isinstance(module, Module)
            modules[key], compiled[key] = module, Compiled(seconds, memory.bytes)
    return modules, compiled


def _bound(module: Module, arrays: list[Any]) -> Callable[[], object]:
    return lambda: module.library.run(arrays)


def _bytes(program: Program) -> int:
    """Inputs, outputs and constants, each once. (A table of which a run reads a few rows counts for those alone.)"""
    looked_up = {
        name
        for step in program.entries[0].launches
        for name in step.arguments
        if program.kernels[step.kernel].nest.checked and program.buffer(name).space == "constant"
    }
    kept = [b for b in program.buffers if b.space != "arena" and b.name not in looked_up]
    return sum(b.size for b in kept)


@contextmanager
def _stage(display: Display, name: str) -> Iterator[None]:
    display.report(name, 0.0)
    yield
    display.report(name, 1.0)


def main() -> None:
    """Reads its options as JSON: it is called by ``benchmarks`` alone."""
    options = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")  # what PyTorch's exporters say of themselves
    with Display(Console(stderr=True)) as display:
        sample = measure(**{**options, "folder": Path(options["folder"])}, display=display)
    print(json.dumps(asdict(sample)))


if __name__ == "__main__":
    main()
