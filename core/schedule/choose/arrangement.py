"""From nodes to kernels: clusters with layouts, chains joined where one pass can compute them, and the scheduled nests
of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.ir import Node
from luminal.core.ops import Kind
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


@dataclass(frozen=True)
class KernelChoice:
    """A scheduled nest, and for each of its array arguments the stored value that it is."""

    arguments: tuple[Node, ...]
    scheduled: Scheduled

    @property
    def has_tasks(self) -> bool:
        """Whether threads share it."""
        return bool(self.scheduled.nest.tasks)


@dataclass(frozen=True)
class Arrangement(Layouts):
    """Layouts, and what runs: ``kernels`` has the scheduled nests of each cluster that is kernels, by its number, and
    ``refused`` the reason for each chain that cannot be one pass. Values in ``overwriting`` are computed in the place
    of what they replace: the old value of a state or carry.
    """

    kernels: Mapping[int, tuple[KernelChoice, ...]] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    overwriting: frozenset[Node] = frozenset()


def arrange(
    roots: tuple[Node, ...],
    prepared: Prepared,
    target: Target,
    unaligned: frozenset[Node] = frozenset(),
    measured: Mapping[Var, Node] | None = None,
    replacing: Mapping[Node, Node] | None = None,
) -> Arrangement:
    """``roots`` in clusters, chains made one cluster each where they can run in one pass, and their scheduled nests.

    ``unaligned`` values lie at multiples of their element's size only. The size of each dimension in ``measured`` is
    known after its node. ``replacing`` has the values that may be computed where others, the keys, lie.
    """
    pairs = (replacing or {}).items()  # a scatter writes its own place alone
    changing = {before: x for before, x in pairs if x is not before and x.op is not ops.SCATTER}
    fusion = fuse.fuse(roots, prepared.contractions, measured, target.costs.kernels, changing)
    refused: dict[int, str] = {}
    while True:
        layouts = layout.assign_layouts(chain.link_chains(fusion, frozenset(refused)), unaligned, prepared.packed)
        if target.grid is None:  # stores of a GPU read no lines first: nothing to gain
            layouts = in_place.in_place(layouts)
        chains, reasons = _chains(layouts, target)
        if not reasons:
            break
        refused |= reasons
    over = {before: result for before, result in pairs if in_place.can_overwrite(result, before, layouts)}
    layouts, updated = in_place.updated(layouts, [pair for pair in changing.items() if pair[0] not in over])
    over |= updated
    kernels = {
        cluster.number: chains.get(cluster.number) or tuple(_kernels(cluster, layouts, over, target))
        for cluster in layouts.fusion.clusters
        if cluster.is_kernel
    }
    return Arrangement(**vars(layouts), kernels=kernels, refused=refused, overwriting=frozenset(over.values()))


def separable(cluster: Cluster, layouts: Layouts) -> list[Node]:
    """The stored values of a cluster that can be computed without the rest of it, element by element, from what is
    stored: an activation from the sums that it is applied to, a softmax from the maxima and sums of its rows."""
    if cluster.kind not in ("map", "row", "contraction"):
        return []
    stored, domain = layouts.fusion.stored, sym.product(cluster.extents)
    whole = [n for n in cluster.index if n in stored and n.size == domain and layouts.owner(n) is n]
    found = ((node, _parts(cluster, node, layouts)) for node in whole)
    return [node for node, parts in found if parts is not None and len(parts) < len(cluster.index)]


def alone(cluster: Cluster, node: Node, layouts: Layouts, target: Target) -> KernelChoice:
    """The scheduled nest of a node that is ``separable``."""
    parts = _parts(cluster, node, layouts)
    assert parts is not None
    single = Cluster(cluster.number, "map", cluster.extents, index={part: cluster.index[part] for part in parts})
    return _choice(single, clusters.lower(single, layouts, target), target)


def _parts(cluster: Cluster, node: Node, layouts: Layouts) -> list[Node] | None:
    """The members of a cluster that ``node`` is computed of, itself included, up to stored values; None where not all
    are elementwise."""
    found: dict[Node, None] = {}
    waiting = [node]
    for part in waiting:
        if part in cluster.index:
            if part.op.kind is not Kind.ELEMENTWISE:
                return None
            found[part] = None
        waiting += [x for x in part.inputs if x not in layouts.fusion.stored and x not in waiting]
    return list(found)


def copy_kernel(value: Node, to: Node, layouts: Layouts, target: Target) -> KernelChoice:
    """The scheduled nest that copies ``value`` to where ``to`` lies."""
    return _choice(Cluster(0, "map", to.shape), clusters.lower_copy(value, to, layouts, target), target)


def _chains(layouts: Layouts, target: Target) -> tuple[dict[int, tuple[KernelChoice, ...]], dict[int, str]]:
    """The nests of the chains that can run in one pass, and why the others cannot."""
    found: dict[int, tuple[KernelChoice, ...]] = {}
    reasons: dict[int, str] = {}
    for cluster in layouts.fusion.clusters:
        if cluster.chain is not None:
            try:
                found[cluster.number] = (_choice(cluster, clusters.lower(cluster, layouts, target), target),)
            except ScheduleError as refusal:
                reasons[cluster.number] = str(refusal)
    return found, reasons


def _kernels(cluster: Cluster, layouts: Layouts, over: Mapping[Node, Node], target: Target) -> list[KernelChoice]:
    """The scheduled nests of a cluster; small boxes of one assembly are one."""
    found: list[KernelChoice] = []
    for lowered in _lowered(cluster, layouts, over, target):
        choice = _choice(cluster, lowered, target)
        if found and found[-1].arguments == choice.arguments and not (choice.has_tasks or found[-1].has_tasks):
            choice = KernelChoice(choice.arguments, choice.scheduled.after(found.pop().scheduled))
        found.append(choice)
    return found


def _lowered(cluster: Cluster, layouts: Layouts, over: Mapping[Node, Node], target: Target) -> Iterator[Lowered]:
    """The nests of a cluster: one, or for an assembly one for each box that nothing else writes, and then the scatter
    or sort in its buffer."""
    parts = layouts.assemblies.parts
    whole = next((node for node in cluster.index if node in parts), None)
    if whole is not None and not (whole.op is ops.SCATTER and over.get(whole.inputs[0]) is whole):
        for part in parts[whole]:
            yield clusters.lower_part(whole, part, layouts, target)
    if whole is None or cluster.kind in ("scatter", "sort"):
        yield clusters.lower(cluster, layouts, target)


def _choice(cluster: Cluster, lowered: Lowered, target: Target) -> KernelChoice:
    """The nest of a cluster with its schedule. Raises ScheduleError where a chain cannot be one pass."""
    schedule = cpu.schedule_cluster if target.grid is None else grid.schedule_cluster
    return KernelChoice(lowered.arguments, schedule(cluster, lowered, target))
