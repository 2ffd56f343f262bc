"""The transforms that turn a sum over a product into tile operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.matrix import MatrixUnit
from luminal.core.printer import brief
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import ZERO, Scaled, factors_of, operands_of, scales_of, stored_type
from luminal.core.schedule.nest.rewrite import (
    replace_leaves,
    replace_scalars,
    replace_statements,
    substitute,
    substitute_scalar,
    wrap,
)
from luminal.core.schedule.nest.walk import Body, accesses, perfect_loops
from luminal.core.symbolic import Int, Var

SHARING = (1, 2, 4, 8)  # how many integers a byte may hold


@dataclass(frozen=True, repr=False)
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

    With ``unit``, a matrix unit computes the tile, ``depth`` terms at a time; unless its registers are vectors, all
    parts but the last are equally high: another height takes time to set. Legal where the terms along the last reduced
    axis lie side by side in ``A``, and in the groups of the unit in ``B``.

    Where both factors are scaled, ``unit`` sums the terms along the last reduced axis as integers, and each such sum is
    scaled. Legal where the scales are the same along that axis, which takes whole steps of a unit of vectors.
    """

    m: str
    n: str
    max_rows: int
    columns: int
    lanes: int
    unit: MatrixUnit | None = None
    depth: int = 1

    __repr__ = brief

    @property
    def panels(self) -> str:
        """The loop over panels of columns."""
        return f"{self.n}_1"

    @property
    def column(self) -> str:
        """The loop over the columns of a tile."""
        return f"{self.n}_0"

    @property
    def tiles(self) -> str:
        """The loop over tiles of rows."""
        return f"{self.m}_1"

    @property
    def row(self) -> str:
        """The loop over the rows of a tile."""
        return f"{self.m}_0"

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, inside = perfect_loops(nest.body)
        reduction, *rest = inside
        n_loop = next((loop for loop in loops if loop.axis.name == self.n), None)
        m_loop = next((loop for loop in loops if loop.axis.name == self.m), None)
        if not isinstance(reduction, ln.Reduction) or reduction.op is not ops.SUM_REDUCE or n_loop is None:
            raise ScheduleError("tensorise: the nest is not a sum over a product inside a loop over the columns")
        a, b, computed = operands_of(reduction)
        if computed is None:
            a, b = factors_of(reduction, n_loop.axis)
        column = sym.axis(self.column, self.columns)
        panel = sym.axis(self.panels, sym.ceildiv(n_loop.extent, self.columns))
        by = {n_loop.axis: panel * self.columns + column}
        b_offset = sym.substitute(b.offset, by)
        reduced = [loop.axis for loop in reduction.loops]
        b_start = start_of_b(b_offset, reduced[-1], column, self.columns, self.unit, computed is not None)
        if self.unit is not None:
            check_run(a.offset, reduced[-1])
        self._check_linear("A", a.offset, reduced + ([m_loop.axis] if m_loop else []))
        self._check_linear("B", b_start, reduced)
        if m_loop is not None and m_loop.axis in sym.variables(b_start):
            raise ScheduleError(f"tensorise: B depends on {self.m!r}")

        prologue = None if computed is None else self._prologue(computed, column, by, reduced)
        scaled = scales_of(reduction)

        tile = "tile"
        width = sym.minimum(self.columns, n_loop.extent - panel * self.columns)
        if sym.mod(n_loop.extent, self.columns) == 0:
            width = self.columns
        first, height, row, rows = self._rows(m_loop)
        a_offset, a_row = a.offset, ZERO
        if m_loop is not None:
            linear = sym.coefficient(a.offset, m_loop.axis)
            assert linear is not None
            a_row, a_offset = linear[0], linear[1] + linear[0] * first
        scales = None if scaled is None else self._scales(scaled, reduction.loops[-1], m_loop, first, column, by)
        contract = ln.Contract(
            tile, reduction.dtype, a.array, stored_type(nest, a.array), a_offset, a_row,
            b.array, stored_type(nest, b.array), b_start,
            reduction.loops, height, self.max_rows, self.columns, self.lanes,
            unit=self.unit, depth=self.depth, prologue=prologue, scales=scales,
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

    def _prologue(self, computed: ln.Scalar, column: Int, by: dict[Var, Int], reduced: list[Var]) -> ln.Prologue:
        value = substitute_scalar(computed, by, {})
        for access in accesses(value):
            start = start_of_b(access.offset, reduced[-1], column, self.columns, self.unit, True)
            self._check_linear("B", start, reduced)
            if sym.as_var(column) is None or self.m in {v.name for v in sym.variables(access.offset)}:
                raise ScheduleError(f"tensorise: B depends on {self.m!r}")
        axis = sym.as_var(column)
        assert axis is not None
        return ln.Prologue(axis, value)

    def _scales(
        self, scaled: Scaled, block: ln.Loop, m_loop: ln.Loop | None, first: Int, column: Int, by: dict[Var, Int]
    ) -> ln.Scales:
        if self.unit is None or not self.unit.in_vectors or sym.mod(block.extent, self.depth) != 0:
            raise ScheduleError(f"tensorise: no unit of vectors takes blocks of {block.extent} terms in whole steps")
        row, axis = Var(f"{self.m or 'e0'}_scaled", 0, self.max_rows - 1), sym.as_var(column)
        assert axis is not None
        left = (
            scaled.left if m_loop is None else substitute_scalar(scaled.left, {m_loop.axis: first + sym.expr(row)}, {})
        )
        right = substitute_scalar(scaled.right, by, {})
        for access in (*accesses(left), *accesses(right)):
            if block.axis in sym.variables(access.offset):
                raise ScheduleError(f"tensorise: a scale at {access.offset} is not that of a block along {block.axis}")
        for access in accesses(left):
            self._check_linear("a scale", access.offset, [row])
        for access in accesses(right):
            panel_start(access.offset, column, self.columns)
        return ln.Scales(row, left, axis, right)

    def _rows(self, m_loop: ln.Loop | None) -> tuple[Int, Int, Int, Body]:
        """The first row and the height of a tile, the row within it, and the statements that assign the first two."""
        if m_loop is None or self.max_rows == 1:
            first: Int = 0 if m_loop is None else sym.axis(self.tiles, m_loop.extent)
            return first, 1, 0, ()
        tiles = sym.ceildiv(m_loop.extent, self.max_rows)
        number = sym.axis(self.tiles, tiles)
        if self.unit is None or self.unit.in_vectors:
            start = sym.floordiv(number * m_loop.extent, tiles)
            end = sym.floordiv((number + 1) * m_loop.extent, tiles)
        else:
            highest = sym.ceildiv(m_loop.extent, tiles)
            start = number * highest
            end = sym.minimum(start + highest, m_loop.extent)
        first_row = Var(f"{self.m}_first", 0, m_loop.axis.hi)
        height = Var(f"{self.m}_rows", 1, self.max_rows)
        row = sym.axis(self.row, sym.expr(height))
        named = (ln.Assign(first_row, start), ln.Assign(height, end - start))
        return sym.expr(first_row), sym.expr(height), row, named

    def _grid(
        self, loops: list[ln.Loop], n_loop: ln.Loop, panel: Int, m_loop: ln.Loop | None, of_b: set[Var]
    ) -> list[ln.Loop]:
        """The loops around tiles: axes of B, panels, other axes, row tiles. A panel stays in the cache for all rows."""
        others = [loop for loop in loops if loop is not n_loop and loop is not m_loop]
        grid = [loop for loop in others if loop.axis in of_b]
        panels = sym.as_var(panel)
        if panels is not None:
            grid.append(ln.Loop(panels, sym.ceildiv(n_loop.extent, self.columns), "serial", ()))
        grid += [loop for loop in others if loop.axis not in of_b]
        if m_loop is not None:
            tiles = sym.ceildiv(m_loop.extent, self.max_rows)
            number = sym.as_var(sym.axis(self.tiles, tiles))
            if number is not None:
                grid.append(ln.Loop(number, tiles, "serial", ()))
        return grid

    def _check_linear(self, which: str, offset: Int, axes: list[Var]) -> None:
        for axis in axes:
            if sym.coefficient(offset, axis) is None:
                raise ScheduleError(f"tensorise: {which} at {offset} is not linear in {axis}")


def start_of_b(offset: Int, k: Var, column: Int, columns: int, unit: MatrixUnit | None, computed: bool = False) -> Int:
    """``offset`` of the right operand at its first column; for a ``unit``, at its first term along ``k`` too. Where it
    is ``computed``, several groups may share bytes."""
    if unit is None:
        return panel_start(offset, column, columns)
    return grouped_start(offset, k, column, columns, unit, SHARING if computed else (1,))


def panel_start(offset: Int, column: Int, columns: int) -> Int:
    """``offset`` at the first of ``columns`` columns. Raises ScheduleError where they are not contiguous in memory."""
    variable = sym.as_var(column)
    linear = sym.coefficient(offset, variable) if variable is not None else None
    if linear is None or linear[0] != 1:
        raise ScheduleError(f"tensorise: {columns} columns of B do not lie side by side at {offset}")
    return linear[1]


def grouped_start(
    offset: Int, k: Var, column: Int, columns: int, unit: MatrixUnit, sharing: Sequence[int] = (1,)
) -> Int:
    """``offset`` at the first of ``columns`` columns and terms along ``k``. Raises ScheduleError where they are not in
    groups, of which one of the numbers in ``sharing`` share their bytes."""
    variable, group = sym.as_var(column), unit.group
    start = sym.substitute(offset, {k: ZERO} if variable is None else {k: ZERO, variable: ZERO})
    term = sym.expr(k)
    if not any(
        offset == start + sym.floordiv(term, group * per) * (columns * group) + sym.mod(term, group) + group * column
        for per in sharing
    ):
        raise ScheduleError(f"tensorise: {columns} columns of B do not lie in groups of {group} along {k} at {offset}")
    return start


def check_run(offset: Int, k: Var) -> None:
    """Raises ScheduleError where terms along ``k`` do not lie side by side in A."""
    linear = sym.coefficient(offset, k)
    if linear is None or linear[0] != 1:
        raise ScheduleError(f"tensorise: terms along {k} do not lie side by side in A at {offset}")


@dataclass(frozen=True)
class SumInBlocks:
    """::

    tile = Contract over k_1, k_0      =>      for k_1:  tile += Contract over k_0         (``outer`` = 1)

    Sums the first ``outer`` loops of every tile outside the registers. The error of a sum grows with the number of its
    terms: here with those of a block, then with the number of blocks. Legal where the tile starts empty and holds sums
    unrounded.
    """

    outer: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return with_tiles(nest, "sum in blocks", self._blocked)

    def _blocked(self, contract: ln.Contract) -> ln.Contract:
        if not 0 < self.outer < len(contract.loops):
            raise ScheduleError(f"sum in blocks: {self.outer} of {len(contract.loops)} loops leave no sum of blocks")
        if contract.accumulate:
            raise ScheduleError("sum in blocks: the tile holds sums already")
        if contract.dtype.compute != contract.dtype:
            raise ScheduleError(f"sum in blocks: a tile of {contract.dtype} rounds the sum of each block")
        return replace(contract, outer=self.outer)


@dataclass(frozen=True)
class ScaleSums:
    """::

    tile = Contract of A * (x * s)      =>      for each block:  tile += s * Contract of A * x

    What a prologue computes for B is a product, one of whose factors is the same for a block of terms: it multiplies
    the sum of the block instead of each term. Blocks are added outside the registers, as by ``SumInBlocks``. Each term
    is rounded once less, and each block once more. Legal where the tile starts empty and holds sums unrounded.
    """

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return with_tiles(nest, "scale sums", self._scaled)

    def _scaled(self, contract: ln.Contract) -> ln.Contract:
        factors = scaled_sums(contract)
        if factors is None or contract.prologue is None:
            raise ScheduleError("scale sums: no factor of B is the same for a block of terms")
        if contract.accumulate or contract.dtype.compute != contract.dtype:
            raise ScheduleError("scale sums: the tile holds sums already, or rounds the sum of each block")
        outer, value, scale = factors
        column = contract.prologue.column
        scales = ln.Scales(None, None, column, scale)
        return replace(contract, prologue=ln.Prologue(column, value), outer=outer, scales=scales)


def scaled_sums(contract: ln.Contract) -> tuple[int, ln.Scalar, ln.Scalar] | None:
    """How many loops count blocks of terms for which a factor of a computed B is the same, the other factor, which
    reads the array that is B, and that one; None where there are none."""
    prologue = contract.prologue
    if prologue is None or contract.unit is not None or prologue.value.op is not ops.MUL:
        return None
    for value, scale in (prologue.value.operands, prologue.value.operands[::-1]):
        moved = {v for access in accesses(scale) for v in sym.variables(access.offset)}
        count = max((k + 1 for k, loop in enumerate(contract.loops) if loop.axis in moved), default=0)
        outer = max(contract.outer, count)
        if 0 < outer < len(contract.loops) and any(access.array == contract.b for access in accesses(value)):
            return outer, value, scale
    return None


def with_tiles(nest: ln.LoopNest, name: str, made: Callable[[ln.Contract], ln.Contract]) -> ln.LoopNest:
    """The nest with ``made`` applied to each tile. Raises ScheduleError, which has the transform's ``name``, without
    tiles."""
    body, count = replace_statements(nest.body, lambda s: [made(s)] if isinstance(s, ln.Contract) else None)
    if not count:
        raise ScheduleError(f"{name}: there is no tile")
    return replace(nest, body=body)
