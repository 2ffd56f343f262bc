"""The next token: what is kept of a vocabulary and how likely each is, against numpy in float64."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

import luminal
from luminal.core import interp, ir, ops, traverse
from luminal.core.errors import InputError, ShapeError
from luminal.core.structured import cond
from luminal.core.types import bool_, f32
from luminal.frontends.llm import sampling
from luminal.llm.sampling import Sampler, Sampling, Slots
from luminal.module import Module

Array = np.ndarray[Any, Any]

DRAWS = 2048  # slots that draw from the same logits, each with a seed of its own


def kept(logits: Array, s: Sampling, near: float = 0.0) -> dict[int, float]:
    """The tokens that may come and how likely each is, by the definitions of transformers' warpers in float64. Bounds
    of probabilities are moved by ``near``: what is between two sets is within rounding."""
    x = np.where(np.isnan(logits), -np.inf, logits.astype(np.float64))
    if s.temperature == 0:
        return {int(x.argmax()): 1.0}
    tokens = np.argsort(-x, kind="stable")  # equal logits in the order of their tokens
    tokens = tokens[: s.top_k] if s.top_k else tokens
    with np.errstate(invalid="ignore", over="ignore"):
        weights = np.where(x[tokens] == x.max(), 1.0, np.exp((x[tokens] - x.max()) / s.temperature))
    before = np.cumsum(weights) - weights
    count = int((before < (s.top_p + near) * weights.sum()).sum()) if s.top_p < 1 else len(tokens)
    taken = (np.arange(len(tokens)) < count) & (weights >= s.min_p - near) & (weights > 2.0**-40)
    return dict(zip(tokens[taken].tolist(), (weights[taken] / weights[taken].sum()).tolist(), strict=True))


def given(logits: Array, samplers: list[Sampler]) -> dict[str, Array]:
    slots, vocabulary = logits.shape
    return {"logits": logits, **Slots(slots, vocabulary).filled(dict(enumerate(samplers)))}


def drawn(logits: Array, samplers: list[Sampler], parts: int = sampling.HALVES) -> Array:
    """What the graph says."""
    made = sampling.graph(*logits.shape, parts)
    (found,) = interp.run(made, given(logits, samplers)).outputs
    return found


def draws(row: Array, asked: Sampling, count: int = DRAWS) -> Array:
    samplers = [Sampler(replace(asked, seed=seed), len(row)) for seed in range(count)]
    return drawn(np.tile(row, (count, 1)), samplers)


def unlikely(counts: Array, expected: Array) -> float:
    """How far a chi-square statistic is above its mean, in standard deviations."""
    degrees = max(len(expected) - 1, 1)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - degrees) / math.sqrt(2 * degrees)


RANDOM = np.random.default_rng(3)
ROWS = {
    "random": RANDOM.normal(size=24) * 1.5,
    "ties": RANDOM.integers(0, 3, 24),
    "all equal": np.full(17, -2.5),
    "masked": np.where(RANDOM.random(24) < 0.6, -np.inf, RANDOM.normal(size=24)),
    "NaN": np.where(RANDOM.random(24) < 0.4, np.nan, RANDOM.normal(size=24)),
    "one huge": np.where(np.arange(24) == 7, 1e30, RANDOM.normal(size=24)),
    "infinite": np.where(np.arange(24) % 7 == 3, np.inf, RANDOM.normal(size=24)),
    "zeros of both signs": np.where(np.arange(20) % 2, 0.0, -0.0),
    "one token": np.zeros(1),
    "far apart": np.linspace(-300, 300, 24),
}
ASKED = {
    "all": Sampling(temperature=1.0),
    "hot": Sampling(temperature=3.0),
    "cold": Sampling(temperature=0.3),
    "top-k": Sampling(temperature=1.0, top_k=5),
    "top-1": Sampling(temperature=1.0, top_k=1),
    "top-p": Sampling(temperature=1.0, top_p=0.6),
    "top-p of nothing": Sampling(temperature=1.0, top_p=0.0),
    "min-p": Sampling(temperature=1.0, min_p=0.2),
    "all three": Sampling(temperature=0.8, top_k=9, top_p=0.8, min_p=0.05),
    "greedy": Sampling(),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_tokens_come_as_often_as_they_are_likely(row: Array, asked: Sampling) -> None:
    row = row.astype(np.float32)
    few, many = kept(row, asked, -1e-6), kept(row, asked, 1e-6)
    found = draws(row, asked)
    tokens, counts = np.unique(found, return_counts=True)
    seen = dict(zip(tokens.tolist(), counts.tolist(), strict=True))
    assert seen.keys() <= many.keys()
    assert {token for token, p in few.items() if p * DRAWS > 20} <= seen.keys()
    if few.keys() == many.keys():
        likely = [token for token, p in few.items() if p * DRAWS >= 5]
        counts, expected = (np.array([of.get(token, 0) for token in likely]) for of in (seen, few))
        assert unlikely(counts, expected * DRAWS) < 5


def test_the_boundaries_of_ties_are_exact() -> None:
    """Of equal logits the first tokens are kept, exactly as many as there are places."""
    row = np.array([1, 3, 2, 2, 3, 2, 2, 0], np.float32)
    for k, wanted in ((1, {1}), (2, {1, 4}), (3, {1, 4, 2}), (5, {1, 4, 2, 3, 5}), (7, {0, 1, 2, 3, 4, 5, 6})):
        assert set(draws(row, Sampling(temperature=5.0, top_k=k)).tolist()) == wanted
    flat = np.zeros(10, np.float32)
    for p, count in ((0.0, 1), (0.05, 1), (0.25, 3), (0.5, 5), (0.5000001, 6), (0.999, 10)):
        assert set(draws(flat, Sampling(temperature=1.0, top_p=p)).tolist()) == set(range(count))
    few = Sampling(temperature=1.0, top_k=4, top_p=0.5)
    assert set(draws(flat, few).tolist()) == {0, 1}


def test_penalties_and_bias_are_those_of_transformers_and_of_openai() -> None:
    row = np.array([2.0, 1.0, -1.0, 0.5, -3.0, 0.0], np.float32)
    asked = Sampling(1.0, repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3, bias={3: 1.5, 4: 2.5})
    samplers = []
    for seed in range(DRAWS):
        sampler = Sampler(replace(asked, seed=seed), 6, [1, 2, 2])
        for token in (0, 2, 2, 5):
            sampler.accept(token)
        samplers.append(sampler)
    seen = torch.tensor([[0, 1, 2, 5]])
    penalised = RepetitionPenaltyLogitsProcessor(1.7)(seen, torch.from_numpy(row[None])).numpy()[0].astype(np.float64)
    counts = np.array([1, 0, 2, 0, 0, 1])
    x = penalised - 0.3 * counts - 0.4 * (counts > 0) + np.array([0, 0, 0, 1.5, 2.5, 0])
    likely = np.exp(x) / np.exp(x).sum()
    found = np.bincount(drawn(np.tile(row, (DRAWS, 1)), samplers), minlength=6)
    assert unlikely(found, likely * DRAWS) < 5


def test_where_no_token_may_come_there_is_none() -> None:
    nothing = np.array([[-np.inf] * 5, [np.nan] * 5, [0, 1, 2, 3, 4]], np.float32)
    for temperature in (0.0, 1.0):
        samplers = [Sampler(Sampling(temperature), 5) for _ in range(3)]
        samplers[2].allowed = np.zeros(5, np.bool_)
        assert drawn(nothing, samplers).tolist() == [-1, -1, -1]


def test_a_mask_leaves_what_it_allows_and_is_gone_with_it() -> None:
    logits, rows = np.arange(12, dtype=np.float32).reshape(2, 6), Slots(2, 6)
    sampler = Sampler(Sampling(bias={5: 3.0}), 6)
    sampler.allowed = np.arange(6) == 2
    made = sampling.graph(2, 6)
    tokens = []
    for samplers in ({0: sampler}, {0: Sampler(Sampling(), 6)}, {1: sampler}):
        tokens.append(interp.run(made, {"logits": logits, **rows.filled(samplers)}).outputs[0].tolist())
    assert tokens == [[2, 5], [5, 5], [5, 2]]


def test_draws_depend_on_seed_and_step_alone() -> None:
    row = RANDOM.normal(size=50).astype(np.float32)
    asked = Sampling(temperature=2.0, seed=11)

    def tokens(slots: int, slot: int, seed: int = 11) -> list[int]:
        sampler, found = Sampler(replace(asked, seed=seed), 50), []
        for _ in range(12):
            others = [Sampler(Sampling(temperature=1.0), 50) for _ in range(slots)]
            others[slot] = sampler
            found.append(int(drawn(np.tile(row, (slots, 1)), others)[slot]))
            sampler.accept(found[-1])
        return found

    assert tokens(1, 0) == tokens(3, 2)
    assert len(set(tokens(1, 0))) > 4
    assert tokens(1, 0) != tokens(1, 0, 12)
    assert tokens(1, 0, -1) == tokens(1, 0, 2**64 - 1)


def test_every_token_of_many_blocks_is_found() -> None:
    """A vocabulary of several blocks, the last of them not full: each token alone, and the first of the next block."""
    tokens = [0, 511, 512, 1023, 1024, 1299]
    logits = np.full((6, 1300), -np.inf, np.float32)
    logits[np.arange(6), tokens] = 1.0
    assert drawn(logits, [Sampler(Sampling(1.0, seed=s), 1300) for s in range(6)]).tolist() == tokens
    found = draws(np.zeros(1300, np.float32), Sampling(1.0), 2048)
    assert unlikely(np.bincount(found // 130, minlength=10), np.full(10, 204.8)) < 5


LOGITS = np.random.default_rng(5).normal(size=(6, 700)).astype(np.float32) * 3
MIXED = [*(ASKED[name] for name in ("all", "top-k", "top-p", "min-p", "all three", "greedy"))]


def mixed(step: int) -> list[Sampler]:
    samplers = [Sampler(replace(asked, seed=40 + k), 700) for k, asked in enumerate(MIXED)]
    for sampler in samplers:
        sampler.step = step
    return samplers


@pytest.fixture(scope="module")
def compiled() -> Module:
    module = luminal.compile(sampling.graph(6, 700))
    assert isinstance(module, Module)
    return module


def test_the_compiled_library_draws_what_the_graph_says(compiled: Module) -> None:
    for step in range(20):
        found = compiled.run(given(LOGITS, mixed(step)))["token"]
        np.testing.assert_array_equal(found, drawn(LOGITS, mixed(step)))


def test_the_number_of_threads_changes_no_token(compiled: Module) -> None:
    tokens = [
        [
            luminal.load(compiled.folder, threads=threads).run(given(LOGITS, mixed(s)))["token"].tolist()
            for s in range(9)
        ]
        for threads in (1, 3)
    ]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_ranks_in_many_parts_give_the_same_tokens(row: Array) -> None:
    """And nothing is decided on the way."""
    samplers = [
        Sampler(replace(asked, seed=10 * number + seed), len(row))
        for number, asked in enumerate(ASKED.values())
        for seed in range(4)
    ]
    logits = np.tile(row.astype(np.float32), (len(samplers), 1))
    wanted = drawn(logits, samplers)
    np.testing.assert_array_equal(drawn(logits, samplers, sampling.AT_ONCE), wanted)
    np.testing.assert_array_equal(drawn(logits, samplers, 3), wanted)  # whose parts are not all as wide
    made = sampling.graph(*logits.shape, rows=False)
    values = {name: x for name, x in given(logits, samplers).items() if name not in sampling.ROWS}
    np.testing.assert_array_equal(interp.run(made, values).outputs[0], wanted)
    kinds = {node.op for node in traverse.everything(sampling.graph(*logits.shape, sampling.AT_ONCE).roots)}
    assert kinds.isdisjoint({ops.WHILE, ops.COND})


@pytest.mark.parametrize("target", ["cuda:sm_90", "metal"])
def test_gpus_draw_the_same_tokens(target: str) -> None:
    row, count = LOGITS[:, :40], 3
    module = luminal.compile(sampling.graph(6, 40, sampling.AT_ONCE), target=target, emulate=True)
    for step in range(count):
        samplers = [Sampler(sampler.sampling, 40) for sampler in mixed(step)]
        for sampler in samplers:
            sampler.step = step
        assert module.run(given(row, samplers))["token"].tolist() == drawn(row, samplers).tolist()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature: expected a number, at least 0, found -1"),
    ({"temperature": math.nan}, "temperature: expected a number, at least 0, found nan"),
    ({"temperature": math.inf}, "temperature: expected a number, at least 0, found inf"),
    ({"temperature": "1"}, "temperature: expected a number, at least 0, found '1'"),
    ({"top_p": 1.5}, "top_p: expected a number, at least 0 and at most 1, found 1.5"),
    ({"min_p": -0.1}, "min_p: expected a number, at least 0 and at most 1"),
    ({"top_k": 1.5}, "top_k: expected a number of tokens"),
    ({"top_k": -1}, "top_k: expected a number of tokens"),
    ({"repetition_penalty": 0}, "repetition_penalty: expected a number, above 0, found 0"),
    ({"presence_penalty": math.inf}, "presence_penalty: expected a number, a finite one, found inf"),
    ({"seed": 2**64}, "seed: expected an integer of 64 bits"),
    ({"bias": {-1: 0.0}}, "bias: expected a number for each token"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Sampling(**options)


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match="bias: token 9 is none of the 9 tokens"):
        Sampler(Sampling(bias={9: 1.0}), 9)
    with pytest.raises(ShapeError, match="expected at most 2"):
        sampling.graph(1, 2**20 + 1)


def test_a_branch_takes_what_is_there_from_outside() -> None:
    """Although it builds a constant again that what is outside reads."""
    x, flag = ir.input_("x", (4,), f32), ir.input_("flag", (), bool_)
    outside = ir.elementwise(ops.SQRT, x + ir.constant(1.5, f32))
    (found,) = cond(flag, lambda: [outside], lambda: [outside * ir.constant(1.5, f32)])
    assert found.inputs == (flag, outside)
    assert not any(node.op is ops.SQRT for body in found.attr.bodies for node in traverse.everything(body))
