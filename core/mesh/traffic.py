"""What a rank sends in a run: messages and bytes, from the exchanges of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luminal.core import ops, traverse
from luminal.core import symbolic as sym
from luminal.core.exchange import EXCHANGES
from luminal.core.ir import Graph
from luminal.core.sizes import largest

MESSAGE = 1 << 30  # bytes of the largest message (``runtime/include/luminal/collectives.hpp``)


@dataclass(frozen=True)
class Traffic:
    """Messages that a rank sends in a run, and their bytes: the most of any rank, for broadcasts and shifts."""

    messages: int = 0
    bytes: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages + other.messages, self.bytes + other.bytes)


def message(size: int) -> Traffic:
    """What sending so many bytes to one rank takes."""
    return Traffic(-(-size // MESSAGE), size)


def times(traffic: Traffic, count: int) -> Traffic:
    """``traffic``, so many times."""
    return Traffic(traffic.messages * count, traffic.bytes * count)


def sent(graph: Graph, dims: Mapping[str, int] | None = None) -> dict[str, Traffic]:
    """What a rank sends along each axis of the mesh, at the sizes ``dims``, or at the upper bounds."""
    found = {axis: Traffic() for axis, _ in graph.mesh}
    for node in traverse.topological(graph.roots):
        if node.op is not ops.EXCHANGE:
            continue
        elements = node.inputs[0].size
        count = largest(elements) if dims is None else int(sym.evaluate(elements, dims))
        peers, parts = EXCHANGES[node.attr.kind].sent(node.attr.group.size)
        size = count * node.dtype.itemsize // parts
        pieces = -(-size // MESSAGE)
        found[node.attr.group.axis] += Traffic(peers * pieces, peers * size)
    return found
