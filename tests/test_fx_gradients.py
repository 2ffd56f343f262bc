"""Gradients that are operators of PyTorch's own, and bags of embeddings, against eager PyTorch in float64."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from luminal.core import interp
from luminal.frontends.fx import importer

aten = torch.ops.aten


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def agrees(function: Callable[..., Any], *tensors: torch.Tensor) -> None:
    wanted = function(*tensors)
    graph = importer.load(make_fx(function)(*tensors))
    given = {node.attr.name: tensor.numpy() for node, tensor in zip(graph.inputs, tensors, strict=True)}
    for a, b in zip(interp.run(graph, given).outputs, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_convolutions(transposed: bool, dim: int) -> None:
    for stride, padding, dilation, groups in itertools.product([1, 3], [0, 1], [1, 2], [1, 2]):
        extra = int(transposed and stride > 1)
        x = normal(2, 4, *(9, 8)[:dim])
        weight = normal(4, (6 if transposed else 4) // groups, *(3, 2)[:dim], seed=1)
        how = [stride] * dim, [padding] * dim, [dilation] * dim, transposed, [extra] * dim, groups
        gradient = normal(*aten.convolution(x, weight, None, *how).shape, seed=2)
        sizes = [gradient.shape[1]]
        agrees(
            lambda *given, how=how, sizes=sizes: aten.convolution_backward(*given, sizes, *how, [True] * 3),
            gradient, x, weight,
        )  # fmt: skip


def test_gradients_of_means_over_windows() -> None:
    x = normal(2, 3, 7, 8)
    for kernel, stride, padding, ceil, included, divisor in itertools.product(
        [2, 3], [1, 3], [0, 1], [False, True], [False, True], [None, 3]
    ):
        how = [kernel, 2], [stride, 2], [padding, padding], ceil, included, divisor
        gradient = normal(*aten.avg_pool2d(x, *how).shape, seed=1)
        agrees(lambda *given, how=how: aten.avg_pool2d_backward(*given, *how), gradient, x)


@pytest.mark.parametrize("parts", list(itertools.product([1, 3, 7, 9], [2, 5])))
def test_gradients_of_means_over_parts(parts: tuple[int, int]) -> None:
    agrees(aten._adaptive_avg_pool2d_backward, normal(2, 3, *parts), normal(2, 3, 7, 8, seed=1))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    """Some are empty, and of one all rows are left out."""
    weight, index = normal(5, 3), torch.tensor([1, 2, 2, 4, 0, 2])
    for ends, left_out, weighted in itertools.product([False, True], [None, 2], [False, True]):
        if weighted and mode != "sum":
            continue
        offsets = torch.tensor([0, 0, 1, 3, 5, *([6] if ends else [])])
        named = {"mode": mode, "include_last_offset": ends, "padding_idx": left_out}
        weights = (normal(6, seed=1),) if weighted else ()
        agrees(
            lambda weight, index, offsets, *weights, named=named: torch.nn.functional.embedding_bag(
                index, weight, offsets, **named, per_sample_weights=weights[0] if weights else None
            ),
            weight, index, offsets, *weights,
        )  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_attention(masked: bool, causal: bool) -> None:
    """From the sums of exponentials that the attention itself gives, as PyTorch keeps them."""
    q, k, v, gradient = (normal(2, 3, size, 4, seed=size) for size in (5, 7, 7, 5))
    mask = torch.where(normal(2, 1, 5, 7, seed=3) > 0.8, -torch.inf, normal(2, 1, 5, 7, seed=4)) if masked else None
    scale = 0.3 if masked else None
    attended = aten._scaled_dot_product_flash_attention_for_cpu

    def forward(*given: torch.Tensor) -> Any:
        return attended(*given, 0.0, causal, attn_mask=mask, scale=scale)

    agrees(forward, q, k, v)
    result, sums = forward(q, k, v)
    agrees(
        lambda *given: aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *given, 0.0, causal, attn_mask=mask, scale=scale
        ),
        gradient, q, k, v, result, sums,
    )  # fmt: skip
