"""The error function, its complement, and the normal distribution as GELU needs it."""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core.decompose.coefficients import ERF, ERFCX, LOG2_ERFC, LOG2_NORMAL, NORMAL
from luminal.core.decompose.common import SHORT_DIGITS, Quotients, horner, in_pairs, real_function
from luminal.core.decompose.compare import descending, less, magnitude, maximum, minimum
from luminal.core.decompose.exponential import LOG2_E, exp2
from luminal.core.decompose.twofloat import product
from luminal.core.derivative import derivative
from luminal.core.ir import Node, multiply_add, select, unary
from luminal.core.types import f32, f64

# Where erf is 1 in the type; where erfc is 0; the same for the tail of the normal distribution.
_ERF_LIMIT = {f32: 3.95, f64: 5.95}
_ERFC_LIMIT = {f32: 10.7, f64: 27.6}
_NORMAL_LIMIT = {f32: 15.0, f64: 39.0}
_SHORT_LIMIT = 14.3


def _bell(x: Node) -> Node:
    """``2/sqrt(pi) * exp(-x**2)``."""
    return unary(ops.EXP2, x * x, ops.Scale(-LOG2_E)) * (2 / math.sqrt(math.pi))


@derivative(lambda g, y, x: g * _bell(x))
@real_function
def erf(x: Node) -> Node:
    """The error function: a polynomial on ``[-1, 1]``; beyond, one minus two to a polynomial."""
    size = magnitude(x)
    near = multiply_add(x, horner(size * size, ERF[x.dtype]), x)
    far = 1 - exp2(horner(minimum(size, _ERF_LIMIT[x.dtype]), LOG2_ERFC[x.dtype]))
    return select(less(1, size), select(less(x, -x), -far, far), near)


def _gaussian_tail(v: Node, rate: float, table: Quotients, constant: float) -> tuple[Node, Node, Node, Node]:
    """``(weight, P(v), v*P(v), denominator)``: the exponential ``exp(-rate*v*v)`` and the parts of the quotient
    ``P(v) / (constant*v*P(v) + Q(v))``.

    ``rate`` is a power of two. The rounding of the square, which the exponential would magnify, is put right to first
    order in the denominator, in the larger of its terms, which is nearly all of it where that rounding counts.
    """
    total, rest = product(v, v)
    weight = unary(ops.EXP2, total, ops.Scale(-rate * LOG2_E))
    p, q = table[v.dtype]
    numerator = horner(v, p)
    main = v * numerator
    return weight, numerator, main, multiply_add(main, multiply_add(rest, rate * constant, constant), horner(v, q))


@derivative(lambda g, y, x: -(g * _bell(x)))
@real_function
def erfc(x: Node) -> Node:
    """``1 - erf(x)``, accurate where it is small."""
    v = maximum(descending(x), -_ERFC_LIMIT[x.dtype])
    weight, numerator, _, denominator = _gaussian_tail(v, 1.0, ERFCX, -math.sqrt(math.pi))
    tail = weight * numerator / denominator
    return select(less(x, -x), 2 - tail, tail)


def normal_slope(x: Node) -> Node:
    """The derivative of ``times_normal``: the normal distribution at ``x`` plus ``x`` times its density."""
    density = unary(ops.EXP2, x * x, ops.Scale(-0.5 * LOG2_E)) * (1 / math.sqrt(2 * math.pi))
    return erfc(x * -math.sqrt(0.5)) * 0.5 + x * density


@derivative(lambda g, y, x: g * normal_slope(x))
@real_function
def times_normal(x: Node) -> Node:
    """``x`` times the cumulative distribution of the standard normal at ``x``: ``x * erfc(-x/sqrt(2)) / 2``.

    It is ``b`` below zero and ``x + b`` above, ``b`` being its value at ``-|x|``. NaN at -inf, where PyTorch and
    onnxruntime multiply by zero.
    """
    size = select(less(-x, x), -x, x)  # -|x|, a zero of the sign of x; the slope there is that of x
    v = maximum(size, -_NORMAL_LIMIT[x.dtype])
    weight, _, main, denominator = _gaussian_tail(v, 0.5, NORMAL, -math.sqrt(2 * math.pi))
    # Below the limit the weight is 0, and -inf times that is NaN.
    return multiply_add(weight, select(less(x, v), x, main) / denominator, _positive(x))


def times_normal_short(x: Node) -> Node:
    """``times_normal`` of a float32 to ``SHORT_DIGITS`` significant bits, or what a subnormal number has of them: the
    tail is two to a polynomial."""
    v = maximum(descending(x), -_SHORT_LIMIT)
    tail = unary(ops.EXP2, in_pairs(v, LOG2_NORMAL[x.dtype]), ops.Scale(digits=SHORT_DIGITS))
    return multiply_add(_negative(x, v), tail, _positive(x))


def _positive(x: Node) -> Node:
    """``x`` where it is above zero, else -0, which keeps the sign of a zero that is added; the slope at zero is 0."""
    return select(less(-0.0, x), x, -0.0)


def _negative(x: Node, v: Node) -> Node:
    """``v``, which is ``-|x|`` or a limit where its weight is 0; below that ``x``, since -inf times zero is NaN. The
    slope at zero is that of ``x``."""
    return select(less(v, x), v, x)
