"""The schedule of a nest on a CPU, from its structure and the target's description.

Where several are good, the target's decisions choose; the first candidate is the best by formula. Where a decision is
not legal for the nest, the formula's choice is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.decisions import FORMULA, Candidate
from luminal.core.errors import ScheduleError
from luminal.core.schedule.choose.contraction import TERMS_PER_BLOCK, schedule_contraction, terms_of_block
from luminal.core.schedule.choose.neighbours import Neighbours, clippable, find_neighbours, region_cuts
from luminal.core.schedule.choose.scheduler import Scheduler, by_stride, chained_lookups, vector_gain
from luminal.core.schedule.contraction.contraction import Contraction, Tile
from luminal.core.schedule.fusion.cluster import Chain, Cluster
from luminal.core.schedule.lower.clusters import Lowered
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import perfect_loops, reads, statements
from luminal.core.schedule.transform.carry import Carry, OnePass
from luminal.core.schedule.transform.join import JoinReductions, most_joined
from luminal.core.schedule.transform.loops import Parallelise, Reorder, Scheduled, Vectorise
from luminal.core.schedule.transform.split_regions import ClipReduction, SplitRegion
from luminal.core.schedule.transform.stream import Stream
from luminal.core.schedule.transform.transpose import (
    INTERLEAVED,
    TransposeInRegisters,
    is_interleaved,
    is_transposed,
    only_stores,
)
from luminal.core.schedule.transform.unroll_jam import UnrollAndJam
from luminal.core.sizes import typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target
from luminal.core.types import f32


@dataclass(frozen=True)
class MemoryPass:
    """A pass over memory: vectors along the axis ``along`` (none, where empty), at most ``together`` neighbours
    computed together (0: none), and as many outer loops as tasks as give ``tasks``."""

    along: str
    together: int
    tasks: int

    def __str__(self) -> str:
        return f"vectors along {self.along or 'nothing'}, {self.together} side by side, {self.tasks} tasks"


@dataclass(frozen=True)
class ChainBlock:
    """The block of a task of a chain: ``columns`` of the first contraction, ``tiles`` of rows."""

    columns: int
    tiles: int

    def __str__(self) -> str:
        return f"{self.columns} columns, {self.tiles} tiles of rows"


def schedule_cluster(cluster: Cluster, lowered: Lowered, target: Target) -> Scheduled:
    """The schedule of the serial nest of ``cluster``. Raises ScheduleError where that is a chain that cannot be one
    pass."""
    if cluster.chain is not None and cluster.tile is not None:
        chain, tile = cluster.chain, cluster.tile
        return _by_decisions(lambda by: _schedule_chain(lowered.nest, chain, tile, by), target)
    return schedule_nest(lowered, cluster.contraction, target)


def _by_decisions(scheduled: Callable[[Target], Scheduled], target: Target) -> Scheduled:
    """The result of ``scheduled`` by the decisions of ``target``; by formula, where a decision is not legal."""
    try:
        return scheduled(target)
    except ScheduleError as refusal:
        if target.decisions is FORMULA:
            raise
        chosen = scheduled(replace(target, decisions=FORMULA))
        target.decisions.refused(str(refusal))
        return chosen


def _schedule_chain(nest: ln.LoopNest, chain: Chain, tile: Tile, target: Target) -> Scheduled:
    """A chain in one pass over blocks of columns; ``tile`` is the register tile of the second contraction."""
    state = Scheduler(nest, target)
    outer, (*_, columns) = perfect_loops(nest.body)
    if not isinstance(columns, ln.Loop):
        raise ScheduleError("a chain whose last sum has other results beside it")
    if not outer:
        raise ScheduleError("a chain of a single row has no tiles")
    costs, first = target.costs, chain.tile or tile
    wide, high = costs.sizes.chain_columns, costs.sizes.chain_rows
    longest = sym.upper(chain.along.hi + 1) or wide
    height = max(tile.rows // first.rows, 1) * min(first.rows, tile.rows)
    bytes_of_row = -(-typical(columns.extent) // tile.columns) * tile.columns * chain.row.dtype.itemsize
    if min(high, costs.stack.rows // bytes_of_row) < height:
        raise ScheduleError(f"the sums of {height} rows take more than {costs.stack.rows} bytes")
    tiles = math.prod(typical(loop.extent) for loop in outer[:-1]) * -(-typical(outer[-1].extent) // height)

    operand = 0 if tile.unit is None else tile.unit.left.itemsize  # bytes of the second product's left operand
    widest = costs.stack.chain // (height * (chain.row.dtype.itemsize + operand))

    def block_of(columns: int, rows: int) -> ChainBlock:
        most = min(columns * first.group, widest) // first.columns
        panels = min(max(1, most), -(-longest // first.columns))
        group = min(rows, costs.stack.rows // bytes_of_row) // height
        return ChainBlock(panels * first.columns, max(1, min(group, tiles // state.few)))

    # The others are tried by measurement: factors of the first, not of a machine.
    sizes = ((wide, high), (wide // 2, high), (wide // 6, high * 2), (wide * 2, high), (wide, high * 2))
    block = state.ask("chain", [Candidate("schedule", block_of(*size)) for size in sizes], first, tile)
    names = chain.along.name, outer[-1].axis.name
    part = None if chain.tile is None else replace(first, rows=min(first.rows, height))
    last = replace(tile, rows=height)
    state.derived = OnePass(nest, chain.along.name, target.precision.stored).derivation
    state.do(Stream(*names, part, last, block.columns, block.tiles, target.precision.stored))
    state.do(Parallelise(len(state.loops())))
    return state.finish()


def schedule_nest(lowered: Lowered, found: Contraction | None, target: Target) -> Scheduled:
    """The schedule of a serial nest; ``found`` is its contraction, if it has one.

    A contraction that cannot be tiled is scheduled as any other reduction, and the result has the reason. A nest with
    an empty loop stays serial.
    """
    nest = lowered.nest
    if any(loop.extent == 0 for loop in perfect_loops(nest.body)[0]):
        return Scheduled(nest, serial=nest)
    if any(isinstance(s, ln.Sort) for s in statements(nest.body)):
        return _schedule_sort(nest, target)
    if found is None:
        if any(loop.kind == "ordered" for loop in perfect_loops(nest.body)[0]):
            return _schedule_ordered(nest, target)
        return _by_decisions(lambda by: _schedule_pass(nest, by), target)
    try:
        return _by_decisions(lambda by: schedule_contraction(lowered, found, by), target)
    except ScheduleError as refusal:
        return replace(_by_decisions(lambda by: _schedule_pass(nest, by), target), refusal=str(refusal))


def _schedule_pass(nest: ln.LoopNest, target: Target) -> Scheduled:
    """Elementwise kernels, copies and rows: one pass over memory."""
    state, sizes = Scheduler(nest, target), target.costs.sizes
    state.refine()
    state.merge([axis.name for axis in state.inner_axes()])
    if _carries_rows(state):
        return state.finish()
    outer = [loop.axis for loop in state.loops()]
    buffered = any(isinstance(s, ln.Alloc) for s in statements(state.nest.body))
    inner = state.inner_axes()
    axes = inner if buffered else [*inner, *outer]
    ranked = sorted(axes, key=lambda v: (vector_gain(v, state, weighed=True), v in inner), reverse=True)
    ways = _pass_candidates(state, [v for v in ranked if _may_vectorise(v, state)])
    way = state.ask("pass", [Candidate("schedule", way) for way in ways])
    along = next((v for v in (*inner, *outer) if v.name == way.along), None)
    order = by_stride([v for v in outer if v is not along], state)
    if along in outer:
        order.append(along)
    together = find_neighbours(state.nest, along, target, way.together) if along is not None and way.together else None
    fixed = {v for v in (along, together.axis if together else None) if v is not None}
    clipped = clippable(state.nest, fixed.difference(inner))
    for name in clipped:
        state.do(ClipReduction(name))
    if along is not None and together is not None:
        together = replace(together, unroll="" if together.unroll in clipped else together.unroll)
        return _schedule_jammed(state, along, together, [v for v in order if v not in fixed], way.tasks)
    if order:
        state.do(Reorder(tuple(v.name for v in order)))
    names = [v.name for v in order]
    if along is None:
        state.merge(names)
        state.parallelise(way.tasks)
        return state.finish()
    if along in outer:
        # Vectors go along no axis that says how far a window reaches.
        ends = {v.name for loop in _reduced(state) for v in sym.variables(loop.extent)}
        merged = state.merge(names) if ends.isdisjoint(names) else [*state.merge(names[:-1]), names[-1]]
        *others, name = merged
        across = _transposed_axis(state, others, name)
        if across is not None:
            return _schedule_transposed(state, [other for other in others if other != across], across, name, way.tasks)
        between = _interleaving(state, others, name)
        if between is not None:
            outside = [*(other for other in others if other != between.axis), name]
            state.do(Reorder((*outside, between.axis)))
            *others, name = merged = state.merge(outside)
        extents = {loop.axis.name: typical(loop.extent) for loop in state.loops()}
        few = between is not None and math.prod(extents[other] for other in others) < way.tasks < extents[name]
        _join_sums(state)
        count = _vectors_together(state, name, math.prod(extents[other] for other in others))
        if count > 1:
            return _schedule_columns(state, others, name, count, way.tasks)
        if (len(merged) == 1 and not inner) or few:
            name = state.split(name, sizes.chunk).inner
        elif inner and math.prod(extents[other] for other in others) < state.few and extents[name] > sizes.strip:
            name = state.split(name, sizes.strip).inner
        elif _stores_columns(perfect_loops(state.nest.body)[1]) and math.prod(extents[x] for x in others) < state.few:
            name = state.split(name, _lanes(state)).inner
        if between is not None:
            state.do(between)
    else:
        state.merge(names)
        name = along.name
    vectors = sizes.waiting if chained_lookups(state.nest) > 1 else 1
    state.do(Vectorise(name, _lanes(state) * vectors))
    state.parallelise(way.tasks)
    return state.finish()


def _carries_rows(state: Scheduler) -> bool:
    """Schedules rows that are reduced more than once, and too long for the second-level cache, as one pass over blocks;
    False where there are none, or where they cannot be."""
    inside = statements(perfect_loops(state.nest.body)[1])
    along = [s.loops[-1].axis for s in inside if isinstance(s, ln.Reduction) and s.loops]
    size = max((a.dtype.itemsize for a in state.nest.arrays if not a.written), default=1)
    if len(along) < 2 or typical(along[0].hi + 1) * size <= state.target.l2 or vector_gain(along[0], state) <= 0:
        return False
    carry, before = Carry(along[0].name, state.target.costs.sizes.part), state.nest
    try:
        carry(before)
    except ScheduleError:
        return False
    order = by_stride([loop.axis for loop in state.loops()], state)
    if order:
        state.do(Reorder(tuple(v.name for v in order)))
        state.merge([v.name for v in order])
    state.derived = OnePass(state.nest, carry.axis).derivation
    state.do(carry)
    for name in (carry.within, *(v.name for v in state.inner_axes() if v == along[0])):
        state.do(Vectorise(name, _lanes(state)))
    state.parallelise()
    return True


def _pass_candidates(state: Scheduler, axes: Sequence[Var]) -> list[MemoryPass]:
    """The candidate passes, with vectors along one of ``axes``, the best of which is first."""
    if not axes:
        return [MemoryPass("", 0, state.enough), MemoryPass("", 0, state.few)]
    best, most = axes[0].name, state.target.costs.arithmetic.accumulators
    neighbours = [most, most * 3 // 2, most // 2, 0] if find_neighbours(state.nest, axes[0], state.target) else [0]
    return [
        *(MemoryPass(best, count, state.enough) for count in neighbours),
        *(MemoryPass(axis.name, most, state.enough) for axis in axes[1:]),
        MemoryPass(best, neighbours[0], state.few),
    ]


def _schedule_ordered(nest: ln.LoopNest, target: Target) -> Scheduled:
    """Ordered loops inside the others, with vectors along memory. Where the other loops have too few iterations for all
    threads, tasks are strips of these vectors, each with all ordered iterations."""
    state = Scheduler(nest, target)
    state.refine()
    ordered = [loop.axis.name for loop in state.loops() if loop.kind == "ordered"]
    others = by_stride([loop.axis for loop in state.loops() if loop.axis.name not in ordered], state)
    carried = frozenset((*others, *nest.dims))  # from one iteration to the next
    along = others[-1] if others and vector_gain(others[-1], state, carried) > 0 else None
    state.do(Reorder((*(v.name for v in others), *ordered)))
    names = state.merge([v.name for v in others])
    if along is not None:
        (*outer, name), least = names, target.costs.threads.least
        if math.prod(typical(loop.extent) for loop in state.loops() if loop.axis.name in outer) < least:
            split = state.split(name, target.costs.sizes.strip)
            outer, name = [*outer, *state.present(split.outer)], split.inner
        state.do(Reorder((*outer, *ordered, name)))
        state.do(Vectorise(name, _lanes(state)))
    state.parallelise()
    return state.finish()


def _schedule_sort(nest: ln.LoopNest, target: Target) -> Scheduled:
    """Sorted rows: each is a task."""
    state = Scheduler(nest, target)
    state.refine()
    names = state.merge([loop.axis.name for loop in state.loops() if loop.kind == "serial"])
    if names:
        state.do(Parallelise(len(names)))
    return state.finish()


def _join_sums(state: Scheduler) -> None:
    """Reductions of columns over the same elements joined, so that a pass reads these once for all of them. Where there
    are such, or columns are read again, sums are added up in blocks: they have one accumulator each."""
    inside = perfect_loops(state.nest.body)[1]
    first = next((s for s in inside if isinstance(s, ln.Reduction)), None)
    if first is None or not first.loops or not (most_joined(inside) > 1 or _stores_columns(inside)):
        return
    *outer, last = first.loops
    if isinstance(last.extent, int) and last.extent > TERMS_PER_BLOCK:
        state.split(last.axis.name, terms_of_block(last.extent, state.target.costs.tiles.even))
        outer.append(last)
    state.do(JoinReductions(len(outer)))


def _vectors_together(state: Scheduler, along: str, others: int) -> int:
    """How many vectors ``along`` reduced columns are best computed together: a row is then read as far as they
    reach. Where columns are read again for what is stored of their elements, or reduced in one pass, ``others`` are the
    iterations of the loops around, and each thread gets a task."""
    inside = perfect_loops(state.nest.body)[1]
    reductions = [s for s in inside if isinstance(s, ln.Reduction | ln.Reductions)]
    stored = _stores_columns(inside)
    known = (ln.Reduction, ln.Reductions, ln.Define, ln.Store, *((ln.Loop,) if stored else ()))
    extent = next(loop.extent for loop in state.loops() if loop.axis.name == along)
    if not reductions or not all(isinstance(s, known) for s in inside) or not isinstance(extent, int):
        return 1
    if any(isinstance(r, ln.Reduction) and r.before for r in reductions):
        return 1
    lanes, sums = _lanes(state), max(len(r.names) if isinstance(r, ln.Reductions) else 1 for r in reductions)
    bits = max(r.dtype.compute.bits for r in reductions) * lanes
    most = max(1, state.target.sums // (-(-bits // 8 // state.target.register_bytes) * sums))
    most = min(state.target.costs.arithmetic.accumulators, most)
    if stored or sums > 1:
        threads = max(state.target.costs.threads.least, state.target.threads)
        most = max(1, min(most, others * extent // (lanes * threads)))
    return next(count for count in range(most, 0, -1) if extent % (count * lanes) == 0 or count == 1)


def _reduced(state: Scheduler) -> list[ln.Loop]:
    """The loops of all reductions."""
    found = (s for s in statements(state.nest.body) if isinstance(s, ln.Reduction | ln.Reductions))
    return [loop for reduction in found for loop in reduction.loops]


def _stores_columns(inside: Sequence[ln.Statement]) -> bool:
    """Whether columns are reduced, and then read again in loops that do nothing but store."""
    loops = [s for s in inside if isinstance(s, ln.Loop)]
    stores = all(isinstance(s, ln.Loop | ln.Store) for s in statements(loops))
    return bool(loops) and stores and any(isinstance(s, ln.Reduction | ln.Reductions) for s in inside)


def _schedule_columns(state: Scheduler, others: list[str], along: str, count: int, tasks: int) -> Scheduled:
    """Reduced columns: ``count`` vectors ``along`` them are computed together; ``others`` are the loops around."""
    lanes = _lanes(state)
    groups = state.split(along, count * lanes)
    order = [*others, *state.present(groups.outer)]
    vectors = state.split(groups.inner, lanes)
    state.do(Reorder((*order, vectors.inner, vectors.outer)))
    state.do(UnrollAndJam(vectors.outer))
    state.do(Vectorise(vectors.inner, lanes))
    state.parallelise(tasks)
    return state.finish()


def _schedule_jammed(state: Scheduler, along: Var, together: Neighbours, others: list[Var], tasks: int) -> Scheduled:
    """Tiles of neighbours computed together, in vectors along ``along``; of ``others``, the remaining axes, as many are
    tasks as give ``tasks``."""
    state.do(Reorder(tuple(v.name for v in (*others, together.axis, along))))
    order = state.merge([v.name for v in others])
    name, tiles = together.axis.name, list[str]()
    if together.tiles > 1:
        split = state.split(name, together.count)
        name, tiles = split.inner, [split.outer]
    vectors = along.name
    block = _vector_block_extent(along.hi + 1, _lanes(state), state.target.costs.sizes.vectors)
    if block is not None:
        split = state.split(vectors, block)
        order.append(split.outer)
        vectors = split.inner
    state.do(Reorder((*order, *tiles, vectors, name)))
    for tile in tiles:
        places = region_cuts(state.nest, tile, state.target.costs.sizes.border)
        if places:
            state.do(SplitRegion(tile, places))
    state.do(UnrollAndJam(name, together.unroll))
    state.do(Vectorise(vectors, _lanes(state)))
    state.parallelise(tasks)
    return state.finish()


def _transposed_axis(state: Scheduler, others: Sequence[str], along: str) -> str | None:
    """The axis among ``others``, if any, along which most reads are contiguous while vectors go along another."""
    inside = perfect_loops(state.nest.body)[1]
    if not only_stores(inside):
        return None
    axes = {loop.axis.name: loop.axis for loop in state.loops()}
    least = _lanes(state) // state.target.costs.vectors.filled
    long = [name for name in others if typical(axes[name].hi + 1) >= least]
    read = dict.fromkeys(access for statement in inside for access in reads(statement))
    counts = {name: sum(is_transposed(access, axes[name], axes[along]) for access in read) for name in long}
    best = max(counts, key=lambda name: counts[name], default="")
    return best if counts.get(best) else None


def _interleaving(state: Scheduler, others: Sequence[str], along: str) -> TransposeInRegisters | None:
    """The transform for the axis among ``others``, if any, whose few elements are stored side by side, those of
    consecutive values of ``along`` one after the other."""
    inside = perfect_loops(state.nest.body)[1]
    loops = {loop.axis.name: loop for loop in state.loops()}
    for name in others:
        extent = loops[name].extent
        if isinstance(extent, int) and 1 < extent <= INTERLEAVED and only_stores(inside):
            stores = [s for s in inside if isinstance(s, ln.Store)]
            if all(is_interleaved(store, loops[name].axis, loops[along].axis, extent) for store in stores):
                return TransposeInRegisters(name, extent)
    return None


def _schedule_transposed(state: Scheduler, others: Sequence[str], across: str, along: str, tasks: int) -> Scheduled:
    """A copy that transposes: vectors ``along`` one axis read whole rows along the axis ``across``. Where ``others``
    have fewer iterations than ``tasks``, tasks are groups of rows; where there are few rows too, parts of rows."""
    extents = {loop.axis.name: loop.extent for loop in state.loops()}
    order, count = list(others), math.prod(typical(extents[name]) for name in others)
    sizes = state.target.costs.sizes
    if count < tasks and typical(extents[along]) > sizes.transposed_rows:
        split = state.split(along, sizes.transposed_rows)
        order.append(split.outer)
        count, along = count * -(-typical(extents[along]) // sizes.transposed_rows), split.inner
    if count < state.few and typical(extents[across]) > sizes.strip:
        split = state.split(across, sizes.strip)
        order.append(split.outer)
        across = split.inner
    # As many registers as lanes hold a block of the widest type.
    lanes = min(_lanes(state), *(state.target.lanes(array.dtype) for array in state.nest.arrays))
    state.do(Reorder((*order, along, across)))
    state.do(TransposeInRegisters(across, lanes))
    state.do(Vectorise(along, lanes))
    state.parallelise(tasks)
    return state.finish()


def _vector_block_extent(extent: Int, lanes: int, most: int) -> int | None:
    """The extent, of at most ``most`` vectors, into which an axis of vectors is divided, so that what each block reads
    stays in the first-level cache; None where it is not divided."""
    if not isinstance(extent, int) or extent % lanes or extent <= most * lanes:
        return None
    count = next(n for n in range(most, 0, -1) if extent // lanes % n == 0)
    return count * lanes


def _lanes(state: Scheduler) -> int:
    """Lanes of float32; values of other types take more or fewer registers."""
    return state.target.lanes(f32)


def _may_vectorise(axis: Var, state: Scheduler) -> bool:
    if vector_gain(axis, state) <= 0:
        return False
    loops, inside = perfect_loops(state.nest.body)
    if any(loop.axis == axis for loop in loops):
        return not any(isinstance(s, ln.Alloc) for s in statements(inside))
    return all(
        all(loop.axis != axis for loop in s.loops[:-1]) for s in statements(inside) if isinstance(s, ln.Reduction)
    )
