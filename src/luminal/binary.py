"""Sections of shared libraries, read from their files: nothing in them is executed.

Formats: "System V Application Binary Interface", chapter 4, and Apple's ``mach-o/loader.h``; both of 64 bits,
little-endian, which all targets are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from luminal.core.errors import ArtifactError

_ELF, _MACH_O = b"\x7fELF\x02\x01", b"\xcf\xfa\xed\xfe"
_NO_BITS = 8  # sh_type of a section that takes no room in the file
_SEGMENT_64 = 0x19  # LC_SEGMENT_64


def sections(path: Path) -> dict[str, bytes]:
    """The contents of the sections of the library at ``path``, by name. Of macOS's, names are without the segment's.

    Raises ArtifactError where the file is no library, or ends too early.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"cannot read {str(path)!r}: {error.strerror}") from error
    read = _elf if data.startswith(_ELF) else _mach_o if data.startswith(_MACH_O) else None
    if read is None:
        raise ArtifactError(f"{str(path)!r} is no shared library of Linux or macOS for 64 bits")
    try:
        return dict(read(data))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ArtifactError(f"the library {str(path)!r} is cut or damaged: its tables of sections end early") from error


def _part(data: bytes, offset: int, size: int) -> bytes:
    if offset + size > len(data):
        raise IndexError
    return data[offset : offset + size]


def _text(data: bytes, offset: int = 0) -> str:
    return data[offset:].partition(b"\0")[0].decode()


def _elf(data: bytes) -> Iterator[tuple[str, bytes]]:
    (table,) = struct.unpack_from("<Q", data, 40)  # e_shoff
    entry, count, names = struct.unpack_from("<HHH", data, 58)
    table_data = _part(data, table, entry * count)
    rows = [struct.unpack_from("<IIQQQQ", table_data, number * entry) for number in range(count)]
    if not rows:
        return
    texts = _part(data, *rows[names][4:6])
    for name, kind, _, _, offset, size in rows:
        if kind != _NO_BITS:
            yield _text(texts, name), _part(data, offset, size)


def _mach_o(data: bytes) -> Iterator[tuple[str, bytes]]:
    (commands,) = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, at)
        if command == _SEGMENT_64:
            (count,) = struct.unpack_from("<I", data, at + 64)
            for number in range(count):
                name, _, _, length, offset = struct.unpack_from("<16s16sQQI", data, at + 72 + number * 80)
                yield _text(name), _part(data, offset, length) if offset else b""
        at += max(size, 8)
