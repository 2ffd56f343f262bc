"""Tensor data kept in files beside the model, memory-mapped: nothing is read before it is used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from luminal.core.errors import ModelError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class ExternalFiles:
    """The external data files of one model, each mapped once.

    ``model`` is the path of the model file, or None where the model came without one; then any tensor with external
    data is refused, since there is no folder that its location could be relative to.
    """

    def __init__(self, model: Path | None) -> None:
        self._folder = None if model is None else model.parent
        # A download cache links both the model and its data from one store; the links' common target is as trusted as
        # the model itself.
        self._trusted = () if model is None else (model.parent.resolve(), model.resolve().parent)
        self._mapped: dict[Path, Bytes] = {}

    def read(self, tensor: onnx.TensorProto) -> Bytes:
        """The bytes of ``tensor``, as a view of the mapped file.

        Raises ModelError where the location leaves the model's folder, or the file is missing or too short.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        path = self._locate(tensor.name, entries.get("location", ""))
        data = self._map(tensor.name, path)
        offset = _count(tensor.name, entries, "offset", 0)
        length = _count(tensor.name, entries, "length", max(0, len(data) - offset))
        if offset + length > len(data):
            raise ModelError(
                f"external data of {tensor.name!r}: expected {length} bytes at offset {offset} of {path.name}, found a "
                f"file of {len(data)} bytes; the file is truncated or belongs to another model"
            )
        return data[offset : offset + length]

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

    def _map(self, name: str, path: Path) -> Bytes:
        data = self._mapped.get(path)
        if data is None:
            try:
                empty = path.stat().st_size == 0  # a file of no bytes cannot be mapped
                if not path.is_file():  # nothing that may never end, such as a pipe
                    raise ModelError(f"external data of {name!r}: expected {path} to be a file")
                data = np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, "r")
            except OSError as error:
                raise ModelError(f"external data of {name!r}: cannot read {path}: {error.strerror}") from error
            self._mapped[path] = data
        return data


def _count(name: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise ModelError(f"external data of {name!r}: expected a number of bytes for {key!r}, found {text[:40]!r}")
    return int(text)
