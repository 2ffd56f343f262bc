"""Chains: reductions along rows, and a contraction over these rows, as one cluster; with the contraction from whose
result the rows are computed, where only they read it.

Loops over the axis that these share are fused: values between them are not stored but computed in blocks of columns,
and the reductions carried from block to block (see ``transform.carry``). Memory then grows with the rows, not with rows
times columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.schedule.fusion.cluster import Chain, Cluster, Fusion
from luminal.core.schedule.fusion.reads import merged_index
from luminal.core.symbolic import Int, Var


def link_chains(fusion: Fusion, without: frozenset[int] = frozenset()) -> Fusion:
    """``fusion`` with every chain made one cluster, under the number of its last one; the chains that end in a cluster
    whose number is in ``without`` stay apart."""
    readers = _readers(fusion)
    replaced: dict[int, Cluster] = {}
    gone: set[int] = set()
    for last in fusion.clusters:
        if last.contraction is not None and last.number not in without:
            found = _chain(fusion, readers, last)
            if found is not None:
                replaced[last.number], others = found
                gone |= {other.number for other in others}
    clusters = tuple(replaced.get(c.number, c) for c in fusion.clusters if c.number not in gone)
    home = {n: c for c in clusters for n in c.index}
    stored = {n: home[n] for n, c in fusion.stored.items() if c.number not in gone}
    return replace(fusion, clusters=clusters, stored=stored)


def _readers(fusion: Fusion) -> dict[Node, set[int]]:
    """The clusters that read each node, through views and inline values."""
    home = {n: c.number for c in fusion.clusters for n in c.index}
    found: dict[Node, set[int]] = {}
    stack = [(x, number) for n, number in home.items() for x in n.inputs]
    seen: set[tuple[Node, int]] = set()
    while stack:
        node, number = stack.pop()
        if (node, number) in seen:
            continue
        seen.add((node, number))
        if node in home:
            found.setdefault(node, set()).add(number)
        else:
            stack += [(x, number) for x in node.inputs]
    return found


def _chain(
    fusion: Fusion, readers: Mapping[Node, set[int]], last: Cluster
) -> tuple[Cluster, tuple[Cluster, ...]] | None:
    """The chain that ends in the contraction ``last``, and the clusters before that it is made of; None where there is
    none."""
    total = next(iter(last.index))
    product = total.inputs[0]
    axes = [k for k in total.attr.axes if product.shape[k] != 1]
    result = _viewed(product.inputs[0], fusion)
    middle = fusion.stored.get(result)
    if len(axes) != 1 or middle is None or middle.kind != "row":
        return None
    if not _read_only_by(middle, {middle.number, last.number}, fusion, readers):
        return None
    along = Var("k0", 0, product.shape[axes[0]] - 1)
    sources = {home.number: home for x in _sources([x for n in middle.index for x in n.inputs], fusion)
               if (home := fusion.stored.get(x)) is not None and home not in (middle, last)}  # fmt: skip
    firsts: list[Cluster | None] = [
        home
        for home in sources.values()
        if home.contraction is not None and _read_only_by(home, {home.number, middle.number}, fusion, readers)
    ]
    for first in (*firsts, None):
        found = _linked(fusion, first, middle, last, total, result, along)
        if found is not None:
            return found, (middle,) if first is None else (first, middle)
    return None


def _read_only_by(cluster: Cluster, allowed: set[int], fusion: Fusion, readers: Mapping[Node, set[int]]) -> bool:
    """Whether only clusters with numbers in ``allowed`` read what ``cluster`` stores."""
    return not any(readers.get(n, set()) - allowed or n in fusion.roots for n in cluster.index if n in fusion.stored)


def _linked(
    fusion: Fusion, first: Cluster | None, middle: Cluster, last: Cluster, total: Node, result: Node, along: Var
) -> Cluster | None:
    """The three, or without ``first`` two, as one cluster; None where their loops cannot be fused."""
    clusters = (middle, last) if first is None else (first, middle, last)
    index = _indices(fusion, clusters, total, along)
    if index is None:
        return None
    members = {n: index[n] for c in clusters for n in c.index}
    reductions = [n for n in middle.index if n.op.kind is Kind.REDUCE]
    between = {v for e in members[result] for v in sym.variables(e)}
    columns = [v for a in last.axes if (v := sym.as_var(a)) is not None and v not in between]
    unreduced = {v for n in reductions for e in members[n] for v in sym.variables(e)}
    if len(columns) != 1 or along in unreduced or columns[0] in unreduced | between:
        return None
    together = (sym.variables(e) for n in (() if first is None else first.index) for e in members[n])
    if any(along in variables and len(variables) > 1 for variables in together):
        return None  # rows and columns of the first contraction are not those of the last
    row: Node | None = _through_views(reductions[0].inputs[0])
    if first is not None and not (row in middle.index and _covers(row, first, middle, fusion)):
        stored = [n for n in first.index if n in fusion.stored]
        row = stored[0] if len(stored) == 1 else None
    if row is None or row not in index:
        return None
    before, contraction = ((), None) if first is None else (tuple(first.index), first.contraction)
    chain = Chain(before, row, index[row], tuple(middle.index), tuple(last.index), along, contraction)
    return replace(last, kind="chain", index=members, chain=chain)


def _covers(row: Node | None, first: Cluster, middle: Cluster, fusion: Fusion) -> bool:
    """Whether all that ``middle`` computes from ``first`` it computes from ``row``."""
    computed = traverse.sources(
        [n for n in middle.index if n in fusion.stored or n.op.kind is Kind.REDUCE],
        lambda n: (
            n is not row and n not in first.index and (n.op is ops.VIEW or n in middle.index or n in fusion.inline)
        ),
    )
    return first.index.keys().isdisjoint(computed)


def _through_views(node: Node) -> Node:
    """What ``node`` is a view of, all of whose elements exist."""
    while node.op is ops.VIEW and not node.attr.valid:
        node = node.inputs[0]
    return node


def _viewed(node: Node, fusion: Fusion) -> Node:
    """The value that ``node`` is a view or an inline conversion of."""
    while node.op is ops.VIEW or (node.op is ops.CAST and node in fusion.inline):
        node = node.inputs[0]
    return node


def _sources(nodes: Sequence[Node], fusion: Fusion) -> list[Node]:
    """The stored values, inputs and constants that ``nodes`` read, through views and inline values."""
    return traverse.sources(nodes, lambda n: n not in fusion.stored and (n.op is ops.VIEW or n in fusion.inline))


def _indices(
    fusion: Fusion, clusters: tuple[Cluster, ...], total: Node, along: Var
) -> dict[Node, tuple[Int, ...]] | None:
    """The index of every member over the axes of the last cluster and ``along``, and of whatever else they read at one
    index only. None where a member is read at two."""
    *first, middle, last = clusters
    members = {n for c in clusters for n in c.index}
    inputs = {n for c in first for n in c.index}
    found: dict[Node, tuple[Int, ...]] = {}
    twice: set[Node] = set()
    stack: list[tuple[Node, tuple[Int, ...]]] = list(last.index.items())
    seen: set[tuple[Node, tuple[Int, ...]]] = set()
    while stack:
        node, index = place = stack.pop()
        if place in seen:
            continue
        seen.add(place)
        if node.op is ops.VIEW:
            by = ir.rename(node.shape, index)
            masked = any(not sym.always(sym.substitute(v, by)) for v in node.attr.valid)
            if masked and not members.isdisjoint(_sources([node], fusion)):
                return None
            stack.append((node.inputs[0], tuple(sym.substitute(e, by) for e in node.attr.index)))
            continue
        if node in found:
            twice.add(node)
        found[node] = index
        if node not in members and node not in fusion.inline:
            continue
        if node.op.kind is Kind.ELEMENTWISE:
            stack += [(x, index) for x in node.inputs]
        elif node is total or (node in middle.index and node.op.kind is Kind.REDUCE):
            (operand,) = node.inputs
            if sum(operand.shape[k] != 1 for k in node.attr.axes) != 1:
                return None
            stack.append((operand, merged_index(operand, node.attr.axes, index, [sym.expr(along)])))
        elif node.op is ops.GATHER and members.isdisjoint(_sources(node.inputs[:1], fusion)):
            positions, axis = node.inputs[1], node.attr.axis
            stack.append((positions, index[axis : axis + positions.rank]))
        elif node not in inputs and not members.isdisjoint(_sources(node.inputs, fusion)):
            return None
    return None if twice & members or members - found.keys() else {n: at for n, at in found.items() if n not in twice}
