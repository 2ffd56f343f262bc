"""Where a function has a kink, a tie, an end or a masked branch, its derivative is the one that PyTorch takes."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest
import torch
from torch.nn import functional

import luminal
from luminal.core import derivative, interp
from luminal.core.gradient import gradients
from tests.fx_support import Call

Function = Callable[..., torch.Tensor]

# Ends of the pieces of functions, both zeros, infinities and NaN.
ENDS = [-inf, -30.0, -4.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 2.0, 3.0, 6.0, 25.0, inf, nan]
# All finite, and twice over: each is equal to another.
TIES = [x for x in ENDS if abs(x) < inf] * 2
ZEROS = [0.0, -0.0, 0.0]

POINTS: dict[str, tuple[Function, list[float]]] = {
    **{
        name: (getattr(functional, name), ENDS)
        for name in (
            "relu", "relu6", "leaky_relu", "hardswish", "hardtanh", "elu", "selu", "celu", "softplus", "softsign",
            "softshrink", "hardshrink", "tanhshrink", "logsigmoid", "silu", "gelu",
        )
    },
    **{
        name: (getattr(torch, name), ENDS)
        for name in (
            "abs", "sqrt", "rsqrt", "reciprocal", "log", "log1p", "exp", "expm1", "tanh", "sigmoid", "erf", "erfc",
            "asin", "acos", "atan", "acosh", "atanh", "asinh", "sign", "floor", "frac", "nan_to_num", "square",
        )
    },
    "hardsigmoid": (functional.hardsigmoid, [-inf, -3.0, 3.0, 4.0, nan]),
    "threshold": (lambda x: functional.threshold(x, 0.5, 7.0), ENDS),
    "clamp": (lambda x: x.clamp(-1, 1), ENDS),
    "clamp from below": (lambda x: x.clamp_min(0), ENDS),
    "clamp by tensors": (lambda x: torch.clamp(torch.ones_like(x), x, x.flip(0)), ENDS),
    "maximum": (lambda x: torch.maximum(x, torch.zeros_like(x)), ENDS),
    "minimum": (lambda x: torch.minimum(x, x.flip(0)), ENDS),
    "fmax": (lambda x: torch.fmax(x, torch.zeros_like(x)), ENDS),
    "fmin": (lambda x: torch.fmin(x, x.flip(0)), ENDS),
    "masked root": (lambda x: torch.where(x > 0, x.sqrt(), x), ENDS),
    "masked NaN": (lambda x: torch.where(x == x, x, torch.zeros_like(x)).sqrt(), ENDS),
    "glu": (lambda x: functional.glu(x[:16]), ENDS),
    "copysign": (lambda x: torch.copysign(x, x.flip(0)), ENDS),
    "fmod": (lambda x: torch.fmod(x, 0.7) + torch.fmod(torch.full_like(x, 2.0), x), ENDS),
    "remainder": (lambda x: torch.remainder(x, 0.7), ENDS),
    "angle": (lambda x: torch.atan2(x, x.flip(0)), ENDS),
    "hypot": (lambda x: torch.hypot(x, torch.zeros_like(x)), ENDS),
    "power 0": (lambda x: x.pow(0.0), ENDS),
    "power 2.5": (lambda x: x.pow(2.5), ENDS),
    "power -1": (lambda x: x.pow(-1), ENDS),
    "power 7": (lambda x: x**7, ENDS),
    "power of 2": (lambda x: 2**x, ENDS),
    "power of 0": (lambda x: torch.zeros_like(x) ** x, ENDS),
    "power of itself": (lambda x: x**x, ENDS),
    "max": (lambda x: x.max(), TIES),
    "max with NaN": (lambda x: x.max(), ENDS),
    "amax": (lambda x: x.amax(0), TIES),
    "amax with NaN": (lambda x: x.amax(0), ENDS),
    "amin": (lambda x: x.amin(0), TIES),
    "max and its place": (lambda x: x.max(0).values, TIES),
    "min and its place": (lambda x: x.min(0).values, TIES),
    "cummax": (lambda x: x.cummax(0).values, TIES),
    "cummin": (lambda x: x.cummin(0).values, TIES),
    "median": (lambda x: x.median(), TIES),
    "median and its place": (lambda x: x.median(0).values, TIES[:15]),
    "sort": (lambda x: x.sort(stable=True).values ** 2, TIES),
    "largest windows": (lambda x: functional.max_pool1d(x[None], 3, 2), TIES),
    "largest of padded windows": (lambda x: functional.max_pool1d(x[None], 3, 2, 1), ZEROS * 3),
    "largest parts": (lambda x: functional.adaptive_max_pool1d(x[None], 5), TIES),
    "norm": (lambda x: x.norm(), TIES),
    "norm of zeros": (lambda x: x.norm(), ZEROS),
    "norm 1": (lambda x: x.norm(p=1), TIES),
    "norm 1.5 of zeros": (lambda x: x.norm(p=1.5), ZEROS),
    "norm 0.5": (lambda x: x.norm(p=0.5), [0.5, -2.0, 3.0]),
    "norm 3": (lambda x: x.norm(p=3), TIES),
    "largest magnitude": (lambda x: x.norm(p=inf), [*ZEROS, 1.0, -1.0, 1.0]),
    "distances of equal points": (lambda x: torch.cdist(x[:, None], x[:, None]), ZEROS),
    "deviation of equals": (lambda x: x.std(), ZEROS),
    "product with zeros": (lambda x: x.prod(), [*ZEROS, 2.0]),
    "product with a zero": (lambda x: x.prod(), [0.0, 2.0, 3.0]),
    "products with zeros": (lambda x: x.cumprod(0), [2.0, 0.0, 3.0, 0.0, 4.0]),
    "logsumexp": (lambda x: x.logsumexp(0), [-inf, 0.0, 1.0, 1.0]),
    "logsumexp of -inf": (lambda x: x.logsumexp(0), [-inf, -inf]),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), TIES),
    "softmax": (lambda x: x.softmax(0) ** 2, [-inf, *TIES]),
    "log_softmax": (lambda x: x[1:].log_softmax(0) ** 2, TIES),
    "nothing through rounding": (lambda x: x.round() * x + x.trunc(), ENDS[1:-2]),
    "detached": (lambda x: x * x.detach(), TIES),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", POINTS)
def test_a_derivative_is_that_of_pytorch(name: str, dtype: torch.dtype) -> None:
    function, points = POINTS[name]
    x = torch.tensor(points, dtype=dtype)
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(function(leaf).sum(), leaf, allow_unused=True)
    with derivative.recorded():
        graph = luminal.read(Call(function), (x,))
        found = derivative.stripped(gradients(graph.results[0], graph.inputs))
    with np.errstate(all="ignore"):
        (value,) = interp.evaluate(found, {graph.inputs[0].attr.name: x.numpy()})
    tolerance = 1e-12 if dtype is torch.float64 else 2e-6
    expected = np.zeros_like(value) if wanted is None else wanted.numpy()
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)
