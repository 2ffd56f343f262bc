"""The reads of clusters, over their domains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.schedule.fusion.cluster import Cluster, Fusion, Read, resolve
from luminal.core.symbolic import Int


def reads(cluster: Cluster, fusion: Fusion, home: Mapping[Node, Cluster]) -> Iterator[Read]:
    """The reads of all members of a cluster over its domain, reads of other members included."""
    for member in cluster.index:
        for x in member.inputs:
            yield from resolve(x, _operand_index(member, x, cluster), (), fusion.inline, home)


def _operand_index(member: Node, x: Node, cluster: Cluster) -> tuple[Int, ...]:
    """The index at which ``member`` reads its operand ``x``, over the domain of its cluster."""
    index = cluster.index[member]
    if member in cluster.operand_index:
        return cluster.operand_index[member]
    if member.op.kind is ops.Kind.REDUCE:
        reduced = [ir.axes(x.shape)[k] for k in member.attr.axes if x.shape[k] != 1]
        return merged_index(x, member.attr.axes, index, reduced)
    if member.op is ops.SCAN:
        carries, slices = len(member.attr.carries), len(member.attr.slices)
        if x in member.inputs[carries + slices :]:
            return ir.axes(x.shape)
        return cluster.axes if x in member.inputs[carries:] else cluster.axes[1:]
    if member.op is ops.SORT:
        return cluster.axes
    if member.op is ops.SCATTER:
        _, positions, new = member.inputs
        span = cluster.axes if x is new else index
        return span if x is not positions else cluster.axes[member.attr.axis : member.attr.axis + positions.rank]
    if member.op is ops.GATHER:
        data, positions = member.inputs
        axis = member.attr.axis
        if x is positions:
            return index[axis : axis + positions.rank]
        looked: Int = sym.var("at", 0, data.shape[axis] - 1)
        return (*index[:axis], looked, *index[axis + positions.rank :])
    return index


def merged_index(x: Node, reduced: tuple[int, ...], unreduced: tuple[Int, ...], row: list[Int]) -> tuple[Int, ...]:
    """The index of a reduction's operand: ``unreduced``, the index of the result, merged with ``row``, the reduced
    axes."""
    outer, inner = iter(unreduced), iter(row)
    return tuple(next(outer) if k not in reduced else (0 if x.shape[k] == 1 else next(inner)) for k in range(x.rank))
