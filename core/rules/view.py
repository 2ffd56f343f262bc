"""Rules of views: elementwise work is done before its operands repeat; a gather at known positions is a view."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from luminal.core import ir, movement, ops, symval
from luminal.core import symbolic as sym
from luminal.core.constants import uniform
from luminal.core.ir import Node, axes, view
from luminal.core.ops import Kind
from luminal.core.rules.pattern import Rule
from luminal.core.symbolic import Int
from luminal.core.types import f32, i64


def _compute_before_repeating(node: Node) -> Node | None:
    """``f(expand(x), expand(y)) = expand(f(x, y))``."""
    if node.op.kind is not Kind.ELEMENTWISE or any(operand.op is not ops.VIEW for operand in node.inputs):
        return None
    keep = [any(column) for column in zip(*map(movement.varies, node.inputs), strict=True)]
    if all(k or d == 1 for k, d in zip(keep, node.shape, strict=True)) or sym.product(node.shape) == 0:
        return None
    operands = [movement.once(operand, keep) for operand in node.inputs]
    if all(uniform(operand) is not None for operand in operands):
        operands = [movement.reshape(operand, ()) for operand in operands]
    return ir.expand(ir.elementwise(node.op, *operands, attr=node.attr), node.shape)


def _repeated_work() -> Iterator[Node]:
    row, one = ir.input_("x", (1, 7), f32), ir.constant(2.0, f32)
    size = sym.var("S", 1, 9)
    yield ir.expand(row, (5, 7)) * ir.expand(one, (5, 7))
    yield ir.unary(ops.SQRT, ir.expand(row, (5, 7)))
    yield ir.expand(one, (5, 7)) + ir.expand(one, (5, 7))
    long = ir.expand(ir.input_("y", (size, 1), f32), (size, 4))
    yield ir.binary(ops.LESS_THAN, long, ir.expand(one, (size, 4)))


def _maximum_of_repeated(node: Node) -> Node | None:
    """``MaxReduce(expand(x)) = x`` over the axes that repeat, of which there is at least one element."""
    operand = node.inputs[0]
    varies = movement.varies(operand)
    dropped = [a for a in node.attr.axes if not varies[a] and sym.always(operand.shape[a] - 1)]
    if not dropped:
        return None
    shape = tuple(d for a, d in enumerate(operand.shape) if a not in dropped)
    index: list[Int] = list(axes(shape))
    for a in dropped:
        index.insert(a, 0)
    remaining = [a - sum(d < a for d in dropped) for a in node.attr.axes if a not in dropped]
    return ir.reduce(node.op, view(operand, shape, index), remaining)


def _repeated_maxima() -> Iterator[Node]:
    x = ir.expand(ir.input_("x", (1, 7), f32), (5, 7))
    yield ir.reduce(ops.MAX_REDUCE, x, [0])
    yield ir.reduce(ops.MAX_REDUCE, x, [0, 1])


def _sum_of_one(node: Node) -> Node | None:
    """A sum over axes of extent 1 is the element itself; float sums start from +0, so a float element is added to 0."""
    operand = node.inputs[0]
    if any(operand.shape[a] == 1 for a in node.attr.axes):
        single = [a for a in node.attr.axes if operand.shape[a] == 1]
        remaining = [a - sum(s < a for s in single) for a in node.attr.axes if a not in single]
        element = ir.reduce(node.op, _squeezed(operand, single), remaining)
        return element if node.dtype.is_integer or remaining else element + 0.0
    return None


def _squeezed(node: Node, single: list[int]) -> Node:
    """``node`` without the axes ``single``. A product stays the operand of its sum, so that it stays a contraction."""
    if node.op in (ops.CAST, ops.MUL):
        return ir.elementwise(node.op, *(_squeezed(operand, single) for operand in node.inputs), attr=node.attr)
    return movement.squeeze(node, single)


def _single_sums() -> Iterator[Node]:
    yield ir.reduce(ops.SUM_REDUCE, ir.input_("x", (7, 1), f32), [1])
    yield ir.reduce(ops.SUM_REDUCE, ir.input_("x", (7, 1), f32), [0, 1])
    yield ir.reduce(ops.SUM_REDUCE, ir.input_("x", (7, 1), f32) * ir.input_("y", (7, 1), f32), [0, 1])


def _view_of_one_element(node: Node) -> Node | None:
    """A view of one number is that number expanded: its index does not matter, nor a mask that fills with it."""
    value = uniform(node)
    if value is None:
        return None
    plain = ir.expand(ir.constant(value), node.shape)
    return None if plain is node else plain


def _one_element_views() -> Iterator[Node]:
    yield movement.pad(ir.constant(np.zeros((1, 1), np.float32)), [1, 0], [2, 3])
    yield movement.reshape(ir.expand(ir.constant(np.ones((1, 1), np.float32)), (2, 3)), (6,))


def _gather_of_known_positions(node: Node) -> Node | None:
    """``Gather(x, index) = View(x)`` if the index is a formula of positions that is proven to be in range."""
    data, positions = node.inputs
    axis = node.attr.axis
    over = axes(node.shape)
    at = symval.element(positions, over[axis : axis + positions.rank])
    if at is None or isinstance(at, float) or not (sym.always(at) and sym.always(data.shape[axis] - 1 - at)):
        return None
    return view(data, node.shape, [*over[:axis], at, *over[axis + positions.rank :]])


def _known_gathers() -> Iterator[Node]:
    table = ir.input_("x", (9, 3), f32)
    size = sym.var("S", 1, 9)
    yield ir.gather(table, ir.constant(np.array(4)), 0)
    yield ir.gather(table, ir.iota(5) + 2, 0)
    yield ir.gather(ir.input_("y", (size, 3), f32), ir.dim(size - 1) + ir.iota(size) * -1, 0)
    yield ir.gather(table, ir.cast(ir.constant(1, f32), i64), 1)
    yield ir.gather(table, movement.slice_(ir.constant(np.arange(9)), 0, 3, 4), 0)


def _contiguous_of_contiguous(node: Node) -> Node | None:
    return node.inputs[0] if node.inputs[0].op is ops.CONTIGUOUS else None


def _contiguous() -> Iterator[Node]:
    x = ir.input_("x", (4, 3), f32)
    yield ir.unary(ops.CONTIGUOUS, ir.unary(ops.CONTIGUOUS, movement.permute(x, (1, 0))))


RULES = (
    Rule("f(expand(x), expand(y)) = expand(f(x, y))", (), _compute_before_repeating, _repeated_work),
    Rule("MaxReduce(expand(x)) = x", (ops.MAX_REDUCE,), _maximum_of_repeated, _repeated_maxima),
    Rule("SumReduce(x over one element) = x + 0", (ops.SUM_REDUCE,), _sum_of_one, _single_sums),
    Rule("View(number) = expand(number)", (ops.VIEW,), _view_of_one_element, _one_element_views),
    Rule("Gather(x, positions) = View(x)", (ops.GATHER,), _gather_of_known_positions, _known_gathers),
    Rule("Contiguous(Contiguous(x)) = Contiguous(x)", (ops.CONTIGUOUS,), _contiguous_of_contiguous, _contiguous),
)
