"""A schedule in the making: the transforms so far, the nest under them, and what a choice needs to know of it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from luminal.core import symbolic as sym
from luminal.core.decisions import Asked, Candidate
from luminal.core.errors import ScheduleError
from luminal.core.matching import cuts, digits
from luminal.core.schedule.cost.tasks import enough_tasks, few_tasks
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import substitute
from luminal.core.schedule.nest.text import nest_text
from luminal.core.schedule.nest.walk import (
    Body,
    expressions,
    headers,
    inside,
    perfect_loops,
    reads,
    statements,
)
from luminal.core.schedule.transform.accumulate import Accumulate
from luminal.core.schedule.transform.loops import (
    HoistLookups,
    Merge,
    Parallelise,
    Scheduled,
    Split,
    Transform,
)
from luminal.core.sizes import typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target
from luminal.core.types import f32

C = TypeVar("C")

STEPS_OF_PART = 1024  # steps of a float sum after which its accumulators begin anew: for accuracy


class Scheduler:
    """Builds a schedule step by step; each step sees the nest as the steps before left it."""

    def __init__(self, nest: ln.LoopNest, target: Target, asked: Asked | None = None) -> None:
        self.serial = self.nest = nest
        self.target = target
        self.schedule: list[Transform] = []
        self.asked = [] if asked is None else [asked]
        self.derived: tuple[str, ...] = ()
        self.split_loops: dict[str, tuple[str, str]] = {}  # of loops that were split
        self.enough = enough_tasks(target)
        self.few = few_tasks(target)

    def do(self, transform: Transform) -> None:
        self.nest = transform(self.nest)
        self.schedule.append(transform)

    def split(self, axis: str, factor: Int) -> Split:
        """Split a loop; what is returned names its parts, of which those of one iteration are no loops."""
        split = Split(axis, factor)
        self.do(split)
        self.split_loops[axis] = (split.outer, split.inner)
        return split

    def parts_of(self, axes: Collection[Var]) -> list[Var]:
        """The loops around everything that ``axes`` of the serial nest have become, as far as they were split."""
        names = [axis.name for axis in axes]
        for name in names:
            names += self.split_loops.get(name, ())
        return [loop.axis for loop in self.loops() if loop.axis.name in names]

    def ask(self, topic: str, candidates: Iterable[Candidate[C]], *more: object) -> C:
        """What one of ``candidates`` decides on ``topic``; ``more`` are facts that count, besides the serial nest."""
        chosen, asked = self.target.decisions.ask(topic, lambda: description(self.serial, *more), candidates)
        self.asked += [] if asked is None else [asked]
        return chosen

    # ---- facts about the nest --------------------------------------------------------------------------------------

    def loops(self) -> list[ln.Loop]:
        return perfect_loops(self.nest.body)[0]

    def present(self, name: str) -> list[str]:
        """``name``, where there is such a loop: a part of one iteration is none."""
        return [name] if any(loop.axis.name == name for loop in self.loops()) else []

    def inner_axes(self) -> list[Var]:
        """Axes of loops and reductions inside the perfectly nested ones, in order of first use."""
        inner = statements(perfect_loops(self.nest.body)[1])
        return list(dict.fromkeys(loop.axis for statement in inner for loop in headers(statement)))

    def offsets(self) -> list[tuple[Int, bool, int]]:
        """Every offset that the nest reads or writes at, whether it writes, and how often it does for once through the
        perfectly nested loops."""
        return list(_offsets(perfect_loops(self.nest.body)[1], 1))

    def expressions(self) -> tuple[Int, ...]:
        return tuple(e for s in statements(self.nest.body) for e in expressions(s))

    # ---- steps -----------------------------------------------------------------------------------------------------

    def refine(self, skip: frozenset[str] = frozenset(), of: tuple[Int, ...] | None = None) -> None:
        """Split axes where indices divide them, so that no quotient or remainder of an axis is left; where only those
        in ``of`` count, none in these."""
        for axis in [loop.axis for loop in self.loops()] + self.inner_axes():
            if axis.name in skip:
                continue
            at = cuts(axis, self.expressions() if of is None else of)
            if at and digits(axis, axis.hi + 1, at, "") is not None:
                for cut in reversed(at):
                    split = self.split(axis.name, cut)
                    # The slower part keeps the coarser cuts; the faster one is split on by the finer.
                    axis = next(a for a in self._axes() if a.name == split.inner)

    def _axes(self) -> list[Var]:
        return [loop.axis for loop in self.loops()] + self.inner_axes()

    def merge(self, names: list[str]) -> list[str]:
        """Merge neighbouring loops among ``names`` (outermost first) wherever every offset stays free of quotients;
        those that are neighbours everywhere."""
        position = len(names) - 2
        while position >= 0:
            transform = Merge(names[position], names[position + 1])
            try:
                merged = transform(self.nest)
            except ScheduleError:
                position -= 1
                continue
            before = _divided(self.expressions())
            after = Scheduler(merged, self.target).expressions()
            if _divided(after) <= before:
                self.do(transform)
                names[position : position + 2] = [transform.merged]
            position -= 1
        return names

    def join(self, names: list[str]) -> str:
        """Merge neighbouring loops (``names``, outermost first), whatever quotients that takes; the new one's name."""
        *outer, name = names
        for other in reversed(outer):
            merge = Merge(other, name)
            self.do(merge)
            name = merge.merged
        return name

    def parallelise(self, enough: int | None = None) -> None:
        """Make tasks of the outermost loops, as few of them as give ``enough`` tasks, or as are enough for all threads
        where that is not given."""
        enough = self.enough if enough is None else enough
        loops = list(takewhile(lambda loop: loop.kind == "serial", self.loops()))
        reduces = any(isinstance(s, ln.Reduction | ln.Reductions) for s in statements(self.nest.body))
        count = math.prod(typical(loop.extent) for loop in self.loops())
        small = count * max(1, chained_lookups(self.nest)) < self.target.costs.threads.written
        if small and not reduces and not self.inner_axes():
            return
        count, tasks = 0, 1
        for loop in loops:
            if tasks >= enough or sym.variables(loop.extent) & {other.axis for other in loops}:
                break
            count, tasks = count + 1, tasks * typical(loop.extent)
        if count:
            self.do(Parallelise(count))

    def finish(self) -> Scheduled:
        if any(isinstance(s, ln.Let) for s in statements(self.nest.body)):
            self.do(HoistLookups())
        accumulate = Accumulate(self.target.costs.arithmetic.partial_sums, STEPS_OF_PART)
        if self.target.grid is None and accumulate.divides(self.nest):
            self.do(accumulate)
        return Scheduled(
            self.nest, tuple(self.schedule), asked=tuple(self.asked), serial=self.serial, derived=self.derived
        )


def chained_lookups(nest: ln.LoopNest) -> int:
    """The length of the longest chain of look-ups, each of which needs what the one before it gives."""
    longest: dict[Var, int] = {}
    for statement in statements(nest.body):
        if isinstance(statement, ln.Let):
            read = {variable for e in expressions(statement) for variable in sym.variables(e)}
            longest[statement.axis] = 1 + max((longest.get(variable, 0) for variable in read), default=0)
    return max(longest.values(), default=0)


def description(nest: ln.LoopNest, *more: object) -> str:
    """A nest as the same text whatever its dimensions are called, with ``more`` facts."""
    text = nest_text(nest)
    places = {v: [m.start() for m in re.finditer(rf"\b{re.escape(v.name)}\b", text)] for v in nest.dims}
    names = {v: sym.var(f"d{k}", v.lo, v.hi) for k, v in enumerate(sorted(nest.dims, key=lambda v: places[v]))}
    bounds = [f"{name} {v.lo}..{sym.upper(v.hi)}" for v, name in names.items()]
    return "\n".join([*map(str, more), *bounds, nest_text(replace(nest, body=substitute(nest.body, names)))])


def _divided(expressions: tuple[Int, ...]) -> int:
    """How many quotients and remainders occur."""
    total = 0
    for atom in (a for e in expressions for a in sym.atoms(e)):
        total += _divided((atom.a, atom.b)) if isinstance(atom, sym.MinMax) else not isinstance(atom, Var)
    return total


def vector_gain(axis: Var, state: Scheduler, near: frozenset[Var] = frozenset(), weighed: bool = False) -> float:
    """How well vectors along ``axis`` suit memory: contiguous accesses count for it, strided ones against it, and
    stores far apart more so, since a cache line must come in before a part of it is written. Accesses that vary with
    variables in ``near`` alone stay in the cache, and do not count. Where ``weighed``, those that happen once for a row
    count as much less than those of its elements as there are fewer of them: it is for comparing axes."""
    total, offsets, costs = 0.0, state.offsets(), state.target.costs.vectors
    most = max((times for *_, times in offsets), default=1)
    for offset, written, times in offsets:
        if near and sym.variables(offset) <= near:
            continue
        linear = sym.coefficient(offset, axis)
        weight = times / most if weighed else 1
        if linear is None or linear[0] not in (0, 1):
            apart = linear is None or not isinstance(linear[0], int) or abs(linear[0]) > costs.near
            total -= (costs.far_store if written and apart else costs.far) * weight
        elif linear[0] == 1:
            total += costs.beside * weight
    extent = axis.hi + 1
    return total - (costs.short if typical(extent) < state.target.lanes(f32) // costs.filled else 0)


def _offsets(body: Body, times: int) -> Iterator[tuple[Int, bool, int]]:
    """What ``Scheduler.offsets`` says of a body that runs so many ``times``."""
    for statement in body:
        repeated = times * math.prod(max(1, typical(loop.extent)) for loop in headers(statement))
        if isinstance(statement, ln.Store):
            yield statement.offset, True, times
        yield from ((access.offset, False, repeated) for access in reads(statement))
        yield from _offsets(inside(statement), repeated)


def by_stride(axes: list[Var], state: Scheduler) -> list[Var]:
    """Axes in the order of the first store's strides, the largest outermost."""
    store = next(s for s in statements(state.nest.body) if isinstance(s, ln.Store))
    return sorted(axes, key=lambda axis: -stride(store.offset, axis))


def stride(offset: Int, axis: Var) -> int:
    """The stride of ``offset`` along ``axis`` at the bounds of the dimensions; 0 where it is not linear."""
    linear = sym.coefficient(offset, axis)
    return 0 if linear is None else sym.upper(linear[0]) or 0
