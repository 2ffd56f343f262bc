"""Chains: a contraction, reductions along its columns, and a contraction over them, as one cluster.

Where only a row cluster reads a contraction, and another contraction sums the row cluster's result along the row, the
value between them is not stored: it is computed in blocks of columns, from block to block with the reductions (see
``online``). Memory then grows with the rows, not with rows times columns.
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
                first, middle, cluster = found
                replaced[last.number] = cluster
                gone |= {first.number, middle.number}
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


def _chain(fusion: Fusion, readers: Mapping[Node, set[int]], last: Cluster) -> tuple[Cluster, Cluster, Cluster] | None:
    total = next(iter(last.index))
    product = total.inputs[0]
    axes = [k for k in total.attr.axes if product.shape[k] != 1]
    middle = fusion.stored.get(_viewed(product.inputs[0], fusion))
    if len(axes) != 1 or middle is None or middle.kind != "row":
        return None
    first = _only_source(fusion, middle)
    if first is None or first.contraction is None or first is last:
        return None
    for cluster, allowed in ((middle, {middle.number, last.number}), (first, {first.number, middle.number})):
        if any(readers.get(n, set()) - allowed or n in fusion.roots for n in cluster.index if n in fusion.stored):
            return None
    along = Var("k0", 0, product.shape[axes[0]] - 1)
    index = _indices(fusion, (first, middle, last), total, along)
    if index is None:
        return None
    between = {v for e in index[_viewed(product.inputs[0], fusion)] for v in sym.variables(e)}
    columns = [v for a in last.axes if (v := sym.as_var(a)) is not None and v not in between]
    unreduced = {v for n in middle.index if n.op.kind is Kind.REDUCE for e in index[n] for v in sym.variables(e)}
    if len(columns) != 1 or along in unreduced or columns[0] in unreduced | between:
        return None
    rows = [n for n in first.index if n in fusion.stored]
    if len(rows) != 1:
        return None
    chain = Chain(tuple(first.index), rows[0], tuple(middle.index), tuple(last.index), along, first.contraction)
    return first, middle, replace(last, kind="chain", index=index, chain=chain)


def _viewed(node: Node, fusion: Fusion) -> Node:
    """The value that ``node`` is a view or an inline conversion of."""
    while node.op is ops.VIEW or (node.op is ops.CAST and node in fusion.inline):
        node = node.inputs[0]
    return node


def _only_source(fusion: Fusion, cluster: Cluster) -> Cluster | None:
    """The one contraction that ``cluster`` reads; None where there are none or several."""
    found = {
        home.number: home
        for n in cluster.index
        for x in _sources(n.inputs, fusion)
        if (home := fusion.stored.get(x)) is not None and home is not cluster
    }
    tiled = [home for home in found.values() if home.contraction is not None]
    return tiled[0] if len(tiled) == 1 else None


def _sources(nodes: Sequence[Node], fusion: Fusion) -> list[Node]:
    """The stored values, inputs and constants that ``nodes`` read, through views and inline values."""
    return traverse.sources(nodes, lambda n: n not in fusion.stored and (n.op is ops.VIEW or n in fusion.inline))


def _indices(
    fusion: Fusion, clusters: tuple[Cluster, Cluster, Cluster], total: Node, along: Var
) -> dict[Node, tuple[Int, ...]] | None:
    """The index of every member over the axes of the last cluster and ``along``; None where one is read at two
    indices."""
    first, middle, last = clusters
    members = {n for c in clusters for n in c.index}
    found: dict[Node, tuple[Int, ...]] = {}
    axis: Int = sym.expr(along)
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
            return None
        if node in members:
            found[node] = index
        elif node not in fusion.inline:
            continue
        if node.op.kind is Kind.ELEMENTWISE:
            stack += [(x, index) for x in node.inputs]
        elif node is total or (node in middle.index and node.op.kind is Kind.REDUCE):
            (operand,) = node.inputs
            if sum(operand.shape[k] != 1 for k in node.attr.axes) != 1:
                return None
            stack.append((operand, merged_index(operand, node.attr.axes, index, [axis])))
        elif node not in first.index and not members.isdisjoint(_sources(node.inputs, fusion)):
            return None
    if members - found.keys():
        return None
    return {n: found[n] for c in clusters for n in c.index}
