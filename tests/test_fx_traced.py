"""GraphModules of ATen operators, as ``make_fx`` and AOTAutograd leave them: compiled as they are, never exported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_simple, aot_function
from torch.fx.experimental.proxy_tensor import make_fx

import luminal
from luminal.core.errors import UnsupportedError
from luminal.module import Module
from tests.fx_support import floats

X, Y = floats(6, 5), floats(5, 7, seed=2)


@pytest.fixture
def unexported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.export, "export")


def product(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
    return torch.softmax(x @ y, -1) + x.sum(), x.shape[0] * 2


def compiled(graph: torch.fx.GraphModule, inputs: Any = None, **options: Any) -> Module:
    found = luminal.compile(graph, inputs, name="traced", **options)
    assert isinstance(found, Module)
    return found


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("inputs", [None, (X, Y)], ids=["alone", "with inputs"])
def test_a_graph_of_make_fx(mode: str, inputs: Any, unexported: None) -> None:
    module = compiled(make_fx(product, tracing_mode=mode)(X, Y), inputs)
    assert module.input_names == ["x_1", "y_1"]
    for rows in (6, 9) if mode == "symbolic" else (6,):
        x = floats(rows, 5, seed=rows)
        found, twice = module(x, Y)
        torch.testing.assert_close(found, product(x, Y)[0], rtol=1e-5, atol=1e-5)
        assert twice == 2 * rows


def test_parameters_updates_and_operators_that_are_decomposed(unexported: None) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU()).eval()

    def function(x: torch.Tensor) -> torch.Tensor:
        h = model(x).clone()
        h[:, 0] = 3
        return torch.special.xlog1py(h.mul_(2).abs(), h.abs()).add_(1)

    with torch.no_grad():
        module = compiled(make_fx(function)(X))
        torch.testing.assert_close(module(X), function(X), rtol=1e-5, atol=1e-5)


def test_a_joint_graph_with_nested_arguments(unexported: None) -> None:
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()

    def loss(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.softmax(x @ y, -1).square().sum()]

    joint = aot_export_joint_simple(loss, [x, y], trace_joint=True)
    (value,) = loss(x, y)
    expected = [value.detach(), *torch.autograd.grad(value, [x, y])]
    (found,), gradients = compiled(joint)([X, Y], [torch.ones(())])
    torch.testing.assert_close([found, *gradients], expected, rtol=1e-4, atol=1e-5)


def test_compilers_of_aot_function(unexported: None) -> None:
    made: list[Module] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Module:
        made.append(compiled(graph))
        return made[-1]

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.layer_norm(torch.tanh(x @ y), [7]).square().sum()

    mine, theirs = ([X.clone().requires_grad_(), Y.clone().requires_grad_()] for _ in range(2))
    aot_function(function, fw_compiler=compiler, bw_compiler=compiler)(*mine).backward()
    function(*theirs).backward()
    assert len(made) == 2
    torch.testing.assert_close([x.grad for x in mine], [x.grad for x in theirs], rtol=1e-4, atol=1e-4)


def test_operators_that_are_unknown_are_reported(unexported: None) -> None:
    with pytest.raises(UnsupportedError, match=r"aten\._linalg_svd\.default"):
        luminal.compile(make_fx(torch.linalg.svdvals)(X))


def test_inputs_of_other_sizes_are_what_counts() -> None:
    """The sizes of the graph are then those of an example, not of the model."""
    x = floats(8, 5)
    module = compiled(make_fx(lambda x: x.exp() + 1)(X), (x,))
    torch.testing.assert_close(module(x), x.exp() + 1)
