"""Index-set splitting: loops cut where a condition changes its truth, so that no mask is left inside.

The loops of a reduction are cut to the ranges in which its masks hold, where masked terms change nothing. A loop around
a reduction is cut into regions, of which the inner ones need no mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.neutral import finite_arrays, neutral_unless
from luminal.core.schedule.nest.rewrite import (
    replace_expressions,
    replace_statements,
    substitute,
    substitute_scalar,
)
from luminal.core.schedule.transform.loops import replace_loops
from luminal.core.symbolic import Int, Var


def _assuming(value: ln.Scalar, conditions: frozenset[Int]) -> ln.Scalar:
    """``value`` without those of its masks that are among ``conditions``."""
    return replace_expressions(value, lambda e: e, lambda valid: tuple(v for v in valid if v not in conditions), {})


@dataclass(frozen=True)
class ClipReduction:
    """::

    s = sum over k < K of (x[i + k - 1] if i + k - 1 >= 0 else 0)
        =>
    s = sum over k < K - max(0, 1 - i) of x[i + k + max(0, 1 - i) - 1]

    The loop over ``axis`` runs over the range in which the masks hold that name it and no other axis of its reduction.
    Legal where the terms outside change nothing.
    """

    axis: str

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        finite = finite_arrays(nest)

        def clip(statement: ln.Statement) -> list[ln.Statement] | None:
            if isinstance(statement, ln.Reduction) and any(x.axis.name == self.axis for x in statement.loops):
                return [self._clipped(statement, finite)]
            return None

        body, count = replace_statements(nest.body, clip)
        if not count:
            raise ScheduleError(f"clip: no reduction runs over {self.axis!r}")
        return replace(nest, body=body)

    def _clipped(self, reduction: ln.Reduction, finite: frozenset[str]) -> ln.Reduction:
        loop = next(x for x in reduction.loops if x.axis.name == self.axis)
        if reduction.before or loop.kind != "serial":
            raise ScheduleError(f"clip: the loop over {self.axis!r} is {loop.kind}, or a statement lies in it")
        masks = clipping_masks(reduction, loop.axis, finite)
        if not masks:
            raise ScheduleError(f"clip: no mask bounds {self.axis!r} alone and leaves terms that change nothing")
        low, high = _range(loop, masks)
        extent = sym.maximum(0, high - low)
        by = {loop.axis: sym.axis(self.axis, extent) + low}
        value = substitute_scalar(_assuming(reduction.value, frozenset(masks)), by, {})
        header = replace(loop, axis=Var(self.axis, 0, extent - 1), extent=extent)
        others = (replace(x, extent=sym.substitute(x.extent, by)) for x in reduction.loops)
        loops = tuple(header if x.axis == loop.axis else x for x in others)
        return replace(reduction, loops=loops, value=value)


def clipping_masks(reduction: ln.Reduction, axis: Var, finite: frozenset[str]) -> list[Int]:
    """The masks that ``ClipReduction`` turns into bounds of ``axis``."""
    others = {loop.axis for loop in reduction.loops} - {axis}
    found: list[Int] = []
    for condition in neutral_unless(reduction.value, reduction.op, finite):
        linear = sym.coefficient(condition, axis)
        if linear is not None and isinstance(linear[0], int) and linear[0] and not sym.variables(linear[1]) & others:
            found.append(condition)
    return found


def _range(loop: ln.Loop, masks: list[Int]) -> tuple[Int, Int]:
    """The first value of the loop's axis at which all ``masks`` hold, and the value after the last."""
    low: Int = 0
    high = loop.extent
    for mask in masks:
        linear = sym.coefficient(mask, loop.axis)
        assert linear is not None
        slope, rest = linear
        assert isinstance(slope, int)
        if slope > 0:
            low = sym.maximum(low, sym.ceildiv(rest * -1, slope))
        else:
            high = sym.minimum(high, sym.floordiv(rest, -slope) + 1)
    return low, high


@dataclass(frozen=True)
class SplitRegion:
    """::

    for a < E:  body(a)     =>      for a < p:  body(a);   for a < E - p:  body(a + p)         (places = p)

    Everywhere that the axis is looped over. ``places`` ascend strictly between 0 and the extent; a region of one
    iteration has no loop.
    """

    axis: str
    places: tuple[int, ...]

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return replace_loops(nest, self.axis, self._regions, "split region")

    def _regions(self, loop: ln.Loop) -> Iterator[ln.Statement]:
        cuts: list[Int] = [0, *self.places, loop.extent]
        if loop.kind != "serial" or any(not sym.always(b - a - 1) for a, b in pairwise(cuts)):
            raise ScheduleError(f"split region: {self.places} do not cut the {loop.kind} loop of {loop.extent}")
        for low, high in pairwise(cuts):
            axis = sym.axis(self.axis, high - low)
            inner = substitute(loop.body, {loop.axis: axis + low})
            variable = sym.as_var(axis)
            if variable is None:
                yield from inner
            else:
                yield replace(loop, axis=variable, extent=high - low, body=inner)
