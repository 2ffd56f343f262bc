"""Steps of training as pipelines: the ranks along the axis ``pipeline`` of a mesh have the layers of a stage, and go
forward and backward with one micro-batch after the other (``core.mesh.backward_stages``).

The graph is that of one micro-batch. What each stage computes of it, and of the step, is divided along the other axes
of the mesh; then forward and backward work are parted, and compiled as entries of one library, which
``core.schedule.program.pipelined`` joins to what each rank runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from luminal import meshes, pipelines
from luminal.core import traverse
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.mesh import backward_stages, plan
from luminal.core.mesh.backward_stages import BACKWARD, CLEAR, FORWARD, MICRO_BATCH, Steps
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.divide import PIPELINE, Divided, Laid
from luminal.core.mesh.partition import Weight
from luminal.core.mesh.placement import Split, splits
from luminal.core.mesh.traffic import Traffic, message, sent, times
from luminal.core.ops import EVERY
from luminal.core.rewrite import simplify
from luminal.core.schedule.program import pipelined
from luminal.core.schedule.program.ir import TensorSpec
from luminal.core.schedule.program.timetable import Action, Passing
from luminal.core.sizes import largest
from luminal.core.training import Parameter, Plan


@dataclass(frozen=True)
class Recipe:
    """A step that is still to be made: the graph of the loss of one micro-batch, built while functions remember their
    derivatives; what is trained, and how; the names of the inputs and outputs that have rows of the batch."""

    graph: Graph
    parameters: Sequence[Parameter]
    plan: Plan
    rows: frozenset[str]


class Entries(dict[str, Graph]):
    """The entries of a step on one rank, and the recipe by which the entry ``train`` is made in stages. The others read
    the same states, and leave them as they are."""

    def __init__(self, entries: Mapping[str, Graph], train: str, recipe: Recipe) -> None:
        super().__init__(entries)
        self.train, self.recipe = train, recipe


@dataclass(frozen=True)
class PipelinedStep(pipelines.OfStages):
    """A step of training in stages, for the ranks of a ``mesh``: the entry ``name``, of ``micro_batches``, with the
    graphs ``parts`` of each stage and task; and the ``others``, each of which computes a batch as one."""

    name: str
    micro_batches: int
    steps: Steps
    parts: Mapping[tuple[int, str], Divided]
    rows: frozenset[str]
    given: tuple[Node, ...]
    returned: tuple[tuple[str, Node], ...]
    structure: Mapping[str, Any]
    others: pipelines.Pipelined

    def graphs(self, rank: int) -> dict[str, Graph]:
        """The graphs of all tasks of all stages, with the weights of the ranks beside ``rank``."""
        made = {self._called(stage, task): part.of(rank) for (stage, task), part in self.parts.items()}
        return made | self.others.graphs(rank)

    @property
    def cuts(self) -> dict[str, Weight]:
        return {
            name: weight for part in self.parts.values() for name, weight in part.states.items()
            if weight.cuts and name in self.states
        }  # fmt: skip

    def entries(self) -> list[pipelined.Parts]:
        def tensor(name: str, node: Node) -> TensorSpec:
            first = (node.shape[0] * self.micro_batches,) if name in self.rows else node.shape[:1]
            return TensorSpec(name, node.dtype, (*first, *node.shape[1:]))

        count = self.group.size
        tasks = [{task for stage, task in self.parts if stage == number} for number in range(count)]
        actions = (backward_stages.actions(number, count, self.micro_batches) for number in range(count))
        return [
            pipelined.Parts(
                self.name,
                tuple(tensor(node.attr.name, node) for node in self.given),
                tuple(tensor(name, node) for name, node in self.returned),
                self.steps.outputs,
                self.rows,
                tuple({task: self._called(number, task) for task in sorted(tasks[number])} for number in range(count)),
                tuple(tuple(Action(*a) for a in each if a[0] in tasks[k]) for k, each in enumerate(actions)),
                tuple(Passing(v.name, v.source, v.targets, v.task, v.once, v.state) for v in self.steps.values),
                self.micro_batches,
                self.structure,
                self.steps.accumulators,
            ),
            *self.others.entries(),
        ]

    def sent(self, stage: int) -> dict[str, Traffic]:
        """What a rank of that stage sends in a step, by axis of the mesh."""
        found = {axis: Traffic() for axis in self.mesh}
        for value in self.steps.values:
            if value.source == stage:
                runs = 1 if value.once else self.micro_batches
                found[PIPELINE] += times(message(self._bytes(value)), runs * len(value.targets))
        for name, node in self.returned:
            if self.steps.outputs[name][0] == stage:
                runs = self.micro_batches if name in self.rows else 1
                size = largest(node.size) * node.dtype.itemsize
                found[PIPELINE] += times(message(size), runs * (self.group.size - 1))
        for (number, task), part in self.parts.items():
            for axis, traffic in sent(part.graph).items() if number == stage else ():
                found[axis] += times(traffic, self.micro_batches if task in (FORWARD, BACKWARD) else 1)
        return found

    def _bytes(self, value: backward_stages.Value) -> int:
        """Bytes of what a rank has of a value."""
        for (stage, _), part in self.parts.items():
            if stage == value.source:
                known = {state.name: state.input for state in part.graph.states}
                nodes = known if value.state else dict(part.graph.returned)
                if (value.state or value.name) in nodes:
                    node = nodes[value.state or value.name]
                    return largest(node.size) * node.dtype.itemsize
        raise AssertionError(value)

    def explained(self) -> list[str]:
        """The stages in words, and what a rank of each sends."""
        count, batches = self.group.size, self.micro_batches
        total = sum(self.steps.seconds) or 1.0
        lines = []
        for number, seconds in enumerate(self.steps.seconds):
            held: dict[str, int] = {}
            for (stage, _), part in self.parts.items():
                own = {s.name: s.input for s in part.graph.states if s.name in self.states and stage == number}
                held |= {name: largest(node.size) * node.dtype.itemsize for name, node in own.items()}
            forward = self.parts[number, FORWARD].graph
            lines.append(
                f"{PIPELINE}: stage {number} has {seconds / total:.0%} of the work, {sum(held.values())} bytes of "
                f"states, and {min(count - number, batches)} micro-batches under way{pipelines.span(forward)}"
            )
            for axis, traffic in self.sent(number).items():
                lines.append(
                    f"{axis}: a rank of stage {number} sends {traffic.messages} messages, {traffic.bytes} bytes, in a "
                    f"step of {batches} micro-batches"
                )
        bubble = (count - 1) / (batches + count - 1)
        lines.append(f"{PIPELINE}: with stages of equal work, ranks wait for {bubble:.0%} of a step")
        for entry in self.others.staged:
            lines += [f"{entry}: {line}" for k in range(count) for line in self.others.traffic(entry, k)]
        return lines

    def _called(self, stage: int, task: str) -> str:
        return f"{self.name}, stage {stage}, {task}"


def staged(entries: Entries, mesh: Mapping[str, int], shard: Any, link: str | None, count: int) -> PipelinedStep:
    """The step of ``entries`` in stages, of ``count`` micro-batches; other arguments as for ``luminal.compile``.

    Raises InputError as ``core.mesh.backward_stages.staged`` does, for names in ``shard`` that are not there, and for
    outputs without rows of the batch.
    """
    recipe, name = entries.recipe, entries.train
    mesh = meshes.parse(mesh)
    asked = meshes.parse_shard(shard, mesh)
    others = {key: {axis: k for axis, k in axes.items() if axis != PIPELINE} for key, axes in asked.items()}
    others = {key: axes for key, axes in others.items() if axes}
    whole = entries[name]
    graph = replace(recipe.graph, exact=whole.exact, approximations=whole.approximations)
    initial = {state.name: state.initial for state in whole.states}  # that of random numbers has the seed
    graph = replace(graph, states=tuple(replace(s, initial=initial[s.name]) for s in graph.states))
    joined, rates = meshes.parse_link(link), Rates()
    steps = backward_stages.staged(graph, recipe.parameters, recipe.plan, mesh[PIPELINE], count, joined, rates)
    for output, node in graph.returned[1:]:
        if count > 1 and output not in recipe.rows:
            raise InputError(
                f"micro_batches: expected outputs with rows of the batch, found {output}: {list(node.shape)}, of which "
                "each micro-batch has another; leave it out, or take micro_batches=1"
            )
    others |= _between(steps, recipe, mesh, others, link)
    shared = {v.state for v in steps.values if v.state} - steps.summed
    others |= {key: dict.fromkeys(axis for axis in mesh if axis != PIPELINE) for key in shared - others.keys()}
    beside = {entry: simplify(graph) for entry, graph in entries.items() if entry != name}
    tasks, wholes = _divided(steps, beside, mesh, others, joined)
    steps, tasks = _read(steps, tasks)
    given, returned = _ends(whole, tasks)
    homes = _homes(steps, tasks, mesh[PIPELINE])
    weights: dict[Node, set[int]] = {}
    for (stage, _), part in tasks.items():
        for weight in part.weights.values():
            weights.setdefault(weight.constant, set()).add(stage)
    return PipelinedStep(
        mesh,
        homes,
        name,
        count,
        steps,
        tasks,
        recipe.rows,
        given,
        returned,
        whole.structure,
        pipelines.following(wholes, beside, mesh, homes, weights, joined),
    )


def _divided(
    steps: Steps, others: Mapping[str, Graph], mesh: Mapping[str, int],
    shard: Mapping[str, Mapping[str, int | None]], link: Link,
) -> tuple[dict[tuple[int, str], Divided], dict[str, Divided]]:  # fmt: skip
    """The work of each stage and task as it is divided along the other axes of the mesh, forward and backward work
    apart; and the ``others``. What is added up lies as it is computed: of rows that are divided, each rank has a sum of
    its own."""
    graphs = {f"{stage} {task}": simplify(each) for (stage, task), each in steps.graphs.items()}
    meshes.check_names({**graphs, **others}, shard)
    laid = Laid()
    micro = {key: graph for key, graph in graphs.items() if key.endswith(f" {MICRO_BATCH}")}
    parts = meshes.lain(micro, mesh, shard, link, laid, steps.summed)
    parts |= meshes.lain({key: g for key, g in graphs.items() if key not in micro}, mesh, shard, link, laid)
    tasks: dict[tuple[int, str], Divided] = {}
    for stage, task in steps.graphs:
        part = parts[f"{stage} {task}"]
        if task != MICRO_BATCH:
            tasks[stage, task] = part
            continue
        part, tasks[stage, CLEAR] = backward_stages.added_up(part, steps.summed)
        forward, backward = backward_stages.halves(part, steps.forward[stage])
        tasks[stage, FORWARD] = forward
        if backward.graph.outputs:
            tasks[stage, BACKWARD] = backward
    return {key: part.joined() for key, part in tasks.items()}, meshes.lain(others, mesh, shard, link, laid)


def _read(
    steps: Steps, tasks: Mapping[tuple[int, str], Divided]
) -> tuple[Steps, dict[tuple[int, str], Divided]]:  # fmt: skip
    """The same without values that no stage reads any more, once its graphs are simpler: what a function is called
    with, say, where its derivative does not need it."""
    read = {(stage, node.attr.name) for (stage, _), part in tasks.items() for node in part.graph.given}
    values = (replace(v, targets=tuple(to for to in v.targets if (to, v.name) in read)) for v in steps.values)
    left = tuple(value for value in values if value.targets)
    gone = {value.name for value in steps.values} - {value.name for value in left}
    made: dict[tuple[int, str], Divided] = {}
    for (stage, task), part in tasks.items():
        graph = part.graph
        returned = [(name, node) for name, node in graph.returned if name not in gone or (stage, name) in read]
        outputs = (*returned, *graph.outputs[len(graph.returned) :])
        used = set(traverse.topological(node for _, node in outputs))
        inputs = (*(n for n in graph.given if n in used), *(state.input for state in graph.states))
        made[stage, task] = replace(part, graph=replace(graph, inputs=inputs, outputs=outputs))
    if made == tasks and left == steps.values:
        return steps, made
    return _read(replace(steps, values=left), made)


def _homes(steps: Steps, tasks: Mapping[tuple[int, str], Divided], count: int) -> dict[str, int]:
    """The stage that keeps each state, or ``EVERY``, as of counts of steps."""
    found: dict[str, set[int]] = {}
    for (stage, _), part in tasks.items():
        for name in part.states.keys() - steps.accumulators:
            found.setdefault(name, set()).add(stage)
    return {name: min(stages) if len(stages) < count else EVERY for name, stages in sorted(found.items())}


def _ends(
    whole: Graph, tasks: Mapping[tuple[int, str], Divided]
) -> tuple[tuple[Node, ...], tuple[tuple[str, Node], ...]]:
    """What callers of a step give and get, as a rank has it of a micro-batch."""
    inputs = {node.attr.name: node for part in tasks.values() for node in part.graph.given}
    outputs = {name: node for part in tasks.values() for name, node in part.graph.returned}
    given = tuple(inputs.get(node.attr.name, node) for node in whole.given)
    return given, tuple((name, outputs[name]) for name, _ in whole.returned)


def _between(
    steps: Steps, recipe: Recipe, mesh: Mapping[str, int], shard: Mapping[str, Mapping[str, int | None]],
    link: str | None,
) -> dict[str, dict[str, int | None]]:  # fmt: skip
    """How what passes between stages lies along the other axes of the mesh: as in the plan of the forward work."""
    found: dict[str, dict[str, int | None]] = {}
    for axis, size in mesh.items():
        if axis == PIPELINE or size == 1:
            continue
        asked = {node: shard.get(node.attr.name, {}).get(axis) for node in steps.graph.inputs}
        given = {node: way for node, k in asked.items() for way in splits(node.shape, size) if way.axis == k}
        chosen = plan.planned(steps.graph, axis, size, given, {}, {}, meshes.parse_link(link), Rates())
        for name, node in steps.at.items():
            lies = chosen.modes[node].result
            found.setdefault(name, {})[axis] = lies.axis if isinstance(lies, Split) else None
    for value in steps.values:
        of = next((name for name in steps.at if value.name.startswith(f"gradient of {name} by")), None)
        if of is not None and of in found:
            found[value.name] = found[of]
    return found
