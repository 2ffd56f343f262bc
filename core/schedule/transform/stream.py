"""The transform of a chain of contractions into one pass over blocks of columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.printer import brief
from luminal.core.schedule.contraction.contraction import Tile
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.carried import Carried
from luminal.core.schedule.nest.operands import factors_of, stored_type
from luminal.core.schedule.nest.rewrite import substitute, substitute_scalar, wrap
from luminal.core.schedule.nest.walk import Body
from luminal.core.schedule.transform.carry import ChainPass, RowBlock, in_loop
from luminal.core.schedule.transform.tensorise import check_run, start_of_b
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


@dataclass(frozen=True, repr=False)
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
    block (``carried.derive``), unless every task visits one block only. A task has ``group`` tiles as high as the
    ``last`` contraction's, which share each block of B and C; the ``first`` contraction may take fewer rows at once.
    Blocks in which every value is -inf by structure are not visited. Operands of the last contraction may be rounded to
    the type ``operand``, where one is given; P is rounded where a matrix unit multiplies it.

    Legal where both sums are contractions (as for ``Tensorise``), where N is a number, and where each reduction follows
    those before it by a factor. Where the row is read, not computed by a contraction, there is no ``first``.
    """

    axis: str
    m: str
    first: Tile | None
    last: Tile
    block: int
    group: int
    operand: DType | None = None

    __repr__ = brief

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return _Streamed(self, nest).nest()


class _Blocks(NamedTuple):
    """The blocks that a group of rows visits: ``number`` of them after ``skipped`` ones, up to the column ``end``."""

    skipped: Int
    number: Int
    end: Int


class _Streamed(ChainPass):
    """One application of the transform."""

    def __init__(self, by: Stream, nest: ln.LoopNest) -> None:
        super().__init__(nest, by.axis, by.m, by.operand)
        if (by.first is None) != (self.first is None):
            raise ScheduleError("stream: a tile of the first contraction where there is none, or the other way round")
        if by.last.unit is not None and by.last.unit.left != by.operand:
            raise ScheduleError(f"stream: {by.last.unit.name} multiplies {by.last.unit.left}, which P is not")
        self.by = by
        self.rows = by.last.rows
        self.stride = -(-self.width // by.last.columns) * by.last.columns  # elements between rows of the running sum
        self.row_array = "tile" if self.row.dtype == self.dtype else self.row.name
        self.weights = "tile" if by.last.unit is None else "weights"
        self.carries = True  # from block to block; ``nest`` clears it where tasks visit one block

    def nest(self) -> ln.LoopNest:
        """Groups of tiles as the tasks; in each, the states, the blocks, and the stores."""
        by, m = self.by, self.m
        tiles = sym.ceildiv(m.extent, self.rows)
        groups = sym.ceildiv(tiles, by.group)
        group = sym.axis(f"{by.m}_2", groups)
        lead: list[ln.Statement] = []
        low = self.named(lead, m, "tile", sym.floordiv(group * tiles, groups), 0, tiles - 1)
        count = self.named(lead, m, "tiles", sym.floordiv((group + 1) * tiles, groups) - low, 1, by.group)
        begin = self.named(lead, m, "begin", sym.floordiv(low * m.extent, tiles), 0, m.axis.hi)
        end = sym.floordiv((low + count) * m.extent, tiles)
        height = self.named(lead, m, "height", end - begin, 1, by.group * self.rows)
        row = sym.var(f"{by.m}_row", 0, by.group * self.rows - 1)
        if by.group * self.rows == 1:
            lead.append(ln.Assign(m.axis, begin))
        visit: list[ln.Statement] = []
        first, end = self.visited(visit, begin, begin + height - 1)
        skipped = sym.floordiv(first, by.block)
        number = sym.ceildiv(end, by.block) - skipped
        self.carries = not (sym.lower(number) == 1 == sym.upper(number))
        blocks = _Blocks(skipped, number if self.carries else 1, end)
        body = (
            *lead,
            *self._allocations(),
            *(in_loop(row, height, self._initial(row)) if self.carries else ()),
            *visit,
            *self._blocks(blocks, begin, lambda tile: sym.floordiv((low + tile) * m.extent, tiles), count),
            *in_loop(row, height, self._final(begin, row)),
        )
        grid = sym.as_var(group)
        outer = [loop for loop in self.loops if loop is not m]
        outer += [] if grid is None else [ln.Loop(grid, groups, "serial", ())]
        return replace(self.before, body=wrap(outer, body))

    # ---- before and after the blocks -------------------------------------------------------------------------------

    def _allocations(self) -> list[ln.Statement]:
        by = self.by
        rows = by.group * self.rows
        return [
            ln.Alloc("tile", self.dtype, self.rows * by.block),
            *([] if by.last.unit is None else [ln.Alloc(self.weights, by.last.unit.left, self.rows * by.block)]),
            *([] if self.row_array == "tile" else [ln.Alloc(self.row.name, self.row.dtype, self.rows * by.block)]),
            ln.Alloc(self.result.name, self.dtype, rows * self.stride),
            *(ln.Alloc(state.name, self.dtype, rows) for state in self.states),
            *(ln.Alloc(_next_maximum(state), self.dtype, self.rows) for state in self.maxima if self.carries),
        ]

    def _initial(self, row: Int) -> Body:
        states = [ln.Store(state.name, row, self.start(state.op)) for state in self.states]
        return (*states, self._columns(self.stride, self.result.name, row, self.start(ops.SUM_REDUCE)))

    def _final(self, begin: Int, row: Int) -> Body:
        """The stores of a row of the group."""
        loop = ln.Loop(self.n.axis, self.width, "vector", self.final(row, self._sum(row)), self.by.last.lanes)
        return (*self._at(row, begin + row), loop)

    def _at(self, row: Int, value: Int) -> Body:
        """The assignment of the row ``value`` where ``row`` is a loop's variable; a single row is assigned outside."""
        return () if sym.as_var(row) is None else (ln.Assign(self.m.axis, value),)

    def _sum(self, row: Int) -> ln.Scalar:
        """The running sum of a row of the group, at the column of the loop over columns."""
        return ln.load(self.result.name, row * self.stride + sym.expr(self.n.axis), self.dtype)

    def _columns(self, extent: int, array: str, row: Int, value: ln.Scalar) -> ln.Loop:
        """A loop that stores ``value`` to ``extent`` columns of a row of the group."""
        store = ln.Store(array, row * self.stride + sym.expr(self.n.axis), value)
        return ln.Loop(self.n.axis, extent, "vector", (store,), self.by.last.lanes)

    # ---- blocks ----------------------------------------------------------------------------------------------------

    def _blocks(self, blocks: _Blocks, begin: Int, start: Callable[[Int], Int], count: Int) -> Body:
        """The loop over ``blocks`` of columns, and the ``count`` tiles in it: ``start`` is the first row of a tile."""
        by, m, t = self.by, self.m, self.t
        step = sym.axis(f"{by.axis}_1", sym.ceildiv(t.extent, by.block))
        lead: list[ln.Statement] = []
        block, end = blocks.skipped + step, blocks.end
        size = sym.minimum(by.block, end - block * by.block)
        width = self.named(lead, t, "width", by.block if sym.mod(end, by.block) == 0 else size, 1, by.block)
        tile = sym.axis(f"{by.m}_1", by.group)
        body: list[ln.Statement] = []
        first_row = self.named(body, m, "first", start(tile), 0, m.axis.hi)
        if self.rows == 1:
            body += self._at(tile, first_row)
        rows = self.named(body, m, "rows", start(tile + 1) - start(tile), 1, self.rows)
        if self.first is not None and by.first is not None:
            body += self._first_contraction(self.first, by.first, first_row, rows, block, width)
        body += self._carry(first_row, rows, first_row - begin, block * by.block, width)
        body += self._last_contraction(rows, first_row - begin, block * by.block, width)
        return in_loop(step, blocks.number, (*lead, *in_loop(tile, count, tuple(body))))

    def _first_contraction(
        self, product: ln.Reduction, first: Tile, first_row: Int, rows: Int, block: Int, width: Int
    ) -> Body:
        """The first contraction, a panel of columns at a time."""
        by, t = self.by, self.t
        a, b = factors_of(product, t.axis)
        if self.m.axis in sym.variables(b.offset) or t.axis in sym.variables(a.offset):
            raise ScheduleError("stream: the operands of the first contraction do not have rows and columns apart")
        panel = sym.axis(f"{by.axis}_2", by.block // first.columns)
        column = sym.axis(f"{by.axis}_0", first.columns)
        start = (block * (by.block // first.columns) + panel) * first.columns
        reduced = [loop.axis for loop in product.loops]
        b_offset = start_of_b(
            sym.substitute(b.offset, {t.axis: start + column}), reduced[-1], column, first.columns, first.unit
        )
        parts = 1 if self.rows <= first.rows else sym.ceildiv(rows, first.rows)
        part = sym.axis(f"{by.m}_3", -(-self.rows // first.rows))
        top = sym.floordiv(part * rows, parts)
        height: list[ln.Statement] = []
        taken = self.named(height, self.m, "taken", sym.floordiv((part + 1) * rows, parts) - top, 1, first.rows)
        a_row, a_offset = self._linear("A", a.offset, self.m.axis)
        for axis in reduced:
            self._linear("A", a.offset, axis)
            self._linear("B", b_offset, axis)
        if first.unit is not None:
            check_run(a_offset, reduced[-1])
        contract = ln.Contract(
            "tile", product.dtype, a.array, stored_type(self.before, a.array),
            a_offset + a_row * (first_row + top), a_row, b.array, stored_type(self.before, b.array), b_offset,
            product.loops, taken, first.rows, first.columns, first.lanes,
            tile_offset=panel * first.columns + top * by.block, tile_row=by.block,
            unit=first.unit, depth=first.depth,
        )  # fmt: skip
        return in_loop(panel, sym.ceildiv(width, first.columns), in_loop(part, parts, (*height, contract)))

    def _lanes(self) -> int:
        """Lanes of the loops over a block's columns: those of a vector of weights, so that two vectors of floats are
        rounded and stored as one; those of the last contraction where the block is narrower."""
        last = self.by.last
        weight = self.dtype if last.unit is None else last.unit.left
        lanes = last.lanes * self.dtype.itemsize // weight.itemsize
        return lanes if lanes <= self.by.block else last.lanes

    def _last_contraction(self, rows: Int, local: Int, position: Int, width: Int) -> Body:
        """The second contraction, onto the running sum where there is one."""
        by, last = self.by, self.by.last
        other = self.right()
        if other.valid:
            raise ScheduleError("stream: the right operand of the last sum is masked")
        step = Var(f"{by.axis}_4", 0, by.block - 1)
        panel = sym.axis(f"{self.n.axis.name}_1", self.stride // last.columns)
        column = sym.axis(f"{self.n.axis.name}_0", last.columns)
        where = {self.t.axis: position + sym.expr(step), self.n.axis: panel * last.columns + column}
        b_offset = start_of_b(sym.substitute(other.offset, where), step, column, last.columns, last.unit)
        self._linear("C", b_offset, step)
        contract = ln.Contract(
            self.result.name, self.dtype, self.weights, self.dtype if last.unit is None else last.unit.left,
            sym.expr(step), by.block, other.array, stored_type(self.before, other.array), b_offset,
            (ln.Loop(step, width, "serial", ()),), rows, self.rows, last.columns, last.lanes,
            tile_offset=local * self.stride + panel * last.columns, tile_row=self.stride, accumulate=self.carries,
            unit=last.unit, depth=last.depth,
        )  # fmt: skip
        return in_loop(panel, self.stride // last.columns, (contract,))

    @staticmethod
    def _linear(which: str, offset: Int, axis: Var) -> tuple[Int, Int]:
        found = sym.coefficient(offset, axis)
        if found is None:
            raise ScheduleError(f"stream: {which} at {offset} is not linear in {axis}")
        return found

    # ---- what is carried -------------------------------------------------------------------------------------------

    def _carry(self, first_row: Int, rows: Int, local: Int, position: Int, width: Int) -> Body:
        """For each row of a tile, the maxima updated; then, for each row again, the sums, and the left operand of the
        last sum in the tile. Two loops, so that no row's maximum delays the next row's: with rows of 128 columns, a
        chain of two products takes 0.93 of the time."""
        by = self.by
        row = sym.axis(f"{by.m}_0", self.rows)
        at = Var(f"{by.axis}_3", 0, by.block - 1)
        place = row * by.block + sym.expr(at)
        loop = ln.Loop(at, width, "vector", (), self._lanes())
        where = {self.t.axis: position + sym.expr(at)}
        row_value = ln.load(self.row_array, place, self.row.dtype)
        block = RowBlock(self, where, lambda state: ln.load(state.name, local + row, self.dtype))
        element = substitute_scalar(self.element_from(ln.load("tile", place, self.dtype)), where, {})
        before: Body = ()
        if self.lets or element != row_value:
            before = (*substitute(self.lets, where), ln.Store(self.row_array, place, element))
        here = self._at(row, first_row + row)
        maxima, body = [*here], [*here]
        for state in self.maxima:
            most, new = block.temporary(state, "block"), block.temporary(state, "new")
            maxima.append(block.reduced(state, loop, row_value, before))
            before = ()
            if self.carries:
                maxima += [*block.moved(state), ln.Store(_next_maximum(state), row, new)]
                body.append(ln.Define(f"{state.name}_old", block.so_far(state)))
                body.append(ln.Define(f"{state.name}_new", ln.load(_next_maximum(state), row, self.dtype)))
                body.append(ln.Store(state.name, local + row, new))
            else:
                maxima.append(ln.Store(state.name, local + row, most))
                body.append(block.only(state, block.so_far(state)))

        def add(state: Carried, value: ln.Scalar) -> None:
            total = block.added(state) if self.carries else block.temporary(state, "block")
            body.extend((block.reduced(state, loop, value, before), ln.Store(state.name, local + row, total)))

        for state in self.sums[:-1]:
            add(state, row_value)
        # The last loop reads the value before it stores the weight, which may be in the same place.
        name = f"{self.row.name}_kept"
        left = block.value(self.left(), ln.temporary(name, self.row.dtype))
        if by.last.unit is not None:
            stored = by.last.unit.left  # units flush its subnormal numbers to zero
            left = ln.apply(ops.CAST, (left,), ops.To(stored, subnormals=False), stored)
        before = (*before, ln.Define(name, row_value), ln.Store(self.weights, place, left))
        for state in self.sums[-1:]:
            add(state, ln.temporary(name, self.row.dtype))
        if not self.sums:
            body.append(replace(loop, body=before))
        if self.carries and self.result.moves:
            moved = self.times(self._sum(local + row), block.factor(self.result))
            body.append(self._columns(self.width, self.result.name, local + row, moved))
        return (*in_loop(row, rows, maxima), *in_loop(row, rows, body))


def _next_maximum(state: Carried) -> str:
    """The array of a maximum's values after the block, one for each row of a tile."""
    return f"{state.name}_next"
