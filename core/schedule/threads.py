"""The transforms that divide a task among threads: a block of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
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

    Everywhere that the axis is looped over. Iterations are independent there, or those of a reduction, of which the axis
    must be the innermost.
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
                raise ScheduleError(f"divide: a loop inside the one over {self.axis!r} is divided among threads already")
        return replace(nest, body=expand(nest.body, self.axis, self._divided))

    def _divided(self, loop: ln.Loop) -> list[ln.Loop]:
        return [replace(loop, kind="thread", lanes=self.threads, body=())]


def _is_divided(statement: ln.Statement) -> bool:
    loops = statement.loops if isinstance(statement, ln.Reduction) else (statement,)
    return any(isinstance(loop, ln.Loop) and loop.kind == "thread" for loop in loops)


@dataclass(frozen=True)
class Stage:
    """::

    for .., m < M:  for n < N:                 for .., n_1 < N/columns:  for m_1 < M/rows:
        s = sum over k of A[m,k] * B[k,n]          for k_1 < K/depth:
        store f(s)                       =>            stage_a = A[rows of m_1, depth of k_1]        (by all threads)
                                                       stage_b = B[depth of k_1, columns of n_1]     (by all threads)
                                                       tile[thread] += stage_a * stage_b             (in registers)
                                                   for the elements of tile[thread]:  store f(s)

    Each thread has ``part x part`` elements of the tile. What is staged may lie anywhere in memory and may be masked by
    zeros: all K axes become one. Beyond M, N and K zeros are staged, and nothing is stored.
    """

    m: str
    n: str
    rows: int
    columns: int
    depth: int
    part: int

    @property
    def threads(self) -> int:
        """Threads of a task."""
        return (self.rows // self.part) * (self.columns // self.part)

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, (reduction, *rest) = prefix(nest.body)
        by_name = {loop.axis.name: loop for loop in loops}
        if not isinstance(reduction, ln.Reduction) or reduction.op is not ops.SUM_REDUCE or reduction.before:
            raise ScheduleError("stage: the nest is not a sum over a product inside loops over rows and columns")
        m_loop, n_loop = by_name.get(self.m), by_name.get(self.n)
        if m_loop is None or n_loop is None:
            raise ScheduleError(f"stage: the nest has no outer loops over {self.m!r} and {self.n!r}")
        if self.rows % self.part or self.columns % self.part:
            raise ScheduleError(f"stage: parts of {self.part} do not fill {self.rows} x {self.columns} elements")
        a, b = self._factors(reduction)
        m_1, n_1 = self._tiles(m_loop, self.rows), self._tiles(n_loop, self.columns)
        terms = sym.product(loop.extent for loop in reduction.loops)
        k_1 = sym.axis("k_1", sym.ceildiv(terms, self.depth))
        pitch = self.rows + 4  # rows of both stages begin at 16 bytes, and in different banks
        strips = (
            self._strip(nest, "stage_a", a, reduction, (m_loop, m_1, self.rows), k_1, pitch),
            self._strip(nest, "stage_b", b, reduction, (n_loop, n_1, self.columns), k_1, self.columns),
        )
        thread = Var("t", 0, self.threads - 1)
        across = self.columns // self.part
        top, left = sym.floordiv(_expr(thread), across) * self.part, sym.mod(_expr(thread), across) * self.part
        k_0 = sym.as_var(sym.axis("k_0", self.depth))
        assert k_0 is not None
        size, first = self.part * self.part, _expr(thread) * (self.part * self.part)
        contract = ln.Contract(
            "tile", reduction.dtype, "stage_a", stored_type(nest, a.array), _expr(k_0) * pitch + top, 1,
            "stage_b", stored_type(nest, b.array), _expr(k_0) * self.columns + left,
            (ln.Loop(k_0, self.depth, "serial", ()),), self.part, self.part, self.part, self.part,
            tile_offset=first, accumulate=True,
        )  # fmt: skip
        element = Var("e", 0, size - 1)
        zero = ln.literal(bytes(reduction.dtype.itemsize), reduction.dtype)
        clear = ln.Loop(element, size, "unroll", (ln.Store("tile", first + _expr(element), zero),))
        steps = (*(strip.copy for strip in strips), self._by_threads(thread, contract))
        row, column = sym.axis("i", self.part), sym.axis("j", self.part)
        at = {
            m_loop.axis: m_1 * self.rows + top + row,
            n_loop.axis: n_1 * self.columns + left + column,
        }
        body = (
            *(ln.Alloc(strip.name, strip.dtype, strip.extent, "shared") for strip in strips),
            ln.Alloc("tile", reduction.dtype, size * self.threads, "registers"),
            self._by_threads(thread, clear),
            *_loop(k_1, sym.ceildiv(terms, self.depth), "serial", steps),
            self._by_threads(thread, *self._epilogue(tuple(rest), reduction, first, row, column, at, m_loop, n_loop)),
        )
        others = [loop for loop in loops if loop is not m_loop and loop is not n_loop]
        grid = [*others, *_headers(n_1, n_loop, self.columns), *_headers(m_1, m_loop, self.rows)]
        return replace(nest, body=wrap(grid, body), threads=self.threads)

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

    def _tiles(self, loop: ln.Loop, size: int) -> Int:
        return sym.axis(f"{loop.axis.name}_1", sym.ceildiv(loop.extent, size))

    def _by_threads(self, thread: Var, *body: ln.Statement) -> ln.Loop:
        return ln.Loop(thread, self.threads, "thread", body, self.threads)

    def _strip(
        self,
        nest: ln.LoopNest,
        name: str,
        access: ln.Access,
        reduction: ln.Reduction,
        side: tuple[ln.Loop, Int, int],
        k_1: Int,
        pitch: int,
    ) -> _Strip:
        """Copies ``depth`` terms of ``size`` rows of A, or columns of B, into shared memory, the terms ``pitch`` apart."""
        loop, tile, size = side
        copied = Var("c", 0, size * self.depth - 1)
        terms = sym.product(header.extent for header in reduction.loops)
        along = _stride(access.offset, reduction.loops[-1].axis) == 1
        inner = self.depth if along else size
        slow, fast = sym.floordiv(_expr(copied), inner), sym.mod(_expr(copied), inner)
        line, term = (slow, fast) if along else (fast, slow)
        position, number = tile * size + line, k_1 * self.depth + term
        by: dict[Var, Int] = {loop.axis: position}
        rest = number
        for header in reversed(reduction.loops):
            by[header.axis] = rest if header is reduction.loops[0] else sym.mod(rest, header.extent)
            rest = sym.floordiv(rest, header.extent)
        valid = [sym.substitute(v, by) for v in access.valid]
        valid += [loop.extent - 1 - position, terms - 1 - number]
        dtype = stored_type(nest, access.array)
        masks = tuple(v for v in valid if not sym.always(v))
        value = ln.load(access.array, sym.substitute(access.offset, by), dtype, masks, bytes(dtype.itemsize))
        copy = ln.Store(name, term * pitch + line, value)
        divided = ln.Loop(copied, size * self.depth, "thread", (copy,), self.threads)
        return _Strip(name, dtype, self.depth * pitch, divided)

    def _epilogue(
        self,
        rest: Body,
        reduction: ln.Reduction,
        first: Int,
        row: Int,
        column: Int,
        at: dict[Var, Int],
        m_loop: ln.Loop,
        n_loop: ln.Loop,
    ) -> Body:
        """What follows the sum, for each element that a thread has."""
        total = ln.load("tile", first + row * self.part + column, reduction.dtype)
        by_name = {ln.temporary(reduction.name, reduction.dtype): total}
        body = substitute(replace_scalars(rest, lambda value: replace_leaves(value, by_name)), at)
        valid = [loop.extent - 1 - at[loop.axis] for loop in (m_loop, n_loop)]
        valid = [v for v in valid if not sym.always(v)]
        if valid:
            body = (ln.If(tuple(valid), body),)
        return _loop(row, self.part, "unroll", _loop(column, self.part, "unroll", body))


@dataclass(frozen=True)
class _Strip:
    name: str
    dtype: DType
    extent: int
    copy: ln.Loop


def _loop(axis: Int, extent: Int, kind: str, body: Body) -> Body:
    """``body`` in a loop, where the axis has more than one value."""
    variable = sym.as_var(axis)
    return body if variable is None else (ln.Loop(variable, extent, kind, body),)


def _headers(tile: Int, loop: ln.Loop, size: int) -> list[ln.Loop]:
    variable = sym.as_var(tile)
    return [] if variable is None else [ln.Loop(variable, sym.ceildiv(loop.extent, size), "serial", ())]


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
            taken = sum(s.extent * s.dtype.itemsize for s in statements(body) if _is_shared(s))
            if taken > self.memory:
                raise ScheduleError(f"share: {taken} bytes of shared arrays, {self.memory} are there")
            body = _Barriers().body(body)
        return replace(nest, body=wrap(tasks, body), threads=self.threads)


def _is_shared(statement: ln.Statement) -> bool:
    return isinstance(statement, ln.Alloc) and statement.space == "shared"


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
