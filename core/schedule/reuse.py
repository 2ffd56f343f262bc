"""Results that lie where an operand did, which nothing reads any more: ``x + f(y)`` in the place of ``x``.

A store into memory that is in no cache reads its lines first. Those of an operand that is read beside it are there, so
a residual connection moves two thirds of the bytes, and the arena holds one value less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from luminal.core import ir
from luminal.core.ir import Node
from luminal.core.schedule.assemble import Placement
from luminal.core.schedule.fuse import Cluster, Fusion, Read
from luminal.core.schedule.layout import Layouts
from luminal.core.schedule.reads import reads


def in_place(fusion: Fusion, layouts: Layouts) -> Layouts:
    """``layouts`` with operands placed where the result of the last kernel that reads them will be.

    That is right where the kernel computes each element of its only result from the same element of the operand, and
    reads no other, and where the axes of both are in one order: then it has read an element before it writes over it.
    Values that lie inside others, or hold others, stay where they are.
    """
    home = {node: cluster for cluster in fusion.clusters for node in cluster.index}
    read = [tuple(reads(cluster, fusion, home)) for cluster in fusion.clusters]
    last = _last_readers(fusion, read)
    assemblies = layouts.assemblies
    wholes = {placement.whole for placement in assemblies.placed.values()}
    settled = fusion.kept | wholes | assemblies.placed.keys() | assemblies.parts.keys()
    placed: dict[Node, Placement] = {}
    for number, cluster in reversed(list(enumerate(fusion.clusters))):
        result = _only_result(cluster, fusion)
        if result is None or result in settled:
            continue
        others = {x.source for x in read[number] if x.valid or x.index != cluster.index[result]}
        for operand in dict.fromkeys(x.source for x in read[number]):
            over = operand in fusion.stored and operand not in cluster.index and last[operand] == number
            alike = (operand.dtype, operand.shape) == (result.dtype, result.shape)
            if over and alike and operand not in settled | others and layouts.order(operand) == layouts.order(result):
                # The last result of a stream holds all that came before it: nothing has to go from one to the next.
                whole = placed[result].whole if result in placed else result
                placed[operand] = Placement(whole, ir.axes(result.shape))
                break
    return replace(layouts, assemblies=replace(assemblies, placed={**assemblies.placed, **placed}))


def _last_readers(fusion: Fusion, read: Sequence[Sequence[Read]]) -> Mapping[Node, int]:
    """The number of the last cluster that reads a value; ``read`` is what each of them does."""
    last: dict[Node, int] = {}
    for number, cluster in enumerate(fusion.clusters):
        last |= {x.source: number for x in read[number]}
        if cluster.measures is not None:
            _, count = cluster.measures  # which is stored as it is
            last[count] = number
    return last


def _only_result(cluster: Cluster, fusion: Fusion) -> Node | None:
    """What a kernel stores that computes element after element, if it is one value."""
    stored = [node for node in cluster.index if node in fusion.stored]
    simple = cluster.kind in ("map", "contraction") and cluster.chain is None
    return stored[0] if simple and len(stored) == 1 else None
