"""What a kernel has to write, by the interpreter of loop nests: elements here and there, its borders among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core.schedule.nest import interpreter
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import perfect_loops, statements
from luminal.core.sizes import typical
from luminal.tuning import subject
from luminal.tuning.subject import Subject

PLACES = 16  # iterations of the outer loops
FACTOR = 4  # of what a sum of so many terms is away from another, in another order, on average


@dataclass(frozen=True)
class Expected:
    """``values`` of an array at ``positions``. Floats may be ``tolerance`` away, other types not at all."""

    positions: NDArray[np.int64]
    values: NDArray[Any]
    tolerance: float

    def fault(self, found: NDArray[Any]) -> str:
        """What is wrong with ``found``, at those positions; empty where nothing is."""
        if not types.from_numpy(self.values.dtype).is_float:
            right = found == self.values
        else:
            a, b = found.astype(np.float64), self.values.astype(np.float64)
            with np.errstate(invalid="ignore"):
                right = (np.abs(a - b) <= self.tolerance) | (a == b) | (np.isnan(a) & np.isnan(b))
        if right.all():
            return ""
        at = int(np.flatnonzero(~right)[0])
        return (
            f"element {self.positions[at]} is {found[at]}, and the interpreter finds {self.values[at]} "
            f"({np.count_nonzero(~right)} of {len(right)} differ)"
        )


def expected(serial: ln.LoopNest, of: Subject) -> dict[int, Expected]:
    """By their place, what the arrays that ``serial`` writes hold at some positions.

    Floats may differ as sums of the same terms in another order do: with the square root of their number, at the scale
    of the array; and where the nest rounds to a narrower type on the way, as one such rounding elsewhere makes them.
    """
    sizes = {dim.name: size for dim, size in zip(serial.dims, of.sizes, strict=True)}
    names = [array.name for array in serial.arrays]
    arrays = dict(zip(names, of.arrays(subject.drawn), strict=True))
    found = interpreter.run_places(serial, arrays, sizes, _places(serial, sizes))
    result: dict[int, Expected] = {}
    for place, array in enumerate(serial.arrays):
        if array.name in found:
            positions, values = zip(*sorted(found[array.name].items()), strict=True)
            held = np.array(values, array.dtype.numpy)
            result[place] = Expected(np.array(positions, np.int64), held, tolerance(serial, held))
    return result


def tolerance(serial: ln.LoopNest, values: NDArray[Any]) -> float:
    """How far floats that a schedule of ``serial`` writes may be from ``values``, which it writes itself."""
    terms = max((_terms(s) for s in statements(serial.body) if isinstance(s, ln.Reduction)), default=1)
    return _tolerance(values, terms, _coarsest(serial))


def _coarsest(nest: ln.LoopNest) -> float:
    """The largest distance from 1 to the next number, of the types of floats that values are rounded to."""
    kinds = (ln.Store, ln.Define, ln.Reduction)
    values = (s for x in statements(nest.body) if isinstance(x, kinds) for s in ln.postorder(x.value))
    return max((s.dtype.eps for s in values if s.op is ops.CAST and s.dtype.is_float), default=0.0)


def _tolerance(values: NDArray[Any], terms: int, coarsest: float) -> float:
    dtype = types.from_numpy(values.dtype)
    if not dtype.is_float:
        return 0.0
    magnitudes = np.abs(values.astype(np.float64))
    scale = float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))
    exact = FACTOR * max(dtype.eps, types.f32.eps if dtype.bits <= 32 else 0.0) * math.sqrt(terms)
    return max(exact, coarsest) * scale


def _terms(reduction: ln.Reduction) -> int:
    return math.prod(typical(loop.extent) for loop in reduction.loops)


def _places(serial: ln.LoopNest, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Iterations of the outer loops: the first, the last, and some between, borders of each loop among them."""
    random = np.random.default_rng(0)
    loops, _ = perfect_loops(serial.body)
    for number in range(PLACES):
        place: dict[str, int] = {}
        for loop in loops:
            extent = int(sym.evaluate(loop.extent, {**sizes, **place}))
            if extent == 0:
                return
            inside = int(random.integers(extent))
            border = (0, extent - 1, inside, inside)[int(random.integers(4))]
            place[loop.axis.name] = 0 if number == 0 else extent - 1 if number == 1 else border
        yield place
