"""What the ranks of a pipeline do in a run, and when: the actions of each stage, ticks, transfers, and places.

A rank's part of a run is a list of actions, each the work of its stage for a task and a micro-batch. An action's tick
is the first after that of the rank's action before it and those that give what it reads. All ranks begin transfers in
one order: by the tick of the action that gives what is sent, then by its stage. A rank begins those before its next
action, and waits for what the action reads. So what passes between stages is under way while others are computed; and
no rank waits for another in a circle, even where a device carries out one transfer after the other, as streams of GPUs
do: of all that have not ended, both ranks of the first one begin it without waiting for another.

A value that is given for each micro-batch has places, which these take in turn: as few as there are micro-batches of
which it is needed at once, by actions that are still to come or by what is under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple


class Action(NamedTuple):
    """What a rank does: a ``task`` for a micro-batch, or one that is done once, where that is None."""

    task: str
    batch: int | None


class Moment(NamedTuple):
    """When a transfer begins, among all: the tick, the stage that sends, the number of the value, the receiver."""

    tick: int
    source: int
    what: int
    to: int


@dataclass(frozen=True)
class Passing:
    """A value that stage ``source`` sends to ``targets``, as its ``task`` has given it, of each micro-batch or once;
    or the buffer of the ``state`` of that name, after the last of these tasks, or before all where there is none."""

    name: str
    source: int
    targets: tuple[int, ...]
    task: str
    once: bool = False
    state: str = ""


@dataclass(frozen=True)
class Tasks:
    """What a stage has: its ``actions`` in order; and of each task the names of the values that it reads and gives,
    other than what callers give and get."""

    actions: tuple[Action, ...]
    reads: Mapping[str, Sequence[str]]
    gives: Mapping[str, Sequence[str]]

    def last(self, task: str) -> int:
        """The number of the last action of a task."""
        return max(k for k, action in enumerate(self.actions) if action.task == task)


@dataclass(frozen=True)
class Sent:
    """A transfer of value number ``what`` of ``passing`` of a micro-batch, or of a state; behind the values, outputs
    are numbered."""

    moment: Moment
    batch: int | None


@dataclass(frozen=True)
class Timetable:
    """The tasks of all ``stages``, what passes between them, and the outputs that every stage gets: of each the stage
    and the task that give it, and whether it is given for each micro-batch."""

    stages: tuple[Tasks, ...]
    passing: tuple[Passing, ...]
    outputs: tuple[tuple[int, str, bool], ...] = ()
    by_name: Mapping[str, Passing] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {p.name: p for p in self.passing})

    def instance(self, name: str, batch: int | None) -> int | None:
        """The micro-batch of which an action for ``batch`` reads a value: None of one that is given once."""
        return None if name in self.by_name and self.by_name[name].once else batch

    def _given(self, p: Passing, batch: int | None) -> int:
        """The number of the action that gives a value; -1 where it is there at first."""
        tasks = self.stages[p.source]
        if not p.task:
            return -1
        return tasks.last(p.task) if p.once else tasks.actions.index(Action(p.task, batch))

    @cached_property
    def ticks(self) -> tuple[tuple[int, ...], ...]:
        """The tick of each action of each stage."""
        found: list[list[int]] = [[] for _ in self.stages]
        moved = True
        while moved:
            moved = False
            for number, tasks in enumerate(self.stages):
                while len(found[number]) < len(tasks.actions):
                    action = tasks.actions[len(found[number])]
                    needed = list(self._needed(number, action))
                    if any(place >= len(found[stage]) for stage, place in needed):
                        break
                    before = [found[number][-1]] if found[number] else []
                    before += [found[stage][place] if place >= 0 else -1 for stage, place in needed]
                    found[number].append(max(before, default=-1) + 1)
                    moved = True
        assert all(len(a) == len(b.actions) for a, b in zip(found, self.stages, strict=True)), (
            "actions wait in a circle"
        )
        return tuple(map(tuple, found))

    def _needed(self, stage: int, action: Action) -> Iterator[tuple[int, int]]:
        """The actions of other stages, by stage and number, that give what an action reads."""
        for name in self.stages[stage].reads.get(action.task, ()):
            p = self.by_name.get(name)
            if p is not None and p.source != stage:
                yield p.source, self._given(p, self.instance(name, action.batch))

    @cached_property
    def transfers(self) -> tuple[Sent, ...]:
        """All transfers, in the order in which ranks begin them."""
        found = []
        for what, p in enumerate(self.passing):
            batches = [None] if p.once else self._batches(p.source, p.task)
            for batch in batches:
                place = self._given(p, batch)
                tick = self.ticks[p.source][place] if place >= 0 else -1
                found += [Sent(Moment(tick, p.source, what, to), batch) for to in p.targets]
        for number, (by, task, is_each) in enumerate(self.outputs):
            tasks = self.stages[by]
            # What is the same in all micro-batches is sent after the last one.
            for batch in self._batches(by, task) if is_each else [tasks.actions[tasks.last(task)].batch]:
                tick = self.ticks[by][tasks.actions.index(Action(task, batch))]
                others = (to for to in range(len(self.stages)) if to != by)
                found += [Sent(Moment(tick, by, len(self.passing) + number, to), batch) for to in others]
        return tuple(sorted(found, key=lambda sent: sent.moment))

    def _batches(self, stage: int, task: str) -> list[int | None]:
        return [action.batch for action in self.stages[stage].actions if action.task == task]

    @cached_property
    def _arrivals(self) -> Mapping[tuple[str, int], list[tuple[int | None, Moment]]]:
        """By value and receiver, its micro-batches and when they are sent."""
        found: dict[tuple[str, int], list[tuple[int | None, Moment]]] = {}
        for sent in self.transfers:
            if sent.moment.what < len(self.passing):
                name = self.passing[sent.moment.what].name
                found.setdefault((name, sent.moment.to), []).append((sent.batch, sent.moment))
        return found

    def order(self, stage: int, name: str) -> list[int | None]:
        """The micro-batches of a value in the order in which a stage gets or gives them."""
        return [batch for batch, _, _ in self._spans(stage, name)]

    def places(self, stage: int, name: str) -> int:
        """How many places a value has on the ranks of a stage."""
        spans = self._spans(stage, name)
        assert all(a[1] <= b[1] and a[2] <= b[2] for a, b in pairwise(spans)), (stage, name)
        return max((sum(a <= first <= b for _, a, b in spans) for _, first, _ in spans), default=0)

    def _spans(self, stage: int, name: str) -> list[tuple[int | None, int, int]]:
        """For each micro-batch of a value: before which action of the stage its place is taken, and after which one it
        is free again."""
        tasks, p = self.stages[stage], self.by_name.get(name)
        begins: list[tuple[int | None, int]] = []
        if (name, stage) in self._arrivals:
            clock = self.ticks[stage]
            for batch, moment in self._arrivals[name, stage]:
                first = next((k for k, tick in enumerate(clock) if (moment.tick, moment.source) < (tick, stage)), None)
                begins.append((batch, len(clock) if first is None else first))
        else:
            given = [(k, a.batch) for k, a in enumerate(tasks.actions) if name in tasks.gives.get(a.task, ())]
            begins = [(self.instance(name, batch), k) for k, batch in given]
        spans = []
        for number, (batch, first) in enumerate(begins):
            last = max([first, *self._reading(stage, name, batch)])
            if p is not None and p.source == stage and number + 1 < len(begins):
                last = max(last, begins[number + 1][1])  # until then, it may be under way
            spans.append((batch, first, last))
        return spans

    def _reading(self, stage: int, name: str, batch: int | None) -> list[int]:
        """The numbers of the actions that read a value of a micro-batch."""
        tasks = self.stages[stage]
        readers = [(k, a.batch) for k, a in enumerate(tasks.actions) if name in tasks.reads.get(a.task, ())]
        return [k for k, other in readers if self.instance(name, other) == batch]
