"""Arrays in and out of a call: numpy, PyTorch, GPUs; PyTorch is not imported unless the caller has."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from luminal.core.errors import InputError
from luminal.core.texts import is_texts


def is_torch(value: Any) -> bool:
    """Whether ``value`` is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


CUDA = 2  # DLPack's kDLCUDA

# Types of PyTorch that numpy has by ml_dtypes alone, under the same names.
EXTENSION_TYPES = frozenset(
    ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
)


def is_on_gpu(value: Any) -> bool:
    """Whether ``value`` is an array in the memory of an NVIDIA GPU."""
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and where()[0] == CUDA


def to_array(value: Any, name: str, device: str, texts: bool = False) -> Any:
    """``value`` for a library for ``device`` (``cpu``, ``cuda``, ``metal``): unchanged where it lies on an NVIDIA GPU
    and the library is for those, else as ``to_numpy`` returns it."""
    return value if device == "cuda" and is_on_gpu(value) else to_numpy(value, name, texts)


def to_numpy(value: Any, name: str, texts: bool = False) -> NDArray[Any]:
    """``value`` as an array, sharing memory where it can. Raises InputError where it is no array of numbers (or of
    ``texts``) in host memory."""
    if is_torch(value):
        torch = sys.modules["torch"]
        if value.device.type != "cpu":
            raise InputError(f"{name}: expected a tensor in host memory, found one on {value.device}")
        if value.layout != torch.strided:
            layout = str(value.layout).removeprefix("torch.")
            raise InputError(f"{name}: expected a dense tensor, found one of the layout {layout}: call its to_dense()")
        value = value.detach().contiguous()
        name = str(value.dtype).removeprefix("torch.")
        if name in EXTENSION_TYPES:
            carried = value.view(torch.int16 if value.dtype.itemsize == 2 else torch.uint8).numpy()
            return np.asarray(carried).view(getattr(ml_dtypes, name))
        return np.asarray(value.numpy())
    if is_on_gpu(value):
        number = value.__dlpack_device__()[1]
        raise InputError(f"{name}: expected an array in host memory, found one on CUDA device {number}")
    array = np.asarray(value)
    if is_texts(array) != texts:
        kind = "texts" if texts else "numbers"
        raise InputError(f"{name}: expected an array of {kind}, found {array.dtype if texts else type(value).__name__}")
    return array


def pairs(value: Any, name: str) -> Any:
    """A complex array ``[..]`` as its real and imaginary parts ``[.., 2]``. Raises InputError where it is none."""
    if is_torch(value) and value.is_complex():
        return sys.modules["torch"].view_as_real(value.detach().resolve_conj())
    if isinstance(value, np.ndarray) and value.dtype.kind == "c":
        value = np.ascontiguousarray(value)
        return value.view(value.real.dtype).reshape(*value.shape, 2)
    raise InputError(f"{name}: expected an array of complex numbers, found {getattr(value, 'dtype', type(value))}")


def complex_numbers(value: Any) -> Any:
    """The complex array ``[..]`` of the pairs ``[.., 2]``."""
    if is_torch(value):
        return sys.modules["torch"].view_as_complex(value)
    return value.view(np.complex128 if value.dtype == np.float64 else np.complex64)[..., 0]


def to_torch(array: Any) -> Any:
    """A PyTorch tensor over the memory of ``array``, where that is numpy's. Raises InputError where PyTorch lacks the
    type of its elements."""
    if not isinstance(array, np.ndarray):
        return array
    torch = sys.modules["torch"]
    if array.dtype.name in EXTENSION_TYPES:
        carried = torch.from_numpy(array.view(np.int16 if array.dtype.itemsize == 2 else np.uint8))
        return carried.view(getattr(torch, array.dtype.name))
    if array.dtype.isbuiltin == 2:
        raise InputError(f"PyTorch has no tensors of {array.dtype}, which the model gives: call it with numpy arrays")
    return torch.from_numpy(array)


def to_file(array: NDArray[Any]) -> NDArray[Any]:
    """``array`` for a numpy file; elements of a type from ml_dtypes become untyped bytes."""
    return array.view(f"V{array.itemsize}") if array.dtype.isbuiltin == 2 else array


def from_file(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """``array``, read from a numpy file; untyped bytes are interpreted as elements of ``dtype``."""
    unnamed = array.dtype.type is np.void and array.dtype.names is None and array.itemsize == dtype.itemsize
    return array.view(dtype) if unnamed else array
