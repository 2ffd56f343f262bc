"""The headers of the runtime that sources stand on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from luminal.codegen.host import INCLUDE

_INCLUDED = re.compile(r'#include "(luminal/[^"]+)"')


def included(line: str) -> str | None:
    """The header that ``line`` of a source includes, by its path in the folder of headers; None where it does not."""
    found = _INCLUDED.match(line)
    return found[1] if found is not None else None


def text(header: str) -> str:
    """The text of a header, by its path."""
    return (INCLUDE / header).read_text()


def needed(sources: Iterable[str]) -> tuple[str, ...]:
    """The paths of the headers that ``sources`` include, and those that these include, under whatever condition."""
    found: set[str] = set()
    left = list(sources)
    while left:
        named = set(filter(None, map(included, left.pop().splitlines()))) - found
        found |= named
        left += map(text, named)
    return tuple(sorted(found))
