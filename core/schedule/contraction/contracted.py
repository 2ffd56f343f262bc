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
    """A graph with its contractions. A pass hands on those of the graph that it makes: each is the one that was found,
    with its operands replaced by what they have become."""

    graph: Graph
    contractions: Contractions

    @classmethod
    def of(cls, graph: Graph) -> Contracted:
        """``graph`` with its contractions, found by the roles of their axes."""
        return cls(graph, contractions(graph.roots))

    def remade(self, region: Callable[[tuple[Node, ...], dict[Node, Node]], Make]) -> Contracted:
        """The graph with every node replaced, region by region: its own nodes, and each body of a loop or branch.

        ``region`` is handed the roots of a region and a table that gains what each node was replaced by. It returns
        what makes a node's replacement, of the same value, from the node and its replaced operands.
        """
        origins: Origins = dict(self.graph.origins)
        carried: dict[Node, Contraction] = {}

        def inside(roots: tuple[Node, ...]) -> tuple[Node, ...]:
            became: dict[Node, Node] = {}
            results = remade(roots, origins, region(roots, became), inside, became)
            for node in became.keys() & self.contractions.keys():
                carried[became[node]] = self.contractions[node].moved(became.__getitem__)
            return results

        return Contracted(self.graph.computing(inside(self.graph.roots), origins=origins), carried)
