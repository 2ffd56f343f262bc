"""Operands of contractions in the form in which a tile reads them, as ordinary views.

B lies in panels ``[batch.., N/columns, K, columns]``, zero beyond N; those that a matrix unit reads are
``[batch.., N/columns, K/group, columns, group]``. A has no mask.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from luminal.core import interp, ir, ops
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.ir import Node, Shape
from luminal.core.matching import invert
from luminal.core.schedule.contraction.contraction import Contraction, Operand, Tile
from luminal.core.symbolic import Int, Var


def panels(found: Contraction, tile: Tile) -> Node:
    """B copied into panels ``[batch.., ceil(N/columns), K, columns]``, for a matrix unit with groups along K innermost.
    Constants are folded."""
    packed = ir.unary(ops.CONTIGUOUS, in_panels(found.b, found, tile))
    return interp.folded(packed) if is_constant(found.b.source) else packed


def in_panels(b: Operand, found: Contraction, tile: Tile, every: int = 1, first: int = 0) -> Node:
    """The view of ``b`` in panels, taking position ``first`` of every ``every`` positions along K; of groups, where
    those lie side by side."""
    columns, group = tile.columns, tile.group
    shape, over, run = found.shape, found.axes, found.run
    count = found.count(found.n)
    terms = _terms(found, group)
    depth = sym.product(terms)
    batch = tuple(shape[k] for k in found.batch)
    result: tuple[Int, ...] = (*batch, sym.ceildiv(count, columns), sym.floordiv(depth, every), columns)
    if tile.unit is not None:
        result = (*result[:-2], sym.floordiv(depth, group * every), columns, group)
    at = ir.axes(result)
    panel, row, inner, *beside = at[len(batch) :]
    column = panel * columns + inner
    row = row * every + first
    row = row * group + beside[0] if beside else row
    by: dict[Var, Int] = {}
    _digits(by, [over[k] for k in found.batch], list(batch), None, at[: len(batch)])
    _digits(by, [over[k] for k in found.n], [shape[k] for k in found.n], column)
    _digits(by, [over[k] for k in found.k], terms, row)
    index = [sym.substitute(e, by) for e in b.index]
    valid = [*(sym.substitute(e, by) for e in b.valid), count - 1 - column]
    if (term := sym.as_var(over[run])) is not None:
        valid.append(shape[run] - 1 - by[term])
    return ir.view(b.source, result, index, valid, bytes(b.source.dtype.itemsize))


def _terms(found: Contraction, group: int) -> list[Int]:
    """The extents of the axes of K, that of the run rounded up to a multiple of ``group``."""
    shape, run = found.shape, found.run
    return [sym.ceildiv(shape[k], group) * group if k == run else shape[k] for k in found.k]


def _digits(
    by: dict[Var, Int], over: list[Int], extents: list[Int], flat: Int | None, direct: tuple[Int, ...] = ()
) -> None:
    """Map the variable of each axis in ``by`` to its digit of ``flat`` (row-major), or to the index in ``direct``."""
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


def read_panels(packed: Node, found: Contraction, tile: Tile, every: int = 1) -> Operand:
    """B read from ``packed`` panels, over the axes of the product. Each element of the panels is for ``every``
    positions along K, or groups of them."""
    columns, group, shape, over = tile.columns, tile.group, found.shape, found.axes
    column: Int = 0
    for k in found.n:
        column = column * shape[k] + over[k]
    depth: Int = 0
    for k, extent in zip(found.k, _terms(found, group), strict=True):
        depth = depth * extent + over[k]
    batch = [over[k] for k in found.batch]
    panel, row, inner = sym.floordiv(column, columns), sym.floordiv(depth, group * every), sym.mod(column, columns)
    if tile.unit is None:
        return Operand(packed, (*batch, panel, row, inner))
    return Operand(packed, (*batch, panel, row, inner, sym.mod(depth, group)))


@dataclass(frozen=True)
class Packed:
    """A constant in panels: B of ``found``, prepared, is what was ``before`` read from the constant."""

    before: Operand
    found: Contraction

    def whole(self) -> Node | None:
        """All of the constant, read from the panels; None where B is not each of its elements once."""
        source, found = self.before.source, self.found
        shape = tuple(1 if k in found.m else extent for k, extent in enumerate(found.shape))
        place = None if self.before.valid else invert(shape, self.before.index, source.shape, ir.axes(source.shape))
        if place is None:
            return None
        read = found.b.over(ir.rename(shape, place)).read(source.shape)
        return read if read.dtype == source.dtype else ir.cast(read, source.dtype)


def without_mask(a: Operand, shape: Shape) -> Operand | None:
    """``a``, over a product of ``shape``, with its padding copied to memory: masked dimensions become larger, with the
    fill around them. None where a mask is no range of a dimension, nor of a position that is a sum of axes of the
    product with positive integer steps."""
    return _padded(a) or _padded_positions(a, shape)


def _padded(a: Operand) -> Operand | None:
    """``without_mask`` if every mask is the range of one dimension, else None."""
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
    return Operand(padded, tuple(e + b for e, b in zip(a.index, before, strict=True)))


def _padded_positions(a: Operand, product: Shape) -> Operand | None:
    """``without_mask`` where one dimension holds several positions, or is read with a stride, such as an image stored
    as a row of tokens, or read in every other row: masked positions become dimensions of the copy."""
    over = ir.axes(product)
    own = {v: k for k, axis in enumerate(over) if (v := sym.as_var(axis)) is not None}
    steps: list[dict[Var, int]] = []  # for each kind of position, its step along each axis that moves it
    for condition in a.valid:
        slopes = _slopes(condition, sym.variables(condition) & own.keys())
        if not slopes:
            return None
        unit = math.gcd(*slopes.values()) * (1 if next(iter(slopes.values())) > 0 else -1)
        position = {v: slope // unit for v, slope in slopes.items()}
        if position not in steps:
            steps.append(position)
    masked = {v for position in steps for v in position}
    if len(masked) < sum(map(len, steps)) or any(step < 0 for position in steps for step in position.values()):
        return None
    moved = [d for d, e in enumerate(a.index) if sym.variables(e) & masked]
    kept = [d for d in range(len(a.index)) if d not in moved]
    beside = {v for d in moved for v in sym.variables(a.index[d]) if v in own} - masked
    axes = [k for v, k in own.items() if v in beside]
    counts = [sum((v.hi * step for v, step in position.items()), start=1) for position in steps]
    shape = (*(a.source.shape[d] for d in kept), *(product[k] for k in axes), *counts)
    at = ir.axes(shape)
    by: dict[Var, Int] = dict.fromkeys(masked, 0)
    by |= dict(zip((v for v in own if v in beside), at[len(kept) :], strict=False))
    positions = at[len(kept) + len(axes) :]

    def moving(value: Int) -> Int | None:
        """``value`` as an expression of the positions; None if the axes that move them move it in another way."""
        total = sym.substitute(value, by)
        for position, place in zip(steps, positions, strict=True):
            slopes = _slopes(value, sym.variables(value) & position.keys())
            times = set() if slopes is None else {divmod(slopes.get(v, 0), step) for v, step in position.items()}
            if len(times) != 1 or (found := times.pop())[1]:
                return None
            total = total + place * found[0]
        return total

    index = [at[kept.index(d)] if d in kept else moving(e) for d, e in enumerate(a.index)]
    valid = [moving(condition) for condition in a.valid]
    known = [e for e in index if e is not None], [e for e in valid if e is not None]
    if len(known[0]) < len(index) or len(known[1]) < len(valid):
        return None
    padded = ir.unary(ops.CONTIGUOUS, ir.view(a.source, shape, *known, a.fill))
    places = [sum(step * sym.expr(v) for v, step in position.items()) for position in steps]
    return Operand(padded, (*(a.index[d] for d in kept), *(over[k] for k in axes), *places))


def _slopes(value: Int, axes: Set[Var]) -> dict[Var, int] | None:
    """The coefficients of ``value`` along ``axes``, ordered by name; None unless all are integers."""
    found = {v: sym.coefficient(value, v) for v in sorted(axes, key=lambda v: v.name)}
    slopes = {v: linear[0] for v, linear in found.items() if linear is not None and isinstance(linear[0], int)}
    return slopes if len(slopes) == len(found) else None


def _highest(index: Int) -> Int | None:
    """The largest value of a linear index, symbolic if sizes are; None if it is not linear."""
    total: Int = 0
    for monomial, coefficient in index.terms if isinstance(index, sym.Expr) else (((), index),):
        if not monomial:
            total = total + coefficient
            continue
        if len(monomial) != 1 or not isinstance(monomial[0], Var):
            return None
        total = total + coefficient * (monomial[0].hi if coefficient > 0 else monomial[0].lo)
    return total


def direct(found: Contraction, columns: int) -> bool:
    """Whether B can be read in place: not constant, no mask, one N axis of whole tiles along the last dimension."""
    b = found.b
    if len(found.n) != 1 or b.valid or is_constant(b.source):
        return False
    size = found.shape[found.n[0]]
    variable = sym.as_var(found.axes[found.n[0]])
    if sym.mod(size, columns) != 0 or variable is None:
        return False
    *outer, last = (sym.coefficient(e, variable) for e in b.index)
    return last is not None and last[0] == 1 and all(c is not None and c[0] == 0 for c in outer)
