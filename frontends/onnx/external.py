"""Tensor data kept in files beside the model, memory-mapped while it is used, and read no sooner."""

from __future__ import annotations

import mmap
import os
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from luminal.core.errors import ModelError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class ExternalFiles:
    """The external data files of one model, each opened once, for as long as any of its tensors may be read.

    ``model`` is the path of the model file, or None where the model came without one; then any tensor with external
    data is refused, since there is no folder that its location could be relative to.
    """

    def __init__(self, model: Path | None) -> None:
        self._folder = None if model is None else model.parent
        # A download cache links both the model and its data from one store; the links' common target is as trusted as
        # the model itself.
        self._trusted = () if model is None else (model.parent.resolve(), model.resolve().parent)
        self._opened: dict[Path, tuple[int, int]] = {}  # the descriptor and the size of each

    def read(self, tensor: onnx.TensorProto) -> Bytes:
        """The bytes of ``tensor``, mapped: once nobody holds them, they are out of memory again.

        Raises ModelError where the location leaves the model's folder, or the file is missing or too short.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = self._locate(tensor.name, entries.get("location", ""))
        descriptor, size = self._open(tensor.name, path)
        offset = _count(tensor.name, entries, "offset", 0)
        length = _count(tensor.name, entries, "length", max(0, size - offset))
        if offset + length > size:
            raise ModelError(
                f"external data of {tensor.name!r}: expected {length} bytes at offset {offset} of {path.name}, found a "
                f"file of {size} bytes; the file is truncated or belongs to another model"
            )
        if not length:  # no bytes cannot be mapped
            return np.zeros(0, np.uint8)
        before = offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapped = mmap.mmap(descriptor, before + length, access=mmap.ACCESS_READ, offset=offset - before)
        except (OSError, ValueError) as error:
            raise ModelError(f"external data of {tensor.name!r}: cannot map {path}: {error}") from error
        return np.frombuffer(mapped, np.uint8, offset=before)

    def _locate(self, name: str, location: str) -> Path:
        if self._folder is None:
            raise ModelError(
                f"{name!r} keeps its data in the file {location!r}, but the model was not loaded from a path; pass the "
                "model's path, or load its external data first (onnx.load does)"
            )
        if not location:
            raise ModelError(f"external data of {name!r} names no file")
        path = self._folder / location
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or what no file can be called
            raise ModelError(f"external data of {name!r}: {location[:200]!r} names no file: {error}") from error
        if Path(location).is_absolute() or not any(resolved.is_relative_to(folder) for folder in self._trusted):
            raise ModelError(
                f"external data of {name!r}: the location {location!r} leaves the model's folder {self._folder}; "
                "such a model is refused"
            )
        return path

    def _open(self, name: str, path: Path) -> tuple[int, int]:
        """The descriptor of a file and its size in bytes."""
        if path not in self._opened:
            try:
                size = path.stat().st_size
                if not path.is_file():  # nothing that may never end, such as a pipe
                    raise ModelError(f"external data of {name!r}: expected {path} to be a file")
                descriptor = os.open(path, os.O_RDONLY)
            except OSError as error:
                raise ModelError(f"external data of {name!r}: cannot read {path}: {error.strerror}") from error
            weakref.finalize(self, os.close, descriptor)
            self._opened[path] = descriptor, size
        return self._opened[path]


def _count(name: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise ModelError(f"external data of {name!r}: expected a number of bytes for {key!r}, found {text[:40]!r}")
    return int(text)
