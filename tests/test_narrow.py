"""Types of fewer than 16 bits in the runtime headers, against ``core.numerics``, for every instruction set and GPUs."""

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from luminal.core import numerics, types
from luminal.core import target as targets
from luminal.core.types import DType
from tests.vector_support import EVERY_TARGET, build, pointer

Array = np.ndarray[Any, Any]

# Numbered as in tests/native/narrow.cpp.
NARROW = [
    types.f8e4m3fn, types.f8e4m3fnuz, types.f8e5m2, types.f8e5m2fnuz, types.f8e8m0, types.f4e2m1,
    types.i4, types.i2, types.u4, types.u2,
]  # fmt: skip
OTHERS = [
    types.f32, types.f64, types.f16, types.bf16, types.i8, types.u8, types.i32, types.i64, types.u64, types.bool_,
]  # fmt: skip
FLOATS = [dtype for dtype in NARROW if dtype.is_float]

CHECKED = pytest.param("checked", id="scalar")
DEVICE = pytest.param("device", id="device")


@pytest.fixture(scope="module", params=[*EVERY_TARGET, CHECKED, DEVICE])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As many lanes as a register has floats; scalars and GPUs with every check of undefined behaviour."""
    known = isinstance(request.param, targets.Target)
    target = request.param if known else targets.X86_64
    lanes = target.register_bytes // 4 if known else {"checked": 1, "device": 4}[request.param]
    flags = [f"-DLANES={lanes}", "-O1"] + ["-DDEVICE"] * (request.param == "device")
    flags += [] if known else ["-fsanitize=undefined,float-cast-overflow"]
    library = build("narrow.cpp", target, tmp_path_factory.mktemp("narrow"), *flags)
    library.lanes = lanes
    return library


def cast(library: Any, narrow: DType, other: DType, x: Array, *, back: bool) -> Array:
    """``x`` as ``narrow``, or, where ``back``, as ``other``."""
    result = np.zeros(x.shape, (other if back else narrow).numpy)
    numbers = ctypes.c_int(NARROW.index(narrow)), ctypes.c_int(OTHERS.index(other)), ctypes.c_int(back)
    library.cast_array(*numbers, pointer(x), pointer(result), ctypes.c_int64(x.size))
    return result


def numbers(dtype: DType) -> Array:
    """Numbers of a type with more bits: all where that has 16 or fewer; else what 16 bits hold, the neighbours of what
    narrow types hold, where their rounding changes and where they end, and any bits."""
    if dtype.is_bool:
        return np.array([0, 1] * 17, bool)
    if dtype.bits <= 16:
        return np.arange(1 << dtype.bits, dtype=f"u{dtype.itemsize}").view(dtype.numpy)
    chosen = [numerics.convert(numbers(half), types.f64) for half in (types.f16, types.bf16)]
    for narrow in FLOATS:
        held = np.arange(1 << narrow.bits, dtype=np.uint8).view(narrow.numpy).astype(np.float64)
        held = np.unique(held[np.isfinite(held)])
        beyond = held[-1] + (held[-1] - held[-2]) / 2
        chosen += [held, (held[1:] + held[:-1]) / 2, np.array([beyond, -beyond])]
    edges = np.concatenate(chosen)
    any_bits = np.random.default_rng(5).integers(0, 2 ** (8 * dtype.itemsize) - 1, 4000, f"u{dtype.itemsize}")
    if dtype.is_integer:
        whole = numerics.convert(edges, dtype)
        one = dtype.numpy.type(1)
        return np.concatenate([whole, whole - one, whole + one, any_bits.view(dtype.numpy)])
    with np.errstate(all="ignore"):
        near = edges.astype(dtype.numpy)
        ends = [np.nextafter(near, dtype.numpy.type(end)) for end in (-np.inf, np.inf)]
    return np.concatenate([near, *ends, any_bits.view(dtype.numpy)])


def test_every_value_is_read_exactly(library: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Of every byte: what lies above the bits of a type does not count."""
    for narrow in NARROW:
        held = np.arange(256, dtype=np.uint8)
        alone = (held & ((1 << narrow.bits) - 1)).view(narrow.numpy)
        for other in OTHERS:
            found = cast(library, narrow, other, held.view(narrow.numpy), back=True)
            same(found, numerics.convert(alone, other), (narrow, other), alone)
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_every_value_is_rounded_once(library: Any, other: DType, capfd: pytest.CaptureFixture[str]) -> None:
    x = numbers(other)
    for narrow in NARROW:
        found = cast(library, narrow, other, x, back=False)
        same(found, numerics.convert(x, narrow), (other, narrow), x)
    assert "runtime error" not in capfd.readouterr().err


def same(found: Array, expected: Array, what: object, x: Array) -> None:
    """Equal bits, but that any NaN is as good as another."""
    differ = found.view(np.uint8).reshape(found.size, -1) != expected.view(np.uint8).reshape(found.size, -1)
    places = np.flatnonzero(differ.any(1) & ~(is_nan(found) & is_nan(expected)))
    assert not places.size, (what, [(x[i], found[i], expected[i]) for i in places[:8]])


def is_nan(x: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a NaN that signals
        return np.asarray(np.isnan(x.astype(np.float64)))


def test_elements_are_moved_bit_for_bit(library: Any) -> None:
    for narrow in NARROW:
        x = np.tile(np.arange(1 << narrow.bits, dtype=np.uint8), 256 // (1 << narrow.bits))
        clean = numerics.convert(numerics.convert(x.view(narrow.numpy), types.f32), narrow).view(np.uint8)
        valid = np.random.default_rng(6).integers(0, 2, 256).astype(bool)
        whole, masked, strided = (np.zeros(size, np.uint8) for size in (256, 256, 768))
        moved = map(pointer, (x, valid, whole, masked, strided))
        library.move_array(ctypes.c_int(NARROW.index(narrow)), *moved, ctypes.c_int64(256))
        assert np.array_equal(whole, clean), narrow
        assert np.array_equal(masked, np.where(valid, clean, 0)), narrow
        assert np.array_equal(strided[::3], clean.reshape(-1, library.lanes)[:, ::-1].ravel()), narrow
        assert not strided[1::3].any() and not strided[2::3].any()


def test_numpy_keeps_such_elements_one_to_a_byte() -> None:
    """What the C interface says of them is what arrays of ml_dtypes hold."""
    assert np.array([-1, 1, -8], ml_dtypes.int4).view(np.uint8).tolist() == [0xF, 1, 8]
    assert np.array([-1, 1, -2], ml_dtypes.int2).view(np.uint8).tolist() == [3, 1, 2]
    assert np.array([6, -0.5], ml_dtypes.float4_e2m1fn).view(np.uint8).tolist() == [7, 9]
