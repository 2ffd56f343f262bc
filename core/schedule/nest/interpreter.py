"""Runs a loop nest in plain Python, as ``nest`` defines it: the oracle of code generation and of schedule transforms.

Slow (one scalar at a time) and strict: an index outside an array, a value beyond its bounds or a name out of scope
raises an error. Vector and thread loops run as plain loops, parallel loops in order. Where the threads of a task share
memory, an element that two of them touch, one writing, raises an error if no barrier lies between that orders accesses
to its array.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from luminal.core import numerics, ops
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.grid import SMALL, WARP, Fragment, in_pairs, in_rows
from luminal.core.schedule.nest.hand_over import HandOver
from luminal.core.schedule.nest.ir import (
    Access,
    Alloc,
    Assign,
    Barrier,
    Combine,
    Contract,
    CopyBox,
    Define,
    Holds,
    If,
    Index,
    KeepLeast,
    Let,
    Literal,
    Loop,
    LoopNest,
    Prefetch,
    Reduction,
    Reductions,
    Regroup,
    Scalar,
    Sort,
    Statement,
    Store,
    Temporary,
    postorder,
)
from luminal.core.schedule.nest.operands import loops_over_blocks
from luminal.core.schedule.nest.walk import perfect_loops
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

Array: TypeAlias = np.ndarray[Any, Any]


def run(
    nest: LoopNest,
    arrays: MutableMapping[str, Array],
    dims: Mapping[str, int] | None = None,
    tasks: Iterable[int] | None = None,
) -> bool:
    """Runs ``nest`` on flat ``arrays`` by name, and writes its results into them. ``dims`` are the sizes by name,
    ``tasks`` the numbers of the tasks to run, by default all.

    Returns whether every checked index was in range. Raises SpecError where the nest reads or writes outside an array,
    or uses a name that is not in scope.
    """
    for array in nest.arrays:
        value = arrays[array.name]
        if value.dtype != array.dtype.numpy or value.ndim != 1:
            raise SpecError(f"array {array.name}: expected flat {array.dtype}, found {value.dtype}{list(value.shape)}")
        if array.finite and not np.isfinite(value).all():
            raise SpecError(f"array {array.name}: expected finite numbers alone")
    machine = _Machine(dict(arrays), dict(dims or {}), nest.threads)
    if tasks is None:
        machine.body(nest.body)
    else:
        for task in tasks:
            machine.task(nest, task)
    return machine.in_range


def run_places(
    nest: LoopNest, arrays: Mapping[str, Array], dims: Mapping[str, int], places: Iterable[Mapping[str, int]]
) -> dict[str, dict[int, Any]]:
    """What ``nest``, of serial loops, writes in the iterations ``places`` of its outer perfectly nested loops: for each
    array the values by position. ``arrays`` are not changed. Reductions take all their values at once, as in ``run``.

    Raises SpecError as ``run`` does.
    """
    machine = _Places(dict(arrays), dict(dims), 1)
    _, body = perfect_loops(nest.body)
    for place in places:
        machine.variables |= place
        machine.body(body)
    return machine.found


_ALL = -1  # in place of a thread: all threads run the statement
_COPY = -2  # in place of a thread: an asynchronous copy, or product, for which no thread has waited


class _Machine:
    def __init__(self, arrays: dict[str, Array], variables: dict[str, int], threads: int) -> None:
        self.arrays = arrays
        self.arguments = frozenset(arrays)
        self.variables = variables
        self.temporaries: dict[str, Any] = {}
        self.in_range = True
        self.threads = threads
        self.thread = _ALL
        # The thread that read or wrote an element since the last barrier that orders it; several readers count as all.
        self.readers: dict[tuple[str, int], int] = {}
        self.writers: dict[tuple[str, int], int] = {}
        self.of_group: Array = np.zeros((0, 0))  # the last product of a group of warps
        # Groups of copies under way, and of products: what they write and read; the last ones since the last barrier.
        self.copies: list[set[tuple[str, int]]] = [set()]
        self.products: list[set[tuple[str, int]]] = [set()]

    # ---- statements -------------------------------------------------------------------------------------------------

    def task(self, nest: LoopNest, number: int) -> None:
        """One task: the axes of the parallel loops are the digits of its number, the last the least significant."""
        for loop in reversed(nest.tasks):
            number, self.variables[loop.axis.name] = divmod(number, self._int(loop.extent))
        self.body(nest.tasks[-1].body)

    def body(self, statements: Sequence[Statement]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Loop):
            for _ in self._iterate((statement,)):
                self.body(statement.body)
        elif isinstance(statement, Let):
            self._let(statement)
        elif isinstance(statement, Define):
            self.temporaries[statement.name] = self.value(statement.value)
        elif isinstance(statement, Reduction):
            self.temporaries[statement.name] = self._reduce(statement)
        elif isinstance(statement, Reductions):
            self._reduce_side_by_side(statement)
        elif isinstance(statement, Store):
            if self._hold(statement.valid):
                value = self.value(statement.value)
                array, position = self._element(statement.array, statement.offset)
                self._writes(statement.array, position)
                if statement.ahead:
                    self.writers[statement.array, position] = _COPY
                    self.copies[-1].add((statement.array, position))
                array[position] = value
        elif isinstance(statement, Sort):
            self._ordered(statement).sort()
        elif isinstance(statement, KeepLeast):
            heap, value = self._ordered(statement), self.value(statement.value)
            heap[::-1].sort()  # the greatest first: a heap
            heap[0] = min(heap[0], value)
        elif isinstance(statement, Combine):
            self._combine(statement)
        elif isinstance(statement, Regroup):
            self._regroup(statement)
        elif isinstance(statement, If):
            if self._hold(statement.valid):
                self.body(statement.body)
        elif isinstance(statement, Barrier):
            self._meet(statement.all_memory, statement.left, statement.products)
        elif isinstance(statement, Alloc):
            unwritten = np.full(statement.extent * statement.dtype.itemsize, 0xFF, np.uint8)
            self.arrays[statement.name] = unwritten.view(statement.dtype.numpy)
        elif isinstance(statement, Assign):
            self.variables[statement.axis.name] = self._within(statement.axis, self._int(statement.value))
        elif isinstance(statement, Prefetch):
            self._element(statement.array, statement.offset)
        elif isinstance(statement, CopyBox):
            self.body(statement.body)
            self._check_box(statement)
        elif isinstance(statement, HandOver):
            self._hand_over(statement)
        else:
            self._contract(statement)

    def _within(self, axis: sym.Var, value: int) -> int:
        """``value`` for ``axis``, within the bounds that transforms and generated code rely on."""
        highest = self._int(axis.hi)
        if not axis.lo <= value <= highest:
            raise SpecError(f"{axis.name} becomes {value}, and is declared as {axis.lo} .. {highest}")
        return value

    def _check_box(self, box: CopyBox) -> None:
        """Raises SpecError where the body has not copied the box."""
        origin, sizes, strides = (tuple(map(self._int, x)) for x in (box.origin, box.sizes, box.strides))
        tensor = self.arrays[box.source][self._int(box.first) :]
        for line in range(box.lines):
            for column in range(box.row):
                at = (origin[0] + column, origin[1] + line, *origin[2:])
                inside = all(0 <= i < size for i, size in zip(at, sizes, strict=True))
                wanted = tensor[at[0] + int(np.dot(at[1:], strides))] if inside else tensor.dtype.type(0)
                found = self.arrays[box.array][line * box.row + column]
                if wanted.tobytes() != found.tobytes():
                    raise SpecError(f"{box.array}[{line}, {column}]: {found}, but {wanted} in the box of {box.source}")

    def _iterate(self, loops: Sequence[Loop]) -> Any:
        """Sets the axes of ``loops`` to each of their values in turn, the last fastest."""
        if not loops:
            yield
            return
        loop = loops[0]
        for position in range(self._int(loop.extent)):
            self.variables[loop.axis.name] = position
            if loop.kind == "thread":
                self.thread = position % loop.lanes
            elif loop.kind == "parallel":
                self._meet()
            yield from self._iterate(loops[1:])
        if loop.kind == "thread":
            self.thread = _ALL

    # ---- threads ----------------------------------------------------------------------------------------------------

    def _meet(self, all_memory: bool = True, copies: int = 0, products: int = 0) -> None:
        left = frozenset[str]() if all_memory else self.arguments
        self.copies, self.products = _last(self.copies, copies), _last(self.products, products)
        busy = {place for groups in (self.copies, self.products) for group in groups for place in group}
        self.readers = {place: by for place, by in self.readers.items() if place[0] in left or place in busy}
        self.writers = {place: by for place, by in self.writers.items() if place[0] in left or place in busy}

    def _hand_over(self, statement: HandOver) -> None:
        """Copies are there, or products have ended: what they touched is free."""
        under_way = [place for groups in (self.copies, self.products) for group in groups for place in group]
        self.copies = _last(self.copies, 0 if statement.filled else len(self.copies))
        self.products = _last(self.products, len(self.products) if statement.filled else statement.products)
        left = {place for groups in (self.copies, self.products) for group in groups for place in group}
        free = set(under_way) - left
        self.readers = {place: by for place, by in self.readers.items() if place not in free}
        self.writers = {place: by for place, by in self.writers.items() if place not in free}

    def _reads(self, array: str, position: int) -> None:
        """Raises SpecError where another thread wrote the element since the last barrier."""
        if self.threads == 1:
            return
        writer = self.writers.get((array, position), self.thread)
        if writer != self.thread:
            raise SpecError(
                f"{array}[{position}]: {_who(self.thread)} reads what {_who(writer)} wrote, with no barrier"
            )
        first = self.readers.setdefault((array, position), self.thread)
        if first != self.thread:
            self.readers[array, position] = _ALL

    def _writes(self, array: str, position: int) -> None:
        """Raises SpecError where another thread read or wrote the element since the last barrier."""
        if self.threads == 1:
            return
        thread = max(self.thread, 0)  # what all threads compute, one of them stores
        for others, verb in ((self.readers, "read"), (self.writers, "wrote")):
            other = others.get((array, position), thread)
            if other != thread:
                raise SpecError(
                    f"{array}[{position}]: {_who(thread)} writes what {_who(other)} {verb}, with no barrier"
                )
        self.writers[array, position] = thread

    def _ordered(self, statement: Sort | KeepLeast) -> Array:
        """The elements that a statement puts in order, which it reads and writes."""
        array, extent = self.arrays[statement.array], self._int(statement.extent)
        if extent == 0:
            return array[:0]
        _, first = self._element(statement.array, statement.offset)
        self._element(statement.array, statement.offset + statement.extent - 1)
        for position in range(first, first + extent):
            self._writes(statement.array, position)
        return array[first : first + extent]

    def _combine(self, statement: Combine) -> None:
        """The first of the neighbouring threads does it for all of them."""
        if self.thread % statement.lanes:
            return
        array, first = self._element(statement.array, statement.offset)
        part = len(array) // self.threads
        for number in range(first, first + statement.count):
            mine = slice(number, number + part * statement.lanes, part)
            array[mine] = _combined(statement.op, array[mine], statement.dtype)

    def _regroup(self, statement: Regroup) -> None:
        """The first lane does it for all of its warp."""
        if self.thread % WARP:
            return
        array, first = self._element(statement.array, statement.offset)
        lane, element = np.divmod(np.arange(WARP * SMALL), SMALL)
        held = first + lane * (len(array) // self.threads) + element
        by = {"lane": lane, "element": element}
        lanes, elements = sym.var("lane", 0, WARP - 1), sym.var("element", 0, SMALL - 1)
        before, after = (tuple(sym.evaluate(x, by) for x in place(lanes, elements)) for place in (in_pairs, in_rows))
        matrix = np.empty((2 * SMALL, 2 * SMALL), array.dtype)
        matrix[before] = array[held]
        array[held] = matrix[after]

    def _let(self, statement: Let) -> None:
        value = int(self.value(statement.value))
        if not 0 <= value < self._int(statement.extent):
            assert statement.failure is not None, f"{statement.value} is {value}, expected less than {statement.extent}"
            self.in_range, value = False, 0
        self.variables[statement.axis.name] = value

    def _reduce(self, statement: Reduction) -> Any:
        """The values are combined all at once, so that sums have numpy's small error."""
        values: list[Any] = []
        for _ in self._iterate(statement.loops):
            self.body(statement.before)
            values.append(self.value(statement.value))
        return _combined(statement.op, values, statement.value.dtype)

    def _reduce_side_by_side(self, statement: Reductions) -> None:
        values: dict[str, list[Any]] = {name: [] for name in statement.names}
        for _ in self._iterate(statement.loops):
            for name, value in statement.terms:
                values[name].append(self.value(value))
        for name, found in values.items():
            self.temporaries[name] = _combined(statement.op, found, statement.dtype)

    def _contract(self, statement: Contract) -> None:
        rows = self._int(statement.rows)
        if not 1 <= rows <= statement.max_rows:
            raise SpecError(f"contract {statement.tile}: {rows} rows, expected 1..{statement.max_rows}")
        fragment = statement.fragment
        if fragment is not None and fragment.panels and self.thread % fragment.warp:
            self._hold_fragments(statement, fragment, self.of_group)  # the first of the group has multiplied
            return
        compute, scales = statement.dtype.compute, statement.scales
        total = np.zeros((rows, statement.columns), compute.numpy)
        outer = loops_over_blocks(statement)
        for _ in self._iterate(statement.loops[:outer]):
            block = np.zeros_like(total)
            for _ in self._iterate(statement.loops[outer:]):
                later = statement.background
                left = self._left(statement, rows)
                b_offset, b_column = statement.b_offset, self._int(statement.b_column)
                if statement.unit is not None:
                    group, k = statement.unit.group, self._int(sym.expr(statement.loops[-1].axis))
                    b_offset = b_offset + k // group * group * statement.columns + k % group
                    b_column = group
                if statement.prologue is not None:
                    right = self._computed(statement.prologue.value, statement.prologue.column, statement.columns)
                else:
                    right = self._strip(statement.b, b_offset, b_column, statement.columns, later)
                left, right = (numerics.convert(x, compute) for x in (left, right))
                if statement.fragment is not None:
                    left, right = (statement.fragment.precision.rounded(x) for x in (left, right))
                with np.errstate(all="ignore"):
                    block = block + np.outer(left, right)
            with np.errstate(all="ignore"):
                if scales is not None:
                    right = self._computed(scales.right, scales.column, statement.columns)
                    if scales.left is not None and scales.row is not None:
                        left = self._computed(scales.left, scales.row, rows)
                        left = np.where(np.isinf(left), np.nan, left).astype(left.dtype)
                        right = np.outer(left, right)
                    block = right * block
                total = total + block
        total = numerics.convert(total, statement.dtype)
        if statement.fragment is not None:
            self.of_group = total
            self._hold_fragments(statement, statement.fragment, total)
            return
        for row, sums in enumerate(total):
            at = statement.tile_offset + row * (statement.tile_row or statement.columns)
            array, first = self._element(statement.tile, at)
            if first + statement.columns > len(array):
                raise SpecError(f"{statement.tile}: row {row} of a tile ends beyond its {len(array)} elements")
            for position in range(first, first + statement.columns):
                self._writes(statement.tile, position)
            tile = array[first : first + statement.columns]
            tile[:] = tile + sums if statement.accumulate else sums

    def _left(self, statement: Contract, rows: int) -> Array:
        """The column of A for the present term."""
        fragment = statement.fragment
        if fragment is None or not statement.held:
            stride = self._int(statement.a_row)
            return self._strip(statement.a, statement.a_offset, stride, rows, statement.background)
        array, first = self._element(statement.a, statement.a_offset)
        part, of_row = len(array) // self.threads, self._int(statement.a_row)
        first -= self.thread % fragment.warp * part
        column = self._int(sym.expr(statement.loops[-1].axis)) % SMALL
        held = (_holders(fragment)[row % fragment.rows, column] for row in range(rows))
        places = [first + lane * part + row // fragment.rows * of_row + e for row, (lane, e) in enumerate(held)]
        return numerics.convert(array[places], statement.a_type)

    def _computed(self, value: Scalar, axis: Var, count: int) -> Array:
        """``value`` for the first ``count`` positions along ``axis``, in which what it reads is linear."""
        self.variables[axis.name] = 0
        found: dict[Scalar, Array] = {}
        for part in postorder(value):
            if isinstance(part.leaf, Access):
                linear = sym.coefficient(part.leaf.offset, axis)
                if linear is None:
                    raise SpecError(f"{part.leaf.array}: {part.leaf.offset} is not linear in {axis}")
                found[part] = self._strip(part.leaf.array, part.leaf.offset, self._int(linear[0]), count)
            elif part.op is None:
                found[part] = np.full(count, self._leaf(part))
            else:
                found[part] = numerics.apply(part.op, part.attr, *(found[x] for x in part.operands))
        return found[value]

    def _hold_fragments(self, statement: Contract, fragment: Fragment, total: Array) -> None:
        """Puts the thread's elements of every fragment of ``total`` into its part of the tile."""
        array, position = self._element(statement.tile, statement.tile_offset)
        for top in range(0, total.shape[0], fragment.rows):
            for left in range(0, total.shape[1], fragment.columns):
                for element in range(fragment.elements):
                    by = {fragment.lane.name: self.thread % fragment.warp, fragment.element.name: element}
                    row, column = (int(sym.evaluate(e, by)) for e in (fragment.row, fragment.column))
                    place = (statement.tile, position)
                    if not statement.background or self.writers.get(place) != _COPY:
                        self._writes(*place)
                    before = array[position] if statement.accumulate else 0
                    array[position] = before + total[top + row, left + column]
                    if statement.background:
                        self.writers[place] = _COPY
                        self.products[-1].add(place)
                    position += 1

    def _strip(self, name: str, offset: Int, stride: int, count: int, background: bool = False) -> Array:
        array, first = self._element(name, offset)
        if not 0 <= first + stride * (count - 1) < len(array):
            raise SpecError(f"{name}: elements {first}..{first + stride * (count - 1)} of {len(array)}")
        for position in range(count):
            self._reads(name, first + stride * position)
            if background:
                self.readers[name, first + stride * position] = _COPY
                self.products[-1].add((name, first + stride * position))
        return array[first + stride * np.arange(count)]

    # ---- values -----------------------------------------------------------------------------------------------------

    def value(self, scalar: Scalar) -> Any:
        """One value, as a numpy scalar of the scalar's type; shared parts are computed once."""
        found: dict[Scalar, Any] = {}
        for part in postorder(scalar):
            if part.op is None:
                found[part] = self._leaf(part)
            else:
                operands = [np.asarray(found[operand]) for operand in part.operands]
                found[part] = numerics.apply(part.op, part.attr, *operands)[()]
        return found[scalar]

    def _leaf(self, scalar: Scalar) -> Any:
        leaf, dtype = scalar.leaf, scalar.dtype
        if isinstance(leaf, Access):
            if not self._hold(leaf.valid):
                return _number(leaf.fill, dtype)
            array, position = self._element(leaf.array, leaf.offset)
            self._reads(leaf.array, position)
            return array[position]
        if isinstance(leaf, Literal):
            return _number(leaf.bits, dtype)
        if isinstance(leaf, Index):
            return np.int64(self._int(leaf.value))
        if isinstance(leaf, Holds):
            return np.bool_(self._hold(leaf.valid))
        if isinstance(leaf, Temporary):
            if leaf.name not in self.temporaries:
                raise SpecError(f"temporary {leaf.name} has no value")
            return self.temporaries[leaf.name]
        raise SpecError(f"{scalar} is neither a value nor an operation")

    def _element(self, name: str, offset: Int) -> tuple[Array, int]:
        if name not in self.arrays:
            raise SpecError(f"array {name} is not in scope")
        array, position = self.arrays[name], self._int(offset)
        if not 0 <= position < len(array):
            raise SpecError(f"{name}[{offset}]: element {position} of {len(array)}")
        return array, position

    def _hold(self, valid: Sequence[Int]) -> bool:
        return all(self._int(condition) >= 0 for condition in valid)

    def _int(self, value: Int) -> int:
        try:
            return int(sym.evaluate(value, self.variables))
        except KeyError as error:
            raise SpecError(f"variable {error.args[0]} in {value} is not in scope") from None


class _Places(_Machine):
    """A machine that collects stores instead of changing arrays, and evaluates reductions over arrays of indices."""

    def __init__(self, arrays: dict[str, Array], variables: dict[str, Any], threads: int) -> None:
        super().__init__(arrays, variables, threads)
        self.found: dict[str, dict[int, Any]] = {}

    def _statement(self, statement: Statement) -> None:
        if not isinstance(statement, Store) or statement.array not in self.arguments:
            super()._statement(statement)
        elif self._hold(statement.valid):
            array, position = self._element(statement.array, statement.offset)
            value = np.asarray(self.value(statement.value)).astype(array.dtype)[()]
            self.found.setdefault(statement.array, {})[position] = value

    def _reduce(self, statement: Reduction) -> Any:
        if statement.before:
            return super()._reduce(statement)
        axes = [loop.axis.name for loop in statement.loops]
        rows = [[self.variables[name] for name in axes] for _ in self._iterate(statement.loops)]
        before = dict(self.variables)
        self.variables |= zip(axes, np.array(rows, np.int64).reshape(-1, len(axes)).T, strict=True)
        values = np.broadcast_to(self.value(statement.value), (len(rows),))
        self.variables = before
        return _combined(statement.op, values, statement.value.dtype)

    def _leaf(self, scalar: Scalar) -> Any:
        leaf = scalar.leaf
        if isinstance(leaf, Access):
            offsets = np.asarray(sym.evaluate(leaf.offset, self.variables))
            holds = np.ones(offsets.shape, bool)
            for condition in leaf.valid:
                holds = holds & np.asarray(sym.evaluate(condition, self.variables) >= 0)
            array = self.arrays[leaf.array]
            read = np.broadcast_to(offsets, holds.shape)[holds]
            if read.size and not (read.min() >= 0 and read.max() < len(array)):
                raise SpecError(f"{leaf.array}[{leaf.offset}]: elements {read.min()}..{read.max()} of {len(array)}")
            values = np.full(holds.shape, _number(leaf.fill, scalar.dtype) if leaf.valid else 0, array.dtype)
            values[holds] = array[read]
            return values[()]
        if isinstance(leaf, Index):
            return np.asarray(sym.evaluate(leaf.value, self.variables)).astype(np.int64)[()]
        if isinstance(leaf, Holds):
            conditions = [np.asarray(sym.evaluate(condition, self.variables) >= 0) for condition in leaf.valid]
            return np.logical_and.reduce(np.broadcast_arrays(*conditions))[()]
        return super()._leaf(scalar)


def _last(groups: list[set[tuple[str, int]]], count: int) -> list[set[tuple[str, int]]]:
    """The last ``count`` groups that are not empty, and a new one."""
    started = [group for group in groups if group]
    return [*started[max(0, len(started) - count) :], set()]


def _who(thread: int) -> str:
    return {_ALL: "every thread", _COPY: "a copy or product"}.get(thread, f"thread {thread}")


@cache
def _holders(fragment: Fragment) -> dict[tuple[int, int], tuple[int, int]]:
    """The lane that holds each row and column of a fragment's result, and the number of its element."""
    return {
        (int(sym.evaluate(fragment.row, by)), int(sym.evaluate(fragment.column, by))): (lane, element)
        for lane in range(fragment.warp)
        for element in range(fragment.elements)
        for by in ({fragment.lane.name: lane, fragment.element.name: element},)
    }


def _combined(op: ops.Op, values: Sequence[Any] | Array, dtype: DType) -> Any:
    return numerics.apply(op, ops.Axes((0,)), np.array(values, dtype.numpy))[()]


def _number(bits: bytes, dtype: DType) -> Any:
    return np.frombuffer(bits, dtype.numpy)[0]
