"""Values that are computed again instead of kept: less memory, for more work.

A value that is computed early and read late, as the backward half of a training step reads what the forward half
computed, lies in memory all the time between. Where most memory is in use, the step that computed it may run again just
before the value is read, into a buffer of its own; what it reads must then still be there, or be computed again itself.
Of all such steps the one with the fewest cycles for each byte is taken, until the values fit. It is the same kernel on
the same operands, so it gives the same bits; where a kernel computed a value beside others, the value may have a kernel
of its own, which computes it from what is stored. A step of which nothing is read before just runs later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

LOW = "low"  # as little as costs at most SHARE
LONGEST = 8  # of the works that run again for another one
SHARE = 1 / 3  # of all cycles, done again: of a step of training, about what its forward half takes


@dataclass(frozen=True)
class Work:
    """What the step number ``step`` does: it uses buffers, and of these it has ``written`` some. ``cycles`` are an
    estimate. Buffers of a ``launch`` can have other names. A work ``repeats`` where it may run again: it is a launch,
    and reads nothing that it writes."""

    step: int
    uses: tuple[str, ...]
    written: frozenset[str]
    cycles: float = 0.0
    launch: bool = False
    repeats: bool = False

    def renamed(self, by: Mapping[str, str]) -> Work:
        """The same with other buffers."""
        if by.keys().isdisjoint(self.uses):
            return self
        uses = tuple(by.get(name, name) for name in self.uses)
        return replace(self, uses=uses, written=frozenset(by.get(name, name) for name in self.written))


@dataclass(frozen=True)
class _Again:
    """That ``works`` run before the work at ``at``, the last for what is needed and the others for what that reads:
    once more than at ``first``, or instead if ``later``; ``alone`` if it computes a part of what that does. They take
    ``cycles``, and so many bytes fewer are alive at some place."""

    works: tuple[Work, ...]
    first: int
    at: int
    alone: bool
    later: bool
    cycles: float
    saved: int


@dataclass
class Recomputation:
    """Works in their order, and more and more of them that run again. ``sizes`` has the bytes of all buffers that may
    be computed again, ``arena`` those that lie in the arena; ``alone`` has, by the buffer of a value, the works that
    compute no more than it. ``copies`` are new buffers, each with the one that it is like."""

    works: list[Work]
    sizes: dict[str, int]
    arena: set[str]
    alone: Mapping[str, Work] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    cycles: float = 0.0  # of the works that run again

    def __post_init__(self) -> None:
        self.whole = sum(work.cycles for work in self.works)
        self._count = len(self.works)
        self._read()

    @property
    def peak(self) -> int:
        """The most bytes that are alive at once."""
        return int(self._alive.max(initial=0))

    @property
    def repeated(self) -> int:
        """How many works run again."""
        return len(self.works) - self._count

    def shrink(self, most: int, share: float = np.inf) -> None:
        """Have works run again until no more than ``most`` bytes are alive at once, or nothing makes it fewer; by
        cycles of at most that ``share`` of all."""
        while self.peak > most and self._again(share * self.whole - self.cycles):
            pass

    def _again(self, left: float) -> bool:
        """One more, by at most ``left`` cycles, that makes fewer bytes alive at the first peak; False where none
        does."""
        place, before = int(self._alive.argmax()), self._height
        for one in sorted(
            self._candidates(place, left), key=lambda one: (one.cycles / one.saved, one.first, one.alone)
        ):
            known = self.works, self.sizes, self.arena, self.copies
            self.sizes, self.arena, self.copies = dict(self.sizes), set(self.arena), dict(self.copies)
            self._take(one)
            if self._height < before:
                self.cycles += one.cycles
                return True
            self.works, self.sizes, self.arena, self.copies = known
            self._read()
        return False

    @property
    def _height(self) -> tuple[int, int]:
        """The peak, and at how many places it is reached."""
        return self.peak, int((self._alive == self.peak).sum())

    def _candidates(self, place: int, left: float) -> Iterator[_Again]:
        """What can run again after ``place``, so that something is not alive there."""
        for name, lives in self._lives.items():
            after = bisect_right(lives, place)
            if not lives[0] < place < lives[-1] or lives[after - 1] == place or len(self._writers[name]) != 1:
                continue
            first, at = lives[0], lives[after]
            single = self.alone.get(self._value(name))
            for alone, work in enumerate((self.works[first], *([] if single is None else [single]))):
                if not work.repeats or not self._is_possible(work, first, at):
                    continue
                later = not alone and all(self._is_unread(x, at) for x in work.written)
                for before in dict.fromkeys(((), self._missing(work, place, at, LONGEST))):
                    works = (*before, work)
                    cycles = sum(one.cycles for one in (before if later else works))
                    saved = self._saved(works, place, at)
                    if saved > 0 and cycles <= left:
                        yield _Again(works, first, at, bool(alone), later, cycles, saved)

    def _missing(self, work: Work, place: int, at: int, most: int) -> tuple[Work, ...]:
        """Works, at most so many, that can give ``work`` what it reads and what is not alive at ``place`` any more; in
        the order in which they run."""
        found: dict[Work, None] = {}
        for name in work.uses:
            current = self._latest(name, at)
            lives = self._lives.get(current, [])
            if name in work.written or not lives or lives[-1] >= place:
                continue
            other = self.works[lives[0]]
            if other.repeats and len(found) < most and self._is_possible(other, lives[0], at):
                found |= dict.fromkeys((*self._missing(other, place, at, most - len(found) - 1), other))
        return tuple(found)

    def _is_unread(self, name: str, at: int) -> bool:
        """Whether nothing needs what is in a buffer before the work at ``at``, nor after the last."""
        return name in self.arena and not any(number < at for number in self._lives[name][1:])

    def _is_possible(self, work: Work, first: int, at: int) -> bool:
        """Whether ``work`` gives before the work at ``at`` what was computed by that at ``first``, for works that can
        read it elsewhere."""
        for name in work.uses:
            current = self._latest(name, at)
            writers = self._writers.get(current, ())
            if name in work.written:
                later = (k for k in self._lives.get(current, ()) if k >= at)
                if len(writers) != 1 or not all(self.works[k].launch for k in later):
                    return False
            elif current not in self.copies and any(first < k < at for k in writers):
                return False
        return True

    def _saved(self, works: Sequence[Work], place: int, at: int) -> int:
        """How many bytes fewer are alive at ``place`` if ``works`` run before the work at ``at``."""
        saved = 0
        made = {self._value(name) for work in works for name in work.written}
        kept = {self._value(name) for name in works[-1].written}
        for current in {self._latest(name, at) for work in works for name in work.uses}:
            if current not in self.arena:
                continue
            lives = self._lives[current]
            if self._value(current) in kept:
                last = max(k for k in lives if k < at)
                saved += self.sizes[current] if last < place < lives[-1] else 0
            elif self._value(current) not in made and lives[-1] < place:
                saved -= self.sizes[current]
        return saved

    def _take(self, one: _Again) -> None:
        """Have the works run, and those after them read what they write."""
        for number, work in enumerate(one.works, one.at):
            given = {name: self._latest(name, number) for name in work.uses}
            moved: dict[str, str] = {}
            for name in sorted(work.written):
                value = self._value(name)
                copy = self._free(value)
                if given[name] in self.arena:
                    moved[given[name]] = copy
                given[name] = copy
                self.copies[copy], self.sizes[copy] = value, self.sizes[value]
                self.arena.add(copy)
            later = [other.renamed(moved) for other in self.works[number:]]
            self.works = [*self.works[:number], work.renamed(given), *later]
            self._read()
        if one.later:
            for name in self.works.pop(one.first).written & self.copies.keys():
                del self.copies[name]
            self._read()

    def _free(self, value: str) -> str:
        number = sum(1 for other in self.copies.values() if other == value)
        while (name := f"{value}.again{number or ''}") in self.sizes:
            number += 1
        return name

    # ---- what is where ---------------------------------------------------------------------------------------------

    def _value(self, name: str) -> str:
        """The buffer in which the value of a buffer was computed first."""
        return self.copies.get(name, name)

    def _latest(self, name: str, at: int) -> str:
        """The buffer that has the value of a buffer and was written last before ``at``."""
        value = self._value(name)
        copies = (copy for copy in self._copies.get(value, ()) if self._writers[copy][0] < at)
        return max(copies, key=lambda copy: self._writers[copy][0], default=value)

    def _read(self) -> None:
        """Where each buffer is used and written, and how much is alive at each work."""
        self._lives: dict[str, list[int]] = {}
        self._writers: dict[str, list[int]] = {}
        self._copies: dict[str, list[str]] = {}
        for number, work in enumerate(self.works):
            for name in dict.fromkeys(work.uses):
                if name in self.arena:
                    self._lives.setdefault(name, []).append(number)
            for name in work.written:
                self._writers.setdefault(name, []).append(number)
        for copy, value in self.copies.items():
            self._copies.setdefault(value, []).append(copy)
        changes = np.zeros(len(self.works) + 1, np.int64)
        for name, lives in self._lives.items():
            changes[lives[0]] += self.sizes[name]
            changes[lives[-1] + 1] -= self.sizes[name]
        self._alive = changes.cumsum()
