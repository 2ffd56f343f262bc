"""A shipped ONNX file beside onnxruntime, in a process of its own: ``python -m benchmarks.comparing OPTIONS``, a line
of JSON on standard output."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from rich.console import Console

import luminal
from benchmarks import shipped
from benchmarks.errors import worst
from luminal import profile
from luminal.core.errors import LuminalError
from luminal.display import Display
from luminal.module import Module
from luminal.timing import interleaved

SHOWN = 6  # kernels, of those that take the most time


@dataclass(frozen=True)
class Compared:
    """A file beside onnxruntime on so many ``threads``: seconds of a run, medians and minimums; luminal's largest
    ``error`` from it, relative to the range of the output; the ``load`` of the machine before timing, as
    ``getloadavg`` has it. ``refused`` is why there is none of these."""

    threads: int
    luminal: float = 0.0
    luminal_best: float = 0.0
    onnxruntime: float = 0.0
    onnxruntime_best: float = 0.0
    error: float = 0.0
    load: float = 0.0
    kernels: tuple[profile.KernelTime, ...] = ()
    kernel_seconds: float = 0.0
    refused: str = ""


def measure(name: str, threads: int, runs: int, display: Display) -> Compared:
    """Compile a file as it was shipped, and time it and onnxruntime, taking turns."""
    file = shipped.FILES[name]
    path = shipped.fetched(file, shipped.folder())
    given = shipped.drawn(file, path)
    session = _session(path, threads)
    try:
        module = luminal.compile(path, dims=file.dims, threads=threads, progress=display.report)
        if isinstance(module, luminal.Specialised):
            module = module.module(**given)
    except LuminalError as refusal:
        return Compared(threads, refused=str(refusal))
    assert isinstance(module, Module)
    expected = dict(zip([value.name for value in session.get_outputs()], session.run(None, given), strict=True))
    taken = {key: given[key] for key in module.input_names}
    found = module.run(taken)
    error = worst(relative(found[key], value) for key, value in expected.items())
    arrays, load = list(taken.values()), os.getloadavg()[0]
    contenders = {"luminal": lambda: module.library.run(arrays), "onnxruntime": lambda: session.run(None, given)}
    times = interleaved(
        contenders, runs, lasting=1.0, budget=8.0, watch=lambda done, total: display.report("time", done / total)
    )
    kernels = profile.profile(module, taken, runs=5, threads=threads)
    ours, theirs = times["luminal"], times["onnxruntime"]
    return Compared(
        threads, ours.median, ours.best, theirs.median, theirs.best, error, load, tuple(kernels[:SHOWN]),
        sum(kernel.seconds for kernel in kernels),
    )  # fmt: skip


def relative(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference, relative to the range of ``expected``, or to its magnitude where all of it is one number;
    NaN where one has what is no number and the other not, infinite where shapes differ."""
    if found.shape != expected.shape:
        return math.inf
    if not expected.size:
        return 0.0
    one, other = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return math.nan
    one, other = one[np.isfinite(other)], other[np.isfinite(other)]
    apart = np.abs(one - other).max(initial=0.0)
    extent = np.ptp(other) if other.size else 0.0
    return float(apart / (extent or np.abs(other).max(initial=0.0) or 1.0))


def _session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Reads its options as JSON: it is called by ``benchmarks.files`` alone."""
    with Display(Console(stderr=True)) as display:
        found = measure(**json.loads(sys.argv[1]), display=display)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
