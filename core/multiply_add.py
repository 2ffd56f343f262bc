"""``a*b + c`` rounded once, on numpy arrays: numpy has no such function.

A sum that is rounded to odd keeps what a second rounding, to at least two bits fewer, needs to know (Boldo and
Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

# Magnitudes of float64 between which no step below overflows or loses bits.
_LEAST, _LARGEST = 2.0**-900, 2.0**500
_SPLIT = 2.0**27 + 1


def multiply_add(a: Array, b: Array, c: Array) -> Array:
    """``a*b + c`` of float32 or float64 arrays that broadcast, in their type, rounded once."""
    if a.dtype == np.float32:
        product = a.astype(np.float64) * b.astype(np.float64)  # exact: 48 bits
        return np.asarray(_add_to_odd(product, c.astype(np.float64)).astype(np.float32))
    a, b, c = np.broadcast_arrays(a, b, c)
    finite = np.isfinite(a) & np.isfinite(b)
    result = np.where(finite & ~np.isfinite(c), c, a * b + c)  # a finite product that overflows is no infinity yet
    trivial = (a == 0) | (b == 0) | ~(finite & np.isfinite(c))
    largest = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.abs(c))
    regular = (largest < _LARGEST) & (np.abs(a * b) > _LEAST)
    result = np.where(regular, _rounded_once(a, b, c), result)
    for at in np.argwhere(~(regular | trivial)):
        place = tuple(at)
        result[place] = _scalar(float(a[place]), float(b[place]), float(c[place]))
    return result


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``a + b`` and its rounding error (Knuth)."""
    total = a + b
    used = total - a
    return total, (a - (total - used)) + (b - used)


def _add_to_odd(a: Array, b: Array) -> Array:
    """``a + b`` of float64 arrays, rounded to odd: where it is inexact, to the neighbour whose last bit is set."""
    total, error = _two_sum(a, b)
    even = (np.atleast_1d(total).view(np.int64) & 1 == 0).reshape(total.shape)
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & np.isfinite(error) & even, np.nextafter(total, towards), total)


def _rounded_once(a: Array, b: Array, c: Array) -> Array:
    """Boldo and Melquiond's algorithm: the product and the sums without error, the last of three terms to odd."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    upper, lower = _two_sum(c, lost)
    total, rest = _two_sum(product, upper)
    return np.asarray(total + _add_to_odd(rest, lower))


def _halves(x: Array) -> tuple[Array, Array]:
    """Veltkamp's splitting: products of the halves are exact."""
    scaled = x * _SPLIT
    high = scaled - (scaled - x)
    return high, x - high


def _scalar(a: float, b: float, c: float) -> float:
    """Of finite numbers, in rational arithmetic."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
