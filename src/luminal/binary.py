"""Sections of shared libraries, read from their files: nothing in them is executed.

Formats: "System V Application Binary Interface", chapter 4, and Apple's ``mach-o/loader.h``; both of 64 bits,
little-endian, which all targets are.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from luminal.core.errors import ArtifactError

_ELF, _MACH_O = b"\x7fELF\x02\x01", b"\xcf\xfa\xed\xfe"
_NO_BITS = 8  # sh_type of a section that takes no room in the file
_SEGMENT_64 = 0x19  # LC_SEGMENT_64
_MOST = 32 << 20  # bytes of a section that is read: a description has some kilobytes for each kernel
_LONGEST = 256  # characters of the name of a section


def sections(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """The contents of those sections of the library at ``path`` that have these ``names``, where it has them. Of
    macOS's, names are without the segment's.

    The file is mapped, and only the sections of these ``names`` are copied, so that memory is bounded by what a section
    may hold, whatever the tables say.

    Raises ArtifactError where the file is no library, or ends too early.
    """
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ArtifactError(f"{str(path)!r} is empty: no shared library")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _sections(path, data, names)
    except ArtifactError:
        raise
    except OSError as error:
        raise ArtifactError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except ValueError as error:  # what mmap says of a device, which has no size
        raise ArtifactError(f"cannot read {str(path)!r}: it is no regular file") from error


def _sections(path: Path, data: mmap.mmap, names: Collection[str]) -> dict[str, bytes]:
    read = _elf if data[: len(_ELF)] == _ELF else _mach_o if data[: len(_MACH_O)] == _MACH_O else None
    if read is None:
        raise ArtifactError(
            f"{str(path)!r} is no shared library of Linux or macOS for 64 bits; of other systems' libraries, name the "
            "exported folder; a model that is not compiled, luminal view shows"
        )
    found: dict[str, bytes] = {}
    try:
        for name, offset, size in read(data):
            if name in names and name not in found:
                if size > _MOST:
                    raise ArtifactError(f"the library {str(path)!r} is damaged: its section {name} has {size} bytes")
                found[name] = _part(data, offset, size)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ArtifactError(f"the library {str(path)!r} is cut or damaged: its tables of sections end early") from error
    return found


def _part(data: mmap.mmap, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise IndexError
    return data[offset : offset + size]


def _text(data: bytes, offset: int = 0) -> str:
    """The text that ends with a zero byte, of no more characters than names of sections have."""
    return data[offset : offset + _LONGEST].partition(b"\0")[0].decode()


def _elf(data: mmap.mmap) -> Iterator[tuple[str, int, int]]:
    """The sections in the file, with offset and size; those that lie outside of it raise IndexError."""
    (table,) = struct.unpack_from("<Q", data, 40)  # e_shoff
    entry, count, names = struct.unpack_from("<HHH", data, 58)
    table_data = _part(data, table, entry * count)
    rows = [struct.unpack_from("<IIQQQQ", table_data, number * entry) for number in range(count)]
    if not rows:
        return
    texts, length = rows[names][4:6]
    if texts + length > len(data):
        raise IndexError
    for name, kind, _, _, offset, size in rows:
        if kind != _NO_BITS:
            if offset + size > len(data) or name > length:
                raise IndexError
            yield _text(data[texts + name : min(texts + length, texts + name + _LONGEST)]), offset, size


def _mach_o(data: mmap.mmap) -> Iterator[tuple[str, int, int]]:
    (commands,) = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, at)
        if command == _SEGMENT_64:
            (count,) = struct.unpack_from("<I", data, at + 64)
            for number in range(count):
                name, _, _, length, offset = struct.unpack_from("<16s16sQQI", data, at + 72 + number * 80)
                if offset + length > len(data) and offset:
                    raise IndexError
                yield _text(name), offset, length if offset else 0
        at += max(size, 8)
