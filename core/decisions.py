"""Choices among schedules, by formula or by what was measured.

Wherever the scheduler knows several ways to do the same, it lists them as values, the best by its own estimate first,
and asks. A question is known by what it is about (a contraction, a loop nest) and nothing else: no name of a model, of
a tensor or of a dimension. So an answer that was measured in one model holds in others, and one that is no longer among
the candidates is as good as none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

C = TypeVar("C")

LANGUAGE = 4  # of descriptions and candidates: a change of what they mean makes other questions


@dataclass(frozen=True)
class Asked:
    """A question that decided how a kernel is computed, and the candidate that was taken, as text."""

    question: str
    answer: str

    @property
    def kind(self) -> str:
        """What sort of choice it is."""
        return self.question.partition(" ")[0]

    def __str__(self) -> str:
        return f"{self.question}: {self.answer}"


class Decisions:
    """Answers by formula: always the first candidate."""

    def ask(self, kind: str, described: Callable[[], str], candidates: Sequence[C]) -> tuple[C, Asked | None]:
        """One of ``candidates``, which differ as texts, and the question with its answer where it is to be noted.

        ``kind`` and ``described`` together say everything that the times of the candidates depend on, but for the
        machine.
        """
        return candidates[0], None

    def refused(self, reason: str) -> None:
        """The last answer gave no legal schedule: the formula's was taken instead."""


FORMULA = Decisions()


class Recorded(Decisions):
    """The candidates that ``winners`` names, by question; where it names none, or one that there is not, the first."""

    def __init__(self, winners: Mapping[str, str]) -> None:
        self.winners = winners

    def ask(self, kind: str, described: Callable[[], str], candidates: Sequence[C]) -> tuple[C, Asked | None]:
        question = key(kind, described())
        answer = self.winners.get(question)
        found = next((candidate for candidate in candidates if str(candidate) == answer), None)
        return (candidates[0], None) if found is None else (found, Asked(question, str(found)))


class Trial(Decisions):
    """Candidate ``number`` of every question of some ``kinds``, for measuring it; the last where there are not as many.
    Other questions as ``winners`` says. The candidates that ``defaults`` names, by question, come before the others.

    ``candidates`` are those of each question of those kinds, and ``refusals`` why one of them gave no legal schedule.
    """

    def __init__(
        self,
        kinds: Collection[str],
        number: int,
        winners: Mapping[str, str],
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.kinds, self.number, self.winners, self.defaults = kinds, number, winners, defaults
        self.candidates: dict[str, tuple[str, ...]] = {}
        self.refusals: dict[str, str] = {}
        self._last = ""

    def ask(self, kind: str, described: Callable[[], str], candidates: Sequence[C]) -> tuple[C, Asked | None]:
        self._last = question = key(kind, described())
        candidates = sorted(candidates, key=lambda candidate: str(candidate) != self.defaults.get(question))
        texts = [str(candidate) for candidate in candidates]
        answer = self.winners.get(question)
        number = texts.index(answer) if answer in texts else 0
        if kind in self.kinds:
            self.candidates[question] = tuple(texts)
            number = min(self.number, len(texts) - 1)
        return candidates[number], Asked(question, texts[number])

    def refused(self, reason: str) -> None:
        self.refusals[self._last] = reason


def key(kind: str, described: str) -> str:
    """The name of a question, the same in every process."""
    return f"{kind} {hashlib.sha256(f'{LANGUAGE} {kind} {described}'.encode()).hexdigest()[:24]}"
