"""Reductions, softmax and normalisations against PyTorch and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from luminal.core import interp, ir
from luminal.core import symbolic as sym
from luminal.core.decompose import cumulative, normalize, reduction
from luminal.core.errors import ShapeError
from luminal.core.types import bf16, f16, f32, from_numpy
from tests.accuracy import Array, run

AXES = (None, 0, 1, -1, (0, 2), (0, 1, 2))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found: Array, expected: Array | torch.Tensor, scale: float = 4e-6) -> None:
    """Equal shapes and types, differences within ``scale`` of the largest finite value, NaN and infinities alike."""
    expected = expected.numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    assert found.shape == expected.shape
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    largest = np.abs(expected[finite]).max(initial=1.0)
    assert np.abs(found[finite] - expected[finite]).max(initial=0.0) <= scale * largest


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", AXES)
def test_reductions(axes: int | tuple[int, ...] | None, keepdims: bool) -> None:
    x = normal(2, 3, 5)
    t = torch.from_numpy(x)
    over = tuple(range(3)) if axes is None else axes
    close(run(lambda a: reduction.sum_(a, axes, keepdims), x), t.sum(over, keepdim=keepdims))
    close(run(lambda a: reduction.mean(a, axes, keepdims), x), t.mean(over, keepdim=keepdims))
    close(run(lambda a: reduction.max_(a, axes, keepdims), x), t.amax(over, keepdim=keepdims))
    close(run(lambda a: reduction.min_(a, axes, keepdims), x), t.amin(over, keepdim=keepdims))
    close(run(lambda a: reduction.prod(a, axes, keepdims), x), x.prod(axis=over, keepdims=keepdims))
    close(run(lambda a: reduction.logsumexp(a, axes, keepdims), x), t.logsumexp(over, keepdim=keepdims))
    close(run(lambda a: reduction.log_sum(a * a, axes, keepdims), x), (t * t).sum(over, keepdim=keepdims).log())
    close(run(lambda a: reduction.l1_norm(a, axes, keepdims), x), t.abs().sum(over, keepdim=keepdims))
    close(run(lambda a: reduction.l2_norm(a, axes, keepdims), x), t.square().sum(over, keepdim=keepdims).sqrt())
    close(run(lambda a: reduction.any_(a, axes, keepdims), x > 1), (x > 1).any(over, keepdims=keepdims))
    close(run(lambda a: reduction.all_(a, axes, keepdims), x > -1), (x > -1).all(over, keepdims=keepdims))
    for correction in (0, 1, 1.5):
        expected = t.var(over, correction=correction, keepdim=keepdims)
        close(run(lambda a, c=correction: reduction.variance(a, axes, keepdims, c), x), expected)
        close(run(lambda a, c=correction: reduction.standard_deviation(a, axes, keepdims, c), x), expected.sqrt())


def test_variance_does_not_cancel() -> None:
    x = normal(4, 1000) + np.float32(30000)
    close(run(lambda a: reduction.variance(a, 1), x), x.astype(np.float64).var(1, ddof=1), 1e-5)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_positions(axis: int | None, keepdims: bool) -> None:
    generator = np.random.default_rng(3)
    ties = generator.integers(-2, 3, (4, 6, 5))
    for x in (ties.astype(np.float32), ties.astype(np.int8), ties.astype(np.uint8), ties > 0):
        for ours, theirs in ((reduction.argmax, np.argmax), (reduction.argmin, np.argmin)):
            found = run(lambda a, f=ours: f(a, axis, keepdims), x)
            assert np.array_equal(found, theirs(x, axis, keepdims=keepdims))
    last = run(lambda a: reduction.argmax(a, 1, keepdims, select_last=True), ties)
    assert np.array_equal(last, 5 - np.argmax(ties[:, ::-1], 1, keepdims=keepdims))


def test_position_of_nan_and_infinity() -> None:
    x = np.array([[1, np.nan, 3, np.nan], [-np.inf] * 4, [np.inf, 1, np.inf, 0]], np.float32)
    assert run(lambda a: reduction.argmax(a, 1), x).tolist() == [1, 0, 0]
    assert run(lambda a: reduction.argmin(a, 1), x).tolist() == [1, 0, 3]


def test_special_reductions() -> None:
    x = np.array([[-np.inf] * 3, [np.inf, 1, 2], [np.nan, 1, 2], [-np.inf, 0, 1]], np.float32)
    t = torch.from_numpy(x)
    close(run(lambda a: reduction.logsumexp(a, 1), x), t.logsumexp(1))
    close(run(lambda a: reduction.softmax(a, 1), x), t.softmax(1))
    close(run(lambda a: reduction.log_softmax(a, 1), x), t.log_softmax(1))
    close(run(lambda a: reduction.min_(a, 1), x), t.amin(1))
    lowest = np.array([[-128, 127], [0, -1]], np.int8)
    assert np.array_equal(run(lambda a: reduction.min_(a, 0), lowest), lowest.min(0))
    assert run(reduction.sum_, np.array([True, True, False])) == 2


@pytest.mark.parametrize("keepdims", [False, True])
def test_a_product_keeps_the_sign_of_zero(keepdims: bool) -> None:
    x = np.array([[-1, 0, 1], [0, 1, 2], [-0.0, -1, -2], [-1e-30, 1e-30, 1]], np.float32)
    for axes in (1, 0, (0, 1)):
        expected = x.prod(axis=axes, keepdims=keepdims)
        found = run(lambda a, over=axes: reduction.prod(a, over, keepdims), x)
        assert np.array_equal(found, expected) and np.array_equal(np.signbit(found), np.signbit(expected))
    single = run(lambda a: reduction.prod(a, 0, keepdims), np.array([-0.0], np.float32))
    assert np.signbit(single).all()


def test_empty_axes() -> None:
    x = np.zeros((2, 0, 3), np.float32)
    assert np.array_equal(run(lambda a: reduction.sum_(a, 1), x), np.zeros((2, 3)))
    assert np.array_equal(run(lambda a: reduction.prod(a, 1), x), np.ones((2, 3)))
    assert np.array_equal(run(lambda a: reduction.max_(a, 1), x), np.full((2, 3), -np.inf))
    assert np.array_equal(run(lambda a: reduction.min_(a, 1), x), np.full((2, 3), np.inf))
    assert np.isnan(run(lambda a: reduction.mean(a, 1), x)).all()
    assert run(lambda a: reduction.softmax(a, 0), x).shape == x.shape
    scalar = np.array(3.0, np.float32)
    for function in (reduction.sum_, reduction.mean, reduction.prod, reduction.max_, reduction.argmax):
        assert run(function, scalar).shape == ()


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 13])
def test_running_sums(length: int) -> None:
    x = normal(2, length, 3)
    forward = np.cumsum(x.astype(np.float64), 1)
    backward = np.cumsum(x[:, ::-1].astype(np.float64), 1)[:, ::-1]
    close(run(lambda a: cumulative.cumsum(a, 1), x), forward)
    close(run(lambda a: cumulative.cumsum(a, 1, exclusive=True), x), forward - x)
    close(run(lambda a: cumulative.cumsum(a, 1, reverse=True), x), backward)
    close(run(lambda a: cumulative.cumsum(a, -2, exclusive=True, reverse=True), x), backward - x)
    assert run(lambda a: cumulative.cumsum(a, 1), x > 0).dtype == np.int64


@pytest.mark.parametrize("function", ["cummax", "cummin"])
def test_running_maxima_and_their_positions(function: str) -> None:
    special = np.array([[1, 2, np.nan, 3, np.nan], [2, 2, 1, 2, 0], [-np.inf, np.inf, np.inf, 0, -0.0]], np.float32)
    for x in (special, -special, np.array([[3, -1, 3], [0, 0, 5]]), np.array([[False, True, True, False]]),
              np.array(2.0, np.float32), np.zeros((2, 0), np.float32)):  # fmt: skip
        expected = getattr(torch.from_numpy(x), function)(-1)
        for found, wanted in zip(run(lambda a: getattr(cumulative, function)(a, -1), x), expected, strict=True):
            np.testing.assert_array_equal(found, wanted.numpy())


def test_long_running_sums_and_products_do_not_drift() -> None:
    x = np.full(20000, 0.1, np.float32)
    close(run(lambda a: cumulative.cumsum(a, 0), x), np.cumsum(x.astype(np.float64)))
    close(run(lambda a: cumulative.cumsum(a, 0, exclusive=True), x), np.cumsum(x.astype(np.float64)) - x)
    near = np.full(20000, 1.0001, np.float32)
    close(run(lambda a: cumulative.cumprod(a, 0), near), np.cumprod(near.astype(np.float64)))
    close(run(lambda a: cumulative.logcumsumexp(a, 0), x), 0.1 + np.log(np.arange(1, 20001)))


def test_running_sums_and_products_of_special_numbers() -> None:
    x = np.array([[1, np.inf, 2], [1, -np.inf, np.inf], [3e38, 3e38, -3e38], [np.nan, 1, 2], [2, 0, -np.inf]])
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        for function, meaning in ((cumulative.cumsum, np.cumsum), (cumulative.cumprod, np.cumprod)):
            assert np.array_equal(run(lambda a, f=function: f(a, 1), x), meaning(x, 1), equal_nan=True)


def test_running_products() -> None:
    x = normal(4, 6)
    close(run(lambda a: cumulative.cumprod(a, 1), x), np.cumprod(x.astype(np.float64), 1))
    expected = np.cumprod(np.concatenate([np.ones((1, 6)), x[:0:-1]]), 0)[::-1]
    close(run(lambda a: cumulative.cumprod(a, 0, exclusive=True, reverse=True), x), expected)
    whole = np.array([[3, -4, 5]], np.int32)
    assert np.array_equal(run(lambda a: cumulative.cumprod(a, 1), whole), [[3, -12, -60]])


def test_symbolic_sizes() -> None:
    """Counts, products and running sums over an axis whose size is known when the graph runs."""
    size = sym.var("n", 1, 12)
    x = ir.input_("x", (2, size), f32)
    nodes = [
        reduction.mean(x, 1), reduction.prod(x, 1), cumulative.cumsum(x, 1), reduction.argmax(x, 1),
        reduction.variance(x, 1), reduction.softmax(x, 1),
    ]  # fmt: skip
    for n in (2, 5, 12):
        value = normal(2, n, seed=n)
        t = torch.from_numpy(value)
        expected = [t.mean(1), t.prod(1), t.cumsum(1), t.argmax(1), t.var(1), t.softmax(1)]
        for found, real in zip(interp.evaluate(nodes, {"x": value}), expected, strict=True):
            close(found, real)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=repr)
def test_narrow_types_accumulate_in_float32(dtype: object) -> None:
    values = normal(3, 4096).astype(dtype.numpy)  # type: ignore[attr-defined]
    wide = values.astype(np.float64)
    eps = dtype.eps  # type: ignore[attr-defined]
    for function, expected in (
        (lambda a: reduction.sum_(a, 1), wide.sum(1)),
        (lambda a: reduction.mean(a, 1), wide.mean(1)),
        (lambda a: reduction.variance(a, 1), wide.var(1, ddof=1)),
        (lambda a: normalize.layer_norm(a, -1), (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)),
    ):
        found = run(function, values)
        assert from_numpy(found.dtype) == dtype
        # One rounding of the result, and float32's errors of the sum, which cancellation may leave bare.
        assert np.all(np.abs(found.astype(np.float64) - expected) <= 0.51 * eps * np.abs(expected) + 2e-5)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax(axis: int) -> None:
    x = normal(3, 4, 5) * 30
    t = torch.from_numpy(x.astype(np.float64))
    found, logarithm = run(lambda a: [reduction.softmax(a, axis), reduction.log_softmax(a, axis)], x)
    # x - max(x) is rounded, and the exponential magnifies that by up to 100 here.
    assert np.allclose(found, t.softmax(axis).numpy(), rtol=6e-6, atol=1e-37)
    assert np.allclose(logarithm, t.log_softmax(axis).numpy(), rtol=1e-6, atol=1e-6)


# ---- normalisations --------------------------------------------------------------------------------------------------


def test_layer_and_rms_norm() -> None:
    x = normal(3, 4, 6) * 5 + 2
    t = torch.from_numpy(x)
    for axes, shape in (((-1,), (6,)), ((1, 2), (4, 6))):
        weight, bias = normal(*shape, seed=1), normal(*shape, seed=2)
        w, b = torch.from_numpy(weight), torch.from_numpy(bias)
        found = run(lambda a, w, b, axes=axes: normalize.layer_norm(a, axes, w, b, 1e-3), x, weight, bias)
        close(found, F.layer_norm(t, shape, w, b, 1e-3))
        close(run(lambda a, axes=axes: normalize.layer_norm(a, axes), x), F.layer_norm(t, shape))
        close(
            run(lambda a, w, axes=axes: normalize.rms_norm(a, axes, w, 1e-6), x, weight), F.rms_norm(t, shape, w, 1e-6)
        )
    constant = np.full((2, 8), 7.0, np.float32)
    assert np.array_equal(run(lambda a: normalize.layer_norm(a, -1), constant), np.zeros((2, 8)))


@pytest.mark.parametrize("shape", [(4, 6), (2, 6, 5), (2, 6, 4, 5)])
def test_channel_norms(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    weight, bias, mean, spread = normal(6, seed=1), normal(6, seed=2), normal(6, seed=3), np.abs(normal(6, seed=4))
    t, w, b, m, v = map(torch.from_numpy, (x, weight, bias, mean, spread))
    close(run(normalize.batch_norm, x, weight, bias, mean, spread), F.batch_norm(t, m, v, w, b))
    plain = run(lambda a, m, v: normalize.batch_norm(a, None, None, m, v, 1e-3), x, mean, spread)
    close(plain, F.batch_norm(t, m, v, eps=1e-3))
    if len(shape) > 2:
        close(run(lambda a, w, b: normalize.group_norm(a, 3, w, b), x, weight, bias), F.group_norm(t, 3, w, b))
        close(run(normalize.instance_norm, x, weight, bias), F.instance_norm(t, weight=w, bias=b))
        with pytest.raises(ShapeError, match="do not divide"):
            run(lambda a: normalize.group_norm(a, 4), x)


def test_batch_norm_rounds_its_result_once() -> None:
    x, weight, bias, mean, spread = normal(64, 6), *(normal(6, seed=k) for k in (1, 2, 3)), np.abs(normal(6, seed=4))
    scale = weight.astype(np.float64) / np.sqrt(spread.astype(np.float64) + 1e-5)
    shift = (bias - mean * scale).astype(np.float32)
    exact = x.astype(np.longdouble) * scale.astype(np.float32) + shift
    assert np.array_equal(run(normalize.batch_norm, x, weight, bias, mean, spread), exact.astype(np.float32))


@pytest.mark.parametrize("p", [1, 2, float("inf")])
def test_lp(p: float) -> None:
    x = normal(3, 4, 5)
    t = torch.from_numpy(x)
    close(run(lambda a: normalize.lp_norm(a, (0, 2), p), x), torch.linalg.vector_norm(t, p, (0, 2)))
