"""Gradients of primitives against PyTorch's in double precision, and the ONNX operator that asks for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from torch.nn import functional

import luminal
from luminal.core import gradient, interp, ir, ops, types
from luminal.core.errors import UnsupportedError
from luminal.core.gradient import gradients
from luminal.frontends.onnx import importer
from tests.fx_support import Call

Function = Callable[..., torch.Tensor]

ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
IMAGE = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
FILTERS = torch.randn(4, 3, 3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
PICKS = torch.tensor([[2, 0, 2], [1, 1, 3]])

FUNCTIONS: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "arithmetic": (lambda x, y: x * y - x / (y * y + 1) + 3 - y, (ROWS, ROWS.flip(0))),
    "functions": (lambda x: x.exp() * x.sin() + x.cos() * (x * x + 1).log() + (x * x + 2).sqrt().reciprocal(), (ROWS,)),
    "remainder": (lambda x, y: torch.remainder(x, y * y + 0.1), (ROWS, ROWS.flip(1))),
    "choices": (lambda x: torch.where(x > 0, x * x, -x).maximum(x * 0.5 + 0.1).clamp(-1, 1), (ROWS,)),
    "twice": (lambda x: (y := x.tanh()) * y + x, (ROWS,)),
    "rounded": (lambda x: x.floor() * x + x.to(torch.int64).double(), (ROWS * 3,)),
    "narrower": (lambda x: x.float().double() * 2, (ROWS,)),
    "broadcast": (lambda x, y: x + x * y[:, None] + x.sum() * y.mean(), (ROWS, ROWS[:, 0].clone())),
    "softmax": (lambda x: x.softmax(1) * ROWS, (ROWS * 2,)),
    "norm": (lambda x: functional.layer_norm(x, (6,)) * ROWS, (ROWS * 2,)),
    "largest": (lambda x: x.amax(1) * x.logsumexp(1), (ROWS,)),
    "ties": (lambda x: x.amax(1), (torch.tensor([[1.0, 3, 3], [2, 2, 2]], dtype=torch.float64),)),
    "product": (lambda x, y: x @ y.T @ x, (ROWS, ROWS * 0.5)),
    "moved": (lambda x: x.reshape(2, 12).T.flip(0)[1::2, :] * ROWS.reshape(12, 2)[:6], (ROWS,)),
    "padded": (lambda x: functional.pad(x, (1, 2, -1, 0)).exp(), (ROWS,)),
    "joined": (lambda x, y: torch.cat([x[:, 2:], y, x], 1).exp(), (ROWS, ROWS * 0.3)),
    "diagonal": (lambda x: x.diagonal() * x[:, 1], (ROWS,)),
    "windows": (lambda x: x.unfold(1, 3, 1) * torch.arange(3.0).double(), (ROWS,)),
    "convolution": (lambda x, w: functional.conv2d(x, w, stride=(2, 1), padding=1).exp(), (IMAGE * 0.1, FILTERS * 0.1)),
    "pooling": (lambda x: functional.max_pool2d(x, 2) * functional.avg_pool2d(x, 3, 2, 1)[..., :2], (IMAGE,)),
    "picked": (lambda x: x[:, PICKS] * x[[2, 0, 2, 3]][:, None, :3], (ROWS,)),
    "sorted": (lambda x: x.sort(1).values * ROWS, (IMAGE.reshape(-1)[:24].reshape(4, 6),)),
    "put": (lambda x, y: x.index_copy(0, torch.tensor([3, 1]), y).exp(), (ROWS, ROWS[:2] * 0.5)),
    "added": (lambda x, y: x.index_add(0, torch.tensor([3, 1, 3]), y).exp(), (ROWS, ROWS[:3] * 0.5)),
}


ACTIVATIONS: dict[str, Function] = {
    "gelu": functional.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": functional.silu,
    "softplus": functional.softplus, "logsigmoid": functional.logsigmoid, "mish": functional.mish, "erf": torch.erf,
    "erfc": torch.erfc, "gelu of tanh": lambda x: functional.gelu(x, approximate="tanh"), "sinh": torch.sinh,
    "cosh": torch.cosh, "asinh": torch.asinh, "atanh": torch.atanh, "expm1": torch.expm1, "log1p": torch.log1p,
    "elu": functional.elu,
}  # fmt: skip
FUNCTIONS |= {
    f"{name} at zero": (function, (torch.tensor([0.0, -0.0, 0.5, -0.5], dtype=torch.float64),))
    for name, function in ACTIVATIONS.items()
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_pytorch(name: str) -> None:
    function, given = FUNCTIONS[name]
    graph = luminal.read(Call(function), given)
    nodes = gradients(graph.results[0], graph.inputs)
    assert [(x.shape, x.dtype) for x in nodes] == [(x.shape, x.dtype) for x in graph.inputs]
    values = {node.attr.name: x.numpy() for node, x in zip(graph.inputs, given, strict=True)}
    leaves = [x.clone().requires_grad_() for x in given]
    wanted = torch.autograd.grad(function(*leaves).sum(), leaves)
    for found, x in zip(interp.evaluate(nodes, values), wanted, strict=True):
        np.testing.assert_allclose(found, x.numpy(), rtol=1e-9, atol=1e-9)


def test_of_what_is_put_in_one_place_the_last_counts() -> None:
    x, y = ir.input_("x", (3,), types.f64), ir.input_("y", (4,), types.f64)
    put = ir.scatter(x, ir.constant(np.array([1, 2, 1, 1])), y, 0)
    found = interp.evaluate(gradients(put * put, [x, y]), {"x": np.float64([1, 2, 3]), "y": np.float64([4, 5, 6, 7])})
    np.testing.assert_array_equal(found[0], [2, 0, 0])
    np.testing.assert_array_equal(found[1], [0, 10, 0, 14])


def test_symbolic_sizes_and_values_that_do_not_matter() -> None:
    graph = luminal.read(
        Call(lambda x, y: functional.pad(x[1:].softmax(0), (1, 0)) * 2 + y.shape[0]), (ROWS, ROWS),
        dims={"n": (3, 9), "m": (2, 9), "args_0": {0: "n"}, "args_1": {0: "m"}},
    )  # fmt: skip
    first, second = interp.evaluate(
        gradients(graph.results[0], graph.inputs),
        {node.attr.name: ROWS.numpy() for node in graph.inputs},
        dims={"n": 4, "m": 4},
    )
    np.testing.assert_allclose(first, np.zeros((4, 6)), atol=1e-15)
    np.testing.assert_array_equal(second, np.zeros((4, 6)))


def test_every_primitive_has_a_rule_or_is_known_to_have_none() -> None:
    parts = [set(gradient.RULES), gradient.CONSTANT, gradient.WITHOUT]
    assert set().union(*parts) == set(ops.TABLE.values()) and sum(map(len, parts)) == len(ops.TABLE)


def test_there_is_none_through_loops_and_bits() -> None:
    graph = luminal.read(Call(lambda x: x.cumsum(0)), (ROWS,))
    with pytest.raises(UnsupportedError, match="Scan has no gradient"):
        gradients(graph.results[0], graph.inputs)
    x = ir.input_("x", (3,), types.f32)
    with pytest.raises(UnsupportedError, match="Bitcast has no gradient"):
        gradients(ir.bitcast(ir.bitcast(x, types.i32) & 7, types.f32), [x])


# ---- ONNX ----------------------------------------------------------------------------------------------------------


def load(body: str) -> ir.Graph:
    return importer.load(
        onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
            test {body}""")
    )


def run(graph: ir.Graph, *values: float) -> list[float]:
    given = {node.attr.name: np.float32(value) for node, value in zip(graph.inputs, values, strict=True)}
    return [float(x) for x in interp.run(graph, given).outputs[: len(graph.returned)]]


def test_gradients_by_inputs_and_by_values_between() -> None:
    graph = load("""(float x, float w) => (float dx, float dh) {
        h = Mul (x, w)  two = Constant <value: tensor = float {2}> ()  y = Pow (h, two)
        dx = ai.onnx.preview.training.Gradient <xs: strings = ["x"], zs: strings = ["w"], y: string = "y"> (x, w)
        dh = ai.onnx.preview.training.Gradient <xs: strings = ["h"], y: string = "y"> (h)
    }""")
    assert run(graph, 3, 5) == [2 * 3 * 5 * 5, 2 * 15]


def test_a_gradient_elsewhere_and_one_of_a_gradient() -> None:
    graph = load("""(float x, float at) => (float there, float second) {
        s = Mul (x, x)  y = Mul (s, x)
        there = ai.onnx.preview.training.Gradient <xs: strings = ["x"], y: string = "y"> (at)
        d = ai.onnx.preview.training.Gradient <xs: strings = ["x"], y: string = "y"> (x)
        second = ai.onnx.preview.training.Gradient <xs: strings = ["x"], y: string = "d"> (x)
    }""")
    assert run(graph, 2, 5) == [75, 12]


def test_equal_values_are_told_apart() -> None:
    """The constant that it is differentiated by is equal to another, and to the value of a branch."""
    graph = load("""(float x) => (float da) {
        a = Constant <value: tensor = float {3}> ()  b = Constant <value: tensor = float {3}> ()
        go = Constant <value: tensor = bool {1}> ()
        c = If (go) <
            then_branch = then () => (float t) { t = Mul (a, x) }, else_branch = other () => (float e) { e = Neg (x) }
        >
        d = Mul (b, a)  y = Add (c, d)
        da = ai.onnx.preview.training.Gradient <xs: strings = ["a"], y: string = "y"> (a)
    }""")
    assert run(graph, 7) == [7 + 3]


def test_what_it_cannot_be_of() -> None:
    with pytest.raises(UnsupportedError, match="draw other random numbers"):
        load("""(float[3] x) => (float[3] dx) {
            r = RandomUniformLike (x)  y = Mul (r, x)  z = RandomUniformLike (y)  w = Add (z, y)
            dx = ai.onnx.preview.training.Gradient <xs: strings = ["x"], y: string = "w"> (x)
        }""")
    with pytest.raises(UnsupportedError, match="Scan has no gradient"):
        load("""(float[3] x) => (float[3] dx) {
            axis = Constant <value: tensor = int64 {0}> ()  y = CumSum (x, axis)
            dx = ai.onnx.preview.training.Gradient <xs: strings = ["x"], y: string = "y"> (x)
        }""")
