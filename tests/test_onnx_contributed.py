"""Operators of com.microsoft that quantisers, optimisers and older exporters write, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from luminal.core.errors import LuminalError
from tests import onnx_models as models
from tests.onnx_models import floats

Array = np.ndarray[Any, Any]
BYTES = [np.uint8, np.int8]


def integers(*shape: int, low: int = 0, high: int = 9, dtype: Any = np.int64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def whole(*shape: int, dtype: Any, seed: int = 0) -> Array:
    """The whole range of a type of 8 bits."""
    return integers(*shape, low=np.iinfo(dtype).min, high=np.iinfo(dtype).max + 1, dtype=dtype, seed=seed)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def check(op: str, *inputs: Array | None, tolerance: float = 1e-6, **options: Any) -> None:
    proto, given = models.one(op, *inputs, domain="com.microsoft", **options)
    models.assert_close(models.imported(proto, given), models.by_onnxruntime(proto, given), tolerance)


def refused(message: str, op: str, *inputs: Array | None, **options: Any) -> None:
    proto, given = models.one(op, *inputs, domain="com.microsoft", **options)
    with pytest.raises(LuminalError, match=message):
        models.imported(proto, given)


# ---- quantised -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BYTES)
def test_where_of_bytes(dtype: Any) -> None:
    x, y = whole(3, 4, dtype=dtype), whole(4, dtype=dtype, seed=1)
    points = [np.array(k, dtype) for k in (3, 5, 4)]
    condition = np.array([[True], [False], [True]])
    inputs = condition, x, scale(0.11), points[0], y, scale(0.23), points[1], scale(0.17), points[2]
    check("QLinearWhere", *inputs, fixed=[2, 3, 5, 6, 7, 8])
    refused("input 8 is required", "QLinearWhere", *inputs[:-1])


IMAGE = {0: (2, 3, 6, 5), 1: (2, 6, 5, 3)}  # the channels before the other axes, and behind them


@pytest.mark.parametrize("last", IMAGE)
@pytest.mark.parametrize("dtype", BYTES)
def test_pools_and_convolutions_of_bytes(dtype: Any, last: int) -> None:
    x, zero = whole(*IMAGE[last], dtype=dtype), np.array(3, dtype)
    # The quotient of these scales has no ties, which would be rounded by the last digit of a sum.
    given = x, scale(0.113), zero, scale(0.07193), np.array(5, dtype)
    check("QLinearAveragePool", *given, kernel_shape=[2, 3], pads=[1, 1, 0, 1], channels_last=last)
    check("QLinearAveragePool", *given, kernel_shape=[2, 2], strides=[2, 1], channels_last=last)
    check("QLinearGlobalAveragePool", *given, channels_last=last)
    weight, bias = integers(4, 3, 2, 3, low=-9, dtype=np.int8), integers(4, low=-99, high=99, dtype=np.int32)
    rest = weight, scale(0.051), np.array(1, np.int8), scale(0.19), np.array(4, dtype), bias
    check("QLinearConv", *given[:3], *rest, fixed=[3], channels_last=last, pads=[1, 0, 0, 1], strides=[2, 1])


@pytest.mark.parametrize("dtype", BYTES)
def test_maxima_of_bytes_with_the_channels_last(dtype: Any) -> None:
    x = whole(2, 6, 5, 3, dtype=dtype)
    check("NhwcMaxPool", x, kernel_shape=[2, 3], pads=[1, 1, 0, 1], strides=[1, 2])
    check("NhwcMaxPool", x, kernel_shape=[2, 2], dilations=[2, 1], ceil_mode=1, strides=[2, 2])
    refused("kernel_shape", "NhwcMaxPool", x, kernel_shape=[2, 2, 2])


def embedded(dtype: Any, segments: bool, **options: Any) -> tuple[list[Array | None], dict[str, Any]]:
    words = integers(2, 5, high=7, dtype=np.int32)
    tables: list[Array | None] = [
        whole(*shape, dtype=dtype, seed=k) for k, shape in enumerate([(7, 8), (9, 8), (2, 8), (8,), (8,)])
    ]
    scales: list[Array | None] = [scale(0.01 + k / 100) for k in range(5)]
    points: list[Array | None] = [np.array(k, dtype) for k in range(1, 6)]
    if not segments:
        tables[2] = scales[2] = points[2] = None
    places = integers(2, 5, high=2, dtype=np.int32, seed=1) if segments else None
    mask = integers(2, 5, high=2, dtype=np.int32, seed=2) if segments else None
    return [words, places, *tables, mask, *scales, *points], {"outputs": 2, **options}


@pytest.mark.parametrize("dtype", BYTES)
def test_embeddings_of_bytes(dtype: Any) -> None:
    for inputs, options in (embedded(dtype, True), embedded(dtype, False, epsilon=1e-3)):
        check("QEmbedLayerNormalization", *inputs, **options)
    inputs, options = embedded(dtype, True)
    inputs[10] = None
    refused("segments, their embeddings", "QEmbedLayerNormalization", *inputs, **options)


def test_embeddings_as_the_quantiser_writes_them(tmp_path: Path) -> None:
    words, places, mask = (integers(2, 5, high=2, dtype=np.int32, seed=k) for k in range(3))
    tables = {"words": floats(7, 8), "places": floats(9, 8, seed=1), "segments": floats(2, 8, seed=2)}
    norm = {"weight": floats(8, seed=3), "bias": floats(8, seed=4)}
    node = models.node("EmbedLayerNormalization", "x s words places segments weight bias m", "y c")
    node.domain = "com.microsoft"
    inputs = {"x": words, "s": places, "m": mask}
    proto = models.model(
        [node], [models.declared(name, array) for name, array in inputs.items()], ["y", "c"],
        initializers={**tables, **norm}, domains={"com.microsoft": 1},
    )  # fmt: skip
    for output, kind in zip(proto.graph.output, (onnx.TensorProto.FLOAT, onnx.TensorProto.INT32), strict=True):
        output.type.tensor_type.elem_type = kind
    onnx.save(proto, tmp_path / "plain.onnx")
    quantize_dynamic(
        tmp_path / "plain.onnx", tmp_path / "bytes.onnx", op_types_to_quantize=["EmbedLayerNormalization"],
        weight_type=QuantType.QUInt8,
    )  # fmt: skip
    quantised = onnx.load(tmp_path / "bytes.onnx")
    assert "QEmbedLayerNormalization" in {each.op_type for each in quantised.graph.node}
    models.assert_close(models.imported(quantised, inputs), models.by_onnxruntime(quantised, inputs))


@pytest.mark.parametrize(("depth", "columns", "block"), [(32, 8, 16), (40, 5, 32), (33, 3, 16)])
@pytest.mark.parametrize("kind", [0, 1])
def test_products_with_four_bits_by_a_table(kind: int, depth: int, columns: int, block: int) -> None:
    count = depth * columns
    packed = whole((count + 1) // 2, dtype=np.uint8)  # all sixteen numbers
    largest = np.abs(floats(-(-count // block), seed=1))
    given: dict[str, Any] = {"K": depth, "N": columns, "block_size": block, "quant_type": kind, "fixed": [1, 2]}
    check("MatMulBnb4", floats(2, 3, depth), packed, largest, **given)
    refused("expected 0 .FP4. or 1", "MatMulBnb4", floats(3, depth), packed, largest, **{**given, "quant_type": 2})
    refused("transB 0", "MatMulBnb4", floats(3, depth), packed, largest, transB=0, **given)
    refused("bytes and", "MatMulBnb4", floats(3, depth), packed, largest[1:], **given)


# ---- what ONNX has by now --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper: int) -> None:
    check("Trilu", floats(2, 3, 4), np.array(1), fixed=[1], upper=upper)
    check("Trilu", integers(3, 4), upper=upper)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
def test_ranges(dtype: Any) -> None:
    check("Range", *(np.array(x, dtype) for x in (1, 10, 2)), fixed=[0, 1, 2])
    check("Range", *(np.array([x], dtype) for x in (3, 8)), fixed=[0, 1])


def test_a_range_needs_numbers_that_are_known() -> None:
    refused("decides axes or shapes", "Range", np.array(1.0, np.float32), np.array(9.0, np.float32))


def test_gathers() -> None:
    for places in (np.array([[0, 1], [1, 2]], np.int32), np.array([[[0], [-1]]], np.int64)):
        check("GatherND", floats(2, 3, 4), places)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_new_axes(axis: int) -> None:
    check("ExpandDims", floats(2, 3), np.array(axis, np.int32), fixed=[1])
    refused("axis 3 is out of range", "ExpandDims", floats(2, 3), np.array(3, np.int32), fixed=[1])


@pytest.mark.parametrize("values", [[2, 1, 1, 3, 4, 3], [5, 5], [1]])
def test_distinct_elements_as_they_come(values: list[float]) -> None:
    check("Unique", np.array(values, np.float32), outputs=3)
    refused("expected one axis", "Unique", floats(2, 3), outputs=3)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pads(mode: str) -> None:
    check("Pad", floats(3, 4), np.array([1, 0, 2, 1]), np.array(0.5, np.float32), fixed=[1, 2], mode=mode)
    check("Pad", floats(3, 4), np.array([1, 0, 2, 1]), fixed=[1], mode=mode)
    refused("expected 4 pads", "Pad", floats(3, 4), np.array([1, 0, 2]), fixed=[1], mode=mode)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples(mode: str, padding: str, corners: int) -> None:
    grid = np.random.default_rng(0).uniform(-1.2, 1.2, (2, 4, 3, 2)).astype(np.float32)
    check(
        "GridSample", floats(2, 3, 5, 6), grid, tolerance=2e-6, mode=mode, padding_mode=padding, align_corners=corners
    )


def test_samples_have_three_modes() -> None:
    refused("expected one of bilinear", "GridSample", floats(2, 3, 5, 6), floats(2, 4, 3, 2), mode="linear")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 4), (2, 1, 5, 5)])
def test_inverses(shape: tuple[int, ...], dtype: Any) -> None:
    check("Inverse", (floats(*shape) + 3 * np.eye(shape[-1])).astype(dtype))
    refused("expected square matrices", "Inverse", floats(3, 4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_distances(metric: str, dtype: Any) -> None:
    check("CDist", floats(4, 5, dtype=dtype), floats(3, 5, dtype=dtype, seed=1), metric=metric)
    check("CDist", floats(1, 1, dtype=dtype), floats(2, 1, dtype=dtype, seed=1))
    refused("'cosine'", "CDist", floats(4, 5), floats(3, 5), metric="cosine")


def test_products_of_16_bits() -> None:
    a, b = (integers(*shape, low=-32768, high=32768, dtype=np.int16) for shape in ((2, 3, 4), (4, 5)))
    check("MatMulInteger16", a, b)
    check("MatMulInteger16", a[0], integers(2, 4, 5, dtype=np.int16))
