"""Register tiles, the order of tiles, sums in blocks: what is chosen for a shape, and what the transforms refuse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from luminal.core import ir, movement, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decisions import Candidate
from luminal.core.decompose import contraction as decompose
from luminal.core.errors import ScheduleError, SpecError
from luminal.core.matrix import DOT_BF16
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.choose import contraction
from luminal.core.schedule.choose.contraction import TERMS_PER_BLOCK
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.contraction.roles import contraction_of, row_stride
from luminal.core.schedule.contraction.tile import choose_tile, lines
from luminal.core.schedule.cost.blocking import Blocking, Tiling, blockings, near_equal
from luminal.core.schedule.nest import interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.transform import loops
from luminal.core.schedule.transform.tensorise import SumInBlocks, Tensorise
from luminal.core.sizes import typical
from luminal.core.symbolic import Var
from tests.schedule_support import contracts, refusals, transforms

F32 = types.f32


def product(rows: int, columns: int, depth: int) -> ir.Node:
    return decompose.linear(ir.input_("x", (rows, depth), F32), ir.input_("w", (columns, depth), F32), None)


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        # Measured: the listed tiles are within 3 % of the fastest for the shape (rows, columns, depth), on a core that
        # runs nothing else or on one that another thread shares.
        ((128, 768, 768), {(14, 32), (12, 32), (9, 48)}),
        ((128, 768, 3072), {(14, 32), (9, 48), (6, 64)}),
        ((197, 768, 768), {(14, 32), (12, 32), (9, 48)}),
        ((49, 2048, 512), {(14, 32), (9, 48), (6, 64)}),
        ((196, 1024, 256), {(14, 32), (12, 32), (6, 64)}),
        ((784, 512, 128), {(6, 64)}),
        ((3136, 256, 64), {(6, 64)}),
        ((3136, 64, 256), {(14, 32), (12, 32), (6, 64)}),
        ((12544, 96, 48), {(4, 96)}),
        ((1500, 384, 1536), {(14, 32), (12, 32), (9, 48), (6, 64)}),
        ((1, 905, 5483), {(9, 48)}),  # which fill 912 columns, a tile of 128 fills 1024
        ((2, 1000, 2048), {(9, 48)}),
        ((8, 2083, 2093), {(9, 48)}),  # a lower and wider one reads B twice
    ],
    ids=str,
)
def test_the_tile_is_one_of_the_fastest(shape: tuple[int, int, int], tiles: set[tuple[int, int]]) -> None:
    tile = choose_tile(targets.AVX512, only([product(*shape)]))
    assert (tile.rows, tile.columns) in tiles


def convolution(batch: int, side: int, kernel: int, stride: int = 1) -> Contraction:
    """Of 512 channels to as many, and pictures of ``side`` by ``side`` to such."""
    x = ir.input_("x", (batch, side * stride, side * stride, 512), F32)
    w = ir.constant(np.ones((512, 512, kernel, kernel), np.float32))
    pads = [kernel // 2] * 2
    y = decompose.conv(movement.permute(x, (0, 3, 1, 2)), w, strides=[stride] * 2, pads_begin=pads, pads_end=pads)
    return only([y])


def only(roots: Sequence[ir.Node]) -> Contraction:
    """The one contraction that ``roots`` depend on."""
    (found,) = filter(None, map(contraction_of, traverse.everything(roots)))
    return found


@pytest.mark.parametrize(
    ("kernel", "stride", "expected"), [(1, 1, (7, 32 * 49)), (1, 2, (7, 7)), (3, 1, (7, 7))], ids=str
)
def test_tiles_divide_the_lines_of_windows_and_all_rows_of_points(
    kernel: int, stride: int, expected: tuple[int, int]
) -> None:
    assert lines(convolution(32, 7, kernel, stride)) == expected


@pytest.mark.parametrize("kernel", [1, 3])
def test_pictures_of_few_lines_have_the_tile_of_one_in_a_batch_too(kernel: int) -> None:
    """Its 32 pictures are no line of 32 rows: tiles of 6 would divide the 7 rows that there are into low ones."""
    tiles = [choose_tile(targets.AVX512, convolution(batch, 7, kernel)) for batch in (1, 8, 32)]
    assert all(tile.rows >= 7 for tile in tiles) and len({tile.columns for tile in tiles}) == 1


@pytest.mark.parametrize(
    ("kernel", "stride", "expected"), [(1, 1, 512 * 4), (1, 2, 2 * 512 * 4), (3, 1, 512 * 4), (3, 2, 2 * 512 * 4)]
)
def test_rows_are_as_far_apart_as_channels_and_steps_say(kernel: int, stride: int, expected: int) -> None:
    assert row_stride(convolution(1, 14, kernel, stride)) == expected


def test_inputs_are_row_major() -> None:
    """Heads of 64, each of which is a batch: rows of one are all heads apart; and a matrix that is read transposed."""
    heads = movement.permute(ir.input_("q", (1, 24, 16, 64), F32), (0, 2, 1, 3))
    keys = ir.input_("k", (1, 16, 64, 32), F32)
    turned = movement.permute(ir.input_("t", (2048, 49), F32), (1, 0))
    weights = ir.constant(np.ones((96, 2048), np.float32))
    cases = ((decompose.matmul(heads, keys), 16 * 64 * 4), (decompose.linear(turned, weights, None), 4))
    for root, expected in cases:
        assert row_stride(only([root])) == expected


def test_how_far_apart_rows_are_may_be_unknown() -> None:
    length = sym.var("length", 1, 512)
    node = decompose.linear(ir.input_("x", (64, length), F32), ir.input_("w", (48, length), F32), None)
    assert row_stride(only([node])) == 0


@pytest.mark.parametrize("ways", [8, 12])
@pytest.mark.parametrize("shape", [(196, 256, 1024), (49, 512, 2048), (128, 768, 3072), (64, 256, 5120)], ids=str)
def test_a_tile_has_no_more_rows_than_a_set_of_the_first_cache_has_ways(shape: tuple[int, int, int], ways: int) -> None:
    """Measured on a cache of 8 ways, rows 4096 bytes apart: 14 x 32 reaches 75 % of the peak, 8 x 32 100 %."""
    target = replace(targets.AVX512, l1=ways * 4096)
    assert choose_tile(target, only([product(*shape)]), 32).rows <= ways
    half = product(*shape[:2], 512)  # 2048 bytes apart: two sets
    assert choose_tile(target, only([half]), 32).rows > ways


def of_shape(rows: int, columns: int, depth: int) -> Tiling:
    """A product of float32 in tiles of 14 x 32."""
    tiles, panels = -(-rows // 14), -(-columns // 32)
    return Tiling(tiles, panels, rows * depth * 4 // tiles, 32 * depth * 4, 14 * 32 * 8)


def chosen(shape: Tiling, threads: int) -> Blocking:
    extents = {"rows": shape.row_tiles, "panels": shape.panels}
    return blockings([shape], extents, targets.AVX512, 64, threads)[0].content


def passes_over_a(shape: Tiling, blocking: Blocking) -> float:
    """How often A comes from beyond the second-level cache, by the order of loops alone."""
    if blocking.inner == "panels":
        return shape.panels / blocking.count
    block = blocking.count * shape.slab
    return 1 if block + shape.panel <= targets.AVX512.l2 else shape.panels


def test_a_small_b_lets_a_pass_once() -> None:
    shape = of_shape(50176, 256, 64)
    assert shape.slab * shape.row_tiles > targets.AVX512.l3
    assert passes_over_a(shape, chosen(shape, 1)) == 1


def test_few_rows_let_b_pass_once() -> None:
    shape = of_shape(49, 2048, 512)
    assert chosen(shape, 1) == Blocking("rows", shape.row_tiles)


@pytest.mark.parametrize(
    ("shape", "divided"),
    [
        # Rows, columns and depth of pointwise convolutions at 14 x 14 and 28 x 28, which two threads take 0.55 to 0.8
        # of the time for if each reads the rows of A that it wrote; and of two whose weights outweigh that by far.
        ((196, 64, 384), "rows"),
        ((196, 96, 576), "rows"),
        ((784, 512, 128), "rows"),
        ((49, 2048, 512), "panels"),
        ((49, 512, 4608), "panels"),
    ],
    ids=str,
)
def test_threads_divide_the_rows_unless_weights_are_many(shape: tuple[int, int, int], divided: str) -> None:
    tiles = of_shape(*shape)
    blocking = chosen(tiles, 2)
    whole = {"rows": tiles.row_tiles, "panels": tiles.panels}[blocking.inner]
    other = "panels" if blocking.inner == "rows" else "rows"
    assert (blocking.inner if blocking.count < whole else other) == divided


def test_blocks_of_a_batch_divide_one_sample() -> None:
    """The rows of a sample are divided as if it came alone, though a batch has blocks enough without that."""
    sample = Tiling(196, 2, slab=4 * 32 * 4, panel=96 * 32 * 4, tile=4 * 96 * 8)
    batch = replace(sample, row_tiles=1108)
    extents: dict[str, sym.Int] = {"rows": 196 * sym.var("batch", 1, 32), "panels": 2}
    together = blockings([batch, sample], extents, targets.AVX512, 64, 2)[0].content
    assert together.inner == "rows" and together.count <= 98 and 196 % together.count == 0
    fixed = blockings([batch], {"rows": 1108, "panels": 2}, targets.AVX512, 64, 2)[0].content
    assert 196 % fixed.count != 0


@pytest.mark.parametrize("depth", [384, 1536])
def test_threads_have_equal_shares_of_one_sample(depth: int) -> None:
    """22 tiles of rows in blocks of 14 and 8 would leave one of two threads idle for a fifth of the time."""
    rows = 196 * sym.var("batch", 1, 32)
    x, weight = ir.input_("x", (rows, depth), F32), ir.constant(np.ones((384, depth), np.float32))
    graph = ir.Graph("one", (x,), (("y", decompose.linear(x, weight, None)),), tuple(sym.variables(rows)))
    (kernel,) = compile_graph(graph, replace(targets.AVX512, l2=2 << 20, threads=2)).kernels
    assert busy(kernel.nest, 2, batch=1) >= 0.9


def busy(nest: ln.LoopNest, threads: int, **sizes: int) -> float:
    """The share of their time that threads have tiles to sum, each the same part of the tasks of ``nest``."""
    tasks = int(sym.evaluate(nest.task_count, sizes))
    shares = [0] * threads
    for task in range(tasks):
        by, rest = dict(sizes), task
        for loop in reversed(nest.tasks):
            extent = int(sym.evaluate(loop.extent, by))
            by[loop.axis.name], rest = rest % extent, rest // extent
        shares[threads * task // tasks] += tiles_of(nest.tasks[-1].body, by)
    return sum(shares) / (threads * max(shares))


def tiles_of(body: tuple[ln.Statement, ...], by: dict[str, int]) -> int:
    """How many tiles are summed in ``body``."""
    count = 0
    for statement in body:
        if isinstance(statement, ln.Loop) and any(isinstance(s, ln.Contract) for s in walk.statements(statement.body)):
            count += int(sym.evaluate(statement.extent, by)) * tiles_of(statement.body, by)
        count += isinstance(statement, ln.Contract)
    return count


def order_of_tiles(scaled: bool) -> loops.Reorder:
    """How the tiles of ``relu(x @ w * scale + bias + residual)`` are ordered, at sizes where it is a close call."""
    rows, columns, depth = 784, 512, 128
    x, residual = ir.input_("x", (rows, depth), F32), ir.input_("residual", (rows, columns), F32)
    shape, over = (rows, columns), ir.axes((rows, columns))
    total = decompose.linear(x, ir.constant(np.ones((columns, depth), np.float32)), None)
    for op, used, low in ((ops.MUL, scaled, 0.5), (ops.ADD, True, 1.0)):
        vector = ir.constant(np.linspace(low, 2, columns, dtype=np.float32))
        total = ir.elementwise(op, total, ir.view(vector, shape, [over[1]])) if used else total
    total = ir.elementwise(ops.ADD, total, residual)
    (kernel,) = compile_graph(ir.Graph("one", (x, residual), (("y", total),)), targets.AVX512).kernels
    return transforms(kernel, loops.Reorder)[-1]


@pytest.mark.parametrize(
    ("count", "order"),
    [
        (28, ["a0_1", "a2_1", "a0_0", "a3"]),  # four images of seven lines
        (32, ["a0_1", "a2_1", "a0_0", "a3"]),  # no more whole images fit
        (7, ["a0", "a2_1", "a3"]),
        (3, ["a0", "a3_1", "a2_1", "a3_0"]),
        (56, ["a2_1", "a0", "a3"]),
    ],
)
def test_a_block_of_rows_is_as_large_as_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, count: int, order: list[str]
) -> None:
    """Rows of a convolution are a batch and the lines of an image, since windows keep these from being one loop."""
    monkeypatch.setattr(contraction, "blockings", lambda *_: [Candidate("schedule", Blocking("rows", count))])
    x, w = ir.input_("x", (8, 64, 7, 7), F32), ir.constant(np.ones((128, 64, 3, 3), np.float32))
    graph = ir.Graph("conv", (x,), (("y", decompose.conv(x, w, pads_begin=[1, 1], pads_end=[1, 1])),))
    *_, kernel = compile_graph(graph, targets.AVX512).kernels
    assert transforms(kernel, loops.Reorder)[-1].order == tuple(order) and transforms(kernel, Tensorise)


def test_blocks_are_costed_as_they_can_be_made() -> None:
    shape = Tiling(155, 16, slab=23698, panel=589824, tile=1024)
    found = blockings([shape], {"rows": 155, "panels": 16}, targets.AVX512, 64, 2, lambda count: min(count, 5))
    assert {c.content.count for c in found if c.content.inner == "rows"} == {155, 5, 4, 3, 2}


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("target", [targets.AVX512, targets.AVX2, targets.AARCH64], ids=lambda target: target.name)
def test_few_rows_of_a_number_that_is_not_known_are_tiles(target: targets.Target, least: int) -> None:
    """Where there may be one tile alone, nothing is fetched for the next; some tiles are as high as all rows are."""
    for most in range(2, 17):
        rows = sym.var("rows", least, most)
        for depth, columns in ((768, 768), (768, 1000), (2048, 1000)):
            x = ir.input_("x", (rows, depth), types.f32)
            y = decompose.matmul(x, ir.constant(np.ones((depth, columns), np.float32)))
            program = compile_graph(ir.Graph("few", (x,), (("y", y),), tuple(sym.variables(rows))), target)
            assert not refusals(program), (most, depth, columns)


def test_parts_are_near_equal() -> None:
    for count in range(1, 300):
        assert near_equal(count) == sorted({-(-count // parts) for parts in range(1, count + 1)}, reverse=True)


def test_many_tiles_are_not_tried_one_by_one() -> None:
    asked: list[int] = []

    def of_rows(count: int) -> int:
        asked.append(count)
        return count

    blockings([of_shape(10**8, 64, 64)], {"rows": 10**8 // 14, "panels": 2}, targets.AVX512, 64, 2, of_rows)
    assert len(asked) < 10**4


def test_vectors_beside_a_tile_do_not_decide_the_order() -> None:
    """A batch normalisation that an exporter folded into the weights leaves one vector of two."""
    assert order_of_tiles(scaled=True) == order_of_tiles(scaled=False)


@pytest.mark.parametrize("rows", [7, 131, 523, 1000])
@pytest.mark.parametrize("columns", [32, 96, 2048])
def test_blocks_leave_enough_tasks(rows: int, columns: int) -> None:
    """Blocks are equal, so that the loop inside them can number tasks as well, or there are many."""
    shape = of_shape(14 * rows, columns, 300)
    blocking = chosen(shape, 1)
    whole, other = (shape.panels, shape.row_tiles) if blocking.inner == "panels" else (shape.row_tiles, shape.panels)
    assert whole % blocking.count == 0 or -(-whole // blocking.count) * other >= 64


def tiles(node: ir.Node, *inputs: ir.Node) -> list[ln.Contract]:
    return contracts(compile_graph(ir.Graph("one", inputs, (("y", node),)), targets.AVX512))


@pytest.mark.parametrize("depth", [64, 384, 768, 2048, 5632])
def test_an_accumulator_sums_few_products(depth: int) -> None:
    x, weight = ir.input_("x", (20, depth), F32), ir.constant(np.zeros((40, depth), np.float32))
    (contract,) = tiles(decompose.linear(x, weight, None), x)
    extents = [sym.evaluate(loop.extent, {}) for loop in contract.loops]
    assert math.prod(extents) == depth
    assert math.prod(extents[contract.outer :]) <= TERMS_PER_BLOCK


@pytest.mark.parametrize("depth", [1006, 1009, 4099])
def test_a_sum_that_blocks_do_not_divide_has_blocks_of_near_equal_size(depth: int) -> None:
    x, weight = ir.input_("x", (20, depth), F32), ir.constant(np.zeros((40, depth), np.float32))
    (contract,) = tiles(decompose.linear(x, weight, None), x)
    blocks, terms = contract.loops
    assert contract.outer == 1 and isinstance(blocks.extent, int)
    lengths = [sym.evaluate(terms.extent, {blocks.axis.name: number}) for number in range(blocks.extent)]
    assert sum(lengths) == depth and max(lengths) <= TERMS_PER_BLOCK and lengths[0] - lengths[-1] < len(lengths)


def serial_product(rows: sym.Int, columns: int, depth: int, panel: int = 8) -> ln.LoopNest:
    """c[i, j] = sum over k of a[i, k] * b[k, j] in panels of so many columns, every loop serial."""
    i, j, k = sym.axis("i", rows), sym.axis("j", columns), sym.axis("k", depth)
    a = ln.load("a", i * depth + k, F32)
    b = ln.load("b", sym.floordiv(j, panel) * (panel * depth) + k * panel + sym.mod(j, panel), F32)
    i_axis, j_axis, k_axis = (v for e in (i, j, k) if (v := sym.as_var(e)) is not None)
    total = ln.Reduction(
        "s", ops.SUM_REDUCE, F32, (ln.Loop(k_axis, depth, "serial", ()),), (), ln.apply(ops.MUL, (a, b), None, F32)
    )
    store = ln.Store("c", i * columns + j, ln.temporary("s", F32))
    body = ln.Loop(i_axis, rows, "serial", (ln.Loop(j_axis, columns, "serial", (total, store)),))
    arrays = (ln.Array("a", F32, False), ln.Array("b", F32, False), ln.Array("c", F32, True))
    return ln.LoopNest(arrays, (), (body,))


def run_product(nest: ln.LoopNest) -> np.ndarray:
    random = np.random.default_rng(5)
    arrays = {
        "a": random.integers(-9, 9, 10 * 12).astype(np.float32),
        "b": random.integers(-9, 9, 12 * 24).astype(np.float32),
        "c": np.zeros(10 * 24, np.float32),
    }
    interpreter.run(nest, arrays)
    return arrays["c"]


TILED = (loops.Split("k", 4), Tensorise("i", "j", 4, 8, 8))


def test_transforms_of_tiles_change_no_value() -> None:
    nest = serial_product(10, 24, 12)
    orders = (("j_1", "i_1"), ("i_1", "j_1"))
    expected = run_product(nest)
    for order in orders:
        schedule = (*TILED, loops.Reorder(order), SumInBlocks(1), loops.Parallelise(1))
        np.testing.assert_array_equal(run_product(loops.apply(nest, schedule)), expected)


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ((SumInBlocks(1),), "there is no tile"),
        ((*TILED, SumInBlocks(2)), "2 of 2 loops leave no sum of blocks"),
    ],
    ids=str,
)
def test_an_illegal_transform_of_tiles_says_why(schedule: loops.Schedule, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        loops.apply(serial_product(10, 24, 12), schedule)


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ({"accumulate": True}, "outer and accumulate"),
        ({"unit": DOT_BF16}, "outer and unit"),
        ({"outer": 0, "unit": DOT_BF16, "a_ahead": Var("k_1", 0, 2)}, "a_ahead and unit"),
        (
            {"outer": 0, "unit": DOT_BF16, "prologue": ln.Prologue(Var("j", 0, 7), ln.literal(bytes(4), F32))},
            "unit and",
        ),
    ],
    ids=str,
)
def test_a_tile_that_no_code_computes_is_refused(added: dict[str, Any], reason: str) -> None:
    nest = loops.apply(serial_product(10, 24, 12), (*TILED, SumInBlocks(1)))
    (contract,) = (s for s in walk.statements(nest.body) if isinstance(s, ln.Contract))
    with pytest.raises(SpecError, match=reason):
        replace(contract, **added)


def test_a_size_between_bounds_stands_for_their_geometric_mean() -> None:
    """Most runs are far below the bounds: a batch of up to 32 sequences of up to 256 tokens is about a hundred rows."""
    batch, length = sym.var("batch", 1, 32), sym.var("length", 1, 256)
    assert typical(batch * length) == 90
    assert typical(length + 255) == 361
    assert typical(7) == 7
