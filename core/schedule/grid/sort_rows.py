"""Sorting by all threads of a task: rows, or parts of rows, are copied into shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_statements, substitute, wrap
from luminal.core.schedule.nest.walk import Body, perfect_loops
from luminal.core.symbolic import Int

HELD = "held"


@dataclass(frozen=True)
class SortTogether:
    """Rows that fit are sorted in shared memory::

                                       held = x[row]           (by all threads)
    sort x[row]               =>       sort held
                                       x[row] = held           (by all threads)

    and longer ones in place. The least elements of a row are found part by part, each sorted with the least so far::

                                       held[.. count] = most
    y = most                           for parts of n:
    for t < n: keep in y x[t]  =>          held[count ..] = x[part]        (by all threads)
    sort y                                 sort held
                                       y = held[.. count]

    ``room`` is how many elements are held. Legal where the least are fewer than those.
    """

    threads: int
    room: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, body = perfect_loops(nest.body)
        sort = body[-1]
        if not isinstance(sort, ln.Sort):
            raise ScheduleError("sort: the nest does not end in a sort")
        dtype = next(array.dtype for array in nest.arrays if array.name == sort.array)
        if len(body) > 1:
            return replace(nest, body=wrap(loops, self._least(body, sort)))
        most = sym.upper(sort.extent)
        if most is not None and most <= self.room:
            held = ln.Alloc(HELD, dtype, most, "shared")
            place = sym.axis("t0", sort.extent)
            outside, inside = sort.offset + place, ln.load(sort.array, sort.offset + place, dtype)
            first = self._divided(place, sort.extent, ln.Store(HELD, place, inside))
            last = self._divided(place, sort.extent, ln.Store(sort.array, outside, ln.load(HELD, place, dtype)))
            body = (held, *first, ln.Sort(HELD, 0, sort.extent), *last)
        return replace(nest, body=wrap(loops, body))

    def _least(self, body: Body, sort: ln.Sort) -> Body:
        *filled, scan, _ = body
        fill = filled[0].body[0] if isinstance(filled[0], ln.Loop) else filled[0]
        count, most = sort.extent, sym.upper(sort.extent)
        assert isinstance(scan, ln.Loop) and isinstance(fill, ln.Store) and most is not None
        longest = sym.upper(scan.extent)
        part = self.room - most if longest is None else min(self.room - most, longest)
        if part < 1:
            raise ScheduleError(f"sort: {most} elements are kept, {self.room} can be held")
        dtype, start = fill.value.dtype, sort.offset
        parts = sym.ceildiv(scan.extent, part)
        number, place, among = sym.axis("e1", parts), sym.axis("t0", part), sym.axis("e0", count)
        element = number * part + place

        def beside(statement: ln.Statement) -> tuple[ln.Statement, ...] | None:
            return (ln.Store(HELD, count + place, statement.value),) if isinstance(statement, ln.KeepLeast) else None

        brought, _ = replace_statements(substitute(scan.body, {scan.axis: element}), beside)
        if not sym.always(scan.extent - 1 - element):
            beyond = ln.Store(HELD, count + place, fill.value)
            brought = (beyond, ln.If((scan.extent - 1 - element,), brought))
        step: Body = (*self._divided(place, part, *brought), ln.Sort(HELD, 0, count + part))
        variable = sym.as_var(number)
        return (
            ln.Alloc(HELD, dtype, most + part, "shared"),
            *self._divided(among, count, ln.Store(HELD, among, fill.value)),
            *((ln.Loop(variable, parts, "ordered", step),) if variable is not None else step),
            *self._divided(among, count, ln.Store(sort.array, start + among, ln.load(HELD, among, dtype))),
        )

    def _divided(self, axis: Int, extent: Int, *body: ln.Statement) -> Body:
        """``body`` for every value of ``axis``, divided among threads; by one thread where there is a single value."""
        variable = sym.as_var(axis)
        return body if variable is None else (ln.Loop(variable, extent, "thread", body, self.threads),)
