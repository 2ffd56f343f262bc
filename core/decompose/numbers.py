"""What numbers are made of: common divisors of integers, significands and neighbours of floats."""

from __future__ import annotations

from luminal.core import ops
from luminal.core.decompose.arithmetic import abs_, fmod
from luminal.core.decompose.common import require_float
from luminal.core.decompose.compare import equal, isfinite, isnan, less, not_equal
from luminal.core.decompose.exponential import exp2
from luminal.core.decompose.reduction import any_
from luminal.core.derivative import derivative, remembered
from luminal.core.ir import Node, binary, bitcast, broadcast, cast, constant, select
from luminal.core.structured import while_loop
from luminal.core.types import bf16, f16, f32, f64, i16, i32, i64

_INTEGERS = {f64: i64, f32: i32, f16: i16, bf16: i16}
_FRACTION = {f64: 52, f32: 23}  # bits


def gcd(a: Node, b: Node) -> Node:
    """The greatest common divisor of integers, of zeros 0. By Euclid's algorithm on magnitudes, for all elements at
    once until the last is done; the least integer of a type, which has none, is taken as it is."""
    first = broadcast(abs_(a), abs_(b))
    _, found = while_loop(
        lambda pair: any_(not_equal(pair[0], 0)),
        lambda pair: (
            select(equal(pair[0], 0), 0, fmod(pair[1], _divisor(pair[0]))),
            select(equal(pair[0], 0), pair[1], pair[0]),
        ),
        first,
    )
    return found


def _divisor(x: Node) -> Node:
    return select(equal(x, 0), 1, x)


def lcm(a: Node, b: Node) -> Node:
    """The least common multiple of integers, of zero and anything 0. The magnitude of the product, in 32 bits at
    least, is what wraps."""
    a, b = broadcast(a, b)
    wide = a.dtype if a.dtype.bits >= 32 else i32
    return cast(abs_(cast(a / _divisor(gcd(a, b)), wide) * cast(b, wide)), a.dtype)


def frexp(x: Node) -> tuple[Node, Node]:
    """``m`` and ``e`` (int32) with ``x = m * 2**e``, a magnitude of ``m`` in [1/2, 1); of 0, infinities and NaN ``x``
    and 0."""
    require_float(x, "frexp")
    wide = cast(x, x.dtype.compute)
    integer, fraction = _INTEGERS[wide.dtype], _FRACTION[wide.dtype]
    exponents = (1 << (wide.dtype.bits - 1 - fraction)) - 1
    half = exponents // 2 - 1  # the exponent of 1/2, as it is stored
    bits = bitcast(wide, integer)
    is_subnormal = equal(binary(ops.SHR, bits, fraction) & exponents, 0)
    bits = select(is_subnormal, bitcast(wide * 2.0 ** (fraction + 1), integer), bits)
    exponent = (binary(ops.SHR, bits, fraction) & exponents) - half
    exponent = select(is_subnormal, exponent - (fraction + 1), exponent)
    significand = bitcast((bits & ~(exponents << fraction)) | (half << fraction), wide.dtype)
    plain = isfinite(wide) & not_equal(wide, 0)
    exponent = cast(select(plain, exponent, 0), i32)
    value = cast(select(plain, significand, wide), x.dtype)
    return remembered(value, lambda g, y, x, e: [g / exp2(cast(e, g.dtype)), None], x, exponent), exponent


@derivative(lambda g, y, x, towards: [select(equal(x, towards), 0, g), None])
def nextafter(x: Node, towards: Node) -> Node:
    """The neighbour of ``x`` in the direction of ``towards``, which is the result where they are equal; NaN of NaN."""
    require_float(x, "nextafter")
    x, towards = broadcast(x, towards)
    integer = _INTEGERS[x.dtype]
    # Larger integers are larger magnitudes.
    step = select(equal(less(x, towards), less(0, x)), constant(1, integer), -1)
    moved = bitcast(bitcast(x, integer) + step, x.dtype)
    least = bitcast(constant(1, integer), x.dtype)
    from_zero = select(less(0, towards), least, least * -1)
    result = select(equal(x, towards), towards, select(equal(x, 0), from_zero, moved))
    return select(isnan(x) | isnan(towards), x + towards, result)
