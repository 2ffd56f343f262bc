"""The forms in which models quantise and dequantise, recognised among nodes and among scalars.

    cast(round(x) + zero)     a number as an integer of few bits, ``x`` being already divided by the scale
    float32(q - zero)         the integer as a number again, to be multiplied with the scale

The zero point is one number here. ``schedule.numeric.integers`` reads the second form with one for each row or column.
"""

from __future__ import annotations

from luminal.core import ops
from luminal.core.rules.match import Matcher, Shifted, T, X, apply
from luminal.core.types import f32, i32

BITS = 16  # most bits of such an integer

_QUANTISED = apply(ops.CAST, Shifted("zero", apply(ops.ROUND, X, attr=ops.Rounding("even"))))
_RESTORED = apply(ops.CAST, Shifted("less", apply(ops.CAST, X)))


def quantised(term: T, matcher: Matcher[T]) -> tuple[T, int] | None:
    """``x`` (float32) and the zero point (in the range of the type of ``term``) if ``term`` is quantised, else None."""
    if term.op is not ops.CAST or not term.dtype.is_integer or term.dtype.bits > BITS:
        return None
    (number,) = matcher.operands(term)
    for found in matcher.match(_QUANTISED, term) if number.dtype == f32 else ():
        zero: float = found["zero"]
        if zero.is_integer() and term.dtype.min <= zero <= term.dtype.max:
            return found["x"], int(zero)
    return None


def restored(term: T, matcher: Matcher[T]) -> tuple[T, int] | None:
    """``q`` and the zero point subtracted in int32 (0 for a direct cast), if ``term`` is a float32 cast; else None."""
    if term.op is not ops.CAST or term.dtype != f32:
        return None
    (number,) = matcher.operands(term)
    if number.dtype != i32:
        return number, 0
    return next(((found["x"], -int(found["less"])) for found in matcher.match(_RESTORED, term)), None)
