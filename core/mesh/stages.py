"""A graph cut into the stages of a pipeline: runs of its nodes in topological order, chosen by cost, each a graph of
its own that is handed values of earlier ones.

Stages are chosen as Alpa does it (Zheng et al., OSDI 2022): of a run, the first micro-batch takes all stages one after
the other, with what is sent between them, and each later one takes as long as the slowest stage. Views, and what
constants decide alone, are computed where they are read, so they are never sent; inputs are on all ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from luminal.core import ir, ops, traverse
from luminal.core.errors import InputError
from luminal.core.exchange import EXCHANGES
from luminal.core.ir import Node
from luminal.core.mesh import cost
from luminal.core.mesh.cost import Link, Rates
from luminal.core.mesh.divide import Divided
from luminal.core.ops import Kind
from luminal.core.sizes import largest


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


def cut(whole: Divided, count: int, micro_batches: int, link: Link, rates: Rates) -> Staged:
    """``whole`` in ``count`` stages, for so many micro-batches in a run.

    Raises InputError where there are fewer steps than stages.
    """
    graph = whole.graph
    order = traverse.topological(graph.roots)
    sent = _sent_for(order, frozenset(graph.given))
    steps = [node for node in order if sent[node] is node]
    if len(steps) < count:
        raise InputError(f"mesh: expected at most {len(steps)} stages, one for each step of the model, found {count}")
    work = _work(order, steps, sent, whole, link, rates)
    place = {node: number for number, node in enumerate(steps)}
    readers: dict[Node, list[int]] = {node: [] for node in steps}
    for number, node in enumerate(steps):
        for operand in node.inputs:
            found = sent[operand]
            if found is not None:
                readers[found].append(number)
    across = [0.0] * (len(steps) + 1)  # seconds of what crosses a cut before each step, first as differences
    for node, places in readers.items():
        if places:
            size = cost.bytes_of(node)  # which is stored, sent, and read again
            seconds = link.latency + size / link.bandwidth + 2 * size / rates.memory
            across[place[node] + 1] += seconds
            across[max(places) + 1] -= seconds
    cuts = cheapest(work, list(accumulate(across)), count, micro_batches)
    stage = {node: bisect_right(cuts, number) for node, number in place.items()}
    crossings: dict[Node, Crossing] = {}
    for node, places in readers.items():
        targets = sorted({bisect_right(cuts, number) for number in places} - {stage[node]})
        if targets:
            size = largest(node.size) * node.dtype.itemsize
            crossings[node] = Crossing(f"value {len(crossings)} between stages", stage[node], tuple(targets), size)
    outputs = {}
    for name, node in graph.returned:
        source = sent[node]
        outputs[name] = count - 1 if source is None else stage[source]
    bounds = [0, *cuts, len(steps)]
    times = tuple(sum(work[first:end]) for first, end in pairwise(bounds))
    stages = tuple(_stage(whole, number, crossings, outputs) for number in range(count))
    return Staged(stages, times, tuple(crossings.values()), outputs)


def _sent_for(order: Sequence[Node], given: frozenset[Node]) -> dict[Node, Node | None]:
    """For each node, what a later stage has to be sent to have it: itself; what it is a view of, where that is no
    larger; or None, of what constants and inputs alone make without work."""
    found: dict[Node, Node | None] = {}
    fixed: set[Node] = set()  # what constants alone decide
    for node in order:
        if node.op.kind is Kind.SOURCE:
            found[node] = None
            fixed |= {node} - given
        elif fixed.issuperset(node.inputs) and node.op is not ops.EXCHANGE:
            found[node] = None
            fixed.add(node)
        elif node.op is ops.VIEW:
            operand = found[node.inputs[0]]
            smaller = operand is not None and cost.bytes_of(node) < cost.bytes_of(operand)
            found[node] = node if smaller else operand
        else:
            found[node] = node
    return found


def _work(
    order: Sequence[Node], steps: Sequence[Node], sent: Mapping[Node, Node | None], whole: Divided, link: Link,
    rates: Rates,
) -> list[float]:  # fmt: skip
    """Seconds of each step: what it computes, exchanges, and reads of weights that no step before it has read."""
    readers = traverse.users(whole.graph.roots)
    weights: dict[Node, frozenset[Node]] = {}  # what a node that no step computes is made of
    read: set[Node] = set()
    found: list[float] = []
    for node in order:
        made_of = frozenset().union(*(weights.get(x, frozenset()) for x in node.inputs))
        if sent[node] is None:
            weights[node] = made_of | ({node} if node in whole.weights else frozenset())
        if sent[node] is not node:
            continue
        if node.op is ops.EXCHANGE:
            peers, parts = EXCHANGES[node.attr.kind].sent(node.attr.group.size)
            size = peers * cost.bytes_of(node.inputs[0]) / parts
            found.append(link.latency + size / link.bandwidth if peers else 0.0)
            continue
        is_product = node.op is ops.MUL and all(reader.op.kind is Kind.REDUCE for reader in readers[node])
        seconds = cost.work(node, is_product, 1, rates)
        if node.op is ops.GATHER:  # of a table, the elements that are looked up alone
            made_of = frozenset()
            seconds += cost.bytes_of(node) / rates.memory
        seconds += sum(cost.bytes_of(weight) for weight in made_of - read) / rates.memory
        read |= made_of
        found.append(seconds)
    return found


def cheapest(work: Sequence[float], across: Sequence[float], count: int, micro_batches: int) -> list[int]:
    """The steps before which ``count - 1`` cuts are best: of steps that take so much ``work``, where ``across[k]`` is
    what a cut before step ``k`` costs, both in seconds.

    A run takes all work, what crosses, and for each micro-batch but one, at least for one, the slowest stage or the
    slowest sending. For a bound of the slowest, the cheapest cuts are found by dynamic programming; the bound is then
    lowered for as long as what is saved may be more than what more costly cuts add.
    """
    rounds = max(micro_batches - 1, 1)
    ends = [0.0, *accumulate(work)]
    across = [*across[: len(work)], 0.0]

    def slowest(cuts: Sequence[int]) -> float:
        bounds = [0, *cuts, len(work)]
        return max(max(ends[b] - ends[a], across[b]) for a, b in pairwise(bounds))

    even = ends[-1] / count  # no slowest stage is faster
    best: list[int] = []
    least = bound = float("inf")
    while (cuts := _fewest(ends, across, count, bound)) is not None:
        crossing = sum(across[k] for k in cuts)
        bound = slowest(cuts)
        if crossing + rounds * bound < least:
            best, least = cuts, crossing + rounds * bound
        if crossing + rounds * even >= least:
            break
    return best


def _fewest(ends: Sequence[float], across: Sequence[float], count: int, bound: float) -> list[int] | None:
    """The cuts that cost least ``across`` where each stage, and each sending, takes less than ``bound``; None where
    there are none. ``ends`` is all work before each step."""
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
            while window and ends[end] - ends[window[0]] >= bound:
                window.popleft()
            if window and across[end] < bound:
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


def _stage(whole: Divided, number: int, crossings: Mapping[Node, Crossing], outputs: Mapping[str, int]) -> Divided:
    """The graph of one stage."""
    graph = whole.graph
    received = {
        node: ir.input_(crossing.name, node.shape, node.dtype)
        for node, crossing in crossings.items()
        if number in crossing.targets
    }
    given = [(name, node) for name, node in graph.returned if outputs[name] == number]
    given += [(crossing.name, node) for node, crossing in crossings.items() if crossing.source == number]
    origins = dict(graph.origins)
    made: dict[Node, Node] = dict(received)
    for node in traverse.topological([node for _, node in given], stops=received):
        if node not in made:
            with ir.originating(origins, *origins.get(node, ())):
                made[node] = traverse.rebuild(node, [made[x] for x in node.inputs])
    stage = replace(
        graph, inputs=(*graph.given, *received.values()), outputs=tuple((name, made[node]) for name, node in given),
        origins=origins, names={made[node]: name for node, name in graph.names.items() if node in made}, structure={},
    )  # fmt: skip
    return Divided(stage, {node: weight for node, weight in whole.weights.items() if node in made}, whole.plans)
