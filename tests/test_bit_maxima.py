"""Maxima over windows of what is never below zero are those of its bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import luminal
from luminal.codegen.render import render
from luminal.core import interp, ir, movement, ops, structured, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import activation, contraction, pooling
from luminal.core.decompose.activation import relu
from luminal.core.decompose.compare import clamp, less, maximum, minimum
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.reduction import softmax
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.numeric import signs
from luminal.core.schedule.numeric.bit_maxima import of_bits
from luminal.core.schedule.transform.split_regions import ClipReduction
from luminal.core.types import DType
from tests.emulation import INSTRUCTION_SETS
from tests.schedule_support import is_masked, run_program, transforms

Array = np.ndarray[Any, Any]

X = ir.input_("x", (2, 3, 9, 9), types.f32)
FLOATS = [types.f16, types.bf16, types.f32, types.f64]
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.5, -1.5, 2.0**-130, 1e30], np.float32)


def pooled(x: Node, kernel: int = 3, stride: int = 2, pad: int = 1, dilation: int = 1, ceil_mode: bool = False) -> Node:
    pads = [pad] * 2
    return pooling.max_pool(x, [kernel] * 2, [stride] * 2, pads, pads, [dilation] * 2, ceil_mode)


def graph(root: Node, *inputs: Node) -> Graph:
    return Graph("g", inputs or (X,), (("y", root),))


def kinds(root: Node) -> set[DType]:
    """The types of the maxima over axes that ``root`` is computed from, as they are taken."""
    (found,) = of_bits(Contracted.of(graph(root))).graph.roots
    return {node.dtype for node in traverse.topological([found]) if node.op is ops.MAX_REDUCE}


SIGNLESS: dict[str, Callable[[Node], Node]] = {
    "what is cut at zero": relu,
    "the larger of it and zero": lambda x: maximum(x, 0.0),
    "what is limited": lambda x: clamp(x, 0.0, 6.0),
    "an exponential": exp,
    "a sum": lambda x: relu(x) + exp(x),
    "a product": lambda x: relu(x) * relu(-x),
    "a quotient": lambda x: relu(x) / exp(x),
    "a reciprocal": lambda x: ir.unary(ops.RECIP, exp(x)),
    "a softmax": lambda x: softmax(x, -1),
    "what is rounded": lambda x: ir.cast(ir.cast(relu(x), types.bf16), types.f32),
    "a choice": lambda x: ir.select(less(x, 1.0), relu(x), exp(x)),
}
SIGNED: dict[str, Callable[[Node], Node]] = {
    "an input": lambda x: x,
    "a difference": lambda x: relu(x) - 1.0,
    "what has a negative slope": lambda x: activation.leaky_relu(x, 0.1),
    "the smaller": lambda x: minimum(x, 6.0),
    "what is cut below zero": lambda x: maximum(x, -1.0),
    "a product with what may be negative": lambda x: exp(x) * x,
    "a reciprocal of what may be -0": lambda x: ir.unary(ops.RECIP, relu(x)),
    "a quotient by what may be -0": lambda x: exp(x) / relu(x),
    "a choice of one that may be negative": lambda x: ir.select(less(x, 1.0), x, relu(x)),
}


@pytest.mark.parametrize("name", SIGNLESS)
def test_what_is_never_below_zero_is_known(name: str) -> None:
    value = SIGNLESS[name](X)
    (found,) = interp.evaluate([value], {"x": np.resize(SPECIAL, X.shape)})
    assert not np.any(found < 0)
    assert value in signs.not_negative(traverse.topological([value]))
    assert kinds(pooled(value)) - {types.f32} == {types.u16 if name == "what is rounded" else types.u32}


@pytest.mark.parametrize("name", SIGNED)
def test_what_may_be_below_zero_is_compared_as_it_is(name: str) -> None:
    value = SIGNED[name](X)
    (found,) = interp.evaluate([value], {"x": np.resize(SPECIAL, X.shape)})
    assert np.any(found < 0)
    assert value not in signs.not_negative(traverse.topological([value]))
    assert kinds(pooled(value)) == {types.f32}


def test_windows_that_share_nothing_or_may_be_all_padding_are_compared_as_they_are() -> None:
    assert kinds(pooled(relu(X), 3, 3, 0)) == {types.f32}  # no element is read twice
    assert kinds(ir.reduce(ops.MAX_REDUCE, relu(X), [3])) == {types.f32}
    assert kinds(pooled(relu(X), 2, 1, 2)) == {types.f32}  # the first window lies in the padding
    assert kinds(pooled(movement.pad(relu(X), [0, 0, 0, 9], [0, 0, 0, 0], -1.0))) == {types.f32}
    assert kinds(pooled(relu(X), 2, 1, 1)) == {types.f32}  # no tap is inside for the first window and for the last
    assert kinds(pooled(relu(X), 3, 1, 1)) == {types.u32}
    assert kinds(pooled(relu(X), 5, 2, 2, ceil_mode=True)) == {types.u32}


def test_a_bound_that_may_be_nan_limits_nothing() -> None:
    """Nothing is less than NaN: the choice is what may be negative."""
    y = ir.input_("y", X.shape, types.f32)
    for bound in (relu(y), ir.expand(ir.constant(np.nan, types.f32), X.shape)):
        value = ir.select(less(X, bound), bound, X)
        assert value not in signs.not_negative(traverse.topological([value]))
        assert kinds(pooled(value)) == {types.f32}
        given = {"x": np.full(X.shape, -1, np.float32), "y": np.full(X.shape, np.nan, np.float32)}
        (found,) = interp.evaluate(of_bits(Contracted.of(graph(pooled(value), X, y))).graph.roots, given)
        assert (found == -1).all()


def test_the_largest_of_nothing_is_below_zero() -> None:
    for extent, known in ((0, False), (sym.var("n", 0, 4), False), (sym.var("n", 1, 4), True)):
        value = ir.reduce(ops.MAX_REDUCE, relu(ir.input_("x", (2, 3, 9, 9, extent), types.f32)), [4])
        assert (value in signs.not_negative(traverse.topological([value]))) is known


@pytest.mark.parametrize("fill", [5.0, np.inf, np.nan, 2.0**-140, 0.0, -0.0, -1.0, -np.inf])
def test_padding_that_may_win_is_kept(fill: float) -> None:
    root = pooled(movement.pad(relu(X), [0, 0, 1, 1], [0, 0, 1, 1], fill), 3, 1, 0)
    assert kinds(root) == ({types.u32} if fill <= 0 else {types.f32})
    expected, found = interp.evaluate([root, *of_bits(Contracted.of(graph(root))).graph.roots], {"x": values(1)})
    np.testing.assert_array_equal(found, expected)


def test_bodies_of_loops_are_not_left_out() -> None:
    def step(carries: Sequence[Node], slices: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        return [], [pooled(relu(slices[0]))]

    _, (found,) = structured.scan(step, [], [ir.input_("rows", (5, *X.shape), types.f32)])
    (same,) = of_bits(Contracted.of(graph(found))).graph.roots
    assert types.u32 in {node.dtype for node in traverse.everything([same]) if node.op is ops.MAX_REDUCE}


# ---- values ----------------------------------------------------------------------------------------------------------


@st.composite
def windows(draw: st.DrawFn) -> Node:
    """The maxima over overlapping windows of what is cut at zero, in each type of float."""
    dtype = draw(st.sampled_from(FLOATS))
    kernel, dilation = draw(st.integers(2, 4)), draw(st.integers(1, 2))
    x = relu(ir.cast(X, dtype))
    x = ir.cast(x, draw(st.sampled_from([dtype, types.f32, types.f64])))
    pad, ceil_mode = draw(st.integers(0, kernel // 2)), draw(st.booleans())
    return pooled(x, kernel, draw(st.integers(1, kernel - 1)), pad, dilation, ceil_mode)


def values(seed: int) -> Array:
    """Few large numbers, so that special ones are the largest of some windows."""
    random = np.random.default_rng(seed)
    ordinary = random.normal(size=X.shape).astype(np.float32)
    return np.where(random.random(X.shape) < 0.2, random.choice(SPECIAL, X.shape), ordinary)


@given(windows(), st.integers(0, 100))
def test_maxima_of_bits_are_those_of_the_floats(root: Node, seed: int) -> None:
    expected, found = interp.evaluate([root, *of_bits(Contracted.of(graph(root))).graph.roots], {"x": values(seed)})
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("target", [target.name for target in INSTRUCTION_SETS])
@pytest.mark.parametrize("channels", [24, 5])
def test_kernels_of_bits(target: str, channels: int) -> None:
    x = ir.input_("x", (2, channels, 9, 9), types.f32)
    root = pooled(relu(ir.cast(x, types.bf16)))
    found = np.resize(values(3), x.shape)
    (expected,) = interp.evaluate([root], {"x": found})
    program = compile_graph(graph(root, x), targets.ALL[target])
    actual = run_program(program, {"x": found})["y"]
    np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))


def test_kernels_clip_their_windows_and_read_bits_as_they_lie() -> None:
    """The padding of bits changes no maximum; nobody widens a bfloat16 to take it apart again."""
    x = ir.input_("x", (1, 64, 28, 28), types.bf16)
    weight = ir.constant(np.ones((64, 64, 1, 1), np.float32))
    first = relu(contraction.conv(ir.cast(x, types.f32), weight))
    root = contraction.conv(pooled(ir.cast(ir.cast(first, types.bf16), types.f32)), weight)
    target = targets.ALL["avx512"]
    program = compile_graph(graph(root, x), target)
    (pool,) = (kernel for kernel in program.kernels if kernel.name.startswith("row"))
    assert transforms(pool, ClipReduction) and not is_masked(pool.nest)
    text = render(program, target).files[f"kernels/{pool.name}.cpp"]
    loads = [line for line in text.splitlines() if "load<" in line]
    assert loads and all("vec<uint16_t, 16>" in line and "bits_of(" in line for line in loads)
    assert "encode<" not in text


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_whose_activations_are_not_numbers(precision: str) -> None:
    """NaN wins over infinity, whatever its sign; torch is the oracle."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)).eval()
    x = torch.randn(1, 3, 17, 17)
    x[0, :, 3, 4], x[0, :, 9, 9], x[0, :, 12, 1] = torch.inf, torch.nan, -torch.nan
    compiled = luminal.compile(model, (x,), precision=precision)
    found, expected = torch.as_tensor(compiled(x)), model(x)
    assert torch.equal(found.isnan(), expected.isnan()) and found.isnan().any()
    torch.testing.assert_close(found, expected, rtol=2**-7 if precision == "bf16" else 1e-5, atol=2**-7, equal_nan=True)
