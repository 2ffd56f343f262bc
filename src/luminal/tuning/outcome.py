"""What a search found: the questions that it measured, and the whole of it as a user reads it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from luminal.timing import ratio, text
from luminal.tuning.records import Measured, least_gain, winner

NO_FASTER = "the model as a whole is no faster with what was chosen"
UNCONFIRMED = "the model as a whole was not found to be faster with it yet"
BEHIND = "its machine code lets expect less than that of those that were measured"


@dataclass(frozen=True)
class Answer:
    """A question that was measured: the source operators that it is about, the candidates, and the one that was
    chosen."""

    question: str
    origins: tuple[str, ...]
    measured: tuple[Measured, ...]

    @property
    def chosen(self) -> Measured:
        """The row of what is taken from now on."""
        found = winner(self.measured)
        return next(m for m in self.measured if m.candidate == found or (found is None and m.place == 0))

    @property
    def lead(self) -> float:
        """The seconds of a run of the model that what was chosen promises to save."""
        return self.measured[0].best - self.chosen.best

    @property
    def fastest(self) -> Measured:
        """The row with the shortest run, among those without a fault; the default's, where all have one."""
        right = [m for m in self.measured if not m.fault and m.runs]
        return min(right, key=lambda m: (m.best, m.place), default=self.measured[0])

    @property
    def rejected(self) -> list[Measured]:
        """The rows of candidates that are wrong, or that no compiler or run came to an end with."""
        return [m for m in self.measured if m.fault not in ("", NO_FASTER, UNCONFIRMED, BEHIND)]


@dataclass(frozen=True)
class Outcome:
    """What a search measured, in the order in which it did; ``known`` questions had been measured before, and of those
    that it came to, ``left`` ones were not measured, for want of time; ``more`` says that it did not come to all.
    ``seconds`` are those of a run of the model by default and with all that was chosen, where that made a
    difference.

    Of the answers, ``new`` ones were measured by this search, and the others before, but confirmed by this one. For
    ``changed`` questions, old ones too, another candidate than the default is taken. ``how`` is what is to be known of
    the times, where nothing was measured. Kernels of the model ``name`` were
    measured at ``sizes`` of its symbolic dimensions, and the model was run at ``run_sizes``. The records are in
    ``path``. ``print`` shows all of it."""

    answers: tuple[Answer, ...]
    known: int
    left: int
    more: bool
    seconds: tuple[float, float] | None
    new: int
    changed: int
    name: str
    sizes: Mapping[str, int]
    run_sizes: Mapping[str, int]
    path: Path
    how: str = ""

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120, force_terminal=False)
        with console.capture() as captured:
            if self.answers:
                console.print(table(self))
        return captured.get() + "\n".join(lines(self))


def table(outcome: Outcome) -> Table:
    """The questions, with the default and the fastest candidate of each and which of them is taken."""
    found = Table(title=f"{outcome.name}{_at(outcome.sizes)}", title_justify="left")
    for heading in ("made for", "default", "time", "fastest", "time", "taken", "question"):
        found.add_column(heading, justify="right" if heading == "time" else "left", overflow="fold")
    for answer in outcome.answers:
        default, fastest = answer.measured[0], answer.fastest
        origins = ", ".join(dict.fromkeys(origin.partition(" ")[0] for origin in answer.origins))
        found.add_row(
            escape(origins), default.candidate, text(default.best), fastest.candidate, text(fastest.best),
            _taken(answer), answer.question,
        )  # fmt: skip
    return found


def lines(outcome: Outcome) -> list[str]:
    """What there is to say besides the table."""
    found = [
        f"{answer.question}: {measured.candidate} is rejected: {measured.fault}"
        for answer in outcome.answers
        for measured in answer.rejected
    ]
    if outcome.seconds is not None:
        without, chosen = outcome.seconds
        kept = sum(answer.chosen.place > 0 for answer in outcome.answers)
        run = f"a run{_at(outcome.run_sizes)}"
        found.append(f"{text(without)} {run} by default, {text(chosen)} with all that was chosen, of which {kept} stay")
    counts = f"{_count(outcome.new)} measured now, {outcome.known} before"
    if outcome.more:
        left = f", {outcome.left} left" if outcome.left else ""
        counts += f"{left}; the budget ended before all questions were known"
    else:
        counts += f", {outcome.left or 'none'} left"
    found.append(f"{outcome.name}{_at(outcome.sizes)}: {counts}")
    total = outcome.new + outcome.known
    taken = f"another candidate than the default is taken for {outcome.changed} of {total}; " if total else ""
    found.append(f"{taken}records in {outcome.path}")
    found += [outcome.how] if outcome.how else []
    return found


def _taken(answer: Answer) -> str:
    """How many times as fast as the default is what is taken; why the fastest is not, where it is another."""
    default, found = answer.measured[0], answer.fastest
    if answer.chosen is not default:
        return ratio(default.best / answer.chosen.best)
    if found is default or default.fault:
        return "the default"
    return f"the default: {1 - found.best / default.best:.0%} faster, not {least_gain(default, found):.0%}"


def _at(sizes: Mapping[str, int]) -> str:
    return f" at {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""


def _count(questions: int) -> str:
    return f"{questions} {'question' if questions == 1 else 'questions'}"
