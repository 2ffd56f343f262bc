"""Graphs cut into the stages of a pipeline: runs of their nodes in topological order, chosen by cost, each a graph of
its own that is handed values of earlier ones.

Stages are chosen as Alpa does it (Zheng et al., OSDI 2022): of a run, the first micro-batch takes all stages one after
the other, with what is sent between them, and each later one takes as long as the slowest stage. Views, and what
constants decide alone, are computed where they are read, so they are never sent, and so is what takes less of inputs,
which are on all ranks, than a message does, such as masks.

A state belongs to the stage that computes its new value, which sends what it was to later ones that read it. Where the
new value takes less work than a message does, of inputs and such states alone, each stage that reads it keeps it, and
all keep the same. Of several entries, the one with most work is cut first. The others follow: what reads a weight, or
a state, is where that lies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from luminal.core import ir, ops, traverse
from luminal.core.errors import InputError
from luminal.core.exchange import EXCHANGES
from luminal.core.ir import Node, State
from luminal.core.mesh import cost
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.divide import Divided
from luminal.core.ops import EVERY, Kind
from luminal.core.sizes import largest
from luminal.core.symbolic import Var


@dataclass(frozen=True)
class Crossing:
    """A value that stage ``source`` sends to the stages ``targets``, for each micro-batch, of that many ``bytes`` at
    the upper bounds of sizes. The graphs have it as an output and as inputs of that ``name``."""

    name: str
    source: int
    targets: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Staged:
    """The ``stages`` of a graph, each as it is divided among the ranks of the other axes of the mesh; the ``seconds``
    that a micro-batch is estimated to take in each; what crosses; and by its name the stage that gives an output."""

    stages: tuple[Divided, ...]
    seconds: tuple[float, ...]
    crossings: tuple[Crossing, ...]
    outputs: Mapping[str, int]


@dataclass
class _Laid:
    """Where the entries that are cut already have put weights and states, by number and by name of a stage."""

    weights: dict[Node, set[int]] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)


def cut(
    wholes: Mapping[str, Divided], count: int, micro_batches: int, link: Link, rates: Rates
) -> tuple[dict[str, Staged], dict[str, int]]:  # fmt: skip
    """The entries of a library in ``count`` stages, for so many micro-batches in a run, and the stage that keeps each
    state, or ``EVERY``.

    Raises InputError where there are fewer steps than stages, or an entry goes back to an earlier stage.
    """
    alike = _alike(wholes, link, rates)
    entries = [_Entry(name, whole, alike, link, rates) for name, whole in wholes.items()]
    laid = _Laid()
    for number, entry in enumerate(sorted(entries, key=lambda entry: -sum(entry.work))):
        entry.cut(count, micro_batches, laid, is_first=number == 0)
    homes = _homes(entries, alike, count, laid)
    return {entry.name: entry.staged(count, homes) for entry in entries}, homes


@dataclass(frozen=True)
class Places:
    """The stage of each step of a graph; for each node what a later stage has to be sent (see ``sent_for``); the
    ``seconds`` that a micro-batch is estimated to take in each stage; and the stage that keeps each state, or
    ``EVERY``."""

    stage: Mapping[Node, int]
    sent: Mapping[Node, Node | None]
    seconds: tuple[float, ...]
    states: Mapping[str, int]


def placed(whole: Divided, count: int, micro_batches: int, link: Link, rates: Rates) -> Places:
    """Where the steps of ``whole`` are, as ``cut`` chooses it; arguments and errors as there."""
    alike = _alike({whole.graph.name: whole}, link, rates)
    entry, laid = _Entry(whole.graph.name, whole, alike, link, rates), _Laid()
    entry.cut(count, micro_batches, laid, is_first=True)
    return Places(entry.stage, entry.sent, entry.seconds(count), _homes([entry], alike, count, laid))


def following(
    name: str, whole: Divided, count: int, states: Mapping[str, int], weights: Mapping[Node, set[int]], link: Link,
    rates: Rates,
) -> Staged:  # fmt: skip
    """One more entry of a library, in ``count`` stages, of which each keeps ``states`` as others have put them; so are
    ``weights``, by their constants."""
    entry = _Entry(name, whole, {state for state, home in states.items() if home == EVERY}, link, rates)
    laid = _Laid(dict(weights), {state: home for state, home in states.items() if home != EVERY})
    entry.cut(count, 1, laid, is_first=False)
    return entry.staged(count, states)


def _alike(wholes: Mapping[str, Divided], link: Link, rates: Rates) -> frozenset[str]:
    """The states that any stage may keep: in all entries, a new value is made of inputs and of such states, and of
    weights, at less than a message costs."""

    def updates(name: str) -> list[tuple[Divided, Node]]:
        return [(whole, node) for whole in wholes.values() for state, node in whole.graph.left if state.name == name]

    found = {state.name for whole in wholes.values() for state in whole.graph.states}
    before: set[str] = set()
    while before != found:
        before = set(found)
        for name in before:
            for whole, node in updates(name):
                made_of = traverse.topological([node])
                others = {state.input for state in whole.graph.states if state.name not in found}
                work = sum(cost.work(x, False, 1, rates) for x in made_of)
                work += _having((x for x in made_of if x in whole.weights), rates)
                if work > link.latency or any(x in others or x.op is ops.EXCHANGE for x in made_of):
                    found.discard(name)
    return frozenset(found)


def _homes(entries: Sequence[_Entry], alike: Collection[str], count: int, laid: _Laid) -> dict[str, int]:
    """The stage that keeps each state, or ``EVERY``."""
    homes = {state.name: laid.states.get(state.name, count - 1) for entry in entries for state in entry.graph.states}
    return homes | _keepers(entries, alike, count, homes)


def _keepers(entries: Sequence[_Entry], alike: Collection[str], count: int, homes: Mapping[str, int]) -> dict[str, int]:
    """Of the states that any stage may keep, the one that does: that which reads it, or ``EVERY`` where several do."""
    reading: dict[str, set[int]] = {name: set() for name in alike}
    size = -1
    while size != (size := sum(map(len, reading.values()))):
        for entry in entries:
            for stage in range(count):
                kept = {name for name, stages in reading.items() if stage in stages}
                kept |= {name for name, home in homes.items() if home == stage and name not in alike}
                read = set(entry.nodes(stage, kept))
                for state in entry.graph.states:
                    if state.name in alike and state.input in read:
                        reading[state.name].add(stage)
        for stages in reading.values():
            stages |= set(range(count)) if len(stages) > 1 else set()
    return {name: EVERY if len(stages) > 1 else max(stages, default=count - 1) for name, stages in reading.items()}


class _Entry:
    """A graph while it is cut: its ``steps`` in order, each with its ``work`` in seconds."""

    def __init__(self, name: str, whole: Divided, alike: Collection[str], link: Link, rates: Rates) -> None:
        self.name, self.whole, self.graph = name, whole, whole.graph
        self.own = [(state, node) for state, node in self.graph.left if state.name not in alike]
        self.link, self.rates = link, rates
        order = _late(self.graph.roots)
        self.sent = sent_for(order, self.graph, alike)
        self.steps = _ordered([node for node in order if self.sent[node] is node], self.sent, self.graph)
        self.reads = _weights(order, self.sent, whole)
        readers = traverse.users(self.graph.roots)
        products = {x for x in order if x.op is ops.MUL and all(y.op.kind is Kind.REDUCE for y in readers[x])}
        self.work = _work(self.steps, self.reads, readers, products, link, rates)
        self.again = self._again(order, products)
        self.stage: dict[Node, int] = {}
        self.crossings: dict[Node, Crossing] = {}
        self.outputs: dict[str, int] = {}

    def cut(self, count: int, micro_batches: int, laid: _Laid, is_first: bool) -> None:
        """Chooses the stage of each step, and says in ``laid`` where weights and states are."""
        if is_first and len(self.steps) < count:
            raise InputError(
                f"mesh: expected at most {len(self.steps)} stages, one for each step of the model, found {count}"
            )
        pins = self._pinned(laid)
        place = {node: number for number, node in enumerate(self.steps)}
        across = self._across(place)
        if pins or len(self.steps) < count:
            cuts = self._following(pins, across, count)
        else:
            cuts = cheapest(self.work, across, count, micro_batches)
        self.stage = {node: bisect_right(cuts, number) for node, number in place.items()}
        parted = [state.name for state, nodes in self._touching() if len({self.stage[node] for node in nodes}) > 1]
        if len(cuts) < count - 1 or parted:
            raise InputError(
                f"mesh: {self.name}: expected {count} stages that keep their states, found no {count - 1} places where "
                "the model can be cut: what follows from a state decides its new value. Take fewer stages, or divide "
                "the model along another axis"
            )
        for node, weights in self.reads.items():
            for weight in weights:
                laid.weights.setdefault(self.whole.weights[weight].constant, set()).add(self.stage[node])
        for state, steps in self._touching():
            for step in steps:
                laid.states.setdefault(state.name, self.stage[step])
        self._cross(count)

    def _touching(self) -> list[tuple[State, list[Node]]]:
        """For each state, the steps that are on the stage that keeps it: what it was, and what gives its new value."""
        found = []
        for state, node in self.own:
            steps = dict.fromkeys((state.input, self.sent[node]))
            found.append((state, [step for step in steps if step is not None and self.sent.get(step) is step]))
        return found

    def _pinned(self, laid: _Laid) -> dict[Node, int]:
        """The stages of steps that weights and states decide which are ``laid``. Orders the steps by stages.

        Raises InputError where a state depends on a later stage than its own."""
        asked = {node: laid.states[s.name] for s, nodes in self._touching() if s.name in laid.states for node in nodes}
        pins: dict[Node, int] = {}
        least: dict[Node, int] = {}
        for step in self.steps:
            least[step] = max((least[found] for x in step.inputs if (found := self.sent[x]) is not None), default=0)
            ways = [laid.weights[w] for x in self.reads[step] if (w := self.whole.weights[x].constant) in laid.weights]
            for stages in ways:
                if len(stages) == 1 and max(stages) >= least[step]:
                    least[step] = pins[step] = max(stages)
            if step in asked and asked[step] < least[step]:
                name = next(state.name for state, nodes in self._touching() if step in nodes)
                raise InputError(
                    f"mesh: {self.name}: expected the state {name!r} to depend on stage {asked[step]}, which keeps it "
                    f"in other entries, and on those before it, found that it depends on stage {least[step]}; divide "
                    "the model along another axis"
                )
            if step in asked:
                least[step] = pins[step] = asked[step]
        order = sorted(range(len(self.steps)), key=lambda number: least[self.steps[number]])
        self.steps, self.work = [self.steps[k] for k in order], [self.work[k] for k in order]
        return pins

    def _across(self, place: Mapping[Node, int]) -> list[float]:
        """Seconds of what crosses a cut before each step; infinite between what belongs to one state."""
        changes = [0.0] * (len(self.steps) + 1)
        for node, places in self._readers(place).items():
            if places:
                seconds = self.again.get(node, self._message(node))
                changes[place[node] + 1] += seconds
                changes[max(places) + 1] -= seconds
        across = list(accumulate(changes))
        for steps in (*(steps for _, steps in self._touching()), *self._sized()):
            places = sorted(place[step] for step in steps)
            for k in range(places[0] + 1, places[-1] + 1) if places else ():
                across[k] = float("inf")
        return across

    def _sized(self) -> list[set[Node]]:
        """For each size that data decides, the steps that measure it or have it in what they read or give: a value of
        such a size is not sent."""
        if not self.graph.measured:
            return []
        sizes: dict[Node, frozenset[Var]] = {}
        for node in traverse.topological(self.graph.roots, self.graph.measured):
            views = (sizes[x] for x in node.inputs if self.sent.get(x) is not x)
            sizes[node] = frozenset().union(*views, *(traverse.symbols(x) for x in (node, *node.inputs)))
        found = {size: {step for step in self.steps if size in sizes[step]} for size in self.graph.measured}
        for size, count in self.graph.measured.items():
            measuring = self.sent[count]
            found[size] |= set() if measuring is None else {measuring}
        return [*found.values()]

    def _message(self, node: Node) -> float:
        """Seconds that it takes to send a value, which is stored before, and read again."""
        size = cost.bytes_of(node)
        return self.link.latency + size / self.link.bandwidth + 2 * size / self.rates.memory

    def _again(self, order: Sequence[Node], products: Collection[Node]) -> dict[Node, float]:
        """The steps that each stage takes by itself which reads them, each with the seconds of that: they are functions
        of elements, and look-ups, of what all ranks have, which take less than a message."""
        held = {state.input for state, _ in self.own}
        made_of: dict[Node, frozenset[Node]] = {}
        found: dict[Node, float] = {}
        for node in order:
            simple = node.op.kind in (Kind.ELEMENTWISE, Kind.VIEW) or node.op is ops.GATHER
            if node.op.kind is Kind.SOURCE and node not in held:
                made_of[node] = frozenset((node,))
            elif simple and node not in products and all(x in made_of for x in node.inputs):
                every = frozenset((node,)).union(*(made_of[x] for x in node.inputs))
                seconds = sum(cost.fused(x, False, self.rates) for x in every)
                seconds += _having(every & self.whole.weights.keys(), self.rates)
                if seconds <= self._message(node):
                    made_of[node] = every
                    found |= {node: seconds} if self.sent[node] is node else {}
        return found

    def _readers(self, place: Mapping[Node, int]) -> dict[Node, list[int]]:
        """For each step, what ``place`` has of the steps that read it."""
        readers: dict[Node, list[int]] = {node: [] for node in self.steps}
        for node in self.steps:
            for operand in node.inputs:
                found = self.sent[operand]
                if found is not None:
                    readers[found].append(place[node])
        return readers

    def _following(self, pins: Mapping[Node, int], across: Sequence[float], count: int) -> list[int]:
        """The steps before which cuts are, so that each step is on its stage of ``pins``: where least crosses, and of
        such places the one that divides the work most evenly. Stages may have no steps."""
        ends = [0.0, *accumulate(self.work)]
        across = [0.0, *across[1 : len(self.steps)], 0.0]
        cuts: list[int] = []
        first, total = 0, ends[-1] or 1.0
        for number in range(1, count):
            before = [k + 1 for k, step in enumerate(self.steps) if pins.get(step, count) < number]
            behind = [k for k, step in enumerate(self.steps) if pins.get(step, -1) >= number]
            first, last = max([first, *before]), min([len(self.steps), *behind])
            places = range(first, last + 1)
            first = min(places, key=lambda k: (across[k], abs(ends[k] / total - number / count)))
            cuts.append(first)
        return cuts

    def _cross(self, count: int) -> None:
        for node, stages in self._readers(self.stage).items():
            targets = sorted({*stages} - {self.stage[node]})
            if targets and node not in self.again:
                size = largest(node.size) * node.dtype.itemsize
                name = f"value {len(self.crossings)} between stages"
                self.crossings[node] = Crossing(name, self.stage[node], tuple(targets), size)
        for name, node in self.graph.returned:
            source = self.sent[node]
            self.outputs[name] = count - 1 if source is None else self.stage[source]

    def results(self, stage: int, kept: Collection[str]) -> tuple[list[tuple[str, Node]], list[tuple[State, Node]]]:
        """What a stage gives that keeps these states: by name to callers and to other stages, and to states."""
        given = [(name, node) for name, node in self.graph.returned if self.outputs[name] == stage]
        given += [(crossing.name, node) for node, crossing in self.crossings.items() if crossing.source == stage]
        return given, [(state, node) for state, node in self.graph.left if state.name in kept]

    def nodes(self, stage: int, kept: Collection[str]) -> list[Node]:
        """All nodes of a stage that keeps these states."""
        given, left = self.results(stage, kept)
        stops = [node for node, crossing in self.crossings.items() if stage in crossing.targets]
        found = traverse.topological([node for _, node in (*given, *left)], self.graph.measured, stops)
        return [node for node in found if node not in stops]

    def seconds(self, count: int) -> tuple[float, ...]:
        times = [0.0] * count
        for node, seconds in zip(self.steps, self.work, strict=True):
            times[self.stage[node]] += seconds
        return tuple(times)

    def staged(self, count: int, homes: Mapping[str, int]) -> Staged:
        stages = (
            self._stage(number, {name for name, home in homes.items() if home in (number, EVERY)})
            for number in range(count)
        )
        return Staged(tuple(stages), self.seconds(count), tuple(self.crossings.values()), self.outputs)

    def _stage(self, number: int, kept: Collection[str]) -> Divided:
        """The graph of one stage, which keeps these states."""
        graph = self.graph
        received = {
            node: ir.input_(crossing.name, node.shape, node.dtype)
            for node, crossing in self.crossings.items()
            if number in crossing.targets
        }
        given, left = self.results(number, kept)
        origins = dict(graph.origins)
        made: dict[Node, Node] = dict(received)
        for node in self.nodes(number, kept):
            with ir.originating(origins, *origins.get(node, ())):
                made[node] = traverse.rebuild(node, [made[x] for x in node.inputs])
        outputs = [*given, *((state.output, node) for state, node in left)]
        used = {size for node in made for size in traverse.symbols(node)}
        measured = {size: made[node] for size, node in graph.measured.items() if size in used}
        stage = replace(
            graph, measured=measured, dims=tuple(d for d in graph.dims if d in measured or d not in graph.measured),
            inputs=(*graph.given, *received.values(), *(state.input for state, _ in left)),
            outputs=tuple((name, made[node]) for name, node in outputs), origins=origins,
            names={made[node]: name for node, name in graph.names.items() if node in made}, structure={},
            states=tuple(state for state, _ in left),
        )  # fmt: skip
        weights = {node: weight for node, weight in self.whole.weights.items() if node in made}
        states = {state.name: self.whole.states[state.name] for state, _ in left}
        return Divided(stage, weights, self.whole.plans, states).joined()


def _late(roots: Sequence[Node]) -> list[Node]:
    """What ``roots`` depend on, operands first: those that most follows to before others, so that what is soon computed
    comes directly before what reads it, and crosses no cut before that."""
    depth: dict[Node, int] = {}
    for node in traverse.topological(roots):
        depth[node] = 1 + max((depth[x] for x in node.inputs), default=0)
    order: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            operands = sorted(node.inputs, key=lambda x: depth[x])
            stack += [(x, False) for x in operands if x not in order]
    return list(order)


def sent_for(order: Sequence[Node], graph: ir.Graph, alike: Collection[str]) -> dict[Node, Node | None]:
    """For each node, what a later stage has to be sent to have it: itself; what it is a view of, where that is no
    larger; or None, of what constants and inputs alone make without work, and of states that any stage may keep."""
    found: dict[Node, Node | None] = {}
    given = frozenset(graph.inputs)
    fixed: set[Node] = set()  # what constants alone decide
    held = {state.input for state in graph.states if state.name not in alike}
    here = {*traverse.topological(node for state, node in graph.left if state.name in alike)}
    for node in order:
        if node in held:
            found[node] = node
        elif node.op.kind is Kind.SOURCE:
            found[node] = None
            fixed |= {node} - given
        elif fixed.issuperset(node.inputs) and node.op is not ops.EXCHANGE:
            found[node] = None
            fixed.add(node)
        elif node in here:
            found[node] = None
        elif node.op is ops.VIEW:
            operand = found[node.inputs[0]]
            smaller = operand is not None and cost.bytes_of(node) < cost.bytes_of(operand)
            found[node] = node if smaller else operand
        else:
            found[node] = node
    return found


def _ordered(steps: Sequence[Node], sent: Mapping[Node, Node | None], graph: ir.Graph) -> list[Node]:
    """``steps``, which are in topological order. What new values of states alone need comes directly after what it is
    made of, and what a state was, and what that alone makes, before what reads it."""
    held = {state.input for state in graph.states}
    first = {*traverse.topological([node for _, node in graph.returned] or graph.roots)} - held
    place: dict[Node, tuple[int, int]] = {}
    readers: dict[Node, list[Node]] = {}
    for number, node in enumerate(steps):
        made_of = [found for x in node.inputs if (found := sent[x]) is not None]
        for operand in made_of:
            readers.setdefault(operand, []).append(node)
        if made_of and node not in first and held.issuperset(made_of):
            held.add(node)
        after = [place[operand][0] for operand in made_of if operand not in held]
        place[node] = number if node in first else max(after, default=len(steps)), number
    for node in reversed(steps):
        if node in held and node in readers:
            before = min(place[reader] for reader in readers[node])
            place[node] = before[0], before[1] - 1
    return sorted(steps, key=lambda node: place[node])


def _weights(
    order: Sequence[Node], sent: Mapping[Node, Node | None], whole: Divided
) -> dict[Node, frozenset[Node]]:  # fmt: skip
    """The weights that each step reads, by itself or through what no step computes."""
    weights: dict[Node, frozenset[Node]] = {}  # what a node that no step computes is made of
    found: dict[Node, frozenset[Node]] = {}
    for node in order:
        made_of = frozenset().union(*(weights.get(x, frozenset()) for x in node.inputs))
        if sent[node] is None:
            weights[node] = made_of | ({node} if node in whole.weights else frozenset())
        elif sent[node] is node:
            found[node] = made_of
    return found


def _having(weights: Iterable[Node], rates: Rates) -> float:
    """What it costs a stage to have these, too, in seconds."""
    return sum(cost.bytes_of(x) for x in weights) * rates.held / rates.memory


def _work(
    steps: Sequence[Node], reads: Mapping[Node, frozenset[Node]], readers: Mapping[Node, Sequence[Node]],
    products: Collection[Node], link: Link, rates: Rates,
) -> list[float]:  # fmt: skip
    """Seconds of each step: what it computes, exchanges, and reads of weights that no step before it has read."""
    inside: dict[Node, bool] = {}  # whether all that read a node, or a view of it, are functions of its elements
    for node, those in reversed([*readers.items()]):
        each = (inside[x] if x.op is ops.VIEW else x.op.kind is Kind.ELEMENTWISE and x not in products for x in those)
        inside[node] = bool(those) and all(each)
    read: set[Node] = set()
    found: list[float] = []
    for node in steps:
        made_of = reads[node]
        if node.op is ops.EXCHANGE:
            peers, parts = EXCHANGES[node.attr.kind].sent(node.attr.group.size)
            size = peers * cost.bytes_of(node.inputs[0]) / parts
            found.append(link.latency + size / link.bandwidth if peers else 0.0)
            continue
        # Products and reductions read what they go over from memory; functions of elements read registers.
        is_stored = not inside[node] and node not in products
        seconds = cost.fused(node, is_stored, rates)
        if node.op is ops.GATHER:  # of a table, the elements that are looked up alone
            made_of = frozenset()
        seconds += sum(cost.bytes_of(weight) for weight in made_of - read) / rates.memory
        read |= made_of
        found.append(seconds)
    return found


def cheapest(work: Sequence[float], across: Sequence[float], count: int, micro_batches: int) -> list[int]:
    """The steps before which ``count - 1`` cuts are best: of steps that take so much ``work``, where ``across[k]`` is
    what a cut before step ``k`` costs, both in seconds.

    A run takes all work, what crosses, and for each micro-batch but one, at least for one, the slowest stage or the
    slowest sending. For a bound of the slowest, the cheapest cuts are found by dynamic programming; the bound is then
    lowered for as long as what is saved may be more than what more costly cuts add. Of what costs the same, the slowest
    stage is the fastest.
    """
    rounds = max(micro_batches - 1, 1)
    ends = [0.0, *accumulate(work)]
    across = [*across[: len(work)], 0.0]

    def slowest(cuts: Sequence[int]) -> float:
        return max(ends[b] - ends[a] for a, b in pairwise([0, *cuts, len(work)]))

    def round_of(cuts: Sequence[int]) -> float:
        return max([slowest(cuts), *(across[k] for k in cuts)])

    def total(cuts: Sequence[int]) -> float:
        return sum(across[k] for k in cuts) + rounds * round_of(cuts)

    even = ends[-1] / count  # no slowest stage is faster
    best: list[int] = []
    least = bound = float("inf")
    while (cuts := _fewest(ends, across, count, bound, bound)) is not None:
        best, least = (cuts, total(cuts)) if total(cuts) < least else (best, least)
        bound = round_of(cuts)
        if sum(across[k] for k in cuts) + rounds * even >= least:
            break
    # Of cuts that cost the same, as where sending takes longer than any stage, the most even ones.
    sending, longest = round_of(best) * SAME, slowest(best)
    while (cuts := _fewest(ends, across, count, longest, sending)) is not None and total(cuts) <= least * SAME:
        best, longest = cuts, slowest(cuts)
    return best


SAME = 1 + 1e-6  # times that differ by less than this factor are equal


def _fewest(
    ends: Sequence[float], across: Sequence[float], count: int, work: float, sending: float
) -> list[int] | None:  # fmt: skip
    """The cuts that cost least ``across`` where each stage takes less than ``work``, and what it sends less than
    ``sending``; None where there are none. ``ends`` is all work before each step."""
    size = len(ends) - 1
    costs = [0.0] + [float("inf")] * size  # of the first steps in as many stages as there are so far
    chosen: list[list[int]] = []
    for _ in range(count):
        following = [float("inf")] * (size + 1)
        before = [0] * (size + 1)
        window: deque[int] = deque()  # where the last stage may begin, by cost
        for end in range(1, size + 1):
            begin = end - 1
            while window and costs[window[-1]] > costs[begin]:
                window.pop()
            window.append(begin)
            while window and ends[end] - ends[window[0]] >= work:
                window.popleft()
            if window and across[end] < sending:
                before[end] = window[0]
                following[end] = costs[window[0]] + across[end]
        chosen.append(before)
        costs = following
    if costs[size] == float("inf"):
        return None
    found: list[int] = []
    end = size
    for before in reversed(chosen):
        end = before[end]
        found.append(end)
    return found[-2::-1]
