"""The transform that keeps rows in the registers of the threads which share them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import REGISTER
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import map_fields, replace_leaves
from luminal.core.schedule.nest.walk import Body, headers, reads, statements
from luminal.core.symbolic import Int
from luminal.core.types import DType


@dataclass(frozen=True)
class HoldRows:
    """::

    row = local float32[W*E]                              row = registers float32[S*threads]     (S: W*ceil(E/threads))
    for a in t, t + threads, .. < E:                      for a in t, t + threads, .. < E:
        row[W*a + w] = ..                           =>        row[S*t + W*(a / threads) + w] = ..
    for a in t, t + threads, .. < E:                      for a in t, t + threads, .. < E:
        .. row[W*a + w] ..                                    .. row[S*t + W*(a / threads) + w] ..

    For every local array of which each thread reads what it has written alone, as far as ``registers`` of a thread go.
    """

    axis: str
    threads: int
    registers: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        found = held_rows(nest, self.axis, self.threads)
        if not found:
            raise ScheduleError(f"hold rows: no row of the nest has all its elements in loops over {self.axis!r} alone")
        taken = registers_of(found.values(), self.threads)
        if taken > self.registers:
            raise ScheduleError(f"hold rows: {taken} registers in each thread, {self.registers} are there")
        return replace(nest, body=self._held(nest.body, found))

    def _held(self, body: Body, found: dict[str, Row]) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            new = map_fields(
                statement, lambda value: self._value(value, found), body=lambda inner: self._held(inner, found)
            )
            if isinstance(new, ln.Alloc) and new.name in found:
                new = replace(new, extent=found[new.name].size(self.threads) * self.threads, space="registers")
            elif isinstance(new, ln.Store) and new.array in found:
                new = replace(new, offset=self._place(new.offset, found[new.array]))
            result.append(new)
        return tuple(result)

    def _value(self, value: ln.Scalar, found: dict[str, Row]) -> ln.Scalar:
        by = {
            scalar: ln.load(leaf.array, self._place(leaf.offset, row), scalar.dtype, leaf.valid, leaf.fill)
            for scalar in ln.postorder(value)
            if isinstance(leaf := scalar.leaf, ln.Access) and (row := found.get(leaf.array)) is not None
        }
        return replace_leaves(value, by)

    def _place(self, offset: Int, row: Row) -> Int:
        linear = sym.coefficient(offset, row.loop.axis)
        assert linear is not None
        iteration = sym.expr(row.loop.axis)
        turn, thread = sym.floordiv(iteration, self.threads), sym.mod(iteration, self.threads)
        return row.size(self.threads) * thread + row.width * turn + linear[1]


@dataclass(frozen=True)
class Row:
    """A local array of which each iteration of ``loop`` has ``width`` elements of ``dtype`` to itself."""

    loop: ln.Loop
    width: int
    dtype: DType

    def size(self, threads: int) -> int:
        """Elements of one of the ``threads`` that divide the loop."""
        most = sym.upper(self.loop.extent)
        assert most is not None
        return -(-most // threads) * self.width


def registers_of(rows: Iterable[Row], threads: int) -> int:
    """The registers of each of ``threads`` that have ``rows``."""
    return sum(row.size(threads) * max(REGISTER, row.dtype.compute.itemsize) for row in rows) // REGISTER


def held_rows(nest: ln.LoopNest, axis: str, threads: int) -> dict[str, Row]:
    """The local arrays whose elements are all of iterations of loops over ``axis`` alone, each of one."""
    every = statements(nest.body)
    loops = {x for s in every for x in headers(s) if x.axis.name == axis and x.kind == "thread" and x.lanes == threads}
    loops = {replace(loop, body=()) for loop in loops}
    if len(loops) != 1:
        return {}
    (loop,) = loops
    offsets: dict[str, list[Int]] = {}
    for statement in every:
        for access in reads(statement):
            offsets.setdefault(access.array, []).append(access.offset)
        if isinstance(statement, ln.Store):
            offsets.setdefault(statement.array, []).append(statement.offset)
    others = {name for s in every for name in _as_wholes(s)}
    rows = {}
    for array in (s for s in every if isinstance(s, ln.Alloc) and s.space == "local" and s.name not in others):
        widths = {_width(offset, loop) for offset in offsets.get(array.name, [])}
        if len(widths) == 1 and (width := widths.pop()):
            rows[array.name] = Row(loop, width, array.dtype)
    return rows


def _as_wholes(statement: ln.Statement) -> list[str]:
    """The arrays that ``statement`` itself reads and writes other than as elements that it names."""
    parts = statement.fields
    if isinstance(statement, ln.Store):
        return []
    return [name for field in (*parts.reads, *parts.writes) for name in _several(getattr(statement, field))]


def _several(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()


def _width(offset: Int, loop: ln.Loop) -> int:
    """How many elements an iteration has of an array where it has that at ``offset``; 0 where others may have it."""
    linear = sym.coefficient(offset, loop.axis)
    if linear is None:
        return 0
    width, rest = linear
    if not isinstance(width, int) or width < 1:
        return 0
    return width if sym.always(rest) and sym.always(width - 1 - rest) else 0
