"""Vector arithmetic, casts and memory access against numpy and exact rationals, for every instruction set and type."""

import ctypes
import itertools
import math
import mmap
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from luminal.core import target as targets
from luminal.core.multiply_add import multiply_add
from luminal.core.target import Target
from tests import emulation
from tests.codegen_support import fenced
from tests.vector_support import EVERY_TARGET, build, pointer, same_bits

Array = np.ndarray[Any, Any]

# Numbered as in tests/native/vector_arithmetic.cpp.
INTEGERS = [np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(np.float32), np.dtype(np.float64)]
BOOL, FLOAT16, BFLOAT16 = np.dtype(bool), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
TYPES = [*INTEGERS, *FLOATS, BOOL, FLOAT16, BFLOAT16]

BINARY = ["add", "sub", "mul", "div", "mod", "max", "less", "equal", "and", "or", "xor", "shl", "shr"]
UNARY = ["neg", "abs", "not", "sqrt", "recip", "round_even", "floor", "ceil", "trunc"]
CHOICES = ["lesser", "greater"]
OPERATORS = [*BINARY, *UNARY, *CHOICES]
TRUTH = {"less", "equal"}

# One lane, with every check of undefined behaviour that the compiler has.
CHECKED = pytest.param(None, id="scalar")


# Compiled for the instructions of its units too, as libraries that use those are.
USED = [feature for unit in targets.AVX512_BF16.units for feature in unit.features]
USING = emulation.each(targets.AVX512_BF16.using(USED))


@pytest.fixture(scope="module", params=[*EVERY_TARGET, *USING, CHECKED])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As many lanes as a register has floats: wider types then take two registers, shorter ones a part of one."""
    target: Target | None = request.param
    lanes = target.register_bytes // 4 if target else 1
    flags = ["-O1"] if target else ["-O1", "-fsanitize=undefined,float-cast-overflow"]
    folder = tmp_path_factory.mktemp("arithmetic")
    library = build("vector_arithmetic.cpp", target or targets.X86_64, folder, f"-DLANES={lanes}", *flags)
    library.lanes = lanes
    return library


def number(dtype: np.dtype[Any]) -> ctypes.c_int:
    return ctypes.c_int(TYPES.index(dtype))


def count(array: Array) -> ctypes.c_int64:
    return ctypes.c_int64(array.size)


def apply(library: Any, name: str, a: Array, b: Array) -> Array:
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    result = np.zeros(a.shape, BOOL if name in TRUTH else a.dtype)
    code = ctypes.c_int(OPERATORS.index(name))
    library.apply_operator(number(a.dtype), code, pointer(a), pointer(b), pointer(result), count(a))
    return result


# ---- integers ------------------------------------------------------------------------------------------------------


def wrap(value: int, dtype: np.dtype[Any]) -> int:
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "i" and value >> (bits - 1) else value


def divide(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


INTEGER_MEANING: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul": lambda a, b, bits: a * b,
    "div": lambda a, b, bits: divide(a, b),
    "mod": lambda a, b, bits: 0 if b == 0 else a % b,
    "max": lambda a, b, bits: max(a, b),
    "less": lambda a, b, bits: a < b,
    "equal": lambda a, b, bits: a == b,
    "and": lambda a, b, bits: a & b,
    "or": lambda a, b, bits: a | b,
    "xor": lambda a, b, bits: a ^ b,
    "shl": lambda a, b, bits: a << b if 0 <= b < bits else 0,
    "shr": lambda a, b, bits: a >> (b if 0 <= b < bits else bits - 1) if a < 0 or 0 <= b < bits else 0,
    "neg": lambda a, b, bits: -a,
    "abs": lambda a, b, bits: abs(a),
    "not": lambda a, b, bits: ~a,
    **{name: lambda a, b, bits: a for name in ("round_even", "floor", "ceil", "trunc")},
}


def integer_pairs(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Every pair of the values at which something changes, and random ones of all magnitudes."""
    info, bits = np.iinfo(dtype), 8 * dtype.itemsize
    edges = {info.min, info.max, info.min + 1, info.max - 1, info.max // 2, *range(-5, 6), bits - 1, bits, bits + 1}
    edges |= {sign * (1 << k) + d for k in (7, 8, 15, 24, 31, 32, 52, 53, 62) for sign in (1, -1) for d in (-1, 0, 1)}
    values = np.array(sorted(v for v in edges if info.min <= v <= info.max), dtype)
    rng = np.random.default_rng(4)
    a, b = (rng.integers(info.min, info.max, 1500, dtype, endpoint=True) for _ in range(2))
    a, b = (x >> rng.integers(0, bits, x.size).astype(dtype) for x in (a, b))
    grid_a, grid_b = np.meshgrid(values, values)
    return np.concatenate([grid_a.ravel(), a]), np.concatenate([grid_b.ravel(), b])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_are_total(library: Any, dtype: np.dtype[Any], capfd: pytest.CaptureFixture[str]) -> None:
    a, b = integer_pairs(dtype)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    for name, meaning in INTEGER_MEANING.items():
        got = apply(library, name, a, b)
        expected = [meaning(x, y, 8 * dtype.itemsize) for x, y in pairs]
        if name not in TRUTH:
            expected = [wrap(v, dtype) for v in expected]
        wrong = [(x, y, g, e) for (x, y), g, e in zip(pairs, got.tolist(), expected, strict=True) if g != e]
        assert not wrong, f"{name} {dtype}: a, b, got, expected = {wrong[:5]}"
    assert "runtime error" not in capfd.readouterr().err


def test_bools(library: Any) -> None:
    a, b = (np.array(x * 9, bool) for x in ([0, 0, 1, 1], [0, 1, 0, 1]))
    meaning = {"max": a | b, "and": a & b, "or": a | b, "xor": a ^ b, "less": ~a & b, "equal": a == b, "not": ~a}
    for name, expected in meaning.items():
        assert np.array_equal(apply(library, name, a, b).view(np.uint8), expected.view(np.uint8)), name


def test_masks_of_different_widths_meet(library: Any) -> None:
    rng = np.random.default_rng(12)
    x = rng.normal(size=201).astype(np.float32)
    y, z = rng.integers(2, 5, 201), rng.integers(-1, 2, 201).astype(np.int8)
    got = np.zeros(201, bool)
    library.mixed_masks(pointer(x), pointer(y), pointer(z), pointer(got), count(x))
    negative, three, positive = x < 0, y == 3, z > 0
    chosen = np.where(negative, three, positive == negative)
    assert np.array_equal(got, (chosen ^ positive) | (three & ~negative & positive))


# ---- floats --------------------------------------------------------------------------------------------------------


def float_values(dtype: np.dtype[Any]) -> Array:
    info = ml_dtypes.finfo(dtype)
    magnitudes = [0, 1, 0.5, 1.5, 2.5, 3, 0.1, 1 / 3, 1e4, np.inf, np.nan]
    magnitudes += [2.0**23, 2.0**23 - 0.5, 2.0**52, 2.0**52 - 0.5]
    magnitudes += [float(info.tiny), float(info.smallest_subnormal), float(info.max), 127.5, 128, 255.5, 32767.5]
    magnitudes += [2.0**k for k in (7, 8, 15, 16, 31, 32, 63, 64)]
    with np.errstate(all="ignore"):
        signed = np.array([*magnitudes, *(-m for m in magnitudes)], np.float64).astype(dtype)
        down, up = (np.nextafter(signed, dtype.type(end)) for end in (-np.inf, np.inf))
    return np.concatenate([signed, down, up])


def float_pairs(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    values = float_values(dtype)
    rng = np.random.default_rng(5)
    bits = f"u{dtype.itemsize}"
    a, b = (rng.integers(0, np.iinfo(bits).max, 20000, bits, endpoint=True).view(dtype) for _ in range(2))
    c, d = (rng.uniform(-100, 100, 20000).astype(dtype) for _ in range(2))
    grid_a, grid_b = np.meshgrid(values, values)
    return np.concatenate([grid_a.ravel(), a, c]), np.concatenate([grid_b.ravel(), b, d])


def maximum(a: Array, b: Array) -> Array:
    larger = np.maximum(a, b)
    return np.where((a == 0) & (b == 0), a + b, larger)  # +0 unless both are -0


FLOAT_MEANING: dict[str, Callable[[Array, Array], Array]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "mod": np.mod,
    "max": maximum,
    "less": operator.lt,
    "equal": operator.eq,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: np.abs(a),
    "sqrt": lambda a, b: np.sqrt(a),
    "recip": lambda a, b: a.dtype.type(1) / a,
    "round_even": lambda a, b: np.rint(a),
    "floor": lambda a, b: np.floor(a),
    "ceil": lambda a, b: np.ceil(a),
    "trunc": lambda a, b: np.trunc(a),
    "lesser": lambda a, b: np.where(a < b, a, b),
    "greater": lambda a, b: np.where(a < b, b, a),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOAT_MEANING)
def test_floats_have_numpy_s_bits(library: Any, name: str, dtype: np.dtype[Any]) -> None:
    a, b = float_pairs(dtype)
    with np.errstate(all="ignore"):
        expected = FLOAT_MEANING[name](a, b)
    got = apply(library, name, a, b)
    if not same_bits(got, expected):
        at = int(np.flatnonzero((got != expected) | (np.signbit(got) != np.signbit(expected)))[0])
        pytest.fail(f"{name}({a[at]!r}, {b[at]!r}) = {got[at]!r}, not {expected[at]!r}")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fused_multiply_add_rounds_once_where_it_says_so(library: Any, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.uniform(-2, 2, 500).astype(dtype) for _ in range(2))
    c = (-(a * b) * rng.choice([0.5, 1, 1.5], 500)).astype(dtype)
    got = np.empty_like(a)
    getattr(library, f"fma_f{8 * dtype.itemsize}")(pointer(a), pointer(b), pointer(c), pointer(got), count(a))
    if library.fused():
        terms = zip(*(v.tolist() for v in (a, b, c)), strict=True)
        exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in terms]
        expected = np.array([nearest(value, dtype) for value in exact], dtype)
    else:
        expected = a * b + c
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_multiply_add_rounds_once_on_every_target(library: ctypes.CDLL, dtype: np.dtype[Any]) -> None:
    """Special values in every pair, sums that cancel, and sums close to the middle between two floats."""
    rng = np.random.default_rng(8)
    special = float_values(dtype)
    a, b = (rng.choice(special, 4000) for _ in range(2))
    c, d = (rng.uniform(-2, 2, 4000).astype(dtype) for _ in range(2))
    scale = (2.0 ** rng.integers(-80, 80, 4000)).astype(dtype)
    with np.errstate(all="ignore"):
        cancelling = (-(c * d) * rng.choice([0.5, 1, 1.5], 4000)).astype(dtype)
        x, y = np.concatenate([a, c, c * scale, c]), np.concatenate([b, d, d, c])
        z = np.concatenate([rng.choice(special, 4000), cancelling, d, -(c * c)]).astype(dtype)
    got = np.empty_like(x)
    getattr(library, f"multiply_add_f{8 * dtype.itemsize}")(pointer(x), pointer(y), pointer(z), pointer(got), count(x))
    with np.errstate(all="ignore"):
        expected = multiply_add(x, y, z)
    assert same_bits(got, expected)


def nearest(value: Fraction, dtype: np.dtype[Any]) -> float:
    """A rational rounded once, to nearest even (no overflow, no subnormal results)."""
    if value == 0 or dtype == np.float64:
        return float(value)
    last_place = Fraction(2) ** (math.frexp(float(value))[1] - np.finfo(dtype).nmant - 1)
    return float(round(value / last_place) * last_place)


# ---- casts ---------------------------------------------------------------------------------------------------------


def cast(library: Any, x: Array, to: np.dtype[Any]) -> Array:
    result = np.zeros(x.shape, to)
    library.cast_array(number(x.dtype), number(to), pointer(x), pointer(result), count(x))
    return result


def cast_inputs(dtype: np.dtype[Any]) -> Array:
    rng = np.random.default_rng(7)
    if dtype == BOOL:
        return np.array([0, 1] * 17, bool)
    if dtype.kind in "iu":
        return np.concatenate([integer_pairs(dtype)[0], half_ties(dtype)])
    if dtype.itemsize == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype)
    values = float_values(dtype)
    patterns = rng.integers(0, np.iinfo(f"u{dtype.itemsize}").max, 4000, f"u{dtype.itemsize}").view(dtype)
    usual = (rng.uniform(-1, 1, 4000) * 2.0 ** rng.integers(-26, 66, 4000)).astype(dtype)
    return np.concatenate([values, patterns, usual, half_ties(dtype)])


def half_ties(dtype: np.dtype[Any]) -> Array:
    """Numbers halfway between neighbours of the half types, and the next ones to either side."""
    ties = np.concatenate([halfway(half)[::23] for half in (FLOAT16, BFLOAT16)]).astype(np.float64)
    if dtype.kind in "iu":
        whole = np.floor(ties[ties < float(np.iinfo(dtype).max) / 2]).astype(dtype)
        return np.concatenate([whole, whole + dtype.type(1), np.maximum(whole, 1) - dtype.type(1)])
    with np.errstate(over="ignore"):
        signed = np.concatenate([ties, -ties]).astype(dtype)
    return np.concatenate([signed, *(np.nextafter(signed, dtype.type(end)) for end in (-np.inf, np.inf))])


def halves(dtype: np.dtype[Any]) -> Array:
    """All finite numbers of a half type from 0 up."""
    infinity = int(np.array(np.inf, dtype).view(np.uint16))
    return np.arange(infinity, dtype=np.uint16).view(dtype).astype(np.float64).astype(np.longdouble)


def halfway(dtype: np.dtype[Any]) -> Array:
    """The midpoints of neighbouring numbers, the last one being where rounding to infinity begins."""
    finite = halves(dtype)
    return (finite + np.append(finite[1:], 2 * finite[-1] - finite[-2])) / 2


def round_to_half(x: Array, dtype: np.dtype[Any]) -> Array:
    """The nearest number of a half type, ties to even, by a search among all (80-bit floats hold every input)."""
    exact, middles = x.astype(np.longdouble), halfway(dtype)
    index = np.searchsorted(middles, np.abs(exact))  # the number of midpoints below
    tie = middles[np.minimum(index, middles.size - 1)] == np.abs(exact)
    index += tie & (index % 2 == 1)
    magnitude = np.append(halves(dtype), np.inf)[np.minimum(index, middles.size)]
    return np.where(np.isnan(exact), exact, np.copysign(magnitude, exact)).astype(np.float64).astype(dtype)


def cast_meaning(x: Array, to: np.dtype[Any]) -> Array:
    """convert<to>, from numpy where numpy is exact and total, spelled out elsewhere."""
    source = x.dtype
    if to == source:
        return x
    if to == BOOL:
        return x.astype(np.float64) != 0 if source.itemsize == 2 and source.kind not in "iu" else x != 0
    if source == BOOL:
        return x.astype(np.float32).astype(to)
    if source in (FLOAT16, BFLOAT16):
        x = x.astype(np.float32)
    if to in (FLOAT16, BFLOAT16):
        return round_to_half(x, to)
    if x.dtype.kind == "f" and to.kind in "iu":
        bounds = (np.longdouble(int(v)) for v in (np.iinfo(to).min, np.iinfo(to).max))
        whole = np.clip(np.trunc(x.astype(np.longdouble)), *bounds)
        return np.where(np.isnan(whole), 0, whole).astype(to)
    return x.astype(to)


@pytest.mark.parametrize("source", TYPES, ids=str)
def test_casts_round_once_and_are_total(library: Any, source: np.dtype[Any], capfd: pytest.CaptureFixture[str]) -> None:
    x = cast_inputs(source)
    for to in TYPES:
        with np.errstate(all="ignore"):
            expected = cast_meaning(x, to)
        got = cast(library, x, to)
        if to in (FLOAT16, BFLOAT16):
            same = same_halves(got, expected)
        else:
            same = (got == expected) | ((got != got) & (expected != expected))
        assert same.all(), (source, to, [(x[i], got[i], expected[i]) for i in np.flatnonzero(~same)[:5]])
    assert "runtime error" not in capfd.readouterr().err


def same_halves(got: Array, expected: Array) -> Array:
    """Equal bits, signed zeros included, except that NaN need only be NaN."""
    wide, wanted = got.astype(np.float32), expected.astype(np.float32)
    return (got.view(np.uint16) == expected.view(np.uint16)) | (np.isnan(wide) & np.isnan(wanted))


QUANTISED = [
    ("uint8", 0), ("uint8", 131), ("uint8", 255), ("int8", 0), ("int8", -128), ("int8", 127), ("uint16", 0),
    ("uint16", 65535), ("int16", -3),
]  # fmt: skip


@pytest.mark.parametrize("code", range(len(QUANTISED)), ids=lambda code: "{}, zero at {}".format(*QUANTISED[code]))
def test_quantising_rounds_to_nearest_even_and_saturates(
    library: Any, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    name, zero = QUANTISED[code]
    to = np.dtype(name)
    halves = np.arange(-140_000, 140_000, dtype=np.float32) / 2  # every tie among them
    beside = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
    values = cast_inputs(np.dtype(np.float32))
    x = np.concatenate([values, halves, *beside, values])  # in either half
    whole, number = np.zeros(x.shape, to), np.zeros_like(x)
    library.quantise_array(ctypes.c_int(code), pointer(x), pointer(whole), pointer(number), count(x))
    with np.errstate(all="ignore"):
        expected = cast_meaning(np.rint(x) + np.float32(zero), to)
    np.testing.assert_array_equal(whole, expected)
    assert same_bits(number, (expected.astype(np.int32) - zero).astype(np.float32))
    assert "runtime error" not in capfd.readouterr().err


# ---- memory --------------------------------------------------------------------------------------------------------


def sample(dtype: np.dtype[Any], size: int) -> Array:
    rng = np.random.default_rng(8)
    if dtype == BOOL:
        return rng.integers(0, 2, size).astype(bool)
    return rng.integers(0, 100, size).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_partial_moves_touch_their_lanes_only(library: Any, dtype: np.dtype[Any]) -> None:
    """Both arrays end at the end of a page behind which nothing is mapped, and what lies before the output stays."""
    page = mmap.PAGESIZE
    source, target = (fenced(np.zeros(page, np.uint8), "end") for _ in range(2))
    for n in range(library.lanes + 1):
        values = sample(dtype, n).view(np.uint8)
        start = page - values.size
        source[start:], target[:] = values, 0xAB
        library.copy_partial(number(dtype), pointer(source, start), pointer(target, start), ctypes.c_int64(n))
        assert (target[:start] == 0xAB).all() and np.array_equal(target[start:], values)
    for n in (-1, -(2**62)):
        library.copy_partial(number(dtype), pointer(source, page), pointer(target, page), ctypes.c_int64(n))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_masked_and_strided_moves(library: Any, dtype: np.dtype[Any]) -> None:
    lanes, size = library.lanes, library.lanes * 8
    x, valid = sample(dtype, size), sample(BOOL, size)
    masked, strided, chosen = np.zeros(size, dtype), np.zeros(3 * size, dtype), np.zeros(size, dtype)
    library.move_array(
        number(dtype), pointer(x), pointer(valid), pointer(masked), pointer(strided), pointer(chosen), count(x)
    )
    assert np.array_equal(masked, np.where(valid, x, np.zeros_like(x)))
    assert np.array_equal(strided[::3], x.reshape(-1, lanes)[:, ::-1].ravel())
    assert not strided[1::3].any() and not strided[2::3].any()
    assert np.array_equal(chosen, np.where(valid, x, np.tile(x[:lanes], 8)))


@pytest.mark.parametrize(("way", "group", "apart"), [(0, 1, 2), (1, 1, 4), (2, 2, 6), (3, 4, 8)])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_stores_apart_leave_what_is_between(
    library: Any, dtype: np.dtype[Any], way: int, group: int, apart: int
) -> None:
    size = library.lanes * 4
    if library.lanes % group:
        return  # no vector holds a group
    x, found = sample(dtype, size), fenced(sample(dtype, (size // group - 1) * apart + group), "end")
    places = np.arange(size)
    expected = found.copy()
    expected[places // group * apart + places % group] = x
    library.spread_array(number(dtype), way, pointer(x), pointer(found), count(x))
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("way", range(6))
@pytest.mark.parametrize("twice", [False, True], ids=["", "two registers"])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_stores_may_leave_out_subnormal_numbers_alone(
    library: Any, dtype: np.dtype[Any], twice: bool, way: int
) -> None:
    smallest = np.float32(ml_dtypes.finfo(dtype).smallest_normal)
    edges = smallest * np.array([0, 1e-3, 0.5, 1 - 2**-7, 1 - 2**-12, 1, 1 + 2**-9, 3], np.float32)
    special = np.array([np.inf, np.nan, 65519, 65520, 3.4e38], np.float32)
    bits = np.random.default_rng(4).integers(0, 1 << 32, 1 << 12, np.uint32).view(np.float32)
    x = np.concatenate([edges, -edges, special, -special, bits])
    x = x[: x.size // (2 * library.lanes) * 2 * library.lanes]
    found = np.ones(x.size, dtype)
    library.store_normal_array(number(dtype), twice, way, pointer(x), pointer(found), count(x))
    with np.errstate(over="ignore", invalid="ignore"):
        exact = x.astype(dtype)
    left_out = (np.abs(x) < smallest) & (found == 0) if dtype == BFLOAT16 else np.zeros(x.size, bool)
    kept = ~left_out
    assert same_bits(found[kept].astype(np.float32), exact[kept].astype(np.float32))
    assert (np.signbit(found[left_out]) == np.signbit(x[left_out])).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_become_columns(library: Any, dtype: np.dtype[Any]) -> None:
    """Of every number of rows and elements of them, which end where memory does."""
    lanes, stride = library.lanes, library.lanes + 3
    sizes = sorted({0, 1, lanes // 2, lanes - 1, lanes})
    for rows, size in [(-1, lanes), *itertools.product(sizes, sizes)]:
        height = lanes if rows < 0 else rows
        block = fenced(sample(dtype, max(height - 1, 0) * stride + (size if height else 0)), "end")
        found = np.ones((lanes, lanes), dtype)
        library.turn_rows(number(dtype), pointer(block), *map(ctypes.c_int64, (stride, rows, size)), pointer(found))
        expected = np.zeros((lanes, lanes), dtype)
        for row in range(height):
            expected[:size, row] = block[row * stride : row * stride + size]
        assert np.array_equal(found, expected), (rows, size)


@pytest.mark.parametrize("index_type", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gather_reads_valid_lanes_only(library: Any, dtype: np.dtype[Any], index_type: type) -> None:
    size = library.lanes * 6 + 3
    table, valid = sample(dtype, 50), sample(BOOL, size)
    index = np.random.default_rng(9).integers(-20, 30, size).astype(index_type)
    index[~valid] = np.iinfo(np.int32).max  # would fault
    middle = pointer(table, 20 * dtype.itemsize)
    got = np.zeros(size, dtype)
    wide = ctypes.c_int(index_type is np.int64)
    library.gather_array(number(dtype), wide, middle, pointer(index), pointer(valid), pointer(got), count(index))
    expected = np.zeros(size, dtype)
    expected[valid] = table[index[valid] + 20]
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_scatter_leaves_the_last_of_equal_indices(library: Any, dtype: np.dtype[Any]) -> None:
    size = library.lanes * 6 + 3
    x, valid = sample(dtype, size), sample(BOOL, size)
    index = np.random.default_rng(10).integers(0, 12, size)
    table, expected = np.zeros(12, dtype), np.zeros(12, dtype)
    library.scatter_array(number(dtype), pointer(table), pointer(index), pointer(valid), pointer(x), count(x))
    for at, value, ok in zip(index, x, valid, strict=True):
        if ok:
            expected[at] = value
    assert np.array_equal(table, expected)


# ---- reductions ----------------------------------------------------------------------------------------------------


def add_in_a_tree(row: Array) -> Any:
    while row.size > 1:
        half = row.size // 2
        row = row[:half] + row[half:]
    return row[0]


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_reductions_across_lanes(library: Any, dtype: np.dtype[Any]) -> None:
    lanes = library.lanes
    if dtype.kind == "f":
        x = np.random.default_rng(11).normal(size=40 * lanes).astype(dtype)
        x[5 * lanes + 1] = np.nan
    else:
        x = integer_pairs(dtype)[0][-40 * lanes :].copy()
    rows = x.reshape(40, lanes)
    total, largest = np.zeros(40, dtype), np.zeros(40, dtype)
    library.reduce_array(number(dtype), pointer(x), pointer(total), pointer(largest), count(x))
    with np.errstate(all="ignore"):
        assert same_bits(total, np.array([add_in_a_tree(row) for row in rows], dtype))
    assert same_bits(largest, rows.max(axis=1))
