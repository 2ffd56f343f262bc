"""Loop nests as text: for reading, for golden files, and for errors."""

from __future__ import annotations

from collections.abc import Iterator

from luminal.core import symbolic as sym
from luminal.core.grid import SMALL
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.hand_over import HandOver


def nest_text(nest: ln.LoopNest) -> str:
    """A nest, one statement a line."""
    arrays = ", ".join(map(_array, nest.arrays))
    threads = f" of {nest.threads} threads" if nest.threads > 1 else ""
    threads += f", {nest.copiers} copy" if nest.copiers else ""
    return "\n".join([f"nest({arrays}){threads}", *_body(nest.body, "  ")])


def _array(array: ln.Array) -> str:
    notes = [note for note, holds in (("written", array.written), ("finite", array.finite)) if holds]
    return f"{array.name}: {array.dtype}" + (f" ({', '.join(notes)})" if notes else "")


def _body(body: tuple[ln.Statement, ...], indent: str) -> Iterator[str]:
    for statement in body:
        yield from _statement(statement, indent)


def _statement(statement: ln.Statement, indent: str) -> Iterator[str]:
    match statement:
        case ln.Loop():
            yield f"{indent}{_header(statement)}:"
            yield from _body(statement.body, indent + "  ")
        case ln.Let():
            inside = "" if statement.failure is None else f" in 0 .. {statement.extent - 1}"
            yield f"{indent}{statement.axis} = look up {statement.value}{inside}"
        case ln.Define():
            yield f"{indent}{statement.name} = {statement.value}"
        case ln.Reduction():
            several = f" in {statement.accumulators} accumulators" if statement.accumulators > 1 else ""
            several += f" of {statement.part} steps" if statement.part else ""
            loops = ", ".join(map(_header, statement.loops))
            yield f"{indent}{statement.name} = {statement.op} {loops}{several}:"
            yield from _body(statement.before, indent + "  ")
            yield f"{indent}  {statement.value}"
        case ln.Reductions():
            loops = f" {', '.join(map(_header, statement.loops))}" if statement.loops else ""
            apart = f" in blocks of {statement.blocks} outer" if statement.blocks else ""
            yield f"{indent}{', '.join(statement.names)} = {statement.op} side by side{loops}{apart}:"
            yield from (f"{indent}  {name}: {value}" for name, value in statement.terms)
        case ln.Store():
            mask = " if " + " and ".join(f"{v} >= 0" for v in statement.valid) if statement.valid else ""
            sign = "<-" if statement.ahead else "="
            yield f"{indent}{statement.array}[{statement.offset}] {sign} {statement.value}{mask}"
        case ln.Sort():
            yield f"{indent}sort {statement.array}[{statement.offset} .. + {statement.extent}]"
        case ln.KeepLeast():
            yield f"{indent}keep in {statement.array}[{statement.offset} .. + {statement.extent}] {statement.value}"
        case ln.Combine():
            yield (
                f"{indent}{statement.array}[{statement.offset} .. + {statement.count}] = {statement.op} of "
                f"{statement.lanes} neighbouring threads"
            )
        case ln.Regroup():
            part = f"{statement.array}[{statement.offset} .. + {SMALL}]"
            yield f"{indent}{part} of neighbours in a row, through {statement.through}[{statement.place}]"
        case ln.Alloc():
            rows = f" in panels, rows of {statement.row}" if statement.row else ""
            yield f"{indent}{statement.name} = {statement.space} {statement.dtype}[{statement.extent}]{rows}"
        case ln.If():
            yield f"{indent}if " + " and ".join(f"{v} >= 0" for v in statement.valid) + ":"
            yield from _body(statement.body, indent + "  ")
        case ln.Barrier():
            left = f", {statement.left} groups of copies left" if statement.left else ""
            left += f", {statement.products} of products" if statement.products else ""
            yield f"{indent}barrier{' of all memory' if statement.all_memory else ''}{left}"
        case ln.Assign():
            yield f"{indent}{statement.axis} = {statement.value}"
        case ln.Prefetch():
            yield f"{indent}fetch {statement.array}[{statement.offset}]"
        case HandOver():
            left = f", {statement.products} group of products left" if statement.products else ""
            yield f"{indent}slot {statement.slot} {'filled' if statement.filled else 'given back'}{left}"
        case ln.CopyBox():
            at, sizes = (", ".join(map(str, x)) for x in (statement.origin, statement.sizes))
            yield f"{indent}{statement.array} <- box of {statement.source} at [{at}] of [{sizes}]:"
            yield from _body(statement.body, indent + "  ")
        case ln.Contract():
            place = f" at {statement.tile_offset}" if statement.tile_offset != 0 else ""
            step = f" by {statement.tile_row}" if statement.tile_row not in (None, statement.columns) else ""
            sign = "+=" if statement.accumulate else "="
            tile = f"{statement.tile}[{statement.rows} x {statement.columns}{place}{step}]"
            headers = list(map(_header, statement.loops))
            over = ", ".join(headers[: statement.outer]) + " of blocks over " if statement.outer else ""
            over += ", ".join(headers[statement.outer :])
            by = f" by {statement.fragment.name}" if statement.fragment is not None else ""
            by += " in the background" if statement.background else ""
            yield f"{indent}{tile} {sign} contract over {over}{by}"
            held = " in registers" if statement.held else ""
            yield f"{indent}  {statement.a}[{statement.a_offset} + row*{_factor(statement)}]{held}"
            column = "column" if statement.b_column == 1 else f"column*{statement.b_column}"
            if statement.prologue is not None:
                yield f"{indent}  {statement.prologue.value} at {statement.prologue.column} = column"
            else:
                yield f"{indent}  {statement.b}[{statement.b_offset} + {column}]"
            if (scales := statement.scales) is not None:
                if scales.left is not None:
                    yield f"{indent}  times {scales.left} at {scales.row} = row"
                yield f"{indent}  times {scales.right} at {scales.column} = column"
            for array, offset in ((statement.a, statement.a_ahead), (statement.b, statement.b_ahead)):
                if offset is not None:
                    yield f"{indent}  fetching {array}[{offset}]"


def _header(loop: ln.Loop) -> str:
    lanes = f" by {loop.lanes}" if loop.kind in ("vector", "across", "thread") else ""
    return f"{loop.kind} {loop.axis} < {loop.extent}{lanes}"


def _factor(contract: ln.Contract) -> str:
    row = contract.a_row
    return f"({row})" if isinstance(row, sym.Expr) and len(row.terms) > 1 else str(row)
