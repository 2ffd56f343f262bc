"""A step of training in stages: what the ranks of each stage compute of a micro-batch, forward and backward, and how
they make one step of all.

The graph of the loss is cut into stages as for inference (``stages.py``). Each stage is differentiated by itself, from
the gradients of what it sends to those of what it was sent: so backward work lies where the work that it
differentiates does. Gradients of micro-batches are added up on the rank, from the first to the last, and a step is
taken by their mean. This is what accumulation of gradients over calls is, with one call for all of them. A rank adds up
what it has computed; only the sums are exchanged with the ranks beside it, once in a step.

A parameter, and what the optimiser keeps of it, is a state of one stage: the first that reads it. Others that read it,
too, as the last does of a matrix that is tied, are sent it when a step begins, and send their gradients back. States of
the model's own, such as statistics of the batch and the count of random draws, lie as in inference, and forward work
writes them, of each micro-batch in turn.

The order is 1F1B (PipeDream-Flush; Narayanan et al., ICML 2021): a stage goes forward as often as there are stages
behind it, then forward and backward in turn. So it keeps what backward work reads of as many micro-batches as there
are stages from it on, however many there are in all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from luminal.core import derivative, ir, ops, training, traverse
from luminal.core.decompose import optimisers
from luminal.core.errors import InputError
from luminal.core.gradient import pulled_back
from luminal.core.ir import Graph, Node, State, constant
from luminal.core.mesh import stages
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.divide import Divided
from luminal.core.mesh.partition import Weight
from luminal.core.ops import EVERY
from luminal.core.sizes import largest
from luminal.core.training import GATHERED, NORM, RATES, Parameter, Plan

# What a rank does in a step, by name: the first and the last two once, the others for each micro-batch.
CLEAR, FORWARD, BACKWARD, SQUARES, UPDATE = "clear", "forward", "backward", "squares", "update"
MICRO_BATCH = "micro-batch"  # forward and backward as one graph, as other axes of a mesh divide it
TOTAL = "loss.sum"  # of the losses of micro-batches, as a state
OF_ALL = "gradients.of_all"  # the state of a parameter's gradient, of all stages and ranks


@dataclass(frozen=True)
class Value:
    """What the ranks of stage ``source`` send to those of ``targets``, of that many ``bytes``: what ``task`` makes, of
    each micro-batch or ``once``; or the state of that name, once the last ``task`` has ended, or before all."""

    name: str
    source: int
    targets: tuple[int, ...]
    task: str
    bytes: int
    once: bool = False
    state: str = ""


@dataclass(frozen=True)
class Steps:
    """A step in stages. ``graphs`` are those of the tasks by stage and name, ``forward`` the outputs of each stage's
    micro-batch that its forward work gives, and ``summed`` those that are added up over micro-batches, in states of the
    same names; ``values`` pass between stages; ``owners`` have the parameters, by name, and ``outputs`` says of each
    output of a step the stage and the task that give it. The ``accumulators`` are states for the time of a step alone.
    ``kept`` is as in ``training.Step``; ``at`` has the places of the values in ``graph``, that of the loss, as it was
    cut."""

    graphs: Mapping[tuple[int, str], Graph]
    forward: tuple[frozenset[str], ...]
    summed: frozenset[str]
    seconds: tuple[float, ...]
    values: tuple[Value, ...]
    owners: Mapping[str, int]
    outputs: Mapping[str, tuple[int, str]]
    accumulators: frozenset[str]
    kept: Mapping[str, Sequence[str]]
    graph: Graph
    at: Mapping[str, Node]


def actions(stage: int, count: int, micro_batches: int) -> Iterator[tuple[str, int | None]]:
    """What the ranks of a stage, of ``count``, do in a step: tasks, each with the number of a micro-batch or None."""
    ahead = min(count - 1 - stage, micro_batches)
    yield CLEAR, None
    for batch in range(ahead):
        yield FORWARD, batch
    for batch in range(micro_batches):
        if batch + ahead < micro_batches:
            yield FORWARD, batch + ahead
        yield BACKWARD, batch
    yield SQUARES, None
    yield UPDATE, None


def staged(
    graph: Graph, parameters: Sequence[Parameter], plan: Plan, count: int, micro_batches: int, link: Link, rates: Rates
) -> Steps:
    """A step that descends along the gradient of the first output of ``graph``, that of one micro-batch, in ``count``
    stages. The graph is built while functions remember their derivatives.

    Raises InputError where data decides sizes, where there are fewer steps than stages or no place to cut between the
    reading and the writing of a state, and as ``training.step`` does.
    """
    return _Steps(graph, parameters, plan, count, micro_batches).made(link, rates)


@dataclass
class _Stage:
    """What is known of a stage while the ones before it are made: the parameters that it reads, their gradients, and
    those of what it was sent."""

    outputs: list[tuple[str, Node]] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    read: list[Parameter] = field(default_factory=list)
    states: list[tuple[State, Node]] = field(default_factory=list)  # the model's own, with their new values
    gradients: dict[str, Node] = field(default_factory=dict)
    returned: dict[Node, Node] = field(default_factory=dict)  # of what it was sent, the gradient
    total: Node | None = None  # its loss


class _Steps:
    def __init__(
        self, graph: Graph, parameters: Sequence[Parameter], plan: Plan, count: int, micro_batches: int
    ) -> None:
        _check(graph)
        self.loss, _ = graph.returned[0][0], training.checked_loss(graph)
        self.graph, self.parameters, self.plan = graph, parameters, plan
        self.count, self.micro_batches = count, micro_batches
        own = {p.input for p in parameters}
        self.given = tuple(node for node in graph.given if node not in own)
        self.origins = dict(graph.origins)
        self.order = traverse.topological(graph.roots)
        self.sent: Mapping[Node, Node | None] = {}
        self.home: dict[Node, int] = {}
        self.keepers: Mapping[str, int] = {}  # the stage that keeps each state of the model's own, or EVERY
        self.names: dict[Node, str] = {}
        self.targets: dict[Node, tuple[int, ...]] = {}
        self.values: list[Value] = []

    def made(self, link: Link, rates: Rates) -> Steps:
        seconds = self._cut(link, rates)
        outputs = {}
        for name, node in self.graph.returned:
            source = self.sent[node]
            outputs[name] = (self.count - 1 if source is None else self.home[source], FORWARD)
        every = [_Stage() for _ in range(self.count)]
        for number in reversed(range(self.count)):
            self._differentiate(number, every, [name for name, (at, _) in outputs.items() if at == number])
        readers = {p.name: [k for k in range(self.count) if p in every[k].read] for p in self.parameters}
        owners = {name: found[0] if found else 0 for name, found in readers.items()}
        trained = [p for p in self.parameters if any(p.name in stage.gradients for stage in every)]
        if not trained:
            raise InputError("training: the loss depends on none of the parameters that the optimiser has")
        for p in self.parameters:
            self._shared(p, readers[p.name], every)
        last, _ = outputs[self.loss]
        if self.plan.clip_norm is not None:
            for number in {owners[p.name] for p in trained}:
                others = tuple(k for k in range(self.count) if k != number)
                self.values.append(Value(_squares(number), number, others, SQUARES, 4, once=True))
        graphs: dict[tuple[int, str], Graph] = {}
        for number, stage in enumerate(every):
            graphs[number, MICRO_BATCH] = self._micro_batch(number, stage, owners)
            graphs |= {(number, task): g for task, g in self._step(number, every, trained, owners, number == last)}
        outputs[self.loss] = last, UPDATE
        if self.plan.told:
            outputs[NORM] = last, UPDATE
        summed = {_sum(p, number, owners) for number, stage in enumerate(every) for p in stage.read} | {TOTAL}
        plain: dict[Node, Node] = {}
        roots = derivative.stripped(self.graph.roots, plain)
        return Steps(
            graphs,
            tuple(_forward(stage) for stage in every),
            frozenset(summed),
            seconds,
            tuple(self.values),
            owners,
            outputs,
            frozenset(summed | {p.kept(OF_ALL) for p in trained}),
            {p.name: tuple(training.keeps(p, self.plan)) for p in trained},
            self.graph.computing(roots),
            {name: plain[node] for node, name in self.names.items()},
        )

    # ---- where the loss is cut -------------------------------------------------------------------------------------

    def _cut(self, link: Link, rates: Rates) -> tuple[float, ...]:
        """Chooses the stages. Functions that remember their derivatives read what they were called with, so a cut
        inside of one costs more than beside it."""
        whole = replace(self.graph, inputs=(*self.given, *(state.input for state in self.graph.states)), names={})
        weights = {p.input: Weight(p.initial) for p in self.parameters}
        weights |= {node: Weight(node) for node in self.order if node.op is ops.CONSTANT}
        places = stages.placed(Divided(whole, weights, ()), self.count, self.micro_batches, link, rates)
        self.home, self.sent, self.keepers = dict(places.stage), places.sent, places.states
        targets: dict[Node, set[int]] = {}
        for node, home in self.home.items():
            for source in map(self.sent.get, node.inputs):
                if source is not None and self.home[source] != home:
                    targets.setdefault(source, set()).add(home)
        for node in self.home:
            if node in targets:
                name = self.names[node] = f"value {len(self.names)} between stages"
                self.targets[node] = tuple(sorted(targets[node]))
                self.values.append(Value(name, self.home[node], self.targets[node], FORWARD, _bytes(node)))
        return places.seconds

    # ---- the work of a micro-batch ---------------------------------------------------------------------------------

    def _differentiate(self, number: int, every: Sequence[_Stage], names: Sequence[str]) -> None:
        """Makes the forward work of a stage, which gives the outputs ``names``, and the gradients of what it reads;
        stages behind it are made."""
        stage = every[number]
        received = {n: ir.input_(self.names[n], n.shape, n.dtype) for n, to in self.targets.items() if number in to}
        sent = [n for n in self.targets if self.home[n] == number]
        outputs = [*((self.names[n], n) for n in sent), *((k, n) for k, n in self.graph.returned if k in names)]
        made: dict[Node, Node] = dict(received)
        kept = [(s, n) for s, n in self.graph.left if self.keepers[s.name] in (number, EVERY)]
        for node in traverse.topological([n for _, n in (*outputs, *kept)], stops=received):
            if node not in made:
                with ir.originating(self.origins, *self.origins.get(node, ())):
                    made[node] = traverse.rebuild(node, [made[x] for x in node.inputs])
        stage.states = [(state, made[n]) for state, n in kept]
        stage.outputs = [(name, made[n]) for name, n in outputs if name != self.loss]
        stage.read = [p for p in self.parameters if p.input in made]
        stage.inputs = [*(n for n in self.given if n in made), *received.values()]
        results: list[tuple[Node, Node]] = []
        for node in sent:
            for target in self.targets[node]:
                if node in every[target].returned:
                    gradient = ir.input_(_gradient(self.names[node], target), node.shape, node.dtype)
                    stage.inputs.append(gradient)
                    results.append((made[node], gradient))
        for name, node in outputs:
            if name == self.loss:
                stage.total = made[node]
                share = constant(1 / self.micro_batches, node.dtype)
                results.append((made[node], ir.expand(share, node.shape)))
        by = [*(p.input for p in stage.read), *(x for n, x in received.items() if n.dtype.is_float)]
        with derivative.recorded():
            found = pulled_back([y for y, _ in results], [g for _, g in results], by, self.origins)
        gradients = {node: g for node, g in zip(by, found, strict=True) if g is not None}
        stage.gradients = {p.name: gradients[p.input] for p in stage.read if p.input in gradients}
        for node, x in received.items():
            if x in gradients:
                stage.returned[node] = gradients[x]
                name = _gradient(self.names[node], number)
                self.values.append(Value(name, number, (self.home[node],), BACKWARD, _bytes(node)))

    def _shared(self, parameter: Parameter, readers: Sequence[int], every: Sequence[_Stage]) -> None:
        """What passes of a parameter that several stages read."""
        name, size = parameter.name, _bytes(parameter.input)
        owner, *others = readers or [0]
        if others:
            self.values.append(Value(name, owner, tuple(others), "", size, once=True, state=name))
        for number in others:
            if name in every[number].gradients:
                told = _sum(parameter, number, {name: owner})
                self.values.append(Value(told, number, (owner,), BACKWARD, size, once=True, state=told))

    def _micro_batch(self, number: int, stage: _Stage, owners: Mapping[str, int]) -> Graph:
        """Forward and backward work of a micro-batch."""
        states = [_same(p) for p in stage.read if owners[p.name] == number]
        given = [p.input for p in stage.read if owners[p.name] != number]
        returned = [(_gradient(self.names[node], number), g) for node, g in stage.returned.items()]
        if stage.total is not None:
            returned.append((TOTAL, stage.total * (1 / self.micro_batches)))
        returned += [
            (_sum(p, number, owners), stage.gradients[p.name]) for p in stage.read if p.name in stage.gradients
        ]
        return self._graph([*stage.inputs, *given], [*stage.outputs, *returned], [*states, *stage.states])

    # ---- the step --------------------------------------------------------------------------------------------------

    def _step(
        self, number: int, every: Sequence[_Stage], trained: Sequence[Parameter], owners: Mapping[str, int], last: bool
    ) -> Iterator[tuple[str, Graph]]:
        """What a stage does once in a step, after the last micro-batch."""
        stage, plan = every[number], self.plan
        own = [p for p in trained if owners[p.name] == number]
        states: list[tuple[State, Node]] = []
        shown: list[tuple[str, Node]] = []
        if stage.total is not None:
            before = ir.input_(TOTAL, stage.total.shape, stage.total.dtype)
            states.append((_zeros(before), before))
            shown.append((self.loss, before))
        # The gradients of all stages that read a parameter, from the first to the last.
        inputs: list[Node] = []
        parts: list[Node] = []
        sums: list[tuple[State, Node]] = []
        for p in own:
            found = [ir.input_(_sum(p, k, owners), p.input.shape, p.input.dtype)
                     for k in range(self.count) if p.name in every[k].gradients]  # fmt: skip
            inputs += found[p.name in stage.gradients :]
            if p.name in stage.gradients:
                sums.append((_zeros(found[0]), found[0]))
            part = found[0]
            for other in found[1:]:
                part = part + other
            parts.append(part)
        if plan.clip_value is not None:
            parts = optimisers.clipped_to_value(parts, plan.clip_value)
        if plan.clip_norm is None:
            states += sums
        else:
            if own:  # what ranks beside each other exchange for this, the update reads, too
                told = [(_zeros(ir.input_(p.kept(OF_ALL), p.input.shape, p.input.dtype)), g)
                        for p, g in zip(own, parts, strict=True)]  # fmt: skip
                yield SQUARES, self._graph(inputs, [(_squares(number), optimisers.squares(parts))], [*sums, *told])
                parts, inputs = [state.input for state, _ in told], []
                states += [(state, state.input) for state, _ in told]
            every_square = [
                ir.input_(_squares(k), (), optimisers.squares([p.input for p in trained]).dtype)
                for k in sorted({owners[p.name] for p in trained})
            ]
            total = every_square[0]
            for square in every_square[1:]:
                total = total + square
            parts, norm = optimisers.scaled(parts, total, plan.clip_norm)
            if own or last:
                inputs += every_square
            shown += [(NORM, norm)] if plan.told else []
        rates = ir.input_(RATES, (len(plan.groups),), plan.shared)
        others = [p for p in self.parameters if owners[p.name] == number and p not in own]
        states = [*training.updated(own, parts, plan, rates), *map(_same, others), *states]
        yield UPDATE, self._graph([rates, *inputs], shown if last else [], states)

    def _graph(
        self, inputs: Sequence[Node], outputs: Sequence[tuple[str, Node]], states: Sequence[tuple[State, Node]]
    ) -> Graph:
        made = _with_states(self.graph, inputs, outputs, states)
        made = derivative.plain(replace(made, origins=self.origins, structure={}))
        used = set(traverse.everything(made.roots))
        return replace(
            made,
            origins={node: found for node, found in made.origins.items() if node in used},
            names={node: name for node, name in made.names.items() if node in used},
        )


def added_up(whole: Divided, names: Collection[str]) -> tuple[Divided, Divided]:
    """A micro-batch's work with a state for each of the outputs ``names``, to which it adds that, as a rank has it;
    and what makes these states zero."""
    graph = whole.graph
    kept = [(name, node) for name, node in graph.returned if name not in names]
    states, zeros = [], []
    for name, node in graph.returned:
        if name in names:
            before = ir.input_(name, node.shape, node.dtype)
            states.append((_zeros(before), before + node))
            zeros.append((states[-1][0], ir.expand(constant(0, node.dtype), node.shape)))
    initial = {state.name: Weight(state.initial) for state, _ in states}
    adding = _with_states(graph, graph.given, kept, [*graph.left, *states])
    clearing = replace(_with_states(graph, (), (), zeros), origins={}, names={})
    return replace(whole, graph=adding, states={**whole.states, **initial}), Divided(clearing, {}, (), initial)


def _with_states(
    graph: Graph, inputs: Sequence[Node], outputs: Sequence[tuple[str, Node]], states: Sequence[tuple[State, Node]]
) -> Graph:
    return replace(
        graph,
        inputs=(*inputs, *(state.input for state, _ in states)),
        outputs=(*outputs, *((state.output, node) for state, node in states)),
        states=tuple(state for state, _ in states),
    )


def halves(whole: Divided, forward: Collection[str]) -> tuple[Divided, Divided]:
    """A micro-batch's work as the forward work, which gives the outputs ``forward``, those to states among them, and
    the backward work, which gives the others. The forward work also gives what the backward work reads of it."""
    graph = whole.graph
    order = traverse.topological(graph.roots)
    shown = {name: node for name, node in graph.returned if name in forward}
    lasting = [(s, n) for s, n in graph.left if s.output in forward]
    # What a state was that the forward work writes, the backward work is handed; both have those that stay.
    gone = [(s, n) for s, n in lasting if n is not s.input]
    ahead = {s.input for s, _ in gone} | {*traverse.topological([*shown.values(), *(node for _, node in lasting)])}
    for node in order:
        if node.op is ops.VIEW and node.inputs[0] in ahead:
            ahead.add(node)
    sent = stages.sent_for(order, _with_states(graph, graph.given, graph.returned, gone), ())
    back = [(name, node) for name, node in graph.returned if name not in forward]
    written = [(s, n) for s, n in graph.left if s.output not in forward and n is not s.input]
    kept: dict[Node, str] = {}
    by = {node: name for name, node in shown.items() if name.startswith(_PASSES)}
    read = [x for node in order if node not in ahead for x in node.inputs]
    for node in (*read, *(node for _, node in back), *(node for _, node in written)):
        source = sent[node]
        if source is not None and source in ahead and source not in kept:
            kept[source] = by.get(source, f"kept {len(kept)}")
    outputs = [*shown.items(), *((name, node) for node, name in kept.items() if node not in by)]
    return (
        _half(whole, outputs, {}, lasting),
        _half(whole, back, {n: ir.input_(name, n.shape, n.dtype) for n, name in kept.items()}, written),
    )


_PASSES = "value "  # what the names of values between stages begin with


def _half(
    whole: Divided, outputs: Sequence[tuple[str, Node]], received: Mapping[Node, Node],
    written: Sequence[tuple[State, Node]],
) -> Divided:  # fmt: skip
    """The graph of ``outputs`` and of the new values of states, of what it is handed in ``received``."""
    graph = whole.graph
    origins = dict(graph.origins)
    made: dict[Node, Node] = dict(received)
    for node in traverse.topological([n for _, n in (*outputs, *written)], stops=received):
        if node not in made:
            with ir.originating(origins, *origins.get(node, ())):
                made[node] = traverse.rebuild(node, [made[x] for x in node.inputs])
    changed = {state.name for state, _ in written}
    read = [(s, s.input) for s in graph.states if s.input in made and s.name not in changed]
    states = [*read, *((state, made[node]) for state, node in written)]
    inputs = [n for n in graph.given if n in made]
    half = _with_states(graph, [*inputs, *received.values()], [(name, made[n]) for name, n in outputs], states)
    names = {made[node]: name for node, name in graph.names.items() if node in made}
    half = replace(half, origins=origins, names=names, structure={})
    weights = {node: weight for node, weight in whole.weights.items() if node in made}
    return Divided(half, weights, whole.plans, {s.name: whole.states[s.name] for s, _ in states})


def _check(graph: Graph) -> None:
    if graph.measured:
        sizes = ", ".join(size.name for size in graph.measured)
        raise InputError(f"mesh: expected sizes that inputs decide along 'pipeline', found that data decides {sizes}")


def _gradient(name: str, stage: int) -> str:
    return f"gradient of {name} by stage {stage}"


def _sum(parameter: Parameter, stage: int, owners: Mapping[str, int]) -> str:
    """The state in which a stage adds up gradients of a parameter."""
    name = parameter.kept(GATHERED)
    return name if owners[parameter.name] == stage else f"{name} of stage {stage}"


def _forward(stage: _Stage) -> frozenset[str]:
    """What the forward work gives of a micro-batch."""
    states = {state.output for state, _ in stage.states}
    return frozenset({name for name, _ in stage.outputs} | states | {f"{TOTAL}.next"})


def _squares(stage: int) -> str:
    return f"squares of stage {stage}"


def _same(parameter: Parameter) -> tuple[State, Node]:
    return State(parameter.input, f"{parameter.name}.next", parameter.initial), parameter.input


def _zeros(before: Node) -> State:
    shape = tuple(n for n in before.shape if isinstance(n, int))
    return State(before, f"{before.attr.name}.next", constant(np.zeros(shape, before.dtype.numpy)))


def _bytes(node: Node) -> int:
    return largest(node.size) * node.dtype.itemsize
