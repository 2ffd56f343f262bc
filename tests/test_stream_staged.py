"""Chains of contractions in one pass by blocks of threads: the transform, what comes of it, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import dialects, render
from luminal.core import interp, ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import attention, contraction, reduction
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.grid import MMA, SIMDGROUP, BlockLimits
from luminal.core.ir import Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.divide import SynchroniseThreads
from luminal.core.schedule.grid.stream import StreamStaged
from luminal.core.schedule.grid.thread_tiles import Rectangle, Square
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.transform.loops import Parallelise, Transform, apply
from luminal.core.target import Target
from luminal.core.types import DType
from tests import device_support, metal_check
from tests.codegen_gpu_support import Emulated, rendered
from tests.schedule_graphs import SEQ, SIZES, Source
from tests.schedule_support import run_program, transforms
from tests.stream_support import (
    CHANGES,
    COLUMNS,
    DEPTH,
    HEADS,
    ROWS,
    WIDTH,
    Made,
    assert_close,
    attend,
    attend_or_zero,
    causal,
    make,
    poisoned,
    run,
    special_scores,
    with_mask,
)

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

Array = np.ndarray[Any, Any]
CUDA, METAL = targets.GPUS["cuda:sm_90"], targets.GPUS["metal"]
assert CUDA.grid is not None


def chain(
    change: Callable[[Node], Node] = CHANGES["plain"],
    arrays: dict[str, Array] | None = None,
    form: Callable[..., Node] = attend,
) -> Made:
    return make(change, arrays, CUDA, form)


def schedule(rows: int = 8, block: int = 8, side: int = 2, ahead: bool = False) -> tuple[Transform, ...]:
    """Tiles of ``rows x block``, of which each thread has a square."""
    across = block // side
    last = Rectangle(side, -(-WIDTH // across))
    stream = StreamStaged("k0", "a1", rows, block, across * last.columns, 4, Square(side), last, ahead)
    return (stream, SynchroniseThreads(stream.threads, BlockLimits(stream.threads, 1 << 14, 255)))


def staged(made: Made, *sizes: int, ahead: bool = False) -> ln.LoopNest:
    return apply(made.lowered.nest, schedule(*sizes, ahead=ahead))


# ---- the transform -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(8, 8, 2), (8, 16, 2), (4, 8, 2), (16, 32, 4)], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_tiles_of_any_size_give_the_same(change: str, sizes: tuple[int, int, int]) -> None:
    made = chain(CHANGES[change])
    assert_close(run(staged(made, *sizes), made), made.expected)


def test_copies_may_run_ahead() -> None:
    made = chain()
    np.testing.assert_array_equal(run(staged(made, ahead=True), made), run(staged(made), made))


def test_no_barrier_may_be_missing() -> None:
    made = chain()
    stream, share = schedule()
    nest = apply(made.lowered.nest, (stream, Parallelise(2), share))
    barriers = sum(isinstance(s, ln.Barrier) for s in walk.statements(nest.body))
    assert barriers > 4
    for number in range(barriers):
        with pytest.raises(SpecError, match="with no barrier"):
            run(replace(nest, body=without(nest.body, [number])), made)


def without(body: tuple[ln.Statement, ...], number: list[int]) -> tuple[ln.Statement, ...]:
    """``body`` without one of its barriers; ``number`` counts down to it."""
    result: list[ln.Statement] = []
    for statement in body:
        if isinstance(statement, ln.Barrier):
            number[0] -= 1
            if number[0] == -1:
                continue
        if isinstance(statement, ln.Loop):
            statement = replace(statement, body=without(statement.body, number))
        result.append(statement)
    return tuple(result)


def test_what_is_not_visited_is_not_read() -> None:
    # In a block of its own, for the first tile of rows.
    clean, made = (chain(causal, arrays) for arrays in poisoned(8))
    np.testing.assert_array_equal(run(staged(made), made)[:, :8], run(staged(clean), clean)[:, :8])


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_scores_come_out_as_from_two_passes(special: float) -> None:
    made = chain(arrays=special_scores(special))
    with np.errstate(all="ignore"):
        found, expected = run(staged(made), made), run(made.lowered.nest, made)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(expected[0]).any() and not np.isnan(found[1]).any()


@pytest.mark.parametrize("masked", [slice(0, 9), slice(9, 21), slice(0, 21)], ids=["first", "last", "all"])
def test_rows_that_are_masked_in_part_or_whole(masked: slice) -> None:
    made = chain(with_mask(masked))
    with np.errstate(all="ignore"):
        found = run(staged(made), made)
    assert np.isnan(found[0, 4]).all() == (masked == slice(0, 21))
    keep = ~np.isnan(made.expected)
    np.testing.assert_array_equal(np.isnan(found), ~keep)
    assert_close(found[keep], made.expected[keep])


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1.0])
def test_rows_whose_weights_are_no_numbers_are_zero_where_the_graph_says_so(special: float) -> None:
    made = chain(with_mask(slice(0, COLUMNS), special), form=attend_or_zero)
    with np.errstate(all="ignore"):
        found = run(staged(made), made)
    assert (made.expected[0, 4] == 0).all()
    np.testing.assert_array_equal(found == 0, made.expected == 0)
    assert_close(found, made.expected)


def gated(q: Node, k: Node, v: Node, change: Callable[[Node], Node]) -> Node:
    """Attention, each weight of which has a factor that is given: what drops some of them, say."""
    random = np.random.default_rng(5)
    weights = reduction.softmax(change(contraction.matmul(q, movement.transpose(k, -2, -1))), -1)
    return contraction.matmul(weights * ir.constant(random.random((HEADS, ROWS, COLUMNS)).astype(np.float32)), v)


def test_weights_may_have_factors_that_are_read() -> None:
    made = chain(form=gated)
    assert_close(run(staged(made), made), made.expected)


def test_columns_that_are_not_there_do_not_count_for_the_maximum() -> None:
    """All scores are far below zero, which is what is staged where there are no columns."""
    random = np.random.default_rng(3)
    q = np.full((HEADS, ROWS, DEPTH), -100, np.float32)
    k = (1 + random.random((HEADS, COLUMNS, DEPTH))).astype(np.float32)
    made = chain(arrays={"x0": q, "x1": k})
    np.testing.assert_allclose(run(staged(made), made), made.expected, rtol=0, atol=1e-4)


def test_a_row_is_the_same_whichever_tile_it_lies_in() -> None:
    """Equal rows at the first, the last and a middle place of tiles, the last of which is not full."""
    random = np.random.default_rng(2)
    q = np.tile(random.standard_normal((1, 1, DEPTH)), (HEADS, ROWS, 1)).astype(np.float32)
    made = chain(arrays={"x0": q})
    found = run(staged(made), made)
    np.testing.assert_array_equal(found, np.broadcast_to(found[:, :1], found.shape))


SQUARE, PART = Square(2), Rectangle(2, 2)
SMALL = BlockLimits(16, 512, 255)


@pytest.mark.parametrize(
    ("transforms", "reason"),
    [
        ((StreamStaged("k0", "a1", 16, 8, 8, 4, Square(4), PART),), "8 threads do not divide 16 rows of 8 columns"),
        ((StreamStaged("k0", "a1", 8, 8, 4, 4, SQUARE, Rectangle(2, 1)),), "do not divide sums of 5 columns"),
        ((StreamStaged("k0", "a1", 8, 8, 8, 4, SQUARE, Rectangle(4, 4)),), "do not divide sums of 5 columns"),
        ((StreamStaged("k0", "a9", 8, 8, 8, 4, SQUARE, PART),), "no loop over 'a9'"),
        ((StreamStaged("k0", "a1", 8, 9, 8, 4, SQUARE, PART),), "squares of 2 do not fill 8 x 9"),
        (
            (StreamStaged("k0", "a1", 8, 8, 8, 4, SQUARE, PART), SynchroniseThreads(16, SMALL)),
            "of shared arrays, 512 are there",
        ),
    ],
)
def test_what_is_not_legal_says_why(transforms: tuple[Transform, ...], reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        apply(chain().lowered.nest, transforms)


# ---- whole programs ------------------------------------------------------------------------------------------------


def heads(
    queries: sym.Int, keys: sym.Int, dtype: DType = types.f32, depth: int = 16, width: int = 24
) -> tuple[ir.Graph, dict[str, Array]]:
    """Causal attention of two heads that share keys and values."""
    source = Source()
    shapes = (2, queries, depth), (1, keys, depth), (1, keys, width)
    q, k, v = (source.input(1, *shape, dtype=dtype) for shape in shapes)
    y = attention.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    dims = {v for extent in (queries, keys) for v in sym.variables(extent)}
    return ir.Graph("heads", tuple(source.nodes), (("y", y),), tuple(dims)), source.arrays


def masked(queries: sym.Int, keys: sym.Int, dtype: DType = types.f32) -> tuple[ir.Graph, dict[str, Array]]:
    """Attention with a mask that is an input; it leaves nothing of one row, which is NaN then."""
    source = Source()
    q, k, v = (source.input(2, *shape, dtype=dtype) for shape in ((queries, 16), (keys, 16), (keys, 24)))
    mask = source.input(queries, keys, dtype=dtype)
    numbers = source.arrays["x3"]
    numbers[numbers > 0.5] = -np.inf
    numbers[len(numbers) // 2] = -np.inf
    y = attend(q, k, v, lambda scores: scores + mask)
    dims = {v for extent in (queries, keys) for v in sym.variables(extent)}
    return ir.Graph("masked", tuple(source.nodes), (("y", y),), tuple(dims)), source.arrays


def read(queries: sym.Int, keys: sym.Int, dtype: DType = types.f32) -> tuple[ir.Graph, dict[str, Array]]:
    """Weights of scores that are an input."""
    source = Source()
    scores, v = (source.input(2, *shape, dtype=dtype) for shape in ((queries, keys), (keys, 24)))
    y = contraction.matmul(reduction.softmax(scores, -1), v)
    dims = {v for extent in (queries, keys) for v in sym.variables(extent)}
    return ir.Graph("read", tuple(source.nodes), (("y", y),), tuple(dims)), source.arrays


def rounded(queries: sym.Int, keys: sym.Int, dtype: DType = types.bf16) -> tuple[ir.Graph, dict[str, Array]]:
    """Attention as plain code in a narrow type has it: scores and weights are rounded."""
    source = Source()
    q, k, v = (source.input(2, *shape, dtype=dtype) for shape in ((queries, 16), (keys, 16), (keys, 24)))
    y = contraction.matmul(reduction.softmax(contraction.matmul(q, movement.transpose(k, -2, -1)) * 0.25, -1), v)
    dims = {v for extent in (queries, keys) for v in sym.variables(extent)}
    return ir.Graph("rounded", tuple(source.nodes), (("y", y),), tuple(dims)), source.arrays


def chains(graph: ir.Graph, target: Target) -> tuple[dict[str, ln.LoopNest], dict[int, str]]:
    """The kernels that are chains, and why others are not."""
    reached: dict[str, Any] = {}
    kernels = compile_graph(graph, target, reached.__setitem__).kernels
    return {k.name: k.nest for k in kernels if k.name.startswith("chain")}, reached["arrangement"].refused


FRAGMENTS = {
    (CUDA.name, "float32"): set[str](),
    (CUDA.name, "bfloat16"): {f.name for f in MMA if f.dtype == types.bf16},
    (METAL.name, "float32"): {f.name for f in SIMDGROUP},
    (METAL.name, "float16"): {f.name for f in SIMDGROUP},
}


@pytest.mark.parametrize(("name", "dtype"), FRAGMENTS)
def test_sizes_that_fill_no_tile(name: str, dtype: str) -> None:
    """In the interpreter of nests, on symbolic sizes; the scores of narrow types are products of fragments."""
    kind = next(t for t in (types.f32, types.f16, types.bf16) if t.name == dtype)
    graph, arrays = heads(SEQ, SEQ, kind)
    program = compile_graph(graph, targets.GPUS[name])
    (kernel,) = program.kernels
    contracts = [s for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Contract)]
    assert {s.fragment.name for s in contracts if s.fragment is not None} == FRAGMENTS[name, dtype]
    (expected,) = interp.run(graph, arrays, mode="float64").outputs
    assert expected.shape[2] == SIZES["seq"]
    found = run_program(program, arrays)["y"].astype(np.float64)
    assert np.abs(found - expected).max() <= max(kind.eps, 1e-6) * np.abs(expected).max()


@pytest.mark.parametrize(
    ("build", "dtype"), [(masked, types.f32), (heads, types.bf16), (read, types.f32), (rounded, types.bf16)],
    ids=["mask", "causal", "read", "rounded"],
)  # fmt: skip
@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.dialect)
def test_generated_kernels_agree_with_float64_at_any_size(
    target: Target, build: Callable[..., tuple[ir.Graph, dict[str, Array]]], dtype: DType, tmp_path: Path
) -> None:
    seq = sym.var("seq", 1, 100)
    program = compile_graph(build(seq, seq, dtype)[0], target)
    assert [kernel.name for kernel in program.kernels] == ["chain0"]
    emulated = Emulated({k.name: k.nest for k in program.kernels}, dialects.ALL[target.dialect], tmp_path)
    for size in (1, 31, 64, 97):
        graph, arrays = build(size, size, dtype)
        (expected,) = interp.run(graph, arrays, mode="float64").outputs
        found = run_program(program, arrays, run_kernel=emulated.run_nest)["y"].astype(np.float64)
        assert np.isnan(expected).any() == (build is masked)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        scale = np.abs(np.nan_to_num(expected)).max()
        assert np.abs(np.nan_to_num(found - expected)).max() <= max(dtype.eps, 1e-6) * scale


NOT_HELD = replace(CUDA, grid=replace(CUDA.grid, costs=replace(CUDA.grid.costs, held_tiles=())))


@pytest.mark.parametrize(("build", "fragments"), [(rounded, [types.bf16] * 2), (heads, [types.bf16, None])])
def test_weights_are_multiplied_as_the_graph_rounds_them(
    build: Callable[..., tuple[ir.Graph, dict[str, Array]]], fragments: list[DType | None]
) -> None:
    """Rounded ones by fragments, in place of the scores; those that are not rounded as they are."""
    (kernel,) = compile_graph(build(64, 64, types.bf16)[0], NOT_HELD).kernels
    contracts = {s.tile: s.fragment for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Contract)}
    assert [None if f is None else f.dtype for f in contracts.values()] == fragments
    (stream,) = transforms(kernel, StreamStaged)
    assert stream.operand == fragments[-1]
    shared = {s.name: s.dtype for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Alloc)}
    assert shared["product"] == (types.f32 if build is heads else types.bf16) and "weights" not in shared


@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.dialect)
def test_tiles_of_long_sequences_agree_with_float64(target: Target, tmp_path: Path) -> None:
    assert target.grid is not None
    seq, small = sym.var("seq", 100, 400), replace(target, grid=replace(target.grid, processors=1))
    program = compile_graph(heads(seq, seq)[0], small)
    (kernel,) = program.kernels
    assert [stream.rows for stream in transforms(kernel, StreamStaged)] == [64]
    emulated = Emulated({kernel.name: kernel.nest}, dialects.ALL[target.dialect], tmp_path)
    for size in (100, 193):
        graph, arrays = heads(size, size)
        (expected,) = interp.run(graph, arrays, mode="float64").outputs
        found = run_program(program, arrays, run_kernel=emulated.run_nest)["y"]
        assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.dialect)
def test_memory_grows_with_the_sequence_only(target: Target) -> None:
    def arena(length: int) -> int:
        q, k, v = (ir.input_(name, (8, length, 64), types.f32) for name in "qkv")
        program = compile_graph(ir.Graph("long", (q, k, v), (("y", attend(q, k, v)),)), target)
        return program.entries[0].arena_size

    assert arena(4096) <= 2.05 * arena(2048)
    assert arena(4096) < 4096 * 4096


@pytest.mark.parametrize("target", [CUDA, METAL], ids=lambda t: t.dialect)
@pytest.mark.parametrize(("queries", "depth"), [(1, 64), (4, 64), (1024, 512)], ids=str)
def test_chains_that_do_not_suit_a_grid_stay_apart(target: Target, queries: int, depth: int) -> None:
    """A few queries leave most processors idle; wide heads take more than a block has."""
    as_spelled = replace(target, algebra=targets.EXACT)  # else a few queries are computed in parts, and merged
    found, refused = chains(heads(queries, 8192, depth=depth, width=depth)[0], as_spelled)
    assert not found
    (reason,) = refused.values()
    assert re.search(r"processors idle|registers of a thread|of shared arrays", reason)


# ---- compilers -----------------------------------------------------------------------------------------------------


def real(target: Target) -> dict[str, ln.LoopNest]:
    """Chains of the sizes that models have."""
    seq = sym.var("seq", 1, 4096)
    cases = [(seq, types.f32, 64), (2048, types.f32, 128), (2048, types.bf16, 64), (seq, types.bf16, 128)]
    cases += [(1000, types.f16, 128)]
    found: dict[str, ln.LoopNest] = {"chain_rounded": chains(rounded(2048, 2048)[0], target)[0]["chain0"]}
    for extent, dtype, width in cases:
        q, k, v = (ir.input_(name, (2, 16, extent, width), dtype) for name in "qkv")
        y = attention.scaled_dot_product_attention(q, k, v, is_causal=True)
        graph = ir.Graph("heads", (q, k, v), (("y", y),), tuple(sym.variables(extent)))
        (nest,) = chains(graph, target)[0].values()
        found[f"chain{len(found)}"] = nest
    return found


@device_support.needs_nvcc
@pytest.mark.parametrize("compute", ["sm_80", "sm_90", "sm_100"])
def test_nvcc_takes_chains_without_spilling(compute: str, tmp_path: Path) -> None:
    texts = [rendered(name, nest, dialects.ALL["cuda"]) for name, nest in real(targets.GPUS[f"cuda:{compute}"]).items()]
    path = tmp_path / "chains.cu"
    path.write_text("".join(map(render.kernel_text, texts)))
    said, _ = device_support.compile_cuda(path, compute, tmp_path)
    assert "warning" not in said and re.findall(r"(\d+) bytes spill stores", said) == ["0"] * len(texts)


def test_clang_finds_the_metal_text_well_typed() -> None:
    texts = [rendered(name, nest, dialects.ALL["metal"]) for name, nest in real(METAL).items()]
    assert metal_check.errors("".join(map(render.kernel_text, texts))) == []
