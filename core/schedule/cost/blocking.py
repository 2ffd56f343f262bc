"""The order in which the tiles of a contraction run, by the bytes that each order moves through the caches.

A tile reads a slab of A (its rows, along all of K) and a panel of B. Either the slab stays while panels pass (the inner
loop is over panels), or the panel stays while slabs pass. The inner loop runs over a block, whose operand should stay
in the second-level cache until the outer loop comes back to it. The outermost loop is what threads divide: what it does
not move, each of them reads.

Where slabs of A are too long for the cache, blocks of the terms that tiles sum pass over a block of slabs and a few
panels, whose sums stay near meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from luminal.core import symbolic as sym
from luminal.core.costs import Costs
from luminal.core.decisions import Candidate
from luminal.core.symbolic import Int
from luminal.core.target import Target


@dataclass(frozen=True)
class Product:
    """A product at given sizes: ``row_tiles`` by ``panels`` tiles. In bytes: ``slab`` is what a tile reads of A (of
    which a window shares some with its neighbours: count it once), ``panel`` what it reads of B, ``tile`` what it reads
    and writes where its result is stored, ``sums`` what it sums. ``blocks`` are those of terms that it sums apart,
    ``work`` the cycles in which it multiplies."""

    row_tiles: int
    panels: int
    slab: int
    panel: int
    tile: int
    sums: int = 0
    blocks: int = 1
    work: float = 0.0

    def of(self, which: str) -> int:
        """How many ``panels`` it has, or row tiles, ``rows``."""
        return self.panels if which == "panels" else self.row_tiles


@dataclass(frozen=True)
class Blocking:
    """The innermost loop over tiles, ``panels`` or ``rows``, and how many of them are in a block. Where some panels are
    ``kept``, blocks of terms pass over a block of rows and as many panels, whose sums stay near."""

    inner: str
    count: int
    kept: int = 0

    def __str__(self) -> str:
        terms = f", terms in blocks over {self.kept} panels" if self.kept else ""
        return f"blocks of {self.count} {self.inner}{terms}"


def blockings(
    sizes: Sequence[Product],
    extents: Mapping[str, Int],
    target: Target,
    tasks: int,
    threads: int,
    of_rows: Callable[[int], int] = lambda count: count,
    samples: int = 1,
) -> list[Candidate[Blocking]]:
    """All blockings, the cheapest first: by the bytes that each moves, weighted by where they come from, and by how
    long threads wait for each other, in cycles.

    ``sizes`` are those that count, all alike: blocks that suit a batch must not leave one sample undivided.
    ``extents`` are the numbers of tiles of ``rows`` and of ``panels``, which may be symbolic. At least so many
    ``threads`` divide the tiles, and read operands; those of the target may wait for each other. The loops outside
    blocks that differ in size are all that tasks can be made of; unless terms pass in blocks, at least ``tasks`` are
    wanted, at the first of the sizes. ``of_rows`` says how many rows of tiles a block can have, of at most so many;
    ``samples`` how many such products, each with tasks of its own, there are.
    """
    panels, rows = ([size.of(which) for size in sizes] for which in ("panels", "rows"))
    found = [
        *_blockings("panels", panels, rows[0], extents, tasks, lambda count: count),
        *_blockings("rows", rows, panels[0], extents, tasks, of_rows),
    ]
    found += [kept for b in found if b.inner == "rows" for kept in _kept(sizes[0], b, target)]
    sharing = max(threads, -(-target.threads // samples))

    def cycles(blocking: Blocking) -> float:
        """For each tile, summed over the sizes: a large one does not count more than a small one."""
        whole, other = sizes[0].of(blocking.inner), sizes[0].of("rows" if blocking.inner == "panels" else "panels")
        equal = blocking.count >= whole or sym.mod(extents[blocking.inner], blocking.count) == 0
        # Where blocks are equal, and typically too few, tasks are single tiles, and divide evenly.
        single = not blocking.kept and equal and -(-whole // blocking.count) * other < tasks
        return sum(at(size, blocking, single) / (size.row_tiles * size.panels) for size in sizes)

    def at(size: Product, blocking: Blocking, single: bool) -> float:
        idle = 0.0 if single else _idle(size, blocking, sharing, target.costs.threads.even_tasks)
        return _cycles(size, blocking, target) + _shared(size, blocking, threads, target.costs) + idle

    return sorted((Candidate("schedule", b, cycles(b)) for b in found), key=lambda candidate: candidate.estimate)


def _blockings(
    inner: str, counts: Sequence[int], outer: int, extents: Mapping[str, Int], tasks: int, fit: Callable[[int], int]
) -> Iterator[Blocking]:
    """All of the loop over ``inner``, and blocks that divide its ``counts`` into near-equal parts, as far as they
    ``fit``, the largest first. A block of one is left out: the inner loop would be none."""
    whole = counts[0]
    yield Blocking(inner, whole)
    sizes = {fit(size) for count in counts for size in near_equal(count)} - {1, whole}
    for size in sorted(sizes, reverse=True):
        if sym.mod(extents[inner], size) == 0 or -(-whole // size) * outer >= tasks:
            yield Blocking(inner, size)


def _kept(product: Product, blocking: Blocking, target: Target) -> Iterator[Blocking]:
    """``blocking``, a block of rows, with terms in blocks over so many panels that their sums stay near."""
    if product.blocks < 2:
        return
    room = min(target.costs.stack.sums, target.l2 // target.costs.memory.l2_sums)
    most = room // (product.sums * min(blocking.count, product.row_tiles))
    for kept in near_equal(product.panels):
        if kept <= most and kept * blocking.count > 1:
            yield replace(blocking, kept=kept)


def near_equal(count: int) -> list[int]:
    """The sizes of the parts of ``count`` that are as equal as can be, for each number of parts; the largest first.
    There are about twice as many as the square root of ``count``."""
    sizes = [count]
    while sizes[-1] > 1:
        fewest = -(-count // (sizes[-1] - 1))  # parts that are smaller
        sizes.append(-(-count // fewest))
    return sizes


def _idle(product: Product, blocking: Blocking, threads: int, many: int) -> float:
    """The cycles in which ``threads`` wait for the one that multiplies longest, if each takes as many consecutive
    tasks: blocks of tiles, of which the last are smaller. None where each has ``many``. (A thread that is done helps
    others, but what it takes from them has not come into its caches.)"""
    outer, other = ("rows", "panels") if blocking.inner == "rows" else ("panels", "rows")
    sizes = (product.of(outer), blocking.count), (product.of(other), max(1, blocking.kept))
    if math.prod(-(-count // size) for count, size in sizes) >= many * threads:
        return 0.0
    down, across = (_parts(*size) for size in sizes)
    tasks = [high * wide for high in down for wide in across]
    ends = [len(tasks) * thread // threads for thread in range(threads + 1)]
    longest = max(sum(tasks[begin:end]) for begin, end in pairwise(ends))
    return (threads * longest - sum(tasks)) * product.work


def _parts(count: int, size: int) -> list[int]:
    """``count`` in parts of ``size``, and what is left."""
    return [min(size, count - first) for first in range(0, count, size)]


def _cycles(product: Product, blocking: Blocking, target: Target) -> float:
    """The cycles in which one pass over the product waits for the operand that passes and for the one that stays."""
    memory = target.costs.memory
    slabs = (product.slab, product.row_tiles)
    panels = (product.panel, product.panels)
    (outer, outer_count), (inner, inner_count) = (slabs, panels) if blocking.inner == "panels" else (panels, slabs)
    together = min(blocking.count, inner_count)
    blocks = -(-inner_count // together)
    block = inner * together
    first = memory.fetched if blocking.inner == "rows" else 1.0
    terms, kept = (product.blocks, blocking.kept) if blocking.kept else (1, 1)
    groups = -(-outer_count // kept)
    sums = product.sums * together * blocking.kept
    # What one turn of the inner loop touches lies between two uses of an element of the block, unless blocks of terms
    # pass: then what one of these touches in a turn does, for all panels but the first that are kept together. What all
    # turns over a block touch lies between two uses of an element of the outer operand.
    turn = block + kept * outer + product.tile * together * kept + sums
    passed = (block + outer) // terms + sums // max(1, blocking.kept)
    whole = block + outer_count * (outer + product.tile * together)
    far = block * blocks * (1 + (groups - 1) * _missing(turn, target.l2))
    far += block * blocks * (outer_count - groups) * _missing(passed, target.l2)
    again = memory.fetched_again if blocking.kept else 1.0
    far += outer * outer_count * (first + again * (blocks - 1) * _missing(whole, target.l2))
    # An element of the outer operand is used in every turn; meanwhile the next part of that operand may come.
    far += outer * outer_count * blocks * (together - 1) * _missing((2 * outer + inner) // terms, target.l2)
    near = block * blocks * (1 + (outer_count - 1) * _missing(turn // terms, target.l1))
    near += outer * outer_count * blocks * (1 + (together - 1) * _missing((outer + inner) // terms, target.l1))
    near += 2 * terms * sums * groups * blocks
    restarted = (terms - 1) * target.costs.tiles.restarted * product.row_tiles * product.panels
    return far * memory.from_l3 + near * memory.from_l2 + restarted


def _shared(product: Product, blocking: Blocking, threads: int, costs: Costs) -> float:
    """The cycles in which threads wait for what others have read too or have written, and for each other.

    The outermost loop over tiles divides its operand among them; the other they read whole. Most of A lies in the cache
    of a core that wrote it, in the step before, where rows divided that step too; B comes from a cache that all share.
    """
    other = "panels" if blocking.inner == "rows" else "rows"
    blocks = -(-product.of(blocking.inner) // blocking.count)
    outermost, count = (blocking.inner, blocks) if blocks > 1 else (other, product.of(other))
    parts = min(threads, count)
    readers_of_a, readers_of_b = (threads // parts, parts) if outermost == "rows" else (parts, threads // parts)
    a = product.slab * product.row_tiles * (readers_of_a - 1)
    b = product.panel * product.panels * (readers_of_b - 1)
    whole_rows = blocking.inner == "panels" and blocking.count >= product.panels
    meeting = 0.0 if whole_rows else costs.threads.meeting
    return a * costs.memory.from_core + b * costs.memory.from_l3 + meeting


def _missing(touched: int, cache: int) -> float:
    """The share of ``touched`` bytes that a cache no longer holds when they are read again: none up to half its size,
    all from its size on."""
    return min(1.0, max(0.0, 2 * touched / cache - 1))
