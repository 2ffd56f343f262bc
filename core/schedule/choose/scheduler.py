"""A schedule under construction: the transforms so far, the nest that they make, and facts on which choices depend."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

from luminal.core import symbolic as sym
from luminal.core.decisions import Asked
from luminal.core.errors import ScheduleError
from luminal.core.schedule.cost.tasks import enough_tasks, few_tasks
from luminal.core.schedule.fusion.matching import cuts, digits
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


class Scheduler:
    """Builds a schedule step by step; each step sees the nest as the steps before left it."""

    def __init__(self, nest: ln.LoopNest, target: Target, asked: Asked | None = None) -> None:
        self.serial = self.nest = nest
        self.target = target
        self.schedule: list[Transform] = []
        self.asked = [] if asked is None else [asked]
        self.split_loops: dict[str, tuple[str, str]] = {}  # of loops that were split
        self.enough = enough_tasks(target)
        self.few = few_tasks(target)

    def do(self, transform: Transform) -> None:
        self.nest = transform(self.nest)
        self.schedule.append(transform)

    def split(self, axis: str, factor: Int) -> Split:
        """Split a loop. Returns the transform, which names the two loops; one of a single iteration is no loop."""
        split = Split(axis, factor)
        self.do(split)
        self.split_loops[axis] = (split.outer, split.inner)
        return split

    def parts_of(self, axes: Collection[Var]) -> list[Var]:
        """The loops into which ``axes`` of the serial nest were split, or themselves."""
        names = [axis.name for axis in axes]
        for name in names:
            names += self.split_loops.get(name, ())
        return [loop.axis for loop in self.loops() if loop.axis.name in names]

    def ask(self, kind: str, candidates: Sequence[C], *more: object) -> C:
        """One of ``candidates``, the first of which is best by formula; ``more`` are facts on which the answer depends
        besides the serial nest."""
        chosen, asked = self.target.decisions.ask(kind, lambda: description(self.serial, *more), candidates)
        self.asked += [] if asked is None else [asked]
        return chosen

    # ---- facts about the nest --------------------------------------------------------------------------------------

    def loops(self) -> list[ln.Loop]:
        return perfect_loops(self.nest.body)[0]

    def present(self, name: str) -> list[str]:
        """``[name]`` where there is such a loop, else empty: a loop of one iteration is dropped."""
        return [name] if any(loop.axis.name == name for loop in self.loops()) else []

    def inner_axes(self) -> list[Var]:
        """Axes of loops and reductions inside the perfectly nested loops, in order of first use."""
        inner = statements(perfect_loops(self.nest.body)[1])
        return list(dict.fromkeys(loop.axis for statement in inner for loop in headers(statement)))

    def offsets(self) -> list[tuple[Int, bool, int]]:
        """Every offset that the nest accesses, whether it writes, and how often an iteration of the perfectly nested
        loops does."""
        return list(_offsets(perfect_loops(self.nest.body)[1], 1))

    def expressions(self) -> tuple[Int, ...]:
        return tuple(e for s in statements(self.nest.body) for e in expressions(s))

    # ---- steps -----------------------------------------------------------------------------------------------------

    def refine(self, skip: frozenset[str] = frozenset(), of: tuple[Int, ...] | None = None) -> None:
        """Split axes where indices divide them, so that no quotient or remainder of an axis is left. Axes in ``skip``
        stay; with ``of``, only these expressions count."""
        for axis in [loop.axis for loop in self.loops()] + self.inner_axes():
            if axis.name in skip:
                continue
            at = cuts(axis, self.expressions() if of is None else of)
            if at and digits(axis, axis.hi + 1, at, "") is not None:
                for cut in reversed(at):
                    split = self.split(axis.name, cut)
                    # Coarse cuts come first; finer ones split the faster part further.
                    axis = next(a for a in self._axes() if a.name == split.inner)

    def _axes(self) -> list[Var]:
        return [loop.axis for loop in self.loops()] + self.inner_axes()

    def merge(self, names: list[str]) -> list[str]:
        """Merge neighbouring loops among ``names`` (outermost first) where this adds no quotients to offsets. Returns
        the names of the loops that remain."""
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
        """Merge neighbouring loops (``names``, outermost first), even if this adds quotients. Returns the new name."""
        *outer, name = names
        for other in reversed(outer):
            merge = Merge(other, name)
            self.do(merge)
            name = merge.merged
        return name

    def parallelise(self, enough: int | None = None) -> None:
        """Make the outermost loops tasks, as few loops as give ``enough`` tasks; by default, enough for all threads."""
        enough = self.enough if enough is None else enough
        loops = list(takewhile(lambda loop: loop.kind == "serial", self.loops()))
        reduces = any(isinstance(s, ln.Reduction | ln.Reductions) for s in statements(self.nest.body))
        small = math.prod(typical(loop.extent) for loop in self.loops()) < self.target.costs.threads.written
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
        if self.nest.checked:
            self.do(HoistLookups())
        return Scheduled(self.nest, tuple(self.schedule), asked=tuple(self.asked), serial=self.serial)


def description(nest: ln.LoopNest, *more: object) -> str:
    """A nest, and ``more`` facts, as text that does not depend on the names of dimensions."""
    text = nest_text(nest)
    places = {v: [m.start() for m in re.finditer(rf"\b{re.escape(v.name)}\b", text)] for v in nest.dims}
    names = {v: sym.var(f"d{k}", v.lo, v.hi) for k, v in enumerate(sorted(nest.dims, key=lambda v: places[v]))}
    bounds = [f"{name} {v.lo}..{sym.upper(v.hi)}" for v, name in names.items()]
    return "\n".join([*map(str, more), *bounds, nest_text(replace(nest, body=substitute(nest.body, names)))])


def _divided(expressions: tuple[Int, ...]) -> int:
    """The number of quotients and remainders in ``expressions``."""
    total = 0
    for atom in (a for e in expressions for a in sym.atoms(e)):
        total += _divided((atom.a, atom.b)) if isinstance(atom, sym.MinMax) else not isinstance(atom, Var)
    return total


def vector_gain(axis: Var, state: Scheduler, near: frozenset[Var] = frozenset(), weighed: bool = False) -> float:
    """A score of vectors along ``axis``: contiguous accesses count for it, strided ones against it, and far apart
    stores more so, since a cache line is read before a part of it is written. Accesses that vary with variables in
    ``near`` alone stay in the cache and do not count. With ``weighed``, an access counts by how often it happens,
    relative to the most frequent: for comparing axes."""
    total, offsets, near_by = 0.0, state.offsets(), state.target.costs.sizes.apart
    most = max((times for *_, times in offsets), default=1)
    for offset, written, times in offsets:
        if near and sym.variables(offset) <= near:
            continue
        linear = sym.coefficient(offset, axis)
        weight = times / most if weighed else 1
        if linear is None or linear[0] not in (0, 1):
            apart = linear is None or not isinstance(linear[0], int) or abs(linear[0]) > near_by
            total -= (3 if written and apart else 1) * weight
        elif linear[0] == 1:
            total += 2 * weight
    extent = axis.hi + 1
    return total - (3 if typical(extent) < state.target.lanes(f32) // 2 else 0)


def _offsets(body: Body, times: int) -> Iterator[tuple[Int, bool, int]]:
    """``Scheduler.offsets`` of a body that runs ``times`` times."""
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
