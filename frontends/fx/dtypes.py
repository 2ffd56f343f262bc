"""Element types of PyTorch, and its rules of type promotion."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from luminal.core import types
from luminal.core.errors import DTypeError
from luminal.core.types import DType

FROM_TORCH: dict[torch.dtype, DType] = {
    torch.bool: types.bool_,
    torch.int8: types.i8,
    torch.int16: types.i16,
    torch.int32: types.i32,
    torch.int64: types.i64,
    torch.uint8: types.u8,
    torch.uint16: types.u16,
    torch.uint32: types.u32,
    torch.uint64: types.u64,
    torch.float8_e4m3fn: types.f8e4m3fn,
    torch.float8_e4m3fnuz: types.f8e4m3fnuz,
    torch.float8_e5m2: types.f8e5m2,
    torch.float8_e5m2fnuz: types.f8e5m2fnuz,
    torch.float16: types.f16,
    torch.bfloat16: types.bf16,
    torch.float32: types.f32,
    torch.float64: types.f64,
    torch.complex64: types.c64,
    torch.complex128: types.c128,
}
if hasattr(torch, "float8_e8m0fnu"):  # since PyTorch 2.7
    FROM_TORCH[torch.float8_e8m0fnu] = types.f8e8m0

_SIGNED = (types.i8, types.i16, types.i32, types.i64)
# Types that numpy has no name for cross over as the integers of their width.
_CARRIER = {1: torch.uint8, 2: torch.int16}


def from_torch(dtype: torch.dtype) -> DType:
    """luminal's type; raises DTypeError where it has none."""
    if dtype not in FROM_TORCH:
        raise DTypeError(f"luminal has no element type for {dtype}")
    return FROM_TORCH[dtype]


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's elements as a numpy array, sharing its memory where it is contiguous and on the CPU."""
    dtype = from_torch(tensor.dtype)
    flat = tensor.detach().cpu().contiguous()
    if dtype.numpy.isbuiltin != 1:
        carried: np.ndarray[Any, Any] = flat.view(_CARRIER[dtype.itemsize]).numpy()
        return carried.view(dtype.numpy)
    array: np.ndarray[Any, Any] = flat.numpy()
    return array


def join(a: DType, b: DType) -> DType:
    """The type that both promote to: ``torch.promote_types``, which also says which pairs have none.

    Raises DTypeError for pairs of integers or of floats between which neither is wider.
    """
    if a == b:
        return a
    order = "buifc"
    low, high = sorted((a, b), key=lambda t: (order.index(t.kind), t.bits))
    if low.kind == high.kind:
        if {a, b} == {types.f16, types.bf16}:
            return types.f32
        if low.bits < high.bits:
            return high
    elif (low.kind, high.kind) == ("u", "i"):
        wider = next((t for t in _SIGNED if t.bits > low.bits and t.bits >= high.bits), None)
        if wider is not None:
            return wider
    elif (low, high) == (types.f64, types.c64):
        return types.c128
    else:
        return high
    raise DTypeError(f"{a} and {b} have no common type; cast one of them")
