"""The order in which the tiles of a contraction run, by the bytes that each order moves through the caches.

A tile reads a slab of A (its rows, along all of K) and a panel of B. Either the inner loop runs over panels while the
slab stays in the cache, or over slabs while the panel stays. The inner loop covers a block, whose operand should stay
in the second-level cache until the outer loop reaches its next iteration. Threads divide the outermost loop; the
operand that this loop does not move is read by each of them.

Where slabs of A are too long for the cache, terms are summed in blocks: each block of terms runs over a block of slabs
and a few panels, while their partial sums stay in the cache.
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
class Tiling:
    """A product at given sizes: ``row_tiles`` by ``panels`` tiles. In bytes: ``slab`` is what a tile reads of A (what
    windows share counts once), ``panel`` what it reads of B, ``tile`` what storing its result reads and writes,
    ``sums`` its accumulators. Its terms are summed in ``blocks``; ``work`` is the cycles in which it multiplies."""

    row_tiles: int
    panels: int
    slab: int
    panel: int
    tile: int
    sums: int = 0
    blocks: int = 1
    work: float = 0.0

    def of(self, which: str) -> int:
        """How many ``panels`` or row tiles (``rows``) it has."""
        return self.panels if which == "panels" else self.row_tiles


@dataclass(frozen=True)
class Blocking:
    """The innermost loop over tiles, ``panels`` or ``rows``, and how many of them are in a block. With ``term_panels``,
    a block of terms runs over a block of rows and so many panels before the next block of terms."""

    inner: str
    count: int
    term_panels: int = 0

    def __str__(self) -> str:
        terms = f", terms in blocks over {self.term_panels} panels" if self.term_panels else ""
        return f"blocks of {self.count} {self.inner}{terms}"


def blockings(
    sizes: Sequence[Tiling],
    extents: Mapping[str, Int],
    target: Target,
    tasks: int,
    threads: int,
    of_rows: Callable[[int], int] = lambda count: count,
    samples: int = 1,
) -> list[Candidate[Blocking]]:
    """All blockings, the cheapest first: by the bytes that each moves, weighted by where they come from, and by how
    long threads wait for each other, in cycles.

    ``sizes`` are the sizes to weigh, each as much as the others: a blocking for large batches must still divide a
    single sample. ``extents`` are the numbers of tiles, of ``rows`` and of ``panels``; they may be symbolic. At least
    ``threads`` threads read operands; all threads of the target may wait for each other. Where blocks differ in size,
    only the loops outside them can be tasks; then, without blocks of terms, at least ``tasks`` are wanted at the first
    of the sizes. ``of_rows`` gives the rows of tiles that a block may have, at most its argument. There are ``samples``
    such products, each with its own tasks.
    """
    panels, rows = ([size.of(which) for size in sizes] for which in ("panels", "rows"))
    found = [
        *_blockings("panels", panels, rows[0], extents, tasks, lambda count: count),
        *_blockings("rows", rows, panels[0], extents, tasks, of_rows),
    ]
    found += [blocked for b in found if b.inner == "rows" for blocked in _with_term_blocks(sizes[0], b, target)]
    sharing = max(threads, -(-target.threads // samples))

    def cycles(blocking: Blocking) -> float:
        """Cycles a tile, summed over the sizes, so that large sizes do not outweigh small ones."""
        whole, other = sizes[0].of(blocking.inner), sizes[0].of("rows" if blocking.inner == "panels" else "panels")
        equal = blocking.count >= whole or sym.mod(extents[blocking.inner], blocking.count) == 0
        # Where equal blocks are typically too few, the tasks are single tiles, which divide evenly.
        single = not blocking.term_panels and equal and -(-whole // blocking.count) * other < tasks
        return sum(at(size, blocking, single) / (size.row_tiles * size.panels) for size in sizes)

    def at(size: Tiling, blocking: Blocking, single: bool) -> float:
        idle = 0.0 if single else _idle(size, blocking, sharing, target.costs.threads.even_tasks)
        return _cycles(size, blocking, target) + _shared(size, blocking, threads, target.costs) + idle

    return sorted((Candidate("schedule", b, cycles(b)) for b in found), key=lambda candidate: candidate.estimate)


def _blockings(
    inner: str, counts: Sequence[int], outer: int, extents: Mapping[str, Int], tasks: int, fit: Callable[[int], int]
) -> Iterator[Blocking]:
    """The whole loop over ``inner``, then blocks that divide one of ``counts`` into near-equal parts, as far as ``fit``
    allows, the largest first; none of a single iteration, which would leave no inner loop."""
    whole = counts[0]
    yield Blocking(inner, whole)
    sizes = {fit(size) for count in counts for size in near_equal(count)} - {1, whole}
    for size in sorted(sizes, reverse=True):
        if sym.mod(extents[inner], size) == 0 or -(-whole // size) * outer >= tasks:
            yield Blocking(inner, size)


def _with_term_blocks(product: Tiling, blocking: Blocking, target: Target) -> Iterator[Blocking]:
    """``blocking``, a block of rows, with terms in blocks over numbers of panels whose sums stay in the cache."""
    if product.blocks < 2:
        return
    room = min(target.costs.stack.sums, target.l2 // target.costs.memory.l2_sums)
    most = room // (product.sums * min(blocking.count, product.row_tiles))
    for term_panels in near_equal(product.panels):
        if term_panels <= most and term_panels * blocking.count > 1:
            yield replace(blocking, term_panels=term_panels)


def near_equal(count: int) -> list[int]:
    """The largest part of ``count`` divided as equally as can be, for each number of parts, descending: about twice the
    square root of ``count`` sizes."""
    sizes = [count]
    while sizes[-1] > 1:
        fewest = -(-count // (sizes[-1] - 1))  # parts for the next smaller size
        sizes.append(-(-count // fewest))
    return sizes


def _idle(product: Tiling, blocking: Blocking, threads: int, many: int) -> float:
    """The cycles in which ``threads`` wait for the one that multiplies longest, where each takes as many consecutive
    tasks: blocks of tiles, the last of which may be smaller. None where each thread has ``many``. (A thread that is
    done helps others, but what it takes over is not in its caches.)"""
    outer, other = ("rows", "panels") if blocking.inner == "rows" else ("panels", "rows")
    sizes = (product.of(outer), blocking.count), (product.of(other), max(1, blocking.term_panels))
    if math.prod(-(-count // size) for count, size in sizes) >= many * threads:
        return 0.0
    down, across = (_parts(*size) for size in sizes)
    tasks = [high * wide for high in down for wide in across]
    ends = [len(tasks) * thread // threads for thread in range(threads + 1)]
    longest = max(sum(tasks[begin:end]) for begin, end in pairwise(ends))
    return (threads * longest - sum(tasks)) * product.work


def _parts(count: int, size: int) -> list[int]:
    """``count`` in parts of ``size``, the last of which is the rest."""
    return [min(size, count - first) for first in range(0, count, size)]


def _cycles(product: Tiling, blocking: Blocking, target: Target) -> float:
    """The cycles in which one pass over the product waits for its operands."""
    memory = target.costs.memory
    slabs = (product.slab, product.row_tiles)
    panels = (product.panel, product.panels)
    (outer, outer_count), (inner, inner_count) = (slabs, panels) if blocking.inner == "panels" else (panels, slabs)
    together = min(blocking.count, inner_count)
    blocks = -(-inner_count // together)
    block = inner * together
    first = memory.fetched if blocking.inner == "rows" else 1.0
    terms, term_panels = (product.blocks, blocking.term_panels) if blocking.term_panels else (1, 1)
    groups = -(-outer_count // term_panels)
    sums = product.sums * together * blocking.term_panels
    # Bytes touched between two uses of an element: of the block, one run of the inner loop; with blocks of terms, what
    # one of these touches in a run, for all but the first panel; of the outer operand, all runs over a block.
    inner_run = block + term_panels * outer + product.tile * together * term_panels + sums
    term_block = (block + outer) // terms + sums // max(1, blocking.term_panels)
    whole = block + outer_count * (outer + product.tile * together)
    far = block * blocks * (1 + (groups - 1) * _missing(inner_run, target.l2))
    far += block * blocks * (outer_count - groups) * _missing(term_block, target.l2)
    again = memory.fetched_again if blocking.term_panels else 1.0
    far += outer * outer_count * (first + again * (blocks - 1) * _missing(whole, target.l2))
    # Every inner run uses an element of the outer operand; the next part of that operand may arrive meanwhile.
    far += outer * outer_count * blocks * (together - 1) * _missing((2 * outer + inner) // terms, target.l2)
    near = block * blocks * (1 + (outer_count - 1) * _missing(inner_run // terms, target.l1))
    near += outer * outer_count * blocks * (1 + (together - 1) * _missing((outer + inner) // terms, target.l1))
    near += 2 * terms * sums * groups * blocks
    restarted = (terms - 1) * target.costs.tiles.restarted * product.row_tiles * product.panels
    return far * memory.from_l3 + near * memory.from_l2 + restarted


def _shared(product: Tiling, blocking: Blocking, threads: int, costs: Costs) -> float:
    """The cycles in which threads wait for data that others also read or have written, and for each other.

    The outermost loop over tiles divides one operand among the threads; each reads the other whole. Most of A is in the
    cache of the core that wrote it, where rows divided that step too; B comes from a cache that all share.
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
