"""Tied weights: a table that is looked up in, and that a contraction reads from panels, is stored in panels alone.

A language model looks words up in the matrix that its last contraction multiplies with. Both read the panels, the
look-up through a view of them: a second copy of the table may be the largest constant of a model. The elements of a row
lie apart by the columns of a panel. Where a run looks up too many of them for that to cost it little
(``Memory.apart``), the table is stored in rows as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from luminal.core import ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node, Origins
from luminal.core.ops import Kind
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction.contraction import Operand
from luminal.core.schedule.contraction.panels import Packed
from luminal.core.schedule.prepare.graph import Prepared
from luminal.core.sizes import typical


def shared(entries: Sequence[Prepared], origins: Sequence[Origins], apart: int) -> list[Prepared]:
    """The ``entries`` of a program, with look-ups in constants that nothing but look-ups and panels store reading the
    panels, those of the entry itself before those of another. There are at least ``apart`` products, all entries
    together, for each element that is looked up so. Adds the origins of new nodes to ``origins``."""
    stored = {node for entry in entries for node in _read_otherwise(entry.roots)}
    every = {node: lies for entry in reversed(entries) for node, lies in entry.held.items()}
    stored |= _read_often(entries, every, apart)
    packed = {panel: sources for entry in entries for panel, sources in entry.packed.items()}
    result: list[Prepared] = []
    for entry, table in zip(entries, origins, strict=True):
        held = {n: lies for n, lies in {**every, **entry.held}.items() if stored.isdisjoint(_constants(n))}
        result.append(_looking_up(entry, _Tables(held), packed, table))
    return result


def _looking_up(
    entry: Prepared, tables: _Tables, packed: Mapping[Node, tuple[Node, ...]], origins: Origins
) -> Prepared:
    """``entry`` with every look-up in one of ``tables`` reading its panels."""
    read: dict[Node, tuple[Node, ...]] = {}

    def made(node: Node, operands: Sequence[Node]) -> Node:
        if node.op is ops.GATHER and (table := tables.of(node.inputs[0])) is not None:
            read.update({n: packed[n] for n in _constants(table) if n in packed})
            operands = (table, *operands[1:])
        return traverse.rebuild(node, operands)

    became: dict[Node, Node] = {}
    roots = remade(entry.roots, origins, made, became=became)
    if not read:
        return entry

    def moved(x: Operand) -> Operand:
        return replace(x, source=became.get(x.source, x.source))

    contractions = {became.get(n, n): replace(c, a=moved(c.a), b=moved(c.b)) for n, c in entry.contractions.items()}
    return replace(entry, roots=roots, contractions=contractions, packed={**entry.packed, **read})


class _Tables:
    """The constants in panels, and what is computed from them, read from the panels."""

    def __init__(self, held: Mapping[Node, Packed]) -> None:
        self.held = held
        self.wholes: dict[Node, Node | None] = {}
        self.known: dict[Node, Node | None] = {}

    def of(self, data: Node) -> Node | None:
        """``data`` read from panels; None where it does not depend on constants in panels."""
        if data not in self.known:
            nodes = traverse.topological([data])
            by = {n: whole for n in nodes if n in self.held and (whole := self._whole(n)) is not None}
            self.known[data] = traverse.substitute([data], by)[0] if by else None
        return self.known[data]

    def _whole(self, node: Node) -> Node | None:
        if node not in self.wholes:
            self.wholes[node] = self.held[node].whole()
        return self.wholes[node]


def _read_often(entries: Sequence[Prepared], held: Mapping[Node, Packed], apart: int) -> set[Node]:
    """The constants in which more elements are looked up than one for ``apart`` products."""
    products = 0
    looked_up: dict[Node, int] = {}
    for entry in entries:
        for node in traverse.everything(entry.roots):
            if node in entry.contractions:
                products += typical(sym.product(entry.contractions[node].shape))
            for n in traverse.topological(node.inputs[:1]) if node.op is ops.GATHER else ():
                if n in held:
                    looked_up[n] = looked_up.get(n, 0) + typical(node.size)
    return {x for n, elements in looked_up.items() if elements * apart > products for x in _constants(n)}


def _constants(node: Node) -> list[Node]:
    return [n for n in traverse.topological([node]) if n.op is ops.CONSTANT and n.size != 1]


def _read_otherwise(roots: Sequence[Node]) -> set[Node]:
    """The constants that something else than a look-up in them reads, bodies of loops and branches included."""
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += node.inputs[1:] if node.op is ops.GATHER else node.inputs
            if node.op.kind is Kind.STRUCTURED:
                stack += (root for body in node.attr.bodies for root in body)
    return {node for node in seen if node.op is ops.CONSTANT}
