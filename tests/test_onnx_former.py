"""What operators meant in opset 6, the oldest that is read, and no longer do: no runtime that is installed runs it."""

from typing import Any

import numpy as np
import pytest

from luminal.core.errors import ModelError, UnsupportedError
from luminal.frontends.onnx import importer
from tests import onnx_models as models
from tests.onnx_models import Array

X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
C = np.float32([1.5, -2, 0.25])


def run(op: str, *inputs: Array, outputs: int = 1, **attributes: Any) -> list[Array]:
    return models.imported(*models.one(op, *inputs, opset=6, outputs=outputs, **attributes))


@pytest.mark.parametrize(
    ("b", "attributes", "shape"),
    [
        (C, {"axis": 1}, (3, 1, 1)),
        (X[0, :, :, 0], {"axis": 1}, (3, 4, 1)),
        (X[0, 0], {"axis": -2}, (4, 5)),
        (X[0, 0], {}, (4, 5)),
        (C[:1], {"axis": 0}, (1,)),
        (np.float32(3), {}, ()),
    ],
)
def test_the_axes_of_the_second_operand_begin_at_one_of_the_first(
    b: Array, attributes: dict[str, int], shape: tuple[int, ...]
) -> None:
    for op, function in {"Add": np.add, "Sub": np.subtract, "Less": np.less, "Div": np.divide}.items():
        (found,) = run(op, X, b, broadcast=1, **attributes)
        np.testing.assert_array_equal(found, function(X, b.reshape(shape)))
    (found,) = run("Pow", abs(X), b, broadcast=1, **attributes)
    np.testing.assert_allclose(found, abs(X) ** b.reshape(shape), rtol=1e-6)


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match=r"'axis': float32\[4, 5\] does not fit in float32\[2, 3, 4, 5\]"):
        run("Add", X, X[0, 0], broadcast=1, axis=3)
    proto, _ = models.one("Add", X, X, opset=7, broadcast=1)
    with pytest.raises(UnsupportedError, match="broadcast"):
        importer.load(proto)


def test_a_slope_is_one_of_a_channel() -> None:
    (found,) = run("PRelu", X, C)
    np.testing.assert_array_equal(found, np.where(X < 0, X * C[:, None, None], X))
    np.testing.assert_array_equal(run("PRelu", X, C[:1])[0], np.where(X < 0, X * C[0], X))


def test_normalisation_is_by_the_batch_unless_it_is_a_test() -> None:
    mean, variance = C * 2, abs(C)
    (found,) = run("BatchNormalization", X, C, -C, mean, variance, is_test=1)
    at = (slice(None), None, None)
    wanted = (X - mean[at]) / np.sqrt(variance[at] + np.float32(1e-5)) * C[at] - C[at]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    found, new, _ = run("BatchNormalization", X, C, -C, mean, variance, outputs=3)
    own = X.mean((0, 2, 3))
    wanted = (X - own[at]) / np.sqrt(X.var((0, 2, 3))[at] + np.float32(1e-5)) * C[at] - C[at]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new, mean * np.float32(0.9) + own * np.float32(0.1), rtol=1e-5)
    with pytest.raises(UnsupportedError, match="saves for the gradient"):
        run("BatchNormalization", X, C, -C, mean, variance, outputs=5)


def test_elements_are_dropped_unless_it_is_a_test() -> None:
    found, mask = run("Dropout", X, outputs=2, is_test=1)
    np.testing.assert_array_equal(found, X)
    assert (mask == 1).all() and mask.dtype == np.float32
    graph = importer.load(models.one("Dropout", X, outputs=2, opset=6, ratio=0.25)[0])
    assert len(graph.states) == 1 and [str(node.dtype) for node in graph.results[:2]] == ["float32", "float32"]


def test_others() -> None:
    a, b = X[0, 0], X[0, 1].T.copy()
    np.testing.assert_allclose(run("Gemm", a, b, C[:1], broadcast=1)[0], a @ b + C[0], rtol=1e-5, atol=1e-6)
    (found,) = run("Upsample", X, height_scale=2.0, width_scale=3.0)
    np.testing.assert_array_equal(found, X.repeat(2, 2).repeat(3, 3))
