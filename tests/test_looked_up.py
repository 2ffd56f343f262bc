"""Functions of which few elements are looked up: which are computed of these, to the bit, and what that saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.core import derivative, gradient, interp, ir, movement, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import compare, contraction, exponential, hyperbolic, indexing, reduction
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.numeric import looked_up
from tests.compiled_support import assert_same_bits
from tests.schedule_support import run_program

ROWS, CLASSES, IGNORED = 7, 300, -100


def graph(*roots: Node) -> Graph:
    inputs = tuple(node for node in traverse.topological(roots) if node.op is ops.INPUT)
    dims = {v for node in inputs for size in node.shape for v in sym.variables(size)}
    return Graph("g", inputs, tuple((f"y{k}", root) for k, root in enumerate(roots)), tuple(dims))


def picked(x: Node, at: Node) -> Node:
    """The element ``at[r]`` of each row ``r``."""
    return movement.squeeze(indexing.gather_elements(x, movement.unsqueeze(at, [1]), -1), [1])


def cross_entropy(rows: sym.Int = ROWS, smoothing: float = 0.0) -> Node:
    """The mean over targets that are not ignored, spelled as PyTorch decomposes it."""
    x, target = ir.input_("x", (rows, CLASSES), types.f32), ir.input_("t", (rows,), types.i64)
    logs = reduction.log_softmax(x, -1)
    kept = compare.not_equal(target, IGNORED)
    loss = -picked(logs, ir.select(kept, target, 0)) * (1 - smoothing)
    if smoothing:
        loss = loss - reduction.sum_(logs, [-1]) * (smoothing / CLASSES)
    count = reduction.sum_(ir.cast(kept, types.f32), [0])
    return reduction.sum_(ir.select(kept, loss, 0), [0]) / count


@pytest.mark.parametrize("target", [targets.AVX512, targets.GPUS["cuda:sm_80"]], ids=lambda t: t.name)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [ROWS, sym.var("n", 1, 64)], ids=str)
def test_a_cross_entropy_stores_no_logarithms(rows: sym.Int, smoothing: float, target: targets.Target) -> None:
    program = compile_graph(graph(cross_entropy(rows, smoothing)), target)
    assert program.entries[0].arena_size <= 8 * 64 * (sym.upper(rows) or 0)  # a few numbers of each row
    random = np.random.default_rng(0)
    x = (5 * random.standard_normal((ROWS, CLASSES))).astype(np.float32)
    t = random.integers(0, CLASSES, ROWS)
    t[3] = IGNORED
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(x).double(), torch.from_numpy(t), ignore_index=IGNORED, label_smoothing=smoothing
    )
    found = run_program(program, {"x": x, "t": t})["y0"]
    np.testing.assert_allclose(found, expected.numpy(), rtol=16 * types.f32.eps)


@pytest.mark.parametrize("rows", [ROWS, sym.var("n", 1, 64)], ids=str)
def test_a_cross_entropy_with_its_gradient_stores_scores_and_their_gradient(rows: sym.Int) -> None:
    """Neither logarithms nor a gradient of these, which is zero but for one position of each row."""
    width = 4
    features, weight = ir.input_("x", (rows, width), types.f32), ir.input_("w", (CLASSES, width), types.f32)
    target = ir.input_("t", (rows,), types.i64)
    with derivative.recorded():
        scores = contraction.linear(features, weight, None)
        logs = reduction.log_softmax(scores, -1)
        loss = -reduction.mean(picked(logs, target))
    whole = derivative.plain(graph(loss, *gradient.gradients(loss, [features, weight])))
    program = compile_graph(whole, targets.AVX512)
    each = (sym.upper(rows) or 0) * CLASSES * 4
    assert not any(kernel.name.startswith("scatter") for kernel in program.kernels)
    assert program.entries[0].arena_size <= 2.5 * each + 2 * CLASSES * 4 * width * 4
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((ROWS, width), (CLASSES, width)))
    t = random.integers(-CLASSES, CLASSES, ROWS)  # negative ones count from the end
    found = run_program(program, {"x": x, "w": w, "t": t})
    tx, tw = (torch.from_numpy(a).double().requires_grad_() for a in (x, w))
    expected = torch.nn.functional.cross_entropy(tx @ tw.T, torch.from_numpy(t % CLASSES))
    expected.backward()
    for name, value in zip(("y0", "y1", "y2"), (expected.detach(), tx.grad, tw.grad), strict=True):
        np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-5, atol=1e-6)


FUNCTIONS: list[Callable[[Node], Node]] = [
    exponential.exp, hyperbolic.tanh, lambda x: x * 3.5, lambda x: x + reduction.max_(x, [-1], True),
    lambda x: x - reduction.sum_(x, [-1], True), lambda x: ir.select(ir.binary(ops.LESS_THAN, x, 0.25), -2.0, x),
    lambda x: movement.flip(x, [1]), lambda x: movement.pad(x, [0, 3], [0, 1], 1.5),
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(range(len(FUNCTIONS))), min_size=1, max_size=5), st.integers(0, 99))
def test_what_is_looked_up_is_the_same_to_the_bit(functions: list[int], seed: int) -> None:
    x = value = ir.input_("x", (4, 40), types.f32)
    for number in functions:
        value = FUNCTIONS[number](value)
    whole = graph(picked(value, ir.input_("t", (4,), types.i64)), reduction.max_(value, [-1]))
    random = np.random.default_rng(seed)
    data: dict[str, Any] = {
        "x": random.standard_normal(x.shape).astype(np.float32), "t": random.integers(-40, 40, 4),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        outputs = (interp.run(g, data).outputs for g in (whole, looked_up.of_few(whole)))
        assert_same_bits(*outputs)


def test_values_that_are_read_twice_are_written_once() -> None:
    """Of thirty squares, each of the square before."""
    value = x = ir.input_("x", (4, 40), types.f32)
    for _ in range(30):
        value = value * value
    whole = graph(picked(value, ir.input_("t", (4,), types.i64)), reduction.max_(value, [-1]))
    assert looked_up.of_few(whole) is not whole and x in whole.inputs


def test_a_position_out_of_range_still_fails() -> None:
    whole = graph(picked(exponential.exp(ir.input_("x", (4, 40), types.f32)), ir.input_("t", (4,), types.i64)))
    found = looked_up.of_few(whole)
    assert found is not whole
    for g in (whole, found):
        with pytest.raises(Exception, match=r"range|index"):
            interp.run(g, {"x": np.zeros((4, 40), np.float32), "t": np.full(4, 4000)})


@pytest.mark.parametrize("also", [lambda y, x: y, lambda y, x: y * x])
def test_what_is_stored_anyway_is_looked_up_where_it_is(also: Callable[[Node, Node], Node]) -> None:
    x = ir.input_("x", (4, 40), types.f32)
    y = exponential.exp(x)
    whole = graph(picked(y, ir.input_("t", (4,), types.i64)), also(y, x))
    assert looked_up.of_few(whole) is whole


def test_many_elements_and_functions_of_constants_are_looked_up_where_they_are() -> None:
    at = ir.input_("t", (4, 20), types.i64)
    table = ir.constant(np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32))
    few = ir.input_("i", (2,), types.i64)
    for value in (
        indexing.gather_elements(exponential.exp(ir.input_("x", (4, 40), types.f32)), at, -1),
        ir.gather(exponential.exp(table), few, 0),
    ):
        whole = graph(value)
        assert looked_up.of_few(whole) is whole
