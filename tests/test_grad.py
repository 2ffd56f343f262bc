"""``luminal.grad`` on compiled libraries, beside ``torch.autograd``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch.nn import functional

import luminal
from luminal.core.errors import InputError, UnsupportedError


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Tied(torch.nn.Module):
    """A parameter of two names, one that is frozen, and parts without gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = torch.nn.Embedding(10, 16)
        self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
        self.first, self.second = torch.nn.LayerNorm(16), torch.nn.LayerNorm(16)  # equal values, two parameters
        self.out = torch.nn.Linear(16, 10, bias=False)
        self.out.weight = self.rows.weight

    def forward(self, index: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        h = self.second(functional.gelu(self.frozen(self.first(self.rows(index)))))
        with torch.no_grad():
            scale = h.square().mean()
        return functional.cross_entropy(self.out(h * scale + h.detach()), target)


INDEX, TARGET = torch.tensor([1, 7, 7, 3]), torch.tensor([0, 2, 9, 2])


def test_parameters_are_read_where_they_lie() -> None:
    module = Tied()
    step = luminal.grad(module, (INDEX, TARGET), value=True)
    for _ in range(2):
        value, found = step(INDEX, TARGET)
        module.zero_grad()
        loss = module(INDEX, TARGET)
        loss.backward()
        torch.testing.assert_close(value, loss.detach())
        wanted = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
        assert list(found) == list(wanted) and "out.weight" not in found
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient)
        with torch.no_grad():
            for p in module.parameters():
                p -= 0.5 * p.grad if p.grad is not None else 0
    assert step.module.graph is not None and not step.module.graph.states


def test_by_names_and_positions_of_inputs_and_parameters() -> None:
    module = torch.nn.Linear(3, 1)
    x = floats(1, 3)
    one, (other, weight) = (
        luminal.grad(module, (x,), wrt=wrt)(x) for wrt in ("input", (0, "weight"))
    )  # fmt: skip
    torch.testing.assert_close(one, module.weight.detach())
    torch.testing.assert_close(other, one)
    torch.testing.assert_close(weight, x)


def test_a_cotangent_of_a_module_with_parameters() -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(floats(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w

    module, x, g = Scale(), floats(3, seed=1), floats(3, seed=2)
    by_x, by_w = luminal.grad(module, (x,), wrt=(0, "w"), cotangent=True)(x, cotangent=g)
    torch.testing.assert_close(by_x, module.w.detach() * g)
    torch.testing.assert_close(by_w, x * g)


def test_a_function_with_a_cotangent_and_symbolic_sizes() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, w, stride=2, padding=1).tanh()

    x, w = floats(2, 3, 8, 8), floats(4, 3, 3, 3, seed=1)
    dims = {"batch": (1, 4), "x": {0: "batch"}}
    gradients = luminal.grad(function, (x, w), cotangent=True, value=True, dims=dims)
    for batch in (2, 3):
        x = floats(batch, 3, 8, 8, seed=batch)
        leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = function(*leaves)
        g = floats(*y.shape, seed=5)
        value, found = gradients(x, w, cotangent=g)
        torch.testing.assert_close(value, y.detach())
        for a, b in zip(found, torch.autograd.grad(y, leaves, g), strict=True):
            torch.testing.assert_close(a, b)
    with pytest.raises(InputError, match="expected a cotangent"):
        gradients(x, w)


def test_a_recurrent_layer_is_differentiated() -> None:
    module = torch.nn.LSTM(4, 5)

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0].square().sum()

    x, loss = floats(6, 2, 4), Loss()
    found = luminal.grad(loss, (x,))(x)
    loss(x).backward()
    for name, p in loss.named_parameters():
        torch.testing.assert_close(found[name], p.grad)


def test_windows_and_ties_are_differentiated_by_kernels() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        pooled = functional.max_pool2d(x, 3, 2, 1) + functional.avg_pool2d(x, 2)
        return (pooled * functional.interpolate(x, size=pooled.shape[-2:], mode="bilinear")).sum() + x.amax(1).sum()

    x = floats(2, 3, 8, 8).round()
    found = luminal.grad(function, (x,), wrt=0)(x)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(function(leaf), leaf)[0])


def test_of_an_onnx_model() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> test (float[3] x) => (float y) {
        t = Tanh (x)  y = ReduceSum <keepdims = 0> (t)
    }""")
    x = np.float32([0.5, -1, 2])
    (found,) = luminal.grad(model)(x)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, 1 - np.tanh(x.astype(np.float64)) ** 2, rtol=1e-6)


def bits(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & 7).view(torch.float32).sum()


MATRIX = floats(2, 3)


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (InputError, "found index: int64", lambda: luminal.grad(Tied(), (INDEX, TARGET), wrt="index")),
        (InputError, r"found output: float32\[2, 3\]; reduce it", lambda: luminal.grad(lambda x: x + 1, (MATRIX,))),
        (InputError, "an output of floats", lambda: luminal.grad(lambda x: (x > 0).any(), (MATRIX,))),
        (InputError, "one output, found", lambda: luminal.grad(lambda x: (x.sum(), x.mean()), (MATRIX,))),
        (InputError, "'out.weigh'; the nearest", lambda: luminal.grad(Tied(), (INDEX, TARGET), wrt=["out.weigh"])),
        (InputError, "a position of 1 inputs, found 1", lambda: luminal.grad(lambda x: x.sum(), (MATRIX,), wrt=1)),
        (InputError, "nothing to differentiate by", lambda: luminal.grad(lambda x: x.double().sum(), (INDEX,))),
        (UnsupportedError, "aten.view.dtype .* at .*test_grad.py:.*Bitcast has", lambda: luminal.grad(bits, (MATRIX,))),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)  # fmt: skip
def test_what_cannot_be_differentiated_is_told(error: Any, message: str, make: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message):
        make()
