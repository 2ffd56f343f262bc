"""Small models for the tests of ``luminal.diff`` and of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def classifier(unknown: bool = False) -> onnx.ModelProto:
    """``probabilities = softmax(tanh(x W + b) V)`` of x [batch, 8]; where ``unknown``, two operators do not exist."""
    random = np.random.default_rng(0)
    weights = {
        "W": random.standard_normal((8, 19)).astype(np.float32),
        "b": random.standard_normal(19).astype(np.float32),
        "V": random.standard_normal((19, 5)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["xw"], "hidden"),
        helper.make_node("Add", ["xw", "b"], ["sum"], "bias"),
        helper.make_node("Tanh", ["sum"], ["activated"], "activation"),
        helper.make_node("MatMul", ["activated", "V"], ["scores"], "output"),
        helper.make_node("Softmax", ["scores"], ["probabilities"], "normalisation", axis=-1),
    ]
    if unknown:
        nodes[1] = helper.make_node("Perhaps", ["xw"], ["sum"], "first", domain="nowhere")
        nodes[2] = helper.make_node("Never", ["sum"], ["activated"], "second", domain="nowhere")
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)][: 2 if unknown else 1]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def quantised(bits: int, layers: int = 3, width: int = 96) -> onnx.ModelProto:
    """Layers ``sigmoid(x W)`` of x [4, width], as quantisers write them: weights in 8 bits, activations in ``bits``,
    an integer of which is one step of a grid over what they hold."""
    random = np.random.default_rng(0)
    dtype = {8: np.uint8, 16: np.uint16}[bits]
    constants: dict[str, np.ndarray[Any, Any]] = {}
    nodes: list[onnx.NodeProto] = []

    def add(kind: str, inputs: Sequence[str], output: str) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], f"{kind}_{len(nodes)}"))
        return output

    def on_grid(x: str, low: float, high: float) -> str:
        scale = (high - low) / (2**bits - 1)
        constants[f"{x}_scale"] = np.float32(scale)
        constants[f"{x}_zero"] = dtype(round(-low / scale))
        grid = [f"{x}_scale", f"{x}_zero"]
        return add("DequantizeLinear", [add("QuantizeLinear", [x, *grid], f"{x}_integers"), *grid], f"{x}_on_grid")

    value = on_grid("x", -4.0, 4.0)
    for layer in range(layers):
        weight = f"w{layer}"
        constants[weight] = random.integers(-127, 128, (width, width)).astype(np.int8)
        constants[f"{weight}_scale"] = np.float32(0.004)
        constants[f"{weight}_zero"] = np.int8(0)
        add("DequantizeLinear", [weight, f"{weight}_scale", f"{weight}_zero"], f"{weight}_on_grid")
        product = on_grid(add("MatMul", [value, f"{weight}_on_grid"], f"product{layer}"), -10.0, 10.0)
        value = on_grid(add("Sigmoid", [product], f"activated{layer}"), 0.0, 1.0)
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [4, width])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "classifier.onnx"
    onnx.save(model, path)
    return path
