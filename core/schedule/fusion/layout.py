"""Layouts: the order of a stored value's axes in memory, chosen over the whole graph.

A contraction writes along its N axis, so that axis is innermost: activations between convolutions come out channels
last, with no transpose anywhere. Other values follow the order of what they read. Inputs, outputs and packed panels are
row-major by contract. A constant is stored in the order in which its largest reader writes, so weights that are read
channel by channel are channels last too. Where a contraction reads part of a value again for every row of its result,
such as the sums that remove zero points of integers, that value lies along the result's columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.schedule.fusion import assemblies as assemble
from luminal.core.schedule.fusion.assemblies import Assemblies
from luminal.core.schedule.fusion.cluster import Cluster, Fusion, Read
from luminal.core.schedule.fusion.reads import reads
from luminal.core.sizes import typical
from luminal.core.symbolic import Int, Var


@dataclass(frozen=True)
class Layouts:
    """The clusters of a graph, and where each stored value lies. ``orders`` has the axes, slowest first, of every value
    that is not row-major; ``assemblies`` says which values lie inside others. ``unaligned`` values may begin where the
    widest memory access of a thread is not allowed."""

    fusion: Fusion
    assemblies: Assemblies
    unaligned: frozenset[Node] = frozenset()
    orders: dict[Node, tuple[int, ...]] = field(default_factory=dict)

    def owner(self, node: Node) -> Node:
        """The value whose buffer holds ``node``."""
        return self.assemblies.owner(node)

    def order(self, node: Node) -> tuple[int, ...]:
        """The axes of ``node`` from slowest to fastest in memory."""
        node = self.owner(node)
        return self.orders.get(node, tuple(range(node.rank)))

    def offset(self, node: Node, index: tuple[Int, ...]) -> Int:
        """The position of an element, in elements from the start of the buffer that holds ``node``."""
        node, index = self.assemblies.within(node, index)
        total: Int = 0
        for axis in self.order(node):
            total = total * node.shape[axis] + index[axis]
        return total


def assign_layouts(fusion: Fusion, unaligned: frozenset[Node] = frozenset(), packed: Collection[Node] = ()) -> Layouts:
    """Choose a place and a layout for every stored value; ``unaligned`` ones begin anywhere. ``packed`` constants are
    row-major whoever reads them."""
    home = {n: c for c in fusion.clusters for n in c.index}
    read_by_contraction = _contraction_reads(fusion)
    panels = frozenset(n for n, (_, as_b) in read_by_contraction.items() if as_b)
    layouts = Layouts(fusion, assemble.find_assemblies(fusion, panels | fusion.own_storage), unaligned)
    held = {layouts.owner(node) for node in read_by_contraction}  # other rules order these
    beside = {node: (axis,) for node, axis in _columns_beside_products(fusion, home).items() if node not in held}
    runs = {**beside, **_run_axes_of_a(fusion)}
    # The first value of a loop's carry lies in place of the result, in its order, even if nothing reads the result.
    owners = {layouts.owner(node) for node in fusion.own_storage}
    sorted_ = {layouts.owner(n) for n in home if n.op is ops.SORT}  # rows are sorted where they are contiguous
    settled = owners | fusion.own_storage | panels | sorted_
    copy_reads = _copy_reads(fusion, home, settled.union(read_by_contraction))
    for cluster in fusion.clusters:
        for node, index in cluster.index.items():
            owner, at = layouts.assemblies.within(node, index)
            at = index if owner.rank == node.rank else at
            if node not in fusion.stored or owner.rank < 2 or owner in settled:
                continue
            settled.add(owner)
            if cluster.kind == "contraction":
                order = _contraction_order(cluster, owner, at, read_by_contraction.get(node))
            else:
                order = _followed_order(cluster, owner, at, fusion, home, layouts)
                order = _copied_order(order, copy_reads.get(owner, []))
            if owner in runs:
                order = (*(axis for axis in order if axis not in runs[owner]), *runs[owner])
            if order != tuple(range(owner.rank)):
                layouts.orders[owner] = order
    _order_constants(fusion, home, layouts, fusion.own_storage.union(read_by_contraction, packed))
    return layouts


def _order_constants(fusion: Fusion, home: Mapping[Node, Cluster], layouts: Layouts, settled: frozenset[Node]) -> None:
    """Choose the order of the constants that no contraction reads, by a vote of clusters weighted by domain size."""
    votes: dict[Node, dict[tuple[int, ...], int]] = {}
    for cluster in (c for c in fusion.clusters if c.is_kernel):
        fast = None if cluster.chain is not None else _fast_axis(cluster, fusion, layouts)
        size = typical(sym.product(cluster.extents))
        for read in reads(cluster, fusion, home):
            node = read.source
            if node.op is ops.CONSTANT and node.rank > 1 and node not in settled:
                count = votes.setdefault(node, {})
                order = _order_along(read, fast)
                count[order] = count.get(order, 0) + size
    for node, count in votes.items():
        order = max(count, key=lambda order: count[order])
        if order != tuple(range(node.rank)):
            layouts.orders[node] = order


def _fast_axis(cluster: Cluster, fusion: Fusion, layouts: Layouts) -> Var | None:
    """The axis of the domain along which the cluster's largest result lies in memory."""
    stored = [n for n in cluster.index if n in fusion.stored]
    largest = max(stored or cluster.index, key=lambda n: typical(n.size))
    offset = layouts.offset(largest, cluster.index[largest])
    axes = [v for a in cluster.axes if (v := sym.as_var(a)) is not None]
    return next((v for v in axes if (linear := sym.coefficient(offset, v)) is not None and linear[0] == 1), None)


def _order_along(read: Read, fast: Var | None) -> tuple[int, ...]:
    """The order of a constant's axes that makes ``read`` contiguous along ``fast``; other axes stay in order."""
    natural = tuple(range(read.source.rank))
    along = [d for d in natural if fast is not None and fast in sym.variables(read.index[d])]
    if len(along) != 1 or sym.as_var(read.index[along[0]]) != fast:
        return natural
    if all(size == 1 for size in read.source.shape[along[0] + 1 :]):
        return natural
    return (*(d for d in natural if d != along[0]), along[0])


def _contraction_reads(fusion: Fusion) -> Mapping[Node, tuple[tuple[Int, ...], bool]]:
    """For each value that contractions read: the index of the first such read, and whether any contraction reads it as
    B, whose last axis must stay innermost."""
    found: dict[Node, tuple[tuple[Int, ...], bool]] = {}
    for cluster in fusion.clusters:
        for contraction in cluster.contractions:
            scale = () if contraction.scale is None else ((contraction.scale, False),)
            for x, as_b in ((contraction.a, False), (contraction.b, True), *scale):
                first, before = found.get(x.source, (x.index, False))
                found[x.source] = (first, before or as_b)
    return found


def _run_axes_of_a(fusion: Fusion) -> Mapping[Node, tuple[int, ...]]:
    """For each value that matrix units read as A, the axes along which they read terms side by side."""
    found: dict[Node, tuple[int, ...]] = {}
    for cluster in fusion.clusters:
        for contraction in cluster.contractions:
            if contraction.runs:
                source = contraction.a.source
                found[source] = max(found.get(source, ()), contraction.runs, key=len)
    return found


def _columns_beside_products(fusion: Fusion, home: Mapping[Node, Cluster]) -> Mapping[Node, int]:
    """For each value that contractions read again where they store each row of products, the axis that goes with the
    columns: reading it across memory would cost more than the product."""
    found: dict[Node, int] = {}
    for cluster in fusion.clusters:
        if cluster.kind != "contraction" or cluster.contractions[-1].along_rows:
            continue
        columns = _columns(cluster)
        domain = [v for a in cluster.axes if (v := sym.as_var(a)) is not None]
        for x in reads(cluster, fusion, home):
            moves = {v for e in x.index for v in sym.variables(e)}
            along = {v: d for d, e in enumerate(x.index) if (v := sym.as_var(e)) in columns and v is not None}
            if along and not x.valid and x.source not in cluster.index and not moves.issuperset(domain):
                found.setdefault(x.source, along[max(along, key=domain.index)])
    return found


def _columns(cluster: Cluster) -> set[Var | None]:
    """The axes of the domain that are columns of the cluster's last product."""
    contraction = cluster.contractions[-1]
    unreduced = [k for k in range(len(contraction.shape)) if k not in contraction.k]
    return {sym.as_var(cluster.axes[unreduced.index(k)]) for k in contraction.n}


def _contraction_order(
    cluster: Cluster, node: Node, index: tuple[Int, ...], read: tuple[tuple[Int, ...], bool] | None
) -> tuple[int, ...]:
    columns = _columns(cluster)
    inner = [d for d in range(node.rank) if sym.variables(index[d]) & columns]
    outer = [d for d in range(node.rank) if d not in inner]
    if read is not None and len(read[0]) == node.rank:
        outer.sort(key=lambda d: _position(read[0][d]))
    return (*outer, *sorted(inner, key=lambda d: _position(index[d])))


def _position(index: Int) -> tuple[str, int]:
    """A sort key: the first axis that an index names, its quotient before its remainder."""
    names = sorted(v.name for v in sym.variables(index))
    quotient = any(isinstance(a, sym.FloorDiv) for a in sym.atoms(index))
    return (names[0] if names else "", 0 if quotient else 1)


def _followed_order(
    cluster: Cluster,
    node: Node,
    index: tuple[Int, ...],
    fusion: Fusion,
    home: Mapping[Node, Cluster],
    layouts: Layouts,
) -> tuple[int, ...]:
    """The order of a value's axes that follows the largest operand of its cluster."""
    found = [
        read
        for read in reads(cluster, fusion, home)
        if read.source not in cluster.index and read.source.op is not ops.CONSTANT
    ]
    spans = [len({v for e in r.index for v in sym.variables(e)}) for r in found]
    if not found or max(spans) < 2:
        return tuple(range(node.rank))
    main = found[spans.index(max(spans))]
    offset = layouts.offset(main.source, main.index)
    strides: list[int] = []
    domain = {sym.as_var(a) for a in cluster.axes}
    for e in index:
        variable = _moves_along(e, domain)
        step = None if variable is None else _mean_step(offset, variable)
        if step == 0:
            return tuple(range(node.rank))
        strides.append(1 << 62 if step is None else step)
    return tuple(sorted(range(node.rank), key=lambda d: (-strides[d], d)))


def _mean_step(offset: Int, axis: Var) -> int:
    """How far ``offset`` moves with a step along ``axis``: its slope; where it has none, as where a window's gradient
    finds its place by a quotient, the mean from one end of the axis to the other; 0 where neither is known."""
    linear = sym.coefficient(offset, axis)
    if linear is not None:
        return sym.upper(linear[0]) or 0
    others: dict[Var, Int] = {v: 0 for v in sym.variables(offset) if v != axis and v.lo == 0}
    first, last = (sym.substitute(offset, {**others, axis: at}) for at in (0, axis.hi))
    far = last - first
    return max(1, far // axis.hi) if isinstance(far, int) and isinstance(axis.hi, int) and far > 0 else 0


def _copy_reads(fusion: Fusion, home: Mapping[Node, Cluster], taken: Set[Node]) -> Mapping[Node, list[tuple[Int, ...]]]:
    """The indices at which elementwise clusters read each copy that is not ``taken``."""
    copies = {n for n in fusion.stored if n not in taken and all(x.op is ops.CONTIGUOUS for x in home[n].index)}
    found: dict[Node, list[tuple[Int, ...]]] = {}
    for cluster in fusion.clusters if copies else ():
        for read in reads(cluster, fusion, home) if cluster.kind == "map" else ():
            if read.source in copies:
                found.setdefault(read.source, []).append(read.index)
    return found


def _copied_order(order: tuple[int, ...], reads: list[tuple[Int, ...]]) -> tuple[int, ...]:
    """The ``order`` of a copy. Where its readers do not move by single elements along the last axis, the last axis
    along which they do becomes innermost, so that they read vectors of neighbours."""

    def steps(axis: int) -> bool:
        slopes = [sym.coefficient(index[axis], v) for index in reads for v in sym.variables(index[axis])]
        return any(slope is None or slope[0] != 1 for slope in slopes)

    plain = [axis for axis in order if all(sym.as_var(index[axis]) is not None for index in reads)]
    if not plain or not steps(order[-1]):
        return order
    return (*(axis for axis in order if axis != plain[-1]), plain[-1])


def _moves_along(index: Int, domain: Set[Var | None]) -> Var | None:
    """The one axis of ``domain`` in an index that is linear in it; None where there is no such axis or several."""
    found = [v for v in sym.variables(index) if v in domain]
    return found[0] if len(found) == 1 and sym.coefficient(index, found[0]) is not None else None
