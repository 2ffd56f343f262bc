"""Gradients of primitives: reverse accumulation (Linnainmaa, 1970), a rule for each.

A rule gets a node and the gradient of a scalar with respect to it, and returns the gradients with respect to the node's
operands, None where an operand has none. The gradient of a maximum is shared equally among equal largest numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, binary, cast, constant, expand, reduce, select, unary
from luminal.core.movement import reshape, unsqueeze
from luminal.core.ops import Op
from luminal.core.symbolic import Int

Rule: TypeAlias = Callable[[Node, Node], Sequence[Node | None]]


def gradients(y: Node, given: Sequence[Node]) -> list[Node]:
    """The gradient of the sum of ``y`` with respect to each of ``given``: nodes of their shapes and types.

    Raises UnsupportedError where ``y`` depends on one of them through a primitive without a rule: a loop, a branch, a
    sort, the bits of a number.
    """
    order = traverse.topological([y])
    active = set(given)
    for node in order:
        if node.op not in CONSTANT and not _truncates(node) and not active.isdisjoint(node.inputs):
            active.add(node)
    found: dict[Node, Node] = {}
    if y in active:
        found[y] = _full(y, 1)
    for node in reversed(order):
        if node not in found or node in given:
            continue
        if node.op not in RULES or not node.dtype.is_float:
            raise UnsupportedError(f"{node.op} has no gradient")
        for operand, part in zip(node.inputs, RULES[node.op](node, found[node]), strict=True):
            if part is not None and operand in active:
                found[operand] = found[operand] + part if operand in found else part
    return [found.get(node, _full(node, 0)) for node in given]


def _truncates(node: Node) -> bool:
    """Whether ``node`` is a cast to a type that is no float: its derivative is zero almost everywhere."""
    return node.op is ops.CAST and not node.dtype.is_float


def _full(like: Node, value: float) -> Node:
    return expand(constant(value, like.dtype), like.shape)


# ---- elementwise ---------------------------------------------------------------------------------------------------


def _mod(node: Node, g: Node) -> list[Node | None]:
    a, b = node.inputs
    return [g, -(g * unary(ops.ROUND, a / b, ops.Rounding("floor")))]


def _max(node: Node, g: Node) -> list[Node | None]:
    a, b = node.inputs
    half = select(binary(ops.EQUAL, a, b), g * 0.5, 0)
    return [select(b < a, g, half), select(a < b, g, half)]


def _select(node: Node, g: Node) -> list[Node | None]:
    condition = node.inputs[0]
    return [None, select(condition, g, 0), select(condition, 0, g)]


# ---- reductions and views ------------------------------------------------------------------------------------------


def _repeated(node: Node, like: Node, axes: Sequence[int]) -> Node:
    """The result of a reduction, at every element that was reduced."""
    return expand(unsqueeze(node, axes), like.shape)


def _max_reduce(node: Node, g: Node) -> list[Node | None]:
    x, axes = node.inputs[0], node.attr.axes
    largest = cast(binary(ops.EQUAL, x, _repeated(node, x, axes)), x.dtype)
    share = g / reduce(ops.SUM_REDUCE, largest, axes)
    return [largest * _repeated(share, x, axes)]


def _view(node: Node, g: Node) -> list[Node | None]:
    """The gradient of an operand's element is the sum over all elements of the view that read it."""
    (x,) = node.inputs
    if node.shape != x.shape and node.size == x.size and node is reshape(x, node.shape):
        return [reshape(g, x.shape)]
    read = {v for e in (*node.attr.index, *node.attr.valid) for v in sym.variables(e)}
    kept = [k for k, axis in enumerate(ir.axes(node.shape)) if sym.as_var(axis) in read]
    repeated = [k for k in range(node.rank) if k not in kept]
    shape = tuple(node.shape[k] for k in kept)
    by = {v: new for k, new in zip(kept, ir.axes(shape), strict=True) if (v := sym.as_var(ir.axes(node.shape)[k]))}
    index = [sym.substitute(e, by) for e in node.attr.index]
    valid = [sym.substitute(e, by) for e in node.attr.valid]
    g = reduce(ops.SUM_REDUCE, g, repeated) if repeated else g
    found = _moved_back(x, g, index, valid)
    return [_added_up(x, g, index, valid) if found is None else found]


def _moved_back(x: Node, g: Node, index: Sequence[Int], valid: Sequence[Int]) -> Node | None:
    """``g`` as a view of the shape of ``x``, if the view only permutes, slices, flips and pads: each axis of ``x`` then
    follows one axis of ``g`` in steps of 1 or -1, or has a fixed position. Else None."""
    over = {v: k for k, axis in enumerate(ir.axes(g.shape)) if (v := sym.as_var(axis))}
    place: dict[sym.Var, Int] = {}
    inside: list[Int] = []
    for e, axis in zip(index, ir.axes(x.shape), strict=True):
        used = [v for v in sym.variables(e) if v in over]
        if not used:
            inside += [axis - e, e - axis]
            continue
        split = sym.coefficient(e, used[0])
        if len(used) > 1 or used[0] in place or split is None or split[0] not in (1, -1):
            return None
        place[used[0]] = (axis - split[1]) * split[0]
    if place.keys() != over.keys():
        return None
    back = [place[v] for v in over]
    inside += [e for at, size in zip(back, g.shape, strict=True) for e in (at, size - 1 - at)]
    inside += [sym.substitute(e, place) for e in valid]
    return ir.view(g, x.shape, back, inside, np.zeros((), x.dtype.numpy).tobytes())


def _added_up(x: Node, g: Node, index: Sequence[Int], valid: Sequence[Int]) -> Node:
    """``g`` added at the positions of ``x`` that the view reads, which the same view of element numbers gives."""
    places = ir.view(reshape(ir.iota(x.size), x.shape), g.shape, index, valid, np.int64(-1).tobytes())
    flat, shown = reshape(places, [g.size]), reshape(g, [g.size])
    if valid:
        outside = flat < 0
        flat, shown = select(outside, 0, flat), select(outside, 0, shown)
    return reshape(ir.scatter(expand(constant(0, x.dtype), [x.size]), flat, shown, 0, ops.ADD), x.shape)


# ---- positions that are data ---------------------------------------------------------------------------------------


def _gather(node: Node, g: Node) -> list[Node | None]:
    data, index = node.inputs
    return [ir.scatter(_full(data, 0), index, g, node.attr.axis, ops.ADD), None]


def _scatter(node: Node, g: Node) -> list[Node | None]:
    """An element that is added has the gradient at its position; one that replaces, only if no later one does, too."""
    old, index, new = node.inputs
    axis, by = node.attr.axis, node.attr.by
    there = ir.gather(g, index, axis)
    if by is ops.ADD:
        return [g, None, there]
    if by is not None:
        raise UnsupportedError(f"{node.op} by {by} has no gradient")
    numbers = reshape(ir.iota(new.size), new.shape)
    last = ir.scatter(expand(constant(-1, numbers.dtype), old.shape), index, numbers, axis)
    stays = binary(ops.EQUAL, ir.gather(last, index, axis), numbers)
    return [select(last < 0, g, 0), None, select(stays, there, 0)]


RULES: Mapping[Op, Rule] = {
    ops.LOG2: lambda node, g: [g * (node.attr.scale / math.log(2)) / node.inputs[0]],
    ops.EXP2: lambda node, g: [g * node * (node.attr.scale * math.log(2))],
    ops.SIN: lambda node, g: [g * unary(ops.SIN, node.inputs[0], ops.Quadrant((node.attr.quadrant + 1) % 4))],
    ops.SQRT: lambda node, g: [g * 0.5 / node],
    ops.RECIP: lambda node, g: [-(g * node * node)],
    ops.CAST: lambda node, g: [cast(g, node.inputs[0].dtype)],
    ops.ADD: lambda node, g: [g, g],
    ops.MUL: lambda node, g: [g * node.inputs[1], g * node.inputs[0]],
    ops.MOD: _mod,
    ops.DIV: lambda node, g: [g / node.inputs[1], -(g * node / node.inputs[1])],
    ops.MAX: _max,
    ops.MULTIPLY_ADD: lambda node, g: [g * node.inputs[1], g * node.inputs[0], g],
    ops.SELECT: _select,
    ops.SUM_REDUCE: lambda node, g: [_repeated(g, node.inputs[0], node.attr.axes)],
    ops.MAX_REDUCE: _max_reduce,
    ops.VIEW: _view,
    ops.CONTIGUOUS: lambda node, g: [g],
    ops.GATHER: _gather,
    ops.SCATTER: _scatter,
}

# Piecewise constant functions: their derivative is zero almost everywhere.
CONSTANT = {ops.INPUT, ops.CONSTANT, ops.IOTA, ops.DIM, ops.ROUND, ops.LESS_THAN, ops.EQUAL}
# Primitives without a gradient yet. Integers depend on differentiated values only through the bits of a float.
WITHOUT = {
    ops.BITCAST, ops.AND, ops.OR, ops.XOR, ops.SHL, ops.SHR, ops.SCAN, ops.WHILE, ops.COND, ops.SORT, ops.HOST,
}  # fmt: skip
