"""What is computed again so that values take less memory, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def lines(described: Mapping[str, Any]) -> Iterator[str]:
    """A line for each entry of a library, from its description; none where no bound on memory was given."""
    for row in described.get("memory", ()):
        again = f"{row['again']} steps run again, {row['work']:.1%} more work" if row["again"] else "nothing runs again"
        yield f"memory: {row['entry']}: {row['bytes']} bytes for values instead of {row['without']}: {again}"
