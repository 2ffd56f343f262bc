"""One compiled model, many threads: contexts at once, any number of threads, any ``parallel_for``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal import api, profile
from luminal.codegen import render
from luminal.core import target as targets
from luminal.core.pipeline import compile_graph
from luminal.core.schedule import cost, phases, scheduler
from luminal.module import Module
from tests.compiled_support import assert_same_bits
from tests.runtime_example import LINK_LIBRARIES, NATIVE, WARNINGS, run
from tests.test_runtime_native import without_randomisation

ROWS = 168  # full tiles of every target


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


@pytest.fixture(scope="module")
def module() -> Module:
    """Compiled with everything divided among threads, however small."""
    inputs = torch.randn(ROWS, 16), torch.randint(0, 9, (ROWS,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "SMALL", 1)
        patch.setattr(cost, "WAKE", 1)
        patch.setattr(phases, "SHARES", 1)
        graph = api.read(Layers().eval(), inputs, name="layers")
        (entry,) = compile_graph(graph, targets.detect()).entries
        assert [(phase.first, phase.last) for phase in entry.phases] == [(0, 2), (3, 5)]
        compiled = luminal.compile(graph)
    assert isinstance(compiled, Module)
    return compiled


def test_results_do_not_depend_on_the_threads(module: Module) -> None:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((ROWS, 16)).astype(np.float32), random.integers(0, 9, ROWS)
    expected = [luminal.load(module.folder, threads=1)(*inputs)]
    for threads in (2, 3, 5, 16):
        library = luminal.load(module.folder, threads=threads)
        for _ in range(20):
            assert_same_bits([library(*inputs)], expected)


def test_the_steps_of_a_phase_are_timed_as_one(module: Module) -> None:
    inputs = {"x": np.zeros((ROWS, 16), np.float32), "ids": np.zeros(ROWS, np.int64)}
    found = {kernel.name: kernel for kernel in profile.profile(module, inputs, runs=1, threads=1)}
    assert found.keys() >= {"contraction0 + map1 + contraction2", "map3 + contraction2 + row4"}
    both = found["contraction0 + map1 + contraction2"]
    assert both.launches == 1 and both.seconds > 0 and both.operations == 2 * 2 * ROWS * 16 * 16


def test_eight_contexts_under_the_thread_sanitizer(module: Module, tmp_path: Path) -> None:
    exported = module.export(tmp_path / "exported", python_module=False)
    flags = ["-fsanitize=thread", "-g", "-O1", f"-DLM_NAMESPACE={render.namespace('layers')}"]
    includes = [f"-I{exported}", f"-I{exported / 'include'}"]
    kernel_flags = [flag for flag in targets.detect().flags if flag != "-O3"]
    objects = []
    for source in [exported / "library.cpp", *sorted((exported / "kernels").iterdir())]:
        objects.append(tmp_path / f"{source.stem}.o")
        own = kernel_flags if source.parent.name == "kernels" else ["-std=c++17"]
        run(["g++", *own, *flags, "-fno-exceptions", "-fno-rtti", *includes, "-c", source, "-o", objects[-1]])
    program = tmp_path / "concurrent"
    source = NATIVE / "layers_concurrent_test.cpp"
    run(["g++", "-std=c++17", *WARNINGS, *flags, *includes, source, *objects, "-o", program, *LINK_LIBRARIES])
    run(without_randomisation([program, exported / "layers.weights"]))
