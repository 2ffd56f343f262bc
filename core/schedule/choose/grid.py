"""The schedule of a nest for blocks of threads, from its structure and the target's description.

The threads of a block divide the loop along which memory is contiguous, as the lanes of a vector do on a CPU. Where
there are several ways, they are listed with their estimates, and the target's decisions choose; what is not legal is
no candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from luminal.core import symbolic as sym
from luminal.core.decisions import FORMULA, Candidate
from luminal.core.errors import ScheduleError
from luminal.core.grid import COPIERS, PANEL, ROW_REGISTERS, Fragment, Grid
from luminal.core.schedule.choose.block_ways import BlockPass, ChainTile, LineSum, ProductBlock
from luminal.core.schedule.choose.scheduler import Scheduler, by_stride, description, vector_gain
from luminal.core.schedule.contraction.contraction import Contraction, Tile
from luminal.core.schedule.cost import blocks
from luminal.core.schedule.fusion.cluster import Chain, Cluster
from luminal.core.schedule.grid.divide import DivideAmongThreads, SynchroniseThreads
from luminal.core.schedule.grid.handed import Persist, SpecialiseWarps, rows_at_once
from luminal.core.schedule.grid.held import StreamHeld
from luminal.core.schedule.grid.hold import HoldRows
from luminal.core.schedule.grid.lines import SumLines
from luminal.core.schedule.grid.sort_rows import SortTogether
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.grid.stream import StreamStaged
from luminal.core.schedule.grid.thread_tiles import Rectangle, Square, Warps
from luminal.core.schedule.lower.clusters import Lowered
from luminal.core.schedule.nest import carried
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import element_and_value, product_of, stored_type
from luminal.core.schedule.nest.walk import accesses, perfect_loops, reads, statements
from luminal.core.schedule.transform.carry import OnePass
from luminal.core.schedule.transform.loops import Parallelise, Reorder, ReorderReduction, Scheduled, Vectorise
from luminal.core.sizes import largest, typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target
from luminal.core.types import DType, f32

C = TypeVar("C")


def schedule_cluster(cluster: Cluster, lowered: Lowered, target: Target) -> Scheduled:
    """The schedule of the serial nest of ``cluster``. Raises ScheduleError where it is a chain that cannot be
    one pass."""
    if cluster.chain is not None:
        assert target.grid is not None
        return _schedule_chain(lowered.nest, cluster.chain, target, target.grid)
    return schedule_nest(lowered, cluster.contraction, target)


def schedule_nest(lowered: Lowered, found: Contraction | None, target: Target) -> Scheduled:
    """The schedule of a serial nest; ``found`` is its contraction, if it has one. A nest with an empty loop stays
    serial."""
    nest = lowered.nest
    assert target.grid is not None
    if any(loop.extent == 0 for loop in perfect_loops(nest.body)[0]):
        return Scheduled(nest, serial=nest)
    if any(isinstance(s, ln.Sort) for s in statements(nest.body)):
        return _schedule_sort(nest, target, target.grid)
    if found is None:
        ordered = any(loop.kind == "ordered" for loop in perfect_loops(nest.body)[0])
        return (_schedule_ordered if ordered else _schedule_pass)(nest, target, target.grid)
    try:
        return _schedule_contraction(lowered, found, target, target.grid)
    except ScheduleError as refusal:
        return replace(_schedule_pass(nest, target, target.grid), refusal=str(refusal))


def _chosen(
    nest: ln.LoopNest, target: Target, topic: str, candidates: Sequence[Candidate[C]],
    scheduled: Callable[[C], Scheduled], *more: object,
) -> Scheduled:  # fmt: skip
    """The schedule by that of ``candidates`` which the target's decisions choose; those that are not legal, or come to
    the same as an earlier one, are left out. ``more`` are facts that count, besides the nest. Raises ScheduleError
    where none is legal."""
    made: dict[C, Scheduled] = {}
    refusals: list[ScheduleError] = []

    def different() -> Iterator[Candidate[C]]:
        nests: set[ln.LoopNest] = set()
        for candidate in sorted(candidates, key=lambda candidate: candidate.estimate):
            try:
                found = scheduled(candidate.content)
            except ScheduleError as refusal:
                refusals.append(refusal)
                continue
            if found.nest not in nests:
                nests.add(found.nest)
                made[candidate.content] = found
                yield candidate

    # By formula the first is taken: the others are not made.
    found = list(islice(different(), 1 if target.decisions is FORMULA else None))
    if not found:
        raise refusals[-1]
    content, asked = target.decisions.ask(topic, lambda: description(nest, *more), found)
    chosen = made[content]
    return chosen if asked is None else replace(chosen, asked=(*chosen.asked, asked))


def _schedule_contraction(lowered: Lowered, found: Contraction, target: Target, grid: Grid) -> Scheduled:
    """A product in tiles, each by a block."""
    nest, tile = lowered.nest, found.tile
    assert tile is not None
    if tile.in_lines:
        return _schedule_lines(lowered, found, tile, target, grid)
    reduction = next(s for s in statements(nest.body) if isinstance(s, ln.Reduction))
    left, right = element_and_value(reduction)
    a = stored_type(nest, left.array)
    b = stored_type(nest, right.leaf.array) if isinstance(right.leaf, ln.Access) else right.dtype
    operands = grid.multiplied(a, b) if reduction.dtype == f32 else None
    a, b = (a, b) if operands is None else (operands, operands)
    fragment = target.fragment(a, b) if reduction.dtype == f32 else None
    if found.scale is not None:
        fragment, operands = grid.of_blocks(int(str(reduction.loops[-1].extent))), a
    most, size = grid.costs.depth, max(a.itemsize, b.itemsize)
    sizes = tuple(typical(found.count(axes)) for axes in (found.batch, found.m, found.n))
    wanted = tile.rows, tile.columns, tile.lanes
    terms = math.prod(typical(loop.extent) for loop in reduction.loops)
    shape = next(t for t in grid.costs.tiles if (t.rows, t.columns, t.side) == wanted)
    across = [0]
    if fragment is not None:
        first = grid.costs.warps_of(tile.rows) // 2
        across = [first, *(n for n in (first * 2, first // 2) if n > 1)]
    group = grid.group(a, b, tile.rows, tile.columns) if reduction.dtype == f32 else None

    def threads(way: ProductBlock) -> int:
        if way.grouped:
            assert group is not None
            return tile.rows // group.rows * group.warp
        return shape.threads if fragment is None else 2 * way.across * fragment.warp

    def cycles(way: ProductBlock) -> float:
        taken, of_sum = way.terms * size, reduction.dtype.itemsize
        block = blocks.product_block(grid, shape, threads(way), of_sum, taken, way.ahead, way.wide)
        waiting = 0.0 if way.ahead else blocks.waiting_cycles(grid, shape, block, *sizes)
        waiting += blocks.storing_cycles(grid, shape, terms, way.wide, *sizes)
        served = shape if way.grouped else blocks.of_fragments(shape, fragment, way.across)
        computing = blocks.block_cycles(grid, served, block, *sizes)
        if way.handed:
            return blocks.handed_cycles(grid, shape, threads(way), *sizes) + waiting
        return (computing * grid.costs.grouped if way.grouped else computing) + waiting

    ways = [
        ProductBlock(staged // size, ahead, warps)
        for warps in across
        for ahead in sorted({grid.ahead, False}, reverse=True)
        for staged in (most, most // 2, most * 2)
    ]
    if group is not None:
        ways += [ProductBlock(PANEL // size, ahead, 0, True) for ahead in grid.costs.grouped_ahead]
        ways += [ProductBlock(PANEL // size, ahead, 0, True, True) for ahead in grid.costs.handed_ahead]
    if fragment is not None:
        ways = [replace(way, wide=wide) for way in ways for wide in (True, False)]

    def scheduled(way: ProductBlock) -> Scheduled:
        if way.grouped:
            assert group is not None
            parts: Square | Warps = Warps(group.rows, tile.columns, group)
        else:
            parts = Square(tile.lanes) if fragment is None else _warps(tile, fragment, way.across)
        return _schedule_tiles(lowered, found, tile, parts, way, operands, target, grid)

    candidates = [Candidate("schedule", way, cycles(way)) for way in ways]
    return _chosen(nest, target, "block", candidates, scheduled, tile)


def _schedule_lines(lowered: Lowered, found: Contraction, tile: Tile, target: Target, grid: Grid) -> Scheduled:
    """A product of few rows, column by column: a block reads a column's terms as they lie, each thread as many as it
    can at once. Rows are innermost, so that they find the column in a cache."""
    nest = lowered.nest
    reduction = next(s for s in statements(nest.body) if isinstance(s, ln.Reduction))
    terms = math.prod(typical(loop.extent) for loop in reduction.loops)
    least = min((stored_type(nest, x.array).itemsize for x in reads(reduction)), default=1)
    of_m = lowered.loops(found.m)

    def scheduled(way: LineSum) -> Scheduled:
        state = Scheduler(nest, target, tile.asked)
        axes = [loop.axis for loop in state.loops()]
        state.do(Reorder(tuple(v.name for v in (*(v for v in axes if v not in of_m), *(v for v in axes if v in of_m)))))
        state.do(SumLines(reduction.name, way.width, way.digits, way.threads, tile.scaled, found.apart))
        state.do(Parallelise(len(state.loops())))
        state.do(SynchroniseThreads(way.threads, target.block))
        return state.finish()

    def threads(taken: int, turns: int) -> int:
        """As many as take ``turns`` each."""
        count = grid.warp
        while count < grid.threads and count * 2 * turns * taken <= terms:
            count *= 2
        return count

    most = max(1, grid.costs.wide // least)
    widths = [most >> shift for shift in range(most.bit_length())]
    ways = [
        LineSum(width, digits, threads(width * digits, turns))
        for width in widths
        for digits in grid.costs.digits
        if terms % (width * digits) == 0
        for turns in (grid.costs.turns, grid.costs.turns // 2, grid.costs.turns * 2)
    ]
    candidates = [Candidate("schedule", way, number) for number, way in enumerate(ways)]
    return _chosen(nest, target, "line", candidates, scheduled, tile, *(["apart"] if found.apart else []))


def _schedule_tiles(
    lowered: Lowered, found: Contraction, tile: Tile, parts: Square | Warps, way: ProductBlock,
    operands: DType | None, target: Target, grid: Grid,
) -> Scheduled:  # fmt: skip
    state = Scheduler(lowered.nest, target, tile.asked)
    of_m, of_n = lowered.loops(found.m), lowered.loops(found.n)
    loops = [loop.axis for loop in state.loops()]
    only_a, only_b = ([v.name for v in loops if v in axes] for axes in (of_m, of_n))
    others = [v.name for v in loops if v not in (*of_m, *of_n)]
    state.do(Reorder((*others, *only_a, *only_b)))
    m, n = state.join(only_a), state.join(only_b)
    reduction = next(s for s in statements(state.nest.body) if isinstance(s, ln.Reduction))
    order = _side_by_side_last(reduction) if found.scale is None else _in_order(reduction)
    if order != _in_order(reduction):
        state.do(ReorderReduction(reduction.name, order))
    stage = Stage(
        m, n, tile.rows, tile.columns, way.terms, parts, way.ahead, grid.costs.steps, way.handed, operands, way.wide
    )
    state.do(stage)
    if way.handed:
        tiles = next((loop.extent for loop in reversed(state.loops())), 1)
        count = sym.product(loop.extent for loop in state.loops())
        together = min(grid.processors, count) if isinstance(count, int) else grid.processors
        state.do(Persist(together, rows_at_once(together, tile.rows, tile.columns, tiles)))
        state.do(Parallelise(1))
        state.do(SpecialiseWarps(stage.threads, COPIERS, target.requested_block))
        return state.finish()
    state.do(Parallelise(len(state.loops())))
    state.do(SynchroniseThreads(stage.threads, target.requested_block if way.grouped else target.block))
    return state.finish()


def _in_order(reduction: ln.Reduction) -> tuple[str, ...]:
    return tuple(loop.axis.name for loop in reduction.loops)


def _side_by_side_last(reduction: ln.Reduction) -> tuple[str, ...]:
    """The order of the summed axes in which terms of a step lie side by side in A, as channels do beneath a window,
    where they do along one axis, and along none in B: several are then copied at once."""
    left, right = element_and_value(reduction)

    def along(access: ln.Access) -> list[str]:
        strides = ((loop.axis.name, sym.coefficient(access.offset, loop.axis)) for loop in reduction.loops)
        return [name for name, found in strides if found is not None and found[0] == 1]

    last = along(left) if not any(map(along, accesses(right))) else []
    return (*(loop.axis.name for loop in reduction.loops if loop.axis.name not in last), *last)


def _schedule_chain(nest: ln.LoopNest, chain: Chain, target: Target, grid: Grid) -> Scheduled:
    """A chain in one pass over blocks of columns, in the tiles that fit and that all processors together finish
    first."""
    outer, (*_, columns) = perfect_loops(nest.body)
    assert isinstance(columns, ln.Loop)
    if not outer:
        raise ScheduleError("a chain of a single row has no tiles")
    *batch, m = outer

    def waves(tile: tuple[int, int], size: Callable[[Int], int]) -> tuple[int, int]:
        """How often all processors compute a tile, in one pass and where each tile is a task."""
        rows, block = tile
        tasks = math.prod(size(loop.extent) for loop in batch) * -(-size(m.extent) // rows)
        steps = -(-size(chain.along.hi + 1) // block)
        return -(-tasks // grid.processors) * steps, -(-tasks * steps // grid.processors)

    cycles = {tile: blocks.chain_cycles(grid, tile, waves(tile, typical)[0]) for tile in grid.costs.chain_tiles}
    together, apart = waves(min(cycles, key=cycles.__getitem__), largest)
    if together > grid.costs.idle * apart:
        raise ScheduleError(f"the tasks of a chain leave most of {grid.processors} processors idle")
    candidates = [
        Candidate("schedule", ChainTile(*tile, ahead), estimate)
        for tile, estimate in cycles.items()
        for ahead in sorted({grid.ahead, False}, reverse=True)
    ]
    of_warps = [(tile, False) for tile in grid.costs.held_tiles]
    of_groups = [(tile, True) for tile in grid.costs.grouped_tiles if grid.groups]
    candidates += [
        Candidate("schedule", ChainTile(*tile, grid.ahead, held=True, grouped=grouped), estimate)
        for tile, grouped in (*of_groups, *of_warps)
        if (estimate := blocks.held_cycles(grid, tile, waves(tile, typical)[0], grouped))
    ]
    return _chosen(
        nest, target, "chain", candidates,
        lambda tile: _schedule_one_pass(nest, chain, columns, tile, m.axis.name, target),
        chain.tile,
    )  # fmt: skip


def _schedule_one_pass(
    nest: ln.LoopNest, chain: Chain, columns: ln.Loop, tile: ChainTile, m: str, target: Target
) -> Scheduled:
    """A chain in tiles of so many rows and columns. Raises ScheduleError where they are too large."""
    grid = target.grid
    assert grid is not None
    rows, block = tile.rows, tile.columns
    state = Scheduler(nest, target)
    product = next(s for s in columns.body if isinstance(s, ln.Reduction))
    a, b = product.dtype, _right_type(nest, columns, product)
    if chain.tile is not None:
        product = next(s for s in statements(nest.body) if isinstance(s, ln.Reduction))
        a, b = (stored_type(nest, x.array) for x in product_of(product))
    fragment = target.fragment(a, b) if product.dtype == f32 else None
    side = grid.costs.side
    across = grid.costs.warps_of(rows) // 2
    first = Square(side) if fragment is None else _warps(Tile(rows, block // side, side), fragment, across)
    threads = first.threads(rows, block)
    operand = _rounded_operand(nest, columns, target)
    if tile.held:
        held_rows = _held(chain, columns, tile, m, fragment, operand, target)
        return _in_one_pass(state, nest, chain, held_rows, operand, target)
    last, width = _divided_sums(nest, columns, rows, threads, operand, target, grid)
    held = rows * width // threads * product.dtype.itemsize // target.register_bytes
    if held > target.registers // grid.costs.sums_share:
        raise ScheduleError(f"sums of {rows} rows take {held} of the {target.registers} registers of a thread")
    depth = min(grid.costs.depth // max(a.itemsize, b.itemsize), block)
    stream = StreamStaged(
        chain.along.name, m, rows, block, width, depth, first, last, tile.ahead, grid.costs.steps, operand
    )
    return _in_one_pass(state, nest, chain, stream, operand, target)


def _held(
    chain: Chain, columns: ln.Loop, tile: ChainTile, m: str, fragment: Fragment | None, operand: DType | None,
    target: Target,
) -> StreamHeld:  # fmt: skip
    """The pass in which each warp has whole rows of a tile in registers. Raises ScheduleError where no
    ``fragment`` multiplies or no ``operand`` is rounded."""
    assert target.grid is not None
    rows, extent = tile.rows // target.grid.costs.holders, typical(columns.extent)
    last = None if operand is None else target.fragment(operand, operand)
    if fragment is not None and last is not None and tile.grouped:
        fragment, last = (
            target.grid.group(f.dtype, f.dtype, tile.rows, wide)
            for f, wide in ((fragment, tile.columns), (last, extent))
        )
        rows = 0 if fragment is None else fragment.rows
    if fragment is None or operand is None or last is None:
        raise ScheduleError("a chain whose products are not both of fragments is not held in registers")
    wide = -(-extent // last.columns) * last.columns
    parts = Warps(rows, tile.columns, fragment), Warps(rows, wide, last)
    return StreamHeld(chain.along.name, m, tile.rows, tile.columns, wide, *parts, operand)


def _in_one_pass(
    state: Scheduler, nest: ln.LoopNest, chain: Chain, stream: StreamStaged | StreamHeld, operand: DType | None,
    target: Target,
) -> Scheduled:  # fmt: skip
    state.derived = OnePass(nest, chain.along.name, operand).derivation
    state.do(stream)
    state.do(Parallelise(len(state.loops())))
    state.do(SynchroniseThreads(stream.threads, target.requested_block))
    return state.finish()


def _rounded_operand(nest: ln.LoopNest, columns: ln.Loop, target: Target) -> DType | None:
    """The type of 16 bits to which the last contraction of a chain rounds its left operand, if fragments take it."""
    last = next(s for s in columns.body if isinstance(s, ln.Reduction))
    right = _right_type(nest, columns, last)
    if right == last.dtype or target.fragment(right, right) is None:
        return None
    return right if carried.factors(last.value, right) != carried.factors(last.value) else None


def _divided_sums(
    nest: ln.LoopNest, columns: ln.Loop, rows: int, threads: int, operand: DType | None, target: Target, grid: Grid
) -> tuple[Rectangle | Warps, int]:
    """How ``threads`` divide the running sums of a chain, ``rows`` rows; and how many columns of sums there are. The
    left operand is rounded to the type ``operand``, where that is given."""
    extent, side = typical(columns.extent), grid.costs.side
    last = next(s for s in columns.body if isinstance(s, ln.Reduction))
    fragment = target.fragment(operand or last.dtype, _right_type(nest, columns, last))
    if fragment is not None:
        parts = _warps(Tile(rows, 1, 1), fragment, grid.costs.warps_of(rows) // 2)
        across = threads // fragment.warp * parts.rows // rows
        wide = -(-extent // (across * fragment.columns)) * fragment.columns
        return replace(parts, columns=wide), wide * across
    across, together = threads * side // rows, grid.costs.wide // f32.itemsize  # as many are read at once
    wide = -(-extent // across)
    wide = wide if wide <= 2 else -(-wide // together) * together
    return Rectangle(side, wide), wide * across


def _right_type(nest: ln.LoopNest, columns: ln.Loop, last: ln.Reduction) -> DType:
    """The type of what the last sum of a chain multiplies its rows by."""
    right = (stored_type(nest, x.array) for x in reads(last) if columns.axis in sym.variables(x.offset))
    return next(right, last.dtype)


def _warps(tile: Tile, fragment: Fragment, across: int) -> Warps:
    """Two rows of so many warps: the elements of a lane must fit its registers."""
    return Warps(tile.rows // 2, tile.columns // across, fragment)


def _schedule_pass(nest: ln.LoopNest, target: Target, grid: Grid) -> Scheduled:
    """Elementwise kernels, copies and rows: one pass over memory. The wider the accesses, the fewer transactions."""
    rows = any(isinstance(s, ln.Alloc) for s in statements(nest.body))
    ways = [
        BlockPass(wide, threads, held)
        for held in ((True, False) if rows else (False,))
        for wide in (grid.costs.wide, grid.costs.wide // 2, grid.costs.wide // 4)
        for threads in (grid.threads, grid.threads // 2, grid.threads // 4)
    ]
    candidates = [Candidate("schedule", way) for way in ways]
    return _chosen(nest, target, "pass", candidates, lambda way: _schedule_by(way, nest, target, grid))


def _schedule_by(way: BlockPass, nest: ln.LoopNest, target: Target, grid: Grid) -> Scheduled:
    """One pass over memory, as ``way`` has it."""
    state = Scheduler(nest, target)
    state.refine()
    state.merge([axis.name for axis in state.inner_axes()])
    outer = [loop.axis for loop in state.loops()]
    along = _row_axis(state, grid.costs.short)
    if along is not None:
        length = typical(along.hi + 1)
        of_warp = 1 << max(0, (length // grid.warp).bit_length() - 1)  # work for a whole warp
        wide = min(_vector_width(along, state, way.wide, way.held), of_warp)
        threads = _threads_of_row(length, wide, grid, way.threads)
        if outer:
            state.do(Reorder(tuple(v.name for v in by_stride(outer, state))))
            state.merge([loop.axis.name for loop in state.loops()])
        groups = _vector_groups(along.name, wide, state)
        state.do(DivideAmongThreads(groups, threads))
        if way.held:
            state.do(HoldRows(groups, threads, ROW_REGISTERS))
    elif not outer or any(isinstance(s, ln.Alloc) for s in statements(nest.body)):
        threads = 1
    else:
        threads = way.threads
        state.do(Reorder(tuple(v.name for v in by_stride(outer, state))))
        _divide_flat_loop(state, state.join([loop.axis.name for loop in state.loops()]), threads, way.wide)
    tasks = [loop for loop in state.loops() if loop.kind == "serial"]
    if tasks:
        state.do(Parallelise(len(tasks)))
    state.do(SynchroniseThreads(threads, target.block))
    return state.finish()


def _schedule_ordered(nest: ln.LoopNest, target: Target, grid: Grid) -> Scheduled:
    """Ordered loops, run by each thread for elements of its own."""
    state = Scheduler(nest, target)
    state.refine()
    ordered = [loop.axis.name for loop in state.loops() if loop.kind == "ordered"]
    others = by_stride([loop.axis for loop in state.loops() if loop.axis.name not in ordered], state)
    threads = grid.threads if others else 1
    if others:
        state.do(Reorder((*(v.name for v in others), *ordered)))
        name = state.join([v.name for v in others])
        state.do(DivideAmongThreads(state.split(name, threads).inner, threads))
    state.do(Parallelise(sum(loop.kind == "serial" for loop in state.loops())))
    state.do(SynchroniseThreads(threads, target.block))
    return state.finish()


def _schedule_sort(nest: ln.LoopNest, target: Target, grid: Grid) -> Scheduled:
    """Sorted rows: each by a block, in a part of its shared memory, so that several blocks run at once."""
    state = Scheduler(nest, target)
    sort = perfect_loops(nest.body)[1][-1]
    assert isinstance(sort, ln.Sort)
    room = grid.shared // grid.costs.sorting // stored_type(nest, sort.array).itemsize
    inner = [loop for s in perfect_loops(nest.body)[1] if isinstance(s, ln.Loop) for loop in perfect_loops((s,))[0]]
    length = max(typical(extent) for extent in (sort.extent, *(loop.extent for loop in inner)))
    threads = _threads_of_row(min(length, room), 1, grid, grid.threads)
    state.do(SortTogether(threads, room))
    tasks = [loop for loop in state.loops() if loop.kind == "serial"]
    if tasks:
        state.do(Parallelise(len(tasks)))
    state.do(SynchroniseThreads(threads, target.block))
    return state.finish()


def _row_axis(state: Scheduler, short: int) -> Var | None:
    """The contiguous axis of reductions that a block divides. None where each thread reduces alone, as in ``short``
    rows."""
    inner = statements(perfect_loops(state.nest.body)[1])
    reductions = [s for s in inner if isinstance(s, ln.Reduction)]
    last = {s.loops[-1].axis for s in reductions}
    earlier = {loop.axis for s in reductions for loop in s.loops[:-1]}
    found = [v for v in state.inner_axes() if v in last - earlier and vector_gain(v, state) > 0]
    buffered = any(isinstance(s, ln.Alloc) for s in inner)
    alone = not buffered and bool(state.loops())
    found = [v for v in found if not (alone and typical(v.hi + 1) < short)]
    return max(found, key=lambda v: vector_gain(v, state), default=None)


def _threads_of_row(length: int, wide: int, grid: Grid, most: int) -> int:
    """Threads for a row of ``length`` elements, each taking ``wide`` at once: a power of two of warps, up to
    ``most``."""
    threads = grid.warp
    while threads < most and threads * max(grid.costs.each, wide) < length:
        threads *= 2
    return threads


def _divide_flat_loop(state: Scheduler, name: str, threads: int, most: int) -> None:
    """Divide one loop into blocks, and a block among threads, by groups of neighbours of at most ``most`` bytes where
    all accesses allow it."""
    axis = next(loop.axis for loop in state.loops() if loop.axis.name == name)
    wide = _vector_width(axis, state, most) if typical(axis.hi + 1) > threads else 1  # few: a thread for each
    block = state.split(name, threads * wide)
    state.do(DivideAmongThreads(_vector_groups(block.inner, wide, state), threads))


def _vector_groups(name: str, wide: int, state: Scheduler) -> str:
    """The name of a loop over groups of ``wide`` neighbours, each group a vector."""
    if wide == 1:
        return name
    groups = state.split(name, wide)
    state.do(Vectorise(groups.inner, wide))
    return groups.outer


def _vector_width(axis: Var, state: Scheduler, most: int, held: bool = False) -> int:
    """How many elements of ``axis``, at most ``most`` bytes, form groups that are contiguous and aligned in all arrays
    that move with it. Local arrays do not count that are ``held`` in registers."""
    body = list(statements(state.nest.body))
    around = [s for s in body if isinstance(s, ln.Loop) and s.axis == axis]
    inside = [inner for loop in around for inner in statements(loop.body)]
    if any(isinstance(s, ln.Loop | ln.Reduction | ln.Alloc) for s in inside):
        return 1
    if any(isinstance(s, ln.Let | ln.Reductions) for s in body) or not all(a.aligned for a in state.nest.arrays):
        return 1
    if any(access.valid for statement in body for access in reads(statement)):
        return 1
    local = [s.dtype for s in body if isinstance(s, ln.Alloc) and not held]
    types = [array.dtype for array in state.nest.arrays] + local
    width = most // max(dtype.itemsize for dtype in types)
    while width > 1 and not _is_aligned(axis, width, state):
        width //= 2
    return max(1, width)


def _is_aligned(axis: Var, width: int, state: Scheduler) -> bool:
    if sym.mod(axis.hi + 1, width) != 0:
        return False
    for offset, *_ in state.offsets():
        linear = sym.coefficient(offset, axis)
        if linear is None or linear[0] not in (0, 1) or (linear[0] == 1 and sym.mod(linear[1], width) != 0):
            return False
    return True
