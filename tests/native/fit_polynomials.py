"""Print the polynomial coefficients of runtime/include/luminal/math_*.hpp.

Each polynomial minimises the largest weighted error over its interval (Remez exchange in 60-digit arithmetic). The
coefficients are rounded to the target type, where it helps one after the other, lowest power first, with a new fit of
the rest after each rounding.

Run as `python tests/native/fit_polynomials.py`; needs mpmath.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpmath import atanh, cos, cospi, exp, log, log1p, lu_solve, matrix, mp, mpf, sin, sqrt

mp.dps = 60

Function = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Fit:
    """target(x) ~ sum of c_k x^k for k in powers, on [low, high]; the error counts times weight(x)."""

    name: str
    target: Function
    weight: Function
    powers: tuple[int, ...]
    low: mpf
    high: mpf
    bits: int


def extrema(error: Function, low: mpf, high: mpf, count: int) -> list[mpf]:
    """The places of alternating extrema of `error`, `count` of them, found on a Chebyshev grid."""
    steps = 60 * count
    grid = [(low + high) / 2 - (high - low) / 2 * cospi(mpf(i) / steps) for i in range(steps + 1)]
    runs: list[tuple[mpf, mpf]] = []  # the largest error of each run of equal signs
    for x in grid:
        e = error(x)
        if e == 0:
            continue
        if runs and (e > 0) == (runs[-1][1] > 0):
            runs[-1] = max(runs[-1], (x, e), key=lambda run: abs(run[1]))
        else:
            runs.append((x, e))
    while len(runs) > count:
        runs.pop(0 if abs(runs[0][1]) < abs(runs[-1][1]) else -1)
    return [x for x, _ in runs]


def remez(fit: Fit, target: Function, powers: tuple[int, ...]) -> tuple[list[mpf], mpf]:
    """Coefficients of `powers` and the largest weighted error."""
    count = len(powers) + 1
    middle, half = (fit.low + fit.high) / 2, (fit.high - fit.low) / 2
    nodes = [middle - half * cospi(mpf(2 * i + 1) / (2 * count)) for i in range(count)]
    for _ in range(12):
        rows = [[x**k for k in powers] + [(-1) ** i / fit.weight(x)] for i, x in enumerate(nodes)]
        solution = lu_solve(matrix(rows), matrix([target(x) for x in nodes]))
        coefficients, level = list(solution[:-1]), abs(solution[len(powers)])

        def error(x: mpf, c: tuple[mpf, ...] = tuple(coefficients)) -> mpf:
            return fit.weight(x) * (sum(a * x**k for a, k in zip(c, powers, strict=True)) - target(x))

        nodes = extrema(error, fit.low, fit.high, count)
        worst = max(abs(error(x)) for x in nodes)
        if len(nodes) < count or worst <= level * mpf("1.001"):
            break
    return coefficients, worst


def rounded(value: mpf, bits: int) -> mpf:
    return mpf(float(np.float32(float(value)))) if bits == 24 else mpf(float(value))


def worst_error(fit: Fit, coefficients: list[mpf]) -> mpf:
    steps = 500
    grid = [fit.low + (fit.high - fit.low) * mpf(2 * i + 1) / (2 * steps) for i in range(steps)]
    terms = list(zip(coefficients, fit.powers, strict=True))
    return max(abs(fit.weight(x) * (sum(c * x**k for c, k in terms) - fit.target(x))) for x in grid)


def solve(fit: Fit) -> tuple[list[float], mpf]:
    """Coefficients rounded to `fit.bits` (24 or 53) and the largest weighted error of the rounded polynomial.

    Both ways of rounding are tried, all at once and one after the other with a new fit between: the exchange may not
    converge on what little a late coefficient can still mend.
    """
    at_once = [rounded(c, fit.bits) for c in remez(fit, fit.target, fit.powers)[0]]
    in_turn: list[mpf] = []
    for index in range(len(fit.powers)):

        def remaining(x: mpf, done: tuple[mpf, ...] = tuple(in_turn)) -> mpf:
            return fit.target(x) - sum(c * x**k for c, k in zip(done, fit.powers, strict=False))

        in_turn.append(rounded(remez(fit, remaining, fit.powers[index:])[0][0], fit.bits))
    best = min((at_once, in_turn), key=lambda coefficients: worst_error(fit, coefficients))
    return [float(c) for c in best], worst_error(fit, best)


def sine_target(u: mpf) -> mpf:
    r = sqrt(u)
    return (sin(r) / r - 1) / u


def cosine_target(u: mpf) -> mpf:
    return (cos(sqrt(u)) - 1 + u / 2) / u**2


def fits() -> list[Fit]:
    """Every polynomial of the vector math library; weights make the errors relative to the function's value."""
    tiny = mpf("1e-9")
    half = mpf("0.5005")
    low_log, high_log = sqrt(mpf("0.5")) - 1 - tiny, sqrt(mpf(2)) - 1 + tiny
    w_max = (high_log / (2 + high_log)) ** 2 * (1 + tiny)
    u_max = mpf("0.80") ** 2
    result = []
    around_zero, above_zero = (-half, half * (1 + tiny)), (tiny, mpf(1))
    for bits, powers, (low, high) in (
        (24, 4, around_zero), (24, 4, above_zero), (24, 6, around_zero), (53, 11, around_zero),
    ):  # fmt: skip
        result.append(
            Fit(
                f"2^f = 1 + f*P(f), float{bits}, {float(low):.1f} <= f",
                lambda f: (exp(f * log(mpf(2))) - 1) / f,
                lambda f: abs(f) / exp(f * log(mpf(2))),
                tuple(range(powers)),
                low,
                high,
                bits,
            )
        )
    result.append(
        Fit(
            "log1p(z) = z + z^2 P(z), float24",
            lambda z: (log1p(z) - z) / z**2,
            lambda z: z**2 / abs(log1p(z)),
            tuple(range(9)),
            low_log,
            high_log,
            24,
        )
    )
    result.append(
        Fit(
            "2 atanh(s) = 2s + s*w*P(w), w = s^2, float53",
            lambda w: (2 * atanh(sqrt(w)) / sqrt(w) - 2) / w,
            lambda w: w / 2,
            tuple(range(7)),
            tiny,
            w_max,
            53,
        )
    )
    for bits, powers in ((24, 3), (53, 6)):
        result.append(
            Fit(
                f"sin(r) = r + r*u*P(u), u = r^2, float{bits}",
                sine_target,
                lambda u: u * sqrt(u) / sin(sqrt(u)),
                tuple(range(powers)),
                tiny,
                u_max,
                bits,
            )
        )
        result.append(
            Fit(
                f"cos(r) = 1 - u/2 + u^2 P(u), u = r^2, float{bits}",
                cosine_target,
                lambda u: u**2 / cos(sqrt(u)),
                tuple(range(powers)),
                tiny,
                u_max,
                bits,
            )
        )
    return result


def main() -> None:
    for fit in fits():
        coefficients, worst = solve(fit)
        print(f"{fit.name}: largest relative error {float(worst * 2**fit.bits):.4f} * 2^-{fit.bits}")
        for c in coefficients:
            print(f"    {c.hex()}{'f' if fit.bits == 24 else ''},")


if __name__ == "__main__":
    main()
