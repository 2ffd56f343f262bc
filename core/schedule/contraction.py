"""Contractions, found by the roles of axes, and the form in which a tile operation reads them.

``SumReduce(Mul(a, b))`` is a contraction where some reduced axis indexes both operands and some kept axis indexes only
one of them. A kept axis in both operands is *batch*; in A alone, *M*; in B alone, *N*; a reduced axis is *K*. Two axes
that index one operand dimension together are a window, so a convolution is a contraction whose A is a window view.

``prepare`` rewrites each contraction so that B is read in panels ``[batch.., N/columns, K, columns]``, zero beyond N,
and A without a mask, as far as the target asks for it (``Target.packs``, ``Target.pads``). Both rewrites are ordinary
views made real with ``Contiguous``: for constants they fold into the packed weights at compile time, for activations
they are a copy kernel, whose pad or transpose the producer may absorb. Panels that a matrix unit reads are
``[batch.., N/columns, K/group, columns, group]``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from luminal.core import interp, ir, ops
from luminal.core import symbolic as sym
from luminal.core.decisions import Asked
from luminal.core.grid import Grid
from luminal.core.ir import Node
from luminal.core.matrix import MatrixUnit
from luminal.core.movement import permute
from luminal.core.printer import brief
from luminal.core.schedule import bodies, dequantise
from luminal.core.schedule.dequantise import Prologue
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target
from luminal.core.types import DType


@dataclass(frozen=True)
class Operand:
    """An operand of the product: element ``index`` of ``source`` under ``valid``, over the product's axes; elsewhere
    ``fill`` (the bytes of one element of ``source``). ``source`` may be stored in a narrower type than the product's.
    """

    source: Node
    index: tuple[Int, ...]
    valid: tuple[Int, ...]
    fill: bytes

    @property
    def variables(self) -> set[Var]:
        return {v for e in self.index for v in sym.variables(e)}


@dataclass(frozen=True)
class Roles:
    """The axes of a contraction by role, as positions in the product's shape."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    a: Operand
    b: Operand


_ZERO: Int = 0
ROWS = 14  # more rows of A than this take more registers for addresses than there are
FEW_STEPS = 8  # of a matrix unit: in more, a shorter step at the end counts less than shorter ones all along
FEW = 4  # a lower tile reads B as fast as it multiplies, and is for as many rows as it has


@dataclass(frozen=True, repr=False)
class Tile:
    """A register tile: at most ``rows`` of A against ``vectors`` vectors of ``lanes`` columns of B; where a matrix
    ``unit`` computes it, ``depth`` terms of the sum at a time. ``asked`` is the question that it answers, where that is
    to be noted."""

    rows: int
    vectors: int
    lanes: int
    unit: MatrixUnit | None = None
    depth: int = 1
    asked: Asked | None = field(default=None, compare=False, repr=False)

    __repr__ = brief

    def __str__(self) -> str:
        unit = "" if self.unit is None else f" on {self.unit}, {self.depth} terms at a time"
        return f"{self.rows} rows by {self.vectors} vectors of {self.lanes}{unit}"

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def group(self) -> int:
        """Elements of a column that lie side by side in panels."""
        return 1 if self.unit is None else self.unit.group


def operand(node: Node) -> Operand:
    """``node`` seen through its view, and through a widening cast of what it views."""
    index, valid, fill = ir.axes(node.shape), (), b""
    if node.op is ops.VIEW:
        attr = node.attr
        node, index, valid, fill = node.inputs[0], attr.index, attr.valid, attr.fill
    if node.op is ops.CAST and node.dtype.is_float and node.inputs[0].dtype.is_float and not any(fill):
        inner = operand(node.inputs[0])
        by = ir.rename(node.shape, index)
        filled = inner.source.dtype.has_zero or not valid
        if not inner.valid and filled and node.inputs[0].dtype.bits < node.dtype.bits:
            index = tuple(sym.substitute(e, by) for e in inner.index)
            return Operand(inner.source, index, valid, bytes(inner.source.dtype.itemsize) if valid else b"")
    return Operand(node, index, valid, fill)


def roles(node: Node) -> Roles | None:
    """The roles of the axes of ``node`` where it is a contraction, else None."""
    if node.op is not ops.SUM_REDUCE or node.inputs[0].op is not ops.MUL:
        return None
    product = node.inputs[0]
    if product.dtype.compute != product.dtype:
        return None  # each product rounds to its own type, which a sum in registers would skip
    left, right = (operand(x) for x in product.inputs)
    innermost = next(
        (k for k in reversed(range(product.rank)) if k not in node.attr.axes and product.shape[k] != 1), -1
    )
    ranked = sorted(
        ((left, right), (right, left)),
        key=lambda pair: (not is_constant(pair[1].source), not _depends(pair[1], product, innermost)),
    )
    for a, b in ranked:
        found = _assign(node, product, a, b)
        if found is not None:
            return found
    return None


def _depends(x: Operand, product: Node, axis: int) -> bool:
    return axis >= 0 and sym.as_var(ir.axes(product.shape)[axis]) in x.variables


@dataclass(frozen=True)
class _Known:
    """What a node depends on, where that is constants and positions alone: the elements of the largest constant, 0 for
    none, and whether positions are among it."""

    elements: int
    positions: bool


_knowledge: WeakKeyDictionary[Node, _Known | None] = WeakKeyDictionary()
DIGITS = 8  # elements at most that one of a constant holds


def is_constant(node: Node) -> bool:
    """Whether ``node`` depends on constants alone; on positions too where it is not much larger than the constants."""
    known = _known(node)
    if known is None or not known.elements:
        return False
    return not known.positions or (isinstance(node.size, int) and node.size <= DIGITS * known.elements)


def is_computed(node: Node) -> bool:
    """Whether ``node`` depends on constants and positions alone, constants among them."""
    known = _known(node)
    return known is not None and known.elements > 0


def _known(node: Node) -> _Known | None:
    stack = [node]
    while stack:
        current = stack[-1]
        pending = [x for x in current.inputs if x not in _knowledge]
        stack += pending
        if not pending:
            _knowledge[current] = _found(current)
            stack.pop()
    return _knowledge[node]


def _found(node: Node) -> _Known | None:
    if node.op is ops.CONSTANT:
        return _Known(max(1, math.prod(node.attr.shape)), False)
    if node.op is ops.IOTA:
        return _Known(0, True) if isinstance(node.size, int) else None
    below = [known for x in node.inputs if (known := _knowledge[x]) is not None]
    if not below or len(below) < len(node.inputs):
        return None
    return _Known(max(known.elements for known in below), any(known.positions for known in below))


def _assign(node: Node, product: Node, a: Operand, b: Operand) -> Roles | None:
    groups: dict[str, list[int]] = {"batch": [], "m": [], "n": [], "k": []}
    for position, axis in enumerate(ir.axes(product.shape)):
        variable = sym.as_var(axis)
        in_a, in_b = variable in a.variables, variable in b.variables
        if position in node.attr.axes:
            if variable is not None and not (in_a and in_b):
                return None
            groups["k"].append(position)
        elif variable is None:
            continue
        elif not (in_a or in_b):
            return None
        else:
            groups["batch" if in_a and in_b else "m" if in_a else "n"].append(position)
    if not groups["n"] or not any(product.shape[k] != 1 for k in groups["k"]):
        return None
    over = ir.axes(product.shape)
    n = {sym.as_var(over[k]) for k in groups["n"]}
    k = {sym.as_var(over[k]) for k in groups["k"]} - {None}
    groups["k"].sort(key=lambda axis: not _in_window(a, over, axis, n | k))
    windowed = any(sym.variables(e) & n and sym.variables(e) & k and not _separates(e) for e in b.index)
    zero = not any(a.fill) and not any(b.fill)
    if windowed or not zero:
        return None
    return Roles(tuple(groups["batch"]), tuple(groups["m"]), tuple(groups["n"]), tuple(groups["k"]), a, b)


def _in_window(a: Operand, over: tuple[Int, ...], axis: int, others: set[Var | None]) -> bool:
    """Whether a K axis of A shares a dimension with an M axis. Such axes go outside the others, which then run along
    memory where channels are last."""
    variable = sym.as_var(over[axis])
    return any(variable in (found := sym.variables(e)) and found - others for e in a.index)


def _separates(index: Int) -> bool:
    """Whether an index is the mixed-radix number of its axes (a reshape), not a window, where values coincide."""
    terms = sorted(((c, m) for m, c in index.terms), key=lambda t: t[0]) if isinstance(index, sym.Expr) else []
    reach = 0
    for coefficient, monomial in terms:
        high = sym.upper(sym.Expr(((monomial, 1),))) if monomial else None
        if high is None or coefficient <= reach:
            return False
        reach += coefficient * high
    return True


# ---- register tiles ------------------------------------------------------------------------------------------------


def choose_tile(
    target: Target,
    node: Node,
    found: Roles,
    columns_of_b: int | None = None,
    prologue: Prologue | None = None,
    widest: int = 1 << 30,
) -> Tile:
    """The register tile for the sizes of ``node``, of as many columns as B was packed in, if it was: the one with the
    least estimated cycles, unless the target's decisions know better; ``prologue`` is what computes B from what was
    packed. It has ``widest`` columns at most, but for a vector.

    A step of a tile of ``r`` rows and ``v`` vectors takes ``r*v`` multiply-adds and ``r + v`` loads, two of each a
    cycle, and no less than the four cycles that a multiply-add takes to come back to its accumulator; a little more
    where the panel comes from the second-level cache. The store of a tile takes longer for each row, whose cache lines
    are new, and for each vector. Measured against products of many shapes: see ``tests/test_blocking.py``. What a
    prologue computes, and holds in registers, it does for each vector of B.
    """
    lanes, size = target.lanes(node.dtype), node.dtype.itemsize
    shape = node.inputs[0].shape
    rows = max((typical(shape[k]) for k in found.m), default=1)
    columns = typical(sym.product(shape[k] for k in found.n))
    depth = typical(sym.product(shape[k] for k in found.k))

    def cycles(tile: Tile) -> float:
        count = -(-rows // tile.rows)
        height = rows / count
        near = (height + tile.columns) * depth * size <= target.l1
        step = max(height * tile.vectors / 2, (height + tile.vectors) / 2, 4.0) + (0.0 if near else 0.1 * tile.vectors)
        step += 0.0 if prologue is None else prologue.operations * tile.vectors / 2
        store = height * (6 + 4 * tile.vectors)
        return count * -(-columns // tile.columns) * (depth * step + store)

    budget = target.registers - (1 if prologue is None else 3)
    held = 1 if prologue is None else 1 + prologue.held
    tiles = [
        Tile(min(r, ROWS), v, lanes)
        for v in (1, 2, 3, 4, 6, 8)
        if (r := (budget - held * v) // v) >= min(rows, FEW)
        and v * lanes <= max(lanes, min(columns + lanes - 1, widest))
    ]
    fitting = sorted([tile for tile in tiles if tile.columns == columns_of_b] or tiles, key=cycles)
    chosen, asked = target.decisions.ask("tile", lambda: _described(node, found, prologue), fitting)
    return replace(chosen, asked=asked)


def _described(node: Node, found: Roles, prologue: Prologue | None) -> str:
    """What the steps of a contraction take to compute: its axes by role, and how they read A and B."""
    product = node.inputs[0]
    dims: dict[Var, Int] = {}

    def text(value: Int) -> str:
        return str(sym.substitute(value, _numbered(dims, sym.variables(value) - axes)))

    axes = {v for axis in ir.axes(product.shape) if (v := sym.as_var(axis)) is not None}
    parts = [f"{role} {[text(product.shape[k]) for k in getattr(found, role)]}" for role in ("batch", "m", "n", "k")]
    for name, operand in (("A", found.a), ("B", found.b)):
        where = "constant" if is_constant(operand.source) else "computed"
        index = [text(e) for e in (*operand.source.shape, *operand.index, *operand.valid)]
        parts.append(f"{name} {where} {operand.source.dtype} {index}")
    if prologue is not None:
        leaves = [f"{leaf.dtype} every {leaf.every}" for leaf in prologue.leaves]
        parts.append(f"B of {', '.join(leaves)} by {prologue.operations} operations, {prologue.held} held")
    return "\n".join([str(node.dtype), *parts, *(f"{dim} {v.lo}..{sym.upper(v.hi)}" for v, dim in dims.items())])


def _numbered(dims: dict[Var, Int], variables: set[Var]) -> dict[Var, Int]:
    """``dims``, which gives dimensions names of their own, with those of ``variables`` in it."""
    for v in sorted(variables - dims.keys(), key=lambda v: (v.lo, sym.upper(v.hi) or 0, v.name)):
        dims[v] = sym.var(f"d{len(dims)}", v.lo, v.hi)
    return dims


def unit_tile(target: Target, node: Node, found: Roles, columns_of_b: int | None = None) -> Tile | None:
    """The tile of a matrix unit for the operands of ``node``, as ``choose_tile`` gives that of vectors; None where no
    unit multiplies them, or where the terms of a sum lie in runs that it cannot take in equal steps.

    Each product of two registers reads one of each, of which those of the shorter side of the tile stay.
    """
    unit = target.unit(found.a.source.dtype, found.b.source.dtype, node.dtype)
    depth = 0 if unit is None or not found.m else step_depth(unit, [node.inputs[0].shape[k] for k in found.k])
    if unit is None or depth == 0:
        return None
    shape = node.inputs[0].shape
    rows = max(typical(shape[k]) for k in found.m)
    columns = typical(sym.product(shape[k] for k in found.n))

    def products(tile: Tile) -> float:
        """Products of registers that it takes, a load counted as a half."""
        high, wide = tile.rows // unit.rows, tile.vectors
        return -(-rows // tile.rows) * -(-columns // tile.columns) * (high * wide + (high + wide) / 2)

    tiles = [
        Tile(high * unit.rows, wide, unit.columns, unit, depth)
        for high, wide in itertools.product(range(1, unit.registers), repeat=2)
        if high <= wide and high * wide + high + 1 <= unit.registers
    ]
    return min([tile for tile in tiles if tile.columns == columns_of_b] or tiles, key=products)


def step_depth(unit: MatrixUnit, sizes: Sequence[Int]) -> int:
    """How many terms a step takes of the innermost of axes of these sizes; 0 where steps do not suit them.

    The last step along a single axis may be shorter; else steps divide the innermost axis, each run of which begins
    where those before it end.
    """
    *outer, run = sizes
    divisors = [d for d in range(unit.group, unit.depth + 1, unit.group) if isinstance(run, int) and run % d == 0]
    depth = max(divisors, default=0)
    if depth == run or (depth > unit.depth // 2 and typical(run) <= FEW_STEPS * unit.depth):
        return depth
    if all(size == 1 for size in outer):
        return min(unit.depth, -(-run // unit.group) * unit.group) if isinstance(run, int) else unit.depth
    return depth if depth >= unit.depth // 2 else 0


# Multiply-adds of a block in the time of one that reads nothing, by the side of each thread's part.
RATES = {4: 0.7, 8: 1.0}


def block_tile(grid: Grid, node: Node, found: Roles) -> Tile:
    """The tile of a block of threads: the one whose blocks, all processors working on them at once, are done first.
    Each thread has ``lanes`` rows and as many columns of it."""
    shape = node.inputs[0].shape
    batch, rows, columns = (typical(sym.product(shape[k] for k in axes)) for axes in (found.batch, found.m, found.n))

    def time(tile: Tile) -> float:
        blocks = batch * -(-rows // tile.rows) * -(-columns // tile.columns)
        return -(-blocks // grid.processors) * tile.rows * tile.columns / RATES[tile.lanes]

    return min((Tile(64, 16, 4), Tile(128, 16, 8), Tile(32, 8, 4)), key=time)


def typical(size: Int) -> int:
    """A representative number for a size: itself, or the geometric mean of its bounds."""
    if isinstance(size, int):
        return size
    low, high = sym.lower(size), sym.upper(size)
    if low is None or high is None:
        return 128
    return max(1, math.isqrt(max(1, low) * max(1, high)))


# ---- preparation ---------------------------------------------------------------------------------------------------


def panels(b: Operand, product: Node, found: Roles, tile: Tile) -> Node:
    """B made real in the order in which the tile operation reads it: ``[batch.., ceil(N/columns), K, columns]``, or
    with neighbours along K side by side."""
    packed = ir.unary(ops.CONTIGUOUS, in_panels(b, product, found, tile))
    return interp.folded(packed) if is_constant(b.source) else packed


def in_panels(b: Operand, product: Node, found: Roles, tile: Tile, every: int = 1, first: int = 0) -> Node:
    """The view of B in panels: of every so many positions along K the one that comes after ``first`` others."""
    columns, group = tile.columns, tile.group
    shape = product.shape
    over = ir.axes(shape)
    count = sym.product(shape[k] for k in found.n)
    depth = sym.product(shape[k] for k in found.k)
    batch = tuple(shape[k] for k in found.batch)
    result: tuple[Int, ...] = (*batch, sym.ceildiv(count, columns), sym.floordiv(depth, every), columns)
    if tile.unit is not None:
        result = (*result[:-2], sym.ceildiv(depth, group), columns, group)
    at = ir.axes(result)
    panel, row, inner, *beside = at[len(batch) :]
    column = panel * columns + inner
    row = row * group + beside[0] if beside else row
    by: dict[Var, Int] = {}
    _digits(by, [over[k] for k in found.batch], list(batch), None, at[: len(batch)])
    _digits(by, [over[k] for k in found.n], [shape[k] for k in found.n], column)
    _digits(by, [over[k] for k in found.k], [shape[k] for k in found.k], row * every + first)
    index = [sym.substitute(e, by) for e in b.index]
    valid = [*(sym.substitute(e, by) for e in b.valid), count - 1 - column, depth - 1 - row * every - first]
    return ir.view(b.source, result, index, valid, bytes(b.source.dtype.itemsize))


def _digits(
    by: dict[Var, Int], over: list[Int], extents: list[Int], flat: Int | None, direct: tuple[Int, ...] = ()
) -> None:
    """Put for each axis its digit of ``flat`` (row-major), or the axis in ``direct``."""
    for position in reversed(range(len(over))):
        if flat is None:
            digit = direct[position]
        elif position == 0:
            digit = flat
        else:
            digit, flat = sym.mod(flat, extents[position]), sym.floordiv(flat, extents[position])
        variable = sym.as_var(over[position])
        if variable is not None:
            by[variable] = digit


def read_panels(packed: Node, product: Node, found: Roles, tile: Tile, every: int = 1) -> Node:
    """The view of packed panels that has the product's shape, but for axes that only A has: these are 1 long."""
    columns, group = tile.columns, tile.group
    shape = tuple(1 if k in found.m else extent for k, extent in enumerate(product.shape))
    over = ir.axes(shape)
    column: Int = 0
    for k in found.n:
        column = column * shape[k] + over[k]
    depth: Int = 0
    for k in found.k:
        depth = depth * shape[k] + over[k]
    batch = [over[k] for k in found.batch]
    panel, row, inner = sym.floordiv(column, columns), sym.floordiv(depth, every), sym.mod(column, columns)
    if tile.unit is None:
        return ir.view(packed, shape, [*batch, panel, row, inner])
    return ir.view(packed, shape, [*batch, panel, sym.floordiv(row, group), inner, sym.mod(row, group)])


def without_mask(a: Operand, product: Node) -> Node | None:
    """A with its padding made real: the masked dimensions are copied into a larger array, zero around the border.

    None where a mask is not the range of one dimension.
    """
    before: list[Int] = [0] * len(a.index)
    shape: list[Int] = list(a.source.shape)
    left = list(a.valid)
    for position, (index, size) in enumerate(zip(a.index, a.source.shape, strict=True)):
        mine = [v for v in left if v == index or v == size - 1 - index]
        if mine:
            low, high = sym.lower(index), _highest(index)
            if low is None or high is None:
                return None
            before[position] = -min(low, 0)
            shape[position] = high + 1 + before[position]
            left = [v for v in left if v not in mine]
    if left:
        return None
    at = ir.axes(tuple(shape))
    moved = [e - b for e, b in zip(at, before, strict=True)]
    valid = [c for e, d in zip(moved, a.source.shape, strict=True) for c in (e, d - 1 - e)]
    padded = ir.unary(ops.CONTIGUOUS, ir.view(a.source, shape, moved, valid, a.fill))
    return ir.view(padded, product.shape, [e + b for e, b in zip(a.index, before, strict=True)])


def _highest(index: Int) -> Int | None:
    """The largest value of an index, symbolic where sizes are."""
    total: Int = 0
    for monomial, coefficient in index.terms if isinstance(index, sym.Expr) else (((), index),):
        if not monomial:
            total = total + coefficient
            continue
        if len(monomial) != 1 or not isinstance(monomial[0], Var):
            return None
        total = total + coefficient * (monomial[0].hi if coefficient > 0 else monomial[0].lo)
    return total


def direct(b: Operand, product: Node, found: Roles, columns: int) -> bool:
    """Whether B can be read in place: one N axis, running along the last dimension, filling whole tiles."""
    if len(found.n) != 1 or b.valid or is_constant(b.source):
        return False
    size = product.shape[found.n[0]]
    variable = sym.as_var(ir.axes(product.shape)[found.n[0]])
    if sym.mod(size, columns) != 0 or variable is None:
        return False
    *outer, last = (sym.coefficient(e, variable) for e in b.index)
    return last is not None and last[0] == 1 and all(c is not None and c[0] == 0 for c in outer)


@dataclass(frozen=True)
class Prepared:
    """The graph with every contraction in readable form, the tile chosen for each, and the weights that were packed:
    each packed constant with the constants it was made of."""

    roots: tuple[Node, ...]
    tiles: Mapping[Node, Tile]
    packed: Mapping[Node, tuple[Node, ...]]


Packings: TypeAlias = dict[Node, int]  # in how many columns constants were packed


def prepare(roots: tuple[Node, ...], target: Target, origins: ir.Origins, packings: Packings | None = None) -> Prepared:
    """Bring every contraction into readable form; ``origins`` gains those of the new nodes. Constants that were packed
    before, as ``packings`` says, are packed alike again: so entries of one program share them."""
    packings = {} if packings is None else packings
    replaced: dict[Node, Node] = {}
    tiles: dict[Node, Tile] = {}
    packed: dict[Node, tuple[Node, ...]] = {}
    loops: dict[Node, Node] = {}  # prepared, by the first of their results
    runs = {root: root.rank - 1 for root in roots}  # outputs are row-major
    taken = set(ir.topological(roots))
    for node in ir.topological(roots):
        with ir.originating(origins, *origins.get(node, ())):
            new = ir.rebuild(node, [replaced[x] for x in node.inputs])
            if bodies.is_steps(new):
                first = ir.structured(new.op, new.inputs, replace(new.attr, result=0))
                if first not in loops:
                    taken |= bodies.copies(replaced[root] for root in roots if root in replaced)
                    loops[first], inside = _prepared_steps(first, target, origins, taken, packings)
                    tiles |= inside.tiles
                    packed |= inside.packed
                replaced[node] = ir.structured(
                    new.op, loops[first].inputs, replace(loops[first].attr, result=new.attr.result)
                )
                continue
            if new.op is ops.HOST:
                replaced[node] = bodies.in_memory(new, taken)
                continue
            found = roles(new)
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


def _prepared_steps(
    node: Node, target: Target, origins: ir.Origins, taken: set[Node], packings: Packings
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
    return bodies.in_memory(node, taken), Prepared((), {**tiles, **moved}, packed)


def _read_elsewhere(roots: tuple[Node, ...], tiles: Mapping[Node, Tile]) -> set[Node]:
    """What is an output, or read by anything but a contraction: a product among it has to be stored as it is."""
    return set(roots) | {x for n in ir.topological(roots) if n not in tiles for x in n.inputs}


@dataclass(frozen=True)
class _Made:
    node: Node
    tile: Tile
    panels: Mapping[Node, Node]  # each with what it was made of


def _prepared(node: Node, found: Roles, target: Target, packings: Packings, runs: dict[Node, int]) -> _Made | None:
    product = node.inputs[0]
    if not (found.m or target.tiles_rows):
        return None
    columns = packings.get(found.b.source)
    prologue = narrow_weights(product, found) if target.grid is None else None
    tile = _tile(target, node, found, columns, prologue)
    if is_constant(found.b.source):
        packings.setdefault(found.b.source, tile.columns)
    in_place = not (target.packs or is_constant(found.b.source))
    in_place = in_place or (tile.unit is None and direct(found.b, product, found, tile.columns))
    if not (in_place or found.m or is_constant(found.b.source)):
        return None  # packing B for a single row costs more than the row
    found = replace(found, a=_in_memory(found.a), b=_in_memory(found.b))
    if tile.unit is not None and not found.a.valid:
        found = replace(found, a=_along_its_run(found.a, run_axis(product, found), runs))
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
        return unit_tile(target, node, found, columns) or choose_tile(target, node, found, columns)
    widest = _unpacked_columns(node.inputs[0], found)
    if widest >= target.lanes(node.dtype):
        return choose_tile(target, node, found, columns, widest=widest)
    return choose_tile(target, node, found, columns, prologue)


def _unpacked_columns(product: Node, found: Roles) -> int:
    """The columns of the widest panel of B that is computed before the tiles of rows that share it; 0 where too few
    share one."""
    rows = max((typical(product.shape[k]) for k in found.m), default=1)
    depth = typical(sym.product(product.shape[k] for k in found.k))
    shared = rows > (dequantise.TILES - 1) * ROWS
    return dequantise.PANEL_BYTES // (depth * product.dtype.itemsize) if shared else 0


def _computed(prologue: Prologue, product: Node, found: Roles, tile: Tile, made: dict[Node, Node]) -> Node:
    """B as ``prologue`` computes it from panels, which ``made`` gains, each with what it was made of."""
    over, depth = ir.axes(product.shape), _ZERO
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


def run_axis(product: Node, found: Roles) -> int | None:
    """The axis of A's source along which a matrix unit reads terms that lie side by side."""
    term = sym.as_var(ir.axes(product.shape)[next(k for k in found.k[::-1] if product.shape[k] != 1)])
    if term is None:
        return None
    linear = (sym.coefficient(index, term) for index in found.a.index)
    return next((axis for axis, x in enumerate(linear) if x is not None and x[0] == 1), None)


def _along_its_run(x: Operand, axis: int | None, runs: dict[Node, int]) -> Operand:
    """The operand with a source that can lie along ``axis``: itself, or a copy where it lies otherwise already."""
    first = x.source.rank - 1 if x.source.op is ops.INPUT else axis
    if axis is None or runs.setdefault(x.source, first or 0) == axis:
        return x
    order = [*(k for k in range(x.source.rank) if k != axis), axis]
    copied = ir.unary(ops.CONTIGUOUS, permute(x.source, order))
    return Operand(copied, tuple(x.index[k] for k in order), x.valid, x.fill)


def _in_memory(x: Operand) -> Operand:
    """The operand with a source that is stored, where it was a number or a formula of positions."""
    return x if _is_stored(x.source) else replace(x, source=ir.unary(ops.CONTIGUOUS, x.source))


def _narrowed(x: Operand, dtype: DType) -> Operand:
    """The operand with a source of ``dtype``, where it is of constants that this type holds exactly."""
    if x.source.dtype == dtype or not is_constant(x.source):
        return x
    (wide,) = interp.evaluate([x.source])
    if not np.array_equal(wide.astype(dtype.numpy).astype(wide.dtype), wide):
        return x
    return replace(x, source=interp.folded(ir.cast(x.source, dtype)), fill=bytes(dtype.itemsize) if x.valid else b"")


def _is_stored(node: Node) -> bool:
    if node.op is ops.VIEW or (node.op.kind is ops.Kind.ELEMENTWISE and node.op is not ops.CONTIGUOUS):
        return any(_is_stored(x) for x in node.inputs)
    return node.op not in (ops.IOTA, ops.DIM) and not (node.op is ops.CONSTANT and node.size == 1)


def _read(x: Operand, product: Node) -> Node:
    return ir.view(x.source, product.shape, x.index, x.valid, x.fill)
