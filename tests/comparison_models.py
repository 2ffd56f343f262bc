"""Small models for the tests of ``luminal.diff`` and of the command line."""

from __future__ import annotations

from pathlib import Path

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


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "classifier.onnx"
    onnx.save(model, path)
    return path
