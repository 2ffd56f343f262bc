"""The sound models that damage starts from: a few made by hand, and those of the ONNX project's own tests."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnx
from onnx import helper

from tests import onnx_cases, onnx_models
from tests.onnx_models import declared

_LARGEST = 20_000  # bytes; damage to a larger file rarely hits anything but its weights


@lru_cache
def models() -> tuple[bytes, ...]:
    """Serialized, in a fixed order; those made by hand come often, since they hold more than one operator."""
    kinds = (
        perceptron, convolution, attention, shapes, branches, calls, sparse,
        loops, scans, choices, found, drawn, narrow,
    )  # fmt: skip
    made = [make().SerializeToString() for make in kinds]
    cases = sorted(onnx_cases.cases().items())
    suite = [case.model.SerializeToString() for _, case in cases]
    return (*made * 30, *(text for text in suite if len(text) <= _LARGEST))


def _weights(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def perceptron() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="first", alpha=0.5, transB=1),
        helper.make_node("LayerNormalization", ["h", "scale"], ["n"], axis=-1),
        helper.make_node("Gelu", ["n"], ["g"], approximate="tanh"),
        helper.make_node("MatMul", ["g", "v"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"], axis=-1),
    ]
    initializers = {"w": _weights(6, 4), "b": _weights(6), "scale": _weights(6), "v": _weights(6, 3)}
    return onnx_models.model(
        nodes, [declared("x", _weights(2, 4), ["batch", 4])], ["y"], initializers=initializers, opset=20
    )


def convolution() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["c", "one", "one", "one", "one"], ["n"], epsilon=1e-4),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Resize", ["p", "", "scales"], ["u"], mode="linear"),
        helper.make_node("Pad", ["u", "pads"], ["q"], mode="reflect"),
        helper.make_node("ReduceMean", ["q", "axes"], ["y"], keepdims=0),
    ]
    initializers = {
        "w": _weights(4, 3, 3, 3),
        "b": _weights(4),
        "one": np.ones(4, np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "axes": np.array([2, 3]),
    }
    return onnx_models.model(
        nodes, [declared("x", _weights(1, 3, 8, 8), ["batch", 3, 8, 8])], ["y"], initializers=initializers, opset=18
    )


def attention() -> onnx.ModelProto:
    """Heads split off by the shape of the input, as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Gather", ["shape", "one"], ["length"], axis=0),
        helper.make_node("Concat", ["batch", "length", "heads"], ["split"], axis=0),
        helper.make_node("Reshape", ["x", "split"], ["parts"]),
        helper.make_node("Transpose", ["parts"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["parts"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Trilu", ["scores"], ["masked"], upper=0),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "q"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "shape"], ["y"]),
    ]
    initializers = {"zero": np.array([0]), "one": np.array([1]), "heads": np.array([2, 4])}
    return onnx_models.model(
        nodes, [declared("x", _weights(1, 5, 8), ["batch", "length", 8])], ["y"], initializers=initializers
    )


def shapes() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"], value=helper.make_tensor("v", 1, [1], [2.0])),
        helper.make_node("Range", ["start", "limit", "delta"], ["range"]),
        helper.make_node("Cast", ["range"], ["floats"], to=1),
        helper.make_node("Expand", ["floats", "sizes"], ["wide"]),
        helper.make_node("Slice", ["wide", "starts", "ends", "axes", "steps"], ["cut"]),
        helper.make_node("Tile", ["cut", "repeats"], ["tiled"]),
        helper.make_node("Split", ["tiled", "parts"], ["left", "right"], axis=1),
        helper.make_node("Concat", ["left", "right", "tiled"], ["joined"], axis=1),
        helper.make_node("CumSum", ["joined", "axis"], ["summed"]),
        helper.make_node("OneHot", ["ids", "depth", "values"], ["hot"]),
        helper.make_node("GatherElements", ["summed", "places"], ["taken"], axis=1),
        helper.make_node("ScatterND", ["zeros", "where", "updates"], ["scattered"]),
        helper.make_node("ReduceSum", ["hot"], ["counted"], keepdims=0),
        helper.make_node("Add", ["scattered", "counted"], ["y"]),
        helper.make_node("Squeeze", ["taken", "axis"], ["z"]),
    ]
    initializers = {
        "sizes": np.array([3, 4]), "start": np.array(0), "limit": np.array(4), "delta": np.array(1),
        "starts": np.array([0, 3]), "ends": np.array([1, -5]), "axes": np.array([0, 1]), "steps": np.array([1, -1]),
        "repeats": np.array([1, 2]), "parts": np.array([3, 5]), "axis": np.array(0), "depth": np.array(5),
        "values": np.array([0.0, 1.0], np.float32), "places": np.array([[0, 3, -1]]),
        "where": np.array([[0], [2]]), "updates": _weights(2, 4),
    }  # fmt: skip
    return onnx_models.model(
        nodes, [declared("ids", np.zeros(3, np.int64), ["n"])], ["y", "z"], initializers=initializers
    )


def branches() -> onnx.ModelProto:
    """An ``If`` on a known condition, and sequences."""
    output = [onnx.ValueInfoProto(name="r")]
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["r"])], "then", [], output)
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["r"])], "else", [], output)
    body = helper.make_graph(
        [helper.make_node("Sqrt", ["e"], ["f"])],
        "body",
        [onnx.ValueInfoProto(name="e")],
        [onnx.ValueInfoProto(name="f")],
    )
    nodes = [
        helper.make_node("If", ["condition"], ["a"], then_branch=then, else_branch=other),
        helper.make_node("SplitToSequence", ["a", "each"], ["parts"], axis=1),
        helper.make_node("SequenceMap", ["parts"], ["roots"], body=body),
        helper.make_node("SequenceInsert", ["roots", "x", "place"], ["more"]),
        helper.make_node("ConcatFromSequence", ["more"], ["y"], axis=1),
    ]
    initializers = {"condition": np.array(True), "each": np.array(2), "place": np.array(0)}
    return onnx_models.model(nodes, [declared("x", _weights(2, 6))], ["y"], initializers=initializers)


def calls() -> onnx.ModelProto:
    """Functions of the model's own, one inside the other."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = helper.make_function("own", "Inner", ["a"], ["b"], [helper.make_node("Tanh", ["a"], ["b"])], imports)
    scale = helper.make_node("Constant", [], ["s"])
    scale.attribute.append(
        onnx.AttributeProto(name="value_float", ref_attr_name="scale", type=onnx.AttributeProto.FLOAT)
    )
    body = [
        scale,
        helper.make_node("Mul", ["a", "s"], ["m"]),
        helper.make_node("Inner", ["m"], ["b"], domain="own"),
    ]
    outer = helper.make_function("own", "Outer", ["a"], ["b"], body, imports, ["scale"])
    nodes = [
        helper.make_node("Outer", ["x"], ["h"], domain="own", scale=2.0),
        helper.make_node("Inner", ["h"], ["y"], domain="own"),
    ]
    return onnx_models.model(
        nodes, [declared("x", _weights(2, 3), ["n", 3])], ["y"], functions=[outer, inner], domains={"own": 1}
    )


def sparse() -> onnx.ModelProto:
    proto = onnx_models.model([helper.make_node("MatMul", ["x", "s"], ["y"])], [declared("x", _weights(2, 4))], ["y"])
    values = onnx.numpy_helper.from_array(_weights(3), "s")
    indices = onnx.numpy_helper.from_array(np.array([[0, 1], [2, 2], [3, 0]]), "where")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 3]))
    return proto


def _parsed(text: str, opset: int = 24) -> onnx.ModelProto:
    """``text`` is a graph in ONNX's own notation."""
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def loops() -> onnx.ModelProto:
    """A loop that runs a given number of times, with another inside that its data ends, and one over a sequence."""
    return _parsed("""
        test (float[n, 3] x, int64 trips) => (y, all, joined) {
          yes = Constant <value: tensor = bool {1}> ()  four = Constant <value: tensor = int64 {4}> ()
          most = Constant <value: tensor = int64 {9223372036854775807}> ()
          half = Constant <value_float: float = 0.5> ()
          y = Loop (trips, yes, x) <
            body: graph = outer (int64 i, bool go, float[n, 3] a) => (bool on, float[n, 3] b) {
              on = Identity (go)
              b = Loop (most, go, a) <
                body: graph = inner (int64 j, bool more, float[n, 3] c) => (bool again, float[n, 3] d)
                  { d = Mul (c, half)  e = ReduceMax <keepdims: int = 0> (d)  again = Greater (e, half) }
              >
            }
          >
          last, all = Loop (four, yes, x) <
            body: graph = body (int64 i, bool go, float[n, 3] a) => (bool on, float[n, 3] b, float[3] p)
              { on = Identity (go)  b = Sin (a)  axes = Constant <value_ints: ints = [0]> ()
                p = ReduceSum <keepdims: int = 0> (b, axes) }
          >
          none = SequenceEmpty ()
          parts = Loop (four, yes, none) <
            body: graph = insert (int64 i, bool go, s) => (bool on, t)
              { on = Identity (go)  f = Cast <to: int = 1> (i)  g = Add (last, f)  t = SequenceInsert (s, g) }
          >
          joined = ConcatFromSequence <axis: int = 0> (parts)
        }
    """)


def scans() -> onnx.ModelProto:
    return _parsed("""
        test (float[n, 3, 4] x, float[3] s) => (last, y, h) {
          last, y = Scan <
            num_scan_inputs: int = 1, scan_input_axes: ints = [2], scan_input_directions: ints = [1],
            scan_output_axes: ints = [1], scan_output_directions: ints = [0],
            body: graph = body (float[3] a, float[n, 3] e) => (float[3] b, float[n, 3] f)
              { f = Add (e, a)  axes = Constant <value_ints: ints = [0]> ()
                b = ReduceMax <keepdims: int = 0> (f, axes) }
          > (s, x)
          w = Constant <value: tensor = float[1, 8, 4] {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5,
            0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}> ()
          r = Constant <value: tensor = float[1, 8, 2] {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5,
            0.6, 0.7, 0.8}> ()
          h = LSTM <hidden_size: int = 2> (x, w, r)
        }
    """)


def choices() -> onnx.ModelProto:
    """Branches inside branches, and values that may not be there."""
    return _parsed("""
        test (float[2, 3] x, bool c, bool d) => (y) {
          z = If (c) <
            then_branch: graph = yes () => (float[2, 3] a) {
              a = If (d) <then_branch: graph = both () => (float[2, 3] e) { e = Sqrt (x) },
                          else_branch: graph = one () => (float[2, 3] f) { f = Neg (x) }> },
            else_branch: graph = no () => (float[2, 3] b) { b = Softmax (x) }
          >
          o = Optional (z)  there = OptionalHasElement (o)  v = OptionalGetElement (o)
          y = Where (there, v, x)
        }
    """)


def found() -> onnx.ModelProto:
    """Sizes that data decides, in chains."""
    return _parsed("""
        test (float[n, 3] x, float[1, 6, 4] boxes, float[1, 1, 6] scores) => (places, some, values, number, kept, top) {
          places = NonZero (x)
          zero = Constant <value_float: float = 0.0> ()  flat = Constant <value_ints: ints = [-1]> ()
          above = Greater (x, zero)  line = Reshape (above, flat)  some = Compress (x, line)
          values, first, number = Unique <axis: int = 0> (x)
          most = Constant <value_int: int = 3> ()  overlap = Constant <value_float: float = 0.5> ()
          kept = NonMaxSuppression (boxes, scores, most, overlap)
          two = Constant <value_ints: ints = [2]> ()  top, at = TopK <axis: int = 1> (x, two)
        }
    """)


def drawn() -> onnx.ModelProto:
    return _parsed("""
        test (float[n, 3] x) => (a, b, c, d, e) {
          a = RandomNormal <shape: ints = [2, 3], mean: float = 1.0, seed: float = 3.0> ()
          b = RandomUniformLike <low: float = -1.0> (x)
          p = Sigmoid (x)  c = Bernoulli <dtype: int = 9> (p)
          d = Multinomial <sample_size: int = 5, dtype: int = 7> (x)
          half = Constant <value_float: float = 0.5> ()  yes = Constant <value: tensor = bool {1}> ()
          e = Dropout (x, half, yes)
        }
    """)


def narrow() -> onnx.ModelProto:
    """Weights of 2, 4 and 8 bits, several to a byte or not, in blocks with scales."""
    proto = _parsed(
        """
        test (float[n, 4] x) => (y, z, q) {
          w = DequantizeLinear <axis: int = 0, block_size: int = 2> (w4, s4)  y = MatMul (x, w)
          v = DequantizeLinear (w2, s2)  u = DequantizeLinear (w8, s2)  t = Add (v, u)
          f = Cast <to: int = 1> (f4)  g = Add (t, f)  z = MatMul (x, g)
          q = QuantizeLinear <output_dtype: int = 17> (x, s2)
        }
    """,
        26,
    )
    stored = {
        "w4": (onnx.TensorProto.INT4, [4, 3], 6), "w2": (onnx.TensorProto.UINT2, [4, 3], 3),
        "w8": (onnx.TensorProto.FLOAT8E4M3FN, [4, 3], 12), "f4": (onnx.TensorProto.FLOAT4E2M1, [4, 3], 6),
    }  # fmt: skip
    for name, (kind, dims, size) in stored.items():
        proto.graph.initializer.add(name=name, data_type=kind, dims=dims, raw_data=bytes(range(17, 17 + size)))
    for name, scale in {"s4": np.ones((2, 3), np.float32), "s2": np.array(0.5, np.float32)}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(scale, name))
    return proto
