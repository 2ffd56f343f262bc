"""Weights in lines, ``[batch.., N, K]``: the terms of a column side by side, as the threads of a block read them.

Numbers of few bits that share a byte are ``RUN`` positions apart, or as few as divide K, so that the bytes that a
thread reads at once unpack to neighbours: byte y of a part has positions y, y + run, .. of it.
"""

from __future__ import annotations

from collections.abc import Callable

from luminal.core import interp, ir, ops
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.grid import ALIGNMENT, Grid
from luminal.core.ir import Node
from luminal.core.schedule.contraction import narrow
from luminal.core.schedule.contraction.contraction import Contraction, Operand
from luminal.core.schedule.contraction.prologue import Leaf, Prologue
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, f32

RUN = ALIGNMENT  # bytes that a thread reads at once


def run_of(rows: int, per: int) -> int:
    """How many bytes lie side by side before the second of ``per`` numbers of each of them follows, of ``rows`` numbers
    in a line."""
    run = RUN
    while rows % (run * per):
        run //= 2
    return run


def has_few_rows(found: Contraction, grid: Grid) -> bool:
    """Whether blocks sum ``found`` column by column: few rows, of constants that can lie in lines."""
    rows, few = sym.upper(found.count(found.m)), grid.costs.few
    return is_fixed(found) and not found.a.valid and is_constant(found.b.source) and rows is not None and rows <= few


def is_fixed(found: Contraction) -> bool:
    """Whether B can lie in lines: it has known sizes, and no mask."""
    sizes = [found.count(axes) for axes in (found.batch, found.n, found.k)]
    return found.dtype == f32 and not found.b.valid and all(isinstance(size, int) and size > 0 for size in sizes)


def in_lines(found: Contraction) -> tuple[Operand, Node]:
    """B of ``found``, a constant, read from lines, and these."""
    packed = interp.folded(ir.unary(ops.CONTIGUOUS, _lines(found.b, found, _depth(found), lambda y: y)))
    return _read(packed, found, _position(found)), packed


def computed(prologue: Prologue, found: Contraction, rounded: DType | None = None) -> tuple[Operand, dict[Node, Node]]:
    """B as ``prologue`` computes it from lines, ``rounded`` where that is given; and each constant in lines with the
    node that it packs."""
    shape = tuple(1 if k in found.m else extent for k, extent in enumerate(found.shape))
    made: dict[Node, Node] = {}
    values: dict[Leaf, Node] = {}
    position, depth = _position(found), _depth(found)
    for leaf in prologue.leaves:
        rows = depth // leaf.every
        run = run_of(rows, leaf.per) if leaf.per > 1 else 1

        def packed(source: Node, every: int, first: int, leaf: Leaf = leaf, run: int = run) -> Node:
            def place(y: Int) -> Int:
                if leaf.per == 1:
                    return y * leaf.every
                number = first // leaf.every
                part = sym.floordiv(y, run) * (run * leaf.per)
                return (part + number * run + sym.mod(y, run)) * leaf.every

            return _lines(Operand(source, leaf.index), found, depth // every, place)

        line = narrow.packed(leaf, packed)
        made[line] = leaf.source
        row = sym.floordiv(position, leaf.every)
        byte = row if leaf.per == 1 else sym.floordiv(row, run * leaf.per) * run + sym.mod(row, run)
        values[leaf] = narrow.unpacked(leaf, _read(line, found, byte).read(shape), position, run)
    value = prologue.value(values)
    value = value if rounded is None else ir.cast(ir.cast(value, rounded), value.dtype)
    return Operand(value, tuple(0 if k in found.m else axis for k, axis in enumerate(found.axes))), made


def _depth(found: Contraction) -> int:
    return int(str(found.count(found.k)))


def _position(found: Contraction) -> Int:
    """The position along all axes of K together."""
    depth: Int = 0
    for k in found.k:
        depth = depth * found.shape[k] + found.axes[k]
    return depth


def _lines(b: Operand, found: Contraction, rows: int, place: Callable[[Int], Int]) -> Node:
    """The view of ``b`` in lines of ``rows`` elements, number y of which is at position ``place(y)`` along K."""
    batch = tuple(found.shape[k] for k in found.batch)
    result: tuple[Int, ...] = (*batch, found.count(found.n), rows)
    at = ir.axes(result)
    by: dict[Var, Int] = {}
    _named(by, found, found.batch, at[: len(batch)])
    for axes, flat in ((found.n, at[-2]), (found.k, place(at[-1]))):
        digits: list[Int] = []
        for k in reversed(axes):
            digit, flat = (
                (flat, 0) if k == axes[0] else (sym.mod(flat, found.shape[k]), sym.floordiv(flat, found.shape[k]))
            )
            digits.insert(0, digit)
        _named(by, found, axes, tuple(digits))
    return ir.view(b.source, result, [sym.substitute(e, by) for e in b.index])


def _named(by: dict[Var, Int], found: Contraction, axes: tuple[int, ...], at: tuple[Int, ...]) -> None:
    for k, digit in zip(axes, at, strict=True):
        if (variable := sym.as_var(found.axes[k])) is not None:
            by[variable] = digit


def _read(packed: Node, found: Contraction, byte: Int) -> Operand:
    """Element ``byte`` of the line of each column."""
    column: Int = 0
    for k in found.n:
        column = column * found.shape[k] + found.axes[k]
    return Operand(packed, (*(found.axes[k] for k in found.batch), column, byte))
