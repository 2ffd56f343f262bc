"""Results stored in place of an operand that nothing reads later: ``x + f(y)`` in the place of ``x``; the new value of
a state or carry in the place of the old one.

A store into memory that is in no cache reads its lines first. The lines of an operand that the same kernel reads are in
the cache, so a residual connection moves two thirds of the bytes, and the arena holds one value less. A scatter into a
state writes its new elements alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from luminal.core import ir, ops
from luminal.core.ir import Node
from luminal.core.schedule.fusion.assemblies import Placement
from luminal.core.schedule.fusion.cluster import Cluster, Fusion, Read
from luminal.core.schedule.fusion.layout import Layouts
from luminal.core.schedule.fusion.reads import reads


def in_place(layouts: Layouts) -> Layouts:
    """``layouts`` with operands placed where the result of the last kernel that reads them will be.

    Legal where the kernel computes each element of its only result from the operand's element in the same place, and
    reads no other one: it reads an element before it overwrites it. Values that lie inside others, or contain others,
    are not moved.
    """
    fusion = layouts.fusion
    home = {node: cluster for cluster in fusion.clusters for node in cluster.index}
    read = [tuple(reads(cluster, fusion, home)) for cluster in fusion.clusters]
    last = _last_readers(fusion, read)
    assemblies = layouts.assemblies
    wholes = {placement.whole for placement in assemblies.placed.values()}
    settled = fusion.own_storage | wholes | assemblies.placed.keys() | assemblies.parts.keys()
    placed: dict[Node, Placement] = {}
    for number, cluster in reversed(list(enumerate(fusion.clusters))):
        result = _only_result(cluster, fusion)
        if result is None or result in settled:
            continue
        for operand in dict.fromkeys(x.source for x in read[number]):
            over = operand in fusion.stored and operand not in cluster.index and last[operand] == number
            place = _placement_over(operand, result, layouts) if over and operand not in settled else None
            if place is not None and all(
                not x.valid and place.at(operand, x.index) == cluster.index[result]
                for x in read[number]
                if x.source is operand
            ):
                if (last_of_all := placed.get(result)) is not None:
                    # ``result`` is placed itself: point at the last value directly, not through others.
                    place = Placement(last_of_all.whole, last_of_all.at(result, place.index))
                placed[operand] = place
                break
    return replace(layouts, assemblies=replace(assemblies, placed={**assemblies.placed, **placed}))


def _placement_over(operand: Node, result: Node, layouts: Layouts) -> Placement | None:
    """The placement of ``operand`` on ``result`` in memory; None where they differ in more than axes of extent 1."""
    here, there = ([axis for axis in layouts.order(x) if x.shape[axis] != 1] for x in (operand, result))
    if operand.dtype != result.dtype or [operand.shape[k] for k in here] != [result.shape[k] for k in there]:
        return None
    axes = ir.axes(operand.shape)
    along = dict(zip(there, (axes[k] for k in here), strict=True))
    return Placement(result, tuple(along.get(k, 0) for k in range(result.rank)))


def _last_readers(fusion: Fusion, read: Sequence[Sequence[Read]]) -> Mapping[Node, int]:
    """The position of the last cluster that reads each value; ``read`` has the reads of each cluster."""
    last: dict[Node, int] = {}
    for number, cluster in enumerate(fusion.clusters):
        last |= {x.source: number for x in read[number]}
        if cluster.measures is not None:
            _, count = cluster.measures  # which is stored as it is
            last[count] = number
    return last


def _only_result(cluster: Cluster, fusion: Fusion) -> Node | None:
    """The value that a cluster stores, if it is only one and the kernel computes it element by element."""
    stored = [node for node in cluster.index if node in fusion.stored]
    simple = cluster.kind in ("map", "contraction") and cluster.chain is None
    return stored[0] if simple and len(stored) == 1 else None


# ---- states and carries ----------------------------------------------------------------------------------------------


def can_overwrite(result: Node, before: Node, layouts: Layouts) -> bool:
    """Whether ``result`` is ``before``, or can be computed in its place, because nothing reads ``before``
    afterwards."""
    if result is before:
        return True
    home = {node for cluster in layouts.fusion.clusters for node in cluster.index}
    writes = [any(layouts.owner(node) is result for node in c.index) for c in layouts.fusion.clusters]
    late = layouts.fusion.clusters[writes.index(True) :]
    read = [x for cluster in late for member in cluster.index for x in _operands(member, result, before)]
    seen: set[Node] = set()
    while read:
        node = read.pop()
        if node is before:
            return False
        if node not in home and node not in seen:  # computed where it is read
            seen.add(node)
            read += node.inputs
    return True


def updated(layouts: Layouts, pairs: Sequence[tuple[Node, Node]]) -> tuple[Layouts, Mapping[Node, Node]]:
    """``layouts`` in which old values lie in the place of those that replace them, and these pairs: of ``pairs``, those
    where the kernel that computes the new value reads each element of the old one for the same element alone, and no
    kernel reads it afterwards."""
    fusion, assemblies = layouts.fusion, layouts.assemblies
    home = {node: cluster for cluster in fusion.clusters for node in cluster.index}
    read = [tuple(reads(cluster, fusion, home)) for cluster in fusion.clusters]
    position = {node: number for number, cluster in enumerate(fusion.clusters) for node in cluster.index}
    last = _last_readers(fusion, read)
    settled = assemblies.placed.keys() | assemblies.parts.keys() | {x.whole for x in assemblies.placed.values()}
    found: dict[Node, Node] = {}
    for before, result in pairs:
        cluster = home.get(result)
        if cluster is None or cluster.kind not in ("map", "row", "contraction") or cluster.chain is not None:
            continue
        if result in settled or before in settled or last.get(before) != position[result]:
            continue
        place = _placement_over(before, result, layouts)
        own = [x for x in read[position[result]] if x.source is before]
        if place is not None and all(not x.valid and place.at(before, x.index) == cluster.index[result] for x in own):
            found[before] = result
    for cluster in fusion.clusters:  # tiles store as they go: none of their new values may wait for another
        here = {before: x for before, x in found.items() if x in cluster.index and cluster.kind == "contraction"}
        read_by = {before: _old_values(x, cluster, fusion) for before, x in here.items()}
        if any(a in read_by[b] and b in read_by[a] for a in here for b in here if a is not b):
            found = {before: x for before, x in found.items() if before not in here}
    placed = {before: Placement(result, ir.axes(result.shape)) for before, result in found.items()}
    return replace(layouts, assemblies=replace(assemblies, placed={**assemblies.placed, **placed})), found


def _old_values(result: Node, cluster: Cluster, fusion: Fusion) -> set[Node]:
    """The values from outside that ``result`` is computed from in its kernel."""
    seen: set[Node] = set()
    waiting = [result]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.inputs if node in cluster.index or node in fusion.inline or node.op is ops.VIEW else ()
    return seen


def _operands(member: Node, result: Node, before: Node) -> tuple[Node, ...]:
    """The operands of a member of a cluster, without the value that it is scattered into."""
    into = member is result and member.op is ops.SCATTER and member.inputs[0] is before
    return member.inputs[1:] if into else member.inputs
