"""The sorts of the runtime headers: by one thread of a CPU, and by a block of threads, which is emulated."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from luminal.core import target as targets
from tests.vector_support import build, pointer

Array = np.ndarray[Any, Any]
LENGTHS = (0, 1, 2, 3, 7, 24, 25, 31, 64, 65, 1000, 1024, 1025, 4096)


def middle_first(n: int) -> Array:
    """Numbers of which the middle and its neighbours are the largest: pivots taken there divide badly."""
    x = np.arange(n)
    for size in range(n, 1, -1):
        x[[size // 2, size - 1]] = x[[size - 1, size // 2]]
    return x


def random(n: int, below: int) -> Array:
    return np.random.default_rng(n).integers(-below, below, n)


ORDERS: dict[str, Callable[[int], Array]] = {
    "random": lambda n: random(n, 2**62),
    "few": lambda n: random(n, 3),
    "mostly one": lambda n: np.where(random(n, 100) < 90, 7, random(n, 99)),
    "equal": lambda n: np.zeros(n, np.int64),
    "ascending": np.arange,
    "descending": lambda n: np.arange(n)[::-1].copy(),
    "up and down": lambda n: np.minimum(np.arange(n), np.arange(n)[::-1]),
    "middle first": middle_first,
    "ends": lambda n: np.where(random(n, 9) < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = build("sort.cpp", targets.detect(), tmp_path_factory.mktemp("sort"), "-O1", "-pthread")
    library.comparisons_of_sort.restype = library.comparisons_of_keep.restype = ctypes.c_int64
    return library


@pytest.mark.parametrize("name", ORDERS)
def test_any_length_in_any_order(library: Any, name: str) -> None:
    for length in LENGTHS:
        x = np.ascontiguousarray(ORDERS[name](length), np.int64)
        expected = np.sort(x)
        bytes_, sorted_bytes = x.astype(np.uint8), np.sort(x.astype(np.uint8))
        library.sort_i64(pointer(x), length)
        np.testing.assert_array_equal(x, expected)
        library.sort_u8(pointer(bytes_), length)
        np.testing.assert_array_equal(bytes_, sorted_bytes)


@pytest.mark.parametrize("name", ORDERS)
def test_no_order_takes_more_than_n_log_n(library: Any, name: str) -> None:
    for length in (1000, 30_000, 300_000):
        x = np.ascontiguousarray(ORDERS[name](length), np.int64)
        kept = np.full(50, np.iinfo(np.int64).max)
        least = np.sort(x)[:50]
        assert library.comparisons_of_keep(pointer(x), length, pointer(kept), 50) < 2 * length * math.log2(50)
        np.testing.assert_array_equal(kept, least)
        assert library.comparisons_of_sort(pointer(x), length) < 4 * length * math.log2(length)


@pytest.mark.parametrize("name", ORDERS)
def test_threads_of_a_block(library: Any, name: str) -> None:
    for length in (0, 1, 2, 5, 31, 32, 33, 100, 127, 128, 200):
        for threads in (1, 32, 96):
            x = np.ascontiguousarray(ORDERS[name](length), np.int64)
            expected = np.sort(x)
            library.block_sort(pointer(x), length, threads)
            np.testing.assert_array_equal(x, expected)
