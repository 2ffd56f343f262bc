"""Reductions carried over blocks of an axis: the transform against its serial nest, and what comes of it compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import luminal
from luminal.core import interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction, indexing, normalize, reduction
from luminal.core.errors import ScheduleError
from luminal.core.grid import BlockLimits
from luminal.core.ir import Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.grid.divide import SynchroniseThreads
from luminal.core.schedule.grid.stream import StreamStaged
from luminal.core.schedule.grid.thread_tiles import Rectangle, Square
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import statements
from luminal.core.schedule.transform.carry import Carry
from luminal.core.schedule.transform.loops import apply
from luminal.core.schedule.transform.stream import Stream
from luminal.module import Module
from tests.schedule_graphs import Source
from tests.schedule_support import run_program, transforms, with_costs
from tests.stream_support import (
    CHANGES,
    COLUMNS,
    WIDTH,
    Made,
    assert_close,
    attend,
    attend_as_read,
    attend_or_zero,
    causal,
    make,
    poisoned,
    run,
    special_scores,
    with_mask,
)

FORMS = {"products": attend, "read": attend_as_read}
BLOCKS = (1, 8, 20)


# ---- chains --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_chain_in_blocks_of_any_size_gives_the_same(change: str, form: str) -> None:
    made = make(CHANGES[change], form=FORMS[form])
    for block in BLOCKS[1:]:
        nest = Carry("k0", block)(made.lowered.nest)
        assert_close(run(nest, made), made.expected)
        assert max(s.extent for s in statements(nest.body) if isinstance(s, ln.Alloc) and s.name == "row0") == block


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("block", BLOCKS)
def test_special_scores_come_out_as_from_many_passes(special: float, block: int) -> None:
    made = make(CHANGES["plain"], special_scores(special))
    with np.errstate(all="ignore"):
        found, expected = run(Carry("k0", block)(made.lowered.nest), made), run(made.lowered.nest, made)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(expected[0]).any() and not np.isnan(found[1]).any()


@pytest.mark.parametrize("form", [attend, attend_or_zero, attend_as_read])
@pytest.mark.parametrize("masked", [slice(0, 9), slice(9, 21), slice(0, 21)], ids=["first", "last", "all"])
def test_rows_that_are_masked_in_part_or_whole(masked: slice, form: Callable[..., Node]) -> None:
    made = make(with_mask(masked), form=form)
    for block in BLOCKS[:2]:
        with np.errstate(all="ignore"):
            found = run(Carry("k0", block)(made.lowered.nest), made)
        keep = ~np.isnan(made.expected)
        np.testing.assert_array_equal(np.isnan(found), ~keep)
        assert_close(found[keep], made.expected[keep])


# ---- rows that are read, in tiles ----------------------------------------------------------------------------------


def streamed(made: Made, block: int, group: int, rows: int) -> ln.LoopNest:
    assert made.cluster.chain is not None and made.cluster.tile is not None and made.cluster.chain.tile is None
    return Stream("k0", "a1", None, replace(made.cluster.tile, rows=rows), block, group)(made.lowered.nest)


def staged(made: Made, rows: int, block: int, side: int) -> ln.LoopNest:
    last = Rectangle(side, -(-WIDTH // (block // side)))
    stream = StreamStaged("k0", "a1", rows, block, block // side * last.columns, 4, Square(side), last)
    return apply(made.lowered.nest, (stream, SynchroniseThreads(stream.threads, BlockLimits(64, 1 << 14, 255))))


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_are_read_in_tiles_of_any_size(change: str) -> None:
    made = make(CHANGES[change], form=attend_as_read)
    for sizes in ((4, 1, 2), (16, 3, 4), (24, 2, 1)):
        assert_close(run(streamed(made, *sizes), made), made.expected)


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_are_read_by_blocks_of_threads(change: str) -> None:
    made = make(CHANGES[change], target=targets.GPUS["cuda:sm_90"], form=attend_as_read)
    for sizes in ((8, 8, 2), (4, 16, 2)):
        assert_close(run(staged(made, *sizes), made), made.expected)


def test_what_is_not_visited_is_not_read() -> None:
    clean, made = (make(causal, arrays, form=attend_as_read) for arrays in poisoned(12))
    np.testing.assert_array_equal(
        run(streamed(made, 4, 1, 2), made)[:, :4], run(streamed(clean, 4, 1, 2), clean)[:, :4]
    )


# ---- rows without a contraction ------------------------------------------------------------------------------------


def rows(form: Callable[[Node], Node], target: targets.Target, length: Any = 45) -> tuple[ir.Graph, Source, Any]:
    """A graph whose rows are too long for the second-level cache, in blocks of 8; and its program."""
    source = Source()
    graph = ir.Graph("rows", (x := source.input(20, length),), (("y", form(x)),), tuple(sym.variables(length)))
    return graph, source, compile_graph(graph, replace(in_small_blocks(target), l2=16))


def in_small_blocks(target: targets.Target) -> targets.Target:
    """``target`` with blocks of 8 elements, and no room for rows between passes over them."""
    return with_costs(target, sizes={"part": 8}, stack={"rows": 0})


def log_sum(x: Node) -> Node:
    return reduction.logsumexp(x, [-1])


def softmax(x: Node) -> Node:
    return reduction.softmax(x, -1)


def spread(x: Node) -> Node:
    """Reductions that do not read one another, and what is computed of all."""
    return reduction.max_(x, [-1]) * reduction.sum_(x, [-1]) + reduction.sum_(x * x, [-1])


@pytest.mark.usefixtures("sums_as_spelled")
@pytest.mark.parametrize("length", [45, sym.var("seq", 1, 90)], ids=str)
@pytest.mark.parametrize("target", [targets.X86_64, targets.AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("form", [log_sum, softmax, spread])
def test_long_rows_are_reduced_in_one_pass(form: Callable[[Node], Node], target: targets.Target, length: Any) -> None:
    graph, source, program = rows(form, target, length)
    (kernel,) = program.kernels
    assert [carry.block for carry in transforms(kernel, Carry)] == [8]
    source.arrays["x0"] = np.random.default_rng(1).standard_normal((20, 45)).astype(np.float32)
    source.arrays["x0"][3] *= 1000
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    np.testing.assert_allclose(run_program(program, source.arrays)["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", [log_sum, softmax])
def test_special_values_of_long_rows_come_out_as_from_many_passes(form: Callable[[Node], Node], special: float) -> None:
    """One in a first, a middle and a last block, two in different blocks, and nothing else."""
    graph, source, program = rows(form, targets.AVX2)
    x = source.arrays["x0"]
    for row, places in enumerate(([0], [20], [44], [3, 30], range(45))):
        x[row, list(places)] = special
    x[5, :8] = -np.inf
    with np.errstate(all="ignore"):
        (expected,) = interp.run(graph, source.arrays).outputs
        found = run_program(program, source.arrays)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class LogSum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x, -1)


def test_a_compiled_sum_of_many_terms_is_exact_to_a_few_roundings() -> None:
    x = 3 * torch.randn(16, 70_001, generator=torch.Generator().manual_seed(1))
    x[1, 5], x[2, 69_999], x[3] = math.inf, math.nan, -math.inf
    module = luminal.compile(LogSum(), (x,), target="avx2")
    assert isinstance(module, Module) and module.program is not None
    assert any(transforms(kernel, Carry) for kernel in module.program.kernels)
    torch.testing.assert_close(module(x).double(), LogSum()(x.double()), rtol=1e-6, atol=0, equal_nan=True)


def test_sums_that_a_block_would_round_take_as_many_passes_as_before() -> None:
    source = Source()
    x = source.input(20, 45, dtype=types.bf16)
    y = ir.reduce(ops.MAX_REDUCE, x, [1]) + ir.reduce(ops.SUM_REDUCE, x, [1])
    graph = ir.Graph("narrow", (x,), (("y", y),))
    kernels = compile_graph(graph, replace(in_small_blocks(targets.AVX2), l2=16)).kernels
    assert not any(transforms(kernel, Carry) for kernel in kernels)
    assert kernels[0].scheduled.serial is not None
    with pytest.raises(ScheduleError, match="would round"):
        Carry("a1", 8)(kernels[0].scheduled.serial)


def test_short_rows_and_single_reductions_take_as_many_passes_as_before() -> None:
    for form in (lambda x: reduction.max_(x, [-1]), lambda x: x - reduction.mean(x, [-1], keepdims=True)):
        assert not any(transforms(kernel, Carry) for kernel in rows(form, targets.AVX2)[2].kernels)
    graph = rows(softmax, targets.AVX2)[0]
    assert not any(transforms(kernel, Carry) for kernel in compile_graph(graph, in_small_blocks(targets.AVX2)).kernels)


# ---- what is not legal ---------------------------------------------------------------------------------------------


def test_what_is_not_legal_says_why() -> None:
    chain, read = make(CHANGES["plain"]), make(CHANGES["plain"], form=attend_as_read)
    nest, tile = chain.lowered.nest, chain.cluster.tile
    assert tile is not None
    cases: list[tuple[ln.LoopNest, Any, str]] = [
        (nest, Carry("k0", COLUMNS), "is all of k0"),
        (nest, Carry("a1", 4), "no reductions over a loop over 'a1'"),
        (nest, Stream("k0", "a1", None, tile, 8, 1), "a tile of the first contraction"),
        (read.lowered.nest, Stream("k0", "a1", tile, tile, 8, 1), "a tile of the first contraction"),
    ]
    for kernel in rows(lambda x: normalize.layer_norm(x, -1), targets.AVX2)[2].kernels:
        assert kernel.scheduled.serial is not None
        cases.append((kernel.scheduled.serial, Carry("a1", 8), "by a factor"))
    for kernel in compile_graph(rows(softmax, targets.AVX2)[0], targets.AVX2).kernels:
        assert kernel.scheduled.serial is not None
        cases.append((kernel.scheduled.serial, Carry("a1", 8), "something other than a reduction"))
    for before, transform, reason in cases:
        with pytest.raises(ScheduleError, match=reason):
            transform(before)


# ---- whole programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [targets.AVX512, targets.GPUS["cuda:sm_90"]], ids=lambda t: t.name)
def test_one_product_and_terms_that_other_products_give(target: targets.Target) -> None:
    """Scores have terms that are looked up in another product: that one is read."""
    source = Source()
    q, k, v = (source.input(4, 30, 8) for _ in range(3))
    place = ir.expand(source.input(30, 30, dtype=types.i64, below=59), (4, 30, 30))
    terms = indexing.gather_elements(contraction.matmul(q, source.weight(8, 59)), place, -1)
    scores = contraction.matmul(q, movement.transpose(k, 1, 2)) + terms
    y = contraction.matmul(softmax(scores), v)
    graph = ir.Graph("terms", tuple(source.nodes), (("y", y),))
    program = compile_graph(graph, target)
    assert [kernel.name.rstrip("0123456789") for kernel in program.kernels][-1] == "chain"
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    assert_close(run_program(program, source.arrays)["y"], expected)


@pytest.mark.parametrize("target", [targets.AVX512, targets.GPUS["cuda:sm_90"]], ids=lambda t: t.name)
def test_scores_that_are_an_output_are_read(target: targets.Target) -> None:
    source = Source()
    q, k, v = (source.input(4, 70, 8) for _ in range(3))
    scores = contraction.matmul(q, movement.transpose(k, 1, 2))
    y = contraction.matmul(softmax(scores), v)
    graph = ir.Graph("seen", tuple(source.nodes), (("scores", scores), ("y", y)))
    program = compile_graph(graph, target)
    assert "chain" in {kernel.name.rstrip("0123456789") for kernel in program.kernels}
    (_, expected) = interp.run(graph, source.arrays, mode="float64").outputs
    assert_close(run_program(program, source.arrays)["y"], expected)


@pytest.mark.parametrize("target", [targets.AVX512, targets.GPUS["cuda:sm_90"]], ids=lambda t: t.name)
def test_rows_that_are_padded_are_not_read_beyond_their_end(target: targets.Target) -> None:
    source = Source()
    scores, v = source.input(4, 70, 61), source.input(4, 64, 8)
    y = contraction.matmul(softmax(movement.pad(scores, [0, 0, 1], [0, 0, 2], -np.inf)), v)
    graph = ir.Graph("padded", tuple(source.nodes), (("y", y),))
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    assert_close(run_program(compile_graph(graph, target), source.arrays)["y"], expected)
