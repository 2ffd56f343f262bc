"""Training on a mesh of processes: the steps of one process, divided optimisers, and checkpoints for any number of
ranks."""

from __future__ import annotations

import os
import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import luminal
from benchmarks.eager import EPS, ORDERS
from luminal import api, checkpoint, meshes, sharded
from luminal.core import exchange, interp, ir, ops, traverse
from luminal.core.errors import InputError
from luminal.core.mesh import buckets, traffic
from luminal.core.mesh.placement import Split
from luminal.core.movement import reshape
from luminal.core.ops import Group
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.fusion import order
from luminal.core.schedule.program.ir import Exchange, Wait
from luminal.core.target import ALL
from luminal.core.types import f32
from luminal.sharded import Sharding
from luminal.training import Training
from tests import mpi_support
from tests.mesh_batches import ROWS, SAVED
from tests.mesh_training_support import run, shard, taken
from tests.test_mesh import FREE

FEW = 6  # steps of the interpreter
RANK = Path(__file__).with_name("rank_of_training.py")


class Taken(Exception):
    """The graphs that were to be compiled."""


def graphs(kind: str, ranks: int, **options: Any) -> meshes.Divided:
    """The graphs of a step on each rank."""

    def taken(graphs: Any, **options: Any) -> Any:
        raise Taken(graphs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "compile", taken)
        with pytest.raises(Taken) as found:
            run(kind).compiled(**options)
    steps = {name: graph for name, graph in found.value.args[0].items() if name != "eval"}
    return meshes.divided(steps, {"data": ranks}, shard(kind), FREE)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "resnet"])
def test_four_ranks_take_the_steps_of_one(kind: str) -> None:
    """In lock step, each with a quarter of the batch."""
    divided = graphs(kind, 4)
    every = [rank["train"] for rank in divided.ranks]
    data = run(kind)

    def steps(rank: int, other: Any) -> tuple[list[float], dict[str, Any]]:
        graph, state, found = every[rank], {}, []
        names = [node.attr.name for node in graph.given]
        for number in range(FEW):
            parts = [t.numpy()[rank * ROWS // 4 : (rank + 1) * ROWS // 4] for t in data.batch(number)]
            rate = [group["lr"] for group in data.optimizer.param_groups]
            given = {**dict(zip(names, parts, strict=False)), "lr": np.array(rate)}
            results = interp.run(graph, {**given, **state}, exchange=other).outputs
            found.append(float(results[0]))
            new = dict(zip((name for name, _ in graph.outputs), results, strict=True))
            state = {s.name: new[s.output] for s in graph.states}
        return found, state

    results = exchange.lockstep(4, steps)
    taken(kind).check_losses(results[0][0])
    for found, state in results[1:]:
        assert found == results[0][0]  # the same bits
        for name, value in state.items():
            if name not in divided.states:
                np.testing.assert_array_equal(value, results[0][1][name])
    # What the optimiser keeps of matrices is divided, parameters are whole.
    parameters = dict(data.module.named_parameters())
    kept = "momentum_buffer" if kind == "resnet" else "exp_avg"
    assert not [name for name in divided.states if name in parameters and parameters[name].ndim > 1]
    assert all(f"{name}.{kept}" in divided.states for name, p in parameters.items() if p.ndim > 1 and p.numel() > 64)
    # Gradients move in buckets.
    exchanged = [node for node in traverse.topological(every[0].roots) if node.op is ops.EXCHANGE]
    moved = [node for node in exchanged if node.attr.kind != "part"]
    assert kind != "gpt2" or len(moved) < len(parameters)  # of others, more than gradients moves


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_kept_only_as_the_part_of_each_rank(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO 2, by the plan of memory: a whole gradient is there until its bucket has been sent, a few buckets at once;
    what clipping, the optimiser and later calls read are a rank's parts."""
    layers, width, ranks, rows = 12, 64, 4, 256
    monkeypatch.setattr(order, "LAG", 1)
    monkeypatch.setattr(order, "MOST", 2)
    monkeypatch.setattr(buckets, "FULL", width * width * 4)
    module = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    x = torch.zeros(rows, width)

    def taken(graphs: Any, **options: Any) -> Any:
        raise Taken(graphs)

    monkeypatch.setattr(api, "compile", taken)
    with pytest.raises(Taken) as found:
        luminal.compile_training(
            module, torch.nn.MSELoss(), torch.optim.AdamW(module.parameters()), (x,), (x,), clip_norm=1.0,
            accumulate=accumulate,
        )  # fmt: skip
    steps = {name: graph for name, graph in found.value.args[0].items() if name != "eval"}
    split = {"input": {"data": 0}, "target": {"data": 0}}
    divided = meshes.divided(steps, {"data": ranks}, split, "10GB/s,1us")
    program = compile_graphs("zero", divided.ranks[0], ALL["avx2"])
    whole = width * width * 4
    kept = ["exp_avg", "exp_avg_sq", *["gradients"] * (accumulate > 1)]
    for name in (f"{layer}.weight.{what}" for layer in range(layers) for what in kept):
        assert program.buffer(name).size == whole // ranks
    for entry in program.entries:
        alive: set[str] = set()
        most = sent = 0
        for step in entry.steps:
            if isinstance(step, Exchange) and step.attr.kind == "transpose":
                alive.add(step.operand)
                sent += program.buffer(step.operand).size
            elif isinstance(step, Wait):
                alive.discard(step.arguments[0])
            most = max(most, sum(program.buffer(name).size for name in alive))
        assert sent == layers * whole
        assert most <= (order.MOST + 1) * whole < layers * whole // 2
        # Gradients are sent once, as parts that are added up, and parameters once, as parts that make a whole.
        gathered = layers * whole if entry.name == "train" else 0
        told = traffic.sent(divided.ranks[0][entry.name])["data"].bytes
        assert 0 <= told - (sent + gathered) * (ranks - 1) // ranks < 100
    (train,) = (entry for entry in program.entries if entry.name == "train")
    (alone,) = (entry for entry in compile_graphs("one", steps, ALL["avx2"]).entries if entry.name == "train")
    print(f"arena: {train.arena_size} bytes of a rank, {alone.arena_size} of one alone, gradients {layers * whole}")
    assert train.arena_size < alone.arena_size / 2


def added_up(dtype: torch.dtype, order: int) -> torch.nn.Module:
    """The decoder after two steps of PyTorch's, each with the gradients of two calls, rows in another ``order``."""
    eager = run("gpt2").copied(dtype)
    rows = torch.randperm(ROWS, generator=torch.Generator().manual_seed(order))
    for number in range(4):
        if number % 2 == 0:
            eager.optimizer.zero_grad()
        tokens, target = (t[rows] for t in eager.batch(number))
        (eager.loss(eager.module(tokens), target) / 2).backward()
        if number % 2:
            torch.nn.utils.clip_grad_norm_(eager.module.parameters(), 1.0)
            eager.optimizer.step()
    return eager.module


def test_gradients_of_several_calls_make_one_step() -> None:
    """Added up where each rank has its part of them, which both entries know."""
    divided = graphs("gpt2", 2, accumulate=2)
    data = run("gpt2")

    def calls(rank: int, other: Any) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for number in range(4):
            graph = divided.ranks[rank]["train" if number % 2 else "accumulate"]
            parts = [t.numpy()[rank * ROWS // 2 : (rank + 1) * ROWS // 2] for t in data.batch(number)]
            given = {"tokens": parts[0], "target": parts[1], "lr": np.array([1e-3])}
            own = {node.attr.name for node in graph.inputs}
            given = {name: value for name, value in {**given, **state}.items() if name in own}
            results = dict(
                zip((n for n, _ in graph.outputs), interp.run(graph, given, exchange=other).outputs, strict=True)
            )
            state |= {s.name: results[s.output] for s in graph.states}
        return state

    found = exchange.lockstep(2, calls)
    assert any(name.endswith(".gradients") for name in divided.states)
    exact = added_up(torch.float64, 0)
    others = [added_up(torch.float32, order) for order in range(ORDERS)]
    for name, wanted in exact.named_parameters():
        # A key's bias moves all scores of a row alike: its gradient is nought, and Adam makes steps of its roundings.
        assert wanted.grad is not None
        real = wanted.grad.abs() > 1e-6
        assert real.any()
        near = [x.get_parameter(name).detach() for x in others]
        *errors, first, second = (
            float(torch.linalg.norm((value - wanted.detach())[real]))
            for value in (*near, *(torch.from_numpy(state[name]) for state in found))
        )
        floor = EPS * float(torch.linalg.norm(wanted.detach()))
        assert max(first, second) <= 2 * max(errors) + 2 * floor, name


@cache
def compiled(kind: str, ranks: int) -> Training:
    return run(kind).compiled(mesh={"data": ranks}, shard=shard(kind), link=FREE, name=f"{kind}_{ranks}")


def exported(kind: str, ranks: int, folder: Path) -> None:
    """Writes what the ranks of a test need of a step."""
    training = compiled(kind, ranks)
    training.export(folder / kind, python_module=False)
    (folder / f"{kind}.described").write_bytes(pickle.dumps((training._described, training.lr, training._plan)))


@mpi_support.needed
@pytest.mark.parametrize(("ranks", "kinds"), [(2, ("gpt2",)), (4, ("llama", "resnet"))])
def test_ranks_take_the_steps_of_one(ranks: int, kinds: tuple[str, ...], tmp_path: Path) -> None:
    """Over MPI: losses, the same bits again from a checkpoint, and gradients of a function."""
    for kind in kinds:
        exported(kind, ranks, tmp_path)
    w, x = (torch.from_numpy(np.random.default_rng(k).standard_normal((8, 6), np.float32)) for k in range(2))

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x @ w.T) ** 2).mean()

    data = {"data": ranks}
    gradients = luminal.grad(loss, (w, x), wrt="w", mesh=data, shard={"x": {"data": 0}}, name=f"slopes_{ranks}")
    gradients.module.export(tmp_path / "slopes", python_module=False)
    np.savez(tmp_path / "given.npz", w=w.numpy(), x=x.numpy())
    done = mpi_support.mpirun(ranks, RANK, tmp_path, ranks, *kinds, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 0, done.stderr
    found = [dict(np.load(tmp_path / f"found.{rank}.npz")) for rank in range(ranks)]
    w.requires_grad_()
    loss(w, x).backward()
    assert w.grad is not None
    np.testing.assert_allclose(found[0]["slope"], w.grad.numpy(), rtol=1e-5, atol=1e-7)
    for other in found[1:]:
        np.testing.assert_array_equal(other["slope"], found[0]["slope"])
    for kind in kinds:
        taken(kind).check_losses(list(found[0][f"{kind}.losses"]))
        np.testing.assert_array_equal(found[0][f"{kind}.again"], found[0][f"{kind}.losses"][SAVED:])
        for other in found[1:]:
            np.testing.assert_array_equal(other[f"{kind}.losses"], found[0][f"{kind}.losses"])
        # Parameters and all that the optimiser keeps, whole, are PyTorch's after so many steps.
        values, _ = sharded.load(tmp_path / f"{kind}.saved")
        known = {name for name in taken(kind).values[SAVED] if name in values}
        assert len(known) > len(list(run(kind).module.parameters()))
        taken(kind).check(SAVED, {name: values[name] for name in known})
        files = [(tmp_path / f"{kind}.saved{part}").read_bytes() for part in ("", ".1")]
        sizes = [len(file) - 8 - int.from_bytes(file[:8], "little") for file in files]  # without what says what it is
        assert sizes[1] < sizes[0] < 0.9 * sum(value.nbytes for value in values.values())


@mpi_support.needed
def test_an_older_mpi_takes_the_same_steps(tmp_path: Path) -> None:
    """Under OpenMPI 4.1, where this machine has it: the same bits as under MPICH, from a checkpoint, too."""
    found = []
    for name in ("new", "old"):
        (folder := tmp_path / name).mkdir()
        how = mpi_support.older(folder) if name == "old" else {}
        exported("gpt2", 2, folder)
        done = mpi_support.mpirun(2, RANK, folder, 2, "gpt2", PYTHONPATH=os.pathsep.join(sys.path), **how)
        assert done.returncode == 0, done.stderr
        found.append([dict(np.load(folder / f"found.{rank}.npz")) for rank in range(2)])
    taken("gpt2").check_losses(list(found[1][0]["gpt2.losses"]))
    for new, old in zip(*found, strict=True):
        assert new.keys() == old.keys() == {"gpt2.losses", "gpt2.again", "gpt2.eval"}
        for name, value in new.items():
            np.testing.assert_array_equal(old[name], value)


def ranks_of(count: int, cuts: dict[str, Any]) -> list[Sharding]:
    return [Sharding(count, rank, cuts) for rank in range(count)]


def test_checkpoints_of_ranks_load_on_other_numbers(tmp_path: Path) -> None:
    """What two ranks along an axis, or two times two, have saved is whole again, and is cut for others."""
    rng = np.random.default_rng(0)
    whole = {"w": rng.random((8, 12)), "m": rng.random((8, 12)), "count": np.array(3)}
    data, tensor = Group("data", 2, 2), Group("tensor", 2, 1)
    for count, cuts in {
        2: {"m": [(Group("data", 2, 1), Split(1, 3))]},
        4: {"m": [(data, Split(0, 4)), (tensor, Split(1, 2))], "w": [(tensor, Split(1, 6))]},
    }.items():
        path = tmp_path / f"of {count}"
        for each in ranks_of(count, cuts):
            each.save(path, {name: each.part(name, value) for name, value in whole.items()}, 7, {"gathered": "1"})
        values, said = sharded.load(path)
        assert said["gathered"] == "1" and said[sharded.CALLS] == "7"
        assert values.keys() == whole.keys()
        for name, value in whole.items():
            np.testing.assert_array_equal(values[name], value)
    (own,) = ranks_of(1, {})
    assert own.part("m", whole["m"]) is whole["m"]
    with pytest.raises(InputError, match=r"m: \[7, 12\] cannot be split by axis 0 in parts of 4 along data"):
        ranks_of(4, cuts)[0].part("m", np.zeros((7, 12)))


def test_a_save_that_is_interrupted_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    cuts = {"m": [(Group("data", 2, 1), Split(0, 2))]}
    first, second = ranks_of(2, cuts)
    states = {calls: {"m": np.arange(4.0) * calls} for calls in (1, 2, 3)}

    def save(rank: Sharding, calls: int) -> None:
        rank.save(path, {"m": rank.part("m", states[calls]["m"])}, calls, {})

    for calls in (1, 2):
        save(first, calls)
        save(second, calls)
    save(first, 3)  # and the second one is killed
    values, said = sharded.load(path)
    assert said[sharded.CALLS] == "2"
    np.testing.assert_array_equal(values["m"], states[2]["m"])
    (tmp_path / "saved.1").unlink()
    (tmp_path / "saved.1.previous").unlink()
    with pytest.raises(InputError, match="expected the files of all ranks"):
        sharded.load(path)
    checkpoint.save(tmp_path / "plain", states[1])
    np.testing.assert_array_equal(sharded.load(tmp_path / "plain")[0]["m"], states[1]["m"])


def test_exchanges_that_wait_for_each_other_are_not_joined() -> None:
    """Also where the one waits for the other by way of a third, with which another is joined."""
    group = Group("x", 2)
    x = ir.input_("x", (2, 4), f32)
    first = ir.exchange("gather", group, x)
    second = ir.exchange("transpose", group, reshape(first, [2, 8]))
    beside = ir.exchange("transpose", group, x * 3)  # is sent with the second one, which waits for the first
    last = ir.exchange("gather", group, beside)
    graph = ir.Graph("g", (x,), (("y", second + 1), ("z", last * 2)), mesh=(("x", 2),))
    made = buckets.joined(graph)
    moved = [node for node in traverse.topological(made.roots) if node.op is ops.EXCHANGE]
    assert [node.attr.kind for node in moved].count("transpose") == 1 and len(moved) == 3
    inputs = [np.random.default_rng(rank).random((2, 4), np.float32) for rank in range(2)]
    found = exchange.lockstep(2, lambda rank, other: interp.run(made, {"x": inputs[rank]}, exchange=other).outputs)
    every = np.stack(inputs)
    tripled = np.stack([every[:, rank] * np.float32(3) for rank in range(2)])
    for rank in range(2):
        np.testing.assert_array_equal(found[rank][0], np.stack([every.reshape(2, 8)[rank]] * 2) + 1)
        np.testing.assert_array_equal(found[rank][1], tripled * 2)
