"""Elementwise operators at NaN, infinities, signed zeros and subnormal numbers, where onnxruntime and ONNX's reference
agree; and those for which the specification decides between the two."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import luminal
from tests import onnx_models as models

Array = np.ndarray[Any, Any]

VALUES = (
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5,
)  # fmt: skip

PLAIN_UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Gelu",
    "HardSwish", "Identity", "IsInf", "IsNaN", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign",
    "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
)  # fmt: skip
PLAIN_BINARY = (
    "Add", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mul", "PRelu",
    "Pow", "Sub", "Sum",
)  # fmt: skip
UNARY: dict[str, tuple[dict[str, float], ...]] = {
    **dict.fromkeys(PLAIN_UNARY, ({},)),
    "Celu": ({}, {"alpha": 0.5}),
    "Elu": ({}, {"alpha": 0.5}),
    "HardSigmoid": ({}, {"alpha": 0.5, "beta": 0.1}),
    "LeakyRelu": ({}, {"alpha": 0.0}, {"alpha": -0.5}),
    "Selu": ({}, {"alpha": 0.5}),
    "Shrink": ({}, {"lambd": 0.0}, {"bias": 0.5}, {"lambd": 1.0, "bias": -1.0}),
    "ThresholdedRelu": ({}, {"alpha": 0.0}, {"alpha": -1.0}),
}
BINARY: dict[str, tuple[dict[str, float], ...]] = {
    **dict.fromkeys(PLAIN_BINARY, ({},)),
    "Mod": ({"fmod": 1},),
}
# Both take the one of two zeros that their vectors happen to keep, the last elements of a tensor the other.
EITHER_ZERO = {"Max", "Min"}
BOUNDS = [(0, 6), (-0.0, 0), (0, -0.0), (-1, 1), (1, -1), (-np.inf, np.inf)]


def of(table: dict[str, tuple[dict[str, float], ...]]) -> list[Any]:
    return [pytest.param(op, options, id=f"{op}-{options}") for op, all_of in table.items() for options in all_of]


def alike(a: Array, b: Array, zeros: bool = True) -> Array:
    """Where ``a`` and ``b`` are both NaN, the same infinity, the same zero, or near one another."""
    if a.dtype.kind != "f":
        return np.asarray(a == b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) & ((x != 0) | (np.signbit(x) == np.signbit(y)) | (not zeros))
    with np.errstate(invalid="ignore"):
        near = (np.abs(x - y) <= 1e-5 * np.abs(y)) & np.isfinite(y) & (x != 0) & (y != 0)
    return same | near | (np.isnan(x) & np.isnan(y))


def found_and_agreed(op: str, inputs: list[Array], options: dict[str, float]) -> tuple[Array, Array, Array]:
    """The result, what onnxruntime gives, and where the reference agrees with that."""
    proto, given = models.one(op, *inputs, opset=20, **options)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,), (first,), (second,) = (
            run(proto, given) for run in (models.imported, models.by_onnxruntime, models.by_reference)
        )
        return found, first, alike(first, second)


def check(op: str, inputs: list[Array], options: dict[str, float]) -> None:
    found, wanted, agreed = found_and_agreed(op, inputs, options)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    with np.errstate(all="ignore"):
        wrong = agreed & ~alike(found, wanted, zeros=op not in EITHER_ZERO)
    rows = zip(*(np.broadcast_to(x, found.shape)[wrong] for x in inputs), found[wrong], wanted[wrong], strict=True)
    assert not wrong.any(), "\n".join(map(str, rows))
    assert agreed.mean() > 0.4, "the two agree in too few places to test anything"


@pytest.mark.parametrize(("op", "options"), of(UNARY))
def test_unary(op: str, options: dict[str, float]) -> None:
    check(op, [np.array(VALUES, np.float32)], options)


@pytest.mark.parametrize(("op", "options"), of(BINARY))
def test_binary(op: str, options: dict[str, float]) -> None:
    a, b = (np.array(side, np.float32) for side in zip(*itertools.product(VALUES, VALUES), strict=True))
    check(op, [a, b], options)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("low", "high"), BOUNDS)
def test_clip(low: float, high: float, dtype: Any) -> None:
    with np.errstate(over="ignore"):
        check("Clip", [np.array(VALUES, dtype), np.array(low, dtype), np.array(high, dtype)], {})


@pytest.mark.parametrize(("low", "high"), [(np.nan, 1), (-1, np.nan)])
def test_bounds_that_are_nan(low: float, high: float) -> None:
    """The reference gives NaN; onnxruntime, some element or bound."""
    proto, given = models.one("Clip", *(np.array(x, np.float32) for x in (VALUES, low, high)), opset=20)
    assert alike(models.imported(proto, given)[0], models.by_reference(proto, given)[0]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_sign_of_nan_is_nan(dtype: Any) -> None:
    proto, given = models.one("Sign", np.array([np.nan, -2, -0.0, 3], dtype))
    np.testing.assert_array_equal(models.imported(proto, given)[0], np.array([np.nan, -1, 0, 1], dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_slope_counts_below_zero_only(dtype: Any) -> None:
    """The specification has ``x`` from 0 on, as onnxruntime does; the reference multiplies 0 by the slope, too."""
    x, slope = np.array([0, 0, 0, -0.0, -1, np.nan], dtype), np.array([np.nan, np.inf, -1, -1, -2, 0], dtype)
    proto, given = models.one("PRelu", x, slope)
    (found,), (wanted,) = models.imported(proto, given), models.by_onnxruntime(proto, given)
    assert alike(found, wanted).all(), (found, wanted)
    proto, given = models.one("LeakyRelu", x, alpha=-0.5)
    (found,), (wanted,) = models.imported(proto, given), models.by_onnxruntime(proto, given)
    assert alike(found, wanted).all(), (found, wanted)


RUNS = [
    [-0.0, -0.0, 1, -1, -0.0], [2, -3, 0, 5], [1e-30, -1e-30, 1e-30], [0, -0.0, -0.0], [np.inf, -1, 0, 1], [np.nan, 1],
]  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}], ids=str)
@pytest.mark.parametrize("run", RUNS, ids=str)
@pytest.mark.parametrize(("op", "opset"), [("CumSum", 14), ("CumProd", 26)])
def test_running_sums_and_products(op: str, opset: int, run: list[float], options: dict[str, int]) -> None:
    proto, given = models.one(op, np.array(run, np.float32), np.array(0), fixed=[1], opset=opset, **options)
    (found,), (wanted,) = models.imported(proto, given), models.by_onnxruntime(proto, given)
    assert alike(found, wanted).all(), (found, wanted)


def test_running_products_keep_their_signs_in_a_library() -> None:
    proto, given = models.one("CumProd", np.array([2, -3, 0, 4, -1], np.float32), np.array(0), fixed=[1], opset=26)
    found = luminal.compile(proto).run(given)["y0"]
    assert np.signbit(found).tolist() == [False, True, True, True, False]


def test_a_library_has_the_same() -> None:
    """All of them in one, on vectors and on what is left over behind them."""
    values = np.array(VALUES * 3, np.float32)  # 45: no multiple of any vector
    nodes = [models.node(op, "x", f"{op}{k}", **options) for op, all_of in UNARY.items()
             for k, options in enumerate(all_of)]  # fmt: skip
    nodes += [models.node(op, "x z", op, **options) for op, all_of in BINARY.items() for options in all_of]
    nodes += [models.node("Clip", "x low high", "Clip")]
    given = {"x": values, "z": np.roll(values, 4), "low": np.float32(0), "high": np.float32(-0.0)}
    inputs = [models.declared(name, np.asarray(array)) for name, array in given.items()]
    proto = models.model(nodes, inputs, [node.output[0] for node in nodes], opset=20)
    with np.errstate(all="ignore"):
        wanted = models.imported(proto, given)
    found = luminal.compile(proto).run(given)
    for node, reference in zip(nodes, wanted, strict=True):
        assert alike(found[node.output[0]], reference).all(), node.output[0]
