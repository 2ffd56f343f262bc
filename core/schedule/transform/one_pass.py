"""One pass over the columns of a chain: the parts that tiles of a core and blocks of threads share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import conditions
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_leaves, replace_scalars, substitute_scalar
from luminal.core.schedule.nest.walk import Body, perfect_loops
from luminal.core.schedule.transform import online
from luminal.core.schedule.transform.online import Carried
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, bool_


class OnePass:
    """The parts of the serial nest of a chain, with rows in the loop over ``m`` and columns in the loop over ``axis``::

        for .., m < M:
            for t < T:
                lets;  row[t] = element(first sum)
            states: reductions over t of what row[t] and the states before give
            for n < N:
                stores of the last sum, over t, of a value of row[t] and the states times C[t,n]

    Operands of the last sum may be rounded to the type ``operand``, where one is given: then ``left`` leaves that to
    the caller. Raises ScheduleError where the nest is something else, where N is not a number, and where a reduction
    does not follow those before it by a factor.
    """

    def __init__(self, nest: ln.LoopNest, axis: str, m: str, operand: DType | None = None) -> None:
        self.before = nest
        self.loops, inside = perfect_loops(nest.body)
        match inside:
            case (ln.Alloc() as row, ln.Loop() as along, *middle, ln.Loop() as columns):
                reductions = [r for r in middle if isinstance(r, ln.Reduction)]
            case _:
                raise ScheduleError("stream: the nest is not a row, reductions along it and a loop over columns")
        last, *self.stores = columns.body
        if len(reductions) < len(middle) or not isinstance(last, ln.Reduction):
            raise ScheduleError("stream: something other than a reduction stands between the row and its use")
        if any(r.before for r in (*reductions, last)):
            raise ScheduleError("stream: a reduction looks up what it reads")
        if not isinstance(columns.extent, int):
            raise ScheduleError(f"stream: the number of columns, {columns.extent}, is not fixed")
        self.row, self.t, self.n, self.width = row, along, columns, columns.extent
        (self.first,) = (s for s in along.body if isinstance(s, ln.Reduction))
        self.lets = tuple(s for s in along.body if isinstance(s, ln.Let))
        (self.element,) = (s.value for s in along.body if isinstance(s, ln.Store))
        self.m = self._loop(self.loops, m)
        self._loop([along], axis)
        *self.states, self.result = online.derive([*reductions, last], self.t.axis, operand)
        self.dtype = last.dtype

    @staticmethod
    def _loop(loops: list[ln.Loop], name: str) -> ln.Loop:
        for loop in loops:
            if loop.axis.name == name:
                return loop
        raise ScheduleError(f"stream: no loop over {name!r} where it should be")

    @staticmethod
    def named(into: list[ln.Statement], loop: ln.Loop, suffix: str, value: Int, low: int, high: Int) -> Int:
        """``value``, in ``low .. high``, as a variable that a statement added to ``into`` assigns; a number as it
        is."""
        name = sym.as_var(sym.var(f"{loop.axis.name}_{suffix}", low, high))
        if isinstance(value, int) or name is None:
            return value
        into.append(ln.Assign(name, value))
        return sym.var(name.name, low, high)

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

    # ---- the reductions --------------------------------------------------------------------------------------------

    @property
    def maxima(self) -> list[Carried]:
        """The states that are maxima. Raises ScheduleError where there are none."""
        found = [state for state in self.states if state.op is ops.MAX_REDUCE]
        if not found:
            raise ScheduleError("stream: no maximum goes along with the sums")
        return found

    @property
    def sums(self) -> list[Carried]:
        """The states that are sums."""
        return [state for state in self.states if state.op is ops.SUM_REDUCE]

    def left(self) -> Carried:
        """The left operand of the last sum: its factors that do not depend on the result's columns."""
        mine = tuple(f for f in self.result.inside if self.n.axis not in online.variables(f))
        if len(mine) + 1 != len(self.result.inside) or not mine:
            raise ScheduleError("stream: the last sum is not over a value of the row times an array element")
        return replace(self.result, inside=mine)

    def right(self) -> ln.Access:
        """The right operand of the last sum; it may convert as it is loaded."""
        (factor,) = (f for f in self.result.inside if self.n.axis in online.variables(f))
        other = factor.operands[0].leaf if factor.op is ops.CAST else factor.leaf
        if not isinstance(other, ln.Access) or self.m.axis in sym.variables(other.offset):
            raise ScheduleError("stream: the right operand of the last sum is not an array element of its own")
        return other

    def start(self, op: ops.Op) -> ln.Scalar:
        """The value of a reduction before the first column."""
        return self.number({ops.MAX_REDUCE: -np.inf, ops.SUM_REDUCE: 0.0}[op])

    def final(self, row: Int, total: ln.Scalar) -> Body:
        """The stores after the last column: final states are read at ``row`` of their arrays; ``total`` is the last
        sum."""
        by: dict[ln.Scalar, ln.Scalar] = {}
        for state in (*self.states, self.result):
            value = total if state is self.result else ln.load(state.name, row, self.dtype)
            for maximum in self._unseen(state):
                value = ln.apply(ops.SELECT, (self.is_empty(by[maximum]), self.number(np.nan), value), None, self.dtype)
            for factor in state.outside:
                value = self.times(value, replace_leaves(factor, by))
            for condition in state.conditions:
                value = ln.apply(ops.SELECT, (replace_leaves(condition, by), value, self.number(0.0)), None, self.dtype)
            by[ln.temporary(state.name, self.dtype)] = value
        return replace_scalars(tuple(self.stores), lambda value: replace_leaves(value, by))

    def _unseen(self, state: Carried) -> list[ln.Scalar]:
        """The maxima that make ``state`` NaN where they are -inf: then all of its terms are exp(-inf - -inf), although
        the carried value is 0. A quotient by a sum of such terms is 0/0 anyway."""
        divisors = {f.operands[0] for f in self.result.outside if f.op is ops.RECIP}
        divided = [s for s in self.sums if ln.temporary(s.name, self.dtype) in divisors]
        stored = {name for s in self.stores if isinstance(s, ln.Store) for name in online.reads(s.value)}
        if state in divided and state.name not in stored:
            return []
        followed = {move.state for other in divided for move in other.moves} if state is self.result else set()
        left = dict.fromkeys(move.state for move in state.moves if move.state not in followed)
        maxima = [ln.temporary(name, self.dtype) for name in left]
        if maxima and not (sym.lower(self.t.extent) or 0):
            raise ScheduleError(f"stream: of no columns, {state.name} would be NaN")
        return maxima

    def is_empty(self, maximum: ln.Scalar) -> ln.Scalar:
        """Whether a maximum is -inf: of no values, or of -inf alone."""
        return ln.apply(ops.EQUAL, (maximum, self.number(-np.inf)), None, bool_)

    def number(self, value: float) -> ln.Scalar:
        return ln.literal(np.array(value, self.dtype.numpy).tobytes(), self.dtype)

    def times(self, left: ln.Scalar, right: ln.Scalar) -> ln.Scalar:
        return ln.apply(ops.MUL, (left, right), None, self.dtype)


class RowBlock:
    """The reductions of one row in one block of columns; ``where`` are the positions of its columns.

    For a maximum called ``d``, the statements of a block define the temporaries ``d_old``, its value before the block
    where it is carried, and ``d_new``, its value after.
    """

    def __init__(self, chain: OnePass, where: dict[Var, Int]) -> None:
        self.chain = chain
        self.dtype = chain.dtype
        self.where = where
        self._maxima: dict[ln.Scalar, ln.Scalar] = {}

    def moved(self, state: Carried, before: ln.Scalar, block: ln.Scalar) -> tuple[ln.Statement, ln.Statement]:
        """The definitions of the maximum ``state`` as it was ``before``, and as it is including the ``block``."""
        most = ln.apply(ops.MAX, (self.temporary(state.name, "old"), block), None, self.dtype)
        return ln.Define(f"{state.name}_old", before), self.only(state, most)

    def only(self, state: Carried, most: ln.Scalar) -> ln.Statement:
        """The definition of the maximum ``state`` as ``most``."""
        new = self.temporary(state.name, "new")
        # While the maximum is -inf, any finite number will do: every factor is exp(-inf - it) = 0.
        finite = (self.chain.is_empty(new), self.chain.number(0.0), new)
        self._maxima[ln.temporary(state.name, self.dtype)] = ln.apply(ops.SELECT, finite, None, self.dtype)
        return ln.Define(f"{state.name}_new", most)

    def added(self, state: Carried, before: ln.Scalar, block: ln.Scalar) -> ln.Scalar:
        """The sum ``state``: ``before``, moved to the new maxima, plus the sum of the ``block``."""
        total = self.chain.times(before, self.factor(state)) if state.moves else before
        return ln.apply(ops.ADD, (total, block), None, self.dtype)

    def value(self, state: Carried, row: ln.Scalar) -> ln.Scalar:
        """The term of ``state`` in this block, from ``row``, the value of the row, and the new maxima."""
        product = state.inside[0]
        for factor in state.inside[1:]:
            product = self.chain.times(product, factor)
        of_row = ln.load(self.chain.row.name, sym.expr(self.chain.t.axis), self.chain.row.dtype)
        return substitute_scalar(replace_leaves(product, {of_row: row, **self._maxima}), self.where, {})

    def factor(self, state: Carried) -> ln.Scalar:
        """The factor that moves the carried part of ``state`` from the old maxima to the new."""
        found: list[ln.Scalar] = []
        for move in dict.fromkeys(state.moves):
            old, new = (self.temporary(move.state, suffix) for suffix in ("old", "new"))
            negative = self.chain.times(new, self.chain.number(-1.0))
            difference = ln.apply(ops.ADD, (old, negative), None, self.dtype)
            if move.scale != 1.0:
                difference = self.chain.times(difference, self.chain.number(move.scale))
            factor = ln.apply(ops.EXP2, (difference,), move.attr, self.dtype)
            # While the old maximum is -inf, the carried part is 0, and -inf less -inf must not make it NaN.
            guarded = (self.chain.is_empty(old), self.chain.number(0.0), factor)
            found.append(ln.apply(ops.SELECT, guarded, None, self.dtype))
        product = found[0]
        for factor in found[1:]:
            product = self.chain.times(product, factor)
        return product

    def temporary(self, name: str, suffix: str) -> ln.Scalar:
        """A temporary of the block for the reduction ``name``."""
        return ln.temporary(f"{name}_{suffix}", self.dtype)


def in_loop(axis: Int, extent: Int, body: Sequence[ln.Statement]) -> Body:
    """``body`` in a serial loop over ``axis``, or alone where ``axis`` is a number."""
    variable = sym.as_var(axis)
    return tuple(body) if variable is None else (ln.Loop(variable, extent, "serial", tuple(body)),)
