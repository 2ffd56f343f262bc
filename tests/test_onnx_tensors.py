"""Tensor data of every element type and way of storage, against the onnx package's own reading."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from luminal.core import texts
from luminal.core.errors import ModelError
from luminal.core.types import DType
from luminal.frontends.onnx.external import ExternalFiles
from luminal.frontends.onnx.tensors import ELEMENT_TYPES, sparse_to_numpy, to_numpy

FILES = ExternalFiles(None)
NUMBERS = {number: dtype for number, dtype in ELEMENT_TYPES.items() if not dtype.is_text}
DTYPES = [pytest.param(number, dtype, id=str(dtype)) for number, dtype in NUMBERS.items()]


def values(dtype: DType, count: int = 7) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    if dtype.kind == "c":
        return (rng.standard_normal(count) + 1j * rng.standard_normal(count)).astype(dtype.numpy)
    if dtype.is_float:
        return np.ldexp(1.0, rng.integers(-1, 2, count)).astype(dtype.numpy)
    low, high = int(dtype.min), int(dtype.max)
    others = rng.integers(max(low, -100), min(high, 100), count - 2).tolist()
    return np.array([low, high, *others], object).astype(dtype.numpy)


def same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    assert a.dtype == b.dtype and a.shape == b.shape
    assert a.tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize(("number", "dtype"), DTYPES)
def test_raw_data(number: int, dtype: DType) -> None:
    array = values(dtype).reshape(1, 7)
    tensor = numpy_helper.from_array(array, "t")
    assert tensor.data_type == number and tensor.HasField("raw_data")
    same(to_numpy(tensor, FILES), array)


@pytest.mark.parametrize(("number", "dtype"), DTYPES)
def test_typed_fields(number: int, dtype: DType) -> None:
    array = values(dtype)
    tensor = typed(number, dtype, array)
    same(to_numpy(tensor, FILES), array)
    same(to_numpy(tensor, FILES), numpy_helper.to_array(tensor).astype(dtype.numpy))


def typed(number: int, dtype: DType, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    """The tensor as the format's typed fields hold it: narrow floats as bits, two or four elements to a byte."""
    tensor = onnx.TensorProto(data_type=number, dims=array.shape)
    if dtype.kind == "c":
        parts = array.view(np.float32 if dtype.bits == 64 else np.float64)
        (tensor.float_data if dtype.bits == 64 else tensor.double_data).extend(parts.tolist())
    elif dtype.name == "float32":
        tensor.float_data.extend(array.tolist())
    elif dtype.name == "float64":
        tensor.double_data.extend(array.tolist())
    elif dtype.name == "int64":
        tensor.int64_data.extend(array.tolist())
    elif dtype.name in ("uint32", "uint64"):
        tensor.uint64_data.extend(array.tolist())
    elif dtype.bits < 8:
        bits = (array.view(np.uint8) if dtype.is_float else array.astype(np.int8).view(np.uint8)) & (2**dtype.bits - 1)
        each = 8 // dtype.bits
        padded = np.concatenate([bits, np.zeros(-len(bits) % each, np.uint8)]).reshape(-1, each).astype(np.int32)
        tensor.int32_data.extend((padded << (np.arange(each) * dtype.bits)).sum(1).tolist())
    elif dtype.is_float:
        tensor.int32_data.extend(array.view(np.uint16 if dtype.bits == 16 else np.uint8).tolist())
    else:
        tensor.int32_data.extend(array.astype(np.int32).tolist())
    return tensor


def test_the_table_covers_the_format() -> None:
    names = {name for name, n in onnx.TensorProto.DataType.items() if n not in ELEMENT_TYPES}
    assert names <= {"UNDEFINED", "FLOAT6E2M3", "FLOAT6E3M2"}
    for number, dtype in NUMBERS.items():
        assert helper.tensor_dtype_to_np_dtype(number) == dtype.numpy


def test_raw_data_is_not_copied_again() -> None:
    array = to_numpy(numpy_helper.from_array(np.ones((64, 64), np.float32)), FILES)
    assert not array.flags.owndata and not array.flags.writeable


def test_empty_and_scalar() -> None:
    same(to_numpy(numpy_helper.from_array(np.zeros((0, 3), np.int64)), FILES), np.zeros((0, 3), np.int64))
    same(to_numpy(numpy_helper.from_array(np.array(2.5, ml_dtypes.bfloat16)), FILES), np.array(2.5, ml_dtypes.bfloat16))


def test_any_byte_but_zero_is_true() -> None:
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.BOOL, dims=[3], raw_data=b"\x00\x02\x01")
    assert to_numpy(tensor, FILES).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "tensor",
    [
        onnx.TensorProto(data_type=1, dims=[3], raw_data=bytes(8)),
        onnx.TensorProto(data_type=1, dims=[2], raw_data=bytes(9)),
        onnx.TensorProto(data_type=1, dims=[3], float_data=[1, 2]),
        onnx.TensorProto(data_type=1, dims=[-3], raw_data=bytes(12)),
        onnx.TensorProto(data_type=22, dims=[3], raw_data=bytes(1)),
        onnx.TensorProto(data_type=0, dims=[1], raw_data=bytes(4)),
        onnx.TensorProto(data_type=77, dims=[1], raw_data=bytes(4)),
    ],
)
def test_data_that_does_not_fit_is_refused(tensor: onnx.TensorProto) -> None:
    with pytest.raises(ModelError):
        to_numpy(tensor, FILES)


def test_strings() -> None:
    tensor = helper.make_tensor("s", onnx.TensorProto.STRING, [2, 1], ["é".encode(), b""])
    assert texts.decode(to_numpy(tensor, FILES)).tolist() == [["é"], [""]]
    for wrong in ({"dims": [3]}, {"string_data": [b"\xff", b""]}, {"raw_data": b"a"}):
        fields = {"data_type": onnx.TensorProto.STRING, "dims": [2], "string_data": [b"a", b"b"]}
        with pytest.raises(ModelError):
            to_numpy(onnx.TensorProto(**{**fields, **wrong}), FILES)


@pytest.mark.parametrize("linear", [True, False])
def test_sparse_tensors(linear: bool) -> None:
    dense = np.array([[0, 2, 0], [3, 0, 0]], np.float32)
    at = np.array([1, 3]) if linear else np.array([[0, 1], [1, 0]])
    sparse = onnx.SparseTensorProto(
        values=numpy_helper.from_array(dense[dense != 0], "s"), indices=numpy_helper.from_array(at), dims=dense.shape
    )
    same(sparse_to_numpy(sparse, FILES), dense)
    sparse.dims[0] = 1
    with pytest.raises(ModelError, match="outside"):
        sparse_to_numpy(sparse, FILES)
