"""Tiles of Intel's Advanced Matrix Extensions: what their products are, on hardware or in the emulation of it."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.core import target as targets
from luminal.core.types import bf16
from tests import tiles, vector_support

Array = np.ndarray[Any, Any]

TARGET = targets.AVX512_AMX
BFLOAT16, BYTES = 0, 1
NORMAL = np.float32(2.0**-126)  # the smallest

pytestmark = [
    pytest.mark.skipif(bool(tiles.missing(TARGET)), reason=tiles.missing(TARGET)),
    pytest.mark.usefixtures("sums_as_spelled"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the emulator and of what it runs."""
    found = tmp_path_factory.mktemp("tiles")
    for source in ("tiles.cpp", "tiles_product.cpp"):
        vector_support.build(source, targets.X86_64, found)
    return found


@pytest.fixture(scope="module")
def library(folder: Path) -> Any:
    tiles.runnable(TARGET)
    return ctypes.CDLL(str(folder / "tiles_product.so"))


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import ctypes, mmap; ctypes.CDLL('./tiles.so').emulate_tiles()\n{script}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def shapes(*rows_and_bytes: tuple[int, int], palette: int = 1) -> Array:
    """The operand of ``ldtilecfg``: rows, and bytes of one, of the first tiles."""
    found = np.zeros(64, np.uint8)
    found[0] = palette
    for number, (rows, row_bytes) in enumerate(rows_and_bytes):
        found[16 + 2 * number], found[48 + number] = row_bytes, rows
    return found


def multiply(library: Any, shape: Array, sums: Array, a: Array, b: Array, kind: int) -> None:
    """Arrays of 16 rows of 64 bytes; ``sums`` changes, and what the tile had of ``a`` becomes zero."""
    assert all(x.nbytes == 1024 and x.flags.c_contiguous for x in (sums, a, b))
    library.multiply(*(x.ctypes.data_as(ctypes.c_void_p) for x in (shape, sums, a, b)), ctypes.c_int64(kind))


sizes = st.integers(1, 16)


@settings(deadline=None, max_examples=50)
@given(sizes, sizes, sizes, st.integers(0, 1000))
def test_products_of_bytes(library: Any, rows: int, columns: int, groups: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(0, 256, (16, 64), np.uint8), random.integers(-128, 128, (16, 16, 4), np.int8)
    sums = random.integers(-(2**31), 2**31, (16, 16)).astype(np.int32)
    expected = sums.copy()
    right = b[:groups, :columns].transpose(0, 2, 1).reshape(4 * groups, columns).astype(np.int32)
    expected[:rows, :columns] += a[:rows, : 4 * groups].astype(np.int32) @ right
    left = a.copy()
    left[:rows, : 4 * groups] = 0
    multiply(library, shapes((rows, 4 * columns), (rows, 4 * groups), (groups, 4 * columns)), sums, a, b, BYTES)
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(a, left)


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < NORMAL, np.copysign(np.float32(0), x), x)


@settings(deadline=None, max_examples=50)
@given(sizes, sizes, sizes, st.integers(0, 1000), st.sampled_from([0, -70]))
def test_products_of_bfloat16(library: Any, rows: int, columns: int, pairs: int, seed: int, exponent: int) -> None:
    """Even and odd terms are summed apart, and subnormal numbers count as zeros: products here, and sums."""
    random = np.random.default_rng(seed)
    whole, exponents = random.integers(-255, 256, (2, 16, 32)), random.integers(-2, 4, (2, 16, 32)) + exponent
    a, b = np.ldexp(whole.astype(np.float32), exponents).astype(bf16.numpy)
    sums = np.ldexp(random.standard_normal((16, 16)), 2 * exponent + 16).astype(np.float32)
    expected = sums.copy()
    halves = np.zeros((2, rows, columns), np.float32)
    for k in range(pairs):
        for half in range(2):
            left, right = a[:rows, 2 * k + half].astype(np.float32), b[k, half : 2 * columns : 2].astype(np.float32)
            halves[half] = flushed(halves[half] + left[:, None] * right)  # the product is exact
    total = flushed(halves[0] + halves[1])
    expected[:rows, :columns] = flushed(flushed(expected[:rows, :columns]) + total)
    multiply(library, shapes((rows, 4 * columns), (rows, 4 * pairs), (pairs, 4 * columns)), sums, a, b, BFLOAT16)
    np.testing.assert_array_equal(sums, expected)


def test_subnormal_operands_and_numbers_that_are_none(library: Any) -> None:
    a, b, sums = np.zeros((16, 32), bf16.numpy), np.zeros((16, 32), bf16.numpy), np.zeros((16, 16), np.float32)
    a[:5, 0] = [2.0**-127, np.inf, np.nan, -np.inf, 2.0**127]
    b[0, :6:2] = [2.0**126, 1, 0]
    sums[0, 1] = NORMAL / 2
    multiply(library, shapes((16, 64), (16, 64), (16, 64)), sums, a, b, BFLOAT16)
    large, nan = np.float32(2.0**127), np.nan
    expected = [[0, 0, 0], [np.inf, np.inf, nan], [nan, nan, nan], [-np.inf, -np.inf, nan], [np.inf, large, 0]]
    np.testing.assert_array_equal(sums[:5, :3], expected)


FULL = (16, 64)
FAULTS = {
    "a palette other than 1": shapes(FULL, FULL, FULL, palette=2),
    "more than 16 rows": shapes((17, 64), FULL, FULL),
    "rows of more than 64 bytes": shapes(FULL, (16, 68), FULL),
    "rows without bytes": shapes((16, 0), FULL, FULL),
    "a shape of a tile that there is not": shapes(*(FULL,) * 9),
    "used before ldtilecfg": shapes(palette=0),
    "without rows": shapes(FULL, FULL),
    "other rows than a has groups": shapes(FULL, (16, 60), FULL),
    "other rows than a": shapes((15, 64), FULL, FULL),
    "other columns than b": shapes(FULL, FULL, (16, 60)),
    "end within a group": shapes(FULL, (16, 62), FULL),
}


@pytest.mark.skipif(targets.supported(TARGET), reason="the processor has tiles")
@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_processor_refuses_aborts(fault: str, folder: Path) -> None:
    script = (
        "tiles = [ctypes.create_string_buffer(1024) for _ in range(3)]\n"
        f"ctypes.CDLL('./tiles_product.so').multiply({FAULTS[fault].tobytes()!r}, *tiles, ctypes.c_int64({BFLOAT16}))"
    )
    done = run(script, folder)
    assert done.returncode == -signal.SIGABRT and fault in done.stderr


@pytest.mark.skipif(targets.supported(TARGET), reason="the processor has tiles")
def test_other_illegal_instructions_stay_illegal(folder: Path) -> None:
    script = (
        "page = mmap.mmap(-1, 4096, prot=7); page.write(bytes([0x0f, 0x0b]))\n"
        "ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()"
    )
    assert run(script, folder).returncode == -signal.SIGILL
