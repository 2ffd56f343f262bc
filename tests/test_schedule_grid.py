"""Schedules for blocks of threads: what they are made of, and that what would be wrong is refused or found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from luminal.core import interp, ir, movement, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction as decompose
from luminal.core.decompose import exponential
from luminal.core.decompose import reduction as rows
from luminal.core.errors import ModelError, ScheduleError, SpecError
from luminal.core.grid import ELEMENT, LANE, MMA, ROW_REGISTERS, SIMDGROUP, BlockLimits, Fragment
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.contraction.contracted import contractions
from luminal.core.schedule.fusion import fuse, layout
from luminal.core.schedule.grid.divide import DivideAmongThreads, SynchroniseThreads
from luminal.core.schedule.grid.hold import HoldRows
from luminal.core.schedule.grid.stage import Stage
from luminal.core.schedule.grid.thread_tiles import Square, Warps
from luminal.core.schedule.lower import clusters
from luminal.core.schedule.nest import interpreter as run_nest
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.prepare.graph import prepare
from luminal.core.schedule.transform.loops import Transform, apply
from luminal.core.schedule.transform.tensorise import Tensorise
from luminal.core.target import Target
from luminal.core.types import DType
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, transforms

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]

CUDA, METAL, OPENCL = (targets.GPUS[name] for name in ("cuda:sm_90", "metal", "opencl"))
ROWS, DEPTH, COLUMNS = 37, 40, 50


def product(dtype: DType) -> tuple[ir.Graph, dict[str, Array]]:
    """A product of two matrices of ``dtype``, summed in float32 and rounded once."""
    source = Source()
    a, b = source.input(ROWS, DEPTH, dtype=dtype), source.input(DEPTH, COLUMNS, dtype=dtype)
    return ir.Graph("product", tuple(source.nodes), (("y", decompose.matmul(a, b)),)), source.arrays


def the_nest(graph: ir.Graph, target: Target = CUDA) -> ln.LoopNest:
    (kernel,) = compile_graph(graph, target).kernels
    return kernel.nest


def changed(body: tuple[ln.Statement, ...], change: Callable[[ln.Statement], list[ln.Statement]]) -> Any:
    """``body`` with every statement replaced by those that ``change`` makes of it."""
    inner = (replace(s, body=changed(s.body, change)) if isinstance(s, ln.Loop | ln.If) else s for s in body)
    return tuple(new for statement in inner for new in change(statement))


def run(nest: ln.LoopNest, arrays: dict[str, Array]) -> Array:
    flat = {a.name: x.reshape(-1) for a, x in zip(nest.arrays, arrays.values(), strict=False)}
    result = nest.arrays[-1]
    flat[result.name] = np.zeros(ROWS * COLUMNS, result.dtype.numpy)
    run_nest.run(nest, flat)
    return flat[result.name]


@pytest.mark.parametrize(
    ("dtype", "target", "name"),
    [
        (types.f16, CUDA, "m16n8k16"),
        (types.bf16, CUDA, "m16n8k16"),
        (types.f32, CUDA, None),
        (types.f32, METAL, "simdgroup8x8"),
        (types.bf16, METAL, "simdgroup8x8"),
    ],
)
def test_products_use_the_fragments_of_their_type(dtype: DType, target: Target, name: str | None) -> None:
    graph, arrays = product(dtype)
    program = compile_graph(graph, target)
    (kernel,) = program.kernels
    contracts = [s for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Contract)]
    assert {contract.fragment.name if contract.fragment else None for contract in contracts} == {name}
    (expected,) = (x.astype(np.float64) for x in interp.run(graph, arrays).outputs)
    error = np.abs(run_program(program, arrays)["y"].astype(np.float64) - expected).max()
    assert error <= 4 * np.sqrt(DEPTH) * max(dtype.eps, types.f32.eps) * np.abs(expected).max()


def test_weights_that_a_fragment_multiplies_stay_narrow() -> None:
    source = Source()
    y = decompose.linear(source.input(ROWS, DEPTH, dtype=types.bf16), source.weight(COLUMNS, DEPTH, dtype=types.bf16))
    program = compile_graph(ir.Graph("linear", tuple(source.nodes), (("y", y),)), CUDA)
    assert [value.dtype.name for value in program.constants.values()] == ["bfloat16"]


@pytest.mark.parametrize("fragment", [*MMA, *SIMDGROUP], ids=str)
def test_the_lanes_of_a_fragment_hold_every_element_once(fragment: Fragment) -> None:
    held = [
        tuple(sym.evaluate(e, {LANE.name: lane, ELEMENT.name: element}) for e in (fragment.row, fragment.column))
        for lane in range(fragment.warp)
        for element in range(fragment.elements)
    ]
    assert sorted(held) == [(row, column) for row in range(fragment.rows) for column in range(fragment.columns)]


def test_a_fragment_whose_lanes_hold_other_elements_gives_another_product() -> None:
    graph, arrays = product(types.bf16)
    nest = the_nest(graph)
    upside_down = replace(MMA[1], row=MMA[1].rows - 1 - MMA[1].row)

    def swapped(statement: ln.Statement) -> list[ln.Statement]:
        return [replace(statement, fragment=upside_down) if isinstance(statement, ln.Contract) else statement]

    assert not np.array_equal(run(nest, arrays), run(replace(nest, body=changed(nest.body, swapped)), arrays))


def test_a_missing_barrier_is_a_race() -> None:
    graph, arrays = product(types.f32)
    nest = the_nest(graph)
    run(nest, arrays)
    without = changed(nest.body, lambda s: [] if isinstance(s, ln.Barrier) else [s])
    with pytest.raises(SpecError, match="with no barrier"):
        run(replace(nest, body=without), arrays)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_loop_that_may_not_run_at_all_parts_nothing(count: int) -> None:
    """What threads leave before such a loop is there after it, whatever barriers are inside."""
    thread, again = sym.expr(sym.Var("t", 0, 7)), sym.var("k", 0, sym.var("n", 0, 5) - 1)
    over = sym.as_var(again)
    assert over is not None and isinstance(over.hi, sym.Expr)

    def each(statement: ln.Statement) -> ln.Loop:
        return ln.Loop(sym.Var("t", 0, 7), 8, "thread", (statement,), 8)

    first, mirrored = ln.load("x", thread, types.f32), ln.load("s", 7 - thread, types.f32)
    body = (
        ln.Alloc("s", types.f32, 8),
        each(ln.Store("s", thread, first)),
        ln.Loop(over, over.hi + 1, "serial", (each(ln.Store("z", thread, mirrored)),)),
        each(ln.Store("y", thread, mirrored)),
    )
    arrays = tuple(ln.Array(name, types.f32, name != "x") for name in "xyz")
    nest = SynchroniseThreads(8, BlockLimits(8, 1024, 255))(ln.LoopNest(arrays, (sym.Var("n", 0, 5),), body))
    values = {name: np.arange(8, dtype=np.float32) for name in "xyz"}
    run_nest.run(nest, values, {"n": count})
    assert np.array_equal(values["y"], values["x"][::-1])


def serial() -> ln.LoopNest:
    results = product(types.f32)[0].results
    prepared = prepare(results, contractions(results), CUDA, {})
    fusion = fuse.fuse(prepared.roots, prepared.contractions)
    return clusters.lower(fusion.clusters[0], layout.assign_layouts(fusion), CUDA).nest


LIMITS = CUDA.block
STAGE = Stage("a0", "a1", 64, 64, 16, Square(4))


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ((Stage("a0", "a9", 32, 32, 16, Square(4)),), "no outer loops over 'a0' and 'a9'"),
        ((Stage("a0", "a1", 32, 32, 16, Square(5)),), "squares of 5 do not fill 32 x 32"),
        ((Stage("a0", "a1", 32, 32, 16, Warps(24, 16, MMA[0])),), "do not fill 32 x 32"),
        ((Stage("a0", "a1", 32, 32, 16, Warps(8, 16, MMA[0])),), "m16n8k16 does not fill 8 x 16"),
        (
            (STAGE, SynchroniseThreads(256, replace(LIMITS, shared=4096))),
            "synchronise threads: 8448 bytes of shared arrays, 4096 are there",
        ),
        (
            (STAGE, SynchroniseThreads(256, replace(LIMITS, threads=128))),
            "synchronise threads: 256 threads in a block, 128 are the most",
        ),
        (
            (STAGE, SynchroniseThreads(256, replace(LIMITS, registers=48))),
            "synchronise threads: about 56 registers in each thread, 48 are there",
        ),
        (
            (Stage("a0", "a1", 128, 128, 16, Square(16)), SynchroniseThreads(64, LIMITS)),
            "synchronise threads: about 320 registers in each thread",
        ),
        ((STAGE, SynchroniseThreads(128, LIMITS)), "is divided among 256 of 128 threads"),
        (
            (DivideAmongThreads("a0", 32), DivideAmongThreads("a1", 32), SynchroniseThreads(32, LIMITS)),
            "synchronise threads: the loop over 'a1', itself divided among",
        ),
        (
            (DivideAmongThreads("k0", 32), DivideAmongThreads("a1", 32)),
            "divide among threads: the reduction .* inside the loop over 'a1', where",
        ),
        ((DivideAmongThreads("a1", 32), DivideAmongThreads("a0", 32)), "itself divided among threads"),
        ((DivideAmongThreads("k7", 32),), "no loop over 'k7'"),
        ((DivideAmongThreads("a1", 32), HoldRows("a1", 32, 64)), "no row of the nest has all its elements in loops"),
    ],
)
def test_what_is_not_legal_says_why(schedule: tuple[Transform, ...], reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        apply(serial(), schedule)


def test_what_all_threads_do_is_refused_where_they_go_different_ways() -> None:
    t, k = sym.Var("t", 0, 63), sym.Var("k", 0, 63)
    x = ln.load("x", sym.expr(t), types.f32)
    total = ln.Reduction("s", ops.SUM_REDUCE, types.f32, (ln.Loop(k, 64, "thread", (), 64),), (), x)
    arrays = (ln.Array("x", types.f32, True),)

    def refusal(*body: ln.Statement) -> str:
        with pytest.raises(ScheduleError) as caught:
            SynchroniseThreads(64, LIMITS)(ln.LoopNest(arrays, (), body))
        return str(caught.value)

    def each(*body: ln.Statement) -> ln.Loop:
        return ln.Loop(t, 64, "thread", body, 64)

    where = "lies inside the loop over 't', where threads go different ways"
    assert refusal(each(ln.Barrier())) == f"synchronise threads: a barrier {where}"
    assert refusal(each(ln.If((sym.expr(t) - 3,), (ln.Barrier(),)))) == f"synchronise threads: a barrier {where}"
    assert refusal(each(ln.Sort("x", 0, 64))) == f"synchronise threads: a sort of x by all threads {where}"
    assert refusal(each(total)) == f"synchronise threads: the reduction s by all threads {where}"
    assert refusal(replace(total, before=(ln.Sort("x", 0, 8),))).startswith(
        "synchronise threads: a sort of x by all threads"
    )
    assert refusal(each(ln.Loop(k, 64, "thread", (), 64))).startswith(
        "synchronise threads: the loop over 'k', itself divided"
    )
    one = ln.Store("x", 0, ln.load("x", 1, types.f32))
    assert refusal(one) == "synchronise threads: one thread stores into x while others read it for that"


def test_an_element_that_is_updated_is_loaded_by_the_thread_that_stores_it() -> None:
    """As where a sum of all threads is added to what is there: no other thread may load it then."""
    t, k = sym.Var("t", 0, 31), sym.Var("k", 0, 63)
    x, y = ln.load("x", sym.expr(k), types.f32), ln.load("y", 0, types.f32)
    body = (
        ln.Reduction("s", ops.SUM_REDUCE, types.f32, (ln.Loop(k, 64, "thread", (), 32),), (), x),
        ln.Store("y", 0, ln.apply(ops.ADD, (y, ln.temporary("s", types.f32)), None, types.f32)),
        ln.Loop(t, 32, "thread", (ln.Store("z", sym.expr(t), y),), 32),
    )
    arrays = tuple(ln.Array(name, types.f32, name != "x") for name in "xyz")
    nest = SynchroniseThreads(32, LIMITS)(ln.LoopNest(arrays, (), body))
    values = {name: np.arange(64, dtype=np.float32) + 1 for name in "xyz"}
    run_nest.run(nest, values)
    assert values["y"][0] == 1 + values["x"].sum() and (values["z"][:32] == values["y"][0]).all()


def test_arrays_that_a_thread_has_to_itself_take_its_registers() -> None:
    thread = sym.Var("t", 0, 31)
    value = ln.load("mine", 0, types.f64)
    each = ln.Loop(thread, 32, "thread", (ln.Alloc("mine", types.f64, 100), ln.Store("y", sym.expr(thread), value)), 32)
    nest = ln.LoopNest((ln.Array("y", types.f64, True),), (), (each,))
    SynchroniseThreads(32, BlockLimits(32, 0, 232))(nest)
    with pytest.raises(ScheduleError, match="about 232 registers in each thread, 231 are there"):
        SynchroniseThreads(32, BlockLimits(32, 0, 231))(nest)


@pytest.mark.parametrize("holds", [False, True])
def test_threads_meet_under_conditions_that_all_of_them_share(holds: bool) -> None:
    """What some leave for others under such a condition is there for them, under it and after it."""
    t, n = sym.Var("t", 0, 7), sym.Var("n", 0, 1)
    thread = sym.expr(t)

    def each(array: str, value: ln.Scalar) -> ln.Loop:
        return ln.Loop(t, 8, "thread", (ln.Store(array, thread, value),), 8)

    x, mirrored = ln.load("x", thread, types.f32), ln.load("s", 7 - thread, types.f32)
    body = (
        ln.Alloc("s", types.f32, 8),
        each("s", x),
        ln.If((sym.expr(n) - 1,), (each("z", mirrored), each("s", ln.load("z", 7 - thread, types.f32)))),
        each("y", mirrored),
    )
    nest = SynchroniseThreads(8, BlockLimits(8, 1024, 255))(
        ln.LoopNest(tuple(ln.Array(name, types.f32, name != "x") for name in "xyz"), (n,), body)
    )
    values = {name: np.arange(8, dtype=np.float32) for name in "xyz"}
    run_nest.run(nest, values, {"n": int(holds)})
    assert np.array_equal(values["y"], values["x"][::-1])


def test_barriers_order_the_memory_that_threads_meet_in() -> None:
    """Shared arrays take a barrier of these alone; arrays of the kernel one of all memory, whatever lies between."""
    t = sym.Var("t", 0, 7)

    def each(array: str, read: str, offset: sym.Int) -> ln.Loop:
        return ln.Loop(t, 8, "thread", (ln.Store(array, sym.expr(t), ln.load(read, offset, types.f32)),), 8)

    thread = sym.expr(t)
    body = (
        ln.Alloc("s", types.f32, 8),
        each("y", "x", thread),
        each("s", "x", thread),
        each("z", "s", 7 - thread),
        each("s", "y", 7 - thread),
        each("z", "s", 7 - thread),
    )
    arrays = tuple(ln.Array(name, types.f32, name != "x") for name in "xyz")
    nest = SynchroniseThreads(8, BlockLimits(8, 1024, 255))(ln.LoopNest(arrays, (), body))
    assert [s.all_memory for s in nest.body if isinstance(s, ln.Barrier)] == [False, True, False]
    values = {name: np.arange(8, dtype=np.float32) for name in "xyz"}
    run_nest.run(nest, values)
    assert np.array_equal(values["z"], values["x"])
    narrow = changed(nest.body, lambda s: [ln.Barrier()] if isinstance(s, ln.Barrier) else [s])
    with pytest.raises(SpecError, match=r"y\[\d\]: thread \d reads what thread \d wrote, with no barrier"):
        run_nest.run(replace(nest, body=narrow), values)


@pytest.mark.parametrize("depth", [8, 16, 24, 32, 40, 80, 100])
@pytest.mark.parametrize("target", [CUDA, METAL, OPENCL], ids=lambda t: t.name)
def test_any_number_of_steps_is_staged(depth: int, target: Target) -> None:
    source = Source()
    a, b = source.input(9, depth, dtype=types.bf16), source.input(11, depth, dtype=types.bf16)
    y = decompose.linear(a, b)
    graph = ir.Graph("steps", tuple(source.nodes), (("y", y),))
    (expected,) = interp.run(graph, source.arrays).outputs
    found = run_program(compile_graph(graph, target), source.arrays)["y"]
    scale = np.abs(expected.astype(np.float64)).max()
    assert np.abs(found.astype(np.float64) - expected.astype(np.float64)).max() <= types.bf16.eps * scale


@pytest.mark.parametrize("target", [CUDA, METAL, targets.AVX512], ids=lambda target: target.name)
def test_products_of_one_operand_convert_it_where_they_load_it(target: Target) -> None:
    """Two products of the same shape share the conversion of their operand, which no kernel makes real for that."""
    random, x = np.random.default_rng(0), ir.input_("x", (16, 32), types.bf16)
    weights = [random.standard_normal((24, 32)).astype(types.bf16.numpy) for _ in range(2)]
    sums = [decompose.linear(x, ir.constant(weight), None) for weight in weights]
    graph = ir.Graph("two", (x,), (("first", sums[0]), ("second", sums[1])))
    kernels = compile_graph(graph, target).kernels
    assert all(transforms(kernel, Stage) or transforms(kernel, Tensorise) for kernel in kernels)


@pytest.mark.parametrize("target", [CUDA, METAL, OPENCL], ids=lambda target: target.name)
def test_rows_are_read_sixteen_bytes_at_once(target: Target) -> None:
    x = ir.input_("x", (6, 256), types.f32)
    graph = ir.Graph("rows", (x,), (("y", rows.softmax(x, 1)),))
    (kernel,) = compile_graph(graph, target).kernels
    loops = [s.loops for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Reduction)]
    assert [[(loop.kind, loop.lanes) for loop in found] for found in loops] == [[("thread", 64), ("vector", 4)]] * 2
    values = np.random.default_rng(0).standard_normal((6, 256)).astype(np.float32)
    arrays = {"x": values}
    found = run_program(compile_graph(graph, target), arrays)["y"]
    np.testing.assert_allclose(found, interp.run(graph, arrays).outputs[0], rtol=1e-6)


def softmax(length: int) -> tuple[ir.Graph, dict[str, Array]]:
    source = Source()
    y = rows.softmax(source.input(3, length), -1)
    return ir.Graph("softmax", tuple(source.nodes), (("y", y),)), source.arrays


def kept_arrays(nest: ln.LoopNest, *spaces: str) -> list[ln.Alloc]:
    return [s for s in walk.statements(nest.body) if isinstance(s, ln.Alloc) and s.space in spaces]


@pytest.mark.parametrize("length", [64, 8176, 8177, 12272, 12273, 16384, 100_000])
@pytest.mark.parametrize("target", [CUDA, METAL, OPENCL], ids=lambda t: t.name)
def test_rows_are_kept_where_the_memory_of_a_block_has_room_for_them(length: int, target: Target) -> None:
    assert target.grid is not None
    partial = 2 * 4 * target.grid.threads // target.grid.warp  # of the maximum and of the sum, one a warp
    fits = length * 4 + partial <= target.grid.shared
    assert len(kept_arrays(the_nest(softmax(length)[0], target), "registers")) == fits


@pytest.mark.parametrize("target", [CUDA, METAL, OPENCL], ids=lambda t: t.name)
@pytest.mark.parametrize("length", [40, 200, 1000, 1024, sym.Var("seq", 1, 300)], ids=str)
def test_rows_in_registers_are_those_of_the_thread(length: int | sym.Var, target: Target) -> None:
    """Of whole turns of the threads, of turns with some threads idle, and of as many elements as a run has."""
    source = Source()
    x = source.input(3, sym.expr(length) if isinstance(length, sym.Var) else length, dtype=types.bf16)
    dims = (length,) if isinstance(length, sym.Var) else ()
    graph = ir.Graph("rows", tuple(source.nodes), (("y", rows.softmax(x, -1)),), dims=dims)
    program = compile_graph(graph, target)
    (kernel,) = program.kernels
    (row,), (held,) = kept_arrays(kernel.nest, "registers", "shared"), transforms(kernel, HoldRows)
    assert row.space == "registers" and row.extent % held.threads == 0
    for statement in walk.statements(
        kernel.nest.body
    ):  # each place is in the part of the thread that has the iteration
        offsets = [statement.offset] if isinstance(statement, ln.Store) and statement.array == row.name else []
        offsets += [access.offset for access in walk.reads(statement) if access.array == row.name]
        (owner,) = {v for offset in offsets for v in sym.variables(offset) if v.name == held.axis} or {None}
        for offset in offsets:
            assert owner is not None
            thread = sym.mod(sym.expr(owner), held.threads)
            assert sym.floordiv(offset, row.extent // held.threads) == thread
    (expected,) = (y.astype(np.float64) for y in interp.run(graph, source.arrays, mode="float64").outputs)
    found = run_program(program, source.arrays)["y"].astype(np.float64)
    assert np.abs(found - expected).max() <= 4 * types.bf16.eps * expected.max()


def test_rows_that_take_too_many_registers_stay_in_shared_memory() -> None:
    assert CUDA.grid is not None
    few = replace(CUDA, grid=replace(CUDA.grid, threads=32))  # 96 elements of a row for each
    nest = the_nest(softmax(32 * (ROW_REGISTERS + 32))[0], few)
    assert kept_arrays(nest, "shared") and not kept_arrays(nest, "registers")


def test_a_row_that_threads_exchange_is_not_in_their_registers() -> None:
    """Each thread reads what another has written."""
    t, length = sym.Var("t", 0, 95), 96
    here, there = sym.expr(t), length - 1 - sym.expr(t)

    def each(statement: ln.Statement) -> ln.Loop:
        return ln.Loop(t, length, "thread", (statement,), 32)

    def nest(offset: sym.Int) -> ln.LoopNest:
        body = (
            ln.Alloc("row", types.f32, length),
            each(ln.Store("row", here, ln.load("x", here, types.f32))),
            each(ln.Store("y", here, ln.load("row", offset, types.f32))),
        )
        return ln.LoopNest(tuple(ln.Array(name, types.f32, name == "y") for name in "xy"), (), body)

    held = HoldRows("t", 32, 3)
    assert kept_arrays(held(nest(here)), "registers")
    with pytest.raises(ScheduleError, match="hold rows: no row"):
        held(nest(there))
    with pytest.raises(ScheduleError, match="hold rows: 3 registers in each thread, 2 are there"):
        replace(held, registers=2)(nest(here))


def test_as_many_rows_are_kept_as_fit_together() -> None:
    """Two passes read two exponentials of a row: there is room for both, for one, for none beside partial results."""
    source = Source()
    x = source.input(3, 100)
    one, two = exponential.exp(x), exponential.exp(x * 0.5)
    totals = [rows.sum_(value, [-1], True) for value in (one, two)]
    graph = ir.Graph("rows", tuple(source.nodes), (("y", one * totals[1] + two * totals[0]),))
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    for shared, kept in ((1024, 2), (800, 1), (464, 1), (463, 0), (64, 0)):
        small = replace(CUDA, grid=replace(CUDA.grid, shared=shared))
        program = compile_graph(graph, small)
        assert sum(len(kept_arrays(kernel.nest, "registers")) for kernel in program.kernels) == kept
        assert np.allclose(run_program(program, source.arrays)["y"], expected, rtol=1e-5)


@pytest.mark.parametrize(("target", "copies"), [(targets.AVX2, 2), (CUDA, 0), (METAL, 0)], ids=lambda value: str(value))
def test_operands_are_packed_and_padded_where_the_target_asks_for_it(target: Target, copies: int) -> None:
    source = Source()
    a, b = source.input(9, 30), source.input(40, 32)
    y = decompose.linear(movement.pad(a, (0, 1), (0, 1)), b)
    prepared = prepare((y,), contractions((y,)), target, {})
    assert sum(node.op is ops.CONTIGUOUS for node in traverse.topological(prepared.roots)) == copies
    assert (copies > 0) == target.packs == target.pads


@pytest.mark.parametrize("name", [*"tcvije", "k", "row", "column", "lane", "thread"])
def test_a_dimension_may_have_a_name_that_axes_might_have(name: str) -> None:
    """Its bounds are those of the number of a thread, too."""
    source = Source()
    rows = sym.var(name, 0, 63)
    x, w = ir.input_("x", (rows, 24), types.f32), source.weight(24, 20)
    graph = ir.Graph("named", (x,), (("y", decompose.matmul(x, w)),), tuple(sym.variables(rows)))
    program = compile_graph(graph, CUDA)
    for count in (1, 5, 37, 63):
        arrays = {"x": np.random.default_rng(count).standard_normal((count, 24)).astype(np.float32)}
        (expected,) = interp.run(graph, arrays, mode="float64").outputs
        assert np.allclose(run_program(program, arrays)["y"], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["t0", "k_1", "a1a2_first", "i3", "at", "tid"])
def test_a_dimension_that_is_called_like_an_axis_is_refused(name: str) -> None:
    x = ir.input_("x", (sym.var(name, 1, 64), 24), types.f32)
    graph = ir.Graph("named", (x,), (("y", x * 2.0),), tuple(sym.variables(x.shape[0])))
    with pytest.raises(ModelError, match=f"the dimension '{name}' is named like a loop"):
        compile_graph(graph, CUDA)


def check_copied_side_by_side(graph: ir.Graph, source: Source, target: Target) -> None:
    """Whether 16 bytes of A are copied at once, and the result is that of the interpreter."""
    program = compile_graph(graph, target)
    (kernel,) = program.kernels
    stores = [s for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Loop) and s.kind == "vector"]
    assert {loop.lanes for loop in stores if "stage_a" in str(loop.body)} == {8}
    (expected,) = interp.run(graph, source.arrays).outputs
    found = run_program(program, source.arrays)["y"]
    scale = np.abs(expected.astype(np.float64)).max()
    assert np.abs(found.astype(np.float64) - expected.astype(np.float64)).max() <= types.bf16.eps * scale


@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda target: target.name)
def test_terms_of_several_axes_are_copied_side_by_side(target: Target) -> None:
    """Those of heads that lie apart: each is as long as a step, so a step lies side by side in memory."""
    heads, rows_, width = 3, 37, 32
    source = Source()
    x = source.input(heads, rows_, width, dtype=types.bf16)
    joined = movement.reshape(movement.permute(x, (1, 0, 2)), (rows_, heads * width))
    y = decompose.linear(joined, source.weight(64, heads * width, dtype=types.bf16))
    graph = ir.Graph("heads", tuple(source.nodes), (("y", y),))
    check_copied_side_by_side(graph, source, target)


@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda target: target.name)
def test_channels_beneath_a_window_are_copied_side_by_side(target: Target) -> None:
    """They lie so in memory, and are summed last: a step has no positions of a window but one."""
    source = Source()
    x = movement.permute(source.input(1, 7, 6, 32, dtype=types.bf16), (0, 3, 1, 2))
    y = decompose.conv(x, source.weight(16, 32, 3, 3, dtype=types.bf16), None, (1, 1), (1, 1), (1, 1))
    graph = ir.Graph("window", tuple(source.nodes), (("y", y),))
    check_copied_side_by_side(graph, source, target)
