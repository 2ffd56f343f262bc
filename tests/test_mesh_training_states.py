"""Steps of training in stages of models with states of their own: random numbers, statistics of batches; models in
evaluation mode in stages; and ONNX models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import luminal
from benchmarks.eager import Run
from luminal import optim
from luminal.core import exchange
from luminal.core.decompose import random
from luminal.core.errors import InputError
from luminal.core.ops import EVERY
from luminal.core.schedule.program import interpreter
from tests import mesh_training_support
from tests.compiled_support import exactly
from tests.test_mesh_pipeline_training import made, on_one_rank, program

ROWS, WIDTH, PARTS, SEED = 8, 8, 2, 7
STAGES = {"pipeline": 2}
RANDOM = random.STATE
LINK = "10000GB/s,20ns"  # over which even these are cut in the middle


class Dropping(nn.Module):
    """Numbers are dropped in each half, after the last layer too, so that outputs show which."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.dropout(torch.tanh(layer(x)), 0.5, training=True)
        return x


class Normed(nn.Module):
    """With running statistics in each half."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH, momentum=momentum) for momentum in (0.1, 0.2, 0.3, 0.4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = torch.tanh(norm(layer(x)))
        return x


@dataclass
class InParts(Run):
    """A run whose steps are of the mean gradient of several parts of a batch, one after the other."""

    parts: int = 1

    def step(self, number: int, order: int = 0) -> torch.Tensor:
        self.optimizer.zero_grad()
        losses = []
        for part in zip(*(t.chunk(self.parts) for t in self.batch(number)), strict=True):
            rows = torch.randperm(len(part[0]), generator=torch.Generator().manual_seed(order))
            x, y = (t[rows].to(self._dtype) if order else t.to(self._dtype) for t in part)
            assert self.loss is not None
            losses.append(self.loss(self.module(x), y) / self.parts)
            losses[-1].backward()
        self.optimizer.step()
        return torch.stack(losses).sum().detach()


def run(kind: type[nn.Module], rows: int = ROWS) -> InParts:
    module = kind()
    mesh_training_support.draw(module, 0, 0.3)

    def batch(number: int) -> tuple[torch.Tensor, ...]:
        rng = np.random.default_rng(number)
        return tuple(torch.from_numpy(rng.standard_normal((ROWS, WIDTH), np.float32)[:rows]) for _ in range(2))

    return InParts(module, nn.MSELoss(), torch.optim.SGD(module.parameters(), 0.05, 0.9), batch, parts=PARTS)


def parts_of(x: np.ndarray, ways: int) -> Iterator[np.ndarray]:
    """The rows of each micro-batch, of which ranks beside each other have parts."""
    own = [np.split(rows, PARTS) for rows in np.split(x, ways)]
    for number in range(PARTS):
        yield np.concatenate([each[number] for each in own])


@pytest.mark.parametrize("ways", [1, 2])
def test_random_numbers_are_those_of_one_rank(ways: int) -> None:
    """With the same micro-batches, one after the other; in the next step others, and the same bits from the same seed.
    The learning rate is zero, so that parameters stay."""
    mesh = {**STAGES, **({"data": ways} if ways > 1 else {})}
    shard = {"x": {"data": 0}, "target": {"data": 0}} if ways > 1 else "auto"
    step = made(run(Dropping), mesh=mesh, micro_batches=PARTS, link=LINK, outputs=True, seed=SEED, shard=shard)
    assert step.states[RANDOM] == EVERY
    programs = [program(step, rank) for rank in step.ranks]
    names = [node.attr.name for node in step.given]
    batch = [t.numpy() for t in run(Dropping).batch(0)]

    def work(rank: int, other: Any) -> list[dict[str, np.ndarray]]:
        mine = rank % ways
        given = dict(zip(names, [*(np.split(x, ways)[mine] for x in batch), np.zeros(1)], strict=True))
        results = []
        for steps in (2, 1):
            state: dict[str, Any] = {}
            for _ in range(steps):
                results.append(interpreter.run(programs[mine], given, {}, exchange=other, states=state))
            np.testing.assert_array_equal(state[RANDOM], [SEED, steps * PARTS])
        return results

    found = exchange.lockstep(2 * ways, work)
    for each in found:
        for k, result in enumerate(each):
            for name, value in result.items():
                np.testing.assert_array_equal(value, found[0][0 if k == 2 else k][name])
    graph = on_one_rank(run(Dropping, ROWS // PARTS), accumulate=PARTS, outputs=True)["accumulate"]
    ends = [node.attr.name for node in graph.given]
    (shown,) = (name for name in found[0][0] if name != "loss")
    for number, result in enumerate(found[0][:2]):
        losses, bounds = [], []
        for k, (part, ours) in enumerate(
            zip(zip(*(parts_of(x, ways) for x in batch), strict=True), np.split(result[shown], PARTS), strict=True)
        ):
            given = {**dict(zip(ends, part, strict=True)), RANDOM: np.array([SEED, number * PARTS + k])}
            (loss, of_loss), (expected, bound) = exactly(graph, given)[:2]
            np.testing.assert_array_equal(ours == 0, expected == 0)
            assert 0 < (expected == 0).sum() < expected.size
            np.testing.assert_allclose(ours, expected, rtol=0, atol=bound)
            losses.append(float(loss))
            bounds.append(of_loss)
        assert abs(float(result["loss"]) - np.mean(losses)) <= max(bounds) + PARTS * 2.0**-24 * max(losses)


def test_statistics_are_those_of_each_micro_batch() -> None:
    """As in PyTorch's pipelines: each is normed by its own, and adds to the running ones, in turn. The model in
    evaluation mode has these."""
    steps = 3
    taken = mesh_training_support.steps(lambda: run(Normed), steps, (steps,))
    step = made(run(Normed), mesh=STAGES, micro_batches=PARTS, link=LINK)
    whole, subject = program(step), run(Normed)
    statistics = [name for name, value in subject.module.named_buffers() if value.ndim]
    homes = {step.states[name] for name in statistics}
    assert homes == {0, 1} and all(step.states[name] == step.states[name.replace("mean", "var")] for name in statistics)
    names = [node.attr.name for node in step.given]
    train, evaluated = whole.entries
    assert (train.name, evaluated.name) == ("train", "eval")
    x = subject.batch(steps)[0].numpy()

    def work(rank: int, other: Any) -> tuple[list[float], dict[str, Any], dict[str, np.ndarray]]:
        state: dict[str, Any] = {}
        losses = []
        for number in range(steps):
            given = dict(zip(names, [*(t.numpy() for t in subject.batch(number)), np.array([0.05])], strict=True))
            losses.append(float(interpreter.run(whole, given, {}, train, exchange=other, states=state)["loss"]))
        before = {name: value.copy() for name, value in state.items()}
        shown = interpreter.run(whole, {evaluated.inputs[0].name: x}, {}, evaluated, exchange=other, states=state)
        for name, value in before.items():
            np.testing.assert_array_equal(state[name], value)
        return losses, state, shown

    results = exchange.lockstep(2, work)
    taken.check_losses(results[0][0])
    graph = on_one_rank(run(Normed))["eval"]
    values: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for rank, (losses, state, _) in enumerate(results):
        assert losses == results[0][0]
        shapes = {s.name: s.input.shape for s in graph.states} | {n: v.shape for n, v in taken.values[steps].items()}
        own = {name for name, home in step.states.items() if home in (rank, EVERY)}
        values |= {name: state[name].reshape(shapes[name]) for name in own if name in shapes}
        counts |= {name: state[name].item() for name in own if name.endswith("num_batches_tracked")}
    assert counts == {f"norms.{k}.num_batches_tracked": steps * PARTS for k in range(4)}
    assert values.keys() == taken.values[steps].keys()
    taken.check(steps, values)
    held = {state.name: values[state.name] for state in graph.states}
    ((expected, bound),) = exactly(graph, {graph.given[0].attr.name: x, **held})[:1]
    for _, _, shown in results:
        (output,) = shown.values()
        np.testing.assert_allclose(output, expected, rtol=0, atol=bound)


def two_layers(rows: int | str) -> onnx.ModelProto:
    """``tanh(x w) v``."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], "first"), helper.make_node("Tanh", ["p"], ["t"], "middle"),
        helper.make_node("MatMul", ["t", "v"], ["y"], "last"),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH), np.float32), n) for n in ("w", "v")
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, WIDTH]) for n in ("x", "y"))
    graph = helper.make_graph(nodes, "layers", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@dataclass
class OfOnnx:
    """A step of training of an ONNX model, to be compiled."""

    model: onnx.ModelProto

    def compiled(self, **options: Any) -> Any:
        sgd = optim.SGD(lr=0.1, momentum=0.9)
        return luminal.compile_training(self.model, "mse", sgd, trainable=["w", "v"], outputs=True, **options)


def test_an_onnx_model_is_trained_in_micro_batches() -> None:
    """Whose size of the batch has a name: the step of the mean is that of all rows at once."""
    dims = {"rows": ROWS}
    step = made(OfOnnx(two_layers("rows")), mesh=STAGES, micro_batches=PARTS, link=LINK, dims=dims)
    whole = program(step)
    assert {home for name, home in step.states.items() if name in ("w", "v")} == {0, 1}
    rng = np.random.default_rng(1)
    given = {name: rng.standard_normal((ROWS, WIDTH), np.float32) for name in ("x", "target")} | {"lr": np.array([0.1])}

    def work(_: int, other: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        state: dict[str, Any] = {}
        found = interpreter.run(whole, given, {}, exchange=other, states=state)
        only = {"x": given["x"]}
        return found, state, interpreter.run(whole, only, {}, whole.entries[1], exchange=other, states=state)

    results = exchange.lockstep(2, work)
    graphs = on_one_rank(OfOnnx(two_layers("rows")), dims=dims)
    names = [name for name, _ in graphs["train"].outputs]
    wanted = dict(zip(names, exactly(graphs["train"], given), strict=True))
    for rank, (found, state, _) in enumerate(results):
        for name, value in found.items():
            np.testing.assert_allclose(value, wanted[name][0], rtol=0, atol=wanted[name][1])
        for name in ("w", "v", "w.momentum_buffer", "v.momentum_buffer"):
            expected, bound = wanted[f"{name}.next"]
            if step.states[name] == rank:
                np.testing.assert_allclose(state[name].reshape(expected.shape), expected, rtol=0, atol=bound)
    after = {name: results[step.states[name]][1][name].reshape(WIDTH, WIDTH) for name in ("w", "v")}
    ((expected, bound),) = exactly(graphs["eval"], {"x": given["x"], **after})[:1]
    np.testing.assert_allclose(results[0][2]["y"], expected, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (ROWS, {}, "expected a model whose batch has a size with a name, found 8 rows of 'x'"),
        ("rows", {}, r"expected a number of rows that 2 divides, as in dims={'rows': 16}, found None"),
        ("rows", {"dims": {"rows": 7}}, "expected a number of rows that 2 divides, .*, found 7"),
        (
            "rows",
            {"dims": {"rows": 8}, "shard": {"x": {"pipeline": None}}},
            "expected an input with rows of a batch, found none",
        ),
        (
            "rows",
            {"dims": {"rows": 8}, "shard": {"z": {"pipeline": 0}}},
            "expected names of inputs, which are x, along",
        ),
        (
            "rows",
            {"dims": {"rows": 8}, "shard": {"x": {"pipeline": 1}}},
            "expected axis 0 of 'x' along 'pipeline', .* or None, found 1",
        ),
    ],
)
def test_what_no_micro_batch_can_be_made_of(rows: int | str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        OfOnnx(two_layers(rows)).compiled(mesh=STAGES, micro_batches=PARTS, **options)


def test_rows_of_another_name_are_not_those_of_the_batch() -> None:
    model = two_layers("rows")
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["others", WIDTH]))
    with pytest.raises(InputError, match="expected None of 'z' along 'pipeline', as its first axis is not 'rows'"):
        OfOnnx(model).compiled(
            mesh=STAGES, micro_batches=PARTS, dims={"rows": 8, "others": 4}, shard={"z": {"pipeline": 0}}
        )
