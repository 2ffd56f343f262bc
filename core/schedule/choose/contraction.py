"""The schedule of a contraction: its axes by role, tiles of rows and columns, the order of tiles, and prefetches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from luminal.core import symbolic as sym
from luminal.core.decisions import Candidate
from luminal.core.errors import ScheduleError
from luminal.core.schedule.choose.scheduler import Scheduler, stride, vector_gain
from luminal.core.schedule.contraction.contraction import Contraction, Tile
from luminal.core.schedule.contraction.tile import step_depth
from luminal.core.schedule.cost import kernel
from luminal.core.schedule.cost.blocking import Blocking, Tiling, blockings
from luminal.core.schedule.cost.tasks import leaves_cache, suffice
from luminal.core.schedule.lower.clusters import Lowered
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import loops_of_b, operands_of
from luminal.core.schedule.nest.walk import accesses, reads, statements
from luminal.core.schedule.transform.block_terms import BlockTerms
from luminal.core.schedule.transform.fetch import (
    FetchAhead,
    FetchResults,
    FetchRows,
    computed_with_rows,
    has_contiguous_panels,
    reads_runs,
)
from luminal.core.schedule.transform.loops import Parallelise, Reorder, ReorderReduction, Scheduled
from luminal.core.schedule.transform.tensorise import ScaleSums, SumInBlocks, Tensorise, scaled_sums
from luminal.core.schedule.transform.transpose import StoreTileTransposed, only_stores
from luminal.core.schedule.transform.unpack import Unpack, unpackable
from luminal.core.sizes import least, typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target

TERMS_PER_BLOCK = 384  # products that one accumulator sums, at most: for accuracy (docs/experiments/numerics.md)


def schedule_contraction(lowered: Lowered, found: Contraction, target: Target) -> Scheduled:
    """The tiled schedule of a contraction's serial nest. Raises ScheduleError where operands are not linear in
    memory."""
    tile = found.tile
    assert tile is not None
    state = Scheduler(lowered.nest, target, tile.asked)
    of_m, of_n = lowered.loops(found.m), lowered.loops(found.n)
    fixed = frozenset(loop.axis.name for loop in state.loops() if loop.axis not in of_m)
    if tile.unit is None:
        state.refine(fixed)
    else:  # only A may divide axes: groups of terms in B, or in the result, must not divide rows or runs of terms
        a, *_ = operands_of(_reduction(state))
        state.refine(fixed, of=(a.offset,))
    reduction = _reduction(state)
    a, b, computed = operands_of(reduction)
    # Parts of a row axis that do not move A, as where rows repeat, are no rows: a tile reads each row once.
    only_a = [v for axis in of_m for v in state.parts_of([axis]) if v in sym.variables(a.offset)]
    only_b = state.parts_of(of_n)
    shared = [loop.axis for loop in state.loops() if loop.axis not in (*only_a, *only_b)]
    state.do(Reorder(tuple(v.name for v in (*shared, *only_a, *only_b))))
    n = state.join([v.name for v in only_b])
    order = sorted((loop.axis for loop in reduction.loops), key=lambda v: -(stride(b.offset, v) or tile.group - 1))
    state.do(ReorderReduction(reduction.name, tuple(v.name for v in order)))
    axes = [loop.axis for loop in _reduction(state).loops]
    outer = 0 if tile.unit else _split_sum(state, axes, short=computed is not None)
    apart = _sample_axis(state, only_a, tile)
    rows = state.merge([v.name for v in only_a if v.name not in apart])
    m = rows[-1] if rows else ""
    height = next((sym.upper(loop.extent) or tile.rows for loop in state.loops() if loop.axis.name == m), 1)
    even = _rows_are_equidistant(state, rows)
    depth = 1 if tile.unit is None else step_depth(tile.unit, [loop.extent for loop in _reduction(state).loops])
    if depth == 0:
        raise ScheduleError(f"no steps of {tile.unit} divide the terms that lie side by side")
    tiles = Tensorise(m, n, min(tile.rows, height), tile.columns, tile.lanes, tile.unit, depth)
    state.do(tiles)
    if outer and reduction.dtype.is_float and reduction.dtype.compute == reduction.dtype:
        state.do(SumInBlocks(outer))
    if tile.scaled and scaled_sums(_contract(state)) is not None:
        state.do(ScaleSums())
    if _stores_along_rows(state, tiles):
        state.do(StoreTileTransposed())
    _order_tiles(state, tiles, tile, even, apart)
    return state.finish()


def _sample_axis(state: Scheduler, axes: Sequence[Var], tile: Tile) -> list[str]:
    """The outermost of the ``axes`` of rows, in a list, where it stays outside all other loops; else an empty list. It
    does for a batch of many samples, each with rows for several tiles, where B stays in the second-level cache from one
    to the next. The product gains nothing, but neighbouring kernels can be computed sample by sample with it, so that
    values between them stay in the cache where they are too large for it as a whole."""
    extents = {loop.axis: loop.extent for loop in state.loops()}
    if len(axes) < 2 or not suffice(extents[axes[0]], state.target):
        return []
    rows = math.prod(typical(extents[axis]) for axis in axes[1:])
    a, b, _ = operands_of(_reduction(state))
    store = next(s for s in statements(state.nest.body) if isinstance(s, ln.Store))
    of_a, of_b, stored = (_touched_bytes(state, x.array, x.offset) for x in (a, b, store))
    costs = state.target.costs
    pays = leaves_cache(of_a + stored, state.target, values=2) and of_b <= state.target.l2 // costs.memory.l2_read
    return [axes[0].name] if pays and rows >= costs.tiles.of_sample * tile.rows else []


def _touched_bytes(state: Scheduler, name: str, offset: Int) -> int:
    """The approximate number of bytes of an array touched at ``offset``."""
    size = next(array.dtype.itemsize for array in state.nest.arrays if array.name == name)
    loops = [loop for loop in (*state.loops(), *_reduction(state).loops) if loop.axis in sym.variables(offset)]
    strides = [stride(offset, loop.axis) for loop in loops]
    elements = math.prod(typical(loop.extent) for loop in loops)
    if all(strides):  # windows overlap
        elements = min(elements, 1 + sum(abs(s) * (typical(x.extent) - 1) for s, x in zip(strides, loops, strict=True)))
    return size * elements


def _stores_along_rows(state: Scheduler, tiles: Tensorise) -> bool:
    """Whether a tile is only stored, and vectors along its rows suit memory better than along its columns."""
    found = {s.axis.name: s for s in statements(state.nest.body) if isinstance(s, ln.Loop | ln.Assign)}
    row, rows, columns = (found.get(name) for name in (tiles.m, tiles.row, tiles.column))
    if row is None or rows is None or not isinstance(columns, ln.Loop) or not only_stores(columns.body):
        return False
    stored = {s.array for s in columns.body if isinstance(s, ln.Store)}
    if any(x.array in stored for s in columns.body for x in reads(s)):
        return False  # what is updated where it lies is read and stored element by element
    near = frozenset({rows.axis, columns.axis})
    return vector_gain(row.axis, state, near) > vector_gain(columns.axis, state, near)


def _rows_are_equidistant(state: Scheduler, rows: Sequence[str]) -> bool:
    """Whether consecutive rows of A, numbered by nested loops, are equally far apart in memory."""
    a, *_ = operands_of(_reduction(state))
    loops = [loop for loop in state.loops() if loop.axis.name in rows]
    strides = [stride(a.offset, loop.axis) for loop in loops]
    return all(
        outer == inner * loop.extent for outer, inner, loop in zip(strides, strides[1:], loops[1:], strict=False)
    )


def _reduction(state: Scheduler) -> ln.Reduction:
    return next(s for s in statements(state.nest.body) if isinstance(s, ln.Reduction))


def _split_sum(state: Scheduler, axes: list[Var], short: bool) -> int:
    """How many of the outer ``axes`` of a sum count its blocks. The innermost axis is split where it alone is too long.
    With ``short``, the innermost outer axis is split where a block has room for several of its iterations."""
    *rest, last = axes
    length = sym.upper(last.hi + 1)
    if length is None:
        return 0
    if length > TERMS_PER_BLOCK:
        state.split(last.name, terms_of_block(last.hi + 1, state.target.costs.tiles.even))
        return len(axes)
    outer = len(rest)
    while outer and isinstance(extent := rest[outer - 1].hi + 1, int) and length * extent <= TERMS_PER_BLOCK:
        outer, length = outer - 1, length * extent
    if outer and short and isinstance(extent := rest[outer - 1].hi + 1, int):
        count = next(n for n in range(max(1, TERMS_PER_BLOCK // length), 0, -1) if extent % n == 0)
        if count > 1:
            state.split(rest[outer - 1].name, count)
    return outer


def terms_of_block(length: Int, even: int) -> int:
    """Terms of a block of a sum of ``length``: a divisor, if there is one of more than 1/``even`` of the most terms;
    else, for a number, of near-equal blocks."""
    if not isinstance(length, int):
        return TERMS_PER_BLOCK
    near_equal = -(-length // -(-length // TERMS_PER_BLOCK))
    return next((n for n in range(TERMS_PER_BLOCK, TERMS_PER_BLOCK // even, -1) if length % n == 0), near_equal)


def _order_tiles(state: Scheduler, tiles: Tensorise, tile: Tile, even: bool, apart: Sequence[str]) -> None:
    """Order the tiles of a contraction, and make the outer loops over them tasks; all loops, where those are too few.
    ``even`` says that rows of A are equally far apart. The loops ``apart`` stay outside all others."""
    extents = {loop.axis.name: loop.extent for loop in state.loops()}
    contract = _contract(state)
    # A loop that moves B is over panels or over a batch; any other is over rows of A.
    panels = tiles.panels
    moving = {axis.name for axis in sym.variables(contract.b_offset)}.union(apart) - {panels}
    batch = [name for name in extents if name in moving]
    rows = [name for name in extents if name != panels and name not in batch]
    counts = {"rows": sym.product(extents[name] for name in rows), "panels": extents.get(panels, 1)}
    sizes = [(size(counts["rows"]), size(counts["panels"])) for size in (typical, _half_size, least)]
    products = [_tiling(state, contract, tiles, *size) for size in dict.fromkeys(sizes)]
    costs, unpacks, blocked, inside = state.target.costs, False, 0, rows[-1:]
    samples = math.prod(typical(extents[name]) for name in batch)
    if rows and panels in extents:
        of_rows = [extents[name] for name in rows]
        orders = blockings(
            products, counts, state.target, state.enough, -(-costs.threads.least // samples),
            lambda count: math.prod(_iterations_of_block(of_rows, count)), samples,
        )  # fmt: skip
        unpacks = tile.unpacked and unpackable(contract, costs.stack.panel)
        if unpacks:
            of_panel = costs.tiles.of_panel
            orders = [c for c in orders if c.content.inner == "rows" and c.content.count >= of_panel]
            orders = orders or [Candidate("schedule", Blocking("rows", products[0].row_tiles))]
        blocking = state.ask("order", orders, tile)
        blocked = blocking.term_panels
        inside, passing = _apply_blocking(state, batch, rows, panels, blocking)
        several = blocked or sym.upper(counts["rows"]) != 1  # a single tile prefetches by itself
        if blocking.inner == "rows" and several and has_contiguous_panels(contract) and not unpacks:
            state.do(FetchAhead(passing, costs.prefetch.unit_steps))
    if even and not blocked and reads_runs(contract, costs.prefetch.line) and _streams_a(products[0], state.target):
        state.do(FetchRows(costs.prefetch.tiles, costs.prefetch.line))
    if (
        not blocked
        and not unpacks
        and _out_of_l2(products[0], samples, state.target)
        and computed_with_rows(state.nest)
    ):
        # With blocks of terms, or computed panels, the fetch would come too early.
        state.do(FetchResults(costs.prefetch.line))
    grid = state.loops()
    outer = math.prod(typical(loop.extent) for loop in grid[:-1])
    rectangular = all(not sym.variables(loop.extent) & {other.axis for other in grid} for loop in grid)
    whole = outer < state.enough and rectangular and not unpacks
    tasks = len(grid) if whole or blocked else len(grid) - (len(inside) if unpacks else 1)
    state.do(Parallelise(tasks))
    if unpacks:
        state.do(Unpack(costs.stack.panel))


def _contract(state: Scheduler) -> ln.Contract:
    return next(s for s in statements(state.nest.body) if isinstance(s, ln.Contract))


def _apply_blocking(
    state: Scheduler, batch: Sequence[str], rows: Sequence[str], panels: str, blocking: Blocking
) -> tuple[list[str], str]:
    """Order the loops over tiles by ``blocking``. Returns the loops inside a block, and the loop whose iterations read
    the panels of B one after the other."""
    if blocking.inner == "panels":
        outside, inside = _blocked(state, [panels], blocking.count)
        state.do(Reorder((*batch, *outside, *rows, *inside)))
        return inside, panels
    outside, inside = _blocked(state, rows, blocking.count, at_most=blocking.term_panels > 0)
    if not blocking.term_panels:
        state.do(Reorder((*batch, *outside, panels, *inside)))
        return inside, panels
    groups, together = _blocked(state, [panels], blocking.term_panels, at_most=True)
    inside = [*together, *inside]
    blocks, *_ = _contract(state).loops
    state.do(Reorder((*batch, *outside, *groups, *inside)))
    state.do(BlockTerms(tuple(inside), state.target.costs.stack.sums))
    return inside, groups[0] if groups else blocks.axis.name


def _streams_a(product: Tiling, target: Target) -> bool:
    """Whether tiles are the first to read their rows of A, these have left the second-level cache since another step
    wrote them, and there are so many tiles that most have rows to prefetch after them."""
    many = product.row_tiles > 2 * target.costs.prefetch.tiles
    return many and product.panels <= target.costs.tiles.few_panels and product.slab * product.row_tiles > target.l2


def _out_of_l2(product: Tiling, samples: int, target: Target) -> bool:
    """Whether the operands and places of results have left the second-level cache, at least in part, since they were
    written: a part of that cache is for what tiles read."""
    return samples * product.tile * product.row_tiles * product.panels > target.l2 // target.costs.memory.l2_read


def _blocked(state: Scheduler, names: Sequence[str], count: int, at_most: bool = False) -> tuple[list[str], list[str]]:
    """The loops ``names``, divided into those outside and those inside of blocks of ``count`` iterations in all. With
    ``at_most``, a loop that may be longer is divided even if it typically is not."""
    extents = {loop.axis.name: loop.extent for loop in state.loops()}
    outside: list[str] = []
    inside: list[str] = []
    for name, size in zip(names, _iterations_of_block([extents[name] for name in names], count), strict=True):
        longest = sym.upper(extents[name]) if at_most else typical(extents[name])
        if longest is not None and size >= longest:
            inside.append(name)
        elif size == 1:
            outside.append(name)
        else:
            split = state.split(name, size)
            outside.append(split.outer)
            inside.append(split.inner)
    return outside, inside


def _iterations_of_block(extents: Sequence[Int], count: int) -> list[int]:
    """How many iterations of each nested loop a block of at most ``count`` has: all of the inner ones, and some of one
    other. That number divides the extent, except of the innermost loop: a shorter last block could not be a task."""
    sizes: list[int] = []
    for extent in reversed(extents):
        size = min(max(1, typical(extent)), count)
        if sizes and size < typical(extent):
            size = next(n for n in range(size, 0, -1) if sym.mod(extent, n) == 0)
        count = count // size if size >= typical(extent) else 1
        sizes.insert(0, size)
    return sizes


def _half_size(size: Int) -> int:
    """A known size; half of the typical value of another, as many runs may be so small."""
    return size if isinstance(size, int) else max(least(size), typical(size) // 2)


def _tiling(state: Scheduler, contract: ln.Contract, tiles: Tensorise, row_tiles: int, panels: int) -> Tiling:
    depth = math.prod(typical(loop.extent) for loop in contract.loops)
    read = math.prod(typical(loop.extent) for loop in loops_of_b(contract))
    terms = {loop.axis for loop in contract.loops}
    own = sym.variables(contract.a_offset) - (sym.variables(contract.b_offset) - terms) - set(state.nest.dims)
    span = 1 + sum(abs(stride(contract.a_offset, axis)) * typical(axis.hi) for axis in own)
    spanned = row_tiles
    if not all(isinstance(axis.hi, int) for axis in own):  # the rows that the span covers
        spanned = -(-math.prod(typical(axis.hi + 1) for axis in own - terms) // contract.max_rows)
    apart = contract.loops[: contract.outer] if contract.prologue is None and not state.nest.checked else ()
    blocks = sym.product(loop.extent for loop in apart)
    return Tiling(
        row_tiles,
        panels,
        slab=min(span, contract.max_rows * spanned * depth) * contract.a_type.itemsize // spanned,
        panel=contract.columns * read * contract.b_type.itemsize,
        tile=_result_bytes(state, contract, tiles),
        sums=contract.max_rows * contract.columns * contract.dtype.itemsize,
        blocks=blocks if isinstance(blocks, int) else 1,
        work=kernel.multiply_cycles(contract, state.target.costs),
    )


def _result_bytes(state: Scheduler, contract: ln.Contract, tiles: Tensorise) -> int:
    """Bytes that storing a tile reads and writes: of each array, by what offsets vary with, a tile, row, column or
    element."""
    columns = {tiles.column, tiles.panels}
    counts: dict[str, int] = {}
    for store in statements(state.nest.body):
        if isinstance(store, ln.Store):
            read = [(access.array, access.offset) for access in accesses(store.value)]
            for array, offset in [(store.array, store.offset), *read]:
                axes = {v.name for v in sym.variables(offset)}
                count = (contract.columns if axes & columns else 1) * (contract.max_rows if axes - columns else 1)
                counts[array] = max(counts.get(array, 0), count)
    return sum(counts.get(x.name, 0) * x.dtype.itemsize for x in state.nest.arrays)
