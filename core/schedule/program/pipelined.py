"""A pipeline: entries that are stages of a model become one entry, in which each rank runs its own stage for one
micro-batch after the other.

A rank's part of a run is a list of steps. Stage s computes micro-batch m in tick m + s, and then begins to send what it
made. In the same tick, before it computes, a rank begins to receive what is sent to it, for the next micro-batch; so
what passes between stages is under way while another micro-batch is computed, and has a place on either side for each.
What the stages give is sent to all ranks, as outputs are whole on each.

All ranks begin transfers in one order: by the tick, then by the stage that sends. So none waits for another in a
circle, even where a device carries out one transfer after the other, as streams of GPUs do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from luminal.core import symbolic as sym
from luminal.core.data import Renamed
from luminal.core.ops import EVERY, Group, Passed
from luminal.core.schedule.program.ir import (
    Branch,
    Buffer,
    Entry,
    Exchange,
    HostCall,
    Launch,
    Loop,
    Measure,
    Phase,
    Pipeline,
    Program,
    Region,
    Stages,
    State,
    Step,
    TensorSpec,
    Transfer,
    Wait,
    aligned,
    numbered,
)

SENT = 2  # places of what a stage sends: one is written while the other is under way


@dataclass(frozen=True)
class Passing:
    """A value that stage ``source`` sends to ``targets`` for each micro-batch: an output and inputs of that name."""

    name: str
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Parts:
    """An entry to be made of the entries ``stages``: what its callers give and get, and of each output the stage that
    gives it. Tensors whose names are in ``rows`` are handed to the stages in ``micro_batches`` parts along the first
    axis, the others as they are."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    given_by: Mapping[str, int]
    rows: frozenset[str]
    stages: tuple[str, ...]
    passing: tuple[Passing, ...]
    micro_batches: int
    structure: Any = None


def joined(
    program: Program, entries: Sequence[Parts], group: Group, mesh: tuple[tuple[str, int], ...],
    states: Mapping[str, int],
) -> Program:  # fmt: skip
    """``program`` with ``entries`` in the place of those that they are made of, for the ranks of ``mesh``, of which
    those along ``group`` have the stages; ``states`` has the stage that keeps each, or ``EVERY``."""
    found = _Joined(program, group)
    kept = found.states(states)
    made = tuple(found.entry(parts) for parts in entries)
    return replace(
        program,
        entries=made,
        buffers=tuple(found.buffers.values()),
        constants=Renamed(program.constants, found.constants),
        digests={name: program.digests[old] for name, old in found.constants.items() if old in program.digests},
        states=kept,
        mesh=mesh,
        pipeline=Pipeline(group, found.homes, states),
    )


class Moment(NamedTuple):
    """When a transfer begins, among all: the tick, the stage that sends, the number of the value, the receiver."""

    tick: int
    source: int
    what: int
    to: int

    @property
    def batch(self) -> int:
        """The number of the micro-batch."""
        return self.tick - self.source


@dataclass
class _Joined:
    """The buffers of the new program, and its constants by name, each with its name in the old one and its home."""

    program: Program
    group: Group
    buffers: dict[str, Buffer] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    homes: dict[str, int] = field(default_factory=dict)
    owned: dict[tuple[str, int], str] = field(default_factory=dict)  # the new name of an old constant, by stage

    def entry(self, parts: Parts) -> Entry:
        inputs = tuple(self._tensor(tensor, "input") for tensor in parts.inputs)
        outputs = tuple(self._tensor(tensor, "output") for tensor in parts.outputs)
        ends = {tensor.name: tensor.buffer for tensor in (*inputs, *outputs)}
        entries = {entry.name: entry for entry in self.program.entries}
        stages = [_Stage(self, parts, k, entries[name], ends) for k, name in enumerate(parts.stages)]
        regions = tuple(stage.region() for stage in stages)
        size = max(stage.end for stage in stages)
        whole = Region((Stages(self.group, regions),))
        return Entry(parts.name, inputs, outputs, whole, size, parts.structure)

    def states(self, homes: Mapping[str, int]) -> tuple[State, ...]:
        """The states, with places on the ranks of the stages that keep them."""
        ends = [0] * self.group.size
        kept: list[State] = []
        # What every stage has comes first, so that it is at one place.
        for state in sorted(self.program.states, key=lambda state: homes[state.buffer] != EVERY):
            home = homes[state.buffer]
            buffer = replace(self.program.buffer(state.buffer), offset=ends[max(home, 0)])
            self.buffers[buffer.name] = buffer
            for stage in range(self.group.size) if home == EVERY else (home,):
                ends[stage] = buffer.offset + aligned(buffer.size)
            kept.append(replace(state, initial=state.initial and self.constant(state.initial, home)))
        order = {state.buffer: number for number, state in enumerate(self.program.states)}
        return tuple(sorted(kept, key=lambda state: order[state.buffer]))

    def add(self, buffer: Buffer) -> str:
        """The name of a new buffer, which is its own where that is free."""
        wanted, name, number = buffer.name, buffer.name, 1
        while name in self.buffers:
            name, number = f"{wanted}.{number}", number + 1
        self.buffers[name] = replace(buffer, name=name)
        return name

    def _tensor(self, tensor: TensorSpec, space: str) -> TensorSpec:
        order = tuple(range(len(tensor.shape)))
        new = Buffer(tensor.name, tensor.dtype, tensor.shape, order, space, 0, _bytes(tensor))
        name = self.add(new)
        return replace(tensor, other_name="" if name == tensor.name else name)

    def constant(self, name: str, stage: int) -> str:
        """The constant ``name`` of the old program in the weights of a stage, or of ``EVERY`` one."""
        if (name, stage) not in self.owned:
            new = self.owned[name, stage] = self.add(self.program.buffer(name))
            self.constants[new], self.homes[new] = name, stage
        return self.owned[name, stage]


@dataclass
class _Stage:
    """What the rank ``number`` of a pipeline runs. ``end`` is that of its arena, in bytes."""

    whole: _Joined
    parts: Parts
    number: int
    entry: Entry
    ends: Mapping[str, str]  # the buffers of callers' tensors, by their names
    end: int = 0
    names: dict[str, str] = field(default_factory=dict)  # the new names of the stage's own buffers
    named: dict[tuple[str, int], str] = field(default_factory=dict)  # places of passing values, parts of tensors

    def __post_init__(self) -> None:
        self.end = aligned(self.entry.arena_size)
        self.sent = [p for p in self.parts.passing if p.source == self.number]
        self.received = [p for p in self.parts.passing if self.number in p.targets]
        inner = (step.ticket + 1 for e in self.whole.program.entries for step in _exchanges(e.region))
        self.first = max(inner, default=0)

    def region(self) -> Region:
        """All steps of a run, with the phases of the stage for each micro-batch."""
        count = self.parts.micro_batches
        steps: list[Step] = []
        phases: list[Phase] = []
        waiting = deque(self._transfers())
        begun: dict[Moment, Transfer] = {}

        def begin(end: tuple[int, int]) -> None:
            """Begins the transfers before a tick and a stage."""
            while waiting and waiting[0][0][:2] < end:
                moment, transfer = waiting.popleft()
                steps.append(transfer)
                begun[moment] = transfer

        def wait(due: Sequence[Moment]) -> None:
            for moment in due:
                step = begun.pop(moment)
                steps.append(Wait(step.ticket, step.arguments))

        values = len(self.parts.passing)  # behind which outputs are numbered
        for batch in range(count):
            tick = batch + self.number
            begin((tick, self.number))
            # What this micro-batch reads has come, and what is in the place of what it writes has gone.
            last = {False: batch, True: batch - SENT}
            wait([m for m in begun if m.what < values and m.batch <= last[m.source == self.number]])
            names = self._arguments(batch)
            shift = len(steps)
            steps += [self._renamed(step, names) for step in self.entry.region.steps]
            phases += self._phases(self.entry.region, names, shift)
            begin((tick, self.number + 1))
        begin((count + len(self.parts.stages), 0))
        wait(list(begun))
        return Region(tuple(steps), tuple(phases))

    # ---- what passes -----------------------------------------------------------------------------------------------

    def _transfers(self) -> list[tuple[Moment, Transfer]]:
        """What this rank sends and receives, in the order in which it begins that."""
        parts, ticket = self.parts, self.first
        found: list[tuple[Moment, Transfer]] = []
        for what, p in enumerate(parts.passing):
            for to in p.targets:
                places = to - p.source + 1  # in time, the receiver is so many micro-batches behind
                if self.number in (p.source, to):
                    for batch in range(parts.micro_batches):
                        moment = Moment(batch + p.source, p.source, what, to)
                        place = batch % (SENT if p.source == self.number else places)
                        passed = self._passed(p.source, to, ticket + batch % places)
                        found.append((moment, Transfer(passed, self._place(p.name, place))))
                ticket += places
        for number, tensor in enumerate(parts.outputs):
            by = parts.given_by[tensor.name]
            # What is the same in all micro-batches is sent after the last one.
            sent = range(0 if tensor.name in parts.rows else parts.micro_batches - 1, parts.micro_batches)
            for to in range(len(parts.stages)):
                if to != by and self.number in (by, to):
                    for batch in sent:
                        moment = Moment(batch + by, by, len(parts.passing) + number, to)
                        passed = self._passed(by, to, ticket + batch)
                        found.append((moment, Transfer(passed, self._part(tensor, batch))))
                ticket += parts.micro_batches
        return sorted(found, key=lambda pair: pair[0])

    def _passed(self, source: int, to: int, ticket: int) -> Passed:
        sends = source == self.number
        return Passed(self.whole.group, to if sends else source, sends, ticket)

    def _place(self, name: str, place: int) -> str:
        """One of the buffers of a value that passes between stages."""
        if (name, place) not in self.named:
            tensor = next(t for t in (*self.entry.inputs, *self.entry.outputs) if t.name == name)
            buffer = self.whole.program.buffer(tensor.buffer)
            origins = buffer.origins
            new = Buffer(name, buffer.dtype, buffer.shape, buffer.order, "arena", self.end, buffer.size, origins)
            self.named[name, place] = self.whole.add(new)
            self.end += aligned(buffer.size)
        return self.named[name, place]

    def _part(self, tensor: TensorSpec, batch: int) -> str:
        """The buffer of a caller's tensor for a micro-batch."""
        whole = self.ends[tensor.name]
        count = self.parts.micro_batches
        if count == 1 or tensor.name not in self.parts.rows:
            return whole
        name = f"{whole}[{batch}]"
        if name not in self.whole.buffers:
            buffer = self.whole.buffers[whole]
            shape = (sym.floordiv(buffer.shape[0], count), *buffer.shape[1:])
            part = replace(buffer, name=name, shape=shape, space="part", size=buffer.size // count)
            self.whole.buffers[name] = replace(part, whole=whole, counter=batch)
        return name

    # ---- the steps of the stage ------------------------------------------------------------------------------------

    def _arguments(self, batch: int) -> dict[str, str]:
        """The buffers that the tensors of the stage's entry are in for a micro-batch."""
        places = {p.name: batch % (self.number - p.source + 1) for p in self.received}
        places |= {p.name: batch % SENT for p in self.sent}
        return {
            t.buffer: self._place(t.name, places[t.name]) if t.name in places else self._part(t, batch)
            for t in (*self.entry.inputs, *self.entry.outputs)
        }

    def _name(self, name: str, names: dict[str, str]) -> str:
        """The new name of a buffer of the stage's entry; ``names`` has those of its tensors, and takes those of their
        parts."""
        if name in names:
            return names[name]
        buffer = self.whole.program.buffer(name)
        if buffer.space == "constant":
            return self.whole.constant(name, self.number)
        if buffer.space == "state":
            return name
        if buffer.space == "part":
            whole = self._name(buffer.whole, names)
            key = f"{whole}/{name}"
            if key not in self.names:
                self.names[key] = self.whole.add(replace(buffer, whole=whole))
            names[name] = self.names[key]
            return names[name]
        if name not in self.names:
            self.names[name] = self.whole.add(buffer)
        return self.names[name]

    def _renamed(self, step: Step, names: dict[str, str]) -> Step:
        """A step over the buffers of the new program."""

        def new(name: str) -> str:
            return self._name(name, names)

        match step:
            case Launch():
                fetch = None if step.fetch is None else replace(step.fetch, buffer=new(step.fetch.buffer))
                return replace(step, arguments=tuple(map(new, step.arguments)), fetch=fetch)
            case HostCall():
                return replace(step, arguments=tuple(map(new, step.arguments)))
            case Exchange():
                return replace(step, operand=new(step.operand), result=new(step.result))
            case Transfer():
                return replace(step, buffer=new(step.buffer))
            case Wait():
                return replace(step, arguments=tuple(map(new, step.arguments)))
            case Loop():
                carried = tuple((new(a), new(b)) for a, b in step.carried)
                body, test = self._region(step.body, names), self._region(step.test, names)
                return replace(step, body=body, test=test, carried=carried, flag=new(step.flag) if step.flag else "")
            case Branch():
                then, other = self._region(step.then, names), self._region(step.other, names)
                return Branch(new(step.flag), then, other)
            case Stages():
                return replace(step, regions=tuple(self._region(region, names) for region in step.regions))
            case Measure():
                return replace(step, count=new(step.count))

    def _region(self, region: Region, names: dict[str, str]) -> Region:
        steps = tuple(self._renamed(step, names) for step in region.steps)
        return Region(steps, tuple(self._phases(region, names, 0)))

    def _phases(self, region: Region, names: dict[str, str], shift: int) -> Iterator[Phase]:
        for phase in region.phases:
            portions = tuple(replace(p, buffer=self._name(p.buffer, names)) for p in phase.portions)
            yield replace(phase, first=phase.first + shift, last=phase.last + shift, portions=portions)


def _exchanges(region: Region) -> Iterator[Exchange]:
    return (step for step in numbered(region) if isinstance(step, Exchange))


def _bytes(tensor: TensorSpec) -> int:
    """Bytes of a tensor at the upper bounds of its sizes."""
    elements = sym.upper(sym.product(tensor.shape))
    assert elements is not None, tensor
    return max(elements, 0) * tensor.dtype.itemsize
