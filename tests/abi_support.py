"""The C interface of compiled libraries, runtime/include/luminal/abi.h, as ctypes see it."""

from __future__ import annotations

import ctypes

LM_CPU, LM_CUDA, LM_METAL = 0, 2, 8  # enum lm_device
LM_INT64, LM_FLOAT32, LM_FLOAT64 = 5, 12, 13  # enum lm_dtype


class Value(ctypes.Structure):
    """``lm_value``."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("device", ctypes.c_int32), ("device_id", ctypes.c_int32),
    )  # fmt: skip


def value_at(data: int, dtype: int, shape: tuple[int, ...], device: int = LM_CPU, device_id: int = 0) -> Value:
    """The contiguous tensor at the address ``data``."""
    return Value(data, dtype, len(shape), (ctypes.c_int64 * len(shape))(*shape), None, device, device_id)
