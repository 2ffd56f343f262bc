"""A chain of contractions in one pass over blocks of columns, whose rows stay in the registers of warps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import SMALL, BlockCosts
from luminal.core.schedule.grid.staged import Side, StagedOperand, by_threads, staged
from luminal.core.schedule.grid.thread_tiles import Warps
from luminal.core.schedule.nest import exponents
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.carried import Carried, reads
from luminal.core.schedule.nest.operands import product_of
from luminal.core.schedule.nest.rewrite import replace_leaves, substitute, substitute_scalar, wrap
from luminal.core.schedule.nest.walk import Body, statements, values
from luminal.core.schedule.numeric.digits import GUARD
from luminal.core.schedule.transform.carry import ChainPass, RowBlock, in_loop
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, f32


@dataclass(frozen=True)
class StreamHeld:
    """::

    for .., m < M:                                        for .., tiles of m:
        for t < T:                                            d, r, sum = -inf, 0, 0                 (in registers)
            row[t] = f(sum over k of A[m,k] * B[k,t])         stage_a = A rows;  stage_b = B columns of a block
        d = max over t of row[t]                              for blocks of t:
        r = sum over t of e(row[t] - d)          =>               stage_c = C columns of the block          (ahead)
        for n < N:                                                p = f(stage_a * stage_b)
            store g(r) * sum over t of                            d' = max(d, max of p);  p = e(p - d')
                e(row[t] - d) * C[t,n]                            r, sum *= e(d - d');  r += sum of p;  d = d'
                                                                  stage_b = B columns of the next block     (ahead)
                                                                  sum += p * stage_c
                                                              store g(r) * sum

    As ``StreamStaged``, where each warp has whole rows of ``p``, so that all but the operands is in registers. Lanes
    that have parts of a row combine their maxima in each block, and their sums after the last. What the first product
    gave is the left operand of the second as it lies, rounded to ``operand``. Where the fragments are those of groups
    of warps, a group has the whole rows: it multiplies from shared memory in panels, and waits for each product before
    its elements are used.

    Exponentials are rewritten (``exponents``): a constant factor of the row is left out of it and moves into them, and
    where only they read a maximum, it is taken off, and multiplied, in one step. They, and those of sums, are computed
    to as many digits as the rounding of the left operand asks for, if nothing else reads the sums.

    Legal where ``StreamStaged`` is, there is a first product, and the fragments of both, which ``first`` and ``last``
    divide into whole rows, hold their rows alike: as many lanes share a fragment of either. Groups of warps need
    operands whose stages fill whole panels.
    """

    axis: str
    m: str
    rows: int
    block: int
    width: int
    first: Warps
    last: Warps
    operand: DType
    steps: int = field(default=BlockCosts.steps, repr=False)

    @property
    def threads(self) -> int:
        """Threads of a task."""
        return self.first.threads(self.rows, self.block)

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return _Held(self, nest).nest()


@dataclass(frozen=True)
class _Rows:
    """A tile of which each warp has whole rows: ``row`` is the thread's row at the axes ``down``, ``column`` the column
    of its element at ``along`` in any row. ``place`` is the element's number among the thread's."""

    array: str
    parts: Warps
    down: tuple[tuple[Int, int], ...]
    along: tuple[tuple[Int, int], ...]
    row: Int
    column: Int
    place: Int
    size: int

    @classmethod
    def of(cls, array: str, parts: Warps, thread: Int) -> _Rows:
        """The part of ``thread``."""
        fragment = parts.fragment
        beside = fragment.neighbours
        if not beside:
            raise ScheduleError(f"stream: lanes of {fragment.name} hold no rows that are an operand as they lie")
        tall, strips, high = parts.rows // fragment.rows, parts.columns // SMALL, fragment.of_strip // beside
        i, h = sym.axis("e0", tall), sym.axis("e1", high)
        j, c = sym.axis("e2", strips), sym.axis("e3", beside)
        by = {fragment.lane: sym.mod(thread, fragment.warp), fragment.element: h * beside + c}  # of the first strip
        row = sym.floordiv(thread, fragment.warp) * parts.rows + i * fragment.rows + sym.substitute(fragment.row, by)
        return cls(
            array, parts, ((i, tall), (h, high)), ((j, strips), (c, beside)), row,
            j * SMALL + sym.substitute(fragment.column, by),
            ((i * strips + j) * high + h) * beside + c, tall * strips * fragment.of_strip,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """Rows of the thread."""
        return self.down[0][1] * self.down[1][1]

    @property
    def number(self) -> Int:
        """The number of the row at ``down``."""
        return self.down[0][0] * self.down[1][1] + self.down[1][0]

    def over_rows(self, *body: ln.Statement) -> Body:
        """``body`` for each row."""
        return wrap(_unrolled(self.down), body)

    def over_columns(self, *body: ln.Statement) -> Body:
        """``body`` for each element of a row."""
        return wrap(_unrolled(self.along), body)


def _unrolled(axes: tuple[tuple[Int, int], ...]) -> list[ln.Loop]:
    return [ln.Loop(v, extent, "unroll", ()) for axis, extent in axes if (v := sym.as_var(axis)) is not None]


class _Held(ChainPass):
    """One application of the transform."""

    def __init__(self, by: StreamHeld, nest: ln.LoopNest) -> None:
        super().__init__(exponents.row_without_factor(nest), by.axis, by.m, by.operand)
        self.by = by
        self._shorten_exponents()
        if self.first is None:
            raise ScheduleError("stream: no product gives rows that registers could hold")
        if by.first.columns != by.block or by.last.columns != by.width or by.first.rows != by.last.rows:
            raise ScheduleError("stream: warps have parts of rows, or not the same ones of both products")
        if by.last.threads(by.rows, by.width) != by.threads or self.width > by.width:
            raise ScheduleError(f"stream: {by.threads} threads do not divide sums of {self.width} columns")
        if by.first.fragment.warp != by.last.fragment.warp:
            raise ScheduleError(f"stream: lanes of {by.first.fragment} do not hold what those of {by.last.fragment} do")
        if by.block % by.last.fragment.depth or by.last.fragment.dtype != by.operand:
            raise ScheduleError(f"stream: {by.last.fragment} does not take blocks of {by.block} {by.operand}")
        self.thread = sym.var("t0", 0, by.threads - 1)
        self.tile = _Rows.of("tile", by.first, self.thread)
        self.sum = _Rows.of(self.result.name, by.last, self.thread)
        self.side = Side(self.m, by.rows, self.tile_begin(by.rows))

    def _shorten_exponents(self) -> None:
        """Exponentials of a value less a maximum by fewer steps, where ``exponents`` has a form for it."""
        every, self.multiples = exponents.of_multiples((*self.states, self.result))
        self.taken: dict[str, exponents.ScaledMaximum] = {}
        if self._few_digits and not self._used & {state.name for state in self.maxima}:
            every, self.taken = exponents.by_multiply_add(every)
        *self.states, self.result = every
        self.last = self.result

    def nest(self) -> ln.LoopNest:
        """Tiles as the tasks; in each, the states, the blocks, and the stores."""
        by, t = self.by, self.t
        lead: list[ln.Statement] = []
        skipped, step, count = self.blocks(lead, by.rows, by.block)
        columns = Side(t, by.block, (skipped + step) * by.block)
        a, b = self._operands(columns)
        c = self._right()
        block = (
            c.copy(c.name, skipped + step),
            self._by_threads(self._first(a, b)),
            *self._reduced(columns),
            *self._next(b, columns, step, count),
            self._by_threads(self._last(c)),
        )
        at_first = b.beginning(skipped * by.block)
        body = (
            *lead,
            *(x.allocation(x.name) for x in (a, b, c)),
            *self._registers(),
            a.copy(a.name, 0),
            at_first.copy(b.name, 0),
            self._by_threads(*(s for state in self.states for s in self._over_states(state)), *self._cleared(self.sum)),
            *in_loop(step, count, block),
            *(self._combined(state.name, state) for state in self.sums),
            self._by_threads(*self._stored()),
        )
        return self.over_tiles(by.rows, body, by.threads)

    # ---- arrays ----------------------------------------------------------------------------------------------------

    def _registers(self) -> Body:
        rows, threads = self.tile.rows, self.by.threads
        sizes = {self.tile.array: self.tile.size, self.sum.array: self.sum.size}
        sizes |= {state.name: rows for state in self.states} | {_partial(s): rows for s in self.maxima}
        return tuple(ln.Alloc(name, self.dtype, size * threads, "registers") for name, size in sizes.items())

    def _at(self, held: _Rows) -> ln.Scalar:
        """The thread's element of a tile."""
        return ln.load(held.array, self.thread * held.size + held.place, self.dtype)

    def _set(self, held: _Rows, value: ln.Scalar) -> ln.Store:
        return ln.Store(held.array, self.thread * held.size + held.place, value)

    @property
    def _number(self) -> Int:
        """The place of a row's states."""
        return self.thread * self.tile.rows + self.tile.number

    def so_far(self, state: Carried, row: Int) -> ln.Scalar:
        found, times = super().so_far(state, row), self.multiples.get(state.name, 1.0)
        return found if times == 1.0 else self.times(found, self.number(times))

    def _state(self, state: Carried) -> ln.Scalar:
        return ln.load(state.name, self._number, self.dtype)

    @staticmethod
    def _as(dtype: DType, value: ln.Scalar) -> ln.Scalar:
        return value if value.dtype == dtype else ln.apply(ops.CAST, (value,), ops.To(dtype), dtype)

    def _by_threads(self, *body: ln.Statement) -> ln.Loop:
        return by_threads(self.by.threads, *body)

    def _cleared(self, held: _Rows) -> Body:
        return held.over_rows(*held.over_columns(self._set(held, self.number(0.0))))

    def _over_states(self, state: Carried) -> Body:
        return self.tile.over_rows(ln.Store(state.name, self._number, self.start(state.op)))

    # ---- products --------------------------------------------------------------------------------------------------

    def _operands(self, columns: Side) -> tuple[StagedOperand, StagedOperand]:
        """The operands of the first product, whole rows of it and whole columns."""
        assert self.first is not None
        factors = product_of(self.first)
        for factor, axis in zip(factors, (self.t.axis, self.m.axis), strict=True):
            if axis in sym.variables(factor.offset).union(*(sym.variables(v) for v in factor.valid)):
                raise ScheduleError("stream: the operands of the first contraction do not have rows and columns apart")
        terms, depth = sym.product(loop.extent for loop in self.first.loops), self.by.first.fragment.depth
        whole = sym.ceildiv(terms, depth) * depth
        if not isinstance(whole, int):
            raise ScheduleError(f"stream: the number of terms of the first contraction, {terms}, is not fixed")
        a, b = (
            self._strip(name, factor, side, self.first.loops, whole)
            for name, factor, side in zip(("stage_a", "stage_b"), factors, (self.side, columns), strict=True)
        )
        return a, b

    def _right(self) -> StagedOperand:
        """The right operand of the last product, a block's rows of it in each step."""
        return self._strip("stage_c", self.right(), Side(self.n, self.by.width, 0), (self.t,), self.by.block)

    def _strip(
        self, name: str, access: ln.Access, side: Side, reduced: tuple[ln.Loop, ...], depth: int
    ) -> StagedOperand:
        if any(access.fill):
            raise ScheduleError("stream: a factor is something else than zero where it is masked")
        return staged(
            self.before, name, access, side, reduced, depth, self.by.threads, lines=True, ahead=True,
            panels=self.by.first.fragment.panels,
        )  # fmt: skip

    def _first(self, a: StagedOperand, b: StagedOperand) -> ln.Contract:
        k_0 = Var("k_0", 0, a.depth - 1)
        top = sym.floordiv(self.thread, self.by.first.fragment.warp) * self.by.first.rows
        left = (a.name, a.dtype, a.place(sym.expr(k_0), top), a.line)
        contract = self._contract(self.tile, k_0, left, b, b.place(sym.expr(k_0), 0), self.by.steps)
        return replace(contract, accumulate=False)

    def _last(self, c: StagedOperand) -> ln.Contract:
        k_0, tile, fragment = Var("k_0", 0, self.by.block - 1), self.tile, self.by.first.fragment
        at = self.thread * tile.size + sym.floordiv(sym.expr(k_0), SMALL) * fragment.of_strip
        of_row = tile.size // tile.down[0][1]
        steps = self.by.block // self.by.last.fragment.depth  # all written out: registers have no numbers at run time
        contract = self._contract(
            self.sum, k_0, (tile.array, self.by.operand, at, of_row), c, c.place(sym.expr(k_0), 0), steps
        )
        return replace(contract, held=True)

    def _contract(
        self, held: _Rows, k_0: Var, a: tuple[str, DType, Int, Int], b: StagedOperand, offset: Int, steps: int
    ) -> ln.Contract:
        """The terms of ``k_0`` added to ``held``; ``a`` is array, type, offset and stride."""
        rows, columns = held.parts.rows, held.parts.columns
        return ln.Contract(
            held.array, self.dtype, *a, b.name, b.dtype, offset, (ln.Loop(k_0, k_0.hi + 1, "serial", ()),),
            rows, rows, columns, columns, tile_offset=self.thread * held.size, accumulate=True, b_column=b.line,
            fragment=held.parts.fragment, steps=steps,
        )  # fmt: skip

    def _next(self, b: StagedOperand, columns: Side, step: Int, count: Int) -> Body:
        """The columns of the next block copied, where there is one, after all threads have multiplied these."""
        more = count - 2 - step
        if sym.always(-1 - more):
            return (ln.Barrier(),)
        copied: list[ln.Statement] = []
        after = self.named(copied, self.t, "next", step + 1, 1, sym.upper(step) or 0)
        later = b.beginning(columns.first + (after - step) * self.by.block)
        return (ln.Barrier(), ln.If((more,), (*copied, later.copy(b.name, 0))))

    # ---- what is carried -------------------------------------------------------------------------------------------

    def _combined(self, array: str, state: Carried) -> ln.Loop:
        """The rows of ``array`` reduced by all lanes that have a part of them."""
        rows, lanes = self.tile.rows, self.by.first.fragment.lanes_of_row
        return self._by_threads(ln.Combine(array, self.thread * rows, rows, state.op, self.dtype, lanes))

    def _reduced(self, columns: Side) -> Body:
        """The elements of the product in place of the sums, and reduced: the states updated, the running sum moved, and
        the left operand of the last product in place of the elements."""
        tile, total = self.tile, self.sum
        where = {self.m.axis: self.side.at(tile.row), self.t.axis: columns.at(tile.column)}
        valid = columns.valid(tile.column)
        there = (*self.side.valid(tile.row), *valid)
        narrow = ln.temporary("held", self.row.dtype)
        block = RowBlock(self, where, self._state)

        def masked(value: ln.Scalar, op: ops.Op) -> ln.Scalar:
            """``value``, where there is such a column."""
            return ln.select(valid, self.masked(value, there), self.start(op))

        def of(state: Carried, held: ln.Scalar) -> ln.Scalar:
            """The term of ``state`` for an element, which is ``held`` as a value of its row's type."""
            value = block.value(state, narrow)
            wide = (s for s in ln.postorder(value) if s.op is ops.CAST and s.operands == (narrow,))
            known = {s: held for s in wide if s.dtype == self.dtype}
            value = replace_leaves(value, {**known, narrow: self._as(self.row.dtype, held)})
            return masked(self._eased(value), state.op)

        def reduction(state: Carried, name: str, held: ln.Scalar, before: Body = ()) -> ln.Reduction:
            return ln.Reduction(name, state.op, self.dtype, tuple(_unrolled(tile.along)), before, of(state, held))

        element = substitute_scalar(self.element_from(self._at(tile)), where, {})
        elements = (*substitute(self.lets, where), self._set(tile, self._as(self.dtype, element)))
        elements = tile.over_columns(*((ln.If(there, elements),) if there else elements))
        maxima = [
            s
            for state in self.maxima
            for s in (
                reduction(state, f"{state.name}_own", self._at(tile)),
                ln.Store(_partial(state), self._number, ln.temporary(f"{state.name}_own", self.dtype)),
            )
        ]
        rows: list[ln.Statement] = []
        for state in self.maxima:
            part = ln.load(_partial(state), self._number, self.dtype)
            rows += [ln.Define(f"{state.name}_block", part), *block.moved(state)]
            if state.name in self.taken:
                rows += self.taken[state.name].defined(block.temporary(state, "new"))
        if self.result.moves:
            rows.append(ln.Define("factor", block.factor(self.result)))
            moved = self.times(self._at(total), ln.temporary("factor", self.dtype))
            rows += total.over_columns(self._set(total, moved))
        # The last sum that reads an element stores the left operand of the last product for it.
        kept = ln.temporary("kept", self.dtype)
        left = (ln.Define("kept", self._at(tile)), self._set(tile, of(self.left(), kept)))
        for number, state in enumerate(self.sums, 1):
            of_last = (kept, left) if number == len(self.sums) else (self._at(tile), ())
            rows += [reduction(state, f"{state.name}_block", *of_last)]
            rows += [ln.Store(state.name, self._number, block.added(state))]
        rows += () if self.sums else tile.over_columns(*left)
        rows += [ln.Store(state.name, self._number, block.temporary(state, "new")) for state in self.maxima]
        return (
            self._by_threads(*tile.over_rows(*elements, *maxima)),
            *(self._combined(_partial(state), state) for state in self.maxima),
            self._by_threads(*tile.over_rows(*rows)),
        )

    @property
    def _used(self) -> set[str]:
        """The reductions that the stores read."""
        return {name for s in statements(self.stores) for v in values(s) for name in reads(v)}

    @property
    def _few_digits(self) -> bool:
        """Whether rounding leaves few digits of all exponentials of elements."""
        return self.dtype == f32 and not self._used & {state.name for state in self.sums}

    def _eased(self, value: ln.Scalar) -> ln.Scalar:
        """``value`` with exponentials in float32 of as few digits as are needed."""
        if not self._few_digits:
            return value
        digits = self.by.operand.significant + GUARD
        by: dict[ln.Scalar, ln.Scalar] = {}
        for scalar in ln.postorder(value):
            operands = tuple(by[x] for x in scalar.operands)
            few = scalar.op is ops.EXP2 and scalar.attr.digits is None
            attr = replace(scalar.attr, digits=digits) if few else scalar.attr
            by[scalar] = scalar if scalar.op is None else ln.apply(scalar.op, operands, attr, scalar.dtype)
        return by[value]

    # ---- after the blocks ------------------------------------------------------------------------------------------

    def _stored(self) -> Body:
        """The stores of the thread's elements of the result."""
        held, columns = self.sum, Side(self.n, self.by.width, 0)
        where = {self.m.axis: self.side.at(held.row), self.n.axis: columns.at(held.column)}
        body = substitute(self.final(self._number, self._at(held)), where)
        valid = (*self.side.valid(held.row), *columns.valid(held.column))
        return held.over_rows(*held.over_columns(*((ln.If(valid, body),) if valid else body)))


def _partial(state: Carried) -> str:
    """The array of the thread's part of a block's maximum ``state``."""
    return f"{state.name}_part"
