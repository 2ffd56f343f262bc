"""The graph that one rank runs: each node on the rank's parts of its operands, exchanges where these lie elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from luminal.core import ir, ops, traverse
from luminal.core import symbolic as sym
from luminal.core.data import Array
from luminal.core.decompose.compare import equal
from luminal.core.ir import Graph, Node, Shape, State
from luminal.core.mesh import owned, views
from luminal.core.mesh import placement as where
from luminal.core.mesh.placement import WHOLE, Lookup, Owned, Partial, Placement, Split
from luminal.core.mesh.plan import Plan
from luminal.core.ops import Group, Kind


@dataclass(frozen=True)
class Weight:
    """An input that stands for a constant until every axis of the mesh has been divided: the constant, and how it was
    split, axis after axis."""

    constant: Node
    cuts: tuple[tuple[Group, Split], ...] = ()

    def split(self, group: Group, split: Split) -> Weight:
        return replace(self, cuts=(*self.cuts, (group, split)))

    def of(self, rank: int) -> Node:
        """The part of a rank."""
        if not self.cuts:
            return self.constant
        data = self.constant.attr

        def make() -> Array:
            return cut(data.array, self.cuts, rank)

        return ir.lazy_constant(make, data.depth + 1)


def cut(array: Array, cuts: Sequence[tuple[Group, Split]], rank: int) -> Array:
    """The part of a rank of what is split so, one axis of the mesh after the other."""
    for group, split in cuts:
        array = _cut(array, split, group.size, rank // group.stride % group.size)
    return array


def _cut(array: Array, split: Split, size: int, who: int) -> Array:
    before, after = array.shape[: split.axis], array.shape[split.axis + 1 :]
    extent = array.shape[split.axis] // size
    blocks = array.reshape(*before, extent // split.inner, size, split.inner, *after)
    part = blocks[(slice(None),) * (split.axis + 1) + (who,)]
    return np.ascontiguousarray(part).reshape(*before, extent, *after)


def divided(
    graph: Graph, plan: Plan, group: Group, weights: Mapping[Node, Weight]
) -> tuple[Graph, dict[Node, Weight]]:  # fmt: skip
    """What a rank of ``group`` runs of ``graph``, as ``plan`` says, and the weights that it reads."""
    found = _Ranks(plan, group, weights, dict(graph.origins))
    order = traverse.topological(graph.roots, graph.measured)
    own: ir.Measured = {}  # how much each rank owns
    with ir.measuring(own, [dim.name for dim in graph.dims]):
        for node in order:
            found.build(node)
        inputs = tuple(found.input(node) for node in graph.inputs)
        roots = []
        for node, placement in zip(graph.roots, plan.wanted, strict=True):
            with ir.originating(found.origins, *found.origins.get(node, ())):
                roots.append(found.at(node, placement))
    states = tuple(_state(state, found) for state in graph.states)
    names = {found.made[node]: name for node, name in graph.names.items() if node in found.made}
    made = graph.computing(
        roots, inputs=inputs, origins=found.origins, names=names, states=states,
        mesh=(*graph.mesh, (group.axis, group.size)),
    )  # fmt: skip
    return replace(made, measured={**made.measured, **own}, dims=(*made.dims, *own)), found.weights


def _state(state: State, found: _Ranks) -> State:
    mode = found.plan.modes.get(state.input)
    initial = state.initial
    if mode is not None and isinstance(mode.result, Split):
        # That of rank 0 stands for all, until the graph of a rank is made (``divide.py``).
        initial = ir.constant(_cut(initial.attr.array, mode.result, found.group.size, 0))
    return replace(state, input=found.input(state.input), initial=initial)


class _Ranks:
    """The parts of values that a rank has."""

    def __init__(self, plan: Plan, group: Group, weights: Mapping[Node, Weight], origins: ir.Origins) -> None:
        self.plan, self.group, self.given, self.origins = plan, group, weights, dict(origins)
        self.size = group.size
        self.made: dict[Node, Node] = {}
        self.moved: dict[tuple[Node, Placement], Node] = {}
        self.weights: dict[Node, Weight] = {}
        self.owned: dict[Lookup, owned.Own] = {}

    def input(self, node: Node) -> Node:
        mode = self.plan.modes.get(node)
        return self._input(node, WHOLE if mode is None else mode.result)

    def _input(self, node: Node, placement: Placement) -> Node:
        return ir.input_(node.attr.name, where.local(node.shape, placement, self.size), node.dtype)

    def build(self, node: Node) -> None:
        """Makes a rank's part of ``node``, in the mode of the plan."""
        if node not in self.made:  # what says who owns an element is made before it
            with ir.originating(self.origins, *self.origins.get(node, ())):
                self._build(node)

    def _build(self, node: Node) -> None:
        mode = self.plan.modes[node]
        if node in self.given:
            self.made[node] = self._weight(node, mode.result)
            return
        if node.op is ops.INPUT:
            self.made[node] = self._input(node, mode.result)
            return
        operands = [self.at(x, placement) for x, placement in zip(node.inputs, mode.operands, strict=True)]
        self.made[node] = self._computed(node, operands, mode.operands, mode.result)

    def _weight(self, node: Node, placement: Placement) -> Node:
        known = self.given[node]
        if not isinstance(placement, Split):
            self.weights[node] = known
            return node
        name = f"{node.attr.name} {placement.axis}/{placement.inner}"
        part = ir.input_(name, where.local(node.shape, placement, self.size), node.dtype)
        self.weights[part] = known.split(self.group, placement)
        return part

    def _computed(
        self, node: Node, operands: Sequence[Node], given: Sequence[Placement], result: Placement
    ) -> Node:  # fmt: skip
        op, attr = node.op, node.attr
        if isinstance(result, Owned):
            return self._of_own(node, operands, given, result)
        if op is ops.VIEW:
            view = views.viewed(node, given[0], result, self.size)
            assert view is not None, node
            if view.op is not ops.VIEW:
                return operands[0]
            return ir.view(operands[0], view.shape, view.attr.index, view.attr.valid, view.attr.fill)
        if op.kind is Kind.ELEMENTWISE:
            return ir.elementwise(op, *operands, attr=attr)
        if op.kind is Kind.REDUCE:
            return ir.reduce(op, operands[0], attr.axes)
        if op is ops.GATHER and isinstance(result, Partial):
            return self._looked_up(node, operands, given[0])
        if op is ops.GATHER:
            return ir.gather(operands[0], operands[1], attr.axis, attr.failure)
        if op is ops.SCATTER:
            return ir.scatter(operands[0], operands[1], operands[2], attr.axis, attr.by, attr.failure)
        if op is ops.SORT:
            return ir.sort(operands[0], attr.count)
        if op is ops.EXCHANGE:
            return ir.exchange(attr.kind, attr.group, operands[0], attr.number)
        return traverse.rebuild(node, operands)

    def _looked_up(self, node: Node, operands: Sequence[Node], split: Placement) -> Node:
        """What a rank adds to a gather along the split axis of a table: the elements that it has, else zeros."""
        assert isinstance(split, Split)
        table, index = operands
        axis, failure = node.attr.axis, node.attr.failure
        lookup = Lookup(index, node.inputs[0].shape[axis], split.inner, failure)
        owner, there = owned.places(lookup, index, self.size)
        found = ir.gather(table, there, axis, failure)
        is_own = equal(owner, ir.expand(self._me(), index.shape))
        over = ir.axes(found.shape)[axis : axis + index.rank]
        return ir.select(ir.view(is_own, found.shape, over), found, 0.0)

    def _me(self) -> Node:
        """The number of this rank."""
        return self._exchange("part", ir.iota(self.size))

    def _of_own(self, node: Node, operands: Sequence[Node], given: Sequence[Placement], result: Owned) -> Node:
        """What a rank owns of ``node``."""
        op, attr, own = node.op, node.attr, self._own(result)
        if op is ops.VIEW:
            return owned.viewed(node, operands[0], given[0], result, own)
        if op is ops.GATHER:
            return ir.gather(operands[0], own.there, attr.axis, attr.failure)
        if op.kind is Kind.REDUCE:
            (operand,) = given
            assert isinstance(operand, Owned)
            axes = where.merged(tuple(range(node.inputs[0].rank)), operand.axes, -1)
            return ir.reduce(op, operands[0], [axes.index(k) for k in attr.axes])
        return ir.elementwise(op, *operands, attr=attr)

    def _own(self, placement: Owned) -> owned.Own:
        lookup = placement.lookup
        if lookup not in self.owned:
            for node in traverse.topological([lookup.index]):
                self.build(node)
            self.owned[lookup] = owned.own(lookup, self.at(lookup.index, WHOLE), self._me(), self.size)
        return self.owned[lookup]

    # ---- from one placement to another ---------------------------------------------------------------------------

    def at(self, node: Node, placement: Placement) -> Node:
        """The part of ``node`` that a rank has where it lies as ``placement``."""
        before = self.plan.modes[node].result
        if before == placement:
            return self.made[node]
        key = node, placement
        if key not in self.moved:
            if node in self.given:
                self.moved[key] = self._weight(node, placement)
            else:
                self.moved[key] = self._moved(self.made[node], node.shape, before, placement)
        return self.moved[key]

    def _moved(self, x: Node, shape: Shape, before: Placement, after: Placement) -> Node:
        """``x``, a rank's part of a value of that whole shape."""
        if isinstance(after, Owned):
            return owned.taken(self._moved(x, shape, before, WHOLE), after, self._own(after))
        if isinstance(before, Owned):
            partial = owned.given_back(x, shape, before, self._own(before))
            return self._moved(partial, shape, Partial("sum"), after)
        if before == after:
            return x
        if before == WHOLE and isinstance(after, Split):
            return self._exchange("part", self._by_rank(x, shape, after))
        if isinstance(before, Split) and after == WHOLE:
            return self._joined(self._exchange("gather", x), shape, before)
        if isinstance(before, Partial) and isinstance(after, Split):
            return self._combined(self._exchange("transpose", self._by_rank(x, shape, after)), before.by)
        if isinstance(before, Partial):
            return self._whole(x, shape, before)
        assert isinstance(before, Split) and isinstance(after, Split)
        if before.axis == after.axis:
            return self._moved(self._moved(x, shape, before, WHOLE), shape, WHOLE, after)
        apart = where.local(shape, before, self.size)
        parts = self._exchange("transpose", self._by_rank(x, apart, after))
        return self._joined(parts, where.local(shape, after, self.size), before)

    def _whole(self, x: Node, shape: Shape, before: Partial) -> Node:
        """Partial values combined: each rank a part of them, of which all are then gathered; or each rank all, where
        there is no axis to divide, or messages cost more than bytes."""
        ways = where.splits(shape, self.size)
        most = sym.upper(x.size * x.dtype.itemsize * self.size)
        if not ways or (most is not None and most <= SMALL):
            return self._combined(self._exchange("gather", x), before.by)
        best = max(ways, key=lambda split: (split.inner, -split.axis))
        part = self._moved(x, shape, before, best)
        return self._moved(part, shape, best, WHOLE)

    def _exchange(self, kind: str, x: Node) -> Node:
        return ir.exchange(kind, self.group, x)

    def _by_rank(self, x: Node, shape: Shape, split: Split) -> Node:
        """``x`` of ``shape`` with the parts of all ranks along a new first axis."""
        part = where.local(shape, split, self.size)
        who, *over = ir.axes((self.size, *part))
        over[split.axis] = where.position(over[split.axis], split.inner, self.size, who)
        return ir.view(x, (self.size, *part), over)

    def _joined(self, parts: Node, shape: Shape, split: Split) -> Node:
        """``parts`` of all ranks, along the first axis, as one value of ``shape``."""
        over = list(ir.axes(shape))
        who = where.owner(over[split.axis], split.inner, self.size)
        over[split.axis] = where.place(over[split.axis], split.inner, self.size)
        return ir.view(parts, shape, [who, *over])

    def _combined(self, parts: Node, by: str) -> Node:
        """The sum or maximum of ``parts`` along the first axis, from the first rank to the last."""
        over = ir.axes(parts.shape[1:])
        rows = [ir.view(parts, parts.shape[1:], [k, *over]) for k in range(self.size)]
        op = {"sum": ops.ADD, "max": ops.MAX}[by]
        total = rows[0]
        for row in rows[1:]:
            total = ir.elementwise(op, total, row)
        return total


SMALL = 1 << 14  # bytes that a rank takes in at once rather than in two exchanges
