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
from luminal.core.schedule.nest import carried, exponents, interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_leaves
from luminal.core.schedule.numeric.digits import GUARD
from luminal.core.schedule.program import ir as program
from luminal.core.symbolic import Var
from luminal.core.types import DType
from tests.codegen_gpu_support import Emulated, rendered
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, transforms
from tests.stream_support import Built, added, attention, causal_alone, plain

Array = np.ndarray[Any, Any]
CUDA = targets.GPUS["cuda:sm_80"]
SCALE = 0.125
SEQ = sym.var("seq", 1, 200)
BF16 = next(f for f in MMA if f.dtype == types.bf16)


def build(change: Callable[[Node, Node], Node], queries: sym.Int, keys: sym.Int, dtype: DType = types.bf16) -> Built:
    """Weights of rows, rounded to ``dtype``, times columns. The mask that is added leaves nothing of one row."""
    source = Source()
    q, k, v = (source.input(2, *shape, dtype=dtype) for shape in ((queries, 24), (keys, 24), (keys, 40)))
    built = attention(source, q, k, v, SCALE, change)
    numbers = source.arrays["x3"]
    numbers[numbers > 0.5] = -np.inf
    numbers[len(numbers) // 2] = -np.inf
    return built


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
@pytest.mark.parametrize("change", [plain, added, causal_alone])
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
    made = compiled(build(causal_alone, SEQ, SEQ)[0], (64, 32))
    graph, arrays = build(causal_alone, 67, 67)
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
    assert set(found.values()) == {types.bf16.significant + GUARD, None}
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


# ---- exponents -----------------------------------------------------------------------------------------------------


def rounded(value: ln.Scalar, dtype: DType) -> ln.Scalar:
    return ln.apply(ops.CAST, (value,), ops.To(dtype), dtype)


@pytest.mark.parametrize(
    ("dtype", "factor", "moves"),
    [
        (types.bf16, 0.125, True), (types.bf16, 4.0, True), (types.f16, 0.125, True), (types.f16, 4.0, False),
        (types.bf16, 0.3, False), (types.bf16, -0.5, False), (types.bf16, 0.0, False),
    ],
)  # fmt: skip
def test_a_power_of_two_needs_no_rounding(dtype: DType, factor: float, moves: bool) -> None:
    """All values of the type: the product is the rounded one, but for less than the least number above zero."""
    x = ln.load("x", 0, dtype)
    product = ln.apply(ops.MUL, (rounded(x, types.f32), carried.number(factor, types.f32)), None, types.f32)
    masked = ln.select((sym.var("a0", 0, 3) - 2,), rounded(product, dtype), carried.number(-np.inf, dtype))
    assert exponents.multiple(rounded(product, dtype)) == ((factor, x) if moves else (1.0, rounded(product, dtype)))
    c, base = exponents.multiple(masked)
    assert (c, base) == ((factor, replace_leaves(masked, {rounded(product, dtype): x})) if moves else (1.0, masked))
    if not moves:
        return
    values = np.arange(1 << 16).astype(np.uint16).view(dtype.numpy)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = values.astype(np.float32) * np.float32(factor)
        once = exact.astype(dtype.numpy).astype(np.float32)
        least = float(np.array(1, np.uint16).view(dtype.numpy))
        off = np.where(exact == once, 0, np.abs(exact.astype(np.float64) - once))
    np.testing.assert_array_equal(np.isnan(exact), np.isnan(once))
    assert np.nanmax(off) <= least / 2 and not off[np.abs(exact) >= np.finfo(np.float16).tiny].any()


def test_a_product_of_floats_moves_by_any_positive_number() -> None:
    x = ln.load("x", 0, types.f32)
    for factor, found in ((0.3, 0.3), (-0.3, 1.0)):
        value = ln.apply(ops.MUL, (x, carried.number(factor, types.f32)), None, types.f32)
        c, base = exponents.multiple(value)
        assert c == np.float32(found) and base is (x if factor > 0 else value)


@pytest.mark.parametrize("digits", [8, 11])
@pytest.mark.parametrize("factor", [0.01, 0.18033688, 0.25, 1.442695, 100.0])
def test_a_maximum_is_taken_off_in_one_step(digits: int, factor: float) -> None:
    """Of values of any size of so many digits, weights relative to the greatest are within 2**-16 of themselves, or of
    the least normal number: as near as differences, which are exact, would give them."""
    taken = exponents.ScaledMaximum("d", factor, digits)
    assert taken.is_near == ((digits, factor) != (11, 100.0))
    at, mine = ln.temporary("d", types.f32), np.float32
    random = np.random.default_rng(0)
    for size in (0.0, 1.0, 50.0, taken.limit / 2, taken.limit, 4 * taken.limit, 1e30, 3.3e38):
        for sign in (1, -1):
            step = 2.0 ** (math.floor(math.log2(max(size, 2.0**-20))) - digits + 1)
            drawn = sign * size + step * random.integers(-3, 1, 64) if size > 1 else random.standard_normal(64)
            x = np.clip(drawn, -3.38e38, 3.38e38).astype(mine)
            nest = taken_off(taken, at, x)
            weights = np.exp2(nest.astype(np.float64))
            assert not taken.is_near or 0.5 <= weights.max() <= 2
            exact = np.exp2(float(mine(factor)) * (x.astype(np.float64) - x.max()))
            off = np.abs(weights / weights.max() - exact)
            assert (off <= 2.0**-16 * exact + 2.0**-126).all()


def taken_off(taken: exponents.ScaledMaximum, at: ln.Scalar, x: Array) -> Array:
    """The exponents of ``x`` less its maximum, as statements compute them."""
    axis = Var("a0", 0, len(x) - 1)
    scale, offset = (ln.temporary(name, types.f32) for name in (taken.scale, taken.offset))
    value = ln.apply(ops.MULTIPLY_ADD, (ln.load("x", sym.expr(axis), types.f32), scale, offset), None, types.f32)
    body = (
        ln.Define("d", ln.load("most", 0, types.f32)), *taken.defined(at),
        ln.Loop(axis, len(x), "serial", (ln.Store("y", sym.expr(axis), value),)),
    )  # fmt: skip
    arrays = tuple(ln.Array(name, types.f32, name == "y") for name in ("x", "most", "y"))
    found = {"x": x, "most": x.max(keepdims=True), "y": np.zeros(len(x), np.float32)}
    assert interpreter.run(ln.LoopNest(arrays, (), body), found)
    return found["y"]


def uses(nest: ln.LoopNest, op: ops.Op) -> bool:
    every = (x for s in walk.statements(nest.body) for x in walk.values(s))
    return any(v.op is op for x in every for v in ln.postorder(x))


def of_one_dimension(change: Callable[[Node], Node], keys: tuple[float, ...]) -> Built:
    """Weights of what ``change`` makes, in float32, of scores that are ``keys``, times columns; the first column of the
    results has the first weight, the second the second one, and so on."""
    source, n = Source(), 16
    q, k, v = (source.input(1, n, n, dtype=types.bf16) for _ in range(3))
    scores = ir.cast(contraction.matmul(q, movement.transpose(k, -2, -1)), types.f32)
    p = ir.cast(reduction.softmax(change(scores), -1), types.bf16)
    y = contraction.matmul(p, v)
    values = [np.zeros((1, n, n), np.float32) for _ in range(2)] + [np.eye(n, dtype=np.float32)[None]]
    values[0][..., 0] = 1
    values[1][0, : len(keys), 0] = keys
    arrays = {name: x.astype(types.bf16.numpy) for name, x in zip(source.arrays, values, strict=True)}
    return ir.Graph("rows", tuple(source.nodes), (("y", y),)), arrays


def test_functions_of_narrow_scores_have_more_digits() -> None:
    """Scores of bfloat16 that are far apart, which a square brings together: a maximum of 38560 is taken off exactly.
    A score of float32 is rounded twice, by eps / 2; weights and results, which are at most 1, three times."""
    change = 199.50227
    graph, arrays = of_one_dimension(lambda f: f * (f - change), (320.0, -120.5))
    made = compiled(graph)
    (kernel,) = made.kernels
    assert not uses(kernel.nest, ops.MULTIPLY_ADD)
    (expected,) = interp.run(graph, arrays, mode="float64").outputs
    found = run_program(made, arrays)["y"].astype(np.float64)
    assert 0.25 < expected[0, 0, 0] < 0.3
    score = 320.0 * (320.0 - change)
    assert np.abs(found - expected).max() <= 1.5 * types.bf16.eps + 2 * score * types.f32.eps


def test_a_factor_that_would_make_the_constant_infinite_stays(tmp_path: Path) -> None:
    """An infinite constant times the greatest score less itself would be NaN."""
    graph, arrays = of_one_dimension(lambda f: f * 3e38, (-1.0, 1.0, 0.5))
    made = compiled(graph)
    (kernel,) = made.kernels
    emulated = Emulated({kernel.name: kernel.nest}, dialects.ALL["cuda"], tmp_path)
    found = run_program(made, arrays, run_kernel=emulated.run_nest)["y"].astype(np.float32)
    np.testing.assert_array_equal(found, np.eye(16, dtype=np.float32)[None, [1] * 16])


def test_rows_of_the_least_number_are_as_plain_code_has_them(tmp_path: Path) -> None:
    """Masks of models are often that, not -inf: then all weights of a row may be equal. Scores beyond where products
    are exact, in a later block, replace those before."""
    graph, arrays = build(added, 4, 70)
    mask = arrays["x3"].reshape(4, 70)
    mask[:] = 0
    mask[0] = float(np.finfo(np.float32).min) * 0.99
    mask[1, :66] = mask[0, 0]
    mask[2, 67:] = 3e6
    made = compiled(graph, (64, 32))
    (kernel,) = made.kernels
    assert uses(kernel.nest, ops.MULTIPLY_ADD)
    emulated = Emulated({kernel.name: kernel.nest}, dialects.ALL["cuda"], tmp_path)
    (expected,) = interp.run(graph, arrays).outputs
    found = run_program(made, arrays, run_kernel=emulated.run_nest)["y"].astype(np.float64)
    assert np.isfinite(expected.astype(np.float64)).all()
    agrees(found, arrays, expected.astype(np.float64), types.bf16)


def test_scores_are_rounded_once_and_not_scaled() -> None:
    """The scale joins the exponential's constant, as its rounding changes nothing."""
    (kernel,) = compiled(build(causal_alone, 256, 256)[0]).kernels
    every = [v for s in walk.statements(kernel.nest.body) for x in walk.values(s) for v in ln.postorder(x)]
    assert sum(v.op is ops.CAST and v.dtype == types.bf16 for v in set(every)) == 2  # a score, and what is stored
    assert not any(v.op is ops.MUL and carried.number(SCALE, types.f32) in v.operands for v in every)
