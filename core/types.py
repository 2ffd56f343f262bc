"""Element types: one table row each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type.

    ``kind`` is ``b`` (bool), ``i`` (signed), ``u`` (unsigned), ``f`` (float), ``c`` (complex) or ``t`` (the number of a
    text, see ``core.texts``); ``bits`` is the width of one element; ``numpy`` is the dtype that arrays of it have in
    Python.
    """

    name: str
    kind: str
    bits: int
    numpy: np.dtype[Any]

    def __repr__(self) -> str:
        return self.name

    @property
    def itemsize(self) -> int:
        """Bytes of one element as stored in memory (sub-byte types are stored one to a byte)."""
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def is_text(self) -> bool:
        return self.kind == "t"

    @property
    def compute(self) -> DType:
        """The type in which arithmetic on this type is carried out before it is rounded (or wrapped) back once."""
        if self.is_float and self.bits < 32:
            return f32
        if self.is_integer and self.bits < 8:
            return i8 if self.kind == "i" else u8
        return self

    @property
    def has_zero(self) -> bool:
        """Whether zero is a value. Its bits are then all 0."""
        return not self.is_float or float(np.zeros((), self.numpy)) == 0

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger value (floats only)."""
        return float(ml_dtypes.finfo(self.numpy).eps)

    @property
    def significant(self) -> int:
        """The number of significant bits: of a float's significand, of an integer all."""
        return 1 - round(math.log2(self.eps)) if self.is_float else self.bits

    @property
    def min(self) -> int | float:
        """Lowest finite value."""
        if self.is_bool:
            return 0
        return int(ml_dtypes.iinfo(self.numpy).min) if self.is_integer else float(ml_dtypes.finfo(self.numpy).min)

    @property
    def max(self) -> int | float:
        """Largest finite value."""
        if self.is_bool:
            return 1
        return int(ml_dtypes.iinfo(self.numpy).max) if self.is_integer else float(ml_dtypes.finfo(self.numpy).max)


def _row(name: str, kind: str, bits: int, numpy: Any) -> DType:
    return DType(name, kind, bits, np.dtype(numpy))


bool_ = _row("bool", "b", 8, np.bool_)
i2 = _row("int2", "i", 2, ml_dtypes.int2)
i4 = _row("int4", "i", 4, ml_dtypes.int4)
i8 = _row("int8", "i", 8, np.int8)
i16 = _row("int16", "i", 16, np.int16)
i32 = _row("int32", "i", 32, np.int32)
i64 = _row("int64", "i", 64, np.int64)
u2 = _row("uint2", "u", 2, ml_dtypes.uint2)
u4 = _row("uint4", "u", 4, ml_dtypes.uint4)
u8 = _row("uint8", "u", 8, np.uint8)
u16 = _row("uint16", "u", 16, np.uint16)
u32 = _row("uint32", "u", 32, np.uint32)
u64 = _row("uint64", "u", 64, np.uint64)
f4e2m1 = _row("float4e2m1", "f", 4, ml_dtypes.float4_e2m1fn)
f8e4m3fn = _row("float8e4m3fn", "f", 8, ml_dtypes.float8_e4m3fn)
f8e4m3fnuz = _row("float8e4m3fnuz", "f", 8, ml_dtypes.float8_e4m3fnuz)
f8e5m2 = _row("float8e5m2", "f", 8, ml_dtypes.float8_e5m2)
f8e5m2fnuz = _row("float8e5m2fnuz", "f", 8, ml_dtypes.float8_e5m2fnuz)
f8e8m0 = _row("float8e8m0", "f", 8, ml_dtypes.float8_e8m0fnu)
f16 = _row("float16", "f", 16, np.float16)
bf16 = _row("bfloat16", "f", 16, ml_dtypes.bfloat16)
f32 = _row("float32", "f", 32, np.float32)
f64 = _row("float64", "f", 64, np.float64)
c64 = _row("complex64", "c", 64, np.complex64)
c128 = _row("complex128", "c", 128, np.complex128)
text = _row("text", "t", 64, [("number", "<u8")])

ALL: dict[str, DType] = {value.name: value for value in list(globals().values()) if isinstance(value, DType)}
_BY_NUMPY: dict[np.dtype[Any], DType] = {**{dtype.numpy: dtype for dtype in ALL.values()}, np.dtype(object): text}


def from_numpy(dtype: Any) -> DType:
    """The table row of a numpy dtype, objects being texts; raises KeyError where luminal has no such element type."""
    return _BY_NUMPY[np.dtype(dtype)]
