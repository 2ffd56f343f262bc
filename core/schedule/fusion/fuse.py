"""Fusion: the graph's nodes grouped into clusters (see ``cluster``), each of which becomes one kernel.

A node joins the latest cluster that it reads, where axes can be matched and no cycle arises; otherwise it begins a new
one. Then clusters of its other operands are merged into that cluster where nothing else reads them. Values that are
cheap, or that only one reduction reads, are *inline*: computed where they are used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.constants import is_computed
from luminal.core.costs import COSTS, Kernels
from luminal.core.ir import Node
from luminal.core.matching import invert
from luminal.core.ops import COSTLY, Kind
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.fusion.again import computed_again, consumers
from luminal.core.schedule.fusion.cluster import (
    Cluster,
    Fusion,
    Read,
    domain_axes,
    resolve,
    scatter_index,
    sort_index,
)  # fmt: skip
from luminal.core.schedule.fusion.order import late, overlapped
from luminal.core.schedule.prepare import loops
from luminal.core.sizes import typical
from luminal.core.symbolic import Int, Var

MOST_NESTED = 100  # operations, each inside another, in one expression: a limit of compilers, which recurse


@dataclass(frozen=True)
class _Traversal:
    """A way through all of a value: element by element over ``shape``, or row by row, rows being the axes ``along``."""

    source: Node
    shape: ir.Shape
    along: tuple[int, ...] = ()


class Fuser:
    """State of one fusion run."""

    def __init__(
        self,
        roots: tuple[Node, ...],
        contractions: Mapping[Node, Contraction],
        measured: Mapping[Var, Node],
        costs: Kernels,
        replacing: Mapping[Node, Node],
    ) -> None:
        self.roots = roots
        self.replacing = replacing
        self.costs = costs
        self.own_storage = loops.kept(roots)
        self.contractions = contractions
        self.measured = measured
        self.order = traverse.topological(roots, measured)
        self.consumers = consumers(self.order)
        self.inline: set[Node] = set()
        self.home: dict[Node, Cluster] = {}  # the cluster of each member
        self.depth: dict[Node, int] = {}  # operations nested in each node's expression
        self.prologues = self._find_prologues()
        limits = (costs.again, costs.sources)
        self.again = computed_again(self.order, self.consumers, contractions, self.own_storage, replacing, *limits)
        self.turned = {c.a.source for c in contractions.values() if c.runs and c.tile is not None and not c.tile.unit}
        self.clusters: list[Cluster] = []
        self.sources: list[set[Node]] = []  # of each cluster: the values from outside that it reads
        self.ancestors: list[int] = []  # of each cluster: a bit for every cluster that it depends on
        self.latest: dict[_Traversal, int] = {}  # the last cluster with each traversal
        self.sizes: dict[Var, int] = {}  # the number of the cluster that measures each size

    def run(self) -> Fusion:
        for node in self.order:
            if node.op.kind is Kind.SOURCE or node.op is ops.VIEW:
                continue
            if self._is_inline(node):
                self.inline.add(node)
                self.depth[node] = self._depth(node, None)
            else:
                self._place(node)
            for size, count in self.measured.items():
                if count is node:
                    self._measure(size, count)
        return self._result()

    def _measure(self, size: Var, count: Node) -> None:
        home = self.home[count].number
        self.sizes[size] = len(self.clusters)
        self.clusters.append(Cluster(len(self.clusters), "measure", (), measures=(size, count)))
        self.sources.append(set())
        self.ancestors.append(self.ancestors[home] | 1 << home)

    def _measuring(self, node: Node) -> set[int]:
        """The clusters that measure the sizes that ``node``, and what is computed inline for it, depend on."""
        if not self.sizes:
            return set()
        here = {node: None}
        for part in (waiting := [node]):
            computed = [x for x in part.inputs if x not in self.home and x not in here]
            waiting += computed
            here |= dict.fromkeys(computed)
        return {self.sizes[size] for part in here for size in traverse.symbols(part) if size in self.sizes}

    # ---- inline values --------------------------------------------------------------------------------------------

    def _is_inline(self, node: Node) -> bool:
        if node in self.own_storage or node.op.kind is not Kind.ELEMENTWISE or node.op is ops.CONTIGUOUS:
            return False
        if self._depth(node, None) > MOST_NESTED:
            return False
        if node in self.again:
            return True
        sources = [r.source for r in self._reads(node, ir.axes(node.shape))]
        if not sources and node.op not in COSTLY:
            return True
        users = self.consumers[node]
        if users and all(user in self.contractions for user in users):
            return True  # the product of a contraction exists only inside its tile operation
        if node.op is ops.CAST and users and all(self._is_multiplied(user) for user in users):
            return True  # operands of tile operations convert as they are loaded
        if node in self.prologues:
            return True  # tile operations compute it as they load B, look-ups for the rows that they read
        if self._decodes(node, sources):
            return True  # its source has fewer bytes to read
        if len(users) != 1:
            return False
        (user,) = users
        if self._broadcasts(node, user, sources):
            return True  # recomputing is cheaper than storing a value larger than its operands
        if self._is_old(node, user, sources):
            return True  # it is read where the new value is computed, in the same place
        if user.op.kind is not Kind.REDUCE or user in self.contractions or self._is_in_parts(node, sources):
            return False
        # A reduction over overlapping windows would compute each element once for each window.
        return user.inputs[0].size == node.size

    def _is_in_parts(self, node: Node, sources: list[Node]) -> bool:
        """Whether storing ``node`` saves storing several values of its size. They are written by one contraction's
        kernel, which no reduction joins, and nothing else reads them."""
        own = {x for x in sources if x not in self.own_storage and {node, *sources}.issuperset(self.consumers[x])}
        homes = [self.home[x].number for x in own if x in self.home and x.size == node.size]
        return any(homes.count(n) > 1 and self.clusters[n].kind == "contraction" for n in homes)

    def _decodes(self, node: Node, sources: list[Node]) -> bool:
        """Whether ``node`` is a few cheap operations on one narrower value, and no reader needs it stored."""
        if node.op in COSTLY or len(set(sources)) != 1 or self._depth(node, None) > self.costs.decoding:
            return False
        narrow, users = sources[0].dtype, self.consumers[node]
        if narrow.itemsize >= node.dtype.itemsize or not (narrow.is_integer or (narrow.is_float and narrow.bits >= 16)):
            return False
        # A tile operation converts what it loads, no more.
        loaded = [x for x in (node, *(user for user in users if user.op is ops.CAST)) if self._is_loaded(x)]
        if loaded and (loaded != [node] or node.op is not ops.CAST or self._depth(node, None) > 1):
            return False
        return all(user.op.kind in (Kind.ELEMENTWISE, Kind.REDUCE) and user.op is not ops.CONTIGUOUS for user in users)

    def _broadcasts(self, node: Node, user: Node, sources: list[Node]) -> bool:
        """Whether ``node`` is cheap and larger than each of its ``sources``, and ``user`` is elementwise."""
        if node.op in COSTLY or user.op.kind is not Kind.ELEMENTWISE or node not in user.inputs:
            return False
        if self._is_multiplied(user):
            return False  # a tile operation reads what is stored
        return all(sym.always(node.size - source.size - 1) for source in sources)

    def _is_old(self, node: Node, user: Node, sources: list[Node]) -> bool:
        """Whether ``node`` is cheap and computed of values that are replaced, and of numbers for many elements."""
        old = [x for x in sources if x in self.replacing]
        cheap = node.op not in COSTLY and user.op.kind is Kind.ELEMENTWISE and not self._is_multiplied(user)
        return cheap and bool(old) and all(x in old or sym.always(node.size - x.size - 1) for x in sources)

    def _is_multiplied(self, node: Node) -> bool:
        """Whether ``node`` is a product that exists only inside tile operations."""
        return node.op is ops.MUL and all(user in self.contractions for user in self.consumers[node])

    def _is_loaded(self, node: Node) -> bool:
        """Whether a tile operation loads ``node``."""
        return any(map(self._is_multiplied, self.consumers[node]))

    def _find_prologues(self) -> set[Node]:
        """Values of constants that are computed where they are read: tile operations compute their right operand as
        they load it, look-ups what they find in a table."""
        right = {node.inputs[0]: found.b.source for node, found in self.contractions.items()}
        found = {x for node, of in self.contractions.items() for x in of.computed_in_tiles(node)}
        for node in reversed(self.order):
            if node.op.kind is not Kind.ELEMENTWISE or not is_computed(node):
                continue

            def is_read_there(user: Node, node: Node = node) -> bool:
                loaded = right.get(user) is node and self._is_multiplied(user)
                return loaded or user in found or self._is_looked_up(node, user)

            if self.consumers[node] and all(map(is_read_there, self.consumers[node])):
                found.add(node)
        return found

    def _is_looked_up(self, node: Node, user: Node) -> bool:
        """Whether ``user`` only looks up in ``node``. What takes long is looked up in a stored table, unless the table
        is larger than what is looked up."""
        if user.op is not ops.GATHER or _viewed(user.inputs[0]) is not node or _viewed(user.inputs[1]) is node:
            return False
        return node.op not in COSTLY or typical(user.size) <= typical(node.size)

    def _depth(self, node: Node, cluster: Cluster | None) -> int:
        """The length of the longest chain of operations inside the expression of ``node``, in ``cluster`` or inline."""
        operands = [x.inputs[0] if x.op is ops.VIEW else x for x in node.inputs]
        inside = [x for x in operands if x in self.inline or (cluster is not None and self.home.get(x) is cluster)]
        return 1 + max((self.depth[x] for x in inside), default=0)

    # ---- placing a node --------------------------------------------------------------------------------------------

    def _place(self, node: Node) -> None:
        if node in self.contractions:
            self._new_cluster(node, "contraction", node.shape)
            return
        if node in self.turned and node.op is ops.CONTIGUOUS:  # what it copies is stored as others read it
            self._new_cluster(node, "map", node.shape)
            return
        if loops.is_steps(node):
            self._place_steps(node)
            return
        if node.op in ops.CALLED:
            self._new_cluster(node, node.op.kind.value, (), index=ir.axes(node.shape))
            return
        if node.op is ops.SCAN:
            self._place_scan(node)
            return
        if node.op is ops.SCATTER:
            new = node.inputs[2].shape
            self._new_cluster(node, "scatter", new, index=scatter_index(node, domain_axes(new)))
            return
        if node.op is ops.SORT:
            over = node.inputs[0].shape
            self._new_cluster(node, "sort", over, index=sort_index(node, domain_axes(over)))
            return
        reads = list(self._reads(node, ir.axes(node.shape)))
        needs = self._measuring(node)
        for cluster in (*self._clusters_read(reads), *self._clusters_of_traversal(node, reads)):
            early = any(self.ancestors[number] >> cluster.number & 1 for number in needs)
            if not early and self._has_room(cluster, reads) and self._join(node, cluster):
                self._merge_operands(node, cluster)
                return
        if node.op.kind is Kind.REDUCE:
            shape = node.inputs[0].shape
            over = domain_axes(shape)
            row = frozenset(v for k in node.attr.axes if (v := sym.as_var(over[k])) is not None)
            unreduced = tuple(a for k, a in enumerate(over) if k not in node.attr.axes)
            self._new_cluster(node, "row", shape, row, unreduced)
            self.home[node].operand_index[node] = over
        else:
            self._new_cluster(node, "map", node.shape)

    def _place_scan(self, node: Node) -> None:
        """All results of a scan get one cluster; its carries are computed even where nothing reads them."""
        if node in self.home:
            return
        step = node.attr
        extents = node.inputs[len(step.carries)].shape
        axes = domain_axes(extents)
        for number in range(len(step.results)):
            result = ir.structured(ops.SCAN, node.inputs, replace(step, result=number))
            carried = number < len(step.carries)
            if number == 0:
                self._new_cluster(result, "scan", extents, index=axes[1:] if carried else axes)
            elif carried or result in self.consumers:
                self._add_member(result, self.clusters[-1], axes[1:] if carried else axes)

    def _place_steps(self, node: Node) -> None:
        """One cluster for the results of a loop or branch that anything reads, and for the carries of a loop."""
        if node in self.home:
            return
        carries = 0 if node.op is ops.COND else len(node.attr.carries)
        members: list[Node] = []
        for number in range(len(node.attr.computed[-1])):
            result = ir.structured(node.op, node.inputs, replace(node.attr, result=number))
            if number < carries or result in self.consumers:
                members.append(result)
        self._new_cluster(members[0], "steps", (), index=ir.axes(members[0].shape))
        for result in members[1:]:
            self._add_member(result, self.clusters[-1], ir.axes(result.shape))

    def _new_cluster(
        self,
        node: Node,
        kind: str,
        extents: tuple[Int, ...],
        row: frozenset[Var] = frozenset(),
        index: tuple[Int, ...] | None = None,
    ) -> None:
        cluster = Cluster(len(self.clusters), kind, extents, row, contraction=self.contractions.get(node))
        self.clusters.append(cluster)
        self.sources.append(set())
        self.ancestors.append(0)
        self._add_member(node, cluster, cluster.axes if index is None else index)

    def _add_member(self, node: Node, cluster: Cluster, index: tuple[Int, ...]) -> None:
        self.depth[node] = self._depth(node, cluster)
        cluster.index[node] = index
        self.home[node] = cluster
        for one in self._traversals(node):
            if cluster.kind == ("row" if one.along else "map") and one.shape == cluster.extents:
                self.latest[one] = cluster.number
        gained = 0
        for number in self._measuring(node):
            gained |= self.ancestors[number] | 1 << number
        for read in self._reads(node, ir.axes(node.shape)):
            other = self.home.get(read.source)
            if other is not cluster:
                self.sources[cluster.number].add(read.source)
            if other is not None and other is not cluster:
                gained |= self.ancestors[other.number] | 1 << other.number
        if gained & ~self.ancestors[cluster.number]:
            for number in range(len(self.clusters)):
                if number == cluster.number or self.ancestors[number] >> cluster.number & 1:
                    self.ancestors[number] |= gained

    def _clusters_read(self, reads: list[Read]) -> Iterator[Cluster]:
        """Clusters that compute what ``reads`` read and that could take their reader, the latest first. Where no
        cluster computes any of it, those that read the same sources."""
        homes = {h.number: h for r in reads if (h := self.home.get(r.source)) is not None}
        for number in sorted(homes, key=lambda n: (self.ancestors[n].bit_count(), n), reverse=True):
            if not any(self.ancestors[other] >> number & 1 for other in homes if other != number):
                yield homes[number]
        if not homes:
            yield from self._clusters_of_sources({r.source for r in reads})

    def _clusters_of_sources(self, sources: set[Node]) -> Iterator[Cluster]:
        """Clusters of elements, or of enough rows for all threads, that read any of ``sources``, which no kernel
        computes."""
        for cluster in reversed(self.clusters):
            if cluster.kind in ("map", "row") and not sources.isdisjoint(self.sources[cluster.number]):
                rows = sym.product(_extents(cluster.outer))
                if cluster.kind == "map" or typical(rows) >= self.costs.rows:
                    yield cluster

    def _clusters_of_traversal(self, node: Node, reads: list[Read]) -> Iterator[Cluster]:
        """The latest clusters that go through a value as ``node`` does. Joining them computes outputs of one window of
        inputs together, with what they share once, and all reductions of a row while it is in the cache."""
        if node.op is ops.CONTIGUOUS or self._is_assembly(node):
            return
        homes = {home.number for read in reads if (home := self.home.get(read.source)) is not None}
        for number in sorted({n for one in self._traversals(node) if (n := self.latest.get(one)) is not None}):
            cluster = self.clusters[number]
            if cluster.kind not in ("map", "row") or all(self._is_assembly(n) for n in cluster.index):
                continue
            if not any(self.ancestors[other] >> number & 1 for other in homes):
                yield cluster

    def _traversals(self, node: Node) -> Iterator[_Traversal]:
        """The traversals of ``node`` over its operands: element by element over computed ones, or row by row."""
        if node.op.kind is Kind.ELEMENTWISE:
            for read in self._reads(node, ir.axes(node.shape)):
                if read.source in self.home and _reads_distinct(read, node.shape):
                    yield _Traversal(read.source, node.shape)
        elif node.op.kind is Kind.REDUCE:
            shape = node.inputs[0].shape
            for read in resolve(node.inputs[0], ir.axes(shape), (), self.inline, self.home):
                if _reads_distinct(read, shape):
                    yield _Traversal(read.source, shape, node.attr.axes)

    def _is_assembly(self, node: Node) -> bool:
        """Whether ``node`` selects by positions alone, as assemblies of parts do."""
        if node.op is not ops.SELECT:
            return False
        index = ir.axes(node.shape)
        return not any(resolve(node.inputs[0], index, (), self.inline, self.home))

    def _has_room(self, cluster: Cluster, reads: list[Read]) -> bool:
        """Whether ``cluster`` may gain a member with these ``reads`` and read no more values than suit it."""
        more = {read.source for read in reads}.difference(cluster.index, self.sources[cluster.number])
        return not more or len(self.sources[cluster.number]) + len(more) <= self.costs.sources

    def _join(self, node: Node, cluster: Cluster) -> bool:
        if self._depth(node, cluster) > MOST_NESTED:
            return False
        if cluster.kind in ("scatter", "scan", "sort", "steps", "host", "exchange"):
            return False  # their results are complete only at the end of the kernel
        if self._joins_parts(node) and all(n.op is ops.SELECT for n in cluster.index):
            return False  # parts are written where they lie in the whole
        if node.op.kind is Kind.REDUCE:
            return self._join_reduction(node, cluster)
        for index in self._candidates(node, cluster):
            if self._matches(node, index, cluster):
                self._add_member(node, cluster, index)
                return True
        return False

    def _joins_parts(self, node: Node) -> bool:
        """Whether ``node`` is a copy of another value with some axes merged."""
        view = node.inputs[0] if node.op is ops.CONTIGUOUS else node
        if node.op is not ops.CONTIGUOUS or view.op is not ops.VIEW or view.attr.valid:
            return False
        whole = view.inputs[0]
        return (
            whole.rank > node.rank
            and invert(node.shape, view.attr.index, whole.shape, ir.axes(whole.shape)) is not None
        )

    def _join_reduction(self, node: Node, cluster: Cluster) -> bool:
        """A reduction joins a row cluster along the same row; a map cluster becomes a row cluster."""
        if cluster.kind == "contraction":
            return False
        operand = node.inputs[0]
        for index in self._candidates(operand, cluster):
            reduced = [index[k] for k in node.attr.axes if operand.shape[k] != 1]
            row = {sym.as_var(e) for e in reduced}
            unreduced = tuple(e for k, e in enumerate(index) if k not in node.attr.axes)
            if None in row or len(row) != len(reduced) or any(sym.variables(e) & row for e in unreduced):
                continue
            if cluster.kind == "row" and row != cluster.row:
                continue
            if self._matches_operand(operand, index, cluster):
                if cluster.kind == "map":
                    if not row:
                        continue
                    cluster.kind, cluster.row = "row", frozenset(v for v in row if v is not None)
                cluster.operand_index[node] = index
                self._add_member(node, cluster, unreduced)
                return True
        return False

    def _candidates(self, node: Node, cluster: Cluster) -> Iterator[tuple[Int, ...]]:
        """The indices over the domain of ``cluster`` that ``node`` could have."""
        if node in cluster.index:
            yield cluster.index[node]
            return
        seen: set[tuple[Int, ...]] = set()
        for read in self._reads(node, ir.axes(node.shape)):
            at = cluster.index.get(read.source)
            if at is not None and not read.valid:
                index = invert(node.shape, read.index, read.source.shape, at)
                if index is not None and index not in seen:
                    seen.add(index)
                    yield index
        if node.shape == cluster.extents and cluster.axes not in seen:
            yield cluster.axes

    def _matches(self, node: Node, index: tuple[Int, ...], cluster: Cluster) -> bool:
        """Whether ``node`` reads every member at the element which the same iteration computes."""
        for read in self._reads(node, index):
            if read.source in cluster.index and read.index != cluster.index[read.source]:
                return False
        return node.op is not ops.GATHER or node.inputs[0] not in cluster.index

    def _matches_operand(self, node: Node, index: tuple[Int, ...], cluster: Cluster) -> bool:
        reads = resolve(node, index, (), self.inline, self.home)
        return all(r.source not in cluster.index or r.index == cluster.index[r.source] for r in reads)

    # ---- merging clusters ------------------------------------------------------------------------------------------

    def _merge_operands(self, node: Node, cluster: Cluster) -> None:
        """Merge the cluster that ``node`` has joined with the clusters of its other operands."""
        for read in list(self._reads_in(cluster, node)):
            other = self.home.get(read.source)
            if other is not None and other is not cluster:
                cluster = self._merged(other, cluster)

    def _merged(self, first: Cluster, second: Cluster) -> Cluster:
        """The ``first`` and ``second`` cluster as one, where only the second reads results of the first, always those
        of the same iteration, and both have one domain; otherwise the second, unchanged."""
        into, gone = (first, second) if first.kind == "row" else (second, first)
        if gone.kind != "map" or into.kind not in ("map", "row") or first.axes != second.axes:
            return second
        members = {**first.index, **second.index}
        if not all(self._within(user, members) for n in first.index for user in self.consumers[n]):
            return second
        for read in (read for n in second.index for read in self._reads_in(second, n)):
            if read.source in first.index and read.index != first.index[read.source]:
                return second
        sources = (self.sources[first.number] | self.sources[second.number]).difference(members)
        if len(sources) > self.costs.sources:
            return second
        if self._is_between(first, second) or sum(self._deepest(c) for c in (first, second)) > MOST_NESTED:
            return second
        into.index, gone.index = members, {}
        self.sources[into.number] = sources
        self.home.update(dict.fromkeys(members, into))
        self.latest = {key: into.number if n == gone.number else n for key, n in self.latest.items()}
        for member in members:
            self.depth[member] = self._depth(member, into)
        two = 1 << first.number | 1 << second.number
        gained = (self.ancestors[first.number] | self.ancestors[second.number]) & ~two
        for number, before in enumerate(self.ancestors):
            if two >> number & 1:
                self.ancestors[number] = gained
            elif before & two:
                self.ancestors[number] = before & ~two | gained | 1 << into.number
        return into

    def _is_between(self, first: Cluster, second: Cluster) -> bool:
        """Whether another cluster depends on ``first`` and ``second`` depends on it."""
        others = self.ancestors[second.number] & ~(1 << first.number)
        return any(others >> k & 1 and before >> first.number & 1 for k, before in enumerate(self.ancestors))

    def _deepest(self, cluster: Cluster) -> int:
        return max(self.depth[member] for member in cluster.index)

    # ---- reads -----------------------------------------------------------------------------------------------------

    def _reads_in(self, cluster: Cluster, member: Node) -> Iterator[Read]:
        """The reads of a member of a cluster, over the domain's axes."""
        if member in cluster.operand_index:
            return resolve(member.inputs[0], cluster.operand_index[member], (), self.inline, self.home)
        return self._reads(member, cluster.index[member])

    def _reads(self, node: Node, index: tuple[Int, ...]) -> Iterator[Read]:
        """The reads of ``node`` at ``index``, through views and inline values; literals and positions are none."""
        if node.op.kind is Kind.ELEMENTWISE:
            for x in node.inputs:
                yield from resolve(x, index, (), self.inline, self.home)
        elif node.op.kind is Kind.REDUCE:
            over = ir.axes(node.inputs[0].shape)
            unreduced = iter(index)
            inner = tuple(over[k] if k in node.attr.axes else next(unreduced) for k in range(len(over)))
            yield from resolve(node.inputs[0], inner, (), self.inline, self.home)
        elif node.op in (ops.SCATTER, ops.SORT, *ops.CALLED) or node.op.kind is Kind.STRUCTURED:
            for x in node.inputs:
                yield from resolve(x, ir.axes(x.shape), (), self.inline, self.home)
        elif node.op is ops.GATHER:
            data, positions = node.inputs
            axis = node.attr.axis
            span = index[axis : axis + positions.rank]
            looked = sym.var("at", 0, data.shape[axis] - 1)
            inner = (*index[:axis], looked, *index[axis + positions.rank :])
            yield from resolve(data, inner, (), self.inline, self.home)
            yield from resolve(positions, span, (), self.inline, self.home)

    def _replace_last(self) -> None:
        """Clusters that compute what replaces another value run after those that read the old one, where they can."""
        for before, result in self.replacing.items():
            last = self.home.get(result)
            if last is None:
                continue
            for cluster in self.clusters:
                number = cluster.number
                reads = before in self.sources[number] and (cluster.index or cluster.measures)
                if not reads or cluster is last or self.ancestors[number] >> last.number & 1:
                    continue
                gained, late = self.ancestors[number] | 1 << number, last.number
                after = [k for k, earlier in enumerate(self.ancestors) if k == late or earlier >> late & 1]
                self.ancestors = [x | gained if k in after else x for k, x in enumerate(self.ancestors)]

    def _result(self) -> Fusion:
        self._replace_last()
        stored: dict[Node, Cluster] = {}
        for node, cluster in self.home.items():
            outside = any(not self._within(u, cluster.index) for u in self.consumers.get(node, ()))
            if node in self.own_storage or outside or cluster.kind in ("scan", "steps"):
                stored[node] = cluster
        left = [c.number for c in self.clusters if c.index or c.measures]
        numbers = sorted(left, key=lambda n: (self.ancestors[n].bit_count(), n))
        exchanges = {n for n in numbers if self.clusters[n].kind == "exchange"}
        parts = {n for n in exchanges if next(iter(self.clusters[n].index)).attr.kind == "part"}
        numbers = overlapped(numbers, self.ancestors, exchanges - parts, parts) if exchanges else numbers
        numbers = late(numbers, self.ancestors, {n for n in numbers if self.clusters[n].copies})
        clusters = tuple(self.clusters[n] for n in numbers)
        return Fusion(clusters, stored, frozenset(self.inline), self.roots, self.own_storage)

    def _within(self, user: Node, members: Collection[Node]) -> bool:
        """Whether ``user`` is one of ``members``, or inline in members alone."""
        users = {user: None}
        for one in (waiting := [user]):
            if one in self.inline:
                waiting += [u for u in self.consumers[one] if u not in users]
                users |= dict.fromkeys(self.consumers[one])
        return all(one in self.inline or one in members for one in users)


def _reads_distinct(read: Read, shape: ir.Shape) -> bool:
    """Whether every element over the domain ``shape`` reads a different element."""
    moving = {v for e in read.index for v in sym.variables(e)}
    return moving >= {v for axis in ir.axes(shape) if (v := sym.as_var(axis)) is not None}


def _extents(axes: tuple[Int, ...]) -> list[Int]:
    return [v.hi + 1 for axis in axes if (v := sym.as_var(axis)) is not None]


def _viewed(node: Node) -> Node:
    return node.inputs[0] if node.op is ops.VIEW else node


def fuse(
    roots: tuple[Node, ...],
    contractions: Mapping[Node, Contraction],
    measured: Mapping[Var, Node] | None = None,
    costs: Kernels = COSTS.kernels,
    replacing: Mapping[Node, Node] | None = None,
) -> Fusion:
    """The nodes that ``roots`` depend on, grouped into clusters. ``contractions`` are those that tiles compute;
    ``measured`` gives the node that measures a dimension; ``costs`` say how much suits a kernel; ``replacing`` has the
    nodes whose values take the place of others, the keys."""
    return Fuser(roots, contractions, measured or {}, costs, replacing or {}).run()
