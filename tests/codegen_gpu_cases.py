"""Loop nests for blocks of threads: those of CPUs with their vectors divided among threads, and some of their own."""

from dataclasses import replace

import numpy as np

from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core.grid import MMA, SIMDGROUP, BlockLimits, Fragment
from luminal.core.schedule.grid.divide import SynchroniseThreads
from luminal.core.schedule.grid.thread_tiles import Warps
from luminal.core.schedule.nest import ir
from luminal.core.schedule.nest.walk import statements
from luminal.core.symbolic import Var
from tests.codegen_cases import F32, SINGLE, load, normal, parallel, serial, vector, zeros
from tests.codegen_support import Case, array, axis, number, of, op, output

LIMITS = BlockLimits(64, 48 << 10, 255)
CASES: dict[str, Case] = {}


def case(function):  # type: ignore[no-untyped-def]
    CASES[function.__name__] = function()
    return function


def thread(variable: Var, extent: sym.Int, *body: ir.Statement, threads: int = 64) -> ir.Loop:
    return ir.Loop(variable, extent, "thread", body, threads)


def unroll(variable: Var, extent: int, *body: ir.Statement) -> ir.Loop:
    return ir.Loop(variable, extent, "unroll", body)


# ---- what CPUs run -------------------------------------------------------------------------------------------------


def _loops(body: tuple[ir.Statement, ...], kind: str, lanes: int) -> tuple[ir.Statement, ...]:
    """``body`` with its vector loops of another kind."""

    def changed(loop: ir.Loop) -> ir.Loop:
        inner = _loops(loop.body, kind, lanes)
        return replace(loop, kind=kind, lanes=lanes, body=inner) if loop.kind == "vector" else replace(loop, body=inner)

    result: list[ir.Statement] = []
    for statement in body:
        if isinstance(statement, ir.Loop):
            result.append(changed(statement))
        elif isinstance(statement, ir.Reduction):
            before = _loops(statement.before, kind, lanes)
            result.append(replace(statement, loops=tuple(map(changed, statement.loops)), before=before))
        else:
            result.append(statement)
    return tuple(result)


def divided(nest: ir.LoopNest, threads: int) -> ir.LoopNest:
    """``nest`` with a thread for each lane."""
    return SynchroniseThreads(threads, LIMITS)(replace(nest, body=_loops(nest.body, "thread", threads)))


def by_one(nest: ir.LoopNest, lanes: int) -> ir.LoopNest:
    """``nest`` on blocks of one thread, with the vectors that a thread has."""
    return replace(nest, body=_loops(nest.body, "vector", lanes))


for name, each in SINGLE.items():
    if not any(isinstance(s, ir.Contract) for s in statements(each.nest.body)):
        if name != "local_arrays":  # one of its statements reads in all threads what one of them writes
            CASES[f"{name}_divided"] = replace(each, nest=divided(each.nest, 64))
        CASES[f"{name}_by_one"] = replace(each, nest=by_one(each.nest, 4))


# ---- blocks of threads ---------------------------------------------------------------------------------------------


@case
def wide_elements() -> Case:
    """out[i] = 2 * x[i] + y: four neighbours at once where they are aligned; a block of 64 threads, n symbolic."""
    n = Var("n", 1, 40)
    block, where = axis("block", sym.ceildiv(of(n) * 4, 256))
    t, at = axis("t", 64)
    v, lane = axis("v", 4)
    place = where * 256 + at * 4 + lane
    value = op(ops.MULTIPLY_ADD, load("x", place), number(2.0), load("y", place + 1))
    body = ir.If((of(n) * 4 - 1 - where * 256 - at * 4,), (vector(v, 4, ir.Store("out", place, value), lanes=4),))
    nest = ir.LoopNest(
        (output("out"), array("x"), array("y")), (n,),
        (parallel(block, sym.ceildiv(of(n) * 4, 256), thread(t, 64, body)),), threads=64,
    )  # fmt: skip
    runs = [
        ({"out": zeros(4 * size), "x": normal(4 * size), "y": normal(4 * size + 1)}, {"n": size}) for size in (40, 1)
    ]
    return Case(nest, *runs[0], more=runs[1:])


@case
def reductions_that_follow_each_other() -> Case:
    """Sums of one block: before a loop, in each iteration, under a condition of each, and after the loop."""
    n = Var("n", 0, 5)
    i, row = axis("row", of(n))
    j, column = axis("j", 128)
    header = thread(j, 128)

    def total(name: str, offset: sym.Int) -> tuple[ir.Statement, ir.Statement]:
        value = ir.temporary(name, F32)
        return ir.Reduction(name, ops.SUM_REDUCE, F32, (header,), (), load("x", column)), ir.Store("out", offset, value)

    loop = serial(i, of(n), *total("each", row + 1), ir.If((row - 1,), total("later", row + 6)))
    body = (*total("first", 0), loop, *total("last", 12), *total("again", 13))
    nest = ir.LoopNest((output("out"), array("x")), (n,), body, threads=64)
    return Case(
        nest, {"out": zeros(14), "x": normal(128)}, {"n": 5}, more=[({"out": zeros(14), "x": normal(128)}, {"n": 0})]
    )


@case
def staged_rows() -> Case:
    """Exponentials of a row kept in shared memory, read back reversed and divided by their sum; a flag for each row."""
    r, row = axis("row", 3)
    j, column = axis("j", 200)
    x = load("x", row * 200 + column)
    most, total = ir.temporary("most", F32), ir.temporary("total", F32)
    shifted = op(ops.EXP2, op(ops.ADD, x, op(ops.MUL, most, number(-1.0))), attr=ops.Scale(1.4426950408889634))
    header = thread(j, 200)
    kept = load("kept", -column + 199)
    body = (
        ir.Alloc("kept", F32, 200, "shared"),
        ir.Reduction("most", ops.MAX_REDUCE, F32, (header,), (), x),
        thread(j, 200, ir.Store("kept", column, shifted)),
        ir.Barrier(),
        ir.Reduction("total", ops.SUM_REDUCE, F32, (header,), (), load("kept", column)),
        ir.Reduction("finite", ops.MAX_REDUCE, types.bool_, (header,), (), op(ops.LESS_THAN, x, most)),
        thread(j, 200, ir.Store("out", row * 200 + column, op(ops.DIV, kept, total))),
        ir.Store("flags", row, ir.temporary("finite", types.bool_), (-row + 1,)),
    )
    nest = ir.LoopNest(
        (output("out"), output("flags", types.bool_), array("x")), (), (parallel(r, 3, *body),), threads=64
    )
    arrays = {"out": zeros(600), "flags": zeros(3, dtype=types.bool_), "x": normal(600)}
    return Case(nest, arrays, ulps=16)


@case
def turns() -> Case:
    """A value in shared memory that another thread writes in every round: no read of it may leave the loop."""
    k, step = axis("k", 5)
    t, at = axis("t", 64)
    body = (
        ir.Alloc("one", F32, 1, "shared"),
        ir.Store("one", 0, load("x", 0)),
        serial(
            k, 5,
            ir.Barrier(),
            thread(t, 64, ir.Store("out", step * 64 + at, op(ops.ADD, load("one", 0), load("x", at)))),
            ir.Barrier(),
            ir.Store("one", 0, load("x", step)),
        ),
        ir.Barrier(),
        ir.Store("last", 0, load("one", 0)),
    )  # fmt: skip
    nest = ir.LoopNest((output("out"), output("last"), array("x")), (), body, threads=64)
    return Case(nest, {"out": zeros(320), "last": zeros(1), "x": normal(64)})


@case
def seen_after_a_barrier() -> Case:
    """A barrier inside a loop, none before it: what the loop reads but does not write is read behind the barrier."""
    k, step = axis("k", 3)
    t, at = axis("t", 64)
    body = (
        ir.Alloc("all", F32, 64, "shared"),
        thread(t, 64, ir.Store("all", at, load("x", at))),
        serial(
            k, 3,
            ir.Barrier(),
            ir.Define("first", op(ops.ADD, load("all", 63), load("all", 0))),
            thread(t, 64, ir.Store("out", step * 64 + at, op(ops.ADD, ir.temporary("first", F32), load("all", at)))),
        ),
    )  # fmt: skip
    nest = ir.LoopNest((output("out"), array("x")), (), body, threads=64)
    return Case(nest, {"out": zeros(192), "x": normal(64)})


@case
def seen_in_an_array_of_the_kernel() -> Case:
    """Rows written to memory by some threads and read back, reversed, by others."""
    r, row = axis("row", 3)
    t, at = axis("t", 100)
    turned = load("once", row * 100 + 99 - at)
    body = (
        thread(t, 100, ir.Store("once", row * 100 + at, op(ops.ADD, load("x", row * 100 + at), number(1.0)))),
        thread(t, 100, ir.Store("out", row * 100 + at, turned)),
    )
    nest = ir.LoopNest((output("out"), output("once"), array("x")), (), (parallel(r, 3, *body),))
    return Case(SynchroniseThreads(64, LIMITS)(nest), {"out": zeros(300), "once": zeros(300), "x": normal(300)})


@case
def rows_of_a_table() -> Case:
    """An index that all threads read, and one that each reads; one is out of range in a run of its own."""
    r, place = axis("row", 4)
    t, at = axis("t", 40)
    chosen, column = Var("chosen", 0, 9), Var("column", 0, 39)
    body = (
        ir.Let(chosen, load("rows", place, types.i64), 10),
        thread(
            t, 40,
            ir.Let(column, load("columns", at, types.i64), 40),
            ir.Store("out", place * 40 + at, load("table", of(chosen) * 40 + of(column))),
        ),
    )  # fmt: skip
    nest = ir.LoopNest(
        (output("out"), array("rows", types.i64), array("columns", types.i64), array("table")), (),
        (parallel(r, 4, *body),), checked=True, threads=64,
    )  # fmt: skip
    columns = np.arange(40)[::-1].copy()
    arrays = {"out": zeros(160), "rows": np.array([9, 0, 3, 3]), "columns": columns, "table": normal(400)}
    bad = [{**arrays, "rows": np.array([1, 10, 1, 1])}, {**arrays, "columns": np.where(columns == 7, -1, columns)}]
    return Case(nest, arrays, more=[(b, {}) for b in bad])


@case
def far_apart() -> Case:
    """Sizes without a bound: indices take 64 bits."""
    n = Var("n", 1, 1 << 40)
    r, row = axis("row", 2)
    t, at = axis("t", of(n))
    nest = ir.LoopNest(
        (output("out"), array("x")), (n,),
        (parallel(r, 2, thread(t, of(n), ir.Store("out", row * of(n) + at, load("x", at + 0)))),), threads=64,
    )  # fmt: skip
    return Case(nest, {"out": zeros(140), "x": normal(70)}, {"n": 70})


# ---- products ------------------------------------------------------------------------------------------------------


def product(fragment: Fragment | None, dtype: types.DType = F32, *, accumulate: bool = True) -> Case:
    """out = a @ b, 32 x 32 with 32 terms: one block, both operands staged in two steps by copies that run ahead."""
    threads = 64
    k, step = axis("k", 2)
    c, copied = axis("c", 128)
    v, lane = axis("v", 4)
    t, number_ = axis("t", threads)
    term = Var("term", 0, 15)
    if fragment is None:  # squares of four
        top, left = sym.floordiv(number_, 8) * 4, sym.mod(number_, 8) * 4
        shape, size = (4, 4), 16
    else:  # two warps, one below the other
        top, left = sym.floordiv(number_, 32) * 16, 0
        shape, size = (16, 32), 16
    line, inside = sym.floordiv(copied, 8), sym.mod(copied, 8) * 4 + lane
    right = load("b", (step * 16 + line) * 32 + inside, dtype)
    (i, down), (j, across) = axis("i", 4), axis("j", 4)
    row, column, rest = top + down, left + across, down * 4 + across
    held: list[ir.Loop] = [unroll(i, 4), unroll(j, 4)]
    if fragment is not None:
        whole = Warps(16, 32, fragment).of_thread(number_, 32, 32)
        row, column, rest = whole.row, whole.column, whole.number
        pairs = [(sym.as_var(a), extent) for a, extent in zip(whole.axes, whole.extents, strict=True)]
        held = [unroll(a, extent) for a, extent in pairs if a is not None]
    stored: tuple[ir.Statement, ...] = (ir.Store("out", row * 32 + column, load("tile", number_ * size + rest)),)
    zero: tuple[ir.Statement, ...] = (ir.Store("tile", number_ * size + rest, number(0.0)),)
    for loop in reversed(held):
        stored, zero = (replace(loop, body=stored),), (replace(loop, body=zero),)
    lines, terms = axis("l", 512)
    contract = ir.Contract(
        "tile", F32, "stage_a", dtype, top * 16 + of(term), 16, "stage_b", dtype, of(term) * 32 + left,
        (ir.Loop(term, 16, "serial", ()),), shape[0], shape[0], shape[1], shape[1],
        tile_offset=number_ * size, accumulate=accumulate, fragment=fragment, steps=4,
    )  # fmt: skip
    a = load("a", sym.floordiv(terms, 16) * 32 + step * 16 + sym.mod(terms, 16), dtype)
    body = (
        ir.Alloc("stage_a", dtype, 512, "shared"),
        ir.Alloc("stage_b", dtype, 512, "shared"),
        ir.Alloc("tile", F32, size * threads, "registers"),
        *((thread(t, threads, *zero),) if accumulate else ()),
        serial(
            k, 2,
            ir.Barrier(),
            thread(lines, 512, ir.Store("stage_a", terms, a)),
            thread(c, 128, vector(v, 4, ir.Store("stage_b", line * 32 + inside, right, ahead=True), lanes=4)),
            ir.Barrier(),
            thread(t, threads, contract),
        ),
        thread(t, threads, *stored),
    )  # fmt: skip
    nest = ir.LoopNest((output("out"), array("a", dtype), array("b", dtype)), (), body, threads=threads)
    return Case(nest, {"out": zeros(1024), "a": normal(1024, dtype=dtype), "b": normal(1024, dtype=dtype)}, ulps=128)


CASES["product"] = product(None)
CASES["product_of_the_last_step"] = product(None, accumulate=False)
CASES["product_of_bfloat16"] = product(None, types.bf16)
FRAGMENTS = {f"cuda_{f.name}_{f.dtype}": product(f, f.dtype) for f in MMA if f.sum.is_float}
FRAGMENTS |= {f"metal_{f.name}_{f.dtype}": product(f, f.dtype) for f in SIMDGROUP}
