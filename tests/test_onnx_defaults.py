"""Attributes of the ONNX table: one that a model leaves out means the default of its schema, in every opset version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from luminal.core.errors import ModelError, UnsupportedError
from luminal.frontends.onnx import importer, operators, registry  # noqa: F401 - operators fills the registry
from luminal.frontends.onnx.reader import OPSETS
from tests import onnx_models as models
from tests.onnx_models import CONTRIBUTED

Array = np.ndarray[Any, Any]
Defaults = dict[str, Any]


def floats(*shape: int) -> Array:
    return np.linspace(-2, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def whole(*values: int, dtype: Any = np.int64) -> Array:
    return np.array(values, dtype)


X, IMAGE, CHANNELS = floats(3, 4), floats(2, 3, 6, 5), floats(3)
ROW, ROWS, HEADS = floats(4), floats(2, 3, 4), floats(1, 2, 3, 4)
SCALE, POINT = np.float32([0.5]), np.uint8([3])

# Inputs, the positions of those that are known when compiling, and the attributes that have no default.
Example = tuple[tuple[Array | None, ...], tuple[int, ...], Defaults]


def _each(names: str, example: Example) -> dict[str, Example]:
    return dict.fromkeys(names.split(), example)


EXAMPLES: dict[str, Example] = {
    **_each("""Celu Clip Elu Flatten Gelu HardSigmoid IsInf LeakyRelu LpNormalization Selu Shape Swish
       ThresholdedRelu Softmax LogSoftmax Hardmax ArgMax ArgMin EyeLike Dropout Trilu QuickGelu""", ((X,), (), {})),
    **_each("""ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
       ReduceSum ReduceSumSquare""", ((X,), (), {})),
    "QLinearLeakyRelu": ((np.uint8(abs(X)), SCALE, POINT, SCALE, POINT), (1, 2, 3, 4), {}),
    "QLinearGlobalAveragePool": ((np.uint8(abs(IMAGE)), SCALE, POINT, SCALE, POINT), (), {}),
    "MatMulNBits": ((floats(3, 32), np.zeros((5, 2, 8), np.uint8), floats(10)), (1, 2),
                    {"K": 32, "N": 5, "block_size": 16}),
    "FusedConv": ((IMAGE, floats(4, 3, 2, 2)), (), {}),
    "FusedGemm": ((X, floats(4, 5), floats(3, 5)), (), {}),
    "FusedMatMul": ((floats(3, 3), floats(3, 3)), (), {}),
    "Attention": ((HEADS, HEADS, HEADS), (), {}),
    "MultiHeadAttention": ((ROWS, ROWS, ROWS), (), {"num_heads": 2}),
    "GroupQueryAttention": ((ROWS, ROWS, ROWS, None, None, whole(2, 2, dtype=np.int32), whole(3, dtype=np.int32)),
                            (6,), {"num_heads": 2, "kv_num_heads": 2}),
    "EmbedLayerNormalization": ((whole(1, 0).reshape(1, 2), None, X, X, None, ROW, ROW), (), {}),
    "QLinearAveragePool": ((np.uint8(abs(IMAGE)), SCALE, POINT, SCALE, POINT), (), {"kernel_shape": [2, 3]}),
    "QLinearSoftmax": ((np.uint8(abs(X)), SCALE, POINT, SCALE, POINT), (), {}),
    "MaxRoiPool": ((IMAGE, np.float32([[0, 0, 1, 3, 4]])), (), {"pooled_shape": [2, 2]}),
    "QGemm": ((np.uint8(abs(X)), SCALE[0], POINT[0], np.uint8(X.T), SCALE[0], POINT[0]), (), {}),
    "QAttention": ((np.uint8(abs(ROWS)), np.int8(floats(4, 12)), floats(12), SCALE[0], SCALE[0]), (), {"num_heads": 2}),
    "TransposeMatMul": ((floats(3, 3), floats(3, 3)), (), {}),
    "GatherBlockQuantized": ((np.zeros((5, 128), np.uint8), whole(1, 2), floats(5, 2)), (0, 2), {}),
    "StringNormalizer": ((np.array(["a", "B"], object),), (), {"stopwords": ["b"]}),
    **_each("AveragePool LpPool MaxPool", ((IMAGE,), (), {"kernel_shape": [2, 3]})),
    **_each("GlobalLpPool MeanVarianceNormalization", ((IMAGE,), (), {})),
    "BatchNormalization": ((IMAGE, CHANNELS, CHANNELS, CHANNELS, abs(CHANNELS)), (), {}),
    "InstanceNormalization": ((IMAGE, CHANNELS, CHANNELS), (), {}),
    "GroupNormalization": ((IMAGE, CHANNELS, CHANNELS), (), {"num_groups": 3}),
    "LRN": ((IMAGE,), (), {"size": 3}),
    **_each("LayerNormalization RMSNormalization", ((X, ROW), (), {})),
    **_each("SkipLayerNormalization SkipSimplifiedLayerNormalization", ((ROWS, ROWS, ROW), (), {})),
    "Cast": ((X,), (), {"to": onnx.TensorProto.INT32}),
    "CastLike": ((X, whole(1)), (), {}),
    "Conv": ((IMAGE, floats(4, 3, 2, 2)), (), {}),
    "ConvInteger": ((np.uint8(abs(IMAGE)), np.uint8(abs(floats(4, 3, 2, 2)))), (), {}),
    "TopK": ((X, whole(2)), (1,), {}),
    **_each("CumSum CumProd", ((X, whole(0)), (1,), {})),
    **_each("DepthToSpace SpaceToDepth", ((floats(1, 8, 4, 6),), (), {"blocksize": 2})),
    "DequantizeLinear": ((np.uint8(abs(X)), SCALE, POINT), (), {}),
    "QLinearConv": ((np.uint8(abs(IMAGE)), SCALE, POINT, np.uint8(abs(floats(4, 3, 2, 2))), SCALE, POINT, SCALE, POINT),
                    (), {}),
    "QuantizeLinear": ((X, SCALE, POINT), (), {}),
    "Gather": ((X, whole(1, 0)), (), {}),
    "GatherElements": ((X, whole(1, 0, 2, 1).reshape(1, 4)), (), {}),
    **_each("Scatter ScatterElements", ((X, whole(1, 0, 2, 1).reshape(1, 4), floats(1, 4)), (), {})),
    "ScatterND": ((X, whole(1, 0).reshape(2, 1), floats(2, 4)), (), {}),
    "GatherND": ((X, whole(1, 0).reshape(2, 1)), (), {}),
    **_each("Add Sub Mul Div Pow Less Greater Equal", ((X, X), (), {})),
    **_each("And Or Xor", ((X > 0, X > 0), (), {})),
    "Gemm": ((X, floats(4, 5), floats(3, 5)), (), {}),
    "Mod": ((whole(5, -3), whole(3, 2)), (), {}),
    "OneHot": ((whole(1, 0), whole(3), np.float32([0, 1])), (1,), {}),
    "Pad": ((X, whole(0, 1, 1, 0)), (1,), {}),
    "Range": ((np.float32(0), np.float32(3), np.float32(0.5)), (0, 1, 2), {}),
    "Reshape": ((X, whole(4, 3)), (1,), {}),
    "Split": ((X, whole(1, 2)), (1,), {}),
    "GridSample": ((IMAGE, floats(2, 4, 3, 2)), (), {}),
    "RoiAlign": ((IMAGE, floats(2, 4), whole(0, 1)), (), {"sampling_ratio": 2}),
    "DeformConv": ((IMAGE, floats(4, 3, 2, 2), floats(2, 8, 5, 4)), (), {}),
    "ConvTranspose": ((IMAGE, floats(3, 4, 2, 2)), (), {}),
    "DFT": ((floats(2, 3, 5, 1),), (), {}),
    "STFT": ((floats(2, 9, 1), whole(2), floats(4)), (1,), {}),
    "MelWeightMatrix": ((whole(3), whole(8), whole(100), SCALE, SCALE * 40), (0, 1, 2, 3, 4), {}),
    "ReverseSequence": ((X, whole(1, 2, 3, 3)), (), {}),
    "TensorScatter": ((ROWS, ROWS[:, :2], whole(0, 1)), (), {}),
    "Resize": ((X, np.float32([]), np.float32([1, 1.6])), (1, 2), {}),
    "Upsample": ((X, np.float32([1, 2])), (1,), {}),
    **_each("RandomNormal RandomUniform", ((), (), {"shape": [2, 3]})),
    "RNN": ((ROWS, floats(1, 5, 4), floats(1, 5, 5)), (), {"hidden_size": 5}),
    "GRU": ((ROWS, floats(1, 15, 4), floats(1, 15, 5)), (), {"hidden_size": 5}),
    "LSTM": ((ROWS, floats(1, 20, 4), floats(1, 20, 5)), (), {"hidden_size": 5}),
    "NhwcMaxPool": ((np.uint8(abs(IMAGE)),), (), {"kernel_shape": [2, 3]}),
    "QEmbedLayerNormalization": ((whole(1, 0).reshape(1, 2), None, *[np.uint8(abs(X))] * 2, None,
                                  *[np.uint8(abs(ROW))] * 2, None, *[SCALE] * 2, None, *[SCALE] * 2,
                                  *[POINT] * 2, None, *[POINT] * 2), (), {}),
    "CDist": ((X, X), (), {}),
    "MatMulBnb4": ((floats(3, 32), np.zeros(80, np.uint8), floats(10)), (1, 2),
                   {"K": 32, "N": 5, "block_size": 16, "quant_type": 1}),
    "MoE": ((X, floats(3, 2), floats(2, 5, 4), None, floats(2, 4, 5)), (), {}),
    "QMoE": ((X, floats(3, 2), np.zeros((2, 6, 2), np.uint8), floats(2, 6), None, np.zeros((2, 4, 3), np.uint8),
              floats(2, 4)), (), {}),
    "DynamicQuantizeLSTM": ((ROWS, np.zeros((1, 4, 20), np.int8), np.zeros((1, 5, 20), np.int8), *[None] * 5,
                             *[SCALE, np.int8([0])] * 2), (), {"hidden_size": 5}),
    "NonMaxSuppression": ((floats(1, 3, 4), floats(1, 2, 3), whole(2)), (), {}),
    "Unique": ((whole(3, 1, 3, 2),), (), {}),
    **_each("RandomNormalLike RandomUniformLike Multinomial", ((X,), (), {})),
}  # fmt: skip
# Of versions that take other inputs or attributes.
OLDER: dict[tuple[str, int], Example] = {
    ("Upsample", 6): ((IMAGE,), (), {"height_scale": 2.0, "width_scale": 3.0}),
    ("Upsample", 7): ((X,), (), {"scales": [1.0, 2.0]}),
    ("Resize", 10): ((X, np.float32([1, 1.6])), (1,), {}),
    ("Pad", 6): ((X,), (), {"pads": [0, 1, 1, 0]}),
    ("TopK", 6): ((X,), (), {"k": 2}),
    **{("Split", version): ((X,), (), {"split": [1, 2]}) for version in (6, 11)},
    ("Attention", 1): ((ROWS, floats(4, 12), floats(12)), (), {"num_heads": 2}),  # onnxruntime's own
}


def contributed() -> Iterator[tuple[str, str, int, Defaults]]:
    for schema in runtime.get_all_operator_schema():
        if schema.domain == CONTRIBUTED and schema.name in registry.names(CONTRIBUTED):
            yield (
                schema.domain,
                schema.name,
                schema.since_version,
                {
                    name: onnx.helper.get_attribute_value(onnx.AttributeProto.FromString(attribute._default_value))
                    for name, attribute in schema.attributes.items()
                    if attribute._default_value
                },
            )


def standard() -> Iterator[tuple[str, str, int, Defaults]]:
    """Every version of every operator that a model may hold, under the first opset that has it."""
    for name in sorted(registry.names()):
        known: set[int] = set()
        for opset in OPSETS:
            if not onnx.defs.has(name, opset) or registry.find("", name, opset) is None:
                continue
            schema = onnx.defs.get_schema(name, opset)
            if schema.since_version not in known:
                known.add(schema.since_version)
                yield (
                    "",
                    name,
                    opset,
                    {
                        attribute.name: onnx.helper.get_attribute_value(attribute.default_value)
                        for attribute in schema.attributes.values()
                        if attribute.default_value.name
                    },
                )


SCHEMAS = [row for row in (*standard(), *contributed()) if row[3]]


def outcome(domain: str, name: str, version: int, example: Example, attributes: Defaults) -> Any:
    """What the operator is imported as; nodes that are equal are identical."""
    inputs, fixed, required = example
    proto, _ = models.one(name, *inputs, opset=17 if domain else version, domain=domain, fixed=fixed,
                          outputs=2 if name == "Split" else 1, **{**attributes, **required})  # fmt: skip
    try:
        return importer.load(proto).results
    except UnsupportedError as error:
        return str(error)


def test_every_operator_with_defaults_has_an_example() -> None:
    assert {name for _, name, _, _ in SCHEMAS} == EXAMPLES.keys()


@pytest.mark.parametrize(("domain", "name", "version", "defaults"), SCHEMAS, ids=[f"{n}-{v}" for _, n, v, _ in SCHEMAS])
def test_a_default_that_is_left_out_is_the_same_as_one_that_is_given(
    domain: str, name: str, version: int, defaults: Defaults
) -> None:
    example = OLDER.get((name, version), EXAMPLES[name])
    left_out = outcome(domain, name, version, example, {})
    assert not isinstance(left_out, str), left_out
    for attribute, value in defaults.items():
        assert outcome(domain, name, version, example, {attribute: value}) == left_out, attribute


def test_a_scale_of_zero_is_not_the_default() -> None:
    proto, given = models.one("Attention", HEADS, HEADS, HEADS, opset=23, scale=0.0)
    (found,) = models.imported(proto, given)
    np.testing.assert_allclose(found, np.broadcast_to(HEADS.mean(2, keepdims=True), HEADS.shape), rtol=1e-6, atol=1e-6)


def test_a_required_attribute_has_no_default() -> None:
    proto, _ = models.one("Concat", X, X)
    with pytest.raises(ModelError, match="'axis' is required"):
        importer.load(proto)
