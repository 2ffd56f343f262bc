"""Single contractions with constant weights, of random shapes, beside what the machine can do at most.

Matrices by matrices are compared with the peak of multiply-adds (of products of tiles, in bfloat16) and vectors by
matrices with reading as many bytes; both are measured in the same process, in turns. One library has many of them, an
entry each.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import luminal
from benchmarks import errors, tables
from benchmarks.goals import Verdict, mean, told
from benchmarks.results import Results
from benchmarks.suite import PRECISIONS
from luminal.core import target as targets
from luminal.core.types import bf16
from luminal.display import Display
from luminal.module import Module
from luminal.peak import Probe
from luminal.timing import settle, text

SEED = 2026
ROWS, SIZES = (64, 2048), (64, 8192)  # of M; of N and K: the least and the most
MATRICES = 60
OPERATIONS = 50e6  # of a matrix by a matrix, at the least
VECTORS = 20
WEIGHTS = 16 << 20  # bytes of those of a vector by a matrix, at the least
ROTATED = 1 << 30  # bytes of the weights of all of them together, at the least: none is in a cache when its turn comes
GOALS = {"matrices": 0.82, "vectors": 0.85}  # of the peak, in the geometric mean; of the reading
KINDS = tuple(GOALS)
MEASURED = ("fp32", "bf16")
TOGETHER = 20  # entries of a library
SECONDS = {"matrices": 240.0, "vectors": 120.0}  # that a kind takes about, on two processors
BURST = 0.02  # seconds that one matrix by another is repeated for: a call by itself is too short to be timed


@dataclass(frozen=True)
class Shape:
    """A product of ``[m, k]`` and ``[k, n]``."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True)
class Row:
    """What was measured of a shape: medians in seconds, of luminal and of PyTorch; the part of the ceiling that luminal
    reaches, and its largest error, relative to the largest magnitude of the result in float32."""

    m: int
    n: int
    k: int
    seconds: float
    torch: float
    part: float
    error: float

    @property
    def shape(self) -> Shape:
        return Shape(self.m, self.n, self.k)


def matrices(count: int = MATRICES) -> list[Shape]:
    """Shapes whose sizes are drawn evenly on a logarithmic scale, always the same."""
    draw = np.random.default_rng(SEED)
    found: list[Shape] = []
    while len(found) < count:
        shape = Shape(*(_drawn(draw, *bounds) for bounds in (ROWS, SIZES, SIZES)))
        if shape.operations >= OPERATIONS:
            found.append(shape)
    return found


def vectors(itemsize: int, count: int = VECTORS, together: int = ROTATED) -> list[Shape]:
    """The same with one row: at least ``count``, and so many that their weights have ``together`` bytes, each of
    ``itemsize``."""
    draw = np.random.default_rng(SEED)
    found: list[Shape] = []
    while len(found) < count or sum(s.n * s.k for s in found) * itemsize <= together:
        shape = Shape(1, *(_drawn(draw, *SIZES) for _ in range(2)))
        if shape.n * shape.k * itemsize > WEIGHTS:
            found.append(shape)
    return found


def _drawn(draw: np.random.Generator, least: int, most: int) -> int:
    return min(int(math.exp(draw.uniform(math.log(least), math.log(most + 1)))), most)


# ---- measuring -------------------------------------------------------------------------------------------------------


class Product:
    """A product with constant weights, opened: ``ours()`` and ``theirs()`` compute it."""

    def __init__(self, shape: Shape, module: Module, entry: str, layer: nn.Module, x: torch.Tensor, precision: str):
        self.shape = shape
        array = x.numpy()
        self.ours: Callable[[], Any] = lambda: module.library.run([array], entry)
        with torch.no_grad():
            expected = layer(x).numpy()
        self.error = errors.relative(self.ours()[0], expected)
        wide = torch.bfloat16 if precision == "bf16" else torch.float32
        converted, y = layer.to(wide), x.to(wide)
        self.theirs: Callable[[], Any] = lambda: converted(y)


def opened(
    shapes: Sequence[Shape], precision: str, threads: int, display: Display, together: int = TOGETHER
) -> list[Product]:
    """The products of ``shapes``, compiled, so many in one library."""
    torch.manual_seed(SEED)
    found = []
    for first in range(0, len(shapes), together):
        some = {f"product{first + number}": shape for number, shape in enumerate(shapes[first : first + together])}
        layers: dict[str, nn.Module] = {
            name: nn.Linear(s.k, s.n, bias=False).requires_grad_(False) for name, s in some.items()
        }
        inputs = {name: (torch.randn(s.m, s.k),) for name, s in some.items()}
        title = f"compile {first + len(some)} of {len(shapes)}"
        display.report(title, 0.0)
        module = luminal.compile(layers, inputs, precision=precision, name="products", threads=threads)
        display.report(title, 1.0)
        assert isinstance(module, Module)
        found += [Product(s, module, name, layers[name], *inputs[name], precision) for name, s in some.items()]
    return found


def by_matrices(shapes: Sequence[Shape], precision: str, threads: int, runs: int, display: Display) -> list[Row]:
    """Each shape by itself, in bursts that take turns with PyTorch's and with the peak's."""
    probe = Probe(targets.detect(), threads)
    rows = []
    products = opened(shapes, precision, threads, display)
    for number, product in enumerate(products):
        display.report("time matrices", number / len(products))
        repeats = max(1, math.ceil(BURST / min(_seconds(product.ours), _seconds(product.ours))))
        ours, theirs, peaks = [], [], []
        for _ in range(runs):
            ours.append(_seconds(product.ours, repeats))
            theirs.append(_seconds(product.theirs, repeats))
            settle()
            peaks.append((probe.products(bf16, 1) if precision == "bf16" else 0.0) or probe.multiply_adds(1))
        seconds, shape = statistics.median(ours), product.shape
        part = shape.operations / seconds / max(peaks)
        rows.append(
            Row(**asdict(shape), seconds=seconds, torch=statistics.median(theirs), part=part, error=product.error)
        )
    display.report("time matrices", 1.0)
    return rows


def by_vectors(shapes: Sequence[Shape], precision: str, threads: int, runs: int, display: Display) -> list[Row]:
    """All shapes in turn, so that the weights of each have left the caches when they are read again; then PyTorch's,
    and as many bytes read by nothing else."""
    itemsize = _itemsize(precision)
    footprint = sum(s.n * s.k for s in shapes) * itemsize
    probe = Probe(targets.detect(), threads, footprint)
    products = opened(shapes, precision, threads, display)
    ours: list[list[float]] = [[] for _ in products]
    theirs: list[list[float]] = [[] for _ in products]
    rates = []
    for run in range(runs):
        display.report("time vectors", run / runs)
        for times, implementations in ((ours, [p.ours for p in products]), (theirs, [p.theirs for p in products])):
            settle()
            for number, call in enumerate(implementations):
                start = time.perf_counter()
                call()
                times[number].append(time.perf_counter() - start)
        settle()
        rates.append(probe.read(footprint, 1))
    display.report("time vectors", 1.0)
    return [
        Row(
            *(product.shape.m, product.shape.n, product.shape.k),
            seconds=(seconds := statistics.median(ours[number])),
            torch=statistics.median(theirs[number]),
            part=product.shape.n * product.shape.k * itemsize / seconds / max(rates),
            error=product.error,
        )
        for number, product in enumerate(products)
    ]


def measure(kind: str, precision: str, threads: int, runs: int, first: int, display: Display) -> list[Row]:
    """All shapes of a kind, or the ``first`` ones."""
    torch.set_num_threads(threads)
    if kind == "matrices":
        return by_matrices(matrices(first or MATRICES), precision, threads, runs, display)
    itemsize = _itemsize(precision)
    shapes = vectors(itemsize, first, 0) if first else vectors(itemsize)
    return by_vectors(shapes, precision, threads, runs, display)


def _seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """The mean of calls that follow each other, others at rest."""
    settle()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _itemsize(precision: str) -> int:
    """Bytes of a weight."""
    return 2 if precision == "bf16" else 4


# ---- output ----------------------------------------------------------------------------------------------------------

PREFIX = "contractions/"
HEADINGS = ("M x N x K", "GFLOP", "weights", "luminal", "of ceiling", "torch", "torch / luminal")
CEILINGS = {
    ("matrices", "fp32"): "the peak of multiply-adds",
    ("matrices", "bf16"): "the peak of products of tiles of bfloat16",
    ("vectors", "fp32"): "reading as many bytes",
    ("vectors", "bf16"): "reading as many bytes",
}


def parts(found: Results) -> dict[tuple[str, str, int], list[Row]]:
    """What was measured, by kind, precision and threads."""
    read = {}
    for name, value in found.under(PREFIX).items():
        kind, precision, threads = name.split("/")
        read[kind, precision, int(threads)] = [Row(**row) for row in value]
    return read


def verdicts(found: Results) -> list[Verdict]:
    """Whether the goals are reached, which are for float32 on 2 threads."""
    measured = parts(found)
    return [_verdict(kind, goal, measured.get((kind, "fp32", 2))) for kind, goal in GOALS.items()]


def _verdict(kind: str, goal: float, rows: Sequence[Row] | None) -> Verdict:
    def reached(percent: float) -> bool:
        return percent >= 100 * goal

    what = f"single contractions, {_what(kind)}: part of {CEILINGS[kind, 'fp32']}, geometric mean"
    if rows is None:
        return Verdict(what, f"at least {goal:.0%}", "not measured", None)
    percent = 100 * mean(row.part for row in rows)
    return Verdict(what, f"at least {goal:.0%}", f"{told(percent, reached, digits=1)}%", reached(percent))


def _what(kind: str) -> str:
    return f"M = {ROWS[0]} to {ROWS[1]}" if kind == "matrices" else "M = 1"


def cells(rows: Sequence[Row], precision: str) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``, the farthest from the ceiling first."""
    return [
        (
            str(row.shape),
            f"{row.shape.operations / 1e9:.3g}",
            f"{row.n * row.k * _itemsize(precision) / 2**20:.3g} MiB",
            text(row.seconds),
            f"{row.part:.0%}",
            text(row.torch),
            f"{row.torch / row.seconds:.2f}x",
        )
        for row in sorted(rows, key=lambda row: row.part)
    ]


def summary(kind: str, precision: str, threads: int, rows: Sequence[Row]) -> str:
    """What a table comes to, in a sentence."""
    parts = sorted(row.part for row in rows)
    return (
        f"{len(rows)} products, {_what(kind)}, {PRECISIONS[precision]}, {threads} thread{'s' if threads > 1 else ''}: "
        f"{mean(parts):.1%} of {CEILINGS[kind, precision]} in the geometric mean, {parts[0]:.0%} to {parts[-1]:.0%}; "
        f"{mean(row.torch / row.seconds for row in rows):.2f}x the speed of torch; the largest error "
        f"{errors.worst(row.error for row in rows):.1e}."
    )


ABOUT = (
    "`python -m benchmarks.contractions`: products of a matrix and a constant one, compiled as entries of one library "
    f"for every {TOGETHER}. Sizes are drawn evenly on a logarithmic scale, N and K from {SIZES[0]} to {SIZES[1]}, at "
    f"least {OPERATIONS / 1e6:.0f} MFLOP where M is above 1. The peak and the reading are measured between the runs; "
    "the best of them counts, and of luminal the median, the call from Python included. Where M is 1, the weights, of "
    f"more than {WEIGHTS >> 20} MiB each, are more than {ROTATED >> 30} GiB together and take turns: what was read of "
    "them before has left the caches. `torch` is `torch.nn.functional.linear` on the same weights."
)


def section(found: Results) -> list[str]:
    """The section of the page."""
    measured = parts(found)
    lines = ["## Single contractions", "", ABOUT, ""] if measured else []
    for (kind, precision, threads), rows in measured.items():
        lines += ["<details>", f"<summary>{summary(kind, precision, threads, rows)}</summary>", ""]
        lines += [*tables.markdown(HEADINGS, cells(rows, precision), left=1), "", "</details>", ""]
    return lines
