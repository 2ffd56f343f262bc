"""A graph whose sums of products round their operands: what a chosen precision does to the values of a model.

Where operands are stored rounded (``Precision.stored``), this is what is compiled; where the product rounds them, it
says what that computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.precision import Precision
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.contracted import Contracted, Contractions
from luminal.core.schedule.contraction.contraction import Contraction, Operand, operand
from luminal.core.schedule.contraction.narrow import narrow_weights
from luminal.core.schedule.contraction.roles import is_constant
from luminal.core.types import DType, bf16, f32, u32

_INFINITY = int(np.float32(np.inf).view(np.uint32))


def is_rounded(node: Node, contractions: Contractions, precision: Precision) -> bool:
    """Whether operands of ``node`` are rounded: it is a contraction of float32; or, where operands are stored, another
    sum that constants weigh, a depthwise convolution for one."""
    return node.dtype == f32 and (node in contractions or (precision.stored is not None and _weights(node) is not None))


def _weights(node: Node) -> Operand | None:
    """The one factor of the products that ``node`` sums which is constant and differs along every axis that it
    reduces."""
    if node.op is not ops.SUM_REDUCE or node.inputs[0].op is not ops.MUL:
        return None
    product = node.inputs[0]
    constants = [x for x in map(operand, product.inputs) if is_constant(x.source)]
    reduced = {sym.as_var(ir.axes(product.shape)[k]) for k in node.attr.axes} - {None}
    return constants[0] if len(constants) == 1 and reduced and reduced <= constants[0].variables else None


def holds_rounded(node: Node, contractions: Contractions, precision: Precision) -> bool:
    """Whether ``node`` is such a sum, or a loop or branch with one inside."""
    bodies = node.attr.bodies if node.op.kind is Kind.STRUCTURED else ()
    inside = traverse.everything(root for body in bodies for root in body)
    return any(is_rounded(one, contractions, precision) for one in (node, *inside))


def rounded(whole: Contracted, precision: Precision, wide: bool = False) -> Contracted:
    """The graph with the operands of its contractions rounded, in primitives; names of outputs and inputs are kept.

    Where ``wide``, what a run computes is rounded but stored in float32, for CPUs that multiply nothing narrower: they
    would widen each element for every row or column that it is multiplied with. Weights are narrow all the same, since
    they come from memory, a vector at a time.
    """
    contractions = whole.contractions
    origins: ir.Origins = dict(whole.graph.origins)
    carried: dict[Node, Contraction] = {}

    def region(roots: tuple[Node, ...]) -> tuple[Node, ...]:
        stored = stored_rounded(roots, contractions, precision)
        if not wide:
            stored |= _below_maxima(roots, stored)
        exact: dict[Node, Node] = {}  # where others read it rounded
        became: dict[Node, Node] = {}

        def made(node: Node, operands: Sequence[Node]) -> Node:
            unrounded = [exact.get(x, now) for x, now in zip(node.inputs, operands, strict=True)]
            found = contractions[node].moved(became.__getitem__) if node in contractions else None
            if found is not None and node.dtype == f32:
                found = _of_rounded(found, precision, wide)
                new = found.node()
            elif is_rounded(node, contractions, precision):
                new = traverse.rebuild(node, [_weighed(node, unrounded[0], precision, wide)])
            else:
                new = traverse.rebuild(node, operands)
            if found is not None:
                carried[new] = found
            if node.op is ops.VIEW:
                exact[node] = traverse.rebuild(node, unrounded)
            elif node in stored:
                exact[node] = new
                return _operand(new, precision, wide)
            return new

        results = remade(roots, origins, made, region, became)
        return tuple(exact.get(root, now) for root, now in zip(roots, results, strict=True))

    return Contracted(whole.graph.computing(region(whole.graph.roots), origins=origins), carried)


def stored_rounded(roots: Iterable[Node], contractions: Contractions, precision: Precision) -> set[Node]:
    """The values that are stored rounded, since a sum of products reads them; so they are for all others, which would
    need another copy. Inputs are none of them, nor what a loop or state carries: they lie in memory as they are."""
    if precision.stored is None:
        return set()
    products = [node.inputs[0] for node in traverse.topological(roots) if is_rounded(node, contractions, precision)]
    values = [x.inputs[0] if x.op is ops.VIEW else x for product in products for x in product.inputs]
    return set(filter(_may_be_rounded, values))


def _may_be_rounded(node: Node) -> bool:
    others = (Kind.SOURCE, Kind.STRUCTURED)
    return node.dtype == f32 and node.op is not ops.CAST and node.op.kind not in others and not is_constant(node)


def _below_maxima(roots: Iterable[Node], stored: set[Node]) -> set[Node]:
    """The values that nothing but maxima reads which are ``stored`` rounded, or are such values themselves. The largest
    of rounded values is the largest value rounded: the maxima stay what they are, and read half the bytes."""
    roots = tuple(roots)
    exact, others = set(roots), set(roots)  # what has to be exact, and what something else reads
    found: set[Node] = set()
    for node in reversed(traverse.topological(roots)):
        if node.op is ops.VIEW:
            passed = node not in others
            exact.update(node.inputs if node in exact else ())
        else:
            if node not in others and _may_be_rounded(node):
                found.add(node)
            passed = node.op is ops.MAX_REDUCE and node not in exact and (node in stored or node in found)
        if not passed:
            others.update(node.inputs)
    return found


def _of_rounded(found: Contraction, precision: Precision, wide: bool) -> Contraction:
    """The contraction of rounded operands; weights that stay narrow are exact."""

    def of_rounded(x: Operand) -> Operand:
        if significant(x.source.dtype) <= precision.digits:
            return x
        fill = bytes(f32.itemsize) if x.valid else b""
        return replace(x, source=_operand(ir.cast(x.source, f32), precision, wide), fill=fill).through_casts()

    b = found.b if narrow_weights(found) is not None else of_rounded(found.b)
    return replace(found, a=of_rounded(found.a), b=b)


def _weighed(node: Node, product: Node, precision: Precision, wide: bool) -> Node:
    """The ``product`` that ``node``, which is no contraction, sums, of rounded operands but for the weights: no unit
    multiplies them, and they are few."""
    weights = _weights(node)
    factors = [
        x if operand(before) == weights else _padded_operand(x, precision, wide)
        for before, x in zip(node.inputs[0].inputs, product.inputs, strict=True)
    ]
    return traverse.rebuild(product, factors)


def _padded_operand(node: Node, precision: Precision, wide: bool) -> Node:
    """``node`` rounded before its view and widened after it: a mask is then on what is read, not what is computed."""
    rounded = _operand(node, precision, wide)
    if rounded.op is not ops.VIEW or any(rounded.attr.fill) or rounded.inputs[0].op is not ops.CAST:
        return rounded
    (narrow,), view = rounded.inputs[0].inputs, rounded.attr
    fill = bytes(narrow.dtype.itemsize) if view.valid else b""
    return ir.cast(ir.view(narrow, node.shape, view.index, view.valid, fill), f32)


def significant(dtype: DType) -> int:
    """The most significant bits that a value has."""
    return 1 - round(math.log2(dtype.eps)) if dtype.is_float else dtype.bits


def _operand(node: Node, precision: Precision, wide: bool) -> Node:
    """``node`` rounded, before the view that repeats its elements."""
    if node.op is ops.VIEW or (wide and node.op is ops.CONTIGUOUS):
        return traverse.rebuild(node, [_operand(node.inputs[0], precision, wide)])
    if node.op is ops.CAST and significant(node.inputs[0].dtype) <= precision.digits:
        return node
    if precision.stored is not None:
        rounded = ir.cast(ir.cast(node, precision.stored, subnormals=precision.stored != bf16), f32)
        return ir.unary(ops.CONTIGUOUS, rounded) if wide and not is_constant(node) else rounded
    bits = ir.bitcast(node, u32)
    magnitude = ir.binary(ops.AND, bits, 2**31 - 1)
    up = ir.binary(ops.ADD, bits, 1 << (precision.lost - 1))
    near = ir.bitcast(ir.binary(ops.AND, up, 2**32 - (1 << precision.lost)), f32)
    return ir.select(ir.binary(ops.LESS_THAN, magnitude, _INFINITY), near, node)
