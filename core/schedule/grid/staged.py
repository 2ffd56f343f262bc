"""Operands of products in shared memory: how threads copy them, and the steps in which they are multiplied."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import ALIGNMENT, BOX_LINES, BOX_RANK, COPIES, LINES, PANEL, SMALL
from luminal.core.matching import cuts, digits
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import stored_type
from luminal.core.schedule.nest.rewrite import replace_leaves, substitute_scalar
from luminal.core.schedule.nest.walk import Body, accesses
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

    An element is ``value``, of which each access is ``access`` or another; ``access`` alone is copied. Threads copy or
    compute it ``along`` its terms or across them, in the direction in which memory is contiguous, ``width``
    elements at once. It is stored line by line (``by_line``) or term by term, with ``room`` between these; in
    ``panels``, if a group of warps multiplies it.
    """

    name: str
    access: ln.Access
    value: ln.Scalar
    dtype: DType
    side: Side
    reduced: tuple[ln.Loop, ...]
    depth: int
    threads: int
    along: bool
    by_line: bool
    width: int
    ahead: bool
    panels: bool = False
    room: int = 0
    # From the line at the axis of ``side`` and from term ``number`` on, where a device can copy a step as one.
    box: ln.CopyBox | None = None

    def stage(self, number: int) -> str:
        """The name of a stage."""
        return f"{self.name}_{number + 1}" if number else self.name

    @property
    def terms(self) -> Int:
        """Terms of a whole line."""
        return sym.product(loop.extent for loop in self.reduced)

    @property
    def number(self) -> Var:
        """The number of a term of a line."""
        return Var("term", 0, self.terms - 1)

    @property
    def row(self) -> int:
        """Elements of a line, or of a term, that lie side by side."""
        return self.depth if self.by_line else self.side.size

    @property
    def pitch(self) -> int:
        """Elements from one line, or term, to the next."""
        return self.row + self.room

    @property
    def extent(self) -> int:
        """Elements of a stage."""
        return self.pitch * (self.side.size if self.by_line else self.depth)

    @property
    def line(self) -> int:
        """Elements from one line to the next."""
        return self.pitch if self.by_line else 1

    def allocation(self, name: str) -> ln.Alloc:
        """The stage ``name``."""
        return ln.Alloc(name, self.dtype, self.extent, "shared", self.row if self.panels else 0)

    def place(self, term: Int, line: Int) -> Int:
        """The offset of ``term`` of ``line`` in a stage."""
        return line * self.pitch + term if self.by_line else term * self.pitch + line

    def copy(self, name: str, step: Int) -> ln.Statement:
        """The statement that fills the stage ``name`` with the terms of ``step``."""
        if self.box is None:
            return self._by_threads(name, step)
        begin = {self.side.loop.axis: self.side.first, self.number: step * self.depth}
        origin = tuple(sym.substitute(x, begin) for x in self.box.origin)
        return replace(self.box, array=name, origin=origin, body=(self._by_threads(name, step),))

    def beginning(self, first: Int) -> StagedOperand:
        """The same of the lines from ``first`` on."""
        return replace(self, side=replace(self.side, first=first))

    def _by_threads(self, name: str, step: Int) -> ln.Loop:
        count = self.side.size * self.depth // self.width
        each, rest = divmod(count, self.threads)
        copied: Int = sym.expr(Var("c0", 0, count - 1))
        group, turn = sym.axis("v0", self.width), sym.axis("c0", each)
        if not rest:  # each thread copies as much, so its copies are written out
            copied = turn * self.threads + sym.var("t0", 0, self.threads - 1)
        line, term = self._position(copied, group)
        by, masks = self._at(line, term, step)
        # A group is masked as a whole.
        first = {variable: 0} if (variable := sym.as_var(group)) is not None else {}
        valid = tuple(v for m in masks if not sym.always(v := sym.substitute(m, first)))
        value = self._element(by, valid)
        body: Body = (ln.Store(name, self.place(term, line), value, ahead=self.ahead),)
        if variable is not None:
            body = (ln.Loop(variable, self.width, "vector", body, self.width),)
        if rest:
            return ln.Loop(Var("c0", 0, count - 1), count, "thread", body, self.threads)
        axis = sym.as_var(turn)
        return by_threads(self.threads, *(body if axis is None else (ln.Loop(axis, each, "unroll", body),)))

    @property
    def contiguous(self) -> bool:
        """Whether terms that follow each other lie side by side in memory: those of the innermost loop, or all of a
        step, where a loop runs over several axes whose digits a step divides evenly."""
        term = sym.axis("v0", self.depth)
        by, _ = self._at(0, term, sym.expr(Var("k_1", 0, sym.ceildiv(self.terms, self.depth) + 1)))
        variable = sym.as_var(term)
        of_step = variable is not None and _stride(sym.substitute(self.access.offset, by), variable) == 1
        return of_step or _stride(self.access.offset, self.reduced[-1].axis) == 1

    def aligned(self, width: int) -> bool:
        """Whether groups of ``width`` elements are contiguous and aligned, each masked as a whole or not at all."""
        copied, group = Var("c0", 0, self.side.size * self.depth // width - 1), sym.axis("v0", width)
        line, term = replace(self, width=width)._position(sym.expr(copied), group)
        step = Var("k_1", 0, sym.ceildiv(self.terms, self.depth) + 1)
        by, masks = self._at(line, term, sym.expr(step))
        variable = sym.as_var(group)
        assert variable is not None
        for access in accesses(self.value):
            start = sym.coefficient(sym.substitute(access.offset, by), variable)
            if start is None or start[0] not in ((0, 1) if self.is_computed else (1,)):
                return False
            if start[0] == 1 and sym.mod(start[1], width) != 0:
                return False
        return all(uniform(mask, variable, width) for mask in masks)

    def _position(self, copied: Int, group: Int) -> tuple[Int, Int]:
        """The line and the term of element ``group`` of copy number ``copied``."""
        inner = (self.depth if self.along else self.side.size) // self.width
        slow, fast = sym.floordiv(copied, inner), sym.mod(copied, inner) * self.width + group
        return (slow, fast) if self.along else (fast, slow)

    def _at(self, line: Int, term: Int, step: Int) -> tuple[dict[Var, Int], list[Int]]:
        """Where an element is: each axis of the product, and the conditions under which it exists."""
        position, number = self.side.at(line), step * self.depth + term
        by = self.axes(position, number)
        masks = [sym.substitute(v, by) for v in self.access.valid]
        masks += [self.side.loop.extent - 1 - position, self.terms - 1 - number]
        return by, [m for m in masks if not sym.always(m)]

    def axes(self, position: Int, number: Int) -> dict[Var, Int]:
        """Each axis of the product, at a row or column and the number of a term."""
        by = {self.side.loop.axis: position}
        for loop in reversed(self.reduced):
            by[loop.axis] = number if loop is self.reduced[0] else sym.mod(number, loop.extent)
            number = sym.floordiv(number, loop.extent)
        return by

    def _element(self, by: dict[Var, Int], valid: tuple[Int, ...]) -> ln.Scalar:
        """The element there, zero where it is not ``valid``."""
        zero = bytes(self.dtype.itemsize)
        if not self.is_computed:
            return ln.load(self.access.array, sym.substitute(self.access.offset, by), self.dtype, valid, zero)
        computed = substitute_scalar(self.value, by, {})
        if not valid:
            return computed
        read = [(s, s.leaf) for s in ln.postorder(computed) if isinstance(s.leaf, ln.Access)]
        masked = {s: ln.load(x.array, x.offset, s.dtype, valid, bytes(s.dtype.itemsize)) for s, x in read}
        return ln.select(valid, replace_leaves(computed, masked), ln.literal(zero, self.dtype))

    @property
    def is_computed(self) -> bool:
        """Whether threads compute an element of what they read, and copy none."""
        return self.value.leaf != self.access


def staged(
    nest: ln.LoopNest, name: str, access: ln.Access, side: Side, reduced: tuple[ln.Loop, ...], depth: int,
    threads: int, *, lines: bool, ahead: bool, panels: bool = False, value: ln.Scalar | None = None,
    room: int | None = None,
) -> StagedOperand:  # fmt: skip
    """``access``, an element of a row or column of ``side`` and of the terms ``reduced``, as an operand that
    ``threads`` copy; stored line by line where ``lines`` allows it and memory is contiguous along lines. With a
    ``value``, which reads ``access`` and may read more, they compute that along lines. Between lines there is as much
    ``room`` as banks ask for, unless that is given.

    Raises ScheduleError where it does not fill whole ``panels``."""
    stored = stored_type(nest, access.array)
    value = ln.load(access.array, access.offset, stored, access.valid, access.fill) if value is None else value
    computed, dtype = value.leaf != access, value.dtype
    ahead = ahead and not computed
    between = 0 if panels else room
    found = StagedOperand(
        name, access, value, dtype, side, reduced, depth, threads, True, lines, 1, ahead, panels,
        _room(dtype, True, lines) if between is None else between,
    )  # fmt: skip
    along = computed or found.contiguous
    if not along:
        room = _room(dtype, False, lines) if between is None else between
        found = replace(found, along=False, by_line=False, room=room)
    if panels and (found.row * dtype.itemsize % PANEL or found.extent // found.row % LINES):
        raise ScheduleError(f"stage: {found.extent // found.row} rows of {found.row} {dtype} do not fill panels")
    width = math.gcd(max(COPIES) // dtype.itemsize, found.row) if found.by_line or not along else 1
    if computed and not panels:
        width = math.gcd(max(COPIES), depth)  # of numbers of 8 bits
    while width > 1 and not found.aligned(width):
        width //= 2
    found = replace(found, width=width, ahead=ahead and width * dtype.itemsize >= min(COPIES))
    return replace(found, box=_box(nest, found)) if found.panels and found.ahead else found


def _room(dtype: DType, along: bool, fragments: bool) -> int:
    """Elements between lines, or terms, such that banks serve at most two threads at once: those that write down the
    terms of a copy ``along`` them; those that load small matrices for ``fragments``, a row of one in each line or
    term."""
    if along:
        return max(COPIES) // dtype.itemsize
    return SMALL if fragments else 0


def _box(nest: ln.LoopNest, operand: StagedOperand) -> ln.CopyBox | None:
    """The box of memory that is the operand's stage of a step; None where it is none that devices copy: other strides
    than multiples of ``ALIGNMENT`` bytes, masks, too many dimensions.

    Where an offset takes the number of a line or of a term apart, as in panels, each digit is a dimension. The tile, or
    the step, is then a part of the last digit: weights in panels, ``n % 256 + 256*k + 256*K * (n // 256)``, are a
    tensor of ``N / 256`` by ``K`` by 256, where a tile has 256 columns or a divisor of that."""
    access, side, part = operand.access, operand.side, ALIGNMENT // operand.dtype.itemsize
    aligned = all(array.aligned for array in nest.arrays if array.name == access.array)
    if access.valid or not aligned or operand.extent // operand.row > BOX_LINES:
        return None
    term, line = operand.number, side.loop.axis
    rest = sym.substitute(access.offset, operand.axes(sym.expr(line), sym.expr(term)))
    others = sorted(sym.variables(rest) - {term, line, *nest.dims}, key=lambda v: v.name)
    counts = {term: (operand.terms, operand.depth), line: (side.loop.extent, side.size)}
    inner: dict[Var, _Dimension] = {}
    outer: list[_Dimension] = []
    for axis in (term, line, *others):
        extent, taken = counts.get(axis, (axis.hi + 1, 1))
        split = digits(axis, extent, cuts(axis, (rest,)), "")
        if split is None or (len(split) > 1 and sym.mod(split[0][1], taken) != 0):
            return None
        rest = sym.substitute(rest, {axis: sum((digit * scale for digit, _, scale in split), start=0)})
        for number, (digit, size, scale) in enumerate(split):
            variable = sym.as_var(digit)
            linear = None if variable is None else sym.coefficient(rest, variable)
            if linear is None or sym.variables(linear[0]) - {*nest.dims}:
                return None
            first = sym.floordiv(sym.expr(axis), scale)
            found = _Dimension(first if number == len(split) - 1 else sym.mod(first, size), size, linear[0])
            rest = linear[1]
            if number == 0 and axis in counts:
                inner[axis] = found
            else:
                outer.append(found)
    along, *apart = (inner[term], inner[line], *outer) if operand.by_line else (inner[line], inner[term], *outer)
    if along.stride != 1 or any(sym.mod(x.stride, part) != 0 or not sym.always(x.stride - part) for x in apart):
        return None
    if sym.mod(rest, part) != 0 or len(apart) + 1 > BOX_RANK:
        return None
    return ln.CopyBox(
        operand.name, access.array, tuple(x.first for x in (along, *apart)), tuple(x.size for x in (along, *apart)),
        tuple(x.stride for x in apart), rest, operand.extent // operand.row, operand.row,
    )  # fmt: skip


class _Dimension(NamedTuple):
    """A dimension of a tensor of which a box is copied: where the box begins, its size and its stride in elements."""

    first: Int
    size: Int
    stride: Int


def uniform(mask: Int, group: Var, width: int) -> bool:
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
    ``product`` gives the tile operation of a step that reads the stages of a number, from 0 on.

    With ``ahead`` there are two stages of each operand: one is filled asynchronously while the other is multiplied.
    """

    threads: int
    count: Int
    operands: tuple[StagedOperand, ...]
    product: Callable[[Int, int], ln.Contract]
    ahead: int

    @property
    def stages(self) -> int:
        """The stages of each operand."""
        return 2 if self.ahead and self.count != 1 else 1

    def allocations(self) -> Body:
        """The stages."""
        return tuple(
            operand.allocation(operand.stage(number)) for operand in self.operands for number in range(self.stages)
        )

    def body(self) -> Body:
        """The statements of all steps."""
        return self._in_turn() if self.stages > 1 else self._one_by_one()

    def _one_by_one(self) -> Body:
        step = sym.axis("k_1", self.count)
        return _loop(step, self.count, (*self._copies(step), self._product(step)))

    def _in_turn(self) -> Body:
        """Two steps an iteration: each stage is filled while the other is multiplied."""
        steps = self.count
        pairs: Int = sym.ceildiv(steps, 2)
        last: Body = ()
        if isinstance(steps, int):  # the last one or two steps fill no further stage
            pairs, last = (steps - 1) // 2, (self._product(steps - 1),)
            if steps % 2 == 0:
                last = (*self._copies(steps - 1, 1), self._product(steps - 2), self._product(steps - 1, 1))
        pair = sym.axis("k_1", pairs)
        body = (
            *self._copies(2 * pair + 1, 1), self._product(2 * pair),
            *self._copies(2 * pair + 2), self._product(2 * pair + 1, 1),
        )  # fmt: skip
        return (*self._copies(0), *_loop(pair, pairs, body), *last)

    def _copies(self, step: Int, stage: int = 0) -> Body:
        return tuple(operand.copy(operand.stage(stage), step) for operand in self.operands)

    def _product(self, step: Int, stage: int = 0) -> ln.Loop:
        return by_threads(self.threads, self.product(step, stage))


@dataclass(frozen=True)
class BackgroundSteps(StagedSteps):
    """The same, where products run in the background as well, and there is a stage for each of the ``ahead`` steps
    whose copies may be under way, and one more.

    With three stages or more, a product begins while the one before may still run. Then a barrier waits for that one,
    whose stage is filled again, and for the copies of the next step. With two, the barrier after a copy waits for the
    product, and with one the copies come after that.
    """

    @property
    def stages(self) -> int:
        return min(self.ahead + 1, self.count) if isinstance(self.count, int) else self.ahead + 1

    def body(self) -> Body:
        early = self.stages - 1  # steps whose copies are begun before the first product
        if not early:
            step = sym.axis("k_1", self.count)
            return _loop(step, self.count, (*self._copies(step), self._product(step), ln.Barrier()))
        # Beyond the last step, zeros are copied and multiplied; where the number of steps is known, none are.
        rounds: Int = sym.ceildiv(self.count, self.stages)
        rest: Body = (ln.Barrier(),)
        if isinstance(self.count, int):
            whole, over = divmod(self.count - early, self.stages)
            rounds, done = whole, whole * self.stages
            rest = (*self._steps(done, over), *self._last(done + over, early))
        number = sym.axis("k_1", rounds)
        body = self._steps(number * self.stages, self.stages)
        first = (s for stage in range(early) for s in (*self._copies(stage, stage), ln.Barrier(left=early - 1)))
        return (*first, *_loop(number, rounds, body), *rest)

    def _steps(self, first: Int, count: int) -> Body:
        """``count`` steps from number ``first`` on, a multiple of the number of stages."""
        early = self.stages - 1
        steps: list[ln.Statement] = []
        for k in range(count):
            copies = self._copies(first + k + early, (k + early) % self.stages)
            steps.append(self._product(first + k, k))
            steps += [ln.Barrier(left=early - 2, products=1), *copies] if early > 1 else [*copies, ln.Barrier()]
        return tuple(steps)

    def _last(self, first: int, count: int) -> Body:
        """The last ``count`` steps, from number ``first`` on, which fill no further stage."""
        return tuple(
            statement
            for k in range(count)
            for statement in (
                self._product(first + k, (first + k) % self.stages),
                ln.Barrier(left=max(0, count - 2 - k), products=int(k < count - 1)),
            )
        )  # fmt: skip


def _loop(position: Int, extent: Int, body: Body) -> Body:
    """``body`` for each ``position``, an axis of ``extent``."""
    variable = sym.as_var(position)
    if extent == 0:
        return ()
    return body if variable is None else (ln.Loop(variable, extent, "serial", body),)


def by_threads(threads: int, *body: ln.Statement) -> ln.Loop:
    """``body`` run by each thread, whose number is ``t0``."""
    return ln.Loop(Var("t0", 0, threads - 1), threads, "thread", body, threads)
