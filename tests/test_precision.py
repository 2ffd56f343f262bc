"""The precision of contractions as a choice: what is rounded, how that is seen, and where it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal.comparison.measure import rounding
from luminal.comparison.oracle import Oracle
from luminal.core import interp, ir, movement, ops, structured, traverse, types
from luminal.core import target as targets
from luminal.core.decompose import contraction as decompose
from luminal.core.errors import TargetError
from luminal.core.grid import MMA, Fragment
from luminal.core.pipeline import compile_graph
from luminal.core.precision import BF16, FP32, TF32
from luminal.core.schedule.contraction.contracted import Contracted, contractions
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.numeric import rounding as rounding_of
from luminal.core.schedule.numeric.rounding import rounded
from luminal.module import Module
from tests.schedule_graphs import Source
from tests.schedule_support import changed, run_program

Array = np.ndarray[Any, Any]

EXACT = targets.GPUS["cuda:sm_90"]
ROUNDED = targets.parse("cuda:sm_90", "tf32")
ROWS, DEPTH, COLUMNS = 37, 40, 50
SPECIAL = [0.0, -0.0, 1.0, 1 + 2.0**-11, 1 + 2.0**-12, -1 - 2.0**-11, 1e-45, -1e-39, 3.4e38, np.inf, -np.inf, np.nan]


def product() -> tuple[ir.Graph, dict[str, Array]]:
    source = Source()
    y = decompose.matmul(source.input(ROWS, DEPTH), source.input(DEPTH, COLUMNS))
    return ir.Graph("product", tuple(source.nodes), (("y", y),)), source.arrays


def fragments(target: targets.Target) -> set[Fragment | None]:
    (kernel,) = compile_graph(product()[0], target).kernels
    return {s.fragment for s in walk.statements(kernel.nest.body) if isinstance(s, ln.Contract)}


def error(found: Array, exact: Array) -> float:
    return float(np.abs(found - exact).max() / np.abs(exact).max())


# ---- rounding --------------------------------------------------------------------------------------------------------


def test_an_operand_keeps_eleven_bits() -> None:
    values = np.array(SPECIAL, np.float32)
    expected = np.array([*SPECIAL[:3], 1 + 2.0**-10, 1, -1 - 2.0**-10, 0, -1e-39, 3.4e38, *SPECIAL[9:]], np.float32)
    found = TF32.rounded(values)
    np.testing.assert_allclose(found, expected, rtol=TF32.unit, atol=2.0**-138)
    assert not (found.view(np.uint32)[:9] & 0x1FFF).any() and np.array_equal(np.signbit(found), np.signbit(values))
    assert found[3] == expected[3] and found[4] == 1 and FP32.rounded(values) is values
    random = np.random.default_rng(0).standard_normal(10000).astype(np.float32)
    worst = np.abs(TF32.rounded(random) - random.astype(np.float64)) / np.abs(random)
    assert 0.99 * TF32.unit < worst.max() <= TF32.unit and FP32.unit == 0


def test_a_graph_of_rounded_operands_is_numpy_s_product_of_them() -> None:
    graph, arrays = product()
    (a, b) = arrays.values()
    a[0, :8] = [1 + 2.0**-11, -0.0, 1e-45, 3.4e38, 1, 1, 1, 1]
    (found,) = interp.run(rounded(Contracted.of(graph), TF32).graph, arrays).outputs
    np.testing.assert_array_equal(found, interp.run(graph, {k: TF32.rounded(x) for k, x in arrays.items()}).outputs[0])
    with np.errstate(over="ignore"):
        assert not np.array_equal(found, a @ b)


def test_only_contractions_are_rounded() -> None:
    x = ir.input_("x", (4, 8), types.f32)
    squares = ir.reduce(ops.SUM_REDUCE, ir.elementwise(ops.MUL, x, x), [1])
    graph = ir.Graph("squares", (x,), (("y", squares),))
    assert rounded(Contracted.of(graph), TF32).graph.results == graph.results


def test_a_value_is_stored_rounded_once_for_all_that_read_it() -> None:
    """A convolution does, a depthwise one, whose weights stay as they are, and a sum that is no product."""
    random = np.random.default_rng(0)
    full, depthwise = (random.standard_normal(shape).astype(np.float32) for shape in ((24, 16, 3, 3), (16, 1, 3, 3)))
    x = ir.input_("x", (1, 16, 9, 9), types.f32)
    value = ir.unary(ops.EXP2, x)
    outputs = {
        "full": decompose.conv(value, ir.constant(full), None, None, (1, 1), (1, 1)),
        "depthwise": decompose.conv(value, ir.constant(depthwise), None, None, (1, 1), (1, 1), groups=16),
        "total": ir.reduce(ops.SUM_REDUCE, value, (2, 3)),
    }
    program = compile_graph(ir.Graph("shared", (x,), tuple(outputs.items())), targets.parse("avx512-bf16", "bf16"))
    assert {buffer.dtype for buffer in program.buffers if buffer.space == "arena"} == {types.bf16}
    given = random.standard_normal((1, 16, 9, 9)).astype(np.float32)
    found = {name: torch.from_numpy(array) for name, array in run_program(program, {"x": given}).items()}
    stored = torch.from_numpy(np.exp2(given)).bfloat16().double()
    expected = {
        "full": torch.conv2d(stored, torch.from_numpy(full).bfloat16().double(), padding=1),
        "depthwise": torch.conv2d(stored, torch.from_numpy(depthwise).double(), padding=1, groups=16),
        "total": stored.sum((2, 3)),
    }
    for name, exact in expected.items():
        torch.testing.assert_close(found[name].double(), exact, rtol=0, atol=144 * 2.0**-24 * float(stored.max()) * 4)


def pooled(*outputs: str) -> tuple[ir.Graph, dict[str, Array]]:
    """Two maxima of neighbours between two products, and what of these is an output besides the last."""
    source = Source()
    first = decompose.matmul(source.input(24, 16), source.weight(16, 20))
    middle = ir.reduce(ops.MAX_REDUCE, movement.reshape(first, (12, 2, 20)), [1])
    second = ir.reduce(ops.MAX_REDUCE, movement.reshape(middle, (6, 2, 20)), [1])
    values = {"first": first, "middle": middle, "second": movement.transpose(second, 0, 1), "sum": first * 3.0}
    values["product"] = decompose.matmul(second, source.weight(20, 8))
    named = tuple((name, values[name]) for name in (*outputs, "product"))
    return ir.Graph("pooled", tuple(source.nodes), named), source.arrays


@pytest.mark.parametrize("other", [(), ("first",), ("middle",), ("second",), ("sum",)])
def test_what_maxima_alone_read_is_stored_as_they_are(other: tuple[str, ...]) -> None:
    """What an output or anything else is computed from is not rounded for them; the product is the same always."""
    graph, arrays = pooled(*other)
    program = compile_graph(graph, targets.parse("avx512-bf16", "bf16"))
    nests = [program.kernels[step.kernel].nest for step in program.entries[0].launches]
    first = next(nest for nest in nests if any(isinstance(s, ln.Contract) for s in walk.statements(nest.body)))
    assert ({array.dtype for array in first.arrays if array.written} == {types.bf16}) == (not other)
    found = run_program(program, arrays)
    alone = run_program(compile_graph(pooled()[0], targets.parse("avx512-bf16", "bf16")), arrays)
    np.testing.assert_array_equal(found["product"], alone["product"])
    for name in other:
        oracle = Oracle(graph, arrays, precision=BF16)
        assert not oracle.refutes(dict(graph.outputs)[name], found[name])


def shared() -> tuple[ir.Graph, dict[str, Array]]:
    """A value that a product reads, an output through a view, and another product whose factors are summed besides."""
    source = Source()
    x = source.input(12, 16)
    value, weight = ir.unary(ops.EXP2, x), source.weight(16, 20)
    weighed = value * ir.expand(movement.unsqueeze(source.weight(16), [0]), (12, 16))
    outputs = {
        "product": decompose.matmul(value, weight), "turned": movement.transpose(value, 0, 1), "itself": value,
        "sum": ir.reduce(ops.SUM_REDUCE, weighed, (1,)), "another": decompose.matmul(weighed, weight),
        "negative": value * -1.0, "direct": decompose.matmul(x, weight),
    }  # fmt: skip
    return ir.Graph("shared", tuple(source.nodes), tuple(outputs.items())), source.arrays


def test_outputs_and_inputs_keep_what_products_round() -> None:
    graph, arrays = shared()
    stored = rounding_of.stored_rounded(graph.roots, contractions(graph.roots), BF16)
    assert not any(node.op is ops.INPUT for node in stored) and dict(graph.outputs)["itself"] in stored
    (exact,) = interp.evaluate([dict(graph.outputs)["itself"]], arrays)
    found = run_program(compile_graph(graph, targets.parse("avx512-bf16", "bf16")), arrays)
    np.testing.assert_allclose(found["itself"], exact, rtol=1e-6)
    np.testing.assert_array_equal(found["turned"], found["itself"].T)
    np.testing.assert_array_equal(found["negative"], -BF16.rounded(found["itself"]))


def test_what_is_rounded_does_not_depend_on_what_is_asked_for() -> None:
    graph, arrays = shared()
    found = run_program(compile_graph(graph, targets.parse("avx512-bf16", "bf16")), arrays)
    for name, node in graph.outputs:
        oracle = Oracle(graph, arrays, precision=BF16)
        assert not oracle.refutes(node, found[name]), name


@pytest.mark.parametrize("kept", ["input", "computed"])
def test_of_a_large_value_only_the_part_that_a_product_reads_is_rounded(kept: str) -> None:
    """As of a cache that holds many sequences."""
    x, cache = ir.input_("x", (5, 24), types.f32), ir.input_("cache", (160, 24), types.f32)
    whole = cache if kept == "input" else ir.unary(ops.EXP2, cache)
    part = movement.slice_(whole, 0, 64, 32)
    y = decompose.matmul(x, movement.transpose(part, 0, 1))
    graph = ir.Graph("part", (x, cache), (("y", y), ("kept", whole)))
    made = rounded(Contracted.of(graph), BF16)
    sizes = {n.size for n in traverse.everything(made.graph.roots) if n.op is ops.CAST and n.dtype == types.bf16}
    assert sizes == {5 * 24, 32 * 24}
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((5, 24), np.float32), "cache": rng.standard_normal((160, 24), np.float32)}
    whole_values = values["cache"] if kept == "input" else np.exp2(values["cache"])
    found = run_program(compile_graph(graph, targets.parse("avx512-bf16", "bf16")), values)
    left, right = (v.astype(ml_dtypes.bfloat16).astype(np.float64) for v in (values["x"], whole_values[64:96]))
    np.testing.assert_allclose(found["kept"], whole_values, rtol=2.0**-22)
    assert (np.abs(found["y"] - left @ right.T) <= 2.0**-7 * (np.abs(left) @ np.abs(right).T)).all()


def test_roundings_of_both_operands_are_allowed_for() -> None:
    graph, arrays = product()
    (node,) = graph.results
    assert rounding([node], {}, TF32)[node].bound == pytest.approx((2 * DEPTH) ** 0.5 * 2.0**-11, rel=1e-3)
    exact, chosen = Oracle(graph, arrays), Oracle(graph, arrays, precision=TF32)
    assert chosen.allowed(node).own.usual > 100 * exact.allowed(node).own.usual
    assert chosen.allowed(node).reference == exact.allowed(node).reference


# ---- schedules -------------------------------------------------------------------------------------------------------


def test_the_fragment_is_used_where_it_was_chosen() -> None:
    assert fragments(EXACT) == {None}
    assert {f.name for f in fragments(ROUNDED) if f is not None} == {"m16n8k8_tf32"}
    assert ROUNDED != EXACT and hash(ROUNDED) != hash(EXACT) and "tf32" in repr(ROUNDED)


def test_a_product_in_tf32_is_rounded_once_and_summed_in_float32() -> None:
    graph, arrays = product()
    exact, found = interp.run(graph, arrays, "float64").outputs[0], run_program(compile_graph(graph, ROUNDED), arrays)
    (same,) = interp.run(rounded(Contracted.of(graph), TF32).graph, arrays, "float64").outputs
    apart = error(run_program(compile_graph(graph, EXACT), arrays)["y"], exact)
    assert 20 * apart < error(found["y"], exact) <= rounding(graph.results, {}, TF32)[graph.results[0]].bound
    assert error(found["y"], same) <= 4 * apart  # from the product of rounded operands, as an exact one


def test_products_in_loops_are_rounded_as_others_are() -> None:
    source = Source()
    matrix, rows, first = source.input(DEPTH, DEPTH), source.input(2, ROWS, DEPTH), source.input(ROWS, DEPTH)
    (last,), _ = structured.scan(lambda c, x: ([decompose.matmul(c[0], matrix) * 0.1 + x[0]], []), [first], [rows])
    graph, arrays = ir.Graph("recurrence", tuple(source.nodes), (("y", last),)), source.arrays
    found = run_program(compile_graph(graph, ROUNDED), arrays)["y"]
    (same,) = interp.run(rounded(Contracted.of(graph), TF32).graph, arrays, "float64").outputs
    assert error(found, same) < 0.1 * error(found, interp.run(graph, arrays, "float64").outputs[0])
    assert Oracle(graph, arrays).refutes(last, found) and not Oracle(graph, arrays, precision=TF32).refutes(last, found)


def test_what_a_loop_carries_keeps_its_digits() -> None:
    """A sum of many small numbers, of which each step multiplies what there is."""
    source = Source()
    q, steps, first = source.input(3, 8), source.input(200, 8, 8), source.input(8, 8)
    source.arrays["x1"][:], source.arrays["x2"][:] = 1e-3, 1.0

    def body(carries: list[ir.Node], x: list[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
        total = carries[0] + x[0]
        return [total], [decompose.matmul(q, total)]

    (last,), _ = structured.scan(body, [first], [steps])
    graph = ir.Graph("carried", tuple(source.nodes), (("y", last),))
    found = run_program(compile_graph(graph, targets.parse("avx512-bf16", "bf16")), source.arrays)["y"]
    np.testing.assert_allclose(found, np.full((8, 8), 1.2), rtol=200 * 2.0**-24)


def test_swapped_lanes_give_another_product(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, arrays = product()
    program = compile_graph(graph, ROUNDED)
    (tf32,) = (f for f in MMA if f.precision == TF32)
    swapped = replace(tf32, row=tf32.rows - 1 - tf32.row)

    def change(body: tuple[ln.Statement, ...]) -> tuple[ln.Statement, ...]:
        inner = (replace(s, body=change(s.body)) if isinstance(s, ln.Loop | ln.If) else s for s in body)
        return tuple(replace(s, fragment=swapped) if isinstance(s, ln.Contract) else s for s in inner)

    (kernel,) = program.kernels
    wrong = changed(kernel, body=change(kernel.nest.body))
    found = run_program(replace(program, kernels=(wrong,)), arrays)["y"]
    assert not np.allclose(found, run_program(program, arrays)["y"], rtol=0.01)


def test_types_that_are_narrow_already_are_multiplied_as_before() -> None:
    for dtype in (types.f16, types.bf16):
        assert ROUNDED.fragment(dtype, dtype) == EXACT.fragment(dtype, dtype) is not None
    assert targets.GPUS["metal"].fragment(types.f32, types.f32) is not None


@pytest.mark.parametrize("target", ["host", "x86-64", "aarch64", "metal"])
def test_a_target_without_it_says_what_it_has(target: str) -> None:
    with pytest.raises(
        TargetError, match=r"precision 'tf32': .* has no products of float32 in that precision; expected fp32"
    ):
        targets.parse(target, "tf32")
    assert targets.parse(target, "fp32") == targets.parse(target)


def test_unknown_precisions_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="unknown precision 'fp8': expected fp32, tf32, fp16, bf16"):
        targets.parse("cuda:sm_90", "fp8")
    with pytest.raises(ValueError, match="integers are for weights, or come with a model that is quantised"):
        targets.parse("avx2", "int8")


# ---- what users see --------------------------------------------------------------------------------------------------


class Layers(nn.Module):
    """Two products, a convolution's worth of depth each, and attention's two between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(72, 48), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.up(x))
        return self.down(torch.softmax(h @ h.transpose(-1, -2) / 8, dim=-1) @ h)


@pytest.fixture(scope="module")
def layers() -> tuple[nn.Module, torch.Tensor]:
    return Layers().eval(), torch.randn(2, 40, 72, generator=torch.Generator().manual_seed(1))


def compiled(layers: tuple[nn.Module, torch.Tensor], precision: str | None) -> Module:
    module = luminal.compile(layers[0], (layers[1],), target="cuda:sm_90", precision=precision, emulate=True)
    assert isinstance(module, Module)
    return module


def test_an_emulated_library_in_tf32_is_as_far_off_as_that_explains(layers: tuple[nn.Module, torch.Tensor]) -> None:
    chosen, exact = compiled(layers, "tf32"), compiled(layers, None)
    assert chosen.graph is not None
    values = {"x": layers[1].numpy()}
    oracle = Oracle(chosen.graph, values, precision=TF32)
    (node,) = chosen.graph.results
    (found,), (reference,) = chosen.run(values).values(), exact.run(values).values()
    assert not oracle.refutes(node, found) and not Oracle(chosen.graph, values).refutes(node, reference)
    assert Oracle(chosen.graph, values).refutes(node, found)
    assert error(found, oracle.exact(node)) > 20 * error(reference, oracle.exact(node))
    assert chosen.manifest["target"]["precision"] == "tf32" and exact.manifest["target"]["precision"] == "fp32"
    assert chosen.folder != exact.folder and compiled(layers, "fp32").folder == exact.folder


def test_diff_allows_for_the_precision_and_says_so(layers: tuple[nn.Module, torch.Tensor]) -> None:
    report = luminal.diff(layers[0], (layers[1],), target="cuda:sm_90", precision="tf32")
    assert report.ok and "for cuda:sm_90, tf32" in str(report)
    strict = luminal.diff(layers[0], (layers[1],), target="cuda:sm_90", precision="fp32")
    assert strict.ok and report.worst > 20 * strict.worst
