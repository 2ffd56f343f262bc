"""Language models for GPUs, which the emulator runs: the tokens are those of transformers."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import luminal.llm
from luminal.llm import Sampling
from luminal.llm.sampling import Sampler
from luminal.runtime import loader
from tests import mpi_support
from tests.llm_support import VOCABULARY, greedy, models, reference
from tests.test_mesh import FREE

COUNT = 6


@pytest.mark.parametrize("target", ["cuda:sm_90", "metal"])
def test_the_tokens_are_those_of_transformers(target: str) -> None:
    """Of a prompt in parts of up to two tokens, chosen by the library itself."""
    prompt = np.random.default_rng(2).integers(0, VOCABULARY, 7)
    wanted = greedy(models("llama").double, prompt, COUNT)
    case = reference("llama", wanted)
    best = np.sort(case.logits[len(prompt) - 1 : -1])[:, -2:]
    assert (best[:, 1] - best[:, 0]).min() > 2 * case.error  # else another token might be as good
    model = luminal.llm.compile(models("llama").single, context=128, chunk=2, target=target, emulate=True, threads=2)
    model.prefill(0, prompt.tolist())
    sampler = Sampler(Sampling(), model.vocabulary)
    found = []
    for position in range(len(prompt) - 1, len(wanted) - 1):
        case.check(position, model.logits(0))
        found.append(model.sample({0: sampler})[0])
        model.decode({0: found[-1]})
    assert found == wanted[len(prompt) :].tolist()


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
