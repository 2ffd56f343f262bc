"""The memory plan: where each value of the arena lies, by liveness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from luminal.core.schedule.program.ir import aligned


@dataclass(frozen=True)
class Span:
    """A value of ``size`` bytes that is alive from step ``first`` to step ``last``, both inclusive."""

    name: str
    size: int
    first: int
    last: int


def place_spans(spans: Sequence[Span]) -> tuple[Mapping[str, int], int]:
    """An offset for each span such that no two that live at once overlap, and the total size, in bytes.

    Greedy by size: the largest first, each at the lowest offset that is free for all of its life.
    """
    placed = _Placed()
    offsets: dict[str, int] = {}
    for span in sorted(spans, key=lambda s: (-s.size, s.first, s.name)):
        busy = sorted((offsets[other.name], offsets[other.name] + other.size) for other in placed.beside(span))
        start = 0
        for low, high in busy:
            if start + span.size <= low:
                break
            start = max(start, aligned(high))
        placed.add(span)
        offsets[span.name] = start
    return offsets, max((offsets[span.name] + span.size for span in spans), default=0)


class _Placed:
    """Spans by lifetime, in a binary tree of steps: each at the fewest nodes that cover its life."""

    def __init__(self) -> None:
        self._from: dict[int, list[Span]] = {}
        self._during: dict[tuple[int, int], list[Span]] = {}  # by level, from single steps on, and number
        self._levels = 0

    def add(self, span: Span) -> None:
        self._from.setdefault(span.first, []).append(span)
        level, low, high = 0, span.first, span.last + 1
        while low < high:
            if low % 2:
                self._during.setdefault((level, low), []).append(span)
                low += 1
            if high % 2:
                high -= 1
                self._during.setdefault((level, high), []).append(span)
            level, low, high = level + 1, low // 2, high // 2
        self._levels = max(self._levels, level)

    def beside(self, span: Span) -> Iterator[Span]:
        """The spans that are alive at a step of ``span``: those alive at its first step, and those that begin later."""
        for level in range(self._levels):
            yield from self._during.get((level, span.first >> level), ())
        for step in range(span.first + 1, span.last + 1):
            yield from self._from.get(step, ())
