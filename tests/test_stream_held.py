"""Chains of contractions whose rows stay in the registers of warps: the statements, the transform, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import dialects, render
from luminal.core import interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, reduction
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.grid import MMA, SIMDGROUP
from luminal.core.ir import Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.held import StreamHeld
from luminal.core.schedule.grid.thread_tiles import Warps
from luminal.core.schedule.nest import interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.numeric.digits import GUARD
from luminal.core.schedule.numeric.rounding import significant
from luminal.core.schedule.program import ir as program
from luminal.core.symbolic import Var
from luminal.core.types import DType
from tests.codegen_gpu_support import Emulated, rendered
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, transforms
from tests.stream_support import positions

Array = np.ndarray[Any, Any]
Built = tuple[ir.Graph, dict[str, Array]]
CUDA = targets.GPUS["cuda:sm_80"]
SCALE = 0.125
SEQ = sym.var("seq", 1, 200)
BF16 = next(f for f in MMA if f.dtype == types.bf16)


def plain(scores: Node, mask: Node) -> Node:
    return scores


def added(scores: Node, mask: Node) -> Node:
    return scores + mask


def causal(scores: Node, mask: Node) -> Node:
    return ir.select(positions(scores.shape, 2) < positions(scores.shape, 1) + 1, scores, -math.inf)


def build(change: Callable[[Node, Node], Node], queries: sym.Int, keys: sym.Int, dtype: DType = types.bf16) -> Built:
    """Weights of rows, rounded to ``dtype``, times columns. The mask that is added leaves nothing of one row."""
    source = Source()
    q, k, v = (source.input(2, *shape, dtype=dtype) for shape in ((queries, 24), (keys, 24), (keys, 40)))
    mask = source.input(queries, keys, dtype=dtype)
    numbers = source.arrays["x3"]
    numbers[numbers > 0.5] = -np.inf
    numbers[len(numbers) // 2] = -np.inf
    scores = change(contraction.matmul(q, movement.transpose(k, -2, -1)) * SCALE, mask)
    y = contraction.matmul(reduction.softmax(scores, -1), v)
    dims = {v for extent in (queries, keys) for v in sym.variables(extent)}
    return ir.Graph("rows", tuple(source.nodes), (("y", y),), tuple(dims)), source.arrays


def compiled(graph: ir.Graph, tile: tuple[int, int] | None = None) -> program.Program:
    """The program, in which the chain is held in registers, in tiles of these rows and columns: none of the
    processors of a device with one is idle."""
    grid = CUDA.grid
    assert grid is not None
    costs = grid.costs if tile is None else replace(grid.costs, held_tiles=(tile,))
    made = compile_graph(graph, replace(CUDA, grid=replace(grid, processors=1, costs=costs)))
    (kernel,) = made.kernels
    (held,) = transforms(kernel, StreamHeld)
    assert tile in (None, (held.rows, held.block))
    return made


def agrees(found: Array, arrays: dict[str, Array], expected: Array, dtype: DType) -> None:
    """Weights and results are rounded once, scores, whose error is that of weights, up to three times: by eps / 2."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    q, k = (arrays[name].astype(np.float64).reshape(2, -1, 24) for name in ("x0", "x1"))
    scores = np.abs(q @ k.transpose(0, 2, 1) * SCALE).max() + 0.5
    scale = np.abs(np.nan_to_num(expected)).max()
    assert np.abs(np.nan_to_num(found - expected)).max() <= (1 + 3 * scores) * dtype.eps * scale


@pytest.mark.parametrize("dtype", [types.bf16, types.f16], ids=str)
@pytest.mark.parametrize("change", [plain, added, causal])
def test_generated_kernels_agree_with_float64_at_any_size(
    change: Callable[[Node, Node], Node], dtype: DType, tmp_path: Path
) -> None:
    made = compiled(build(change, SEQ, SEQ, dtype)[0])
    (kernel,) = made.kernels
    emulated = Emulated({kernel.name: kernel.nest}, dialects.ALL["cuda"], tmp_path)
    for size in (1, 64, 145):
        graph, arrays = build(change, size, size, dtype)
        (expected,) = interp.run(graph, arrays, mode="float64").outputs
        found = run_program(made, arrays, run_kernel=emulated.run_nest)["y"].astype(np.float64)
        assert np.isnan(expected).any() == (change is added)
        agrees(found, arrays, expected, dtype)


def test_the_interpreter_agrees_with_float64() -> None:
    """In tiles that rows and columns do not fill, one of them in the last block."""
    made = compiled(build(causal, SEQ, SEQ)[0], (64, 32))
    graph, arrays = build(causal, 67, 67)
    (expected,) = interp.run(graph, arrays, mode="float64").outputs
    agrees(run_program(made, arrays)["y"].astype(np.float64), arrays, expected, types.bf16)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_scores_come_out_as_from_two_passes(special: float, tmp_path: Path) -> None:
    graph, arrays = build(added, 3, 70)
    arrays["x3"][:] = 0
    arrays["x3"][1, 66] = special
    made = compiled(graph)
    emulated = Emulated({k.name: k.nest for k in made.kernels}, dialects.ALL["cuda"], tmp_path)
    (expected,) = interp.run(graph, arrays, mode="float64").outputs
    found = run_program(made, arrays, run_kernel=emulated.run_nest)["y"].astype(np.float64)
    assert np.isnan(expected[:, 1]).all() == (special != -np.inf) and not np.isnan(expected[:, [0, 2]]).any()
    agrees(found, arrays, expected, types.bf16)


def test_only_operands_are_in_shared_memory_and_two_barriers_stand_in_a_block() -> None:
    (kernel,) = compiled(build(plain, 256, 256)[0]).kernels
    every = walk.statements(kernel.nest.body)
    shared = {s.name for s in every if isinstance(s, ln.Alloc) and s.space == "shared"}
    assert shared == {"stage_a", "stage_b", "stage_c"}
    (blocks,) = [s for s in every if isinstance(s, ln.Loop) and s.axis.name == "k0_1"]
    assert sum(isinstance(s, ln.Barrier) for s in walk.statements(blocks.body)) == 2
    assert [s.held for s in every if isinstance(s, ln.Contract)] == [False, True]


def test_no_barrier_may_be_missing() -> None:
    graph, arrays = build(plain, 8, 80)
    made = compiled(graph, (64, 32))
    (kernel,) = made.kernels
    barriers = sum(isinstance(s, ln.Barrier) for s in walk.statements(kernel.nest.body))
    assert barriers == 2
    for number in range(barriers):
        left = replace(kernel.nest, body=without(kernel.nest.body, [number]))

        def run(nest: ln.LoopNest, *about: Any, left: ln.LoopNest = left) -> bool:
            return interpreter.run(left, *about)

        with pytest.raises(SpecError, match="with no barrier"):
            run_program(made, arrays, run_kernel=run)


def without(body: tuple[ln.Statement, ...], number: list[int]) -> tuple[ln.Statement, ...]:
    """``body`` without one of its barriers; ``number`` counts down to it."""
    result: list[ln.Statement] = []
    for statement in body:
        if isinstance(statement, ln.Barrier):
            number[0] -= 1
            if number[0] == -1:
                continue
        if isinstance(statement, ln.Loop | ln.If):
            statement = replace(statement, body=without(statement.body, number))
        result.append(statement)
    return tuple(result)


# ---- the statement -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "of"), [(ops.SUM_REDUCE, np.sum), (ops.MAX_REDUCE, np.max)])
def test_neighbouring_threads_combine_what_they_hold(op: ops.Op, of: Callable[..., Array], tmp_path: Path) -> None:
    """Two elements of 32 threads, of which four each get the same."""
    thread, place = sym.var("t0", 0, 31), Var("e0", 0, 1)
    at, block = thread * 2 + sym.expr(place), sym.var("a0", 0, 1) * 64

    def each(array: str, offset: sym.Int, value: ln.Scalar) -> ln.Loop:
        inner = ln.Loop(place, 2, "unroll", (ln.Store(array, offset, value),))
        return ln.Loop(Var("t0", 0, 31), 32, "thread", (inner,), 32)

    combine = ln.Combine("held", thread * 2, 2, op, types.f32, 4)
    body = (
        ln.Alloc("held", types.f32, 64, "registers"),
        each("held", at, ln.load("x", block + at, types.f32)),
        ln.Loop(Var("t0", 0, 31), 32, "thread", (combine,), 32),
        each("y", block + at, ln.load("held", at, types.f32)),
    )
    task = ln.Loop(Var("a0", 0, 1), 2, "parallel", body)
    arrays = (ln.Array("x", types.f32, False), ln.Array("y", types.f32, True))
    nest = ln.LoopNest(arrays, (), (task,), threads=32)
    x = np.arange(128, dtype=np.float32) % 7
    expected = np.repeat(of(x.reshape(16, 4, 2), axis=1), 4, axis=0).reshape(-1)
    emulated = Emulated({"combine": nest}, dialects.ALL["cuda"], tmp_path)
    for run in (interpreter.run, emulated.run_nest):
        found = {"x": x, "y": np.zeros(128, np.float32)}
        run(nest, found, {}, None)
        np.testing.assert_array_equal(found["y"], expected)


def test_fragments_whose_lanes_hold_no_rows_take_no_operand_from_registers() -> None:
    (kernel,) = compiled(build(plain, 64, 64)[0]).kernels
    contract = next(s for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Contract) and s.held)
    for fragment in (SIMDGROUP[0], None):
        with pytest.raises(SpecError, match="takes no operand from registers"):
            replace(contract, fragment=fragment)


def held(rows: int = 64, block: int = 32, width: int = 40, warp: int = 16, columns: int = 32) -> StreamHeld:
    return StreamHeld("k0", "a1", rows, block, width, Warps(warp, columns, BF16), Warps(warp, width, BF16), types.bf16)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (held(columns=16), "warps have parts of rows"),
        (held(width=32), "4 threads do not divide sums of 40|128 threads do not divide sums of 40 columns"),
        (held(block=8, columns=8), "does not take blocks of 8 bfloat16"),
        (replace(held(), m="a9"), "no loop over 'a9'"),
        (
            replace(held(), first=Warps(16, 32, next(f for f in SIMDGROUP if f.dtype == types.bf16))),
            "hold no rows that are an operand",
        ),
    ],
)
def test_what_is_not_legal_says_why(transform: StreamHeld, reason: str) -> None:
    reached: dict[str, Any] = {}
    made = compile_graph(build(plain, 64, 64)[0], CUDA, reached.__setitem__)
    serial = made.kernels[0].scheduled.serial
    with pytest.raises(ScheduleError, match=reason):
        transform(serial)


# ---- exponentials --------------------------------------------------------------------------------------------------


def test_exponentials_have_the_digits_that_their_rounding_keeps() -> None:
    """Those of each element; the factor by which sums move is exact."""
    (kernel,) = compiled(build(plain, 256, 256)[0]).kernels
    every = walk.statements(kernel.nest.body)
    found = {s: v.attr.digits for s in every for x in walk.values(s) for v in ln.postorder(x) if v.op is ops.EXP2}
    of_elements = {s.name if isinstance(s, ln.Reduction) else s.array for s, digits in found.items() if digits}
    assert set(found.values()) == {significant(types.bf16) + GUARD, None}
    assert of_elements == {"tile", "r1_block"}


def test_exponentials_of_few_digits_are_as_exact_as_that(tmp_path: Path) -> None:
    axis = Var("a0", 0, 4095)
    x = ln.load("x", sym.expr(axis), types.f32)
    value = ln.apply(ops.EXP2, (x,), ops.Scale(math.log2(math.e), 16), types.f32)
    loop = ln.Loop(axis, 4096, "parallel", (ln.Store("y", sym.expr(axis), value),))
    arrays = (ln.Array("x", types.f32, False), ln.Array("y", types.f32, True))
    nest = ln.LoopNest(arrays, (), (loop,))
    points = np.linspace(-110, 100, 4093, dtype=np.float32)
    points = np.concatenate([points, np.array([-np.inf, np.inf, np.nan], np.float32)])
    found = {"x": points, "y": np.zeros(4096, np.float32)}
    assert "exp2_scaled<16>" in render.kernel_text(rendered("powers", nest, dialects.ALL["cuda"]))
    Emulated({"powers": nest}, dialects.ALL["cuda"], tmp_path).run_nest(nest, found, {}, None)
    with np.errstate(over="ignore"):
        expected = np.exp(points.astype(np.float64))
        expected[expected > np.finfo(np.float32).max] = np.inf
    assert np.isnan(found["y"][-1]) and np.isinf(found["y"][-2]) and found["y"][-3] == 0
    infinite = np.isinf(expected[:-1])
    np.testing.assert_array_equal(np.isinf(found["y"][:-1]), infinite)
    left = np.abs(found["y"][:-1][~infinite] - expected[:-1][~infinite])
    assert (left <= 2.0**-16 * expected[:-1][~infinite] + 2.0**-126).all()
