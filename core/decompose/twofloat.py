"""Arithmetic on unevaluated sums of two floats (high, low), for what one float cannot hold.

After Dekker (1971), the error of a product by a fused multiply-add.
"""

from __future__ import annotations

from typing import TypeAlias

from luminal.core.ir import Node, lift, multiply_add

TwoFloat: TypeAlias = tuple[Node, Node]


def ordered_sum(a: Node, b: Node) -> TwoFloat:
    """``a + b`` exactly, for ``|a| >= |b|`` or ``a == 0``."""
    total = a + b
    return total, b - (total - a)


def exact_sum(a: Node, b: Node) -> TwoFloat:
    """``a + b`` exactly (Knuth, 1969); the rest is NaN where the sum is not finite."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def product(a: Node, b: Node) -> TwoFloat:
    """``a * b`` exactly, but for underflow."""
    total = a * b
    return total, multiply_add(a, b, -total)


def multiply(a: TwoFloat, b: TwoFloat) -> TwoFloat:
    """The product of two sums, to about twice the precision of one float."""
    total, rest = product(a[0], b[0])
    return ordered_sum(total, rest + (a[0] * b[1] + a[1] * b[0]))


def constant(value: float, rest: float, like: Node) -> TwoFloat:
    """A number as two floats of the type of ``like``: ``value`` and what it lacks, ``rest``."""
    return lift(value, like), lift(rest, like)
