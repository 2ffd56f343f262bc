"""Training of an ONNX model without PyTorch in it, and what a NaN in a loss is traced to."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import luminal
from luminal import checkpoint, optim
from luminal.core.errors import InputError
from tests.runtime_example import run

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
            FloatingPointError,
            match=r"loss is NaN: \d+ first come from SumReduce of MatMul 'last', which reads .* between -inf and inf",
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


PROGRAM = r"""
#include "small_checkpoint.h"

int main(int argc, char** argv) {
    lm_library* library;
    lm_context* context;
    char message[200] = "";
    float x[12] = {1, 0, 2, -1, 0, 3, 1, 1, -2, 0, 1, 1}, y[6], w[12], loss;
    int64_t labels[3] = {0, 1, 1};
    double rate = 0.1;
    const int64_t in_shape[] = {3, 4}, out_shape[] = {3, 2}, count = 3, one = 1;
    if (small_open(NULL, &library) != LM_OK || small_context_create(library, &context) != LM_OK) return 3;
    if (argc > 2 && small_load(context, argv[2], message, sizeof message) != LM_OK) return fputs(message, stderr), 4;
    const lm_value in[] = {{.data = x, .dtype = LM_FLOAT32, .rank = 2, .shape = in_shape},
                           {.data = labels, .dtype = LM_INT64, .rank = 1, .shape = &count},
                           {.data = &rate, .dtype = LM_FLOAT64, .rank = 1, .shape = &one}};
    lm_value out[] = {{.data = &loss, .dtype = LM_FLOAT32},
                      {.data = y, .dtype = LM_FLOAT32, .rank = 2, .shape = out_shape}};
    if (small_run(context, SMALL_ENTRY_TRAIN, in, out, NULL) != LM_OK) return 5;
    if (small_get_named(context, "w", w, sizeof w) != LM_OK) return 6;
    if (small_set_named(context, "w", w, sizeof w) != LM_OK) return 6;
    if (small_get_named(context, "v", w, sizeof w) == LM_OK) return 7;
    if (small_save(context, argv[1], message, sizeof message) != LM_OK) return fputs(message, stderr), 8;
    printf("%.9g", loss);
    small_context_destroy(context);
    return small_close(library);
}
"""
X = np.array([[1, 0, 2, -1], [0, 3, 1, 1], [-2, 0, 1, 1]], np.float32), np.array([0, 1, 1])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    trained().export(folder, python_module=False)
    (folder / "main.c").write_text(PROGRAM)
    run(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", folder / "main.c", f"-I{folder}", f"-L{folder}", "-lsmall",
         f"-Wl,-rpath,{folder}", "-o", folder / "main"])  # fmt: skip
    run(["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++",
         folder / "small_checkpoint.h"])  # fmt: skip
    return folder / "main"


def test_a_program_in_c_goes_on_where_python_stopped(program: Path, tmp_path: Path) -> None:
    training = trained()
    training.reset()
    training(*X, lr=0.1)
    training.save(tmp_path / "python.safetensors")
    done = subprocess.run(
        [program, tmp_path / "c.safetensors", tmp_path / "python.safetensors"], capture_output=True, text=True
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert float(training(*X, lr=0.1)[0]) == np.float32(float(done.stdout))
    wanted = training.state
    training.reset()
    training.load(tmp_path / "c.safetensors")
    assert all(np.array_equal(value, wanted[name]) for name, value in training.state.items())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.safetensors", "python.safetensors"]


def test_a_program_in_c_reads_what_the_library_safetensors_wrote(program: Path, tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    training = trained()
    training.reset()
    state = {name: np.ascontiguousarray(value) for name, value in reversed(training.state.items())}
    numpy.save_file(state, tmp_path / "in.safetensors", metadata={'a"b': "{[,"})
    done = subprocess.run([program, tmp_path / "out.safetensors", tmp_path / "in.safetensors"], capture_output=True)
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("w"), "no state w"),
        (lambda state: state.update(b=np.zeros(4, np.float32)), "another type or shape in the file: b"),
        (lambda state: state.update(b=np.zeros(3)), "another type or shape in the file: b"),
    ],
)
def test_a_program_in_c_refuses_what_does_not_fit(program: Path, tmp_path: Path, change: Any, said: str) -> None:
    state = dict(trained().state)
    change(state)
    checkpoint.save(tmp_path / "in.safetensors", state)
    done = subprocess.run([program, tmp_path / "out", tmp_path / "in.safetensors"], capture_output=True, text=True)
    assert done.returncode == 4 and said in done.stderr and not (tmp_path / "out").exists()


def test_a_program_in_c_refuses_files_that_are_cut(program: Path, tmp_path: Path) -> None:
    trained().save(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    for size in (0, 7, 30, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:size])
        done = subprocess.run([program, tmp_path / "out", tmp_path / "cut"], capture_output=True, text=True)
        assert done.returncode == 4 and ("no whole file" in done.stderr or "is cut" in done.stderr), size
    assert not (tmp_path / "out").exists()
