"""Folders of safetensors files with a ``config.json``, as transformers saves models.

The format: 8 bytes with the length of a header, the header in JSON, and the data. The header names each tensor with its
type, its shape, and where in the data it begins and ends; tensors lie one behind the other. A model in several files
has an index, which names the file of each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luminal.core import limits, types
from luminal.core.data import Array
from luminal.core.errors import ModelError, ShapeError
from luminal.core.types import DType
from luminal.frontends.llm.checkpoint import Weight, missing
from luminal.frontends.llm.files import MOST_JSON, File, Floats, json_file, json_object

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F32": types.f32, "F16": types.f16, "BF16": types.bf16}
# Bits of an element, for all types of the format.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class _Entry:
    """A tensor as the header has it: its data are bytes ``begin`` to ``end`` of the file."""

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Tensors:
    """The tensors of one file. Raises ModelError where header and data do not fit the format."""

    def __init__(self, path: Path) -> None:
        self.file = File(path)
        if self.file.size < 8:
            raise ModelError(f"{path}: expected a safetensors file, found {self.file.size} bytes; it is truncated")
        length = int.from_bytes(self.file.read(0, 8).tobytes(), "little")
        if length > min(MOST_JSON, self.file.size - 8):
            raise ModelError(
                f"{path}: the header should have {length} bytes, but the file has {self.file.size} (and a header at "
                f"most {MOST_JSON}); it is truncated or no safetensors file"
            )
        header = json_object(self.file.read(8, length).tobytes(), f"the header of {path}")
        header.pop("__metadata__", None)
        self.entries = {name: self._entry(name, value, 8 + length) for name, value in header.items()}
        self._check_places(8 + length)

    def _entry(self, name: str, value: Any, start: int) -> _Entry:
        what = f"{self.file.path}: tensor {name[:80]!r}"
        found = value if isinstance(value, dict) else {}
        kind, shape, ends = (found.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not (isinstance(kind, str) and _whole(shape) and _whole(ends) and len(ends) == 2):
            raise ModelError(f"{what}: expected a dtype, a shape and two data_offsets, found {str(value)[:120]}")
        if kind not in _BITS:
            raise ModelError(f"{what}: expected a type of {', '.join(_BITS)}, found {kind[:40]!r}")
        try:
            limits.check_extents(shape, 8, what)
        except ShapeError as error:
            raise ModelError(str(error)) from error
        begin, end = ends
        bits = math.prod(shape) * _BITS[kind]
        if (end - begin) * 8 != bits:
            raise ModelError(
                f"{what}: {kind}{shape} takes {bits / 8:.0f} bytes, but its data_offsets are {begin} and {end}"
            )
        if start + end > self.file.size:
            raise ModelError(
                f"{what}: its data should end at byte {start + end}, but the file has {self.file.size}; it is truncated"
            )
        return _Entry(kind, tuple(shape), start + begin, start + end)

    def _check_places(self, start: int) -> None:
        at, before = start, "the header"
        for name, entry in sorted(self.entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.begin != at:
                how = "overlaps" if entry.begin < at else "leaves a gap after"
                raise ModelError(f"{self.file.path}: the data of tensor {name[:80]!r} {how} {before[:80]}")
            at, before = entry.end, f"that of {name!r}"
        if at != self.file.size:
            raise ModelError(f"{self.file.path}: {self.file.size - at} bytes follow the data of the last tensor")

    def weight(self, name: str) -> Weight:
        """Raises ModelError where the tensor's type is no float that weights may have."""
        entry = self.entries[name]
        if entry.kind not in FLOATS:
            raise ModelError(
                f"{self.file.path}: expected weight {name!r} in {', '.join(FLOATS)}, found {entry.kind}; save the "
                "model in one of these types"
            )
        return Floats(entry.shape, self._reader(entry, FLOATS[entry.kind]))

    def _reader(self, entry: _Entry, dtype: DType) -> Callable[[], Array]:
        length = entry.end - entry.begin
        return lambda: self.file.read(entry.begin, length).view(dtype.numpy).reshape(entry.shape)


class Folder:
    """The checkpoint in a folder: ``config.json``, and one safetensors file or several with an index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: Mapping[str, Any] = json_file(path / CONFIG)
        files, self._of = self._files()
        self._tensors = {name: Tensors(path / name) for name in files}
        for name, file in self._of.items():
            if name not in self._tensors[file].entries:
                raise missing(name, self._tensors[file].entries, f"{path / file} (which {INDEX} says it is in)")
        if not self._of:
            self._of = {name: file for file, tensors in self._tensors.items() for name in tensors.entries}

    def _files(self) -> tuple[list[str], dict[str, str]]:
        """The names of the files, and the file of each tensor if there is an index."""
        if (self.path / INDEX).exists():
            index = json_file(self.path / INDEX).get("weight_map")
            if not (isinstance(index, dict) and index and all(isinstance(file, str) for file in index.values())):
                raise ModelError(f"{self.path / INDEX}: expected a weight_map from tensors to files")
            files = list(dict.fromkeys(index.values()))
            for file in files:
                if Path(file).name != file or file in ("", ".", ".."):
                    raise ModelError(f"{self.path / INDEX}: expected files of the same folder, found {file[:80]!r}")
            absent = [file for file in files if not (self.path / file).is_file()]
            if absent:
                raise ModelError(
                    f"{self.path} lacks {', '.join(absent[:4])}, {len(absent)} of the {len(files)} files of its index; "
                    "download the model again"
                )
            return files, index
        found = sorted(path.name for path in self.path.glob("*.safetensors"))
        if SINGLE in found:
            return [SINGLE], {}
        if len(found) == 1:
            return found, {}
        beside = f"{len(found)} safetensors files and no {INDEX}" if found else "no safetensors file"
        raise ModelError(
            f"{self.path}: expected {SINGLE}, or {INDEX} with the files it names; found {beside}. "
            "transformers saves a model so: model.save_pretrained(folder)"
        )

    def names(self) -> Collection[str]:
        return self._of.keys()

    def weight(self, name: str) -> Weight:
        if name not in self._of:
            raise missing(name, self.names(), str(self.path))
        return self._tensors[self._of[name]].weight(name)


def _whole(value: Any) -> bool:
    """Whether ``value`` is a list of whole numbers that are not negative."""
    return isinstance(value, list) and all(type(x) is int and x >= 0 for x in value)
