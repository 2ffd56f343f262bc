"""How a warp's accesses fall on memory: sectors of 32 bytes in global memory, banks of four bytes in shared memory.

CUDA C++ Programming Guide, "Global Memory" and "Shared Memory" of each compute capability: a request of a warp is
served by the sectors that it touches; in shared memory 32 banks serve a word each at once, and threads that read the
same word share it. Accesses of 8 bytes are served half a warp at a time, those of 16 bytes a quarter, which for
``ldmatrix`` is one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from luminal.machine_code.operands import WARP, Array

SECTOR, LINE = 32, 128
BANKS, WORD = 32, 4


@dataclass
class Access:
    """What was counted of one instruction, over all warps that issued it. ``width`` is the bytes of a thread,
    ``sectors`` those touched, ``least`` the fewest that hold the bytes touched; ``waves`` are those of banks, ``ideal``
    what they would be without conflicts, ``ways`` the most words that one bank had to serve at once."""

    space: str
    width: int
    write: bool
    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    least: int = 0
    waves: int = 0
    ideal: int = 0
    ways: int = 0

    def add(self, addresses: Array, active: Array) -> None:
        """Counts an access of the threads that are ``active``, at these addresses."""
        for row, on in zip(addresses.reshape(-1, WARP), active.reshape(-1, WARP), strict=True):
            if not on.any():
                continue
            self.requests += 1
            self.bytes += int(on.sum()) * self.width
            base = int(row[on].min()) // LINE * LINE
            places = np.where(on, row - base, -1).astype(np.int64).tobytes()
            if self.space == "global":
                sectors, least = touched(places, self.width)
                self.sectors += sectors
                self.least += least
            else:
                waves, ideal, ways = banked(places, self.width)
                self.waves += waves
                self.ideal += ideal
                self.ways = max(self.ways, ways)

    def add_whole(self, copied: int) -> None:
        """Counts so many bytes that are copied by whole lines, as boxes are."""
        self.requests += 1
        self.bytes += copied
        self.ways = 1
        if self.space == "global":
            self.sectors, self.least = self.sectors + -(-copied // SECTOR), self.least + -(-copied // SECTOR)
        else:
            self.waves, self.ideal = self.waves + -(-copied // LINE), self.ideal + -(-copied // LINE)


@lru_cache(1 << 14)
def touched(places: bytes, width: int) -> tuple[int, int]:
    """The sectors that a warp touches at these places, -1 for a thread that does nothing, and the fewest that could
    hold as many different bytes."""
    at = np.frombuffer(places, np.int64)
    at = at[at >= 0]
    covered = np.unique(at[:, None] + np.arange(width))
    return len(np.unique(covered // SECTOR)), -(-len(covered) // SECTOR)


@lru_cache(1 << 14)
def banked(places: bytes, width: int) -> tuple[int, int, int]:
    """Waves, waves without conflicts, and the most different words of a bank in one wave's share of a warp."""
    at = np.frombuffer(places, np.int64)
    waves = ideal = ways = 0
    words = max(1, width // WORD)
    for part in at.reshape(words if words in (2, 4) else 1, -1):
        part = part[part >= 0]
        if not len(part):
            continue
        used = np.unique(part[:, None] // WORD + np.arange(words))
        most = int(np.bincount(used % BANKS).max())
        waves, ideal, ways = waves + most, ideal + -(-len(used) // BANKS), max(ways, most)
    return waves, ideal, ways
