"""A compiled model as a Python package: the library beside this file, called through ctypes. It needs numpy; luminal
puts it into wheels, and is not needed itself.

    import NAME
    model = NAME.Model()
    results = model.run({"input": array})  # a dict of arrays

``NAME.metadata()`` says what the model takes and gives.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_HERE = Path(__file__).parent
# Element types in the C interface, and of numpy; others come from ml_dtypes, where that is installed.
_TYPES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7, "uint32": 8, "uint64": 9,
    "float16": 10, "bfloat16": 11, "float32": 12, "float64": 13, "int4": 16, "uint4": 17, "int2": 18, "uint2": 19,
    "float8e4m3fn": 20, "float8e4m3fnuz": 21, "float8e5m2": 22, "float8e5m2fnuz": 23, "float8e8m0": 24,
    "float4e2m1": 25,
}  # fmt: skip
_EXTENSIONS = {
    "float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz", "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz", "float8e8m0": "float8_e8m0fnu", "float4e2m1": "float4_e2m1fn",
}  # fmt: skip

PLAIN = frozenset(name for name in _TYPES if hasattr(np, name) or name == "bool")  # types that numpy has by itself


class ModelError(RuntimeError):
    """What the library refused."""


class _Value(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    )


class _Options(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("weights_path", ctypes.c_char_p),
        *((name, ctypes.c_void_p) for name in ("provider", "allocate", "deallocate", "parallel_for", "user")),
        ("threads", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
    )


def metadata() -> dict[str, Any]:
    """What is known of the model: entries with inputs and outputs, dims and their bounds, kernels, licences."""
    found: dict[str, Any] = json.loads((_HERE / "manifest.json").read_text(encoding="utf-8"))
    return found


class Model:
    """An open model, for one thread at a time. ``threads`` work on a run, 0: as many as there are CPUs to use."""

    def __init__(self, threads: int = 0) -> None:
        about = metadata()
        self.entries: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in about["entries"]}
        self._name = about["name"]
        self._functions = ctypes.CDLL(str(_HERE / about["library"]))
        self._library, self._context = ctypes.c_void_p(), ctypes.c_void_p()
        weights = str(_HERE / about["weights"]).encode()
        options = _Options(size=ctypes.sizeof(_Options), weights_path=weights, threads=threads)
        opened = self._call("open", ctypes.byref(options), ctypes.byref(self._library))
        # Ends with this object, in this order: contexts before their library.
        self.close = weakref.finalize(self, _close, self._functions, self._name, self._library, self._context)
        self._check(opened)
        self._check(self._call("context_create", self._library, ctypes.byref(self._context)))

    def run(self, inputs: Mapping[str, Any], entry: str | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs by name, of the inputs by name; of the first entry, or the one that is named."""
        name = next(iter(self.entries)) if entry is None else entry
        if name not in self.entries:
            raise ModelError(f"no entry {name!r}: expected one of {', '.join(self.entries)}")
        spec, number = self.entries[name], list(self.entries).index(name)
        wanted = [row["name"] for row in spec["inputs"]]
        if set(inputs) != set(wanted):
            raise ModelError(f"entry {name!r} takes {', '.join(wanted) or 'no inputs'}; found {', '.join(inputs)}")
        arrays = [_given(row, inputs[row["name"]]) for row in spec["inputs"]]
        given = _values(arrays, spec["inputs"])
        results = [
            np.empty(self._shape(number, given, place, row), _dtype(row)) for place, row in enumerate(spec["outputs"])
        ]
        self._check(self._call("run", self._context, number, given, _values(results, spec["outputs"]), None))
        found = {}
        for place, (row, array) in enumerate(zip(spec["outputs"], results, strict=True)):
            shape = self._shape(number, None, place, row)  # as the run has found it; elements are contiguous
            found[row["name"]] = array.reshape(-1)[: int(np.prod(shape))].reshape(shape)
        return found

    def reset(self) -> None:
        """The next run finds all states as the first one did."""
        self._check(self._call("reset", self._context))

    def _shape(self, entry: int, given: Any, output: int, row: Mapping[str, Any]) -> tuple[int, ...]:
        shape = (ctypes.c_int64 * max(1, len(row["shape"])))()
        self._check(self._call("output_shape", self._context, entry, given, output, shape))
        return tuple(shape[: len(row["shape"])])

    def _call(self, function: str, *arguments: Any) -> int:
        return int(getattr(self._functions, f"{self._name}_{function}")(*arguments))

    def _check(self, status: int) -> None:
        if status == 0:
            return
        text = ctypes.create_string_buffer(1024)
        for context in (self._context, None):
            self._call("last_error", self._library, context, text, ctypes.c_size_t(len(text)))
            if text.value:
                break
        raise ModelError(text.value.decode() or f"status {status}")


def _close(functions: Any, name: str, library: ctypes.c_void_p, context: ctypes.c_void_p) -> None:
    getattr(functions, f"{name}_context_destroy")(context)
    getattr(functions, f"{name}_close")(library)


def _dtype(row: Mapping[str, Any]) -> np.dtype[Any]:
    name = row["dtype"]
    if name not in _TYPES:
        raise ModelError(f"{row['name']!r} has elements of type {name}, which this package cannot pass")
    found: np.dtype[Any]
    try:
        found = np.dtype(name)
    except TypeError:
        import ml_dtypes

        found = np.dtype(getattr(ml_dtypes, _EXTENSIONS.get(name, name)))
    return found


def _given(row: Mapping[str, Any], value: Any) -> np.ndarray[Any, Any]:
    array, dtype = np.asarray(value), _dtype(row)
    if array.dtype != dtype:
        raise ModelError(f"input {row['name']!r}: expected elements of type {dtype}, found {array.dtype}")
    return np.ascontiguousarray(array).reshape(array.shape)


def _values(arrays: list[np.ndarray[Any, Any]], rows: list[dict[str, Any]]) -> Any:
    """An array of lm_value for these arrays, which must outlive it."""
    values = (_Value * max(1, len(arrays)))()
    for value, array, row in zip(values, arrays, rows, strict=False):
        value.data, value.dtype, value.rank = array.ctypes.data, _TYPES[row["dtype"]], array.ndim
        value.shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    return values
