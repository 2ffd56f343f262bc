"""Signs, rounding, quotients and remainders."""

from __future__ import annotations

from luminal.core import ops
from luminal.core.decompose.common import require_float, widened
from luminal.core.decompose.compare import equal, isnan, less, less_equal, logical_not, maximum, not_equal
from luminal.core.derivative import derivative
from luminal.core.ir import Node, Operand, binary, lift, select, unary


def neg(x: Node) -> Node:
    """``-x``; integers wrap."""
    return -x


def sub(a: Operand, b: Operand) -> Node:
    """``a - b``; integers wrap."""
    node = a if isinstance(a, Node) else b
    assert isinstance(node, Node)
    return lift(a, node) + -lift(b, node)


@derivative(lambda g, y, x: g * sign(x))
def abs_(x: Node) -> Node:
    """``|x|``; the lowest integer stays itself."""
    if x.dtype.kind in "bu":
        return x
    return maximum(x, -x)


def sign(x: Node) -> Node:
    """-1, 0 or 1; 0 for NaN and both zeros, as PyTorch and onnxruntime have it."""
    if x.dtype.is_bool:
        return x
    one = select(less(0, x), lift(1, x), lift(0, x))
    return one if x.dtype.kind == "u" else select(less(x, 0), lift(-1, x), one)


def square(x: Node) -> Node:
    """``x * x``."""
    return x * x


def sqrt(x: Node) -> Node:
    """The square root; NaN below zero."""
    return unary(ops.SQRT, x)


@widened
def rsqrt(x: Node) -> Node:
    """``1 / sqrt(x)``: two correctly rounded steps, under 1.5 ULP."""
    return unary(ops.RECIP, unary(ops.SQRT, x))


def reciprocal(x: Node) -> Node:
    """``1 / x``."""
    return unary(ops.RECIP, x)


def floor(x: Node) -> Node:
    """The largest integer not above ``x``."""
    return _round(x, "floor")


def ceil(x: Node) -> Node:
    """The smallest integer not below ``x``."""
    return _round(x, "ceil")


def trunc(x: Node) -> Node:
    """``x`` without its fraction."""
    return _round(x, "trunc")


@widened
def round_(x: Node, decimals: int = 0) -> Node:
    """The nearest integer (or multiple of ``10**-decimals``), ties to even."""
    if decimals == 0 or not x.dtype.is_float:
        return _round(x, "even")
    power = 10.0 ** abs(decimals)
    return _round(x * power, "even") / power if decimals > 0 else _round(x / power, "even") * power


@widened
def round_away(x: Node) -> Node:
    """The nearest integer, ties away from zero (C's ``round``)."""
    whole = trunc(x)
    return select(less_equal(0.5, abs_(x - whole)), whole + sign(x), whole)


def _round(x: Node, mode: str) -> Node:
    return unary(ops.ROUND, x, ops.Rounding(mode)) if x.dtype.is_float else x


@widened
def frac(x: Node) -> Node:
    """``x - trunc(x)``."""
    return x - trunc(x)


@derivative(lambda g, y, a, b: [g, -(g * trunc(a / b))])
@widened
def fmod(a: Node, b: Node) -> Node:
    """The remainder of truncated division, with the sign of ``a``, exact."""
    if not a.dtype.is_float:
        return a - binary(ops.DIV, a, b) * b
    magnitude = binary(ops.MOD, abs_(a), abs_(b))
    # A zero dividend keeps its own sign, unless the divisor makes the result NaN.
    zero = equal(a, 0) & equal(magnitude, 0)
    return select(less(a, 0), -magnitude, select(zero, a, magnitude))


@derivative(lambda g, y, a, b: [g, -(g * floor(a / b))])
@widened
def remainder(a: Node, b: Node) -> Node:
    """The remainder of floored division, with the sign of ``b``, exact; a zero has the sign of ``a``, as in PyTorch."""
    rest = binary(ops.MOD, a, b)
    return select(equal(rest, 0), a * 0, rest) if a.dtype.is_float else rest


@derivative(lambda g, y, a, b: [None, None])
@widened
def floor_divide(a: Node, b: Node) -> Node:
    """``floor(a / b)`` of the exact quotient; integer division by zero gives 0, float division inf or NaN."""
    if not a.dtype.is_float:
        quotient = binary(ops.DIV, a, b)
        if a.dtype.kind == "u":
            return quotient
        rest = a - quotient * b
        crossed = not_equal(rest, 0) & (less(rest, 0) ^ less(b, 0)) & not_equal(b, 0)
        return select(crossed, quotient - 1, quotient)
    rest = fmod(a, b)
    quotient = (a - rest) / b  # an integer but for the division's rounding
    crossed = not_equal(rest, 0) & logical_not(isnan(rest)) & (less(rest, 0) ^ less(b, 0))
    whole = _round(select(crossed, quotient - 1, quotient), "even")
    plain = binary(ops.DIV, a, b)
    # The quotient itself where it says more: division by zero, and the sign of a zero result.
    return select(equal(b, 0), plain, select(equal(whole, 0), plain * 0, whole))


def trunc_divide(a: Node, b: Node) -> Node:
    """``trunc(a / b)``."""
    quotient = binary(ops.DIV, a, b)
    return trunc(quotient)


@derivative(lambda g, y, a, b: [select(equal(a, 0), 0, g * (y / a)), None])
@widened
def copysign(a: Node, b: Node) -> Node:
    """``|a|`` with the sign of ``b``, the sign of a zero included."""
    require_float(a, "copysign")
    magnitude = abs_(a)
    return select(signbit(b), -magnitude, magnitude)


def signbit(x: Node) -> Node:
    """Whether ``x`` is below zero, or the negative zero; false for NaN."""
    if not x.dtype.is_float:
        return less(x, 0) if x.dtype.kind == "i" else not_equal(x, x)
    # 1/x tells the zeros apart; x itself tells the rest.
    return less(x, 0) | less(unary(ops.RECIP, x), 0)
