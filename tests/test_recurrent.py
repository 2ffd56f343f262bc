"""RNN, LSTM and GRU of both front ends, against onnxruntime and PyTorch: scans, whatever the length."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher

import luminal
from luminal.core import interp, ops, traverse
from luminal.core.errors import ModelError, ShapeError, UnsupportedError
from luminal.core.ir import Graph, Node
from luminal.frontends.fx import importer as fx
from luminal.frontends.onnx import importer
from tests import onnx_models as models

Array = np.ndarray[Any, Any]

TIME, BATCH, FEATURES, HIDDEN = 5, 3, 4, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def scans(graph: Graph) -> set[tuple[Node, ...]]:
    """The operands of the scans, which the results of one share."""
    return {node.inputs for node in traverse.topological(graph.results) if node.op is ops.SCAN}


# ---- ONNX ------------------------------------------------------------------------------------------------------------


def layer(op: str, optional: str = "", **attributes: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A layer with those inputs that ``optional`` names by a letter: biases, sequence lengths, initial states (h, c),
    peepholes."""
    random = np.random.default_rng(0)
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    first = attributes.get("layout", 0) == 1
    state = (BATCH, directions, HIDDEN) if first else (directions, BATCH, HIDDEN)
    shapes = {
        "X": (BATCH, TIME, FEATURES) if first else (TIME, BATCH, FEATURES),
        "W": (directions, GATES[op] * HIDDEN, FEATURES), "R": (directions, GATES[op] * HIDDEN, HIDDEN),
        "B": (directions, 2 * GATES[op] * HIDDEN), "s": (BATCH,), "h": state, "c": state,
        "P": (directions, 3 * HIDDEN),
    }  # fmt: skip
    inputs = [
        None if name in "BshcP" and name not in optional
        else np.int32([5, 2, 4]) if name == "s"
        else random.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    ][: 8 if op == "LSTM" else 6]  # fmt: skip
    outputs = 3 if op == "LSTM" else 2
    return models.one(op, *inputs, outputs=outputs, opset=14, hidden_size=HIDDEN, **attributes)


LAYERS = [
    *[(op, "", {}) for op in GATES],
    *[(op, "Bsh", {"direction": direction}) for op in GATES for direction in ("forward", "reverse", "bidirectional")],
    ("LSTM", "BshcP", {"direction": "bidirectional"}),
    ("LSTM", "BcP", {"clip": 0.3}),
    ("LSTM", "BP", {"input_forget": 1}),
    ("GRU", "Bh", {"linear_before_reset": 1}),
    ("GRU", "Bh", {"linear_before_reset": 1, "clip": 0.2}),
    ("RNN", "Bh", {"clip": 0.2, "activations": ["Relu"]}),
    ("LSTM", "B", {"activations": ["HardSigmoid", "ScaledTanh", "Affine"], "activation_alpha": [0.3, 0.7, 1.5],
                   "activation_beta": [0.4, 0.9, 0.1]}),
    ("GRU", "B", {"activations": ["LeakyRelu", "Elu"], "activation_alpha": [0.2, 0.8]}),
    ("GRU", "B", {"activations": ["Softsign", "Tanh"]}),
    ("RNN", "B", {"direction": "bidirectional", "activations": ["ThresholdedRelu", "Softplus"],
                  "activation_alpha": [0.4]}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "optional", "attributes"), LAYERS)
def test_layers_agree_with_onnxruntime(op: str, optional: str, attributes: dict[str, Any]) -> None:
    proto, inputs = layer(op, optional, **attributes)
    graph = importer.load(proto)
    assert len(scans(graph)) == (2 if attributes.get("direction") == "bidirectional" else 1)
    models.assert_close(models.run(graph, inputs), models.by_onnxruntime(proto, inputs), 1e-5)


@pytest.mark.parametrize("op", GATES)
def test_the_batch_may_be_the_first_axis(op: str) -> None:
    """onnxruntime has no layout 1."""
    proto, inputs = layer(op, "Bshc", direction="bidirectional", layout=1)
    plain, _ = layer(op, "Bshc", direction="bidirectional")
    turned = {name: value.swapaxes(0, 1) if name in ("x0", "x5", "x6") else value for name, value in inputs.items()}
    whole, *last = models.by_onnxruntime(plain, turned)
    wanted = [whole.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in last)]
    models.assert_close(models.imported(proto, inputs), wanted, 1e-5)


def test_one_library_for_all_lengths_and_batches() -> None:
    proto, inputs = layer("LSTM", "BshcP", direction="bidirectional")
    for position, axis, name in ((0, 0, "t"), (0, 1, "b"), (4, 0, "b"), (5, 1, "b"), (6, 1, "b")):
        proto.graph.input[position].type.tensor_type.shape.dim[axis].dim_param = name
    model = luminal.compile(proto, dims={"t": (1, 16), "b": (1, 8)}, target="host")
    for time, batch in ((1, 1), (7, 4), (16, 8)):
        random = np.random.default_rng(time)
        shapes = {"x0": (time, batch, FEATURES), "x5": (2, batch, HIDDEN), "x6": (2, batch, HIDDEN)}
        given = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        call = {**inputs, **given, "x4": random.integers(1, time + 1, batch, np.int32)}
        models.assert_close(list(model.run(call).values()), models.by_onnxruntime(proto, call), 1e-5)


def test_half_precision_is_rounded_once() -> None:
    proto, inputs = layer("LSTM", "Bhc")
    halves = {name: array.astype(np.float16) for name, array in inputs.items()}
    for value in proto.graph.input:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    exact = models.imported(layer("LSTM", "Bhc")[0], {name: array.astype(np.float32) for name, array in halves.items()})
    for found, wanted in zip(models.imported(proto, halves), exact, strict=True):
        np.testing.assert_array_equal(found, wanted.astype(np.float16))


def test_layers_that_do_not_fit_are_refused() -> None:
    proto, _ = layer("LSTM", "B", activations=["Sigmoid", "Tanh"])
    with pytest.raises(ModelError, match=r"LSTM 'node'.*expected 3 activations, found 2"):
        importer.load(proto)
    proto, _ = layer("RNN", activations=["Sine"])
    with pytest.raises(ModelError, match=r"expected any of relu, .* found 'Sine'"):
        importer.load(proto)
    proto, _ = layer("GRU")
    proto.graph.input[2].type.tensor_type.shape.dim[1].dim_value = 7
    with pytest.raises(ShapeError, match=r"GRU 'node'.*R: expected shape \[1, 6, 2\], found \[1, 7, 2\]"):
        importer.load(proto)
    proto, _ = layer("GRU", direction="sideways")
    with pytest.raises(ModelError, match="expected one of forward, reverse, bidirectional"):
        importer.load(proto)


# ---- PyTorch ---------------------------------------------------------------------------------------------------------

MODULES = {
    "lstm": torch.nn.LSTM(FEATURES, HIDDEN),
    "lstm, deep and both ways": torch.nn.LSTM(FEATURES, HIDDEN, 2, bidirectional=True, batch_first=True),
    "lstm, projected": torch.nn.LSTM(FEATURES, HIDDEN + 1, 2, proj_size=HIDDEN, bidirectional=True),
    "lstm without biases": torch.nn.LSTM(FEATURES, HIDDEN, bias=False),
    "gru": torch.nn.GRU(FEATURES, HIDDEN, 2, bidirectional=True),
    "gru without biases": torch.nn.GRU(FEATURES, HIDDEN, bias=False, batch_first=True),
    "rnn": torch.nn.RNN(FEATURES, HIDDEN, 2, nonlinearity="tanh", dropout=0.5),
    "rnn of relu": torch.nn.RNN(FEATURES, HIDDEN, nonlinearity="relu", bidirectional=True),
}


def eager(module: torch.nn.Module, *inputs: Any) -> list[Array]:
    with torch.no_grad():
        return [x.numpy() for x in torch.utils._pytree.tree_leaves(module(*inputs))]


@pytest.mark.parametrize("name", MODULES)
def test_modules_agree_with_pytorch(name: str) -> None:
    module = MODULES[name].eval()
    x = torch.randn(TIME, BATCH, FEATURES, generator=torch.Generator().manual_seed(0))
    graph = fx.load(module, (x,))
    count = module.num_layers * (2 if module.bidirectional else 1)
    assert len(scans(graph)) == count
    found = interp.run(graph, {graph.inputs[0].attr.name: x.numpy()}).outputs
    models.assert_close(found, eager(module, x), 1e-5)


def test_first_states_and_one_sequence() -> None:
    for x, h, c in (((5, 4), (1, 2), (1, 2)), ((5, 3, 4), (1, 3, 2), (1, 3, 2))):
        inputs = torch.randn(x), (torch.randn(h), torch.randn(c))
        graph = fx.load(MODULES["lstm"].eval(), inputs)
        given = [inputs[0], *inputs[1]]
        named = {node.attr.name: value.numpy() for node, value in zip(graph.inputs, given, strict=True)}
        models.assert_close(interp.run(graph, named).outputs, eager(MODULES["lstm"], *inputs), 1e-5)


def test_dropout_in_training_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="dropout in training"):
        fx.load(torch.nn.GRU(FEATURES, HIDDEN, 2, dropout=0.5).train(), (torch.randn(TIME, BATCH, FEATURES),))


@pytest.mark.parametrize("name", ["lstm, deep and both ways", "gru"])
def test_modules_of_any_length_and_batch(name: str) -> None:
    module = MODULES[name].eval()
    dims = {"m": (1, 16), "n": (1, 8), "input": {0: "m", 1: "n"}}
    model = luminal.compile(module, (torch.randn(TIME, BATCH, FEATURES),), dims=dims, target="host")
    for shape in ((1, 1), (7, 4), (16, 8)):
        x = torch.randn(*shape, FEATURES)
        found = [value.numpy() for value in torch.utils._pytree.tree_leaves(model(x))]
        models.assert_close(found, eager(module, x), 1e-5)


class Counted(torch.nn.Module):
    """The states of a layer at the places that a mask picks, and how many calls there were."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.LSTM(4, 5, batch_first=True)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        picked: torch.Tensor = self.layer(x)[0][mask]
        return picked


def test_the_steps_stay_any_number_where_a_program_is_decomposed() -> None:
    """The update in place makes PyTorch decompose it; the mask picks more than the example has."""
    model = Counted()
    dims = {"x": ("batch", "time", None), "mask": ("batch", "time"), "batch": (1, 4), "time": (1, 32)}
    graph = fx.load(model, (torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)), dims=dims)
    assert [size.hi for size in graph.measured] == [128]
    x, mask = torch.randn(4, 9, 4), torch.rand(4, 9) > 0.2
    found, calls = interp.run(graph, {"x": x.numpy(), "mask": mask.numpy()}).outputs
    np.testing.assert_allclose(found, model(x, mask).detach(), atol=1e-6)
    assert calls == 1


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "rnn of relu"])
def test_pytorch_runs_a_layer_as_before_once_it_was_exported(name: str) -> None:
    """Where its own dispatcher in Python chooses the kernel, as torch.compile has it do."""
    module = MODULES[name].eval()
    x = torch.randn(TIME, BATCH, FEATURES)
    fx.load(module, (x,))
    with enable_python_dispatcher():
        found = module(x)[0]
    torch.testing.assert_close(found, module(x)[0])
