"""From nodes to scheduled nests: clusters, chains where they can run in one pass, layouts, and a schedule for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luminal.core.errors import ScheduleError
from luminal.core.ir import Node
from luminal.core.schedule.choose import cpu, grid
from luminal.core.schedule.choose.scheduler import Chosen
from luminal.core.schedule.fusion import chain, fuse, in_place, layout
from luminal.core.schedule.fusion.cluster import Cluster, Fusion
from luminal.core.schedule.fusion.layout import Layouts
from luminal.core.schedule.lower import clusters
from luminal.core.schedule.lower.clusters import Lowered
from luminal.core.schedule.prepare.graph import Prepared
from luminal.core.symbolic import Var
from luminal.core.target import Target


@dataclass(frozen=True)
class Arrangement:
    """Clusters with the layouts of what they store; ``refused`` says, by the number of its last cluster, why a chain
    stays apart."""

    fusion: Fusion
    layouts: Layouts
    refused: dict[int, str]


def arrange(
    roots: tuple[Node, ...],
    prepared: Prepared,
    target: Target,
    loose: frozenset[Node] = frozenset(),
    measured: Mapping[Var, Node] | None = None,
) -> Arrangement:
    """``roots`` in clusters, chains made one cluster each where they can run in one pass. Values that are ``loose`` lie
    at addresses that are multiples of an element alone; sizes that are ``measured`` are known after those nodes."""
    fusion = fuse.fuse(roots, prepared.contractions, measured)
    refused: dict[int, str] = {}
    while True:
        linked = chain.link(fusion, frozenset(refused))
        layouts = layout.assign(linked, loose)
        chains = [c for c in linked.clusters if c.chain is not None]
        reasons = {c.number: reason for c in chains if (reason := _refusal(c, linked, layouts, target))}
        if not reasons:
            # A store of a GPU reads no lines first: nothing would be gained there.
            return Arrangement(linked, in_place.in_place(linked, layouts) if target.grid is None else layouts, refused)
        refused |= reasons


def _refusal(cluster: Cluster, fusion: Fusion, layouts: Layouts, target: Target) -> str:
    """Why a chain cannot run in one pass; empty where it can."""
    try:
        schedule(cluster, clusters.lower(cluster, fusion, layouts, target), target)
    except ScheduleError as refusal:
        return str(refusal)
    return ""


def schedule(cluster: Cluster, lowered: Lowered, target: Target) -> Chosen:
    """The nest of a cluster with the schedule that suits the target."""
    if target.grid is None:
        return cpu.choose(cluster, lowered, target)
    return grid.choose(cluster, lowered, target)
