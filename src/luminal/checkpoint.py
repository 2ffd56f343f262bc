"""Checkpoints: states by name as a file of safetensors, which appears as a whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from luminal.core.errors import InputError

# The names of element types in the format, which is a length of 64 bits, so many bytes of JSON, and the data.
NAMES = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16), "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "I64": np.dtype(np.int64), "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16), "I8": np.dtype(np.int8), "U64": np.dtype(np.uint64), "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16), "U8": np.dtype(np.uint8), "BOOL": np.dtype(np.bool_),
}  # fmt: skip
_OF = {dtype: name for name, dtype in NAMES.items()}
METADATA = "__metadata__"
_ALIGNMENT, _MOST = 8, 100_000_000  # bytes: of the data, and of the longest header that readers take


def save(path: str | Path, values: Mapping[str, NDArray[Any]], said: Mapping[str, str] | None = None) -> None:
    """Write ``values``, and texts that are ``said`` of them. They go to a file beside ``path``, which takes its place
    when everything is on the disk; whoever is interrupted leaves what was there.

    Raises InputError for a type that the format does not have, or where the file cannot be written.
    """
    path = Path(path)
    header: dict[str, Any] = {METADATA: dict(said)} if said else {}
    end = 0
    for name, array in values.items():
        if array.dtype not in _OF:
            raise InputError(f"{name}: checkpoints hold {', '.join(NAMES)}, found {array.dtype}")
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _OF[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent or Path("."))
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for array in values.values():
                    file.write(np.ascontiguousarray(array).tobytes())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        _settle(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _settle(folder: Path) -> None:
    """The new name of a file is on the disk, too."""
    handle = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays in a file of safetensors, and what it says of itself. Raises InputError where it is none, or cut."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    size = int.from_bytes(data[:8], "little")
    try:
        if len(data) < 8 or size > min(len(data) - 8, _MOST):
            raise ValueError("its header is cut")
        header = json.loads(data[8 : 8 + size])
        said = header.pop(METADATA, {})
        body = memoryview(data)[8 + size :]
        return {name: _array(name, row, body) for name, row in header.items()}, dict(said)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{str(path)!r} is no whole file of safetensors: {error}") from error


def said(path: str | Path) -> dict[str, str]:
    """What a file of safetensors says of itself; its arrays are not read. Raises InputError where it is none."""
    try:
        with Path(path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= _MOST else {}
        return dict(header.get(METADATA, {}))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"cannot read {str(path)!r}: {error}") from error


def _array(name: str, row: Mapping[str, Any], body: memoryview) -> NDArray[Any]:
    dtype, shape, (start, end) = NAMES[row["dtype"]], tuple(row["shape"]), row["data_offsets"]
    if not 0 <= start <= end <= len(body) or end - start != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name} has {end - start} bytes at {start} of {len(body)}, expected {dtype}{list(shape)}")
    return np.frombuffer(body[start:end], dtype).reshape(shape).copy()
