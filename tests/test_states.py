"""States: what a model keeps from one call to the next."""

from __future__ import annotations

import copy
import importlib
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal.codegen import emulation
from luminal.core import interp, ir, ops, structured
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.errors import ModelError, SpecError
from luminal.core.pipeline import compile_graph, compile_graphs
from luminal.core.schedule.program import interpreter as run_program
from luminal.core.schedule.program import ir as programs
from luminal.core.schedule.program.spec import check as check_program
from luminal.core.spec import check_graph
from luminal.core.types import bool_, f32, i64
from luminal.module import Module
from tests.cuda_support import FakeDriver
from tests.runtime_example import run

Array = np.ndarray[Any, Any]

FIRST = np.arange(4, dtype=np.float32)
BATCH = sym.var("batch", 1, 8)
X, AT = ir.input_("x", (BATCH, 4), f32), ir.input_("at", (1,), i64)
MEAN, CACHE = ir.input_("mean", (4,), f32), ir.input_("cache", (8, 4), f32)
COUNT = ir.input_("count", (), i64)
TARGETS = ({"threads": 2}, {"target": "cuda:sm_90", "emulate": True}, {"target": "metal", "emulate": True})


def model(late: bool = False) -> ir.Graph:
    """A mean that moves, a count, and a table of which each call replaces a row and returns the sum; ``late`` also
    reads afterwards what the table was before."""
    total = ir.reduce(ops.SUM_REDUCE, X, [0])
    row = ir.view(total, (1, 4), (ir.axes((1, 4))[1],))
    table = ir.scatter(CACHE, AT, row, 0)
    results = {"mean": ir.binary(ops.MUL, MEAN, 0.5) + total, "count": COUNT + 1, "cache": table}
    first = {"mean": FIRST, "count": np.array(0), "cache": np.zeros((8, 4), np.float32)}
    outputs = (("y", ir.binary(ops.ADD, X, MEAN)), ("z", ir.reduce(ops.SUM_REDUCE, table, [0])))
    if late:
        outputs += (("before", ir.binary(ops.ADD, CACHE, outputs[1][1])),)
    states = {"mean": MEAN, "count": COUNT, "cache": CACHE}
    return ir.Graph(
        "stateful", (X, AT, *states.values()),
        (*outputs, *((f"{name}.next", node) for name, node in results.items())), tuple(sym.variables(BATCH)),
        states=tuple(ir.State(node, f"{name}.next", ir.constant(first[name])) for name, node in states.items()),
    )  # fmt: skip


def calls(count: int = 3) -> list[dict[str, Array]]:
    random = np.random.default_rng(0)
    return [{"x": random.standard_normal((k + 1, 4)).astype(np.float32), "at": np.array([k % 8])} for k in range(count)]


def expected(graph: ir.Graph, given: list[dict[str, Array]]) -> list[tuple[dict[str, Array], dict[str, Array]]]:
    """Outputs and states of the interpreter, call by call."""
    state: dict[str, Array] = {}
    found = []
    for values in given:
        results = dict(zip([n for n, _ in graph.outputs], interp.run(graph, values | state).outputs, strict=True))
        state = {s.name: results[s.output] for s in graph.states}
        found.append(({name: results[name] for name, _ in graph.returned}, state))
    return found


def compiled(**options: Any) -> Module:
    module = luminal.compile(model(), **options)
    assert isinstance(module, Module)
    return module


def same(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


# ---- the compiler ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["host", "cuda:sm_90"])
def test_a_scatter_into_a_state_is_in_place_unless_the_old_value_is_read_later(name: str) -> None:
    for late in (False, True):
        program = compile_graph(model(late), targets.parse(name))
        written = [
            name
            for step in program.entries[0].steps
            for name, array in zip(step.arguments, program.kernels[step.kernel].nest.arrays, strict=True)
            if array.written
        ]
        assert written.count("cache") == 1 and ("cache.next" in written) == late
        assert written.count("mean") == written.count("count") == 1  # new values lie where the old ones did
        assert not {"mean.next", "count.next"} & set(written)


def test_nests_leave_states_as_the_interpreter_does() -> None:
    for late in (False, True):
        graph = model(late)
        (values, *_) = calls()
        ((wanted, _), *_) = expected(graph, [values])
        same(run_program.run(compile_graph(graph, targets.detect()), values, {"batch": 1}), wanted)


def test_a_program_says_what_it_keeps() -> None:
    program = compile_graph(model(), targets.detect())
    text = programs.text(program)
    assert "state count, at first zeros" in text and "state mean, at first constant0" in text
    assert "buffer cache: float32[8, 4] state+128 (128 bytes)" in text and program.state_size == 256
    for wrong, message in (
        (program.states[:2], "states have buffers"),
        ((*program.states[:2], programs.State("cache", "constant0")), "state cache"),
    ):
        with pytest.raises(SpecError, match=message):
            check_program(replace(program, states=wrong))


def test_a_state_is_one_value_of_a_fixed_size() -> None:
    graph = model()
    check_graph(graph)
    wrong = (
        replace(graph.states[0], initial=ir.constant(np.zeros(5, np.float32))),
        replace(graph.states[0], output="cache.next"),
        replace(graph.states[0], input=CACHE),
    )
    for state in wrong:
        with pytest.raises(SpecError, match="are not one state"):
            check_graph(replace(graph, states=(state, *graph.states[1:])))


def keeping(inputs: tuple[ir.Node, ...], y: ir.Node, left: dict[ir.Node, ir.Node], first: float = 0) -> ir.Graph:
    """A graph of one output with states, each with what a call leaves of it."""
    states = tuple(
        ir.State(x, f"{x.attr.name}.next", ir.constant(np.full(x.shape, first, x.dtype.numpy))) for x in left
    )
    outputs = (("y", y), *((state.output, left[state.input]) for state in states))
    return ir.Graph("keeping", (*inputs, *left), outputs, states=states)


ROW, FLAG, STEPS = ir.input_("row", (1, 4), f32), ir.input_("flag", (), bool_), ir.input_("steps", (3, 4), f32)


def store() -> ir.Graph:
    """Replaces a row of the table."""
    return keeping((ROW, AT), ir.reduce(ops.SUM_REDUCE, ROW, [1]), {CACHE: ir.scatter(CACHE, AT, ROW, 0)})


def look() -> ir.Graph:
    """Reads the table, and counts how often."""
    return keeping((), ir.reduce(ops.SUM_REDUCE, CACHE, [0]), {COUNT: COUNT + 1, CACHE: CACHE})


def recurrent() -> ir.Graph:
    """A loop that begins with what the last call left and reads a table: bodies see states as they see inputs."""

    def step(carried: Any, row: Any) -> Any:
        following = ir.reduce(ops.MAX_REDUCE, CACHE + carried[0], [0]) + row[0]
        return [following], [ir.reduce(ops.SUM_REDUCE, following, [0])]

    (last,), (sums,) = structured.scan(step, [MEAN], [STEPS])
    return keeping((STEPS,), sums, {CACHE: CACHE, MEAN: last}, first=0.5)


def chosen() -> ir.Graph:
    """A branch that replaces a row of the table, or leaves it."""
    (table,) = structured.cond(FLAG, lambda: [ir.scatter(CACHE, AT, ROW, 0)], lambda: [CACHE])
    return keeping((FLAG, ROW, AT), ir.reduce(ops.SUM_REDUCE, CACHE, [0]), {CACHE: table})


def swapped() -> ir.Graph:
    """Two states that change places."""
    return keeping((ROW,), MEAN + ROW, {MEAN: OTHER, OTHER: ir.reduce(ops.MAX_REDUCE, ROW, [0]) + MEAN})


OTHER = ir.input_("other", (4,), f32)
VALUES = {
    "row": np.array([[1, -2, 3, 0.5]], np.float32), "at": np.array([5]), "flag": np.array(True),
    "steps": np.arange(12, dtype=np.float32).reshape(3, 4),
}  # fmt: skip


def test_a_state_that_is_left_as_it_is_takes_no_step() -> None:
    program = compile_graph(look(), targets.detect())
    arguments = [name for step in program.entries[0].launches for name in step.arguments]
    assert arguments.count("cache") == 1 and "cache.next" not in arguments


def test_entries_that_mean_different_states_by_one_name_are_refused() -> None:
    wide = ir.input_("count", (2,), i64)
    for other, message in (
        (keeping((), wide + 1, {wide: wide}), r"'count' is int64\[\] and int64\[2\] in 'a' and 'b'; give it another"),
        (keeping((), COUNT + 1, {COUNT: COUNT}, first=3), "'count' is not the same at first in 'a' and 'b'"),
    ):
        with pytest.raises(ModelError, match=message):
            compile_graphs("both", {"a": look(), "b": other}, targets.detect())


# ---- libraries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", TARGETS, ids=lambda options: options.get("target", "host"))
def test_each_call_finds_what_the_last_one_left(options: dict[str, Any]) -> None:
    module, given = compiled(**options), calls()
    for _ in range(2):
        same(module.state, {"mean": FIRST, "count": np.array(0), "cache": np.zeros((8, 4))})
        for values, (outputs, state) in zip(given, expected(model(), given), strict=True):
            same(module.run(values), outputs)
            same(module.state, state)
        module.reset()
    module.load_state({"count": np.int64(40), "mean": FIRST * 2})
    same(module.run(given[0]), {"y": given[0]["x"] + FIRST * 2, "z": given[0]["x"].sum(0)})
    assert module.state["count"] == 41 and module.manifest["states"][1] == {
        "name": "count",
        "dtype": "int64",
        "shape": [],
    }


@pytest.mark.parametrize("options", TARGETS, ids=lambda options: options.get("target", "host"))
def test_entries_share_the_states_that_they_name(options: dict[str, Any]) -> None:
    """As the graphs say, one after the other: each reads the states that the last one left."""
    graphs = {"store": store(), "look": look(), "chosen": chosen(), "swapped": swapped()}
    module = luminal.compile(graphs, name="keeping", **options)
    assert isinstance(module, Module) and list(module.state) == ["cache", "count", "mean", "other"]
    state: dict[str, Array] = {}
    for entry in ("look", "chosen", "store", "look", "swapped", "look", "swapped", "swapped"):
        graph, at = graphs[entry], {"at": np.array([len(state)])}
        values = {n.attr.name: (VALUES | state | at)[n.attr.name] for n in graph.given}
        found = dict(zip([n for n, _ in graph.outputs], interp.run(graph, values | state).outputs, strict=True))
        same(module[entry].run(values), {"y": found["y"]})
        state |= {s.name: found[s.output] for s in graph.states}
        same({name: value for name, value in module.state.items() if name in state}, state)


@pytest.mark.parametrize("options", TARGETS, ids=lambda options: options.get("target", "host"))
def test_loops_begin_with_what_the_last_call_left(options: dict[str, Any]) -> None:
    graph, values = recurrent(), {"steps": VALUES["steps"]}
    module = luminal.compile(graph, **options)
    assert isinstance(module, Module)
    for outputs, state in expected(graph, [values] * 3):
        same(module.run(values), outputs)
        same(module.state, state)


def test_wrong_states_are_refused() -> None:
    module = compiled()
    for values, message in (
        ({"sum": FIRST}, 'no state is named "sum"'),
        ({"mean": FIRST.astype(np.float64)}, 'state "mean" has element type float64'),
        ({"mean": FIRST[:3]}, 'state "mean", axis 0, has size 3, expected 4'),
    ):
        with pytest.raises(ValueError, match=message):
            module.load_state(values)
    same({"mean": module.state["mean"]}, {"mean": FIRST})


def test_calls_of_several_threads_wait_for_each_other() -> None:
    module, (values, *_) = compiled(threads=1), calls()
    threads = [threading.Thread(target=lambda: [module.run(values) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert module.state["count"] == 200


def test_modules_have_states_of_their_own() -> None:
    first, second = compiled(), compiled()
    first.run(calls()[0])
    assert first.state["count"] == 1 and second.state["count"] == 0


def test_a_call_that_fails_may_be_followed_by_a_reset() -> None:
    module, (values, *_) = compiled(), calls()
    with pytest.raises(IndexError):
        module.run(values | {"at": np.array([8])})
    module.reset()
    module.run(values)
    assert module.state["count"] == 1


def test_a_gpu_that_cannot_copy_first_values_is_reported() -> None:
    module, (values, *_) = compiled(target="cuda:sm_90", emulate=True), calls()
    fake = FakeDriver(module.folder / emulation.DRIVER)
    for call in (lambda: module.run(values), lambda: module.state):
        with fake.failing("cuMemcpyDtoDAsync_v2", 1), pytest.raises(RuntimeError, match="cuMemcpyDtoDAsync_v2 says"):
            call()
    module.run(values)
    same({"mean": module.state["mean"]}, {"mean": FIRST / 2 + values["x"].sum(0)})


class Filled(nn.Module):
    """A table of which calls replace rows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(4, 3))

    def forward(self, at: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        self.table[at] = row
        return row.sum()


class Cached(nn.Module):
    """A cache of which calls replace positions, on an inner axis."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 8, 3))

    def forward(self, at: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        self.cache[:, at] = rows
        return self.cache.sum(1)


def test_positions_of_an_inner_axis_are_replaced_in_place() -> None:
    inputs = torch.tensor([5, 1]), torch.randn(2, 2, 3)
    program = compile_graph(luminal.read(Cached(), inputs), targets.detect())
    arguments = [name for step in program.entries[0].launches for name in step.arguments]
    assert "cache" in arguments and "cache.next" not in arguments
    found = run_program.run(program, {"at": inputs[0].numpy(), "rows": inputs[1].numpy()}, {})
    np.testing.assert_allclose(found["output"], Cached()(*inputs), rtol=1e-6)


class Read(nn.Module):
    """The sum of a table that another module fills."""

    def __init__(self, filled: Filled) -> None:
        super().__init__()
        self.register_buffer("table", filled.table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table.sum(0) + x


def test_an_entry_reads_the_buffers_that_another_updates() -> None:
    filled = Filled()
    read, x, at = Read(filled), torch.ones(3), torch.tensor([2])
    models = {"read": read, "fill": filled}
    module = luminal.compile(models, {"read": [x], "fill": [at, x[None]]}, name="both", target="host")
    assert isinstance(module, Module)
    for k in range(3):
        given = torch.tensor([k]), torch.full((1, 3), k + 0.5)
        torch.testing.assert_close(module["fill"](*given), filled(*given))
        torch.testing.assert_close(module["read"](x), read(x))


CPP = """
#include "stateful.hpp"
int main() {
    stateful::Library library;
    stateful::Context context(library);
    const float x[] = {1, 2, 3, 4};
    const int64_t at[] = {7};
    for (int k = 0; k < 2; ++k) context.main({x, {1, 4}}, {at, {1}});
    if (context.get_count()[0] != 2 || context.get_cache()[31] != 4 || context.get_mean()[1] != 3.25f) return 1;
    const int64_t count[] = {9};
    context.set_count({count, {}});
    context.main({x, {1, 4}}, {at, {1}});
    if (context.get_count()[0] != 10) return 2;
    stateful::Context other(library);
    context.reset();
    return context.get_count()[0] + other.get_count()[0] == 0 && context.get_mean()[3] == 3 ? 0 : 3;
}
"""


def test_an_exported_library_has_states_in_cpp_and_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = compiled(name="stateful").export(tmp_path / "out")
    (tmp_path / "main.cpp").write_text(CPP)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{folder}", str(tmp_path / "main.cpp")]
    run(["g++", *flags, f"-L{folder}", "-lstateful", f"-Wl,-rpath,{folder}", "-o", str(tmp_path / "main")])
    subprocess.run([tmp_path / "main"], check=True)
    monkeypatch.syspath_prepend(str(folder))
    exported = importlib.import_module("stateful").Model()
    exported(**calls()[0])
    exported.set_state("count", np.array(5))
    exported(**calls()[0])
    assert exported.state()["count"] == 6
    exported.reset()
    assert exported.state()["count"] == 0


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


class Statistics(nn.Module):
    """Batch normalisation in training, whose statistics move, and which counts the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Attention(nn.Module):
    """One row attends to all that came before: a cache that is filled row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 8, 4))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.cache.index_copy_(1, self.at.view(1), x[:, None])
        self.at.add_(1)
        return {"at": torch.softmax(x[:, None] @ self.cache.mT, -1) @ self.cache}


@pytest.mark.parametrize(
    ("module", "shape", "names"),
    [
        (Statistics, (5, 3, 9), {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}),
        (Attention, (2, 4), {"cache", "b_at"}),
    ],
    ids=["statistics", "cache"],
)
def test_buffers_that_a_module_updates_are_states(
    module: Callable[[], nn.Module], shape: tuple[int, ...], names: set[str]
) -> None:
    torch.manual_seed(0)
    eager = module()
    x = torch.randn(4, *shape)
    compiled = luminal.compile(copy.deepcopy(eager), (x[0],), threads=1)
    assert isinstance(compiled, Module)
    with torch.no_grad():
        for given in x:
            torch.testing.assert_close(compiled(given), eager(given), rtol=1e-5, atol=1e-5)
    buffers = dict(eager.named_buffers())
    state = {name: torch.from_numpy(value) for name, value in compiled.state.items()}
    assert state.keys() == names
    for name, value in state.items():
        torch.testing.assert_close(value, buffers[name.removeprefix("b_")], rtol=1e-5, atol=1e-5)
    report = luminal.diff(module(), (x[0],))
    assert report.ok and {f"{name}.next" for name in names} <= {row.output for row in report.trials[0].rows}


def test_a_module_that_is_compiled_twice_has_one_state() -> None:
    torch.manual_seed(0)
    eager, given = Statistics(), [torch.randn(size, 3, 9) for size in (5, 2, 2, 5)]
    compiled = luminal.compile(copy.deepcopy(eager), threads=1)
    with torch.no_grad():
        for x in given:
            torch.testing.assert_close(compiled(x), eager(x), rtol=1e-5, atol=1e-5)
    state = compiled.module(given[0]).state
    assert len(compiled.modules) == 2 and state["norm.num_batches_tracked"] == 4
    torch.testing.assert_close(torch.from_numpy(state["norm.running_mean"]), eager.norm.running_mean)


def test_diff_compares_what_is_left_in_states() -> None:
    report = luminal.diff(model(), reference="interpreter")
    assert report.ok and {"mean.next", "count.next", "cache.next"} <= {row.output for row in report.trials[0].rows}
