"""Training of an ONNX model without PyTorch in it, and what a NaN in a loss is traced to."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import luminal
from luminal import optim
from luminal.core.errors import InputError

W = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
V = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)
ZERO = np.zeros(3, np.float32)  # equal to another initialiser, which stays as it is


def model() -> onnx.ModelProto:
    """``Log(MatMul(x, w) + b - c)`` times ``v``."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "first"), helper.make_node("Add", ["p", "b"], ["q"], "bias"),
        helper.make_node("Sub", ["q", "c"], ["r"]), helper.make_node("Exp", ["r"], ["e"]),
        helper.make_node("Log", ["e"], ["l"], "logarithm"), helper.make_node("MatMul", ["l", "v"], ["y"], "last"),
    ]  # fmt: skip
    initialisers = [numpy_helper.from_array(a, n) for n, a in (("w", W), ("b", ZERO), ("c", ZERO), ("v", V))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
    graph = helper.make_graph(nodes, "small", [x], [y], initialisers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@cache
def trained() -> luminal.Training:
    return luminal.compile_training(
        model(), "cross_entropy", optim.SGD(lr=0.1, momentum=0.9), trainable=["w", "b"], outputs=True,
        dims={"batch": (1, 8)},
    )  # fmt: skip


def batch(k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(k)
    count = 3 + k % 3
    return random.normal(size=(count, 4)).astype(np.float32), random.integers(0, 2, count)


def test_steps_are_those_of_pytorch() -> None:
    training = trained()
    training.reset()
    w, b = nn.Parameter(torch.tensor(W)), nn.Parameter(torch.tensor(ZERO))
    theirs = torch.optim.SGD([w, b], lr=0.1, momentum=0.9)
    for k in range(5):
        x, target = batch(k)
        theirs.zero_grad()
        wanted = (torch.tensor(x) @ w + b).exp().log() @ torch.tensor(V)
        loss = nn.functional.cross_entropy(wanted, torch.tensor(target))
        loss.backward()
        found, output = training(x, target, lr=0.1)
        np.testing.assert_allclose(found, loss.item(), rtol=1e-5)
        np.testing.assert_allclose(output, wanted.detach().numpy(), rtol=1e-5, atol=1e-5)
        theirs.step()
    state = training.state
    assert sorted(state) == ["b", "b.momentum_buffer", "w", "w.momentum_buffer"]
    np.testing.assert_allclose(state["w"], w.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["b.momentum_buffer"], theirs.state[b]["momentum_buffer"].numpy(), atol=1e-5)
    x, _ = batch(0)
    np.testing.assert_allclose(training.eval(x), (x @ state["w"] + state["b"]) @ V, rtol=1e-4, atol=1e-5)


def test_memory_is_known_before_a_run() -> None:
    memory = trained().memory
    assert memory["state"] == 2 * (W.nbytes + ZERO.nbytes) and memory["train"] > memory["eval"] > 0


def test_a_nan_is_traced_to_the_operator_that_made_it() -> None:
    training = trained()
    training.reset()
    x, target = batch(0)
    training(x, target, lr=0.1)
    before = training.state
    training.check_nan = True
    try:
        with pytest.raises(
            FloatingPointError, match=r"loss is NaN: \d+ first come from Add of .*'last'|first come from"
        ):
            training(np.full_like(x, -1e30), target, lr=0.1)
        assert all(np.array_equal(value, before[name]) for name, value in training.state.items())
        with pytest.raises(FloatingPointError, match="there are NaN in x before the step"):
            training(np.full_like(x, np.nan), target, lr=0.1)
        assert np.isfinite(training(x, target, lr=0.1)[0])
    finally:
        training.check_nan = False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trainable": ["wight"]}, "there is no initialiser 'wight'"),
        ({"trainable": ["w", "w"]}, "'w' stands twice"),
        ({"trainable": None}, "trainable has to name the initialisers"),
        ({"loss": "crossentropy"}, "expected the name of an output or one of cross_entropy"),
        ({"loss": "y"}, "expected a loss that is one float, found loss: float32"),
        ({"optimizer": 0.1}, "expected one of torch.optim or luminal.optim, found float"),
        ({"inputs": (np.zeros(3),)}, "says what its inputs are"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], said: str) -> None:
    given = {"loss": "mse", "optimizer": optim.SGD(), "trainable": ["w"], **options}
    with pytest.raises(InputError, match=said):
        luminal.compile_training(model(), **given)
