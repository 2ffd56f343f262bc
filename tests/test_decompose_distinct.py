"""Distinct elements against numpy's, with and without an order, in rows, and with NaN."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.core import interp, ir
from luminal.core import symbolic as sym
from luminal.core.decompose.distinct import distinct
from luminal.core.errors import ShapeError
from luminal.core.types import f32
from tests.accuracy import Array, run


def found(x: Array, by_value: bool = True, nan_is_one: bool = False) -> tuple[Array, Array, Array]:
    """First places and numbers of occurrences of the distinct elements, and which of them every element is."""

    def parts(a: ir.Node) -> list[ir.Node]:
        result = distinct(a, by_value, nan_is_one)
        return [result.count, result.first, result.times, result.number]

    count, first, times, number = run(parts, x)
    assert not first[count:].any() and not times[count:].any()
    return first[:count], times[:count], number


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), length=st.integers(0, 20), width=st.integers(0, 3), by_value=st.booleans())
def test_as_numpy_has_them(seed: int, length: int, width: int, by_value: bool) -> None:
    x = np.random.default_rng(seed).integers(-3, 3, (length, width) if width else length).astype(np.float32)
    x = np.where(x == 0, np.float32(-0.0), x) if seed % 2 else x
    _, first, number, times = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=0)
    if not by_value:
        turn = np.argsort(first)
        first, times, number = first[turn], times[turn], np.argsort(turn)[number]
    for mine, expected in zip(found(x, by_value), (first, times, number.reshape(-1)), strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_nan_is_one_element_or_many() -> None:
    x = np.array([np.nan, 1, np.nan, -np.inf, 1], np.float32)
    for one in (False, True):
        _, first, number, times = np.unique(x, True, True, True, equal_nan=one)
        mine = found(x, nan_is_one=one)
        np.testing.assert_array_equal(mine[0], first)
        np.testing.assert_array_equal(mine[1], times)
        np.testing.assert_array_equal(mine[2], number)


def test_symbolic_lengths() -> None:
    x = ir.input_("x", (sym.var("n", 0, 9), 2), f32)
    result = distinct(x)
    for length in (0, 1, 4, 9):
        rows = np.random.default_rng(length).integers(0, 2, (length, 2)).astype(np.float32)
        count, number = interp.evaluate([result.count, result.number], {"x": rows})
        values, expected = np.unique(rows, return_inverse=True, axis=0)
        assert count == len(values)
        np.testing.assert_array_equal(number, expected.reshape(-1))


def test_what_has_no_rows_of_known_size_is_refused() -> None:
    with pytest.raises(ShapeError, match="expected an axis"):
        distinct(ir.input_("x", (), f32))
    with pytest.raises(ShapeError, match="the size of a row, n, must be known"):
        distinct(ir.input_("x", (3, sym.var("n", 1, 9)), f32))
