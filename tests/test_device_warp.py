"""What the threads of a block do together, under emulation: reductions, copies, tiles, matrix fragments."""

import ctypes
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from luminal.core import target as targets
from tests.vector_support import INCLUDE, build, pointer, same_bits

Array = np.ndarray[Any, Any]

LANES, THREADS = 32, 96


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build("device_warp.cpp", targets.detect(), tmp_path_factory.mktemp("warp"), "-O1", "-pthread")


# ---- reductions ----------------------------------------------------------------------------------------------------


def butterfly(x: Array) -> Array:
    """The sum of 32 lanes as the butterfly adds it: the distance is halved in each step."""
    for distance in (16, 8, 4, 2, 1):
        x = x + x[np.arange(LANES) ^ distance]
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_reductions_are_uniform_and_in_a_fixed_order(library: Any, dtype: type) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-(2**62), 2**62, THREADS) if dtype is np.int64 else rng.normal(size=THREADS).astype(dtype)
    results = [np.zeros(THREADS, dtype) for _ in range(4)]
    name = f"reduce_{np.dtype(dtype).kind}{8 * np.dtype(dtype).itemsize}"
    getattr(library, name)(pointer(x), *map(pointer, results))
    warps = np.concatenate([butterfly(warp) for warp in x.reshape(-1, LANES)])
    total = warps[0]
    for warp in warps[LANES::LANES]:
        total = total + warp
    largest = np.repeat(x.reshape(-1, LANES).max(axis=1), LANES)
    expected = [warps, largest, np.full(THREADS, total), np.full(THREADS, x.max())]
    assert all(same_bits(got, wanted) for got, wanted in zip(results, expected, strict=True))


def test_a_power_of_two_of_warps_adds_as_lanes_do(library: Any) -> None:
    x = np.random.default_rng(2).normal(size=4 * LANES).astype(np.float32)
    results = [np.zeros(4 * LANES, np.float32) for _ in range(4)]
    library.reduce_four(pointer(x), *map(pointer, results))
    a, b, c, d = (butterfly(warp)[0] for warp in x.reshape(-1, LANES))
    assert same_bits(results[2], np.full(4 * LANES, (a + c) + (b + d)))
    assert same_bits(results[3], np.full(4 * LANES, x.max()))


def test_a_nan_reaches_every_thread(library: Any) -> None:
    x = np.arange(THREADS, dtype=np.float32)
    x[40] = np.nan
    warp_sum, warp_max, total, largest = (np.zeros(THREADS, np.float32) for _ in range(4))
    library.reduce_f32(*map(pointer, (x, warp_sum, warp_max, total, largest)))
    assert np.isnan(total).all() and np.isnan(largest).all()
    assert np.array_equal(np.isnan(warp_max), np.arange(THREADS) // LANES == 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.bool_])
def test_a_shuffle_moves_the_bits_of_every_type(library: Any, dtype: Any) -> None:
    kind = np.dtype(dtype)
    name = "shuffle_bool" if kind.kind == "b" else f"shuffle_{kind.kind}{8 * kind.itemsize}"
    x = (np.arange(LANES) % 3 - 1).astype(kind)
    for mask in (1, 5, 16, 31):
        got = np.zeros_like(x)
        getattr(library, name)(pointer(x), ctypes.c_int(mask), pointer(got))
        assert np.array_equal(got, x[np.arange(LANES) ^ mask])


def test_atomics_and_the_smallest_status(library: Any) -> None:
    x = np.random.default_rng(2).integers(-50, 50, THREADS).astype(np.int32)
    codes = np.where(np.arange(THREADS) % 5 == 0, 3, 0).astype(np.int32)
    for code in (3, 2):
        codes[70] = code
        total, largest, status = (np.full(1, start, np.int32) for start in (7, -1000, 9))
        library.meet(*map(pointer, (x, codes, total, largest, status)))
        assert (total[0], largest[0], status[0]) == (7 + x.sum(), x.max(), code)


def test_copies_arrive_when_their_group_is_waited_for(library: Any) -> None:
    source = np.arange(1, 13, dtype=np.float32)
    none, first, both = (np.zeros(12, np.float32) for _ in range(3))
    library.copy_groups(*map(pointer, (source, none, first, both)))
    assert not none[:8].any()
    assert np.array_equal(first[:8], [1, 2, 3, 4, 0, 0, 0, 0])
    assert np.array_equal(both, [1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0])


# ---- tiles ---------------------------------------------------------------------------------------------------------


def strides(rows: int, columns: int, along: int, padding: int = 0) -> tuple[int, int]:
    """The strides of a matrix whose axis ``along`` runs along memory, its lines padded."""
    return (1, rows + padding) if along == 0 else (columns + padding, 1)


def laid_out(matrix: Array, steps: tuple[int, int]) -> Array:
    """``matrix`` in memory with these strides (in elements), at an aligned address."""
    size = 1 + sum((extent - 1) * step for extent, step in zip(matrix.shape, steps, strict=True))
    memory = np.zeros(size + 64, matrix.dtype)
    memory = memory[(-memory.ctypes.data % 64) // matrix.itemsize :]
    memory[np.add.outer(np.arange(matrix.shape[0]) * steps[0], np.arange(matrix.shape[1]) * steps[1])] = matrix
    return memory


@pytest.mark.parametrize("along", [(0, 1), (1, 0), (0, 0)])
@pytest.mark.parametrize("shape", [(8, 8, "tile_8x8"), (8, 4, "tile_8x4"), (4, 4, "tile_4x4")])
def test_a_tile_adds_products_in_order(library: Any, shape: tuple[int, int, str], along: tuple[int, int]) -> None:
    rows, columns, name = shape
    depth, rng = 5, np.random.default_rng(3)
    a, b = rng.normal(size=(rows, depth)).astype(np.float32), rng.normal(size=(depth, columns)).astype(np.float32)
    start = rng.normal(size=(rows, columns)).astype(np.float32)
    a_steps, b_steps = strides(rows, depth, along[0]), strides(depth, columns, along[1])
    got = start.copy()
    getattr(library, name)(
        pointer(laid_out(a, a_steps)), *map(ctypes.c_int, a_steps), pointer(laid_out(b, b_steps)),
        *map(ctypes.c_int, b_steps), pointer(got), ctypes.c_int(depth),
    )  # fmt: skip
    expected = start
    for k in range(depth):  # a product of floats is exact in float64, and the sum there is far more exact than float32
        expected = (expected + np.outer(a[:, k].astype(np.float64), b[k])).astype(np.float32)
    assert np.array_equal(got, expected)


def test_a_tile_converts_what_it_reads(library: Any) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(8, 6)).astype(np.float16), rng.normal(size=(6, 8)).astype(np.float16)
    got = np.zeros((8, 8), np.float32)
    ints = [ctypes.c_int(v) for v in (1, 8, 8, 1)]
    library.tile_8x8_float16(
        pointer(laid_out(a, (1, 8))), *ints[:2], pointer(laid_out(b, (8, 1))), *ints[2:], pointer(got), ctypes.c_int(6)
    )
    assert np.allclose(got, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-6, atol=1e-6)


# ---- fragments -----------------------------------------------------------------------------------------------------


def mma_place(lane: int, element: int) -> tuple[int, int]:
    """PTX ISA: row = groupID for c0 and c1, groupID + 8 for c2 and c3; column = threadID_in_group * 2 + (i & 1)."""
    group, thread = lane >> 2, lane % 4
    return (group if element < 2 else group + 8), thread * 2 + (element & 1)


def simdgroup_place(lane: int, element: int) -> tuple[int, int]:
    """As found on Apple's GPUs, by the lane's bits: rows 4 2 1 are bits 4 2 1, columns 4 2 are bits 3 0."""
    bit = [lane >> n & 1 for n in range(5)]
    return 4 * bit[4] + 2 * bit[2] + bit[1], 4 * bit[3] + 2 * bit[0] + element


@dataclass(frozen=True)
class Fragment:
    """A fragment by its documentation: extents, the type of operands, and where a lane's sums are."""

    name: str
    dtype: Any
    shape: tuple[int, int, int]  # rows, columns, depth
    place: Callable[[int, int], tuple[int, int]]

    @property
    def elements(self) -> int:
        return self.shape[0] * self.shape[1] // LANES


FRAGMENTS = [
    Fragment("m16n8k16_float16", np.float16, (16, 8, 16), mma_place),
    Fragment("m16n8k16_bfloat16", ml_dtypes.bfloat16, (16, 8, 16), mma_place),
    Fragment("m16n8k8_tf32", np.float32, (16, 8, 8), mma_place),
    Fragment("simdgroup8x8_float", np.float32, (8, 8, 8), simdgroup_place),
    Fragment("simdgroup8x8_float16", np.float16, (8, 8, 8), simdgroup_place),
    Fragment("simdgroup8x8_bfloat16", ml_dtypes.bfloat16, (8, 8, 8), simdgroup_place),
]
every_fragment = pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda fragment: fragment.name)


@every_fragment
def test_every_element_has_one_place(library: Any, fragment: Fragment) -> None:
    rows, columns = (np.zeros((LANES, fragment.elements), np.int32) for _ in range(2))
    getattr(library, f"{fragment.name}_places")(pointer(rows), pointer(columns))
    places = [(int(r), int(c)) for r, c in zip(rows.ravel(), columns.ravel(), strict=True)]
    assert places == [fragment.place(lane, e) for lane in range(LANES) for e in range(fragment.elements)]
    assert sorted(places) == [(r, c) for r in range(fragment.shape[0]) for c in range(fragment.shape[1])]


def product(library: Any, fragment: Fragment, along: tuple[int, int], padding: int = 8) -> tuple[Array, Array]:
    """A product of small integers (no sum of which rounds) by a warp, and by numpy."""
    rows, columns, terms = fragment.shape
    m, n, depth = 2 * rows, 3 * columns, 2 * terms
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-8, 9, shape).astype(fragment.dtype) for shape in ((m, depth), (depth, n)))
    a_steps, b_steps = strides(m, depth, along[0], padding), strides(depth, n, along[1], padding)
    held = np.zeros((LANES, 2, 3, fragment.elements), np.float32)
    getattr(library, fragment.name)(
        pointer(laid_out(a, a_steps)), *map(ctypes.c_int, a_steps), pointer(laid_out(b, b_steps)),
        *map(ctypes.c_int, b_steps), pointer(held), ctypes.c_int(depth),
    )  # fmt: skip
    got = np.full((m, n), np.nan, np.float32)
    for lane in range(LANES):
        for e in range(fragment.elements):
            row, column = fragment.place(lane, e)
            got[row::rows, column::columns] = held[lane, :, :, e]
    return got, a.astype(np.float32) @ b.astype(np.float32)


@every_fragment
@pytest.mark.parametrize("along", [(1, 0), (0, 1), (1, 1), (0, 0)])
def test_a_product_through_fragments_is_numpy_s(library: Any, fragment: Fragment, along: tuple[int, int]) -> None:
    got, expected = product(library, fragment, along)
    assert np.array_equal(got, expected)


def scaled_product(
    library: Any, name: str, wide: int, along: tuple[int, int], padding: int = 16
) -> tuple[Array, Array]:
    """The scaled product of a block of 64 signed bytes by a warp, and by numpy: exact, as scales are powers of two."""
    m, n, depth, rng = 32, 8 * wide, 64, np.random.default_rng(6)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, depth), (depth, n)))
    a[0], b[:, 0], a[1], b[:, 1] = -128, -128, 127, 127
    left, right = (np.exp2(rng.integers(-3, 4, size)).astype(np.float32) for size in (m, n))
    a_steps, b_steps = strides(m, depth, along[0], padding), strides(depth, n, along[1], padding)
    held = np.ones((LANES, 2, wide, 4), np.float32)
    getattr(library, f"{name}_{wide}")(
        pointer(laid_out(a, a_steps)), *map(ctypes.c_int, a_steps), pointer(laid_out(b, b_steps)),
        *map(ctypes.c_int, b_steps), pointer(left), pointer(right), pointer(held),
    )  # fmt: skip
    got = np.full((m, n), np.nan, np.float32)
    for lane in range(LANES):
        for e in range(4):
            row, column = mma_place(lane, e)
            got[row::16, column::8] = held[lane, :, :, e]
    return got, 1 + np.outer(left, right) * (a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("along", [(1, 0), (0, 1), (1, 1), (0, 0)])
@pytest.mark.parametrize("wide", [3, 4])
@pytest.mark.parametrize("name", ["m16n8k32_int8", "m16n8k16_int8"])
def test_a_scaled_product_of_bytes_is_numpy_s(library: Any, name: str, wide: int, along: tuple[int, int]) -> None:
    got, expected = scaled_product(library, name, wide, along)
    assert np.array_equal(got, expected)


def test_an_infinite_scale_of_a_row_gives_nan(library: Any) -> None:
    a, b = np.ones((32, 64), np.int8), np.ones((64, 24), np.int8)
    left, right, held = np.ones(32, np.float32), np.ones(24, np.float32), np.zeros((LANES, 2, 3, 4), np.float32)
    left[0] = np.inf
    ints = [ctypes.c_int(v) for v in (64, 1, 24, 1)]
    library.m16n8k32_int8_3(
        pointer(laid_out(a, (64, 1))), *ints[:2], pointer(laid_out(b, (24, 1))), *ints[2:], pointer(left),
        pointer(right), pointer(held),
    )  # fmt: skip
    assert np.isnan(held[:4, 0, :, :2]).all() and np.isnan(held).sum() == 24


def test_tf32_rounds_operands_to_eleven_bits(library: Any) -> None:
    values = np.array([1 + 2.0**-11, 1 + 2.0**-12, -1 - 2.0**-11, np.inf, 3], np.float32)
    a, b = np.zeros((32, 8), np.float32), np.zeros((8, 24), np.float32)
    a[0, 0], b[0, : values.size] = 1, values
    held = np.zeros((LANES, 2, 3, 4), np.float32)
    ints = [ctypes.c_int(v) for v in (8, 1, 24, 1, 8)]
    library.m16n8k8_tf32(
        pointer(laid_out(a, (8, 1))), *ints[:2], pointer(laid_out(b, (24, 1))), *ints[2:4], pointer(held), ints[4]
    )
    row = {column: held[lane, 0, 0, e] for lane in range(4) for e in range(2) for column in [mma_place(lane, e)[1]]}
    assert [row[column] for column in range(values.size)] == [1 + 2.0**-10, 1, -1 - 2.0**-10, np.inf, 3]


SWAPS = [
    ("fragment_mma.hpp", "{0, 1, 0, 1, 8, 9, 8, 9}", "{0, 1, 0, 1, 9, 8, 8, 9}", "m16n8k16_bfloat16"),
    ("fragment_mma.hpp", "{0, 1, 8, 9}, 2", "{0, 8, 1, 9}, 2", "m16n8k16_float16"),
    ("fragment_mma.hpp", "{0, 8, 0, 8}", "{8, 0, 0, 8}", "m16n8k8_tf32"),
    ("fragment_simdgroup.hpp", "rows[32] = {0, 0, 1, 1,", "rows[32] = {0, 1, 0, 1,", "simdgroup8x8_float"),
    ("fragment_mma.hpp", "pair(corner + 8 * row, depth)", "pair(corner + 4 * row, depth)", "m16n8k16_bfloat16"),
]


SWAPPED_BYTES = [
    ("lane / 4 + 8 * (e / 4 % 2)", "lane / 4 + 8 * (e / 8)"),
    ("4 * (lane % 4) + e % 4 + 16 * (e / 4)", "4 * (lane % 4) + e % 4 + 8 * (e / 4)"),
    ("corner + w % 2 * 8 * row + w / 2 * 16 * depth", "corner + w / 2 * 8 * row + w % 2 * 16 * depth"),
]


@pytest.mark.parametrize(("right", "wrong"), SWAPPED_BYTES, ids=["rows of A", "terms of B", "loads of A"])
def test_a_swapped_lane_of_bytes_gives_another_product(right: str, wrong: str, tmp_path: Path) -> None:
    shutil.copytree(INCLUDE, tmp_path / "include")
    path = tmp_path / "include/luminal/device/fragment_mma_bytes.hpp"
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))
    swapped = build("device_warp.cpp", targets.detect(), tmp_path, "-O1", "-pthread", f"-I{tmp_path / 'include'}")
    got, expected = scaled_product(swapped, "m16n8k32_int8", 4, (1, 0))
    assert not np.array_equal(got, expected)


@pytest.mark.parametrize(("header", "right", "wrong", "name"), SWAPS, ids=[f"{s[3]}-{i}" for i, s in enumerate(SWAPS)])
def test_a_swapped_lane_gives_another_product(header: str, right: str, wrong: str, name: str, tmp_path: Path) -> None:
    shutil.copytree(INCLUDE, tmp_path / "include")
    path = tmp_path / "include/luminal/device" / header
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))
    swapped = build("device_warp.cpp", targets.detect(), tmp_path, "-O1", "-pthread", f"-I{tmp_path / 'include'}")
    fragment = next(fragment for fragment in FRAGMENTS if fragment.name == name)
    got, expected = product(swapped, fragment, (1, 0))
    assert not np.array_equal(got, expected)
