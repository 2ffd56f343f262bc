"""What ``luminal.diff`` allows where a model rounds to integers: the neighbours beside a tie, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import luminal
from luminal.comparison import ties
from luminal.comparison.measure import beyond
from luminal.comparison.oracle import Bound, Oracle
from luminal.core import interp, ir, ops
from luminal.core.decompose import contraction
from luminal.core.decompose.arithmetic import round_
from luminal.core.decompose.quantization import rounded
from luminal.core.ir import Graph, Node
from luminal.core.movement import slice_
from luminal.core.precision import BF16
from luminal.core.types import f32, i16
from luminal.frontends.onnx import operators
from luminal.frontends.onnx.registry import Call
from tests.comparison_models import quantised

DEPTH = 256
STEP = 0.002


def projected() -> tuple[Graph, Graph, dict[str, NDArray[Any]]]:
    """``x @ w`` in steps of 16 bits, summed as the oracle does and in another order; and inputs."""
    random = np.random.default_rng(0)
    x, w = ir.input_("x", (40, DEPTH), f32), ir.input_("w", (DEPTH, 60), f32)
    arrays = {"x": random.standard_normal((40, DEPTH)), "w": random.standard_normal((DEPTH, 60))}

    def graph(total: Node) -> Graph:
        return Graph("projected", (x, w), (("y", rounded(total / STEP, None, i16)),))

    half = DEPTH // 2
    parts = (contraction.matmul(slice_(x, 1, start, half), slice_(w, 0, start, half)) for start in (0, half))
    inputs = {name: array.astype(np.float32) for name, array in arrays.items()}
    return graph(contraction.matmul(x, w)), graph(sum(parts, start=ir.constant(0.0, f32))), inputs


def test_neighbours_beside_a_tie_are_allowed() -> None:
    graph, other, inputs = projected()
    oracle, (y,) = Oracle(graph, inputs), graph.results
    (found,) = interp.run(other, inputs).outputs
    apart = np.abs(found.astype(int) - oracle.typed(y))
    assert apart.max() == 1 and 0 < np.count_nonzero(apart) < apart.size // 20
    assert not oracle.refutes(y, found) and not oracle.refutes_reference(y, found)


@pytest.mark.parametrize("mistake", ["one step everywhere", "many steps at one place", "rounded towards zero"])
def test_what_ties_do_not_explain_is_refused(mistake: str) -> None:
    graph, _, inputs = projected()
    oracle, (y,) = Oracle(graph, inputs), graph.results
    found = oracle.typed(y).copy()
    assert not oracle.refutes(y, found)
    if mistake == "one step everywhere":
        found += 1
    elif mistake == "many steps at one place":
        found[3, 5] += 40
    else:
        found = np.trunc(contractions(inputs)).astype(found.dtype)
    assert oracle.refutes(y, found)


def contractions(inputs: dict[str, NDArray[Any]]) -> NDArray[Any]:
    return np.asarray(inputs["x"].astype(np.float64) @ inputs["w"] / STEP)


def test_values_that_are_exact_are_not_moved() -> None:
    """Halves that are inputs lie on a tie in every implementation."""
    x = ir.input_("x", (4,), f32)
    oracle = Oracle(Graph("halves", (x,), (("y", round_(x)),)), {"x": np.array([0.5, 1.5, 2.5, -0.5], np.float32)})
    (y,) = oracle.graph.results
    assert oracle.allowed(y).own.exceptions == 0
    assert not oracle.refutes(y, np.array([0, 2, 2, -0.0], np.float32))
    assert oracle.refutes(y, np.array([1, 2, 3, -1], np.float32))


def test_other_modes_and_constants_are_not_moved() -> None:
    x, c = ir.input_("x", (4,), f32), ir.constant(np.array([0.1, 0.7, 1.3, 2.9], np.float32))
    even, floor, constant = round_(x / 3), ir.unary(ops.ROUND, x / 5, ops.Rounding("floor")), round_(c / 7)
    graph = Graph("modes", (x,), (("y", even + floor + constant),))
    assert ties.arguments(graph) == [even.inputs[0]]


def test_steps_are_of_each_element_and_at_most_half() -> None:
    """One huge element, a masked score for one, says nothing about the others."""
    exact = np.array([1.0, 2.0, 3.0, -3e38, np.inf, np.nan])
    typed = exact + np.array([1e-6, 2e-6, 0.0, 1e30, 0.0, 0.0])
    np.testing.assert_allclose(ties.steps(typed, exact, 0.0)[:4], [8e-6, 8e-6, 8e-6, 0.5], rtol=1e-6)
    np.testing.assert_allclose(ties.steps(exact, exact, 0.01), [0.01, 0.02, 0.03, 0.5, 0.0, 0.0])
    assert not ties.steps(exact, exact, 0.0).any() and ties.steps(np.zeros(0), np.zeros(0), 0.1).shape == (0,)


class Chosen(torch.nn.Module):
    """How many elements there are follows from what is rounded, and which."""

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.round(x * 3.3)
        return x[whole > 0], table[whole.long().abs().clamp(max=3)]


def test_sizes_and_places_that_follow_from_rounding() -> None:
    x = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, 5000).astype(np.float32))
    x[0] = 0.5 / 3.3
    assert luminal.diff(Chosen(), (x, torch.arange(4.0))).trials[0].ok


def test_texts_that_follow_from_rounding() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("Cast", ["q"], ["n"], to=TensorProto.INT64),
        helper.make_node(
            "LabelEncoder", ["n"], ["y"], domain="ai.onnx.ml",
            keys_int64s=list(range(256)), values_strings=[f"label {k}" for k in range(256)],
        ),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "labels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [500])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [500])],
        [numpy_helper.from_array(np.float32(0.0131), "scale"), numpy_helper.from_array(np.uint8(120), "zero")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 2)]
    report = luminal.diff(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    assert report.ok, str(report)


def test_a_precision_loosens_the_library_alone() -> None:
    graph, _, inputs = projected()
    (y,) = graph.results
    exact, chosen = Oracle(graph, inputs), Oracle(graph, inputs, precision=BF16)
    assert chosen.allowed(y).reference == exact.allowed(y).reference
    assert chosen.allowed(y).own.exceptions > exact.allowed(y).own.exceptions > 0


def test_bounds_count_exceptions() -> None:
    expected = np.array([10, -20, 30, 40], np.int8)
    bound = Bound(0.0, 0.1, 1)
    assert not bound.problem(np.array([10, -20, 31, 40], np.int8), expected, "it")
    assert bound.problem(np.array([11, -20, 31, 40], np.int8), expected, "it") == "2 of 4 elements differ, 1 may"
    assert "1.2e-01 of the scale from it" in bound.problem(np.array([10, -20, 35, 40], np.int8), expected, "it")
    floats = expected.astype(np.float32)
    assert Bound(0.01, 0.1, 1).problem(floats + 1, floats, "it") == (
        "4 of 4 elements are more than 1.0e-02 of the scale from it, 1 may"
    )


def test_elements_beyond_a_distance() -> None:
    huge = np.array([2**62, 2**62 + 1])
    assert beyond(huge, huge[::-1], 0.0) == 2 and beyond(huge, huge[::-1], 1e-9) == 0
    x = np.array([np.nan, np.inf, 1.0, 2.0])
    assert beyond(x, np.array([0.0, 0.0, 1.5, 2.0]), 0.2) == 1
    assert beyond(np.zeros(0), np.zeros(0), 0.0) == 0


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_quantised_models_agree(bits: int, seed: int) -> None:
    report = luminal.diff(quantised(bits), seed=seed)
    assert report.ok, str(report)


def test_a_wrong_zero_point_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A step everywhere: as far as a value beside a tie moves, but at many more places."""
    find = operators.find

    def wrong(call: Call) -> Node:
        return rounded(call[0] / call[1], call[2] + 1, call[2].dtype)

    monkeypatch.setattr(operators, "find", lambda *name: wrong if name[1] == "QuantizeLinear" else find(*name))
    report = luminal.diff(quantised(8), save=tmp_path)
    assert not report.ok and report.finding is not None and report.finding.origin is not None
    assert report.finding.origin.op == "QuantizeLinear"
    assert report.finding.stage == "the front end or a decomposition"
