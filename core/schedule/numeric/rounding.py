"""Sums of products with rounded operands: the effect of a chosen precision on the values of a model.

If operands are stored rounded (``Precision.stored``), the resulting graph is compiled. If the instruction for the
product rounds them, the graph says what that instruction computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.costs import COSTS, Memory
from luminal.core.ir import Graph, Node, Shape
from luminal.core.ops import Kind
from luminal.core.precision import Precision
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.contracted import Contracted, Contractions
from luminal.core.schedule.contraction.contraction import Contraction, Operand, operand
from luminal.core.schedule.contraction.narrow import narrow_weights
from luminal.core.sizes import typical
from luminal.core.types import bf16, f32, u32

_INFINITY = int(np.float32(np.inf).view(np.uint32))


def exact(graph: Graph) -> frozenset[Node]:
    """The nodes of ``graph`` whose operands are not rounded because the user keeps those of their operators."""
    return frozenset(filter(graph.keeps, graph.origins)) if graph.exact else frozenset()


def is_rounded(
    node: Node, contractions: Contractions, precision: Precision, exact: Collection[Node] = frozenset()
) -> bool:
    """Whether the operands of ``node`` are rounded: it is none of those ``exact``, and a float32 contraction, or, if
    operands are stored rounded, another float32 sum with constant weights, such as a depthwise convolution."""
    return (
        node.dtype == f32
        and node not in exact
        and (node in contractions or (precision.stored is not None and _weights(node) is not None))
    )


def _weights(node: Node) -> Operand | None:
    """The constant factor of the products that ``node`` sums, if there is exactly one and its index depends on every
    reduced axis; else None."""
    if node.op is not ops.SUM_REDUCE or node.inputs[0].op is not ops.MUL:
        return None
    product = node.inputs[0]
    constants = [x for x in map(operand, product.inputs) if is_constant(x.source)]
    reduced = {sym.as_var(ir.axes(product.shape)[k]) for k in node.attr.axes} - {None}
    return constants[0] if len(constants) == 1 and reduced and reduced <= constants[0].variables else None


def holds_rounded(
    node: Node, contractions: Contractions, precision: Precision, exact: Collection[Node] = frozenset()
) -> bool:
    """Whether ``node`` is a sum with rounded operands (``is_rounded``), or a loop or branch that contains one."""
    bodies = node.attr.bodies if node.op.kind is Kind.STRUCTURED else ()
    inside = traverse.everything(root for body in bodies for root in body)
    return any(is_rounded(one, contractions, precision, exact) for one in (node, *inside))


def rounded(whole: Contracted, precision: Precision, wide: bool = False, memory: Memory = COSTS.memory) -> Contracted:
    """The graph with the operands of its contractions rounded, as primitives; names of outputs and inputs are kept.

    If ``wide``, values computed at run time are rounded but stored in float32. That is for CPUs that multiply nothing
    narrower, which would widen an element again for every row or column that it is multiplied with. Weights are narrow
    all the same, since they are read from memory, a vector at a time. ``memory`` says which stay narrower than that.
    Operators that the graph keeps ``exact`` read what is not rounded, of values that others read rounded, too.
    """
    contractions, kept = whole.contractions, exact(whole.graph)
    origins: ir.Origins = dict(whole.graph.origins)
    carried: dict[Node, Contraction] = {}

    def region(roots: tuple[Node, ...]) -> tuple[Node, ...]:
        stored = stored_rounded(roots, contractions, precision, kept)
        if not wide:
            sums = [n for n in traverse.topological(roots) if n in kept and is_rounded(n, contractions, precision)]
            stored |= _below_maxima((*roots, *(x for n in sums for x in n.inputs[0].inputs)), stored)
        unrounded: dict[Node, Node] = {}  # the value of nodes that became rounded ones
        became: dict[Node, Node] = {}

        def before(node: Node) -> Node:
            return unrounded.get(node, became[node])

        def made(node: Node, operands: Sequence[Node]) -> Node:
            given = [unrounded.get(x, now) for x, now in zip(node.inputs, operands, strict=True)]
            keeps = node in kept and is_rounded(node, contractions, precision)
            found = contractions[node].moved(before if keeps else became.__getitem__) if node in contractions else None
            if found is not None and keeps:
                new = found.node()
            elif keeps:
                product = node.inputs[0]
                new = traverse.rebuild(node, [traverse.rebuild(product, list(map(before, product.inputs)))])
            elif found is not None and node.dtype == f32:
                found = _of_rounded(found, precision, wide, memory)
                new = found.node()
            elif is_rounded(node, contractions, precision):
                new = traverse.rebuild(node, [_weighed(node, given[0], precision, wide)])
            else:
                new = traverse.rebuild(node, operands)
            if found is not None:
                carried[new] = found
            if node.op is ops.VIEW:
                unrounded[node] = traverse.rebuild(node, given)
            elif node in stored:
                unrounded[node] = new
                return _operand(new, precision, wide)
            return new

        results = remade(roots, origins, made, region, became)
        return tuple(unrounded.get(root, now) for root, now in zip(roots, results, strict=True))

    return Contracted(whole.graph.computing(region(whole.graph.roots), origins=origins), carried)


def stored_rounded(
    roots: Iterable[Node], contractions: Contractions, precision: Precision, exact: Collection[Node] = frozenset()
) -> set[Node]:
    """The values that are stored rounded because a sum of products reads them. Other readers read the rounded value,
    too, which saves a copy. Inputs, and carries of loops and states, are excluded: they lie in memory unrounded."""
    if precision.stored is None:
        return set()
    order = traverse.topological(roots)
    products = [node.inputs[0] for node in order if is_rounded(node, contractions, precision, exact)]
    factors = [x for product in products for x in product.inputs if not _is_part(operand(x), x.shape)]
    return set(filter(_may_be_rounded, (x.inputs[0] if x.op is ops.VIEW else x for x in factors)))


def _is_part(x: Operand, shape: Shape) -> bool:
    """Whether a product of that ``shape`` reads at most half of what ``x`` is a view of, as the rows of one sequence in
    a cache: to round the whole may cost more than the product."""
    read = sym.product(shape[k] for k in _own(x, shape))
    return 2 * typical(read) <= typical(x.source.size)


def _own(x: Operand, shape: Shape) -> list[int]:
    """The axes of a product of that ``shape`` that ``x`` depends on."""
    return [k for k, axis in enumerate(ir.axes(shape)) if sym.as_var(axis) in x.variables]


def _may_be_rounded(node: Node) -> bool:
    others = (Kind.SOURCE, Kind.STRUCTURED)
    return node.dtype == f32 and node.op is not ops.CAST and node.op.kind not in others and not is_constant(node)


def _below_maxima(roots: Iterable[Node], stored: set[Node]) -> set[Node]:
    """The values that only maxima read whose results are rounded: ``stored``, or themselves read only by such maxima.
    The maximum of rounded values is the rounded maximum: results stay the same, and half the bytes are read."""
    roots = tuple(roots)
    exact, others = set(roots), set(roots)  # values that must be exact, and values that something else reads
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


def _of_rounded(found: Contraction, precision: Precision, wide: bool, memory: Memory) -> Contraction:
    """The contraction with its operands rounded; weights that stay narrow (``narrow``) are not rounded."""

    def of_rounded(x: Operand) -> Operand:
        if x.source.dtype.significant <= precision.digits:
            return x
        if not x.valid and not is_constant(x.source) and _is_part(x, found.shape):
            x = _copied(x, found.shape)
        fill = bytes(f32.itemsize) if x.valid else b""
        return replace(x, source=_operand(ir.cast(x.source, f32), precision, wide), fill=fill).through_casts()

    prologue = narrow_weights(found, memory)
    b = of_rounded(found.b) if prologue is None else found.b
    return replace(found, a=of_rounded(found.a), b=b, prologue=prologue)


def _copied(x: Operand, shape: Shape) -> Operand:
    """``x`` as it reads a copy of the elements that a product of that ``shape`` reads."""
    own, over = _own(x, shape), ir.axes(shape)
    copied = tuple(shape[k] for k in own)
    by = {v: axis for k, axis in zip(own, ir.axes(copied), strict=True) if (v := sym.as_var(over[k])) is not None}
    return Operand(ir.unary(ops.CONTIGUOUS, x.over(by).read(copied)), tuple(over[k] for k in own))


def _weighed(node: Node, product: Node, precision: Precision, wide: bool) -> Node:
    """The ``product`` that ``node``, which is no contraction, sums, with rounded operands. Weights are not rounded: no
    unit multiplies them, and they are few."""
    weights = _weights(node)
    factors = [
        x if operand(before) == weights else _padded_operand(x, precision, wide)
        for before, x in zip(node.inputs[0].inputs, product.inputs, strict=True)
    ]
    return traverse.rebuild(product, factors)


def _padded_operand(node: Node, precision: Precision, wide: bool) -> Node:
    """``node`` rounded before its view and widened after it, so that the mask is on the narrow values in memory."""
    rounded = _operand(node, precision, wide)
    if rounded.op is not ops.VIEW or any(rounded.attr.fill) or rounded.inputs[0].op is not ops.CAST:
        return rounded
    (narrow,), view = rounded.inputs[0].inputs, rounded.attr
    fill = bytes(narrow.dtype.itemsize) if view.valid else b""
    return ir.cast(ir.view(narrow, node.shape, view.index, view.valid, fill), f32)


def _operand(node: Node, precision: Precision, wide: bool) -> Node:
    """``node`` rounded, inside the view that repeats its elements."""
    if node.op is ops.VIEW or (wide and node.op is ops.CONTIGUOUS):
        return traverse.rebuild(node, [_operand(node.inputs[0], precision, wide)])
    if node.op is ops.CAST and node.inputs[0].dtype.significant <= precision.digits:
        return node
    if precision.stored is not None:
        rounded = ir.cast(ir.cast(node, precision.stored, subnormals=precision.stored != bf16), f32)
        return ir.unary(ops.CONTIGUOUS, rounded) if wide and not is_constant(node) else rounded
    bits = ir.bitcast(node, u32)
    magnitude = ir.binary(ops.AND, bits, 2**31 - 1)
    up = ir.binary(ops.ADD, bits, 1 << (precision.lost - 1))
    near = ir.bitcast(ir.binary(ops.AND, up, 2**32 - (1 << precision.lost)), f32)
    return ir.select(ir.binary(ops.LESS_THAN, magnitude, _INFINITY), near, node)
