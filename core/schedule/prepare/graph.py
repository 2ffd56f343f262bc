"""The graph with each contraction in the form in which a tile reads it.

B is read in panels and A without a mask (see ``contraction.panels``), as far as the target asks for it
(``Target.packs``, ``Target.pads``). Both are ordinary views made real with ``Contiguous``: for constants they fold into
the packed weights at compile time, for activations they are a copy kernel, whose pad or transpose the producer may
absorb.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from luminal.core import interp, ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.ir import Node
from luminal.core.schedule.contraction import lines as of_lines
from luminal.core.schedule.contraction import narrow
from luminal.core.schedule.contraction.blocks import by_fragments, in_blocks, integers_and_scale, same_scale
from luminal.core.schedule.contraction.contracted import Contractions
from luminal.core.schedule.contraction.contraction import Contraction, Operand, Tile
from luminal.core.schedule.contraction.narrow import narrow_weights
from luminal.core.schedule.contraction.panels import Packed, direct, in_panels, panels, read_panels, without_mask
from luminal.core.schedule.contraction.prologue import Leaf, Prologue
from luminal.core.schedule.contraction.roles import exchanged, over_taps, run_axes
from luminal.core.schedule.contraction.terms import copied_along, copied_apart, moved_along, on_unit
from luminal.core.schedule.contraction.tile import block_tile, choose_tile, least_cycles, lines
from luminal.core.schedule.prepare import loops
from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.target import BOUNDED, Target
from luminal.core.types import DType, f32, i8, i16, u8, u16


@dataclass(frozen=True)
class Prepared:
    """The graph with every contraction in the form that a tile reads. ``contractions`` has those that tiles compute,
    ``packed`` each packed constant with the constants that it was made from, and ``held`` how what contractions read of
    constants lies in panels."""

    roots: tuple[Node, ...]
    contractions: Mapping[Node, Contraction]
    packed: Mapping[Node, tuple[Node, ...]]
    held: Mapping[Node, Packed]


Packings: TypeAlias = dict[Node, int]  # columns of a panel, by the constant that was packed
Runs: TypeAlias = dict[Node, tuple[int, ...]]  # the axes that are innermost in memory, by the node that a unit reads


def agreed(entries: Iterable[Contractions], target: Target) -> Packings:
    """How constants are packed that products of several sizes read, in one entry or in several: as it suits that of
    most rows, because it has the fewest tiles to choose from. A single row takes any. Blocks that sum column by column
    take lines, from which those with tiles stage as well."""
    readers: dict[Node, list[Contraction]] = {}
    for found in (found for entry in entries for found in entry.values() if is_constant(found.b.source)):
        readers.setdefault(found.b.source, []).append(found)
    packings: Packings = {}
    for several in readers.values():
        if target.grid is not None and any(of_lines.has_few_rows(found, target.grid) for found in several):
            packings[several[0].b.source] = 1  # a column after the other: lines
            parts = (narrow_weights(found, target.costs.memory) for found in several if found.apart)
            packings |= {leaf.source: 1 for part in parts if part is not None for leaf in part.leaves}
            continue
        rows = [typical(found.count(found.m)) for found in several]
        if min(rows) < max(rows) and (choice := _choice(several[rows.index(max(rows))], target, {})) is not None:
            packings[choice.found.b.source] = choice.tile.columns
    return packings


def prepare(
    roots: tuple[Node, ...],
    found: Contractions,
    target: Target,
    origins: ir.Origins,
    packings: Packings | None = None,
) -> Prepared:
    """Bring every contraction in ``found`` into the form that a tile reads. Adds the origins of new nodes to
    ``origins``, and the columns of each packed constant to ``packings``. A constant in ``packings`` is packed the same
    way again, so that the entries of a program share it."""
    packings = {} if packings is None else packings
    replaced: dict[Node, Node] = {}
    contractions: dict[Node, Contraction] = {}
    packed: dict[Node, tuple[Node, ...]] = {}
    held: dict[Node, Packed] = {}
    steps: dict[Node, Node] = {}  # prepared loops and branches, by the first of their results
    runs = {root: tuple(range(root.rank)) for root in roots}  # outputs are row-major
    innermost = _innermost(roots)
    taken = set(traverse.topological(roots))
    carried: set[Node] = set()
    for node in traverse.topological(roots):
        with ir.originating(origins, *origins.get(node, ())):
            new = traverse.rebuild(node, [replaced[x] for x in node.inputs])
            if loops.is_steps(new):
                first = ir.structured(new.op, new.inputs, replace(new.attr, result=0))
                if first not in steps:
                    taken |= loops.copies(replaced[root] for root in roots if root in replaced)
                    steps[first], inside = _prepared_steps(first, found, target, origins, taken, carried, packings)
                    contractions |= inside.contractions
                    packed |= inside.packed
                    held = {**inside.held, **held}
                replaced[node] = ir.structured(
                    new.op, steps[first].inputs, replace(steps[first].attr, result=new.attr.result)
                )
                continue
            if new.op in ops.CALLED:
                replaced[node] = loops.in_memory(new, taken, carried)
                continue
            made = None
            if node in found:
                contraction = found[node].moved(replaced.__getitem__)
                if node in innermost:
                    kept = [k for k in range(len(contraction.shape)) if k not in contraction.k]
                    contraction = _along_columns(contraction, kept[innermost[node]], target)
                contraction = _of_many_rows(contraction, target)
                made = _prepared(contraction, target, packings, runs)
        if made is not None:
            new, contractions[made.node] = made.node, made.contraction
            for panel, source in made.panels.items():
                if panel.op is ops.CONSTANT:
                    packed[panel] = tuple(n for n in traverse.topological([source]) if n.op is ops.CONSTANT)
                    held.setdefault(contraction.b.source, Packed(contraction.b, made.contraction))
        replaced[node] = new
    results = tuple(replaced[r] for r in roots)
    shared = _read_elsewhere(results, contractions)
    return Prepared(results, {n: c for n, c in contractions.items() if n.inputs[0] not in shared}, packed, held)


def _innermost(roots: tuple[Node, ...]) -> dict[Node, int]:
    """The axis of each node that is innermost in an output. Outputs are row-major; nodes that they are computed from
    through views and elementwise primitives are included."""
    found = {root: k for root in roots for k, extent in enumerate(root.shape) if extent != 1}
    for node in reversed(traverse.topological(roots)):
        if node not in found:
            continue
        innermost = ir.axes(node.shape)[found[node]]
        for x in node.inputs:
            if node.op.kind is ops.Kind.ELEMENTWISE and x.shape == node.shape:
                found.setdefault(x, found[node])
            elif node.op is ops.VIEW and innermost in node.attr.index:
                found.setdefault(x, node.attr.index.index(innermost))
    return found


def _along_columns(found: Contraction, innermost: int, target: Target) -> Contraction:
    """``found``, whose result has the axis ``innermost`` innermost in memory. Where that is one of rows, A and B take
    each other's place if the estimate says so: what is stored across memory has to be transposed, and where a step of
    training updates it, it is read so, too."""
    found = replace(found, along_rows=innermost in found.m)
    if not found.along_rows or target.grid is not None or (other := exchanged(found)) is None:
        return found
    other = replace(other, along_rows=False)
    return min(found, other, key=lambda either: least_cycles(target, either))


def _of_many_rows(found: Contraction, target: Target) -> Contraction:
    """``found``, on a CPU with its axes in the order that the estimate says is best where its rows are few taps. Those
    of constant filters are the positions of a small image."""
    ways = over_taps(found) if target.grid is None and not is_constant(found.b.source) else []
    return min(ways, key=lambda way: least_cycles(target, way), default=found)


def _prepared_steps(
    node: Node,
    found: Contractions,
    target: Target,
    origins: ir.Origins,
    taken: set[Node],
    carried: set[Node],
    packings: Packings,
) -> tuple[Node, Prepared]:
    """A loop or branch with prepared bodies and operands in memory; and the bodies' contractions and packed weights."""
    inside = [prepare(body, found, target, origins, packings) for body in node.attr.bodies]
    contractions = {n: contraction for body in inside for n, contraction in body.contractions.items()}
    packed = {n: sources for body in inside for n, sources in body.packed.items()}
    held = {n: lies for body in reversed(inside) for n, lies in body.held.items()}
    node = ir.structured(node.op, node.inputs, node.attr.over(*(body.roots for body in inside)))
    node, moved = loops.hoisted(node, contractions)
    carries = node.attr.carries if node.op is not ops.COND else ()
    *others, last = node.attr.bodies
    owned = [tuple(loops.owned(body)) for body in others] + [tuple(loops.owned(last, carries))]
    node = ir.structured(node.op, node.inputs, node.attr.over(*owned))
    return loops.in_memory(node, taken, carried), Prepared((), {**contractions, **moved}, packed, held)


def _read_elsewhere(roots: tuple[Node, ...], contractions: Mapping[Node, Contraction]) -> set[Node]:
    """The outputs, and all nodes that something else than a contraction reads: a product in this set must be stored."""
    return set(roots) | {x for n in traverse.topological(roots) if n not in contractions for x in n.inputs}


@dataclass(frozen=True)
class _Made:
    node: Node
    contraction: Contraction
    panels: Mapping[Node, Node]  # each panel with the node that it was made from


class _Choice(NamedTuple):
    """The tile of a contraction, whose B is in its narrowest type; as a unit reads it, where one ``suits``, and the
    prologue that computes B."""

    found: Contraction
    tile: Tile
    suited: Contraction | None
    prologue: Prologue | None


def _choice(found: Contraction, target: Target, packings: Packings) -> _Choice | None:
    """None where the target has no tile for it."""
    if target.grid is not None and of_lines.has_few_rows(found, target.grid):
        return _in_lines(found, target)
    if not (found.m or target.tiles_rows):
        return None
    if found.dtype.is_integer:
        found = replace(found, b=_narrowest(found.b))
    columns = packings.get(found.b.source)
    prologue = narrow_weights(found, target.costs.memory) if target.grid is None or of_lines.is_fixed(found) else None
    if target.grid is not None:
        warps = None if prologue is None else by_fragments(found, prologue, target.grid)
        if warps is not None:
            return _Choice(found, block_tile(target, warps), warps, narrow_weights(warps, target.costs.memory))
        return _Choice(found, _tile(target, found, columns, prologue), None, prologue)
    scaled = None if prologue is None else in_blocks(found, prologue, target)
    if scaled is not None:
        blocks, unit = scaled
        tile = choose_tile(target, blocks, columns, unit=unit, scaled=True)
        return _Choice(found, tile, blocks, narrow_weights(blocks, target.costs.memory))
    suited = on_unit(target, found, columns) if prologue is None else None
    # Whether B is packed is decided by the sizes in the model, before a unit lengthens the runs of terms.
    if suited is not None:
        return _Choice(found, suited[1], suited[0], prologue)
    return _Choice(found, _tile(target, found, columns, prologue), None, prologue)


def _in_lines(found: Contraction, target: Target) -> _Choice:
    """Of rounded activations, their integers are summed, and what moves blocks of weights is summed apart; else sums of
    few terms are scaled as on CPUs (``_tile``)."""
    prologue = narrow_weights(found, target.costs.memory)
    rows = int(str(sym.upper(found.count(found.m))))
    scaled = found.apart or (prologue is not None and target.algebra == BOUNDED and same_scale(prologue) > 1)
    parts = integers_and_scale(found.a) if scaled else None
    suited = None if parts is None else replace(found, a=Operand(*parts[0]), scale=Operand(*parts[1]))
    return _Choice(found, Tile(rows, 1, 1, scaled=scaled, in_lines=True), suited, prologue)


def _laid_in_lines(choice: _Choice, target: Target) -> _Made:
    found, made = _narrowed_for(replace(choice.suited or choice.found, tile=choice.tile), target), {}
    if choice.prologue is None:
        b, line = of_lines.in_lines(found)
        made = {line: found.b.source}
    else:
        b, made = of_lines.computed(choice.prologue, found)
    found = replace(found, a=_in_memory(found.a), b=b, prologue=None)
    return _Made(found.node(), found, made)


def _prepared(found: Contraction, target: Target, packings: Packings, runs: Runs) -> _Made | None:
    choice = _choice(found, target, packings)
    if choice is None:
        return None
    if choice.tile.in_lines:
        return _laid_in_lines(choice, target)
    found, tile, suited, prologue = choice
    if is_constant(found.b.source):
        packings.setdefault(found.b.source, tile.columns)
    in_place = not (target.packs or is_constant(found.b.source))
    in_place = in_place or (
        tile.unit is None and direct(found, tile.columns) and not _evicts_itself(found, tile, target)
    )
    if not (in_place or found.m or is_constant(found.b.source)):
        return None  # packing B for a single row costs more than the row
    found = suited or found
    found = replace(found, tile=tile, a=_in_memory(found.a), b=_in_memory(found.b))
    if tile.unit is not None:
        found = replace(found, a=_in_runs(found, target, runs))
    elif target.packs and _strays(found, tile, target):
        beside = copied_along(found.a, moved_along(found.a, found.axes[found.k[-1]]))
        found = replace(found, a=beside, runs=(beside.source.rank - 1,))
    narrow, lies = found.a.source.dtype, packings.get(found.b.source)
    found = _narrowed_for(found, target)
    a = without_mask(found.a, found.shape) if found.a.valid and target.pads else found.a
    if a is None:
        return None
    made: dict[Node, Node] = {}
    b = found.b
    if prologue is not None and target.grid is not None:
        b, made = of_lines.computed(prologue, found, _rounded_to(narrow, target))
    elif target.grid is not None and lies == 1 and of_lines.is_fixed(found):
        b, line = of_lines.in_lines(found)
        made = {line: found.b.source}
    elif prologue is not None and not in_place:
        b = _computed(prologue, found, tile, made)
    elif not in_place:
        panel = panels(found, tile)
        made[panel] = found.b.source
        b = read_panels(panel, found, tile)
    found = replace(found, a=a, b=b, prologue=None)
    if tile.unit is not None:
        found = replace(found, runs=run_axes(found))
    return _Made(found.node(), found, made)


def _rounded_to(narrow: DType, target: Target) -> DType | None:
    """The type to which what is computed of narrow weights is rounded, as the user has chosen that of operands."""
    chosen = narrow == target.precision.stored and target.fragment(narrow, narrow) is not None
    return narrow if chosen else None


def _tile(target: Target, found: Contraction, columns: int | None, prologue: Prologue | None) -> Tile:
    if target.grid is not None:
        return block_tile(target, replace(found, a=_in_memory(found.a)))
    if prologue is None:
        return _in_place(target, found, choose_tile(target, found, columns))
    depth = typical(found.count(found.k))
    widest = target.costs.stack.panel // (depth * found.dtype.itemsize)
    if widest >= target.lanes(found.dtype):
        tile = choose_tile(target, found, columns, widest=widest)
        if _unpacks(found, tile, target.costs.tiles.of_panel):
            return replace(tile, unpacked=True)
    tile = choose_tile(target, found, columns, prologue)
    rows, every = min(tile.rows, max(lines(found))), same_scale(prologue)
    pays = found.dtype == f32 and target.costs.tiles.sum_scaled * rows <= every
    return replace(tile, scaled=True) if pays and target.algebra == BOUNDED else tile


def _in_place(target: Target, found: Contraction, tile: Tile) -> Tile:
    """``tile``, or one of fewer columns by which B can be read where it lies, if few tiles of rows would read each
    panel of B: writing the panels would cost more than they save."""
    often = _row_tiles(found, tile) >= target.costs.tiles.of_panel
    if often or not target.packs or is_constant(found.b.source) or direct(found, tile.columns):
        return tile
    for columns in range(tile.columns - tile.lanes, 0, -tile.lanes):
        if direct(found, columns):
            narrower = choose_tile(target, found, widest=columns)
            if direct(found, narrower.columns):
                return narrower
    return tile


def _evicts_itself(found: Contraction, tile: Tile, target: Target) -> bool:
    """Whether rows of B that a tile reads in place begin in few sets of the first-level cache, and evict each other
    before the next tile of rows reads them again, so that panels pay. Where all begin in one set, products of 1024
    columns take twice as long as from panels. Where samples have a B each, there are too few tiles of rows."""
    held = _held(found.b, found, tile.columns, target)
    if found.batch or held is None:
        return False
    often = _row_tiles(found, tile)
    if held > target.l1 // target.costs.memory.l1_way:
        often *= found.b.source.dtype.itemsize / target.costs.prefetch.line  # the next cache still holds the lines
    return often >= target.costs.tiles.of_panel


def _strays(found: Contraction, tile: Tile, target: Target) -> bool:
    """Whether all lines of A that a tile reads, whose rows lie side by side, fall into one set of the caches, and are
    read again for so many panels that a copy pays in which terms lie side by side. Tiles of 6 rows take 1.4 times as
    long without one; those of 14 have more to multiply while they wait."""
    held = None if is_constant(found.a.source) or found.a.valid else _held(found.a, found, tile.rows, target)
    if held is None or held > target.l1 // target.costs.memory.l1_way:
        return False
    return typical(found.count(found.n)) / tile.columns >= target.costs.tiles.of_panel * tile.rows


def _held(x: Operand, found: Contraction, side: int, target: Target) -> int | None:
    """How many terms the first-level cache holds of ``side`` neighbours of ``x``, where terms are apart in memory and
    fall into few of its sets, fewer than a sum has; else None. Values are taken to be row-major."""
    along = sym.as_var(found.axes[found.k[-1]])
    if along is None:
        return None
    place: Int = 0
    for index, size in zip(x.index, x.source.shape, strict=True):
        place = place * size + index
    linear, way = sym.coefficient(place, along), target.costs.memory.l1_way
    if linear is None or not isinstance(linear[0], int):
        return None
    size = x.source.dtype.itemsize
    apart = math.gcd(linear[0] * size, way)
    if apart <= max(side * size, target.costs.prefetch.line):
        return None
    held = target.l1 // way * (way // apart)
    return held if typical(found.count(found.k)) > held else None


def _unpacks(found: Contraction, tile: Tile, least: int) -> bool:
    """Whether ``least`` or more tiles of rows read each of several panels: then each panel is computed before them."""
    return typical(found.count(found.n)) > tile.columns and _row_tiles(found, tile) >= least


def _row_tiles(found: Contraction, tile: Tile) -> float:
    """The number of tiles of rows that read each panel."""
    line = max(lines(found))
    return typical(found.count(found.m)) / line * -(-line // tile.rows)


def _computed(prologue: Prologue, found: Contraction, tile: Tile, made: dict[Node, Node]) -> Operand:
    """B as ``prologue`` computes it from packed panels. Adds each panel, with the node that it packs, to ``made``."""
    shape = tuple(1 if k in found.m else extent for k, extent in enumerate(found.shape))
    depth: Int = 0
    for k in found.k:
        depth = depth * found.shape[k] + found.axes[k]
    values: dict[Leaf, Node] = {}
    plain = replace(tile, unit=None, depth=1)  # a unit reads what varies along K in groups
    for leaf in prologue.leaves:
        lies = tile if leaf.every == 1 else plain

        def packed(source: Node, every: int, first: int, leaf: Leaf = leaf, lies: Tile = lies) -> Node:
            return in_panels(Operand(source, leaf.index), found, lies, every, first)

        panel = narrow.packed(leaf, packed)
        made[panel] = leaf.source
        read = read_panels(panel, found, lies, leaf.every * leaf.per).read(shape)
        values[leaf] = narrow.unpacked(leaf, read, sym.floordiv(depth, lies.group))
    return Operand(prologue.value(values), tuple(0 if k in found.m else axis for k, axis in enumerate(found.axes)))


def _in_runs(found: Contraction, target: Target, runs: Runs) -> Operand:
    """A with a source in which the terms of a run can lie side by side: a copy where the source has no axis that runs
    along these terms."""
    a, axes = found.a, run_axes(found)
    if a.valid and not axes and target.pads and (padded := without_mask(a, found.shape)) is not None:
        a = padded
    if a.valid:
        return a
    if not axes:
        a = copied_apart(a, found)
        axes = (a.source.rank - 1,)
    return _along_its_runs(a, axes, runs)


def _along_its_runs(x: Operand, axes: tuple[int, ...], runs: Runs) -> Operand:
    """``x`` if its source can have ``axes`` innermost in memory, else ``x`` with a copy of the source that has them."""
    lies = tuple(range(x.source.rank)) if x.source.op is ops.INPUT else runs.setdefault(x.source, axes)
    if lies[-len(axes) :] == axes:
        return x
    return copied_along(x, axes)


def _in_memory(x: Operand) -> Operand:
    """``x``, its source copied to memory if that is a number or a formula of positions."""
    return x if _is_stored(x.source) else replace(x, source=ir.unary(ops.CONTIGUOUS, x.source))


def _narrowed_for(found: Contraction, target: Target) -> Contraction:
    """``found`` with a constant B in the type of A, where fragments multiply that and it holds B exactly."""
    narrow = found.a.source.dtype
    known = target.fragment(narrow, narrow) is not None
    return replace(found, b=_narrowed(found.b, narrow)) if known else found


def _narrowed(x: Operand, dtype: DType) -> Operand:
    """``x`` with its source in ``dtype``, if the source is constant and ``dtype`` holds its values exactly."""
    if x.source.dtype == dtype or not is_constant(x.source):
        return x
    (wide,) = interp.evaluate([x.source])
    exact = np.array_equal(wide.astype(dtype.numpy).astype(wide.dtype), wide)
    return _converted(x, dtype) if exact else x


def _narrowest(x: Operand) -> Operand:
    """``x`` with its source, if constant, in the narrowest of int8, uint8, int16 and uint16 that holds its values."""
    if not is_constant(x.source):
        return x
    dtype = narrow.narrowest(x.source, (i8, u8, i16, u16))
    return x if dtype == x.source.dtype else _converted(x, dtype)


def _converted(x: Operand, dtype: DType) -> Operand:
    """``x`` with its constants cast to ``dtype``, which must hold them exactly."""
    return replace(x, source=interp.folded(ir.cast(x.source, dtype)), fill=bytes(dtype.itemsize) if x.valid else b"")


def _is_stored(node: Node) -> bool:
    """Whether ``node`` has a source, through views and elementwise primitives, that is no number, position or size."""
    return any(
        x.op not in (ops.IOTA, ops.DIM) and not (x.op is ops.CONSTANT and x.size == 1)
        for x in traverse.sources([node], _is_read_through)
    )


def _is_read_through(node: Node) -> bool:
    return node.op is ops.VIEW or (node.op.kind is ops.Kind.ELEMENTWISE and node.op is not ops.CONTIGUOUS)
