"""States in pipelines: which stage keeps them, and what several entries read of them, run after run."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import luminal
from luminal import api, pipelines
from luminal.core import exchange
from luminal.core.errors import InputError, SpecError
from luminal.core.ops import EVERY
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.program import interpreter, spec
from luminal.core.schedule.program.ir import Program
from luminal.core.target import AVX2
from tests import mpi_support, test_mesh_gpus
from tests.test_mesh_mpi import RANK
from tests.test_mesh_pipeline import PAIR, check, exact

WIDTH = 64
LINK = "10000GB/s,2ns"  # nearly free


class Remembering(torch.nn.Module):
    """Two layers, each with a mean that it updates; a count that both read; and a mean of the first layer that the
    second, which has twice the work, reads as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.register_buffer("near", torch.linspace(-1, 1, WIDTH))
        self.register_buffer("far", torch.linspace(-1, 1, 2 * WIDTH))
        self.register_buffer("calls", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.near.clone()
        self.calls += 1
        a = torch.relu(self.first(x)) * self.calls[0]
        self.near.copy_(a.softmax(-1).mean(0) + self.near)
        b = torch.tanh(self.second(a)) + before.mean() * self.calls[1]
        self.far.copy_(b.mean(0) - self.far)
        return b + self.far


class Asking(torch.nn.Module):
    """Another entry over the same states, and over a weight of the second layer."""

    def __init__(self, of: Remembering) -> None:
        super().__init__()
        self.second = of.second
        self.register_buffer("near", of.near)
        self.register_buffer("far", of.far)

    def forward(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.second(y + self.near), self.far.exp()


@cache
def subject() -> tuple[dict[str, torch.nn.Module], dict[str, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(5)
    module = Remembering().eval()
    inputs = {"main": (torch.randn(12, WIDTH),), "asking": (torch.randn(2, WIDTH),)}
    return {"main": module, "asking": Asking(module).eval()}, inputs


@cache
def staged() -> pipelines.Pipelined:
    models, inputs = subject()
    return pipelines.staged(api._entries(models, inputs, None, None, None), PAIR, "auto", LINK, 1)


@cache
def program() -> Program:
    return staged().joined(compile_graphs("remembering", staged().graphs(0), AVX2), AVX2)


def test_a_state_is_on_the_stage_that_updates_it() -> None:
    """What is cheap to compute from itself, each stage that reads it keeps; weights lie alike in each entry."""
    homes = staged().states
    assert homes == {"near": 0, "far": 1, "calls": EVERY}
    crossings = staged().staged["main"].crossings
    assert sorted(c.bytes for c in crossings) == [WIDTH * 4, 12 * WIDTH * 4]  # the old mean, and the activations
    pipeline = program().pipeline
    assert pipeline is not None and pipeline.states == homes
    offsets = {state.buffer: program().buffer(state.buffer).offset for state in program().states}
    assert offsets["calls"] == 0 and offsets["near"] == offsets["far"] == 64
    assert program().state_sizes == [64 + WIDTH * 4, 64 + 2 * WIDTH * 4]
    for entry, found in staged().staged.items():
        names = [{*part.graph.names.values()} for part in found.stages]
        assert "second.weight" in names[1] and "second.weight" not in names[0], entry
    wrong = {**homes, "near": 1}
    broken = replace(program(), pipeline=replace(pipeline, states=wrong))
    with pytest.raises(SpecError, match=r"first value is for another stage|reads near of others|overlaps"):
        spec.check(broken)


class Runs(torch.nn.Module):
    """So many runs, one after the other."""

    def __init__(self, module: torch.nn.Module, count: int) -> None:
        super().__init__()
        self.module, self.count = module, count

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.module(x) for _ in range(self.count))


@cache
def by_torch(count: int) -> list[tuple[np.ndarray, float]]:
    """What so many runs give in float64, each with how far it may be off as its longest path rounds, through the states
    of the runs before."""
    models, inputs = subject()
    return exact(Runs(copy.deepcopy(models["main"]), count), inputs["main"])


def test_ranks_read_and_write_their_states() -> None:
    given = {program().entries[0].inputs[0].name: subject()[1]["main"][0].numpy()}
    outputs = exchange.lockstep(
        2, lambda _, other: next(iter(interpreter.run(program(), given, {}, seed=0, exchange=other).values()))
    )  # fmt: skip
    for output in outputs:
        check(output, by_torch(1)[0])


@mpi_support.needed
def test_states_are_kept_from_run_to_run(tmp_path: Path) -> None:
    models, inputs = subject()
    made = luminal.compile(models, inputs, name="remembering", mesh=PAIR, link=LINK)
    made.export(tmp_path / "library", python_module=False)
    np.savez(tmp_path / "inputs.npz", **{made["main"].input_names[0]: inputs["main"][0].numpy()})
    done = mpi_support.mpirun(2, RANK, tmp_path / "library", tmp_path / "inputs.npz", tmp_path / "y", 3, "none")
    assert done.returncode == 0, done.stderr
    for number, expected in enumerate(by_torch(3)):
        found = [np.load(tmp_path / f"y.{rank}.{number}.npy") for rank in range(2)]
        check(found[0], expected)
        np.testing.assert_array_equal(found[0], found[1])


class Circle(torch.nn.Module):
    """A state that the last step decides, and the first one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("last", torch.zeros(4, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x + self.last)
        self.last.copy_(y)
        return y


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InputError, match="found no 1 places where the model can be cut"):
        luminal.compile(Circle(), (torch.randn(4, WIDTH),), mesh=PAIR, name="circle")
    back = subject()[0] | {"asking": Back(subject()[0]["main"])}
    with pytest.raises(InputError, match="expected the state 'near' to depend on stage 0, which keeps it in other"):
        luminal.compile(back, subject()[1], mesh=PAIR, link=LINK, name="back")


class Back(torch.nn.Module):
    """An entry in which a state of the first layer depends on one of the second."""

    def __init__(self, of: Remembering) -> None:
        super().__init__()
        self.register_buffer("near", of.near)
        self.register_buffer("far", of.far)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        self.near.copy_((y + self.far[:WIDTH]).mean(0))
        return y + 1


@mpi_support.needed
def test_states_on_gpus(tmp_path: Path) -> None:
    """Emulated, and so is NCCL."""
    models, inputs = subject()
    options = {"mesh": PAIR, "link": LINK, "target": "cuda:sm_90", "emulate": True}
    made = luminal.compile(models["main"], inputs["main"], name="remembering_gpu", **options)
    made.export(tmp_path / "library", python_module=False)
    np.savez(tmp_path / "inputs.npz", **{made.input_names[0]: inputs["main"][0].numpy()})
    done = test_mesh_gpus.mpirun(2, tmp_path, tmp_path / "y", runs=3)
    assert done.returncode == 0, done.stderr
    test_mesh_gpus.check_faults(tmp_path / "y", 2)
    for number, expected in enumerate(by_torch(3)):
        for rank in range(2):
            check(test_mesh_gpus.outputs(tmp_path / "y", rank, number)[0], expected)
