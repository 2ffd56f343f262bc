"""Distances between floating-point results and the real numbers that they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import mpmath
import numpy as np

from luminal.core import interp, ir
from luminal.core.types import DType, from_numpy

Array = np.ndarray[Any, Any]


def run(function: Callable[..., Any], *arrays: Array) -> Any:
    """``function`` of input nodes, evaluated in the nodes' own types: an array, or a list where it returns several."""
    inputs = [ir.input_(f"x{k}", a.shape, from_numpy(a.dtype)) for k, a in enumerate(arrays)]
    nodes = function(*inputs)
    several = isinstance(nodes, list | tuple)
    results = interp.evaluate(nodes if several else [nodes], {f"x{k}": a for k, a in enumerate(arrays)})
    return results if several else results[0]


def ulps(found: Array, exact: Array, dtype: DType) -> Array:
    """How many units in the last place of ``exact`` (float64 or longdouble) ``found`` is away.

    Results that are equal, both NaN, or infinite where ``exact`` rounds to infinity are 0 away; other disagreements of
    that kind are infinitely far.
    """
    wide = np.longdouble
    with np.errstate(all="ignore"):
        found, exact = np.asarray(found).astype(wide), np.asarray(exact).astype(wide)
        overflow = wide(dtype.max) * (1 + wide(dtype.eps) / 4)
        exact = np.where(np.abs(exact) >= overflow, np.sign(exact) * wide(np.inf), exact)
        _, exponent = np.frexp(np.maximum(np.abs(exact), smallest_normal(dtype)))
        distance = np.abs(found - exact) / np.ldexp(wide(dtype.eps), exponent - 1)
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.inf)).astype(np.float64)


def smallest_normal(dtype: DType) -> float:
    """The smallest positive number with a full significand."""
    return float(ml_dtypes.finfo(dtype.numpy).smallest_normal)


def exact(function: Callable[..., Any], *arrays: Array) -> Array:
    """``function`` of mpmath reals, elementwise, to 40 digits; the result holds about 19 of them (longdouble)."""
    with mpmath.workdps(40):
        rows = zip(*(a.ravel() for a in arrays), strict=True)
        values = [_longdouble(function(*(mpmath.mpf(float(v)) for v in row))) for row in rows]
    return np.array(values, np.longdouble).reshape(arrays[0].shape)


def _longdouble(value: Any) -> np.longdouble:
    representable = mpmath.isfinite(value) and mpmath.mpf(2) ** -16000 < abs(value) < mpmath.mpf(2) ** 16000
    return np.longdouble(mpmath.nstr(value, 30) if representable else float(value))


def every_magnitude(dtype: DType, count: int, seed: int = 0) -> Array:
    """Finite values of random sign, exponent and significand, subnormal ones included."""
    bits = np.random.default_rng(seed).integers(0, 1 << dtype.bits, count, np.uint64)
    values = bits.astype(f"u{dtype.bits // 8}").view(dtype.numpy)
    return values[np.isfinite(values)]


def every_number(dtype: DType) -> Array:
    """Every value of a 16-bit float type but NaN."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    infinity = np.array(np.inf, dtype.numpy).view(np.uint16)
    return bits[(bits & 0x7FFF) <= infinity].view(dtype.numpy)


def sweep(dtype: DType, lo: float, hi: float, count: int, seed: int = 0) -> Array:
    """Evenly spaced values, each moved by a random part of the spacing."""
    generator = np.random.default_rng(seed)
    return (lo + (hi - lo) / count * (np.arange(count) + generator.random(count))).astype(dtype.numpy)


def specials(dtype: DType) -> Array:
    """Zeros, ones, the smallest and largest numbers, infinities and NaN, of both signs."""
    tiny = smallest_normal(dtype)
    positive = [0.0, tiny * dtype.eps, tiny, dtype.eps, 0.5, 1.0, 1 + dtype.eps, 2.0, 3.0, dtype.max, np.inf]
    return np.array([*positive, *(-v for v in positive), np.nan], np.float64).astype(dtype.numpy)


def points(dtype: DType, intervals: Sequence[tuple[float, float]], count: int) -> Array:
    """A sweep of each interval, and every magnitude."""
    parts = [sweep(dtype, lo, hi, count, seed) for seed, (lo, hi) in enumerate(intervals)]
    return np.concatenate([every_magnitude(dtype, count), *parts])
