"""The transforms that transpose, or interleave rows, by exchanging elements between registers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_statements
from luminal.core.schedule.nest.walk import Body
from luminal.core.schedule.transform.loops import find_loop
from luminal.core.symbolic import Int, Var

INTERLEAVED = 4  # vectors that are interleaved lane by lane, at most: each is shuffled with all before it


@dataclass(frozen=True)
class TransposeInRegisters:
    """::

    for a:  for b:  y[a + stride*b] = f(x[stride*a + b])        (along a: vectors; across them: b)

    ``lanes`` iterations of ``axis``, by a vector of the loop around it, are a block that is transposed in registers.
    Legal where that loop holds nothing else, and the loop over ``axis`` holds only definitions and stores.
    """

    axis: str
    lanes: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        find_loop(nest.body, self.axis)
        for statement in (s for s in nest.body if self._is_over_axis(s)):
            self._turned(statement, alone=False)
        return replace(nest, body=replace_statements(nest.body, self._marked)[0])

    def _marked(self, statement: ln.Statement) -> list[ln.Statement] | None:
        if not isinstance(statement, ln.Loop) or not any(map(self._is_over_axis, statement.body)):
            return None
        alone = len(statement.body) == 1
        return [replace(statement, body=tuple(self._turned(s, alone) for s in statement.body))]

    def _is_over_axis(self, statement: ln.Statement) -> bool:
        return isinstance(statement, ln.Loop) and statement.axis.name == self.axis

    def _turned(self, statement: ln.Statement, alone: bool) -> ln.Loop:
        assert isinstance(statement, ln.Loop)
        if statement.kind != "serial":
            raise ScheduleError(f"transpose in registers: the loop over {self.axis!r} is {statement.kind}")
        _check_stores(statement, "transpose in registers")
        if not alone:
            raise ScheduleError(f"transpose in registers: the loop over {self.axis!r} is not alone in another")
        return replace(statement, kind="across", lanes=self.lanes)


@dataclass(frozen=True)
class StoreTileTransposed:
    """::

    for i < rows:  for j < columns (vector):          for i < rows (vector):  for j < columns (across):
        store f(tile[i, j])                     =>        store f(tile[i, j])

    Where the result is contiguous from row to row, the columns of a tile are stored as vectors instead of its rows,
    whose elements would each be on another cache line. Legal where only definitions and stores follow tiles of rows.
    """

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        body, count = replace_statements(nest.body, self._turned)
        if not count:
            raise ScheduleError("store tile transposed: no tile has rows that a loop goes through")
        return replace(nest, body=body)

    def _turned(self, statement: ln.Statement) -> list[ln.Statement] | None:
        if not isinstance(statement, ln.Loop) or statement.kind != "serial" or len(statement.body) != 2:
            return None
        row, columns = statement.body
        if not isinstance(row, ln.Assign) or not isinstance(columns, ln.Loop) or columns.kind != "vector":
            return None
        _check_stores(columns, "store tile transposed")
        across = replace(columns, kind="across")
        return [replace(statement, kind="vector", lanes=columns.lanes, body=(row, across))]


def _check_stores(loop: ln.Loop, transform: str) -> None:
    if not only_stores(loop.body):
        kind = next(type(s).__name__.lower() for s in loop.body if not only_stores((s,)))
        raise ScheduleError(f"{transform}: a {kind} lies inside the loop over {loop.axis.name!r}")


def only_stores(body: Body) -> bool:
    """Whether a body has only definitions and stores."""
    return all(isinstance(s, ln.Define | ln.Store) for s in body)


def is_transposed(access: ln.Access, across: Var, along: Var) -> bool:
    """Whether ``access`` reads elements contiguous along ``across`` and apart along ``along``, its masks only cut off
    the ends of both axes, and masked elements are zeros."""

    def moves(value: Int) -> list[Int | None]:
        linear = (sym.coefficient(value, axis) for axis in (across, along))
        return [None if x is None else x[0] for x in linear]

    beside, apart = moves(access.offset)
    ends = ([-1, 0], [0, -1])
    return (
        beside == 1
        and apart not in (None, 0, 1)
        and not any(access.fill)
        and all(moves(condition) in ends for condition in access.valid)
    )


def is_interleaved(store: ln.Store, between: Var, along: Var, count: int) -> bool:
    """Whether ``store`` stores unmasked elements of two or four bytes in groups: ``count`` side by side along
    ``between``, and the groups of consecutive values of ``along`` one after the other."""

    def apart(axis: Var) -> Int | None:
        linear = sym.coefficient(store.offset, axis)
        return None if linear is None else linear[0]

    whole = store.value.dtype.bits in (16, 32) and not store.valid
    return whole and apart(between) == 1 and apart(along) == count
