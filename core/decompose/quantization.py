"""Integers that stand for real numbers by a scale and a zero point: products that are exact, and rounding."""

from __future__ import annotations

from luminal.core import types
from luminal.core.decompose.arithmetic import round_
from luminal.core.decompose.contraction import matmul
from luminal.core.ir import Node, cast
from luminal.core.types import DType


def centred(x: Node, zero: Node | None) -> Node:
    """``x - zero`` as int32, exact for integers of 16 bits or fewer; ``zero`` broadcasts, and is 0 where it is None."""
    wide = cast(x, types.i32)
    return wide if zero is None else wide - cast(zero, types.i32)


def integer_product(a: Node, a_zero: Node | None, b: Node, b_zero: Node | None) -> Node:
    """The matrix product of integers around their zero points, in int32, whose sums wrap."""
    return matmul(centred(a, a_zero), centred(b, b_zero))


def rounded(x: Node, zero: Node | None, to: DType) -> Node:
    """``saturate(round(x) + zero)`` for floats ``x``, ties to even, as casts to integers do: of type ``to``."""
    whole = round_(x)
    return cast(whole if zero is None else whole + cast(zero, types.f32), to)
