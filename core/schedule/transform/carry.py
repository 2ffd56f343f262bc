"""One pass over an axis: reductions along it, some of which read others, carried from block to block (see ``carried``).

``Carry`` makes it of a serial nest. ``OnePass`` and ``RowBlock`` are what tiles of a core (``Stream``) and blocks of
threads (``StreamStaged``) share with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import carried, conditions
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.carried import Carried
from luminal.core.schedule.nest.rewrite import replace_leaves, replace_scalars, substitute, substitute_scalar, wrap
from luminal.core.schedule.nest.walk import Body, perfect_loops, statements, values
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


@dataclass(frozen=True)
class Carry:
    """::

    for .., m < M:                                        for .., m < M:
        for t < T:  row[t] = x[m,t]                           d, r, sum[n] = -inf, 0, 0
        d = max over t of row[t]                              for blocks of t:
        r = sum over t of e(row[t] - d)           =>              for t in the block:  row[t] = x[m,t]
        for n < N:                                                d' = max(d, max over the block of row[t])
            store g(d, r) * sum over t of                         r = r * e(d - d') + sum over it of e(row[t] - d')
                e(row[t] - d) * C[t,n]                            sum[n] = sum[n] * e(d - d') + ..;  d = d'
                                                              for n < N:  store g(d, r) * sum[n]

    One pass over ``axis`` instead of one for each reduction along it, in blocks of ``block`` elements. The row need not
    be kept, and the nest may end in something else than sums for each n, as long as it reduces no more. ``OnePass``
    says what is legal; besides, there must be several blocks.
    """

    axis: str
    block: int

    @property
    def within(self) -> str:
        """The loop inside a block."""
        return f"{self.axis}_0"

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        one = OnePass(nest, self.axis)
        t, number = one.t, sym.ceildiv(one.t.extent, self.block)
        step = sym.as_var(sym.axis(f"{self.axis}_1", number))
        if step is None:
            raise ScheduleError(f"carry: a block of {self.block} is all of {self.axis}")
        body: list[ln.Statement] = []
        begin = sym.expr(step) * self.block
        left = sym.minimum(self.block, t.extent - begin)
        width = one.named(body, t, "width", self.block if sym.mod(t.extent, self.block) == 0 else left, 1, self.block)
        at = ln.Loop(Var(self.within, 0, self.block - 1), width, "serial", ())
        place, allocs = sym.expr(at.axis), list[ln.Statement]()

        def so_far(state: Carried) -> ln.Scalar:
            """The reduction of the blocks before."""
            column = sym.expr(one.columns.axis) if state is one.last and one.columns is not None else 0
            return ln.load(f"{state.name}_so_far", column, one.dtype)

        block, row = RowBlock(one, {t.axis: begin + place}, so_far), None
        if one.kept is not None:
            row = ln.load(one.kept.name, place, one.kept.dtype)
            allocs.append(replace(one.kept, extent=self.block))
            store = ln.Store(one.kept.name, place, substitute_scalar(one.element, block.where, {}))
            first = () if one.first is None else (one.first,)
            body.append(replace(at, body=(*substitute((*first, *one.lets), block.where), store)))

        def reduced(state: Carried) -> Body:
            """The reduction of this block, and of all up to this one."""
            moved = block.moved(state) if state.op is ops.MAX_REDUCE else ()
            new = block.temporary(state, "new") if moved else block.added(state)
            return (block.reduced(state, at, row), *moved, _stored(so_far(state), new))

        initial: list[ln.Statement] = []
        for state in one.states:
            allocs.append(ln.Alloc(f"{state.name}_so_far", one.dtype, 1))
            initial.append(_stored(so_far(state), one.start(state.op)))
            body += reduced(state)
        final: Body = (*(ln.Define(name, value) for name, value in one.finals(so_far).items()), *one.stores)
        if one.columns is not None and one.last is not None:
            allocs.append(ln.Alloc(f"{one.last.name}_so_far", one.dtype, one.width))
            initial.append(replace(one.columns, body=(_stored(so_far(one.last), one.start(one.last.op)),)))
            body.append(replace(one.columns, body=reduced(one.last)))
            final = (replace(one.columns, body=final),)
        blocks = ln.Loop(step, number, "ordered", tuple(body))
        return replace(nest, body=wrap(one.loops, (*allocs, *initial, blocks, *final)))


def _stored(element: ln.Scalar, value: ln.Scalar) -> ln.Store:
    assert isinstance(element.leaf, ln.Access)
    return ln.Store(element.leaf.array, element.leaf.offset, value)


class OnePass:
    """The parts of a serial nest whose reductions along ``axis`` can be carried from block to block of it::

        for ..:
            for t < T:  lets;  row[t] = element(first sum)               (not in every nest)
            states: reductions over t of what row[t], or arrays, and the states before give
            for n < N:                                                   (or statements without reductions)
                stores of the last sum, over t, of a value of row[t] and the states times C[t,n]

    Factors of the sums may be rounded to the type ``operand``, where one is given: then values leave that to the
    caller. Raises ScheduleError where the nest is something else, where N is not a number, and where a reduction does
    not follow those before it by a factor.
    """

    def __init__(self, nest: ln.LoopNest, axis: str, operand: DType | None = None) -> None:
        self.before = nest
        self.loops, inside = perfect_loops(nest.body)
        self.kept: ln.Alloc | None = None
        self.first: ln.Reduction | None = None
        self.lets: Body = ()
        match inside:
            case (ln.Alloc() as row, ln.Loop(body=(*before, ln.Store() as store)), *_):
                self.kept, self.element, inside = row, store.value, inside[2:]
                self.first = next((s for s in before if isinstance(s, ln.Reduction)), None)
                self.lets = tuple(s for s in before if isinstance(s, ln.Let))
        reductions = list(takewhile(lambda s: isinstance(s, ln.Reduction), inside))
        rest, last = inside[len(reductions) :], None
        self.columns: ln.Loop | None = None
        match rest:
            case (ln.Loop(body=(ln.Reduction() as result, *stores)) as columns,):
                self.columns, rest, last = columns, tuple(stores), result
        self.stores = rest
        along = [r for r in (*reductions, last) if isinstance(r, ln.Reduction)]
        if any(isinstance(s, ln.Reduction | ln.Alloc) for s in statements(rest)):
            raise ScheduleError("carry: something other than a reduction stands between the row and its use")
        if any(r.before for r in along):
            raise ScheduleError("carry: a reduction looks up what it reads")
        if not along or any([loop.axis.name for loop in r.loops] != [axis] for r in along):
            raise ScheduleError(f"carry: no reductions over a loop over {axis!r} where they should be")
        self.t, self.dtype = along[0].loops[0], along[-1].dtype
        if not self.dtype.is_float or any(r.dtype != self.dtype for r in along):
            raise ScheduleError("carry: the reductions are not of one type of floats")
        if self.dtype.compute != self.dtype:
            raise ScheduleError(f"carry: {self.dtype} would round the sum of each block")
        width = 1 if self.columns is None else self.columns.extent
        if not isinstance(width, int):
            raise ScheduleError(f"carry: the number of columns, {width}, is not fixed")
        self.width = width
        self.states = list(carried.derive(along, (self.t.axis,), operand))
        if any(state.shift for state in self.states):
            raise ScheduleError("carry: a square follows a change of its shift, but not by a factor")
        self.last = None if last is None else self.states.pop()

    @staticmethod
    def named(into: list[ln.Statement], loop: ln.Loop, suffix: str, value: Int, low: int, high: Int) -> Int:
        """``value``, in ``low .. high``, as a variable that a statement added to ``into`` assigns; a number as it
        is."""
        name = sym.as_var(sym.var(f"{loop.axis.name}_{suffix}", low, high))
        if isinstance(value, int) or name is None:
            return value
        into.append(ln.Assign(name, value))
        return sym.var(name.name, low, high)

    @property
    def derivation(self) -> tuple[str, ...]:
        """Each reduction, and how it is carried, in words."""
        return tuple(state.described for state in (*self.states, *([] if self.last is None else [self.last])))

    @property
    def maxima(self) -> list[Carried]:
        """The states that are maxima."""
        return [state for state in self.states if state.op is ops.MAX_REDUCE]

    @property
    def sums(self) -> list[Carried]:
        """The states that are sums."""
        return [state for state in self.states if state.op is ops.SUM_REDUCE]

    def start(self, op: ops.Op) -> ln.Scalar:
        """The value of a reduction before the first column."""
        return self.number({ops.MAX_REDUCE: -np.inf, ops.SUM_REDUCE: 0.0}[op])

    def finals(self, so_far: Callable[[Carried], ln.Scalar]) -> dict[str, ln.Scalar]:
        """Each reduction by its name, after the last block; ``so_far`` gives what was carried."""
        found: dict[str, ln.Scalar] = {}
        by: dict[ln.Scalar, ln.Scalar] = {}
        for state in (*self.states, *([] if self.last is None else [self.last])):
            value = so_far(state)
            for maximum in self._unseen(state):
                value = ln.apply(
                    ops.SELECT, (carried.is_empty(by[maximum]), self.number(np.nan), value), None, self.dtype
                )
            for factor in state.outside:
                value = self.times(value, replace_leaves(factor, by))
            for condition in state.conditions:
                value = ln.apply(ops.SELECT, (replace_leaves(condition, by), value, self.number(0.0)), None, self.dtype)
            found[state.name] = by[ln.temporary(state.name, self.dtype)] = value
        return found

    def _unseen(self, state: Carried) -> list[ln.Scalar]:
        """The maxima that make ``state`` NaN where they are -inf: then all of its terms are exp(-inf - -inf), although
        the carried value is 0. A quotient by a sum of such terms is 0/0 anyway."""
        factors = () if self.last is None else self.last.outside
        divisors = {f.operands[0] for f in factors if f.op is ops.RECIP}
        divided = [s for s in self.sums if ln.temporary(s.name, self.dtype) in divisors]
        stored = {name for s in statements(self.stores) for value in values(s) for name in carried.reads(value)}
        if state in divided and state.name not in stored:
            return []
        followed = {move.state for other in divided for move in other.moves} if state is self.last else set()
        free = (move.state for move in state.moves if move.state not in followed and move.guarded is None)
        maxima = [ln.temporary(name, self.dtype) for name in dict.fromkeys(free)]
        if maxima and not (sym.lower(self.t.extent) or 0):
            raise ScheduleError(f"carry: of no columns, {state.name} would be NaN")
        return maxima

    def number(self, value: float) -> ln.Scalar:
        return carried.number(value, self.dtype)

    def times(self, left: ln.Scalar, right: ln.Scalar) -> ln.Scalar:
        return ln.apply(ops.MUL, (left, right), None, self.dtype)


class ChainPass(OnePass):
    """A pass that begins with a row, computed by a contraction or read, and ends in a contraction over it: rows are in
    the loop over ``m``, columns in the loop over ``axis``. Raises ScheduleError where it is something else."""

    def __init__(self, nest: ln.LoopNest, axis: str, m: str, operand: DType | None = None) -> None:
        super().__init__(nest, axis, operand)
        if self.kept is None or self.columns is None or self.last is None:
            raise ScheduleError("stream: the nest is not a row, reductions along it and a loop over columns")
        self.row, self.n, self.result = self.kept, self.columns, self.last
        if not self.maxima:
            raise ScheduleError("stream: no maximum goes along with the sums")
        if self.first is not None and self.first.dtype != self.dtype:
            raise ScheduleError(f"stream: a product of {self.first.dtype} before a sum of {self.dtype}")
        self.m = self._loop(m)

    def _loop(self, name: str) -> ln.Loop:
        for loop in self.loops:
            if loop.axis.name == name:
                return loop
        raise ScheduleError(f"stream: no loop over {name!r} where it should be")

    def tile_begin(self, rows: int) -> Int:
        """Where the present tile of so many rows begins."""
        return sym.axis(f"{self.m.axis.name}_1", sym.ceildiv(self.m.extent, rows)) * rows

    def blocks(self, into: list[ln.Statement], rows: int, block: int) -> tuple[Int, Int, Int]:
        """The blocks of so many columns that a tile of ``rows`` visits: how many it skips, the number of the present
        one after these, and how many there are. Statements added to ``into`` assign variables."""
        begin = self.tile_begin(rows)
        first, end = self.visited(into, begin, begin + rows - 1)
        skipped = sym.floordiv(first, block)
        step = sym.axis(f"{self.t.axis.name}_1", sym.ceildiv(self.t.extent, block))
        return skipped, step, sym.ceildiv(end, block) - skipped

    def over_tiles(self, rows: int, body: Body, threads: int) -> ln.LoopNest:
        """The nest whose tasks run ``body`` for each tile of so many rows, each by so many threads."""
        tiles = sym.ceildiv(self.m.extent, rows)
        grid = sym.as_var(sym.axis(f"{self.m.axis.name}_1", tiles))
        outer = [loop for loop in self.loops if loop is not self.m]
        outer += [] if grid is None else [ln.Loop(grid, tiles, "serial", ())]
        return replace(self.before, body=wrap(outer, body), threads=threads)

    def element_from(self, total: ln.Scalar | None) -> ln.Scalar:
        """The row's element, where ``total`` is the sum of the first contraction, if there is one."""
        if self.first is None or total is None:
            return self.element
        return replace_leaves(self.element, {ln.temporary(self.first.name, self.dtype): total})

    def visited(self, into: list[ln.Statement], top: Int, bottom: Int) -> tuple[Int, Int]:
        """The columns ``[first, end)`` outside of which every value in rows ``top .. bottom`` is -inf by structure, as
        variables that statements added to ``into`` assign."""
        t = self.t
        known = {loop.axis for loop in self.loops} | set(self.before.dims)
        first: Int = 0
        end: Int = t.extent
        for condition in conditions.minus_infinity_unless(self.element):
            linear, of_row = sym.coefficient(condition, t.axis), sym.coefficient(condition, self.m.axis)
            if linear is None or of_row is None or not isinstance(of_row[0], int):
                continue
            slope, rest = linear
            if slope not in (1, -1) or not sym.variables(rest) <= known:
                continue
            # The row in which the condition holds for most columns.
            farthest = sym.substitute(rest, {self.m.axis: bottom if of_row[0] > 0 else top})
            if slope == -1:
                end = sym.minimum(end, sym.maximum(farthest + 1, 0))
            else:
                first = sym.maximum(first, sym.minimum(-farthest, t.extent))
        end = self.named(into, t, "end", end, max(0, sym.lower(end) or 0), t.extent) if end != t.extent else end
        return self.named(into, t, "begin", first, 0, t.extent), end

    def masked(self, value: ln.Scalar, valid: tuple[Int, ...]) -> ln.Scalar:
        """``value`` with arrays of the kernel read only where ``valid`` holds."""
        arrays = {array.name for array in self.before.arrays}
        by: dict[ln.Scalar, ln.Scalar] = {}
        for scalar in ln.postorder(value) if valid else ():
            leaf = scalar.leaf
            if isinstance(leaf, ln.Access) and leaf.array in arrays:
                fill = leaf.fill or bytes(scalar.dtype.itemsize)
                by[scalar] = ln.load(leaf.array, leaf.offset, scalar.dtype, (*leaf.valid, *valid), fill)
        return replace_leaves(value, by)

    def left(self) -> Carried:
        """The left operand of the last sum: its factors that do not depend on the result's columns."""
        mine = tuple(f for f in self.result.inside if self.n.axis not in carried.variables(f))
        if len(mine) + 1 != len(self.result.inside) or not mine:
            raise ScheduleError("stream: the last sum is not over a value of the row times an array element")
        return replace(self.result, inside=mine)

    def right(self) -> ln.Access:
        """The right operand of the last sum; it may convert as it is loaded."""
        (factor,) = (f for f in self.result.inside if self.n.axis in carried.variables(f))
        other = factor.operands[0].leaf if factor.op is ops.CAST else factor.leaf
        if not isinstance(other, ln.Access) or self.m.axis in sym.variables(other.offset):
            raise ScheduleError("stream: the right operand of the last sum is not an array element of its own")
        return other

    def so_far(self, state: Carried, row: Int) -> ln.Scalar:
        """What was carried of ``state``, which is at ``row`` of its array."""
        return ln.load(state.name, row, self.dtype)

    def final(self, row: Int, total: ln.Scalar) -> Body:
        """The stores after the last column: what was carried is read at ``row`` of its arrays; ``total`` is the last
        sum."""
        found = self.finals(lambda state: total if state is self.result else self.so_far(state, row))
        by = {ln.temporary(name, self.dtype): value for name, value in found.items()}
        return replace_scalars(self.stores, lambda value: replace_leaves(value, by))


class RowBlock:
    """The reductions of one row in one block of columns: ``where`` are the positions of its columns, ``so_far`` gives
    what was carried there.

    For a reduction called ``d``, the statements of a block define the temporaries ``d_block``, and for a maximum
    ``d_old``, its value before the block where it is carried, and ``d_new``, its value after.
    """

    def __init__(self, chain: OnePass, where: dict[Var, Int], so_far: Callable[[Carried], ln.Scalar]) -> None:
        self.chain = chain
        self.dtype = chain.dtype
        self.where = where
        self.so_far = so_far
        self._maxima: dict[ln.Scalar, ln.Scalar] = {}

    def reduced(self, state: Carried, loop: ln.Loop, row: ln.Scalar | None, before: Body = ()) -> ln.Reduction:
        """The reduction ``state`` of the block in ``loop``; ``before`` runs first for each column, and gives ``row``,
        the value of the row."""
        name = f"{state.name}_block"
        return ln.Reduction(name, state.op, self.dtype, (loop,), before, self.value(state, row))

    def moved(self, state: Carried) -> Body:
        """The definitions of the maximum ``state`` as it was and as it is including the block."""
        most = ln.apply(ops.MAX, (self.temporary(state, "old"), self.temporary(state, "block")), None, self.dtype)
        return (ln.Define(f"{state.name}_old", self.so_far(state)), self.only(state, most))

    def only(self, state: Carried, most: ln.Scalar) -> ln.Statement:
        """The definition of the maximum ``state`` as ``most``."""
        new = self.temporary(state, "new")
        self._maxima[ln.temporary(state.name, self.dtype)] = carried.finite(new)
        return ln.Define(f"{state.name}_new", most)

    def added(self, state: Carried) -> ln.Scalar:
        """The sum ``state``, moved to the new maxima, plus the sum of the block."""
        total = self.so_far(state)
        total = self.chain.times(total, self.factor(state)) if state.moves else total
        return ln.apply(ops.ADD, (total, self.temporary(state, "block")), None, self.dtype)

    def value(self, state: Carried, row: ln.Scalar | None) -> ln.Scalar:
        """The term of ``state`` in this block, from ``row``, the value of the row, and the new maxima."""
        product = carried.product(state.inside)
        by, kept = dict(self._maxima), self.chain.kept
        if row is not None and kept is not None:
            by[ln.load(kept.name, sym.expr(self.chain.t.axis), kept.dtype)] = row
        return substitute_scalar(replace_leaves(product, by), self.where, {})

    def factor(self, state: Carried) -> ln.Scalar:
        """The factor that moves the carried part of ``state`` from the old maxima to the new."""

        def at(suffix: str) -> Callable[[str], ln.Scalar]:
            return lambda name: ln.temporary(f"{name}_{suffix}", self.dtype)

        return carried.factor(state.moves, at("old"), at("new"))

    def temporary(self, state: Carried, suffix: str) -> ln.Scalar:
        """A temporary of the block."""
        return ln.temporary(f"{state.name}_{suffix}", self.dtype)


def in_loop(axis: Int, extent: Int, body: Sequence[ln.Statement]) -> Body:
    """``body`` in a serial loop over ``axis``, or alone where ``axis`` is a number."""
    variable = sym.as_var(axis)
    return tuple(body) if variable is None else (ln.Loop(variable, extent, "serial", tuple(body)),)
