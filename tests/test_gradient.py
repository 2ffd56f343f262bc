"""Gradients of primitives against PyTorch's in double precision, and the ONNX operator that asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
import torch
from torch.nn import functional

import luminal
from luminal.core import derivative, gradient, interp, ir, ops, structured, types
from luminal.core.decompose import math
from luminal.core.errors import UnsupportedError
from luminal.core.gradient import gradients
from luminal.core.movement import reshape, slice_
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
    "summed up": (lambda x: x.cumsum(0) * x.cumprod(1) + x.logcumsumexp(0), (ROWS,)),
    "multiplied": (lambda x: x.scatter_reduce(0, PICKS, x[:2, :3] * x[1:3, 2:5], "prod"), (ROWS,)),
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
    with derivative.recorded():
        graph = luminal.read(Call(function), given)
        nodes = derivative.stripped(gradients(graph.results[0], graph.inputs))
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
    parts = [set(gradient.RULES), set(gradient.LOOPS), gradient.CONSTANT, gradient.WITHOUT]
    assert set().union(*parts) == set(ops.TABLE.values()) and sum(map(len, parts)) == len(ops.TABLE)


def test_there_is_none_through_bits() -> None:
    x = ir.input_("x", (3,), types.f32)
    with pytest.raises(UnsupportedError, match="Bitcast has no gradient"):
        gradients(ir.bitcast(ir.bitcast(x, types.i32) & 7, types.f32), [x])


# ---- loops and branches --------------------------------------------------------------------------------------------


def agrees(build: Callable[[ir.Node], ir.Node], eager: Function, given: torch.Tensor) -> None:
    x = ir.input_("x", tuple(given.shape), types.f64)
    (found,) = interp.evaluate(gradients(build(x), [x]), {"x": given.numpy()})
    leaf = given.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(eager(leaf).sum(), leaf)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


def test_a_scan_is_differentiated_by_a_scan_backwards() -> None:
    """By what it carries first, what it runs along, and what all steps share; by the last carry and by outputs."""

    def build(x: ir.Node) -> ir.Node:
        first, weight = slice_(reshape(x, [24]), 0, 0, 6), slice_(reshape(x, [24]), 0, 6, 6)

        def step(carried: Sequence[ir.Node], element: Sequence[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
            h = carried[0] * weight + element[0] * element[0]
            return [h, carried[1] + 1], [h * carried[0]]

        last, (out,) = structured.scan(step, [first, ir.constant(0, types.i64)], [x])
        return last[0] * 3 + ir.reduce(ops.SUM_REDUCE, out, [0])

    def eager(x: torch.Tensor) -> torch.Tensor:
        h, weight, total = x.reshape(-1)[:6], x.reshape(-1)[6:12], torch.zeros(6, dtype=x.dtype)
        for row in x:
            before, h = h, h * weight + row * row
            total = total + h * before
        return h * 3 + total

    agrees(build, eager, ROWS)


def test_a_scan_in_a_scan_is_differentiated() -> None:
    def build(x: ir.Node) -> ir.Node:
        def outer(carried: Sequence[ir.Node], row: Sequence[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
            def inner(total: Sequence[ir.Node], element: Sequence[ir.Node]) -> tuple[list[ir.Node], list[ir.Node]]:
                return [total[0] * element[0] + carried[0]], []

            (last,), _ = structured.scan(inner, [carried[0]], [row[0]])
            return [last], [last * last]

        return structured.scan(outer, [ir.constant(0.5, types.f64)], [x])[1][0]

    def eager(x: torch.Tensor) -> torch.Tensor:
        carried, found = torch.tensor(0.5, dtype=x.dtype), []
        for row in x:
            total = carried
            for element in row:
                total = total * element + carried
            carried = total
            found.append(total * total)
        return torch.stack(found)

    agrees(build, eager, ROWS)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_branch_gives_the_gradient_of_the_side_that_is_taken(sign: float) -> None:
    def build(x: ir.Node) -> ir.Node:
        first = reshape(slice_(reshape(x, [24]), 0, 0, 1), [])
        return structured.cond(first < 0, lambda: [x * x], lambda: [x * first])[0]

    agrees(build, lambda x: x * x if x[0, 0] < 0 else x * x[0, 0], ROWS * sign)


def test_a_while_loop_whose_rounds_are_bounded_is_differentiated() -> None:
    """How often it runs is decided by the data, but never more than 9 times."""

    def build(x: ir.Node) -> ir.Node:
        def holds(carries: Sequence[ir.Node]) -> ir.Node:
            small = reshape(ir.reduce(ops.SUM_REDUCE, carries[1] * carries[1], [0, 1]), []) < 1000.0
            return (carries[0] < 9) & small

        count = ir.constant(0, types.i64)
        return structured.while_loop(holds, lambda c: [c[0] + 1, c[1] * c[1] + x], [count, x])[1]

    def eager(x: torch.Tensor) -> torch.Tensor:
        y, count = x, 0
        while count < 9 and (y * y).sum() < 1000:
            y, count = y * y + x, count + 1
        assert 0 < count < 9
        return y

    agrees(build, eager, ROWS)


def test_a_while_loop_that_counts_down_is_differentiated() -> None:
    """To 0, which stands in its condition, and is not the number of a round."""

    def build(x: ir.Node) -> ir.Node:
        def holds(carries: Sequence[ir.Node]) -> ir.Node:
            small = reshape(ir.reduce(ops.SUM_REDUCE, carries[1] * carries[1], [0, 1]), []) < 1e9
            return (ir.constant(0, types.i64) < carries[0]) & small

        count = ir.constant(8, types.i64)
        return structured.while_loop(holds, lambda c: [c[0] + -1, c[1] * 1.1 + x], [count, x])[1]

    def eager(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(8):
            y = y * 1.1 + x
        return y

    agrees(build, eager, ROWS)


def test_a_loop_without_a_bound_has_no_gradient() -> None:
    x = ir.input_("x", (), types.f64)
    last = structured.while_loop(lambda c: c[0] < 100.0, lambda c: [c[0] * 2], [x])[0]
    with pytest.raises(UnsupportedError, match="While has no gradient: nothing bounds the number of its rounds"):
        gradients(last, [x])


# ---- functions that remember their derivative ------------------------------------------------------------------------


def test_functions_are_differentiated_by_their_own_derivatives() -> None:
    """No bits and no coefficients of a polynomial are left: the gradient of tanh is one less its square."""
    with derivative.recorded():
        x = ir.input_("x", (3,), types.f32)
        y = math.tanh(x)
        (found,) = derivative.stripped(gradients(y, [x]))
    (plain,) = derivative.stripped([y])
    assert plain is math.tanh(x)
    assert found is ir.expand(ir.constant(1.0, types.f32), (3,)) * (1 - plain * plain)


def test_derivatives_have_derivatives() -> None:
    for function in (torch.tanh, torch.sigmoid, functional.gelu, torch.erf, torch.lgamma, lambda x: x.softmax(0)):
        with derivative.recorded():
            graph = luminal.read(Call(function), (ROWS,))
            (first,) = gradients(graph.results[0], graph.inputs, graph.inputs[0])
            second = derivative.stripped(gradients(first, graph.inputs))
        (found,) = interp.evaluate(second, {graph.inputs[0].attr.name: ROWS.numpy()})
        x = ROWS.clone().requires_grad_()
        (once,) = torch.autograd.grad(function(x), x, x, create_graph=True)
        (wanted,) = torch.autograd.grad(once.sum(), x)
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6, atol=1e-8)  # PyTorch's trigamma has 9 digits


def test_equal_values_of_functions_with_other_derivatives_are_told_apart() -> None:
    with derivative.recorded():
        x = ir.input_("x", (1,), types.f32)
        y = math.relu(x) + math.clamp(x, 0)
        found = derivative.stripped(gradients(y, [x]))
    assert interp.evaluate(found, {"x": np.zeros(1, np.float32)})[0] == 1


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
