"""Transforms of loop nests. A schedule is a tuple of them: a value that can be printed, hashed, stored and replayed.

Each transform is a pure function from nest to nest that checks its own legality and raises ScheduleError with the
condition that fails. The docstrings show the loops before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from luminal.core import symbolic as sym
from luminal.core.decisions import Asked
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import concatenated, replace_statements, substitute, wrap
from luminal.core.schedule.nest.walk import Body, expressions, headers, perfect_loops, statements
from luminal.core.symbolic import Int, Var


class Transform(Protocol):
    """A pure function from nest to nest; raises ScheduleError where it is not legal. Implementations are frozen
    dataclasses, so that a schedule can be compared, hashed and printed."""

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest: ...


Schedule: TypeAlias = tuple[Transform, ...]


def apply(nest: ln.LoopNest, schedule: Schedule) -> ln.LoopNest:
    """``nest`` after every transform in order; raises ScheduleError from the first that is not legal."""
    for transform in schedule:
        nest = transform(nest)
    return nest


@dataclass(frozen=True)
class Scheduled:
    """A nest and its schedule: ``nest`` is what ``schedule`` makes of ``serial``, where that is known. ``refusal`` says
    why a contraction was not tiled; ``asked`` are the questions that decided by measurement. ``derived`` says of
    reductions in one pass how each follows those that it reads. Where a kernel computes another nest ``before``,
    ``nest`` is both, one after the other."""

    nest: ln.LoopNest
    schedule: Schedule = ()
    refusal: str = ""
    asked: tuple[Asked, ...] = ()
    serial: ln.LoopNest | None = None
    before: Scheduled | None = None
    derived: tuple[str, ...] = ()

    def after(self, before: Scheduled) -> Scheduled:
        """Both as one kernel, without questions."""
        nest = concatenated(before.nest, self.nest)
        return replace(self, nest=nest, asked=(), refusal="", before=replace(before, asked=(), refusal=""))

    @property
    def lines(self) -> list[str]:
        """The schedule, one transform a line, after what measurements decided."""
        lines = [] if self.before is None else self.before.lines
        lines += [f"not tiled: {self.refusal}"] if self.refusal else []
        return [*lines, *(f"measured {asked}" for asked in self.asked), *map(str, self.schedule)]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def replayed(self) -> ln.LoopNest:
        """The nest, made again from ``serial``. Raises SpecError where ``serial`` is not known."""
        if self.serial is None:
            raise SpecError("the nest before the schedule is not known")
        nest = apply(self.serial, self.schedule)
        return nest if self.before is None else concatenated(self.before.replayed(), nest)


def find_loop(body: Body, name: str) -> ln.Loop:
    """The first loop, also of a reduction, over the axis called ``name``. Raises ScheduleError where there is none."""
    for statement in statements(body):
        loops = statement.loops if isinstance(statement, ln.Reduction | ln.Reductions) else (statement,)
        for loop in loops:
            if isinstance(loop, ln.Loop) and loop.axis.name == name:
                return loop
    raise ScheduleError(f"the nest has no loop over {name!r}")


def replace_loops(
    nest: ln.LoopNest, name: str, change: Callable[[ln.Loop], Iterable[ln.Statement]], transform: str
) -> ln.LoopNest:
    """``nest`` with every loop over the axis ``name`` replaced by the statements ``change`` returns. Raises
    ScheduleError, which names ``transform``, where there is none."""
    body, count = replace_statements(
        nest.body, lambda s: change(s) if isinstance(s, ln.Loop) and s.axis.name == name else None
    )
    if not count:
        raise ScheduleError(f"{transform}: the nest has no loop over {name!r}")
    return replace(nest, body=body)


@dataclass(frozen=True)
class Split:
    """::

    for a < E:  body(a)        =>      for a_1 < E/factor:  for a_0 < factor:  body(a_1*factor + a_0)

    Everywhere that the axis is looped over. ``factor`` may be symbolic. Where it does not divide the extent, the inner
    extent is the smaller of ``factor`` and what is left. Legal where the loop is neither vectorised nor divided among
    threads; for a loop of tasks, where ``factor`` divides the extent.
    """

    axis: str
    factor: Int

    @property
    def outer(self) -> str:
        """The loop over parts."""
        return f"{self.axis}_1"

    @property
    def inner(self) -> str:
        """The loop inside a part."""
        return f"{self.axis}_0"

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loop = find_loop(nest.body, self.axis)
        if isinstance(self.factor, int) and self.factor < 1:
            raise ScheduleError(f"split: parts of {self.factor} iterations of {self.axis!r}")
        count = sym.ceildiv(loop.extent, self.factor)
        outer = sym.axis(self.outer, count)
        full = sym.axis(self.inner, self.factor)
        exact = sym.mod(loop.extent, self.factor) == 0
        size = self.factor if exact else sym.minimum(self.factor, loop.extent - outer * self.factor)
        by = {loop.axis: outer * self.factor + full}
        parts = [(v, e) for a, e in ((outer, count), (full, size)) if (v := sym.as_var(a)) is not None]

        def headers(old: ln.Loop) -> list[ln.Loop]:
            if old.kind in ("vector", "across", "thread") or (old.kind == "parallel" and not exact):
                raise ScheduleError(f"split: the loop over {self.axis!r} is {old.kind}")
            return [ln.Loop(v, e, old.kind, ()) for v, e in parts]

        return replace(nest, body=substitute(expand(nest.body, self.axis, headers), by))


def expand(body: Body, name: str, headers: Callable[[ln.Loop], list[ln.Loop]]) -> Body:
    """Every loop over ``name`` replaced by the loops that ``headers`` makes of it."""

    def expanded(statement: ln.Statement) -> Body | None:
        if isinstance(statement, ln.Loop) and statement.axis.name == name:
            return wrap(headers(statement), statement.body)
        if isinstance(statement, ln.Reduction | ln.Reductions) and name in _names(statement.loops):
            loops = [h for old in statement.loops for h in (headers(old) if old.axis.name == name else [old])]
            return (replace(statement, loops=tuple(loops)),)
        return None

    return replace_statements(body, expanded)[0]


def _names(loops: Sequence[ln.Loop]) -> list[str]:
    return [loop.axis.name for loop in loops]


@dataclass(frozen=True)
class Merge:
    """::

    for a < A:  for b < B:  body(a, b)      =>      for b < A*B:  body(b // B, b % B)

    Legal where the two are directly nested everywhere that either occurs.
    """

    outer: str
    inner: str

    @property
    def merged(self) -> str:
        """The loop that the two become."""
        return f"{self.outer}{self.inner}"

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        first, second = find_loop(nest.body, self.outer), find_loop(nest.body, self.inner)
        if first.axis in sym.variables(second.extent):
            raise ScheduleError(f"merge: the extent of {self.inner!r} depends on {self.outer!r}")
        extent = first.extent * second.extent
        merged = Var(self.merged, 0, extent - 1)
        by = {
            first.axis: sym.floordiv(sym.expr(merged), second.extent),
            second.axis: sym.mod(sym.expr(merged), second.extent),
        }
        header = ln.Loop(merged, extent, "serial", ())
        body, _ = replace_statements(nest.body, lambda statement: self._joined(statement, header))
        return replace(nest, body=substitute(body, by))

    def _joined(self, statement: ln.Statement, header: ln.Loop) -> Body | None:
        if isinstance(statement, ln.Loop) and statement.axis.name == self.outer:
            (inner, *rest) = statement.body
            if rest or not isinstance(inner, ln.Loop) or inner.axis.name != self.inner:
                raise self._apart()
            if (inner.kind == "ordered") != (statement.kind == "ordered"):
                raise ScheduleError(f"merge: of {self.outer!r} and {self.inner!r} one must stay in order")
            return (replace(header, kind=statement.kind, body=inner.body),)
        if isinstance(statement, ln.Loop) and statement.axis.name == self.inner:
            raise self._apart()
        if isinstance(statement, ln.Reduction | ln.Reductions):
            names = _names(statement.loops)
            if self.outer in names or self.inner in names:
                at = names.index(self.outer) if self.outer in names else -2
                if names[at + 1 : at + 2] != [self.inner]:
                    raise self._apart()
                loops = (*statement.loops[:at], header, *statement.loops[at + 2 :])
                return (replace(statement, loops=loops),)
        return None

    def _apart(self) -> ScheduleError:
        return ScheduleError(f"merge: {self.inner!r} is not directly inside {self.outer!r}")


@dataclass(frozen=True)
class Reorder:
    """::

    for a:  for b:  for c:  body      =>      for c:  for a:  for b:  body         (order = c, a, b)

    The perfectly nested loops at the top, all of which ``order`` names. Iterations are independent there, but for those
    of ordered loops, which must stay in their order among each other; a nest reduces only inside ``Reduction`` and
    ``Contract``. An extent must not depend on a loop that moves inside it.
    """

    order: tuple[str, ...]

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, inside = perfect_loops(nest.body)
        by_name = {loop.axis.name: loop for loop in loops}
        if sorted(by_name) != sorted(self.order):
            raise ScheduleError(f"reorder: expected an order of {sorted(by_name)}, found {sorted(self.order)}")
        moved = [by_name[name] for name in self.order]
        if [x for x in moved if x.kind == "ordered"] != [x for x in loops if x.kind == "ordered"]:
            raise ScheduleError(f"reorder: {self.order} changes the order of iterations that must stay in order")
        for position, loop in enumerate(moved):
            later = {other.axis for other in moved[position:]}
            if sym.variables(loop.extent) & later:
                raise ScheduleError(f"reorder: the extent of {loop.axis} depends on a loop inside it")
        return replace(nest, body=wrap(moved, inside))


@dataclass(frozen=True)
class ReorderReduction:
    """::

    s = sum over a, b of f(a, b)      =>      s = sum over b, a of f(a, b)         (order = b, a)

    Changes the order of summation, which no source operator states; legal where the loops are serial.
    """

    name: str
    order: tuple[str, ...]

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return replace(nest, body=replace_statements(nest.body, self._ordered)[0])

    def _ordered(self, statement: ln.Statement) -> list[ln.Statement] | None:
        if not isinstance(statement, ln.Reduction) or statement.name != self.name:
            return None
        loops = {loop.axis.name: loop for loop in statement.loops}
        if sorted(loops) != sorted(self.order) or any(loop.kind != "serial" for loop in statement.loops):
            raise ScheduleError(f"reorder: {self.order} is no order of the serial loops {sorted(loops)}")
        return [replace(statement, loops=tuple(loops[name] for name in self.order))]


@dataclass(frozen=True)
class Parallelise:
    """The ``count`` outermost loops become the numbered tasks of the kernel.

    Legal where they are perfectly nested, serial, and each extent depends on dimensions alone.
    """

    count: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, inside = perfect_loops(nest.body)
        if len(loops) < self.count:
            raise ScheduleError(f"parallelise: {self.count} loops asked for, {len(loops)} are perfectly nested")
        chosen = loops[: self.count]
        axes = {loop.axis for loop in chosen}
        for loop in chosen:
            if loop.kind != "serial" or sym.variables(loop.extent) & axes:
                raise ScheduleError(f"parallelise: the loop over {loop.axis} is {loop.kind} or not rectangular")
        return replace(
            nest, body=wrap([replace(loop, kind="parallel") for loop in chosen] + loops[self.count :], inside)
        )


@dataclass(frozen=True)
class Vectorise:
    """Every loop over ``axis`` takes ``lanes`` consecutive values at a time.

    Legal where each such loop is innermost, or holds only loops across the vectors, or serial loops and reductions that
    run once for all lanes: their extents must not vary from lane to lane.
    """

    axis: str
    lanes: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        find_loop(nest.body, self.axis)
        return replace(nest, body=replace_statements(nest.body, self._marked)[0])

    def _marked(self, statement: ln.Statement) -> list[ln.Statement] | None:
        if isinstance(statement, ln.Loop) and statement.axis.name == self.axis:
            if statement.kind == "ordered":
                raise ScheduleError(f"vectorise: the iterations of {self.axis!r} must stay in order")
            for inner in statements(statement.body):
                kind = inner.kind if isinstance(inner, ln.Loop) else "serial"
                if isinstance(inner, ln.Alloc | ln.Contract) or kind not in ("serial", "across"):
                    what = f"{kind} loop" if isinstance(inner, ln.Loop) else type(inner).__name__.lower()
                    raise ScheduleError(f"vectorise: a {what} lies inside the loop over {self.axis!r}")
                if any(statement.axis in sym.variables(loop.extent) for loop in headers(inner)):
                    raise ScheduleError(f"vectorise: how far a loop or a reduction runs depends on {self.axis!r}")
            return [replace(statement, kind="vector", lanes=self.lanes)]
        if isinstance(statement, ln.Reduction):
            *outer, last = statement.loops
            if any(loop.axis.name == self.axis for loop in outer):
                raise ScheduleError(f"vectorise: {self.axis!r} is not the innermost loop of {statement.name}")
            if last.axis.name == self.axis:
                return [replace(statement, loops=(*outer, replace(last, kind="vector", lanes=self.lanes)))]
        return None


@dataclass(frozen=True)
class HoistLookups:
    """::

    for a:  let g = table[i];  body      =>      let g = table[i];  for a:  body

    Run-time indices are read outside the loops that they do not depend on.
    """

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return replace(nest, body=self._hoisted(nest.body))

    def _hoisted(self, body: Body) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            if isinstance(statement, ln.Loop):
                inner = self._hoisted(statement.body)
                bound = {statement.axis}
                moved: list[ln.Statement] = []
                while inner and isinstance(inner[0], ln.Let):
                    names = {v for e in expressions(inner[0]) for v in sym.variables(e)}
                    if names & bound or statement.kind == "parallel":
                        break
                    moved.append(inner[0])
                    inner = inner[1:]
                result += [*moved, replace(statement, body=inner)]
            else:
                result.append(statement)
        return tuple(result)
