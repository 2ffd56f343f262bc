"""The precisions to which contractions may round their float32 operands: an option of the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.core.types import DType, bf16, f16

Array = np.ndarray[Any, Any]

_BITS = 24  # significant bits of a float32


@dataclass(frozen=True)
class Precision:
    """A precision that float32 operands of contractions may be rounded to, each once; they are summed in float32.

    An operand keeps ``digits`` significant bits. It is rounded to nearest: where it is multiplied, ties away from zero;
    or, with ``stored``, before it is stored in that type, ties to even.
    """

    name: str
    digits: int
    stored: DType | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def unit(self) -> float:
        """The largest relative error of a rounded operand; 0 where none is rounded."""
        return 0.0 if self.digits == _BITS else 2.0**-self.digits

    @property
    def lost(self) -> int:
        """The low bits of a float32 that are lost."""
        return _BITS - self.digits

    def rounded(self, values: Array) -> Array:
        """float32 ``values`` as operands, in float32; infinities and NaN stay."""
        if not self.lost:
            return values
        if self.stored is not None:
            with np.errstate(over="ignore"):
                return values.astype(self.stored.numpy).astype(np.float32)
        bits = np.ascontiguousarray(values).view(np.uint32)
        half, mask = np.uint32(1 << (self.lost - 1)), np.uint32(2**32 - (1 << self.lost))
        return np.where(np.isfinite(values), ((bits + half) & mask).view(np.float32), values)


FP32 = Precision("fp32", _BITS)  # exact: what a target does unless another is chosen
TF32 = Precision("tf32", 11)  # NVIDIA's, PTX ISA, "cvt.rna.tf32.f32": the exponents of float32
BF16 = Precision("bf16", 8, bf16)  # the exponents of float32 too
FP16 = Precision("fp16", 11, f16)  # up to 65504, beyond which operands are infinite; below 2**-14 of fewer bits

ALL = {precision.name: precision for precision in (FP32, TF32, FP16, BF16)}
STORED = tuple(precision for precision in ALL.values() if precision.stored is not None)
