"""Special values of elementwise decompositions: NaN, infinities, signed zeros; comparisons; integers' limits."""

from __future__ import annotations

import itertools
import math as python_math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from luminal.core import ir
from luminal.core.decompose import compare, cumulative, math, power
from luminal.core.types import DType, bf16, bool_, f16, f32, f64, i8, i32, i64, u8, u32
from tests import accuracy
from tests.accuracy import Array

FLOATS = [f16, bf16, f32, f64]
# Named alike in PyTorch.
ALIKE = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc", "floor",
    "ceil", "trunc", "square", "sign", "isnan", "isinf", "isfinite", "frac",
)  # fmt: skip
UNARY = {
    **{name: getattr(torch, name) for name in ALIKE},
    "abs_": torch.abs, "neg": torch.neg, "round_": torch.round, "relu": F.relu, "relu6": F.relu6, "silu": F.silu,
    "softplus": F.softplus, "log_sigmoid": F.logsigmoid, "mish": F.mish, "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu, "celu": F.celu,
    "softsign": F.softsign, "hardtanh": F.hardtanh, "softshrink": F.softshrink, "hardshrink": F.hardshrink,
}  # fmt: skip


def ordinary(dtype: DType) -> Array:
    """Special values without the extremes of the range, where PyTorch itself overflows or flushes to zero."""
    x = accuracy.specials(dtype)
    magnitude = np.abs(x.astype(np.float64))
    return x[~np.isfinite(magnitude) | (magnitude == 0) | ((magnitude > 1e-5) & (magnitude < 1e4))]


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
@pytest.mark.parametrize("name", UNARY)
def test_special_values_are_pytorchs(name: str, dtype: DType) -> None:
    x = ordinary(dtype)
    expected = np.stack([UNARY[name](torch.tensor(v)).numpy() for v in x])
    found = accuracy.run(getattr(math, name), x)
    if expected.dtype == np.bool_:
        assert np.array_equal(found, expected)
        return
    special = ~np.isfinite(expected) | (expected == 0) & (np.abs(x) != 2)
    assert np.array_equal(found[special], expected[special], equal_nan=True), (x[special], found[special])
    zero = expected == 0
    assert np.array_equal(np.signbit(found[zero]), np.signbit(expected[zero])), x[zero]


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
def test_gelu_at_the_ends(dtype: DType) -> None:
    x = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, dtype.max, dtype.min], dtype.numpy)
    found = accuracy.run(math.gelu, x)
    assert np.array_equal(found, np.array([np.inf, np.nan, np.nan, 0, 0, dtype.max, 0], dtype.numpy), equal_nan=True)
    assert np.signbit(found[3]) and not np.signbit(found[4]) and np.signbit(found[6])


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
def test_extremes_are_finite_where_the_function_is(dtype: DType) -> None:
    """PyTorch overflows in hardswish, and flushes small results of the others to zero."""
    largest, least = dtype.numpy.type(dtype.max), dtype.numpy.type(accuracy.smallest_normal(dtype) * dtype.eps)
    assert accuracy.run(math.hardswish, np.array([largest]))[0] == largest
    for name in ("log1p", "expm1", "tanh", "sinh", "asinh", "atanh", "asin", "atan", "erf", "sin", "tan"):
        found = accuracy.run(getattr(math, name), np.array([least, -least]))
        assert np.abs(found / least - [1, -1]).max() <= 1, name


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_binary_special_values(dtype: DType) -> None:
    values = np.concatenate([accuracy.specials(dtype), np.array([-2.5, 0.25, 7, -7], dtype.numpy)])
    x, y = map(np.array, zip(*itertools.product(values, values), strict=True))
    wide = np.longdouble if dtype == f64 else np.float64
    a, b = x.astype(wide), y.astype(wide)
    with np.errstate(all="ignore"):
        expected: dict[str, Array] = {
            "pow_": np.power(a, b), "atan2": np.arctan2(a, b), "copysign": np.copysign(a, b), "fmod": np.fmod(a, b),
        }  # fmt: skip
    for name, real in expected.items():
        found = accuracy.run(getattr(math, name), x, y)
        distance = accuracy.ulps(found, real, dtype)
        worst = int(distance.argmax())
        assert distance[worst] <= 4, f"{name}({x[worst]}, {y[worst]}) = {found[worst]}, not {real[worst]}"
        signed = ~np.isnan(real)
        assert np.array_equal(np.signbit(found)[signed], np.signbit(real)[signed]), name


@pytest.mark.parametrize("dtype", [f32, f64], ids=repr)
def test_floored_division_of_floats(dtype: DType) -> None:
    values = np.concatenate([ordinary(dtype), np.array([-2.5, 0.25, 7, -7, 1e3, 0.1], dtype.numpy)])
    x, y = map(np.array, zip(*itertools.product(values, values), strict=True))
    for name, reference in (("floor_divide", torch.floor_divide), ("remainder", torch.remainder)):
        found = accuracy.run(getattr(math, name), x, y)
        expected = reference(torch.from_numpy(x), torch.from_numpy(y)).numpy()
        assert np.array_equal(found, expected, equal_nan=True), name
        zero = expected == 0
        assert np.array_equal(np.signbit(found[zero]), np.signbit(expected[zero])), name


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_comparisons(dtype: DType) -> None:
    values = accuracy.specials(dtype)
    x, y = map(np.array, zip(*itertools.product(values, values), strict=True))
    a, b = x.astype(np.float64), y.astype(np.float64)
    for name, expected in {
        "equal": a == b, "not_equal": a != b, "less": a < b, "less_equal": a <= b, "greater": a > b,
        "greater_equal": a >= b,
    }.items():  # fmt: skip
        assert np.array_equal(accuracy.run(getattr(compare, name), x, y), expected), name


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_minimum_keeps_nan_and_the_sign_of_zero(dtype: DType) -> None:
    x = np.array([0.0, -0.0, np.nan, 1.0, -np.inf, np.nan], dtype.numpy)
    y = np.array([-0.0, 0.0, 1.0, np.nan, np.inf, np.nan], dtype.numpy)
    low, high = accuracy.run(lambda a, b: [compare.minimum(a, b), compare.maximum(a, b)], x, y)
    assert np.array_equal(low.astype(np.float64), [0, 0, np.nan, np.nan, -np.inf, np.nan], equal_nan=True)
    assert np.array_equal(np.signbit(low[:2].astype(np.float64)), [True, True])
    assert np.array_equal(np.signbit(high[:2].astype(np.float64)), [False, False])


def test_clamp() -> None:
    x = np.array([-np.inf, -2, -0.0, 0.5, 3, np.inf, np.nan], np.float32)
    for lo, hi in ((-1.0, 1.0), (None, 0.25), (-0.5, None), (0.0, 0.0), (2.0, -2.0), (float("nan"), 1.0)):
        expected = torch.clamp(torch.from_numpy(x), lo, hi).numpy()
        found = accuracy.run(lambda a, lo=lo, hi=hi: compare.clamp(a, lo, hi), x)
        assert np.array_equal(found, expected, equal_nan=True), (lo, hi)
    for lo, negative in ((0.0, True), (-0.0, True), (None, True), (-1.0, True), (0.5, False)):
        found = accuracy.run(lambda a, lo=lo: compare.clamp(a, lo, 6.0), np.array([-0.0], np.float32))
        assert np.signbit(found[0]) == negative, lo  # the sign of a zero is kept, so that no instruction asks for it
    integers = np.array([-128, -3, 0, 5, 127], np.int8)
    found = accuracy.run(lambda a: compare.clamp(a, -1000, python_math.inf), integers)
    assert np.array_equal(found, integers)
    assert np.array_equal(accuracy.run(lambda a: compare.clamp(a, -2, 4), integers), np.clip(integers, -2, 4))


# ---- integers and bool -----------------------------------------------------------------------------------------------


def _pairs(dtype: DType) -> tuple[Array, Array]:
    values = {dtype.min, dtype.min + 1, dtype.max, dtype.max - 1, 0, 1, 2, 3, 7}
    values |= {-1, -2, -3, -7} if dtype.kind == "i" else set()
    x, y = zip(*itertools.product(sorted(values), repeat=2), strict=True)
    return np.array(x, dtype.numpy), np.array(y, dtype.numpy)


@pytest.mark.parametrize("dtype", [i8, i32, i64, u8, u32], ids=repr)
def test_integer_division(dtype: DType) -> None:
    x, y = _pairs(dtype)
    quotient, rest, remainder, truncated = accuracy.run(
        lambda a, b: [math.floor_divide(a, b), math.fmod(a, b), math.remainder(a, b), math.trunc_divide(a, b)], x, y
    )
    wrap = (1 << dtype.bits) - 1
    for a, b, *found in zip(x.tolist(), y.tolist(), quotient, rest, remainder, truncated, strict=True):
        if b == 0:
            assert found[0] == 0 and found[3] == 0
            continue
        toward_zero = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        expected = [a // b, a - toward_zero * b, a % b, toward_zero]
        assert [int(v) & wrap for v in found] == [v & wrap for v in expected], (a, b)


@pytest.mark.parametrize("dtype", [i8, i32, i64, u8, u32], ids=repr)
def test_integer_order(dtype: DType) -> None:
    x, y = _pairs(dtype)
    names = ("less_equal", "greater", "minimum", "maximum")
    expected = (x <= y, x > y, np.minimum(x, y), np.maximum(x, y))
    found = accuracy.run(lambda a, b: [getattr(compare, name)(a, b) for name in names], x, y)
    for name, value, real in zip(names, found, expected, strict=True):
        assert np.array_equal(value, real), name
    with np.errstate(over="ignore"):
        assert np.array_equal(accuracy.run(math.abs_, x), np.abs(x))
        assert np.array_equal(accuracy.run(math.neg, x), np.negative(x))
    assert np.array_equal(accuracy.run(math.sign, x), np.sign(x))
    assert np.array_equal(accuracy.run(compare.bitwise_not, x), ~x)


@pytest.mark.parametrize("dtype", [i8, i32, u8], ids=repr)
def test_integer_power(dtype: DType) -> None:
    x, y = _pairs(dtype)
    found = accuracy.run(power.pow_, x, y)
    for a, b, value in zip(x.tolist(), y.tolist(), found.tolist(), strict=True):
        expected = (
            a**b if b >= 0 and b < 200 else pow(a, b, 1 << dtype.bits) if b >= 0 else {1: 1, -1: (-1) ** b}.get(a, 0)
        )
        assert (value - int(expected)) % (1 << dtype.bits) == 0, (a, b, value)
    cubed = accuracy.run(lambda a: power.pow_(a, 3), x)
    assert np.array_equal(cubed, x * x * x)


def test_logic() -> None:
    x = np.array([0.0, -0.0, 1.0, np.nan, 0.0, 2.0], np.float32)
    y = np.array([0.0, 1.0, -1.0, 0.0, np.nan, 0.0], np.float32)
    for name in ("logical_and", "logical_or", "logical_xor"):
        assert np.array_equal(accuracy.run(getattr(compare, name), x, y), getattr(np, name)(x, y)), name
    assert np.array_equal(accuracy.run(compare.logical_not, x), np.logical_not(x))
    truth = np.array([True, False])
    assert np.array_equal(accuracy.run(compare.bitwise_not, truth), ~truth)
    assert np.array_equal(accuracy.run(compare.minimum, truth, ~truth), [False, False])
    assert np.array_equal(accuracy.run(compare.where, x != 0, x, y), np.where(x != 0, x, y), equal_nan=True)


def test_infinities_by_sign() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    for negative, positive in itertools.product((True, False), repeat=2):
        found = accuracy.run(lambda a, n=negative, p=positive: compare.isinf(a, n, p), x)
        assert found.tolist() == [positive, negative, False, False]
    integers = np.array([1, 2])
    assert not accuracy.run(compare.isinf, integers).any() and not accuracy.run(compare.isnan, integers).any()
    assert accuracy.run(compare.isfinite, integers).all()


def test_rounding_to_decimals() -> None:
    x = np.array([1.25, -1.35, 2.5, 1234.5, -0.04], np.float32)
    for decimals in (-2, 0, 1, 2):
        expected = torch.round(torch.from_numpy(x), decimals=decimals).numpy()
        found = accuracy.run(lambda a, d=decimals: math.round_(a, d), x)
        assert np.allclose(found, expected, rtol=1e-6), decimals


def test_a_number_takes_the_type_of_the_node_beside_it() -> None:
    x = ir.input_("x", (2,), f16)
    for node in (compare.maximum(x, 1), compare.less(2.5, x), power.pow_(x, 2), math.sub(1, x)):
        assert node.shape == (2,) and node.dtype in (f16, bool_)


def test_empty_and_single() -> None:
    for shape in ((0,), (1,), (2, 0, 3), ()):
        x: Any = np.full(shape, 0.5, np.float32)
        for function in (math.gelu, math.tanh, math.erf, math.expm1, math.sigmoid, lambda a: math.pow_(a, a)):
            assert accuracy.run(function, x).shape == shape


def test_running_products_keep_the_sign_of_zero() -> None:
    for run in (
        [2, -3, 0, 4, -1],
        [1e-30, -1e-30, 1e-30, -1e-30],
        [-0.0, -0.0, 5],
        [-np.inf, -1, -np.inf],
        [np.nan, 0],
    ):
        x = np.array(run, np.float32)
        found, expected = accuracy.run(lambda x: cumulative.cumprod(x, 0), x), torch.tensor(x).cumprod(0).numpy()
        np.testing.assert_array_equal(found, expected)
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(expected)[number])


def test_running_sums_start_from_the_zero_that_is_asked_for() -> None:
    x = np.array([-0.0, -0.0, 1, -1], np.float32)
    for first, negative in ((0.0, [False, False, False, False]), (-0.0, [True, True, False, False])):
        found = accuracy.run(lambda x, first=first: cumulative.cumsum(x, 0, first=first), x)
        assert (found == [0, 0, 1, 0]).all() and np.signbit(found).tolist() == negative
    assert np.signbit(torch.tensor(x).cumsum(0).numpy()).tolist() == [False] * 4  # as from 0


def test_a_bound_that_is_a_zero_leaves_zeros() -> None:
    zeros = np.array([0.0, -0.0], np.float32)
    bounds = [(0.0, None), (-0.0, None), (None, 0.0), (None, -0.0), (0.0, -0.0)]
    for low, high in bounds:
        expected = np.stack([torch.clamp(torch.tensor(z), low, high).numpy() for z in zeros])
        found = accuracy.run(lambda x, low=low, high=high: math.clamp(x, low, high), zeros)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
        arrays = [np.float32(b)[None] for b in (low, high) if b is not None]

        def limited(x: ir.Node, *given: ir.Node, low: Any = low, high: Any = high) -> ir.Node:
            ends = iter(given)
            return math.clamp(x, *(None if b is None else next(ends) for b in (low, high)))

        np.testing.assert_array_equal(np.signbit(accuracy.run(limited, zeros, *arrays)), np.signbit(expected))
