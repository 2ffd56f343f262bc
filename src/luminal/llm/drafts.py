"""Drafts of what a text goes on with, which a model verifies several at a time (speculative decoding).

A draft is right where it is the token that the model chooses there. The choice is made from the model's own logits, by
the same settings and random numbers as without drafts, so an answer is what it is without them, whatever the drafts
are. For drafts that are certain, as all here are, that is the rule of Leviathan et al. (2023): a draft is accepted with
the probability that the model gives it, and else a token comes with the probability that it has among the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from luminal.core.errors import InputError
from luminal.llm.engine import Engine
from luminal.llm.sampling import Sampler

LOOKUP = "lookup"  # drafts from the text so far
_LENGTHS = (4, 3, 2)  # tokens that a passage of the text has in common with its end, the most first


@dataclass
class Counts:
    """How many drafts were ``proposed`` for an answer, and how many of them ``accepted``, in so many ``steps``."""

    proposed: int = 0
    accepted: int = 0
    steps: int = 0


class Drafter(Protocol):
    """Drafts for one answer."""

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with ``tokens``."""
        ...

    def draft(self, count: int, sampler: Sampler) -> list[int]:
        """Up to ``count`` tokens that may come next; ``sampler`` is the one by which they will be chosen."""
        ...

    def close(self) -> None:
        """No more drafts are needed."""
        ...


class Lookup:
    """What followed the last tokens of the text where they were before, the latest time, as far as it goes; and over
    again from there, so a text that repeats itself goes on."""

    def __init__(self) -> None:
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # by the tokens of a passage, where the text goes on behind it

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for length in _LENGTHS:
                if len(self._text) >= length:
                    self._after[tuple(self._text[-length:])] = len(self._text)
            self._text.append(token)

    def draft(self, count: int, sampler: Sampler) -> list[int]:
        for length in _LENGTHS:
            at = self._after.get(tuple(self._text[-length:]))
            if at is not None:
                period = len(self._text) - at
                return [self._text[at + k % period] for k in range(count)]
        return []

    def close(self) -> None:
        pass


class Model:
    """What another model would choose, by the same settings and random numbers; in a slot of it, which nobody else may
    use until it is closed."""

    def __init__(self, engine: Engine, slot: int) -> None:
        self.engine, self.slot = engine, slot
        self._text: list[int] = []
        self._inside: list[int] = []  # the tokens in the slot
        self._same = 0  # so many of these are the text's
        self._begin()

    def extend(self, tokens: Sequence[int]) -> None:
        self._text += tokens

    def draft(self, count: int, sampler: Sampler) -> list[int]:
        count = min(count, self.engine.context - len(self._text) + 1)  # the last draft does not go in
        if count < 1:
            return []
        self._catch_up()
        found: list[int] = []
        while True:
            token = self.engine.sample({self.slot: sampler})[self.slot]
            if token < 0:  # its logits leave none
                return found
            found.append(token)
            if len(found) == count:
                return found
            self._append([token])
            sampler = sampler.after(token)

    def close(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.engine.rewind(self.slot, 0)
        self.engine.use_adapter(self.slot, None)
        self._inside.clear()
        self._same = 0

    def _catch_up(self) -> None:
        """Let the slot hold the text, and the logits after it."""
        if self.engine.length(self.slot) != len(self._inside):
            raise InputError(f"draft: slot {self.slot} of the model that drafts was used by others meanwhile")
        known = min(len(self._inside), len(self._text) - 1)  # the last token leaves the logits
        while self._same < known and self._inside[self._same] == self._text[self._same]:
            self._same += 1
        self._same = min(self._same, known)
        if self._same < len(self._inside):
            if not self.engine.keeps(self.slot, self._same):
                self._same = 0
            self.engine.rewind(self.slot, self._same)
            del self._inside[self._same :]
        self._append(self._text[self._same :])

    def _append(self, tokens: Sequence[int]) -> None:
        if len(tokens) == 1:
            self.engine.decode({self.slot: tokens[0]})
        else:
            self.engine.prefill(self.slot, tokens)
        self._inside += tokens


def check(draft: Engine | str, engine: Engine) -> None:
    """Raises InputError unless ``engine`` can verify what ``draft`` says: ``lookup``, or another model."""
    if not engine.speculate:
        raise InputError("draft: the model verifies no drafts: compile it with speculate=, the most of them in a step")
    if draft == LOOKUP:
        return
    if isinstance(draft, str) or not hasattr(draft, "sample"):
        raise InputError(f"draft: expected {LOOKUP!r} or another language model, found {draft!r}")
    if draft is engine:
        raise InputError("draft: expected another language model, found the one that verifies")
    if draft.vocabulary != engine.vocabulary:
        raise InputError(
            f"draft: expected a language model of the same {engine.vocabulary} tokens, found one of {draft.vocabulary}"
        )


def drafter(draft: Engine | str, others: Sequence[Drafter | None]) -> Drafter:
    """Drafts for a new answer, beside those ``others`` that are made. Raises InputError where the model that drafts has
    no slot left."""
    if isinstance(draft, str):
        return Lookup()
    used = {other.slot for other in others if isinstance(other, Model) and other.engine is draft}
    slot = next((slot for slot in range(draft.slots) if slot not in used), None)
    if slot is None:
        raise InputError(f"draft: the model that drafts has {draft.slots} slots, and all of them are used")
    return Model(draft, slot)
