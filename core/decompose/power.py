"""Powers."""

from __future__ import annotations

import math

from luminal.core import ops
from luminal.core.decompose import twofloat
from luminal.core.decompose.arithmetic import abs_, reciprocal, rsqrt, sqrt, trunc
from luminal.core.decompose.coefficients import ATANH, EXPM1
from luminal.core.decompose.common import horner, number, widened
from luminal.core.decompose.compare import clamp, equal, isinf, less, logical_not, maximum, minimum, not_equal
from luminal.core.decompose.exponential import log, power_of_two
from luminal.core.decompose.twofloat import TwoFloat
from luminal.core.derivative import derivative
from luminal.core.ir import Node, Operand, binary, bitcast, broadcast, cast, constant, expand, lift, select, unary
from luminal.core.types import DType, f32, f64, i32, i64

# A product of n factors has n-1 roundings, of n reciprocals 2n-1: within 4 ULP up to these.
_LARGEST_FACTORS, _LARGEST_RECIPROCAL_FACTORS = 5, 2


def _of_power(g: Node, y: Node, x: Node, exponent: Operand) -> list[Node | None]:
    """Of the base none where the exponent is 0; of the exponent none where the power of 0 is 0 or 1 (PyTorch)."""
    of_base: Node | None
    fixed = number(exponent)
    if fixed is not None:
        of_base = None if fixed == 0 else g * (pow_(x, fixed - 1) * fixed)
    else:
        power = lift(exponent, x)
        of_base = select(equal(power, 0), 0, g * (power * pow_(x, power - 1)))
    if not isinstance(exponent, Node):
        return [of_base]
    if fixed is not None:
        return [of_base, None]
    none = equal(x, 0) & (less(0, exponent) | equal(exponent, 0))
    return [of_base, select(none, 0, g * (y * log(x)))]


@derivative(_of_power)
def pow_(x: Node, y: Operand) -> Node:
    """``x`` to the power ``y``, of one type, with C's special cases.

    Constant exponents that are small whole numbers, 1/2 or -1/2 become products and roots (as in PyTorch, the root of
    -0 is -0 and of -inf NaN). Integers wrap; to a negative power they are 0, or ±1 for the bases ±1.
    """
    exponent = number(y)
    if exponent is not None:
        simple = _constant_power(x, exponent)
        if simple is not None:
            return expand(simple, broadcast(x, y)[0].shape) if isinstance(y, Node) else simple
    y = lift(y, x)
    return _float_power(x, y) if x.dtype.is_float else _integer_power(x, y)


@widened
def _factors(x: Node, exponent: int) -> Node:
    """``x`` to a positive whole power, by squaring."""
    result: Node | None = None
    while True:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        x = x * x


def _constant_power(x: Node, exponent: float) -> Node | None:
    """The power as products and roots, where that is as accurate; else None."""
    if exponent == 0:
        return expand(constant(1, x.dtype), x.shape)
    if not x.dtype.is_float:
        return _factors(x, int(exponent)) if exponent > 0 else None
    if exponent == 0.5:
        return sqrt(x)
    if exponent == -0.5:
        return rsqrt(x)
    if float(exponent).is_integer():
        if 0 < exponent <= _LARGEST_FACTORS:
            return _factors(x, int(exponent))
        if -_LARGEST_RECIPROCAL_FACTORS <= exponent < 0:
            return _reciprocal_factors(x, int(-exponent))
    return None


@widened
def _reciprocal_factors(x: Node, exponent: int) -> Node:
    return _factors(reciprocal(x), exponent)


def _integer_power(x: Node, y: Node) -> Node:
    """By squaring, one bit of the exponent after the other."""
    x, y = broadcast(x, y)
    one = constant(1, x.dtype)
    result: Node = one
    base = x
    for bit in range(x.dtype.bits - (x.dtype.kind == "i")):
        taken = not_equal(y & (1 << bit), 0)
        result = result * select(taken, base, one)
        base = base * base
    if x.dtype.kind == "u":
        return result
    # 1/x truncated: 1 and -1 are their own reciprocals, and an odd power keeps the sign.
    unit = select(equal(x, 1), lift(1, x), select(equal(x, -1), select(equal(y & 1, 0), lift(1, x), lift(-1, x)), 0))
    return select(less(y, 0), unit, result)


# ---- floats --------------------------------------------------------------------------------------------------------

# Bits of the square root of one half, of the smallest normal number's exponent, and of a significand.
_SQRT_HALF = {f32: 0x3F3504F3, f64: 0x3FE6A09E667F3BCD}
_MANTISSA = {f32: 23, f64: 52}
_SMALLEST_NORMAL = {f32: 2.0**-126, f64: 2.0**-1022}
# An exponent of this size overflows or vanishes whatever the base, unless that is 1; larger ones are cut to it.
_EXPONENT_LIMIT = {f32: 2.0**40, f64: 2.0**70}
# 2/ln(2) and 1/3 in two parts.
_TWO_OVER_LN_2 = {f32: (2.885390043258667, 3.851925502932318e-08), f64: (2.8853900817779268, 4.0710547481862066e-17)}
# ln(2) in two parts, and an exponent beyond those of the type, of which half is none.
_LN_2 = {f32: (0.6931471824645996, -1.9046542121259336e-09), f64: (0.6931471805599453, 2.3190468138462996e-17)}
_FARTHEST = {f32: 250.0, f64: 2040.0}
_THIRD = {f32: (0.3333333432674408, -9.934107481068821e-09), f64: (0.3333333333333333, 1.850371707708594e-17)}


def _log2(x: Node) -> TwoFloat:
    """The logarithm to base 2 of a positive finite ``x`` as two floats, good to about 1.5 times the type's digits.

    ``x = 2**e * m`` with ``m`` in ``sqrt(1/2) .. sqrt(2)``; with ``s = (m - 1)/(m + 1)``, ``log2(m)`` is
    ``2/ln(2) * atanh(s)``.
    """
    dtype = x.dtype
    integer, mantissa = _integer(dtype), _MANTISSA[dtype]
    subnormal = less(x, _SMALLEST_NORMAL[dtype])
    bits = bitcast(select(subnormal, x * 2.0 ** (mantissa + 1), x), integer)
    exponent = binary(ops.SHR, bits - _SQRT_HALF[dtype], mantissa)
    m = bitcast(bits - binary(ops.SHL, exponent, mantissa), dtype)
    e = cast(exponent, dtype) + select(subnormal, lift(-(mantissa + 1.0), x), lift(0.0, x))

    numerator = m - 1
    denominator = m + 1
    lost = m - (denominator - 1)
    s = numerator / denominator
    back, back_rest = twofloat.product(s, denominator)
    s_rest = (((numerator - back) - back_rest) - s * lost) / denominator
    z = twofloat.ordered_sum(*_square(s, s_rest))
    third, third_rest = _THIRD[dtype]
    series, series_rest = twofloat.ordered_sum(lift(third, x), z[0] * horner(z[0], ATANH[dtype]))
    tail = twofloat.multiply(z, (series, series_rest + third_rest))
    whole, whole_rest = twofloat.ordered_sum(lift(1.0, x), tail[0])
    log_m = twofloat.multiply((s, s_rest), (whole, whole_rest + tail[1]))
    log_m = twofloat.multiply(log_m, twofloat.constant(*_TWO_OVER_LN_2[dtype], like=x))
    high, low = twofloat.ordered_sum(e, log_m[0])
    return twofloat.ordered_sum(high, low + log_m[1])


def _exp2(high: Node, low: Node) -> Node:
    """``2**(high + low)`` for a finite ``high`` and a ``low`` of up to some units in its last place, within about 0.8
    ULP: powers that the type holds, as of whole numbers, are exact.

    ``high = k + f``, and with ``r = (f + low)*ln(2)`` in two parts, ``e**r = 1 + r + r**2*P(r)``; all but the last sum
    is small beside 1.
    """
    dtype = high.dtype
    far = _FARTHEST[dtype]
    k = unary(ops.ROUND, high, ops.Rounding("even"))
    f = high - k
    ln_2, ln_2_rest = _LN_2[dtype]
    r, r_rest = twofloat.product(f, lift(ln_2, high))
    r_rest = r_rest + f * ln_2_rest + select(less(abs_(high), 2 * far), low, 0) * ln_2
    whole, lost = twofloat.ordered_sum(lift(1.0, high), r)
    curved = r * r * horner(r, EXPM1[dtype])
    value = whole + (lost + curved + r_rest * (1 + (r + curved)))
    # Scaled in two steps, of which only the second may round.
    k = clamp(k, -far, far)
    half = trunc(k * 0.5)
    return value * power_of_two(half) * power_of_two(k - half)


def _square(s: Node, rest: Node) -> TwoFloat:
    total, low = twofloat.product(s, s)
    return total, low + s * rest * 2


def _integer(dtype: DType) -> DType:
    return i32 if dtype == f32 else i64


@widened
def _float_power(x: Node, y: Node) -> Node:
    magnitude = abs_(x)
    ordinary = less(0, magnitude) & less(magnitude, math.inf)
    logarithm, rest = _log2(select(ordinary, magnitude, 1))
    limit = _EXPONENT_LIMIT[x.dtype]
    bounded = clamp(y, -limit, limit)
    high, low = twofloat.product(bounded, logarithm)
    power = _exp2(high, low + bounded * rest)
    # Zero and infinity: themselves, or their reciprocals; NaN itself.
    power = select(ordinary, power, select(less(y, 0), reciprocal(magnitude), magnitude))

    whole = equal(trunc(y), y)
    odd = whole & not_equal(trunc(y * 0.5) * 2, y)
    negative = less(x, 0)
    # -0 to an odd power keeps its sign, which only its reciprocal shows.
    minus = negative | (equal(x, 0) & less(reciprocal(x), 0))
    power = select(odd & minus, -power, power)
    power = select(negative & logical_not(whole) & less(-math.inf, x), math.nan, power)
    power = select(equal(y, y), power, y)
    # Whatever the other operand is, NaN included.
    return select(equal(y, 0) | equal(x, 1), 1, power)


@derivative(lambda g, y, a, b: [g * (a / y), g * (b / y)])
@widened
def hypot(a: Node, b: Node) -> Node:
    """``sqrt(a**2 + b**2)`` without overflow on the way; infinite where either is."""
    a, b = abs_(a), abs_(b)
    large, small = maximum(a, b), minimum(a, b)
    ratio = select(equal(large, 0), 0, small / large)
    return select(isinf(a) | isinf(b), math.inf, large * sqrt(ratio * ratio + 1))
