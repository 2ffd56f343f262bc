"""From nodes to clusters with layouts, and the schedule of each; chains are joined where one pass can compute them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from luminal.core.errors import ScheduleError
from luminal.core.ir import Node
from luminal.core.schedule.choose import cpu, grid
from luminal.core.schedule.fusion import chain, fuse, in_place, layout
from luminal.core.schedule.fusion.cluster import Cluster
from luminal.core.schedule.fusion.layout import Layouts
from luminal.core.schedule.lower import clusters
from luminal.core.schedule.lower.clusters import Lowered
from luminal.core.schedule.prepare.graph import Prepared
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.symbolic import Var
from luminal.core.target import Target


@dataclass
class Arrangement(Layouts):
    """Layouts, with the nests of ``chains`` by cluster number, since only scheduling a chain shows whether it can be
    one pass. ``refused`` has the reason for each chain that cannot."""

    refused: Mapping[int, str] = field(default_factory=dict)
    chains: Mapping[int, tuple[Lowered, Scheduled]] = field(default_factory=dict)


def arrange(
    roots: tuple[Node, ...],
    prepared: Prepared,
    target: Target,
    unaligned: frozenset[Node] = frozenset(),
    measured: Mapping[Var, Node] | None = None,
) -> Arrangement:
    """``roots`` in clusters, chains made one cluster each where they can run in one pass. ``unaligned`` values lie at
    multiples of their element's size only. The size of each dimension in ``measured`` is known after its node."""
    fusion = fuse.fuse(roots, prepared.contractions, measured)
    refused: dict[int, str] = {}
    while True:
        arranged = layout.assign_layouts(chain.link_chains(fusion, frozenset(refused)), unaligned)
        if target.grid is None:  # stores of a GPU read no lines first: nothing to gain
            arranged = in_place.in_place(arranged)
        chains, reasons = _chains(arranged, target)
        if not reasons:
            return Arrangement(**vars(arranged), refused=refused, chains=chains)
        refused |= reasons


def _chains(arranged: Layouts, target: Target) -> tuple[dict[int, tuple[Lowered, Scheduled]], dict[int, str]]:
    """The nests of the chains that can run in one pass, and why the others cannot."""
    found: dict[int, tuple[Lowered, Scheduled]] = {}
    reasons: dict[int, str] = {}
    for cluster in arranged.fusion.clusters:
        if cluster.chain is not None:
            lowered = clusters.lower(cluster, arranged, target)
            try:
                found[cluster.number] = lowered, schedule_cluster(cluster, lowered, target)
            except ScheduleError as refusal:
                reasons[cluster.number] = str(refusal)
    return found, reasons


def schedule_cluster(cluster: Cluster, lowered: Lowered, target: Target) -> Scheduled:
    """The nest of a cluster with the schedule for the target. Raises ScheduleError where a chain cannot be one pass."""
    if target.grid is None:
        return cpu.schedule_cluster(cluster, lowered, target)
    return grid.schedule_cluster(cluster, lowered, target)
