"""The tile operation of a contraction as C++: one function template over the number of rows.

Columns and lanes are constants of the nest. The row count may depend on where the tile lies, so the kernel branches to
one instance of the template for each count that can occur; accumulators are then registers in all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from luminal.codegen.cpp import Names, ctype
from luminal.codegen.frame import Frame, Value
from luminal.codegen.indices import Indices
from luminal.codegen.prologue import Row, Source, computed_row, split
from luminal.codegen.signature import AHEAD, AHEAD_STEP, FETCHED, Pointer
from luminal.core import symbolic as sym
from luminal.core.costs import Prefetching
from luminal.core.errors import SpecError
from luminal.core.matrix import MatrixUnit
from luminal.core.schedule.nest.ir import Access, Contract, Loop, Prologue, Scales
from luminal.core.schedule.nest.operands import loops_of_b, loops_over_blocks
from luminal.core.symbolic import Int, Var

A_AHEAD, B_AHEAD = "a_ahead", "b_ahead"  # parameters of a tile: operands of a later tile, to be prefetched
SCALE = "scale"  # a parameter of a tile: what scales the sums of blocks in each row
COLUMN_SCALES = "scales"  # what scales them in each column
FETCH_FOR_LATER = (f"prefetch_to_l2({AHEAD});", f"{AHEAD} += {AHEAD_STEP};")
REGISTERS = "matrix_registers"  # a variable of the kernel that all its tiles on a matrix unit share
ENUMERATED = 1 << 14  # most positions of a tile that are enumerated to find its row counts: a limit of effort


@dataclass(frozen=True)
class TileFunction:
    """The text of a function template; ``parameters`` are the sizes and indices that it takes after the arrays."""

    parameters: tuple[Var, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class RowScale:
    """What scales the sum of a block in each row: an element of an ``array``, of C++ ``type``, with the start of its
    offset, the part that depends on the tile's loops, and the elements from row to row."""

    array: str
    start: Int
    type: str
    steps: Int
    row: Int


@dataclass(frozen=True)
class BlockScale:
    """What scales the sum of a block in each of the ``columns``, and, where there is such, in each of the ``rows``."""

    columns: Row
    rows: RowScale | None


class Contraction:
    """Renders tile operations: the function, and the call in the kernel. ``prefetch`` says how far ahead operands are
    prefetched. With ``fetches``, each step also prefetches a part of what later kernels read; the function returns the
    address that it has reached."""

    def __init__(
        self, frame: Frame, indices: Indices, arrays: Mapping[str, Pointer], prefetch: Prefetching, fetches: bool
    ) -> None:
        self.prefetch = prefetch
        self.fetches = fetches
        self.frame = frame
        self.indices = indices
        self.arrays = arrays

    def render(self, contract: Contract, name: str) -> TileFunction:
        """Adds the call of the tile function ``name`` to the frame; returns the function."""
        if contract.fragment is not None or contract.b_column != 1:
            raise SpecError(f"contract {contract.tile}: no register tile of a CPU")
        axes = frozenset(loop.axis for loop in contract.loops)
        a_start, a_steps = split(self.frame.resolve(contract.a_offset), axes)
        b_start, b_steps = split(self.frame.resolve(contract.b_offset), axes)
        arguments = [self._place(contract)]
        arguments += [self._address("left", contract.a, a_start), self._address("right", contract.b, b_start)]
        computed, scale, scales = None, None, contract.scales
        sources = [Source("b", contract.b, contract.b_type, b_start)]
        types = {pointer.array: pointer.dtype for pointer in self.arrays.values()}
        if contract.prologue is not None:
            computed = computed_row(contract, contract.prologue, sources, types, self.frame.resolve)
        if scales is not None:
            columns = computed_row(contract, Prologue(scales.column, scales.right), sources, types, self.frame.resolve)
            scale = BlockScale(columns, self._row_scale(scales, axes))
        arguments += [self._address("other", source.array, source.start) for source in sources[1:]]
        if scale is not None and scale.rows is not None:
            arguments.append(self._address("scale", scale.rows.array, scale.rows.start))
        ahead = {}
        later = {A_AHEAD: (contract.a, contract.a_ahead), B_AHEAD: (contract.b, contract.b_ahead)}
        for side, (array, offset) in later.items():
            if offset is not None:
                start, ahead[side] = split(self.frame.resolve(offset), axes)
                arguments.append(self._address(side, array, start))
        function = tile_function(
            name, contract, a_steps, b_steps, ahead, sources[1:], computed, FETCH_FOR_LATER if self.fetches else (),
            self.prefetch, scale,
        )  # fmt: skip
        arguments += [self.frame.variable(variable).text for variable in function.parameters]
        arguments += [AHEAD, AHEAD_STEP] if self.fetches else []
        name = f"{AHEAD} = {name}" if self.fetches else name
        call = f"({', '.join(arguments)});"
        counts = row_counts(contract, self.frame.definitions)
        if contract.unit is not None and not contract.unit.in_vectors:
            self._call_unit(contract, contract.unit, counts, name, arguments)
            return function
        if len(counts) == 1:
            self.frame.line(f"{name}<{counts[0]}>{call}")
            return function
        self.frame.line(f"switch ({self.indices.text(contract.rows)}) {{")
        for count in counts:
            self.frame.line(f"    case {count}: {name}<{count}>{call} break;")
        self.frame.line("    default: __builtin_trap();")
        self.frame.line("}")
        return function

    def _row_scale(self, scales: Scales, axes: frozenset[Var]) -> RowScale | None:
        if scales.left is None or scales.row is None or not isinstance(scales.left.leaf, Access):
            return None
        linear = sym.coefficient(self.frame.resolve(scales.left.leaf.offset), scales.row)
        assert linear is not None
        start, moving = split(linear[1], axes)
        return RowScale(scales.left.leaf.array, start, ctype(scales.left.dtype), moving, linear[0])

    def _call_unit(
        self, contract: Contract, unit: MatrixUnit, counts: Sequence[int], name: str, arguments: Sequence[str]
    ) -> None:
        """Adds the call of the instance for as many registers, stacked along the rows, as the row count needs."""
        declaration = f"MatrixRegisters {REGISTERS};"
        if declaration not in self.frame.scopes[0].lines:
            self.frame.line(declaration, depth=0)
        rows = self.indices.text(contract.rows)
        call = f"({', '.join([REGISTERS, rows, *arguments])});"
        highs = sorted({-(-count // unit.rows) for count in counts})
        if len(highs) == 1:
            self.frame.line(f"{name}<{highs[0]}>{call}")
            return
        self.frame.line(f"switch (({rows} + {unit.rows - 1}) / {unit.rows}) {{")
        for high in highs:
            self.frame.line(f"    case {high}: {name}<{high}>{call} break;")
        self.frame.line("    default: __builtin_trap();")
        self.frame.line("}")

    def _place(self, contract: Contract) -> str:
        """The address of the tile's first element."""
        return _plus(self.arrays[contract.tile].name, self.indices.text(self.frame.resolve(contract.tile_offset)))

    def _address(self, side: str, array: str, offset: Int) -> str:
        """A name for a pointer to the element at ``offset`` of ``array``, which it declares where needed."""
        pointer, text = self.arrays[array], self.indices.text(offset)
        if text == "0":
            return pointer.name
        name = self.frame.names.fresh(side)
        self.frame.line(f"const {ctype(pointer.dtype)}* const {name} = {pointer.name} + {text};")
        return name


def row_counts(contract: Contract, definitions: Mapping[Var, Int]) -> list[int]:
    """The row counts that can occur, ascending. Where they depend on a symbolic size, or have too many positions to
    enumerate: all counts between the bounds."""
    rows = contract.rows
    while any(v in definitions for v in sym.variables(rows)):
        rows = sym.substitute(rows, definitions)
    if isinstance(rows, int):
        return [rows]
    variables = sorted(sym.variables(rows), key=lambda v: v.name)
    ranges = [range(v.lo, v.hi + 1) for v in variables if isinstance(v.hi, int)]
    if len(ranges) == len(variables) and math.prod(map(len, ranges)) <= ENUMERATED:
        names = [v.name for v in variables]
        found = {sym.evaluate(rows, dict(zip(names, point, strict=True))) for point in itertools.product(*ranges)}
        return sorted(count for count in found if 1 <= count <= contract.max_rows)
    # A variable may have tighter bounds than its definition.
    low = max(sym.lower(e) or 1 for e in (rows, contract.rows))
    high = min(sym.upper(e) or contract.max_rows for e in (rows, contract.rows))
    return list(range(max(1, low), min(contract.max_rows, high) + 1))


def tile_function(
    name: str,
    contract: Contract,
    a_steps: Int,
    b_steps: Int,
    ahead: Mapping[str, Int],
    others: Sequence[Source],
    computed: Row | None,
    each_step: Sequence[str],
    prefetch: Prefetching,
    scale: BlockScale | None = None,
) -> TileFunction:
    """The function of one contract. ``a_steps``, ``b_steps`` and ``ahead`` are the parts that depend on its loops of
    the offsets of A, of B and of the operands of a later tile. ``computed`` is B's row where a prologue computes it,
    ``others`` are the arrays that it and the ``scale`` read beside B. ``each_step`` are lines that prefetch for later
    kernels; with them the function returns the address reached. ``prefetch`` says how far ahead A and B are
    prefetched."""
    axes = frozenset(loop.axis for loop in contract.loops)
    steps = (a_steps, b_steps)
    rows = None if scale is None else scale.rows
    scaling = () if rows is None else (rows.steps, rows.row)
    used = frozenset[Var]().union(
        *(
            sym.variables(e)
            for e in (*steps, *ahead.values(), *scaling, contract.a_row, *(loop.extent for loop in contract.loops))
        )
    )
    parameters = tuple(sorted(used - axes, key=lambda v: v.name))
    matrices = contract.unit is not None and not contract.unit.in_vectors
    own = {"tile", "a", "b", SCALE, A_AHEAD, B_AHEAD, "sum", "rows", "Rows", "High", REGISTERS}
    frame = Frame(Names(frozenset({*own, *(source.name for source in others)})))
    with frame.open("") as scope:
        types = [f"MatrixRegisters& {REGISTERS}", "int64_t rows"] if matrices else []
        types += [f"{ctype(contract.dtype)}* __restrict tile"]
        types += [f"const {ctype(contract.a_type)}* __restrict a", f"const {ctype(contract.b_type)}* __restrict b"]
        types += [f"const {ctype(source.dtype)}* __restrict {source.name}" for source in others]
        types += [] if rows is None else [f"const {rows.type}* __restrict {SCALE}"]
        stored = {A_AHEAD: contract.a_type, B_AHEAD: contract.b_type}
        types += [f"const {ctype(stored[side])}* {side}" for side in ahead]
        types += [f"int64_t {frame.declare(variable)}" for variable in parameters]
        types += FETCHED if each_step else ()
        row = contract.tile_row or contract.columns
        vectors = contract.columns // contract.lanes
        if contract.unit is not None and matrices:
            start = f", tile, {row}" if contract.accumulate else ""
            shape = f"High, {vectors}, {contract.depth}"
            frame.line(f"MatrixTile<{contract.unit.name}, {shape}> sum({REGISTERS}, rows{start});")
            _loops(frame, contract, 0, steps, ahead, None, each_step, prefetch, None)
            frame.line(f"sum.store(tile, {row});")
        else:
            # A float sum begun from the tile would be one long dependency chain: the finished sum is added to it.
            last = "store"
            if contract.unit is None:
                last = "move_to" if contract.accumulate else "store"
                frame.line(f"Tile<{ctype(contract.dtype)}, Rows, {vectors}, {contract.lanes}> sum;")
            else:
                start = f"(tile, {row})" if contract.accumulate else ""
                kind = "DotTile" if scale is None else "ScaledDotTile"
                frame.line(f"{kind}<{contract.unit.name}, Rows, {vectors}> sum{start};")
            if contract.outer:
                frame.line(f"sum.store(tile, {row});")
            _loops(frame, contract, 0, steps, ahead, computed, each_step, prefetch, scale)
            if not contract.outer:
                frame.line(f"sum.{last}(tile, {row});")
        if each_step:
            frame.line(f"return {AHEAD};")
    lines = (
        f"// tile[i, j] {'+=' if contract.accumulate else '='} {_meaning(contract)}, {contract.columns} columns.",
        f"template <int {'High' if matrices else 'Rows'}>",
        f"LM_NOINLINE static {'const char*' if each_step else 'void'} {name}({', '.join(types)}) {{",
        *("    " + line for line in scope.lines),
        "}",
    )
    return TileFunction(parameters, lines)


def _meaning(contract: Contract) -> str:
    over = ", ".join(str(loop.axis) for loop in contract.loops)
    b = f"b[{over}, j]" if contract.prologue is None else f"right[{over}, j], computed from b and others"
    if contract.scales is not None:
        blocks = ", ".join(str(loop.axis) for loop in contract.loops[: loops_over_blocks(contract)])
        rows = "" if contract.scales.left is None else f"{SCALE}[i, {blocks}] * "
        scales = f"{rows}{COLUMN_SCALES}[{blocks}, j], computed from others"
        return f"the sum over {over} of {scales}, * a[i, {over}] * {b}"
    return f"the sum over {over} of a[i, {over}] * {b}"


def _loops(
    frame: Frame,
    contract: Contract,
    number: int,
    steps: Sequence[Int],
    ahead: Mapping[str, Int],
    computed: Row | None,
    each_step: Sequence[str],
    prefetch: Prefetching,
    scale: BlockScale | None,
) -> None:
    """Adds the loops from ``number`` on. The innermost loop that moves B prefetches for later steps and tiles."""
    indices = Indices(frame)
    b_loops = loops_of_b(contract)
    if number == len(b_loops):
        _fetch(frame, indices, contract, steps[1], ahead, prefetch)
        for line in each_step:
            frame.line(line)
    if number == len(contract.loops):
        column = _per_step(contract.loops, steps[0])
        if contract.a_row == 1 and sym.always(column * contract.a_type.itemsize - prefetch.line):
            frame.line(f"prefetch({_plus('a', indices.text(steps[0] + column * prefetch.row_steps))});")
        a, b = (_plus(*pair) for pair in zip("ab", map(indices.text, steps[:2]), strict=True))
        a_row = indices.text(contract.a_row)
        if computed is None:
            frame.line(f"sum.step({a}, {a_row}, {b});")
        else:
            frame.line(f"sum.multiply({a}, {a_row}, {computed.render(frame, contract, 'right')});")
        return
    loop = contract.loops[number]
    if contract.unit is not None and loop is contract.loops[-1]:
        if computed is None:
            _steps(frame, indices, contract, contract.unit, steps, ahead, each_step, prefetch)
        else:
            _computed_steps(frame, indices, contract, contract.unit, steps, computed, each_step, prefetch)
        if scale is not None and scale.rows is not None:
            left, row = _plus(SCALE, indices.text(scale.rows.steps)), indices.text(scale.rows.row)
            frame.line(f"sum.scale({left}, {row}, {scale.columns.render(frame, contract, COLUMN_SCALES)});")
        return
    axis = frame.names.like(loop.axis.name)
    extent = indices.text(loop.extent)
    head = f"for (int64_t {axis} = 0; {axis} < {extent}; ++{axis}) {{"
    if number >= len(b_loops):  # elements that share a byte
        head = f"#pragma GCC unroll {extent}\n{head}"
    with frame.open(head, certain=computed is not None and sym.always(loop.extent - 1)):
        frame.bind(loop.axis, Value(axis))
        _loops(frame, contract, number + 1, steps, ahead, computed, each_step, prefetch, scale)
        if number + 1 == contract.outer:
            scales = "" if scale is None else f", {scale.columns.render(frame, contract, COLUMN_SCALES)}"
            frame.line(f"sum.move_to(tile, {contract.tile_row or contract.columns}{scales});")


def _steps(
    frame: Frame,
    indices: Indices,
    contract: Contract,
    unit: MatrixUnit,
    starts: Sequence[Int],
    ahead: Mapping[str, Int],
    each_step: Sequence[str],
    prefetch: Prefetching,
) -> None:
    """Adds the innermost loop in steps of ``contract.depth`` terms, which a matrix unit sums at once."""
    loop, depth = contract.loops[-1], contract.depth
    k = sym.expr(loop.axis)
    whole = sym.floordiv(loop.extent, depth) * depth
    rest = loop.extent - whole
    row = indices.text(contract.a_row)

    def operands(k: Int) -> str:
        a, b = (sym.substitute(e, {loop.axis: k}) for e in starts)
        return f"{_plus('a', indices.text(a))}, {row}, {_plus('b', indices.text(b + k * contract.columns))}"

    axis = frame.names.like(loop.axis.name)
    with frame.open(f"for (int64_t {axis} = 0; {axis} < {indices.text(whole)}; {axis} += {depth}) {{", certain=False):
        frame.bind(loop.axis, Value(axis))
        if B_AHEAD in ahead:
            linear = sym.coefficient(ahead[B_AHEAD], loop.axis)
            part = 1 if linear is None else linear[0]
            if unit.in_vectors:  # a step is too short for a loop over lines: a constant number, the upper bound
                part = sym.upper(part) or 1
            lines = sym.ceildiv(part * depth * contract.b_type.itemsize, prefetch.line)
            later = _plus(B_AHEAD, indices.text(ahead[B_AHEAD]))
            call = (
                f"template fetch<{lines}>({later})"
                if isinstance(lines, int)
                else f"fetch({later}, {indices.text(lines)})"
            )
            frame.line(f"sum.{call};")
        if unit.in_vectors:
            near = sym.substitute(starts[1], {loop.axis: k}) + (k + prefetch.steps * depth) * contract.columns
            frame.line(f"sum.template fetch<{contract.columns // contract.lanes}>({_plus('b', indices.text(near))});")
        for line in each_step:
            frame.line(line)
        frame.line(f"sum.step({operands(k)});")
    if isinstance(rest, int):
        if rest:
            frame.line(f"sum.last({operands(whole)}, {rest});")
    else:
        terms = indices.text(rest)
        frame.line(f"if ({terms} != 0) sum.last({operands(whole)}, {terms});")


def _computed_steps(
    frame: Frame,
    indices: Indices,
    contract: Contract,
    unit: MatrixUnit,
    starts: Sequence[Int],
    computed: Row,
    each_step: Sequence[str],
    prefetch: Prefetching,
) -> None:
    """Adds the innermost loop in steps of ``contract.depth`` terms of B that are computed in bytes. Those that share
    bytes follow each other."""
    loop, depth = contract.loops[-1], contract.depth
    assert isinstance(loop.axis.hi, int)  # blocks have a fixed length
    steps = loop.axis.hi // depth + 1
    per = computed.sharing(loop.axis, unit, steps)
    count = steps // per
    row, name = indices.text(contract.a_row), frame.names.like(loop.axis.name)
    step = Var("step", 0, count - 1)
    with frame.open(f"for (int64_t {name} = 0; {name} < {count}; ++{name}) {{", certain=False):
        frame.bind(step, Value(name))
        near = starts[1] + (sym.expr(step) + prefetch.steps) * (contract.columns * unit.group)
        lines = contract.columns // contract.lanes
        frame.line(f"sum.template fetch<{lines}>({_plus('b', indices.text(near))});")
        for line in each_step:
            frame.line(line)
        for number in range(per):
            k = sym.expr(step) * (depth * per) + number * depth
            a = _plus("a", indices.text(sym.substitute(starts[0], {loop.axis: k})))
            right = computed.bytes(frame, contract, unit, loop.axis, k)
            frame.line(f"sum.step({a}, {row}, {right});")


def _fetch(
    frame: Frame, indices: Indices, contract: Contract, b_steps: Int, ahead: Mapping[str, Int], prefetch: Prefetching
) -> None:
    row = _per_step(loops_of_b(contract), b_steps)
    steps = prefetch.steps
    if contract.prologue is not None:
        steps = steps * prefetch.element // contract.b_type.itemsize
    if row != 0:
        frame.line(f"sum.fetch({_plus('b', indices.text(b_steps + row * steps))});")
    if A_AHEAD in ahead:
        frame.line(f"prefetch_to_l2({_plus(A_AHEAD, indices.text(ahead[A_AHEAD]))});")
    if B_AHEAD in ahead:
        line = prefetch.line // contract.b_type.itemsize
        part = sym.upper(_per_step(loops_of_b(contract), ahead[B_AHEAD])) or line
        for element in range(0, part, line):
            frame.line(f"prefetch({_plus(B_AHEAD, indices.text(ahead[B_AHEAD] + element))});")


def _per_step(loops: Sequence[Loop], steps: Int) -> Int:
    """The stride of an offset over the innermost of ``loops``."""
    linear = sym.coefficient(steps, loops[-1].axis) if loops else None
    return linear[0] if linear is not None else 0


def _plus(name: str, text: str) -> str:
    return name if text == "0" else f"{name} + {text}"
