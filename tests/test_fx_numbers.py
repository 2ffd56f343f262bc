"""Divisors of integers, significands and neighbours of floats, bit for bit as PyTorch has them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from luminal.core import interp
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import to_numpy

aten = torch.ops.aten


def agrees(function: Callable[..., Any], *tensors: torch.Tensor) -> None:
    wanted = function(*tensors)
    graph = importer.load(make_fx(function)(*tensors))
    given = {node.attr.name: to_numpy(tensor) for node, tensor in zip(graph.inputs, tensors, strict=True)}
    with np.errstate(all="ignore"):
        found = interp.run(graph, given).outputs
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else [wanted], strict=True):
        expected = to_numpy(b)
        assert a.shape == expected.shape and a.dtype == expected.dtype
        a, expected = a.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_array_equal(a, expected)
        np.testing.assert_array_equal(np.signbit(np.nan_to_num(a)), np.signbit(np.nan_to_num(expected)))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_common_divisors_and_multiples(dtype: torch.dtype) -> None:
    """Zeros among them, and the least integer, which has no magnitude, where PyTorch itself does not trap on it."""
    limits, generator = torch.iinfo(dtype), torch.Generator().manual_seed(0)
    low, high = max(limits.min, -90), min(limits.max, 90)
    a, b = (torch.randint(low, high, (40,), generator=generator, dtype=dtype) for _ in range(2))
    a[0] = b[0] = a[1] = b[2] = 0
    if limits.bits < 32:
        a[3] = limits.min
    agrees(aten.gcd, a, b)
    agrees(aten.lcm, a, b)
    agrees(aten.gcd, a[:, None], b[:3])


def special(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.finfo(dtype)
    ends = [limits.max, limits.tiny, limits.tiny / 8, float("inf"), 0.0, 0.5, 0.75, 1.0, 1.5, 2.75]
    return torch.tensor([sign * value for value in ends for sign in (1, -1)] + [float("nan")], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_neighbours(dtype: torch.dtype) -> None:
    pairs = torch.meshgrid(special(dtype), special(dtype), indexing="ij")
    agrees(aten.nextafter, *(x.contiguous() for x in pairs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_significands_and_exponents(dtype: torch.dtype) -> None:
    agrees(aten.frexp, special(dtype))
