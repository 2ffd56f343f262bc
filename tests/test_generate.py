"""The loop that makes answers, with a table of bigrams as the model: tokens, stops, reuse of prefixes, constraints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from luminal.core.errors import InputError
from luminal.llm.engine import Engine
from luminal.llm.generate import PART, Generator, Options, Scheduler
from luminal.llm.sampling import Sampling
from tests.language_support import TABLE, TEXT, TOKENIZER, Bigrams, ask, ending, engine, following

# ---- one answer ------------------------------------------------------------------------------------------------------


def test_an_answer_is_what_the_model_says() -> None:
    model: Engine = engine()
    generator = Generator(model, TOKENIZER)
    prompt = TOKENIZER.encode("Hello")
    pieces = ask(generator, prompt, max_tokens=20)
    made = following(prompt, 20)
    assert len(set(made)) > 8 and 1 not in made
    assert [piece.token for piece in pieces] == made
    assert "".join(piece.text for piece in pieces) == TOKENIZER.decode([*prompt, *made]).removeprefix("Hello")
    assert [piece.finish for piece in pieces] == [None] * 19 + ["length"]
    assert generator.generate("Hello", max_tokens=20) == "".join(piece.text for piece in pieces)
    streamed = generator.generate("Hello", max_tokens=20, stream=True)
    assert isinstance(streamed, Iterator) and [piece.token for piece in streamed] == made


def test_an_answer_ends_with_the_context() -> None:
    pieces = ask(Generator(engine(context=12), TOKENIZER), [9, 8, 7])
    assert len(pieces) == 9 and pieces[-1].finish == "length"


def test_a_stop_token_ends_an_answer_and_is_not_shown() -> None:
    prompt = [9, 8, 7]
    generator = Generator(engine(weights=ending(5, prompt)), TOKENIZER)
    pieces = ask(generator, prompt)
    assert [piece.token for piece in pieces] == [*following(prompt, 5), 1]
    assert pieces[-1].finish == "stop" and "</s>" not in "".join(piece.text for piece in pieces)
    assert len(ask(generator, prompt, max_tokens=9, endless=True)) == 9


def test_a_stop_text_ends_an_answer_wherever_it_falls_in_tokens() -> None:
    prompt = TOKENIZER.encode("Hello")
    generator = Generator(engine(), TOKENIZER)
    whole = "".join(piece.text for piece in ask(generator, prompt, max_tokens=30))
    for at in range(3, len(whole) - 4, 7):
        stop = whole[at : at + 3]
        shown = generator.generate(prompt, max_tokens=30, stop=stop)
        assert shown == whole[: whole.index(stop)]
    pieces = ask(generator, prompt, max_tokens=30, stop=(whole[9:12], "never"))
    assert pieces[-1].finish == "stop" and len(pieces) < 30


def test_logprobs_are_those_of_the_model() -> None:
    prompt = [9, 8, 7]
    pieces = ask(Generator(engine(), TOKENIZER), prompt, max_tokens=6, logprobs=4)
    made = list(prompt)
    for piece in pieces:
        x = TABLE[len(made) % 2, made[-1]].astype(np.float32).astype(np.float64)
        logprobs = x - np.log(np.exp(x).sum())
        assert piece.logprob == pytest.approx(logprobs[piece.token], abs=1e-6)
        first = np.argsort(-x)[:4]
        assert [token for token, _ in piece.top] == first.tolist()
        np.testing.assert_allclose([value for _, value in piece.top], logprobs[first], atol=1e-6)
        made.append(piece.token)
    assert ask(Generator(engine(), TOKENIZER), prompt, max_tokens=1)[0].logprob is None


def test_a_seed_gives_the_same_answer_again() -> None:
    generator = Generator(engine(weights=TABLE / 3), TOKENIZER)
    texts = [generator.generate([9, 8], max_tokens=20, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    unseeded = {generator.generate([9, 8], max_tokens=20, temperature=1.0) for _ in range(3)}
    assert len(unseeded) == 3


def test_a_penalty_sees_the_prompt_and_the_answer() -> None:
    """With an endless penalty, no token comes twice, and none of the prompt."""
    weights = np.abs(TABLE) + 1
    prompt = list(range(5, 45))
    pieces = ask(Generator(engine(weights=weights, context=200), TOKENIZER), prompt, max_tokens=100, endless=True,
                 sampling=Sampling(repetition_penalty=1e6))  # fmt: skip
    made = [piece.token for piece in pieces]
    assert len(made) == 100 == len(set(made)) and not set(made) & set(prompt)


# ---- slots -----------------------------------------------------------------------------------------------------------


def test_what_a_slot_holds_is_not_computed_again() -> None:
    model = engine(slots=1)
    generator = Generator(model, TOKENIZER)
    first = list(range(10, 30))
    made = [piece.token for piece in ask(generator, first, max_tokens=5)]
    assert model.steps[0] == ("prefill", 20)
    for prompt, rest in (
        ([*first, *made, 77, 78], 3),  # the last token was drawn, but never went in
        ([*first, *made[:2], 99], 1),
        (first[:10], 1),
        ([5, *first], 21),
    ):
        model.steps.clear()
        answer = [piece.token for piece in ask(generator, prompt, max_tokens=4)]
        assert model.steps[0] == ("prefill", rest)
        assert answer == following(prompt, 4)


def test_a_prompt_that_another_slot_holds_is_copied_from_there() -> None:
    model = engine(slots=2, context=200)
    scheduler = Scheduler(model, TOKENIZER)
    shared = list(range(10, 110))
    answers = [scheduler.answer([*shared, last], Options(max_tokens=30)) for last in (200, 201)]
    scheduler.add(answers[0])
    scheduler.step()
    scheduler.add(answers[1])
    while any(answer.finish is None for answer in answers):
        scheduler.step()
    assert [answer.reused for answer in answers] == [0, 100]
    assert ("prefill", 1) in model.steps and ("prefill", 101) in model.steps
    assert [answer.made for answer in answers] == [following(answer.prompt, 30) for answer in answers]


class Forgetful(Bigrams):
    """It cannot go back, as a window's ring that has lost what is needed."""

    def keeps(self, slot: int, length: int) -> bool:
        return length in (0, self.length(slot))

    def rewind(self, slot: int, length: int) -> None:
        assert self.keeps(slot, length)
        super().rewind(slot, length)


def test_a_slot_that_cannot_go_back_begins_anew() -> None:
    model = Forgetful(TABLE, 1)
    generator = Generator(model, TOKENIZER)
    for prompt in ([9, 8, 7, 6], [9, 8, 7, 5]):
        assert [piece.token for piece in ask(generator, prompt, max_tokens=5)] == following(prompt, 5)
    assert [count for name, count in model.steps if name == "prefill"] == [4, 4]


def test_a_slot_that_cannot_go_back_keeps_what_it_holds_while_another_is_empty() -> None:
    model = Forgetful(TABLE, 2)
    generator = Generator(model, TOKENIZER)
    held = []
    for prompt, new in (([9, 8, 7, 6], 4), ([9, 8, 7, 5], 4), ([9, 8, 7, 6, *following([9, 8, 7, 6], 5), 44], 2)):
        model.steps.clear()
        assert [piece.token for piece in ask(generator, prompt, max_tokens=5)] == following(prompt, 5)
        assert model.steps[0] == ("prefill", new)
        held.append(sorted(len(tokens) for tokens in model.held))
    assert held == [[0, 8], [8, 8], [8, 14]]


def test_answers_at_once_are_what_they_are_alone() -> None:
    """More than there are slots, of prompts of unequal length, long ones in parts; each as if it were alone."""
    model = engine(slots=3, context=2 * PART + 200, weights=TABLE / 3)
    random = np.random.default_rng(2)
    prompts = [random.integers(5, 600, size).tolist() for size in (3, 2 * PART + 9, 1, PART, 40, 7)]
    options = [
        Options(max_tokens=12 + k, sampling=Sampling(temperature=k % 3 / 2, seed=k), endless=True)
        for k in range(len(prompts))
    ]
    alone = [
        [piece.token for piece in Generator(engine(1, model.context, TABLE / 3), TOKENIZER).stream(prompt, option)]
        for prompt, option in zip(prompts, options, strict=True)
    ]
    scheduler = Scheduler(model, TOKENIZER)
    answers = [scheduler.answer(prompt, option) for prompt, option in zip(prompts, options, strict=True)]
    waiting = list(answers)
    while waiting or scheduler.answers:
        while waiting and scheduler.free:
            scheduler.add(waiting.pop(0))
        scheduler.step()
    assert [answer.made for answer in answers] == alone
    assert max(count for name, count in model.steps if name == "prefill") == PART
    assert max(count for name, count in model.steps if name == "decode") == 3


def test_answers_can_be_read_in_turns_or_left() -> None:
    generator = Generator(engine(slots=2), TOKENIZER)
    first, second = ([9, 8], [7, 6])
    a, b = (generator.stream(prompt, Options(max_tokens=8, endless=True)) for prompt in (first, second))
    made = [(next(a).token, next(b).token) for _ in range(8)]
    assert [list(row) for row in zip(*made, strict=True)] == [following(first, 8), following(second, 8)]
    left = [generator.stream([5], Options(endless=True)) for _ in range(2)]
    for pieces in left:
        next(pieces)
    with pytest.raises(InputError, match="all 2 slots are in answers that were not read to their end"):
        next(generator.stream([5], Options()))
    for pieces in left:
        pieces.close()  # type: ignore[attr-defined]
    assert len(ask(generator, [5], max_tokens=3, endless=True)) == 3


# ---- constraints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def constrained() -> Generator:
    pytest.importorskip("llguidance", reason="no llguidance is installed, which constraints on answers need")
    return Generator(engine(context=400, weights=TABLE / 3), TOKENIZER)


def test_an_answer_follows_a_json_schema(constrained: Generator) -> None:
    schema = {
        "type": "object", "required": ["name", "kind", "sizes"], "additionalProperties": False,
        "properties": {
            "name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["cat", "dog"]},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        },
    }  # fmt: skip
    texts = set()
    for seed in range(4):
        text = constrained.generate("Hello", json_schema=schema, temperature=1.0, seed=seed, max_tokens=300)
        found = json.loads(str(text))
        assert set(found) == {"name", "kind", "sizes"} and found["kind"] in ("cat", "dog")
        assert len(found["name"]) <= 8 and len(found["sizes"]) <= 3 and all(0 <= n <= 99 for n in found["sizes"])
        texts.add(text)
    assert len(texts) > 1


def test_blanks_of_json_end(constrained: Generator) -> None:
    """Though the model wants nothing else."""
    bias = dict.fromkeys((k for k in range(TABLE.shape[1]) if not TOKENIZER.decode([k]).strip(" \n\t")), 50.0)
    schema = {
        "type": "object", "required": ["a"], "additionalProperties": False, "properties": {"a": {"type": "boolean"}},
    }  # fmt: skip
    text = str(constrained.generate("x", json_schema=schema, bias=bias, max_tokens=300))
    assert isinstance(json.loads(text)["a"], bool)
    assert re.search(r"\s", text) and not re.search(r"\s{34}", text)


def test_an_answer_follows_a_regular_expression_and_a_grammar(constrained: Generator) -> None:
    assert re.fullmatch(r"[ab]{3,5}-\d\d", str(constrained.generate("x", regex=r"[ab]{3,5}-\d\d")))
    pieces = constrained.generate("x", grammar='start: "yes" | "no"', stream=True)
    assert isinstance(pieces, Iterator)
    found = list(pieces)
    assert "".join(piece.text for piece in found) in ("yes", "no") and found[-1].finish == "stop"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": "{"}, "a JSON schema: expected JSON"),
    ({"json_schema": "3"}, "a JSON schema: expected an object"),
    ({"json_schema": {"type": "nonsense"}}, "the constraint on the answer"),
    ({"regex": "("}, "the constraint on the answer"),
    ({"regex": "a", "grammar": "start: x"}, "expected one constraint, found regex and lark"),
    ({"temperature": -1.0}, "temperature: expected a number, at least 0"),
    ({"heat": 1.0}, "there is no setting 'heat'"),
    ({"sampling": Sampling(), "top_k": 1}, "expected either sampling or its settings"),
    ({"max_tokens": 0}, "max_tokens: expected 1 or more"),
    ({"max_tokens": "5"}, "max_tokens: expected 1 or more, found '5'"),
    ({"logprobs": 101}, "logprobs: expected 0 .. 100"),
    ({"stop": ["", "a"]}, "stop: expected texts that are not empty"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str, constrained: Generator) -> None:
    with pytest.raises(InputError, match=message):
        constrained.generate("x", **options)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt has no tokens"),
        ([600], "expected tokens below 600, found 600"),
        ([True], "expected tokens below 600, found True"),
        (None, "expected a text, tokens or messages of a chat, found None"),
        ({"role": "user", "content": "x"}, "expected a text, tokens or messages of a chat"),
        (list(range(64)), "the prompt has 64 tokens, and there is room for 64 with the answer"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompt: Any, message: str) -> None:
    generator = Generator(engine(), TOKENIZER)
    with pytest.raises(InputError, match=message):
        ask(generator, prompt)
    assert ask(generator, [9], max_tokens=1)[0].token == following([9], 1)[0]
    assert ask(generator, np.array([9]), max_tokens=1)[0].token == following([9], 1)[0]


def test_what_leaves_no_token_is_said() -> None:
    nothing = np.full_like(TABLE, -np.inf)
    with pytest.raises(InputError, match="no token may come next"):
        ask(Generator(engine(weights=nothing), TOKENIZER), [9])


def test_a_long_text_goes_through() -> None:
    generator = Generator(engine(context=4000), TOKENIZER)
    prompt = TOKENIZER.encode(TEXT)[:3000]
    assert [piece.token for piece in ask(generator, prompt, max_tokens=8, endless=True)] == following(prompt, 8)
