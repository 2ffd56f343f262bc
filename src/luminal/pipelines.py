"""Models as pipelines: the ranks along the axis ``pipeline`` of a mesh each have a stage of the layers, and compute it
for one micro-batch after the other.

A batch is cut into micro-batches (``core.mesh.micro_batches``), their graph is divided along the other axes of the mesh
as any other, and cut into stages by cost (``core.mesh.stages``). Stages are compiled as entries of one library, which
``core.schedule.program.pipelined`` joins to what each rank runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from luminal import meshes
from luminal.core import ops, traverse
from luminal.core import symbolic as sym
from luminal.core.errors import InputError
from luminal.core.grid import ALIGNMENT
from luminal.core.ir import Graph, Node
from luminal.core.mesh import micro_batches as micro
from luminal.core.mesh import stages
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.divide import PIPELINE, Divided
from luminal.core.mesh.partition import Weight
from luminal.core.mesh.stages import Staged
from luminal.core.mesh.traffic import Traffic, message, sent, times
from luminal.core.ops import Group
from luminal.core.rewrite import simplify
from luminal.core.schedule.program import pipelined
from luminal.core.schedule.program.ir import Program, TensorSpec
from luminal.core.schedule.program.spec import check
from luminal.core.schedule.program.timetable import Action, Passing
from luminal.core.sizes import largest
from luminal.core.target import Target


@dataclass(frozen=True)
class OfStages:
    """Something in stages, for the ranks of a ``mesh``. Its ``graphs`` are compiled as entries of one program, which
    ``joined`` makes into that which each rank runs. ``states`` has the stage that keeps each state, or ``EVERY``."""

    mesh: Mapping[str, int]
    states: Mapping[str, int]

    @property
    def group(self) -> Group:
        """The ranks of a pipeline."""
        axes = list(self.mesh)
        after = axes[axes.index(PIPELINE) + 1 :]
        return Group(PIPELINE, self.mesh[PIPELINE], math.prod(self.mesh[axis] for axis in after))

    @property
    def ranks(self) -> list[int]:
        """The ranks of the first stage, of which each has weights of its own."""
        group = self.group
        return [k for k in range(math.prod(self.mesh.values())) if k // group.stride % group.size == 0]

    def graphs(self, rank: int) -> dict[str, Graph]:
        """The graphs of all stages with the weights of the ranks beside ``rank``, one of the first stage."""
        raise NotImplementedError

    def entries(self) -> list[pipelined.Parts]:
        """The entries, and what they are made of."""
        raise NotImplementedError

    def explained(self) -> list[str]:
        """The stages in words, and what a rank of each sends."""
        raise NotImplementedError

    @property
    def manifest(self) -> dict[str, Any]:
        """What the manifest says of stages: the number of their ranks, how far apart these are, and the stage that
        keeps each state."""
        return {"ranks": self.group.size, "stride": self.group.stride, "states": dict(self.states)}

    @property
    def cuts(self) -> Mapping[str, Weight]:
        """The states of which ranks beside each other have parts."""
        return {}

    def joined(self, program: Program, target: Target) -> Program:
        """The program in which each rank runs its stage, of the ``program`` that has all stages as entries.

        Raises InputError where micro-batches do not lie as kernels for ``target`` read them.
        """
        entries = self.entries()
        for entry in entries:
            for tensor in (t for t in (*entry.inputs, *entry.outputs) if t.name in entry.rows):
                rows = (sym.floordiv(tensor.shape[0], entry.micro_batches), *tensor.shape[1:])
                size = sym.product(rows) * tensor.dtype.itemsize
                if target.grid is not None and sym.mod(size, ALIGNMENT) != 0:
                    raise InputError(
                        f"micro_batches: expected a multiple of {ALIGNMENT} bytes of {tensor.name!r} in each for "
                        f"{target.name}, found {size}; take fewer micro-batches, or fix sizes"
                    )
        made = pipelined.joined(program, entries, self.group, tuple(self.mesh.items()), self.states)
        check(made)
        return made


@dataclass(frozen=True)
class Pipelined(OfStages):
    """The entries of a library in stages, for the ranks of a ``mesh``: each as it is divided along the other axes, in
    how many micro-batches a run computes it, and the names of the inputs and outputs that have rows of the batch."""

    micro_batches: int
    whole: Mapping[str, Divided]
    staged: Mapping[str, Staged]
    rows: Mapping[str, frozenset[str]]
    structures: Mapping[str, Any]

    def graphs(self, rank: int) -> dict[str, Graph]:
        """The graphs of all stages with the weights of the ranks beside ``rank``, one of the first stage."""
        return {
            _called(entry, number): stage.of(rank)
            for entry, staged in self.staged.items()
            for number, stage in enumerate(staged.stages)
        }

    def entries(self) -> list[pipelined.Parts]:
        return [self._parts(entry) for entry in self.staged]

    def _parts(self, entry: str) -> pipelined.Parts:
        graph, staged, rows = self.whole[entry].graph, self.staged[entry], self.rows[entry]

        def tensor(name: str, node: Node) -> TensorSpec:
            first = (node.shape[0] * self.micro_batches,) if name in rows else node.shape[:1]
            return TensorSpec(name, node.dtype, (*first, *node.shape[1:]))

        return pipelined.Parts(
            entry,
            tuple(tensor(node.attr.name, node) for node in graph.given),
            tuple(tensor(name, node) for name, node in graph.returned),
            {name: (stage, pipelined.RUN) for name, stage in staged.outputs.items()},
            rows,
            tuple({pipelined.RUN: _called(entry, number)} for number in range(len(staged.stages))),
            tuple(tuple(Action(pipelined.RUN, batch) for batch in range(self.micro_batches)) for _ in staged.stages),
            tuple(Passing(c.name, c.source, c.targets, pipelined.RUN) for c in staged.crossings),
            self.micro_batches,
            self.structures[entry],
        )

    def sent(self, entry: str, stage: int) -> dict[str, Traffic]:
        """What a rank of that stage sends in a run, by axis of the mesh, at the upper bounds of sizes: each value to
        each stage that reads it, of every micro-batch; outputs to all others; and what its part of the stage takes."""
        staged, count = self.staged[entry], self.micro_batches
        found = {axis: Traffic() for axis in self.mesh}
        for crossing in staged.crossings:
            if crossing.source == stage:
                found[PIPELINE] += times(message(crossing.bytes), count * len(crossing.targets))
        for name, node in self.whole[entry].graph.returned:
            if staged.outputs[name] == stage:
                runs = count if name in self.rows[entry] else 1
                found[PIPELINE] += times(
                    message(largest(node.size) * node.dtype.itemsize), runs * (self.group.size - 1)
                )
        for axis, traffic in sent(staged.stages[stage].graph).items():
            found[axis] += times(traffic, count)
        return found

    def explained(self) -> list[str]:
        """The stages in words, and what a rank of each sends."""
        lines = []
        for entry, staged in self.staged.items():
            before = f"{entry}: " if len(self.staged) > 1 else ""
            total = sum(staged.seconds) or 1.0
            lines += [f"{before}{line}" for line in _cuts(self.whole[entry])]
            for number, (stage, seconds) in enumerate(zip(staged.stages, staged.seconds, strict=True)):
                weights = sum(weight.of(0).attr.nbytes for weight in stage.weights.values())
                held = sum(state.of(0).attr.nbytes for state in stage.states.values())
                states = f" and {held} bytes of states" if self.states else ""
                lines.append(
                    f"{before}{PIPELINE}: stage {number} has {seconds / total:.0%} of the work and {weights} bytes of "
                    f"weights{states}{span(stage.graph)}"
                )
                lines += [f"{before}{line}" for line in self.traffic(entry, number)]
        return lines

    def traffic(self, entry: str, stage: int) -> Iterator[str]:
        """What a rank of a stage sends, in words."""
        for axis, traffic in self.sent(entry, stage).items():
            yield (
                f"{axis}: a rank of stage {stage} sends {traffic.messages} messages, {traffic.bytes} bytes, in a run "
                f"of {self.micro_batches} micro-batches"
            )


def _called(entry: str, stage: int) -> str:
    return f"{entry}, stage {stage}"


def _cuts(part: Divided) -> Iterator[str]:
    """How named weights lie along the other axes."""
    for node, name in part.graph.names.items():
        cuts = part.weights[node].cuts if node in part.weights else ()
        if cuts:
            yield f"{name}: {', '.join(f'{cut} along {group.axis}' for group, cut in cuts)}"


def span(graph: Graph) -> str:
    """From which source operator to which a stage goes, in words."""
    order = traverse.topological(graph.roots)
    named = [graph.origins[node] for node in order if graph.origins.get(node) and node.op.kind is not ops.Kind.SOURCE]
    return f", from {named[0][0]} to {named[-1][0]}" if named else ""


def is_one(mesh: Mapping[str, int] | None) -> bool:
    """Whether a mesh has stages."""
    return mesh is not None and PIPELINE in mesh


def check_micro_batches(count: Any, mesh: Mapping[str, int] | None) -> int:
    """Raises InputError where ``count`` is no number of micro-batches, or there is no pipeline to compute them."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InputError(f"micro_batches: expected a number of 1 or more, found {count!r}")
    if count > 1 and not is_one(mesh):
        raise InputError(f'micro_batches: expected a mesh with stages, as in mesh={{"{PIPELINE}": 2}}, found {mesh!r}')
    return count


def rows_asked(shard: Any, mesh: Mapping[str, int]) -> dict[str, int | None]:
    """Of what ``shard`` names along the axis of stages, whether it has rows of the batch (0) or not (None). Raises
    InputError for other axes."""
    asked = meshes.parse_shard(shard, mesh)
    along = {name: axes[PIPELINE] for name, axes in asked.items() if PIPELINE in axes}
    for name, axis in along.items():
        if axis not in (0, None):
            raise InputError(
                f"shard: expected axis 0 of {name!r} along {PIPELINE!r}, whose parts lie one after the other in "
                f"memory, or None, found {axis}"
            )
    return along


def staged(
    graphs: Mapping[str, Graph], mesh: Mapping[str, int], shard: Any, link: str | None, micro_batches: int
) -> Pipelined:  # fmt: skip
    """``graphs`` in stages, for runs of so many micro-batches; arguments as for ``luminal.compile``.

    Raises InputError for what no pipeline can be: a batch that is not divisible, or of which rows depend on each other;
    more stages than steps; states, texts and sizes that data decides.
    """
    mesh = meshes.parse(mesh)
    asked = meshes.parse_shard(shard, mesh)
    along = rows_asked(shard, mesh)
    others = {name: {axis: k for axis, k in axes.items() if axis != PIPELINE} for name, axes in asked.items()}
    parts, rows = {}, {}
    for entry, graph in graphs.items():
        _check(entry, graph, micro_batches)
        graph = simplify(graph)
        named = _rows(graph, along) if micro_batches > 1 else set()
        parts[entry] = micro.of_batch(graph, micro_batches, named)
        rows[entry] = frozenset(named)
    known = set().union(*(_ends(graph) for graph in graphs.values()))
    unknown = sorted(along.keys() - known)
    if unknown:
        raise InputError(
            f"shard: expected names of inputs and outputs, which are {', '.join(sorted(known))}, along {PIPELINE!r}, "
            f"found {', '.join(unknown)}; stages are chosen by cost"
        )
    whole = meshes.plans(parts, mesh, {name: axes for name, axes in others.items() if axes} or "auto", link)
    joined, rates = meshes.parse_link(link), Rates()
    cut, states = stages.cut(whole, mesh[PIPELINE], micro_batches, joined, rates)
    structures = {entry: graph.structure for entry, graph in graphs.items()}
    return Pipelined(mesh, states, micro_batches, whole, cut, rows, structures)


def following(
    wholes: Mapping[str, Divided], graphs: Mapping[str, Graph], mesh: Mapping[str, int], states: Mapping[str, int],
    weights: Mapping[Node, set[int]], link: Link,
) -> Pipelined:  # fmt: skip
    """Entries that are added to others in stages, which have put ``states`` and ``weights``: ``graphs`` as they are
    divided along the other axes of the ``mesh``. Raises InputError for texts."""
    for entry, graph in graphs.items():
        _check(entry, graph, 1)
    cut = {
        entry: stages.following(entry, whole, mesh[PIPELINE], states, weights, link, Rates())
        for entry, whole in wholes.items()
    }
    structures = {entry: graph.structure for entry, graph in graphs.items()}
    return Pipelined(mesh, states, 1, wholes, cut, dict.fromkeys(graphs, frozenset()), structures)


def _ends(graph: Graph) -> dict[str, Node]:
    """What callers give and get, by name."""
    return {**{str(node.attr.name): node for node in graph.given}, **dict(graph.returned)}


def _rows(graph: Graph, asked: Mapping[str, int | None]) -> set[str]:
    """The names of the inputs and outputs that have rows of the batch: those that are ``asked`` for, and all others
    with as many rows as the first input that has an axis."""
    ends = _ends(graph)
    for name, axis in asked.items():
        if name in ends and axis is not None and not ends[name].shape:
            raise InputError(f"shard: expected None of {name!r} along {PIPELINE!r}, as it has no axis, found {axis}")
    first = [ends[name] for name, axis in asked.items() if name in ends and axis == 0]
    first += [node for node in graph.given if node.shape and asked.get(node.attr.name, 0) == 0]
    if not first:
        raise InputError("micro_batches: expected an input with rows of a batch, found none")
    batch = first[0].shape[0]
    return {
        name for name, node in ends.items()
        if asked.get(name, 0 if node.shape and node.shape[0] == batch else None) == 0
    }  # fmt: skip


def _check(entry: str, graph: Graph, micro_batches: int) -> None:
    """Raises InputError for a graph that no pipeline can run."""
    if graph.states and micro_batches > 1:
        names = ", ".join(repr(state.name) for state in graph.states)
        raise InputError(
            f"micro_batches: {entry}: expected a model without states, found {names}: a run leaves in them what the "
            f"whole batch makes, and {micro_batches} micro-batches, one after the other, would leave something else. "
            "Take micro_batches=1, and of a large batch several calls"
        )
    for node in traverse.everything(graph.roots):
        if node.dtype.is_text or node.op is ops.HOST:
            where = "; ".join(map(str, graph.origins.get(node, ()))) or str(node)
            raise InputError(f"{entry}: {where}: expected numbers in a pipeline, found texts or a function of the host")
