"""A pipeline: entries that are stages of a model become one entry, in which each rank runs its own stage for one
micro-batch after the other.

A rank's part of a run is a list of steps: those of its actions, as ``timetable`` has them, and between them transfers
that begin and waits for those that have to end. What the stages give is sent to all ranks, as outputs are whole on
each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
    place_of,
)
from luminal.core.schedule.program.timetable import Action, Moment, Passing, Tasks, Timetable

RUN = "run"  # the one task of a stage that infers


@dataclass(frozen=True)
class Parts:
    """An entry to be made of others: what its callers give and get, and of each output the stage and the task that give
    it. ``stages`` has for each stage the name of the entry for a task, ``actions`` what it does. Tensors whose names
    are in ``rows`` are handed to tasks of micro-batches in ``micro_batches`` parts along the first axis, the others as
    they are. The states ``held`` last for a run alone, and lie where its values do."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    given_by: Mapping[str, tuple[int, str]]
    rows: frozenset[str]
    stages: tuple[Mapping[str, str], ...]
    actions: tuple[tuple[Action, ...], ...]
    passing: tuple[Passing, ...]
    micro_batches: int
    structure: Any = None
    held: frozenset[str] = frozenset()

    def timetable(self, entries: Mapping[str, Entry]) -> Timetable:
        """When the stages do what, where ``entries`` has those that this is made of, by name."""
        ends = {tensor.name for tensor in (*self.inputs, *self.outputs)}

        def names(tensors: Sequence[TensorSpec]) -> tuple[str, ...]:
            return tuple(tensor.name for tensor in tensors if tensor.name not in ends)

        return Timetable(
            tuple(
                Tasks(
                    actions,
                    {task: names(entries[entry].inputs) for task, entry in tasks.items()},
                    {task: names(entries[entry].outputs) for task, entry in tasks.items()},
                )
                for tasks, actions in zip(self.stages, self.actions, strict=True)
            ),
            self.passing,
            tuple((*self.given_by[tensor.name], tensor.name in self.rows) for tensor in self.outputs),
        )


def joined(
    program: Program, entries: Sequence[Parts], group: Group, mesh: tuple[tuple[str, int], ...],
    states: Mapping[str, int],
) -> Program:  # fmt: skip
    """``program`` with ``entries`` in the place of those that they are made of, for the ranks of ``mesh``, of which
    those along ``group`` have the stages; ``states`` has the stage that keeps each, or ``EVERY``, but for those that
    last for a run alone."""
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
        times = parts.timetable(entries)
        stages = [
            _Stage(self, parts, times, k, {task: entries[name] for task, name in tasks.items()}, ends)
            for k, tasks in enumerate(parts.stages)
        ]
        regions = tuple(stage.region() for stage in stages)
        size = max(stage.end for stage in stages)
        whole = Region((Stages(self.group, regions),))
        return Entry(parts.name, inputs, outputs, whole, size, parts.structure)

    def states(self, homes: Mapping[str, int]) -> tuple[State, ...]:
        """The states, with places on the ranks of the stages that keep them."""
        ends = [0] * self.group.size
        kept: list[State] = []
        # What every stage has comes first, so that it is at one place.
        lasting = [state for state in self.program.states if state.buffer in homes]
        for state in sorted(lasting, key=lambda state: homes[state.buffer] != EVERY):
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
    times: Timetable
    number: int
    entries: Mapping[str, Entry]  # by task
    ends: Mapping[str, str]  # the buffers of callers' tensors, by their names
    end: int = 0
    names: dict[str, str] = field(default_factory=dict)  # the new names of the stage's own buffers
    named: dict[tuple[str, int], str] = field(default_factory=dict)  # places of passing values, parts of tensors
    taken: dict[str, int] = field(default_factory=dict)  # how many places a value has

    def __post_init__(self) -> None:
        self.end = aligned(max(entry.arena_size for entry in self.entries.values()))
        inner = (step.ticket + 1 for e in self.whole.program.entries for step in _exchanges(e.region))
        self.first = max(inner, default=0)

    def region(self) -> Region:
        """All steps of a run, with the phases of the stage's entries for each action."""
        steps: list[Step] = []
        phases: list[Phase] = []
        waiting = deque(self._transfers())
        begun: list[Transfer] = []

        def begin(end: tuple[int, int]) -> None:
            """Begins the transfers before a tick and a stage."""
            while waiting and waiting[0][0][:2] < end:
                _, transfer = waiting.popleft()
                steps.append(transfer)
                begun.append(transfer)

        def wait(due: Sequence[Transfer]) -> None:
            for step in due:
                begun.remove(step)
                steps.append(Wait(step.ticket, step.arguments))

        for (task, batch), tick in zip(
            self.times.stages[self.number].actions, self.times.ticks[self.number], strict=True
        ):
            entry = self.entries[task]
            begin((tick, self.number))
            names = self._arguments(entry, batch)
            # What the action reads has come, and what is in the place of what it writes has gone.
            read = {names[tensor.buffer] for tensor in entry.inputs}
            written = {self._name(name, names) for name in self._written(entry)}
            wait([t for t in begun if t.buffer in (written if t.attr.sends else read)])
            shift = len(steps)
            steps += [self._renamed(step, names) for step in entry.region.steps]
            phases += self._phases(entry.region, names, shift)
            begin((tick, self.number + 1))
        begin((max(map(max, self.times.ticks)) + 1, len(self.parts.stages)))
        wait(list(begun))
        return Region(tuple(steps), tuple(phases))

    # ---- what passes -----------------------------------------------------------------------------------------------

    def _transfers(self) -> list[tuple[Moment, Transfer]]:
        """What this rank sends and receives, in the order in which it begins that."""
        parts, values = self.parts, len(self.parts.passing)
        tickets = self._tickets()
        found: list[tuple[Moment, Transfer]] = []
        for sent in self.times.transfers:
            moment, batch = sent.moment, sent.batch
            if self.number not in (moment.source, moment.to):
                continue
            first, count = tickets[moment.what, moment.to]
            if moment.what < values:
                p = parts.passing[moment.what]
                turn = 0 if p.once else self.times.order(p.source, p.name).index(batch)
                is_state = p.state and self.number == p.source
                buffer = self._name(p.state, {}) if is_state else self._place(p.name, batch)
            else:
                turn, buffer = batch or 0, self._part(parts.outputs[moment.what - values], batch)
            sends = moment.source == self.number
            peer = moment.to if sends else moment.source
            passed = Passed(self.whole.group, peer, sends, first + turn % count)
            found.append((moment, Transfer(passed, buffer)))
        return found

    def _tickets(self) -> dict[tuple[int, int], tuple[int, int]]:
        """By the number of a value and the receiver, the first ticket and how many there are: as many as transfers may
        be under way at once."""
        ticket, found = self.first, {}
        for what, p in enumerate(self.parts.passing):
            for to in p.targets:
                count = 1 if p.once else max(self.times.places(k, p.name) for k in (p.source, to))
                found[what, to] = ticket, count
                ticket += count
        for number in range(len(self.parts.outputs)):
            for to in range(len(self.parts.stages)):
                found[len(self.parts.passing) + number, to] = ticket, self.parts.micro_batches
                ticket += self.parts.micro_batches
        return found

    def _place(self, name: str, batch: int | None) -> str:
        """The buffer of a value of a micro-batch."""
        if name not in self.taken:
            self.taken[name] = self.times.places(self.number, name)
        place = self.times.order(self.number, name).index(batch) % self.taken[name]
        if (name, place) not in self.named:
            tensors = (t for entry in self.entries.values() for t in (*entry.inputs, *entry.outputs) if t.name == name)
            buffer = self.whole.program.buffer(next(tensors).buffer)
            self.named[name, place] = self._lasting(replace(buffer, name=name))
        return self.named[name, place]

    def _lasting(self, buffer: Buffer) -> str:
        """A new buffer like ``buffer`` behind what the actions use for themselves."""
        new = self.whole.add(replace(buffer, space="arena", offset=self.end))
        self.end += aligned(buffer.size)
        return new

    def _part(self, tensor: TensorSpec, batch: int | None) -> str:
        """The buffer of a caller's tensor for a micro-batch."""
        whole = self.ends[tensor.name]
        count = self.parts.micro_batches
        if count == 1 or batch is None or tensor.name not in self.parts.rows:
            return whole
        name = f"{whole}[{batch}]"
        if name not in self.whole.buffers:
            buffer = self.whole.buffers[whole]
            shape = (sym.floordiv(buffer.shape[0], count), *buffer.shape[1:])
            part = replace(buffer, name=name, shape=shape, space="part", size=buffer.size // count)
            self.whole.buffers[name] = replace(part, whole=whole, counter=batch)
        return name

    # ---- the steps of the stage ------------------------------------------------------------------------------------

    def _arguments(self, entry: Entry, batch: int | None) -> dict[str, str]:
        """The buffers that the tensors of an entry of the stage are in for a micro-batch."""
        return {
            t.buffer: self._part(t, batch)
            if t.name in self.ends
            else self._place(t.name, self.times.instance(t.name, batch))
            for t in (*entry.inputs, *entry.outputs)
        }

    def _written(self, entry: Entry) -> set[str]:
        """The results of an entry, and the states that it writes."""
        found = {tensor.buffer for tensor in entry.outputs}
        for step in numbered(entry.region):
            arguments = step.arguments
            if isinstance(step, Launch):
                arrays = self.whole.program.kernels[step.kernel].nest.arrays
                arguments = tuple(n for n, array in zip(arguments, arrays, strict=True) if array.written)
            places = (place_of(self.whole.program, name) for name in arguments)
            found |= {place.name for place in places if place.space == "state"}
        return found

    def _name(self, name: str, names: dict[str, str]) -> str:
        """The new name of a buffer of the stage's entry; ``names`` has those of its tensors, and takes those of their
        parts."""
        if name in names:
            return names[name]
        buffer = self.whole.program.buffer(name)
        if buffer.space == "constant":
            return self.whole.constant(name, self.number)
        if buffer.space == "state" and name in self.parts.held:
            if name not in self.names:
                self.names[name] = self._lasting(buffer)
            return self.names[name]
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
