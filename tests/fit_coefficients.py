"""Fits the approximations of ``core/decompose/coefficients.py`` and prints that module.

    python -m tests.fit_coefficients > core/decompose/coefficients.py

Each polynomial, or quotient of polynomials, minimises the largest relative error of the function that it serves, by
Remez exchange in 45 digits. Coefficients are rounded to their type one by one, from the constant term up, and the rest
is fitted again after each, so that the rounding of one is made good by the others. Needs mpmath; takes a minute.

What falls off like ``1/(c*v)`` is a quotient ``P(v) / (c*v*P(v) + Q(v))`` whose terms all have one sign: nothing
cancels, and where ``v`` is large the rounding errors of ``v*P(v)`` do.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath

Real = Any
mpmath.mp.dps = 45

_GRID = 400
_EXCHANGES = 14
_DIGITS = {"f32": 24, "f64": 53}


@dataclass(frozen=True)
class Interval:
    """An approximation of one type: its degrees (of ``P``, and of ``Q`` where there is one) and its domain."""

    degrees: tuple[int, ...]
    lo: Real
    hi: Real


@dataclass(frozen=True)
class Fit:
    """``function(x)`` as a polynomial, or a quotient of two, with errors weighted by ``weight`` (by default relative).

    ``constant``, rounded to the type, is the ``c`` of a quotient ``P / (c*x*P + Q)``;
    ``first`` is the constant term of its ``Q``: just above a power of two, roundings weigh the most.
    Where ``alone``, each coefficient is rounded for itself: in a domain around 0, where the constant term alone counts,
    no other can make its rounding good.
    ``nodes`` puts grid points, given as ``-1 .. 1``, into the domain where an even spread is not the best.
    """

    name: str
    comment: str
    function: Callable[[Real], Real]
    intervals: dict[str, Interval]
    weight: Callable[[Real], Real] | None = None
    constant: Real = 1
    nodes: Callable[[Real, Real, Real], Real] | None = None
    first: Real = 1
    alone: bool = False


def _rounded(value: Real, bits: int) -> Real:
    exponent = int(mpmath.floor(mpmath.log(abs(value), 2)))
    scale = mpmath.mpf(2) ** (bits - 1 - exponent)
    return mpmath.nint(value * scale) / scale


def _polynomial(x: Real, coefficients: Sequence[Real]) -> Real:
    total = mpmath.mpf(0)
    for coefficient in reversed(coefficients):
        total = total * x + coefficient
    return total


def _alternating(errors: list[Real], wanted: int) -> list[int]:
    """Positions of the largest errors of alternating sign."""
    found: list[int] = []
    for at, error in enumerate(errors):
        if found and (error > 0) == (errors[found[-1]] > 0):
            if abs(error) > abs(errors[found[-1]]):
                found[-1] = at
        else:
            found.append(at)
    while len(found) > wanted:
        found.pop(0 if abs(errors[found[0]]) < abs(errors[found[-1]]) else -1)
    return found


def _minimax(xs: list[Real], values: list[Real], weights: list[Real], fixed: list[Real], terms: int) -> list[Real]:
    """All ``terms`` coefficients of a polynomial, those in ``fixed`` kept."""
    free = terms - len(fixed)
    targets = [v - _polynomial(x, fixed) for x, v in zip(xs, values, strict=True)]
    reference = [round(i * (len(xs) - 1) / free) for i in range(free + 1)]
    best, least = fixed, mpmath.inf
    for _ in range(_EXCHANGES):
        matrix, right = mpmath.matrix(free + 1, free + 1), mpmath.matrix(free + 1, 1)
        for row, at in enumerate(reference):
            for column in range(free):
                matrix[row, column] = xs[at] ** (len(fixed) + column)
            matrix[row, free] = (-1) ** row / weights[at]
            right[row] = targets[at]
        solution = mpmath.lu_solve(matrix, right)
        coefficients = fixed + [solution[k] for k in range(free)]
        errors = [(_polynomial(x, coefficients) - v) * w for x, v, w in zip(xs, values, weights, strict=True)]
        largest = max(map(abs, errors))
        if largest < least:
            best, least = coefficients, largest
        extrema = _alternating(errors, free + 1)
        if len(extrema) <= free or extrema == reference:
            break
        reference = extrema
    return best


def _minimax_numerator(
    xs: list[Real], values: list[Real], constant: Real, first: Real, degrees: tuple[int, ...]
) -> list[Real]:
    """``P`` of the quotient ``P / (c*x*P + Q)`` that has the least relative error; ``Q`` begins with ``first``."""
    p, q = degrees
    unknowns = p + 1 + q
    reference = [round(i * (len(xs) - 1) / unknowns) for i in range(unknowns + 1)]
    best, least = [mpmath.mpf(1)], mpmath.inf
    scale = [mpmath.mpf(1)] * len(xs)
    for exchange in range(_EXCHANGES):
        # The equations are linear but for the denominator beside the error, which is taken from the round before.
        for _ in range(3 if exchange else 8):
            matrix, right = mpmath.matrix(unknowns + 1, unknowns + 1), mpmath.matrix(unknowns + 1, 1)
            for row, at in enumerate(reference):
                x, value = xs[at], values[at]
                for k in range(p + 1):
                    matrix[row, k] = x**k * (1 - constant * x * value)
                for k in range(q):
                    matrix[row, p + 1 + k] = -value * x ** (k + 1)
                matrix[row, unknowns] = (-1) ** row * value * scale[at]
                right[row] = value * first
            solution = mpmath.lu_solve(matrix, right)
            numerator = [solution[k] for k in range(p + 1)]
            rest = [mpmath.mpf(first), *(solution[p + 1 + k] for k in range(q))]
            tops = [_polynomial(x, numerator) for x in xs]
            scale = [constant * x * t + _polynomial(x, rest) for x, t in zip(xs, tops, strict=True)]
        errors = [t / s / v - 1 for t, s, v in zip(tops, scale, values, strict=True)]
        largest = max(map(abs, errors))
        if min(scale) > 0 and largest < least:
            best, least = numerator, largest
        extrema = _alternating(errors, unknowns + 1)
        if len(extrema) <= unknowns or extrema == reference:
            break
        reference = extrema
    return best


def fit_polynomials(fit: Fit, dtype: str) -> tuple[list[list[Real]], Real]:
    """The rounded polynomials, ``P`` first, and the largest weighted error that is left."""
    interval, bits = fit.intervals[dtype], _DIGITS[dtype]
    lo, hi = mpmath.mpf(interval.lo), mpmath.mpf(interval.hi)
    spread = fit.nodes or (lambda c, lo, hi: (lo + hi) / 2 + (hi - lo) / 2 * c)
    xs = [spread(-mpmath.cos(mpmath.pi * i / (_GRID - 1)), lo, hi) for i in range(_GRID)]
    values = [fit.function(x) for x in xs]
    weights = [1 / abs(v) if fit.weight is None else fit.weight(x) for x, v in zip(xs, values, strict=True)]
    found: list[list[Real]] = []
    if len(interval.degrees) == 2:
        constant = _rounded(fit.constant, bits)
        numerator = _minimax_numerator(xs, values, constant, fit.first, interval.degrees)
        numerator = [_rounded(c, bits) for c in numerator]
        found.append(numerator)
        # Q = P/value - c*x*P; its error counts by its share of the denominator.
        tops = [_polynomial(x, numerator) for x in xs]
        weights = [v / t for v, t in zip(values, tops, strict=True)]
        values = [t / v - constant * x * t for x, t, v in zip(xs, tops, values, strict=True)]
    done: list[Real] = []
    if fit.alone:
        done = [_rounded(c, bits) for c in _minimax(xs, values, weights, [], interval.degrees[-1] + 1)]
    while len(done) <= interval.degrees[-1]:
        done.append(_rounded(_minimax(xs, values, weights, done, interval.degrees[-1] + 1)[len(done)], bits))
    found.append(done)
    return found, max(abs(_polynomial(x, done) - v) * w for x, v, w in zip(xs, values, weights, strict=True))


# ---- the functions ---------------------------------------------------------------------------------------------------


def _over_root(function: Callable[[Real], Real], at_zero: Real) -> Callable[[Real], Real]:
    """``function(sqrt(z)) / sqrt(z)``."""
    return lambda z: function(mpmath.sqrt(z)) / mpmath.sqrt(z) if z > 1e-30 else at_zero


def _expm1_tail(r: Real) -> Real:
    return (mpmath.expm1(r) - r) / r**2 if abs(r) > 1e-12 else mpmath.mpf(1) / 2 + r / 6


def _expm1_weight(r: Real) -> Real:
    return max(abs(r * r / mpmath.expm1(r)), mpmath.mpf("1e-6")) if abs(r) > 1e-12 else mpmath.mpf("1e-6")


def _atanh_tail(z: Real) -> Real:
    if z < 1e-10:
        return mpmath.mpf(1) / 5 + z / 7
    s = mpmath.sqrt(z)
    return ((mpmath.atanh(s) / s - 1) / z - mpmath.mpf(1) / 3) / z


def _erf_tail(z: Real) -> Real:
    return (mpmath.erf(mpmath.sqrt(z)) / mpmath.sqrt(z) if z > 1e-30 else 2 / mpmath.sqrt(mpmath.pi)) - 1


def _scaled_complement(v: Real) -> Real:
    return mpmath.exp(v * v) * mpmath.erfc(-v)


def _scaled_normal(v: Real) -> Real:
    return mpmath.exp(v * v / 2) * mpmath.erfc(-v / mpmath.sqrt(2)) / 2


def _between(function: Callable[[Real], Real], zeros: Sequence[Real], middle: Real) -> Callable[[Real], Real]:
    """``function`` over the product of ``x - zero``, of ``t = (x - middle)/(x + middle)``."""

    def quotient(t: Real) -> Real:
        x = middle * (1 + t) / (1 - t)
        if min(abs(x - zero) for zero in zeros) < 1e-20:
            x += mpmath.mpf(10) ** -20
        return function(x) / mpmath.fprod(x - zero for zero in zeros)

    return quotient


def _ends(lo: Real, hi: Real, middle: Real) -> tuple[Real, Real]:
    """An interval of ``x``, as one of that ``t``."""
    return (lo - middle) / (lo + middle), (hi - middle) / (hi + middle)


def _lgamma_tail(v: Real) -> Real:
    if v == 0:
        return mpmath.mpf(1) / 12
    x = 1 / mpmath.sqrt(v)
    main = (x - mpmath.mpf(1) / 2) * (mpmath.log(x) - 1) + (mpmath.log(2 * mpmath.pi) - 1) / 2
    return (mpmath.loggamma(x) - main) * x


def _digamma_tail(v: Real) -> Real:
    x = 1 / mpmath.sqrt(v) if v else mpmath.mpf(0)
    return (mpmath.log(x) - 1 / (2 * x) - mpmath.digamma(x)) / v if v else mpmath.mpf(1) / 12


def _crowded(c: Real, lo: Real, hi: Real) -> Real:
    """Grid points crowded towards zero, where a function that falls off like ``1/v`` bends."""
    far, near = 2 / (2 - lo), 2 / (2 - hi)
    return 2 - 2 / ((far + near) / 2 + (near - far) / 2 * c)


def _both(f32: tuple[int, ...], f64: tuple[int, ...], lo: Real, hi: Real) -> dict[str, Interval]:
    return {"f32": Interval(f32, lo, hi), "f64": Interval(f64, lo, hi)}


_HALF_LN2 = mpmath.log(2) / 2 * mpmath.mpf("1.0001")
_LOG2_DOMAIN = ((mpmath.sqrt(2) - 1) / (mpmath.sqrt(2) + 1)) ** 2 * mpmath.mpf("1.0001")

FITS = (
    Fit("EXPM1", "expm1(r) = r + r*r*P(r), |r| <= ln(2)/2", _expm1_tail, _both((4,), (10,), -_HALF_LN2, _HALF_LN2),
        weight=_expm1_weight),
    Fit("LOG1P", "log1p(t) = t*P(t), 0 <= t <= 1", lambda t: mpmath.log1p(t) / t if t else mpmath.mpf(1),
        _both((9,), (20,), 0, 1)),
    Fit("ATANH", "atanh(s) = s + s*z/3 + s*z*z*P(z), z = s*s, |s| <= (sqrt(2)-1)/(sqrt(2)+1)", _atanh_tail,
        _both((3,), (8,), 0, _LOG2_DOMAIN)),
    Fit("ATAN", "atan(t) = t*P(t*t), |t| <= 1", _over_root(mpmath.atan, mpmath.mpf(1)), _both((9,), (20,), 0, 1)),
    Fit("ASIN", "asin(s) = s*P(s*s), |s| <= 1/2", _over_root(mpmath.asin, mpmath.mpf(1)),
        _both((5,), (12,), 0, 0.25)),
    Fit("ERF", "erf(x) = x + x*P(x*x), |x| <= 1", _erf_tail, _both((6,), (11,), 0, 1),
        weight=lambda z: 1 / (1 + _erf_tail(z))),
    Fit("LOG2_ERFC", "log2(erfc(x)) = P(x), x >= 1, up to where erf is 1 in the type",
        lambda x: mpmath.log(mpmath.erfc(x), 2),
        {"f32": Interval((6,), 1, 3.95), "f64": Interval((17,), 1, 5.95)},
        weight=lambda x: mpmath.log(2) * mpmath.erfc(x) / mpmath.erf(x)),
    Fit("TANH", "tanh(x) = x*P(x*x), |x| <= 5/8", _over_root(mpmath.tanh, mpmath.mpf(1)),
        _both((5,), (11,), 0, 0.391)),
    Fit("ERFCX", "exp(v*v) * erfc(-v) = P(v) / (c*v*P(v) + Q(v)), c = -sqrt(pi), from v = 0 down to where erfc is 0",
        _scaled_complement, {"f32": Interval((5, 4), -10.7, 0), "f64": Interval((10, 9), -27.6, 0)},
        constant=-mpmath.sqrt(mpmath.pi), first=1.5, nodes=_crowded),
    Fit("NORMAL", "exp(v*v/2) * normal(v) = P(v) / (c*v*P(v) + Q(v)), c = -sqrt(2*pi), from 0 down to where it is 0",
        _scaled_normal, {"f32": Interval((4, 4), -15, 0), "f64": Interval((10, 9), -39, 0)},
        constant=-mpmath.sqrt(2 * mpmath.pi), first=1.5, nodes=_crowded),
    Fit("LOG2_NORMAL", "log2(normal(v)) = P(v), for few digits, from 0 down to where it is 0",
        lambda v: mpmath.log(mpmath.erfc(-v / mpmath.sqrt(2)) / 2, 2), {"f32": Interval((9,), -14.3, 0)},
        weight=lambda v: mpmath.log(2)),
    Fit("LGAMMA", "lgamma(x) = (x - 1)*(x - 2)*P((x - 1.5)/(x + 1.5)), 3/4 <= x <= 3",
        _between(mpmath.loggamma, (1, 2), mpmath.mpf("1.5")), _both((9,), (21,), *_ends(0.75, 3, 1.5)), alone=True),
    Fit("LGAMMA_TAIL", "lgamma(x) = (x - 1/2)*(log(x) - 1) + log(2*pi)/2 - 1/2 + P(1/x**2)/x, x >= 8",
        _lgamma_tail, _both((2,), (6,), 0, 1 / 64)),
    Fit("DIGAMMA", "digamma(x) = (x - x0)*P((x - 1.75)/(x + 1.75)), 1 <= x <= 3",
        _between(mpmath.digamma, (mpmath.findroot(mpmath.digamma, 1.46),), mpmath.mpf("1.75")),
        _both((8,), (18,), *_ends(1, 3, 1.75)), alone=True),
    Fit("DIGAMMA_TAIL", "digamma(x) = log(x) - 1/(2*x) - P(1/x**2)/x**2, x >= 8", _digamma_tail,
        _both((2,), (6,), 0, 1 / 64)),
)  # fmt: skip


def main() -> None:
    """Prints the module."""
    print('"""Coefficients of polynomials and of quotients of polynomials, lowest degree first, by the type.')
    print()
    print("Written by tests/fit_coefficients.py; beside each is its own error, relative to the function.")
    print('"""')
    print()
    print("from __future__ import annotations")
    print()
    print("from luminal.core.decompose.common import Coefficients, Quotients")
    print("from luminal.core.types import f32, f64")
    print()
    print("# fmt: off")
    for fit in FITS:
        rational = any(len(i.degrees) == 2 for i in fit.intervals.values())
        print()
        print(f"# {fit.comment}")
        print(f"{fit.name}: {'Quotients' if rational else 'Coefficients'} = {{")
        for dtype in fit.intervals:
            found, error = fit_polynomials(fit, dtype)
            print(f"    {dtype}: (  # 2**{float(mpmath.log(error, 2)):.1f}")
            for polynomial in found:
                indent = " " * (12 if rational else 8)
                numbers = ", ".join(repr(float(c)) for c in polynomial) + ","
                rows = textwrap.fill(
                    numbers, 120, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
                )
                print(*(["        (", rows, "        ),"] if rational else [rows]), sep="\n")
            print("    ),")
        print("}")


if __name__ == "__main__":
    main()
