"""The models in which faults are planted: a small convolutional network, a small transformer, or any ONNX file."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import luminal
from luminal.comparison import inputs as drawing
from luminal.core.ir import Graph

Weights = dict[str, np.ndarray[Any, Any]]


def graph(model: str) -> tuple[Graph, dict[str, int]]:
    """The graph of ``cnn``, ``gpt`` or an ONNX file, and the sizes at which it is run."""
    made = {"cnn": cnn, "gpt": gpt}
    source: Any = made[model]() if model in made else model
    dims = {"batch": (1, 4)} if model in made else {"batch": (1, 4), "seq": (1, 16)}
    found = luminal.read(source, dims=dims)
    return found, drawing.sizes(found)


def _model(name: str, nodes: list[Any], weights: Weights, x: Any, y: Any) -> onnx.ModelProto:
    kept = [numpy_helper.from_array(np.asarray(array), key) for key, array in weights.items()]
    return helper.make_model(
        helper.make_graph(nodes, name, [x], [y], kept), opset_imports=[helper.make_opsetid("", 20)], ir_version=9
    )


def cnn() -> onnx.ModelProto:
    """Two convolutions with a pool between them, a mean over pixels and a classifier, of images [batch, 3, 17, 17]."""
    random = np.random.default_rng(0)
    weights = {
        "k1": random.standard_normal((8, 3, 3, 3)) * 0.3,
        "b1": random.standard_normal(8),
        "k2": random.standard_normal((16, 8, 3, 3)) * 0.2,
        "b2": random.standard_normal(16),
        "w": random.standard_normal((16, 10)) * 0.4,
        "b": random.standard_normal(10),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "k2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("HardSwish", ["c2"], ["r2"], "swish"),
        helper.make_node("GlobalAveragePool", ["r2"], ["mean"], "mean"),
        helper.make_node("Flatten", ["mean"], ["flat"], "flat"),
        helper.make_node("Gemm", ["flat", "w", "b"], ["scores"], "scores"),
        helper.make_node("Softmax", ["scores"], ["y"], "classes"),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 17, 17])
    classes = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])
    return _model("cnn", nodes, {k: v.astype(np.float32) for k, v in weights.items()}, image, classes)


def gpt(layers: int = 2, width: int = 32, heads: int = 2, words: int = 50, length: int = 9) -> onnx.ModelProto:
    """A decoder of transformer blocks with a causal mask, of tokens [batch, length]: the scores of the next ones."""
    random = np.random.default_rng(1)
    weights: Weights = {}
    nodes: list[Any] = []

    def weight(name: str, *shape: int) -> str:
        weights[name] = (random.standard_normal(shape) * 0.3).astype(np.float32)
        return name

    def add(op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def linear(x: str, name: str, rows: int, columns: int) -> str:
        product = add("MatMul", [x, weight(f"{name}_w", rows, columns)], f"{name}_product")
        return add("Add", [product, weight(f"{name}_b", columns)], name)

    def norm(x: str, name: str) -> str:
        return add("LayerNormalization", [x, weight(f"{name}_w", width), weight(f"{name}_b", width)], name)

    weights["split"] = np.array([0, 0, heads, width // heads], np.int64)
    weights["joined"] = np.array([0, 0, width], np.int64)
    weights["mask"] = np.where(np.tri(length, dtype=bool), 0.0, -np.inf).astype(np.float32)
    weights["scale"] = np.float32((width // heads) ** -0.5)
    positions = weight("positions", length, width)
    x = add("Add", [add("Gather", [weight("embedding", words, width), "x"], "tokens"), positions], "embedded")
    for k in range(layers):
        normed = norm(x, f"norm{k}")
        q, key, v = (
            add("Transpose", [add("Reshape", [linear(normed, f"{p}{k}", width, width), "split"], f"{p}{k}_heads")],
                f"{p}{k}_t", perm=[0, 2, 3, 1] if p == "k" else [0, 2, 1, 3])
            for p in "qkv"
        )  # fmt: skip
        scores = add("Mul", [add("MatMul", [q, key], f"scores{k}"), "scale"], f"scaled{k}")
        shares = add("Softmax", [add("Add", [scores, "mask"], f"masked{k}")], f"shares{k}")
        mixed = add("Transpose", [add("MatMul", [shares, v], f"mixed{k}")], f"mixed{k}_t", perm=[0, 2, 1, 3])
        out = linear(add("Reshape", [mixed, "joined"], f"joined{k}"), f"out{k}", width, width)
        x = add("Add", [x, out], f"attended{k}")
        wide = add("Gelu", [linear(norm(x, f"norm_mlp{k}"), f"up{k}", width, 4 * width)], f"gelu{k}")
        x = add("Add", [x, linear(wide, f"down{k}", 4 * width, width)], f"block{k}")
    nodes.append(helper.make_node("MatMul", [norm(x, "last"), weight("head", width, words)], ["y"], "head"))
    tokens = helper.make_tensor_value_info("x", TensorProto.INT64, ["batch", length])
    scores_ = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", length, words])
    return _model("gpt", nodes, weights, tokens, scores_)
