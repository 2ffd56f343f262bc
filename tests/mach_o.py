"""Reads what a shared library of macOS says of itself: Mach-O files, as Apple's mach-o/loader.h and nlist.h lay them
out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_MAGIC, _DYLIB = 0xFEEDFACF, 6
_ARCHITECTURES = {0x0100000C: "arm64", 0x01000007: "x86_64"}
_SYMTAB, _LOAD_DYLIB, _ID_DYLIB, _CODE_SIGNATURE, _BUILD_VERSION = 0x2, 0xC, 0xD, 0x1D, 0x32
_EXTERNAL, _TYPE, _DEFINED = 0x01, 0x0E, 0x0E


@dataclass(frozen=True)
class MachO:
    """A 64-bit file of one architecture."""

    data: bytes

    def __post_init__(self) -> None:
        magic, _, _, kind = struct.unpack_from("<4I", self.data)
        assert magic == _MAGIC and kind == _DYLIB, "not a shared library of macOS"

    @property
    def architecture(self) -> str:
        return _ARCHITECTURES[struct.unpack_from("<I", self.data, 4)[0]]

    @property
    def install_name(self) -> str:
        return next(self._names(_ID_DYLIB))

    @property
    def libraries(self) -> list[str]:
        """The libraries that it needs."""
        return list(self._names(_LOAD_DYLIB))

    @property
    def signed(self) -> bool:
        return any(command == _CODE_SIGNATURE for command, _ in self._commands)

    @property
    def oldest_system(self) -> tuple[int, int]:
        """The version of the system that it needs."""
        (place,) = (place for command, place in self._commands if command == _BUILD_VERSION)
        (version,) = struct.unpack_from("<I", self.data, place + 12)
        return version >> 16, version >> 8 & 0xFF

    @property
    def exports(self) -> set[str]:
        return {name for name, kind in self._symbols if kind & _EXTERNAL and kind & _TYPE == _DEFINED}

    @property
    def imports(self) -> set[str]:
        return {name for name, kind in self._symbols if kind & _EXTERNAL and kind & _TYPE == 0}

    @cached_property
    def _commands(self) -> list[tuple[int, int]]:
        """Load commands: each one's number, and where it lies."""
        (count,) = struct.unpack_from("<I", self.data, 16)
        found, place = [], 32
        for _ in range(count):
            command, size = struct.unpack_from("<2I", self.data, place)
            found.append((command & 0x7FFFFFFF, place))
            place += size
        return found

    def _names(self, wanted: int) -> Iterator[str]:
        for command, place in self._commands:
            if command == wanted:
                (offset,) = struct.unpack_from("<I", self.data, place + 8)
                yield self._text(place + offset)

    @cached_property
    def _symbols(self) -> list[tuple[str, int]]:
        """Each symbol's name and type."""
        (place,) = (place for command, place in self._commands if command == _SYMTAB)
        symbols, count, strings, _ = struct.unpack_from("<4I", self.data, place + 8)
        rows = (struct.unpack_from("<IB", self.data, symbols + 16 * number) for number in range(count))
        return [(self._text(strings + name), kind) for name, kind in rows]

    def _text(self, place: int) -> str:
        return self.data[place : self.data.index(b"\0", place)].decode()
