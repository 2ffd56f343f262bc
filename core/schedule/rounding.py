"""A graph whose contractions round their operands: what a chosen precision does to the values of a model.

Where operands are stored rounded (``Precision.stored``), this is what is compiled; where the product rounds them, it
says what that computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from luminal.core import ir, ops
from luminal.core.ir import Graph, Node
from luminal.core.ops import Kind
from luminal.core.precision import Precision
from luminal.core.schedule.contraction import operand, roles
from luminal.core.schedule.preparation import narrow_weights
from luminal.core.types import DType, f32, u32

_INFINITY = int(np.float32(np.inf).view(np.uint32))


def is_rounded(node: Node) -> bool:
    """Whether the operands of ``node`` may be rounded: it is a contraction of float32."""
    return node.dtype == f32 and roles(node) is not None


def holds_rounded(node: Node) -> bool:
    """Whether ``node`` is such a contraction, or a loop or branch with one inside."""
    bodies = node.attr.bodies if node.op.kind is Kind.STRUCTURED else ()
    return is_rounded(node) or any(map(is_rounded, ir.everything(root for body in bodies for root in body)))


def rounded(graph: Graph, precision: Precision) -> Graph:
    """``graph`` with the operands of its contractions rounded, in primitives; names of outputs and inputs are kept."""
    origins: ir.Origins = dict(graph.origins)
    results = _rounded(graph.roots, precision, origins)
    outputs = tuple((name, node) for (name, _), node in zip(graph.outputs, results, strict=False))
    measured = dict(zip(graph.measured, results[len(outputs) :], strict=True))
    return replace(graph, outputs=outputs, measured=measured, origins=origins)


def _rounded(roots: Iterable[Node], precision: Precision, origins: ir.Origins) -> tuple[Node, ...]:
    roots = tuple(roots)
    made: dict[Node, Node] = {}
    for node in ir.topological(roots):
        operands = [made[x] for x in node.inputs]
        with ir.originating(origins, *origins.get(node, ())):
            if node.op.kind is Kind.STRUCTURED:
                bodies = (_rounded(body, precision, origins) for body in node.attr.bodies)
                made[node] = ir.structured(node.op, operands, node.attr.over(*bodies))
                continue
            if is_rounded(node):
                operands = [_product(node, operands[0], precision)]
            made[node] = ir.rebuild(node, operands) if operands else node
    return tuple(made[root] for root in roots)


def _product(node: Node, product: Node, precision: Precision) -> Node:
    """The ``product`` that the contraction ``node`` sums, of rounded operands; weights that stay narrow are exact."""
    found = roles(node)
    assert found is not None
    exact = found.b if narrow_weights(node.inputs[0], found) is not None else None
    factors = [
        x if operand(before) == exact else _operand(x, precision)
        for before, x in zip(node.inputs[0].inputs, product.inputs, strict=True)
    ]
    return ir.rebuild(product, factors)


def _digits(dtype: DType) -> int:
    """The most significant bits of a value."""
    return 1 - round(math.log2(dtype.eps)) if dtype.is_float else dtype.bits


def _operand(node: Node, precision: Precision) -> Node:
    """``node`` rounded, before the view that repeats its elements."""
    if node.op is ops.VIEW:
        return ir.rebuild(node, [_operand(node.inputs[0], precision)])
    if node.op is ops.CAST and _digits(node.inputs[0].dtype) <= precision.digits:
        return node
    if precision.stored is not None:
        return ir.cast(ir.cast(node, precision.stored), f32)
    bits = ir.bitcast(node, u32)
    magnitude = ir.binary(ops.AND, bits, 2**31 - 1)
    up = ir.binary(ops.ADD, bits, 1 << (precision.lost - 1))
    near = ir.bitcast(ir.binary(ops.AND, up, 2**32 - (1 << precision.lost)), f32)
    return ir.select(ir.binary(ops.LESS_THAN, magnitude, _INFINITY), near, node)
