"""Answers with drafts (speculative decoding): what they are without, whatever the drafts are, and in fewer steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import luminal.llm
from luminal.core.errors import InputError
from luminal.llm import LanguageModel, drafts
from luminal.llm.engine import Engine
from luminal.llm.generate import PART, Generator, Options, Piece, Scheduler
from luminal.llm.sampling import Sampler, Sampling
from tests import language_support as language
from tests import llm_support as support
from tests.language_support import TABLE, TOKENIZER, Array, Bigrams, ending, following, table

MOST = 4  # drafts in a step
GREEDY = Sampling()


engine = partial(language.engine, context=200, speculate=MOST)


def noisy(seed: int, share: float, weights: Array = TABLE) -> Array:
    """A table of which that share of rows is another."""
    other = np.random.default_rng(seed).random(weights.shape[:2]) < share
    return np.where(other[..., None], table(seed + 1), weights)


def repeating() -> Array:
    """A table by which a text runs in a circle of 12 tokens."""
    found = TABLE.copy()
    circle = np.arange(100, 112)
    found[:, circle, np.roll(circle, -1)] = 100.0
    return found


def ask(generator: Generator, prompt: Sequence[int], **options: Any) -> list[Piece]:
    return language.ask(generator, prompt, **{"endless": True, "max_tokens": 60, **options})


def plainly(pieces: Sequence[Piece]) -> list[tuple[Any, ...]]:
    return [(piece.token, piece.text, piece.finish, piece.logprob, piece.top) for piece in pieces]


# ---- what drafts are -------------------------------------------------------------------------------------------------


def looked_up(text: Sequence[int], count: int = MOST) -> list[int]:
    found = drafts.Lookup()
    found.extend(text[:3])
    found.extend(text[3:])
    return found.draft(count, Sampler(GREEDY, 600))


def test_a_lookup_is_of_the_longest_passage_and_of_the_latest() -> None:
    assert looked_up([1, 2, 3, 4, 5, 6, 7, 2, 3]) == [4, 5, 6, 7]
    assert looked_up([1, 2, 3, 8, 8, 2, 3, 9, 9, 9, 9, 2, 3]) == [9, 9, 9, 9]  # both have two tokens
    assert looked_up([1, 2, 3, 8, 8, 8, 8, 2, 3, 9, 1, 2, 3]) == [8, 8, 8, 8]  # the earlier has three
    assert looked_up([1, 2, 3, 4], 9) == looked_up([7]) == looked_up([]) == []
    assert looked_up([1, 2, 3, 4, 3]) == []  # one token is too few


def test_a_lookup_of_a_text_that_repeats_itself_goes_on() -> None:
    assert looked_up([5, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert looked_up([4] * 6, 5) == [4] * 5


def test_a_model_drafts_what_it_would_say() -> None:
    """Its slot holds the text, and wrong drafts no longer."""
    other = engine(context=64)
    found = drafts.Model(other, 1)
    text = [9, 8, 7]
    found.extend(text)
    for right in (4, 0, 2, 4, 1):
        proposed = found.draft(MOST, Sampler(GREEDY, 600))
        expected = following(text, MOST)
        assert proposed == expected and other.held[1] == [*text, *expected[:-1]]
        new = [*proposed[:right], 500 + right]
        text += new
        found.extend(new)
    assert [name for name, _ in other.steps].count("prefill") == 3  # the prompt, and two tokens after four right ones
    found.close()
    assert other.held == [[], []]


# ---- answers ---------------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"sampling": Sampling(temperature=0.9, seed=3)},
    "few": {"sampling": Sampling(temperature=1.2, top_k=20, top_p=0.9, seed=5), "logprobs": 3},
    "penalties": {"sampling": Sampling(repetition_penalty=1.4, frequency_penalty=0.3, bias={7: 2.0})},
    "penalties, drawn": {"sampling": Sampling(0.7, presence_penalty=1.5, seed=2), "logprobs": 0},
    "short": {"max_tokens": 7},
    "ends": {"endless": False},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("draft", ["lookup", "right", "noisy", "wrong"])
def test_an_answer_is_what_it_is_without_drafts(settings: str, draft: str) -> None:
    weights = repeating() if draft == "lookup" else TABLE
    if settings == "ends":  # the token that ends answers comes after 18 others, as a draft, too
        weights = ending(18, [9, 8, 7, 100], weights)
    options, prompt = SETTINGS[settings], [9, 8, 7, 100]
    plain = ask(Generator(engine(weights=weights), TOKENIZER), prompt, **options)
    other = {"right": weights, "noisy": noisy(1, 0.4, weights), "wrong": table(9)}
    model = engine(weights=weights)
    drafting = draft if draft == "lookup" else engine(weights=other[draft])
    pieces = ask(Generator(model, TOKENIZER), prompt, draft=drafting, **options)
    assert plainly(pieces) == plainly(plain) and len(pieces) > 5
    counts = pieces[-1].drafts
    assert counts is not None and plain[-1].drafts is None and {piece.drafts for piece in pieces[:-1]} == {None}
    steps = [count for name, count in model.steps if name == "verify"]
    assert counts.steps == len(steps) and counts.proposed == sum(steps) - len(steps)
    assert 0 <= counts.accepted <= counts.proposed
    # The first token comes of the prompt, and each step adds one and the accepted: the last one none, if that ends it.
    assert len(model.steps) + counts.accepted - len(pieces) in ((0, 1) if settings == "ends" else (0,))
    if settings == "greedy" or (draft == "right" and settings != "ends"):
        expected = {"lookup": (30, 0), "right": (47, 0), "noisy": (5, 5), "wrong": (0, 60)}[draft]
        wrong = counts.proposed - counts.accepted
        if settings != "short":
            assert counts.accepted >= expected[0] and wrong >= expected[1], counts
        if draft == "right":
            assert wrong == 0  # drawn ones, too: by the same random numbers


def test_a_stop_text_ends_an_answer_within_drafts() -> None:
    whole = str(Generator(engine(), TOKENIZER).generate([9, 8, 7], max_tokens=40))
    other = engine()
    for at in range(4, 20, 5):
        stop = whole[at : at + 3]
        generator = Generator(engine(), TOKENIZER)
        assert generator.generate([9, 8, 7], max_tokens=40, stop=stop, draft=other) == whole[: whole.index(stop)]
        assert other.held == [[], []]


def test_a_slot_holds_the_answer_and_no_draft() -> None:
    model = engine(weights=noisy(4, 0.5))
    generator = Generator(model, TOKENIZER)
    prompt = list(range(10, 30))
    made = [piece.token for piece in ask(generator, prompt, draft=engine())]
    assert [*prompt, *made[:-1]] in model.held
    model.steps.clear()
    assert ask(generator, [*prompt, *made, 77], max_tokens=1)
    assert model.steps[0] == ("prefill", 2)


def test_an_answer_with_drafts_follows_a_constraint() -> None:
    pytest.importorskip("llguidance", reason="no llguidance is installed, which constraints on answers need")
    schema = {"type": "array", "items": {"enum": ["cat", "dog"]}, "minItems": 6, "maxItems": 8}
    for options in ({"json_schema": schema}, {"regex": r"(ab){9}-\d\d"}, {"grammar": 'start: "yes" | "no"'}):
        for sampling in (GREEDY, Sampling(0.8, seed=1)):
            texts = []
            for draft in (None, "lookup", engine(weights=TABLE / 3), engine(weights=table(9))):
                generator = Generator(engine(weights=TABLE / 3), TOKENIZER)
                texts.append(generator.generate("x", draft=draft, sampling=sampling, max_tokens=90, **options))
            assert len(set(texts)) == 1 and texts[0]


def test_answers_at_once_are_what_they_are_alone() -> None:
    """With drafts, from the text and from a model, and without; among long prompts."""
    random = np.random.default_rng(2)
    weights = repeating()
    prompts = [random.integers(100, 112, size).tolist() for size in (3, PART + 9, 40, 7, 90)]
    other = engine(context=2 * PART, weights=noisy(3, 0.3, weights))
    kinds: list[Engine | str | None] = ["lookup", None, other, other, "lookup"]
    options = [
        Options(max_tokens=20 + k, sampling=Sampling(temperature=k % 3 / 2, seed=k), endless=True, draft=kind)
        for k, kind in enumerate(kinds)
    ]
    alone = [
        [piece.token for piece in ask(Generator(engine(context=2 * PART, weights=weights), TOKENIZER), prompt,
                                      max_tokens=option.max_tokens, sampling=option.sampling)]
        for prompt, option in zip(prompts, options, strict=True)
    ]  # fmt: skip
    model = engine(context=2 * PART, weights=weights)
    scheduler = Scheduler(model, TOKENIZER)
    answers = [scheduler.answer(prompt, option) for prompt, option in zip(prompts, options, strict=True)]
    waiting = list(answers)
    while waiting or scheduler.answers:
        while waiting and scheduler.free:
            scheduler.add(waiting.pop(0))
        scheduler.step()
    assert [answer.made for answer in answers] == alone
    assert {"prefill", "decode", "verify"} == {name for name, _ in model.steps} and other.held == [[], []]
    assert all(answer.drafts.accepted for answer in answers if answer.options.draft is not None)


# ---- the model that drafts -------------------------------------------------------------------------------------------


class Greedy(Bigrams):
    """It says what is likeliest, whatever it is asked."""

    def _draws(self) -> Any:
        return None

    def sample(self, settings: Mapping[int, Sampler]) -> dict[int, int]:
        return {slot: int(self.logits(slot).argmax()) for slot in settings}


class Forgetful(Bigrams):
    """It cannot go back, as a window's ring that has lost what is needed."""

    def keeps(self, slot: int, length: int) -> bool:
        return length in (0, self.length(slot))

    def rewind(self, slot: int, length: int) -> None:
        assert self.keeps(slot, length)
        super().rewind(slot, length)


def test_a_model_that_cannot_go_back_or_has_less_room_drafts_as_it_can() -> None:
    plain = ask(Generator(engine(), TOKENIZER), [9, 8, 7])
    for other in (Forgetful(noisy(1, 0.3), 2, 200), engine(context=30)):
        pieces = ask(Generator(engine(), TOKENIZER), [9, 8, 7], draft=other)
        assert plainly(pieces) == plainly(plain) and pieces[-1].drafts is not None and pieces[-1].drafts.accepted > 15


def test_a_model_drafts_for_as_many_answers_as_it_has_slots() -> None:
    other, generator = Greedy(TABLE, 1, 200), Generator(engine(), TOKENIZER)
    first, second = (generator.stream([9, 8], Options(draft=other, endless=True)) for _ in range(2))
    next(first)
    with pytest.raises(InputError, match="draft: the model that drafts has 1 slots, and all of them are used"):
        next(second)
    first.close()  # type: ignore[attr-defined]
    assert other.held == [[]] and len(ask(generator, [9, 8], draft=other)) == 60


def test_a_model_that_others_use_meanwhile_is_noticed() -> None:
    other, generator = engine(), Generator(engine(), TOKENIZER)
    pieces = generator.stream([9, 8], Options(draft=other, endless=True))
    next(pieces)
    next(pieces)
    other.decode({0: 5})
    with pytest.raises(InputError, match="draft: slot 0 of the model that drafts was used by others meanwhile"):
        list(pieces)
    assert len(ask(generator, [9, 8], draft=other)) == 60


def test_drafts_that_cannot_be_are_refused() -> None:
    model, fewer = engine(), engine()
    fewer.vocabulary = 400
    for given, message in (
        ("look", "draft: expected 'lookup' or another language model, found 'look'"),
        (3, "draft: expected 'lookup' or another language model, found 3"),
        (model, "draft: expected another language model, found the one that verifies"),
        (fewer, "draft: expected a language model of the same 600 tokens, found one of 400"),
    ):
        with pytest.raises(InputError, match=message):
            Generator(model, TOKENIZER).generate([9, 8], draft=given)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the model verifies no drafts: compile it with speculate="):
        Generator(engine(speculate=0), TOKENIZER).generate([9, 8], draft="lookup")


# ---- a library -------------------------------------------------------------------------------------------------------

NAME, CHUNK = "mistral", 32  # windows, whose rings have 128 rows


@cache
def compiled() -> LanguageModel:
    return luminal.llm.compile(
        support.models(NAME).single, slots=2, chunk=CHUNK, context=support.CONTEXT, speculate=MOST
    )


@cache
def expected() -> list[int]:
    """A prompt of 70 tokens and 200 that follow, in float64."""
    prompt = np.random.default_rng(2).integers(0, support.VOCABULARY, 70)
    return [int(token) for token in support.greedy(support.models(NAME).double, prompt, 200)]


def among(wanted: Sequence[int], share: float) -> Engine:
    """A model that knows the text by its positions' parity and last token, but for a share of it."""
    weights = np.random.default_rng(7).normal(size=(2, support.VOCABULARY, support.VOCABULARY))
    wrong = np.random.default_rng(8).random(len(wanted)) < share
    for at in range(1, len(wanted)):
        if not wrong[at]:
            weights[at % 2, wanted[at - 1], wanted[at]] = 50.0
    return Greedy(weights, 1, support.CONTEXT)


@pytest.mark.parametrize("draft", ["none", "lookup", "right", "mixed", "wrong"])
def test_greedy_tokens_are_those_of_transformers(draft: str, tmp_path: Path) -> None:
    """Beyond where the rings wrap; wrong drafts are taken back across it."""
    model, wanted = compiled(), expected()
    model.reset()
    other: Any = {"none": None, "lookup": "lookup"}.get(draft)
    if draft == "right":  # the same library once more
        other = luminal.llm.load(model.export(tmp_path / "out", python_module=False))
    elif other is None and draft != "none":
        other = among(wanted, {"mixed": 0.3, "wrong": 1.0}[draft])
    pieces = ask(Generator(model, TOKENIZER), wanted[:70], max_tokens=200, draft=other)
    assert [piece.token for piece in pieces] == wanted[70:]
    counts = pieces[-1].drafts
    if draft == "right":
        assert counts is not None and counts.accepted == counts.proposed >= 158 and counts.steps == 40
    if draft in ("mixed", "wrong"):
        assert counts is not None and counts.proposed - counts.accepted > 100
        assert (counts.accepted > 50) == (draft == "mixed")


def test_what_is_verified_has_the_logits_of_float64() -> None:
    """After each token, in any number of them, from where wrong ones were taken back."""
    model, wanted = compiled(), expected()
    model.reset()
    case = support.reference(NAME, np.array(wanted))
    model.prefill(1, wanted[:120])
    at, samplers = 120, [Sampler(GREEDY, support.VOCABULARY)] * (MOST + 1)
    for count in (1, 3, MOST + 1, 2, MOST + 1, 4):
        wrong = [(token + 1) % support.VOCABULARY for token in wanted[at : at + MOST + 1]]
        model.verify(1, wrong, samplers)
        model.rewind(1, at)
        chosen, logits = model.verify(1, wanted[at : at + count], samplers[:count])
        for k in range(count):
            case.check(at + k, logits[k])
        assert chosen == wanted[at + 1 : at + count + 1] == logits.argmax(1).tolist()
        at += count
        case.check(at - 1, model.logits(1))
    assert model.length(1) == at and model.length(0) == 0


def test_what_is_verified_is_checked() -> None:
    model, sampler = compiled(), Sampler(GREEDY, support.VOCABULARY)
    model.reset()
    for given, samplers, message in (
        ([], [], "expected a list of one or more tokens"),
        ([1] * (MOST + 2), [sampler] * (MOST + 2), "up to 4 drafts and a sampler for each of them, found 6 tokens"),
        ([1, 2], [sampler], "found 2 tokens and 1 samplers"),
        ([support.VOCABULARY], [sampler], "expected tokens of 0 to 383, found 384"),
    ):
        with pytest.raises(InputError, match=message):
            model.verify(0, given, samplers)
    model.prefill(0, [1] * (support.CONTEXT - 1))
    with pytest.raises(InputError, match="slot 0 holds 319 tokens: expected at most 1 more, found 2"):
        model.verify(0, [1, 2], [sampler] * 2)
    assert model.length(0) == support.CONTEXT - 1 and model.length(1) == 0
    for wrong in (-1, 2.0, True, CHUNK):
        with pytest.raises(InputError, match="speculate: expected a number of drafts from 0 to 31"):
            luminal.llm.compile(support.models(NAME).single, chunk=CHUNK, speculate=wrong)  # type: ignore[arg-type]
