"""A step of training as kernels for GPUs: a decoder's lowers for each of them, and is right under emulation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.eager import differences
from luminal import api
from luminal.codegen import dialects
from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.grid.divide import SynchroniseThreads
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.program import interpreter as programs
from tests.codegen_gpu_support import Emulated
from tests.drawn import draw
from tests.test_opencl import needs_opencl
from tests.test_recompute import Layer, batch
from tests.training_support import EPS, Run, check

Array = np.ndarray[Any, Any]

NAMES = ("metal", "cuda:sm_80", "cuda:sm_90")


def decoder() -> Run:
    module = Layer()
    draw(module, 0, 0.2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return Run(module, nn.MSELoss(), optimizer, lambda number: tuple(map(torch.from_numpy, batch(number))))


class Made(Exception):
    """The graphs of a step are there."""


@cache
def graph(target: str) -> Graph:
    """A step of a layer for a target, for which it is not compiled."""
    made: dict[str, Graph] = {}

    def keep(found: Mapping[str, Graph], **options: Any) -> None:
        made.update(found)
        raise Made

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Made):
        patch.setattr(api, "compile", keep)
        decoder().compiled(name="layer", target=target)
    return made["train"]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_right_under_emulation(name: str, tmp_path: Path) -> None:
    """Its parameters are at most twice as far from those in float64 as eager mode's."""
    run, target = decoder(), targets.parse(name)
    program = compile_graphs("layer", {"train": graph(name)}, target)
    nests = {kernel.name: kernel.nest for kernel in program.kernels}
    shared = types.f32 if name == "metal" else types.f64  # Metal has no float64
    assert program.entries[0].inputs[-1].dtype == shared
    assert any(is_updated_alone(nest) for nest in nests.values())
    emulated = Emulated(nests, dialects.ALL[target.dialect], tmp_path)
    seen: dict[tuple[int, int], tuple[Array, Array]] = {}  # by place and size: what is there, and what was at first

    def run_kernel(nest: ln.LoopNest, arrays: dict[str, Array], *sizes: Any) -> bool:
        seen.update({(a.ctypes.data, a.size): (a, a.copy()) for a in arrays.values()} | seen)
        return emulated.run_nest(nest, arrays, *sizes)

    x, y = batch(0)
    values = (x, y, np.array([0.1], shared.numpy))
    inputs = dict(zip((tensor.name for tensor in program.entries[0].inputs), values, strict=True))
    programs.run(program, inputs, {}, run_kernel=run_kernel)
    before = {name: value.detach().numpy().copy() for name, value in run.module.named_parameters()}
    exact = run.copied(torch.float64)
    exact.step(0)
    run.step(0)
    wanted, eager = dict(exact.module.named_parameters()), dict(run.module.named_parameters())
    for parameter, first in before.items():
        (found,) = (now for now, at_first in seen.values() if np.array_equal(at_first, first.ravel()))
        value = wanted[parameter].detach().numpy().ravel()
        error, most = (
            float(np.linalg.norm(a.astype(np.float64) - value))
            for a in (found, eager[parameter].detach().numpy().ravel())
        )
        assert error <= 2 * most + 2 * EPS * float(np.linalg.norm(value)), parameter


TARGETS = [*NAMES, pytest.param("opencl", marks=needs_opencl)]


@pytest.mark.parametrize("target", TARGETS)
def test_steps_of_a_library_are_as_near_to_float64_as_those_of_pytorch(target: str) -> None:
    run = decoder()
    check(run, run.compiled(name="layer", target=target, emulate=target != "opencl"), (0, 3))


@pytest.mark.parametrize("target", TARGETS)
def test_steps_that_correct_for_their_number_are_as_near_to_float64(target: str) -> None:
    """Corrections are far from 1 in the first steps. Of the parameters: the test before holds their gradients."""
    module = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 8))
    draw(module, 0, 0.2)
    generator = torch.Generator().manual_seed(0)
    batches = [tuple(torch.randn(6, n, generator=generator) for n in (24, 8)) for _ in range(4)]
    run = Run(module, nn.MSELoss(), torch.optim.AdamW(module.parameters(), lr=0.01), lambda number: batches[number])
    parameters = {name for name, _ in module.named_parameters()}
    compiled = run.compiled(name="layers", target=target, emulate=target != "opencl")
    found = [each for each in differences(run, compiled, (0, 1, 3)) if each.name in parameters]
    assert len(found) == 3 * len(parameters)
    for each in found:
        assert each.ratio <= 2, each


def is_updated_alone(nest: ln.LoopNest) -> bool:
    """Whether a kernel of many threads updates an element by one of them."""
    loops = (s for s in walk.statements(nest.body) if isinstance(s, ln.Loop))
    return any(loop.kind == "thread" and loop.extent == 1 and nest.threads > 1 for loop in loops)


@pytest.mark.parametrize("name", ["metal", "cuda:sm_90"])
def test_what_is_updated_by_a_sum_of_all_threads(name: str, tmp_path: Path) -> None:
    t, k = sym.Var("t", 0, 31), sym.Var("k", 0, 63)
    x, y = ln.load("x", sym.expr(k), types.f32), ln.load("y", 0, types.f32)
    total = ln.temporary("s", types.f32)
    body = (
        ln.Reduction("s", ops.SUM_REDUCE, types.f32, (ln.Loop(k, 64, "thread", (), 32),), (), x),
        ln.Store("y", 0, ln.apply(ops.ADD, (y, total), None, types.f32)),
        ln.Loop(t, 32, "thread", (ln.Store("z", sym.expr(t), y),), 32),
    )
    target = targets.parse(name)
    arrays = tuple(ln.Array(array, types.f32, array != "x") for array in "xyz")
    nest = SynchroniseThreads(32, target.block)(ln.LoopNest(arrays, (), body))
    emulated = Emulated({"update": nest}, dialects.ALL[target.dialect], tmp_path)
    values = {"x": np.arange(64, dtype=np.float32), "y": np.ones(1, np.float32), "z": np.zeros(32, np.float32)}
    assert emulated.run("update", values, {}) == 0
    assert values["y"][0] == 1 + np.arange(64).sum() and (values["z"] == values["y"]).all()
