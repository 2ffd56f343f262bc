"""Rules that find constants: by folding, and by the bounds of positions and sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from luminal.core import interp, ir, movement, ops, symval
from luminal.core import symbolic as sym
from luminal.core.constants import Known, known, shrinks
from luminal.core.errors import InputError
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.rules.pattern import Rule
from luminal.core.symbolic import Expr
from luminal.core.types import f32, i64

SMALL = 64 << 10  # bytes; a larger result is folded only if it is no larger than the constants it is computed from


# ---- folding ---------------------------------------------------------------------------------------------------------


def _fold(node: Node) -> Node | None:
    if node.op.kind in (Kind.SOURCE, Kind.VIEW) or known(node) is not Known.VALUE:
        return None
    size = node.size
    assert isinstance(size, int)
    result_bytes = size * node.dtype.itemsize
    if result_bytes > SMALL and not shrinks(node, result_bytes):
        return None
    if size == 0:
        return ir.constant(np.empty(node.shape, node.dtype.numpy))
    if not interp.affordable(node):
        return None
    try:
        return interp.folded(node)
    except (IndexError, InputError):
        return None  # a position out of range, or input that a host function refuses, is reported by the run


def _foldable() -> Iterator[Node]:
    table = ir.constant(np.arange(12, dtype=np.float32).reshape(3, 4))
    yield table * table
    yield ir.reduce(ops.SUM_REDUCE, table, [1])
    yield ir.gather(table, ir.constant(np.array([2, 0])), 0)
    yield ir.unary(ops.SQRT, movement.permute(table, (1, 0)))
    yield ir.cast(ir.iota(5) * 2, f32)
    yield movement.concatenate([table, table], 0)


# ---- positions and sizes ---------------------------------------------------------------------------------------------


def _decided(node: Node) -> Node | None:
    """A constant if bounds of positions and sizes decide the value of ``node``; a Dim if it is arithmetic of sizes."""
    if node.dtype.is_float or node.op.kind in (Kind.SOURCE, Kind.VIEW) or node.dtype.kind == "c":
        return None
    value = symval.formula(node)
    if isinstance(value, int):
        return ir.expand(ir.constant(value, node.dtype), node.shape)
    if isinstance(value, Expr) and node.dtype == i64:
        positions = {v for a in ir.axes(node.shape) if (v := sym.as_var(a)) is not None}
        if not positions & sym.variables(value):
            return ir.expand(ir.dim(value), node.shape)
    return None


def _position(node: Node) -> Node | None:
    """A view of an Iota, if ``node`` equals the position along one of its axes."""
    if node.dtype != i64 or node.op.kind is Kind.SOURCE or (node.op is ops.VIEW and node.inputs[0].op is ops.IOTA):
        return None
    value = symval.formula(node)
    variable = sym.as_var(value) if isinstance(value, Expr) else None
    for axis, position in enumerate(ir.axes(node.shape)):
        if variable is not None and sym.as_var(position) == variable:
            return movement.along(ir.iota(node.shape[axis]), axis, node.shape)
    return None


def _positions() -> Iterator[Node]:
    size = sym.var("S", 1, 9)
    yield ir.iota(size) * 2 + ir.iota(size) * -1
    yield movement.slice_(ir.constant(np.arange(9)), 0, 0, size)
    joined = movement.concatenate([ir.constant(np.array([-1])), ir.iota(size)], 0)
    yield movement.slice_(joined, 0, 1, size)


def _decidable() -> Iterator[Node]:
    size = sym.var("S", 1, 9)
    position = movement.along(ir.iota(size), 0, (size, 3))
    yield position < ir.dim(size)
    yield ir.binary(ops.EQUAL, position, -1)
    yield ir.dim(size) * 2 + 1
    yield ir.binary(ops.DIV, ir.dim(size * 6), 3)


DECISIONS = (
    Rule("f(positions, sizes) = what their bounds decide", (), _decided, _decidable),
    Rule("f(positions) = Iota", (), _position, _positions),
)
FOLDING = (Rule("f(constants) = constant", (), _fold, _foldable),)
