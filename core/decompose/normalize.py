"""Normalisations: layer, RMS, batch, group, instance; Lp norms.

Each computes in float32 for narrower types and rounds once. Statistics are taken in two passes, the mean and then the
squares of what is left, never as a difference of large sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from luminal.core import symbolic as sym
from luminal.core.decompose.arithmetic import abs_, rsqrt, sign, sqrt
from luminal.core.decompose.common import normalized_axes, require_float, widened
from luminal.core.decompose.compare import equal, isnan, not_equal
from luminal.core.decompose.power import pow_
from luminal.core.decompose.reduction import kept, max_, mean, min_, sum_
from luminal.core.derivative import derivative, of_nodes
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, constant, multiply_add, select
from luminal.core.movement import reshape
from luminal.core.types import f64


def _of_normalised(
    g: Node, y: Node, x: Node, axes: Iterable[int] | int, weight: Node | None = None, bias: Node | None = None,
    eps: float = 1e-5,
) -> list[Node | None]:  # fmt: skip
    """With the normalised ``n`` and its gradient ``h``: ``(h - mean(h) - n * mean(h * n))`` over the deviation."""
    over = normalized_axes(x, axes)
    inverse = inverse_deviation(x, over, eps)
    normal = (x - mean(x, over, keepdims=True)) * inverse
    h = g if weight is None else g * weight
    part = (h - mean(h, over, keepdims=True) - normal * mean(h * normal, over, keepdims=True)) * inverse
    return of_nodes((x, part), (weight, g * normal), (bias, g))


@derivative(_of_normalised)
@widened
def layer_norm(
    x: Node, axes: Iterable[int] | int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Node:
    """``(x - mean) * rsqrt(variance + eps) * weight + bias`` with statistics over ``axes``.

    ``weight`` and ``bias`` broadcast against ``x`` (they have the shape of the normalised axes where these are last).
    """
    require_float(x, "layer_norm")
    over = normalized_axes(x, axes)
    result = (x - mean(x, over, keepdims=True)) * inverse_deviation(x, over, eps)
    return _scaled(result, weight, bias)


def _scaled(x: Node, weight: Node | None, bias: Node | None) -> Node:
    """``x * weight + bias``, with one rounding."""
    if weight is None:
        return x if bias is None else x + bias
    return x * weight if bias is None else multiply_add(x, weight, bias)


@widened
def inverse_deviation(x: Node, axes: Iterable[int] | int, eps: float = 1e-5) -> Node:
    """``rsqrt(variance + eps)`` over ``axes``, which stay with extent 1."""
    over = normalized_axes(x, axes)
    centered = x - mean(x, over, keepdims=True)
    return rsqrt(mean(centered * centered, over, keepdims=True) + eps)


@widened
def rms_norm(x: Node, axes: Iterable[int] | int, weight: Node | None = None, eps: float = 1e-5) -> Node:
    """``x * rsqrt(mean(x**2) + eps) * weight`` (Zhang and Sennrich, 2019)."""
    require_float(x, "rms_norm")
    result = x * rsqrt(mean(x * x, axes, keepdims=True) + eps)
    return result if weight is None else result * weight


@widened
def batch_norm(
    x: Node, weight: Node | None, bias: Node | None, mean_: Node, variance_: Node, eps: float = 1e-5
) -> Node:
    """``(x - mean) / sqrt(variance + eps) * weight + bias`` with stored statistics, one of each per channel (axis 1).

    It is ``x * scale + shift``; both are computed in float64 from the stored values (at compile time, where these are
    constants) and rounded once, and so is the result.
    """
    scale = cast(variance_, f64)
    scale = rsqrt(scale + eps)
    if weight is not None:
        scale = cast(weight, f64) * scale
    shift = -(cast(mean_, f64) * scale)
    if bias is not None:
        shift = cast(bias, f64) + shift
    return _scaled_by_channel(x, cast(scale, x.dtype), cast(shift, x.dtype))


def channels(vector: Node, x: Node) -> Node:
    """A vector laid along axis 1 of ``x`` for broadcasting."""
    return reshape(vector, [1, vector.size, *[1] * (x.rank - 2)])


def _scaled_by_channel(x: Node, weight: Node | None, bias: Node | None) -> Node:
    """``_scaled`` with a number of each for every channel (axis 1)."""

    def laid(vector: Node | None) -> Node | None:
        return None if vector is None else channels(vector, x)

    return _scaled(x, laid(weight), laid(bias))


@widened
def group_norm(x: Node, groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5) -> Node:
    """Each sample's channels (axis 1) in ``groups`` equal parts, each part normalised; then scale and shift by channel.

    Raises ShapeError where the channels do not divide.
    """
    n, c, *spatial = x.shape
    if sym.mod(c, groups) != 0:
        raise ShapeError(f"group_norm: {c} channels do not divide into {groups} groups")
    split = reshape(x, [n, groups, sym.floordiv(c, groups), *spatial])
    result = reshape(layer_norm(split, range(2, split.rank), eps=eps), x.shape)
    return _scaled_by_channel(result, weight, bias)


@widened
def instance_norm(x: Node, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5) -> Node:
    """Each channel of each sample normalised over its spatial axes; then scale and shift by channel."""
    result = layer_norm(x, range(2, x.rank), eps=eps)
    return _scaled_by_channel(result, weight, bias)


def _of_norm(
    g: Node, y: Node, x: Node, axes: Sequence[int] | int | None, p: float = 2, keepdims: bool = False
) -> Node | None:
    """None where the norm is 0; largest magnitudes share it (PyTorch)."""
    if p == 0:
        return None
    g, y = (part if keepdims else kept(part, normalized_axes(x, axes)) for part in (g, y))
    if p == 1:
        return g * sign(x)
    size = abs_(x)
    if math.isinf(p):
        ends = cast(equal(size, y) | isnan(size), x.dtype)
        return sign(x) * (ends / sum_(ends, axes, keepdims=True) * g)
    if p == 2:
        return x * select(equal(y, 0), 0, g / y)
    if p < 2:
        grown = sign(x) * pow_(size, p - 1)
        grown = select(equal(x, 0), 0, grown) if p < 1 else grown
    else:
        grown = x * pow_(size, p - 2)
    return grown * (g * pow_(y, 1 - p) if p < 1 else select(equal(y, 0), 0, g / pow_(y, p - 1)))


@derivative(_of_norm)
@widened
def lp_norm(x: Node, axes: Sequence[int] | int | None, p: float = 2, keepdims: bool = False) -> Node:
    """``sum(|x|**p) ** (1/p)``; for an infinite ``p`` the largest or smallest magnitude, for 0 the number of elements
    that are not zero."""
    if p == 0:
        return sum_(cast(not_equal(x, 0), x.dtype), axes, keepdims)
    if p == 1:
        return sum_(abs_(x), axes, keepdims)
    if p == 2:
        return sqrt(sum_(x * x, axes, keepdims))
    if math.isinf(p):
        return (max_ if p > 0 else min_)(abs_(x), axes, keepdims)
    return pow_(sum_(pow_(abs_(x), constant(p, x.dtype)), axes, keepdims), constant(1 / p, x.dtype))
