"""What a run of a model takes on the ranks of a mesh: time, memory and traffic, foretold without running any of them.

A kernel takes the cycles that the cost model of schedules counts, or as long as memory takes to move what it touches,
whichever is longer, at the rates of a node; on a GPU, as long as its operations or its bytes take at these. The
exchanges of a rank go over one link, one after the other, and start where the program starts them; a wait takes what is
then left of its exchange. All ranks are as fast as each other. In a pipeline, one rank of each stage runs, on a clock
that all share: what it is sent arrives when it has been sent.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from luminal import profile
from luminal.core import symbolic as sym
from luminal.core.errors import InputError
from luminal.core.exchange import EXCHANGES
from luminal.core.mesh.cost import Link
from luminal.core.mesh.traffic import MESSAGE, Traffic
from luminal.core.schedule.cost import kernel as cost
from luminal.core.schedule.program.ir import Branch, Exchange, Launch, Loop, Program, Region, Stages, Transfer, Wait
from luminal.core.sizes import typical
from luminal.core.target import Target
from luminal.core.types import f32
from luminal.peak import Probe
from luminal.timing import text

BEGIN = 5e-7  # seconds that a processor takes to begin a message, whose latency is the link's

# What the forecast leaves out, for those who read it.
NOT_MODELLED = (
    "other jobs on the link and its topology: every rank has a link of its own",
    "ranks that are slower than others, and those that wait for them",
    "caches: what a kernel touches comes from memory, each time it runs",
    "data that decides: a loop without a known number of rounds counts as one round, and both sides of a branch count",
    "the start of the program: opening the library, and reading weights from disk",
)
OF_GPUS = (
    "how near kernels come to the rates of a GPU, which are taken as reached, and elementwise operations, as free",
    "the start of each kernel, of some microseconds where ranks exchange data, and waiting for sizes that data decides",
)


@dataclass(frozen=True)
class Node:
    """What one rank does in a second, with all its threads: operations in float32 (a multiply-add is two), on a GPU at
    the precision of its products, and bytes between memory and processor."""

    operations: float
    bytes: float


@dataclass(frozen=True)
class Forecast:
    """Of a run of an entry on one rank: seconds of ``computing``, of ``waiting`` for exchanges, and of exchanges under
    way, most of which computing may hide; what the rank sends, by axis of the mesh. In a pipeline it is the rank that
    ends last, and of those the one that computes most, and there is a forecast of each of the ``stages``."""

    entry: str
    computing: float
    waiting: float
    exchanging: float
    traffic: Mapping[str, Traffic]
    stages: tuple[Forecast, ...] = ()

    @property
    def seconds(self) -> float:
        return self.computing + self.waiting

    @property
    def bubble(self) -> float:
        """The part of their time in which the ranks of a pipeline do not compute, from 0 to 1."""
        return 1 - sum(stage.computing for stage in self.stages) / (len(self.stages) * self.seconds)


@dataclass(frozen=True)
class Memory:
    """Bytes that a rank needs: its weights, its states, and the arena of a context at the upper bounds of sizes."""

    weights: int
    states: int
    arena: int

    @property
    def all(self) -> int:
        return self.weights + self.states + self.arena


@dataclass(frozen=True)
class Outlook:
    """The forecasts of a model: ``alone``, on one rank, and ``divided``, on the ``mesh``, by entry; and the ``plan``,
    how each weight lies, in words. A rank has so many ``threads``; None where it has a GPU."""

    mesh: Mapping[str, int]
    threads: int | None
    node: Node
    link: Link
    alone: Mapping[str, Forecast]
    divided: Mapping[str, Forecast]
    memory_alone: Memory
    memory: Memory
    plan: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """What the forecast leaves out, in words."""
        return NOT_MODELLED if self.threads is not None else (*NOT_MODELLED, *OF_GPUS)

    def speedup(self, entry: str) -> float:
        """How many times as fast a run of ``entry`` is on the mesh as on one rank."""
        return self.alone[entry].seconds / self.divided[entry].seconds

    def scaled(self, measured: float) -> Outlook:
        """The same, where a run of the first entry on one rank takes so many seconds as ``measured``: every kernel
        takes longer, or less long, in proportion."""
        first = next(iter(self.alone.values()))
        factor = measured / first.seconds
        node = Node(self.node.operations / factor, self.node.bytes / factor)
        alone = {name: _slower(found, factor) for name, found in self.alone.items()}
        divided = {name: _slower(found, factor) for name, found in self.divided.items()}
        return Outlook(
            self.mesh, self.threads, node, self.link, alone, divided, self.memory_alone, self.memory, self.plan
        )


def _slower(found: Forecast, factor: float) -> Forecast:
    computing = found.computing * factor
    # What waits would be hidden by computing as much longer as it takes now, up to all of it.
    hidden = (found.exchanging - found.waiting) * factor
    waiting = max(0.0, found.exchanging - hidden)
    return replace(found, computing=computing, waiting=waiting)


def parse_node(text: str) -> Node:
    """The node that ``500GFLOP/s,40GB/s`` describes. Raises InputError."""
    found = re.fullmatch(r"([\d.]+) ?(M|G|T)?FLOP/s, ?([\d.]+) ?(M|G|T)?B/s", text.strip())
    units = {None: 1.0, "M": 1e6, "G": 1e9, "T": 1e12}
    numbers = [] if found is None else [found[1], found[3]]
    if found is None or not all(re.fullmatch(r"\d+\.?\d*|\.\d+", n) and float(n) > 0 for n in numbers):
        raise InputError(f"node: expected two rates such as 500GFLOP/s,40GB/s, found {text!r}")
    return Node(float(found[1]) * units[found[2]], float(found[3]) * units[found[4]])


def measured_node(target: Target, threads: int) -> Node:
    """This machine, when so many threads are at work, measured for about a second."""
    peak = Probe(target, threads).measure()
    return Node(peak.operations, peak.bytes)


def memory(program: Program) -> Memory:
    """What a rank that runs ``program`` needs, with one context; in a pipeline, the rank with most weights."""
    pipeline = program.pipeline
    sizes = {name: value.nbytes for name, value in program.constants.items()}
    weights = max(
        sum(size for name, size in sizes.items() if pipeline is None or pipeline.has(pipeline.homes[name], stage))
        for stage in range(1 if pipeline is None else pipeline.group.size)
    )
    return Memory(weights, program.state_size, max(entry.arena_size for entry in program.entries))


def forecasts(program: Program, target: Target, threads: int | None, node: Node, link: Link) -> dict[str, Forecast]:
    """What runs of each entry take, at typical sizes of what is symbolic."""
    found = {}
    for entry in program.entries:
        ranks = 1 if program.pipeline is None else program.pipeline.group.size
        passed: Passed = {}
        runs = [_Run(program, target, threads, node, link, rank, passed) for rank in range(ranks)]
        waiting = [run.region(entry.region) for run in runs]
        while waiting:  # each rank runs on until it needs what another has not sent yet
            waiting = [rank for rank in waiting if next(rank, None) is not None]
        each = tuple(Forecast(entry.name, run.computing, run.waiting, run.exchanging, run.traffic) for run in runs)
        last = max(each, key=lambda one: (one.seconds, one.computing))
        found[entry.name] = last if len(each) == 1 else replace(last, stages=each)
    return found


def outlook(
    mesh: Mapping[str, int], alone: Program, divided: Program, target: Target, threads: int | None, node: Node,
    link: Link, plan: Iterable[str] = (),
) -> Outlook:  # fmt: skip
    """What runs take on one rank, of the program ``alone``, and on each of the ``mesh``, of what is ``divided``."""
    one = forecasts(alone, target, threads, node, link)
    each = forecasts(divided, target, threads, node, link)
    return Outlook(mesh, threads, node, link, one, each, memory(alone), memory(divided), tuple(plan))


Passed: TypeAlias = dict[tuple[int, int, int], deque[float]]  # when messages arrive, by sender, receiver and ticket


class _Run:
    """A run of an entry, step by step, on a clock of its own; in a pipeline by rank ``number`` of it."""

    def __init__(
        self, program: Program, target: Target, threads: int | None, node: Node, link: Link, number: int, passed: Passed
    ) -> None:
        self.program, self.target, self.threads, self.node, self.link = program, target, threads, node, link
        self.number, self.passed = number, passed
        self.received: dict[int, deque[float]] = {}  # what arrives for a ticket
        self.sizes = {dim.name: typical(sym.expr(dim)) for dim in program.dims}
        # All threads together: a multiply-add of a vector is two operations for each of its elements.
        self.cycles = node.operations / (2 * target.costs.arithmetic.per_cycle * target.lanes(f32))
        self.computing = self.waiting = self.exchanging = 0.0
        self.free = 0.0  # when the link is
        self.ends: dict[int, float] = {}  # when the exchange of a ticket does
        self.traffic = {axis: Traffic() for axis, _ in program.mesh}

    def region(self, region: Region) -> Iterator[bool]:
        """Runs the steps; yields True for as long as another rank has not sent what the next one needs."""
        for step in region.steps:
            match step:
                case Launch():
                    self.computing += self._kernel(step)
                case Exchange():
                    self._exchange(step)
                case Transfer():
                    self._transfer(step)
                case Wait(ticket=ticket) if ticket in self.received:
                    arriving = self.received.pop(ticket)
                    while not arriving:
                        yield True
                    self.waiting += max(0.0, arriving.popleft() - self.now)
                case Wait(ticket=ticket) if ticket in self.ends:
                    self.waiting += max(0.0, self.ends.pop(ticket) - self.now)
                case Loop():
                    self._loop(step)
                case Branch():
                    yield from self.region(step.then)
                    yield from self.region(step.other)
                case Stages():
                    yield from self.region(step.regions[self.number])
                case _:
                    pass

    @property
    def now(self) -> float:
        return self.computing + self.waiting

    def _loop(self, loop: Loop) -> None:
        rounds = 1 if loop.rounds is None else self._size(loop.rounds)
        one = _Run(self.program, self.target, self.threads, self.node, self.link, self.number, {})
        deque((*one.region(loop.test), *one.region(loop.body)), maxlen=0)
        self.computing += rounds * one.computing
        self.waiting += rounds * one.waiting
        self.exchanging += rounds * one.exchanging
        for axis, traffic in one.traffic.items():
            self._send(axis, Traffic(rounds * traffic.messages, rounds * traffic.bytes))

    def _kernel(self, launch: Launch) -> float:
        moving = profile.bytes_of(self.program, launch, self.sizes) / self.node.bytes
        if self.threads is None:
            return max(self._size(launch.operations) / self.node.operations, moving)
        nest = self.program.kernels[launch.kernel].nest
        tasks = math.prod(self._size(loop.extent) for loop in nest.tasks)
        busy = max(1, min(self.threads, tasks // launch.grain))
        computing = cost.cycles(nest, self.target.costs) / (self.cycles * busy / self.threads)
        return max(computing, moving)

    def _exchange(self, step: Exchange) -> None:
        buffer = self.program.buffer(step.operand)
        group = step.attr.group
        peers, parts = EXCHANGES[step.attr.kind].sent(group.size)
        size = self._size(sym.product(buffer.shape)) * buffer.dtype.itemsize // parts
        messages = peers * -(-size // MESSAGE)
        self._send(group.axis, Traffic(messages, peers * size))
        if messages:
            self._under_way(step.ticket, messages, peers * size)

    def _transfer(self, step: Transfer) -> None:
        """What is sent goes over the link of the sender."""
        attr, buffer = step.attr, self.program.buffer(step.buffer)
        if not attr.sends:
            self.received[attr.ticket] = self.passed.setdefault((attr.peer, self.number, attr.ticket), deque())
            return
        size = self._size(sym.product(buffer.shape)) * buffer.dtype.itemsize
        messages = -(-size // MESSAGE)
        self._send(attr.group.axis, Traffic(messages, size))
        self._under_way(attr.ticket, messages, size)
        self.passed.setdefault((self.number, attr.peer, attr.ticket), deque()).append(self.free)

    def _under_way(self, ticket: int, messages: int, size: int) -> None:
        taken = self.link.latency + (messages - 1) * BEGIN + size / self.link.bandwidth
        self.free = max(self.free, self.now) + taken
        self.ends[ticket] = self.free
        self.exchanging += taken

    def _send(self, axis: str, traffic: Traffic) -> None:
        self.traffic[axis] += traffic

    def _size(self, size: sym.Int) -> int:
        return int(sym.evaluate(size, self.sizes))


def lines(outlook: Outlook) -> Iterable[str]:
    """What the forecast stands on, in words."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in outlook.mesh.items())
    node, link = outlook.node, outlook.link
    threads = "a GPU" if outlook.threads is None else f"{outlook.threads} thread{'s' if outlook.threads > 1 else ''}"
    yield (
        f"{outlook.ranks} ranks ({mesh}), each with {threads}, {node.operations / 1e9:.3g} GFLOP/s and "
        f"{node.bytes / 1e9:.3g} GB/s of memory; a link of {link.bandwidth / 1e9:.3g} GB/s and "
        f"{link.latency * 1e6:.3g} us"
    )
    for entry, found in outlook.divided.items():
        for number, stage in enumerate(found.stages):
            yield f"{entry}: stage {number} computes {text(stage.computing)} of {text(found.seconds)}"
        if found.stages:
            yield f"{entry}: the pipeline's bubble: ranks do not compute for {found.bubble:.0%} of their time"
    yield from (f"not modelled: {what}" for what in outlook.not_modelled)
