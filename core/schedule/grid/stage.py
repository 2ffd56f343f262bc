"""Products with staged operands: tiles of both are copied into shared memory and multiplied from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import SMALL, WARP, BlockCosts
from luminal.core.schedule.grid.handed import HandedSteps
from luminal.core.schedule.grid.staged import (
    BackgroundSteps,
    Side,
    StagedOperand,
    StagedSteps,
    by_threads,
    staged,
    uniform,
)
from luminal.core.schedule.grid.thread_tiles import Square, ThreadTile, Warps
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import Scaled, element_and_value, scales_of, stored_type
from luminal.core.schedule.nest.rewrite import replace_leaves, replace_scalars, substitute, wrap
from luminal.core.schedule.nest.walk import Body, accesses, perfect_loops, reads
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType, f32


@dataclass(frozen=True)
class Stage:
    """::

    for .., m < M:  for n < N:                 for .., n_1 < N/columns:  for m_1 < M/rows:
        s = sum over k of A[m,k] * B[k,n]          for k_1 < K/depth:
        store f(s)                       =>            stage_a = A[rows of m_1, depth of k_1]        (by all threads)
                                                       stage_b = B[depth of k_1, columns of n_1]     (by all threads)
                                                       tile[thread] += stage_a * stage_b             (in registers)
                                                   for the elements of tile[thread]:  store f(s)

    ``parts`` divides the tile among threads. Operands may have any strides and masks of zeros: all K axes become one.
    B may be computed from elements, once for a tile, as it is staged.
    Beyond M, N and K zeros are staged, and nothing is stored.

    With ``ahead``, there are two stages of each operand: one is filled asynchronously while the other is multiplied.
    Groups of warps multiply in the background, and stages are filled ``ahead`` steps before they are multiplied.
    ``steps`` of the product are written out. Stages may be ``handed`` over by warps that only copy. Elements of another
    type than ``operands`` are converted to that, which holds all their values, as they are staged.

    With ``wide``, the lanes of a warp regroup their elements, so that each stores, and reads what is added, several
    neighbours of a row at once. Legal where fragments leave pairs and results lie side by side along columns.

    Where both factors are scaled, and integers otherwise, a step has whole blocks of terms with the same scales, which
    are staged as well: fragments sum the integers of each block, and the sum is scaled.
    """

    m: str
    n: str
    rows: int
    columns: int
    depth: int
    parts: Square | Warps
    ahead: int = False
    steps: int = field(default=BlockCosts.steps, repr=False)
    handed: bool = False
    operands: DType | None = None
    wide: bool = False

    @property
    def threads(self) -> int:
        """Threads of a task."""
        return self.parts.threads(self.rows, self.columns)

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, (reduction, *rest) = perfect_loops(nest.body)
        by_name = {loop.axis.name: loop for loop in loops}
        if not isinstance(reduction, ln.Reduction):
            raise ScheduleError("stage: the nest is not a sum over a product inside loops over rows and columns")
        left, right = element_and_value(reduction)
        if any(left.fill) or any(any(x.fill) for x in accesses(right)):
            raise ScheduleError("stage: a factor is something else than zero where it is masked")
        if self.m not in by_name or self.n not in by_name:
            raise ScheduleError(f"stage: the nest has no outer loops over {self.m!r} and {self.n!r}")
        rows, columns = self._side(by_name[self.m], self.rows), self._side(by_name[self.n], self.columns)
        scaled = scales_of(reduction)
        a, b = (
            staged(
                nest, name, access, side, reduction.loops, self.depth, self.threads,
                lines=isinstance(self.parts, Warps), ahead=bool(self.ahead), panels=self._in_groups, value=value,
            )
            for name, access, value, side in (
                ("stage_a", left, self._converted(nest, left), rows),
                ("stage_b", accesses(right)[0], self._value(nest, right), columns),
            )
        )  # fmt: skip
        scales = () if scaled is None else self._scales(nest, scaled, reduction.loops, rows, columns)
        thread = sym.var("t0", 0, self.threads - 1)
        held = self.parts.of_thread(thread, self.rows, self.columns)
        first = thread * held.size
        zero = ln.literal(bytes(reduction.dtype.itemsize), reduction.dtype)
        clear = held.loops((ln.Store("tile", first + held.number, zero),))
        terms = self.depth if scaled is None else int(str(reduction.loops[-1].extent))
        block, k_0 = sym.axis("k_2", self.depth // terms), sym.axis("k_0", terms)
        inner = [(block, self.depth // terms), (k_0, terms)]
        contract = ln.Contract(
            "tile", reduction.dtype, a.name, a.dtype, a.place(block * terms + k_0, held.top), a.line,
            b.name, b.dtype, b.place(block * terms + k_0, held.left),
            tuple(ln.Loop(v, extent, "serial", ()) for axis, extent in inner if (v := sym.as_var(axis)) is not None),
            held.shape[0], held.shape[0], held.shape[1], held.shape[1],
            tile_offset=first, accumulate=True, b_column=b.line, fragment=held.fragment, steps=self.steps,
            background=self._in_groups, scales=_staged_scales(scales, block, held, 0),
        )  # fmt: skip
        count = sym.ceildiv(sym.product(loop.extent for loop in reduction.loops), self.depth)

        def product(step: Int, stage: int) -> ln.Contract:
            return replace(
                contract, a=a.stage(stage), b=b.stage(stage), scales=_staged_scales(scales, block, held, stage)
            )

        kind = HandedSteps if self.handed else BackgroundSteps if self._in_groups else StagedSteps
        steps = kind(self.threads, count, (a, b, *scales), product, self.ahead)

        def after(place: Int, row: Int, column: Int) -> Body:
            by = {ln.temporary(reduction.name, reduction.dtype): ln.load("tile", first + place, reduction.dtype)}
            at = {rows.loop.axis: rows.at(row), columns.loop.axis: columns.at(column)}
            return substitute(replace_scalars(tuple(rest), lambda value: replace_leaves(value, by)), at)

        through: Body = ()
        if self.wide:
            through = (ln.Alloc("through", reduction.dtype, self.threads * SMALL, "shared"),)
            end = self._in_neighbours(nest, thread, first, reduction.dtype, rows, columns, after)
        else:
            valid = (*rows.valid(held.row), *columns.valid(held.column))
            each = after(held.number, held.row, held.column)
            end = (by_threads(self.threads, *held.loops((ln.If(valid, each),) if valid else each)),)
        body = (
            *steps.allocations(),
            *through,
            ln.Alloc("tile", reduction.dtype, held.size * self.threads, "registers"),
            by_threads(self.threads, *clear),
            *steps.body(),
            *end,
        )
        others = [loop for loop in loops if loop not in (rows.loop, columns.loop)]
        return replace(nest, body=wrap([*others, *_header(columns), *_header(rows)], body), threads=self.threads)

    def _in_neighbours(
        self, nest: ln.LoopNest, thread: Int, first: Int, dtype: DType, rows: Side, columns: Side,
        after: Callable[[Int, Int, Int], Body],
    ) -> Body:  # fmt: skip
        """What is done with the elements that each thread has, ``after`` they have been regrouped: to as many
        neighbours at once as are read and written together, and exist together or not at all."""
        if not isinstance(self.parts, Warps):
            raise ScheduleError("stage: only the lanes of warps regroup what they hold")
        near = self.parts.regrouped(thread, self.rows, self.columns)
        place = sym.floordiv(thread, WARP) * (WARP * SMALL)
        exchange = ln.Regroup("tile", first + near.number, dtype, "through", place)
        for width in (SMALL, SMALL // 2):
            groups, lane = sym.axis("e3", SMALL // width), sym.axis("v0", width)
            group, axis = sym.as_var(groups), sym.as_var(lane)
            assert axis is not None
            inner = groups * width + lane
            stores = after(near.number + inner, near.row, near.column + inner)
            valid = (*rows.valid(near.row), *columns.valid(near.column + inner))
            if not (all(uniform(v, axis, width) for v in valid) and _together(stores, nest, axis, width)):
                continue
            valid = tuple(c for v in valid if not sym.always(c := sym.substitute(v, {axis: 0})))
            stores = (ln.Loop(axis, width, "vector", stores, width),)
            stores = (ln.If(valid, stores),) if valid else stores
            stores = stores if group is None else (ln.Loop(group, SMALL // width, "unroll", stores),)
            return by_threads(self.threads, *near.loops((exchange,))), by_threads(self.threads, *near.loops(stores))
        raise ScheduleError("stage: results do not lie side by side along columns")

    def _scales(
        self, nest: ln.LoopNest, scaled: Scaled, loops: tuple[ln.Loop, ...], rows: Side, columns: Side
    ) -> tuple[StagedOperand, ...]:
        """The scales of the blocks of a step, of each row and of each column."""
        fragment = self.parts.fragment if isinstance(self.parts, Warps) else None
        *outer, block = loops
        depth = fragment.depth if fragment is not None and fragment.sum.is_integer else None
        whole = depth is not None and sym.mod(block.extent, depth) == 0 and sym.mod(self.depth, block.extent) == 0
        if not (whole and outer):
            raise ScheduleError(f"stage: no fragment of integers takes blocks of {block.extent} terms in whole steps")
        count = self.depth // int(str(block.extent))
        found = []
        for name, value, side in (("scale_a", scaled.left, rows), ("scale_b", scaled.right, columns)):
            if any(block.axis in sym.variables(x.offset) for x in accesses(value)):
                raise ScheduleError(f"stage: a scale is not the same for a block along {block.axis}")
            stored = value.operands[0] if value.op is ops.CAST else value
            stored = stored if isinstance(stored.leaf, ln.Access) and stored.dtype.is_float else value
            computed = None if isinstance(stored.leaf, ln.Access) else stored
            found.append(
                staged(
                    nest, name, accesses(value)[0], side, tuple(outer), count, self.threads, lines=True,
                    ahead=bool(self.ahead), value=computed, room=0,
                )
            )  # fmt: skip
        return tuple(found)

    def _value(self, nest: ln.LoopNest, right: ln.Scalar) -> ln.Scalar | None:
        """What threads compute of B; None where they copy it."""
        if isinstance(right.leaf, ln.Access):
            return self._converted(nest, right.leaf)
        return (
            right
            if self.operands in (None, right.dtype)
            else ln.apply(ops.CAST, (right,), ops.To(self.operands), self.operands)
        )

    def _converted(self, nest: ln.LoopNest, access: ln.Access) -> ln.Scalar | None:
        stored = stored_type(nest, access.array)
        if self.operands in (None, stored):
            return None
        assert self.operands is not None
        element = ln.load(access.array, access.offset, stored, access.valid, access.fill)
        return ln.apply(ops.CAST, (element,), ops.To(self.operands), self.operands)

    @property
    def _in_groups(self) -> bool:
        """Whether groups of warps multiply."""
        return isinstance(self.parts, Warps) and self.parts.fragment.panels

    @staticmethod
    def _side(loop: ln.Loop, size: int) -> Side:
        return Side(loop, size, sym.axis(f"{loop.axis.name}_1", sym.ceildiv(loop.extent, size)) * size)


def _together(body: Body, nest: ln.LoopNest, axis: Var, width: int) -> bool:
    """Whether ``body`` only stores, ``width`` neighbours along ``axis`` at once, and reads as many, or one for all."""

    def stride(offset: Int, whole: bool) -> Int | None:
        linear = sym.coefficient(offset, axis)
        if linear is None or (whole and sym.mod(linear[1], width) != 0):
            return None
        return linear[0]

    for statement in body:
        if not isinstance(statement, ln.Store) or statement.valid:
            return False
        if not all(array.aligned for array in nest.arrays if array.name == statement.array):
            return False
        if stride(statement.offset, True) != 1:
            return False
        offsets = [read for read in reads(statement) if read.array != "tile"]
        if any(read.valid or stride(read.offset, False) not in (0, 1) for read in offsets):
            return False
    return True


def _staged_scales(scales: tuple[StagedOperand, ...], block: Int, held: ThreadTile, stage: int) -> ln.Scales | None:
    """The scales of ``block`` of a step, which lie in the stages of that number; None where there are none."""
    if not scales:
        return None
    variables = Var("i0", 0, held.shape[0] - 1), Var("i1", 0, held.shape[1] - 1)
    left, right = (
        ln.load(x.stage(stage), x.place(block, first + sym.expr(v)), x.dtype)
        for x, first, v in zip(scales, (held.top, held.left), variables, strict=True)
    )
    left, right = (x if x.dtype == f32 else ln.apply(ops.CAST, (x,), ops.To(f32), f32) for x in (left, right))
    return ln.Scales(variables[0], left, variables[1], right)


def _header(side: Side) -> list[ln.Loop]:
    """The loop over tiles along one side, where there are several."""
    count = sym.ceildiv(side.loop.extent, side.size)
    variable = sym.as_var(sym.axis(f"{side.loop.axis.name}_1", count))
    return [] if variable is None else [ln.Loop(variable, count, "serial", ())]
