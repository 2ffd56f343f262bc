"""Cumulative operators: scans that put out what they carry. Their cost is linear in the size of what they run along.

Sums and products of floats carry what their roundings lost, too: added up one after the other alone, 20,000 times 0.1
would be 1999.66 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from luminal.core import ops
from luminal.core.decompose import twofloat
from luminal.core.decompose.common import require_float, widened
from luminal.core.decompose.compare import equal, isfinite, isnan, less, less_equal, logical_not, maximum
from luminal.core.decompose.exponential import exp, log
from luminal.core.decompose.indexing import gather_elements
from luminal.core.derivative import alike, derivative
from luminal.core.ir import Node, cast, constant, elementwise, expand, iota, lift, select
from luminal.core.movement import along, flip, permute
from luminal.core.structured import scan
from luminal.core.types import i64


def _of_sums(
    g: Node, y: Node, x: Node, axis: int, exclusive: bool = False, reverse: bool = False, first: float = 0
) -> Node:
    return cumsum(g, axis, exclusive, not reverse)


@derivative(_of_sums)
def cumsum(x: Node, axis: int, exclusive: bool = False, reverse: bool = False, first: float = 0) -> Node:
    """Running sums along ``axis`` from ``first`` on: each element and those before it (``exclusive``: only those before
    it; ``reverse``: those after it); of bool, an int64. From 0 on, the sum of -0 is 0, and from -0 on, -0."""
    return _cumulative(ops.ADD, first, cast(x, i64) if x.dtype.is_bool else x, axis, exclusive, reverse)


def cumprod(x: Node, axis: int, exclusive: bool = False, reverse: bool = False) -> Node:
    """Running products along ``axis``: see ``cumsum``."""
    return _cumulative(ops.MUL, 1, cast(x, i64) if x.dtype.is_bool else x, axis, exclusive, reverse)


def _of_logcumsumexp(g: Node, y: Node, x: Node, axis: int) -> Node:
    """From the last element to the first, the gradients of this result and those after it, each times the exponential
    of its distance from this one, which is never above 1."""
    if x.rank == 0:
        return g
    moved, back = _first(x, axis)
    g, y = (flip(_first(part, axis)[0], [0]) for part in (g, y))

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (total, after), (part, result) = carried, element
        following = part + total * _relative(result, after)
        return (following, result), (following,)

    start = [expand(constant(number, x.dtype), moved.shape[1:]) for number in (0, math.inf)]
    _, (total,) = scan(step, start, [g, y])
    return permute(flip(total * _relative(flip(moved, [0]), y), [0]), back)


@derivative(_of_logcumsumexp)
@widened
def logcumsumexp(x: Node, axis: int) -> Node:
    """Running logarithms of sums of exponentials along ``axis``. What is carried is the maximum and the sum of the
    exponentials of the distances from it, of which only the sum is rounded (Milakov and Gimelshein, 2018)."""
    require_float(x, "logcumsumexp")
    if x.rank == 0:
        return x
    moved, back = _first(x, axis)

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (largest, total, lost), (value,) = carried, element
        following = maximum(largest, value)
        factor = _relative(largest, following)
        total, rest = twofloat.exact_sum(total * factor, _relative(value, following))
        lost = lost * factor + rest
        return (following, total, lost), (following, total + lost)

    start = [expand(constant(number, x.dtype), moved.shape[1:]) for number in (-math.inf, 0, 0)]
    _, (largest, total) = scan(step, start, [moved])
    return permute(largest + log(total), back)


def _relative(x: Node, largest: Node) -> Node:
    """``exp(x - largest)``, also where both are the same infinity."""
    return select(equal(x, largest), 1, exp(x - largest))


def associative(
    combine: Callable[[Sequence[Node], Sequence[Node]], Sequence[Node]], over: Sequence[Node]
) -> list[Node]:
    """Along the first axis: the first elements of ``over``, and what ``combine`` makes of each result and the elements
    that come next. One ``combine`` an element, in order, whether it is associative or not.

    Raises ShapeError or DTypeError where ``combine`` changes shapes or types.
    """

    places = {x.shape: along(iota(x.shape[0]), 0, x.shape) for x in over}

    def step(carried: Sequence[Node], elements: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        values, at = elements[: len(over)], dict(zip(places, elements[len(over) :], strict=True))
        rows = zip(over, values, combine(carried, values), strict=True)
        following = [select(equal(at[x.shape], 0), value, combined) for x, value, combined in rows]
        return following, following

    first = [expand(constant(0, x.dtype), x.shape[1:]) for x in over]
    return scan(step, first, [*over, *places.values()])[1]


def cummax(x: Node, axis: int) -> tuple[Node, Node]:
    """Running maxima along ``axis``, NaN from the first NaN on, and the position (int64) of each: the last of equals
    (torch.cummax)."""
    return _running(x, axis, lambda best, element: less_equal(best, element))


def cummin(x: Node, axis: int) -> tuple[Node, Node]:
    """Running minima along ``axis``: see ``cummax``."""
    return _running(x, axis, lambda best, element: less_equal(element, best))


def _first(x: Node, axis: int) -> tuple[Node, list[int]]:
    """``x`` with ``axis`` first, and the permutation that takes it back."""
    axis %= x.rank
    order = [axis, *(k for k in range(x.rank) if k != axis)]
    return permute(x, order), [order.index(k) for k in range(x.rank)]


def _running(x: Node, axis: int, follows: Callable[[Node, Node], Node]) -> tuple[Node, Node]:
    if x.rank == 0:
        return x, constant(0, i64)
    moved, back = _first(x, axis)
    places = along(iota(moved.shape[0]), 0, moved.shape)

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (best, at), (value, place) = carried, element
        taken = follows(best, value) | less(at, 0)
        if x.dtype.is_float:
            taken = isnan(value) | (logical_not(isnan(best)) & taken)
        best, at = select(taken, value, best), select(taken, place, at)
        return (best, at), (best, at)

    first = expand(constant(0, x.dtype), moved.shape[1:]), expand(constant(-1, i64), moved.shape[1:])
    _, results = scan(step, first, (moved, places))
    best, at = (permute(result, back) for result in results)
    return alike(best, lambda: gather_elements(x, at, axis)), at


@widened
def _added_up(x: Node, by: ops.Op, first: float, exclusive: bool) -> Node:
    """Along the first axis."""

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        following = elementwise(by, carried[0], element[0])
        return (following,), (carried[0] if exclusive else following,)

    def exact_step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (before, lost), (value,) = carried, element
        following, rest = twofloat.exact_sum(before, value) if by is ops.ADD else twofloat.product(before, value)
        rest = rest + (lost if by is ops.ADD else lost * value)
        after = select(isfinite(following), rest, 0)
        return (following, after), (_corrected(before, lost) if exclusive else _corrected(following, after),)

    starts = [expand(constant(number, x.dtype), x.shape[1:]) for number in (first, 0)]
    if not x.dtype.is_float:
        return scan(step, starts[:1], [x])[1][0]
    return scan(exact_step, starts, [x])[1][0]


def _corrected(x: Node, lost: Node) -> Node:
    """``x + lost``, but -0 where nothing was lost of a -0."""
    return select(equal(lost, 0), x, x + lost)


def _cumulative(by: ops.Op, first: float, x: Node, axis: int, exclusive: bool, reverse: bool) -> Node:
    if x.rank == 0:
        return lift(first, x) if exclusive else x
    moved, back = _first(x, axis)
    moved = flip(moved, [0]) if reverse else moved
    result = _added_up(moved, by, first, exclusive)
    result = flip(result, [0]) if reverse else result
    return permute(result, back)
