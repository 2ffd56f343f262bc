"""Memory: that of weights, which lie in a file beside a model and are compiled without holding them (2.5 GB are for
``python -m tests.large_model``), and that of results, which is used again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import luminal
from luminal.core import ir
from luminal.core.schedule.fusion import order
from luminal.core.types import f32, i64
from luminal.module import Module
from luminal.runtime.loader import Library


def test_large_weights_are_not_held() -> None:
    """In a process of its own, whose largest size nothing else has raised."""
    command = [sys.executable, "-m", "tests.large_model", "--gigabytes", "0.3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


class Increment(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def increment(x: np.ndarray[Any, Any]) -> Library:
    module = luminal.compile(Increment(), (torch.from_numpy(x),), name="increment")
    assert isinstance(module, Module)
    return module.library


def test_results_take_the_memory_of_those_that_were_dropped() -> None:
    x = np.arange(700_000, dtype=np.float32)
    library = increment(x)
    (first,) = library.run([x])
    address, part = first.ctypes.data, first[100:]
    del first
    (second,) = library.run([2 * x])
    assert second.ctypes.data != address  # a view of the first one is in use
    np.testing.assert_array_equal(part, x[100:] + 1)
    del part
    (third,) = library.run([3 * x])
    assert third.ctypes.data == address
    del library
    np.testing.assert_array_equal(second, 2 * x + 1)
    np.testing.assert_array_equal(third, 3 * x + 1)


def test_the_memory_of_few_results_is_kept() -> None:
    x = np.zeros(4 << 20, np.float32)
    library = increment(x)
    page = os.sysconf("SC_PAGESIZE")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    library.run([x])
    before = resident()
    many = [library.run([x]) for _ in range(8)]
    assert resident() - before > 6 * x.nbytes
    del many
    assert resident() - before < 2 * x.nbytes


@pytest.mark.parametrize(("size", "large"), [(1024, True), (64, False)])
def test_large_weights_are_in_huge_pages(size: int, large: bool) -> None:
    """A mapped file would be in small ones: what the system has huge pages for is copied, and the file is let go of. So
    are small files, which may be written over while the library is open."""
    module = luminal.compile(nn.Linear(size, size), (torch.ones(1, size),), name=f"weights_{size}")
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    copied = not large or (modes.exists() and "[never]" not in modes.read_text())
    file = str(module.folder / f"weights_{size}.weights")
    assert (file in Path("/proc/self/maps").read_text()) is not copied


def test_states_take_no_memory_until_they_are_written() -> None:
    """A cache is as large as the longest sequence; what was never written is zero, also after a reset."""
    rows, width = 1 << 14, 1 << 10
    cache, at = ir.input_("cache", (rows, width), f32), ir.input_("at", (1,), i64)
    added = ir.scatter(cache, at, ir.constant(np.ones((1, width), np.float32)), 0)
    read = ir.gather(added, ir.constant(np.array([3, rows - 1])), 0)
    state = ir.State(cache, "cache.next", ir.constant(np.zeros((rows, width), np.float32)))
    graph = ir.Graph("rows", (at, cache), (("y", read), ("cache.next", added)), (), states=(state,))
    module = luminal.compile(graph)
    assert isinstance(module, Module)
    page = os.sysconf("SC_PAGESIZE")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    before = resident()
    module.run({"at": np.array([7])})
    np.testing.assert_array_equal(module.run({"at": np.array([3])})["y"].sum(1), [width, 0])
    assert resident() - before < rows * width  # a quarter of them
    for row in range(0, rows, 4):
        module.run({"at": np.array([row])})
    assert resident() - before > 3 * rows * width
    module.reset()
    np.testing.assert_array_equal(module.run({"at": np.array([rows - 1])})["y"].sum(1), [0, width])
    assert resident() - before < rows * width


def test_weights_are_packed_just_before_they_are_read() -> None:
    """Weights that change are packed in each step, for the forward and for the backward pass: of many layers few packed
    ones lie in memory at once."""
    layers, width = 8, 256
    module = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)), nn.Linear(width, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x, target = torch.ones(16, width), torch.ones(16)
    step = luminal.compile_training(module, nn.MSELoss(), optimizer, (x,), (target,), name="deep", target="avx512")
    assert step.memory["train"] < 3 * width * width * 4


def test_copies_run_late() -> None:
    """Just before the first cluster that depends on each; those that none depends on come last."""
    ancestors = [0, 0, 0, 0b1, 0b1001, 0b11011]  # 0 is a cluster, 1 and 2 copies; 5 depends on 1, none on 2
    assert order.late(range(6), ancestors, {1, 2}) == [0, 3, 4, 1, 5, 2]


def test_the_parameters_of_a_step_are_held_once() -> None:
    """The file of a step has the parameters that it begins with, which are read again at a reset alone; and those of
    the module are not copied to compile it."""
    width = 2048
    module = nn.Sequential(nn.Linear(width, width), nn.Flatten(0), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    x, target = torch.ones(1, width), torch.ones(1)
    step = luminal.compile_training(module, nn.MSELoss(), optimizer, (x,), (target,), name="held")
    (first, *_) = (s for s in step.module["train"].graph.states if s.initial.shape == (width, width))
    assert np.shares_memory(first.initial.attr.array, module[0].weight.detach().numpy())
    before = step.state["0.weight"]
    losses = [float(step(x, target)) for _ in range(2)]
    file = str(step.module.folder / "held.weights")
    assert resident_of(file) < width * width
    step.write_back()  # the module changes; what a reset gives does not
    assert (module[0].weight.detach().numpy() != before).any()
    step.reset()
    assert [float(step(x, target)) for _ in range(2)] == losses


def resident_of(path: str) -> int:
    """Bytes of the file at ``path`` that this process has in memory; it is mapped."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    sizes = [int(next(x for x in lines if x.startswith("Rss:")).split()[1]) for line in lines if path in line]
    assert sizes
    return sum(sizes) * 1024
