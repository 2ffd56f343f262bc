"""The numpy meaning of every primitive: complete, exact, total; checked against independent arithmetic."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from luminal.core import numerics, ops
from luminal.core.ops import Kind
from luminal.core.types import (
    ALL,
    DType,
    bf16,
    bool_,
    f4e2m1,
    f8e4m3fn,
    f8e5m2,
    f8e8m0,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    i64,
    u4,
    u8,
    u16,
    u32,
    u64,
)  # fmt: skip
from tests import accuracy

FLOATS = (f16, bf16, f32, f64)
INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
SUB_BYTE = (i4, u4)


def apply(op: ops.Op, *operands: Any, dtype: DType, attr: Any = None) -> np.ndarray[Any, Any]:
    return numerics.apply(op, attr, *(np.asarray(o).astype(dtype.numpy) for o in operands))


def specials(dtype: DType) -> list[float]:
    magnitudes = [0.0, smallest(dtype), 1.0, 1.5, 2.5, 7.0, float(dtype.max), math.inf]
    return [math.nan, *magnitudes, *(-m for m in magnitudes)]


def smallest(dtype: DType) -> float:
    """The smallest denormal."""
    return float(np.array(1, f"u{dtype.itemsize}").view(dtype.numpy))


def limits(dtype: DType) -> list[int]:
    low, high = int(dtype.min), int(dtype.max)
    return sorted(
        {low, low + 1, high - 1, high, 0, 1, 2, 3, 7 if high >= 7 else 1} | ({-1, -2, -7} if low < -6 else set())
    )


def wrap(value: int, dtype: DType) -> int:
    return (value - int(dtype.min)) % (1 << dtype.bits) + int(dtype.min)


def same_bits(x: Any, y: Any) -> bool:
    """Equal as floats are: any NaN is NaN, and the sign of zero counts."""
    a, b = float(x), float(y)
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def test_the_table_is_complete() -> None:
    expected = {op for op in ops.TABLE.values() if op.kind in (Kind.ELEMENTWISE, Kind.REDUCE)}
    assert set(numerics.TABLE) == expected


def test_every_primitive_states_why_and_what_is_total() -> None:
    assert len(ops.TWELVE) == 12
    for op in ops.TABLE.values():
        assert op.total, op
        assert op.why or op in ops.TWELVE, op


# ---- floats ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_arithmetic_rounds_once(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    values = (rng.uniform(0.5, 50, 60) * rng.choice([-1, 1], 60)).astype(dtype.numpy)
    x, y = values[:30], values[30:]
    for op, exact in (
        (ops.ADD, lambda a, b: a + b),
        (ops.MUL, lambda a, b: a * b),
        (ops.DIV, lambda a, b: a / b),
    ):
        found = numerics.apply(op, None, x, y)
        assert found.dtype == dtype.numpy
        for a, b, c in zip(x, y, found, strict=True):
            assert nearest(exact(Fraction(float(a)), Fraction(float(b))), dtype) == float(c), (op, a, b)


@pytest.mark.parametrize("dtype", (f32, f64), ids=str)
def test_a_multiply_add_rounds_once(dtype: DType) -> None:
    """Products beside sums of every size, those that cancel them, subnormal and overflowing results included."""
    rng = np.random.default_rng(4)
    reach = 60 if dtype == f32 else 480
    a, b, c = (rng.uniform(1, 2, 600) * rng.choice([-1, 1], 600) * 2.0 ** rng.integers(-reach, reach, 600)
               for _ in range(3))  # fmt: skip
    a, b, c = (v.astype(dtype.numpy) for v in (a, b, c))
    cancelling = -(a * b)
    small = (a * dtype.numpy.type(2.0 ** (-1.2 * reach))).astype(dtype.numpy)
    large = (np.abs(a) * dtype.numpy.type(2.0 ** (1.1 * reach))).astype(dtype.numpy)
    with np.errstate(all="ignore"):
        near = cancelling + cancelling * dtype.numpy.type(dtype.eps) * rng.integers(-3, 3, 600).astype(dtype.numpy)
    for x, y, z in (
        (a, b, c),
        (a, b, cancelling),
        (a, b, near),
        (small, b, c * 0),
        (small, b, small),
        (large, b, large),
    ):
        found = numerics.apply(ops.MULTIPLY_ADD, None, x, y, z)
        for p, q, r, result in zip(x, y, z, found, strict=True):
            if np.isfinite([p, q, r]).all():
                exact = Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
                assert float(result) == rounded(exact, dtype), (p, q, r)


def rounded(value: Fraction, dtype: DType) -> float:
    """``value`` rounded to nearest even over the whole range of ``dtype``."""
    least = Fraction(smallest(dtype))
    if abs(value) < Fraction(accuracy.smallest_normal(dtype)):
        return float(round(value / least) * least)
    if abs(value) >= Fraction(float(dtype.max)) * (1 + Fraction(dtype.eps) / 4):
        return math.inf if value > 0 else -math.inf
    exponent = math.frexp(float(value) if abs(value) < Fraction(f64.max) else float(f64.max))[1]
    step = Fraction(2) ** (exponent + round(math.log2(dtype.eps)) - 1)
    return float(round(value / step) * step)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values_of_a_multiply_add(dtype: DType) -> None:
    for a, b, c in itertools.product((0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan), repeat=3):
        with np.errstate(all="ignore"):
            expected = float(np.float64(a) * b + c)
        assert same_bits(apply(ops.MULTIPLY_ADD, a, b, c, dtype=dtype), expected), (a, b, c)
    if dtype in (f32, f64):
        largest = float(dtype.max)
        assert same_bits(apply(ops.MULTIPLY_ADD, largest, -2.0, math.inf, dtype=dtype), math.inf)
        assert same_bits(apply(ops.MULTIPLY_ADD, largest, 2.0, -largest, dtype=dtype), largest)


def nearest(value: Fraction, dtype: DType) -> float:
    """``value`` rounded to nearest even in the normal range of ``dtype``, by integer arithmetic alone."""
    if not value:
        return 0.0
    digits = 1 - round(math.log2(dtype.eps))
    exponent = math.floor(math.log2(abs(value))) - digits + 1
    scaled = value / Fraction(2) ** exponent
    if abs(scaled) >= 2**digits:
        exponent, scaled = exponent + 1, scaled / 2
    return float(round(scaled) * Fraction(2) ** exponent)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_specials(dtype: DType) -> None:
    for a, b in itertools.product(specials(dtype), repeat=2):

        def got(op: ops.Op, x: float = a, y: float = b) -> Any:
            return apply(op, x, y, dtype=dtype)  # fmt: skip

        nan = math.isnan(a) or math.isnan(b)
        assert bool(got(ops.LESS_THAN)) == (a < b)
        assert bool(got(ops.EQUAL)) == (a == b)
        largest = math.nan if nan else 0.0 if a == b == 0 and math.copysign(1, a) != math.copysign(1, b) else max(a, b)
        assert same_bits(got(ops.MAX), largest), (a, b)
        if nan or b == 0 or math.isinf(a):
            assert math.isnan(float(got(ops.MOD)))
        elif math.isinf(b):
            expected = a if a == 0 or (a < 0) == (b < 0) else b
            assert float(got(ops.MOD)) == expected
        else:
            rest = float(got(ops.MOD))
            assert math.copysign(1, rest) == math.copysign(1, b) and abs(rest) <= abs(b)
        if b == 0 and not nan:
            quotient = math.nan if a == 0 else math.copysign(math.inf, a) * math.copysign(1, b)
            assert same_bits(got(ops.DIV), quotient)


def test_a_remainder_is_exact_and_has_the_sign_of_the_divisor() -> None:
    for a, b in itertools.product((5.5, -5.5, 1e20, -3.0, 6.0), (3.0, -3.0, 0.1)):
        exact = Fraction(a) - Fraction(b) * math.floor(Fraction(a) / Fraction(b))
        assert same_bits(apply(ops.MOD, a, b, dtype=f64), math.copysign(float(exact), b) if not exact else float(exact))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_specials(dtype: DType) -> None:
    cases: list[tuple[ops.Op, Any, float, float]] = [
        (ops.LOG2, ops.Scale(), 0.0, -math.inf), (ops.LOG2, ops.Scale(), -1.0, math.nan),
        (ops.LOG2, ops.Scale(), math.inf, math.inf), (ops.LOG2, ops.Scale(), 1.0, 0.0),
        (ops.EXP2, ops.Scale(), math.inf, math.inf), (ops.EXP2, ops.Scale(), -math.inf, 0.0),
        (ops.EXP2, ops.Scale(), 100000.0, math.inf), (ops.EXP2, ops.Scale(), -0.0, 1.0),
        (ops.SIN, ops.Quadrant(), math.inf, math.nan), (ops.SIN, ops.Quadrant(), -0.0, -0.0),
        (ops.SIN, ops.Quadrant(1), 0.0, 1.0), (ops.SIN, ops.Quadrant(3), 0.0, -1.0),
        (ops.SQRT, None, -0.0, -0.0), (ops.SQRT, None, -1.0, math.nan), (ops.SQRT, None, math.inf, math.inf),
        (ops.RECIP, None, 0.0, math.inf), (ops.RECIP, None, -0.0, -math.inf), (ops.RECIP, None, -math.inf, -0.0),
        (ops.ROUND, ops.Rounding("even"), 2.5, 2.0), (ops.ROUND, ops.Rounding("even"), -0.5, -0.0),
        (ops.ROUND, ops.Rounding("floor"), -0.5, -1.0), (ops.ROUND, ops.Rounding("ceil"), -0.5, -0.0),
        (ops.ROUND, ops.Rounding("trunc"), -1.5, -1.0), (ops.ROUND, ops.Rounding("even"), math.inf, math.inf),
    ]  # fmt: skip
    for op, attr, x, expected in cases:
        if not (x == 100000.0 and dtype == f16):
            assert same_bits(apply(op, x, dtype=dtype, attr=attr), expected), (op, attr, x)
    for op, attr, *_ in cases:
        assert math.isnan(float(apply(op, math.nan, dtype=dtype, attr=attr)))


FUNCTIONS = [
    (ops.EXP2, ops.Scale(), lambda x: mpmath.power(2, x)),
    (ops.EXP2, ops.Scale(numerics.LOG2_E), mpmath.exp),
    (ops.EXP2, ops.Scale(-numerics.LOG2_E), lambda x: mpmath.exp(-x)),
    (ops.EXP2, ops.Scale(numerics.LOG2_10), lambda x: mpmath.power(10, x)),
    (ops.EXP2, ops.Scale(0.7), lambda x: mpmath.power(2, x * mpmath.mpf(0.7))),
    (ops.LOG2, ops.Scale(), lambda x: mpmath.log(abs(x), 2)),
    (ops.LOG2, ops.Scale(numerics.LOG_2), lambda x: mpmath.log(abs(x))),
    (ops.LOG2, ops.Scale(numerics.LOG10_2), lambda x: mpmath.log10(abs(x))),
    (ops.SIN, ops.Quadrant(), mpmath.sin),
    (ops.SIN, ops.Quadrant(1), mpmath.cos),
    (ops.SIN, ops.Quadrant(2), lambda x: -mpmath.sin(x)),
    (ops.SIN, ops.Quadrant(3), lambda x: -mpmath.cos(x)),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("op", "attr", "real"), FUNCTIONS, ids=lambda v: str(v) if not callable(v) else "")
def test_functions_are_within_two_ulp_of_the_real_function(op: ops.Op, attr: Any, real: Any, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(200) * 10.0 ** rng.integers(-3, 2, 200)).astype(dtype.numpy)
    if op is ops.LOG2:
        x = np.abs(x)
    found = numerics.apply(op, attr, x)
    with mpmath.workprec(200):
        for a, b in zip(x, found, strict=True):
            exact = real(mpmath.mpf(float(a)))
            if mpmath.mpf(float(dtype.max)) < abs(exact) or abs(exact) < 1e-30:
                continue
            step = mpmath.mpf(2) ** mpmath.floor(mpmath.log(abs(exact), 2)) * dtype.eps
            step = max(step, mpmath.mpf(smallest(dtype)))
            assert abs(mpmath.mpf(float(b)) - exact) <= (2 if dtype == f64 else 0.51) * step, (a, b)


# ---- integers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", INTEGERS + SUB_BYTE, ids=str)
def test_integer_arithmetic_is_total_and_wraps(dtype: DType) -> None:
    for a, b in itertools.product(limits(dtype), repeat=2):
        truncated = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        shift_fill = -1 if a < 0 else 0
        valid = 0 <= b < dtype.bits
        expected = {
            ops.ADD: a + b, ops.MUL: a * b, ops.DIV: truncated, ops.MOD: a % b if b else 0, ops.MAX: max(a, b),
            ops.AND: a & b, ops.OR: a | b, ops.XOR: a ^ b,
            ops.SHL: a << b if valid else 0, ops.SHR: a >> b if valid else shift_fill,
        }  # fmt: skip
        for op, value in expected.items():
            found = apply(op, a, b, dtype=dtype)
            assert found.dtype == dtype.numpy
            assert int(found) == wrap(value, dtype), (op, a, b)
        assert bool(apply(ops.LESS_THAN, a, b, dtype=dtype)) == (a < b)
        assert bool(apply(ops.EQUAL, a, b, dtype=dtype)) == (a == b)


def test_bool() -> None:
    for a, b in itertools.product((False, True), repeat=2):
        assert bool(apply(ops.MAX, a, b, dtype=bool_)) == (a or b)
        assert bool(apply(ops.AND, a, b, dtype=bool_)) == (a and b)
        assert bool(apply(ops.XOR, a, b, dtype=bool_)) == (a != b)
        assert bool(apply(ops.LESS_THAN, a, b, dtype=bool_)) == (a < b)


# ---- conversions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("to", INTEGERS + SUB_BYTE, ids=str)
def test_float_to_integer_truncates_and_saturates(source: DType, to: DType) -> None:
    edges = [float(to.min), float(to.max), float(to.max) + 1, float(to.min) - 1, -0.9, 0.9, 1e30, -1e30]
    for value in [*specials(source), *edges]:
        x = numerics.convert(np.array(value), source)
        exact = float(x)
        if math.isnan(exact):
            expected = 0
        elif math.isinf(exact):
            expected = int(to.max if exact > 0 else to.min)
        else:
            expected = min(max(math.trunc(exact), int(to.min)), int(to.max))
        assert int(numerics.convert(x, to)) == expected, (exact, to)


@pytest.mark.parametrize("source", INTEGERS + SUB_BYTE, ids=str)
@pytest.mark.parametrize("to", INTEGERS + SUB_BYTE, ids=str)
def test_integer_to_integer_wraps(source: DType, to: DType) -> None:
    for value in limits(source):
        x = np.asarray(value).astype(source.numpy)
        assert int(numerics.convert(x, to)) == wrap(value, to)


@pytest.mark.parametrize("to", (f16, bf16, f32), ids=str)
@pytest.mark.parametrize("source", (i64, u64, i32, f64), ids=str)
def test_to_float_rounds_once(source: DType, to: DType) -> None:
    """Values just beside the midpoint of two narrow floats, where a second rounding would err."""
    digits = 1 - round(math.log2(to.eps))
    values: list[Any] = []
    for exponent in range(digits + 1, 15 if to == f16 else 31 if source == i32 else 62):
        half = 1 << (exponent - digits)
        for odd in (0, 1, 2):
            middle = (1 << exponent) + (2 * odd + 1) * half
            values += [middle - 1, middle, middle + 1]
    if source == f64:
        values += [1 + to.eps / 2 + e for e in (-(2.0**-50), 0.0, 2.0**-50)]
    x = np.array(values).astype(source.numpy)
    for exact, found in zip(x, numerics.convert(x, to), strict=True):
        assert float(found) == nearest(Fraction(exact.item()), to), exact


def test_reductions_of_nothing_change_nothing() -> None:
    for dtype in ALL.values():
        if dtype.kind == "c" or dtype.is_text:
            continue
        least = float("-inf") if dtype in (*FLOATS, f8e5m2) else float(dtype.min)
        assert float(numerics.of_nothing(ops.MAX_REDUCE, dtype)) == least, dtype
        if not dtype.is_bool and dtype.has_zero:
            assert float(numerics.of_nothing(ops.SUM_REDUCE, dtype)) == 0, dtype


def test_to_float_overflows_to_infinity_or_saturates() -> None:
    for source in (f32, f64):
        x = np.array([1e30, -1e30, np.inf, np.nan, 448.0, 460.0, 470.0]).astype(source.numpy)
        assert numerics.convert(x, f16).astype(float)[:3].tolist() == [np.inf, -np.inf, np.inf]
        assert numerics.convert(x, f8e5m2).astype(float)[:3].tolist() == [np.inf, -np.inf, np.inf]
        narrow = numerics.convert(x, f8e4m3fn).astype(float)
        assert narrow[[0, 1, 2, 4, 5, 6]].tolist() == [448.0, -448.0, 448.0, 448.0, 448.0, 448.0]
        assert np.isnan(narrow[3])
        assert numerics.convert(x, f4e2m1).astype(float)[:4].tolist() == [6.0, -6.0, 6.0, 0.0]
        powers = numerics.convert(np.array([3.0, 2.9, 0.0, -5.0, np.inf, np.nan]).astype(source.numpy), f8e8m0)
        assert powers.view(np.uint8).tolist() == [129, 128, 0, 0, 254, 255]
    denormal = np.array([2.0**-25, 2.0**-25 * (1 + 2.0**-40), 3 * 2.0**-25])
    assert (numerics.convert(denormal, f16).astype(float) * 2**24).tolist() == [0.0, 1.0, 2.0]


def test_bool_conversions() -> None:
    x = np.array([0.0, -0.0, np.nan, np.inf, 1e-40], np.float32)
    assert numerics.convert(x, bool_).tolist() == [False, False, True, True, True]
    for dtype in (*FLOATS, *INTEGERS, *SUB_BYTE):
        assert numerics.convert(np.array([False, True]), dtype).astype(float).tolist() == [0.0, 1.0]
        assert numerics.convert(np.array([0, 1]).astype(dtype.numpy), bool_).tolist() == [False, True]


@pytest.mark.parametrize("dtype", [t for t in ALL.values() if t.kind == "f"], ids=str)
def test_every_bit_pattern_survives_a_round_trip(dtype: DType) -> None:
    if dtype.bits > 16:
        return
    bits = np.arange(1 << dtype.bits).astype(np.uint16 if dtype.bits == 16 else np.uint8)
    values = bits.view(dtype.numpy)
    expected = numerics.convert(values, f64)
    for wide in (f32, f64):
        back = numerics.convert(numerics.convert(numerics.convert(values, wide), dtype), f64)
        np.testing.assert_array_equal(back, expected)
        np.testing.assert_array_equal(np.signbit(back), np.signbit(expected))


def test_bitcast() -> None:
    x = np.array([1.0, -0.0, np.inf], np.float32)
    bits = numerics.apply(ops.BITCAST, ops.To(u32), x)
    assert bits.tolist() == [0x3F800000, 0x80000000, 0x7F800000]
    np.testing.assert_array_equal(numerics.apply(ops.BITCAST, ops.To(f32), bits), x)


# ---- select and reductions -------------------------------------------------------------------------------------------


def test_select_keeps_the_bits_of_what_it_takes() -> None:
    payload = np.array([0x7FC01234, 0x7F812345], np.uint32).view(np.float32)
    taken = numerics.apply(ops.SELECT, None, np.array([True, False]), payload, np.full(2, -0.0, np.float32))
    assert taken.view(np.uint32).tolist() == [0x7FC01234, 0x80000000]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_reductions(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 3, (3, 4, 5)).astype(dtype.numpy)
    for axes in ((0,), (1, 2), (0, 1, 2)):
        attr = ops.Axes(axes)
        total = numerics.apply(ops.SUM_REDUCE, attr, x)
        assert total.dtype == dtype.numpy
        np.testing.assert_array_equal(total.astype(float), x.astype(float).sum(axes))
        np.testing.assert_array_equal(numerics.apply(ops.MAX_REDUCE, attr, x).astype(float), x.astype(float).max(axes))
    empty = np.empty((0, 2), dtype.numpy)
    assert numerics.apply(ops.SUM_REDUCE, ops.Axes((0,)), empty).astype(float).tolist() == [0, 0]
    lowest = -np.inf if dtype.is_float else float(dtype.min)
    assert numerics.apply(ops.MAX_REDUCE, ops.Axes((0,)), empty).astype(float).tolist() == [lowest] * 2


def test_reduction_specials() -> None:
    rows = np.array([[-0.0, 0.0], [-0.0, -0.0], [np.nan, 1.0], [-np.inf, -1.0]], np.float32)
    largest = numerics.apply(ops.MAX_REDUCE, ops.Axes((1,)), rows)
    for found, expected in zip(largest, [0.0, -0.0, np.nan, -1.0], strict=True):
        assert same_bits(found, expected)
    assert int(numerics.apply(ops.SUM_REDUCE, ops.Axes((0,)), np.array([127, 1], np.int8))) == -128
    assert not numerics.apply(ops.MAX_REDUCE, ops.Axes((0,)), np.empty(0, bool))


def test_sixteen_bit_sums_accumulate_in_float32() -> None:
    ones = np.ones(4096, f16.numpy)
    assert float(numerics.apply(ops.SUM_REDUCE, ops.Axes((0,)), ones)) == 4096.0
    assert float(numerics.apply(ops.SUM_REDUCE, ops.Axes((0,)), ones.astype(bf16.numpy))) == 4096.0
