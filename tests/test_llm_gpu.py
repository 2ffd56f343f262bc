"""Language models for GPUs, which the emulator runs: the tokens are those of transformers."""

from __future__ import annotations

import numpy as np
import pytest

import luminal.llm
from luminal.llm import Sampling
from luminal.llm.sampling import Sampler
from tests.llm_support import VOCABULARY, greedy, models, reference

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
