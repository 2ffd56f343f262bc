"""Operands of products in shared memory: how threads copy them, and the steps in which they are multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.grid import COPIES
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import stored_type
from luminal.core.schedule.nest.walk import Body
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


@dataclass(frozen=True)
class Side:
    """The rows or the columns of a tile: ``size`` iterations of ``loop``, from ``first`` on."""

    loop: ln.Loop
    size: int
    first: Int

    def at(self, inside: Int) -> Int:
        """The row or column number ``inside`` of the tile."""
        return self.first + inside

    def valid(self, inside: Int) -> tuple[Int, ...]:
        """The condition for that row or column to exist, where it is not certain."""
        condition = self.loop.extent - 1 - self.at(inside)
        return () if sym.always(condition) else (condition,)


@dataclass(frozen=True)
class StagedOperand:
    """An operand in shared memory: ``depth`` terms of each of its lines, which are rows of A or columns of B.

    Threads copy it ``along`` its terms or across them, in the direction in which memory is contiguous, ``width``
    elements at once. It is stored line by line (``by_line``) or term by term.
    """

    name: str
    access: ln.Access
    dtype: DType
    side: Side
    reduced: tuple[ln.Loop, ...]
    depth: int
    threads: int
    along: bool
    by_line: bool
    width: int
    ahead: bool

    @property
    def other(self) -> str:
        """The name of the second stage."""
        return f"{self.name}_2"

    @property
    def terms(self) -> Int:
        """Terms of a whole line."""
        return sym.product(loop.extent for loop in self.reduced)

    @property
    def pitch(self) -> int:
        """Elements from one line, or term, to the next, such that columns that threads write spread over all banks."""
        inner = self.depth if self.by_line else self.side.size
        return inner + (max(COPIES) // self.dtype.itemsize if self.along else 0)

    @property
    def extent(self) -> int:
        """Elements of a stage."""
        return self.pitch * (self.side.size if self.by_line else self.depth)

    @property
    def line(self) -> int:
        """Elements from one line to the next."""
        return self.pitch if self.by_line else 1

    def place(self, term: Int, line: Int) -> Int:
        """The offset of ``term`` of ``line`` in a stage."""
        return line * self.pitch + term if self.by_line else term * self.pitch + line

    def copy(self, name: str, step: Int) -> ln.Loop:
        """The loop that fills the stage ``name`` with the terms of ``step``."""
        copied, group = Var("c0", 0, self.side.size * self.depth // self.width - 1), sym.axis("v0", self.width)
        line, term = self._position(sym.expr(copied), group)
        offset, masks = self._read(line, term, step)
        # A group is masked as a whole.
        first = {variable: 0} if (variable := sym.as_var(group)) is not None else {}
        valid = tuple(v for m in masks if not sym.always(v := sym.substitute(m, first)))
        value = ln.load(self.access.array, offset, self.dtype, valid, bytes(self.dtype.itemsize))
        body: Body = (ln.Store(name, self.place(term, line), value, ahead=self.ahead),)
        if variable is not None:
            body = (ln.Loop(variable, self.width, "vector", body, self.width),)
        return ln.Loop(copied, copied.hi + 1, "thread", body, self.threads)

    def aligned(self, width: int) -> bool:
        """Whether groups of ``width`` elements are contiguous and aligned, each masked as a whole or not at all."""
        copied, group = Var("c0", 0, self.side.size * self.depth // width - 1), sym.axis("v0", width)
        line, term = replace(self, width=width)._position(sym.expr(copied), group)
        step = Var("k_1", 0, sym.ceildiv(self.terms, self.depth) + 1)
        offset, masks = self._read(line, term, sym.expr(step))
        variable = sym.as_var(group)
        assert variable is not None
        start = sym.coefficient(offset, variable)
        if start is None or start[0] != 1 or sym.mod(start[1], width) != 0:
            return False
        return all(_uniform(mask, variable, width) for mask in masks)

    def _position(self, copied: Int, group: Int) -> tuple[Int, Int]:
        """The line and the term of element ``group`` of copy number ``copied``."""
        inner = (self.depth if self.along else self.side.size) // self.width
        slow, fast = sym.floordiv(copied, inner), sym.mod(copied, inner) * self.width + group
        return (slow, fast) if self.along else (fast, slow)

    def _read(self, line: Int, term: Int, step: Int) -> tuple[Int, list[Int]]:
        """The offset of an element in memory, and the conditions under which it exists."""
        position, number = self.side.at(line), step * self.depth + term
        by = {self.side.loop.axis: position}
        rest = number
        for loop in reversed(self.reduced):
            by[loop.axis] = rest if loop is self.reduced[0] else sym.mod(rest, loop.extent)
            rest = sym.floordiv(rest, loop.extent)
        masks = [sym.substitute(v, by) for v in self.access.valid]
        masks += [self.side.loop.extent - 1 - position, self.terms - 1 - number]
        return sym.substitute(self.access.offset, by), [m for m in masks if not sym.always(m)]


def staged(
    nest: ln.LoopNest, name: str, access: ln.Access, side: Side, reduced: tuple[ln.Loop, ...], depth: int,
    threads: int, *, lines: bool, ahead: bool,
) -> StagedOperand:  # fmt: skip
    """``access``, an element of a row or column of ``side`` and of the terms ``reduced``, as an operand that
    ``threads`` copy; stored line by line where ``lines`` allows it and memory is contiguous along lines."""
    dtype = stored_type(nest, access.array)
    along = _stride(access.offset, reduced[-1].axis) == 1
    found = StagedOperand(name, access, dtype, side, reduced, depth, threads, along, along and lines, 1, ahead)
    width = max(COPIES) // dtype.itemsize if found.by_line or not along else 1
    while width > 1 and not found.aligned(width):
        width //= 2
    return replace(found, width=width, ahead=ahead and width * dtype.itemsize >= min(COPIES))


def _uniform(mask: Int, group: Var, width: int) -> bool:
    """Whether ``mask >= 0`` holds for all of ``width`` values of ``group`` or for none."""
    linear = sym.coefficient(mask, group)
    if linear is None or linear[0] not in (-1, 0, 1):
        return False
    return linear[0] == 0 or sym.mod(linear[1] + (1 if linear[0] == -1 else 0), width) == 0


def _stride(offset: Int, axis: Var) -> Int:
    linear = sym.coefficient(offset, axis)
    return 0 if linear is None else linear[0]


@dataclass(frozen=True)
class StagedSteps:
    """A product summed in ``count`` steps, each of which fills the stages of ``operands`` and multiplies them.
    ``product`` gives the tile operation of a step; given True, it reads the second stages.

    With ``ahead`` there are two stages of each operand: one is filled asynchronously while the other is multiplied.
    """

    threads: int
    count: Int
    operands: tuple[StagedOperand, ...]
    product: Callable[[Int, bool], ln.Contract]
    ahead: bool

    @property
    def twice(self) -> bool:
        """Whether there are two stages."""
        return self.ahead and self.count != 1

    def allocations(self) -> Body:
        """The stages."""
        return tuple(
            ln.Alloc(name, operand.dtype, operand.extent, "shared")
            for operand in self.operands
            for name in ((operand.name, operand.other) if self.twice else (operand.name,))
        )

    def body(self) -> Body:
        """The statements of all steps."""
        return self._in_turn() if self.twice else self._one_by_one()

    def _one_by_one(self) -> Body:
        step = sym.axis("k_1", self.count)
        body = (*self._copies(step), self._product(step))
        variable = sym.as_var(step)
        return body if variable is None else (ln.Loop(variable, self.count, "serial", body),)

    def _in_turn(self) -> Body:
        """Two steps an iteration: each stage is filled while the other is multiplied."""
        steps = self.count
        pairs: Int = sym.ceildiv(steps, 2)
        last: Body = ()
        if isinstance(steps, int):  # the last one or two steps fill no further stage
            pairs, last = (steps - 1) // 2, (self._product(steps - 1),)
            if steps % 2 == 0:
                last = (*self._copies(steps - 1, True), self._product(steps - 2), self._product(steps - 1, True))
        pair = sym.axis("k_1", pairs)
        body = (
            *self._copies(2 * pair + 1, True), self._product(2 * pair),
            *self._copies(2 * pair + 2), self._product(2 * pair + 1, True),
        )  # fmt: skip
        variable = sym.as_var(pair)
        loop: Body = body if variable is None else (ln.Loop(variable, pairs, "serial", body),)
        return (*self._copies(0), *(() if pairs == 0 else loop), *last)

    def _copies(self, step: Int, other: bool = False) -> Body:
        return tuple(operand.copy(operand.other if other else operand.name, step) for operand in self.operands)

    def _product(self, step: Int, other: bool = False) -> ln.Loop:
        return by_threads(self.threads, self.product(step, other))


def by_threads(threads: int, *body: ln.Statement) -> ln.Loop:
    """``body`` run by each thread, whose number is ``t0``."""
    return ln.Loop(Var("t0", 0, threads - 1), threads, "thread", body, threads)
