"""The transform of a chain of contractions into one pass over blocks of columns, for blocks of threads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import ALIGNMENT, BlockCosts
from luminal.core.schedule.grid.staged import Side, StagedOperand, StagedSteps, by_threads, staged
from luminal.core.schedule.grid.thread_tiles import Rectangle, Square, ThreadTile, Warps
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.carried import Carried
from luminal.core.schedule.nest.operands import product_of
from luminal.core.schedule.nest.rewrite import substitute, substitute_scalar
from luminal.core.schedule.nest.walk import Body
from luminal.core.schedule.transform.carry import ChainPass, RowBlock, in_loop
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


@dataclass(frozen=True)
class StreamStaged:
    """::

    for .., m < M:                                        for .., tiles of m:
        for t < T:                                            d, r, sum = -inf, 0, 0         (sum in registers)
            row[t] = f(sum over k of A[m,k] * B[k,t])         for blocks of t:
        d = max over t of row[t]                                  p = f(A rows * B columns)             (as by Stage)
        r = sum over t of e(row[t] - d)          =>               d' = max(d, max of p);  p = e(p - d')
        for n < N:                                                r, sum *= e(d - d');  r += sum of p;  d = d'
            store g(r) * sum over t of                            sum += p * C columns                  (as by Stage)
                e(row[t] - d) * C[t,n]                        store g(r) * sum

    ``Stream`` for a task of several threads: ``rows`` rows of a tile, ``block`` columns at a time. The first product,
    ``p``, and its reductions are in shared memory. ``first`` divides ``p`` among threads while it is summed, ``last``
    the running sum, of ``width`` columns, which stays in registers. ``depth`` terms of operands are staged at once, in
    two stages with ``ahead``; ``steps`` of a product are written out. The threads are divided evenly among rows, which
    they reduce in a fixed order. Where the nest has no first product, ``p`` is read. Factors of the sum that are
    rounded to the type ``operand``, where one is given, are rounded before they are divided by ``r``, and multiplied
    as such.

    Legal where both sums are products of array elements, masked by zeros at most, whose rows and columns are apart,
    where N is at most ``width``, and where each reduction follows those before it by a factor.
    """

    axis: str
    m: str
    rows: int
    block: int
    width: int
    depth: int
    first: Square | Warps
    last: Rectangle | Warps
    ahead: bool = False
    steps: int = field(default=BlockCosts.steps, repr=False)
    operand: DType | None = None

    @property
    def threads(self) -> int:
        """Threads of a task."""
        return self.first.threads(self.rows, self.block)

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return _Streamed(self, nest).nest()


class _Streamed(ChainPass):
    """One application of the transform."""

    def __init__(self, by: StreamStaged, nest: ln.LoopNest) -> None:
        super().__init__(nest, by.axis, by.m, by.operand)
        self.by = by
        self.threads = by.threads
        self.threads_per_row, rest = divmod(self.threads, by.rows)
        if rest or not self.threads_per_row or by.block % self.threads_per_row:
            raise ScheduleError(f"stream: {self.threads} threads do not divide {by.rows} rows of {by.block} columns")
        if by.last.threads(by.rows, by.width) != self.threads or self.width > by.width:
            raise ScheduleError(f"stream: {self.threads} threads do not divide sums of {self.width} columns")
        if by.block % by.depth:
            raise ScheduleError(f"stream: {by.depth} terms at once do not divide {by.block} columns")
        weight = by.operand or self.dtype
        self.product = _Columns("product", self.row.dtype, by.rows)
        self.weights = self.product if weight == self.row.dtype else _Columns("weights", weight, by.rows)
        thread = sym.var("t0", 0, self.threads - 1)
        self.thread = thread
        self.own_row, self.place_in_row = sym.mod(thread, by.rows), sym.floordiv(thread, by.rows)
        self.tile = by.first.of_thread(thread, by.rows, by.block)
        self.sum = by.last.of_thread(thread, by.rows, by.width)
        self.side = Side(self.m, by.rows, self.tile_begin(by.rows))

    def nest(self) -> ln.LoopNest:
        """Tiles as the tasks; in each, the states, the blocks, and the stores."""
        by, t = self.by, self.t
        lead: list[ln.Statement] = []
        skipped, step, count = self.blocks(lead, by.rows, by.block)
        columns = Side(t, by.block, (skipped + step) * by.block)
        value = self._last_steps(columns)
        allocations: Body = value.allocations()
        row: Body = (self._read(columns),)
        if self.first is not None:
            product = self._first_steps(self.first, columns)
            allocations = (*product.allocations(), *allocations)
            row = (
                self._by_threads(*self.tile.loops((self._set(self.tile, "tile", self.number(0.0)),))),
                *product.body(),
                self._by_threads(*self._products(columns)),
            )
        block = (*row, *self._reduced(columns), *value.body())
        body = (
            *lead,
            *self._allocations(),
            *allocations,
            self._by_rows(tuple(ln.Store(s.name, self._row, self.start(s.op)) for s in self.states)),
            self._by_threads(*self.sum.loops((self._set(self.sum, self.result.name, self.number(0.0)),))),
            *in_loop(step, count, block),
            self._by_threads(*self._stored()),
        )
        return self.over_tiles(by.rows, body, self.threads)

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def _allocations(self) -> Body:
        by = self.by
        states = [ln.Alloc(state.name, self.dtype, by.rows, "shared") for state in self.states]
        parts = [ln.Alloc(_partials(state.name), self.dtype, self.threads, "shared") for state in self.states]
        factor = [ln.Alloc(_factor(self.result.name), self.dtype, by.rows, "shared")] if self.result.moves else []
        return (
            *(columns.allocation(by.block) for columns in dict.fromkeys((self.product, self.weights))),
            *states, *parts, *factor,
            *([] if self.first is None else [ln.Alloc("tile", self.dtype, self.tile.size * self.threads, "registers")]),
            ln.Alloc(self.result.name, self.dtype, self.sum.size * self.threads, "registers"),
        )  # fmt: skip

    def _at(self, held: ThreadTile) -> Int:
        """The offset of an element of the thread's part of an array in registers."""
        return self.thread * held.size + held.number

    def _set(self, held: ThreadTile, array: str, value: ln.Scalar) -> ln.Store:
        return ln.Store(array, self._at(held), value)

    def _by_threads(self, *body: ln.Statement) -> ln.Loop:
        return by_threads(self.threads, *body)

    @property
    def _row(self) -> Int:
        return sym.axis(f"{self.by.m}_0", self.by.rows)

    def _by_rows(self, body: Body) -> ln.Loop:
        """``body`` for each row of the tile."""
        variable = sym.as_var(self._row)
        assert variable is not None
        return ln.Loop(variable, self.by.rows, "thread", body, self.threads)

    # ---- products --------------------------------------------------------------------------------------------------

    def _first_steps(self, first: ln.Reduction, columns: Side) -> StagedSteps:
        """The steps of the product of a tile of rows and a block of columns."""
        by = self.by
        factors = product_of(first)
        for factor, axis in zip(factors, (self.t.axis, self.m.axis), strict=True):
            if axis in sym.variables(factor.offset).union(*(sym.variables(v) for v in factor.valid)):
                raise ScheduleError("stream: the operands of the first contraction do not have rows and columns apart")
        a, b = (
            self._strip(name, factor, side, first.loops, isinstance(by.first, Warps))
            for name, factor, side in zip(("stage_a", "stage_b"), factors, (self.side, columns), strict=True)
        )
        k_0 = Var("k_0", 0, by.depth - 1)

        def product(step: Int, stage: int) -> ln.Contract:
            left, right = (x.stage(stage) for x in (a, b))
            return self._contract(
                "tile", self.tile, k_0, (left, a.dtype, a.place(sym.expr(k_0), self.tile.top), a.line),
                (right, b.dtype, b.place(sym.expr(k_0), self.tile.left), b.line),
            )  # fmt: skip

        count = sym.ceildiv(sym.product(loop.extent for loop in first.loops), by.depth)
        return StagedSteps(self.threads, count, (a, b), product, by.ahead)

    def _last_steps(self, columns: Side) -> StagedSteps:
        """The steps that add the product of the first result and the block's rows of C to the running sum."""
        by, t = self.by, self.t
        term = ln.Loop(Var(f"{by.axis}_4", 0, by.block - 1), by.block, "serial", ())
        inside = sym.expr(term.axis)
        right, where = self.right(), {t.axis: columns.at(inside)}
        offset = sym.substitute(right.offset, where)
        valid = (*(sym.substitute(v, where) for v in right.valid), *columns.valid(inside))
        access = replace(right, offset=offset, valid=valid)
        c = self._strip("stage_c", access, Side(self.n, by.width, 0), (term,), isinstance(by.last, Warps))
        k_0 = Var("k_0", 0, by.depth - 1)

        def product(step: Int, stage: int) -> ln.Contract:
            at = step * by.depth + sym.expr(k_0)
            return self._contract(
                self.result.name, self.sum, k_0,
                (self.weights.name, self.weights.dtype, self.weights.place(self.sum.top, at), 1),
                (c.stage(stage), c.dtype, c.place(sym.expr(k_0), self.sum.left), c.line),
            )  # fmt: skip

        return StagedSteps(self.threads, by.block // by.depth, (c,), product, by.ahead)

    def _strip(
        self, name: str, access: ln.Access, side: Side, reduced: tuple[ln.Loop, ...], lines: bool
    ) -> StagedOperand:
        if any(access.fill):
            raise ScheduleError("stream: a factor is something else than zero where it is masked")
        by = self.by
        return staged(self.before, name, access, side, reduced, by.depth, self.threads, lines=lines, ahead=by.ahead)

    def _contract(
        self, tile: str, held: ThreadTile, k_0: Var, a: tuple[str, DType, Int, Int], b: tuple[str, DType, Int, Int]
    ) -> ln.Contract:
        """The terms of ``k_0`` added to ``held``; ``a`` and ``b`` are array, type, offset and stride."""
        rows, columns = held.shape
        return ln.Contract(
            tile, self.dtype, *a, *b[:3], (ln.Loop(k_0, self.by.depth, "serial", ()),), rows, rows, columns, columns,
            tile_offset=self.thread * held.size, accumulate=True, b_column=b[3], fragment=held.fragment,
            steps=self.by.steps,
        )  # fmt: skip

    # ---- what is carried -------------------------------------------------------------------------------------------

    def _products(self, columns: Side) -> Body:
        """Stores the thread's elements of the tile as elements of the product."""
        held = self.tile
        total = ln.load("tile", self._at(held), self.dtype)
        return held.loops(self._element(columns, held.row, held.column, total))

    def _read(self, columns: Side) -> ln.Loop:
        """Stores what is read, neighbours by neighbouring threads, as elements of the product."""
        rows, block = self.by.rows, self.by.block
        copied = Var("c0", 0, rows * block - 1)
        row, column = sym.floordiv(sym.expr(copied), block), sym.mod(sym.expr(copied), block)
        return ln.Loop(copied, rows * block, "thread", self._element(columns, row, column), self.threads)

    def _element(self, columns: Side, row: Int, column: Int, total: ln.Scalar | None = None) -> Body:
        """Stores the element of the row, of which ``total`` is the first contraction's sum."""
        where = {self.m.axis: self.side.at(row), self.t.axis: columns.at(column)}
        element = substitute_scalar(self.element_from(total), where, {})
        place = self.product.place(row, column)
        body: Body = (*substitute(self.lets, where), ln.Store(self.product.name, place, element))
        valid = (*self.side.valid(row), *columns.valid(column))
        if valid:
            zero = ln.literal(bytes(self.row.dtype.itemsize), self.row.dtype)
            body = (ln.Store(self.product.name, place, zero), ln.If(valid, body))
        return body

    def _reduced(self, columns: Side) -> Body:
        """For each row of the product: the maxima updated, then the sums, and the left operand of the last sum in its
        place."""
        by = self.by
        at = Var(f"{by.axis}_3", 0, by.block // self.threads_per_row - 1)
        column = sym.expr(at) * self.threads_per_row + self.place_in_row
        row = self.product.load(self.own_row, column)
        block = self._block(self.own_row, {self.t.axis: columns.at(column), self.m.axis: self.side.at(self.own_row)})
        rows, valid = self.side.valid(self.own_row), columns.valid(column)

        def counted(value: ln.Scalar, op: ops.Op) -> ln.Scalar:
            """``value``, where there is such a column."""
            return ln.select(valid, self.masked(value, (*rows, *valid)), self.start(op))

        def reduce(state: Carried, row: ln.Scalar, before: Body) -> Body:
            """The part of ``state`` that is the thread's."""
            name = _partial(state.name)
            loop = ln.Loop(at, by.block // self.threads_per_row, "unroll", ())
            value = counted(block.value(state, row), state.op)
            reduction = ln.Reduction(name, state.op, self.dtype, (loop,), before, value)
            return (reduction, ln.Store(_partials(state.name), self.thread, ln.temporary(name, self.dtype)))

        maxima = [s for state in self.maxima for s in reduce(state, row, ())]
        weights: list[ln.Statement] = self._moved(block, self.own_row)
        # The last sum that reads an element of the product stores the left operand of the last contraction for it.
        kept = ln.temporary("kept", self.row.dtype)
        left = counted(block.value(self.left(), kept), ops.SUM_REDUCE)
        before = (ln.Define("kept", row), self.weights.store(self.own_row, column, left))
        for number, state in enumerate(self.sums, 1):
            weights += reduce(state, kept, before) if number == len(self.sums) else reduce(state, row, ())
        if not self.sums:
            weights.append(ln.Loop(at, by.block // self.threads_per_row, "unroll", before))
        scaled: list[ln.Statement] = []
        if self.result.moves:
            factor = ln.load(_factor(self.result.name), self.sum.row, self.dtype)
            total = self.times(self._total(), factor)
            scaled.append(self._by_threads(*self.sum.loops((self._set(self.sum, self.result.name, total),))))
        return (
            self._by_threads(*maxima), self._by_threads(*weights), self._by_rows(self._carried()), *scaled,
        )  # fmt: skip

    def _block(self, row: Int, where: dict[Var, Int]) -> RowBlock:
        return RowBlock(self, where, lambda state: ln.load(state.name, row, self.dtype))

    def _moved(self, block: RowBlock, row: Int) -> list[ln.Statement]:
        """The definitions of the maxima of ``row`` before and after the block."""
        return [s for state in self.maxima for s in (self._together(state, row), *block.moved(state))]

    def _together(self, state: Carried, row: Int) -> ln.Reduction:
        """The reduction of a row in a block, from the partial results of its threads."""
        part = Var(f"{self.by.axis}_2", 0, self.threads_per_row - 1)
        value = ln.load(_partials(state.name), sym.expr(part) * self.by.rows + row, self.dtype)
        loop = ln.Loop(part, self.threads_per_row, "unroll", ())
        return ln.Reduction(f"{state.name}_block", state.op, self.dtype, (loop,), (), value)

    def _carried(self) -> Body:
        """Updates the states of a row, and stores the factor of its running sum."""
        row = self._row
        block = self._block(row, {})
        body = self._moved(block, row)
        for state in self.sums:
            body += [self._together(state, row), ln.Store(state.name, row, block.added(state))]
        if self.result.moves:
            body.append(ln.Store(_factor(self.result.name), row, block.factor(self.result)))
        return (*body, *(ln.Store(s.name, row, block.temporary(s, "new")) for s in self.maxima))

    # ---- after the blocks ------------------------------------------------------------------------------------------

    def _total(self) -> ln.Scalar:
        """The thread's element of the running sum."""
        return ln.load(self.result.name, self._at(self.sum), self.dtype)

    def _stored(self) -> Body:
        """The stores of the thread's elements of the result."""
        held, columns = self.sum, Side(self.n, self.by.width, 0)
        where = {self.m.axis: self.side.at(held.row), self.n.axis: columns.at(held.column)}
        body = substitute(self.final(held.row, self._total()), where)
        valid = (*self.side.valid(held.row), *columns.valid(held.column))
        return held.loops((ln.If(valid, body),) if valid else body)


@dataclass(frozen=True)
class _Columns:
    """An array of columns of ``rows`` elements, each of which is aligned, that lie apart by other banks."""

    name: str
    dtype: DType
    rows: int

    @property
    def pitch(self) -> int:
        """Elements from one column to the next."""
        return self.rows + ALIGNMENT // self.dtype.itemsize

    def allocation(self, columns: int) -> ln.Alloc:
        return ln.Alloc(self.name, self.dtype, self.pitch * columns, "shared")

    def place(self, row: Int, column: Int) -> Int:
        """The offset of an element."""
        return column * self.pitch + row

    def load(self, row: Int, column: Int) -> ln.Scalar:
        return ln.load(self.name, self.place(row, column), self.dtype)

    def store(self, row: Int, column: Int, value: ln.Scalar) -> ln.Store:
        """The store of ``value``, rounded to the type."""
        if value.dtype != self.dtype:
            value = ln.apply(ops.CAST, (value,), ops.To(self.dtype), self.dtype)
        return ln.Store(self.name, self.place(row, column), value)


def _partial(name: str) -> str:
    return f"{name}_part"


def _partials(name: str) -> str:
    """The array of the threads' partial results of the reduction ``name``."""
    return f"{name}_parts"


def _factor(name: str) -> str:
    """The array of the factors of each row of the running sum ``name``."""
    return f"{name}_factor"
