"""What each primitive means, in numpy: one table row for every elementwise and reducing primitive of ``core.ops``.

Rows follow the ``total`` column of ``core.ops`` to the bit, except for the last places of ``Exp2``, ``Log2`` and
``Sin``: those are computed in double precision and rounded once. Floats narrower than 32 bits are computed in float32
and rounded once, integers narrower than a byte in int8 and wrapped. Nothing here warns or traps.

A float operand may also be given in float64 whatever its node's type is: that is how the interpreter's float64 mode
runs the same table.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from luminal.core import ops
from luminal.core.multiply_add import multiply_add
from luminal.core.ops import Op
from luminal.core.types import DType, from_numpy

Array: TypeAlias = np.ndarray[Any, Any]
Meaning: TypeAlias = Callable[..., Array]


def apply(op: Op, attr: Any, *operands: Array) -> Array:
    """The result of an elementwise or reducing primitive on arrays.

    Elementwise operands broadcast. Raises KeyError for a primitive that is neither.
    """
    with np.errstate(all="ignore"):
        return np.asarray(TABLE[op](attr, *operands))


def of_nothing(op: Op, dtype: DType) -> Array:
    """The result of a reducing primitive over no elements, which is its neutral element, as a 0-d array."""
    return apply(op, ops.Axes((0,)), np.zeros(0, dtype.numpy))


# ---- types narrower than the arithmetic ----------------------------------------------------------------------------


def _computing(function: Meaning) -> Meaning:
    """``function`` computed in the compute type of its operands, the result rounded (or wrapped) back once."""

    def computed(attr: Any, *operands: Array) -> Array:
        dtype = from_numpy(operands[0].dtype)
        wide = dtype.compute
        if wide == dtype:
            return function(attr, *operands)
        return convert(function(attr, *(o.astype(wide.numpy) for o in operands)), dtype)

    return computed


def _comparing(function: Meaning) -> Meaning:
    """``function`` of operands widened to their compute type; the result is bool."""

    def compared(attr: Any, *operands: Array) -> Array:
        wide = from_numpy(operands[0].dtype).compute
        return function(attr, *(o.astype(wide.numpy, copy=False) for o in operands))

    return compared


# ---- conversions ---------------------------------------------------------------------------------------------------


def convert(x: Array, to: DType) -> Array:
    """``Cast``: one rounding to nearest even; float to integer truncates and saturates; integers wrap."""
    source = from_numpy(x.dtype)
    if source == to:
        return x
    with np.errstate(all="ignore"):
        if to.is_bool:
            return np.asarray(x.astype(source.compute.numpy) != 0)
        if to.kind == "c" or source.kind == "c":
            return x.astype(to.numpy)
        if to.is_integer:
            return _saturate(x, to) if source.is_float else _wrap(x, to)
        return _round_float(x, source, to)


def _wrap(x: Array, to: DType) -> Array:
    if to.bits >= 8:
        return x.astype(from_numpy(x.dtype).compute.numpy).astype(to.numpy)
    low = x.astype(np.int8) & ((1 << to.bits) - 1)
    if to.kind == "i":
        half = 1 << (to.bits - 1)
        low = (low ^ half) - half
    return low.astype(to.numpy)


def _saturate(x: Array, to: DType) -> Array:
    whole = np.trunc(x.astype(np.float64))
    low, high = float(to.min), 2.0 ** (to.bits - (to.kind == "i"))  # the first values below and not below are exact
    inside = (whole >= low) & (whole < high)
    exact = np.where(inside, whole, 0.0)
    wide = exact.astype(np.uint64 if to.kind == "u" else np.int64)
    limit = np.where(whole >= high, wide.dtype.type(to.max), wide.dtype.type(to.min))
    result = np.where(inside, wide, np.where(np.isnan(whole), wide.dtype.type(0), limit))
    return result.astype(to.numpy)


def _round_float(x: Array, source: DType, to: DType) -> Array:
    """``x`` converted to a float type as if rounded once. A value that must pass through float32 is rounded to odd
    there, so the second one is exact (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008)."""
    if to.bits >= 32:
        return x.astype(source.compute.numpy, copy=False).astype(to.numpy)
    if source.is_integer and source.bits == 64:
        x = _integer_to_odd(x)
    x = x.astype(np.float64) if x.dtype.itemsize > 4 or source.is_integer else x.astype(np.float32)
    if x.dtype == np.float64:
        x = _double_to_odd(x)
    if not _holds(to, np.inf):
        x = np.clip(x, np.float32(to.min), np.float32(to.max))
    if not _holds(to, np.nan):
        x = np.where(np.isnan(x), np.float32(0), x)
    return x.astype(to.numpy)


def _holds(dtype: DType, special: float) -> bool:
    """Whether a float type has infinities, or NaN."""
    held = np.array(special, np.float32).astype(dtype.numpy).astype(np.float32)
    return np.array_equal(held, np.float32(special), equal_nan=True)


def _integer_to_odd(x: Array) -> Array:
    """64-bit integers as float64, rounded to odd."""
    kept = (x >> 11 | (x & 0x7FF != 0).astype(x.dtype)) << 11
    small = np.abs(x.astype(np.float64)) < 2.0**52
    return np.where(small, x, kept).astype(np.float64)


def _double_to_odd(x: Array) -> Array:
    """float64 as float32, rounded to odd: toward zero, then the last bit set where anything was lost."""
    nearest = x.astype(np.float32)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(x)
    toward = np.where(beyond, np.nextafter(nearest, np.float32(0)), nearest)
    lost = (toward.astype(np.float64) != x) & ~np.isnan(x)
    return np.asarray((toward.view(np.uint32) | lost.astype(np.uint32)).view(np.float32))


# ---- functions -----------------------------------------------------------------------------------------------------


def _in_double(function: Meaning) -> Meaning:
    """``function`` evaluated in float64 and rounded once to the operand's type."""

    def rounded(attr: Any, x: Array) -> Array:
        return convert(function(attr, x.astype(np.float64, copy=False)), from_numpy(x.dtype))

    return rounded


# A scale that is the double nearest to one of these stands for the real number itself; so do the multiples of the first
# by powers of two.
LOG2_E = math.log2(math.e)
LOG2_10 = math.log2(10.0)
LOG_2 = math.log(2.0)
LOG10_2 = math.log10(2.0)


def _exp2(attr: ops.Scale, x: Array) -> Array:
    if attr.scale == 1.0:
        return np.exp2(x)
    of_natural = attr.scale / LOG2_E
    if abs(math.frexp(of_natural)[0]) == 0.5 and of_natural * LOG2_E == attr.scale:
        return np.exp(x * of_natural)
    if attr.scale == LOG2_10:
        return np.power(10.0, x)
    # The product is a power's exponent: its rounding would be magnified by up to 1024.
    return np.asarray(np.exp2(x.astype(np.longdouble) * np.longdouble(attr.scale)), np.float64)


def _log2(attr: ops.Scale, x: Array) -> Array:
    if attr.scale == 1.0:
        return np.log2(x)
    if attr.scale == LOG_2:
        return np.log(x)
    if attr.scale == LOG10_2:
        return np.log10(x)
    return np.asarray(np.log2(x) * attr.scale)


def _sin(attr: ops.Quadrant, x: Array) -> Array:
    value = np.cos(x) if attr.quadrant % 2 else np.sin(x)
    return np.asarray(-value if attr.quadrant >= 2 else value)


_ROUNDINGS = {"even": np.rint, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc}


# ---- arithmetic ----------------------------------------------------------------------------------------------------


def _divide(_: Any, x: Array, y: Array) -> Array:
    if x.dtype.kind not in "iu":
        return np.asarray(x / y)
    opposite = y == x.dtype.type(-1) if x.dtype.kind == "i" else np.zeros_like(y, bool)
    safe = np.where((y == 0) | opposite, x.dtype.type(1), y)
    quotient = x // safe
    inexact_negative = (x - quotient * safe != 0) & ((x < 0) != (safe < 0))
    quotient = quotient + inexact_negative.astype(x.dtype)
    return np.where(y == 0, x.dtype.type(0), np.where(opposite, -x if x.dtype.kind == "i" else x, quotient))


def _modulo(_: Any, x: Array, y: Array) -> Array:
    if x.dtype.kind in "iu":
        trivial = (y == 0) | (y == x.dtype.type(-1)) if x.dtype.kind == "i" else y == 0
        return np.where(trivial, x.dtype.type(0), np.mod(x, np.where(trivial, x.dtype.type(1), y)))
    rest = np.fmod(x, y)
    rest = np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    return np.where(rest == 0, np.copysign(x.dtype.type(0), y), rest)


def _maximum(_: Any, x: Array, y: Array) -> Array:
    result = np.asarray(np.maximum(x, y))
    if x.dtype.kind != "f" or not np.any(result == 0):
        return result
    return np.where((x == 0) & (y == 0), x + y, result)  # -0 + 0 = 0, -0 + -0 = -0


def _valid_amount(x: Array, amount: Array) -> tuple[Array, Array]:
    valid = (amount >= 0) & (amount < from_numpy(x.dtype).bits)
    return valid, np.where(valid, amount, amount.dtype.type(0))


def _are_valid(x: Array, amount: Array) -> bool:
    """Whether no amount is oversized. Those that are repeated along an axis are looked at once."""
    distinct = amount[tuple(slice(None) if stride else slice(1) for stride in amount.strides)]
    return bool(((distinct >= 0) & (distinct < from_numpy(x.dtype).bits)).all())


def _shift_left(_: Any, x: Array, amount: Array) -> Array:
    if _are_valid(x, amount):
        return np.asarray(x << amount)
    valid, amount = _valid_amount(x, amount)
    return np.where(valid, x << amount, x.dtype.type(0))


def _shift_right(_: Any, x: Array, amount: Array) -> Array:
    if _are_valid(x, amount):
        return np.asarray(x >> amount)
    valid, amount = _valid_amount(x, amount)
    fill = np.where(x < 0, x.dtype.type(-1), x.dtype.type(0)) if x.dtype.kind == "i" else x.dtype.type(0)
    return np.where(valid, x >> amount, fill)


def _sub_byte_shift(function: Meaning) -> Meaning:
    """Shifts know the width of their operand, so a sub-byte operand says it to ``_valid_amount`` here."""
    whole_bytes = _computing(function)

    def shifted(attr: Any, x: Array, amount: Array) -> Array:
        bits = from_numpy(x.dtype).bits
        if bits >= 8:
            return function(attr, x, amount)
        wide = amount.astype(np.int8)
        oversized = (wide < 0) | (wide >= bits)
        return whole_bytes(attr, x, np.where(oversized, np.int8(-1), wide).astype(amount.dtype))

    return shifted


# ---- reductions ----------------------------------------------------------------------------------------------------


def _sum(attr: ops.Axes, x: Array) -> Array:
    total = np.sum(x, axis=attr.axes, dtype=x.dtype)
    return np.asarray(total + x.dtype.type(0))  # a sum starts from +0: of -0 alone it is 0


def _max(attr: ops.Axes, x: Array) -> Array:
    dtype = from_numpy(x.dtype)
    wide = x.astype(dtype.compute.numpy, copy=False)
    if dtype.is_bool:
        return np.asarray(np.any(x, axis=attr.axes))
    if dtype.is_float:
        return convert(_max_of_floats(attr, wide), dtype)
    return convert(np.asarray(np.max(wide, axis=attr.axes, initial=dtype.min)), dtype)


def _max_of_floats(attr: ops.Axes, x: Array) -> Array:
    result = np.asarray(np.max(x, axis=attr.axes, initial=-np.inf))
    zero = result == 0
    if np.any(zero):
        positive = np.any((x == 0) & ~np.signbit(x), axis=attr.axes)
        result = np.where(zero, np.where(positive, x.dtype.type(0), x.dtype.type(-0.0)), result)
    return result


# ---- the table -----------------------------------------------------------------------------------------------------


def _row(function: Callable[..., Any]) -> Meaning:
    """A numpy function that takes no attribute."""
    return lambda _, *operands: np.asarray(function(*operands))


TABLE: dict[Op, Meaning] = {
    ops.LOG2: _in_double(_log2),
    ops.EXP2: _in_double(_exp2),
    ops.SIN: _in_double(_sin),
    ops.SQRT: _computing(_row(np.sqrt)),
    ops.RECIP: _computing(_row(lambda x: x.dtype.type(1) / x)),
    ops.CAST: lambda attr, x: convert(x, attr.dtype),
    ops.BITCAST: lambda attr, x: np.ascontiguousarray(x).view(attr.dtype.numpy).reshape(x.shape),
    ops.ROUND: _computing(lambda attr, x: np.asarray(_ROUNDINGS[attr.mode](x))),
    ops.ADD: _computing(_row(np.add)),
    ops.MUL: _computing(_row(np.multiply)),
    ops.MOD: _computing(_modulo),
    ops.LESS_THAN: _comparing(_row(np.less)),
    ops.DIV: _computing(_divide),
    ops.EQUAL: _comparing(_row(operator.eq)),
    ops.MAX: _computing(_maximum),
    ops.AND: _computing(_row(np.bitwise_and)),
    ops.OR: _computing(_row(np.bitwise_or)),
    ops.XOR: _computing(_row(np.bitwise_xor)),
    ops.SHL: _sub_byte_shift(_shift_left),
    ops.SHR: _sub_byte_shift(_shift_right),
    ops.MULTIPLY_ADD: _computing(_row(multiply_add)),
    ops.SELECT: _row(np.where),
    ops.CONTIGUOUS: _row(lambda x: np.asarray(x, order="C")),
    ops.SUM_REDUCE: _computing(_sum),
    ops.MAX_REDUCE: _max,
}
