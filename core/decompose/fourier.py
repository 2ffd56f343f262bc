"""Discrete Fourier transforms, of any known length in O(n log n) steps.

Complex values are pairs: a last axis of extent 2 holds the real and the imaginary part (of extent 1: the real part
alone). Lengths with small factors are split by them (Cooley and Tukey, 1965), each split being one contraction with a
small matrix and one product with roots of unity; a large prime becomes a circular convolution (Bluestein, 1970).
Roots of unity are computed in float64 from angles reduced exactly, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from luminal.core import limits, ops
from luminal.core.decompose.common import require_float, widened
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, constant, reduce
from luminal.core.movement import concatenate, flip, pad, permute, reshape, slice_, unsqueeze, windows
from luminal.core.symbolic import Int
from luminal.core.types import DType

# A length up to this is transformed by one matrix; larger ones are split into factors up to it.
_RADIX = 32
# A prime above this is cheaper as a convolution than as a matrix.
_DIRECT = 128


@widened
def dft(x: Node, axis: int, length: int | None = None, inverse: bool = False, onesided: bool = False) -> Node:
    """The discrete Fourier transform along ``axis`` of ``x [.., 1 or 2]``: ``[.., 2]`` (ONNX DFT).

    ``x`` is cut or filled up with zeros to ``length``. ``inverse`` transforms back and divides by the length.
    ``onesided`` keeps the first ``length // 2 + 1`` frequencies; with ``inverse`` it takes those of a real signal and
    gives that, ``[.., 1]``. Raises ShapeError where the length is not known.
    """
    require_float(x, "dft")
    axis %= x.rank
    parts = x.shape[-1]
    if axis == x.rank - 1 or parts not in (1, 2):
        raise ShapeError(f"dft: expected a last axis of real and imaginary parts beside axis {axis}: {list(x.shape)}")
    size: Int = x.shape[axis] if length is None else length
    if onesided and inverse and length is None:
        size = 2 * (x.shape[axis] - 1)
    if not isinstance(size, int) or size < 1:
        raise ShapeError(f"dft: the length {size} must be known and positive")
    limits.check_table(4 * size, "dft")  # of roots, for both parts
    given = size // 2 + 1 if onesided and inverse else size
    z = _resized(_last(x, axis), given)
    if onesided and inverse:
        z = _mirrored(z, size)
    z = _transform(z, size, 1 if inverse else -1)
    if inverse:
        z = z * (1 / size)
    if onesided:
        z = slice_(z, -1, 0, 1) if inverse else slice_(z, -2, 0, size // 2 + 1)
    return _back(z, axis)


@widened
def stft(x: Node, step: int, length: int, window: Node | None = None, onesided: bool = True) -> Node:
    """Transforms of the frames of ``length`` elements that start every ``step`` elements of ``x [N, L, 1 or 2]``, each
    multiplied by ``window [length]``: ``[N, frames, frequencies, 2]`` (ONNX STFT)."""
    frames = windows(x, 1, length, step)  # [N, frames, parts, length]
    if window is not None:
        frames = frames * window
    return dft(permute(frames, [0, 1, 3, 2]), 2, length, onesided=onesided)


@widened
def fft(x: Node, axes: Sequence[int], inverse: bool = False, scale: float = 1, onesided: bool = False) -> Node:
    """The transform of ``x [.., 1 or 2]`` along each of ``axes``, times ``scale``: ``[.., 2]``.

    With ``onesided`` the first half of the last of ``axes`` is kept. Raises ShapeError where a length is not known.
    """
    for axis in reversed(axes):
        size = _length(x, axis)
        z = _transform(_last(x, axis), size, 1 if inverse else -1)
        if onesided and axis == axes[-1]:
            z = slice_(z, -2, 0, size // 2 + 1)
        x = _back(z, axis)
    return _scaled(x, scale)


@widened
def inverse_real_fft(x: Node, axes: Sequence[int], length: int, scale: float = 1) -> Node:
    """The real signal, ``length`` long in the last of ``axes``, whose transform has the first half ``x [.., 2]``, times
    ``scale``: ``[.., 1]``."""
    *others, axis = axes
    z = _last(fft(x, others, inverse=True), axis)
    z = _transform(_mirrored(z, length), length, 1)
    return _back(_scaled(slice_(z, -1, 0, 1), scale), axis)


def _length(x: Node, axis: int) -> int:
    size = x.shape[axis]
    if not isinstance(size, int) or size < 1:
        raise ShapeError(f"dft: the length {size} must be known and positive")
    return size


def _scaled(z: Node, scale: float) -> Node:
    return z if scale == 1 else z * scale


def _last(x: Node, axis: int) -> Node:
    """``axis`` moved before the last."""
    order = [k for k in range(x.rank) if k != axis]
    order.insert(x.rank - 2, axis)
    return permute(x, order)


def _back(z: Node, axis: int) -> Node:
    """The axis before the last moved to ``axis``."""
    order = list(range(z.rank))
    order.insert(axis, order.pop(-2))
    return permute(z, order)


def _resized(z: Node, size: int) -> Node:
    missing: list[Int] = [0] * z.rank
    missing[-2] = size - z.shape[-2]
    return pad(z, [0] * z.rank, missing)


def _mirrored(z: Node, size: int) -> Node:
    """All ``size`` frequencies of a real signal: those of the second half are conjugates of the first, backwards."""
    half = flip(slice_(z, -2, 1, (size + 1) // 2 - 1), [z.rank - 2])
    if z.shape[-1] == 2:
        half = half * constant(np.array([1, -1]), z.dtype)
    return concatenate([z, half], z.rank - 2)


def _roots(powers: np.ndarray, size: int, sign: int) -> np.ndarray:
    """``exp(sign * 2 pi i * powers / size)`` as pairs."""
    angles = (powers % size) * (2 * math.pi * sign / size)
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def _times(z: Node, roots: np.ndarray) -> Node:
    """The product of pairs with constant pairs."""
    real, imaginary = roots[..., :1], roots[..., 1:]
    if z.shape[-1] == 1:
        return z * constant(roots, z.dtype)
    crossed = np.concatenate([-imaginary, imaginary], -1)
    straight = constant(np.concatenate([real, real], -1), z.dtype)
    return z * straight + flip(z, [z.rank - 1]) * constant(crossed, z.dtype)


def _matrix(size: int, parts: int, sign: int, dtype: DType) -> Node:
    """``[frequency, part, element, part]``: the transform of ``size`` elements as a real matrix."""
    numbers = np.arange(size)
    roots = _roots(np.outer(numbers, numbers), size, sign)  # [frequency, element, 2]
    real, imaginary = roots[..., 0], roots[..., 1]
    of_real = np.stack([real, imaginary], 1)[..., None]
    of_imaginary = np.stack([-imaginary, real], 1)[..., None]
    return constant(np.concatenate([of_real, of_imaginary][:parts], -1), dtype)


def _transform(z: Node, size: int, sign: int) -> Node:
    """The transform along the axis before the last, unscaled; the result has both parts."""
    if size <= _RADIX or (_split(size) == 1 and size <= _DIRECT):
        return _by_matrix(z, size, sign)
    radix = _split(size)
    if radix == 1:
        return _by_convolution(z, size, sign)
    rest = size // radix
    lead, parts = z.shape[:-2], z.shape[-1]
    # Element j1*rest + j2 and frequency k1 + radix*k2.
    columns = _by_matrix(_swapped(reshape(z, [*lead, radix, rest, parts])), radix, sign)  # [.., j2, k1, 2]
    powers = np.outer(np.arange(rest), np.arange(radix))
    rows = _swapped(_times(columns, _roots(powers, size, sign)))  # [.., k1, j2, 2]
    return reshape(_swapped(_transform(rows, rest, sign)), [*lead, size, 2])


def _split(size: int) -> int:
    """The largest factor up to the radix; of factors that leave a remainder below it, the most balanced."""
    factors = [k for k in range(1, _RADIX + 1) if size % k == 0]
    balanced = [k for k in factors if size // k <= _RADIX]
    return min(balanced, key=lambda k: k + size // k) if balanced else max(factors)


def _swapped(z: Node) -> Node:
    return permute(z, [*range(z.rank - 3), z.rank - 2, z.rank - 3, z.rank - 1])


def _by_matrix(z: Node, size: int, sign: int) -> Node:
    parts = z.shape[-1]
    assert isinstance(parts, int)
    product = unsqueeze(z, [z.rank - 2, z.rank - 1]) * _matrix(size, parts, sign, z.dtype)
    return reduce(ops.SUM_REDUCE, product, [-2, -1])


def _by_convolution(z: Node, size: int, sign: int) -> Node:
    """``jk = (j**2 + k**2 - (k-j)**2) / 2`` makes the sum a convolution with a chirp, done by transforms of a power of
    two."""
    whole = 1 << (2 * size - 2).bit_length()
    numbers = np.arange(size)
    chirp = _roots(numbers * numbers, 2 * size, sign)
    around = np.zeros((whole, 2))
    inverse = chirp * [1, -1]
    around[:size] = inverse
    around[whole - size + 1 :] = inverse[:0:-1]
    spectrum = np.fft.fft(around[:, 0] + 1j * around[:, 1])
    forward = _transform(_resized(_times(z, chirp), whole), whole, -1)
    product = _times(forward, np.stack([spectrum.real, spectrum.imag], -1) / whole)
    return _times(slice_(_transform(product, whole, 1), -2, 0, size), chirp)
