"""Gradients: reverse accumulation (Linnainmaa, 1970) as a rewrite of the graph, a rule for each primitive.

A rule gets a node and the gradient of a scalar with respect to it, and returns the gradients with respect to the node's
operands, None where an operand has none. Functions that remember their derivative (``core.derivative``) bring a rule of
their own. The gradient of a maximum is shared equally among equal largest numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from luminal.core import adjoint, derivative, ir, loop_gradients, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, Origins, binary, cast, constant, expand, reduce, select, unary
from luminal.core.movement import reshape, unsqueeze
from luminal.core.ops import Kind, Op
from luminal.core.symbolic import Int

Rule: TypeAlias = Callable[[Node, Node], Sequence[Node | None]]


def gradients(
    y: Node, given: Sequence[Node], cotangent: Node | None = None, origins: Origins | None = None
) -> list[Node]:
    """The gradient of the sum of ``y``, or of ``y * cotangent``, with respect to each of ``given``: nodes of their
    shapes and types. New nodes get the origins of those that they are the gradients of, in ``origins``.

    Raises UnsupportedError where ``y`` depends on one of them through a primitive without a rule: a loop without a
    bound, the bits of a number.
    """
    found = pulled_back([y], [_full(y, 1) if cotangent is None else cotangent], given, origins)
    return [_full(node, 0) if part is None else part for node, part in zip(given, found, strict=True)]


def pulled_back(
    results: Sequence[Node], cotangents: Sequence[Node | None], given: Sequence[Node], origins: Origins | None = None
) -> list[Node | None]:
    """The gradient of the sum of ``results`` times ``cotangents`` with respect to each of ``given``; None where nothing
    depends on it. What the values in ``given`` depend on themselves does not count."""
    stops = set(given)
    order = traverse.topological(results, stops=stops)
    active = set(given)
    for node in order:
        if node.op not in CONSTANT and not _truncates(node) and not active.isdisjoint(node.inputs):
            active.add(node)
    found: dict[Node, Node] = {}

    def add(node: Node, part: Node | None) -> None:
        if part is not None and node in active and node.dtype.is_float:
            found[node] = found[node] + part if node in found else part

    for result, cotangent in zip(results, cotangents, strict=True):
        add(result, cotangent)
    siblings: dict[Any, list[Node]] = {}
    for node in order:
        if node.op.kind is Kind.STRUCTURED:
            siblings.setdefault(_shared(node), []).append(node)
    for node in reversed(order):
        if node in stops:
            continue
        if node.op.kind is Kind.STRUCTURED:
            # All results together, when everything that reads any of them is done: at the first of them.
            together = siblings[_shared(node)]
            by = {other.attr.result: found[other] for other in together if other in found}
            if node is together[0] and by:
                wanted = [operand in active and operand.dtype.is_float for operand in node.inputs]
                with ir.originating({} if origins is None else origins, *(origins or {}).get(node, ())):
                    parts = _of_loop(node, by, wanted, origins or {})
                for operand, part in zip(node.inputs, parts, strict=True):
                    add(operand, part)
        elif node in found:
            with ir.originating({} if origins is None else origins, *(origins or {}).get(node, ())):
                parts = _parts(node, found[node], origins or {})
            for operand, part in zip(node.inputs, parts, strict=True):
                add(operand, part)
    return [found.get(node) for node in given]


def _shared(node: Node) -> Any:
    """What the results of one loop or branch have in common."""
    return node.op, node.inputs, replace(node.attr, result=0)


def _parts(node: Node, g: Node, origins: Origins) -> Sequence[Node | None]:
    if node.op is derivative.FUNCTION:
        return [None, *derivative.parts(node, g)]
    if node.op not in RULES or not node.dtype.is_float:
        raise without_gradient(node, origins)
    return RULES[node.op](node, g)


def without_gradient(node: Node, origins: Origins, why: str = "") -> UnsupportedError:
    """The error for a node that has no gradient, with the operator that it comes from."""
    where = "; ".join(map(str, origins.get(node, ())))
    advice = "take the gradient by other values, or detach what it reads"
    return UnsupportedError(f"{f'{where}: ' if where else ''}{node.op} has no gradient{why}; {advice}")


def _of_loop(node: Node, by: Mapping[int, Node], wanted: Sequence[bool], origins: Origins) -> Sequence[Node | None]:
    """The gradients of the operands of a loop or branch that are ``wanted``, from those of its results, ``by`` their
    numbers."""

    def pull(
        results: Sequence[Node], cotangents: Sequence[Node | None], given: Sequence[Node]
    ) -> Sequence[Node | None]:
        return pulled_back(results, cotangents, given, origins)

    try:
        return loop_gradients.RULES[node.op](node, by, wanted, pull)
    except loop_gradients.NoGradient as error:
        raise without_gradient(node, origins, f": {error}") from error


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
    """Where an operand is NaN, the result depends on neither or both: both have the gradient, as in PyTorch."""
    a, b = node.inputs
    half = select(binary(ops.EQUAL, a, b), g * 0.5, g)
    return [select(a < b, 0, half), select(b < a, 0, half)]


def _select(node: Node, g: Node) -> list[Node | None]:
    condition = node.inputs[0]
    return [None, select(condition, g, 0), select(condition, 0, g)]


# ---- reductions and views ------------------------------------------------------------------------------------------


def _repeated(node: Node, like: Node, axes: Sequence[int]) -> Node:
    """The result of a reduction, at every element that was reduced."""
    return expand(unsqueeze(node, axes), like.shape)


def _max_reduce(node: Node, g: Node) -> list[Node | None]:
    x, axes = node.inputs[0], node.attr.axes
    best = _repeated(node, x, axes)
    largest = binary(ops.EQUAL, x, best) | (binary(ops.EQUAL, x, x) ^ True)  # NaN is the largest, where there is one
    ones = cast(largest, x.dtype)
    share = g / reduce(ops.SUM_REDUCE, ones, axes)
    return [select(largest, _repeated(share, x, axes), 0)]


def _view(node: Node, g: Node) -> list[Node | None]:
    """The gradient of an operand's element is the sum over all elements of the view that read it."""
    (x,) = node.inputs
    if node.shape != x.shape and node.size == x.size and node is reshape(x, node.shape):
        return [reshape(g, x.shape)]
    if x.size == 0 or node.size == 0:
        return [_full(x, 0)]
    read = {v for e in (*node.attr.index, *node.attr.valid) for v in sym.variables(e)}
    kept = [k for k, axis in enumerate(ir.axes(node.shape)) if sym.as_var(axis) in read]
    repeated = [k for k in range(node.rank) if k not in kept]
    shape = tuple(node.shape[k] for k in kept)
    by = {v: new for k, new in zip(kept, ir.axes(shape), strict=True) if (v := sym.as_var(ir.axes(node.shape)[k]))}
    index = [sym.substitute(e, by) for e in node.attr.index]
    valid = [sym.substitute(e, by) for e in node.attr.valid]
    g = reduce(ops.SUM_REDUCE, g, repeated) if repeated else g
    found = adjoint.of_view(x, g, index, valid)
    return [_added_up(x, g, index, valid) if found is None else found]


def _added_up(x: Node, g: Node, index: Sequence[Int], valid: Sequence[Int]) -> Node:
    """``g`` added at the positions of ``x`` that the view reads, which the same view of element numbers gives: for
    views of which a sum would read very much."""
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
    """An element that is added has the gradient at its position; one that replaces, only if no later one does, too; and
    one that is multiplied, times all others at its position. A largest one shares it with its equals."""
    old, index, new = node.inputs
    axis, by = node.attr.axis, node.attr.by
    there = ir.gather(g, index, axis)
    if by is ops.ADD:
        return [g, None, there]
    if by is ops.MAX:
        mine = binary(ops.EQUAL, new, ir.gather(node, index, axis))
        kept = binary(ops.EQUAL, old, node)
        count = ir.scatter(cast(kept, g.dtype), index, cast(mine, g.dtype), axis, ops.ADD)
        share = g / count
        return [select(kept, share, 0), None, select(mine, ir.gather(share, index, axis), 0)]
    if by is ops.MUL:
        # Zeros are counted apart, so that the product of the others is at hand where there is one.
        zero, old_zero = binary(ops.EQUAL, new, 0), binary(ops.EQUAL, old, 0)
        zeros = ir.scatter(cast(old_zero, g.dtype), index, cast(zero, g.dtype), axis, ops.ADD)
        rest = ir.scatter(select(old_zero, 1, old), index, select(zero, 1, new), axis, ops.MUL)
        alone = binary(ops.EQUAL, zeros, 1)
        of_old = select(old_zero, select(alone, g * rest, 0), g * node / select(old_zero, 1, old))
        one, others = ir.gather(alone, index, axis), ir.gather(rest, index, axis)
        whole = ir.gather(node, index, axis)
        of_new = select(zero, select(one, there * others, 0), there * whole / select(zero, 1, new))
        return [of_old, None, of_new]
    if by is not None:
        raise without_gradient(node, {}, f" by {by}")
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
# Rules for all results of a node together: core/loop_gradients.py.
LOOPS = frozenset(loop_gradients.RULES)
# Primitives without a gradient. Integers depend on differentiated values only through the bits of a float, and sorted
# floats are read at sorted positions.
WITHOUT = {ops.BITCAST, ops.AND, ops.OR, ops.XOR, ops.SHL, ops.SHR, ops.SORT, ops.HOST, ops.EXCHANGE}
