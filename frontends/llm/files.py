"""Files of checkpoints: their bytes, memory-mapped while they are used, and weights made of these."""

from __future__ import annotations

import json
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from luminal.core import ir, types
from luminal.core.data import Array
from luminal.core.errors import ModelError
from luminal.core.ir import Node
from luminal.core.movement import transpose
from luminal.frontends.llm.blocks import Kind
from luminal.frontends.llm.checkpoint import Weight

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
MOST_JSON = 100_000_000  # bytes of a file or header in JSON
CHUNK = 1 << 20  # elements that are rounded at once


class File:
    """A file that stays open for as long as any of its bytes may be read. Raises ModelError where it cannot be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.is_file():  # nothing that may never end, such as a pipe
                raise ModelError(f"expected {path} to be a file{'' if path.exists() else ', but there is none'}")
            descriptor = os.open(path, os.O_RDONLY)
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, offset: int, length: int) -> Bytes:
        """``length`` bytes from ``offset`` on, mapped: once nobody holds them, they are out of memory again. Raises
        ModelError where the file has not so many."""
        if offset < 0 or length < 0 or offset + length > os.fstat(self._descriptor).st_size:
            raise ModelError(
                f"{self.path}: expected {length} bytes at offset {offset}, found a file of {self.size} bytes; it is "
                "truncated or damaged"
            )
        if not length:  # no bytes cannot be mapped
            return np.zeros(0, np.uint8)
        before = offset % mmap.ALLOCATIONGRANULARITY
        try:
            mapped = mmap.mmap(self._descriptor, before + length, access=mmap.ACCESS_READ, offset=offset - before)
        except (OSError, ValueError, OverflowError) as error:
            raise ModelError(f"{self.path}: cannot map {length} bytes at offset {offset}: {error}") from error
        return np.frombuffer(mapped, np.uint8, offset=before)


def json_object(content: bytes, where: object) -> dict[str, Any]:
    """The object that ``content`` is in JSON. Raises ModelError where it is none, or names a member twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{twice[:80]!r} is there twice")
        return found

    try:
        found = json.loads(content, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where}: expected JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{where}: expected an object in JSON, found {type(found).__name__}")
    return found


def json_file(path: Path) -> dict[str, Any]:
    """The object in a file in JSON. Raises ModelError where there is none."""
    file = File(path)
    if file.size > MOST_JSON:
        raise ModelError(f"{path}: expected at most {MOST_JSON} bytes of JSON, found {file.size}")
    return json_object(file.read(0, file.size).tobytes(), path)


# ---- weights -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Floats:
    """A tensor of floats, which ``array`` reads."""

    shape: tuple[int, ...]
    array: Callable[[], Array]

    def node(self) -> Node:
        return ir.cast(ir.lazy_constant(self.array), types.f32)


@dataclass(frozen=True, eq=False)
class Blocked:
    """A tensor of quantised blocks of ``kind`` along its last axis; ``blocks`` reads them, ``[.., blocks]`` of the
    kind's layout."""

    shape: tuple[int, ...]
    kind: Kind
    blocks: Callable[[], Array]

    def node(self) -> Node:
        return self.kind.real({part: ir.lazy_constant(self._reader(part)) for part in self.kind.kept})

    def _reader(self, part: str) -> Callable[[], Array]:
        return lambda: np.ascontiguousarray(self.kind.taken(self.blocks(), part))


@dataclass(frozen=True, eq=False)
class Transposed:
    """A matrix with rows and columns of another exchanged."""

    of: Weight

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of.shape[::-1]

    def node(self) -> Node:
        return transpose(self.of.node(), 0, 1)


def rounded(weight: Weight, kind: Kind, axis: int = -1) -> Weight:
    """``weight`` rounded to blocks of ``kind`` along ``axis``, the last or the one before; as it is where it is in
    blocks already, or its extent does not fill blocks. Raises ModelError for numbers that no block can hold."""
    if isinstance(weight, Transposed):
        return Transposed(rounded(weight.of, kind, -1 - axis % 2))
    if not hasattr(weight, "array") or len(weight.shape) < 2 or weight.shape[axis] % kind.size:
        return weight
    encode = kind.encode
    assert encode is not None
    swapped = axis % len(weight.shape) != len(weight.shape) - 1
    assert not swapped or len(weight.shape) == 2, "rows are rounded, or columns of a matrix"
    array: Callable[[], Array] = weight.array
    shape = weight.shape[::-1] if swapped else weight.shape

    def blocks() -> Array:
        read = array()
        wide = (read.T if swapped else read).reshape(-1, shape[-1])
        found = np.empty((wide.shape[0], shape[-1] // kind.size), kind.layout)
        step = max(1, CHUNK // shape[-1])
        for first in range(0, wide.shape[0], step):
            part = np.ascontiguousarray(wide[first : first + step]).astype(np.float32)
            found[first : first + step] = encode(part.reshape(part.shape[0], -1, kind.size))
        if not np.isfinite(found["scale"]).all():
            raise ModelError(f"a weight {list(weight.shape)} has numbers that {kind} cannot hold: too large, or NaN")
        return found.reshape(*shape[:-1], -1)

    made = Blocked(shape, kind, blocks)
    return Transposed(made) if swapped else made
