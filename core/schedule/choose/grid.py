"""The default schedule of a nest where tasks are blocks of threads, from its structure and the target's description.

A block is to a row what a vector is on a CPU, only wider: its threads divide the loop along which memory runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import Fragment, Grid
from luminal.core.schedule.choose.scheduler import Scheduler, by_stride, gain
from luminal.core.schedule.contraction.contraction import Contraction, Tile
from luminal.core.schedule.fusion.cluster import Chain, Cluster
from luminal.core.schedule.grid.divide import Divide, Share
from luminal.core.schedule.grid.sort_rows import SortTogether
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.grid.stream import StreamStaged
from luminal.core.schedule.grid.thread_tiles import Rectangle, Square, Warps
from luminal.core.schedule.lower.clusters import Lowered
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import product_of, stored_type
from luminal.core.schedule.nest.walk import accesses, prefix, statements
from luminal.core.schedule.transform.loops import Parallelise, Reorder, Scheduled, Vectorise
from luminal.core.sizes import largest, typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target
from luminal.core.types import f32

SHORT = 16  # elements of a row that one thread reduces alone
EACH = 4  # elements of a long row for each thread
WIDE = 16  # bytes that a thread reads or writes at once
DEPTH = 64  # bytes of each row of A, or column of B, that are staged at once
CHAINED = ((64, 64), (64, 32), (32, 64), (32, 32))  # rows and columns of a chain that are computed at once
STAGED = 16  # products of a term in the time that one of its factors is staged; an estimate, not measured
SIDE = 4  # rows and columns of them that a thread has
IDLE = 4  # times longer that one pass may take because processors are idle


def choose(cluster: Cluster, lowered: Lowered, target: Target) -> Scheduled:
    """The default schedule of the serial nest of ``cluster``, and the nest under it.

    Raises ScheduleError where the cluster is a chain that cannot be one pass.
    """
    if cluster.chain is not None:
        assert target.grid is not None
        return _chain(lowered.nest, cluster.chain, target, target.grid)
    return schedule(lowered, cluster.contraction, target)


def schedule(lowered: Lowered, found: Contraction | None, target: Target) -> Scheduled:
    """The default schedule of a serial nest and the nest under it; ``found`` is the contraction that it is, if it is
    one. A nest over nothing stays as it is."""
    nest = lowered.nest
    assert target.grid is not None
    if any(loop.extent == 0 for loop in prefix(nest.body)[0]):
        return Scheduled(nest, serial=nest)
    if any(isinstance(s, ln.Sort) for s in statements(nest.body)):
        return _rows(nest, target, target.grid)
    if found is None:
        ordered = any(loop.kind == "ordered" for loop in prefix(nest.body)[0])
        return (_in_order if ordered else _pass)(nest, target, target.grid)
    try:
        return _contraction(lowered, found, target, target.grid)
    except ScheduleError as refusal:
        return replace(_pass(nest, target, target.grid), refusal=str(refusal))


def _contraction(lowered: Lowered, found: Contraction, target: Target, grid: Grid) -> Scheduled:
    nest, tile = lowered.nest, found.tile
    assert tile is not None
    state = Scheduler(nest, target)
    reduction = next(s for s in statements(nest.body) if isinstance(s, ln.Reduction))
    factors = product_of(reduction)
    of_m, of_n = lowered.loops(found.m), lowered.loops(found.n)
    loops = [loop.axis for loop in state.loops()]
    only_a, only_b = ([v.name for v in loops if v in axes] for axes in (of_m, of_n))
    others = [v.name for v in loops if v not in (*of_m, *of_n)]
    state.do(Reorder((*others, *only_a, *only_b)))
    m, n = state.join(only_a), state.join(only_b)
    a, b = (stored_type(nest, x.array) for x in factors)
    fragment = target.fragment(a, b) if reduction.dtype == f32 else None
    parts = Square(tile.lanes) if fragment is None else _warps(tile, fragment)
    stage = Stage(m, n, tile.rows, tile.columns, DEPTH // max(a.itemsize, b.itemsize), parts, grid.ahead)
    state.do(stage)
    state.do(Parallelise(len(state.loops())))
    state.do(Share(stage.threads, target.block))
    return state.finish()


def _chain(nest: ln.LoopNest, chain: Chain, target: Target, grid: Grid) -> Scheduled:
    """One pass over blocks of columns, in the tiles whose tasks, all processors working on them at once, are done
    first; of those that fit."""
    outer, (*_, columns) = prefix(nest.body)
    assert isinstance(columns, ln.Loop)
    if not outer:
        raise ScheduleError("a chain of a single row has no tiles")
    *batch, m = outer

    def waves(tile: tuple[int, int], size: Callable[[Int], int]) -> tuple[int, int]:
        """How often all processors compute a tile, in one pass and where each tile is a task."""
        rows, block = tile
        tasks = math.prod(size(loop.extent) for loop in batch) * -(-size(m.extent) // rows)
        blocks = -(-size(chain.along.hi + 1) // block)
        return -(-tasks // grid.processors) * blocks, -(-tasks * blocks // grid.processors)

    tiles = sorted(CHAINED, key=lambda tile: waves(tile, typical)[0] * (math.prod(tile) + STAGED * sum(tile)))
    together, apart = waves(tiles[0], largest)
    if together > IDLE * apart:
        raise ScheduleError(f"the tasks of a chain leave most of {grid.processors} processors idle")
    refusals: list[ScheduleError] = []
    for tile in tiles:
        for ahead in sorted({grid.ahead, False}, reverse=True):
            try:
                return _one_pass(nest, chain, columns, tile, m.axis.name, target, ahead)
            except ScheduleError as refusal:
                refusals.append(refusal)
    raise refusals[-1]


def _one_pass(
    nest: ln.LoopNest, chain: Chain, columns: ln.Loop, tile: tuple[int, int], m: str, target: Target, ahead: bool
) -> Scheduled:
    """One pass in tiles of so many rows and columns. Raises ScheduleError where those are too large."""
    grid = target.grid
    assert grid is not None
    rows, block = tile
    state = Scheduler(nest, target)
    product = next(s for s in statements(nest.body) if isinstance(s, ln.Reduction))
    a, b = (stored_type(nest, x.array) for x in product_of(product))
    fragment = target.fragment(a, b) if product.dtype == f32 else None
    first = Square(SIDE) if fragment is None else _warps(Tile(rows, block // SIDE, SIDE), fragment)
    threads = first.threads(rows, block)
    last, width = _sums(nest, columns, rows, threads, target)
    held = rows * width // threads * product.dtype.itemsize // target.register_bytes
    if held > target.registers // 2:
        raise ScheduleError(f"sums of {rows} rows take {held} of the {target.registers} registers of a thread")
    depth = min(DEPTH // max(a.itemsize, b.itemsize), block)
    state.do(StreamStaged(chain.along.name, m, rows, block, width, depth, first, last, ahead))
    state.do(Parallelise(len(state.loops())))
    state.do(Share(threads, target.block))
    return state.finish()


def _sums(
    nest: ln.LoopNest, columns: ln.Loop, rows: int, threads: int, target: Target
) -> tuple[Rectangle | Warps, int]:
    """How ``threads`` divide the sums of a chain, of ``rows`` rows, and how many columns of them there are."""
    extent = typical(columns.extent)
    last = next(s for s in columns.body if isinstance(s, ln.Reduction))
    right = [x.array for x in accesses(last.value) if columns.axis in sym.variables(x.offset)]
    fragment = target.fragment(last.dtype, stored_type(nest, right[0])) if right else None
    if fragment is not None:
        parts = _warps(Tile(rows, 1, 1), fragment)
        across = threads // fragment.warp * parts.rows // rows
        wide = -(-extent // (across * fragment.columns)) * fragment.columns
        return replace(parts, columns=wide), wide * across
    across = threads * SIDE // rows
    wide = -(-extent // across)
    wide = wide if wide <= 2 else -(-wide // 4) * 4  # as many are read at once
    return Rectangle(SIDE, wide), wide * across


def _warps(tile: Tile, fragment: Fragment) -> Warps:
    """Four warps, two by two, or eight where a tile has a lot of rows: what a lane holds must fit its registers."""
    columns = tile.columns // (4 if tile.rows > 64 else 2)
    return Warps(tile.rows // 2, columns, fragment)


def _pass(nest: ln.LoopNest, target: Target, grid: Grid) -> Scheduled:
    """One pass over memory: elementwise kernels, copies, rows."""
    state = Scheduler(nest, target)
    state.refine()
    state.merge([axis.name for axis in state.inner_axes()])
    outer = [loop.axis for loop in state.loops()]
    along = _row_axis(state)
    if along is not None:
        length = typical(along.hi + 1)
        wide = min(_width(along, state), 1 << max(0, (length // grid.warp).bit_length() - 1))  # work for a whole warp
        threads = _threads(length, wide, grid)
        if outer:
            state.do(Reorder(tuple(v.name for v in by_stride(outer, state))))
            state.merge([loop.axis.name for loop in state.loops()])
        state.do(Divide(_groups(along.name, wide, state), threads))
    elif not outer or any(isinstance(s, ln.Alloc) for s in statements(nest.body)):
        threads = 1
    else:
        threads = grid.threads
        state.do(Reorder(tuple(v.name for v in by_stride(outer, state))))
        _flat(state, state.join([loop.axis.name for loop in state.loops()]), threads)
    tasks = [loop for loop in state.loops() if loop.kind == "serial"]
    if tasks:
        state.do(Parallelise(len(tasks)))
    state.do(Share(threads, target.block))
    return state.finish()


def _in_order(nest: ln.LoopNest, target: Target, grid: Grid) -> Scheduled:
    """Loops whose iterations stay in order, by each thread for elements of its own."""
    state = Scheduler(nest, target)
    state.refine()
    ordered = [loop.axis.name for loop in state.loops() if loop.kind == "ordered"]
    others = by_stride([loop.axis for loop in state.loops() if loop.axis.name not in ordered], state)
    threads = grid.threads if others else 1
    if others:
        state.do(Reorder((*(v.name for v in others), *ordered)))
        name = state.join([v.name for v in others])
        state.do(Divide(state.split(name, threads).inner, threads))
    state.do(Parallelise(sum(loop.kind == "serial" for loop in state.loops())))
    state.do(Share(threads, target.block))
    return state.finish()


def _rows(nest: ln.LoopNest, target: Target, grid: Grid) -> Scheduled:
    """Rows that are sorted: each by a block, in half the memory that it may have, so that two run at once."""
    state = Scheduler(nest, target)
    sort = prefix(nest.body)[1][-1]
    assert isinstance(sort, ln.Sort)
    room = grid.shared // 2 // stored_type(nest, sort.array).itemsize
    inner = [loop for s in prefix(nest.body)[1] if isinstance(s, ln.Loop) for loop in prefix((s,))[0]]
    length = max(typical(extent) for extent in (sort.extent, *(loop.extent for loop in inner)))
    threads = _threads(min(length, room), 1, grid)
    state.do(SortTogether(threads, room))
    tasks = [loop for loop in state.loops() if loop.kind == "serial"]
    if tasks:
        state.do(Parallelise(len(tasks)))
    state.do(Share(threads, target.block))
    return state.finish()


def _row_axis(state: Scheduler) -> Var | None:
    """The axis along memory that reductions run along, for a block to divide; None where each thread reduces alone."""
    inner = statements(prefix(state.nest.body)[1])
    reductions = [s for s in inner if isinstance(s, ln.Reduction)]
    last = {s.loops[-1].axis for s in reductions}
    earlier = {loop.axis for s in reductions for loop in s.loops[:-1]}
    found = [v for v in state.inner_axes() if v in last - earlier and gain(v, state) > 0]
    kept = any(isinstance(s, ln.Alloc) for s in inner)
    alone = not kept and bool(state.loops())
    found = [v for v in found if not (alone and typical(v.hi + 1) < SHORT)]
    return max(found, key=lambda v: gain(v, state), default=None)


def _threads(length: int, wide: int, grid: Grid) -> int:
    """Threads for a row of ``length`` elements, ``wide`` at once: a power of two of warps."""
    threads = grid.warp
    while threads < grid.threads and threads * max(EACH, wide) < length:
        threads *= 2
    return threads


def _flat(state: Scheduler, name: str, threads: int) -> None:
    """Blocks of one loop, whose elements the threads divide, several neighbours at once where all accesses allow it."""
    axis = next(loop.axis for loop in state.loops() if loop.axis.name == name)
    wide = _width(axis, state) if typical(axis.hi + 1) > threads else 1  # a thread for each of a few elements
    block = state.split(name, threads * wide)
    state.do(Divide(_groups(block.inner, wide, state), threads))


def _groups(name: str, wide: int, state: Scheduler) -> str:
    """A loop over groups of ``wide`` neighbours, each of them a vector; its name."""
    if wide == 1:
        return name
    groups = state.split(name, wide)
    state.do(Vectorise(groups.inner, wide))
    return groups.outer


def _width(axis: Var, state: Scheduler) -> int:
    """Elements of ``axis`` that lie side by side in all arrays that move with it, whole groups of them aligned."""
    body = list(statements(state.nest.body))
    around = [s for s in body if isinstance(s, ln.Loop) and s.axis == axis]
    inside = [inner for loop in around for inner in statements(loop.body)]
    if any(isinstance(s, ln.Loop | ln.Reduction | ln.Alloc) for s in inside):
        return 1
    if any(isinstance(s, ln.Let | ln.Reductions) for s in body) or not all(a.aligned for a in state.nest.arrays):
        return 1
    valued = [s for s in body if isinstance(s, ln.Store | ln.Define | ln.Reduction)]
    if any(x.valid for s in valued for x in accesses(s.value)):
        return 1
    types = [array.dtype for array in state.nest.arrays] + [s.dtype for s in body if isinstance(s, ln.Alloc)]
    width = WIDE // max(dtype.itemsize for dtype in types)
    while width > 1 and not _aligned(axis, width, state):
        width //= 2
    return max(1, width)


def _aligned(axis: Var, width: int, state: Scheduler) -> bool:
    if sym.mod(axis.hi + 1, width) != 0:
        return False
    for offset, *_ in state.offsets():
        linear = sym.coefficient(offset, axis)
        if linear is None or linear[0] not in (0, 1) or (linear[0] == 1 and sym.mod(linear[1], width) != 0):
            return False
    return True
