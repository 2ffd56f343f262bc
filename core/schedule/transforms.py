"""Transforms of loop nests. A schedule is a tuple of them: a value that can be printed, hashed, stored and replayed.

Each transform is a pure function from nest to nest that checks its own legality and raises ScheduleError with the
condition that fails. The docstrings show the loops before and after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule import nest as ln
from luminal.core.schedule.lower import expressions, statements
from luminal.core.schedule.rewrite_nest import Body, prefix, replace_leaves, replace_scalars, substitute, wrap
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

_ZERO: Int = 0


class Transform(Protocol):
    """A pure function from nest to nest; raises ScheduleError where it is not legal. Implementations are frozen
    dataclasses, so that a schedule can be compared, hashed and printed."""

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest: ...


def _expr(variable: Var) -> Int:
    return sym.Expr((((variable,), 1),))


def find(body: Body, name: str) -> ln.Loop:
    """The first loop (or loop of a reduction) over the axis called ``name``."""
    for statement in statements(body):
        loops = statement.loops if isinstance(statement, ln.Reduction) else (statement,)
        for loop in loops:
            if isinstance(loop, ln.Loop) and loop.axis.name == name:
                return loop
    raise ScheduleError(f"the nest has no loop over {name!r}")


@dataclass(frozen=True)
class Split:
    """::

    for a < E:  body(a)        =>      for a_1 < E/factor:  for a_0 < factor:  body(a_1*factor + a_0)

    Everywhere that the axis is looped over. ``factor`` may be symbolic. Where it does not divide the extent, the inner
    extent is the smaller of ``factor`` and what is left.
    """

    axis: str
    factor: Int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loop = find(nest.body, self.axis)
        count = sym.ceildiv(loop.extent, self.factor)
        outer = sym.axis(f"{self.axis}_1", count)
        full = sym.axis(f"{self.axis}_0", self.factor)
        exact = sym.mod(loop.extent, self.factor) == 0
        size = self.factor if exact else sym.minimum(self.factor, loop.extent - outer * self.factor)
        by = {loop.axis: outer * self.factor + full}
        parts = [(v, e) for a, e in ((outer, count), (full, size)) if (v := sym.as_var(a)) is not None]

        def headers(old: ln.Loop) -> list[ln.Loop]:
            return [ln.Loop(v, e, old.kind, (), old.lanes) for v, e in parts]

        return replace(nest, body=substitute(_expand(nest.body, self.axis, headers), by))


def _expand(body: Body, name: str, headers: Callable[[ln.Loop], list[ln.Loop]]) -> Body:
    """Every loop over ``name`` replaced by the loops that ``headers`` makes of it."""
    result: list[ln.Statement] = []
    for statement in body:
        if isinstance(statement, ln.Loop):
            inner = _expand(statement.body, name, headers)
            new = headers(statement) if statement.axis.name == name else [statement]
            result += wrap(new, inner)
        elif isinstance(statement, ln.Reduction):
            loops = [h for old in statement.loops for h in (headers(old) if old.axis.name == name else [old])]
            before = _expand(statement.before, name, headers)
            result.append(replace(statement, loops=tuple(loops), before=before))
        else:
            result.append(statement)
    return tuple(result)


@dataclass(frozen=True)
class Merge:
    """::

    for a < A:  for b < B:  body(a, b)      =>      for b < A*B:  body(b // B, b % B)

    Legal where the two are directly nested everywhere that either occurs.
    """

    outer: str
    inner: str

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        first, second = find(nest.body, self.outer), find(nest.body, self.inner)
        if first.axis in sym.variables(second.extent):
            raise ScheduleError(f"merge: the extent of {self.inner!r} depends on {self.outer!r}")
        extent = first.extent * second.extent
        merged = Var(f"{self.outer}{self.inner}", 0, extent - 1)
        by = {
            first.axis: sym.floordiv(_expr(merged), second.extent),
            second.axis: sym.mod(_expr(merged), second.extent),
        }
        return replace(nest, body=substitute(self._joined(nest.body, ln.Loop(merged, extent, "serial", ())), by))

    def _joined(self, body: Body, header: ln.Loop) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            if isinstance(statement, ln.Loop) and statement.axis.name == self.outer:
                (inner, *rest) = statement.body
                if rest or not isinstance(inner, ln.Loop) or inner.axis.name != self.inner:
                    raise ScheduleError(f"merge: {self.inner!r} is not directly inside {self.outer!r}")
                result.append(replace(header, kind=statement.kind, body=inner.body))
            elif isinstance(statement, ln.Loop):
                result.append(replace(statement, body=self._joined(statement.body, header)))
            elif isinstance(statement, ln.Reduction):
                before = self._joined(statement.before, header)
                result.append(replace(statement, loops=self._headers(statement.loops, header), before=before))
            else:
                result.append(statement)
        return tuple(result)

    def _headers(self, loops: tuple[ln.Loop, ...], header: ln.Loop) -> tuple[ln.Loop, ...]:
        names = [loop.axis.name for loop in loops]
        if self.outer not in names and self.inner not in names:
            return loops
        at = names.index(self.outer) if self.outer in names else -2
        if names[at + 1 : at + 2] != [self.inner]:
            raise ScheduleError(f"merge: {self.inner!r} is not directly inside {self.outer!r}")
        return (*loops[:at], header, *loops[at + 2 :])


@dataclass(frozen=True)
class Reorder:
    """::

    for a:  for b:  for c:  body      =>      for c:  for a:  for b:  body         (order = c, a, b)

    The perfectly nested loops at the top, all of which ``order`` names. Iterations are independent there, since a nest
    reduces only inside ``Reduction`` and ``Contract``; an extent must not depend on a loop that moves inside it.
    """

    order: tuple[str, ...]

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, inside = prefix(nest.body)
        by_name = {loop.axis.name: loop for loop in loops}
        if sorted(by_name) != sorted(self.order):
            raise ScheduleError(f"reorder: expected an order of {sorted(by_name)}, found {sorted(self.order)}")
        ordered = [by_name[name] for name in self.order]
        for position, loop in enumerate(ordered):
            later = {other.axis for other in ordered[position:]}
            if sym.variables(loop.extent) & later:
                raise ScheduleError(f"reorder: the extent of {loop.axis} depends on a loop inside it")
        return replace(nest, body=wrap(ordered, inside))


@dataclass(frozen=True)
class ReorderReduction:
    """::

    s = sum over a, b of f(a, b)      =>      s = sum over b, a of f(a, b)         (order = b, a)

    Changes the order of summation, which no source operator states; legal where the loops are serial.
    """

    name: str
    order: tuple[str, ...]

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return replace(nest, body=self._ordered(nest.body))

    def _ordered(self, body: Body) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            if isinstance(statement, ln.Loop):
                statement = replace(statement, body=self._ordered(statement.body))
            elif isinstance(statement, ln.Reduction) and statement.name == self.name:
                loops = {loop.axis.name: loop for loop in statement.loops}
                if sorted(loops) != sorted(self.order) or any(loop.kind != "serial" for loop in statement.loops):
                    raise ScheduleError(f"reorder: {self.order} is no order of the serial loops {sorted(loops)}")
                statement = replace(statement, loops=tuple(loops[name] for name in self.order))
            result.append(statement)
        return tuple(result)


@dataclass(frozen=True)
class Parallelise:
    """The ``count`` outermost loops become the numbered tasks of the kernel.

    Legal where they are perfectly nested, serial, and each extent depends on dimensions alone.
    """

    count: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, inside = prefix(nest.body)
        if len(loops) < self.count:
            raise ScheduleError(f"parallelise: {self.count} loops asked for, {len(loops)} are perfectly nested")
        chosen = loops[: self.count]
        axes = {loop.axis for loop in chosen}
        for loop in chosen:
            if loop.kind != "serial" or sym.variables(loop.extent) & axes:
                raise ScheduleError(f"parallelise: the loop over {loop.axis} is {loop.kind} or not rectangular")
        return replace(
            nest, body=wrap([replace(loop, kind="parallel") for loop in chosen] + loops[self.count :], inside)
        )


@dataclass(frozen=True)
class Vectorise:
    """Every loop over ``axis`` takes ``lanes`` consecutive values at a time.

    Legal where each is innermost in its chain of loops, or innermost of the perfectly nested ones with only serial
    reductions inside, which then run once for all lanes.
    """

    axis: str
    lanes: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        find(nest.body, self.axis)
        return replace(nest, body=self._marked(nest.body))

    def _marked(self, body: Body) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            if isinstance(statement, ln.Loop) and statement.axis.name == self.axis:
                for inner in statements(statement.body):
                    if isinstance(inner, ln.Loop | ln.Alloc | ln.Contract):
                        kind = type(inner).__name__.lower()
                        raise ScheduleError(f"vectorise: a {kind} lies inside the loop over {self.axis!r}")
                statement = replace(statement, kind="vector", lanes=self.lanes)
            elif isinstance(statement, ln.Loop):
                statement = replace(statement, body=self._marked(statement.body))
            elif isinstance(statement, ln.Reduction):
                *outer, last = statement.loops
                if any(loop.axis.name == self.axis for loop in outer):
                    raise ScheduleError(f"vectorise: {self.axis!r} is not the innermost loop of {statement.name}")
                if last.axis.name == self.axis:
                    last = replace(last, kind="vector", lanes=self.lanes)
                statement = replace(statement, loops=(*outer, last))
            result.append(statement)
        return tuple(result)


@dataclass(frozen=True)
class Tensorise:
    """::

    for .., m < M:  for n < N:                    for .., n_1 < N/columns:  for m_1 < tiles:
        s = sum over k of A[m,k] * B[k,n]             tile = Contract(A rows, B panel)         (in registers)
        store f(s)                         =>         for i < rows:  for n_0 < columns (vector):
                                                          store f(tile[i, n_0])

    ``rows`` are of near-equal height: ``M`` in ``tiles = ceil(M / max_rows)`` parts that differ by one at most. Legal
    where ``A`` is linear in ``m`` and in the reduced axes and does not depend on ``n``, and ``B`` is linear in the
    reduced axes, does not depend on ``m``, and holds ``columns`` consecutive values of ``n`` side by side.
    ``m`` is empty where no row axis exists.
    """

    m: str
    n: str
    max_rows: int
    columns: int
    lanes: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, inside = prefix(nest.body)
        reduction, *rest = inside
        n_loop = next((loop for loop in loops if loop.axis.name == self.n), None)
        m_loop = next((loop for loop in loops if loop.axis.name == self.m), None)
        if not isinstance(reduction, ln.Reduction) or reduction.op is not ops.SUM_REDUCE or n_loop is None:
            raise ScheduleError("tensorise: the nest is not a sum over a product inside a loop over the columns")
        a, b = factors_of(reduction, n_loop.axis)
        column = sym.axis(f"{self.n}_0", self.columns)
        panel = sym.axis(f"{self.n}_1", sym.ceildiv(n_loop.extent, self.columns))
        by = {n_loop.axis: panel * self.columns + column}
        b_offset = sym.substitute(b.offset, by)
        b_start = panel_start(b_offset, column, self.columns)
        reduced = [loop.axis for loop in reduction.loops]
        self._check_linear("A", a.offset, reduced + ([m_loop.axis] if m_loop else []))
        self._check_linear("B", b_start, reduced)
        if m_loop is not None and m_loop.axis in sym.variables(b_start):
            raise ScheduleError(f"tensorise: B depends on {self.m!r}")

        tile = "tile"
        width = sym.minimum(self.columns, n_loop.extent - panel * self.columns)
        if sym.mod(n_loop.extent, self.columns) == 0:
            width = self.columns
        first, height, row, rows = self._rows(m_loop)
        a_offset, a_row = a.offset, _ZERO
        if m_loop is not None:
            linear = sym.coefficient(a.offset, m_loop.axis)
            assert linear is not None
            a_row, a_offset = linear[0], linear[1] + linear[0] * first
        contract = ln.Contract(
            tile, reduction.dtype, a.array, stored_type(nest, a.array), a_offset, a_row,
            b.array, stored_type(nest, b.array), b_start,
            reduction.loops, height, self.max_rows, self.columns, self.lanes,
        )  # fmt: skip
        total = ln.load(tile, row * self.columns + column, reduction.dtype)

        by_name = {ln.temporary(reduction.name, reduction.dtype): total}

        def read(value: ln.Scalar) -> ln.Scalar:
            return replace_leaves(value, by_name)

        stores = substitute(replace_scalars(tuple(rest), read), by)
        column_axis = sym.as_var(column)
        assert column_axis is not None
        body: Body = (ln.Loop(column_axis, width, "vector", stores, self.lanes),)
        if m_loop is not None:
            row_axis = sym.as_var(row)
            body = (ln.Assign(m_loop.axis, first + row), *body)
            if row_axis is not None:
                body = (ln.Loop(row_axis, height, "serial", body),)
        body = (*rows, ln.Alloc(tile, reduction.dtype, self.max_rows * self.columns), contract, *body)
        return replace(nest, body=wrap(self._grid(loops, n_loop, panel, m_loop, sym.variables(b_start)), body))

    def _rows(self, m_loop: ln.Loop | None) -> tuple[Int, Int, Int, Body]:
        """First row and height of a tile, the row within it, and the statements that name the two."""
        if m_loop is None or self.max_rows == 1:
            first: Int = 0 if m_loop is None else sym.axis(f"{self.m}_1", m_loop.extent)
            return first, 1, 0, ()
        tiles = sym.ceildiv(m_loop.extent, self.max_rows)
        number = sym.axis(f"{self.m}_1", tiles)
        start = sym.floordiv(number * m_loop.extent, tiles)
        end = sym.floordiv((number + 1) * m_loop.extent, tiles)
        first_row = Var(f"{self.m}_first", 0, m_loop.axis.hi)
        height = Var(f"{self.m}_rows", 1, self.max_rows)
        row = sym.axis(f"{self.m}_0", _expr(height))
        named = (ln.Assign(first_row, start), ln.Assign(height, end - start))
        return _expr(first_row), _expr(height), row, named

    def _grid(
        self, loops: list[ln.Loop], n_loop: ln.Loop, panel: Int, m_loop: ln.Loop | None, of_b: set[Var]
    ) -> list[ln.Loop]:
        """The axes of B, then panels, then the others, then row tiles: a panel stays in the cache for all rows."""
        others = [loop for loop in loops if loop is not n_loop and loop is not m_loop]
        grid = [loop for loop in others if loop.axis in of_b]
        panels = sym.as_var(panel)
        if panels is not None:
            grid.append(ln.Loop(panels, sym.ceildiv(n_loop.extent, self.columns), "serial", ()))
        grid += [loop for loop in others if loop.axis not in of_b]
        if m_loop is not None:
            tiles = sym.ceildiv(m_loop.extent, self.max_rows)
            number = sym.as_var(sym.axis(f"{self.m}_1", tiles))
            if number is not None:
                grid.append(ln.Loop(number, tiles, "serial", ()))
        return grid

    def _check_linear(self, which: str, offset: Int, axes: list[Var]) -> None:
        for axis in axes:
            if sym.coefficient(offset, axis) is None:
                raise ScheduleError(f"tensorise: {which} at {offset} is not linear in {axis}")


def panel_start(offset: Int, column: Int, columns: int) -> Int:
    """``offset`` at the first of ``columns`` columns that lie side by side in memory."""
    variable = sym.as_var(column)
    linear = sym.coefficient(offset, variable) if variable is not None else None
    if linear is None or linear[0] != 1:
        raise ScheduleError(f"tensorise: {columns} columns of B do not lie side by side at {offset}")
    return linear[1]


def factors_of(reduction: ln.Reduction, n: Var) -> tuple[ln.Access, ln.Access]:
    """The two array elements whose product is summed: A, and B, which depends on ``n``."""
    value = reduction.value
    if value.op is not ops.MUL or reduction.before:
        raise ScheduleError("tensorise: what is summed is not a product alone")
    found: list[ln.Access] = []
    for operand in value.operands:
        inner = operand.operands[0] if operand.op is ops.CAST else operand
        if not isinstance(inner.leaf, ln.Access) or inner.leaf.valid:
            raise ScheduleError("tensorise: a factor is not an array element, or is masked")
        found.append(inner.leaf)
    with_n = [x for x in found if n in sym.variables(x.offset)]
    if len(with_n) != 1:
        raise ScheduleError(f"tensorise: {n} must index one factor, it indexes {len(with_n)}")
    (b,) = with_n
    return next(x for x in found if x is not b), b


def stored_type(nest: ln.LoopNest, array: str) -> DType:
    return next(a.dtype for a in nest.arrays if a.name == array)


@dataclass(frozen=True)
class HoistLookups:
    """::

    for a:  let g = table[i];  body      =>      let g = table[i];  for a:  body

    Run-time indices are read outside the loops that they do not depend on.
    """

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return replace(nest, body=self._hoisted(nest.body))

    def _hoisted(self, body: Body) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            if isinstance(statement, ln.Loop):
                inner = self._hoisted(statement.body)
                bound = {statement.axis}
                moved: list[ln.Statement] = []
                while inner and isinstance(inner[0], ln.Let):
                    names = {v for e in expressions(inner[0]) for v in sym.variables(e)}
                    if names & bound or statement.kind == "parallel":
                        break
                    moved.append(inner[0])
                    inner = inner[1:]
                result += [*moved, replace(statement, body=inner)]
            else:
                result.append(statement)
        return tuple(result)


Schedule: TypeAlias = tuple[Transform, ...]


def apply(nest: ln.LoopNest, schedule: Schedule) -> ln.LoopNest:
    """``nest`` after every transform in order; raises ScheduleError from the first that is not legal."""
    for transform in schedule:
        nest = transform(nest)
    return nest
