"""What PyTorch models need of their sizes: guards of torch.compile, assertions of torch.export, declared steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import luminal
from luminal.core.errors import ModelError
from luminal.frontends.fx import importer

Function = Callable[[torch.Tensor], torch.Tensor]


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0], 4, -1).transpose(1, 2).reshape(x.shape) + x


def windows(x: torch.Tensor) -> torch.Tensor:
    b, h, w = x.shape
    return x.view(b, h // 4, 4, w // 4, 4).permute(0, 1, 3, 2, 4).reshape(-1, 16)


def halves(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return a * b


def pairs(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(1, (-1, 2)).sum(-1)


def unshuffled(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.pixel_unshuffle(x[None], 2)


def pooled_and_doubled(x: torch.Tensor) -> torch.Tensor:
    half = nn.functional.avg_pool1d(x, 2)
    return x + nn.functional.interpolate(half[None], scale_factor=2.0, mode="nearest")[0]


MODELS: list[tuple[Function, Sequence[tuple[int, ...]]]] = [
    (heads, [(3, 12), (3, 16), (3, 20)]),
    (windows, [(1, 8, 8), (1, 16, 8), (1, 16, 12)]),
    (halves, [(3, 8), (3, 12), (3, 14)]),
    (pairs, [(3, 8), (3, 12), (3, 6)]),
    (unshuffled, [(1, 8, 8), (1, 12, 8), (1, 16, 12)]),
    (pooled_and_doubled, [(3, 8), (3, 12), (3, 14)]),
]


@pytest.mark.parametrize(("function", "shapes"), MODELS, ids=[function.__name__ for function, _ in MODELS])
def test_sizes_that_pytorch_guards_are_symbols(function: Function, shapes: Sequence[tuple[int, ...]]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="luminal")
    with torch.no_grad():
        for shape in shapes:
            x = torch.rand(shape)
            torch.testing.assert_close(compiled(x), function(x))


class Call(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "shape", "axis", "step"),
    [(windows, (1, 8, 8), 1, 4), (pairs, (3, 8), 1, 2), (unshuffled, (1, 8, 8), 1, 2)],
)
def test_a_multiple_that_a_module_needs_is_derived(
    function: Function, shape: tuple[int, ...], axis: int, step: int
) -> None:
    graph = importer.load(Call(function), (torch.rand(shape),), dims={"n": (4, 64), "x": {axis: "n"}})
    assert [relation.partition(" (")[0] for relation in graph.relations] == [f"n is a multiple of {step}"]


def test_sizes_outside_the_multiple_are_refused_by_a_run() -> None:
    module = luminal.compile(Call(pairs), (torch.rand(3, 8),), dims={"n": (4, 64), "x": {1: "n"}})
    x = torch.rand(3, 26)
    torch.testing.assert_close(torch.from_numpy(module(x.numpy())), pairs(x))
    with pytest.raises(ValueError, match="axis 1, has size 7"):
        module(torch.rand(3, 7).numpy())


def test_a_step_is_declared() -> None:
    dims = {"n": (8, 64, 4), "x": {1: "n"}}
    graph = importer.load(Call(heads), (torch.rand(3, 12),), dims=dims)
    assert graph.relations == ()
    assert str(graph.inputs[0].shape[1]) == "4*n_4"
    with pytest.raises(ModelError, match=r"of the example has 10 elements, outside .* = 8..64 \(a multiple of 4\)"):
        importer.load(Call(heads), (torch.rand(3, 10),), dims=dims)


@pytest.mark.parametrize("given", [(8, 64, 0), (8, 4, 2), (-4, 4, 2)])
def test_a_step_that_is_none_is_refused(given: Any) -> None:
    with pytest.raises(ModelError, match="0 <= lo <= hi, and a step of 1 or more"):
        importer.load(Call(heads), (torch.rand(3, 12),), dims={"n": given, "x": {1: "n"}})


def test_sizes_that_cannot_be_symbols_are_compiled_for_their_values() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs() + nn.functional.adaptive_avg_pool1d(x, 5).sum()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="luminal", dynamic=True)
    with torch.no_grad():
        for size in (12, 17, 20, 17):
            x = torch.rand(2, size)
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-5, atol=1e-5)
