"""States: values that a model keeps from one call to the next, and how a run writes their new values. Carries of loops
may be written in the same ways.

The new value is computed like any other, and copied into the state by a last step; or it is computed in the state's
place, where nothing reads the state after the first step that writes it. Then a scatter into the state writes its new
elements alone. A state that does not change takes no step.
"""

from __future__ import annotations

import numpy as np

from luminal.core import ir, ops
from luminal.core.ir import Node
from luminal.core.schedule.fusion.assemblies import Part
from luminal.core.schedule.fusion.cluster import Cluster
from luminal.core.schedule.fusion.layout import Layouts
from luminal.core.schedule.lower import clusters
from luminal.core.target import Target


def is_zero(constant: Node) -> bool:
    """Whether every bit of a constant is zero."""
    return not np.ascontiguousarray(constant.attr.array).reshape(-1).view(np.uint8).any()


def lowered_copy(result: Node, state: Node, layouts: Layouts, target: Target) -> tuple[Cluster, clusters.Lowered]:
    """A cluster and the nest that copies ``result`` into ``state``."""
    box = tuple((0, extent) for extent in state.shape)
    part = Part(box, result, ir.axes(state.shape))
    return Cluster(0, "map", state.shape), clusters.lower_part(state, part, layouts, target)


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


def _operands(member: Node, result: Node, before: Node) -> tuple[Node, ...]:
    """The operands of a member of a cluster, without the value that it is scattered into."""
    into = member is result and member.op is ops.SCATTER and member.inputs[0] is before
    return member.inputs[1:] if into else member.inputs
