"""Arithmetic on unevaluated sums of two floats (high, low), for what one float cannot hold.

Dekker (1971). Every step is exact or harmless under a fused multiply-add.
"""

from __future__ import annotations

from typing import TypeAlias

from luminal.core.ir import Node, bitcast, lift
from luminal.core.types import f32, i32, i64

TwoFloat: TypeAlias = tuple[Node, Node]


def split(x: Node) -> TwoFloat:
    """A finite ``x`` as its leading bits, half of the significand, and the rest: products of halves are exact."""
    integer, mask = (i32, -1 << 12) if x.dtype == f32 else (i64, -1 << 27)
    high = bitcast(bitcast(x, integer) & mask, x.dtype)
    return high, x - high


def ordered_sum(a: Node, b: Node) -> TwoFloat:
    """``a + b`` exactly, for ``|a| >= |b|`` or ``a == 0``."""
    total = a + b
    return total, b - (total - a)


def product(a: Node, b: Node) -> TwoFloat:
    """``a * b`` exactly, but for underflow."""
    total = a * b
    (a_high, a_low), (b_high, b_low) = split(a), split(b)
    rest = ((a_high * b_high - total) + a_high * b_low + a_low * b_high) + a_low * b_low
    return total, rest


def square(x: Node) -> TwoFloat:
    """``x * x``: the remainder to about 12 bits in float32, 27 in float64."""
    total = x * x
    high, low = split(x)
    return total, (high * high - total) + low * (x + high)


def multiply(a: TwoFloat, b: TwoFloat) -> TwoFloat:
    """The product of two sums, to about twice the precision of one float."""
    total, rest = product(a[0], b[0])
    return ordered_sum(total, rest + (a[0] * b[1] + a[1] * b[0]))


def constant(value: float, rest: float, like: Node) -> TwoFloat:
    """A number as two floats of the type of ``like``: ``value`` and what it lacks, ``rest``."""
    return lift(value, like), lift(rest, like)
