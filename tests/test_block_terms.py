"""Blocks of terms that pass over many tiles: what the transform makes and refuses, when it is chosen, and the code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import luminal
from luminal.core import ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.costs import COSTS
from luminal.core.decisions import Candidate
from luminal.core.decompose import contraction as decompose
from luminal.core.errors import ScheduleError
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.choose import contraction
from luminal.core.schedule.cost.blocking import Blocking
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.nest.rewrite import replace_statements
from luminal.core.schedule.program.ir import Kernel
from luminal.core.schedule.transform import loops
from luminal.core.schedule.transform.block_terms import BlockTerms
from luminal.core.schedule.transform.fetch import FetchAhead
from luminal.core.schedule.transform.tensorise import SumInBlocks, Tensorise
from luminal.core.schedule.transform.transpose import StoreTileTransposed
from luminal.core.symbolic import Int
from luminal.core.target import Target
from tests.compiled_support import assert_computes, assert_same_bits
from tests.emulation import HOST, OTHERS
from tests.schedule_support import transformed, transforms
from tests.test_blocking import TILED, busy, run_product, serial_product

IN_BLOCKS = (*TILED, SumInBlocks(1))  # three panels, three tiles of rows, three blocks of terms
LARGE = replace(targets.AVX512, l2=2 << 20, threads=2)
DEPTH = 3001  # of blocks of 376 terms, the last of 369


# ---- the transform ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "tiles"),
    [
        ((), ("j_1", "i_1")),
        ((loops.Reorder(("i_1", "j_1")),), ("i_1", "j_1")),
        ((), ("i_1",)),
        ((), ()),
        ((loops.Split("j_1", 2), loops.Reorder(("j_1_1", "j_1_0", "i_1"))), ("j_1_0", "i_1")),
        ((loops.Split("i_1", 2), loops.Reorder(("i_1_1", "j_1", "i_1_0"))), ("j_1", "i_1_0")),
    ],
    ids=str,
)
def test_each_result_is_the_same_sum(before: loops.Schedule, tiles: tuple[str, ...]) -> None:
    """All together, a panel at a time, or in groups of which the last is smaller."""
    nest = serial_product(10, 24, 12)
    expected = run_product(loops.apply(nest, IN_BLOCKS))
    blocked = loops.apply(nest, (*IN_BLOCKS, *before, BlockTerms(tiles)))
    np.testing.assert_array_equal(run_product(blocked), expected)
    assert any(s.accumulate for s in walk.statements(blocked.body) if isinstance(s, ln.Contract))


def test_blocks_of_panels_are_fetched_in_the_order_in_which_they_are_read() -> None:
    """All panels together, and in groups."""
    together, split = BlockTerms(("j_1", "i_1")), loops.Split("j_1", 2)
    groups = (split, loops.Reorder(("j_1_1", "j_1_0", "i_1")), BlockTerms(("j_1_0", "i_1")))
    grouped = [{"j_1_1": g, "k_1": k, "j_1_0": j} for g in range(2) for k in range(3) for j in range(2)]
    for columns, schedule, places in (
        (24, (together, FetchAhead("k_1")), [{"k_1": k, "j_1": j} for k in range(3) for j in range(3)]),
        (32, (*groups, FetchAhead("j_1_1")), grouped),
    ):
        nest = loops.apply(serial_product(10, columns, 12), (*IN_BLOCKS, *schedule))
        (contract,) = (s for s in walk.statements(nest.body) if isinstance(s, ln.Contract))
        assert contract.b_ahead is not None
        read = [sym.evaluate(contract.b_offset, {**place, "k_0": 0}) for place in places]
        ahead = [sym.evaluate(contract.b_ahead, {**place, "i_1": 0, "k_0": 0}) for place in places]
        assert ahead[:-1] == read[1:]
        tile = [{**places[0], "i_1": i, "k_0": k} for i in range(3) for k in range(4)]
        parts = [sym.evaluate(contract.b_ahead, place) for place in tile]
        assert parts[0] == read[1] and (np.diff(parts) <= 3).all() and parts[-1] + 3 >= read[1] + 4 * 8  # all of it


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ((BlockTerms(("i",)),), "the innermost loops are not serial ones over i"),
        ((*IN_BLOCKS, BlockTerms(("j_1",))), "the innermost loops are not serial ones over j_1"),
        ((*IN_BLOCKS, loops.Parallelise(2), BlockTerms(("i_1",))), "are not serial ones over i_1"),
        ((*TILED, BlockTerms(("i_1",))), "no tile that sums blocks"),
        ((BlockTerms(()),), "no tile that sums blocks"),
    ],
    ids=str,
)
def test_what_cannot_be_blocked_says_why(schedule: loops.Schedule, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        loops.apply(serial_product(10, 24, 12), schedule)


def test_what_another_product_reads_stays() -> None:
    nest = loops.apply(serial_product(10, 24, 12), IN_BLOCKS)

    def doubled(statement: ln.Statement) -> list[ln.Statement] | None:
        return [statement, replace(statement, tile="other")] if isinstance(statement, ln.Contract) else None

    body, count = replace_statements(nest.body, doubled)
    assert count == 1
    with pytest.raises(ScheduleError, match="another product follows"):
        BlockTerms(("j_1", "i_1"))(replace(nest, body=body))


def test_sums_have_bounded_room() -> None:
    rows = sym.var("rows", 1, 1 << 20)
    with pytest.raises(ScheduleError, match=f"more than {COSTS.stack.sums} bytes"):
        loops.apply(serial_product(rows, 24, 12), (*IN_BLOCKS, BlockTerms(("i_1",))))
    in_groups = (loops.Split("i_1", 5), loops.Reorder(("j_1", "i_1_1", "i_1_0")), BlockTerms(("i_1_0",)))
    nest = loops.apply(serial_product(rows, 24, 12), (*IN_BLOCKS, *in_groups))
    (sums,) = (s for s in walk.statements(nest.body) if isinstance(s, ln.Alloc))
    assert sums.extent == 5 * 4 * 8


# ---- the choice ------------------------------------------------------------------------------------------------------


def linear(rows: Int, columns: int, depth: int) -> ir.Graph:
    random = np.random.default_rng(columns)
    weight = random.standard_normal((columns, depth)).astype(np.float32)
    x = ir.input_("x", (rows, depth), types.f32)
    y = decompose.linear(x, ir.constant(weight), ir.constant(random.standard_normal(columns).astype(np.float32)))
    return ir.Graph("linear", (x,), (("y", y),), tuple(sym.variables(rows)))


def turned(rows: Int, columns: int, depth: int) -> ir.Graph:
    """A product whose result lies along the rows of tiles."""
    graph = linear(rows, columns, depth)
    return replace(graph, outputs=(("y", movement.permute(graph.outputs[0][1], (1, 0))),))


def batched(rows: Int, columns: int, depth: int) -> ir.Graph:
    """Two products, each with an operand B of its own."""
    random = np.random.default_rng(columns)
    x = ir.input_("x", (2, rows, depth), types.f32)
    y = decompose.matmul(x, ir.constant(random.standard_normal((2, depth, columns)).astype(np.float32)))
    return ir.Graph("batched", (x,), (("y", y),), tuple(sym.variables(rows)))


def tiled(graph: ir.Graph, target: Target) -> Kernel:
    """The only kernel in tiles."""
    (kernel,) = transformed(compile_graph(graph, target), Tensorise)
    return kernel


@pytest.mark.parametrize(
    ("shape", "l2", "blocked"),
    [
        # Measured on 2 MiB: in BERT, 128 x 768 x 3072 takes 0.79 of the time of blocks of five tiles of rows, and alone
        # 0.92 of that of all rows; with a depth of 768, where all of A stays, as long.
        ((128, 768, 3072), 2 << 20, True),
        ((256, 768, 3072), 2 << 20, True),
        ((128, 768, 768), 2 << 20, False),
        ((128, 3072, 768), 2 << 20, False),
        ((128, 768, 3072), 16 << 20, False),  # all of A stays
        ((9, 4800, 3072), 2 << 20, False),
        ((45, 480, 4608), 2 << 20, True),  # 0.84: panels are too large
        ((128, 768, 384), 32 << 10, False),  # a single block
    ],
    ids=str,
)
def test_terms_are_blocked_where_slabs_do_not_stay_in_the_cache(
    shape: tuple[int, int, int], l2: int, blocked: bool
) -> None:
    assert bool(transforms(tiled(linear(*shape), replace(LARGE, l2=l2)), BlockTerms)) == blocked


def test_terms_are_blocked_where_the_number_of_rows_is_not_known() -> None:
    rows = sym.var("rows", 1, 32 * 256)
    assert transforms(tiled(linear(rows, 768, 6144), LARGE), BlockTerms)


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 12])
def test_threads_have_equal_shares_of_what_passes_together(threads: int) -> None:
    assert busy(tiled(linear(128, 768, 6144), replace(LARGE, threads=threads)).nest, threads) >= 0.85


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "l2", "sizes"),
    [
        # Of the fewest rows: blocks of rows are shares too, but there may be only one, or three.
        (197 * sym.var("batch", 1, 32), 768, 3072, 2 << 20, {"batch": 1}),
        (196 * sym.var("batch", 1, 32), 384, 1536, 1 << 20, {"batch": 1}),
        # Of half as many as are typical.
        (sym.var("rows", 9, 8192), 768, 3072, 1 << 20, {"rows": 128}),
    ],
    ids=str,
)
def test_threads_have_equal_shares_of_few_rows(
    rows: Int, columns: int, depth: int, l2: int, sizes: dict[str, int]
) -> None:
    (kernel,) = transformed(compile_graph(linear(rows, columns, depth), replace(LARGE, l2=l2)), BlockTerms)
    assert busy(kernel.nest, 2, **sizes) >= 0.9


# ---- the code --------------------------------------------------------------------------------------------------------


def computed(graph: ir.Graph, target: Target, x: np.ndarray, threads: int = 2) -> list[np.ndarray]:
    module = luminal.compile(graph, target=target)
    return list(luminal.load(module.folder, threads=threads).run({"x": x}).values())


@pytest.mark.parametrize("target", [HOST, *OTHERS], ids=lambda target: target.name)
@pytest.mark.parametrize(
    ("make", "count", "kept"),
    [(linear, 100, 100), (linear, 2, 3), (linear, 2, 1), (turned, 2, 3), (batched, 2, 3)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_blocks_compute_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, target: Target, make: Callable[..., ir.Graph], count: int, kept: int
) -> None:
    """In groups of which the last is smaller, too, of rows, of panels, and of terms; and of rows that are not known."""
    target = replace(target, threads=2)
    fixed, rows = make(41, 345, DEPTH), sym.var("rows", 1, 300)
    x = np.random.default_rng(1).standard_normal(tuple(map(int, fixed.inputs[0].shape))).astype(np.float32)
    monkeypatch.setattr(contraction, "blockings", lambda *_: [Candidate("schedule", Blocking("rows", 100))])
    expected = computed(fixed, target, x)
    assert_computes(fixed, {"x": x}, expected, DEPTH)
    monkeypatch.setattr(contraction, "blockings", lambda *_: [Candidate("schedule", Blocking("rows", count, kept))])
    blocked = tiled(fixed, target)
    assert transforms(blocked, BlockTerms) and bool(transforms(blocked, StoreTileTransposed)) == (make is turned)
    for threads in (1, 2):
        assert_same_bits(computed(fixed, target, x, threads), expected)
    assert_same_bits(computed(make(rows, 345, DEPTH), target, x), expected)
