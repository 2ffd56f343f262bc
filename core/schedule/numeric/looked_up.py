"""Functions of which only a few elements are looked up, and whose other readers only reduce them, are computed of what
is looked up: ``f(x)[i] = f(x[i])``, bit for bit.

So a loss that picks one of many logarithms of a softmax stores none of the others. Where something else needs the
values in memory, they are looked up there.
"""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.ir import Graph, Node, Origins
from luminal.core.ops import Kind
from luminal.core.rewrite import readers, remade
from luminal.core.schedule.contraction.roles import contraction_of
from luminal.core.symbolic import Int

FEWER = 8  # times more elements than are looked up, at least
MOST_NESTED = 100  # operations, each inside another, that are computed of what is looked up


def of_few(graph: Graph) -> Graph:
    """``graph`` with functions of few elements computed after these are looked up."""
    origins: Origins = dict(graph.origins)

    def inside(roots: tuple[Node, ...]) -> tuple[Node, ...]:
        became: dict[Node, Node] = {}
        reduced = _only_reduced(roots)

        def make(node: Node, operands: Sequence[Node]) -> Node:
            if node.op is not ops.GATHER or not _is_few(node):
                return traverse.rebuild(node, operands)

            known: dict[tuple[Node, tuple[Int, ...]], Node] = {}

            def picked(x: Node, index: tuple[Int, ...], depth: int = 0) -> Node:
                if (x, index) not in known:
                    known[x, index] = element(x, index, depth)
                return known[x, index]

            def element(x: Node, index: tuple[Int, ...], depth: int) -> Node:
                if x.op is ops.VIEW and not x.attr.valid:
                    by = ir.rename(x.shape, index)
                    return picked(x.inputs[0], tuple(sym.substitute(e, by) for e in x.attr.index), depth)
                if x.op is ops.CONSTANT and x.size == 1:
                    return ir.expand(ir.view(x, (), [0] * x.rank), node.shape)
                if x in reduced and depth < MOST_NESTED:
                    return ir.elementwise(x.op, *(picked(y, index, depth + 1) for y in x.inputs), attr=x.attr)
                table = ir.view(became[x], node.inputs[0].shape, index)
                return ir.gather(table, operands[1], node.attr.axis, node.attr.failure)

            return picked(node.inputs[0], ir.axes(node.inputs[0].shape))

        return remade(roots, origins, make, inside, became)

    roots = inside(graph.roots)
    return graph if roots == graph.roots else graph.computing(roots, origins=origins)


def _is_few(node: Node) -> bool:
    """Whether a look-up gives much fewer elements than it looks in, which are not constants."""
    table = node.inputs[0]
    return sym.always(table.size - node.size * FEWER) and not is_constant(table)


def _only_reduced(roots: tuple[Node, ...]) -> set[Node]:
    """The elementwise values that are looked up for few elements or reduced, or of which such values are computed, and
    that nothing else reads."""
    nodes = traverse.topological(roots)
    if not any(node.op is ops.GATHER and _is_few(node) for node in nodes):
        return set()
    read_by = readers(roots)
    found: set[Node] = set()
    for node in reversed(nodes):
        computed = node.op.kind is Kind.ELEMENTWISE and node.op is not ops.CONTIGUOUS
        if (computed or node.op is ops.VIEW) and all(_keeps_none(user, node, found) for user in read_by[node]):
            found.add(node)
    return {node for node in found if node.op is not ops.VIEW}


def _keeps_none(user: Node | None, node: Node, found: set[Node]) -> bool:
    if user is None:
        return False
    if user.op is ops.GATHER:
        return user.inputs[0] is node and user.inputs[1] is not node and _is_few(user)
    return user in found or (user.op.kind is Kind.REDUCE and contraction_of(user) is None)
