"""Weights that stay narrow: the prologue of a contraction, against the interpreter and onnxruntime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import luminal
from luminal.core import interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.constants import is_constant
from luminal.core.decompose import contraction
from luminal.core.errors import ScheduleError
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph, compile_graphs
from luminal.core.schedule.contraction import narrow as dequantise
from luminal.core.schedule.contraction.narrow import narrowest
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import accesses
from luminal.core.schedule.program.ir import Program
from luminal.core.schedule.transform.tensorise import ScaleSums, Tensorise
from luminal.core.schedule.transform.unpack import Unpack
from luminal.core.symbolic import Int
from luminal.core.types import DType
from luminal.frontends.fx import importer as fx
from luminal.frontends.onnx import importer
from luminal.module import Module
from tests import onnx_models
from tests.schedule_support import contracts, run_program, transforms

Array = np.ndarray


def integers(dtype: DType, *shape: int, seed: int = 0) -> Array:
    """Every value of ``dtype``, its ends among them."""
    found = np.random.default_rng(seed).integers(int(dtype.min), int(dtype.max) + 1, shape)
    found.reshape(-1)[:2] = dtype.min, dtype.max
    return found.astype(np.int16).astype(dtype.numpy)


def dequantised(weight: Array, group: int, *, zero: DType | None = None, scale: DType = types.f32) -> Node:
    """``[N, K]`` real weights: ``(weight - zero) * scale``, with a scale and a zero point for each ``group`` of K."""
    columns, depth = weight.shape
    rng = np.random.default_rng(1)
    grouped = movement.reshape(ir.constant(weight), [columns, depth // group, group])
    whole = ir.cast(grouped, types.f32)
    if zero is not None:
        whole = whole - ir.cast(ir.constant(integers(zero, columns, depth // group, 1)), types.f32)
    scales = rng.uniform(0.5, 2.0, (columns, depth // group, 1)).astype(scale.numpy)
    return movement.reshape(whole * ir.cast(ir.constant(scales), types.f32), [columns, depth])


def product(rows: int, weight: Node) -> Graph:
    x = ir.input_("x", (rows, weight.shape[1]), types.f32)
    result = contraction.matmul(x, movement.transpose(weight, 0, 1))
    return Graph("product", (x,), (("y", result),), ())


def arrays(program: Program) -> dict[str, tuple[DType, int]]:
    """The constants of a program: type and bytes."""
    return {b.name: (b.dtype, b.size) for b in program.buffers if b.space == "constant"}


def prologues(program: Program) -> list[ln.Prologue]:
    return [tile.prologue for tile in contracts(program) if tile.prologue is not None]


def check(graph: Graph, program: Program, weight: Node) -> None:
    """Rows of the unit matrix read the weights out, bit for bit; others are summed as the interpreter sums them."""
    (x,) = graph.inputs
    rows, depth = x.shape
    unit = np.zeros((rows, depth), np.float32)
    at = np.linspace(0, depth - 1, rows).astype(int)
    unit[np.arange(rows), at] = 1
    (exact,) = interp.evaluate([weight])
    np.testing.assert_array_equal(run_program(program, {"x": unit})["y"], exact[:, at].T)
    values = np.random.default_rng(2).standard_normal((rows, depth)).astype(np.float32)
    (expected,) = interp.run(graph, {"x": values}).outputs
    found = run_program(program, {"x": values})["y"]
    assert np.abs(found - expected).max() <= 4 * np.sqrt(depth) * types.f32.eps * np.abs(expected).max()


@pytest.mark.parametrize("target", [targets.X86_64, targets.AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("dtype", "group", "zero", "rows"),
    [
        (types.i8, 128, None, 1), (types.i8, 32, types.i8, 3), (types.u8, 16, types.u8, 1),
        (types.i4, 32, None, 1), (types.u4, 64, types.u4, 2), (types.i2, 16, None, 1), (types.u2, 128, types.u2, 1),
        (types.f8e4m3fn, 32, None, 1),
    ],
    ids=str,
)  # fmt: skip
def test_the_nest_reads_narrow_weights(
    dtype: DType, group: int, zero: DType | None, rows: int, target: targets.Target
) -> None:
    weight = dequantised(integers(dtype, 150, 128) if dtype.is_integer else floats(dtype, 150, 128), group, zero=zero)
    graph = product(rows, weight)
    program = compile_graph(graph, target)
    assert len(prologues(program)) == 1
    columns = next(iter(arrays(program).values()))
    assert sum(size for _, size in arrays(program).values()) < 150 * 128 * 4 / 2, columns
    check(graph, program, weight)


def floats(dtype: DType, *shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)


# ---- sums of blocks are scaled ---------------------------------------------------------------------------------------


def of_blocks(dtype: DType, group: int, zero: DType | None = None) -> Node:
    """``[150, 256]`` weights with a scale of half precision for each ``group`` along K, of both signs and zero."""
    whole = ir.cast(movement.reshape(ir.constant(integers(dtype, 150, 256)), [150, 256 // group, group]), types.f32)
    if zero is not None:
        whole = whole - ir.cast(ir.constant(integers(zero, 150, 256 // group, 1)), types.f32)
    scales = np.random.default_rng(1).uniform(-2, 2, (150, 256 // group, 1)).astype(np.float16)
    scales[3, 0] = 0
    return movement.reshape(whole * ir.cast(ir.constant(scales), types.f32), [150, 256])


def check_sums(weight: Node, x: Array, found: Array, group: int) -> None:
    """Against float64: a term is rounded once, and with those that follow in its block; a block with its scale, and
    with those that follow. The weights are exact in float32."""
    (exact,) = (w.astype(np.float64) for w in interp.evaluate([weight]))
    wide = x.astype(np.float64)
    bound = (group + 1 + 256 // group) * 2.0**-24 * (np.abs(wide) @ np.abs(exact).T)
    assert found.shape == bound.shape and (np.abs(found - wide @ exact.T) <= bound).all()


BLOCKS = (
    (types.i4, 32, None), (types.i8, 32, None), (types.u4, 64, types.u4), (types.u8, 32, types.u8),
    (types.i2, 16, None), (types.u8, 128, None),
)  # fmt: skip


@pytest.mark.parametrize("target", [targets.X86_64, targets.AVX2, targets.AVX512], ids=lambda t: t.name)
@pytest.mark.parametrize(("dtype", "group", "zero"), BLOCKS, ids=str)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_sum_of_a_block_is_scaled_instead_of_its_terms(
    dtype: DType, group: int, zero: DType | None, rows: int, target: targets.Target
) -> None:
    weight = of_blocks(dtype, group, zero)
    program = compile_graph(product(rows, weight), target)
    (tile,) = contracts(program)
    assert tile.scales is not None and tile.scales.left is None and tile.prologue is not None
    assert not {x.array for x in accesses(tile.scales.right)} & {x.array for x in accesses(tile.prologue.value)}
    x = np.random.default_rng(2).standard_normal((rows, 256)).astype(np.float32)
    check_sums(weight, x, run_program(program, {"x": x})["y"], group)


@pytest.mark.parametrize("target", ["host", "avx2", "x86-64"])
def test_a_library_scales_sums_of_blocks(target: str) -> None:
    weights = [of_blocks(*case) for case in BLOCKS]
    inputs = [ir.input_(f"x{k}", (1 + 2 * (k % 2), 256), types.f32) for k in range(len(BLOCKS))]
    outputs = [contraction.matmul(x, movement.transpose(w, 0, 1)) for x, w in zip(inputs, weights, strict=True)]
    graph = Graph("blocks", tuple(inputs), tuple((f"y{k}", y) for k, y in enumerate(outputs)), ())
    if not targets.supported(targets.parse(target)):
        pytest.skip(f"this machine does not run {target}")
    module = luminal.compile(graph, target=target, threads=1)
    assert isinstance(module, Module) and all(tile.scales is not None for tile in contracts(module.program))
    rng = np.random.default_rng(3)
    rows = {x.attr.name: rng.standard_normal(x.shape).astype(np.float32) for x in inputs}
    found = module(**rows)
    for (_, group, _), weight, x, y in zip(BLOCKS, weights, rows.values(), found, strict=True):
        check_sums(weight, x, y, group)


@pytest.mark.parametrize("scale", [np.inf, np.nan, 1e38, 1e-40])
def test_terms_are_scaled_where_sums_might_not_be_finite_or_lose_bits(scale: float) -> None:
    whole = ir.cast(movement.reshape(ir.constant(integers(types.i4, 150, 256)), [150, 8, 32]), types.f32)
    scales = np.ones((150, 8, 1), np.float32)
    scales[0, 0] = scale
    weight = movement.reshape(whole * ir.constant(scales), [150, 256])
    (tile,) = contracts(compile_graph(product(1, weight), targets.AVX512))
    assert tile.prologue is not None and tile.scales is None


def test_terms_are_scaled_where_that_is_less_work_or_the_model_s_order_is_kept() -> None:
    """Scaling the sums of a block takes an operation for each row; a panel that many rows read is computed once."""
    weight = of_blocks(types.i4, 16)
    for rows, target in ((8, targets.AVX512), (64, targets.AVX512), (1, replace(targets.AVX512, algebra="exact"))):
        tiles = contracts(compile_graph(product(rows, weight), target))
        assert [tile.scales for tile in tiles] == [None]


@pytest.mark.parametrize("whole_column", [False, True])
def test_only_factors_of_blocks_scale_their_sums(whole_column: bool) -> None:
    narrow = dequantised(integers(types.i8, 150, 256), 256)
    weight = narrow if whole_column else ir.constant(floats(types.f32, 150, 256))
    program = compile_graph(product(1, weight), targets.AVX512)
    (tile,) = contracts(program)
    assert tile.scales is None
    with pytest.raises(ScheduleError, match="scale sums: no factor of B is the same for a block of terms"):
        ScaleSums()(program.kernels[0].nest)


# ---- the library ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["host", "avx2", "x86-64"])
def test_the_library_reads_weights_out_exactly(target: str) -> None:
    """All types in one library, each at a row and at several; columns that fill no vector."""
    cases = [
        (types.i8, None, 1),
        (types.i4, None, 17),
        (types.u4, types.u4, 1),
        (types.i2, None, 1),
        (types.i4, None, 61),
    ]
    weights = [dequantised(integers(dtype, 150, 128), 32, zero=zero) for dtype, zero, _ in cases]
    inputs = [ir.input_(f"x{k}", (rows, 128), types.f32) for k, (_, _, rows) in enumerate(cases)]
    outputs = [contraction.matmul(x, movement.transpose(w, 0, 1)) for x, w in zip(inputs, weights, strict=True)]
    graph = Graph("narrow", tuple(inputs), tuple((f"y{k}", y) for k, y in enumerate(outputs)), ())
    if not targets.supported(targets.parse(target)):
        pytest.skip(f"this machine does not run {target}")
    module = luminal.compile(graph, target=target, threads=1)
    assert isinstance(module, Module)
    assert len(prologues(module.program)) >= 3
    for at in (0, 31, 32, 127):
        rows = [np.zeros(x.shape, np.float32) for x in inputs]
        for row in rows:
            row[:, at] = 1
        for found, weight in zip(module(*rows), interp.evaluate(weights), strict=True):
            np.testing.assert_array_equal(found, np.broadcast_to(weight[:, at], found.shape))
    values = [np.random.default_rng(3).standard_normal(x.shape).astype(np.float32) for x in inputs]
    expected = interp.run(graph, {f"x{k}": value for k, value in enumerate(values)}).outputs
    for found, wanted in zip(module(*values), expected, strict=True):
        assert np.abs(found - wanted).max() <= 4 * np.sqrt(128) * types.f32.eps * np.abs(wanted).max()


# ---- front ends ----------------------------------------------------------------------------------------------------


def bits_model(bits: int, block: int, zeros: bool, rows: int = 2) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """MatMulNBits of 150 columns, K = 160."""
    rng = np.random.default_rng(bits)
    blocks = 160 // block
    packed = rng.integers(0, 256, (150, blocks, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.5, 2, (150 * blocks)).astype(np.float32)
    points = rng.integers(0, 256, 150 * -(-blocks * bits // 8)).astype(np.uint8) if zeros else None
    x = rng.standard_normal((rows, 160)).astype(np.float32)
    return onnx_models.one(
        "MatMulNBits", x, packed, scales, *([points] if zeros else []), fixed=[1, 2, *([3] if zeros else [])],
        domain="com.microsoft", K=160, N=150, bits=bits, block_size=block,
    )  # fmt: skip


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 32)])
@pytest.mark.parametrize("zeros", [False, True])
def test_weights_of_few_bits_as_onnxruntime_has_them(bits: int, block: int, zeros: bool) -> None:
    proto, inputs = bits_model(bits, block, zeros)
    program = compile_graph(importer.load(proto), targets.AVX2)
    assert len(prologues(program)) == 1
    assert sum(size for _, size in arrays(program).values()) <= 160 * 160 * (bits / 8 + 8 / block)
    found = run_program(program, inputs)["y0"]
    onnx_models.assert_close([found], onnx_models.by_onnxruntime(proto, inputs), 1e-5)


@pytest.mark.parametrize(("dtype", "block", "zeros"), [(types.i8, 0, True), (types.i8, 0, False), (types.i4, 32, True)])
def test_dequantised_weights_as_onnx_has_them(dtype: DType, block: int, zeros: bool) -> None:
    rng = np.random.default_rng(0)
    groups = (5, 150) if block else (150,)
    weight = integers(dtype, 160, 150)
    scale = rng.uniform(0.5, 2, groups).astype(np.float32)
    names = ["w", "s", *(["z"] if zeros else [])]
    constants = dict(zip(names, (weight, scale, integers(dtype, *groups, seed=1)), strict=False))
    axis = {"axis": 0, "block_size": block} if block else {"axis": 1}
    proto = onnx_models.model(
        [
            onnx.helper.make_node("DequantizeLinear", names, ["r"], **axis),
            onnx.helper.make_node("MatMul", ["x", "r"], ["y"]),
        ],
        [onnx_models.declared("x", np.zeros((3, 160), np.float32))],
        ["y"],
        initializers=constants,
        opset=21,
    )
    x = {"x": rng.standard_normal((3, 160)).astype(np.float32)}
    program = compile_graph(importer.load(proto), targets.AVX2)
    assert len(prologues(program)) == 1
    assert {"w", "s"} <= arrays(program).keys()
    # Not onnxruntime's product: it rounds the activations to 8 bits, too.
    onnx_models.assert_close([run_program(program, x)["y"]], onnx_models.by_reference(proto, x), 1e-5)


# ---- what decides --------------------------------------------------------------------------------------------------


@given(
    columns=st.integers(130, 200),
    groups=st.integers(1, 6),
    group=st.sampled_from([16, 27, 32, 48]),
    rows=st.integers(1, 3),
    dtype=st.sampled_from([types.i8, types.u8, types.i4, types.u4, types.i2]),
    zero=st.booleans(),
    target=st.sampled_from([targets.X86_64, targets.AVX2, targets.AVX512]),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_sizes_of_any_kind(
    columns: int, groups: int, group: int, rows: int, dtype: DType, zero: bool, target: targets.Target
) -> None:
    depth = group * -(-max(groups * group, 128) // group)
    weight = dequantised(integers(dtype, columns, depth), group, zero=dtype if zero else None)
    graph = product(rows, weight)
    program = compile_graph(graph, target)
    assert len(prologues(program)) == 1
    check(graph, program, weight)


def test_weights_that_would_take_nearly_as_many_bytes_are_computed_when_compiling() -> None:
    weight = integers(types.i8, 150, 128)
    for group, narrow in ((128, True), (2, False)):
        program = compile_graph(product(1, dequantised(weight, group)), targets.AVX2)
        assert bool(prologues(program)) == narrow
    wide = integers(types.i16, 150, 128)
    assert not prologues(compile_graph(product(1, dequantised(wide, 128)), targets.AVX2))


def test_integers_are_stored_in_the_narrowest_type_that_holds_them() -> None:
    ranges = {(0, 3): "uint2", (-2, 1): "int2", (0, 15): "uint4", (-8, 7): "int4", (-8, 8): "int8", (0, 255): "uint8"}
    for ends, name in ranges.items():
        assert narrowest(ir.constant(np.array(ends, np.int32))).name == name
    assert narrowest(ir.constant(np.array([0, 1 << 20], np.int32))) == types.i32


def test_integers_are_looked_at_once_for_all_types_that_may_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = ir.constant(integers(types.i16, 128, 150).astype(np.int32) << 4)
    x = ir.input_("x", (3, 128), types.i32)
    graph = Graph("integers", (x,), (("y", contraction.matmul(x, weight)),), ())
    evaluated: list[Node] = []
    evaluate = interp.evaluate
    monkeypatch.setattr(interp, "evaluate", lambda nodes: evaluated.extend(nodes) or evaluate(nodes))
    for target in (targets.AVX2, targets.AVX512):
        compile_graph(graph, target)
    assert evaluated.count(weight) == 1


@pytest.mark.parametrize(
    ("ends", "dtype"),
    [((-128, 127), "int8"), ((0, 128), "uint8"), ((-1, 128), "int16"), ((0, 65535), "uint16"), ((0, 65536), "int32")],
)
def test_integers_of_a_product_are_stored_in_few_bytes(ends: tuple[int, int], dtype: str) -> None:
    weight = np.zeros((128, 150), np.int32)
    weight[7, :2] = ends
    x = ir.input_("x", (3, 128), types.i32)
    graph = Graph("integers", (x,), (("y", contraction.matmul(x, ir.constant(weight))),), ())
    program = compile_graph(graph, targets.AVX2)
    assert [found.name for found, _ in arrays(program).values()] == [dtype]
    values = np.random.default_rng(2).integers(-9, 9, (3, 128)).astype(np.int32)
    np.testing.assert_array_equal(run_program(program, {"x": values})["y"], values @ weight)


def test_entries_share_narrow_weights() -> None:
    weight = dequantised(integers(types.i4, 150, 128), 32)
    many, one = (replace(product(rows, weight), name="shared") for rows in (12, 1))
    program = compile_graphs("shared", {"many": many, "one": one}, targets.AVX2)
    assert len(prologues(program)) == 2
    assert sum(size for _, size in arrays(program).values()) < 160 * 128 * (1 / 2 + 4 / 32)


def test_a_graphics_processor_has_the_weights_as_before() -> None:
    graph = product(3, dequantised(integers(types.i4, 150, 128), 32))
    program = compile_graph(graph, targets.GPUS["cuda:sm_90"])
    assert not prologues(program)
    values = np.random.default_rng(2).standard_normal((3, 128)).astype(np.float32)
    onnx_models.assert_close([run_program(program, {"x": values})["y"]], interp.run(graph, {"x": values}).outputs, 1e-5)


# ---- several tiles of rows -----------------------------------------------------------------------------------------


def test_several_tiles_of_rows_read_a_panel_that_is_computed_once() -> None:
    weight = dequantised(integers(types.u4, 150, 128), 32, zero=types.u4)
    graph = product(61, weight)
    program = compile_graph(graph, targets.AVX512)
    assert not prologues(program)
    assert transforms(program.kernels[0], Unpack)
    assert sum(size for _, size in arrays(program).values()) < 160 * 128
    check(graph, program, weight)


def test_a_tile_that_computes_nothing_has_nothing_to_unpack() -> None:
    program = compile_graph(product(61, ir.constant(np.ones((150, 128), np.float32))), targets.AVX512)
    with pytest.raises(ScheduleError, match="no tile whose right operand is computed"):
        Unpack()(program.kernels[0].nest)


class Halves(nn.Module):
    """Two weights to a byte, side by side along K or one behind the other, each row of 32 with a scale."""

    def __init__(self, beside: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.beside = beside
        self.bytes: torch.Tensor
        self.scale: torch.Tensor
        self.register_buffer("bytes", torch.randint(0, 256, (300, 64), dtype=torch.uint8, generator=generator))
        self.register_buffer("scale", torch.rand(300, 4, 1, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low, high = self.bytes & 15, self.bytes >> 4
        whole = torch.stack([low, high], -1).reshape(300, 128) if self.beside else torch.cat([low, high], 1)
        real = (whole.reshape(300, 4, 32).float() - 8) * self.scale
        return x @ real.reshape(300, 128).T


@pytest.mark.parametrize("beside", [False, True])
def test_bytes_that_a_module_takes_apart_stay_bytes(beside: bool) -> None:
    model, x = Halves(beside).eval(), torch.randn(2, 128, generator=torch.Generator().manual_seed(1))
    graph = fx.load(model, (x,), name="halves")
    program = compile_graph(graph, targets.AVX2)
    assert len(prologues(program)) == 1
    assert sum(size for _, size in arrays(program).values()) < 336 * 128 * (1 / 2 + 4 / 32) + 1
    (name,) = (tensor.name for tensor in program.entries[0].inputs)
    found = run_program(program, {name: x.numpy()})
    onnx_models.assert_close(list(found.values()), [model(x).detach().numpy()], 1e-5)


def test_a_table_of_positions_is_no_weight() -> None:
    """What is much larger than the constants that it is computed from."""
    picked = ir.constant(np.arange(3, 153, dtype=np.int64)[:, None])
    table = ir.cast(ir.binary(ops.EQUAL, ir.expand(movement.reshape(ir.iota(160), [1, 160]), (150, 160)),
                              ir.expand(picked, (150, 160))), types.f32)  # fmt: skip
    assert not is_constant(table)
    graph = product(2, table)
    x = np.random.default_rng(0).standard_normal((2, 160)).astype(np.float32)
    np.testing.assert_array_equal(run_program(compile_graph(graph, targets.AVX2), {"x": x})["y"], x[:, 3:153])


# ---- expressions with shared parts: walks that write them out would not end ------------------------------------------


def again(x: Node, times: int = 60) -> Node:
    """``x`` in 0 .. 1 by a step that reads what it is applied to twice, and leaves it there, so many times."""
    for _ in range(times):
        x = x * x * 0.5 + x * 0.5
    return x


def of_positions(rows: Int) -> Node:
    row = again(ir.cast(ir.iota(rows), types.f32) * 0.01)
    return ir.expand(movement.reshape(row, [rows, 1]), (rows, 9)) * ir.constant(np.arange(9, dtype=np.float32))


def test_weights_whose_parts_are_read_again_and_again() -> None:
    rows = sym.var("rows", 1, 64)
    narrow = ir.cast(ir.constant(np.random.default_rng(0).integers(0, 127, (64, 32)).astype(np.int8)), types.f32)
    for weight, dims in ((of_positions(rows), sym.variables(rows)), (again(narrow * 0.007), set())):
        x = ir.input_("x", (2, weight.shape[0]), types.f32)
        graph = Graph("shared", (x,), (("y", contraction.matmul(x, weight)),), tuple(dims))
        values = np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)
        for target in (targets.AVX2, targets.GPUS["cuda:sm_90"]):
            found = run_program(compile_graph(graph, target), {"x": values})["y"]
            onnx_models.assert_close([found], interp.run(graph, {"x": values}).outputs, 1e-5)


def test_a_prologue_has_each_of_its_parts_once() -> None:
    """Weights times a number that 60 steps give: they are computed where the weights are read."""
    weight = ir.cast(ir.constant(integers(types.i8, 64, 128)), types.f32)
    number = again(ir.constant(np.full((1, 1), 0.5, np.float32)))
    depth, column = ir.axes((64, 128))
    prologue = dequantise.find(weight * ir.expand(number, (64, 128)), (depth, column), [(depth, 64)], 128)
    assert prologue is not None
    (leaf,) = prologue.leaves
    assert (leaf.dtype, prologue.operations, prologue.held) == (types.i8, 2 + 1, 1)
    (found,) = interp.evaluate([prologue.value({leaf: leaf.source})])
    (expected,) = interp.evaluate([weight * ir.expand(number, (64, 128))])
    np.testing.assert_array_equal(found, expected)


def test_a_chain_of_more_operations_than_functions_may_call_each_other() -> None:
    weight = ir.cast(ir.constant(integers(types.i8, 64, 128)), types.f32)
    for step in range(600):
        weight = ir.unary(ops.SIN, weight * (1 + step / 1000))
    prologue = dequantise.find(weight, ir.axes((64, 128)), [(ir.axes((64, 128))[0], 64)], 128)
    assert prologue is not None and prologue.operations == 2 + 1200
    (leaf,) = prologue.leaves
    assert prologue.value({leaf: leaf.source}) == weight


def test_panels_of_deep_sums_are_narrow_enough_for_the_cache() -> None:
    for depth, columns in ((2048, 48), (3072, 32), (5632, 16)):
        program = compile_graph(product(61, dequantised(integers(types.i8, 96, depth), depth)), targets.AVX512)
        assert [tile.columns for tile in transforms(program.kernels[0], Tensorise)] == [columns]
        assert transforms(program.kernels[0], Unpack)
    program = compile_graph(product(61, dequantised(integers(types.i8, 96, 8192), 8192)), targets.AVX512)
    assert not transforms(program.kernels[0], Unpack) and len(prologues(program)) == 1


def test_panels_whose_blocks_of_terms_are_unlike_are_unpacked_too() -> None:
    """781 terms have no divisor that makes blocks: the last one is shorter."""
    graph = product(64, dequantised(integers(types.i8, 96, 781), 781))
    program = compile_graph(graph, targets.AVX512)
    assert transforms(program.kernels[0], Tensorise) and transforms(program.kernels[0], Unpack)
    x = np.random.default_rng(0).standard_normal((64, 781)).astype(np.float32)
    onnx_models.assert_close([run_program(program, {"x": x})["y"]], interp.run(graph, {"x": x}).outputs, 1e-5)


def test_rows_of_a_batch_share_a_panel_as_those_of_one_sample_do() -> None:
    """Whether a panel is computed before the tiles that read it depends on how many there are, of several panels."""
    weight = dequantised(integers(types.i8, 96, 512), 512)
    for shape, unpacked in (((64, 512), True), ((8, 8, 512), True), ((2, 16, 512), True), ((16, 512), False)):
        x = ir.input_("x", shape, types.f32)
        graph = Graph("rows", (x,), (("y", contraction.linear(x, weight, None)),))
        kernel = compile_graph(graph, targets.AVX512).kernels[0]
        assert transforms(kernel, Tensorise) and bool(transforms(kernel, Unpack)) == unpacked
