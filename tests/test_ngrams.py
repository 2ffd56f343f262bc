"""Counts of n-grams against counting them one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.core import interp, ir, types
from luminal.core import symbolic as sym
from luminal.core.decompose import ngrams

Array = np.ndarray[Any, Any]


def counted(x: Array, grams: dict[tuple[int, ...], int], size: int, sizes: range, skips: int) -> Array:
    found = np.zeros((len(x), size), np.int64)
    for row, skip, length in np.ndindex(len(x), skips + 1, max(sizes)):
        step, reach = skip + 1, length * (skip + 1) + 1
        if length + 1 not in sizes or (length == 0 and skip > 0):
            continue
        for start in range(x.shape[1] - reach + 1):
            position = grams.get(tuple(x[row, start : start + reach : step].tolist()))
            if position is not None:
                found[row, position] += 1
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999), shape=st.tuples(st.integers(0, 3), st.integers(0, 9)), low=st.integers(1, 2),
    more=st.integers(0, 2), skips=st.integers(0, 2),
)  # fmt: skip
def test_as_counting_one_by_one(seed: int, shape: tuple[int, int], low: int, more: int, skips: int) -> None:
    random = np.random.default_rng(seed)
    x = random.integers(-2, 3, shape).astype(np.int32)
    drawn = {tuple(random.integers(-2, 2, n).tolist()) for n in random.integers(1, 4, 9)}
    grams = {gram: int(random.integers(0, 5)) for gram in sorted(drawn)}
    sizes = range(low, low + more + 1)
    for length in (shape[1], sym.var("n", 0, 9)):
        node = ngrams.count(ir.input_("x", (shape[0], length), types.i32), grams, 5, sizes, skips)
        (found,) = interp.evaluate([node], {"x": x}, {"n": shape[1]})
        np.testing.assert_array_equal(found, counted(x, grams, 5, sizes, skips))
