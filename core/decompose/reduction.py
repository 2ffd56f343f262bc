"""Reductions, arg-reductions and softmax.

``axes`` is a number, a sequence or None (all axes); ``keepdims`` leaves axes of extent 1 behind. Sums of floats of
fewer than 32 bits are accumulated in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.arithmetic import abs_, sqrt
from luminal.core.decompose.common import count, normalized_axes, positive_infinity, require_float, widened
from luminal.core.decompose.compare import bitwise_not, equal, isnan, logical_not, maximum, truth
from luminal.core.decompose.exponential import exp, log
from luminal.core.derivative import derivative
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, constant, dim, iota, reduce, select, unary
from luminal.core.movement import along, pad, reshape, slice_, squeeze, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import i64

AxesLike: TypeAlias = Iterable[int] | int | None


def kept(x: Node, axes: tuple[int, ...]) -> Node:
    """A reduced ``x`` with the dropped ``axes`` (ascending, of the result) put back with extent 1."""
    return unsqueeze(x, axes) if axes else x


def _reduced(op: ops.Op, x: Node, axes: AxesLike, keepdims: bool) -> Node:
    over = normalized_axes(x, axes)
    result = reduce(op, x, over)
    return kept(result, over) if keepdims else result


@widened
def sum_(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The sum; of bool, the number of true elements as int64."""
    return _reduced(ops.SUM_REDUCE, cast(x, i64) if x.dtype.is_bool else x, axes, keepdims)


@widened
def mean(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The arithmetic mean of floats; of no elements, NaN."""
    require_float(x, "mean")
    return _reduced(ops.SUM_REDUCE, x, axes, keepdims) / count(elements(x, axes), x.dtype)


def elements(x: Node, axes: AxesLike) -> Int:
    """How many elements of ``x`` a reduction over ``axes`` combines into one."""
    return sym.product(x.shape[axis] for axis in normalized_axes(x, axes))


def max_(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The largest element; NaN where any is NaN; of nothing, the lowest value of the type (-inf)."""
    return _reduced(ops.MAX_REDUCE, x, axes, keepdims)


def min_(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The smallest element; NaN where any is NaN; of nothing, the highest value of the type (inf)."""
    return _descending(max_(_descending(x), axes, keepdims))


def _descending(x: Node) -> Node:
    """An involution that reverses the order of every value, the lowest integer included."""
    return -x if x.dtype.is_float else bitwise_not(x)


@widened
def prod(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The product, by halving; of nothing, 1; of bool, an int64. A symbolic axis is padded with ones to its bound."""
    x = cast(x, i64) if x.dtype.is_bool else x
    over = normalized_axes(x, axes)
    for axis in over:
        x = _product(x, axis)
    return x if keepdims else squeeze(x, over)


def _product(x: Node, axis: int) -> Node:
    """Pairs are multiplied until one element is left, which stays as an axis of extent 1."""
    length = _bound(x.shape[axis], "prod")
    x = _padded(x, axis, length - x.shape[axis], 1)
    while length > 1:
        half = (length + 1) // 2
        x = _padded(x, axis, 2 * half - length, 1)
        x = slice_(x, axis, 0, half) * slice_(x, axis, half, half)
        length = half
    return x


def _bound(size: Int, what: str) -> int:
    """The largest value of a size, at least 1."""
    bound = sym.upper(size)
    if bound is None:
        raise ShapeError(f"{what}: the size {size} needs an upper bound; state it in dims")
    return max(bound, 1)


def _padded(x: Node, axis: int, amount: Int, value: float) -> Node:
    if amount == 0:
        return x
    after: list[Int] = [0] * x.rank
    after[axis] = amount
    return pad(x, [0] * x.rank, after, value)


def any_(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """Whether any element is non-zero."""
    return max_(truth(x), axes, keepdims)


def all_(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """Whether every element is non-zero."""
    return logical_not(any_(logical_not(x), axes, keepdims))


def argmax(x: Node, axis: int | None = None, keepdims: bool = False, select_last: bool = False) -> Node:
    """The position (int64) of the largest element along ``axis`` (None: of the flattened ``x``), the first of equals
    or with ``select_last`` the last; NaN counts as the largest."""
    if axis is None:
        position = argmax(reshape(x, [x.size]), 0, False, select_last)
        return unsqueeze(position, range(x.rank)) if keepdims else position
    if x.rank == 0:
        return constant(0, i64)
    (axis,) = normalized_axes(x, axis)
    length = x.shape[axis]
    best = max_(x, axis, keepdims=True)
    hit = equal(x, best) | isnan(x) if x.dtype.is_float else equal(x, best)
    # The first position is the largest distance from the end, so that one maximum finds it.
    place = iota(length) if select_last else iota(length) * -1 + (dim(length) - 1)
    found = max_(select(hit, along(place, axis, x.shape), -1), axis, keepdims)
    return found if select_last else found * -1 + (dim(length) - 1)


def argmin(x: Node, axis: int | None = None, keepdims: bool = False, select_last: bool = False) -> Node:
    """The position (int64) of the smallest element, as ``argmax``; NaN counts as the smallest."""
    return argmax(_descending(x), axis, keepdims, select_last)


@widened
def variance(x: Node, axes: AxesLike = None, keepdims: bool = False, correction: float = 1) -> Node:
    """The mean squared distance from the mean, in two passes, divided by ``max(0, n - correction)``."""
    centered = x - mean(x, axes, keepdims=True)
    total = sum_(centered * centered, axes, keepdims)
    n = count(elements(x, axes), x.dtype)
    return total / (maximum(n - correction, 0) if correction else n)


def _of_deviation(
    g: Node, y: Node, x: Node, axes: AxesLike = None, keepdims: bool = False, correction: float = 1
) -> Node:
    """None where the deviation is 0 (PyTorch)."""
    over = normalized_axes(x, axes)
    g, y = (part if keepdims else kept(part, over) for part in (g, y))
    freedom = maximum(count(elements(x, axes), x.dtype) - correction, 0)
    share = select(equal(y, 0), 0, g / y / freedom)
    return (x - mean(x, axes, keepdims=True)) * share


@derivative(_of_deviation)
@widened
def standard_deviation(x: Node, axes: AxesLike = None, keepdims: bool = False, correction: float = 1) -> Node:
    """The square root of the variance."""
    return sqrt(variance(x, axes, keepdims, correction))


@widened
def l1_norm(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The sum of magnitudes."""
    return sum_(abs_(x), axes, keepdims)


@widened
def l2_norm(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The square root of the sum of squares."""
    return sqrt(sum_square(x, axes, keepdims))


@widened
def sum_square(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The sum of squares."""
    return sum_(x * x, axes, keepdims)


@widened
def log_sum(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """The natural logarithm of the sum."""
    return log(sum_(x, axes, keepdims))


def _of_logsumexp(g: Node, y: Node, x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    g, y = (part if keepdims else kept(part, normalized_axes(x, axes)) for part in (g, y))
    return g * exp(x - y)


@derivative(_of_logsumexp)
@widened
def logsumexp(x: Node, axes: AxesLike = None, keepdims: bool = False) -> Node:
    """``log(sum(exp(x)))`` without overflow; -inf where every element is -inf, inf where any is inf."""
    over = normalized_axes(x, axes)
    largest = max_(x, over, keepdims=True)
    # An infinite maximum is not subtracted: inf - inf is NaN.
    shift = select(equal(abs_(largest), positive_infinity(x)), 0, largest)
    total = log(sum_(exp(x - shift), over, keepdims=True)) + shift
    return total if keepdims else squeeze(total, over)


@derivative(lambda g, y, x, axis: y * (g - sum_(g * y, axis, keepdims=True)))
@widened
def softmax(x: Node, axis: int) -> Node:
    """``exp(x) / sum(exp(x))`` along ``axis``, shifted by the maximum; a row of -inf gives NaN."""
    require_float(x, "softmax")
    weights = exp(x - max_(x, axis, keepdims=True))
    # One reciprocal a row: the sum is at least 1, so it is exact to one rounding.
    return weights * unary(ops.RECIP, sum_(weights, axis, keepdims=True))


@derivative(lambda g, y, x, axis: g - exp(y) * sum_(g, axis, keepdims=True))
@widened
def log_softmax(x: Node, axis: int) -> Node:
    """``log(softmax(x))`` without taking the logarithm of small numbers."""
    require_float(x, "log_softmax")
    shifted = x - max_(x, axis, keepdims=True)
    return shifted - log(sum_(exp(shifted), axis, keepdims=True))
