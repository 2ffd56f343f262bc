"""The transforms that divide a task among threads: a block of a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import ELEMENT, LANE, Fragment
from luminal.core.schedule import nest as ln
from luminal.core.schedule.lower import accesses, inside, statements
from luminal.core.schedule.rewrite_nest import Body, prefix, replace_leaves, replace_scalars, substitute, wrap
from luminal.core.schedule.tensorise import stored_type
from luminal.core.schedule.transforms import expand, find
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType


def _expr(variable: Var) -> Int:
    return sym.Expr((((variable,), 1),))


@dataclass(frozen=True)
class Divide:
    """::

    for a < E:  body(a)        =>      for a in t, t + threads, .. < E:  body(a)        (t: each of the threads)

    Everywhere that the axis is looped over. Iterations are independent there, or those of a reduction, of which the
    axis must be the innermost.
    """

    axis: str
    threads: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        find(nest.body, self.axis)
        for statement in statements(nest.body):
            headers = statement.loops if isinstance(statement, ln.Reduction) else ()
            if any(loop.axis.name == self.axis for loop in headers[:-1]):
                raise ScheduleError(f"divide: {self.axis!r} is not the innermost loop of {statement}")
            around = isinstance(statement, ln.Loop) and statement.axis.name == self.axis
            if around and any(_is_divided(inner) for inner in statements(inside(statement))):
                raise ScheduleError(
                    f"divide: a loop inside the one over {self.axis!r} is divided among threads already"
                )
        return replace(nest, body=expand(nest.body, self.axis, self._divided))

    def _divided(self, loop: ln.Loop) -> list[ln.Loop]:
        return [replace(loop, kind="thread", lanes=self.threads, body=())]


def _is_divided(statement: ln.Statement) -> bool:
    loops = statement.loops if isinstance(statement, ln.Reduction) else (statement,)
    return any(isinstance(loop, ln.Loop) and loop.kind == "thread" for loop in loops)


@dataclass(frozen=True)
class Square:
    """A tile divided among threads: ``side x side`` neighbouring elements for each."""

    side: int

    def threads(self, rows: int, columns: int) -> int:
        """Threads of a tile; raises ScheduleError where the parts do not fill it."""
        if rows % self.side or columns % self.side:
            raise ScheduleError(f"stage: squares of {self.side} do not fill {rows} x {columns} elements")
        return (rows // self.side) * (columns // self.side)

    def held(self, thread: Int, rows: int, columns: int) -> Held:
        """What ``thread`` has of a tile."""
        across = columns // self.side
        top, left = sym.floordiv(thread, across) * self.side, sym.mod(thread, across) * self.side
        row, column = sym.axis("i", self.side), sym.axis("j", self.side)
        shape = (self.side, self.side)
        return Held(top, left, shape, (row, column), shape, top + row, left + column, None)


@dataclass(frozen=True)
class Warps:
    """A tile divided among warps: ``rows x columns`` for each, as a matrix of fragments."""

    rows: int
    columns: int
    fragment: Fragment

    def threads(self, rows: int, columns: int) -> int:
        """Threads of a tile; raises ScheduleError where the parts do not fill it."""
        if rows % self.rows or columns % self.columns:
            raise ScheduleError(f"stage: warps of {self.rows} x {self.columns} do not fill {rows} x {columns} elements")
        if self.rows % self.fragment.rows or self.columns % self.fragment.columns:
            raise ScheduleError(f"stage: {self.fragment.name} does not fill {self.rows} x {self.columns} elements")
        return (rows // self.rows) * (columns // self.columns) * self.fragment.warp

    def held(self, thread: Int, rows: int, columns: int) -> Held:
        """What ``thread`` has of a tile."""
        fragment, across = self.fragment, columns // self.columns
        warp, lane = sym.floordiv(thread, fragment.warp), sym.mod(thread, fragment.warp)
        top, left = sym.floordiv(warp, across) * self.rows, sym.mod(warp, across) * self.columns
        extents = (self.rows // fragment.rows, self.columns // fragment.columns, fragment.elements)
        axes = tuple(sym.axis(name, extent) for name, extent in zip("ije", extents, strict=True))
        i, j, e = axes
        by = {LANE: lane, ELEMENT: e}
        row = top + i * fragment.rows + sym.substitute(fragment.row, by)
        column = left + j * fragment.columns + sym.substitute(fragment.column, by)
        return Held(top, left, (self.rows, self.columns), axes, extents, row, column, fragment)


@dataclass(frozen=True)
class Held:
    """What a thread has of a tile: the elements at ``row`` and ``column`` for all values of ``axes``, within the
    ``shape`` at ``top`` and ``left`` that it computes, alone or with its warp."""

    top: Int
    left: Int
    shape: tuple[int, int]
    axes: tuple[Int, ...]
    extents: tuple[int, ...]
    row: Int
    column: Int
    fragment: Fragment | None

    @property
    def size(self) -> int:
        """Elements of the thread."""
        return math.prod(self.extents)

    @property
    def number(self) -> Int:
        """The place of the element at ``axes`` among them."""
        total: Int = 0
        for axis, extent in zip(self.axes, self.extents, strict=True):
            total = total * extent + axis
        return total

    def loops(self, body: Body) -> Body:
        """``body`` for each of the elements."""
        axes = zip(self.axes, self.extents, strict=True)
        return wrap([ln.Loop(v, extent, "unroll", ()) for axis, extent in axes if (v := sym.as_var(axis))], body)


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
    """

    m: str
    n: str
    rows: int
    columns: int
    depth: int
    parts: Square | Warps

    @property
    def threads(self) -> int:
        """Threads of a task."""
        return self.parts.threads(self.rows, self.columns)

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, (reduction, *rest) = prefix(nest.body)
        by_name = {loop.axis.name: loop for loop in loops}
        if not isinstance(reduction, ln.Reduction) or reduction.op is not ops.SUM_REDUCE or reduction.before:
            raise ScheduleError("stage: the nest is not a sum over a product inside loops over rows and columns")
        if self.m not in by_name or self.n not in by_name:
            raise ScheduleError(f"stage: the nest has no outer loops over {self.m!r} and {self.n!r}")
        a, b = self._factors(reduction)
        rows, columns = _Side(by_name[self.m], self.rows), _Side(by_name[self.n], self.columns)
        terms = sym.product(loop.extent for loop in reduction.loops)
        steps = sym.ceildiv(terms, self.depth)
        k_1, k_0 = sym.axis("k_1", steps), Var("k_0", 0, self.depth - 1)
        strips = (
            self._strip(nest, "stage_a", a, reduction, rows, k_1),
            self._strip(nest, "stage_b", b, reduction, columns, k_1),
        )
        thread = Var("t", 0, self.threads - 1)
        held = self.parts.held(_expr(thread), self.rows, self.columns)
        first = _expr(thread) * held.size
        contract = ln.Contract(
            "tile", reduction.dtype, "stage_a", strips[0].dtype, _expr(k_0) * strips[0].pitch + held.top, 1,
            "stage_b", strips[1].dtype, _expr(k_0) * strips[1].pitch + held.left,
            (ln.Loop(k_0, self.depth, "serial", ()),), held.shape[0], held.shape[0], held.shape[1], held.shape[1],
            tile_offset=first, accumulate=True, fragment=held.fragment,
        )  # fmt: skip
        element = ln.load("tile", first + held.number, reduction.dtype)
        zero = ln.literal(bytes(reduction.dtype.itemsize), reduction.dtype)
        clear = held.loops((ln.Store("tile", first + held.number, zero),))
        by = {ln.temporary(reduction.name, reduction.dtype): element}
        at = {rows.loop.axis: rows.at(held.row), columns.loop.axis: columns.at(held.column)}
        after = substitute(replace_scalars(tuple(rest), lambda value: replace_leaves(value, by)), at)
        valid = tuple(v for side in (rows, columns) if not sym.always(v := side.loop.extent - 1 - at[side.loop.axis]))
        after = held.loops((ln.If(valid, after),) if valid else after)
        body = (
            *(ln.Alloc(strip.name, strip.dtype, strip.pitch * self.depth, "shared") for strip in strips),
            ln.Alloc("tile", reduction.dtype, held.size * self.threads, "registers"),
            self._by_threads(thread, *clear),
            *_loop(k_1, steps, (*(strip.copy for strip in strips), self._by_threads(thread, contract))),
            self._by_threads(thread, *after),
        )
        others = [loop for loop in loops if loop not in (rows.loop, columns.loop)]
        return replace(nest, body=wrap([*others, *columns.header, *rows.header], body), threads=self.threads)

    def _factors(self, reduction: ln.Reduction) -> tuple[ln.Access, ln.Access]:
        """The elements whose product is summed: A, then B."""
        if reduction.value.op is not ops.MUL:
            raise ScheduleError("stage: what is summed is not a product alone")
        found: list[ln.Access] = []
        for operand in reduction.value.operands:
            leaf = (operand.operands[0] if operand.op is ops.CAST else operand).leaf
            if not isinstance(leaf, ln.Access) or any(leaf.fill):
                raise ScheduleError("stage: a factor is no array element, or is something else than zero where masked")
            found.append(leaf)
        a, b = found
        return a, b

    def _by_threads(self, thread: Var, *body: ln.Statement) -> ln.Loop:
        return ln.Loop(thread, self.threads, "thread", body, self.threads)

    def _strip(
        self, nest: ln.LoopNest, name: str, access: ln.Access, reduction: ln.Reduction, side: _Side, k_1: Int
    ) -> _Strip:
        """Copies ``depth`` terms of the rows of A, or of the columns of B, into shared memory, term by term."""
        copied = Var("c", 0, side.size * self.depth - 1)
        terms = sym.product(header.extent for header in reduction.loops)
        # Neighbouring threads read neighbouring elements.
        along = _stride(access.offset, reduction.loops[-1].axis) == 1
        inner = self.depth if along else side.size
        slow, fast = sym.floordiv(_expr(copied), inner), sym.mod(_expr(copied), inner)
        line, term = (slow, fast) if along else (fast, slow)
        position, number = side.at(line), k_1 * self.depth + term
        by = {side.loop.axis: position}
        rest = number
        for header in reversed(reduction.loops):
            by[header.axis] = rest if header is reduction.loops[0] else sym.mod(rest, header.extent)
            rest = sym.floordiv(rest, header.extent)
        valid = [sym.substitute(v, by) for v in access.valid] + [side.loop.extent - 1 - position, terms - 1 - number]
        masks = tuple(v for v in valid if not sym.always(v))
        dtype = stored_type(nest, access.array)
        value = ln.load(access.array, sym.substitute(access.offset, by), dtype, masks, bytes(dtype.itemsize))
        # Where threads write down a column of the stage, its elements lie in different banks.
        pitch = side.size + (16 // dtype.itemsize if along else 0)
        copy = ln.Store(name, term * pitch + line, value)
        divided = ln.Loop(copied, side.size * self.depth, "thread", (copy,), self.threads)
        return _Strip(name, dtype, pitch, divided)


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
    """An operand in shared memory: its terms ``pitch`` elements apart, and the loop that copies them there."""

    name: str
    dtype: DType
    pitch: int
    copy: ln.Loop


def _loop(axis: Int, extent: Int, body: Body) -> Body:
    """``body`` in a loop, where the axis has more than one value."""
    variable = sym.as_var(axis)
    return body if variable is None else (ln.Loop(variable, extent, "serial", body),)


def _stride(offset: Int, axis: Var) -> Int:
    linear = sym.coefficient(offset, axis)
    return 0 if linear is None else linear[0]


@dataclass(frozen=True)
class Share:
    """Makes the rest of a nest right for ``threads``: arrays outside the loops that are divided become shared, and
    barriers stand between statements of which one writes what the other reads or writes.

    Legal where the shared arrays take at most ``memory`` bytes.
    """

    threads: int
    memory: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, body = prefix(nest.body)
        tasks = [loop for loop in loops if loop.kind == "parallel"]
        body = wrap(loops[len(tasks) :], body)
        if self.threads > 1:
            body = _sharing(body)
            shared = [s for s in statements(body) if isinstance(s, ln.Alloc) and s.space == "shared"]
            taken = sum(array.extent * array.dtype.itemsize for array in shared)
            if taken > self.memory:
                raise ScheduleError(f"share: {taken} bytes of shared arrays, {self.memory} are there")
            body = _Barriers().body(body)
        return replace(nest, body=wrap(tasks, body), threads=self.threads)


def _sharing(body: Body) -> Body:
    result: list[ln.Statement] = []
    for statement in body:
        if isinstance(statement, ln.Alloc) and statement.space == "local":
            statement = replace(statement, space="shared")
        elif isinstance(statement, ln.Loop) and statement.kind != "thread":
            statement = replace(statement, body=_sharing(statement.body))
        result.append(statement)
    return tuple(result)


class _Barriers:
    """Puts barriers into a body. ``read`` and ``written`` are the arrays touched since the last one."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.private: set[str] = set()  # arrays in registers

    def body(self, body: Body) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            if isinstance(statement, ln.Alloc) and statement.space == "registers":
                self.private.add(statement.name)
            if isinstance(statement, ln.Loop) and statement.kind != "thread":
                result.append(self._loop(statement))
                continue
            read, written = (names - self.private for names in _touched((statement,)))
            if read & self.written or written & (self.read | self.written):
                result.append(ln.Barrier())
                self.read, self.written = set(), set()
            self.read |= read
            self.written |= written
            result.append(statement)
        return tuple(result)

    def _loop(self, loop: ln.Loop) -> ln.Loop:
        """What the last iteration left is there when the next begins."""
        before = self.read, self.written
        self.body(loop.body)
        self.read, self.written = self.read | before[0], self.written | before[1]
        return replace(loop, body=self.body(loop.body))


def _touched(body: Body) -> tuple[set[str], set[str]]:
    """The arrays that ``body`` reads, and those that it writes."""
    read: set[str] = set()
    written: set[str] = set()
    for statement in statements(body):
        match statement:
            case ln.Store():
                written.add(statement.array)
                read |= {x.array for x in accesses(statement.value)}
            case ln.Define() | ln.Let() | ln.Reduction():
                read |= {x.array for x in accesses(statement.value)}
            case ln.Reductions():
                read |= {x.array for _, value in statement.terms for x in accesses(value)}
            case ln.Contract():
                read |= {statement.a, statement.b}
                written.add(statement.tile)
            case _:
                pass
    return read, written
