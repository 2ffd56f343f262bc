"""Language models for GPUs, which the emulator runs: the tokens are those of transformers."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import luminal.llm
from luminal.codegen import emulation
from luminal.frontends.llm.sampling import ROWS, TYPES
from luminal.llm import LanguageModel, Sampling
from luminal.llm.sampling import Sampler
from luminal.runtime import loader
from tests import mpi_support
from tests.cuda_support import FakeDriver
from tests.llm_support import VOCABULARY, greedy, models, reference
from tests.test_mesh import FREE

T = TypeVar("T")

COUNT = 6
CALLS = (
    "cuGraphLaunch", "cuLaunchKernel", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphAddKernelNode_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemAlloc_v2",
)  # fmt: skip


@cache
def compiled(target: str) -> LanguageModel:
    """One slot, emulated; tests leave it empty."""
    return luminal.llm.compile(models("llama").single, context=128, chunk=2, target=target, emulate=True, threads=2)


@pytest.mark.parametrize("target", ["cuda:sm_90", "metal"])
def test_the_tokens_are_those_of_transformers(target: str) -> None:
    """Of a prompt in parts of up to two tokens, chosen by the library itself."""
    prompt = np.random.default_rng(2).integers(0, VOCABULARY, 7)
    wanted = greedy(models("llama").double, prompt, COUNT)
    case = reference("llama", wanted)
    best = np.sort(case.logits[len(prompt) - 1 : -1])[:, -2:]
    assert (best[:, 1] - best[:, 0]).min() > 2 * case.error  # else another token might be as good
    model = compiled(target)
    model.prefill(0, prompt.tolist())
    sampler = Sampler(Sampling(), model.vocabulary)
    found = []
    for position in range(len(prompt) - 1, len(wanted) - 1):
        case.check(position, model.logits(0))
        found.append(model.sample({0: sampler})[0])
        model.decode({0: found[-1]})
    assert found == wanted[len(prompt) :].tolist()
    model.rewind(0, 0)


def calls_of_a_token(model: LanguageModel, driver: FakeDriver, sampler: Sampler) -> tuple[dict[str, int], ...]:
    """How often the host called the driver for the choice of a token, and for its step."""

    def counted(work: Callable[[], T]) -> tuple[T, dict[str, int]]:
        before = {name: driver.calls(name) for name in CALLS}
        result = work()
        return result, {
            name: driver.calls(name) - count for name, count in before.items() if driver.calls(name) > count
        }

    token, choice = counted(lambda: model.sample({0: sampler})[0])
    sampler.accept(token)
    _, step = counted(lambda: model.decode({0: token}))
    return choice, step


def test_a_token_is_two_launches_of_graphs() -> None:
    """One chooses the likeliest token and one appends it; nothing is planned again, nor allocated, while the blocks of
    the cache that are read stay as many, and of the inputs and results one copy each passes."""
    model = compiled("cuda:sm_90")
    driver = FakeDriver(Path(model.module.library.path).with_name(emulation.DRIVER))
    model.prefill(0, [1, 2, 3])
    sampler = Sampler(Sampling(), model.vocabulary)
    calls_of_a_token(model, driver, sampler)  # plans
    for _ in range(3):
        choice, step = calls_of_a_token(model, driver, sampler)
        assert choice == {"cuGraphLaunch": 1, "cuMemcpyDtoHAsync_v2": 1}
        assert step.pop("cuMemcpyDtoHAsync_v2", 0) <= 1  # whether the token was one
        assert step == {"cuGraphLaunch": 1, "cuMemcpyHtoDAsync_v2": 1}
    model.rewind(0, 0)


def test_a_token_that_is_drawn_is_one_launch_of_a_graph_too() -> None:
    """No kernel is launched by itself, and nothing waits on the way. All settings are one copy to the device."""
    model = compiled("cuda:sm_90")
    driver = FakeDriver(Path(model.module.library.path).with_name(emulation.DRIVER))
    model.prefill(0, [1, 2, 3])
    sampler = Sampler(Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=3), model.vocabulary)
    calls_of_a_token(model, driver, sampler)  # plans
    for _ in range(2):
        choice, _ = calls_of_a_token(model, driver, sampler)
        assert choice.pop("cuMemcpyDtoHAsync_v2") <= 2  # the token, and whether it is one
        assert choice == {"cuGraphLaunch": 1, "cuMemcpyHtoDAsync_v2": 1}
    read = model.module["draw"].entry.inputs  # numbers of the slot alone
    assert {one.name for one in read} == TYPES.keys() - set(ROWS) and all(one.shape == (1,) for one in read)
    model.rewind(0, 0)


@pytest.mark.parametrize("change", [{"bias": {3: 1e9}}, {"repetition_penalty": 1e6}], ids=str)
def test_settings_that_change_the_likeliest_token_are_heeded(change: dict[str, Any]) -> None:
    model = compiled("cuda:sm_90")
    model.prefill(0, [1, 2, 3])
    likeliest = model.sample({0: Sampler(Sampling(), model.vocabulary)})[0]
    sampler = Sampler(Sampling(**change), model.vocabulary, range(model.vocabulary))
    if sampler.counts is not None:
        assert sampler.prompted is not None
        sampler.prompted[:] = False
        sampler.prompted[likeliest] = True
    assert model.sample({0: sampler})[0] != likeliest
    model.rewind(0, 0)


@mpi_support.needed
def test_ranks_with_a_gpu_each_choose_these_tokens(tmp_path: Path) -> None:
    """Heads and the cache are divided between two GPUs, which exchange data by what stands in for NCCL."""
    prompt = np.random.default_rng(2).integers(0, VOCABULARY, 7)
    wanted = greedy(models("llama").double, prompt, COUNT)
    made = luminal.llm.compile(
        models("llama").single, context=128, chunk=2, target="cuda:sm_90", emulate=True, mesh={"tensor": 2}, link=FREE
    )
    made.export(tmp_path / "library", python_module=False)
    plan = " ".join(loader.read_manifest(tmp_path / "library" / loader.MANIFEST)["plan"])
    assert "decode: keys_0: axis 0" in plan and re.search(r"decode: tensor: a rank sends [1-9]", plan), plan
    (tmp_path / "prompt.json").write_text(json.dumps(prompt.tolist()))
    script = Path(__file__).with_name("rank_of_gpu_language_model.py")
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    done = mpi_support.mpirun(2, script, tmp_path / "library", tmp_path, COUNT, **environment)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert json.loads((tmp_path / f"found.{rank}.json").read_text()) == wanted[len(prompt) :].tolist()
