"""Fourier transforms of every kind of length against numpy in double precision."""

import numpy as np
import pytest

from luminal.core import interp, ir, traverse, types
from luminal.core.decompose import fourier
from luminal.core.errors import ShapeError

# One element, matrices, powers, mixed factors, a prime by its matrix, primes by convolution, and products with them.
LENGTHS = [1, 2, 7, 32, 64, 97, 100, 131, 257, 360, 262, 1009, 2048]


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("size", LENGTHS)
def test_complex(size: int, inverse: bool) -> None:
    given = np.random.default_rng(size).standard_normal((2, size, 3, 2)).astype(np.float32)
    x = ir.input_("x", given.shape, types.f32)
    (found,) = interp.evaluate([fourier.dft(x, 1, inverse=inverse)], {"x": given})
    signal = given[..., 0].astype(np.float64) + 1j * given[..., 1]
    wanted = (np.fft.ifft if inverse else np.fft.fft)(signal, axis=1)
    # The error of a transform grows with the logarithm of its length, relative to the norm of the result.
    scale = np.sqrt(np.mean(np.abs(wanted) ** 2))
    assert np.abs(found[..., 0] + 1j * found[..., 1] - wanted).max() <= 4e-6 * scale


@pytest.mark.parametrize("size", [8, 9, 131])
def test_real_signals_there_and_back(size: int) -> None:
    given = np.random.default_rng(size).standard_normal((3, size, 1))
    x = ir.input_("x", given.shape, types.f64)
    half = fourier.dft(x, 1, onesided=True)
    frequencies, back = interp.evaluate([half, fourier.dft(half, 1, size, inverse=True, onesided=True)], {"x": given})
    wanted = np.fft.rfft(given[..., 0], axis=1)
    np.testing.assert_allclose(frequencies[..., 0] + 1j * frequencies[..., 1], wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(back, given, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("length", "size"), [(6, 10), (16, 10)])
def test_signals_are_cut_and_filled_up(length: int, size: int) -> None:
    given = np.random.default_rng(1).standard_normal((size, 2))
    x = ir.input_("x", given.shape, types.f64)
    (found,) = interp.evaluate([fourier.dft(x, 0, length)], {"x": given})
    wanted = np.fft.fft(given[:, 0] + 1j * given[:, 1], length)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, rtol=0, atol=1e-13)


def test_the_number_of_products_grows_as_n_log_n() -> None:
    def products(size: int) -> int:
        y = fourier.dft(ir.input_("x", (size, 2), types.f32), 0)
        return sum(int(node.size) for node in traverse.topological([y]) if node.op.name == "Mul")  # type: ignore[arg-type]

    for size in (1024, 1009, 6 * 257):
        assert products(size) <= 2500 * size
        assert products(8 * size) <= 1.4 * 8 * products(size)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="real and imaginary parts"):
        fourier.dft(ir.input_("x", (4, 3), types.f32), 0)
