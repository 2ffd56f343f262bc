"""Views of divided values: which part of the result a rank can read from its part of the operand alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from luminal.core import ir
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.mesh import placement as where
from luminal.core.mesh.placement import RANK, WHOLE, Owned, Partial, Placement, Split
from luminal.core.symbolic import Int, Var


@lru_cache(maxsize=1 << 15)
def viewed(node: Node, operand: Placement, result: Placement, size: int) -> Node | None:
    """The view ``node`` of a rank's part of the operand, an input of that shape, as the rank's part of the result; None
    where another rank's elements would be needed."""
    attr = node.attr
    assert not isinstance(operand, Owned) and not isinstance(result, Owned)
    if isinstance(operand, Partial):
        zero = not any(attr.fill)
        fine = result == operand and (not attr.valid or (operand.by == "sum" and zero))
        return node if fine else None
    if isinstance(result, Partial):
        return None
    who = where.rank(size)
    by = where.in_whole(node.shape, result, size, who)
    index = [sym.substitute(e, by) for e in attr.index]
    valid = [sym.substitute(e, by) for e in attr.valid]
    if isinstance(operand, Split):
        at = index[operand.axis]
        if where.owner(at, operand.inner, size) != who:
            return None
        index[operand.axis] = where.place(at, operand.inner, size)
    if any(v.name == RANK for e in (*index, *valid) for v in sym.variables(e)):
        return None
    given = ir.input_("part", where.local(node.inputs[0].shape, operand, size), node.dtype)
    return ir.view(given, where.local(node.shape, result, size), index, valid, attr.fill)


@lru_cache(maxsize=1 << 15)
def picked(node: Node, operand: Placement, result: Owned) -> range | None:
    """The axes of the operand of the view ``node`` of which a rank reads what it owns of the result, and nothing else
    along them; None where it reads other elements, or those of other ranks. ``operand`` is whole or owned."""
    attr, shape = node.attr, node.inputs[0].shape
    over = [ir.axes(node.shape)[k] for k in result.axes]
    own = {v for axis in over for v in sym.variables(axis)}
    others = {v for axis in ir.axes(node.shape) for v in sym.variables(axis)} - own
    if any(own.intersection(sym.variables(e)) for e in attr.valid):
        return None
    moved = [k for k, e in enumerate(attr.index) if own.intersection(sym.variables(e))]
    if isinstance(operand, Owned):
        axes = operand.axes
        here = where.flat(tuple(shape[k] for k in axes), [attr.index[k] for k in axes])
        there = where.flat(tuple(node.shape[k] for k in result.axes), over)
        return axes if operand.lookup == result.lookup and here == there and set(moved) <= set(axes) else None
    axes = range(moved[0], moved[-1] + 1) if moved else range(0)
    crossed = any(others.intersection(sym.variables(attr.index[k])) for k in axes)
    return None if operand != WHOLE or crossed else axes


def results(node: Node, operand: Placement, size: int) -> Iterator[Placement]:
    """How the result of the view ``node`` may lie where its operand lies so."""
    if isinstance(operand, Partial):
        yield operand
    if isinstance(operand, Owned):
        yield from _owned_results(node, operand)
    if not isinstance(operand, Split):
        return
    index = node.attr.index[operand.axis]
    for axis, variable in _moving(node, index):
        for step in _steps(node.shape[axis], size):
            if _moved(node, index, {variable: step}) == operand.inner:
                yield Split(axis, step)
                break


def _owned_results(node: Node, operand: Owned) -> Iterator[Placement]:
    count = operand.lookup.index.rank
    for axis in range(node.rank - count + 1):
        result = Owned(axis, operand.lookup)
        same = sym.product(node.shape[k] for k in result.axes) == operand.lookup.index.size
        if same and picked(node, operand, result) is not None:
            yield result


def operands(node: Node, result: Placement, size: int) -> Iterator[Placement]:
    """How the operand of the view ``node`` may lie where its result lies so."""
    yield WHOLE
    if isinstance(result, Partial):
        yield result
    if not isinstance(result, Split):
        return
    variable = sym.as_var(ir.axes(node.shape)[result.axis])
    for axis, index in enumerate(node.attr.index):
        if variable is not None and variable in sym.variables(index):
            moved = _moved(node, index, {variable: result.inner})
            if isinstance(moved, int) and moved > 0:
                yield Split(axis, moved)


def _moving(node: Node, index: Int) -> Iterator[tuple[int, Var]]:
    """The axes of the result along which the ``index`` into the operand moves."""
    inside = sym.variables(index)
    for axis, expression in enumerate(ir.axes(node.shape)):
        variable = sym.as_var(expression)
        if variable is not None and variable in inside:
            yield axis, variable


def _steps(extent: Int, size: int) -> list[int]:
    """How many positions in turn a rank may have of an axis of that extent."""
    if not isinstance(extent, int) or extent % size:
        return []
    return [step for step in range(1, extent // size + 1) if extent // size % step == 0]


def _moved(node: Node, index: Int, by: dict[Var, Int]) -> Int:
    """How far ``index`` moves from position 0 of all axes of ``node`` to the positions ``by``."""
    origin: dict[Var, Int] = {v: 0 for axis in ir.axes(node.shape) if (v := sym.as_var(axis)) is not None}
    return sym.substitute(index, origin | by) - sym.substitute(index, origin)
