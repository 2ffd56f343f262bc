"""The terms of a contraction in runs that a matrix unit takes in equal steps.

A unit reads a *run* of terms that lie side by side. The first convolution of an image has few channels, often an odd
number, so steps do not divide them and do little work. But a window reads all channels of neighbouring positions, and
in a copy of the image these lie one after the other: the two axes of K become one. If A has a border, it is copied
anyway, and a channel of zeros may be added; else it is copied only if no step fits the terms as they are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.matrix import MatrixUnit
from luminal.core.movement import permute
from luminal.core.schedule.contraction.contraction import Contraction, Operand, Tile
from luminal.core.schedule.contraction.panels import without_mask
from luminal.core.schedule.contraction.tile import step_depth, unit_tile
from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.target import Target


def on_unit(target: Target, found: Contraction, columns_of_b: int | None) -> tuple[Contraction, Tile] | None:
    """The contraction with runs that the fastest unit for its operands takes in equal steps, and the tile of that unit,
    if possible of ``columns_of_b`` columns. None if no unit fits."""
    for unit in target.units_of(found.a.source.dtype, found.b.source.dtype, found.dtype):
        suited = (_for_vectors if unit.in_vectors else _for_matrices)(found, unit, target)
        tile = unit_tile(target, unit, suited, columns_of_b)
        if tile is not None:
            return suited, tile
    return None


def _for_vectors(found: Contraction, unit: MatrixUnit, target: Target) -> Contraction:
    """The contraction with runs merged if that takes fewer steps, and a run shorter than a group lengthened. In groups
    of two, seven positions of three channels take 11 steps as one run, 14 as seven."""
    longer = _merged(found, target) if found.a.valid else None
    if longer is not None and _steps(unit, longer) < _steps(unit, found):
        found = longer
    extent = found.shape[found.run]
    short = isinstance(extent, int) and extent < unit.group
    return (_lengthened(found, unit.group, target) if short else None) or found


def _for_matrices(found: Contraction, unit: MatrixUnit, target: Target) -> Contraction:
    """The contraction with the runs that take the fewest steps: unchanged, merged, lengthened to whole groups, or both.
    If A is not copied anyway, runs stay unchanged, unless the unit cannot take them."""
    copied = found.a.valid or found.a.source.op is ops.CONTIGUOUS
    if not copied and _steps(unit, found) < math.inf:
        return found
    whole = _lengthened(found, unit.group, target)
    ways = [found, _merged(found, target), whole, whole and _merged(whole, target)]
    return min((way for way in ways if way), key=lambda way: _steps(unit, way))


def _steps(unit: MatrixUnit, found: Contraction) -> float:
    """The number of steps that ``unit`` takes for all terms; infinity if it cannot take them."""
    sizes = [found.shape[k] for k in found.k if found.shape[k] != 1]
    depth = step_depth(unit, sizes)
    *outer, run = map(typical, sizes)
    return math.prod(outer) * -(-run // depth) if depth else math.inf


def _merged(found: Contraction, target: Target) -> Contraction | None:
    """The contraction with the last axis of a window and the run inside it merged into one axis of K; None if there is
    no such window. A becomes a copy in which positions lie one after the other, padded if A has a mask."""
    if masked := bool(found.a.valid):
        copied = without_mask(found.a, found.shape) if target.pads else None
        if copied is None:
            return None
        found = replace(found, a=copied)
    window, run = _window_of_run(found)
    shape = found.shape
    width, terms = shape[window], shape[run]
    if window == run or not isinstance(width, int) or not isinstance(terms, int):
        return None
    if not masked:
        over = found.axes
        found = replace(
            found, a=copied_along(found.a, (*moved_along(found.a, over[window]), *moved_along(found.a, over[run])))
        )
    merged = tuple(width * terms if k == window else 1 if k == run else size for k, size in enumerate(shape))
    at = list(ir.axes(merged))
    at[window], at[run] = sym.floordiv(at[window], terms), sym.mod(at[window], terms)
    return _over(merged, ir.rename(shape, at), found)


def copied_along(x: Operand, axes: tuple[int, ...]) -> Operand:
    """The operand over a copy of its source that has ``axes`` innermost. An input that already has them is not copied;
    for a source that is a copy, the original is copied instead."""
    order = [*(k for k in range(x.source.rank) if k not in axes), *axes]
    if x.source.op is ops.INPUT and order == sorted(order):
        return x
    source = x.source.inputs[0] if x.source.op is ops.CONTIGUOUS else x.source
    copied = ir.unary(ops.CONTIGUOUS, permute(source, order))
    return Operand(copied, tuple(x.index[k] for k in order), x.valid, x.fill)


def copied_apart(x: Operand, found: Contraction) -> Operand:
    """The operand, which has no mask, over a copy of its source in which the terms of a run have an axis of their own,
    where they had stride 2, were taps of a window, or digits of an axis. Axes of the source that the run does not move
    along stay."""
    over, run, source = found.axes, found.run, x.source
    moved = moved_along(x, over[run])
    kept = [d for d in range(source.rank) if d not in moved]
    within = {v for d in moved for v in sym.variables(x.index[d])}
    axes = [*(k for k, axis in enumerate(over) if sym.as_var(axis) in within and k != run), run]
    shape = (*(source.shape[d] for d in kept), *(found.shape[k] for k in axes))
    where = ir.axes(shape)
    by = {v: at for k, at in zip(axes, where[len(kept) :], strict=True) if (v := sym.as_var(over[k])) is not None}
    index = [where[kept.index(d)] if d in kept else sym.substitute(e, by) for d, e in enumerate(x.index)]
    source = source.inputs[0] if source.op is ops.CONTIGUOUS else source
    copied = ir.unary(ops.CONTIGUOUS, ir.view(source, shape, index))
    return Operand(copied, (*(x.index[d] for d in kept), *(over[k] for k in axes)), x.valid, x.fill)


def _window_of_run(found: Contraction) -> tuple[int, int]:
    """The last axis of a window, and the run. The first is the K axis next to the run, if it moves A by one position
    and each position has all terms of the run; else the run itself."""
    over, run = found.axes, found.run
    outer = [k for k in found.k if k != run and found.shape[k] != 1]
    if not outer or found.b.valid:
        return run, run
    window = outer[-1]
    ends = [moved_along(found.a, over[k]) for k in (window, run)]
    if any(len(at) != 1 for at in ends) or ends[0] == ends[1]:
        return run, run
    ((position,), (term,)) = ends
    variable = sym.as_var(over[window])
    step = sym.coefficient(found.a.index[position], variable) if variable is not None else None
    whole = (found.a.index[term], found.a.source.shape[term]) == (over[run], found.shape[run])
    return (window if whole and step is not None and step[0] == 1 else run), run


def _lengthened(found: Contraction, group: int, target: Target) -> Contraction | None:
    """The contraction with its run lengthened to a multiple of ``group`` by zeros in B, such as three channels to four.
    None if the run is a multiple already, or A is not copied anyway."""
    run = found.run
    extent, term = found.shape[run], found.axes[run]
    copied = (found.a.valid and target.pads) or found.a.source.op is ops.CONTIGUOUS
    if not isinstance(extent, int) or extent % group == 0 or not copied or found.b.valid:
        return None
    longer = -(-extent // group) * group
    sides = (found.a, found.b)
    places = [moved_along(x, term) for x in sides]
    whole = all(
        len(at) == 1 and (x.index[at[0]], x.source.shape[at[0]]) == (term, extent)
        for x, at in zip(sides, places, strict=True)
    )
    if not whole:
        return None
    shape = tuple(longer if k == run else size for k, size in enumerate(found.shape))
    found = _over(shape, ir.rename(found.shape, ir.axes(shape)), found)
    a, b = found.a, found.b
    ((place,), (other,)) = places
    if a.valid:
        a = replace(a, valid=(*a.valid, extent - 1 - a.index[place]))
    else:
        a = replace(a, source=_filled_up(a.source.inputs[0], place, longer))
    b = replace(b, source=_filled_up(b.source, other, longer))
    return replace(found, a=a, b=b)


def _filled_up(source: Node, axis: int, extent: int) -> Node:
    """A copy of ``source``, lengthened to ``extent`` along ``axis`` with numbers that B's zeros multiply: zeros, or for
    a masked integer view its fill, so that both views become one."""
    shape = tuple(extent if k == axis else size for k, size in enumerate(source.shape))
    at = ir.axes(shape)
    around = source.dtype.is_integer and source.op is ops.VIEW and source.attr.valid
    fill = source.attr.fill if around else bytes(source.dtype.itemsize)
    return ir.unary(ops.CONTIGUOUS, ir.view(source, shape, at, [source.shape[axis] - 1 - at[axis]], fill))


def moved_along(x: Operand, axis: Int) -> tuple[int, ...]:
    """The axes of the source of ``x`` whose index depends on ``axis``."""
    return tuple(k for k, index in enumerate(x.index) if sym.variables(index) & sym.variables(axis))


def _over(shape: ir.Shape, by: dict[sym.Var, Int], found: Contraction) -> Contraction:
    """The contraction with a product of another ``shape``; ``by`` gives each old axis in terms of the new ones."""
    return replace(found, shape=shape, a=found.a.over(by), b=found.b.over(by))
