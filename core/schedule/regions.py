"""Index-set splitting: loops cut where a condition changes its truth, so that no mask is left inside.

A reduction skips the terms that change nothing: the ranges of its loops become those in which its masks hold. A loop
around it is cut into regions, of which the inner ones need no mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from luminal.core import numerics, ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.ops import Op
from luminal.core.schedule import nest as ln
from luminal.core.schedule.rewrite_nest import replace_statements, substitute, substitute_scalar
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

# ---- terms that change nothing --------------------------------------------------------------------------------------


def finite_arrays(nest: ln.LoopNest) -> frozenset[str]:
    """The names of the arrays that hold finite numbers alone."""
    return frozenset(array.name for array in nest.arrays if array.finite)


def neutral(value: ln.Scalar, op: Op, finite: frozenset[str]) -> list[Int]:
    """Conditions (``>= 0``) without any of which ``value`` changes nothing as a term of a reduction with ``op``.

    A sum starts from +0, and what is added to it keeps it from ever being -0, so that a zero of either sign is neutral.
    ``finite`` names the arrays whose products with zero are zero.
    """
    leaf = value.leaf
    if isinstance(leaf, ln.Access):
        return list(leaf.valid) if leaf.fill == _identity(op, value.dtype) else []
    if value.op is ops.SELECT:
        condition, kept, other = value.operands
        if not (isinstance(condition.leaf, ln.Holds) and isinstance(other.leaf, ln.Literal)):
            return []
        masks = condition.leaf.valid if other.leaf.bits == _identity(op, value.dtype) else ()
        return [*masks, *neutral(kept, op, finite)] if masks else []
    if op is not ops.SUM_REDUCE:
        conditions, blank = _blank(value)
        return conditions if blank == _identity(op, value.dtype) else []
    if value.op is ops.CAST:
        return neutral(value.operands[0], op, finite)
    if value.op is ops.MUL:
        a, b = value.operands
        found = neutral(a, op, finite) if _is_finite(b, finite) else []
        return found + (neutral(b, op, finite) if _is_finite(a, finite) else [])
    return []


def _blank(value: ln.Scalar) -> tuple[list[Int], bytes]:
    """Conditions (``>= 0``) without any of which ``value`` is one number, and the number, as far as both are known."""
    found: dict[ln.Scalar, tuple[list[Int], bytes]] = {}
    for scalar in ln.postorder(value):
        leaf, parts = scalar.leaf, [found[operand] for operand in scalar.operands]
        conditions = [condition for own, _ in parts for condition in own]
        if isinstance(leaf, ln.Literal):
            found[scalar] = [], leaf.bits
        elif isinstance(leaf, ln.Access):
            found[scalar] = list(leaf.valid), leaf.fill
        elif scalar.op is not None and sum(bool(own) for own, _ in parts) == 1 and all(bits for _, bits in parts):
            typed = zip(scalar.operands, parts, strict=True)
            operands = (np.frombuffer(bits, operand.dtype.numpy) for operand, (_, bits) in typed)
            found[scalar] = conditions, numerics.apply(scalar.op, scalar.attr, *operands).tobytes()
        else:
            found[scalar] = [], b""
    return found[value]


def _identity(op: Op, dtype: DType) -> bytes:
    return numerics.of_nothing(op, dtype).tobytes()


def _is_finite(value: ln.Scalar, finite: frozenset[str]) -> bool:
    """Whether ``value`` is known to be neither infinite nor NaN."""
    if not value.dtype.is_float:
        return True
    if isinstance(value.leaf, ln.Access):
        fill = value.leaf.fill
        return value.leaf.array in finite and (not fill or bool(np.isfinite(np.frombuffer(fill, value.dtype.numpy))[0]))
    if isinstance(value.leaf, ln.Literal):
        return bool(np.isfinite(np.frombuffer(value.leaf.bits, value.dtype.numpy))[0])
    if value.op is ops.CAST:
        (operand,) = value.operands
        return operand.dtype.is_float and operand.dtype.bits < value.dtype.bits and _is_finite(operand, finite)
    return False


def _without(value: ln.Scalar, conditions: frozenset[Int]) -> ln.Scalar:
    """``value`` where ``conditions`` are known to hold."""
    memo: dict[ln.Scalar, ln.Scalar] = {}
    for scalar in ln.postorder(value):
        leaf = scalar.leaf
        operands = tuple(memo[o] for o in scalar.operands)
        if isinstance(leaf, ln.Access):
            valid = tuple(v for v in leaf.valid if v not in conditions)
            memo[scalar] = ln.load(leaf.array, leaf.offset, scalar.dtype, valid, leaf.fill)
        elif isinstance(leaf, ln.Holds):
            memo[scalar] = ln.holds(tuple(v for v in leaf.valid if v not in conditions))
        elif scalar.op is not None:
            memo[scalar] = ln.apply(scalar.op, operands, scalar.attr, scalar.dtype)
        else:
            memo[scalar] = scalar
    return memo[value]


# ---- transforms ----------------------------------------------------------------------------------------------------


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
        masks = clips(reduction, loop.axis, finite)
        if not masks:
            raise ScheduleError(f"clip: no mask bounds {self.axis!r} alone and leaves terms that change nothing")
        low, high = _range(loop, masks)
        extent = sym.maximum(0, high - low)
        by = {loop.axis: sym.axis(self.axis, extent) + low}
        value = substitute_scalar(_without(reduction.value, frozenset(masks)), by, {})
        header = replace(loop, axis=Var(self.axis, 0, extent - 1), extent=extent)
        others = (replace(x, extent=sym.substitute(x.extent, by)) for x in reduction.loops)
        loops = tuple(header if x.axis == loop.axis else x for x in others)
        return replace(reduction, loops=loops, value=value)


def clips(reduction: ln.Reduction, axis: Var, finite: frozenset[str]) -> list[Int]:
    """The masks that ``ClipReduction`` turns into bounds of ``axis``."""
    others = {loop.axis for loop in reduction.loops} - {axis}
    found: list[Int] = []
    for condition in neutral(reduction.value, reduction.op, finite):
        linear = sym.coefficient(condition, axis)
        if linear is not None and isinstance(linear[0], int) and linear[0] and not sym.variables(linear[1]) & others:
            found.append(condition)
    return found


def _range(loop: ln.Loop, masks: list[Int]) -> tuple[Int, Int]:
    """The first value of the loop's axis for which ``masks`` hold, and the one after the last."""
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
        def cut(statement: ln.Statement) -> Iterator[ln.Statement] | None:
            if isinstance(statement, ln.Loop) and statement.axis.name == self.axis:
                return self._regions(statement)
            return None

        body, count = replace_statements(nest.body, cut)
        if not count:
            raise ScheduleError(f"split region: the nest has no loop over {self.axis!r}")
        return replace(nest, body=body)

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
