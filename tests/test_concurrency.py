"""One compiled model, many threads: contexts at once, any number of threads, any ``parallel_for``."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal import api, profile
from luminal.codegen import render
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.transform.stream import Stream
from luminal.module import Module
from tests.compiled_support import assert_same_bits
from tests.runtime_example import LINK_LIBRARIES, NATIVE, WARNINGS, run
from tests.schedule_support import transformed, with_costs
from tests.test_runtime_native import without_randomisation

ROWS = 168  # full tiles of every target

# Everything is divided among threads, however small, and streamed in several blocks.
DIVIDED = with_costs(
    targets.detect(), threads={"written": 1, "wake": 1, "shares": 1, "shares_each": 0}, sizes={"chain_columns": 32}
)


class Layers(nn.Module):
    """Steps that need their own rows alone, a look-up among them, and steps that need each other's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.table = nn.Embedding(9, 16)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        h = self.second(torch.relu(self.first(x)))
        h = self.first(h + h.roll(1, 0))
        return torch.softmax(h, -1).cumsum(-1) * self.table(ids)


class Scores(nn.Module):
    """Two chains of contractions: scores softly capped, with a bias for each distance, and scores of what came before
    alone."""

    HEADS, SEQUENCE, WIDTH = 2, 70, 12

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(2 * self.SEQUENCE - 1, generator=torch.Generator().manual_seed(2)))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(self.SEQUENCE)
        distances = positions[:, None] - positions
        capped = torch.tanh(q @ k.mT / 8.0) * 8.0 + self.bias[distances + self.SEQUENCE - 1]
        causal = (k @ q.mT).masked_fill(distances < 0, -torch.inf)
        return torch.softmax(capped, -1) @ v, torch.softmax(causal, -1) @ v


@pytest.fixture(scope="module")
def module() -> Module:
    graph = api.read(Layers().eval(), (torch.randn(ROWS, 16), torch.randint(0, 9, (ROWS,))), name="layers")
    (entry,) = compile_graph(graph, DIVIDED).entries
    assert [(phase.first, phase.last) for phase in entry.region.phases] == [(0, 1), (2, 6)]
    compiled = luminal.compile(graph, target=DIVIDED)
    assert isinstance(compiled, Module)
    return compiled


@pytest.fixture(scope="module")
def chains() -> Module:
    shape = Scores.HEADS, Scores.SEQUENCE, Scores.WIDTH
    inputs = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1)).unbind()
    compiled = luminal.compile(Scores().eval(), inputs, name="scores", target=DIVIDED)
    assert isinstance(compiled, Module) and compiled.program is not None
    kernels = transformed(compiled.program, Stream)
    assert len(kernels) == 2 and all(sym.always(kernel.nest.task_count - 8) for kernel in kernels)
    return compiled


def test_results_do_not_depend_on_the_threads(module: Module) -> None:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((ROWS, 16)).astype(np.float32), random.integers(0, 9, ROWS)
    expected = [luminal.load(module.folder, threads=1)(*inputs)]
    for threads in (2, 3, 5, 16):
        library = luminal.load(module.folder, threads=threads)
        for _ in range(20):
            assert_same_bits([library(*inputs)], expected)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two threads take turns on one CPU")
def test_workers_keep_off_the_cpu_of_the_caller(module: Module) -> None:
    cpus = os.sched_getaffinity(0)
    before = threads_of_this_process()
    library = luminal.load(module.folder, threads=2)
    (worker,) = threads_of_this_process() - before

    def run_on(own: int) -> None:
        os.sched_setaffinity(0, {own})
        time.sleep(0.001)  # longer than a worker spins: it has to be woken
        library(np.zeros((ROWS, 16), np.float32), np.zeros(ROWS, np.int64))

    try:
        for own in sorted(cpus):
            deadline = time.monotonic() + 30.0
            while os.sched_getaffinity(worker) != cpus - {own} and time.monotonic() < deadline:
                run_on(own)
            assert os.sched_getaffinity(worker) == cpus - {own}
        os.sched_setaffinity(worker, cpus)  # by somebody who knows better
        for own in sorted(cpus):
            for _ in range(20):
                run_on(own)
        assert os.sched_getaffinity(worker) == cpus
    finally:
        os.sched_setaffinity(0, cpus)


def threads_of_this_process() -> set[int]:
    return {int(thread) for thread in os.listdir("/proc/self/task")}


def test_the_steps_of_a_phase_are_timed_as_one(module: Module) -> None:
    inputs = {"x": np.zeros((ROWS, 16), np.float32), "ids": np.zeros(ROWS, np.int64)}
    found = {kernel.name: kernel for kernel in profile.profile(module, inputs, runs=1, threads=1)}
    assert found.keys() == {"contraction0 + contraction1", "map2 + contraction1 + row3 + scan4 + map5"}
    both = found["contraction0 + contraction1"]
    assert both.launches == 1 and both.seconds > 0 and both.operations == 2 * 2 * ROWS * 16 * 16


def test_chains_do_not_depend_on_the_threads(chains: Module) -> None:
    shape = Scores.HEADS, Scores.SEQUENCE, Scores.WIDTH
    inputs = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float32)
    expected = luminal.load(chains.folder, threads=1)(*inputs)
    with torch.no_grad():
        exact = Scores().double()(*torch.from_numpy(inputs).double().unbind())
    for found, wanted in zip(expected, exact, strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=3e-6)
    for threads in (2, 3, 5, 16):
        library = luminal.load(chains.folder, threads=threads)
        for _ in range(20):
            assert_same_bits(library(*inputs), expected)


@pytest.mark.parametrize("name", ["module", "chains"])
def test_eight_contexts_under_the_thread_sanitizer(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    compiled = request.getfixturevalue(name)
    name = compiled.interface.name
    exported = compiled.export(tmp_path / "exported", python_module=False)
    flags = ["-fsanitize=thread", "-g", "-O1", f"-DLM_NAMESPACE={render.namespace(name)}"]
    includes = [f"-I{exported}", f"-I{exported / 'include'}"]
    kernel_flags = [flag for flag in targets.detect().flags if flag != "-O3"]
    objects = []
    for source in [exported / "library.cpp", *sorted((exported / "kernels").iterdir())]:
        objects.append(tmp_path / f"{source.stem}.o")
        own = kernel_flags if source.parent.name == "kernels" else ["-std=c++17"]
        run(["g++", *own, *flags, "-fno-exceptions", "-fno-rtti", *includes, "-c", source, "-o", objects[-1]])
    program = tmp_path / "concurrent"
    source = NATIVE / f"{name}_concurrent_test.cpp"
    run(["g++", "-std=c++17", *WARNINGS, *flags, *includes, source, *objects, "-o", program, *LINK_LIBRARIES])
    run(without_randomisation([program, exported / f"{name}.weights"]))
