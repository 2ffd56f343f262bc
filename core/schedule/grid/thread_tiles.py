"""How the threads of a block divide a tile of a product."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import SMALL, WARP, Fragment, in_pairs, in_rows
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import wrap
from luminal.core.schedule.nest.walk import Body
from luminal.core.symbolic import Int


@dataclass(frozen=True)
class Rectangle:
    """Each thread has ``rows x columns`` neighbouring elements of a tile."""

    rows: int
    columns: int

    def threads(self, rows: int, columns: int) -> int:
        """Threads of a tile; raises ScheduleError where the parts do not fill it."""
        if rows % self.rows or columns % self.columns:
            what = f"squares of {self.rows}" if self.rows == self.columns else f"{self.rows} x {self.columns} parts"
            raise ScheduleError(f"stage: {what} do not fill {rows} x {columns} elements")
        return (rows // self.rows) * (columns // self.columns)

    def of_thread(self, thread: Int, rows: int, columns: int) -> ThreadTile:
        """The part of a tile that ``thread`` has."""
        across = columns // self.columns
        top, left = sym.floordiv(thread, across) * self.rows, sym.mod(thread, across) * self.columns
        row, column = sym.axis("e0", self.rows), sym.axis("e1", self.columns)
        shape = (self.rows, self.columns)
        return ThreadTile(top, left, shape, (row, column), shape, top + row, left + column, None)


@dataclass(frozen=True)
class Square:
    """Each thread has ``side x side`` neighbouring elements of a tile."""

    side: int

    def threads(self, rows: int, columns: int) -> int:
        """Threads of a tile; raises ScheduleError where the parts do not fill it."""
        return Rectangle(self.side, self.side).threads(rows, columns)

    def of_thread(self, thread: Int, rows: int, columns: int) -> ThreadTile:
        """The part of a tile that ``thread`` has."""
        return Rectangle(self.side, self.side).of_thread(thread, rows, columns)


@dataclass(frozen=True)
class Warps:
    """Each warp, or each group of warps that multiply together, has ``rows x columns`` of a tile, as a matrix of
    fragments."""

    rows: int
    columns: int
    fragment: Fragment

    def threads(self, rows: int, columns: int) -> int:
        """Threads of a tile; raises ScheduleError where the parts do not fill it."""
        if rows % self.rows or columns % self.columns:
            raise ScheduleError(f"stage: warps of {self.rows} x {self.columns} do not fill {rows} x {columns} elements")
        if self.rows % self.fragment.rows or self.columns % self.fragment.columns:
            raise ScheduleError(f"stage: {self.fragment.name} does not fill {self.rows} x {self.columns} elements")
        return (rows // self.rows) * (columns // self.columns) * self.fragment.warp

    def of_thread(self, thread: Int, rows: int, columns: int) -> ThreadTile:
        """The part of a tile that ``thread`` has."""
        fragment, across = self.fragment, columns // self.columns
        warp, lane = sym.floordiv(thread, fragment.warp), sym.mod(thread, fragment.warp)
        top, left = sym.floordiv(warp, across) * self.rows, sym.mod(warp, across) * self.columns
        extents = (self.rows // fragment.rows, self.columns // fragment.columns, fragment.elements)
        axes = tuple(sym.axis(f"e{k}", extent) for k, extent in enumerate(extents))
        i, j, e = axes
        by = {fragment.lane: lane, fragment.element: e}
        row = top + i * fragment.rows + sym.substitute(fragment.row, by)
        column = left + j * fragment.columns + sym.substitute(fragment.column, by)
        return ThreadTile(top, left, (self.rows, self.columns), axes, extents, row, column, fragment)

    def regrouped(self, thread: Int, rows: int, columns: int) -> Neighbours:
        """The part of a tile that ``thread`` has, once the lanes of its warp have regrouped their elements. Raises
        ScheduleError where these do not lie as such lanes have them."""
        fragment, across, wide = self.fragment, columns // self.columns, 2 * SMALL
        beside, parts = max(1, wide // fragment.columns), max(1, fragment.elements // SMALL)
        if not _lies_in_pairs(fragment) or self.columns % (beside * fragment.columns):
            raise ScheduleError(f"stage: lanes do not hold pairs of {self.rows} x {self.columns} of {fragment.name}")
        of_group, number = sym.floordiv(thread, fragment.warp), sym.mod(thread, fragment.warp)
        top, left = sym.floordiv(of_group, across) * self.rows, sym.mod(of_group, across) * self.columns
        extents = (self.rows // fragment.rows, self.columns // (beside * fragment.columns), parts)
        i, j, part = axes = tuple(sym.axis(f"e{k}", extent) for k, extent in enumerate(extents))
        first = {fragment.lane: sym.floordiv(number, WARP) * WARP, fragment.element: part * SMALL}
        inner = in_rows(sym.mod(thread, WARP), 0)
        row = top + i * fragment.rows + sym.substitute(fragment.row, first) + inner.row
        column = left + j * (beside * fragment.columns) + sym.substitute(fragment.column, first) + inner.column
        place = ((i * extents[1] + j) * parts + part) * SMALL
        return Neighbours(axes, extents, row, column, place)


@cache
def _lies_in_pairs(fragment: Fragment) -> bool:
    """Whether ``SMALL`` elements of each lane lie in pairs: of a fragment, or of several side by side."""
    count = max(fragment.elements, SMALL)
    lane, number = np.divmod(np.arange(fragment.warp * count), count)

    def places(lane: Any, number: Any) -> tuple[Any, Any]:
        beside, element = np.divmod(number, fragment.elements)
        by = {fragment.lane.name: lane, fragment.element.name: element}
        return sym.evaluate(fragment.row, by), sym.evaluate(fragment.column, by) + beside * fragment.columns

    found, first = places(lane, number), places(lane // WARP * WARP, number // SMALL * SMALL)
    wanted = in_pairs(sym.var("lane", 0, WARP - 1), sym.var("e", 0, SMALL - 1))
    by = {"lane": lane % WARP, "e": number % SMALL}
    return all(np.array_equal(x - y, sym.evaluate(w, by)) for x, y, w in zip(found, first, wanted, strict=True))


@dataclass(frozen=True)
class Neighbours:
    """A thread's part of a tile in neighbours: ``SMALL`` of a row from ``row`` and ``column`` on, for all values of
    ``axes``; the first of them is its element number ``number``."""

    axes: tuple[Int, ...]
    extents: tuple[int, ...]
    row: Int
    column: Int
    number: Int

    def loops(self, body: Body) -> Body:
        """``body`` for each of the groups."""
        return _loops(self.axes, self.extents, body)


@dataclass(frozen=True)
class ThreadTile:
    """A thread's part of a tile: the elements at ``row`` and ``column`` for all values of ``axes``. They lie within the
    ``shape`` at ``top`` and ``left`` that the thread computes, alone or with its warp."""

    top: Int
    left: Int
    shape: tuple[int, int]
    axes: tuple[Int, ...]
    extents: tuple[int, ...]
    row: Int
    column: Int
    fragment: Fragment | None

    @property
    def size(self) -> int:
        """Elements of the thread."""
        return math.prod(self.extents)

    @property
    def number(self) -> Int:
        """The place of the element at ``axes`` among the thread's elements."""
        total: Int = 0
        for axis, extent in zip(self.axes, self.extents, strict=True):
            total = total * extent + axis
        return total

    def loops(self, body: Body) -> Body:
        """``body`` for each of the elements."""
        return _loops(self.axes, self.extents, body)


def _loops(axes: tuple[Int, ...], extents: tuple[int, ...], body: Body) -> Body:
    pairs = zip(axes, extents, strict=True)
    return wrap([ln.Loop(v, extent, "unroll", ()) for axis, extent in pairs if (v := sym.as_var(axis))], body)
