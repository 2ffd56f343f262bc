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
    with pytest.raises(UnsupportedError, match=r"aten.acosh.default .*complex numbers"):
        importer.load(Call(lambda x: torch.view_as_complex(x).acosh().real), (floats(3, 2),))


C, D, SQUARE = _numbers(3, 4), _numbers(4, 3, seed=2), _numbers(3, 3, seed=3)
IMAGES, FILTERS = _numbers(2, 3, 6, 6), _numbers(4, 3, 3, 3, seed=1)
F = nn.functional
FAMILIES: dict[str, tuple[dict[str, Any], tuple[torch.Tensor, ...]]] = {
    "products": (
        {
            "matmul": lambda a, b, s: a @ b, "of batches": lambda a, b, s: torch.bmm(a[None], b[None]),
            "broadcast": lambda a, b, s: a[:, None] @ b, "by a vector": lambda a, b, s: a @ b[:, 0],
            "of a vector": lambda a, b, s: a[0] @ b, "of vectors": lambda a, b, s: a[0] @ b[:, 0],
            "conjugate": lambda a, b, s: a.mH @ a, "vdot": lambda a, b, s: torch.vdot(a[0], a[1]),
            "vecdot": lambda a, b, s: torch.linalg.vecdot(a, a), "outer": lambda a, b, s: torch.outer(a[0], b[0]),
            "inner": lambda a, b, s: torch.inner(a, b.mT), "tensordot": lambda a, b, s: torch.tensordot(a, b, 1),
            "kron": lambda a, b, s: torch.kron(a, b), "chain": lambda a, b, s: torch.linalg.multi_dot([a, b, a]),
            "linear": lambda a, b, s: F.linear(a, b.mT, s[0]), "by a real": lambda a, b, s: a @ b.real.to(a.dtype),
            "addmm": lambda a, b, s: torch.addmm(s, a, b, beta=2, alpha=0.5j),
            "baddbmm": lambda a, b, s: torch.baddbmm(s[None], a[None], b[None]),
            "addmv": lambda a, b, s: torch.addmv(a[:, 0], a, b[:, 0]),
            "doubles": lambda a, b, s: (a.to(torch.cdouble) @ b.to(torch.cdouble)).to(torch.cfloat),
        },
        (C, D, SQUARE),
    ),
    "einsum": (
        {
            "ij,jk->ik": lambda a, b, s: torch.einsum("ij,jk->ik", a, b),
            "ij,jk": lambda a, b, s: torch.einsum("ij,jk", a, b),
            "ij,jk,kl->il": lambda a, b, s: torch.einsum("ij,jk,kl->il", a, b, s),
            "ii->i": lambda a, b, s: torch.einsum("ii->i", s),
            "...": lambda a, b, s: torch.einsum("...ij,...jk->...ik", a[None], b[None]),
            "modes": lambda a, b, s: torch.einsum("bixy,ioxy->boxy", a[None, :, :2, None], b[None, :3, :2, None].mT),
        },
        (C, D, SQUARE),
    ),
    "convolutions": (
        {
            "1": lambda x, w: F.conv1d(x[:, :, 0], w[..., 0]),
            "2": lambda x, w: F.conv2d(x, w, w[:, 0, 0, 0], padding=1, stride=2),
            "same": lambda x, w: F.conv2d(x, w, padding="same"),
        },
        (IMAGES, FILTERS),
    ),
    "equations": (
        {
            "inverse": lambda a, b, s: torch.linalg.inv(s), "batch": lambda a, b, s: torch.inverse(s[None]),
            "solve": lambda a, b, s: torch.linalg.solve(s, a), "vector": lambda a, b, s: torch.linalg.solve(s, a[:, 0]),
            "from the right": lambda a, b, s: torch.linalg.solve(s, b, left=False),
        },
        (C, D, SQUARE),
    ),
    "functions": (
        {
            "sqrt": torch.sqrt, "log": torch.log, "log2": torch.log2, "log10": torch.log10, "sin": torch.sin,
            "cos": torch.cos, "tan": torch.tan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh,
            "sigmoid": torch.sigmoid, "sgn": torch.sgn, "rsqrt": torch.rsqrt, "square": torch.square,
            "cube": lambda z: z**3, "power": lambda z: z**-1.5, "to a number": lambda z: z ** (1 - 2j),
            "to themselves": lambda z: z**z, "of a number": lambda z: 2**z, "of zero": lambda z: (z * 0) ** 0.3,
            "root of zero": lambda z: torch.sqrt(z * 0), "far": lambda z: torch.tanh(z * 40),
            "lerp": lambda z: torch.lerp(z, z * 2, 0.3), "addcmul": lambda z: torch.addcmul(z, z, z, value=2j),
            "normalised": lambda z: F.normalize(z),
        },
        (C,),
    ),
    "real results": (
        {
            "norm": torch.norm, "norms": lambda z: torch.linalg.vector_norm(z, 1, dim=1), "var": torch.var,
            "std": lambda z: z.std(1, correction=0), "equal": lambda z: z == z.real, "unequal": lambda z: z != z[0],
            "nan": lambda z: (z / (z - z[0])).isnan(), "finite": lambda z: (z / z.real.round()).isfinite(),
            "ones": lambda z: torch.ones_like(z, dtype=torch.float32),
        },
        (C,),
    ),
    "made and moved": (
        {
            "zeros": lambda z: torch.zeros_like(z) + z,
            "of reals": lambda z: torch.zeros_like(z.real, dtype=z.dtype) + z,
            "new zeros": lambda z: z.new_zeros(2) + z[0, :2], "new ones": lambda z: z.new_ones(2) + z[0, :2],
            "new full": lambda z: z.new_full((2,), 3j) + z[0, 0], "full": lambda z: torch.full_like(z, 2 + 1j) + z,
            "a part": lambda z: torch.zeros_like(z).slice_scatter(z[:2], 0, 0, 2),
            "where": lambda z: torch.where(z.real > 0, z, 0), "else": lambda z: torch.where(z.real > 0, 1j, z),
            "added": lambda z: z.index_add(0, torch.tensor([0, 1]), z[:2]), "tiled": lambda z: z.tile(2, 1),
            "flat": lambda z: z.flatten(0, 1).unflatten(0, (2, 6)).swapaxes(0, 1).movedim(0, 1),
            "chunk": lambda z: z.chunk(2, 1)[1], "repeated": lambda z: z.repeat_interleave(2, 0),
            "rows": lambda z: F.embedding(torch.tensor([2, 0]), z), "trace": lambda z: torch.trace(z[:, :3]),
            "constant": lambda z: z * torch.tensor(2 + 1j),
        },
        (C,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_on_complex_numbers(family: str) -> None:
    functions, inputs = FAMILIES[family]

    def together(*given: torch.Tensor) -> dict[str, Any]:
        numbers = [torch.view_as_complex(x) for x in given]
        found = {name: function(*numbers) for name, function in functions.items()}
        return {n: torch.view_as_real(z.resolve_conj()) if z.is_complex() else z for n, z in found.items()}

    check(together, *map(torch.view_as_real, inputs), tolerance=5e-6)


class SpectralLayer(nn.Module):
    """A layer of a Fourier neural operator: the lowest modes are mixed over the channels."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(_numbers(channels, channels, modes, modes, seed=4) / channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x)
        mixed = torch.zeros_like(spectrum)
        low = spectrum[..., : self.modes, : self.modes]
        mixed[..., : self.modes, : self.modes] = torch.einsum("bixy,ioxy->boxy", low, self.weight)
        return torch.fft.irfft2(mixed, s=x.shape[-2:])


def test_a_layer_of_a_fourier_neural_operator() -> None:
    module, x = SpectralLayer(4, 3).eval(), floats(2, 4, 8, 8)
    with torch.no_grad():
        expected = module(x)
    found = luminal.compile(module, (x,))(x)
    # Two transforms over 64 elements with a sum over 4 channels between them.
    assert torch.allclose(found, expected, rtol=0, atol=2**-24 * (64 + 4 + 64) * float(expected.abs().max()))
