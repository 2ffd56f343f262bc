"""Which neighbouring outputs of a reduction share operands, and where its masks hold: facts for choosing a schedule.

Reductions over windows read an input for several neighbouring outputs, and operands that do not move with the window
for every output. Outputs that are computed together (``UnrollAndJam``) load them once.
"""

from __future__ import annotations

from dataclasses import dataclass

from luminal.core import symbolic as sym
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.neutral import finite_arrays
from luminal.core.schedule.nest.walk import accesses, perfect_loops, scalar_expressions, statements
from luminal.core.schedule.transform.split_regions import clipping_masks
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target

TRIED = 256  # iterations at either end among which the first without masks is searched: a limit of effort


@dataclass(frozen=True)
class Neighbours:
    """Outputs that share operands: ``tiles`` times ``count`` neighbours along ``axis``. ``unroll`` names the innermost
    loop of the reduction where it should be unrolled too, or is empty."""

    axis: Var
    count: int
    tiles: int
    unroll: str


def find_neighbours(nest: ln.LoopNest, along: Var, target: Target, most: int | None = None) -> Neighbours | None:
    """The neighbours to compute together, with vectors along ``along``: at most ``most``, by default as many as keep
    the multipliers busy. None where no neighbours share operands."""
    enough = target.costs.arithmetic.accumulators
    loops, inside = perfect_loops(nest.body)
    reductions = [s for s in inside if isinstance(s, ln.Reduction)]
    if len(reductions) != 1 or any(not isinstance(s, ln.Reduction | ln.Define | ln.Store) for s in inside):
        return None
    (reduction,) = reductions
    if reduction.before or any(loop.axis == along for loop in reduction.loops):
        return None
    inner, reduced = reduction.loops[-1], {loop.axis for loop in reduction.loops}
    found = [x for x in accesses(reduction.value) if sym.variables(x.offset) & reduced]
    best: tuple[tuple[int, int], ln.Loop] | None = None
    for loop in loops:
        if loop.axis == along or not isinstance(loop.extent, int) or loop.extent < 2:
            continue
        windows = sum(_overlap(x.offset, loop.axis, inner, enough) for x in found)
        repeated = sum(loop.axis not in sym.variables(x.offset) for x in found)
        if windows + repeated and (best is None or (windows, repeated) >= best[0]):
            best = (windows, repeated), loop
    if best is None:
        return None
    loop = best[1]
    assert isinstance(loop.extent, int)
    most = min(enough if most is None else most, target.sums)
    tiles = -(-loop.extent // most)
    count = -(-loop.extent // tiles)
    short = isinstance(inner.extent, int) and count * inner.extent <= target.costs.sizes.terms
    return Neighbours(loop.axis, count, tiles, inner.axis.name if short else "")


def _overlap(offset: Int, axis: Var, inner: ln.Loop, most: int) -> bool:
    """Whether neighbours along ``axis``, less than ``most`` apart, read one element in different steps of ``inner``."""
    outer, step = sym.coefficient(offset, axis), sym.coefficient(offset, inner.axis)
    if outer is None or step is None or outer[0] == 0 or step[0] == 0:
        return False
    steps = [n for n in range(1, most) if sym.always(inner.extent - 1 - n)]
    return any(outer[0] * apart == step[0] * n for n in steps for apart in range(1, most))


def clippable(nest: ln.LoopNest, fixed: set[Var]) -> list[str]:
    """The axes of reductions whose masks can become bounds that do not depend on the axes ``fixed``."""
    finite = finite_arrays(nest)
    found: dict[str, bool] = {}
    for reduction in (s for s in statements(nest.body) if isinstance(s, ln.Reduction)):
        for loop in reduction.loops:
            masks = clipping_masks(reduction, loop.axis, finite)
            free = loop.axis not in fixed and not any(sym.variables(mask) & fixed for mask in masks)
            fits = bool(masks) and free and not reduction.before
            found[loop.axis.name] = fits and found.get(loop.axis.name, True)
    return [name for name, fits in found.items() if fits]


def region_cuts(nest: ln.LoopNest, name: str, border: int) -> tuple[int, ...]:
    """The places at which to cut the loop called ``name``, such that inner iterations have full tiles and no masks. Of
    a border of at most ``border`` iterations, each is cut off."""
    loop = next((s for s in statements(nest.body) if isinstance(s, ln.Loop) and s.axis.name == name), None)
    if loop is None or not isinstance(loop.extent, int):
        return ()
    count = loop.extent
    inside = statements(loop.body)
    masks = [c for s in inside if isinstance(s, ln.Reduction) for c in _masks(s.value)]
    extents = [s.extent for s in inside if isinstance(s, ln.Loop) and loop.axis in sym.variables(s.extent)]
    moving = [mask for mask in masks if loop.axis in sym.variables(mask)]

    def is_full(at: int) -> bool:
        return all(sym.substitute(e, {loop.axis: at}) == sym.upper(e) for e in extents)

    def is_plain(at: int) -> bool:
        return is_full(at) and all(sym.always(sym.substitute(mask, {loop.axis: at})) for mask in moving)

    ends = range(min(count, TRIED)), range(max(0, count - TRIED), count)
    first = next((at for at in ends[0] if is_plain(at)), count)
    last = next((at + 1 for at in reversed(ends[1]) if is_plain(at)), first)
    if last <= first:
        first = last = count
    places = {first, last} if is_full(count - 1) else {first, last, count - 1}
    if first <= border:
        places |= set(range(1, first))
    if count - last <= border:
        places |= set(range(last, count))
    return tuple(sorted(place for place in places if 0 < place < count))


def _masks(value: ln.Scalar) -> list[Int]:
    offsets = {x.offset for x in accesses(value)}
    return [e for e in scalar_expressions(value) if e not in offsets]
