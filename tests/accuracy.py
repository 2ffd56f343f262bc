"""Distances between floating-point results and the real numbers that they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np

from luminal.core import interp, ir
from luminal.core.types import DType, f64, from_numpy

Array = np.ndarray[Any, Any]


def run(function: Callable[..., Any], *arrays: Array) -> Any:
    """``function`` of input nodes, evaluated in the nodes' own types: an array, or a list where it returns several."""
    inputs = [ir.input_(f"x{k}", a.shape, from_numpy(a.dtype)) for k, a in enumerate(arrays)]
    nodes = function(*inputs)
    results = interp.evaluate(
        nodes if isinstance(nodes, list | tuple) else [nodes], {f"x{k}": a for k, a in enumerate(arrays)}
    )
    return results if isinstance(nodes, list | tuple) else results[0]


def ulps(found: Array, exact: Array, dtype: DType) -> Array:
    """How many units in the last place of ``exact`` (float64 or longdouble) ``found`` is away.

    Results that are equal, both NaN, or infinite where ``exact`` rounds to infinity are 0 away; other disagreements of
    that kind are infinitely far.
    """
    wide = np.longdouble
    with np.errstate(all="ignore"):
        found, exact = np.asarray(found).astype(wide), np.asarray(exact).astype(wide)
        largest = wide(dtype.max) * (1 + wide(dtype.eps) / 4)
        exact = np.where(np.abs(exact) >= largest, np.sign(exact) * wide(np.inf), exact)
        smallest = _smallest_normal(dtype)
        _, exponent = np.frexp(np.maximum(np.abs(exact), smallest))
        unit = np.ldexp(wide(dtype.eps), exponent - 1)
        distance = np.abs(found - exact) / unit
        same = (found == exact) | (np.isnan(found) & np.isnan(exact))
        apart = ~np.isfinite(distance)
    return np.where(same, 0.0, np.where(apart, np.inf, distance)).astype(np.float64)


def _smallest_normal(dtype: DType) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype.numpy).smallest_normal)


def exact(function: Callable[..., Any], *arrays: Array) -> Array:
    """``function`` of mpmath reals, elementwise, to 40 digits; the result holds about 19 of them (longdouble).

    A complex result (a logarithm below zero) counts as NaN.
    """
    with mpmath.workdps(40):
        values = [_real(function(*map(_mpf, row))) for row in zip(*(a.ravel() for a in arrays), strict=True)]
    return np.array(values, np.longdouble).reshape(arrays[0].shape)


def _mpf(x: Any) -> Any:
    return mpmath.mpf(float(x))


def _real(value: Any) -> np.longdouble:
    if isinstance(value, mpmath.mpc):
        return np.longdouble(np.nan)
    if mpmath.isnan(value) or mpmath.isinf(value):
        return np.longdouble(float(value))
    return np.longdouble(mpmath.nstr(value, 30))


def every_magnitude(dtype: DType, count: int, seed: int = 0) -> Array:
    """Finite values of random sign, exponent and significand, subnormal ones included."""
    bits = np.random.default_rng(seed).integers(0, 1 << dtype.bits, count, np.uint64, endpoint=False)
    values = bits.astype(f"u{dtype.bits // 8}").view(dtype.numpy)
    return values[np.isfinite(values.astype(np.float64))]


def sweep(dtype: DType, lo: float, hi: float, count: int, seed: int = 0) -> Array:
    """Evenly spaced values, each moved by a random part of the spacing."""
    generator = np.random.default_rng(seed)
    step = (hi - lo) / count
    return (lo + step * (np.arange(count) + generator.random(count))).astype(dtype.numpy)


def specials(dtype: DType) -> Array:
    """Zeros, ones, the smallest and largest numbers, infinities and NaN, of both signs."""
    tiny = _smallest_normal(dtype)
    positive = [0.0, tiny * dtype.eps, tiny, dtype.eps, 0.5, 1.0, 1 + dtype.eps, 2.0, 3.0, dtype.max, np.inf]
    return np.array([*positive, *(-v for v in positive), np.nan], np.float64).astype(dtype.numpy)


def points(dtype: DType, intervals: Sequence[tuple[float, float]], count: int) -> Array:
    """A dense sweep of each interval, every magnitude, and the special values."""
    parts = [sweep(dtype, lo, hi, count, seed) for seed, (lo, hi) in enumerate(intervals)]
    return np.concatenate([specials(dtype), every_magnitude(dtype, count), *parts])


__all__ = ["every_magnitude", "exact", "f64", "points", "run", "specials", "sweep", "ulps"]
