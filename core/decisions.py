"""Choices that may be measured: questions, their candidates, and how a question is answered.

Wherever the compiler knows several ways to do the same, it lists them as values, each with its estimate, and asks. The
least estimate is taken, unless a record of measurements names another candidate. A question is identified by its
subject alone (a contraction, a loop nest), without names of models, tensors or dimensions. So an answer that was
measured in one model holds in others. An answer that is no longer among the candidates is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

C = TypeVar("C")

LANGUAGE = 4  # version of descriptions and candidates: to be raised when their meaning changes

# What a candidate decides: the form of a region of the graph, how the operands of a contraction are packed, or how a
# loop nest is scheduled. A chooser of something else brings another word for it, and its place in KINDS.
Kind = Literal["form", "layout", "schedule"]
# In the order in which a search settles them: questions of a later kind are about what those of an earlier one give.
KINDS: tuple[Kind, ...] = ("form", "layout", "schedule")


@dataclass(frozen=True)
class Candidate(Generic[C]):
    """One way to do something: ``content`` is a frozen value from which the compiler makes it again, and its text is
    the candidate's, in records too. ``estimate`` is in cycles, or in bytes that are moved, by one formula for all
    candidates of a question; where all have none, their order is the estimate."""

    kind: Kind
    content: C
    estimate: float = 0.0

    def __str__(self) -> str:
        return str(self.content)


@dataclass(frozen=True)
class Question(Generic[C]):
    """``topic`` is what is to be chosen (such as ``tile``), ``structure`` a hash of all that the times of the
    ``candidates`` depend on, but for the machine. No two candidates have the same text; the first is the default."""

    topic: str
    structure: str
    candidates: tuple[Candidate[C], ...]

    @property
    def name(self) -> str:
        """Its name in records, the same in every process."""
        return f"{self.topic} {self.structure}"

    @property
    def kind(self) -> Kind:
        """What its candidates decide."""
        return self.candidates[0].kind

    def find(self, text: str | None) -> Candidate[C] | None:
        """The candidate with that text, if there is one."""
        return next((candidate for candidate in self.candidates if str(candidate) == text), None)

    def led_by(self, text: str | None) -> Question[C]:
        """The same question, with the candidate of that text as its default, if there is one."""
        return replace(self, candidates=tuple(sorted(self.candidates, key=lambda candidate: str(candidate) != text)))


@dataclass(frozen=True)
class Asked:
    """A question that decided how a kernel is computed, and the candidate that was taken."""

    question: Question[Any]
    taken: Candidate[Any]

    def __str__(self) -> str:
        return f"{self.question.name}: {self.taken}"


class Decisions:
    """The first candidate of each question, unless ``answers`` has the text of another under the question's name."""

    def __init__(self, answers: Mapping[str, str] = MappingProxyType({})) -> None:
        self.answers = answers

    def ask(
        self, topic: str, described: Callable[[], str], candidates: Iterable[Candidate[C]]
    ) -> tuple[C, Asked | None]:
        """The content of one of ``candidates``, and the question with its answer where it is to be noted.

        ``topic`` and ``described`` together say everything that the times of the candidates depend on, but for the
        machine. Of candidates with the same text, the first counts.
        """
        ranked = sorted(candidates, key=lambda candidate: candidate.estimate)
        if self is FORMULA:
            return ranked[0].content, None
        distinct: dict[str, Candidate[C]] = {}
        for candidate in ranked:
            distinct.setdefault(str(candidate), candidate)
        asked = self.answer(Question(topic, structure(topic, described()), tuple(distinct.values())))
        return (ranked[0].content, None) if asked is None else (asked.taken.content, asked)

    def answer(self, question: Question[C]) -> Asked | None:
        """The candidate that ``answers`` names, None if there is none: then the least estimate is taken."""
        taken = question.find(self.answers.get(question.name))
        return None if taken is None else Asked(question, taken)

    def refused(self, reason: str) -> None:
        """Called when the last answer gave no legal schedule, so that the formula's was taken instead."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Another process has a formula of its own, which is the only one there."""
        return "FORMULA" if self is FORMULA else (type(self), (dict(self.answers),))


FORMULA = Decisions()  # always the least estimate


class Trial(Decisions):
    """Candidate ``number`` of every question of some ``kinds``, for measuring it; the last where there are not as many.
    Other questions as ``answers`` says. The candidates that ``defaults`` names, by question, come before the others.

    ``questions`` has the questions of these kinds by name, ``refusals`` the reasons why a candidate was not legal.
    """

    def __init__(
        self,
        kinds: Collection[Kind],
        number: int,
        answers: Mapping[str, str],
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(answers)
        self.kinds, self.number, self.defaults = kinds, number, defaults
        self.questions: dict[str, Question[Any]] = {}
        self.refusals: dict[str, str] = {}
        self._last = ""

    def answer(self, question: Question[C]) -> Asked:
        question = question.led_by(self.defaults.get(question.name))
        self._last = question.name
        if question.kind not in self.kinds:
            return super().answer(question) or Asked(question, question.candidates[0])
        self.questions[question.name] = question
        return Asked(question, question.candidates[: self.number + 1][-1])

    def refused(self, reason: str) -> None:
        self.refusals[self._last] = reason


def structure(topic: str, described: str) -> str:
    """The hash of a question's topic and description, the same in every process."""
    return hashlib.sha256(f"{LANGUAGE} {topic} {described}".encode()).hexdigest()[:24]
