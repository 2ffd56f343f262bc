"""One model timed in one process: ``python -m benchmarks.measure OPTIONS``, a line of JSON on standard output.

All that compiling leaves stays in a folder, for the processes that follow.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import luminal
from benchmarks import errors, integers, machine, peers, zoo
from benchmarks.suite import CASES, COMPUTED, KINDS, Setting
from benchmarks.suite import luminal as contender
from luminal import profile
from luminal.core import config, symbolic
from luminal.core import target as targets
from luminal.core.schedule.program.ir import Program
from luminal.display import Display
from luminal.frontends.fx.export import export
from luminal.module import Module
from luminal.peak import Peak, Probe
from luminal.timing import interleaved


@dataclass(frozen=True)
class Compiled:
    """What it took to compile a model through one front end: seconds, and bytes of memory, compilers included. Where
    the folder held it already, the seconds are those of finding it."""

    seconds: float
    memory: int


@dataclass(frozen=True)
class Sample:
    """What one process measured.

    ``times`` and ``best`` are medians and minimums in seconds, by contender: "luminal PyTorch fixed" and so on, or a
    peer's name. ``errors`` are their largest distances from float32 PyTorch, relative to the largest magnitude of an
    output; ``failed`` says why a peer is missing. ``operations`` and ``bytes`` are what the model needs at least: those
    of its contractions, and inputs, outputs and weights read or written once. ``peak`` is what the machine reached in
    the same process, and ``reading`` the bytes a second of reading ``bytes`` over and over. ``library`` is the size of
    the library without weights, in bytes, ``kernels`` are those that take the most time, of ``kernel_seconds`` in all;
    they are looked at in one process of several.
    """

    times: dict[str, float]
    best: dict[str, float]
    errors: dict[str, float]
    failed: dict[str, str]
    compiled: dict[str, Compiled]
    operations: int
    bytes: int
    peak: Peak
    reading: float
    library: int
    kernels: tuple[profile.KernelTime, ...] = ()
    kernel_seconds: float = 0.0


def measure(
    name: str,
    setting: Setting,
    folder: Path,
    layers: int,
    runs: int,
    lasting: float,
    with_kernels: bool,
    display: Display,
) -> Sample:
    """Open every contender for a model, and time ``runs`` of each, taking turns, or as many as last so many seconds."""
    torch.set_num_threads(setting.threads)
    with _stage(display, "make the model"):
        model = CASES[name].build(layers, setting.batch)
    os.environ[config.CACHE.variable] = str(folder / "luminal")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    kinds = KINDS if setting.main else KINDS[:1]
    files = {kind: folder / kind / "model.onnx" for kind in kinds}
    for kind, path in files.items():
        if not path.exists():
            path.parent.mkdir(parents=True)
            with _stage(display, f"export to ONNX, {kind}"):
                zoo.to_onnx(model, path, dynamic=kind == "symbolic")
    arrays = [np.ascontiguousarray(value.numpy()) for value in model.inputs]
    if setting.quantised:
        with _stage(display, "quantise"):
            files = {kind: integers.quantised(path, arrays) for kind, path in files.items()}
    modules, compiled = _compile(model, files, setting, display)
    program = modules[setting.headline].program
    assert program is not None
    needed = needed_bytes(program)
    probe = Probe(targets.detect(), setting.threads)
    # The peak is the best of several moments: at any one, others may have a part of the machine.
    peak, reading = probe.measure(), probe.read(needed)
    contenders: dict[str, peers.Run] = {key: _bound(module, arrays) for key, module in modules.items()}
    failed: dict[str, str] = {}
    for peer, about in peers.PEERS.items():
        if setting.precision in about.precisions:
            with _stage(display, f"open {peer}"):
                try:
                    run = about.open(model, files["fixed"], setting)
                    run()
                    contenders[peer] = run
                except Exception as error:  # onnxruntime's have no base of their own
                    if setting.precision == "fp32":
                        raise
                    failed[peer] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    with _stage(display, "errors"):
        found_errors = _errors(model, contenders)
    peak |= probe.measure()
    found = interleaved(
        contenders, runs, lasting=lasting, watch=lambda done, total: display.report("time", done / total)
    )
    peak |= probe.measure()
    kernels: list[profile.KernelTime] = []
    if with_kernels:
        with _stage(display, "time kernels"):
            module = modules[setting.headline]
            inputs = dict(zip(module.input_names, arrays, strict=True))
            kernels = profile.profile(module, inputs, runs=5, threads=setting.threads)
    return Sample(
        {key: timing.median for key, timing in found.items()},
        {key: timing.best for key, timing in found.items()},
        found_errors,
        failed,
        compiled,
        sum(int(symbolic.evaluate(step.operations, {})) for step in program.entries[0].launches),
        needed,
        peak | probe.measure(),
        max(reading, probe.read(needed)),
        modules[setting.headline].library.path.stat().st_size,
        tuple(kernels[:SHOWN]),
        sum(kernel.seconds for kernel in kernels),
    )


SHOWN = 12  # kernels, of those that take the most time


def _errors(model: zoo.Model, contenders: Mapping[str, peers.Run]) -> dict[str, float]:
    """The distance of each contender's results from float32 PyTorch's, the worst over the outputs."""
    with torch.no_grad():
        expected = _arrays(model.module(*model.inputs))
    return {
        key: errors.worst(_error(one, other) for one, other in zip(_arrays(run()), expected, strict=True))
        for key, run in contenders.items()
    }


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference by the largest magnitude: in float32, since there may be a hundred million elements."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _arrays(results: Any) -> list[np.ndarray]:
    """What a contender returns, as arrays of float32."""
    several = list(results) if isinstance(results, tuple | list) else [results]
    return [np.asarray(v.float().numpy() if isinstance(v, torch.Tensor) else v, np.float32) for v in several]


def _compile(
    model: zoo.Model, files: dict[str, Path], setting: Setting, display: Display
) -> tuple[dict[str, Module], dict[str, Compiled]]:
    """The model at the sizes of its inputs; in a main setting with its symbolic dimensions too."""
    modules: dict[str, Module] = {}
    precision = COMPUTED[setting.precision]
    compiled: dict[str, Compiled] = {}
    for kind in files:
        dims = model.dims if kind == "symbolic" else None
        for front_end in setting.front_ends:
            key = contender(front_end, kind)
            source = export(model.module, model.inputs, dims) if front_end == "PyTorch" else files[kind]
            bounds = model.bounds if front_end == "ONNX" and kind == "symbolic" else dims
            with _stage(display, f"compile from {front_end}, {kind}"), machine.Peak() as memory:
                start = time.perf_counter()
                module = luminal.compile(source, dims=bounds, precision=precision, threads=setting.threads)
                seconds = time.perf_counter() - start
            assert isinstance(module, Module)
            modules[key], compiled[key] = module, Compiled(seconds, memory.bytes)
    return modules, compiled


def _bound(module: Module, arrays: list[Any]) -> Callable[[], object]:
    return lambda: module.library.run(arrays)


def needed_bytes(program: Program) -> int:
    """Inputs, outputs and constants, each once. (A table of which a run reads a few rows counts for those alone.)"""
    looked_up = {
        name
        for step in program.entries[0].launches
        for name in step.arguments
        if program.kernels[step.kernel].nest.checked and program.buffer(name).space == "constant"
    }
    kept = [b for b in program.buffers if b.space not in ("arena", "share") and b.name not in looked_up]
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
        setting = Setting(**options.pop("setting"))
        sample = measure(**{**options, "folder": Path(options["folder"])}, setting=setting, display=display)
    print(json.dumps(asdict(sample)))


if __name__ == "__main__":
    main()
