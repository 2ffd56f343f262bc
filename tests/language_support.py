"""A tokenizer, a model and a folder for the tests of language models' text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from luminal.core.errors import InputError
from luminal.llm.generate import Generator, Options, Piece
from luminal.llm.sampling import Drawing, Sampler
from luminal.llm.tokens import Tokenizer as Text

Array = np.ndarray[Any, Any]
TEXT = (Path(__file__).resolve().parents[1] / "README.md").read_text()
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = """{{ bos_token }}{% for message in messages %}
{% if message.role == 'system' %}{{ raise_exception('no system messages here') }}{% endif %}
<|{{ message.role }}|>{{ message.content | trim }}<|end|>
{% endfor %}
{% if tools %}{{ tools | tojson }}{% endif %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""


@cache
def bytes_tokenizer() -> Tokenizer:
    """A byte-level BPE of 600 tokens, trained on the README."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    return made


def by_number(tokenizer: Tokenizer) -> list[str]:
    numbers = tokenizer.get_vocab(with_added_tokens=True)
    return sorted(numbers, key=lambda text: numbers[text])


def write_folder(folder: Path, **config: Any) -> Path:
    """A folder with the files of a tokenizer, as transformers writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    bytes_tokenizer().save(str(folder / "tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": {"content": "</s>", "__type": "AddedToken"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps({**roles, **config}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 4]}))
    return folder


@cache
def drawing(slots: int, vocabulary: int) -> Drawing:
    return Drawing(slots, vocabulary)


class Bigrams:
    """A language model that is a table: the logits of the next token, by the last one and its position's parity. A real
    engine in all that generation sees of one; ``steps`` counts what it was asked for."""

    def __init__(self, table: Array, slots: int = 2, context: int = 64, speculate: int = 0) -> None:
        self.table = table.astype(np.float32)  # [2, vocabulary, vocabulary]
        self.vocabulary, self.context, self.slots = table.shape[2], context, slots
        self.speculate = speculate
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.steps: list[tuple[str, int]] = []
        self._left = np.zeros((slots, self.vocabulary), np.float32)
        self._draws()  # compiled now, not in the first step

    def _draws(self) -> Drawing:
        return drawing(self.slots, self.vocabulary)

    def length(self, slot: int) -> int:
        return len(self.held[slot])

    def prefill(self, slot: int, tokens: Sequence[int]) -> None:
        self.steps.append(("prefill", len(tokens)))
        self._append(slot, tokens)

    def decode(self, tokens: Mapping[int, int]) -> None:
        self.steps.append(("decode", len(tokens)))
        for slot, token in tokens.items():
            self._append(slot, [token])

    def _append(self, slot: int, tokens: Sequence[int]) -> None:
        if not tokens or self.length(slot) + len(tokens) > self.context:
            raise InputError(f"{len(tokens)} tokens do not fit after {self.length(slot)} of {self.context}")
        self.held[slot] += tokens
        self._left[slot] = self.table[len(self.held[slot]) % 2, tokens[-1]]

    def logits(self, slot: int) -> Array:
        return self._left[slot].copy()

    def sample(self, settings: Mapping[int, Sampler]) -> dict[int, int]:
        return self._draws()(self._left, settings)

    def verify(self, slot: int, tokens: Sequence[int], samplers: Sequence[Sampler]) -> tuple[list[int], Array]:
        assert len(tokens) == len(samplers) <= self.speculate + 1
        self.steps.append(("verify", len(tokens)))
        found, rows = [], []
        for token, sampler in zip(tokens, samplers, strict=True):
            self._append(slot, [token])
            rows.append(self.logits(slot))
            found.append(self.sample({slot: sampler})[slot])
        return found, np.array(rows)

    def rewind(self, slot: int, length: int) -> None:
        assert 0 <= length <= self.length(slot)
        self.held[slot] = self.held[slot][:length]

    def keeps(self, slot: int, length: int) -> bool:
        return 0 <= length <= self.length(slot)

    def use_adapter(self, slot: int, number: int | None, strength: float = 1.0) -> None:
        assert not self.held[slot] and number is None

    def fork(self, source: int, target: int) -> None:
        self.held[target] = list(self.held[source])
        self._left[target] = self._left[source]


def table(seed: int = 0, vocabulary: int = 600, sharpness: float = 3.0) -> Array:
    return np.random.default_rng(seed).normal(size=(2, vocabulary, vocabulary)) * sharpness


TABLE = table()
TOKENIZER = Text(bytes_tokenizer(), stops=[1])


def engine(slots: int = 2, context: int = 64, weights: Array = TABLE, speculate: int = 0) -> Bigrams:
    return Bigrams(weights, slots, context, speculate)


def following(prompt: Sequence[int], count: int, weights: Array = TABLE) -> list[int]:
    """The likeliest tokens after a prompt, by hand."""
    made = list(prompt)
    for _ in range(count):
        made.append(int(weights[len(made) % 2, made[-1]].argmax()))
    return made[len(prompt) :]


def ending(at: int, prompt: Sequence[int], weights: Array = TABLE) -> Array:
    """A table in which the token that ends answers comes after so many others."""
    changed = weights.copy()
    made = [*prompt, *following(prompt, at, weights)]
    changed[len(made) % 2, made[-1], 1] = 1e3
    return changed


def ask(generator: Generator, prompt: Sequence[int], **options: Any) -> list[Piece]:
    return list(generator.stream(prompt, Options(**options)))
