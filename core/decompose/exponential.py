"""Exponentials and logarithms."""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core.decompose.coefficients import EXPM1
from luminal.core.decompose.common import horner, real_function
from luminal.core.decompose.compare import clamp, equal, less
from luminal.core.derivative import derivative
from luminal.core.ir import Node, binary, bitcast, cast, multiply_add, select, unary
from luminal.core.types import f32, f64, i32, i64

# As a primitive's scale, the double nearest to one of these stands for the real number.
LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)
LOG10_2 = math.log10(2.0)

# ln(2) in two parts, the first so short that its product with an exponent is exact.
_LN_2 = {f32: (0.693145751953125, 1.4286068203094172e-06), f64: (0.6931471803691238, 1.9082149292705877e-10)}
# Where expm1 is -1 in the type, and where it overflows.
_EXPM1_RANGE = {f32: (-20.0, 89.0), f64: (-40.0, 710.0)}


def exp(x: Node) -> Node:
    """``e**x``."""
    return unary(ops.EXP2, x, ops.Scale(LOG2_E))


def exp2(x: Node) -> Node:
    """``2**x``."""
    return unary(ops.EXP2, x)


def log(x: Node) -> Node:
    """The natural logarithm: -inf at zero, NaN below."""
    return unary(ops.LOG2, x, ops.Scale(LN_2))


def log2(x: Node) -> Node:
    """The logarithm to base 2."""
    return unary(ops.LOG2, x)


def log10(x: Node) -> Node:
    """The logarithm to base 10."""
    return unary(ops.LOG2, x, ops.Scale(LOG10_2))


def power_of_two(exponent: Node) -> Node:
    """``2**exponent`` of whole floats within the normal range of their type, exact: the bits of the result are the
    biased exponent."""
    integer, bias, mantissa = (i32, 127, 23) if exponent.dtype == f32 else (i64, 1023, 52)
    biased = cast(exponent, integer) + bias
    return bitcast(binary(ops.SHL, biased, mantissa), exponent.dtype)


def reduced_exponential(x: Node) -> tuple[Node, Node]:
    """``(k, p)`` with ``e**x = 2**k * (1 + p)``, ``k`` whole and ``|p| < 0.42``, for finite ``x``.

    ``p`` is within 1 ULP. (Cody and Waite's reduction by ``k*ln(2)``.)
    """
    high, low = _LN_2[x.dtype]
    k = unary(ops.ROUND, x * LOG2_E, ops.Rounding("even"))
    r = multiply_add(k, -low, multiply_add(k, -high, x))
    return k, multiply_add(r * r, horner(r, EXPM1[x.dtype]), r)


@derivative(lambda g, y, x: g * (y + 1))
@real_function
def expm1(x: Node) -> Node:
    """``e**x - 1``, accurate near zero."""
    k, p = reduced_exponential(clamp(x, *_EXPM1_RANGE[x.dtype]))
    # Half of 2**k, because the largest k overflows.
    half = power_of_two(k - 1)
    result = multiply_add(half, p, half - 0.5) * 2
    # Tiny arguments are their own result: -0 stays, and subnormal ones are not halved.
    return select(less(x * x, x.dtype.eps**2 / 16), x, result)


@derivative(lambda g, y, x: g / (x + 1))
@real_function
def log1p(x: Node) -> Node:
    """``log(1 + x)``, accurate near zero: the logarithm of the rounded sum, times the ratio of ``x`` to what that sum
    holds of it (Kahan). Where it holds nothing, no gradient passes through a division by zero."""
    total = x + 1
    held = total - 1
    nothing = equal(held, 0)
    logarithm = log(total)
    result = select(equal(held, x), logarithm, logarithm * (x / select(nothing, 1, held)))
    return select(nothing, x, result)
