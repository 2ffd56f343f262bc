"""Operators against onnxruntime, where the ONNX project's own cases leave gaps: older opsets whose semantics differ,
combinations of attributes, element types, and onnxruntime's own operators."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from luminal.core.errors import LuminalError, ModelError, UnsupportedError
from luminal.frontends.onnx import importer
from tests import onnx_models as models
from tests.onnx_models import floats

Array = np.ndarray[Any, Any]


def integers(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int64, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def vector(*values: Any, dtype: Any = np.int64) -> Array:
    return np.array(values, dtype)


def case(op: str, *inputs: Array | None, **options: Any) -> Any:
    shown = [f"{k}={v}" for k, v in options.items() if k != "fixed"]
    return pytest.param(op, inputs, options, id="-".join([op, *shown]).replace(" ", ""))


X = floats(2, 3, 8, 7)

OLDER = [
    *(case(op, floats(2, 3, 4), opset=opset, axis=axis)
      for op in ("Softmax", "LogSoftmax", "Hardmax") for opset in (11, 13) for axis in (0, 1, 2)),
    *(case(op, floats(2, 3, 4), opset=12) for op in ("Softmax", "Hardmax")),
    case("Squeeze", floats(1, 3, 1), opset=11, axes=[0, -1]),
    case("Squeeze", floats(1, 3, 1), opset=11),
    case("Squeeze", floats(1, 3, 1), vector(-1), opset=13, fixed=[1]),
    case("Unsqueeze", floats(3, 4), opset=11, axes=[0, 3]),
    case("Unsqueeze", floats(3, 4), vector(-1, 0), opset=13, fixed=[1]),
    *(case(op, floats(2, 3, 4), opset=11, axes=[1, -1], keepdims=keep)
      for op in ("ReduceSum", "ReduceMean", "ReduceL2", "ReduceMax") for keep in (0, 1)),
    case("ReduceSum", floats(2, 3, 4), vector(1), opset=13, fixed=[1], keepdims=0),
    case("ReduceSum", floats(2, 3), vector(), opset=13, fixed=[1], noop_with_empty_axes=1),
    case("ReduceSum", floats(2, 3), opset=13),
    case("ReduceMean", floats(2, 3, 4), vector(0, 2), opset=18, fixed=[1]),
    case("Slice", floats(5, 6), opset=9, starts=[1, -4], ends=[100, -1], axes=[0, 1]),
    case("Slice", floats(5, 6), opset=9, starts=[2], ends=[-1]),
    case("Slice", floats(5, 6), vector(-1, 4), vector(-100, 1), vector(0, 1), vector(-2, -1), opset=13,
         fixed=[1, 2, 3, 4]),
    case("Slice", floats(5, 6), vector(3), vector(2), vector(1), opset=13, fixed=[1, 2, 3]),
    case("Pad", floats(3, 4), opset=10, pads=[1, 0, 2, 1], value=1.5),
    case("Pad", floats(3, 4), opset=10, pads=[1, 2, 0, 1], mode="reflect"),
    case("Clip", floats(20), opset=10, min=-0.5, max=0.25),
    case("Clip", floats(20), opset=10, min=-0.5),
    case("Clip", vector(np.inf, -np.inf, np.nan, 3e38, -1, dtype=np.float32), opset=10),
    case("Clip", vector(np.inf, -np.inf, 1, dtype=np.float32), opset=10, min=0.0),
    case("Clip", floats(20), None, vector(0.25, dtype=np.float32).reshape(()), opset=13),
    case("Clip", integers(20), vector(-2).reshape(()), vector(3).reshape(()), opset=13),
    case("Dropout", floats(3, 4), opset=10, ratio=0.3),
    case("Dropout", floats(3, 4), vector(0.3, dtype=np.float32).reshape(()), opset=13, fixed=[1]),
    case("Split", floats(2, 6), opset=11, outputs=2, axis=1, split=[2, 4]),
    case("Split", floats(2, 6), opset=13, outputs=3, axis=-1),
    case("Split", floats(2, 7), opset=18, outputs=3, axis=1, num_outputs=3),
    case("BatchNormalization", floats(2, 3, 4), *(floats(3, seed=k) for k in (1, 2, 3)), np.abs(floats(3, seed=4)),
         opset=9, epsilon=1e-3, momentum=0.5),
    case("BatchNormalization", floats(2, 3, 4), *(floats(3, seed=k) for k in (1, 2, 3)), np.abs(floats(3, seed=4)),
         opset=15),
    case("Cast", floats(9) * 3, opset=9, to=onnx.TensorProto.INT32),
    case("Gemm", floats(3, 4), floats(4, 5), floats(5), opset=9, alpha=0.5, beta=2.0),
]  # fmt: skip

ARITHMETIC = [
    case("Div", integers(30, low=-50, high=50), integers(30, low=1, high=9), opset=14),
    case("Div", -integers(30, low=1, high=50, dtype=np.int32), integers(30, low=1, high=9, dtype=np.int32), opset=14),
    case("Mod", integers(30, low=-50, high=50), integers(30, low=1, high=9)),
    case("Mod", integers(30, low=-50, high=50), -integers(30, low=1, high=9), fmod=1),
    case("Mod", floats(30) * 9, floats(30, seed=1), fmod=1),
    case("Pow", np.abs(floats(30)), floats(30, seed=1)),
    case("Pow", floats(30), vector(2, dtype=np.int64).reshape(()), fixed=[1]),
    case("Pow", integers(10, low=0), vector(3, dtype=np.int64).reshape(()), fixed=[1]),
    case("Pow", integers(10, low=0), vector(0.5, dtype=np.float32).reshape(()), fixed=[1]),
    case("Sub", integers(9, low=0, dtype=np.uint8), integers(9, low=0, dtype=np.uint8, seed=1), opset=14),
    case("Add", floats(2, 1, 4), floats(3, 1, seed=1)),
    case("Max", floats(3, 1), floats(4, seed=1), floats(3, 4, seed=2)),
    case("Min", integers(5), integers(5, seed=1)),
    case("Mean", floats(3, 4), floats(4, seed=1), floats(3, 1, seed=2)),
    case("Neg", integers(5)),
    case("Abs", integers(5, dtype=np.int32)),
    case("Sign", floats(5)),
    case("Round", vector(0.5, 1.5, -0.5, -2.5, 2.4, dtype=np.float32)),
    case("Not", integers(5, low=0, high=2).astype(bool)),
    case("Equal", integers(5), integers(5, seed=2)),
    case("Where", integers(5, low=0, high=2).astype(bool), floats(3, 5), floats(5, seed=1)),
    case("IsInf", vector(1, np.inf, -np.inf, np.nan, dtype=np.float32), detect_negative=0),
    case("BitShift", integers(9, low=0, dtype=np.uint8), integers(9, low=0, high=8, dtype=np.uint8), direction="LEFT"),
    case("PRelu", floats(2, 3, 4), floats(3, 1, seed=1)),
    case("Selu", floats(20), alpha=1.5, gamma=1.1),
    case("HardSigmoid", floats(20) * 4, alpha=0.3, beta=0.4),
    case("Elu", floats(20), alpha=0.7),
    case("Celu", floats(20), alpha=0.7),
    case("LeakyRelu", floats(20), alpha=0.3),
    case("ThresholdedRelu", floats(20), alpha=0.3),
    case("Shrink", floats(20), lambd=0.5, bias=0.1),
    case("Gelu", floats(20) * 3, opset=20),
    case("Gelu", floats(20) * 3, opset=20, approximate="tanh"),
    case("Erf", floats(20) * 2),
    case("CumSum", floats(3, 5), vector(1).reshape(()), fixed=[1], exclusive=1, reverse=1),
    case("CumSum", integers(3, 5), vector(0).reshape(()), fixed=[1]),
    case("Add", floats(4, 4, dtype=np.float16), floats(4, dtype=np.float16, seed=1)),
    case("Softmax", floats(4, 6, dtype=np.float16), axis=-1),
    case("Tanh", floats(30, dtype=np.float16)),
]

TIES = np.array([[3, 1, 3, 2, 3], [0, -0.0, 0, np.inf, -np.inf]], np.float32)
ORDERS = [
    case("TopK", floats(3, 8), opset=9, k=3, outputs=2),
    case("TopK", floats(3, 8), opset=9, k=3, outputs=2, axis=0),
    case("TopK", floats(3, 8), vector(5), opset=10, fixed=[1], outputs=2),
    *(case("TopK", floats(2, 9, 3), vector(4), fixed=[1], outputs=2, axis=1, largest=largest) for largest in (0, 1)),
    *(case("TopK", TIES, vector(5), fixed=[1], outputs=2, largest=largest) for largest in (0, 1)),
    *(
        case("TopK", integers(3, 7, dtype=dtype), vector(4), fixed=[1], outputs=2, largest=largest)
        for dtype in (np.int64, np.int32, np.float64)
        for largest in (0, 1)
    ),
    case("TopK", floats(3, 7), vector(0), fixed=[1], outputs=2),
]

CONVOLUTIONS = [
    case("Conv", X, floats(4, 3, 3, 3, seed=1), floats(4, seed=2), pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2]),
    case("Conv", X, floats(6, 1, 3, 2, seed=1), group=3),
    *(case("Conv", X, floats(4, 3, 3, 2, seed=1), auto_pad=mode, strides=[2, 3])
      for mode in ("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")),
    case("Conv", floats(2, 3, 9), floats(4, 3, 3, seed=1), strides=[2], pads=[1, 1]),
    case("Conv", floats(1, 2, 5, 6, 4), floats(3, 2, 2, 3, 1, seed=1)),
    *(case("MaxPool", X, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=ceil) for ceil in (0, 1)),
    case("MaxPool", X, kernel_shape=[2, 3], dilations=[2, 1], strides=[1, 2]),
    case("MaxPool", X, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", integers(1, 2, 6, 6, dtype=np.int8), kernel_shape=[2, 2]),
    *(case("AveragePool", X, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=ceil, opset=19,
           count_include_pad=count) for ceil in (0, 1) for count in (0, 1)),
    case("AveragePool", X, kernel_shape=[2, 2], dilations=[2, 1], opset=19),
    case("LpPool", X, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], p=2, opset=18),
    case("LpPool", X, kernel_shape=[3, 2], p=3, opset=18),
    case("LpPool", X, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1, opset=18),
    case("LpPool", X, kernel_shape=[2, 3], strides=[2, 2], dilations=[2, 1], pads=[1, 0, 0, 1], ceil_mode=1, opset=18),
    *(case(op, X) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")),
    *(case("Gemm", a, b, c, alpha=1.5, beta=0.5, **flags)
      for a, b, flags in ((floats(3, 4), floats(4, 5, seed=1), {}), (floats(4, 3), floats(5, 4, seed=1),
                                                                     {"transA": 1, "transB": 1}))
      for c in (floats(3, 1, seed=2), floats(5, seed=2), None)),
    *(case("MatMul", floats(*a), floats(*b, seed=1))
      for a, b in (((4,), (4,)), ((3, 4), (4,)), ((4,), (2, 4, 3)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4, 5)))),
    case("MatMul", integers(3, 4, dtype=np.int32), integers(4, 2, dtype=np.int32, seed=1)),
    *(case("Einsum", *(floats(*shape, seed=k) for k, shape in enumerate(shapes)), equation=equation)
      for equation, *shapes in (("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("...ij->...ji", (2, 3, 4)), ("ij->", (3, 4)),
                                ("ii->i", (3, 3)), ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)))),
]  # fmt: skip

NORMALIZATIONS = [
    case("InstanceNormalization", X, floats(3, seed=1), floats(3, seed=2), epsilon=1e-3),
    *(
        case("LayerNormalization", floats(2, 3, 4), floats(*s, seed=1), floats(*s, seed=2), axis=axis, outputs=3)
        for axis, s in ((-1, (4,)), (1, (3, 4)))
    ),
    case("LayerNormalization", floats(2, 3, 4), floats(4, seed=1)),
    case("SimplifiedLayerNormalization", floats(2, 3, 4), floats(4, seed=1), axis=-1, epsilon=1e-6),
    *(case("LpNormalization", floats(3, 4), axis=axis, p=p) for axis in (0, -1) for p in (1, 2)),
    case("LRN", X, size=3, alpha=0.1, beta=0.6, bias=1.5),
    case("MeanVarianceNormalization", X),
]

MOVEMENT = [
    *(case("Pad", floats(4, 5), vector(2, 1, 0, 3), None, opset=18, mode=mode, fixed=[1])
      for mode in ("reflect", "edge", "constant")),
    case("Pad", floats(4, 5), vector(2, 6, 0, 7), None, opset=19, mode="wrap", fixed=[1]),
    case("Pad", floats(4, 5), vector(-1, 2), vector(2.5, dtype=np.float32).reshape(()), vector(-1), opset=18,
         fixed=[1, 3]),
    case("Pad", integers(4, 5), vector(1, 0, 0, 1), vector(7).reshape(()), opset=13, fixed=[1, 2]),
    case("Tile", floats(2, 3), vector(2, 3), fixed=[1]),
    case("Expand", floats(3, 1), vector(2, 1, 4), fixed=[1]),
    case("Concat", floats(2, 3), floats(2, 0), floats(2, 1, seed=1), axis=-1),
    case("Reshape", floats(2, 3, 4), vector(0, -1), fixed=[1]),
    case("Reshape", floats(0, 3), vector(3, 0), fixed=[1], allowzero=1, opset=14),
    case("Flatten", floats(2, 3, 4), axis=3),
    case("Flatten", floats(2, 3, 4), axis=-2),
    case("Flatten", floats(2, 3, 4), axis=0),
    case("Transpose", floats(2, 3, 4)),
    *(case("DepthToSpace", floats(1, 8, 2, 3), blocksize=2, mode=mode) for mode in ("DCR", "CRD")),
    case("SpaceToDepth", floats(1, 2, 4, 6), blocksize=2),
    case("Gather", floats(5, 4), vector(-1, 0, 3), axis=0),
    case("Gather", floats(5, 4), vector(3, 1, dtype=np.int32), axis=1, fixed=[1]),
    case("Gather", floats(5, 4), vector(-1).reshape(()), axis=1, fixed=[1]),
    case("GatherElements", floats(3, 4), integers(2, 4, low=-3, high=3), axis=0),
    case("GatherND", floats(3, 4, 5), integers(2, 2, low=0, high=3)),
    case("GatherND", floats(2, 4, 5), integers(2, 3, 1, low=0, high=4), batch_dims=1),
    case("OneHot", integers(2, 3, low=-4, high=4), vector(4), vector(0.5, 2, dtype=np.float32), fixed=[1], axis=1),
    *(case("Trilu", floats(2, 4, 5), vector(k).reshape(()), fixed=[1], upper=upper)
      for k in (-1, 0, 2) for upper in (0, 1)),
    case("EyeLike", floats(3, 4), k=1),
    case("Range", vector(1.0, dtype=np.float32).reshape(()), vector(3.0, dtype=np.float32).reshape(()),
         vector(0.4, dtype=np.float32).reshape(()), fixed=[0, 1, 2]),
    case("Range", vector(9).reshape(()), vector(1).reshape(()), vector(-3).reshape(()), fixed=[0, 1, 2]),
    case("Shape", floats(2, 3, 4), start=-2, opset=15),
    case("Size", floats(2, 3, 4)),
    case("ArgMax", integers(3, 5, low=0, high=3, dtype=np.int32), axis=1, select_last_index=1, keepdims=0),
    case("ArgMin", floats(3, 5), axis=0),
]  # fmt: skip

SCALES = np.float32([1, 1, 1.5, 0.6])
RESIZED = [
    *(case("Resize", X, None, SCALES, fixed=[2], mode=mode, coordinate_transformation_mode=transform, opset=18)
      for mode in ("linear", "cubic") for transform in ("half_pixel", "pytorch_half_pixel", "asymmetric")),
    *(case("Resize", X, None, None, vector(2, 3, 11, 3), fixed=[3], mode=mode, opset=18,
           coordinate_transformation_mode="align_corners") for mode in ("linear", "cubic")),
    *(case("Resize", X, None, SCALES, fixed=[2], mode=mode, antialias=1, opset=18) for mode in ("linear", "cubic")),
    *(case("Resize", X, None, np.float32([1, 1, 2, 0.5]), fixed=[2], nearest_mode=rounding, opset=13,
           coordinate_transformation_mode="asymmetric") for rounding in ("floor", "ceil", "round_prefer_floor")),
    case("Resize", X, vector(0, 0, 0.1, 0.2, 1, 1, 0.9, 1.3, dtype=np.float32), None, vector(2, 3, 5, 6),
         fixed=[1, 3], opset=13, mode="linear", coordinate_transformation_mode="tf_crop_and_resize",
         extrapolation_value=7.0),
    case("Resize", X, None, SCALES, fixed=[2], mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5, opset=13),
    case("Resize", X, np.float32([1, 1, 2, 0.5]), fixed=[1], mode="nearest", opset=10),
    case("Upsample", X, np.float32([1, 1, 2, 1]), fixed=[1], mode="linear", opset=9),
    case("Upsample", X, opset=7, scales=[1.0, 1.0, 2.0, 3.0]),
]  # fmt: skip

GRID = floats(2, 5, 4, 2, seed=1) * 1.2
SAMPLED = [
    *(case("GridSample", X, GRID, mode=mode, padding_mode=padding, align_corners=align, opset=16)
      for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")
      for align in (0, 1)),
    case("GridSample", floats(1, 2, 3, 4, 5), floats(1, 2, 3, 4, 3, seed=1), opset=20, mode="linear"),
    *(case("RoiAlign", X, np.abs(floats(3, 4)) * 4 + np.float32([0, 0, 2, 2]), vector(0, 1, 0), opset=opset,
           output_height=3, output_width=2, sampling_ratio=ratio, spatial_scale=0.7)
      for opset in (10, 16) for ratio in (2, 0)),
    case("RoiAlign", X, np.float32([[0, 0, 9, 9], [3, 2, 2, 1], [1, 1, 30, 40]]), vector(0, 1, 0), opset=16, mode="max",
         output_height=2, output_width=3),
    case("DeformConv", floats(1, 4, 6, 7), floats(6, 2, 3, 2, seed=1), floats(1, 24, 3, 6, seed=2), floats(6, seed=3),
         floats(1, 12, 3, 6, seed=4), opset=19, strides=[2, 1], pads=[1, 0, 0, 0], group=2, offset_group=2),
    *(case("ConvTranspose", X, floats(3, 4, 3, 2, seed=1), floats(4, seed=2), opset=11, strides=strides,
           dilations=dilations, pads=[1, 0, 2, 1])
      for strides, dilations in (([1, 1], [2, 1]), ([2, 3], [1, 1]), ([2, 3], [3, 2]), ([4, 1], [1, 3]))),
    case("ConvTranspose", floats(2, 6, 5), floats(6, 2, 4, seed=1), group=3, strides=[3], output_padding=[2]),
    *(case("ConvTranspose", X, floats(3, 2, 3, 3, seed=1), strides=[2, 3], auto_pad=mode)
      for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    case("ConvTranspose", X, floats(3, 2, 3, 3, seed=1), strides=[2, 2], output_shape=[15, 14]),
    case("Col2Im", floats(2, 12, 12), vector(5, 6), vector(2, 3), fixed=[1, 2], opset=18, strides=[2, 1],
         dilations=[1, 1], pads=[1, 0, 0, 0]),
    case("Col2Im", floats(1, 6, 6), vector(7, 6), vector(2, 3), fixed=[1, 2], opset=18, strides=[2, 1],
         dilations=[2, 2]),
    *(case("DFT", floats(2, 8, 3, parts), opset=17, axis=1, **flags)
      for parts, flags in ((1, {"onesided": 1}), (1, {}), (2, {"inverse": 1}), (2, {}))),
    case("DFT", floats(2, 5, 1), vector(9).reshape(()), fixed=[1], opset=17),
    case("STFT", floats(2, 40, 1), vector(7).reshape(()), np.abs(floats(16)), fixed=[1], opset=17),
    case("STFT", floats(2, 40), vector(7).reshape(()), np.abs(floats(16)), fixed=[1], opset=17),
    case("STFT", floats(2, 40, 1), vector(7).reshape(()), None, vector(12).reshape(()), fixed=[1, 3], opset=17,
         onesided=0),
]  # fmt: skip

PICKED = [
    case("Compress", floats(3, 4), np.array([True, False, True]), fixed=[1], axis=0),
    case("Compress", floats(3, 4), np.array([False, True, True, False, True]), fixed=[1]),
    case("ReverseSequence", floats(5, 3, 2), vector(2, 5, 1)),
    case("ReverseSequence", floats(3, 5, 2), vector(2, 0, 4), batch_axis=0, time_axis=1),
    *(case("MaxPool", integers(2, 2, 7, 6, low=0, high=5).astype(np.float32), outputs=2, kernel_shape=[3, 2],
           strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=ceil, storage_order=order)
      for ceil in (0, 1) for order in (0, 1)),
    case("MaxPool", floats(1, 2, 9), outputs=2, kernel_shape=[3], dilations=[2], strides=[2]),
    case("Det", floats(2, 3, 5, 5), opset=11),
    case("Det", np.float32([[0, 2, 1], [0, 1, 1], [3, 1, 0]]), opset=11),
    case("Det", np.float32([[1, 2], [2, 4]]), opset=11),
]  # fmt: skip

TABLE = vector([1, -2, 3], [0, 0, 0], [-1, -4, -2], [np.nan, 1, 2], dtype=np.float32)
NUMBERS = [0.5, -0.25, 0.75, 1.5, -1.0, 0.125, -0.5, 0.375, 2.0]
CLASSICAL = [
    case("ArrayFeatureExtractor", floats(3, 4), vector(2, 0), domain="ai.onnx.ml"),
    case("Binarizer", floats(3, 4), domain="ai.onnx.ml", threshold=0.25),
    case("LabelEncoder", vector(3, 9, -4, 3, 100, 7), domain="ai.onnx.ml", keys_int64s=[7, 3, -4, 7],
         values_floats=[0.5, 1.5, 2.5, 3.5], default_float=-2.0, version=2),
    case("LabelEncoder", vector(0.5, np.nan, -1, np.inf, 2, dtype=np.float32), domain="ai.onnx.ml", version=4,
         keys_floats=[2.0, 0.5, float("nan")], values_int64s=[4, 5, 6], default_int64=9),
    case("CategoryMapper", vector(3, 9, 4), domain="ai.onnx.ml", cats_int64s=[3, 4], cats_strings=["three", "four"],
         default_string="many"),
    case("CategoryMapper", np.array([["four", "three", "ten"]], object), domain="ai.onnx.ml", cats_int64s=[3, 4],
         cats_strings=["three", "four"]),
    case("Scaler", TABLE, domain="ai.onnx.ml", offset=[1.0, 2.0, -3.0], scale=[0.5, -2.0, 3.0]),
    case("Scaler", integers(4, 3, dtype=np.int32), domain="ai.onnx.ml", offset=[0.25], scale=[0.1]),
    *(case("Normalizer", x, domain="ai.onnx.ml", norm=norm) for norm in ("MAX", "L1", "L2")
      for x in (TABLE, -np.abs(floats(3)), integers(4, 3))),
    case("Imputer", TABLE, domain="ai.onnx.ml", imputed_value_floats=[7.0, 8.0, 9.0],
         replaced_value_float=float("nan")),
    case("Imputer", TABLE, domain="ai.onnx.ml", imputed_value_floats=[0.1]),
    case("Imputer", integers(4, 3, low=0, high=4), domain="ai.onnx.ml", imputed_value_int64s=[5, 6, 7],
         replaced_value_int64=2),
    *(case("OneHotEncoder", x, domain="ai.onnx.ml", cats_int64s=[4, -1, 0, 2], zeros=1)
      for x in (integers(2, 5, low=-2, high=5), floats(6) * 4)),
    case("OneHotEncoder", np.array(["b", "a", "d"], object), domain="ai.onnx.ml", cats_strings=["a", "b", "c"]),
    case("FeatureVectorizer", floats(4, 3), floats(4, 2, seed=1), floats(4, 2, seed=2), domain="ai.onnx.ml",
         inputdimensions=[3, 1, 4]),
    case("LinearRegressor", floats(4, 3), domain="ai.onnx.ml", coefficients=[0.5, -1.0, 2.0], intercepts=[0.25]),
    *(case("LinearRegressor", floats(4, 3), domain="ai.onnx.ml", targets=2, post_transform=how,
           coefficients=NUMBERS[:6]) for how in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")),
    *(case("LinearClassifier", floats(9, 3), outputs=2, domain="ai.onnx.ml", coefficients=NUMBERS[: 3 * rows],
           intercepts=NUMBERS[3 - rows :][:rows], post_transform=how, **(
               {"classlabels_ints": [4, 7, 9][:max(rows, 2)]} if rows < 3 else {"classlabels_strings": ["x", "", "z"]}))
      for rows in (1, 2, 3) for how in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")),
    *(case("SVMRegressor", floats(5, 3), domain="ai.onnx.ml", n_supports=2, coefficients=[0.5, -1.5], rho=[0.25],
           support_vectors=NUMBERS[:6], kernel_type=kernel, kernel_params=[0.3, 0.2, 3.0], one_class=one)
      for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID") for one in (0, 1)),
    case("SVMRegressor", floats(5, 3), domain="ai.onnx.ml", coefficients=[0.5, -1.5, 1.0], rho=[0.25],
         kernel_params=[0.0] * 3),
]  # fmt: skip

PIXELS, POINTS = integers(1, 2, 5, 6, low=0, high=255, dtype=np.uint8), np.array([7, 100], np.uint8)
FILTERS = integers(3, 2, 3, 3, low=-90, high=90, dtype=np.int8)
SCALE, ZERO = np.array(0.01, np.float32), np.array(0, np.int8)
QUANTIZED = [
    *(case("QLinearConv", PIXELS, np.asarray(SCALE * 2, np.float32), POINTS[:1].reshape(()), FILTERS, scale, zero,
           np.asarray(SCALE * 40, np.float32), POINTS[1:].reshape(()), bias,
           fixed=[*range(1, 8 + (bias is not None))], pads=[1, 0, 1, 1], strides=[2, 1])
      for scale, zero, bias in ((SCALE, ZERO, None),
                                (np.float32([0.01, 0.03, 0.02]), np.int8([0, 0, 0]), vector(9, -800, 70).astype("i")))),
    case("DequantizeLinear", integers(3, 4, low=0, high=255, dtype=np.uint8), floats(4),
         vector(*range(4), dtype=np.uint8)),
    case("DequantizeLinear", integers(3, 4, dtype=np.int8), vector(0.1, dtype=np.float32).reshape(())),
    case("QuantizeLinear", floats(3, 4) * 9, np.abs(floats(3)) + 0.05, vector(-3, 0, 5, dtype=np.int8), axis=0),
    case("MatMulInteger", integers(3, 4, low=0, dtype=np.uint8), integers(4, 2, dtype=np.int8),
         vector(3, dtype=np.uint8).reshape(()), vector(1, dtype=np.int8).reshape(())),
    case("DynamicQuantizeLinear", floats(3, 4), outputs=3),
]  # fmt: skip

BYTES, MORE = (integers(3, 4, low=0, high=255, dtype=np.uint8, seed=k) for k in (1, 2))
LOW, HIGH, MIDDLE = np.array(0.021, np.float32), np.array(0.053, np.float32), np.array(120, np.uint8)
NIBBLES = integers(5, 3, 8, low=0, high=255, dtype=np.uint8)
CONTRIBUTED = [
    *(case("FusedConv", X, floats(4, 3, 3, 3, seed=1), floats(4, seed=2), pads=[1, 1, 1, 1], domain="com.microsoft",
           activation=name, **parameters)
      for name, parameters in (("Relu", {}), ("LeakyRelu", {"activation_params": [0.2]}),
                               ("Clip", {"activation_params": [-0.5, 1.0]}), ("Sigmoid", {}),
                               ("HardSigmoid", {"activation_params": [0.3, 0.4]}))),
    case("FusedConv", X, floats(4, 3, 3, 3, seed=1), floats(4, seed=2), floats(2, 4, 6, 5, seed=3), activation="Relu",
         domain="com.microsoft"),
    *(case("FusedGemm", floats(3, 4), floats(4, 5, seed=1), floats(5, seed=2), domain="com.microsoft", alpha=0.5,
           activation=name, **parameters)
      for name, parameters in (("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.2}))),
    *(case(op, BYTES, LOW, MIDDLE, MORE, HIGH, MIDDLE, HIGH, MIDDLE, domain="com.microsoft")
      for op in ("QLinearAdd", "QLinearMul")),
    case("QLinearSigmoid", BYTES, HIGH, MIDDLE, np.array(2**-8, np.float32), np.array(0, np.uint8),
         fixed=[1, 2, 3, 4], domain="com.microsoft"),
    case("QLinearLeakyRelu", BYTES, LOW, MIDDLE, HIGH, MIDDLE, fixed=[1, 2, 3, 4], domain="com.microsoft", alpha=0.3),
    case("QLinearGlobalAveragePool", integers(2, 3, 4, 5, low=0, high=255, dtype=np.uint8), LOW, MIDDLE, HIGH, MIDDLE,
         domain="com.microsoft"),
    case("QLinearConcat", HIGH, MIDDLE, BYTES, LOW, MIDDLE, MORE, HIGH, MIDDLE, fixed=[0, 1, 3, 4, 6, 7], axis=1,
         domain="com.microsoft"),
    case("MatMulIntegerToFloat", BYTES, integers(4, 5, low=-9, dtype=np.int8), LOW, np.abs(floats(5)), MIDDLE,
         np.array([3], np.int8), floats(5, seed=2), domain="com.microsoft"),
    case("DynamicQuantizeMatMul", floats(3, 4), integers(4, 5, low=-99, high=99, dtype=np.int8), HIGH.reshape(1),
         np.array([2], np.int8), floats(5, seed=2), fixed=[1, 2, 3], domain="com.microsoft"),
    *(case("MatMulNBits", floats(2, 3, 42), NIBBLES, floats(15, seed=1), zeros, fixed=[1, 2, *extra], K=42, N=5,
           block_size=16, domain="com.microsoft")
      for zeros, extra in ((None, []), (integers(10, low=0, high=255, dtype=np.uint8), [3]))),
    case("MatMulNBits", floats(3, 32), integers(5, 2, 16, low=0, high=255, dtype=np.uint8), floats(10, seed=1),
         fixed=[1, 2], K=32, N=5, block_size=16, bits=8, domain="com.microsoft"),
    case("Gelu", floats(20), domain="com.microsoft"),
    *(case("QuickGelu", floats(20) * 9, domain="com.microsoft", alpha=alpha) for alpha in (1.5, -1.5, 0.0)),
    case("QuickGelu", floats(20), domain="com.microsoft"),
    case("FastGelu", floats(3, 4), floats(4, seed=1), domain="com.microsoft"),
    case("BiasGelu", floats(3, 4), floats(4, seed=1), domain="com.microsoft"),
    case("SkipLayerNormalization", *(floats(2, 3, 4, seed=k) for k in (0, 1)), *(floats(4, seed=k) for k in (2, 3, 4)),
         domain="com.microsoft", epsilon=1e-5),
    case("SkipSimplifiedLayerNormalization", *(floats(2, 3, 4, seed=k) for k in (0, 1)), floats(4, seed=2),
         domain="com.microsoft", epsilon=1e-5),
    case("FusedMatMul", floats(2, 4, 3), floats(5, 4), domain="com.microsoft", alpha=0.5, transA=1, transB=1),
]  # fmt: skip

REGIONS = np.float32([[0, 0, 0, 6, 7], [1, 2.5, 1.4, 5, 3], [0, 5, 6, 30, 40], [1, -4, -3, 1, 1], [0, 9, 9, 12, 12]])
MAX_ROI = [
    case("MaxRoiPool", X, REGIONS, pooled_shape=shape, spatial_scale=scale)
    for shape, scale in (([1, 1], 1.0), ([2, 3], 1.0), ([3, 2], 0.5))
]

SMALL, ZERO8 = np.array(2**-8, np.float32), np.array(0, np.uint8)
QUANTIZED_MORE = [
    *(case("QLinearAveragePool", integers(2, 3, 6, 5, low=0, high=255, dtype=np.uint8), LOW, MIDDLE, HIGH, MIDDLE,
           domain="com.microsoft", kernel_shape=[2, 3], pads=[1, 1, 0, 1], count_include_pad=k) for k in (0, 1)),
    case("QGemm", BYTES, LOW, MIDDLE, integers(4, 5, low=-9, dtype=np.int8), np.abs(floats(5)),
         integers(5, low=-2, high=3, dtype=np.int8), integers(5, dtype=np.int32), HIGH, MIDDLE, domain="com.microsoft"),
    case("QGemm", BYTES, LOW, MIDDLE, integers(5, 4, low=-9, dtype=np.int8), LOW, np.array(3, np.int8), transB=1,
         alpha=0.5, domain="com.microsoft"),
    case("GatherBlockQuantized", integers(9, 32, low=0, high=255, dtype=np.uint8), integers(2, 3, low=0, high=9),
         floats(9, 4), fixed=[0, 2], bits=4, block_size=16, domain="com.microsoft"),
    case("GatherBlockQuantized", integers(9, 32, low=0, high=255, dtype=np.uint8), integers(2, 3, low=0, high=9),
         floats(9, 2), integers(9, 2, low=0, high=255, dtype=np.uint8), fixed=[0, 2, 3], bits=8, block_size=16,
         domain="com.microsoft"),
    case("QuantizeLinear", floats(3, 4) * 9, HIGH, np.array(300, np.uint16), domain="com.microsoft"),
    case("DequantizeLinear", integers(3, 4, dtype=np.int16), LOW, np.array(-3, np.int16), domain="com.microsoft"),
    case("TransposeMatMul", floats(4, 3), floats(5, 4), domain="com.microsoft", alpha=0.5, transA=1, transB=1),
    *(case("QAttention", integers(2, 5, 16, low=0, high=255, dtype=np.uint8),
           integers(16, 48, low=-99, high=99, dtype=np.int8), floats(48), np.array(0.02, np.float32),
           np.array(0.01, np.float32), mask, np.array(120, np.uint8), np.array(3, np.int8), past, fixed=[1, 7],
           num_heads=4, outputs=2, domain="com.microsoft")
      for mask, past in ((None, None), (vector(3, 5, dtype=np.int32), None), (None, floats(2, 2, 4, 3, 4)))),
]  # fmt: skip


def attention(op: str, *inputs: Array | None, **options: Any) -> Any:
    shapes = "_".join("" if x is None else "x".join(map(str, x.shape)) for x in inputs)
    given = {"domain": "com.microsoft", **options}
    shown = [f"{k}={v}" for k, v in options.items() if k not in ("fixed", "outputs")]
    return pytest.param(op, inputs, given, id="-".join([op, shapes, *shown]))


SELF = floats(2, 5, 16), floats(16, 48, seed=1) / 4, floats(48, seed=2)
QUERY, KEY, VALUE = (floats(2, 5, 16, seed=k) for k in range(3))
CACHES = floats(2, 2, 3, 16, seed=5), floats(2, 2, 3, 16, seed=6)
GROUPED = floats(2, 1, 64), floats(2, 1, 32, seed=1), floats(2, 1, 32, seed=2)
ANGLES = np.cos(floats(9, 2)), np.sin(floats(9, 2))
WIDER = np.cos(floats(9, 8)), np.sin(floats(9, 8))
INT = np.int32
ATTENTION = [
    attention("Attention", *SELF, num_heads=4),
    attention("Attention", *SELF, num_heads=4, unidirectional=1, scale=0.3),
    attention("Attention", *SELF, vector(3, 5, dtype=INT), num_heads=4),
    attention("Attention", *SELF, vector(4, 5, 1, 0, dtype=INT), num_heads=4),
    attention("Attention", *SELF, integers(2, 5, low=0, high=2, dtype=INT), num_heads=2),
    attention("Attention", *SELF, integers(2, 5, 5, low=0, high=2, dtype=INT), num_heads=2, unidirectional=1),
    attention("Attention", *SELF, None, None, floats(2, 4, 5, 5, seed=3), num_heads=4),
    attention("Attention", *SELF, None, floats(2, 2, 4, 3, 4, seed=3), num_heads=4, unidirectional=1, outputs=2),
    attention("Attention", *SELF[:2], floats(48), integers(2, 8, low=0, high=2, dtype=INT),
              floats(2, 2, 4, 3, 4, seed=3), num_heads=4, outputs=2),
    attention("Attention", floats(2, 5, 16), floats(16, 40, seed=1), floats(40), num_heads=4,
              qkv_hidden_sizes=[16, 16, 8]),
    attention("MultiHeadAttention", QUERY, KEY, VALUE, num_heads=4),
    attention("MultiHeadAttention", QUERY, floats(2, 7, 16), floats(2, 7, 24), floats(56), num_heads=4),
    attention("MultiHeadAttention", QUERY, KEY, VALUE, floats(48), vector(2, 5, dtype=INT), num_heads=4),
    attention("MultiHeadAttention", QUERY, KEY, VALUE, None, integers(2, 5, low=0, high=2, dtype=INT),
              floats(1, 4, 5, 5), num_heads=4, scale=0.25),
    attention("MultiHeadAttention", QUERY, KEY, VALUE, None, integers(2, 5, 5, low=0, high=2, dtype=INT), num_heads=4),
    attention("MultiHeadAttention", QUERY, KEY, VALUE, num_heads=4, unidirectional=1, outputs=3),
    attention("MultiHeadAttention", QUERY, KEY, VALUE, None, None, None, floats(2, 4, 3, 4), floats(2, 4, 3, 4, seed=7),
              num_heads=4, outputs=3),
    attention("MultiHeadAttention", QUERY, floats(2, 4, 7, 4), floats(2, 4, 7, 4, seed=2), num_heads=4),
    attention("GroupQueryAttention", *GROUPED, *CACHES, vector(3, 3, dtype=INT), vector(4, dtype=INT), num_heads=4,
              kv_num_heads=2, fixed=[6], outputs=3),
    attention("GroupQueryAttention", floats(2, 5, 128), None, None, None, None, vector(4, 4, dtype=INT),
              vector(5, dtype=INT), *WIDER, num_heads=4, kv_num_heads=2, do_rotary=1, fixed=[6], outputs=3),
    attention("GroupQueryAttention", floats(1, 3, 64), floats(1, 3, 32, seed=1), floats(1, 3, 32, seed=2),
              *(x[:1] for x in CACHES), vector(5, dtype=INT), vector(6, dtype=INT), num_heads=4, kv_num_heads=2,
              scale=0.4, smooth_softmax=1, fixed=[6], outputs=3),
    attention("GroupQueryAttention", *GROUPED, *CACHES, vector(3, 3, dtype=INT), vector(4, dtype=INT), None, None, None,
              floats(2, 4, 1, 4), num_heads=4, kv_num_heads=2, fixed=[6], outputs=3),
    attention("GroupQueryAttention", *GROUPED, *CACHES, vector(3, 3, dtype=INT), vector(4, dtype=INT), None, None, None,
              None, floats(4), num_heads=4, kv_num_heads=2, fixed=[6], outputs=3),
    *(attention("RotaryEmbedding", floats(2, 3, 16), vector(4), *ANGLES, interleaved=k) for k in (0, 1)),
    attention("RotaryEmbedding", floats(2, 4, 3, 4), integers(2, 3, low=0, high=8), *ANGLES),
    attention("RotaryEmbedding", floats(2, 3, 24), integers(2, 3, low=0, high=8), *ANGLES, num_heads=3,
              rotary_embedding_dim=4),
    attention("EmbedLayerNormalization", integers(2, 5, low=0, high=7, dtype=INT),
              integers(2, 5, low=0, high=2, dtype=INT), floats(7, 8), floats(9, 8, seed=1), floats(2, 8, seed=2),
              floats(8, seed=3), floats(8, seed=4), integers(2, 5, low=0, high=2, dtype=INT), outputs=3),
    attention("EmbedLayerNormalization", integers(2, 5, low=0, high=7, dtype=INT), None, floats(7, 8),
              floats(9, 8, seed=1), None, floats(8, seed=3), floats(8, seed=4), None,
              integers(2, 5, low=0, high=9, dtype=INT), epsilon=1e-3, outputs=3),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        *OLDER,
        *ARITHMETIC,
        *ORDERS,
        *CONVOLUTIONS,
        *NORMALIZATIONS,
        *MOVEMENT,
        *RESIZED,
        *SAMPLED,
        *PICKED,
        *CLASSICAL,
        *QUANTIZED,
        *CONTRIBUTED,
        *ATTENTION,
        *QUANTIZED_MORE,
        *MAX_ROI,
    ],
)
def test_agrees_with_onnxruntime(op: str, inputs: tuple[Array | None, ...], options: dict[str, Any]) -> None:
    proto, given = models.one(op, *inputs, **options)
    half = any(array is not None and array.dtype == np.float16 for array in inputs)
    models.assert_close(
        models.imported(proto, given), models.by_onnxruntime(proto, given), tolerance=2e-3 if half else 3e-6
    )


@pytest.mark.parametrize("keys", [1, 3])
def test_packed_heads_are_as_separate_ones(keys: int) -> None:
    """onnxruntime has these forms on GPUs alone."""
    packed = floats(2, 5, 4, 3, 4)
    q, k, v = (np.ascontiguousarray(packed[:, :, :, part]).reshape(2, 5, 16) for part in range(3))
    options = {"domain": "com.microsoft", "num_heads": 4, "unidirectional": 1}
    given = [packed] if keys == 3 else [q, np.ascontiguousarray(packed[:, :, :, 1:])]
    found = models.imported(*models.one("MultiHeadAttention", *given, **options))
    wanted = models.imported(*models.one("MultiHeadAttention", q, k, v, **options))
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize(
    ("caches", "ends", "options"),
    [
        (CACHES, (3, 1), {}),
        ((floats(2, 2, 9, 16), floats(2, 2, 9, 16, seed=3)), (5, 5),
         {"rotary_interleaved": 1, "local_window_size": 3, "softcap": 2.0}),
    ],
)  # fmt: skip
def test_caches_with_room(caches: tuple[Array, Array], ends: tuple[int, int], options: dict[str, Any]) -> None:
    """What is in a cache behind the end of a sequence is nobody's business."""
    inputs = (*GROUPED, *caches, vector(*ends, dtype=INT), vector(max(ends) + 1, dtype=INT), *WIDER)
    heads = {"domain": "com.microsoft", "num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    proto, given = models.one("GroupQueryAttention", *inputs, fixed=[6], outputs=3, **heads, **options)
    found, wanted = models.imported(proto, given), models.by_onnxruntime(proto, given)
    for arrays in (found, wanted):
        for cache in arrays[1:]:
            for sequence, end in enumerate(ends):
                cache[sequence, :, end + 1 :] = 0
    models.assert_close(found, wanted, tolerance=3e-6)


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_of_bytes(opset: int, axis: int) -> None:
    inputs = (integers(2, 3, 4, low=0, high=255, dtype=np.uint8), LOW, MIDDLE, SMALL, ZERO8)
    proto, given = models.one("QLinearSoftmax", *inputs, fixed=[1, 2, 3, 4], domain="com.microsoft", axis=axis)
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("opset", opset))
    models.assert_close(models.imported(proto, given), models.by_onnxruntime(proto, given), tolerance=0)


def trees(count: int, targets: int, **options: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Trees of one node each, whose leaves belong to targets in turn."""
    names = range(count)
    numbers = {"nodes_splits": floats(count, seed=1), "leaf_weights": floats(2 * count, seed=2)}
    tensors = {name: onnx.numpy_helper.from_array(array, name) for name, array in numbers.items()}
    modes = onnx.numpy_helper.from_array(np.zeros(count, np.uint8), "nodes_modes")
    return models.one(
        "TreeEnsemble", floats(5, 3), domain="ai.onnx.ml", version=5, n_targets=targets, tree_roots=[*names],
        nodes_featureids=[k % 3 for k in names], nodes_modes=modes, **tensors,
        nodes_truenodeids=[*names], nodes_falsenodeids=[k + count for k in names],
        nodes_trueleafs=[1] * count, nodes_falseleafs=[1] * count,
        leaf_targetids=[k % targets for k in range(2 * count)], **options,
    )  # fmt: skip


@pytest.mark.parametrize("how", range(4))
@pytest.mark.parametrize("targets", [1, 3])
def test_leaves_are_combined_by_target(how: int, targets: int) -> None:
    """Some samples reach no leaf of a target: onnxruntime then has 0 as the least and the largest, ONNX the type's."""
    proto, given = trees(8, targets, aggregate_function=how)
    wanted = models.by_reference(proto, given)
    models.assert_close(models.imported(proto, given), wanted, tolerance=3e-6)


def forest(kind: str, listed: Sequence[tuple[int, int, float]], **options: Any) -> dict[str, Any]:
    """Attributes of two trees that look at three columns, with ``listed`` votes: a leaf, what it votes for, and how
    much. Leaves are counted through: 2 in the first tree, 3 in the second."""
    places = [(0, 1), (0, 2), (1, 2), (1, 3), (1, 4)]
    return {
        "domain": "ai.onnx.ml", "version": 3, "nodes_treeids": [0] * 3 + [1] * 5, "nodes_nodeids": [0, 1, 2, *range(5)],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "BRANCH_LT", "LEAF", "LEAF", "LEAF"],
        "nodes_featureids": [0, 0, 0, 1, 2, 0, 0, 0], "nodes_values": [0.1, 0, 0, -0.2, 0.3, 0, 0, 0],
        "nodes_truenodeids": [1, 0, 0, 1, 3, 0, 0, 0], "nodes_falsenodeids": [2, 0, 0, 2, 4, 0, 0, 0],
        "nodes_missing_value_tracks_true": [0, 0, 0, 1, 0, 0, 0, 0],
        f"{kind}_treeids": [places[leaf][0] for leaf, _, _ in listed], f"{kind}_ids": [what for _, what, _ in listed],
        f"{kind}_nodeids": [places[leaf][1] for leaf, _, _ in listed],
        f"{kind}_weights": [weight for _, _, weight in listed], **options,
    }  # fmt: skip


SAMPLES = np.concatenate([floats(20, 3), vector([np.nan, np.nan, 0.5], dtype=np.float32)])
WEIGHTS = [0.5, -0.25, 0.75, 0.125, -1.5]
FORESTS = [
    *(("Regressor", 1, x, forest("target", [(k, t, w - t) for k, w in enumerate(WEIGHTS) for t in range(n)],
                                 aggregate_function=how, base_values=[0.1, -0.2, 0.3][:n], n_targets=n))
      for n, x in ((1, SAMPLES), (3, SAMPLES), (3, SAMPLES.astype(np.float64)))
      for how in ("SUM", "AVERAGE", "MIN", "MAX")),
    ("Regressor", 1, SAMPLES, forest("target", [(k, k % 2, 0.5) for k in range(5)] + [(3, 1, 0.25)], n_targets=2,
                                     post_transform="LOGISTIC")),
    *(("Classifier", 2, SAMPLES, forest("class", [(k, 0, abs(w) if all_positive else w) for k, w in enumerate(WEIGHTS)],
                                        classlabels_int64s=[4, 9], post_transform=how, **base))
      for all_positive in (False, True) for how in ("NONE", "LOGISTIC") for base in ({}, {"base_values": [0.125]})),
    *(("Classifier", 2, SAMPLES, forest("class", [(k, 1, abs(w)) for k, w in enumerate(WEIGHTS)], post_transform=how,
                                        classlabels_strings=["no", "yes"]))
      for how in ("NONE", "LOGISTIC", "SOFTMAX")),
    *(("Classifier", 2, SAMPLES, forest("class", [(k, c, 0.1 * (k + 1) ** c) for k in range(5) for c in range(3)],
                                        classlabels_strings=["a", "b", "c"], post_transform=how, **base))
      for how in ("NONE", "SOFTMAX", "SOFTMAX_ZERO") for base in ({}, {"base_values": [0.5, 0.0, -0.5]})),
]  # fmt: skip


@pytest.mark.parametrize(("what", "outputs", "samples", "attributes"), FORESTS)
def test_trees_with_votes(what: str, outputs: int, samples: Array, attributes: dict[str, Any]) -> None:
    proto, given = models.one(f"TreeEnsemble{what}", samples, outputs=outputs, **attributes)
    models.assert_close(models.imported(proto, given), models.by_onnxruntime(proto, given), tolerance=3e-6)


def test_of_two_classes_the_one_with_more_votes_is_the_label() -> None:
    """onnxruntime takes the second wherever anything votes for it; ONNX says the top one."""
    shares = [0.3, 0.7, 0.4, 0.8, 0.1]  # of the first class
    votes = [(leaf, which, abs(which - share)) for leaf, share in enumerate(shares) for which in (0, 1)]
    attributes = forest("class", [(k, c, 1 - w) for k, c, w in votes], classlabels_int64s=[4, 9])
    found = models.imported(*models.one("TreeEnsembleClassifier", SAMPLES, outputs=2, **attributes))
    np.testing.assert_array_equal(found[0], np.array([4, 9])[found[1].argmax(1)])
    assert {*found[0].tolist()} == {4, 9}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nodes_truenodeids": [7, 0, 0, 1, 3, 0, 0, 0]}, "a node 7 of tree 0 that there is not"),
        ({"nodes_truenodeids": [2, 0, 0, 1, 3, 0, 0, 0]}, "expected one root for each tree"),
        ({"target_nodeids": [1, 2, 2, 3, 1]}, "expected votes at leaves"),
        ({"target_ids": [0, 0, 0, 0, 1]}, "for one of 0 to 0"),
        ({"nodes_modes": ["BRANCH_LEQ"] * 7 + ["BUSH"]}, "BUSH"),
        ({"base_values": [1.0, 2.0]}, "expected 1 numbers, found 2"),
        ({"post_transform": "LOGISTIC"}, "of one target"),
        ({"nodes_values": [0.5]}, "different lengths"),
    ],
)
def test_trees_that_are_refused(changed: dict[str, Any], message: str) -> None:
    attributes = forest("target", [(k, 0, w) for k, w in enumerate(WEIGHTS)], n_targets=1) | changed
    proto, _ = models.one("TreeEnsembleRegressor", SAMPLES, **attributes)
    with pytest.raises(LuminalError, match=message):
        importer.load(proto)


def support(sizes: Sequence[int], **options: Any) -> dict[str, Any]:
    count, vectors = len(sizes), sum(sizes)
    return {
        "domain": "ai.onnx.ml", "vectors_per_class": sizes, "support_vectors": floats(vectors * 3, seed=4).tolist(),
        "coefficients": floats((count - 1) * vectors, seed=5).tolist(), "kernel_params": [0.3, 0.2, 3.0],
        "rho": (floats(count * (count - 1) // 2, seed=6) * 0.1).tolist(),
        "classlabels_ints": [*range(7, 7 + count)], **options,
    }  # fmt: skip


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF"])
@pytest.mark.parametrize(
    ("sizes", "how"),
    [((3, 2), "NONE"), ((1, 4), "LOGISTIC"), ((3, 1, 2), "NONE"), ((2, 2, 1, 3), "LOGISTIC"), ((1, 2, 3), "SOFTMAX")],
)
def test_classes_that_support_vectors_tell_apart(sizes: Sequence[int], how: str, kernel: str) -> None:
    attributes = support(sizes, kernel_type=kernel, post_transform=how)
    proto, given = models.one("SVMClassifier", floats(60, 3, seed=7) * 2, outputs=2, **attributes)
    found = models.imported(proto, given)
    models.assert_close(found, models.by_onnxruntime(proto, given), tolerance=3e-6)
    assert len({*found[0].tolist()}) > 1


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF"])
@pytest.mark.parametrize("sizes", [(3, 2), (3, 1, 2), (2, 2, 1, 3), (1, 2, 1, 2, 1, 2, 1)])
def test_probabilities_of_support_vectors(sizes: Sequence[int], kernel: str) -> None:
    pairs = len(sizes) * (len(sizes) - 1) // 2
    fitted = {"prob_a": (floats(pairs, seed=8) - 2).tolist(), "prob_b": floats(pairs, seed=9).tolist()}
    proto, given = models.one("SVMClassifier", floats(60, 3, seed=7) * 2, outputs=2,
                              **support(sizes, kernel_type=kernel, **fitted))  # fmt: skip
    found = models.imported(proto, given)
    models.assert_close(found, models.by_onnxruntime(proto, given), tolerance=1e-5)
    np.testing.assert_allclose(found[1].sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "changed", "message"),
    [
        ((2, 2), {"prob_a": [-1.0, 2.0], "prob_b": [0.5]}, "'prob_a': expected 1 x 1 numbers, found 2"),
        ((2, 2, 1), {"prob_a": [-1.0, 2.0, 1.0]}, "'prob_b': expected 1 x 3 numbers, found 0"),
        ((2, 2), {"vectors_per_class": [4]}, r"of 2 classes, found \[4\]"),
        ((2, 2), {"post_transform": "SOFTMAX"}, "SOFTMAX of 2 classes"),
        ((2, 2), {"coefficients": [1.0]}, "expected 1 x 4 numbers, found 1"),
        ((2, 2), {"post_transform": "PROBIT"}, "PROBIT"),
    ],
)
def test_support_vectors_that_are_refused(sizes: Sequence[int], changed: dict[str, Any], message: str) -> None:
    proto, _ = models.one("SVMClassifier", floats(5, 3), outputs=2, **(support(sizes) | changed))
    with pytest.raises(LuminalError, match=message):
        importer.load(proto)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
def test_features_of_other_types(dtype: type) -> None:
    """onnxruntime has not all of these; numbers that float32 holds give the same."""
    x = integers(9, 3, low=-4, high=5)
    given = {"domain": "ai.onnx.ml"}
    for op, attributes in (
        ("LinearRegressor", given | {"coefficients": NUMBERS[:6], "targets": 2}),
        ("OneHotEncoder", given | {"cats_int64s": [4, -1, 0]}),
        ("TreeEnsembleRegressor", forest("target", [(k, 0, w) for k, w in enumerate(WEIGHTS)], n_targets=1)),
    ):
        found, wanted = (models.imported(*models.one(op, x.astype(t), **attributes)) for t in (dtype, np.float32))
        models.assert_close(found, wanted)
    imputed: dict[str, Any] = {"imputed_value_int64s": [7, 8, 9], "replaced_value_int64": 2}
    if dtype is np.float64:
        imputed = {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": 2.0}
    found = models.imported(*models.one("Imputer", x.astype(dtype), **given, **imputed))
    np.testing.assert_array_equal(found[0], np.where(x == 2, [7, 8, 9], x).astype(dtype))


def test_an_unknown_category_fails_where_zeros_are_not_asked_for() -> None:
    proto, _ = models.one("OneHotEncoder", vector(1, 3), domain="ai.onnx.ml", cats_int64s=[3, 1], zeros=0)
    graph = importer.load(proto)
    assert models.run(graph, {"x0": vector(1, 3)})[0].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(IndexError):
        models.run(graph, {"x0": vector(1, 2)})


def test_a_leaf_of_no_target_is_refused() -> None:
    proto, _ = trees(8, 3)
    (targets,) = (a for a in proto.graph.node[0].attribute if a.name == "leaf_targetids")
    targets.ints[3] = 3
    with pytest.raises(ModelError, match="targets of 0 to 2"):
        importer.load(proto)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(({"bits": bits}, UnsupportedError, f"a table of {bits} bits") for bits in (3, 5, 6, 7, 16)),
        ({"quantize_axis": -2}, ModelError, "gather_axis and quantize_axis are both 0"),
    ],
)
def test_tables_in_blocks_that_are_refused(options: dict[str, int], error: type[LuminalError], message: str) -> None:
    table, index = integers(9, 32, low=0, high=255, dtype=np.uint8), integers(2, 3, low=0, high=9)
    proto, _ = models.one("GatherBlockQuantized", table, index, floats(9, 4), domain="com.microsoft", **options)
    with pytest.raises(error, match=message):
        importer.load(proto)


@pytest.mark.parametrize(
    ("op", "given", "message"),
    [
        ("DequantizeLinear", (floats(3, 4), LOW), "found float32"),
        ("DequantizeLinear", (integers(3, 4, dtype=INT), LOW, MIDDLE), "of what it belongs to, int32, found uint8"),
        ("DequantizeLinear", (BYTES, np.array(2, INT)), "a scale of floats, found int32"),
        ("DequantizeLinear", (BYTES, np.abs(floats(3))), r"each of the 4 indices of axis 1 of \[3, 4\], found 3"),
        ("QuantizeLinear", (floats(3, 4), np.array(2, INT), MIDDLE), "a scale of floats, found int32"),
        ("QuantizeLinear", (floats(3, 4), LOW, np.array(0, INT)), "at most 16 bits.* found int32"),
        ("QuantizeLinear", (floats(3, 4), np.abs(floats(5)), MIDDLE), r"each of the 4 indices of axis 1.* found 5"),
    ],
)
def test_quantisers_that_are_refused(op: str, given: tuple[Array, ...], message: str) -> None:
    proto, _ = models.one(op, *given)
    with pytest.raises(ModelError, match=f"{op}.*{message}"):
        importer.load(proto)
