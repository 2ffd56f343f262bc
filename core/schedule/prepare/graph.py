"""The graph with each contraction in the form in which a tile reads it.

B is read in panels and A without a mask (see ``contraction.panels``), as far as the target asks for it
(``Target.packs``, ``Target.pads``). Both are ordinary views made real with ``Contiguous``: for constants they fold into
the packed weights at compile time, for activations they are a copy kernel, whose pad or transpose the producer may
absorb.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from luminal.core import interp, ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.schedule.contraction import narrow as dequantise
from luminal.core.schedule.contraction.narrow import Prologue
from luminal.core.schedule.contraction.panels import direct, in_panels, panels, read_panels, without_mask
from luminal.core.schedule.contraction.roles import Operand, Roles, is_constant, operand, roles, run_axes, run_of
from luminal.core.schedule.contraction.terms import copied_along, copied_apart, on_unit
from luminal.core.schedule.contraction.tile import Tile, block_tile, choose_tile, lines
from luminal.core.schedule.prepare import loops as bodies
from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.target import Target
from luminal.core.types import DType, i8, i16, u8, u16


@dataclass(frozen=True)
class Prepared:
    """The graph with every contraction in readable form, the tile chosen for each, and the weights that were packed:
    each packed constant with the constants it was made of."""

    roots: tuple[Node, ...]
    tiles: Mapping[Node, Tile]
    packed: Mapping[Node, tuple[Node, ...]]


Packings: TypeAlias = dict[Node, int]  # in how many columns constants were packed
Runs: TypeAlias = dict[Node, tuple[int, ...]]  # the last axes, in memory, of what units read along them


def prepare(roots: tuple[Node, ...], target: Target, origins: ir.Origins, packings: Packings | None = None) -> Prepared:
    """Bring every contraction into readable form; ``origins`` gains those of the new nodes. Constants that were packed
    before, as ``packings`` says, are packed alike again: so entries of one program share them."""
    packings = {} if packings is None else packings
    replaced: dict[Node, Node] = {}
    tiles: dict[Node, Tile] = {}
    packed: dict[Node, tuple[Node, ...]] = {}
    loops: dict[Node, Node] = {}  # prepared, by the first of their results
    runs = {root: tuple(range(root.rank)) for root in roots}  # outputs are row-major
    innermost = _innermost(roots)
    taken = set(ir.topological(roots))
    carried: set[Node] = set()
    for node in ir.topological(roots):
        with ir.originating(origins, *origins.get(node, ())):
            new = ir.rebuild(node, [replaced[x] for x in node.inputs])
            if bodies.is_steps(new):
                first = ir.structured(new.op, new.inputs, replace(new.attr, result=0))
                if first not in loops:
                    taken |= bodies.copies(replaced[root] for root in roots if root in replaced)
                    loops[first], inside = _prepared_steps(first, target, origins, taken, carried, packings)
                    tiles |= inside.tiles
                    packed |= inside.packed
                replaced[node] = ir.structured(
                    new.op, loops[first].inputs, replace(loops[first].attr, result=new.attr.result)
                )
                continue
            if new.op is ops.HOST:
                replaced[node] = bodies.in_memory(new, taken, carried)
                continue
            found = roles(new)
            if found is not None and node in innermost:
                kept = [k for k in range(new.inputs[0].rank) if k not in new.attr.axes]
                found = replace(found, along_rows=kept[innermost[node]] in found.m)
            made = None if found is None else _prepared(new, found, target, packings, runs)
        if found is not None and made is not None:
            new, tiles[made.node] = made.node, made.tile
            for panel, source in made.panels.items():
                if panel.op is ops.CONSTANT:
                    packed[panel] = tuple(n for n in ir.topological([source]) if n.op is ops.CONSTANT)
        replaced[node] = new
    results = tuple(replaced[r] for r in roots)
    shared = _read_elsewhere(results, tiles)
    return Prepared(results, {n: t for n, t in tiles.items() if n.inputs[0] not in shared}, packed)


def _innermost(roots: tuple[Node, ...]) -> dict[Node, int]:
    """The axis of each node that is innermost in an output, which is row-major: of the outputs, and of those that they
    are computed from element by element."""
    found = {root: k for root in roots for k, extent in enumerate(root.shape) if extent != 1}
    for node in reversed(ir.topological(roots)):
        if node not in found:
            continue
        innermost = ir.axes(node.shape)[found[node]]
        for x in node.inputs:
            if node.op.kind is ops.Kind.ELEMENTWISE and x.shape == node.shape:
                found.setdefault(x, found[node])
            elif node.op is ops.VIEW and innermost in node.attr.index:
                found.setdefault(x, node.attr.index.index(innermost))
    return found


def _prepared_steps(
    node: Node, target: Target, origins: ir.Origins, taken: set[Node], carried: set[Node], packings: Packings
) -> tuple[Node, Prepared]:
    """A loop or branch with its bodies in readable form and its operands in memory, and what was chosen inside it."""
    inside = [prepare(body, target, origins, packings) for body in node.attr.bodies]
    tiles = {n: tile for body in inside for n, tile in body.tiles.items()}
    packed = {n: sources for body in inside for n, sources in body.packed.items()}
    node = ir.structured(node.op, node.inputs, node.attr.over(*(body.roots for body in inside)))
    node, moved = bodies.hoisted(node, tiles)
    carries = node.attr.carries if node.op is not ops.COND else ()
    *others, last = node.attr.bodies
    owned = [tuple(bodies.owned(body)) for body in others] + [tuple(bodies.owned(last, carries))]
    node = ir.structured(node.op, node.inputs, node.attr.over(*owned))
    return bodies.in_memory(node, taken, carried), Prepared((), {**tiles, **moved}, packed)


def _read_elsewhere(roots: tuple[Node, ...], tiles: Mapping[Node, Tile]) -> set[Node]:
    """What is an output, or read by anything but a contraction: a product among it has to be stored as it is."""
    return set(roots) | {x for n in ir.topological(roots) if n not in tiles for x in n.inputs}


@dataclass(frozen=True)
class _Made:
    node: Node
    tile: Tile
    panels: Mapping[Node, Node]  # each with what it was made of


def _prepared(node: Node, found: Roles, target: Target, packings: Packings, runs: Runs) -> _Made | None:
    product = node.inputs[0]
    if not (found.m or target.tiles_rows):
        return None
    if node.dtype.is_integer:
        found = replace(found, b=_narrowest(found.b))
    columns = packings.get(found.b.source)
    prologue = narrow_weights(product, found) if target.grid is None else None
    suited = on_unit(target, node, found, columns) if target.grid is None and prologue is None else None
    tile = suited.tile if suited is not None else _tile(target, node, found, columns, prologue)
    if is_constant(found.b.source):
        packings.setdefault(found.b.source, tile.columns)
    in_place = not (target.packs or is_constant(found.b.source))
    in_place = in_place or (tile.unit is None and direct(found.b, product, found, tile.columns))
    if not (in_place or found.m or is_constant(found.b.source)):
        return None  # packing B for a single row costs more than the row
    if suited is not None:
        found, product = suited.roles, suited.product
    found = replace(found, a=_in_memory(found.a), b=_in_memory(found.b))
    if tile.unit is not None:
        found = replace(found, a=_in_runs(product, found, target, runs))
    narrow = found.a.source.dtype
    if target.fragment(narrow, narrow) is not None:
        found = replace(found, b=_narrowed(found.b, narrow))
    a = without_mask(found.a, product) if found.a.valid and target.pads else _read(found.a, product)
    if a is None:
        return None
    made: dict[Node, Node] = {}
    if in_place:
        b = _read(found.b, product)
    elif prologue is not None:
        b = _computed(prologue, product, found, tile, made)
    else:
        panel = panels(found.b, product, found, tile)
        made[panel] = found.b.source
        b = ir.expand(read_panels(panel, product, found, tile), product.shape)
    factors = [x if x.dtype == product.dtype else ir.cast(x, product.dtype) for x in (a, b)]
    new = ir.reduce(ops.SUM_REDUCE, ir.elementwise(ops.MUL, *factors), node.attr.axes)
    return _Made(new, tile, made)


def narrow_weights(product: Node, found: Roles) -> Prologue | None:
    """What computes B where it is read, if that takes far fewer bytes than storing what it computes."""
    if found.b.valid or found.b.source.dtype != product.dtype or not is_constant(found.b.source):
        return None
    over, shape = ir.axes(product.shape), product.shape
    width = sym.product(shape[k] for k in (*found.batch, *found.n))
    return dequantise.find(found.b.source, found.b.index, [(over[k], shape[k]) for k in found.k], width)


def _tile(target: Target, node: Node, found: Roles, columns: int | None, prologue: Prologue | None) -> Tile:
    if target.grid is not None:
        return block_tile(target.grid, node, found)
    if prologue is None:
        return choose_tile(target, node, found, columns)
    product = node.inputs[0]
    depth = typical(sym.product(product.shape[k] for k in found.k))
    widest = target.costs.stack.panel // (depth * product.dtype.itemsize)
    if widest >= target.lanes(node.dtype):
        tile = choose_tile(target, node, found, columns, widest=widest)
        if _unpacks(product, found, tile, target.costs.tiles.of_panel):
            return replace(tile, unpacked=True)
    return choose_tile(target, node, found, columns, prologue)


def _unpacks(product: Node, found: Roles, tile: Tile, least: int) -> bool:
    """Whether ``least`` tiles of rows read each of several panels: these are better computed before them."""
    rows, columns = (typical(sym.product(product.shape[k] for k in axes)) for axes in (found.m, found.n))
    line = max(lines(product.shape, found))
    return columns > tile.columns and rows / line * -(-line // tile.rows) >= least


def _computed(prologue: Prologue, product: Node, found: Roles, tile: Tile, made: dict[Node, Node]) -> Node:
    """B as ``prologue`` computes it from panels, which ``made`` gains, each with what it was made of."""
    over = ir.axes(product.shape)
    depth: Int = 0
    for k in found.k:
        depth = depth * product.shape[k] + over[k]
    values: dict[dequantise.Leaf, Node] = {}
    for leaf in prologue.leaves:

        def packed(source: Node, every: int, first: int, leaf: dequantise.Leaf = leaf) -> Node:
            return in_panels(Operand(source, leaf.index, (), b""), product, found, tile, every, first)

        panel = dequantise.packed(leaf, packed)
        made[panel] = leaf.source
        read = read_panels(panel, product, found, tile, leaf.every * leaf.per)
        values[leaf] = dequantise.unpacked(leaf, read, depth)
    return ir.expand(prologue.value(values), product.shape)


def _in_runs(product: Node, found: Roles, target: Target, runs: Runs) -> Operand:
    """A with a source in which the terms of a run can lie side by side; where no axis of it is for them, a copy that
    has one."""
    a, axes = found.a, run_axes(product, found)
    if a.valid and not axes and target.pads and (padded := without_mask(a, product)) is not None:
        a = operand(padded)
    if a.valid:
        return a
    if not axes:
        a = copied_apart(a, product, run_of(product.shape, found))
        axes = (a.source.rank - 1,)
    return _along_its_runs(a, axes, runs)


def _along_its_runs(x: Operand, axes: tuple[int, ...], runs: Runs) -> Operand:
    """The operand with a source that can have ``axes`` innermost: itself, or a copy where it lies otherwise already."""
    lies = tuple(range(x.source.rank)) if x.source.op is ops.INPUT else runs.setdefault(x.source, axes)
    if lies[-len(axes) :] == axes:
        return x
    return copied_along(x, axes)


def _in_memory(x: Operand) -> Operand:
    """The operand with a source that is stored, where it was a number or a formula of positions."""
    return x if _is_stored(x.source) else replace(x, source=ir.unary(ops.CONTIGUOUS, x.source))


def _narrowed(x: Operand, dtype: DType) -> Operand:
    """The operand with a source of ``dtype``, where it is of constants that this type holds exactly."""
    if x.source.dtype == dtype or not is_constant(x.source):
        return x
    (wide,) = interp.evaluate([x.source])
    exact = np.array_equal(wide.astype(dtype.numpy).astype(wide.dtype), wide)
    return _converted(x, dtype) if exact else x


def _narrowest(x: Operand) -> Operand:
    """The operand with a source of the first type of few bytes that holds its constants."""
    if not is_constant(x.source):
        return x
    dtype = dequantise.narrowest(x.source, (i8, u8, i16, u16))
    return x if dtype == x.source.dtype else _converted(x, dtype)


def _converted(x: Operand, dtype: DType) -> Operand:
    """The operand with its constants as ``dtype``, which holds them."""
    return replace(x, source=interp.folded(ir.cast(x.source, dtype)), fill=bytes(dtype.itemsize) if x.valid else b"")


def _is_stored(node: Node) -> bool:
    """Whether ``node`` is computed from anything but numbers and positions."""
    return any(
        x.op not in (ops.IOTA, ops.DIM) and not (x.op is ops.CONSTANT and x.size == 1)
        for x in ir.sources([node], _is_read_through)
    )


def _is_read_through(node: Node) -> bool:
    return node.op is ops.VIEW or (node.op.kind is ops.Kind.ELEMENTWISE and node.op is not ops.CONTIGUOUS)


def _read(x: Operand, product: Node) -> Node:
    return ir.view(x.source, product.shape, x.index, x.valid, x.fill)
