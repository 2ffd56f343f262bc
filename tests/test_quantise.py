"""Weights that are rounded when compiling: which, how, and what the report says of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal.core import interp, ir, movement, ops, traverse, types
from luminal.core.decompose import contraction
from luminal.core.ir import Graph
from luminal.core.schedule.numeric import quantise
from luminal.core.types import DType
from luminal.module import Module

Array = np.ndarray[Any, Any]


def matrix(*shape: int) -> Array:
    """Normal numbers, rows of them much smaller, and one of zeros."""
    found = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found[::3] *= 1e-4
    found[1] = 0
    return found


def rounded(weight: Array, name: str) -> Array:
    """``weight`` ``[N, K]`` as its formulas have it, in float64 where that changes nothing."""
    if name == "int8":
        scale = np.abs(weight).max(1, keepdims=True) / np.float32(127)
        whole = np.rint(weight / np.where(scale == 0, 1, scale))
        return np.asarray(whole.astype(np.float32) * scale)
    group = {"int4": 32, "int4-64": 64, "int4-128": 128}[name]
    result = np.empty_like(weight)
    for row in range(weight.shape[0]):
        for start in range(0, weight.shape[1], group):
            part = weight[row, start : start + group]
            extreme = part[np.abs(part).argmax()]
            scale = np.float32(np.float32(extreme / np.float32(-8)).astype(types.bf16.numpy))
            digits = np.clip(np.rint(part / scale), -8, 7) if scale else np.zeros_like(part)
            result[row, start : start + group] = digits.astype(np.float32) * scale
    return result


def linear(weight: Array, transposed: bool = False) -> Graph:
    x = ir.input_("x", (3, weight.shape[1]), types.f32)
    constant = ir.constant(np.ascontiguousarray(weight.T)) if transposed else ir.constant(weight)
    b = constant if transposed else movement.transpose(constant, 0, 1)
    return Graph("linear", (x,), (("y", contraction.matmul(x, b)),), (), names={constant: "fc.weight"})


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", quantise.ALL)
def test_weights_are_rounded_as_the_formulas_say(name: str, transposed: bool) -> None:
    weight = matrix(260, 256)
    graph = quantise.quantised(linear(weight, transposed), quantise.ALL[name])
    x = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
    (found,) = interp.run(graph, {"x": x}).outputs
    expected = x @ rounded(weight, name).T
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert {"fc.weight", "fc.weight.scale"} <= set(graph.names.values())


def stored(graph: Graph) -> set[DType]:
    return {n.dtype for n in traverse.topological(graph.roots) if n.op is ops.CONSTANT and n.size != 1}


def test_other_weights_stay() -> None:
    """Small ones, such as groups do not divide, that are not finite, and what no contraction multiplies."""
    infinite = matrix(260, 256)
    infinite[7, 7] = np.inf
    for weight in (matrix(64, 256), matrix(700, 100), infinite):
        assert types.i4 not in stored(quantise.quantised(linear(weight), quantise.ALL["int4"]))
    x = ir.input_("x", (260, 256), types.f32)
    graph = Graph("sum", (x,), (("y", x * ir.constant(matrix(260, 256))),), ())
    assert stored(quantise.quantised(graph, quantise.ALL["int8"])) == {types.f32}


def test_a_weight_that_constants_give_is_rounded_unless_they_are_narrow() -> None:
    weight, x = matrix(260, 256), ir.input_("x", (3, 256), types.f32)
    each = np.linspace(1, 2, 260, dtype=np.float32)[:, None]
    scaled = ir.constant(weight) * ir.expand(ir.constant(each), (260, 256))
    integers = ir.constant(np.rint(weight * 9).astype(np.int8))
    narrow = ir.cast(integers, types.f32) * ir.expand(ir.constant(each), (260, 256))
    for b, expected in ((scaled, {types.i4, types.bf16}), (narrow, {types.i8, types.f32})):
        graph = Graph("product", (x,), (("y", contraction.matmul(x, movement.transpose(b, 0, 1))),), ())
        made = quantise.quantised(graph, quantise.ALL["int4"])
        assert stored(made) == expected
    values = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
    graph = Graph("product", (x,), (("y", contraction.matmul(x, movement.transpose(scaled, 0, 1))),), ())
    (found,) = interp.run(quantise.quantised(graph, quantise.ALL["int4"]), {"x": values}).outputs
    wanted = values @ rounded(weight * each, "int4").T
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


class Tied(nn.Module):
    """A table that is looked up in, and a contraction with it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(300, 256)
        self.up = nn.Linear(256, 512)
        self.down = nn.Linear(512, 256)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.table(index)
        x = x + self.down(torch.relu(self.up(x)))
        return x @ self.table.weight.T


INDEX = torch.tensor([[3, 299, 0]])


def test_a_module_is_compiled_with_rounded_weights() -> None:
    model = Tied().eval()
    bytes_: dict[str | None, int] = {}  # the table is looked up in as contractions read it
    for name in (None, "int8", "int4"):
        module = luminal.compile(model, (INDEX,), weights=name, threads=1)
        assert isinstance(module, Module)
        (expected,) = interp.run(module.graph, {module.graph.inputs[0].attr.name: INDEX.numpy()}).outputs
        np.testing.assert_allclose(module(INDEX).numpy(), expected, rtol=0, atol=1e-4 * np.abs(expected).max())
        bytes_[name] = sum(row["bytes"] for row in module.library.metadata["constants"])
        read = [(made["option"], made["what"]) for made in module.manifest["approximations"]]
        assert read == [("weights", name)] * module.approximated("weights") and len(read) == (4 if name else 0)
        names = {row["name"] for row in module.library.metadata["constants"]}
        assert {"up.weight", "down.weight"} <= names and ("up.weight.scale" in names) == (name == "int8")
    weights = (2 * 256 * 512 + 300 * 256) * 4
    assert weights / 3.6 > bytes_["int8"] > bytes_["int4"] and weights / 6 > bytes_["int4"]


def test_the_header_says_what_a_run_takes_of_the_stack() -> None:
    """Rounded weights of 6144 x 64 are made real there, a panel of 64 KiB or more at a time."""
    layer, x = nn.Linear(6144, 64), torch.randn(64, 6144)
    needed = []
    for name in (None, "int8"):
        module = luminal.compile(layer, (x,), weights=name, threads=1)
        assert isinstance(module, Module)
        needed.append(module.library.metadata["stack_kib"])
        header = (module.folder / f"{module.interface.name}.h").read_text()
        assert f"needs {needed[-1]} KiB of stack" in header
    assert 64 <= needed[0] < 128 and needed[1] >= needed[0] + 64


def test_the_report_says_how_far_rounded_weights_are_away() -> None:
    model = Tied().eval()
    exact, coarse = (luminal.diff(model, (INDEX,), weights=name, threads=1) for name in (None, "int4"))
    assert exact.ok and coarse.ok, str(coarse)
    assert exact.worst < 1e-5 < 1e-3 < coarse.worst < 0.3
    assert "weights of int4 (operators: 4)" in str(coarse)


def test_other_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown weights 'int3': expected int8, int4"):
        luminal.compile(Tied().eval(), (INDEX,), weights="int3")
