"""Sorting, selection and search, each against PyTorch or numpy, on numbers that meet and numbers that are none."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from luminal.core import interp, ir
from luminal.core import symbolic as sym
from luminal.core.decompose import sorting
from luminal.core.errors import DTypeError, ShapeError
from luminal.core.types import f32, i64
from tests.accuracy import Array, run

FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
INTEGERS = (np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1.5]


@st.composite
def rows(draw: st.DrawFn, most: int = 40) -> Array:
    """Arrays of any type whose elements are often equal, and often NaN, infinite, zero or at the ends of the type."""
    dtype = np.dtype(draw(st.sampled_from(FLOATS + INTEGERS)))
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=most))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    few = draw(st.sampled_from([2, 5, 1000]))
    x = random.integers(-few, few, shape)
    if dtype in INTEGERS[1:]:
        ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        return np.where(random.random(shape) < 0.2, ends[x % 2], x.astype(dtype))
    if dtype == np.bool_:
        return x > 0
    return np.where(random.random(shape) < 0.3, random.choice(SPECIAL, shape), x / 8).astype(dtype)


def order(x: Array, axis: int, descending: bool) -> Array:
    """The order that PyTorch has, where PyTorch has the type; numpy's of the negated ranks else."""
    wide = x.astype(np.float64) if x.dtype in (ml_dtypes.bfloat16, np.uint16, np.uint32) else x
    if x.dtype == np.uint64:
        return np.argsort(~x if descending else x, axis=axis, kind="stable")
    return torch.sort(torch.from_numpy(wide), dim=axis, descending=descending, stable=True)[1].numpy()


def same(found: Array, expected: Array) -> None:
    """Equal bits."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


@settings(max_examples=60, deadline=None)
@given(x=rows(), descending=st.booleans(), axis=st.integers(0, 2))
def test_orders_are_those_of_pytorch(x: Array, descending: bool, axis: int) -> None:
    axis %= x.ndim
    values, places = run(lambda a: sorting.sort(a, axis, descending), x)
    expected = order(x, axis, descending)
    same(places, expected)
    same(values, np.take_along_axis(x, expected, axis))


@settings(max_examples=40, deadline=None)
@given(x=rows(), largest=st.booleans(), data=st.data())
def test_the_first_few_are_the_first_of_all(x: Array, largest: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    count = data.draw(st.integers(0, x.shape[axis]))
    values, places = run(lambda a: sorting.topk(a, count, axis, largest), x)
    expected = np.take(order(x, axis, largest), range(count), axis)
    same(places, expected)
    same(values, np.take_along_axis(x, expected, axis))


def test_of_many_elements_the_whole_is_sorted() -> None:
    x = np.random.default_rng(0).permutation(3000).astype(np.float32)
    for count in (ir.MOST_LEAST, ir.MOST_LEAST + 1):
        assert np.array_equal(run(lambda a, k=count: sorting.topk(a, k)[0], x), np.arange(3000)[::-1][:count])


@settings(max_examples=40, deadline=None)
@given(x=rows(12), data=st.data())
def test_medians_and_elements_by_number(x: Array, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    k = data.draw(st.integers(1, x.shape[axis]))
    ordered = np.take_along_axis(x, order(x, axis, False), axis)
    value, place = run(lambda a: sorting.kthvalue(a, k, axis), x)
    same(value, np.take(ordered, k - 1, axis))
    same(np.take_along_axis(x, np.expand_dims(place, axis), axis).squeeze(axis), value)
    if x.dtype in (np.float32, np.float64):
        for ignore, reference in ((False, torch.median), (True, torch.nanmedian)):
            found, place = run(lambda a, skip=ignore: sorting.median(a, axis, True, skip), x)
            expected = reference(torch.from_numpy(x), axis, keepdim=True)[0].numpy()
            np.testing.assert_array_equal(found, expected)
            same(np.take_along_axis(x, place, axis), found)


def test_modes() -> None:
    x = np.random.default_rng(3).integers(0, 5, (6, 4, 9))
    for axis in (0, -1):
        value, place = run(lambda a, axis=axis: sorting.mode(a, axis), x)
        expected = torch.mode(torch.from_numpy(x), axis)[0].numpy()
        same(value, expected)
        for found, row in zip(place.reshape(-1), np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]), strict=True):
            assert found == np.flatnonzero(row == row[found])[-1]


def test_runs_of_equal_elements() -> None:
    begins, first = run(sorting.runs, np.array([[1, 1, 2, 5, 5, 5], [0, 1, 2, 3, 4, 4]]))
    assert begins.tolist() == [[True, False, True, True, False, False], [True] * 5 + [False]]
    assert first.tolist() == [[0, 0, 2, 3, 3, 3], [0, 1, 2, 3, 4, 4]]


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(0, 20), right=st.booleans(), batched=st.booleans(),
    dtype=st.sampled_from([np.float32, np.int64, np.uint8]), seed=st.integers(0, 99),
)  # fmt: skip
def test_searching(length: int, right: bool, batched: bool, dtype: type, seed: int) -> None:
    random = np.random.default_rng(seed)
    shape, wanted = ((2, 3, length), (2, 3, 5)) if batched else ((length,), (4, 6))
    table = np.sort(random.integers(0, 12, shape).astype(dtype), -1)
    values = random.integers(0, 13, wanted).astype(dtype)
    if dtype is np.float32:
        values[0, 0] = np.nan
        values[0, -1] = np.inf
        table[..., : length // 4] = -np.inf
    expected = torch.searchsorted(torch.from_numpy(table), torch.from_numpy(values), right=right)
    same(run(lambda t, v: sorting.searchsorted(t, v, right), table, values), expected.numpy())


def test_membership() -> None:
    values = np.array([[0.0, -0.0, 1.0], [np.nan, np.inf, 3.0]], np.float32)
    for among in ([0.0, 3.0, 3.0, np.nan, 7.0], [-5.0], []):
        table = np.array(among, np.float32)
        same(run(sorting.isin, values, table), np.isin(values, table))


def test_symbolic_lengths() -> None:
    n = sym.var("n", 1, 30)
    x = ir.input_("x", (2, n), f32)
    nodes = [*sorting.sort(x, 1), *sorting.topk(x, 1), *sorting.median(x, 1), sorting.searchsorted(x, x)]
    for length in (1, 2, 30):
        value = np.random.default_rng(length).normal(size=(2, length)).astype(np.float32)
        found = interp.evaluate(nodes, {"x": value})
        same(found[0], np.sort(value, 1))
        same(found[1], np.argsort(value, 1))
        same(found[2], value.max(1, keepdims=True))
        same(found[4], np.sort(value, 1)[:, (length - 1) // 2])


def test_no_more_than_there_are_are_taken_of_a_symbolic_length() -> None:
    """As a detector takes the best 8 boxes, or all where there are fewer."""
    n = sym.var("n", 0, 30)
    values, places = sorting.topk(ir.input_("x", (n,), f32), sym.minimum(8, n))
    for length in (0, 1, 8, 30):
        value = np.random.default_rng(length).normal(size=length).astype(np.float32)
        found = interp.evaluate([values, places], {"x": value})
        same(found[0], np.sort(value)[::-1][:8])
        same(found[1], np.argsort(-value)[:8])


def test_scalars() -> None:
    x: Any = np.array(2.5, np.float32)
    for function in (sorting.sort, sorting.median, sorting.mode, lambda a: sorting.kthvalue(a, 1, 0)):
        value, place = run(function, x)
        same(value, x)
        same(place, np.array(0))


def test_what_cannot_be_sorted_is_refused() -> None:
    x, n = ir.input_("x", (2, 3), f32), sym.var("n", 1, 9)
    with pytest.raises(ShapeError, match="cannot take the least 4 of 3 elements"):
        sorting.topk(x, 4)
    with pytest.raises(ShapeError, match="cannot take the least 2 of n elements"):
        sorting.topk(ir.input_("y", (n,), f32), 2)
    with pytest.raises(ShapeError, match="axis 2 is out of range"):
        sorting.sort(x, 2)
    with pytest.raises(ShapeError, match="counted from 1"):
        sorting.kthvalue(x, 0)
    with pytest.raises(ShapeError, match="at least one element"):
        sorting.median(ir.input_("z", (2, 0), f32))
    with pytest.raises(ShapeError, match="different axes"):
        sorting.searchsorted(x, ir.input_("v", (3, 2), f32))
    with pytest.raises(DTypeError, match="expected integers, found float32"):
        ir.sort(x)
    with pytest.raises(ShapeError, match="found a scalar"):
        ir.sort(ir.input_("s", (), i64))
