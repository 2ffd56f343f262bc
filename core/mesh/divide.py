"""A graph divided along all axes of a mesh, one after the other, and the graphs of its ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from luminal.core import ir, ops, traverse
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.mesh import buckets, partition, placement, plan
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.partition import Weight
from luminal.core.mesh.placement import WHOLE, Placement, Split
from luminal.core.mesh.plan import Plan
from luminal.core.ops import Group

PIPELINE = "pipeline"  # the axis of a mesh along which ranks have stages, and nothing is divided: see ``stages.py``


@dataclass(frozen=True)
class Divided:
    """A graph of what every rank runs, over ``weights`` of which each rank has its own; the plan of each axis; and by
    the names of states what they are at first, of which each rank has its part, too."""

    graph: Graph
    weights: Mapping[Node, Weight]
    plans: tuple[Plan, ...]
    states: Mapping[str, Weight] = field(default_factory=dict)

    def joined(self) -> Divided:
        """The same with small exchanges joined: once all that is to be computed apart has a graph of its own."""
        return replace(self, graph=buckets.joined(self.graph))

    def of(self, rank: int) -> Graph:
        """The graph of a rank, with its weights as constants."""
        by = {node: weight.of(rank) for node, weight in self.weights.items()}
        graph = self.graph
        origins = dict(graph.origins)
        order = traverse.topological(graph.roots)
        made = dict(by)
        for node in order:
            if node not in made:
                with ir.originating(origins, *origins.get(node, ())):
                    made[node] = traverse.rebuild(node, [made[x] for x in node.inputs])
        names = {made.get(node, node): name for node, name in graph.names.items()}
        states = tuple(replace(state, initial=self.states[state.name].of(rank)) for state in graph.states)
        roots = [made[root] for root in graph.roots]
        return graph.computing(roots, origins=origins, names=names, states=states)


@dataclass
class Laid:
    """How states and weights lie that several entries of a library have, by the axis of the mesh: as the first entry
    has laid them. ``passed`` is what an entry gives as it has computed it, for inputs of others of the same names."""

    states: dict[tuple[str, str], Placement] = field(default_factory=dict)
    weights: dict[tuple[str, Weight], Placement] = field(default_factory=dict)
    passed: dict[tuple[str, str], Placement] = field(default_factory=dict)


def divide(
    graph: Graph, mesh: Mapping[str, int], shard: Mapping[str, Mapping[str, int | None]], link: Link, rates: Rates,
    laid: Laid | None = None, free: Collection[str] = (),
) -> Divided:  # fmt: skip
    """``graph`` divided among the ranks of ``mesh``. ``shard`` says by the names of inputs, outputs and constants which
    of their axes is split along which axis of the mesh, or None: none. Other inputs and outputs are whole on each rank,
    but for outputs that are ``free``, which lie as they are computed, and everything else lies as it costs least.
    States lie as other entries have ``laid`` them, and so do weights unless another copy costs less; what this entry
    lays is put there, too.

    Raises InputError for names that are not there, and axes that cannot be split.
    """
    _check(graph, mesh, shard)
    weights: dict[Node, Weight] = {}
    by: dict[Node, Node] = {}
    for node in traverse.topological(graph.roots):
        if node.op is ops.CONSTANT and math.prod(node.attr.shape) > 1:
            by[node] = ir.input_(f"constant {len(by)}", node.shape, node.dtype)
            weights[by[node]] = Weight(node)
    named = {by.get(node, node): name for node, name in graph.names.items()}
    origins = dict(graph.origins)
    made: dict[Node, Node] = dict(by)
    for node in traverse.topological(graph.roots):
        if node not in made:
            with ir.originating(origins, *origins.get(node, ())):
                made[node] = traverse.rebuild(node, [made[x] for x in node.inputs])
    graph = graph.computing([made[root] for root in graph.roots], names=named, origins=origins)
    laid = Laid() if laid is None else laid
    plans: list[Plan] = []
    states = {state.name: Weight(state.initial) for state in graph.states}
    stride = math.prod(mesh.values())
    for axis, size in mesh.items():
        stride //= size
        if size == 1 or axis == PIPELINE:
            continue
        group = Group(axis, size, stride)
        given, wanted = _asked(graph, axis, size, shard)
        given |= {s.input: laid.states[axis, s.name] for s in graph.states if (axis, s.name) in laid.states}
        passed = {node: laid.passed.get((axis, node.attr.name)) for node in graph.inputs}
        given |= {node: placement for node, placement in passed.items() if placement is not None}
        held = {node: laid.weights.get((axis, weight)) for node, weight in weights.items()}
        chosen = plan.planned(graph, axis, size, given, wanted, held, link, rates, free)
        plans.append(chosen)
        for state in graph.states:
            found = laid.states.setdefault((axis, state.name), chosen.modes[state.input].result)
            if isinstance(found, Split):
                states[state.name] = states[state.name].split(group, found)
        for node, weight in weights.items():
            laid.weights.setdefault((axis, weight), chosen.modes[node].result)
        for (name, _), lies in zip(graph.returned, chosen.wanted, strict=False):
            if name in free:
                laid.passed[axis, name] = lies
        graph, weights = partition.divided(graph, chosen, group, weights)
    return Divided(graph, weights, tuple(plans), states)


def _asked(
    graph: Graph, axis: str, size: int, shard: Mapping[str, Mapping[str, int | None]]
) -> tuple[dict[Node, Placement], dict[str, Placement]]:  # fmt: skip
    """The placements along ``axis`` that are asked for: of nodes, and of outputs."""

    def of(name: str, shape: ir.Shape) -> Placement:
        number = shard[name][axis]
        if number is None:
            return WHOLE
        found = next((s for s in placement.splits(shape, size) if s.axis == number % max(len(shape), 1)), None)
        if found is None:
            raise InputError(
                f"shard: axis {number} of {name!r} {list(shape)} cannot be split among {size} ranks along {axis!r}: "
                "expected a fixed size that they divide"
            )
        return found

    nodes = {**graph.names, **{node: node.attr.name for node in graph.inputs}}
    given = {node: of(name, node.shape) for node, name in nodes.items() if axis in shard.get(name, ())}
    return given, {name: of(name, node.shape) for name, node in graph.returned if axis in shard.get(name, ())}


def _check(graph: Graph, mesh: Mapping[str, int], shard: Mapping[str, Mapping[str, int | None]]) -> None:
    names = {*graph.names.values(), *(n.attr.name for n in graph.inputs), *(name for name, _ in graph.outputs)}
    for name, axes in shard.items():
        if name not in names:
            raise InputError(f"shard: expected the name of an input, output or constant, found {name!r}")
        unknown = [axis for axis in axes if axis not in mesh]
        if unknown:
            raise InputError(f"shard: {name!r} is split along {unknown[0]!r}, expected an axis of {', '.join(mesh)}")
