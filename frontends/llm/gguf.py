"""GGUF files: metadata by key, and tensors whose blocks are used as they are.

The format, little-endian: the letters GGUF, a version, the counts of tensors and of entries; entries with a key, a type
and a value; for each tensor its name, extents (the innermost first), type, and where its data begin; then the data,
aligned. A model may be divided into several such files. What a file says of itself is checked before it is believed: no
count makes more memory than the file has bytes.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from luminal.core import types
from luminal.core.data import Array
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.types import DType
from luminal.frontends.llm import gguf_names
from luminal.frontends.llm.blocks import NUMBERED, Kind
from luminal.frontends.llm.checkpoint import Weight, missing
from luminal.frontends.llm.files import Blocked, Bytes, File, Floats

VERSIONS = (2, 3)
ALIGNMENT = "general.alignment"
MOST_AXES = 4  # of a tensor
FLOATS = {0: types.f32, 1: types.f16, 30: types.bf16}
# Numbers of an entry's type; 7 is a bool, 8 a text and 9 an array.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _TEXT, _ARRAY = 7, 8, 9
# Types of tensors that are not read, for messages.
_OTHERS = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
_PARTED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class _Entry:
    """A tensor as the file has it: the extents outermost first, the number of its type, and where its data begin."""

    shape: tuple[int, ...]
    number: int
    begin: int


class Gguf:
    """The metadata and tensors of one file. Raises ModelError where it does not fit the format."""

    def __init__(self, path: Path) -> None:
        self.file = File(path)
        reader = _Reader(path, self.file.read(0, self.file.size))
        if reader.bytes(4) != b"GGUF":
            raise ModelError(f"{path}: expected a GGUF file, but it does not begin with the letters GGUF")
        version = reader.number("<I")
        if version not in VERSIONS:
            big = version & 0xFFFF == 0 and version
            advice = "it is big-endian" if big else "convert the model again with a newer llama.cpp"
            raise ModelError(f"{path}: expected GGUF of version 2 or 3, found {version}; {advice}")
        tensors, entries = reader.count(24), reader.count(13)
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = reader.name()
            if key in self.metadata:
                raise ModelError(f"{path}: the entry {key[:80]!r} is there twice")
            self.metadata[key] = reader.value(reader.number("<I"), key)
        self.entries: dict[str, _Entry] = {}
        for _ in range(tensors):
            name = reader.name()
            if name in self.entries:
                raise ModelError(f"{path}: the tensor {name[:80]!r} is there twice")
            self.entries[name] = self._entry(reader, name)
        alignment = self.metadata.get(ALIGNMENT, 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise ModelError(f"{path}: expected {ALIGNMENT} to be a power of two, found {str(alignment)[:40]}")
        self.start = -(-reader.at // alignment) * alignment
        for name, entry in self.entries.items():
            self._check(name, entry, alignment)

    def _entry(self, reader: _Reader, name: str) -> _Entry:
        rank = reader.number("<I")
        if not 1 <= rank <= MOST_AXES:
            raise ModelError(f"{self.file.path}: tensor {name[:80]!r}: expected 1 to {MOST_AXES} axes, found {rank}")
        shape = tuple(reader.number("<Q") for _ in range(rank))[::-1]
        if 0 in shape or math.prod(shape) > 8 * self.file.size:
            raise ModelError(
                f"{self.file.path}: tensor {name[:80]!r}: {list(shape)} elements do not fit a file of "
                f"{self.file.size} bytes"
            )
        return _Entry(shape, reader.number("<I"), reader.number("<Q"))

    def _check(self, name: str, entry: _Entry, alignment: int) -> None:
        """Raises ModelError where a tensor of a known type has no place in the file."""
        what = f"{self.file.path}: tensor {name[:80]!r}"
        if entry.begin % alignment:
            raise ModelError(f"{what}: expected its data at a multiple of {alignment} bytes, found {entry.begin}")
        kind = NUMBERED.get(entry.number)
        if kind is not None and entry.shape[-1] % kind.size:
            raise ModelError(f"{what}: rows of {entry.shape[-1]} elements are not made of {kind}'s {kind.size}")
        length = self._bytes(entry)
        if length is not None and self.start + entry.begin + length > self.file.size:
            raise ModelError(
                f"{what}: its data should end at byte {self.start + entry.begin + length}, but the file has "
                f"{self.file.size}; it is truncated"
            )

    def _bytes(self, entry: _Entry) -> int | None:
        """The bytes of a tensor; None for types that are not known."""
        count = math.prod(entry.shape)
        if entry.number in FLOATS:
            return count * FLOATS[entry.number].itemsize
        kind = NUMBERED.get(entry.number)
        return None if kind is None else count // kind.size * kind.layout.itemsize

    def weight(self, name: str) -> Weight:
        """Raises UnsupportedError where the tensor's type is not known."""
        entry = self.entries[name]
        length = self._bytes(entry)
        if length is None:
            found = _OTHERS.get(entry.number, f"type {entry.number}")
            kinds = ", ".join([*(FLOATS[n].name for n in FLOATS), *(kind.name for kind in NUMBERED.values())])
            raise UnsupportedError(
                f"{self.file.path}: tensor {name!r} is in {found}; expected one of {kinds}. Take a file of the model "
                "in one of these kinds"
            )
        begin = self.start + entry.begin

        def read() -> Bytes:
            return self.file.read(begin, length)

        if entry.number in FLOATS:
            return Floats(entry.shape, _floats(read, FLOATS[entry.number], entry.shape))
        kind = NUMBERED[entry.number]
        return Blocked(entry.shape, kind, _blocks(read, kind, entry.shape))


def _floats(read: Callable[[], Bytes], dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
    return lambda: read().view(dtype.numpy).reshape(shape)


def _blocks(read: Callable[[], Bytes], kind: Kind, shape: tuple[int, ...]) -> Callable[[], Array]:
    return lambda: read().view(kind.layout).reshape(*shape[:-1], shape[-1] // kind.size)


class _Reader:
    """Reads what the head of a file consists of, from its first byte on. Raises ModelError where bytes are missing."""

    def __init__(self, path: Path, content: Bytes) -> None:
        self.path = path
        self.content = content.data
        self.size = content.size
        self.at = 0

    def bytes(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise ModelError(
                f"{self.path}: expected {count} bytes at offset {self.at}, but the file has {self.size}; it is "
                "truncated or damaged"
            )
        self.at += count
        return bytes(self.content[self.at - count : self.at])

    def number(self, form: str) -> int:
        found: int = struct.unpack(form, self.bytes(struct.calcsize(form)))[0]
        return found

    def count(self, least: int) -> int:
        """A number of things of which each takes at least so many bytes."""
        found = self.number("<Q")
        if found * least > self.size - self.at:
            raise ModelError(
                f"{self.path}: {found} items do not fit the {self.size - self.at} bytes that follow offset {self.at}; "
                "the file is truncated or damaged"
            )
        return found

    def name(self) -> str:
        try:
            return self.bytes(self.count(1)).decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path}: expected a name in UTF-8 at offset {self.at}: {error}") from error

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        """A value of the type of that number. Texts that are not UTF-8 keep their bytes as surrogates."""
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self.bytes(dtype.itemsize), dtype)[0].item()
        if kind == _BOOL:
            return self.bytes(1) != b"\0"
        if kind == _TEXT:
            return self.bytes(self.count(1)).decode(errors="surrogateescape")
        if kind == _ARRAY and depth < 4:
            return self._array(key, depth)
        raise ModelError(f"{self.path}: entry {key[:80]!r}: expected a type of 0 to 12, found {kind}")

    def _array(self, key: str, depth: int) -> Any:
        kind = self.number("<I")
        if kind in _NUMBERS or kind == _BOOL:
            dtype = np.dtype(_NUMBERS.get(kind, "u1"))
            found = np.frombuffer(self.bytes(self.count(dtype.itemsize) * dtype.itemsize), dtype)
            return found if kind in _NUMBERS else found != 0
        return [self.value(kind, key, depth + 1) for _ in range(self.count(8))]


# ---- a model -------------------------------------------------------------------------------------------------------


class Model:
    """The checkpoint in a GGUF file, or in several of which ``path`` is one. ``config`` and the names of tensors are
    those of the model's folder of safetensors; ``metadata`` has the entries of the file, a tokenizer among them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        files = [Gguf(part) for part in _parts(path)]
        self.metadata: Mapping[str, Any] = files[0].metadata
        self._file: dict[str, Gguf] = {}
        for file in files:
            for name in file.entries:
                if name in self._file:
                    raise ModelError(f"{path}: the tensor {name[:80]!r} is in two of its {len(files)} files")
                self._file[name] = file
        shapes = {name: file.entries[name].shape for name, file in self._file.items()}
        model = gguf_names.of(self.metadata, shapes, lambda name: self._file[name].weight(name), str(path))
        self.config: Mapping[str, Any] = model.config
        self._weights = model.weights

    def names(self) -> Collection[str]:
        return self._weights.keys()

    def weight(self, name: str) -> Weight:
        if name not in self._weights:
            raise missing(name, self.names(), str(self.path))
        return self._weights[name]()


def _parts(path: Path) -> list[Path]:
    """The files of a model, the first one first. Raises ModelError where one is missing."""
    found = _PARTED.fullmatch(path.name)
    if found is None:
        return [path]
    stem, _, count = found.groups()
    if int(count) > 1000:
        raise ModelError(f"{path}: expected at most 1000 files of one model")
    parts = [path.with_name(f"{stem}-{k + 1:05}-of-{count}.gguf") for k in range(int(count))]
    absent = [part.name for part in parts if not part.is_file()]
    if absent:
        raise ModelError(f"{path.parent} lacks {', '.join(absent[:4])}, {len(absent)} of the {count} files of a model")
    return parts
