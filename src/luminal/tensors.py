"""Arrays in and out of a call: numpy and PyTorch tensors, without importing PyTorch unless the caller has."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from luminal.core.errors import InputError


def is_torch(value: Any) -> bool:
    """Whether ``value`` is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any, name: str) -> NDArray[Any]:
    """``value`` as an array, sharing memory where it can. Raises InputError where it is no array of numbers."""
    if is_torch(value):
        torch = sys.modules["torch"]
        if value.device.type != "cpu":
            raise InputError(f"{name}: expected a tensor in host memory, found one on {value.device}")
        value = value.detach().contiguous()
        if value.dtype == torch.bfloat16:
            return np.asarray(value.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
        return np.asarray(value.numpy())
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        raise InputError(f"{name}: expected an array of numbers, found {type(value).__name__}")
    return array


def to_torch(array: NDArray[Any]) -> Any:
    """A PyTorch tensor over the memory of ``array``."""
    torch = sys.modules["torch"]
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
