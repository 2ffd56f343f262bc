"""Products staged: tiles of both operands copied into shared memory, and multiplied from there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule import nest as ln
from luminal.core.schedule.parts import Square, Warps
from luminal.core.schedule.rewrite_nest import Body, prefix, replace_leaves, replace_scalars, substitute, wrap
from luminal.core.schedule.tensorise import product_of, stored_type
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

WIDE = 16  # bytes that a thread copies at once, at most


@dataclass(frozen=True)
class Stage:
    """::

    for .., m < M:  for n < N:                 for .., n_1 < N/columns:  for m_1 < M/rows:
        s = sum over k of A[m,k] * B[k,n]          for k_1 < K/depth:
        store f(s)                       =>            stage_a = A[rows of m_1, depth of k_1]        (by all threads)
                                                       stage_b = B[depth of k_1, columns of n_1]     (by all threads)
                                                       tile[thread] += stage_a * stage_b             (in registers)
                                                   for the elements of tile[thread]:  store f(s)

    ``parts`` divides the tile among threads. What is staged may lie anywhere in memory and may be masked by zeros: all
    K axes become one. Beyond M, N and K zeros are staged, and nothing is stored.

    With ``ahead``, there are two stages of each operand: one is filled, by copies that need not wait for each other,
    while the other is multiplied.
    """

    m: str
    n: str
    rows: int
    columns: int
    depth: int
    parts: Square | Warps
    ahead: bool = False

    @property
    def threads(self) -> int:
        """Threads of a task."""
        return self.parts.threads(self.rows, self.columns)

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, (reduction, *rest) = prefix(nest.body)
        by_name = {loop.axis.name: loop for loop in loops}
        if not isinstance(reduction, ln.Reduction):
            raise ScheduleError("stage: the nest is not a sum over a product inside loops over rows and columns")
        factors = product_of(reduction)
        if any(any(factor.fill) for factor in factors):
            raise ScheduleError("stage: a factor is something else than zero where it is masked")
        if self.m not in by_name or self.n not in by_name:
            raise ScheduleError(f"stage: the nest has no outer loops over {self.m!r} and {self.n!r}")
        rows, columns = _Side(by_name[self.m], self.rows), _Side(by_name[self.n], self.columns)
        steps = sym.ceildiv(sym.product(loop.extent for loop in reduction.loops), self.depth)
        a, b = (
            self._strip(nest, name, access, reduction.loops, side)
            for name, access, side in zip(("stage_a", "stage_b"), factors, (rows, columns), strict=True)
        )
        thread = Var("t0", 0, self.threads - 1)
        held = self.parts.held(sym.expr(thread), self.rows, self.columns)
        first = sym.expr(thread) * held.size
        element = ln.load("tile", first + held.number, reduction.dtype)
        zero = ln.literal(bytes(reduction.dtype.itemsize), reduction.dtype)
        clear = held.loops((ln.Store("tile", first + held.number, zero),))
        k_0 = Var("k_0", 0, self.depth - 1)
        contract = ln.Contract(
            "tile", reduction.dtype, a.name, a.dtype, a.place(sym.expr(k_0), held.top), a.line,
            b.name, b.dtype, b.place(sym.expr(k_0), held.left),
            (ln.Loop(k_0, self.depth, "serial", ()),), held.shape[0], held.shape[0], held.shape[1], held.shape[1],
            tile_offset=first, accumulate=True, b_column=b.line, fragment=held.fragment,
        )  # fmt: skip
        by = {ln.temporary(reduction.name, reduction.dtype): element}
        at = {rows.loop.axis: rows.at(held.row), columns.loop.axis: columns.at(held.column)}
        after = substitute(replace_scalars(tuple(rest), lambda value: replace_leaves(value, by)), at)
        valid = tuple(v for side in (rows, columns) if not sym.always(v := side.loop.extent - 1 - at[side.loop.axis]))
        after = held.loops((ln.If(valid, after),) if valid else after)
        twice = self.ahead and steps != 1
        body = (
            *(
                ln.Alloc(name, strip.dtype, strip.extent, "shared")
                for strip in (a, b)
                for name in ((strip.name, strip.other) if twice else (strip.name,))
            ),
            ln.Alloc("tile", reduction.dtype, held.size * self.threads, "registers"),
            self._by_threads(thread, *clear),
            *(self._in_turn(thread, steps, a, b, contract) if twice else self._steps(thread, steps, a, b, contract)),
            self._by_threads(thread, *after),
        )
        others = [loop for loop in loops if loop not in (rows.loop, columns.loop)]
        return replace(nest, body=wrap([*others, *columns.header, *rows.header], body), threads=self.threads)

    def _steps(self, thread: Var, steps: Int, a: _Strip, b: _Strip, contract: ln.Contract) -> Body:
        """Copy and multiply, step by step."""
        step = sym.axis("k_1", steps)
        body = (a.copy(a.name, step), b.copy(b.name, step), self._by_threads(thread, contract))
        variable = sym.as_var(step)
        return body if variable is None else (ln.Loop(variable, steps, "serial", body),)

    def _in_turn(self, thread: Var, steps: Int, a: _Strip, b: _Strip, contract: ln.Contract) -> Body:
        """Two steps an iteration: each stage is multiplied while the other is filled."""
        first = self._by_threads(thread, contract)
        second = self._by_threads(thread, replace(contract, a=a.other, b=b.other))
        pairs: Int = sym.ceildiv(steps, 2)
        last: Body = ()
        if isinstance(steps, int):  # the last step, or two, fill no further stage
            pairs, last = (steps - 1) // 2, (first,)
            if steps % 2 == 0:
                last = (a.copy(a.other, steps - 1), b.copy(b.other, steps - 1), first, second)
        pair = sym.axis("k_1", pairs)
        body = (
            a.copy(a.other, 2 * pair + 1), b.copy(b.other, 2 * pair + 1), first,
            a.copy(a.name, 2 * pair + 2), b.copy(b.name, 2 * pair + 2), second,
        )  # fmt: skip
        variable = sym.as_var(pair)
        loop: Body = body if variable is None else (ln.Loop(variable, pairs, "serial", body),)
        return (a.copy(a.name, 0), b.copy(b.name, 0), *(() if pairs == 0 else loop), *last)

    def _by_threads(self, thread: Var, *body: ln.Statement) -> ln.Loop:
        return ln.Loop(thread, self.threads, "thread", body, self.threads)

    def _strip(
        self, nest: ln.LoopNest, name: str, access: ln.Access, reduced: tuple[ln.Loop, ...], side: _Side
    ) -> _Strip:
        dtype = stored_type(nest, access.array)
        along = _stride(access.offset, reduced[-1].axis) == 1
        # Squares are read across, fragments along their terms as well.
        by_line = along and isinstance(self.parts, Warps)
        strip = _Strip(name, access, dtype, side, reduced, self.depth, self.threads, along, by_line, 1, self.ahead)
        width = WIDE // dtype.itemsize if by_line or not along else 1
        while width > 1 and not strip.aligned(width):
            width //= 2
        return replace(strip, width=width, ahead=self.ahead and width * dtype.itemsize >= 4)


@dataclass(frozen=True)
class _Side:
    """The rows, or the columns: the loop over them, and how many a tile has."""

    loop: ln.Loop
    size: int

    @property
    def tile(self) -> Int:
        """The number of the tile."""
        return sym.axis(f"{self.loop.axis.name}_1", sym.ceildiv(self.loop.extent, self.size))

    @property
    def header(self) -> list[ln.Loop]:
        """The loop over tiles, where there are several."""
        variable = sym.as_var(self.tile)
        return [] if variable is None else [ln.Loop(variable, sym.ceildiv(self.loop.extent, self.size), "serial", ())]

    def at(self, inside: Int) -> Int:
        """The row, or column, that is ``inside`` the tile."""
        return self.tile * self.size + inside


@dataclass(frozen=True)
class _Strip:
    """An operand in shared memory: ``depth`` terms of each of its lines, which are the rows of A or the columns of B.

    Threads read it ``along`` its terms or across them, whichever memory runs along, ``width`` elements at once; it is
    stored ``by_line``, or term by term.
    """

    name: str
    access: ln.Access
    dtype: DType
    side: _Side
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
        """Terms of a line in memory."""
        return sym.product(loop.extent for loop in self.reduced)

    @property
    def pitch(self) -> int:
        """From one line, or term, to the next: where threads write a column, its elements are in different banks."""
        inner = self.depth if self.by_line else self.side.size
        return inner + (WIDE // self.dtype.itemsize if self.along else 0)

    @property
    def extent(self) -> int:
        """Elements of a stage."""
        return self.pitch * (self.side.size if self.by_line else self.depth)

    @property
    def line(self) -> int:
        """From one line to the next."""
        return self.pitch if self.by_line else 1

    def place(self, term: Int, line: Int) -> Int:
        """Where ``term`` of ``line`` is."""
        return line * self.pitch + term if self.by_line else term * self.pitch + line

    def copy(self, name: str, step: Int) -> ln.Loop:
        """Fills the stage ``name`` with the terms of ``step``."""
        copied, group = Var("c0", 0, self.side.size * self.depth // self.width - 1), sym.axis("v0", self.width)
        line, term = self._position(sym.expr(copied), group)
        offset, masks = self._read(line, term, step)
        # Whole groups are masked or not.
        first = {variable: 0} if (variable := sym.as_var(group)) is not None else {}
        valid = tuple(v for m in masks if not sym.always(v := sym.substitute(m, first)))
        value = ln.load(self.access.array, offset, self.dtype, valid, bytes(self.dtype.itemsize))
        body: Body = (ln.Store(name, self.place(term, line), value, ahead=self.ahead),)
        if variable is not None:
            body = (ln.Loop(variable, self.width, "vector", body, self.width),)
        return ln.Loop(copied, copied.hi + 1, "thread", body, self.threads)

    def aligned(self, width: int) -> bool:
        """Whether groups of ``width`` elements lie side by side and aligned, each masked as a whole."""
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
        """The line and the term that element ``group`` of copy number ``copied`` is."""
        inner = (self.depth if self.along else self.side.size) // self.width
        slow, fast = sym.floordiv(copied, inner), sym.mod(copied, inner) * self.width + group
        return (slow, fast) if self.along else (fast, slow)

    def _read(self, line: Int, term: Int, step: Int) -> tuple[Int, list[Int]]:
        """The offset of an element in memory, and the conditions under which it is read."""
        position, number = self.side.at(line), step * self.depth + term
        by = {self.side.loop.axis: position}
        rest = number
        for loop in reversed(self.reduced):
            by[loop.axis] = rest if loop is self.reduced[0] else sym.mod(rest, loop.extent)
            rest = sym.floordiv(rest, loop.extent)
        masks = [sym.substitute(v, by) for v in self.access.valid]
        masks += [self.side.loop.extent - 1 - position, self.terms - 1 - number]
        return sym.substitute(self.access.offset, by), [m for m in masks if not sym.always(m)]


def _uniform(mask: Int, group: Var, width: int) -> bool:
    """Whether ``mask >= 0`` holds for all of ``width`` values of ``group`` or for none."""
    linear = sym.coefficient(mask, group)
    if linear is None or linear[0] not in (-1, 0, 1):
        return False
    return linear[0] == 0 or sym.mod(linear[1] + (1 if linear[0] == -1 else 0), width) == 0


def _stride(offset: Int, axis: Var) -> Int:
    linear = sym.coefficient(offset, axis)
    return 0 if linear is None else linear[0]
