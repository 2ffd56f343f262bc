"""Elementwise decompositions against the real functions: within 4 ULP in every float type.

float64 is compared with mpmath. float32 is compared with mpmath and, on a dense sweep, with the float64 decomposition,
which is by then known to be right. The 16-bit types are compared with it on every one of their values, where one
rounding is all that they may lose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from luminal.core.decompose import activation, math, power
from luminal.core.types import DType, bf16, f16, f32, f64
from tests import accuracy
from tests.accuracy import Array

LIMIT = 4.0


def normal(x: Any) -> Any:
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2 if abs(x) < 1000 else (1 + mpmath.sign(x)) / 2


def logistic(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x)) if abs(x) < 5000 else (1 + mpmath.sign(x)) / 2


def softplus(x: Any) -> Any:
    return mpmath.log1p(mpmath.exp(x)) if -5000 < x < 200 else max(x, mpmath.mpf(0))


def within(function: Callable[[Any], Any], lo: float, hi: float) -> Callable[[Any], Any]:
    return lambda x: function(x) if lo <= x <= hi else mpmath.nan


def saturating(function: Callable[[Any], Any], lo: Any, hi: Any) -> Callable[[Any], Any]:
    """``function``, or its limits where mpmath would take too long."""
    return lambda x: function(x) if abs(x) < 2000 else (hi if x > 0 else lo)


@dataclass(frozen=True)
class Case:
    """A function, its real counterpart, and the intervals where it bends."""

    name: str
    real: Callable[[Any], Any]
    intervals: Sequence[tuple[float, float]]
    # The real result vanishes below this argument faster than exp can follow: its subnormal result, times x.
    vanishing: bool = False


INF = mpmath.inf
CASES = (
    Case("exp", saturating(mpmath.exp, 0, INF), [(-2, 2), (-90, 90), (-750, 720)]),
    Case("exp2", saturating(lambda x: mpmath.mpf(2) ** x, 0, INF), [(-2, 2), (-150, 130)]),
    Case("log", within(mpmath.log, 1e-400, np.inf), [(0.5, 2), (0, 100)]),
    Case("log2", within(lambda x: mpmath.log(x, 2), 1e-400, np.inf), [(0.5, 2), (0, 100)]),
    Case("log10", within(mpmath.log10, 1e-400, np.inf), [(0.5, 2), (0, 100)]),
    Case("rsqrt", within(lambda x: 1 / mpmath.sqrt(x), 1e-400, np.inf), [(0, 4)]),
    Case("expm1", saturating(mpmath.expm1, -1, INF), [(-1, 1), (-50, 100), (-50, 720)]),
    Case("log1p", within(mpmath.log1p, -0.9999999999999999, np.inf), [(-1, 1), (-0.1, 0.1), (0, 100)]),
    Case("sin", mpmath.sin, [(-4, 4), (-100, 100)]),
    Case("cos", mpmath.cos, [(-4, 4), (-100, 100)]),
    Case("tan", mpmath.tan, [(-2, 2), (-100, 100)]),
    Case("asin", within(mpmath.asin, -1, 1), [(-1, 1), (0.95, 1)]),
    Case("acos", within(mpmath.acos, -1, 1), [(-1, 1), (0.95, 1)]),
    Case("atan", mpmath.atan, [(-2, 2), (-100, 100)]),
    Case("sinh", saturating(mpmath.sinh, -INF, INF), [(-1, 1), (-95, 95), (-715, 715)]),
    Case("cosh", saturating(mpmath.cosh, INF, INF), [(-1, 1), (-95, 95), (-715, 715)]),
    Case("tanh", saturating(mpmath.tanh, -1, 1), [(-1, 1), (-10, 10), (-25, 25)]),
    Case("asinh", mpmath.asinh, [(-2, 2), (-100, 100), (-20000, 20000)]),
    Case("acosh", within(mpmath.acosh, 1, np.inf), [(1, 1.1), (1, 3), (1, 20000)]),
    Case("atanh", within(mpmath.atanh, -0.9999999999999999, 0.9999999999999999), [(-1, 1), (0.9, 1)]),
    Case("erf", saturating(mpmath.erf, -1, 1), [(-1.1, 1.1), (-6, 6)]),
    Case("erfc", saturating(mpmath.erfc, 2, 0), [(-1, 1), (-6, 9), (0, 27)]),
    Case("sigmoid", logistic, [(-2, 2), (-110, 40), (-750, 40)]),
    Case("log_sigmoid", lambda x: -softplus(-x), [(-2, 2), (-40, 87), (-40, 700)]),
    Case("softplus", softplus, [(-2, 2), (-87, 40), (-700, 40)]),
    Case("gelu", lambda x: x * normal(x), [(-1, 1), (-15, 6), (-40, 5)]),
    Case("silu", lambda x: x * logistic(x), [(-2, 2), (-87, 40), (-700, 40)], vanishing=True),
    Case("quick_gelu", lambda x: x * logistic(mpmath.mpf(1.702) * x), [(-4, 4), (-50, 20)], vanishing=True),
    Case("mish", lambda x: x * mpmath.tanh(softplus(x)) if x < 200 else x, [(-2, 2), (-80, 40)], vanishing=True),
    Case("softsign", lambda x: x / (1 + abs(x)), [(-4, 4)]),
    Case("hardswish", lambda x: x * min(max(x + 3, 0), 6) / 6, [(-4, 4)]),
    Case("hardsigmoid", lambda x: min(max(x + 3, 0), 6) / 6, [(-4, 4)]),
    Case("elu", lambda x: x if x > 0 else saturating(mpmath.expm1, -1, INF)(x), [(-20, 1)]),
)
BY_NAME = {case.name: case for case in CASES}
# In float64 the rate of quick_gelu's exponential is itself rounded, and its exponent magnifies that.
FLOAT64_EXCEPTIONS = {"quick_gelu"}


def _vanished(case: Case, x: Array, dtype: DType) -> Array:
    """Arguments whose exponential is subnormal, where the result is a multiple of that."""
    least = np.log(accuracy.smallest_normal(dtype))
    return (x < (least / 1.702 if case.name == "quick_gelu" else least)) & case.vanishing


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_real_function(case: Case, dtype: DType) -> None:
    if dtype == f64 and case.name in FLOAT64_EXCEPTIONS:
        pytest.skip("held to float32 only")
    x = accuracy.points(dtype, case.intervals, 300)
    x = x[~_vanished(case, x, dtype)]
    found = accuracy.run(getattr(math, case.name), x)
    distance = accuracy.ulps(found, accuracy.exact(case.real, x), dtype)
    worst = int(distance.argmax())
    assert distance[worst] <= LIMIT, f"{case.name}({x[worst]!r}) = {found[worst]!r}, {distance[worst]:.2f} ULP off"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_dense_sweep_in_float32(case: Case) -> None:
    x = accuracy.points(f32, case.intervals, 40000)
    x = x[~_vanished(case, x, f32)]
    found = accuracy.run(getattr(math, case.name), x)
    distance = accuracy.ulps(found, accuracy.run(getattr(math, case.name), x.astype(np.float64)), f32)
    worst = int(distance.argmax())
    assert distance[worst] <= LIMIT, f"{case.name}({x[worst]!r}) = {found[worst]!r}, {distance[worst]:.2f} ULP off"


@pytest.mark.parametrize("dtype", [f16, bf16], ids=repr)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_16_bit_value_is_rounded_once(case: Case, dtype: DType) -> None:
    x = accuracy.every_number(dtype)
    x = x[~_vanished(case, x.astype(np.float64), f32)]
    found = accuracy.run(getattr(math, case.name), x)
    assert found.dtype == dtype.numpy
    distance = accuracy.ulps(found, accuracy.run(getattr(math, case.name), x.astype(np.float64)), dtype)
    assert distance.max() <= 0.501, f"{case.name}({x[distance.argmax()]!r}): {distance.max():.4f} ULP off"


def test_vanishing_results_stay_close() -> None:
    """Where the exponential is subnormal its last bit is worth ``|x|`` of the result's; PyTorch has -0 there."""
    x = accuracy.sweep(f32, -104, -87, 2000)
    for name in ("silu", "mish"):
        found = accuracy.run(getattr(math, name), x).astype(np.float64)
        assert np.all(np.abs(found - x * np.exp(x.astype(np.float64))) <= 2.0**-149 * 104)


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
def test_power(dtype: DType) -> None:
    generator = np.random.default_rng(5)
    count, reach = (2000, 126) if dtype == f32 else (1000, 1020)
    x = np.concatenate([np.exp2(generator.uniform(-reach, reach, count)), generator.uniform(0.3, 3, count)])
    x = x.astype(dtype.numpy)
    y = (generator.uniform(-reach, reach, 2 * count) / np.log2(x.astype(np.float64))).astype(dtype.numpy)
    distance = accuracy.ulps(accuracy.run(power.pow_, x, y), accuracy.exact(mpmath.power, x, y), dtype)
    assert distance.max() <= LIMIT


def _of_gamma(name: str, x: Any) -> Any:
    """mpmath has no logarithm of the magnitude of a gamma function that is negative."""
    if name == "digamma":
        return mpmath.digamma(x)
    return mpmath.loggamma(x) if x > 0 else mpmath.log(abs(mpmath.pi / mpmath.sinpi(x))) - mpmath.loggamma(1 - x)


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_functions_of_gamma_above_zero(name: str, dtype: DType) -> None:
    intervals = [(0, 3), (0.9, 1.1), (1.4, 1.5), (1.9, 2.1), (3, 8.2), (8, 100)]
    x = np.abs(accuracy.points(dtype, intervals, 200))
    wide = x.astype(np.float64)
    x = x[(wide > 1e-300) & (wide < 1e300)]
    found = accuracy.run(getattr(math, name), x)
    distance = accuracy.ulps(found, accuracy.exact(lambda v: _of_gamma(name, v), x), dtype)
    worst = int(distance.argmax())
    assert distance[worst] <= LIMIT, f"{name}({x[worst]!r}) = {found[worst]!r}, {distance[worst]:.2f} ULP off"


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_functions_of_gamma_below_zero(name: str, dtype: DType) -> None:
    intervals = [(-1, 0), (-0.6, -0.4), (-20, 0), (-200, 0), (-3.001, -2.999)]
    x = np.concatenate([accuracy.sweep(dtype, low, high, 200) for low, high in intervals])
    x = x[np.round(x) != x]
    real = accuracy.exact(lambda v: _of_gamma(name, v), x)
    above = accuracy.exact(lambda v: _of_gamma(name, 1 - v), x)
    terms = np.maximum(np.abs(above), np.abs(real + above if name == "lgamma" else real - above))
    error = np.abs(accuracy.run(getattr(math, name), x) - real) / (dtype.eps * np.maximum(terms, 1))
    assert error.max() <= LIMIT


def test_functions_of_gamma_at_special_values() -> None:
    x = np.array([0.0, -0.0, 1, 2, -1, -2, -1e9, -1e308, 1e308, np.inf, -np.inf, np.nan])
    for name in ("lgamma", "digamma"):
        expected = getattr(torch, name)(torch.tensor(x)).numpy()
        np.testing.assert_allclose(accuracy.run(getattr(math, name), x), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=repr)
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_functions_of_gamma_of_16_bits_are_rounded_once(name: str, dtype: DType) -> None:
    x = accuracy.every_number(dtype)
    x = x[~(x < 0)]
    found = accuracy.run(getattr(math, name), x)
    assert accuracy.ulps(found, accuracy.run(getattr(math, name), x.astype(np.float64)), dtype).max() <= 0.501


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
def test_powers_that_the_type_holds_are_exact(dtype: DType) -> None:
    """So that truncating 3**1 gives 3, not 2."""
    base, exponent = np.meshgrid(np.arange(1, 40), np.arange(-3, 9))
    expected = base.astype(np.float64) ** exponent
    exact = (exponent >= 0) & (base.astype(object) ** np.abs(exponent) < int(2 / dtype.eps)) | (base & (base - 1) == 0)
    x, y = (values[exact].astype(dtype.numpy) for values in (base, exponent))
    np.testing.assert_array_equal(accuracy.run(power.pow_, x, y), expected[exact].astype(dtype.numpy))


@pytest.mark.parametrize("exponent", [-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 5, 6, 2.5])
def test_constant_power(exponent: float) -> None:
    x = np.abs(accuracy.points(f32, [(0, 4)], 20000))
    x = x[(x > 1e-30) & (x < 1e30)]
    found = accuracy.run(lambda node: power.pow_(node, exponent), x)
    assert accuracy.ulps(found, np.power(x.astype(np.longdouble), exponent), f32).max() <= LIMIT


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
def test_atan2(dtype: DType) -> None:
    generator = np.random.default_rng(1)
    y, x = (generator.standard_normal(1500) * np.exp2(generator.uniform(-20, 20, 1500)) for _ in range(2))
    y, x = y.astype(dtype.numpy), x.astype(dtype.numpy)
    distance = accuracy.ulps(accuracy.run(math.atan2, y, x), accuracy.exact(mpmath.atan2, y, x), dtype)
    assert distance.max() <= LIMIT


def test_tanh_gelu_is_no_worse_than_its_argument() -> None:
    """Relative errors grow with the exponent of the tail; absolute ones stay within ULP of ``x``."""
    x = accuracy.sweep(f32, -9, 9, 20000)
    wide = x.astype(np.float64)
    doubled = 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    real = wide / (1 + np.exp(-doubled))
    found = accuracy.run(lambda node: activation.gelu(node, "tanh"), x)
    assert np.all(accuracy.ulps(found, real, f32) <= 4 + 3 * np.maximum(0, -doubled))


def test_parametrised_activations() -> None:
    x = accuracy.sweep(f32, -30, 30, 4000)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = {
            "softplus beta": (lambda v: activation.softplus(v, 2.0, 20.0), np.where(
                wide * 2 > 20, wide, np.log1p(np.exp(np.minimum(wide * 2, 50))) / 2)),
            "elu": (lambda v: activation.elu(v, 1.5, 2.0, 0.5), np.where(
                wide > 0, 2 * wide, 3 * np.expm1(np.minimum(0.5 * wide, 0)))),
            "celu": (lambda v: activation.celu(v, 0.7), np.where(
                wide > 0, wide, np.float32(0.7) * np.expm1(np.minimum(wide, 0) / np.float32(0.7).astype(np.float64)))),
            "leaky": (lambda v: activation.leaky_relu(v, 0.25), np.where(wide > 0, wide, wide * 0.25)),
            "softshrink": (lambda v: activation.softshrink(v, 0.5), np.sign(wide) * np.maximum(np.abs(wide) - 0.5, 0)),
            "hardshrink": (lambda v: activation.hardshrink(v, 0.5), np.where(np.abs(wide) <= 0.5, 0, wide)),
            "threshold": (lambda v: activation.threshold(v, 1.0, -7.0), np.where(wide > 1, wide, -7)),
            "hardtanh": (lambda v: activation.hardtanh(v, -2.0, 3.0), np.clip(wide, -2, 3)),
        }  # fmt: skip
    for name, (function, real) in expected.items():
        assert accuracy.ulps(accuracy.run(function, x), real, f32).max() <= LIMIT, name
