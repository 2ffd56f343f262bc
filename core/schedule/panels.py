"""Operands of contractions in the form in which a tile reads them, as ordinary views.

B lies in panels ``[batch.., N/columns, K, columns]``, zero beyond N; those that a matrix unit reads are
``[batch.., N/columns, K/group, columns, group]``. A has no mask.
"""

from __future__ import annotations

from luminal.core import interp, ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.schedule.contraction import Operand, Roles, is_constant, run_of
from luminal.core.schedule.tile import Tile
from luminal.core.symbolic import Int, Var


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
    run = run_of(shape, found)
    terms = _terms(shape, found, group)
    depth = sym.product(terms)
    batch = tuple(shape[k] for k in found.batch)
    result: tuple[Int, ...] = (*batch, sym.ceildiv(count, columns), sym.floordiv(depth, every), columns)
    if tile.unit is not None:
        result = (*result[:-2], sym.floordiv(depth, group), columns, group)
    at = ir.axes(result)
    panel, row, inner, *beside = at[len(batch) :]
    column = panel * columns + inner
    row = row * group + beside[0] if beside else row
    by: dict[Var, Int] = {}
    _digits(by, [over[k] for k in found.batch], list(batch), None, at[: len(batch)])
    _digits(by, [over[k] for k in found.n], [shape[k] for k in found.n], column)
    _digits(by, [over[k] for k in found.k], terms, row * every + first)
    index = [sym.substitute(e, by) for e in b.index]
    valid = [*(sym.substitute(e, by) for e in b.valid), count - 1 - column]
    if (term := sym.as_var(over[run])) is not None:
        valid.append(shape[run] - 1 - by[term])
    return ir.view(b.source, result, index, valid, bytes(b.source.dtype.itemsize))


def _terms(shape: tuple[Int, ...], found: Roles, group: int) -> list[Int]:
    """The terms along each axis of K: groups begin where a run does."""
    run = run_of(shape, found)
    return [sym.ceildiv(shape[k], group) * group if k == run else shape[k] for k in found.k]


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
    for k, extent in zip(found.k, _terms(shape, found, group), strict=True):
        depth = depth * extent + over[k]
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
