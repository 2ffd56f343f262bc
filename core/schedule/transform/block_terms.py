"""The transform that sums the terms of a product in blocks, each over many tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.costs import Stack
from luminal.core.errors import ScheduleError
from luminal.core.printer import brief
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import flat_index
from luminal.core.schedule.nest.rewrite import replace_leaves, replace_scalars, wrap
from luminal.core.schedule.nest.walk import Body, perfect_loops, statements
from luminal.core.symbolic import Int


@dataclass(frozen=True, repr=False)
class BlockTerms:
    """::

    for n_1:  for m_1:                                   sums = 0
        tile = Contract over blocks of terms      =>     for each block:  for n_1:  for m_1:
        store f(tile)                                        sums[n_1, m_1] += Contract over the terms of the block
                                                         for n_1:  for m_1:  store f(sums[n_1, m_1])

    The part of A that a block of terms reads stays in the cache from one panel of B to the next, where all of A would
    not (the loop over ``kc`` of Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008). The
    blocks are those of ``SumInBlocks``: each result is the same sum in the same order. ``tiles`` names the loops around
    the tile that move inside the loops over blocks, outermost first; none for a single tile.

    Legal where these are the innermost loops, serial, and take at most ``room`` bytes of sums, and where nothing is
    looked up on the way and no other product follows.
    """

    tiles: tuple[str, ...]
    room: int = Stack.sums

    __repr__ = brief

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, inside = perfect_loops(nest.body)
        first = len(loops) - len(self.tiles)
        outer, tiles = loops[:first], loops[first:]
        if [loop.axis.name for loop in tiles] != list(self.tiles) or any(loop.kind != "serial" for loop in tiles):
            raise ScheduleError(f"block terms: the innermost loops are not serial ones over {', '.join(self.tiles)}")
        at = next((k for k, s in enumerate(inside) if isinstance(s, ln.Contract)), 0)
        contract, before, after = inside[at], inside[:at], inside[at + 1 :]
        if not isinstance(contract, ln.Contract) or not contract.outer or contract.scales is not None:
            raise ScheduleError("block terms: there is no tile that sums blocks of terms, unscaled")
        named = tuple(s for s in before if isinstance(s, ln.Assign))
        if len(named) + 1 != len(before) or nest.checked:
            raise ScheduleError("block terms: more than a tile's place is found before it is summed")
        if any(isinstance(s, ln.Contract) for s in statements(after)):
            raise ScheduleError("block terms: another product follows that of the tile")
        size = contract.max_rows * contract.columns
        count = sym.upper(sym.product(loop.axis.hi + 1 for loop in tiles))
        if count is None or count * size * contract.dtype.itemsize > self.room:
            raise ScheduleError(f"block terms: sums of {', '.join(self.tiles)} may take more than {self.room} bytes")
        place = flat_index(tiles) * size
        blocks, terms = contract.loops[: contract.outer], contract.loops[contract.outer :]
        summed = replace(contract, loops=terms, outer=0, accumulate=True, tile_offset=place)
        zero = ln.literal(np.zeros(1, contract.dtype.numpy).tobytes(), contract.dtype)
        element = sym.axis("t0", count * size)
        axis = sym.as_var(element)
        assert axis is not None  # a tile has several elements
        clear = ln.Loop(axis, count * size, "vector", (ln.Store(contract.tile, element, zero),), contract.lanes)
        body: Body = (ln.Alloc(contract.tile, contract.dtype, count * size), clear)
        body += wrap([*blocks, *tiles], (*named, summed))
        body += wrap(tiles, (*named, *_moved(after, contract.tile, place)))
        return replace(nest, body=wrap(outer, body))


def _moved(body: Body, tile: str, place: Int) -> Body:
    """``body`` with its reads of ``tile`` moved by ``place`` elements."""

    def moved(value: ln.Scalar) -> ln.Scalar:
        leaves = ((s, s.leaf) for s in ln.postorder(value) if isinstance(s.leaf, ln.Access) and s.leaf.array == tile)
        return replace_leaves(value, {s: ln.load(tile, leaf.offset + place, s.dtype) for s, leaf in leaves})

    return replace_scalars(body, moved)
