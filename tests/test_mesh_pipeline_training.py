"""Steps of training in stages: what each does and when, the steps of one process, and what is refused."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from benchmarks.eager import EPS, Run
from luminal import api, meshes, pipelined_training, planning, sharded
from luminal.core import exchange
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.mesh import backward_stages, partition, traffic
from luminal.core.mesh.backward_stages import BACKWARD, CLEAR, FORWARD
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.program import interpreter
from luminal.core.schedule.program.ir import Program, Stages, Transfer, Wait, numbered
from luminal.core.schedule.program.timetable import Action, Passing, Tasks, Timetable
from luminal.core.target import AVX2
from luminal.pipelined_training import PipelinedStep
from tests import mesh_training_support, mpi_support
from tests.compiled_support import exactly
from tests.mesh_batches import SAVED, STEPS
from tests.mesh_training_support import Steps, steps
from tests.mpi_support import MPI
from tests.test_mesh import FREE
from tests.test_mesh_mpi import COUNTING

RANK = Path(__file__).with_name("rank_of_training.py")
ROWS, WIDTH, FEW = 8, 16, 4


class Layers(nn.Module):
    """Layers whose first and last products read the same matrix, and of which a late one reads what an early one has
    made; one layer is frozen, and a parameter is read by none."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(WIDTH, WIDTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, 3)
        self.unused = nn.Parameter(torch.ones(2))
        self.layers[1].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = first = x @ self.table
        for layer in self.layers:
            y = nn.functional.gelu(layer(y))
        return self.last((y + first) @ self.table)


def run(kind: str) -> Run:
    """A model with its optimiser and batches, drawn by numpy."""
    if kind == "gpt2":
        return mesh_training_support.run(kind)
    module = Layers()
    mesh_training_support.draw(module, 0, 0.3)

    def batch(number: int) -> tuple[torch.Tensor, ...]:
        rng = np.random.default_rng(number)
        return tuple(torch.from_numpy(rng.standard_normal((ROWS, n), np.float32)) for n in (WIDTH, 3))

    parameters = [p for p in module.parameters() if p.requires_grad]
    if kind == "momentum":
        return Run(module, nn.MSELoss(), torch.optim.SGD(parameters, 0.05, 0.9), batch)
    return Run(module, nn.MSELoss(), torch.optim.AdamW(parameters, 1e-2), batch, clip=0.5)


@cache
def taken(kind: str) -> Steps:
    return mesh_training_support.taken(kind) if kind == "gpt2" else steps(lambda: run(kind), FEW, (FEW,))


def shards(kind: str, axis: str) -> Any:
    """How rows, or matrices before and after a nonlinearity, are divided along another axis of the mesh."""
    if axis == "data":
        return {name: {axis: 0} for name in ("tokens" if kind == "gpt2" else "x", "target")}
    up, down = ("up", "down") if kind == "gpt2" else ("layers.2", "layers.3")
    parts = {f"{up}.weight": 0, f"{up}.bias": 0, f"{down}.weight": 1, **({} if kind == "gpt2" else {"table": 1})}
    return {name: {axis: k} for name, k in parts.items()} if axis else "auto"


@cache
def staged(kind: str, count: int, batches: int, axis: str = "") -> PipelinedStep:
    """With two ranks beside each other along ``axis``, where there is one."""
    mesh = {"pipeline": count, **({axis: 2} if axis else {})}
    return made(run(kind), mesh=mesh, micro_batches=batches, link=FREE, shard=shards(kind, axis))


def made(subject: Run, **options: Any) -> PipelinedStep:
    """The step that would be compiled."""
    found: list[PipelinedStep] = []

    class Made(Exception):
        pass

    def taken(*arguments: Any) -> Any:
        found.append(original(*arguments))
        raise Made

    original = pipelined_training.staged
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelined_training, "staged", taken)
        with pytest.raises(Made):
            subject.compiled(**options)
    return found[0]


def on_one_rank(subject: Run, **options: Any) -> dict[str, Graph]:
    """The graphs of the step that would be compiled for one rank."""

    class Made(Exception):
        pass

    def taken(graphs: dict[str, Graph], **_: Any) -> Any:
        raise Made(graphs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "compile", taken)
        with pytest.raises(Made) as found:
            subject.compiled(**options)
    return dict(found.value.args[0])


def program(step: PipelinedStep, rank: int = 0) -> Program:
    return step.joined(compile_graphs("step", step.graphs(rank), AVX2), AVX2)


# ---- what is done, and when ------------------------------------------------------------------------------------------


def test_the_order_is_one_forward_one_backward() -> None:
    def words(stage: int, count: int, batches: int) -> str:
        return " ".join(f"{task[0]}{batch}" for task, batch in backward_stages.actions(stage, count, batches)
                        if batch is not None)  # fmt: skip

    assert words(0, 3, 5) == "f0 f1 f2 b0 f3 b1 f4 b2 b3 b4"
    assert words(1, 3, 5) == "f0 f1 b0 f2 b1 f3 b2 f4 b3 b4"
    assert words(2, 3, 5) == "f0 b0 f1 b1 f2 b2 f3 b3 f4 b4"
    assert words(0, 4, 2) == "f0 f1 b0 b1"


@pytest.mark.parametrize(("count", "batches"), [(2, 1), (2, 6), (3, 5), (4, 8), (5, 3)])
def test_transfers_begin_in_one_order_and_places_are_few(count: int, batches: int) -> None:
    """Actions come after what they read, in as many ticks as 1F1B has; a value has no more places than it needs."""
    chain = [Passing(f"x{k}", k, (k + 1,), FORWARD) for k in range(count - 1)]
    chain += [Passing(f"g{k}", k, (k - 1,), BACKWARD) for k in range(1, count)]
    tasks = []
    for k in range(count):
        order = (Action(*a) for a in backward_stages.actions(k, count, batches))
        reads = {FORWARD: [f"x{k - 1}"] * (k > 0), BACKWARD: ["kept", *[f"g{k + 1}"] * (k < count - 1)]}
        gives = {FORWARD: ["kept", *[f"x{k}"] * (k < count - 1)], BACKWARD: [f"g{k}"] * (k > 0)}
        tasks.append(Tasks(tuple(a for a in order if a.task in reads), reads, gives))
    times = Timetable(tuple(tasks), tuple(chain))
    assert max(map(max, times.ticks)) + 1 == 2 * (batches + count - 1)
    when = {(k, a): tick for k in range(count) for a, tick in zip(tasks[k].actions, times.ticks[k], strict=True)}
    for sent in times.transfers:
        p = chain[sent.moment.what]
        assert sent.moment.tick == when[p.source, Action(p.task, sent.batch)] < when[p.targets[0], (p.task, sent.batch)]
    for k in range(count):
        assert times.places(k, "kept") == min(count - k, batches)
        assert all(times.places(k, f"x{k}") <= 2 for _ in range(k < count - 1))


def test_what_is_kept_for_backward_work_is_bounded() -> None:
    """By the stages, not by the number of micro-batches: as many rows in each need as much of twice as many."""

    def found(batches: int) -> Program:
        module = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512, bias=False), nn.ReLU())))
        x = torch.zeros(256 * batches, 512)
        subject = Run(module, nn.MSELoss(), torch.optim.AdamW(module.parameters()), lambda number: (x, x))
        return program(made(subject, mesh={"pipeline": 4}, micro_batches=batches))

    few, many = found(4), found(8)
    (step,) = many.entries[0].steps
    assert isinstance(step, Stages)
    value, gradients = 256 * 512 * 4, 2 * 512 * 512 * 4
    sizes = []
    for number, region in enumerate(step.regions):
        used = {many.buffer(name) for each in numbered(region) for name in each.arguments}
        kept = [buffer for buffer in used if buffer.name.startswith(("kept", "value"))]
        places = sum(buffer.name.startswith("kept") for buffer in kept)
        assert places > 0 and places % (4 - number) == 0
        # Of each that is under way what came, what is kept, and what was sent; what comes in, and the loss's own.
        assert sum(buffer.size for buffer in kept) <= (3 * (4 - number) + 2) * value
        sizes.append(max(b.offset + b.size for b in used if b.space == "arena"))
    assert few.entries[0].arena_size == many.entries[0].arena_size == max(sizes)
    assert max(sizes) <= gradients + 17 * value + 4096
    print(f"states: {max(many.state_sizes)} bytes of a rank; arenas of the stages: {sizes}")
    assert max(many.state_sizes) == 6 * 512 * 512 * 4 + 64


def test_states_are_on_the_ranks_of_their_stage() -> None:
    step = staged("adamw", 4, 4)
    found = program(step)
    kept = {name: home for name, home in step.states.items() if not name.startswith("optimizer")}
    assert {*kept.values()} == {0, 1, 2, 3} and step.states["optimizer.step"] == -1
    for name, home in kept.items():
        of = next(p for p, _ in run("adamw").module.named_parameters() if name.startswith(p))
        assert home == kept.get(of, home)  # with its parameter
    assert step.steps.owners["table"] == 0
    sizes, whole = found.state_sizes, sum(found.buffer(state.buffer).size for state in found.states)
    assert max(sizes) < 0.5 * whole and sum(sizes) < whole + 64 * len(found.states) * 2
    assert not any(name in step.states for name in step.steps.accumulators)


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_gradients_are_exchanged_once_in_a_step(kind: str) -> None:
    """Of rows that ranks divide, each adds up its own gradients of all micro-batches; twice as many micro-batches move
    no byte more of them between ranks beside each other."""
    mesh, link = {"pipeline": 2, "data": 2}, "10000GB/s,100ns"
    of_loss, found = 4, []
    for batches in (2, 4):
        step = made(run(kind), mesh=mesh, micro_batches=batches, shard=shards(kind, "data"), link=link)
        assert min(step.steps.seconds) > 0.2 * sum(step.steps.seconds)
        for (_, task), part in step.parts.items():
            sent = traffic.sent(part.graph)["data"].bytes
            assert sent <= {CLEAR: 0, FORWARD: of_loss, BACKWARD: 0}.get(task, sent)
        own = sum(p.numel() * 4 for p in run(kind).optimizer.param_groups[0]["params"] if p.shape != (2,))
        found.append(sum(step.sent(number)["data"].bytes for number in range(2)) - batches * of_loss)
        # Gradients as parts that are added up, once, that of the table by each stage, and parameters as parts that make
        # a whole; and two numbers for the norm.
        assert 0 <= found[-1] - own <= WIDTH * WIDTH * 4 // 2 + 2 * 4
    assert found[0] == found[1]


def test_forward_work_waits_for_no_exchange_of_backward_work() -> None:
    """Small exchanges are joined, but not those of work that is done at another time."""
    for axis in ("data", "tensor"):
        for (_, task), part in staged("gpt2", 2, 2, axis).parts.items():
            given = [node.attr.name for node in part.graph.given]
            assert task != FORWARD or not any(name.startswith("gradient") for name in given)


def test_sending_and_receiving_are_under_way_while_others_are_computed() -> None:
    """On each rank, what is received for an action begins before an earlier one is computed, and no send is waited for
    before the place is needed again."""
    (step,) = program(staged("adamw", 2, 4)).entries[0].steps
    assert isinstance(step, Stages)
    for region in step.regions:
        tickets: dict[int, Transfer] = {}
        for each in numbered(region):
            if isinstance(each, Transfer):
                assert each.ticket not in tickets
                tickets[each.ticket] = each
            elif isinstance(each, Wait):
                assert tickets.pop(each.ticket).buffer == each.arguments[0]
        assert not tickets


# ---- the steps of one process ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "count", "batches", "axis"),
    [
        ("momentum", 2, 1, ""), ("adamw", 2, 2, ""), ("adamw", 4, 4, ""), ("momentum", 4, 8, ""),
        ("adamw", 2, 2, "data"), ("adamw", 2, 2, "tensor"),
    ],
)  # fmt: skip
def test_ranks_take_the_steps_of_one(kind: str, count: int, batches: int, axis: str) -> None:
    """In lock step: losses, the norm of gradients, parameters and what the optimiser keeps; alike on all ranks."""
    step = staged(kind, count, batches, axis)
    programs = [program(step, rank) for rank in step.ranks]
    subject, ways, rows = run(kind), len(programs), 2 if axis == "data" else 1
    names = [node.attr.name for node in step.given]

    def work(rank: int, other: Any) -> tuple[list[float], dict[str, Any]]:
        mine, state, losses = rank % ways, {}, []
        for number in range(FEW):
            parts = [np.split(t.numpy(), rows)[mine % rows] for t in subject.batch(number)]
            rates = np.array([group["lr"] for group in subject.optimizer.param_groups])
            given = dict(zip(names, [*parts, rates], strict=True))
            found = interpreter.run(programs[mine], given, {}, exchange=other, states=state)
            losses.append(float(found["loss"]))
        return losses, state

    results = exchange.lockstep(count * ways, work)
    taken(kind).check_losses(results[0][0])
    values: dict[str, Any] = {}
    for rank, (losses, state) in enumerate(results):
        assert losses == results[0][0]
        for name, home in step.states.items():
            if home in (rank // ways, -1) and name in taken(kind).values[FEW]:
                whole = taken(kind).values[FEW][name]
                places = np.arange(whole.numel()).reshape(whole.shape)
                own = partition.cut(places, step.cuts[name].cuts if name in step.cuts else (), rank)
                value = values.setdefault(name, np.full(whole.shape, np.nan, np.float32))
                mine, before = state[name].reshape(own.shape), value.flat[own]
                np.testing.assert_array_equal(np.where(np.isnan(before), mine, before), mine)  # alike on all ranks
                value.flat[own] = mine
    assert values.keys() == taken(kind).values[FEW].keys() - {"layers.1.weight", "layers.1.bias"}
    taken(kind).check(FEW, values)
    if axis == "tensor":  # parameters are divided, too, one of them that both stages read
        assert shards(kind, axis).keys() <= step.cuts.keys()


def exported(kind: str, folder: Path, mesh: dict[str, int], batches: int, **options: Any) -> luminal.Training:
    """Writes what the ranks of a test need of a step."""
    options |= {"shard": shards(kind, ([*mesh][1:] or [""])[0])}
    name = f"{kind}_{'_'.join(map(str, mesh.values()))}_{batches}"
    training = run(kind).compiled(mesh=mesh, micro_batches=batches, link=FREE, name=name, **options)
    training.export(folder / kind, python_module=False)
    (folder / f"{kind}.described").write_bytes(pickle.dumps((training._described, training.lr, training._plan)))
    return training


@cache
def alone() -> luminal.Training:
    """The transformer on one process, after as many steps as ranks save at."""
    subject = run("gpt2")
    training = subject.compiled(name="gpt2_alone")
    for number in range(SAVED):
        training(*subject.batch(number))
    return training


@mpi_support.needed
@pytest.mark.parametrize(
    ("mesh", "batches"),
    [({"pipeline": 2}, 2), ({"pipeline": 2, "data": 2}, 4), ({"pipeline": 2, "tensor": 2}, 2)],
)
def test_a_transformer_takes_the_steps_of_one(mesh: dict[str, int], batches: int, tmp_path: Path) -> None:
    """Over MPI, with a tied matrix and clipping: losses, the same bits again from a checkpoint, which one process can
    load, and from that of one process; outputs in evaluation mode; and what is sent."""
    training = exported("gpt2", tmp_path, mesh, batches)
    ranks, rows = int(np.prod(list(mesh.values()))), mesh.get("data", 1)
    one = alone()
    one.save(tmp_path / "gpt2.of_one")
    stand_in, counted = tmp_path / "libcounting.so", tmp_path / "counted"
    subprocess.run(["cc", "-shared", "-fPIC", str(COUNTING), "-o", str(stand_in), "-ldl"], check=True)
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "REAL_MPI": str(MPI), "COUNTED": str(counted)}
    done = mpi_support.mpirun(ranks, RANK, tmp_path, rows, "gpt2", mpi=stand_in, **env)
    assert done.returncode == 0, done.stderr
    found = [dict(np.load(tmp_path / f"found.{rank}.npz")) for rank in range(ranks)]
    subject = mesh_training_support.taken("gpt2")
    subject.check_losses(list(found[0]["gpt2.losses"]))
    most = np.maximum.accumulate(subject.errors)
    for number, loss in enumerate(found[0]["gpt2.from_one"], SAVED):
        assert abs(loss - subject.losses[number]) <= 2 * most[number] + 4 * EPS * abs(loss), number
    for each in found:
        for name, losses in each.items():
            np.testing.assert_array_equal(losses, found[0][name])
        np.testing.assert_array_equal(each["gpt2.again"], found[0]["gpt2.losses"][SAVED:])
    values, _ = sharded.load(tmp_path / "gpt2.saved")
    known = {name for name in subject.values[SAVED] if name in values}
    assert known == subject.values[SAVED].keys() - {"head.weight"}
    subject.check(SAVED, {name: values[name] for name in known})
    assert values.keys() == one.state.keys()
    one.load(tmp_path / "gpt2.saved")
    tokens, _ = run("gpt2").batch(0)
    graph = on_one_rank(run("gpt2"))["eval"]
    ((exact, bound),) = exactly(graph, {graph.given[0].attr.name: tokens.numpy(), **one.state})[:1]
    np.testing.assert_allclose(found[0]["gpt2.eval"], exact, rtol=0, atol=bound)
    for name, value in one.state.items():
        np.testing.assert_array_equal(value, values[name])
    alone.cache_clear()  # it has the states of ranks now
    # What is sent is what the plan says, in so many steps; a rank also says where it runs and what it has opened.
    runs = STEPS + 2 * (STEPS - SAVED)
    told = np.zeros((mesh["pipeline"], 2), np.int64)
    for words in re.finditer(
        r"(eval: )?\w+: a rank of stage (\d+) sends (\d+) messages, (\d+) bytes", training.module.explain()
    ):
        stage, *numbers = map(int, words.groups()[1:])
        told[stage] += np.array(numbers) * (1 if words[1] else runs)
    hello = {2: (2, 168 + 56), 4: (6, 3 * (168 + 56))}[ranks]
    expected = sorted(f"{m + hello[0]} {b + hello[1]}" for m, b in told for _ in range(ranks // len(told)))
    assert sorted(counted.read_text().splitlines()) == expected
    with pytest.raises(InputError, match=r"the parameters of its stage alone|a part of"):
        training.write_back()


@mpi_support.needed
def test_stages_on_gpus(tmp_path: Path) -> None:
    """Emulated, and so is NCCL, whose transfers follow each other: none waits for another in a circle."""
    training = exported("momentum", tmp_path, {"pipeline": 2}, 2, target="cuda:sm_90", emulate=True)
    (tmp_path / "momentum").rename(tmp_path / "step")
    (tmp_path / "momentum.described").rename(tmp_path / "described")
    batches = [run("momentum").batch(number) for number in range(2)]
    np.savez(tmp_path / "batches.npz", *[np.stack([batch[k].numpy() for batch in batches]) for k in range(2)])
    counted, path = tmp_path / "counted", os.pathsep.join(sys.path)
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": path, "LUMINAL_NCCL_COUNTED": str(counted)}
    done = mpi_support.mpirun(2, RANK.with_name("rank_of_gpu_training.py"), tmp_path, 1, **environment)
    assert done.returncode == 0, done.stderr
    losses = [np.load(tmp_path / f"found.{rank}.npz")["losses"] for rank in range(2)]
    np.testing.assert_array_equal(losses[1], losses[0])
    taken("momentum").check_losses(losses[0].tolist())
    of_step = r"mesh: pipeline: a rank of stage \d+ sends (\d+) messages, (\d+) bytes"  # others are of "eval: pipeline"
    told = re.findall(of_step, training.module.explain())
    assert sorted(counted.read_text().splitlines()) == sorted(f"{2 * int(m)} {2 * int(b)}" for m, b in told)


def test_outputs_come_with_the_loss() -> None:
    """Those of all micro-batches, on all ranks."""
    step = made(run("adamw"), mesh={"pipeline": 2}, micro_batches=4, link=FREE, outputs=True)
    whole, subject = program(step), run("adamw")
    names = [node.attr.name for node in step.given]
    values = [*(t.numpy() for t in subject.batch(0)), np.array([1e-2])]
    given = dict(zip(names, values, strict=True))
    graph = api.read(subject.module, subject.batch(0)[:1])
    ((expected, bound),) = exactly(graph, {names[0]: values[0]})
    for found in exchange.lockstep(2, lambda _, other: interpreter.run(whole, given, {}, exchange=other)):
        (shown,) = (value for name, value in found.items() if name not in ("loss", "gradient_norm"))
        np.testing.assert_allclose(shown, expected, rtol=0, atol=bound)


# ---- what is said of it ----------------------------------------------------------------------------------------------


def test_steps_are_explained_and_foretold() -> None:
    """The bubble is (P - 1) / (N + P - 1) of the time; what is sent is what the steps send."""
    for count, batches in ((2, 4), (4, 4)):
        step = staged("adamw", count, batches)
        lines = step.explained()
        bubble = f"ranks wait for {(count - 1) / (batches + count - 1):.0%} of a step"
        assert sum(bubble in line for line in lines) == 1
        assert f"and {count} micro-batches under way" in lines[0]
        node, link = planning.parse_node("100GFLOP/s,20GB/s"), meshes.parse_link(FREE)
        forecast = planning.forecasts(program(step), AVX2, 1, node, link)["train"]
        for number, stage in enumerate(forecast.stages):
            assert stage.traffic == step.sent(number)


# ---- what is refused -------------------------------------------------------------------------------------------------


class Mean(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean(0)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Layers(), {"micro_batches": 3}, "expected a number that divides the 8 rows of a batch, found 3"),
        (Layers(), {"micro_batches": 0}, "expected a number of 1 or more"),
        (Layers(), {"micro_batches": 2, "mesh": {"data": 2}}, "expected a mesh with stages"),
        (Layers(), {"mesh": {"pipeline": 400}}, "expected at most .* stages"),
        (Layers(), {"micro_batches": 2, "accumulate": 2}, "accumulate: expected 1 along 'pipeline', found 2"),
        (Layers(), {"shard": {"y": {"pipeline": 0}}}, "expected names of inputs, which are x, target"),
        (
            Layers(),
            {"micro_batches": 2, "dims": {"x": {0: "n"}, "target": {0: "n"}, "n": (2, 8)}},
            "fixed number of rows",
        ),
        (Layers(), {"memory": 1000}, "expected no bound where a mesh has stages"),
        (
            Mean(),
            {"micro_batches": 2, "outputs": True, "loss": lambda y, t: (y * t).mean()},
            "expected outputs with rows",
        ),
    ],
)
def test_what_no_stages_train(module: nn.Module, options: dict[str, Any], message: str) -> None:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    asked = {"mesh": {"pipeline": 2}, "name": "refused", **options}
    loss = asked.pop("loss", nn.MSELoss())
    with pytest.raises(InputError, match=message):
        luminal.compile_training(module, loss, optimizer, (torch.zeros(8, WIDTH),), (torch.zeros(8, 3),), **asked)
