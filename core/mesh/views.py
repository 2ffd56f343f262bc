"""Views of divided values: which part of the result a rank can read from its part of the operand alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from luminal.core import ir
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.mesh import placement as where
from luminal.core.mesh.placement import RANK, WHOLE, Partial, Placement, Split
from luminal.core.symbolic import Int, Var


@lru_cache(maxsize=1 << 15)
def viewed(node: Node, operand: Placement, result: Placement, size: int) -> Node | None:
    """The view ``node`` of a rank's part of the operand, an input of that shape, as the rank's part of the result; None
    where another rank's elements would be needed."""
    attr = node.attr
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


def results(node: Node, operand: Placement, size: int) -> Iterator[Placement]:
    """How the result of the view ``node`` may lie where its operand lies so."""
    if isinstance(operand, Partial):
        yield operand
    if not isinstance(operand, Split):
        return
    index = node.attr.index[operand.axis]
    for axis, variable in _moving(node, index):
        for step in _steps(node.shape[axis], size):
            if _moved(node, index, {variable: step}) == operand.inner:
                yield Split(axis, step)
                break


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
