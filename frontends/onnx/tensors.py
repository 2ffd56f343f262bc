"""TensorProto -> numpy, for every element type and way of storage, without a second copy of raw data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx

from luminal.core import ir, limits, texts, types
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node
from luminal.core.types import DType
from luminal.frontends.onnx.external import ExternalFiles

Array = np.ndarray[Any, Any]

# Keyed by the numbers of the format, since an older onnx package does not name the newest types.
ELEMENT_TYPES: dict[int, DType] = {
    1: types.f32,
    2: types.u8,
    3: types.i8,
    4: types.u16,
    5: types.i16,
    6: types.i32,
    7: types.i64,
    8: types.text,
    9: types.bool_,
    10: types.f16,
    11: types.f64,
    12: types.u32,
    13: types.u64,
    14: types.c64,
    15: types.c128,
    16: types.bf16,
    17: types.f8e4m3fn,
    18: types.f8e4m3fnuz,
    19: types.f8e5m2,
    20: types.f8e5m2fnuz,
    21: types.u4,
    22: types.i4,
    23: types.f4e2m1,
    24: types.f8e8m0,
    25: types.u2,
    26: types.i2,
}
ELEMENT_NUMBERS: dict[DType, int] = {dtype: number for number, dtype in ELEMENT_TYPES.items()}


def element_type(number: int, what: str) -> DType:
    """The element type with the format's ``number``.

    Raises UnsupportedError for types that luminal has not, ModelError for numbers that the format
    does not define; ``what`` names the value in the message.
    """
    if number in ELEMENT_TYPES:
        return ELEMENT_TYPES[number]
    if number in onnx.TensorProto.DataType.values() and number != onnx.TensorProto.UNDEFINED:
        raise UnsupportedError(
            f"{what} is a tensor of {onnx.TensorProto.DataType.Name(number)}: luminal has no such type"
        )
    raise ModelError(f"{what}: expected an element type, found {number}")


def element_name(number: int) -> str:
    """The name of an element type for messages, also of one that luminal lacks."""
    if number in ELEMENT_TYPES:
        return ELEMENT_TYPES[number].name
    known = number in onnx.TensorProto.DataType.values()
    return str(onnx.TensorProto.DataType.Name(number)).lower() if known else f"type {number}"


def to_numpy(tensor: onnx.TensorProto, files: ExternalFiles) -> Array:
    """The value of ``tensor``, read-only where it views raw data; sub-byte types come one element to a byte.

    Raises ModelError where the data does not fill the shape, ShapeError where no value can have that.
    """
    what = f"tensor {tensor.name!r}"
    dtype = element_type(tensor.data_type, what)
    shape = tuple(tensor.dims)
    if any(extent < 0 for extent in shape):
        raise ModelError(f"{what}: the shape {list(shape)} has a negative extent")
    limits.check_extents(shape, dtype.itemsize, what)
    if tensor.HasField("segment"):
        raise UnsupportedError(f"{what} is stored in segments: save it as one tensor")
    count = math.prod(shape)
    if dtype.is_text:
        return _texts(tensor, count, what).reshape(shape)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _raw(files.read(tensor), dtype, count, what).reshape(shape)
    if tensor.HasField("raw_data"):
        return _raw(np.frombuffer(tensor.raw_data, np.uint8), dtype, count, what).reshape(shape)
    return _typed(tensor, dtype, count, what).reshape(shape)


def _texts(tensor: onnx.TensorProto, count: int, what: str) -> Array:
    """The texts of ``tensor``; the format stores them in one field only."""
    if tensor.HasField("raw_data") or tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ModelError(f"{what}: texts are given as bytes, which the format does not allow")
    if len(tensor.string_data) != count:
        raise ModelError(f"{what}: expected {count} texts, found {len(tensor.string_data)}")
    try:
        return texts.encode(np.array([bytes(text).decode() for text in tensor.string_data], object))
    except UnicodeDecodeError as error:
        raise ModelError(f"{what}: expected texts in UTF-8: {error}") from error


def constant(tensor: onnx.TensorProto, files: ExternalFiles) -> Node:
    """The value of ``tensor`` as a constant; what lies in a file is in memory only while it is read. Raises as
    ``to_numpy``."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return ir.constant(to_numpy(tensor, files))
    kept = onnx.TensorProto()
    kept.CopyFrom(tensor)  # not the caller's, who may change it
    return ir.lazy_constant(lambda: to_numpy(kept, files))


def sparse_to_numpy(sparse: onnx.SparseTensorProto, files: ExternalFiles) -> Array:
    """The value of a sparse tensor, spelled out densely.

    Raises ModelError where the indices do not fit the values or the shape, ShapeError where that is too large.
    """
    values, indices = to_numpy(sparse.values, files), to_numpy(sparse.indices, files)
    if indices.dtype != np.int64:
        raise ModelError(f"sparse tensor {sparse.values.name!r}: expected indices of int64, found {indices.dtype}")
    shape = tuple(sparse.dims)
    what = f"sparse tensor {sparse.values.name!r}"
    limits.check_extents(shape, values.itemsize, what)
    limits.check_table(math.prod(shape), what)
    dense = np.zeros(shape, values.dtype)
    if indices.ndim == 2:
        if indices.shape != (len(values), len(shape)):
            raise ModelError(f"sparse tensor {sparse.values.name!r}: indices of shape {list(indices.shape)} do not fit")
        position: Any = tuple(indices.T)
        inside = bool(np.all((indices >= 0) & (indices < np.array(shape))))
    else:
        dense, position = dense.reshape(-1), indices
        inside = indices.shape == values.shape and bool(np.all((indices >= 0) & (indices < dense.size)))
    if not inside:
        raise ModelError(f"sparse tensor {sparse.values.name!r}: an index lies outside the shape {list(shape)}")
    dense[position] = values
    return dense.reshape(shape)


def _raw(data: Array, dtype: DType, count: int, what: str) -> Array:
    expected = -(-count * dtype.bits // 8) if dtype.bits < 8 else count * dtype.itemsize
    if data.size != expected:
        raise ModelError(f"{what}: expected {expected} bytes for {count} elements of {dtype}, found {data.size}")
    if dtype.bits < 8:
        return _unpack(data, dtype, count)
    if dtype.is_bool:
        return np.asarray(data != 0)  # any byte but 0 is true in the format; numpy takes only 0 and 1
    return np.ndarray((count,), dtype.numpy, data) if data.size else np.zeros(0, dtype.numpy)


def _unpack(data: Array, dtype: DType, count: int) -> Array:
    """Elements of 2 or 4 bits, the first in the lowest bits of a byte."""
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    digits = ((data[:, None] >> shifts) & ((1 << dtype.bits) - 1)).reshape(-1)[:count]
    if dtype.is_float:
        return digits.view(dtype.numpy)
    if dtype.kind == "i":
        half = 1 << (dtype.bits - 1)
        return ((digits.astype(np.int8) ^ half) - half).astype(dtype.numpy)
    return digits.astype(dtype.numpy)


def _typed(tensor: onnx.TensorProto, dtype: DType, count: int, what: str) -> Array:
    """A tensor in one of the format's typed fields; narrow floats are held there as bit patterns."""
    values: Any
    if dtype.kind == "c" and (len(tensor.float_data) % 2 or len(tensor.double_data) % 2):
        raise ModelError(f"{what}: expected pairs of numbers, found an odd one")
    if dtype in (types.f32, types.c64):
        values = np.array(tensor.float_data, np.float32).view(dtype.numpy)
    elif dtype in (types.f64, types.c128):
        values = np.array(tensor.double_data, np.float64).view(dtype.numpy)
    elif dtype == types.i64:
        values = np.array(tensor.int64_data, np.int64)
    elif dtype in (types.u32, types.u64):
        values = np.array(tensor.uint64_data, np.uint64).astype(dtype.numpy)
    elif dtype.bits < 8:
        values = _unpack(np.array(tensor.int32_data, np.int32).astype(np.uint8), dtype, count)
    elif dtype.is_float:
        width = np.uint16 if dtype.bits == 16 else np.uint8
        values = np.array(tensor.int32_data, np.int32).astype(width).view(dtype.numpy)
    else:
        values = np.array(tensor.int32_data, np.int32).astype(dtype.numpy)
    if values.size != count:
        raise ModelError(f"{what}: expected {count} elements of {dtype}, found {values.size}")
    return np.asarray(values)
