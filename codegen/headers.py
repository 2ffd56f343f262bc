"""The runtime headers that sources include."""

from __future__ import annotations

import re
from collections.abc import Iterable

from luminal.codegen.host import INCLUDE

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
