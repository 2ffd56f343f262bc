"""Hyperbolic functions and their inverses."""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core.decompose.arithmetic import abs_, rsqrt
from luminal.core.decompose.coefficients import TANH
from luminal.core.decompose.common import SHORT_DIGITS, horner, real_function
from luminal.core.decompose.compare import equal, less, magnitude, maximum, minimum
from luminal.core.decompose.exponential import LOG2_E, log, log1p, power_of_two, reduced_exponential
from luminal.core.derivative import derivative
from luminal.core.ir import Node, select, unary
from luminal.core.types import f32, f64

# Where sinh and cosh overflow; where 1 is lost beside the square.
_SINH_LIMIT = {f32: 89.5, f64: 710.5}
_LARGE = {f32: 2.0**13, f64: 2.0**28}


@derivative(lambda g, y, x: g * (1 - y * y))
@real_function
def tanh(x: Node) -> Node:
    """The hyperbolic tangent: a polynomial on ``[-5/8, 5/8]``; beyond, ``1 - 2/(exp(2|x|) + 1)`` with the sign of x."""
    size = magnitude(x)
    near = x * horner(size * size, TANH[x.dtype])
    far = 1 - 2 / (unary(ops.EXP2, size, ops.Scale(2 * LOG2_E)) + 1)
    return select(less(0.625, size), select(less(x, -x), -far, far), near)


def one_plus_tanh_short(x: Node) -> Node:
    """``1 + tanh(x)``, a factor of GELU, of a float32 to ``SHORT_DIGITS`` significant bits, also where the sum loses
    them, but for subnormal results, which may be 0: ``2 / (1 + exp(-2x))``."""
    return 2 / (unary(ops.EXP2, x, ops.Scale(-2 * LOG2_E, SHORT_DIGITS)) + 1)


def _quarters(magnitude: Node) -> tuple[Node, Node, Node, Node]:
    """``(a, b, p, q)`` with ``e**m / 4 = a*(1 + p)`` and ``e**-m / 4 = b*(1 - q)``, for ``m`` up to overflow."""
    k, p = reduced_exponential(magnitude)
    a = power_of_two(k - 2)
    return a, 0.0625 / a, p, p / (p + 1)


def _of_sinh(g: Node, y: Node, x: Node) -> Node:
    return g * cosh(x)


@derivative(_of_sinh)
@real_function
def sinh(x: Node) -> Node:
    """The hyperbolic sine."""
    a, b, p, q = _quarters(minimum(abs_(x), _SINH_LIMIT[x.dtype]))
    magnitude = ((a - b) + (a * p + b * q)) * 2
    result = select(less(x, 0), -magnitude, magnitude)
    # Tiny arguments are their own result: -0 stays, and subnormal ones are not divided.
    return select(less(x * x, x.dtype.eps / 4), x, result)


@derivative(lambda g, y, x: g * sinh(x))
@real_function
def cosh(x: Node) -> Node:
    """The hyperbolic cosine."""
    a, b, p, q = _quarters(minimum(abs_(x), _SINH_LIMIT[x.dtype]))
    return ((a + b) + (a * p - b * q)) * 2


@derivative(lambda g, y, x: g * rsqrt(x * x + 1))
@real_function
def asinh(x: Node) -> Node:
    """The inverse of sinh: ``log1p(m + m*m/(1 + sqrt(1 + m*m)))`` of the magnitude, or ``log(m) + ln(2)`` where the
    square would overflow."""
    magnitude, large = abs_(x), _LARGE[x.dtype]
    bounded = minimum(magnitude, large)
    square = bounded * bounded
    near = log1p(bounded + square / (unary(ops.SQRT, square + 1) + 1))
    far = log(maximum(magnitude, large)) + math.log(2)  # never of 0, where no gradient passes
    result = select(less(bounded, magnitude), far, near)
    return select(equal(x, 0), x, select(less(x, 0), -result, result))


@derivative(lambda g, y, x: g * rsqrt(x * x - 1))
@real_function
def acosh(x: Node) -> Node:
    """The inverse of cosh: NaN below 1."""
    bounded = minimum(x, _LARGE[x.dtype])
    above = bounded - 1
    near = log1p(above + unary(ops.SQRT, above * (bounded + 1)))
    result = select(less(bounded, x), log(x) + math.log(2), near)
    return select(less(x, 1), math.nan, result)


@derivative(lambda g, y, x: g / (1 - x * x))
@real_function
def atanh(x: Node) -> Node:
    """The inverse of tanh: infinite at -1 and 1, NaN beyond."""
    magnitude = abs_(x)
    result = log1p(magnitude * 2 / (1 - magnitude)) * 0.5
    return select(equal(x, 0), x, select(less(x, 0), -result, result))
