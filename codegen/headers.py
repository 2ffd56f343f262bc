"""The runtime headers that sources include."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from luminal.codegen.host import EMULATOR, INCLUDE

# What every kernel for a CPU includes, and every kernel for a GPU.
VECTORS = ("luminal/lanes.hpp", "luminal/math.hpp")
DEVICE = "luminal/device/kernel.hpp"

_INCLUDED = re.compile(r'#include "(luminal/[^"]+)"')


def included(line: str) -> str | None:
    """The path, in the folder of headers, of the header that ``line`` includes; None where it includes none."""
    found = _INCLUDED.match(line)
    return found[1] if found is not None else None


def text(header: str) -> str:
    """The text of a header, by its path."""
    return (INCLUDE / header).read_text()


def needed(sources: Iterable[str]) -> tuple[str, ...]:
    """The paths of all headers that ``sources`` include, directly or not, conditional includes too."""
    found: set[str] = set()
    left = list(sources)
    while left:
        named = set(filter(None, map(included, left.pop().splitlines()))) - found
        found |= named
        left += map(text, named)
    return tuple(sorted(found))


def files() -> Iterator[Path]:
    """All runtime headers, those of the emulator too."""
    for path in sorted((*INCLUDE.rglob("*"), *EMULATOR.rglob("*.h*"))):
        if path.is_file():
            yield path


def digest(*more: str) -> str:
    """A hash of all headers and ``more``."""
    parts = [part for path in files() for part in (path.relative_to(INCLUDE.parent).as_posix(), path.read_text())]
    return hashed([*parts, *more])


def hashed(parts: Iterable[str]) -> str:
    """A hash of texts."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode()
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()[:40]


def namespace(*flags: str) -> str:
    """The flag that gives the headers their namespace: one name for all files that are compiled with these headers and
    ``flags``, whatever the model (see ``luminal/namespace.hpp``)."""
    return f"-DLM_RUNTIME=runtime_{digest(*flags)[:12]}"
