"""The memory plan: where each value of the arena lies, by liveness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from luminal.core.program import ALIGNMENT


@dataclass(frozen=True)
class Span:
    """A value that lives from step ``first`` to step ``last`` (both inclusive) and takes ``size`` bytes."""

    name: str
    size: int
    first: int
    last: int


def place(spans: Sequence[Span]) -> tuple[Mapping[str, int], int]:
    """An offset for each span such that no two that live at once overlap, and the total size, in bytes.

    Greedy by size: the largest first, each at the lowest offset that is free for all of its life.
    """
    placed: list[tuple[Span, int]] = []
    offsets: dict[str, int] = {}
    for span in sorted(spans, key=lambda s: (-s.size, s.first, s.name)):
        busy = sorted(
            (offset, offset + other.size)
            for other, offset in placed
            if other.first <= span.last and span.first <= other.last
        )
        start = 0
        for low, high in busy:
            if start + span.size <= low:
                break
            start = max(start, aligned(high))
        placed.append((span, start))
        offsets[span.name] = start
    return offsets, max((offset + span.size for span, offset in placed), default=0)


def aligned(size: int) -> int:
    """``size`` rounded up to the alignment of buffers."""
    return -(-size // ALIGNMENT) * ALIGNMENT
