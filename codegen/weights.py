"""The weights file of a compiled library: a header page, then constants in the bytes and order that kernels read.

The layout is described, and read, in ``runtime/include/luminal/weights.hpp``. Constants are streamed one by one, so
that writing a model takes no more memory than its largest packed constant (and memory-mapped ones hardly any).
"""

from __future__ import annotations

import hashlib
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
FORMAT_VERSION = 2
HASH_BYTES = 32
ID_BYTES = 16
PAYLOAD_OFFSET = 4096  # a page, so that the payload of the mapped file is page-aligned
CHUNK_BYTES = 1 << 22

_HEADER = struct.Struct(f"<8sII{HASH_BYTES}sQQQ{ID_BYTES}s")


@dataclass(frozen=True)
class WeightsPlan:
    """Where each constant lies: byte offsets into the payload, in the order in which they are written. In a pipeline,
    the constants of each of the ``stages`` are in files of their own, of ``payload_bytes`` at the most."""

    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    payload_bytes: int
    stages: tuple[WeightsPlan, ...] = ()


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


def staged(stages: Iterable[Sequence[tuple[str, int]]]) -> WeightsPlan:
    """Lay out the ``(name, bytes)`` of each stage as ``plan`` does it. What all stages have, they begin with."""
    plans = tuple(map(plan, stages))
    offsets = {name: offset for each in plans for name, offset in each.offsets.items()}
    sizes = {name: size for each in plans for name, size in each.sizes.items()}
    return WeightsPlan(offsets, sizes, max(each.payload_bytes for each in plans), plans)


def content_id(constants: Iterable[tuple[str, bytes]]) -> bytes:
    """Which weights these are, from what describes each constant and the digest of its elements."""
    found = hashlib.sha256()
    for text, digest in constants:
        found.update(f"{text}\0".encode() + digest)
    return found.digest()[:ID_BYTES]


def content_of(content: bytes, rank: int) -> bytes:
    """The content id in the file of a rank's weights, where that of the library is ``content``: see ``weights.hpp``."""
    turned = int.from_bytes(content[-4:], "little") ^ rank
    return content[:-4] + turned.to_bytes(4, "little")


def shard(path: Path, rank: int) -> Path:
    """The file of the weights of a rank; ``path`` is that of the first."""
    return path.with_name(f"{path.name}.{rank}") if rank else path


def write(
    path: str | os.PathLike[str],
    source_hash: bytes,
    layout: WeightsPlan,
    arrays: Iterable[NDArray[Any]],
    content: bytes = bytes(ID_BYTES),
) -> None:
    """Write the file at ``path``, whole or not at all: ``arrays`` are the constants in the order of ``layout``.

    ``source_hash`` (32 bytes) and ``content`` (16, the ``content_id``) are the library's, which rejects files with
    others. Each array is written before the next is taken, so an iterator may pack them one by one. Raises
    ``ValueError`` if an array has another size than planned, or if there are too few or too many.
    """
    if len(source_hash) != HASH_BYTES:
        raise ValueError(f"the source hash has {len(source_hash)} bytes, expected {HASH_BYTES}")
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(PAYLOAD_OFFSET))
            _write_payload(file, layout, arrays)
        with open(temporary, "r+b") as file:
            file.write(header(source_hash, content, layout.payload_bytes, checksum(payload(temporary))))
        os.chmod(temporary, 0o644)  # mkstemp's files are private; this one is data like the library beside it
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def header(source_hash: bytes, content: bytes, payload_bytes: int, summed: int) -> bytes:
    """The page that a file begins with; ``summed`` is the checksum of its payload."""
    end = PAYLOAD_OFFSET + payload_bytes
    fields = MAGIC, FORMAT_VERSION, PAYLOAD_OFFSET, source_hash, payload_bytes, end, summed, content
    return _HEADER.pack(*fields).ljust(PAYLOAD_OFFSET, b"\0")


def payload(path: str | os.PathLike[str]) -> NDArray[np.uint64]:
    """The payload of the file at ``path``, mapped."""
    empty = os.path.getsize(path) == PAYLOAD_OFFSET
    return np.zeros(0, "<u8") if empty else np.memmap(path, "<u8", "r", PAYLOAD_OFFSET)


def identity(path: Path) -> bytes:
    """The content id in the file at ``path``; shorter where the file is cut. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return file.read(_HEADER.size)[_HEADER.size - ID_BYTES :]


def problem(path: Path, expected: bytes) -> str:
    """What is wrong with the file at ``path``, all of its bytes verified, in words that follow "it"; empty if nothing
    is. ``expected`` is its content id."""
    size = path.stat().st_size
    with path.open("rb") as file:
        page = file.read(PAYLOAD_OFFSET)
    if len(page) < PAYLOAD_OFFSET or page[: len(MAGIC)] != MAGIC:
        return "is cut, or no weights file of luminal"
    _, version, _, source_hash, payload_bytes, end, summed, content = _HEADER.unpack_from(page)
    if version != FORMAT_VERSION:
        return f"has format version {version}, expected {FORMAT_VERSION}"
    if size != end:
        return f"has {size} of {end} bytes"
    if content != expected:
        return "holds other weights than the library was compiled with"
    whole = page == header(source_hash, content, payload_bytes, summed) and checksum(payload(path)) == summed
    return "" if whole else "does not hold the bytes that were written"


_ROW_WORDS, _BLOCK_ROWS = 512, 256
_GOLDEN, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def checksum(words: NDArray[np.uint64]) -> int:
    """The checksum of a payload, as ``runtime/include/luminal/checksum.hpp`` describes it."""
    step = _ROW_WORDS * _BLOCK_ROWS
    found = 8 * len(words)
    for start in range(0, len(words), step):
        found = _chained(found, _block(words[start : start + step]))
    return found


def _block(words: NDArray[np.uint64]) -> int:
    mixed = words ^ (words >> np.uint64(32))
    rows = len(mixed) // _ROW_WORDS
    whole, rest = mixed[: rows * _ROW_WORDS].reshape(rows, _ROW_WORDS), mixed[rows * _ROW_WORDS :]
    found = 0
    for row in (whole @ _KEYS).tolist():
        found = _chained(found, row)
    return _chained(found, int(rest @ _KEYS[: len(rest)])) if len(rest) else found


def _chained(found: int, after: int) -> int:
    product = (found ^ after) * _GOLDEN & _MASK
    return (product << 29 | product >> 35) & _MASK


def _keys() -> NDArray[np.uint64]:
    state = np.arange(1, _ROW_WORDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    mixed = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ mixed >> np.uint64(31)) | np.uint64(1)


_KEYS = _keys()


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
