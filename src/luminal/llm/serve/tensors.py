"""Tensors of the Open Inference Protocol: as lists of JSON, or as bytes that follow it (its binary extension)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from luminal.llm.serve.http import RefusedError

Array = np.ndarray[Any, Any]

DTYPES: dict[str, Any] = {
    "BOOL": np.dtype(np.bool_),
    **{f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits}") for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(object),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = 4  # bytes of the length before each text


def name_of(dtype: np.dtype[Any]) -> str:
    """What the protocol calls a type; for one that it does not have, numpy's name, which clients cannot send."""
    return _NAMES.get(dtype, dtype.name)


def read(given: Mapping[str, Any], binary: memoryview) -> tuple[Array, int]:
    """An input, and how many of the ``binary`` bytes it takes. Raises RefusedError where they do not fit."""
    name = given["name"]
    dtype, shape = DTYPES.get(str(given.get("datatype"))), given.get("shape")
    if dtype is None:
        raise _wrong(name, f"a datatype of {', '.join(DTYPES)}", given.get("datatype"))
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
        raise _wrong(name, "a shape of sizes", shape)
    count, parameters = math.prod(shape), given.get("parameters") or {}
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return _listed(name, given.get("data"), dtype, count).reshape(shape), 0
    if type(size) is not int or not 0 <= size <= len(binary) or "data" in given:
        raise _wrong(name, f"data, or a binary_data_size of at most {len(binary)} bytes", size)
    part = binary[:size]
    if dtype.hasobject:
        return _texts(name, part, count).reshape(shape), size
    if size != count * dtype.itemsize:
        raise _wrong(name, f"{count * dtype.itemsize} bytes for {given['datatype']}{shape}", size)
    return np.frombuffer(bytes(part), dtype).reshape(shape), size


def _listed(name: str, data: Any, dtype: np.dtype[Any], count: int) -> Array:
    """Numbers, or texts, of lists that may be nested."""
    flat: list[Any] = []
    stack = [data]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(reversed(value))
        else:
            flat.append(value)
        if len(flat) > count:
            break
    if not isinstance(data, list) or len(flat) != count:
        raise _wrong(name, f"a list of {count} elements as data", "more or fewer")
    if dtype.hasobject:
        fits = all(isinstance(value, str) for value in flat)
    elif dtype == np.bool_:
        fits = all(isinstance(value, bool) or value in (0, 1) for value in flat)
    elif dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        fits = all(type(value) is int and bounds.min <= value <= bounds.max for value in flat)
    else:
        fits = all(isinstance(value, int | float) and not isinstance(value, bool) for value in flat)
    if not fits:
        raise _wrong(name, f"elements of {name_of(dtype)}", "others")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype)
    except (ArithmeticError, ValueError) as error:
        raise _wrong(name, f"elements of {name_of(dtype)}", str(error)) from error


def _texts(name: str, part: memoryview, count: int) -> Array:
    if count * _LENGTH > len(part):  # before there is room for them
        raise _wrong(name, f"{count} texts, each after its length", f"{len(part)} bytes")
    found = np.empty(count, object)
    at = 0
    for k in range(count):
        length = int.from_bytes(part[at : at + _LENGTH], "little")
        at += _LENGTH + length
        if at > len(part):
            raise _wrong(name, f"{count} texts, each after its length", f"{len(part)} bytes")
        found[k] = _text(name, bytes(part[at - length : at]))
    if at != len(part):
        raise _wrong(name, f"{count} texts, which take {at} bytes", f"{len(part)} bytes")
    return found


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _wrong(name, "texts in UTF-8", str(error)) from error


def written(name: str, array: Array, binary: bool) -> tuple[dict[str, Any], bytes]:
    """An output, and the bytes that follow where it is ``binary``."""
    head: dict[str, Any] = {"name": name, "datatype": name_of(array.dtype), "shape": list(array.shape)}
    if not binary:
        wide = array.astype(np.float32) if array.dtype == DTYPES["BF16"] else array
        values = wide.reshape(-1).tolist()
        if wide.dtype.kind == "f" and not np.isfinite(wide).all():
            raise RefusedError(400, f"{name} has NaN or infinities, which JSON has not: ask for it as binary data")
        return {**head, "data": values}, b""
    if array.dtype == object:
        texts = [str(text).encode() for text in array.reshape(-1)]
        content = b"".join(len(text).to_bytes(_LENGTH, "little") + text for text in texts)
    else:
        content = np.ascontiguousarray(array).tobytes()
    return {**head, "parameters": {"binary_data_size": len(content)}}, content


def _wrong(name: Any, expected: str, found: Any) -> RefusedError:
    return RefusedError(400, f"input {name!r}: expected {expected}, found {found!r}"[:300])
