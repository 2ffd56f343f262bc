"""Products on the matrix units of CPUs, and contractions whose operands are stored in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import luminal
from luminal.comparison import survival
from luminal.core import device, interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.costs import COSTS
from luminal.core.decompose import contraction as decompose
from luminal.core.decompose.reduction import softmax
from luminal.core.errors import ScheduleError
from luminal.core.matrix import AMX_BF16, AMX_INT8, DOT_BF16, MatrixUnit
from luminal.core.pipeline import compile_graph
from luminal.core.precision import BF16, FP32, STORED, Precision
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.contraction.tile import step_depth
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.numeric.rounding import rounded
from luminal.core.schedule.transform.stream import Stream
from luminal.core.schedule.transform.tensorise import check_run, grouped_start
from luminal.core.symbolic import Int
from luminal.core.target import Target
from luminal.module import Module
from luminal.process import Process
from tests import tiles
from tests.schedule_graphs import Source
from tests.schedule_support import changed, contracts, refusals, run_program, transformed, transforms

Array = np.ndarray[Any, Any]

UNIT = AMX_BF16
UNITS = {"amx": AMX_BF16, "avx512-bf16": DOT_BF16}  # each target's, and what multiplies bfloat16 there
TARGETS = {name: targets.parse(name, "bf16") for name in UNITS}
HERE = [
    pytest.param(name, marks=pytest.mark.skipif(bool(tiles.missing(target)), reason=tiles.missing(target)))
    for name, target in TARGETS.items()
]
on_each = pytest.mark.parametrize("target", UNITS)
here = pytest.mark.parametrize("target", HERE)


def product(rows: Int, depth: int, columns: int) -> ir.Graph:
    x = ir.input_("x0", (rows, depth), types.f32)
    y = decompose.matmul(x, Source().weight(depth, columns))
    return ir.Graph("product", (x,), (("y", y),), tuple(sym.variables(rows)))


def values(graph: ir.Graph, sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    shapes = {n.attr.name: [sym.evaluate(size, sizes or {}) for size in n.shape] for n in graph.inputs}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def assert_rounded_product(
    graph: ir.Graph, inputs: dict[str, Array], found: Array, depth: int, precision: Precision = BF16
) -> None:
    """``found`` is the product of the rounded operands: as near as a sum of ``depth`` terms in float32 is."""
    (exact,) = interp.run(rounded(Contracted.of(graph), precision).graph, inputs).outputs
    scale = max(1.0, float(np.abs(exact).max(initial=0.0)))
    assert np.abs(found - exact).max(initial=0.0) <= 4 * np.sqrt(depth) * types.f32.eps * scale


# ---- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "depth"),
    [
        ((768,), 32), ((48,), 24), ((16,), 16), ((24,), 24), ((6,), 6), ((37,), 32), ((5,), 6),
        ((1500,), 32), ((197,), 32), ((3, 64), 32),
        ((3, 3, 24), 24), ((2, 80), 20), ((3, 3, 3), 0), ((7, 74), 0), ((1, 37), 32), ((1, 197), 32),
    ],
)  # fmt: skip
def test_a_step_takes_whole_groups_and_ends_where_a_run_does(sizes: tuple[int, ...], depth: int) -> None:
    found = step_depth(UNIT, list(sizes))
    assert found == depth and found % UNIT.group == 0
    assert found == 0 or all(size == 1 for size in sizes[:-1]) or sizes[-1] % found == 0


@pytest.mark.parametrize(
    ("sizes", "depth"), [((4,), 4), ((3, 3, 4), 0), ((3, 3, 8), 8), ((3, 3, 64), 64), ((130,), 64), ((3, 80), 40)]
)
def test_a_step_of_bytes_is_no_slower_than_vectors(sizes: tuple[int, ...], depth: int) -> None:
    assert step_depth(AMX_INT8, list(sizes)) == depth


def test_vectors_take_runs_of_any_length() -> None:
    assert step_depth(DOT_BF16, [3, 3, 3]) == DOT_BF16.depth and step_depth(DOT_BF16, [sym.var("n", 1, 9)]) == 2


def test_a_size_that_is_not_fixed_is_taken_in_whole_steps() -> None:
    size = sym.var("n", 1, 100)
    assert step_depth(UNIT, [size]) == UNIT.depth and step_depth(UNIT, [3, size]) == 0


def test_terms_that_lie_elsewhere_are_refused() -> None:
    k, n = sym.var("k", 0, 63), sym.var("n", 0, 31)
    axis = sym.as_var(k)
    assert axis is not None
    offset = 7 + sym.floordiv(k, 2) * 64 + 2 * n + sym.mod(k, 2)
    assert grouped_start(offset, axis, n, 32, UNIT) == 7
    for wrong in (7 + 32 * k + n, offset + n, offset + 64 * k):
        with pytest.raises(ScheduleError, match="32 columns of B do not lie in groups of 2 along k"):
            grouped_start(wrong, axis, n, 32, UNIT)
    check_run(3 + k, axis)
    with pytest.raises(ScheduleError, match="terms along k do not lie side by side in A"):
        check_run(3 + 5 * k, axis)


def test_tiles_that_a_process_may_not_use_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "text", lambda _: "flags\t\t: avx512_bf16 amx_bf16 amx_tile amx_int8\n")
    tiles = {*AMX_BF16.features, *AMX_INT8.features}
    for permitted, expected in ((True, tiles), (False, {"avx512_bf16"})):
        monkeypatch.setattr(device, "may_use_tiles", lambda permitted=permitted: permitted)
        assert targets._cpu_features.__wrapped__() == expected


def test_a_size_that_is_not_known_is_no_reason_for_low_tiles() -> None:
    """Of 1 to 256 positions, 16 are typical, which tiles of 16 rows suit: of others, that says nothing."""
    batch, seq = sym.var("batch", 1, 32), sym.var("seq", 1, 256)
    x = ir.input_("x0", (batch, seq, 768), types.f32)
    y = decompose.linear(x, Source().weight(3072, 768), None)
    dims = tuple(v for size in (batch, seq) if (v := sym.as_var(size)) is not None)
    (contract,) = contracts(compile_graph(ir.Graph("linear", (x,), (("y", y),), dims), TARGETS["amx"]))
    assert (contract.max_rows, contract.columns) == (32, 32)


# ---- nests -----------------------------------------------------------------------------------------------------------


@on_each
@settings(max_examples=12, deadline=None)
@given(st.integers(2, 40), st.integers(2, 40), st.integers(2, 40))
def test_a_product_of_any_size_is_that_of_the_rounded_operands(
    target: str, rows: int, depth: int, columns: int
) -> None:
    graph = product(rows, depth, columns)
    program = compile_graph(graph, TARGETS[target])
    assert [c.unit for c in contracts(program)] == [UNITS[target]]
    inputs = values(graph)
    assert_rounded_product(graph, inputs, run_program(program, inputs)["y"], depth)


@on_each
def test_rows_of_any_number_are_multiplied(target: str) -> None:
    rows = sym.var("rows", 1, 70)
    graph = product(rows, 20, 24)
    program = compile_graph(graph, TARGETS[target])
    assert [c.unit for c in contracts(program)] == [UNITS[target]]
    for count in (1, 16, 33):
        inputs = values(graph, {"rows": count})
        assert_rounded_product(graph, inputs, run_program(program, inputs)["y"], 20)


def windows(s: Source) -> ir.Node:
    x = s.input(1, 4, 7, 6)
    return decompose.conv(x, s.weight(6, 4, 3, 3), None, pads_begin=(1, 1), pads_end=(1, 1))


def pointwise(s: Source) -> ir.Node:
    return decompose.conv(s.input(1, 6, 5, 5), s.weight(18, 6, 1, 1), None)


def few_channels(s: Source) -> ir.Node:
    """Runs of three terms, which no group of two divides."""
    return decompose.conv(s.input(1, 3, 9, 9), s.weight(20, 3, 3, 3), None, strides=(2, 2))


def attention(s: Source) -> ir.Node:
    q, k, v = (s.input(2, 11, 6) for _ in range(3))
    return decompose.matmul(softmax(decompose.matmul(q, movement.transpose(k, 1, 2)), 2), v)


@on_each
@pytest.mark.parametrize("build", [windows, pointwise, few_channels, attention])
def test_windows_and_chains_are_multiplied_by_the_unit(build: Callable[[Source], ir.Node], target: str) -> None:
    source = Source()
    y = build(source)
    graph = ir.Graph("model", tuple(source.nodes), (("y", y),))
    program = compile_graph(graph, TARGETS[target])
    found = contracts(program)
    unit = DOT_BF16 if build is few_channels else UNITS[target]
    assert found and all(c.unit == unit for c in found)
    assert not refusals(program)
    (exact,) = interp.run(graph, source.arrays, "float64").outputs
    result = run_program(program, source.arrays)["y"]
    error = np.abs(result - exact).max() / np.abs(exact).max()
    # Both operands of each product are rounded, and independently: errors of single terms average out.
    assert types.f32.eps * 100 < error < 4 * BF16.unit


BORDER: dict[str, Any] = {"pads_begin": (1, 1), "pads_end": (1, 1)}


def window_of(channels: int, width: int, **how: Any) -> Callable[[Source], ir.Node]:
    return lambda s: decompose.conv(s.input(2, channels, 11, 12) * 2, s.weight(20, channels, 3, width), None, **how)


def read_by_two(s: Source) -> ir.Node:
    """Channel by channel, and by windows, whose runs are longer."""
    x = s.input(1, 3, 9, 9) * 2
    first = decompose.conv(x, s.weight(20, 3, 1, 1), None, **BORDER)
    inside = movement.slice_(movement.slice_(first, 2, 1, 9), 3, 1, 9)
    return inside + decompose.conv(x, s.weight(20, 3, 3, 3), None, **BORDER)


def part_of_another(s: Source) -> ir.Node:
    """What is read lies beside another value, whose channels are read together."""
    i = s.input(1, 8, 9, 9)
    x, z = (decompose.conv(i, s.weight(channels, 8, 1, 1), None) for channels in (3, 5))
    both = decompose.conv(movement.concatenate([x, z], 1), s.weight(20, 8, 1, 1), None)
    return both + decompose.conv(x, s.weight(20, 3, 3, 3), None, **BORDER)


def turned(s: Source) -> ir.Node:
    """Of an image whose columns come before its rows."""
    x = movement.transpose(s.input(2, 3, 12, 11), 2, 3) * 2
    return decompose.conv(x, s.weight(20, 3, 3, 3), None, **BORDER)


def stored_in_two_bytes(s: Source) -> ir.Node:
    """An input, whose channels come first."""
    x, weight = (s.input(*shape, dtype=types.bf16) for shape in ((1, 3, 9, 9), (20, 3, 3, 3)))
    return decompose.conv(ir.cast(x, types.f32), ir.cast(weight, types.f32), None, **BORDER)


@pytest.mark.usefixtures("sums_as_spelled")
@pytest.mark.parametrize(
    ("build", "terms"),
    [
        pytest.param(window_of(3, 3, **BORDER), 9, id="odd"),
        pytest.param(window_of(3, 7, strides=(2, 2), pads_begin=(1, 3), pads_end=(1, 3)), 21, id="far apart"),
        pytest.param(window_of(4, 3, **BORDER), 4, id="even"),
        pytest.param(window_of(3, 3, dilations=(1, 2), **BORDER), 3, id="dilated"),
        pytest.param(window_of(3, 3), 3, id="no border"),
        pytest.param(read_by_two, 9, id="read by two"),
        pytest.param(part_of_another, 9, id="part of another"),
        pytest.param(turned, 9, id="turned"),
        pytest.param(stored_in_two_bytes, 9, id="an input"),
    ],
)
def test_the_channels_of_a_window_s_positions_are_one_run(build: Callable[[Source], ir.Node], terms: int) -> None:
    """Where a step takes two terms, the channels are odd, and a border is put around them: no step is then half empty
    but the last of a line."""
    source = Source()
    y = build(source)
    graph = ir.Graph("model", tuple(source.nodes), (("y", y),))
    program = compile_graph(graph, TARGETS["avx512-bf16"])
    found = contracts(program)
    assert not refusals(program)
    assert all(c.unit == DOT_BF16 for c in found) and terms in [c.loops[-1].extent for c in found]
    assert_rounded_product(graph, source.arrays, run_program(program, source.arrays)["y"], 105)


def patches(s: Source) -> ir.Node:
    """Windows side by side, without a border: three channels of six positions are 18 terms."""
    return decompose.conv(s.input(2, 3, 12, 18) * 2, s.weight(20, 3, 6, 6), None, strides=(6, 6))


@pytest.mark.parametrize(
    ("build", "unit", "depth"),
    [
        pytest.param(window_of(3, 3, **BORDER), AMX_BF16, 12, id="a channel of zeros"),
        pytest.param(window_of(3, 7, strides=(2, 2), pads_begin=(1, 3), pads_end=(1, 3)), AMX_BF16, 28, id="far apart"),
        pytest.param(window_of(4, 3, **BORDER), AMX_BF16, 12, id="even"),
        pytest.param(window_of(24, 3, **BORDER), AMX_BF16, 24, id="long enough"),
        pytest.param(patches, AMX_BF16, 18, id="no border"),
        pytest.param(window_of(3, 3, dilations=(1, 2), **BORDER), AMX_BF16, 4, id="dilated"),
        pytest.param(stored_in_two_bytes, AMX_BF16, 12, id="an input"),
        pytest.param(window_of(3, 3, dilations=(1, 2)), DOT_BF16, 2, id="dilated, no border"),
    ],
)
def test_few_channels_of_a_window_are_taken_together_by_matrices(
    build: Callable[[Source], ir.Node], unit: MatrixUnit, depth: int
) -> None:
    """What lies beside the channels, and is multiplied by zeros, are zeros: an infinity stays where it is."""
    source = Source()
    y = build(source)
    graph = ir.Graph("model", tuple(source.nodes), (("y", y),))
    program = compile_graph(graph, TARGETS["amx"])
    assert not refusals(program)
    assert [(c.unit, c.depth) for c in contracts(program)] == [(unit, depth)]
    assert_rounded_product(graph, source.arrays, run_program(program, source.arrays)["y"], 216)
    first = source.arrays[graph.inputs[0].attr.name]
    first[0, 0, 5, 6] = np.inf
    (exact,) = interp.run(rounded(Contracted.of(graph), BF16).graph, source.arrays).outputs
    found = run_program(program, source.arrays)["y"]
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(exact))


@pytest.mark.usefixtures("sums_as_spelled")
def test_a_part_of_another_value_is_copied_for_longer_runs() -> None:
    """Between the channels of its positions are those of its neighbour."""
    source = Source()
    i = source.input(1, 8, 12, 12)
    x, z = (decompose.conv(i, source.weight(channels, 8, 1, 1), None) for channels in (15, 17))
    both = decompose.conv(movement.concatenate([x, z], 1), source.weight(20, 32, 1, 1), None)
    patched = decompose.conv(x, source.weight(20, 15, 2, 2), None, strides=(2, 2))
    graph = ir.Graph("model", tuple(source.nodes), (("y0", both), ("y1", patched)))
    program = compile_graph(graph, TARGETS["amx"])
    assert not refusals(program)
    assert {c.unit for c in contracts(program)} == {AMX_BF16} and 30 in [c.depth for c in contracts(program)]
    expected = interp.run(rounded(Contracted.of(graph), BF16).graph, source.arrays).outputs
    for found, exact in zip(run_program(program, source.arrays).values(), expected, strict=True):
        assert np.abs(found - exact).max() <= 4 * np.sqrt(60) * BF16.unit * np.abs(exact).max()


def test_runs_that_suit_the_unit_are_read_where_they_lie() -> None:
    """Heads of twelve terms are steps of twelve; one axis of both would need a copy."""
    source = Source()
    x, weight = source.input(2, 8, 33, 12, dtype=types.bf16), source.input(8, 12, 24, dtype=types.bf16)
    total = decompose.einsum("bhsd,hdn->bsn", ir.cast(x, types.f32), ir.cast(weight, types.f32))
    program = compile_graph(ir.Graph("heads", tuple(source.nodes), (("y", total),)), TARGETS["amx"])
    assert [(c.unit, c.depth) for c in contracts(program)] == [(AMX_BF16, 12)]


@pytest.mark.parametrize("target", ["avx512", *UNITS])
def test_a_row_reads_a_computed_operand_where_it_lies(target: str) -> None:
    """Packing would cost more than the row: what a step of decoding multiplies its cache with."""
    source = Source()
    v, y = source.input(3, 1, 64, dtype=types.bf16), source.input(3, 64, 32, dtype=types.bf16)
    graph = ir.Graph("rows", tuple(source.nodes), (("y", decompose.matmul(v, y)),))
    (contract,) = contracts(compile_graph(graph, targets.parse(target)))
    assert contract.unit is None and contract.b_type == types.bf16


def test_a_factor_that_is_computed_is_stored_for_the_tile() -> None:
    source = Source()
    v, x, y = (ir.expand(source.input(*shape), (3, 64, 64)) for shape in ((3, 64, 1), (3, 64, 1), (3, 1, 64)))
    total = ir.reduce(ops.SUM_REDUCE, v * (x + y), [1])
    graph = ir.Graph("sums", tuple(source.nodes), (("y", total),))
    assert len(contracts(compile_graph(graph, targets.AVX512))) == 1


def transposed_too(s: Source) -> ir.Node:
    h = s.input(20, 20) * 2
    first, second = (decompose.matmul(x, s.weight(20, 24)) for x in (h, movement.transpose(h, 0, 1)))
    return first + second


def a_transposed_input(s: Source) -> ir.Node:
    return decompose.matmul(
        movement.transpose(s.input(20, 28, dtype=types.bf16), 0, 1), s.weight(20, 24, dtype=types.bf16)
    )


@on_each
@pytest.mark.parametrize("build", [transposed_too, a_transposed_input])
def test_what_is_read_along_two_axes_is_copied(build: Callable[[Source], ir.Node], target: str) -> None:
    source = Source()
    y = build(source)
    graph = ir.Graph("model", tuple(source.nodes), (("y", y),))
    program = compile_graph(graph, TARGETS[target])
    assert not refusals(program)
    assert all(c.unit == UNITS[target] for c in contracts(program)) and contracts(program)
    (expected,) = interp.run(rounded(Contracted.of(graph), BF16).graph, source.arrays).outputs
    found = run_program(program, source.arrays)["y"].astype(np.float64)
    eps = max(y.dtype.eps, types.f32.eps)
    np.testing.assert_allclose(found, expected.astype(np.float64), atol=eps * 4 * 20**0.5 * np.abs(expected).max())


@on_each
@pytest.mark.parametrize("keys", [45, 130, 196])
def test_blocks_of_a_chain_read_no_more_than_they_add(keys: int, target: str) -> None:
    """What lies behind the last key of one sample is another's, and may be anything."""
    source = Source()
    q, k, v = source.input(2, 20, 12), source.input(2, keys, 12), source.input(2, keys, 12)
    y = decompose.matmul(softmax(decompose.matmul(q, movement.transpose(k, 1, 2)), 2), v)
    graph = ir.Graph("model", tuple(source.nodes), (("y", y),))
    program = compile_graph(graph, TARGETS[target])
    assert transformed(program, Stream)
    source.arrays["x2"][1] = np.nan
    (expected,) = interp.run(graph, source.arrays, "float64").outputs
    found = run_program(program, source.arrays)["y"]
    assert np.isnan(found[1]).all() and np.abs(found[0] - expected[0]).max() < 4 * BF16.unit * np.abs(expected[0]).max()


@on_each
def test_a_chain_rounds_its_weights_where_the_precision_was_chosen(target: str) -> None:
    source = Source()
    y = attention(source)
    graph = ir.Graph("model", tuple(source.nodes), (("y", y),))
    (kernel,) = transformed(compile_graph(graph, TARGETS[target]), Stream)
    assert [stream.operand for stream in transforms(kernel, Stream)] == [types.bf16]
    exact = rounded(Contracted.of(graph), BF16).graph  # the same roundings, but those of the model itself
    assert not transformed(compile_graph(exact, targets.parse(target)), Stream)


@on_each
def test_blocks_of_a_chain_have_more_columns_where_operands_have_fewer_bits(target: str) -> None:
    source = Source()
    q, k, v = source.input(1, 256, 64), source.input(1, 4000, 64), source.input(1, 4000, 64)
    y = decompose.matmul(softmax(decompose.matmul(q, movement.transpose(k, 1, 2)), 2), v)
    graph = ir.Graph("model", tuple(source.nodes), (("y", y),))
    columns = {}
    for chosen in (targets.parse(target), TARGETS[target]):
        (kernel,) = transformed(compile_graph(graph, chosen), Stream)
        (columns[chosen.precision],) = (stream.block for stream in transforms(kernel, Stream))
        assert walk.stack_bytes(kernel.nest) < 2 * COSTS.stack.chain
    most = COSTS.sizes.chain_columns
    assert columns[FP32] == most and most * 1.5 < columns[BF16] <= most * 2


@on_each
def test_groups_in_another_order_give_another_product(target: str) -> None:
    graph = product(5, 8, 12)
    program = compile_graph(graph, TARGETS[target])
    inputs = values(graph)
    right = run_program(program, inputs)["y"]
    other = replace(UNITS[target], group=1)

    def change(body: tuple[ln.Statement, ...]) -> tuple[ln.Statement, ...]:
        inner = (replace(s, body=change(s.body)) if isinstance(s, ln.Loop | ln.If) else s for s in body)
        return tuple(replace(s, unit=other) if isinstance(s, ln.Contract) else s for s in inner)

    kernels = tuple(changed(k, body=change(k.nest.body)) for k in program.kernels)
    assert not np.allclose(run_program(replace(program, kernels=kernels), inputs)["y"], right, rtol=0.05)


@pytest.mark.parametrize("precision", STORED, ids=repr)
@pytest.mark.parametrize("name", ["x86-64", "avx2", "aarch64"])
def test_other_cpus_round_alike_and_store_weights_in_fewer_bits(name: str, precision: Precision) -> None:
    graph = product(5, 8, 12)
    inputs = values(graph)
    program = compile_graph(graph, targets.parse(name, precision.name))
    (contract,) = contracts(program)
    assert contract.unit is None and (contract.a_type, contract.b_type) == (types.f32, precision.stored)
    assert_rounded_product(graph, inputs, run_program(program, inputs)["y"], 8, precision)


def test_units_read_what_is_made_contiguous_in_fewer_bits() -> None:
    x = ir.input_("x0", (32, 64), types.f32)
    moved = ir.unary(ops.CONTIGUOUS, movement.transpose(ir.unary(ops.EXP2, x), 0, 1))
    graph = ir.Graph("product", (x,), (("y", decompose.matmul(moved, Source().weight(32, 48))),))
    (contract,) = contracts(compile_graph(graph, targets.parse("amx", "bf16")))
    assert contract.unit is not None and contract.a_type == types.bf16


# ---- compiled --------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    """Products of every kind: rows and terms that leave tails, heads, windows, attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(24, 40, 3, padding=1)
        self.qkv, self.out, self.up = nn.Linear(40, 120), nn.Linear(40, 37), nn.Linear(37, 50)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.conv(x)).transpose(1, 2)
        q, k, v = (part.unflatten(-1, (2, 20)).transpose(1, 2) for part in self.qkv(h).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        return h, self.up(self.out(seen.transpose(1, 2).flatten(2)))


@cache
def compiled(target: str) -> Module:
    module = luminal.compile(Model().eval(), (torch.randn(2, 24, 45),), target=runnable(target))
    assert isinstance(module, Module)
    return module


def runnable(target: str) -> Target:
    return tiles.runnable(TARGETS[target])


@here
def test_a_library_computes_what_its_nests_do(target: str) -> None:
    module = compiled(target)
    assert module.program is not None and module.graph is not None
    assert {c.unit.name for c in contracts(module.program) if c.unit} == {UNITS[target].name}
    assert all(c.unit for c in contracts(module.program))
    (name,) = module.input_names
    x = torch.randn(2, 24, 45, generator=torch.Generator().manual_seed(1))
    found = module.run({name: x.numpy()})
    expected = run_program(compile_graph(module.graph, TARGETS[target]), {name: x.numpy()})
    for key, value in expected.items():
        scale = np.abs(value).max()
        # A sum that is rounded to bfloat16 again may fall on the other side.
        assert np.abs(found[key] - value).max() <= 4 * BF16.unit * scale
    first = module.output_names[0]
    np.testing.assert_allclose(found[first], expected[first], atol=1e-5)


@here
def test_results_do_not_depend_on_the_number_of_threads(target: str) -> None:
    module = compiled(target)
    (name,) = module.input_names
    x = {name: torch.randn(2, 24, 45, generator=torch.Generator().manual_seed(1)).numpy()}
    one = luminal.load(module.folder, threads=1).run(x)
    for key, value in module.run(x).items():
        np.testing.assert_array_equal(one[key], value)


@here
def test_what_lies_beyond_a_row_does_not_count(target: str) -> None:
    """The last step of a row of 37 terms reads none of the next row, which may hold anything."""
    graph = product(20, 37, 24)
    module = luminal.compile(Linear(37, 24).eval(), (torch.randn(20, 37),), target=runnable(target))
    assert isinstance(module, Module)
    inputs = values(graph)["x0"]
    expected = module.run({module.input_names[0]: inputs})[module.output_names[0]]
    inputs[1::2] = np.array([np.inf, np.nan], np.float32)[np.arange(10) % 2, None]
    found = module.run({module.input_names[0]: inputs})[module.output_names[0]]
    np.testing.assert_array_equal(found[::2], expected[::2])
    assert not np.isfinite(found[1::2]).any()


class Linear(nn.Linear):
    """A layer of random weights."""


class Attention(nn.Module):
    """Attention as it stands."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(1, 2), 2) @ v


@here
@pytest.mark.parametrize("keys", [45, 196])
def test_a_library_s_chains_read_no_more_than_they_add(keys: int, target: str) -> None:
    q, k, v = torch.randn(2, 20, 12), torch.randn(2, keys, 12), torch.randn(2, keys, 12)
    module = luminal.compile(Attention(), (q, k, v), target=runnable(target))
    assert isinstance(module, Module) and module.program is not None
    assert transformed(module.program, Stream)
    before = module.run({"q": q.numpy(), "k": k.numpy(), "v": v.numpy()})[module.output_names[0]]
    v[1] = torch.nan
    after = module.run({"q": q.numpy(), "k": k.numpy(), "v": v.numpy()})[module.output_names[0]]
    np.testing.assert_array_equal(before[0], after[0])
    assert np.isnan(after[1]).all()


@on_each
def test_the_library_asks_for_the_unit_only_where_it_is_used(target: str) -> None:
    layer, inputs = Linear(8, 8).eval(), (torch.randn(4, 8),)
    module, exact = (luminal.compile(layer, inputs, precision=p, target=target) for p in ("bf16", "fp32"))
    assert isinstance(module, Module) and isinstance(exact, Module)
    assert set(UNITS[target].features) <= set(module.manifest["target"]["features"])
    assert not set(UNITS[target].features) & set(exact.manifest["target"]["features"])
    assert module.manifest["target"]["precision"] == "bf16"


@pytest.fixture
def tried_with_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Libraries are tried in a process that has emulated matrix units, as this one."""
    process = Process("tests.tried_with_tiles")
    monkeypatch.setattr(survival, "_process", process)
    yield
    process.stop()


@here
def test_diff_allows_for_the_precision(target: str, request: pytest.FixtureRequest) -> None:
    if runnable(target) is not TARGETS[target]:
        request.getfixturevalue("tried_with_tiles")
    report = luminal.diff(Model().eval(), (torch.randn(2, 24, 45),), target=runnable(target))
    assert report.ok and f"for {target}, bf16" in str(report)


def test_operands_of_float16_are_nearer_and_overflow() -> None:
    """11 significant bits, but numbers beyond 65504 are infinite: the same from the library and the interpreter."""
    layer, x = Linear(40, 24).eval(), torch.randn(20, 40)
    modules = {name: luminal.compile(layer, (x,), precision=name) for name in ("bf16", "fp16")}
    with torch.no_grad():
        error = {name: float((module(x) - layer(x)).abs().max()) for name, module in modules.items()}
        assert 0 < error["fp16"] < error["bf16"] / 4
        large = modules["fp16"](x * 1e5)
        assert torch.isfinite(modules["bf16"](x * 1e5)).all() and not torch.isfinite(large).any()
    assert luminal.diff(layer, (x,), precision="fp16").ok
