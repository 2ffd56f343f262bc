"""Rules of bits, of predicates and of comparisons."""

from __future__ import annotations

from luminal.core import ir, numerics, ops
from luminal.core.constants import uniform
from luminal.core.ir import Node
from luminal.core.rules.match import C, D, X, Y, apply
from luminal.core.rules.pattern import BITS, BOOL, FLOATS, INTEGERS, NUMBERS, filled, filled_as, rule
from luminal.core.types import bool_

AND, OR, XOR = ops.AND, ops.OR, ops.XOR


def _truth(value: bool, like: Node) -> Node:
    return ir.expand(ir.constant(int(value), bool_), like.shape)


def _exclusive(x: Node, c: Node, d: Node) -> Node:
    first, second = uniform(c), uniform(d)
    assert first is not None and second is not None
    return ir.elementwise(XOR, x, filled(numerics.apply(XOR, None, first, second), x.shape))


RULES = (
    rule("x & x = x", apply(AND, X, X), lambda x: x, BITS),
    rule("x & 0 = 0", apply(AND, X, 0), lambda x: filled_as(0, x), BITS),
    rule("x & ~0 = x", apply(AND, X, -1), lambda x: x, INTEGERS),
    rule("x & true = x", apply(AND, X, 1), lambda x: x, BOOL),
    rule("x | x = x", apply(OR, X, X), lambda x: x, BITS),
    rule("x | 0 = x", apply(OR, X, 0), lambda x: x, BITS),
    rule("x | true = true", apply(OR, X, 1), lambda x: filled_as(1, x), BOOL),
    rule("x ^ x = 0", apply(XOR, X, X), lambda x: filled_as(0, x), BITS),
    rule("x ^ 0 = x", apply(XOR, X, 0), lambda x: x, BITS),
    rule("(x ^ c) ^ d = x ^ (c ^ d)", apply(XOR, apply(XOR, X, C), D), _exclusive, BITS,
         ({"c": 1, "d": 1}, {"c": 0, "d": 1})),
    rule("x << 0 = x", apply(ops.SHL, X, 0), lambda x: x, INTEGERS),
    rule("x >> 0 = x", apply(ops.SHR, X, 0), lambda x: x, INTEGERS),
    rule("x == x", apply(ops.EQUAL, X, X), lambda x: _truth(True, x), BITS),
    rule("not x < x", apply(ops.LESS_THAN, X, X), lambda x: _truth(False, x), NUMBERS + BOOL),
    rule("not x < -inf", apply(ops.LESS_THAN, X, float("-inf")), lambda x: _truth(False, x), FLOATS),
    rule("(x == true) = x", apply(ops.EQUAL, X, 1), lambda x: x, BOOL),
    rule("(x == false) = x ^ true", apply(ops.EQUAL, X, 0), lambda x: x ^ 1, BOOL),
    rule("x & (x & y) = x & y", apply(AND, X, apply(AND, X, Y)), lambda x, y: x & y, BITS),
)  # fmt: skip
