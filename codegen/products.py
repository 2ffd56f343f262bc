"""The tile operation of a contraction whose tile is divided among threads: calls of functions of ``luminal/device/``.

A thread multiplies its own rows and columns of the staged operands; with a fragment, the lanes of a warp do together.
"""

from __future__ import annotations

from luminal.codegen.expressions import Expressions
from luminal.codegen.loops import Loops
from luminal.codegen.threads import Threads
from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.grid import Fragment
from luminal.core.schedule.nest.ir import Access, Contract, Loop, Scalar
from luminal.core.schedule.nest.operands import loops_over_blocks
from luminal.core.symbolic import Int, Var


def render(loops: Loops, threads: Threads, expressions: Expressions, contract: Contract) -> None:
    """Adds the products of ``contract`` to the frame.

    Raises SpecError outside loops that are divided among threads, and for tiles that no thread can hold: those with a
    symbolic row count, not in registers, summed in blocks, or with intermediate sums that are rounded.
    """
    _check(threads, expressions, contract)
    groups = contract.fragment is not None and contract.fragment.panels
    if not contract.accumulate and (contract.held or not groups):
        _clear(loops, expressions, contract)
    if contract.fragment is None or not groups:
        blocks = loops_over_blocks(contract) if contract.scales is not None else len(contract.loops)
        _over(loops, threads, expressions, contract, contract.loops[:blocks])
        return
    tile = expressions.pointer(contract.tile, contract.tile_offset)
    held = contract.max_rows * contract.columns // contract.fragment.warp
    if contract.held:
        expressions.frame.line(_held_group_product(threads, expressions, contract))
    else:
        expressions.frame.line("group_begin();")
        _over(loops, threads, expressions, contract, contract.loops)
    expressions.frame.line("group_commit();")
    wait = f"group_wait<{{left}}, {held}>({tile});"
    if contract.background:
        threads.multiplies(wait)
    else:
        expressions.frame.line(wait.format(left=0))


def _check(threads: Threads, expressions: Expressions, contract: Contract) -> None:
    dense = contract.tile_row in (None, contract.columns) or contract.fragment is not None
    held = expressions.array(contract.tile).space in ("registers", "local") and threads.apart
    exact = contract.dtype.compute == contract.dtype
    if not (held and dense and exact and contract.rows == contract.max_rows and not contract.outer):
        raise SpecError(f"contract {contract.tile}: the tile is not one that a thread can hold")


def _clear(loops: Loops, expressions: Expressions, contract: Contract) -> None:
    """Adds the code that zeroes the thread's part of the tile."""
    fragment = contract.fragment
    size = contract.max_rows * contract.columns
    size = size if fragment is None else size // fragment.warp
    element, zero = sym.axis("e", size), bytes(contract.dtype.itemsize)
    axis = sym.as_var(element)
    text = expressions.frame.dialect.literal(zero, contract.dtype)
    if axis is None:
        expressions.frame.line(f"{expressions.element(contract.tile, contract.tile_offset)} = {text};")
        return
    with loops.counted(Loop(axis, size, "unroll", ()), "0", str(size), 1, frozenset({contract.tile})):
        expressions.frame.line(f"{expressions.element(contract.tile, contract.tile_offset + element)} = {text};")


def _over(
    loops: Loops, threads: Threads, expressions: Expressions, contract: Contract, headers: tuple[Loop, ...]
) -> None:
    if not headers:
        call = _tile_step
        if contract.scales is not None:
            call = _scaled_tile_step
        elif contract.fragment is not None:
            call = _group_tile_step if contract.fragment.panels else _warp_tile_step
        expressions.frame.line(call(threads, expressions, contract))
        return
    loop, step, steps = headers[0], 1, headers[0].extent
    if contract.fragment is not None and contract.scales is None:
        step, steps = contract.fragment.depth, _steps(contract)
    unroll = min(contract.steps, steps) if isinstance(steps, int) else contract.steps
    extent, writes = loops.indices.text(loop.extent), frozenset({contract.tile})
    with loops.counted(loop, "0", extent, step, writes, unroll=None if headers[1:] else unroll):
        _over(loops, threads, expressions, contract, headers[1:])


def _steps(contract: Contract) -> Int:
    """How many steps the contract's fragment takes."""
    (loop, *more), fragment = contract.loops, contract.fragment
    assert fragment is not None
    if more or sym.mod(loop.extent, fragment.depth) != 0:
        raise SpecError(f"contract {contract.tile}: {fragment.name} takes {fragment.depth} terms at a time")
    return sym.floordiv(loop.extent, fragment.depth)


def _tile_step(threads: Threads, expressions: Expressions, contract: Contract) -> str:
    text = expressions.indices.text
    arguments = (
        expressions.pointer(contract.tile, contract.tile_offset),
        expressions.pointer(contract.a, contract.a_offset), text(contract.a_row),
        expressions.pointer(contract.b, contract.b_offset), text(contract.b_column),
    )  # fmt: skip
    return f"tile_step<{contract.max_rows}, {contract.columns}>({', '.join(arguments)});"


def _warp_tile_step(threads: Threads, expressions: Expressions, contract: Contract) -> str:
    fragment, text = contract.fragment, expressions.indices.text
    assert fragment is not None
    along = () if contract.held else (text(_depth(contract, contract.a_offset)),)
    arguments = (
        expressions.pointer(contract.tile, contract.tile_offset),
        expressions.pointer(contract.a, contract.a_offset),
        text(contract.a_row),
        *along,
        expressions.pointer(contract.b, contract.b_offset),
        text(_depth(contract, contract.b_offset)),
        text(contract.b_column),
        threads.lane,
    )
    tall, wide = contract.max_rows // fragment.rows, contract.columns // fragment.columns
    step = "held_tile_step" if contract.held else "warp_tile_step"
    return f"{step}<{_name(fragment, expressions)}, {tall}, {wide}>({', '.join(arguments)});"


def _scaled_tile_step(threads: Threads, expressions: Expressions, contract: Contract) -> str:
    """Of one block, whose terms the innermost loop counts."""
    fragment, scales, text = contract.fragment, contract.scales, expressions.indices.text
    assert fragment is not None and scales is not None and scales.row is not None and scales.left is not None
    terms = contract.loops[-1]
    if sym.mod(terms.extent, fragment.depth) != 0:
        raise SpecError(f"contract {contract.tile}: {fragment.name} takes {fragment.depth} terms at a time")
    left, right = (
        _scale(expressions, contract, value, axis)
        for value, axis in ((scales.left, scales.row), (scales.right, scales.column))
    )
    first = {terms.axis: 0}
    arguments = (
        expressions.pointer(contract.tile, contract.tile_offset),
        expressions.pointer(contract.a, sym.substitute(contract.a_offset, first)),
        text(contract.a_row), text(_depth(contract, contract.a_offset)),
        expressions.pointer(contract.b, sym.substitute(contract.b_offset, first)),
        text(_depth(contract, contract.b_offset)), text(contract.b_column),
        *left, *right, threads.lane,
    )  # fmt: skip
    tall, wide = contract.max_rows // fragment.rows, contract.columns // fragment.columns
    name = _name(fragment, expressions)
    return f"scaled_tile_step<{name}, {tall}, {wide}, {text(terms.extent)}>({', '.join(arguments)});"


def _scale(expressions: Expressions, contract: Contract, value: Scalar, axis: Var) -> tuple[str, str]:
    """The address of the first of the scales along ``axis``, and how far apart they are."""
    element = value.operands[0] if value.op is ops.CAST else value
    linear = sym.coefficient(element.leaf.offset, axis) if isinstance(element.leaf, Access) else None
    if linear is None or not isinstance(element.leaf, Access):
        raise SpecError(f"contract {contract.tile}: the scales {value} do not lie in an array, equally far apart")
    expressions.read.add(element.leaf.array)
    return expressions.pointer(element.leaf.array, linear[1]), expressions.indices.text(linear[0])


def _group_tile_step(threads: Threads, expressions: Expressions, contract: Contract) -> str:
    fragment, text = contract.fragment, expressions.indices.text
    assert fragment is not None
    tall, wide = contract.max_rows // fragment.rows, contract.columns // fragment.columns
    a, b = (
        _panels(expressions, contract, array, offset, line)
        for array, offset, line in (
            (contract.a, contract.a_offset, contract.a_row), (contract.b, contract.b_offset, contract.b_column),
        )
    )  # fmt: skip
    arguments = (
        expressions.pointer(contract.tile, contract.tile_offset),
        expressions.array(contract.a).name, text(contract.a_offset),
        expressions.array(contract.b).name, text(contract.b_offset),
        threads.lane_of(fragment.warp),
        *(() if contract.accumulate else (f"0 < {text(sym.expr(contract.loops[0].axis))}",)),
    )  # fmt: skip
    return f"group_tile_step<{_name(fragment, expressions)}, {a}, {b}, {tall}, {wide}>({', '.join(arguments)});"


def _held_group_product(threads: Threads, expressions: Expressions, contract: Contract) -> str:
    """All steps at once: the operand in registers is complete before products begin."""
    fragment, first = contract.fragment, {contract.loops[0].axis: 0}
    assert fragment is not None
    steps = _steps(contract)
    if not isinstance(steps, int):
        raise SpecError(f"contract {contract.tile}: {steps} steps of an operand in registers, which have no numbers")
    text = expressions.indices.text
    tall, wide = contract.max_rows // fragment.rows, contract.columns // fragment.columns
    b = _panels(expressions, contract, contract.b, contract.b_offset, contract.b_column)
    arguments = (
        expressions.pointer(contract.tile, contract.tile_offset),
        expressions.pointer(contract.a, sym.substitute(contract.a_offset, first)), text(contract.a_row),
        expressions.array(contract.b).name, text(sym.substitute(contract.b_offset, first)),
        threads.lane_of(fragment.warp),
    )  # fmt: skip
    shape = f"{_name(fragment, expressions)}, {b}, {tall}, {wide}, {steps}"
    return f"held_group_product<{shape}>({', '.join(arguments)});"


def _panels(expressions: Expressions, contract: Contract, array: str, offset: Int, line: Int) -> str:
    """The type that says how the operand ``array`` lies, of which lines are ``line`` elements apart."""
    pointer = expressions.array(array)
    ways: dict[tuple[Int, Int], str] = {(pointer.row, 1): "true", (1, pointer.row): "false"}  # along rows, or down
    along = ways.get((line, _depth(contract, offset)))
    if not pointer.row or along is None:
        raise SpecError(f"contract {contract.tile}: {array} is no matrix in panels with terms along rows or down")
    of, rows = expressions.frame.dialect.type(pointer.dtype), pointer.extent // pointer.row
    return f"Panels<{of}, {rows}, {pointer.row}, {along}>"


def _name(fragment: Fragment, expressions: Expressions) -> str:
    return f"{fragment.name}<{expressions.frame.dialect.type(fragment.dtype)}>"


def _depth(contract: Contract, offset: Int) -> Int:
    """The stride of an operand's ``offset`` over the terms of the sum."""
    linear = sym.coefficient(offset, contract.loops[-1].axis)
    if linear is None:
        raise SpecError(f"contract {contract.tile}: terms that are not equally far apart")
    return linear[0]
