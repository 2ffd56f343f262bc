"""Sequences and optional values: they fold away while a model is imported, and are constants at its edge."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from luminal.core import ops
from luminal.core.errors import InputError, ModelError, UnsupportedError
from luminal.frontends.onnx import importer
from tests import onnx_models as models
from tests.onnx_models import floats, node

Array = np.ndarray[Any, Any]


X = floats(3, 4)
POSITIONS = {"first": np.array(0), "last": np.array(-1), "two": np.array(2)}


def tensors(nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
    return models.model(nodes, [models.declared("x", X)], outputs, initializers=POSITIONS)


CHAINS = {
    "construct": [node("Neg", "x", "y"), node("SequenceConstruct", "x y", "s"), node("SequenceAt", "s last", "z")],
    "insert and erase": [
        node("SequenceEmpty", "", "e"), node("SequenceInsert", "e x", "a"), node("Neg", "x", "y"),
        node("SequenceInsert", "a y first", "b"), node("SequenceInsert", "b x", "c"),
        node("SequenceErase", "c last", "d"), node("SequenceAt", "d first", "z"),
    ],
    "split and join": [node("SplitToSequence", "x two", "s", axis=1), node("ConcatFromSequence", "s", "z", axis=0)],
    "rows": [
        node("SplitToSequence", "x", "s", keepdims=0),
        node("ConcatFromSequence", "s", "z", axis=-1, new_axis=1),
    ],
    "length": [node("SplitToSequence", "x", "s"), node("SequenceLength", "s", "z")],
    "identity": [node("SequenceConstruct", "x x", "s"), node("Identity", "s", "t"), node("SequenceAt", "t first", "z")],
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_chains_fold_away(name: str) -> None:
    proto = tensors(CHAINS[name], ["z"])
    models.assert_close(models.imported(proto, {"x": X}), models.by_reference(proto, {"x": X}))


def test_an_optional_value_is_what_it_holds() -> None:
    graph = importer.load(tensors([node("Optional", "x", "o"), node("OptionalGetElement", "o", "z")], ["z"]))
    assert graph.results == graph.inputs


def test_nothing_is_left_of_a_sequence() -> None:
    graph = importer.load(tensors(CHAINS["construct"], ["z"]))
    assert [n.op for n in graph.results[0].inputs] == [ops.INPUT, ops.VIEW]


def test_a_graph_is_applied_to_each_tensor() -> None:
    body = helper.make_graph(
        [node("Add", "part shared", "sum"), node("Shape", "part", "shape")],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("part", "shared")],
        [onnx.ValueInfoProto(name=name) for name in ("sum", "shape")],
    )
    nodes = [
        node("SplitToSequence", "x two", "s", axis=1),
        node("SequenceMap", "s x2", "sums shapes", body=body),
        node("SequenceAt", "sums last", "z"),
    ]
    proto = models.model(nodes, [models.declared("x", X), models.declared("x2", X[:, :1])], ["z", "shapes"],
                         initializers=POSITIONS)  # fmt: skip
    graph = importer.load(proto)
    assert [name for name, _ in graph.outputs] == ["z", "shapes_0", "shapes_1"]
    z, *shapes = models.run(graph, {"x": X, "x2": X[:, :1]})
    np.testing.assert_array_equal(z, X[:, 2:] + X[:, :1])
    assert [shape.tolist() for shape in shapes] == [[3, 2], [3, 2]]


def of_sequence(kind: onnx.TypeProto) -> onnx.ModelProto:
    nodes = [node("OptionalHasElement", "s", "held"), node("Identity", "s", "same")]
    return models.model(nodes, [helper.make_value_info("s", kind)], ["held", "same"], opset=18)


SEQUENCE = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))


def test_a_sequence_that_is_an_input_is_given_when_compiling() -> None:
    proto = of_sequence(SEQUENCE)
    with pytest.raises(InputError, match=r"'s' is a sequence.*constants=\{'s': \[array"):
        importer.load(proto)
    with pytest.raises(InputError, match="'s' must be tensors of float32"):
        importer.load(proto, constants={"s": [np.zeros(2)]})
    held, *parts = models.run(importer.load(proto, constants={"s": [X, X[0]]}), {})
    assert held
    models.assert_close(parts, [X, X[0]])


def test_an_optional_input_may_hold_nothing() -> None:
    proto = of_sequence(helper.make_optional_type_proto(SEQUENCE))
    (held,) = models.run(importer.load(proto, constants={"s": None}), {})
    assert not held


def test_what_does_not_fit_is_refused() -> None:
    beyond = [node("SequenceConstruct", "x", "s"), node("SequenceAt", "s two", "z")]
    with pytest.raises(ModelError, match="position 2 is outside a sequence of 1 tensors"):
        importer.load(tensors(beyond, ["z"]))
    mixed = [node("SequenceConstruct", "x", "s"), node("Neg", "s", "z")]
    with pytest.raises(UnsupportedError, match="found a sequence"):
        importer.load(tensors(mixed, ["z"]))
    with pytest.raises(ModelError, match="expected a sequence"):
        importer.load(tensors([node("SequenceLength", "x", "z")], ["z"]))
