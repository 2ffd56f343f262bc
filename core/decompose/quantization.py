"""Integers that stand for real numbers by a scale and a zero point: products that are exact, and rounding."""

from __future__ import annotations

from luminal.core import types
from luminal.core.decompose.arithmetic import round_
from luminal.core.decompose.compare import clamp, equal, maximum, minimum
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.reduction import max_, min_
from luminal.core.ir import Node, cast, select
from luminal.core.types import DType


def centred(x: Node, zero: Node | None) -> Node:
    """``x - zero`` as int32, exact for integers of 16 bits or fewer; ``zero`` broadcasts, and is 0 where it is None."""
    wide = cast(x, types.i32)
    return wide if zero is None else wide - cast(zero, types.i32)


def integer_product(a: Node, a_zero: Node | None, b: Node, b_zero: Node | None) -> Node:
    """The matrix product of integers around their zero points, in int32, whose sums wrap."""
    return matmul(centred(a, a_zero), centred(b, b_zero))


def dynamic_product(a: Node, b: Node, scale: Node, zero: Node | None) -> Node:
    """The matrix product of floats ``a`` and real numbers for which the integers ``b`` stand: ``a`` is quantised to
    bytes, by the range of all its elements and 0, and the product is exact before it is scaled."""
    low, high = minimum(min_(a), 0), maximum(max_(a), 0)
    step = (high - low) / 255
    step = select(equal(step, 0), 1, step)
    a_zero = cast(clamp(round_(-low / step), 0, 255), types.u8)
    product = integer_product(rounded(a / step, a_zero, types.u8), a_zero, b, zero)
    return cast(product, types.f32) * (step * scale)


def rounded(x: Node, zero: Node | None, to: DType) -> Node:
    """``saturate(round(x) + zero)`` for floats ``x``, ties to even, as casts to integers do: of type ``to``."""
    whole = round_(x)
    return cast(whole if zero is None else whole + cast(zero, types.f32), to)


def by_rows(x: Node) -> tuple[Node, Node]:
    """float32 ``x [.., K]`` as int8, and the scale ``[.., 1]`` of each row, its largest magnitude / 127: ``x`` is the
    integers times the scale, but for half a scale. Of a row with an infinity or NaN the scale is that."""
    largest, least = max_(x, -1, keepdims=True), min_(x, -1, keepdims=True)
    scale = maximum(largest, -least) / 127  # the magnitude of each element would be read by the reduction alone
    return rounded(x / select(equal(scale, 0), 1, scale), None, types.i8), scale


def parameters(low: Node, high: Node, least: int, most: int, smallest: Node) -> tuple[Node, Node]:
    """A scale of at least ``smallest`` and an integer zero point by which the numbers ``low .. high``, and 0, are the
    integers ``least .. most``."""
    low, high = minimum(low, 0), maximum(high, 0)
    scale = maximum(cast((high - low) / float(most - least), smallest.dtype), smallest)
    zero = -cast(round_(cast(low, scale.dtype) / scale), types.i32) + least
    return scale, clamp(zero, least, most)


def symmetric_scale(low: Node, high: Node, least: int, most: int, smallest: Node) -> Node:
    """A scale of at least ``smallest`` by which the numbers ``low .. high`` lie within half of ``least .. most``."""
    largest = maximum(-minimum(low, 0), maximum(high, 0))
    return maximum(cast(largest / ((most - least) / 2), smallest.dtype), smallest)
