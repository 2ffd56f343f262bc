"""Recognises functions that models spell out in simpler ones, by rows of ``core.rules.functions`` for any reader."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import ir, traverse
from luminal.core.ir import Graph, Node
from luminal.core.rewrite import readers as read_by
from luminal.core.rewrite import remade, simplify
from luminal.core.rules.functions import IDENTITIES
from luminal.core.rules.match import Matcher
from luminal.core.rules.pattern import NODES


def known(graph: Graph) -> Graph:
    """``graph`` with each spelled-out function replaced by that function's own decomposition."""
    readers = read_by(graph.roots)
    matcher: Matcher[Node] = Matcher(NODES.operands, NODES.number, lambda node: len(readers[node]) == 1)
    rows = [row for row in IDENTITIES if row.real.digits is None]
    now: dict[Node, Node] = {}
    found: list[Node] = []

    def made(node: Node, operands: Sequence[Node]) -> Node:
        for row in rows:
            x = row.argument(node, matcher)
            if x is not None:
                found.append(node)
                return row.right(now[x])
        return traverse.rebuild(node, operands)

    origins: ir.Origins = dict(graph.origins)
    roots = remade(graph.roots, origins, made, became=now)
    return simplify(graph.computing(roots, origins=origins)) if found else graph
