"""The contractions of a graph, found once and carried from pass to pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from luminal.core import traverse
from luminal.core.ir import Graph, Node, Origins
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.contraction.roles import contraction_of

Contractions: TypeAlias = Mapping[Node, Contraction]
Make: TypeAlias = Callable[[Node, Sequence[Node]], Node]


def contractions(roots: Iterable[Node]) -> dict[Node, Contraction]:
    """The contractions among all that ``roots`` depend on, in the bodies of loops and branches too."""
    found = ((node, contraction_of(node)) for node in traverse.everything(roots))
    return {node: contraction for node, contraction in found if contraction is not None}


@dataclass(frozen=True)
class Contracted:
    """A graph with its contractions. A pass returns a new graph and carries each contraction over to it, with the
    operands that replace the old ones."""

    graph: Graph
    contractions: Contractions

    @classmethod
    def of(cls, graph: Graph) -> Contracted:
        """``graph`` with its contractions, found by the roles of their axes."""
        return cls(graph, contractions(graph.roots))

    def remade(self, region: Callable[[tuple[Node, ...], dict[Node, Node]], Make]) -> Contracted:
        """The graph with every node replaced, region by region: its own nodes, and each body of a loop or branch.

        ``region`` gets the roots of a region, and a table to which each node's replacement is added. It returns the
        function that makes a replacement, of the same value, from a node and its replaced operands. A contraction is
        carried if all nodes from its operands' sources to its sum are rebuilt; any other replacement is searched anew.
        """
        origins: Origins = dict(self.graph.origins)
        carried: dict[Node, Contraction] = {}

        def inside(roots: tuple[Node, ...]) -> tuple[Node, ...]:
            became: dict[Node, Node] = {}
            results = remade(roots, origins, region(roots, became), inside, became)
            for node in became.keys() & self.contractions.keys():
                found = self.contractions[node]
                kept = _is_rebuilt(node, (found.a.source, found.b.source), became)
                now = found.moved(became.__getitem__) if kept else contraction_of(became[node])
                if now is not None:
                    carried[became[node]] = now
            return results

        return Contracted(self.graph.computing(inside(self.graph.roots), origins=origins), carried)


def _is_rebuilt(node: Node, sources: Sequence[Node], became: Mapping[Node, Node]) -> bool:
    """Whether ``node`` and all nodes between it and ``sources`` were only rebuilt over replaced operands."""
    reached = [node]
    for x in reached:
        if x not in sources:
            if became[x] is not traverse.rebuild(x, [became[y] for y in x.inputs]):
                return False
            reached += x.inputs
    return True
