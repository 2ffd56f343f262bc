"""Functions of which only a few elements are looked up, and whose other readers only reduce them, are computed of what
is looked up: ``f(x)[i] = f(x[i])``, bit for bit.

So a loss that picks one of many logarithms of a softmax stores none of the others. Where something else needs the
values in memory, they are looked up there. Readers that compute other values element by element, as a backward pass
does, can compute the function again where ``x`` is stored anyway: a sum of products that is reduced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import is_constant
from luminal.core.ir import Graph, Node, Origins
from luminal.core.ops import COSTLY, Kind
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
    again = _of_what_is_stored(nodes, read_by)
    found: set[Node] = set()
    for node in reversed(nodes):
        if (_computes(node) or node.op is ops.VIEW) and all(_keeps_none(u, node, found, again) for u in read_by[node]):
            found.add(node)
    return {node for node in found if node.op is not ops.VIEW}


def _computes(node: Node) -> bool:
    return node.op.kind is Kind.ELEMENTWISE and node.op is not ops.CONTIGUOUS


def _keeps_none(user: Node | None, node: Node, found: set[Node], again: set[Node]) -> bool:
    if user is None:
        return False
    if user.op is ops.GATHER:
        return user.inputs[0] is node and user.inputs[1] is not node and _is_few(user)
    if user in found or (node in again and _computes(user)):
        return True
    return user.op.kind is Kind.REDUCE and contraction_of(user) is None


def _of_what_is_stored(nodes: Sequence[Node], read_by: Mapping[Node, Collection[Node | None]]) -> set[Node]:
    """Sums of products that are stored, because they are reduced, and cheap functions of these and of values that are
    smaller by much, through views too."""

    def is_reduced(node: Node) -> bool:
        users = [user for user in read_by[node] if user is not None]
        reduces = any(user.op.kind is Kind.REDUCE and contraction_of(user) is None for user in users)
        return reduces or any(is_reduced(user) for user in users if user.op is ops.VIEW and user.size == node.size)

    def is_small(x: Node, node: Node) -> bool:
        while x.op is ops.VIEW:
            (x,) = x.inputs
        return sym.always(node.size - x.size * FEWER)

    found: set[Node] = set()
    for node in nodes:
        if node.op is ops.VIEW:
            stored = node.inputs[0] in found and node.inputs[0].size == node.size
        elif _computes(node):
            stored = node.op not in COSTLY and all(x in found or is_small(x, node) for x in node.inputs)
        else:
            stored = contraction_of(node) is not None and is_reduced(node)
        if stored:
            found.add(node)
    return found
