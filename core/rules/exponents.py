"""Identities of exponentials, logarithms, powers and roots.

They are real rules, applied where the order of sums may change too (``algebra="bounded"``). A right side has no more
roundings than the left one, so its bound is no larger; it is finite wherever the left side is, and keeps the sign of
zero. Where that takes an interval, or a sign, that is not known, nothing changes. A left side that overflows on its way
may have a finite right side. ``exp`` and ``log`` are to any base.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from luminal.core import ir, ops
from luminal.core.constants import uniform
from luminal.core.decompose.arithmetic import abs_, reciprocal, rsqrt, sqrt
from luminal.core.intervals import interval, is_positive, magnitude
from luminal.core.ir import Node
from luminal.core.rules.pattern import EXAMPLE_SHAPE, Real, Rule
from luminal.core.types import DType, f32, f64

_FLAT = 2.0  # sizes of exponents, together, up to which the rounding of their sum moves exp less than a product rounds
_INVERSE = 1e-15  # how far the product of the scales of two inverse functions may be from 1

# The powers that are less work than exp(n * log(x)).
_POWERS: dict[float, Callable[[Node], Node]] = {
    1.0: lambda x: x, 2.0: lambda x: x * x, 0.5: sqrt, -0.5: rsqrt, -1.0: reciprocal,
}  # fmt: skip


@dataclass(frozen=True)
class Identity:
    """A ``rule``. Where others read the operands of the left side, it saves nothing unless it holds ``anywhere``."""

    rule: Rule
    anywhere: bool

    def __repr__(self) -> str:
        return self.rule.equation


def _square_of_root(node: Node) -> Node | None:
    x, y = node.inputs
    return x.inputs[0] if x is y and x.op is ops.SQRT and is_positive(x.inputs[0]) else None


def _square_of_reciprocal_root(node: Node) -> Node | None:
    x, y = node.inputs
    if x is not y or x.op is not ops.RECIP or x.inputs[0].op is not ops.SQRT:
        return None
    (inner,) = x.inputs[0].inputs
    return reciprocal(inner) if is_positive(inner) else None


def _by_own_root(node: Node) -> Node | None:
    for x, y in (node.inputs, node.inputs[::-1]):
        root = y.inputs[0] if node.op is ops.MUL and y.op is ops.RECIP else y
        divides = root is not y or node.op is ops.DIV
        if divides and y is not x and root.op is ops.SQRT and root.inputs[0] is x and interval(x)[0] > 0:
            return root if node.op is ops.MUL or x is node.inputs[0] else None
    return None


def _square_of_exponential(node: Node) -> Node | None:
    x, y = node.inputs
    return _exp(x.inputs[0] * 2.0, x) if x is y and x.op is ops.EXP2 else None


def _product_of_exponentials(node: Node) -> Node | None:
    x, y = node.inputs
    if x is y or x.op is not ops.EXP2 or y.op is not ops.EXP2 or x.attr != y.attr:
        return None
    (a,), (b,) = x.inputs, y.inputs
    flat = abs(x.attr.scale) * math.log(2) * (magnitude(a) + magnitude(b)) <= _FLAT
    return _exp(a + b, x) if flat else None


def _root_of_square(node: Node) -> Node | None:
    (x,) = node.inputs
    return abs_(x.inputs[0]) if x.op is ops.MUL and x.inputs[0] is x.inputs[1] else None


def _root_of_exponential(node: Node) -> Node | None:
    (x,) = node.inputs
    return _exp(x.inputs[0] * 0.5, x) if x.op is ops.EXP2 else None


def _reciprocal_of_exponential(node: Node) -> Node | None:
    (x,) = node.inputs
    return _exp(x.inputs[0] * -1.0, x) if x.op is ops.EXP2 else None


def _reciprocal_of_reciprocal(node: Node) -> Node | None:
    (x,) = node.inputs
    return x.inputs[0] if x.op is ops.RECIP else None


def _power_by_logarithm(node: Node) -> Node | None:
    (x,) = node.inputs
    for number, logarithm in (x.inputs, x.inputs[::-1]) if x.op is ops.MUL else ((None, x),):
        factor = 1.0 if number is None else uniform(number)
        if factor is None or logarithm.op is not ops.LOG2 or not is_positive(logarithm.inputs[0]):
            continue
        power = float(factor) * node.attr.scale * logarithm.attr.scale
        for exponent, made in _POWERS.items():
            if abs(power - exponent) <= _INVERSE:
                return made(logarithm.inputs[0])
    return None


def _logarithm_of_exponential(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.op is not ops.EXP2 or abs(node.attr.scale * x.attr.scale - 1) > _INVERSE:
        return None
    (inner,) = x.inputs
    normal = -math.log2(float(np.finfo(inner.dtype.numpy).tiny))  # beyond, an exponential loses digits
    return inner + 0.0 if abs(x.attr.scale) * magnitude(inner) <= normal else None  # the logarithm of 1 is +0


def _logarithm_of_root(node: Node) -> Node | None:
    (x,) = node.inputs
    return ir.unary(ops.LOG2, x.inputs[0], node.attr) * 0.5 if x.op is ops.SQRT else None


def _logarithm_of_reciprocal(node: Node) -> Node | None:
    (x,) = node.inputs
    if x.op is not ops.RECIP or not is_positive(x.inputs[0]):
        return None
    return ir.unary(ops.LOG2, x.inputs[0], node.attr) * -1.0 + 0.0  # of 1 it is +0


def _exp(x: Node, like: Node) -> Node:
    return ir.unary(ops.EXP2, x, like.attr)


# ---- the table -------------------------------------------------------------------------------------------------------

_E, _LN = ops.Scale(1 / math.log(2)), ops.Scale(math.log(2))


def _e(x: Node) -> Node:
    return ir.unary(ops.EXP2, x, _E)


def _ln(x: Node) -> Node:
    return ir.unary(ops.LOG2, x, _LN)


def _sin(x: Node) -> Node:
    return ir.unary(ops.SIN, x)


def _identity(
    equation: str, op: ops.Op, rewrite: Callable[[Node], Node | None], examples: Sequence[Callable[[Node], Node]],
    bound: str, anywhere: bool = False,
) -> Identity:  # fmt: skip
    """A row: ``examples`` make left sides of any tensor, ``bound`` is what happens to the bound of the error."""

    def made() -> Iterator[Node]:
        for dtype in (f32, f64):
            x = ir.input_("x", EXAMPLE_SHAPE, dtype)
            yield from (example(x) for example in examples)

    def of_types(node: Node) -> Node | None:
        return rewrite(node) if node.dtype in _TYPES else None

    return Identity(Rule(equation, (op,), of_types, made, Real(f"core.algebra.functions; {bound}")), anywhere)


_TYPES: tuple[DType, ...] = (f32, f64)
_FEWER, _NONE = "two roundings fewer", "nothing is rounded"

IDENTITIES = (
    _identity("sqrt(x) * sqrt(x) = x, x >= 0", ops.MUL, _square_of_root,
              [lambda x: sqrt(x * x) * sqrt(x * x), lambda x: sqrt(_e(x)) * sqrt(_e(x))], _NONE, anywhere=True),
    _identity("1/sqrt(x) * 1/sqrt(x) = 1/x, x >= 0", ops.MUL, _square_of_reciprocal_root,
              [lambda x: rsqrt(x * x) * rsqrt(x * x)], _FEWER, anywhere=True),
    _identity("x * 1/sqrt(x) = sqrt(x), x > 0", ops.MUL, _by_own_root,
              [lambda x: (x * x + 0.5) * rsqrt(x * x + 0.5)], _FEWER, anywhere=True),
    _identity("x / sqrt(x) = sqrt(x), x > 0", ops.DIV, _by_own_root,
              [lambda x: (x * x + 0.5) / sqrt(x * x + 0.5)], "one rounding fewer", anywhere=True),
    _identity("exp(x) * exp(x) = exp(2x)", ops.MUL, _square_of_exponential, [lambda x: _e(x) * _e(x)], _FEWER),
    # The rounding of x + y is an error of the exponent, and so one of the result by as much as that is large.
    _identity("exp(x) * exp(y) = exp(x + y), |x| + |y| <= 2", ops.MUL, _product_of_exponentials,
              [lambda x: _e(_sin(x)) * _e(_sin(x * 2.0) * 0.5)], "one of exp is of x + y instead"),
    _identity("sqrt(x * x) = |x|", ops.SQRT, _root_of_square, [lambda x: sqrt(x * x)], _NONE, anywhere=True),
    _identity("sqrt(exp(x)) = exp(x/2)", ops.SQRT, _root_of_exponential, [lambda x: sqrt(_e(x))], _FEWER),
    _identity("1 / exp(x) = exp(-x)", ops.RECIP, _reciprocal_of_exponential,
              [lambda x: reciprocal(_e(x))], "one rounding fewer"),
    _identity("1 / (1/x) = x", ops.RECIP, _reciprocal_of_reciprocal,
              [lambda x: reciprocal(reciprocal(x))], _NONE, anywhere=True),
    _identity("exp(n * log(x)) = x**n, n of 1, 2, 1/2, -1/2, -1, x >= 0", ops.EXP2, _power_by_logarithm,
              [lambda x: _e(_ln(x * x)), *(lambda x, n=n: _e(_ln(x * x) * n) for n in (2.0, 0.5, -0.5, -1.0))],
              "the logarithm's error, by as much as it is large, goes", anywhere=True),
    _identity("log(exp(x)) = x, exp(x) a normal number", ops.LOG2, _logarithm_of_exponential,
              [lambda x: _ln(_e(_sin(x) * 50.0))], _NONE, anywhere=True),
    _identity("log(sqrt(x)) = log(x)/2", ops.LOG2, _logarithm_of_root, [lambda x: _ln(sqrt(x))],
              "the root's error, which is large beside a logarithm near 0, goes"),
    _identity("log(1/x) = -log(x), x >= 0", ops.LOG2, _logarithm_of_reciprocal,
              [lambda x: _ln(reciprocal(x * x))], "as of a root"),
)  # fmt: skip
