"""What several regions read: each may compute it again, in its own order, if none of them needs it itself then.

So attention without an exponential, whose weights are read twice, by the product with the values and by the sum that
they are divided by, is computed without these weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from luminal.core import ops
from luminal.core.algebra import terms
from luminal.core.algebra.terms import Region
from luminal.core.ir import Node

FREE = (ops.VIEW, ops.GATHER)  # are read through even if others read what they give
READ = (ops.MUL, ops.ADD, ops.MULTIPLY_ADD, ops.DIV, ops.SUM_REDUCE, ops.SELECT)
_SHARED = (ops.MUL, ops.DIV, ops.SUM_REDUCE, ops.SELECT)


class Shared:
    """The nodes of one body, in an order with results first, by what reads them: ``readers`` are those of each node,
    None for being a result, and ``uses`` is how many there are past views and gathers."""

    def __init__(
        self, nodes: Sequence[Node], readers: Mapping[Node, Collection[Node | None]], uses: Mapping[Node, int]
    ) -> None:
        self.places = {node: place for place, node in enumerate(nodes)}
        self.readers = readers
        self.uses = uses
        shared = [n for n in nodes if uses[n] > 1 and n.op in _SHARED and n.dtype.compute == n.dtype]
        self.last = {node: found for node in shared if (found := self.ends(node))}

    def __iter__(self) -> Iterator[tuple[Node, list[Node]]]:
        """Each node that is read several times by some regions, and by nothing else, and the last nodes of these."""
        yield from self.last.items()

    def below(self, node: Node) -> list[Node]:
        """The nodes that only the regions that read ``node`` read several times."""
        around = {node, *self.last[node]}
        found: list[Node] = []
        for other, ends in self.last.items():
            if self.places[other] > self.places[node] and around.issuperset(ends):
                around.add(other)
                found.append(other)
        return found

    def ends(self, shared: Node) -> list[Node]:
        """The last nodes of the regions that read ``shared``; none if something else reads it too."""
        found: dict[Node, None] = {}
        for reader in self.past(shared):
            if reader is None or _joins(reader) or not _reads_through(reader, shared):
                return []
            node = reader
            while self.uses[node] == 1:
                (after,) = self.past(node)
                if after is None or _joins(after) or not _reads_through(after, node):
                    break
                node = after
            found[node] = None
        return list(found)

    def past(self, node: Node) -> list[Node | None]:
        """What reads a node, past views and gathers of it; None for being a result."""
        found: list[Node | None] = []
        readers = [x if x in self.places else None for x in self.readers[node]]  # others are in bodies of loops
        for reader in sorted(readers, key=lambda x: -1 if x is None else self.places[x]):
            is_free = reader is not None and reader.op in FREE and node is reader.inputs[0]
            found += self.past(reader) if is_free and reader is not None else [reader]
        return list(dict.fromkeys(found))


def _reads_through(reader: Node, node: Node) -> bool:
    """Whether a region reads ``node`` through ``reader``: as a factor, a term or a case, not as a divisor."""
    if reader.op not in READ or reader.dtype != node.dtype:
        return False
    through = reader.inputs[:1] if reader.op is ops.DIV else reader.inputs[reader.op is ops.SELECT :]
    return not any(_source(x) is node for x in reader.inputs if x not in through)


def _joins(node: Node) -> bool:
    """Whether ``node`` puts two values into one, of which neither is zero: a concatenation, which stores both. As a sum
    of masked terms it would save nothing, and take long to read where it has many parts."""
    return node.op is ops.SELECT and not any(map(terms.is_zero, node.inputs[1:]))


def is_factor(node: Node, region: Region) -> bool:
    """Whether ``node`` is a factor of a region."""
    return any(f.node is not None and _source(f.node) is node for term in region.terms for f in term.factors)


def _source(node: Node) -> Node:
    """What a node views or gathers."""
    while node.op in FREE:
        node = node.inputs[0]
    return node
