"""The transform of a chain of contractions into one pass over blocks of columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule import conditions, online
from luminal.core.schedule import nest as ln
from luminal.core.schedule.online import Carried
from luminal.core.schedule.rewrite_nest import (
    Body,
    prefix,
    replace_leaves,
    replace_scalars,
    substitute,
    substitute_scalar,
    wrap,
)
from luminal.core.schedule.tensorise import factors_of, panel_start, stored_type
from luminal.core.symbolic import Int, Var
from luminal.core.types import bool_


@dataclass(frozen=True)
class Stream:
    """::

    for .., m < M:                                        for .., groups of m:
        for t < T:                                            m0, r, sum = -inf, 0, 0         (for each row)
            row[t] = f(sum over k of A[m,k] * B[k,t])         for blocks of t:
        d = max over t of row[t]                                  for tiles of rows:
        r = sum over t of e(row[t] - d)          =>                   S = Contract(A rows, B panels)
        for n < N:                                                    d' = max(d, max of f(S));  P = e(f(S) - d')
            store g(r) * sum over t of                                r, sum *= e(d - d');  r += sum of P;  d = d'
                e(row[t] - d) * C[t,n]                                sum += Contract(P, C)
                                                              store g(r) * sum

    The columns ``t`` (``axis``) are taken ``block`` at a time, and the reductions along them carried from block to
    block (``online.derive``). A task has ``group`` tiles of up to ``rows`` rows, so that a block of B and C is read
    once for all of them; the first contraction takes up to ``first_rows`` of them at once. Blocks in which every value
    is -inf by structure are not visited.

    Legal where both sums are contractions (as for ``Tensorise``; ``columns`` and ``width`` are those of B and C), where
    N is a number, and where each reduction follows those before it by a factor.
    """

    axis: str
    m: str
    rows: int
    first_rows: int
    columns: int
    width: int
    lanes: int
    block: int
    group: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return _Streamed(self, nest).nest()


class _Streamed:
    """One application of the transform: the parts of the serial nest, and the parts of the new one."""

    def __init__(self, by: Stream, nest: ln.LoopNest) -> None:
        self.by = by
        self.before = nest
        self.loops, inside = prefix(nest.body)
        match inside:
            case (ln.Alloc() as row, ln.Loop() as along, *middle, ln.Loop() as columns):
                reductions = [r for r in middle if isinstance(r, ln.Reduction)]
            case _:
                raise ScheduleError("stream: the nest is not a row, reductions along it and a loop over columns")
        last, *self.stores = columns.body
        if len(reductions) < len(middle) or not isinstance(last, ln.Reduction):
            raise ScheduleError("stream: something other than a reduction stands between the row and its use")
        if not isinstance(columns.extent, int):
            raise ScheduleError(f"stream: the number of columns, {columns.extent}, is not fixed")
        self.row, self.t, self.n, self.width = row, along, columns, columns.extent
        self.stride = -(-columns.extent // by.width) * by.width  # elements between the rows of the running sum
        (self.first,) = (s for s in along.body if isinstance(s, ln.Reduction))
        self.lets = tuple(s for s in along.body if isinstance(s, ln.Let))
        (self.element,) = (s.value for s in along.body if isinstance(s, ln.Store))
        self.m = self._loop(self.loops, by.m)
        self._loop([along], by.axis)
        *self.states, self.result = online.derive([*reductions, last], self.t.axis)
        self.dtype = last.dtype

    @staticmethod
    def _loop(loops: list[ln.Loop], name: str) -> ln.Loop:
        for loop in loops:
            if loop.axis.name == name:
                return loop
        raise ScheduleError(f"stream: no loop over {name!r} where it should be")

    def nest(self) -> ln.LoopNest:
        """Groups of tiles as the tasks; in each, the states, the blocks, and the stores."""
        by, m = self.by, self.m
        tiles = sym.ceildiv(m.extent, by.rows)
        groups = sym.ceildiv(tiles, by.group)
        group = sym.axis(f"{by.m}_2", groups)
        lead: list[ln.Statement] = []
        low = self._named(lead, m, "tile", sym.floordiv(group * tiles, groups), 0, tiles - 1)
        count = self._named(lead, m, "tiles", sym.floordiv((group + 1) * tiles, groups) - low, 1, by.group)
        begin = self._named(lead, m, "begin", sym.floordiv(low * m.extent, tiles), 0, m.axis.hi)
        end = sym.floordiv((low + count) * m.extent, tiles)
        height = self._named(lead, m, "height", end - begin, 1, by.group * by.rows)
        row = sym.var(f"{by.m}_row", 0, by.group * by.rows - 1)
        body = (
            *lead,
            *self._allocations(),
            *_over(row, height, self._initial(row)),
            *self._blocks(begin, height, lambda tile: sym.floordiv((low + tile) * m.extent, tiles), count),
            *_over(row, height, self._final(begin, row)),
        )
        grid = sym.as_var(group)
        outer = [loop for loop in self.loops if loop is not m]
        outer += [] if grid is None else [ln.Loop(grid, groups, "serial", ())]
        return replace(self.before, body=wrap(outer, body))

    @staticmethod
    def _named(into: list[ln.Statement], loop: ln.Loop, suffix: str, value: Int, low: int, high: Int) -> Int:
        """A name for ``value``, which lies in ``low .. high``, that the statements ``into`` give; a number as it is."""
        name = sym.as_var(sym.var(f"{loop.axis.name}_{suffix}", low, high))
        if isinstance(value, int) or name is None:
            return value
        into.append(ln.Assign(name, value))
        return sym.var(name.name, low, high)

    # ---- before and after the blocks -------------------------------------------------------------------------------

    def _allocations(self) -> list[ln.Statement]:
        by = self.by
        rows = by.group * by.rows
        return [
            ln.Alloc("tile", self.dtype, by.rows * by.block),
            ln.Alloc(self.row.name, self.row.dtype, by.rows * by.block),
            ln.Alloc(self.result.name, self.dtype, rows * self.stride),
            *(ln.Alloc(state.name, self.dtype, rows) for state in self.states),
        ]

    def _initial(self, row: Int) -> Body:
        start = {ops.MAX_REDUCE: self.number(-np.inf), ops.SUM_REDUCE: self.number(0.0)}
        states = [ln.Store(state.name, row, start[state.op]) for state in self.states]
        return (*states, self._columns(self.stride, self.result.name, row, start[ops.SUM_REDUCE]))

    def _final(self, begin: Int, row: Int) -> Body:
        """The stores, with every reduction at its final value."""
        by: dict[ln.Scalar, ln.Scalar] = {}
        for state in (*self.states, self.result):
            value = self._sum(row) if state is self.result else ln.load(state.name, row, self.dtype)
            for factor in state.outside:
                value = self.times(value, replace_leaves(factor, by))
            for condition in state.conditions:
                value = ln.apply(ops.SELECT, (replace_leaves(condition, by), value, self.number(0.0)), None, self.dtype)
            by[ln.temporary(state.name, self.dtype)] = value
        stores = replace_scalars(tuple(self.stores), lambda value: replace_leaves(value, by))
        loop = ln.Loop(self.n.axis, self.width, "vector", stores, self.by.lanes)
        return (ln.Assign(self.m.axis, begin + row), loop)

    def _sum(self, row: Int) -> ln.Scalar:
        """The running sum of a row of the group, at the column of the loop over columns."""
        return ln.load(self.result.name, row * self.stride + sym.expr(self.n.axis), self.dtype)

    def _columns(self, extent: int, array: str, row: Int, value: ln.Scalar) -> ln.Loop:
        """``value`` stored to ``extent`` columns of a row of the group."""
        store = ln.Store(array, row * self.stride + sym.expr(self.n.axis), value)
        return ln.Loop(self.n.axis, extent, "vector", (store,), self.by.lanes)

    # ---- blocks ----------------------------------------------------------------------------------------------------

    def _blocks(self, begin: Int, height: Int, start: Callable[[Int], Int], count: Int) -> Body:
        """The loop over blocks of columns, and the tiles in it: ``start`` is the first row of a tile of the group."""
        by, m, t = self.by, self.m, self.t
        before: list[ln.Statement] = []
        first, end = self._visited(before, begin, begin + height - 1)
        skipped = sym.floordiv(first, by.block)
        step = sym.axis(f"{by.axis}_1", sym.ceildiv(t.extent, by.block))
        lead: list[ln.Statement] = []
        block = skipped + step
        size = sym.minimum(by.block, end - block * by.block)
        width = self._named(lead, t, "width", by.block if sym.mod(end, by.block) == 0 else size, 1, by.block)
        tile = sym.axis(f"{by.m}_1", by.group)
        body: list[ln.Statement] = []
        first_row = self._named(body, m, "first", start(tile), 0, m.axis.hi)
        rows = self._named(body, m, "rows", start(tile + 1) - start(tile), 1, by.rows)
        body += self._first_contraction(first_row, rows, block, width)
        body += self._carry(first_row, rows, first_row - begin, block * by.block, width)
        body += self._last_contraction(rows, first_row - begin, block * by.block, width)
        blocks = sym.ceildiv(end, by.block) - skipped
        return (*before, *_over(step, blocks, (*lead, *_over(tile, count, tuple(body)))))

    def _visited(self, into: list[ln.Statement], top: Int, bottom: Int) -> tuple[Int, Int]:
        """The columns ``[first, end)`` outside of which every value in the rows ``top .. bottom`` is -inf by structure;
        the statements ``into`` name them."""
        t = self.t
        known = {loop.axis for loop in self.loops} | set(self.before.dims)
        first: Int = 0
        end: Int = t.extent
        for condition in conditions.needed(self.element):
            linear, of_row = sym.coefficient(condition, t.axis), sym.coefficient(condition, self.m.axis)
            if linear is None or of_row is None or not isinstance(of_row[0], int):
                continue
            slope, rest = linear
            if slope not in (1, -1) or not sym.variables(rest) <= known:
                continue
            # The row for which the condition holds farthest.
            farthest = sym.substitute(rest, {self.m.axis: bottom if of_row[0] > 0 else top})
            if slope == -1:
                end = sym.minimum(end, sym.maximum(farthest + 1, 0))
            else:
                first = sym.maximum(first, sym.minimum(-farthest, t.extent))
        end = self._named(into, t, "end", end, 0, t.extent) if end != t.extent else end
        return self._named(into, t, "begin", first, 0, t.extent), end

    def _first_contraction(self, first_row: Int, rows: Int, block: Int, width: Int) -> Body:
        """The first contraction, a panel of columns at a time."""
        by, t = self.by, self.t
        a, b = factors_of(self.first, t.axis)
        if self.m.axis in sym.variables(b.offset) or t.axis in sym.variables(a.offset):
            raise ScheduleError("stream: the operands of the first contraction do not have rows and columns apart")
        panel = sym.axis(f"{by.axis}_2", by.block // by.columns)
        column = sym.axis(f"{by.axis}_0", by.columns)
        start = (block * (by.block // by.columns) + panel) * by.columns
        b_offset = panel_start(sym.substitute(b.offset, {t.axis: start + column}), column, by.columns)
        parts = 1 if by.rows <= by.first_rows else sym.ceildiv(rows, by.first_rows)
        part = sym.axis(f"{by.m}_3", -(-by.rows // by.first_rows))
        top = sym.floordiv(part * rows, parts)
        height: list[ln.Statement] = []
        taken = self._named(height, self.m, "taken", sym.floordiv((part + 1) * rows, parts) - top, 1, by.first_rows)
        a_row, a_offset = self._linear("A", a.offset, self.m.axis)
        for loop in self.first.loops:
            self._linear("A", a.offset, loop.axis)
            self._linear("B", b_offset, loop.axis)
        contract = ln.Contract(
            "tile", self.first.dtype, a.array, stored_type(self.before, a.array),
            a_offset + a_row * (first_row + top), a_row, b.array, stored_type(self.before, b.array), b_offset,
            self.first.loops, taken, by.first_rows, by.columns, by.lanes,
            tile_offset=panel * by.columns + top * by.block, tile_row=by.block,
        )  # fmt: skip
        return _over(panel, sym.ceildiv(width, by.columns), _over(part, parts, (*height, contract)))

    def _last_contraction(self, rows: Int, local: Int, position: Int, width: Int) -> Body:
        """The second contraction, onto the running sum."""
        by = self.by
        (factor,) = (f for f in self.result.inside if self.n.axis in online.variables(f))
        other = factor.operands[0].leaf if factor.op is ops.CAST else factor.leaf
        if not isinstance(other, ln.Access) or other.valid or self.m.axis in sym.variables(other.offset):
            raise ScheduleError("stream: the right operand of the last sum is not an array element of its own")
        step = Var(f"{by.axis}_4", 0, by.block - 1)
        panel = sym.axis(f"{self.n.axis.name}_1", self.stride // by.width)
        column = sym.axis(f"{self.n.axis.name}_0", by.width)
        where = {self.t.axis: position + sym.expr(step), self.n.axis: panel * by.width + column}
        b_offset = panel_start(sym.substitute(other.offset, where), column, by.width)
        self._linear("C", b_offset, step)
        contract = ln.Contract(
            self.result.name, self.dtype, "tile", self.dtype, sym.expr(step), by.block,
            other.array, stored_type(self.before, other.array), b_offset, (ln.Loop(step, width, "serial", ()),),
            rows, by.rows, by.width, by.lanes,
            tile_offset=local * self.stride + panel * by.width, tile_row=self.stride, accumulate=True,
        )  # fmt: skip
        return _over(panel, self.stride // by.width, (contract,))

    @staticmethod
    def _linear(which: str, offset: Int, axis: Var) -> tuple[Int, Int]:
        found = sym.coefficient(offset, axis)
        if found is None:
            raise ScheduleError(f"stream: {which} at {offset} is not linear in {axis}")
        return found

    # ---- what is carried -------------------------------------------------------------------------------------------

    def _carry(self, first_row: Int, rows: Int, local: Int, position: Int, width: Int) -> Body:
        """For each row of a tile: the maxima moved on, what follows them, and in the tile the left operand of
        the last sum."""
        by = self.by
        row = sym.axis(f"{by.m}_0", by.rows)
        at = Var(f"{by.axis}_3", 0, by.block - 1)
        place = row * by.block + sym.expr(at)
        loop = ln.Loop(at, width, "vector", (), by.lanes)
        where = {self.t.axis: position + sym.expr(at)}
        block = _Block(self, loop, where, ln.load(self.row.name, place, self.row.dtype))
        tile = {ln.temporary(self.first.name, self.first.dtype): ln.load("tile", place, self.first.dtype)}
        element = substitute_scalar(replace_leaves(self.element, tile), block.where, {})
        kept: Body = (*substitute(self.lets, block.where), ln.Store(self.row.name, place, element))
        body: list[ln.Statement] = [ln.Assign(self.m.axis, first_row + row)]
        for state in (s for s in self.states if s.op is ops.MAX_REDUCE):
            body += block.maximum(state, local + row, kept, element if kept else block.row)
            kept = ()
        if kept:
            raise ScheduleError("stream: no maximum goes along with the sums")
        kept = (ln.Store("tile", place, block.value(self._left(), block.row)),)
        for state in (s for s in self.states if s.op is ops.SUM_REDUCE):
            body += block.sum(state, local + row, kept)
            kept = ()
        if kept:
            body.append(replace(loop, body=kept))
        if self.result.moves:
            moved = self.times(self._sum(local + row), block.factor(self.result))
            body.append(self._columns(self.width, self.result.name, local + row, moved))
        return _over(row, rows, tuple(body))

    def _left(self) -> Carried:
        """The factors of the last sum that do not depend on the columns of the result: its left operand."""
        mine = tuple(f for f in self.result.inside if self.n.axis not in online.variables(f))
        if len(mine) + 1 != len(self.result.inside) or not mine:
            raise ScheduleError("stream: the last sum is not over a value of the row times an array element")
        return replace(self.result, inside=mine)

    def number(self, value: float) -> ln.Scalar:
        return ln.literal(np.array(value, self.dtype.numpy).tobytes(), self.dtype)

    def times(self, left: ln.Scalar, right: ln.Scalar) -> ln.Scalar:
        return ln.apply(ops.MUL, (left, right), None, self.dtype)


class _Block:
    """The reductions of one row in one block: ``where`` is the place of its columns, ``row`` the kept value there."""

    def __init__(self, nest: _Streamed, loop: ln.Loop, where: dict[Var, Int], row: ln.Scalar) -> None:
        self.nest = nest
        self.dtype = nest.dtype
        self.loop = loop
        self.where = where
        self.row = row
        self.maxima: dict[ln.Scalar, ln.Scalar] = {}

    def maximum(self, state: Carried, place: Int, before: Body, row: ln.Scalar) -> Body:
        """``state`` moved on by the block's maximum; ``before`` runs for each column first, and gives ``row``."""
        old, new, block = (self._temporary(state.name, suffix) for suffix in ("old", "new", "block"))
        value = self.value(state, row)
        # Where nothing has counted yet, any finite number will do: every factor is exp(-inf - it) = 0.
        finite = (self._is_empty(new), self.nest.number(0.0), new)
        self.maxima[ln.temporary(state.name, self.dtype)] = ln.apply(ops.SELECT, finite, None, self.dtype)
        return (
            ln.Reduction(f"{state.name}_block", state.op, self.dtype, (self.loop,), before, value),
            ln.Define(f"{state.name}_old", ln.load(state.name, place, self.dtype)),
            ln.Define(f"{state.name}_new", ln.apply(ops.MAX, (old, block), None, self.dtype)),
            ln.Store(state.name, place, new),
        )

    def sum(self, state: Carried, place: Int, before: Body) -> Body:
        """``state`` moved to the new maxima, and the block's sum added."""
        value = self.value(state, self.row)
        total = ln.load(state.name, place, self.dtype)
        if state.moves:
            total = self.nest.times(total, self.factor(state))
        total = ln.apply(ops.ADD, (total, self._temporary(state.name, "block")), None, self.dtype)
        reduction = ln.Reduction(f"{state.name}_block", state.op, self.dtype, (self.loop,), before, value)
        return (reduction, ln.Store(state.name, place, total))

    def value(self, state: Carried, row: ln.Scalar) -> ln.Scalar:
        """What ``state`` reduces, in this block: ``row`` for the value of the row, the new maxima for theirs."""
        product = state.inside[0]
        for factor in state.inside[1:]:
            product = self.nest.times(product, factor)
        of_row = ln.load(self.nest.row.name, sym.expr(self.nest.t.axis), self.nest.row.dtype)
        return substitute_scalar(replace_leaves(product, {of_row: row, **self.maxima}), self.where, {})

    def factor(self, state: Carried) -> ln.Scalar:
        """What the carried part of ``state`` is multiplied with when the maxima that it follows move."""
        found: list[ln.Scalar] = []
        for move in dict.fromkeys(state.moves):
            old, new = (self._temporary(move.state, suffix) for suffix in ("old", "new"))
            negative = self.nest.times(new, self.nest.number(-1.0))
            difference = ln.apply(ops.ADD, (old, negative), None, self.dtype)
            if move.scale != 1.0:
                difference = self.nest.times(difference, self.nest.number(move.scale))
            factor = ln.apply(ops.EXP2, (difference,), move.attr, self.dtype)
            # Nothing has counted before: the carried part is 0, and -inf less -inf must not make it NaN.
            guarded = (self._is_empty(old), self.nest.number(0.0), factor)
            found.append(ln.apply(ops.SELECT, guarded, None, self.dtype))
        product = found[0]
        for factor in found[1:]:
            product = self.nest.times(product, factor)
        return product

    def _temporary(self, name: str, suffix: str) -> ln.Scalar:
        return ln.temporary(f"{name}_{suffix}", self.dtype)

    def _is_empty(self, maximum: ln.Scalar) -> ln.Scalar:
        return ln.apply(ops.EQUAL, (maximum, self.nest.number(-np.inf)), None, bool_)


def _over(axis: Int, extent: Int, body: Body) -> Body:
    """``body`` in a serial loop, or alone where ``axis`` is a number."""
    variable = sym.as_var(axis)
    return body if variable is None else (ln.Loop(variable, extent, "serial", body),)
