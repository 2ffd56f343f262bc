"""The weights file of a compiled library: a header page, then constants in the bytes and order that kernels read.

The layout is described, and read, in ``runtime/include/luminal/weights.hpp``. Constants are streamed one by one, so
that writing a model takes no more memory than its largest packed constant (and memory-mapped ones hardly any).
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from luminal.core.schedule.program.ir import aligned

MAGIC = b"LUMINALW"
FORMAT_VERSION = 1
HASH_BYTES = 32
PAYLOAD_OFFSET = 4096  # a page, so that the payload of the mapped file is page-aligned
CHUNK_BYTES = 1 << 22

_HEADER = struct.Struct(f"<8sII{HASH_BYTES}sQQ")


@dataclass(frozen=True)
class WeightsPlan:
    """Where each constant lies: byte offsets into the payload, in the order in which they are written."""

    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    payload_bytes: int


def plan(constants: Sequence[tuple[str, int]]) -> WeightsPlan:
    """Lay out ``(name, bytes)`` one after the other, each aligned to 64 bytes; ``ValueError`` on a repeated name.

    Every name is stored: the caller merges constants that share their bytes (tied weights).
    """
    offsets: dict[str, int] = {}
    sizes: dict[str, int] = {}
    end = 0
    for name, size in constants:
        if name in offsets:
            raise ValueError(f"two constants are named {name!r}")
        offsets[name] = aligned(end)
        sizes[name] = size
        end = offsets[name] + size
    return WeightsPlan(MappingProxyType(offsets), MappingProxyType(sizes), aligned(end))


def write(
    path: str | os.PathLike[str], source_hash: bytes, layout: WeightsPlan, arrays: Iterable[NDArray[Any]]
) -> None:
    """Write the file at ``path``, whole or not at all: ``arrays`` are the constants in the order of ``layout``.

    ``source_hash`` (32 bytes) is the library's, which rejects files with another. Each array is written before the
    next is taken, so an iterator may pack them one by one. Raises ``ValueError`` if an array has another size than
    planned, or if there are too few or too many.
    """
    if len(source_hash) != HASH_BYTES:
        raise ValueError(f"the source hash has {len(source_hash)} bytes, expected {HASH_BYTES}")
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_header(source_hash, layout.payload_bytes))
            _write_payload(file, layout, arrays)
        os.chmod(temporary, 0o644)  # mkstemp's files are private; this one is data like the library beside it
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _header(source_hash: bytes, payload_bytes: int) -> bytes:
    header = _HEADER.pack(
        MAGIC, FORMAT_VERSION, PAYLOAD_OFFSET, source_hash, payload_bytes, PAYLOAD_OFFSET + payload_bytes
    )
    return header.ljust(PAYLOAD_OFFSET, b"\0")


def _write_payload(file: BinaryIO, layout: WeightsPlan, arrays: Iterable[NDArray[Any]]) -> None:
    remaining = iter(arrays)
    for name, offset in layout.offsets.items():
        array = next(remaining, None)
        if array is None:
            raise ValueError(f"constant {name!r} is missing: the arrays end before it")
        if array.nbytes != layout.sizes[name]:
            raise ValueError(f"constant {name!r} has {array.nbytes} bytes, but {layout.sizes[name]} were planned")
        _pad(file, PAYLOAD_OFFSET + offset)
        for chunk in _chunks(array):
            file.write(chunk)
        del array  # let go of it before the next one is packed
    if next(remaining, None) is not None:
        raise ValueError(f"more arrays than the {len(layout.offsets)} planned constants")
    _pad(file, PAYLOAD_OFFSET + layout.payload_bytes)


def _pad(file: BinaryIO, position: int) -> None:
    file.write(bytes(position - file.tell()))


def _chunks(array: NDArray[Any]) -> Iterator[memoryview]:
    """The bytes of an array in row-major order, little-endian, in chunks that bound what is copied."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.nbytes <= CHUNK_BYTES or array.ndim == 0 or array.flags.c_contiguous:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        return
    rows = max(1, CHUNK_BYTES // max(1, array.nbytes // len(array)))
    for start in range(0, len(array), rows):
        yield np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8).data
