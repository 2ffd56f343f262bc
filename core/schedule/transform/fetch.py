"""The transforms that prefetch what tiles read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.costs import Prefetching
from luminal.core.errors import ScheduleError
from luminal.core.printer import brief
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import flat_index, loops_of_b
from luminal.core.schedule.nest.rewrite import wrap
from luminal.core.schedule.nest.walk import Body, perfect_loops, reads, statements
from luminal.core.schedule.transform.tensorise import with_tiles
from luminal.core.symbolic import Int, Var

_ZERO: Int = 0


@dataclass(frozen=True, repr=False)
class FetchAhead:
    """::

    for n_1 < panels:  for m_1 < tiles:  tile = Contract(A rows, panel n_1)

    While the tiles inside the loop over ``panels`` read one panel of B, each of their steps prefetches an equal part of
    the next. A single tile of a matrix unit prefetches ``steps`` steps ahead; one of vectors does so by itself. Where
    blocks of terms run over panels, ``panels`` is the loop over blocks, or the one over groups of panels around it, and
    the part of B that these loops and those inside them read next is prefetched. Legal where there may be several
    panels, nothing else between that loop and the tile moves B, and a panel is contiguous.
    """

    panels: str
    steps: int = Prefetching.unit_steps

    __repr__ = brief

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops = _around_tile(nest.body)
        return with_tiles(nest, "fetch ahead", lambda tile: self._fetching(tile, loops))

    def _fetching(self, contract: ln.Contract, loops: list[ln.Loop]) -> ln.Contract:
        names = [loop.axis.name for loop in loops]
        if self.panels not in names:
            raise ScheduleError(f"fetch ahead: the nest has no outer loop over {self.panels!r}")
        inner = loops[names.index(self.panels) :]
        start = sym.substitute(contract.b_offset, {loop.axis: _ZERO for loop in contract.loops})
        last = max((k for k, loop in enumerate(inner) if loop.axis in sym.variables(start)), default=0)
        passing, tiles = inner[: last + 1], inner[last + 1 :]
        if len(passing) > 1 and not contract.accumulate:
            moving = ", ".join(sorted(x.axis.name for x in passing[1:] if x.axis in sym.variables(start)))
            raise ScheduleError(f"fetch ahead: B moves with {moving} too")
        if not has_contiguous_panels(contract):
            raise ScheduleError(f"fetch ahead: a panel of {contract.columns} columns is not contiguous in {contract.b}")
        steps = flat_index(loops_of_b(contract))
        after = _next(start, passing) - start
        panel = after if len(passing) == 1 else contract.columns * sym.product(x.axis.hi + 1 for x in contract.loops)
        count = sym.product(loop.extent for loop in tiles)
        # A single tile streams through B, which tiles of vectors prefetch for themselves.
        matrices = contract.unit is not None and not contract.unit.in_vectors
        near = self.steps * contract.depth * contract.columns if matrices else 0
        distance = sym.minimum(panel, sym.maximum(near, (count - 1) * panel)) if len(passing) == 1 else after
        if distance == 0:
            raise ScheduleError("fetch ahead: a single tile of vectors fetches what is next for itself")
        part = sym.ceildiv(contract.columns, count)
        number = flat_index(tiles) * sym.floordiv(panel, contract.columns) + steps
        return replace(contract, b_ahead=start + distance + number * part)


def _next(offset: Int, loops: Sequence[ln.Loop]) -> Int:
    """The value of ``offset`` in the next iteration of nested ``loops``."""
    number = flat_index(loops) + 1
    by: dict[Var, Int] = {}
    for loop in reversed(loops[1:]):
        by[loop.axis] = sym.mod(number, loop.axis.hi + 1)
        number = sym.floordiv(number, loop.axis.hi + 1)
    by[loops[0].axis] = number
    return sym.substitute(offset, by)


@dataclass(frozen=True, repr=False)
class FetchRows:
    """Each step of a tile prefetches a cache line, of ``line`` bytes, of a row of A at least ``tiles`` tiles further
    on: steps go through as many rows as a line has elements. Legal where a tile reads a contiguous run of each row,
    runs of different rows do not overlap, and the tile has at most as many rows as a line has elements, and as it has
    steps (``reads_runs``). Where rows are not equally far apart, the prefetch may be useless."""

    tiles: int = Prefetching.tiles
    line: int = Prefetching.line

    __repr__ = brief

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return with_tiles(nest, "fetch rows", self._further_rows)

    def _further_rows(self, contract: ln.Contract) -> ln.Contract:
        if not reads_runs(contract, self.line):
            raise ScheduleError(f"fetch rows: {contract.max_rows} rows of a tile are not runs of {contract.a}")
        row = self.tiles * contract.max_rows + sym.mod(
            flat_index(contract.loops), self.line // contract.a_type.itemsize
        )
        return replace(contract, a_ahead=contract.a_offset + row * contract.a_row)


@dataclass(frozen=True, repr=False)
class FetchResults:
    """::

    tile = Contract(A rows, B panel)                    for i < rows:  for each line of columns:
    for i < rows:                                           fetch x[i, line];  fetch y[i, line]
        for n_0 < columns (vector):                 =>  tile = Contract(A rows, B panel)
            y[i, n_0] = f(tile[i, n_0], x[i, n_0])      for i < rows:  for n_0 < columns (vector):  y[i, n_0] = f(..)

    Before a tile is summed, prefetches the cache lines that its results are computed with and stored to. Legal where
    results are computed with array elements that vary with the row and are contiguous along the columns, without
    lookups. ``line`` is the size of a cache line in bytes."""

    line: int = Prefetching.line

    __repr__ = brief

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        if not computed_with_rows(nest):
            raise ScheduleError("fetch results: there is no tile whose results are computed with rows of an array")
        loops, before, tile_and_after = _at_tile(nest)
        fetching = _Lines(nest, self.line, stored=True).of(tile_and_after[1:])
        return replace(nest, body=wrap(loops, (*before, *fetching, *tile_and_after)))


def computed_with_rows(nest: ln.LoopNest) -> bool:
    """Whether the results of a tile inside nested loops are computed with array elements that vary with its rows and
    are contiguous along its columns, without lookups."""
    _, _, tile_and_after = _at_tile(nest)
    return not nest.checked and bool(_Lines(nest, Prefetching.line, stored=False).of(tile_and_after[1:]))


def _at_tile(nest: ln.LoopNest) -> tuple[list[ln.Loop], Body, Body]:
    """The nested loops around a tile, the statements before the tile, and the tile with those after it."""
    loops, inside = perfect_loops(nest.body)
    at = next((k for k, s in enumerate(inside) if isinstance(s, ln.Contract)), len(inside))
    return loops, inside[:at], inside[at:]


class _Lines:
    """Prefetches of the lines, of ``line`` bytes, that vectors of ``nest`` read and, if ``stored``, write."""

    def __init__(self, nest: ln.LoopNest, line: int, stored: bool) -> None:
        self.line = line
        self.arrays = {array.name: array.dtype for array in nest.arrays}
        self.stored = stored

    def of(self, body: Body, rows: frozenset[Var] = frozenset(), named: Mapping[Var, Int] | None = None) -> Body:
        """The prefetches for ``body``. ``rows`` are the variables that change from row to row; ``named`` are assigned
        index variables."""
        found: list[ln.Statement] = []
        names = dict(named or {})
        for statement in body:
            match statement:
                case ln.Assign():
                    value = sym.substitute(statement.value, names)
                    names[statement.axis], rows = value, rows | sym.variables(value)
                case ln.Loop() if statement.kind == "vector":
                    found += self._beside(statement, rows, names)
                case ln.Loop() if statement.kind == "serial":
                    inner = self.of(statement.body, rows | {statement.axis}, names)
                    found += [replace(statement, body=inner)] if inner else []
                case _:
                    pass
        return tuple(found)

    def _beside(self, columns: ln.Loop, rows: frozenset[Var], names: Mapping[Var, Int]) -> Iterator[ln.Statement]:
        """The prefetches for accesses that are contiguous along the vectors of ``columns``."""
        places: dict[tuple[str, Int], None] = {}
        for statement in columns.body:
            places |= dict.fromkeys((access.array, access.offset) for access in reads(statement) if not access.valid)
            if self.stored and isinstance(statement, ln.Store) and not statement.valid:
                places[statement.array, statement.offset] = None
        by_line: dict[int, list[tuple[str, Int]]] = {}
        for array, place in places:
            offset = sym.substitute(place, names)
            linear = sym.coefficient(offset, columns.axis)
            if array in self.arrays and linear is not None and linear[0] == 1 and sym.variables(offset) & rows:
                by_line.setdefault(self.line // self.arrays[array].itemsize, []).append((array, offset))
        for elements, fetched in by_line.items():
            yield from _each_line(columns, elements, fetched)


def _each_line(columns: ln.Loop, elements: int, places: Sequence[tuple[str, Int]]) -> Iterator[ln.Statement]:
    """A loop that prefetches ``places`` along ``columns``, a line of ``elements`` elements at a time, and one more line
    where a row does not begin at the start of a line."""
    count = sym.ceildiv(columns.extent, elements)
    line = sym.axis(f"{columns.axis.name}_line", count)

    def at(column: Int, place: tuple[str, Int]) -> ln.Prefetch:
        array, offset = place
        return ln.Prefetch(array, sym.substitute(offset, {columns.axis: column}))

    axis, body = sym.as_var(line), tuple(at(line * elements, place) for place in places)
    yield from body if axis is None else (ln.Loop(axis, count, "serial", body),)
    starts = ((place, sym.substitute(place[1], {columns.axis: 0})) for place in places)
    yield from (at(columns.extent - 1, place) for place, start in starts if sym.mod(start, elements) != 0)


def reads_runs(contract: ln.Contract, line: int) -> bool:
    """Whether a tile of vectors reads a contiguous run of each row of A, one element a step, runs do not overlap, and
    it has steps enough to fetch a line of ``line`` bytes of each row."""
    if contract.unit is not None or contract.prologue is not None or not isinstance(contract.a_row, int):
        return False
    start = sym.substitute(contract.a_offset, {loop.axis: _ZERO for loop in contract.loops})
    length = sym.upper(sym.product(loop.axis.hi + 1 for loop in contract.loops))
    if length is None or contract.a_offset - start != flat_index(contract.loops):
        return False
    return contract.max_rows <= min(length, line // contract.a_type.itemsize) and length <= contract.a_row


def _around_tile(body: Body) -> list[ln.Loop]:
    """The loops around the first tile in ``body``, outermost first; none where there is no tile."""
    for statement in body:
        if isinstance(statement, ln.Loop) and any(isinstance(s, ln.Contract) for s in statements(statement.body)):
            return [statement, *_around_tile(statement.body)]
    return []


def has_contiguous_panels(contract: ln.Contract) -> bool:
    """Whether each step of a tile reads the columns of B right after those of the step before."""
    start = sym.substitute(contract.b_offset, {loop.axis: _ZERO for loop in contract.loops})
    run = _ZERO if contract.unit is None else sym.expr(contract.loops[-1].axis) * contract.columns
    return contract.b_offset - start + run == flat_index(loops_of_b(contract)) * contract.columns
