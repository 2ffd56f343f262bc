"""Rules of numbers. A rule that holds for wrapping integers but not for floats says so in its types."""

from __future__ import annotations

import math
from itertools import product

from luminal.core import ir, numerics, ops
from luminal.core.constants import uniform
from luminal.core.ir import Node
from luminal.core.rules.match import C, D, X, apply
from luminal.core.rules.pattern import BOOL, FLOATS, INTEGERS, NUMBERS, filled, filled_as, rule

ADD, MUL, DIV, MOD, MAX = ops.ADD, ops.MUL, ops.DIV, ops.MOD, ops.MAX


def _combined(op: ops.Op, c: Node, d: Node) -> Node:
    """``op`` of two uniform constants."""
    first, second = uniform(c), uniform(d)
    assert first is not None and second is not None
    return filled(numerics.apply(op, None, first, second), c.shape)


def _reciprocal_of_power_of_two(x: Node, c: Node) -> Node | None:
    value = uniform(c)
    assert value is not None
    divisor = float(value)
    if not math.isfinite(divisor) or divisor == 0 or abs(math.frexp(divisor)[0]) != 0.5:
        return None
    reciprocal = 1.0 / divisor
    # Every float type of 16 bits and more holds these powers of two as normal numbers.
    return x * reciprocal if x.dtype.bits >= 16 and 2.0**-14 <= abs(reciprocal) <= 2.0**14 else None


_PAIRS = tuple({"c": c, "d": d} for c, d in product((3, 100, -7), (5, 127, -1)))

RULES = (
    rule("x + (-0.0) = x", apply(ADD, X, -0.0), lambda x: x, FLOATS),
    rule("x + 0 = x", apply(ADD, X, 0), lambda x: x, INTEGERS),
    rule("x + x*(-1) = 0", apply(ADD, X, apply(MUL, X, -1)), lambda x: filled_as(0, x), INTEGERS),
    rule("(x + c) + d = x + (c + d)", apply(ADD, apply(ADD, X, C), D),
         lambda x, c, d: ir.elementwise(ADD, x, _combined(ADD, c, d)), INTEGERS, _PAIRS),
    rule("x * 1 = x", apply(MUL, X, 1), lambda x: x, NUMBERS),
    rule("x * 0 = 0", apply(MUL, X, 0), lambda x: filled_as(0, x), INTEGERS),
    rule("(x * -1) * c = x * (-c)", apply(MUL, apply(MUL, X, -1), C),
         lambda x, c: ir.elementwise(MUL, x, _combined(MUL, c, filled_as(-1, c))), NUMBERS,
         ({"c": 3}, {"c": -1}, {"c": 0})),
    rule("(x * c) * d = x * (c * d)", apply(MUL, apply(MUL, X, C), D),
         lambda x, c, d: ir.elementwise(MUL, x, _combined(MUL, c, d)), INTEGERS, _PAIRS),
    rule("x / 1 = x", apply(DIV, X, 1), lambda x: x, NUMBERS),
    rule("1 / x = Recip(x)", apply(DIV, 1, X), lambda x: ir.unary(ops.RECIP, x), FLOATS),
    rule("x / c = x * (1/c), c a power of two", apply(DIV, X, C), _reciprocal_of_power_of_two, FLOATS,
         ({"c": 2}, {"c": -8}, {"c": 0.25})),
    rule("x mod 1 = 0", apply(MOD, X, 1), lambda x: filled_as(0, x), INTEGERS),
    rule("x max x = x", apply(MAX, X, X), lambda x: x, NUMBERS + BOOL),
    rule("x max -inf = x", apply(MAX, X, -math.inf), lambda x: x, FLOATS),
    rule("(x max c) max d = x max (c max d)", apply(MAX, apply(MAX, X, C), D),
         lambda x, c, d: ir.elementwise(MAX, x, _combined(MAX, c, d)), NUMBERS, ({"c": 1, "d": 2}, {"c": 0, "d": 0})),
)  # fmt: skip
