"""Complex tensors of PyTorch models: pairs of floats on the way, complex numbers to the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal.core.errors import InputError, UnsupportedError
from luminal.frontends.fx import importer
from tests.fx_support import Call, check, floats, run


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.complex(floats(*shape, seed=seed), floats(*shape, seed=seed + 50))


def test_arithmetic_between_real_ends() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        a, b = torch.view_as_complex(x), torch.complex(y[..., 0], y[..., 1])
        made = {
            "sum": a + b, "difference": 2 - a, "scaled": torch.add(a, b, alpha=2), "product": a * b, "quotient": a / b,
            "by a real": a * y[..., 0], "by a number": a * (1 + 2j), "reciprocal": b.reciprocal(), "exp": a.exp(),
            "conjugate": a.conj() + 0, "polar": torch.polar(y[..., 0], x[..., 1]), "mean": a.mean(0), "total": a.sum(),
            "moved": torch.cat([a.t(), b.t()])[1:, ::2].reshape(-1), "chosen": torch.where(x[..., 0] > 0, a, b),
        }  # fmt: skip
        reals = {"abs": a.abs(), "angle": b.angle(), "real": a.real, "imag": (a * b).imag}
        return {**{name: torch.view_as_real(z.resolve_conj()) for name, z in made.items()}, **reals}

    check(function, floats(3, 4, 2), floats(3, 4, 2, seed=1))


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_parts_of_a_tensor_that_are_replaced() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        z, other, at = torch.view_as_complex(x), torch.view_as_complex(y), torch.tensor([2, 0])
        made = {
            name: z.clone() for name in ("copy", "real", "row", "every", "diagonal", "rows", "more", "mask", "number")
        }
        made["copy"].copy_(other[0])
        made["real"].copy_(y[..., 0])
        made["row"][1] = other[0]
        made["every"][:, ::2] = other[:, ::2]
        made["diagonal"].diagonal().copy_(other[0, :3])
        made["rows"].index_copy_(0, at, other[:2])
        made["more"].index_put_((at,), other[:2], accumulate=True)
        made["mask"].masked_fill_(x[..., 0] > 0, 2 - 3j)
        made["number"][0] = 4
        real = y[..., 0].clone()
        real.copy_(z)
        return {"real": real, **{name: torch.view_as_real(value) for name, value in made.items()}}

    check(function, floats(3, 4, 2), floats(3, 4, 2, seed=1))


def test_real_numbers_among_complex_ones_have_no_imaginary_part() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        z = torch.view_as_complex(x)
        made = torch.where(n > 0, z, y), torch.where(n > 0, n, z), torch.cat([z, y, n]), torch.stack([z, y.to(z.dtype)])
        return [
            torch.view_as_real(value) for value in (*made, nn.functional.pad(z, (1, 2), value=3.0), z.clone().fill_(5))
        ]

    check(function, floats(3, 2), floats(3, seed=1), torch.tensor([1, -2, 3]))


def test_conversions_that_change_nothing() -> None:
    check(lambda x: torch.view_as_real(torch.view_as_complex(x).to("cpu", torch.complex64) * 1j), floats(3, 4, 2))


def test_division_and_magnitude_do_not_overflow() -> None:
    large = torch.tensor([[3e38, 3e38], [1e-38, 1e38], [0.0, 0.0], [1e-30, 1e-30]])
    check(lambda x: (torch.view_as_complex(x).abs(), torch.view_as_real(1 / torch.view_as_complex(x[:2]))), large)


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms_agree_with_pytorch(norm: Any) -> None:
    def function(x: torch.Tensor) -> dict[str, Any]:
        whole, half = torch.fft.fftn(x, norm=norm), torch.fft.rfft2(x, norm=norm)
        return {
            "forward": torch.view_as_real(whole),
            "back": torch.view_as_real(torch.fft.ifft(whole, dim=0, norm=norm)),
            "half": torch.view_as_real(half),
            "real": torch.fft.irfft2(half, s=(5, 7), norm=norm),
        }

    check(function, floats(3, 5, 7))


def test_callers_give_and_get_complex_numbers() -> None:
    def rotate(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by

    inputs = _numbers(2, 3), _numbers(3, seed=1)
    module = luminal.compile(Call(rotate), inputs, target="host")
    torch.testing.assert_close(module(*inputs), rotate(*inputs))
    found = module(*(x.numpy() for x in inputs))
    np.testing.assert_allclose(found, rotate(*inputs).numpy(), rtol=1e-6)
    assert found.dtype == np.complex64
    with pytest.raises(InputError, match="complex numbers"):
        module(inputs[0], floats(3))


def test_a_complex_buffer_is_a_weight() -> None:
    class Rotation(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("by", _numbers(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.view_as_real(torch.view_as_complex(x) * self.by)

    graph = importer.load(Rotation(), (floats(3, 4, 2),))
    np.testing.assert_allclose(run(graph, (floats(3, 4, 2),))[0], Rotation()(floats(3, 4, 2)), rtol=1e-6, atol=1e-6)


def test_what_complex_numbers_cannot_do_is_said() -> None:
    with pytest.raises(UnsupportedError, match=r"aten.tanh.default .*complex numbers"):
        importer.load(Call(lambda x: torch.view_as_complex(x).tanh().real), (floats(3, 2),))
