"""Loops inside a vector group, along whose axis memory is contiguous: blocks are transposed in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from luminal.codegen.cpp import ctype
from luminal.codegen.expressions import Expressions
from luminal.codegen.frame import Group, Value
from luminal.codegen.loops import Loops
from luminal.core import symbolic as sym
from luminal.core.schedule.nest.ir import Access, Assign, Loop, Scalar, Statement, Store, load, temporary
from luminal.core.schedule.nest.rewrite import replace_leaves, replace_scalars
from luminal.core.schedule.nest.walk import Body, reads
from luminal.core.schedule.transform.transpose import INTERLEAVED
from luminal.core.symbolic import Int, Var


def render(
    loops: Loops,
    expressions: Expressions,
    loop: Loop,
    writes: frozenset[str],
    body: Callable[[Sequence[Statement]], None],
    kept: dict[tuple[str, Int], tuple[str, str]],
) -> None:
    """Renders ``loop``, inside an open vector group, in blocks of ``loop.lanes`` iterations. ``load_columns`` reads
    elements contiguous along the axis before a block. A store contiguous along it goes to a local array of rows, which
    is written after the block; ``kept`` maps its array and offset to the rows' name and the row, while in the block."""
    frame = expressions.frame
    group = frame.group
    assert group is not None
    first = Var(f"{loop.axis}_first", 0, loop.axis.hi)
    number = Var(f"{loop.axis}_number", 0, loop.lanes - 1)
    for block in loops.groups(Loop(first, loop.extent, "serial", (), loop.lanes), writes):
        start: Int = 0 if block.only else sym.expr(first)
        columns: dict[Scalar, str] = {}
        for access in _reads(loop, writes):
            text = _columns(expressions, access, {loop.axis: start}, block) if loop.lanes == group.lanes else ""
            if text:
                name = frame.names.fresh("columns")
                frame.line(f"const auto {name} = {text};")
                dtype = expressions.array(access.array).dtype
                columns[load(access.array, access.offset, dtype, access.valid, access.fill)] = name
        one = Loop(loop.axis if block.only else number, loop.lanes, "serial", ())
        end = str(loop.lanes) if block.count is None else block.count
        rows = {store: frame.names.fresh("rows") for store in _between(expressions, loop, block)}
        for store, name in rows.items():
            element = expressions.array(store.array).dtype
            frame.line(f"Interleaved<{ctype(element)}, {group.lanes}, {loop.lanes}> {name};")
        with loops.counted(one, "0", end, 1, writes, unroll=loop.lanes) as j:
            kept |= {(store.array, store.offset): (name, j) for store, name in rows.items()}
            frame.scopes[-1].temporaries |= {name: Value(f"{name}[{j}]", True) for name in columns.values()}
            read = {element: temporary(name, element.dtype) for element, name in columns.items()}
            renamed: Body = replace_scalars(loop.body, partial(replace_leaves, by=read))
            body(renamed if block.only else (Assign(loop.axis, start + sym.expr(number)), *renamed))
        for store, name in rows.items():
            del kept[store.array, store.offset]
            first_of_all = sym.substitute(store.offset, {loop.axis: 0})
            frame.line(f"{name}.store({expressions.pointer(store.array, first_of_all)});")


def _between(expressions: Expressions, loop: Loop, block: Group) -> list[Store]:
    """The stores of which a block fills contiguous memory: iterations at stride 1, lanes ``loop.lanes`` apart."""
    group, frame, indices = expressions.frame.group, expressions.frame, expressions.indices
    assert group is not None
    if loop.lanes > INTERLEAVED or not block.only or block.count is not None or group.count is not None:
        return []
    stores = [s for s in loop.body if isinstance(s, Store)]
    read = {access.array for s in loop.body for access in reads(s)}
    return [
        s
        for s in stores
        if not s.valid
        and s.array not in read
        and [other.array for other in stores].count(s.array) == 1
        and expressions.array(s.array).dtype.bits in (16, 32)
        and (linear := sym.coefficient(frame.resolve(s.offset), loop.axis)) is not None
        and linear[0] == 1
        and indices.stride(sym.substitute(s.offset, {loop.axis: 0})) == loop.lanes
    ]


def _reads(loop: Loop, writes: frozenset[str]) -> list[Access]:
    """The reads of ``loop``, filled with zeros where they are masked, from arrays that it does not write."""
    found = dict.fromkeys(access for s in loop.body for access in reads(s))
    return [access for access in found if access.array not in writes and not any(access.fill)]


def _columns(expressions: Expressions, access: Access, start: dict[Var, Int], block: Group) -> str:
    """The text that loads what the iterations of a block, from ``start`` on, read in every lane. Empty where iterations
    are not at stride 1, lanes not at a constant stride, or where conditions cut off other than the last of either."""
    group, frame, indices = expressions.frame.group, expressions.frame, expressions.indices
    assert group is not None
    (axis,) = start

    def moves(value: Int) -> tuple[Int | None, Int | None]:
        """The strides of ``value`` over iterations and over lanes."""
        linear = sym.coefficient(frame.resolve(value), axis)
        return (None, None) if linear is None else (linear[0], indices.stride(sym.substitute(value, start)))

    along, apart = moves(access.offset)
    if along != 1 or apart is None or apart in (0, 1):
        return ""
    rows, count = [group.count] if group.count else [], [block.count] if block.count else []
    for condition in access.valid:
        step = moves(condition)
        if step not in ((0, -1), (-1, 0)):
            return ""
        (rows if step == (0, -1) else count).append(indices.text(sym.substitute(condition, start) + 1))
    expressions.read.add(access.array)
    arguments = [expressions.pointer(access.array, sym.substitute(access.offset, start)), indices.text(apart)]
    if rows or count:
        arguments += [_least(ends) or str(group.lanes) for ends in (rows, count)]
    return f"load_columns<{group.lanes}>({', '.join(arguments)})"


def _least(texts: list[str]) -> str:
    """The text of the minimum of ``texts``; empty where there are none."""
    return reduce(lambda a, b: f"minimum({a}, {b})", texts) if texts else ""
