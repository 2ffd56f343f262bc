"""Identities of exponentials, logarithms, powers and roots, by the rows of ``core.rules.exponents``."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import ir, traverse
from luminal.core.ir import Graph, Node
from luminal.core.origins import Approximation
from luminal.core.rewrite import readers as read_by
from luminal.core.rewrite import remade, simplify
from luminal.core.rules.exponents import IDENTITIES


def simpler(graph: Graph) -> Graph:
    """``graph`` with each left side of an identity replaced where that saves work, noted in ``approximations``; until
    there is none. ``graph`` itself where there is none at all."""
    while (changed := _once(graph)) is not graph:
        graph = changed
    return graph


def _once(graph: Graph) -> Graph:
    readers = read_by(graph.roots)
    origins: ir.Origins = dict(graph.origins)
    found: list[Approximation] = []

    def made(node: Node, operands: Sequence[Node]) -> Node:
        new = traverse.rebuild(node, operands)
        for row in IDENTITIES:
            if node.op in row.rule.ops and (row.anywhere or all(len(readers[x]) == 1 for x in node.inputs)):
                other = row.rule.rewrite(new)
                if other is not None:
                    found.append(Approximation("algebra", str(row), graph.origins.get(node, ())))
                    return other
        return new

    roots = remade(graph.roots, origins, made)
    if not found:
        return graph
    return simplify(graph.computing(roots, origins=origins, approximations=(*graph.approximations, *found)))
