"""What a search found, as a user reads it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from luminal.timing import ratio, text
from luminal.tuning.records import least_gain

if TYPE_CHECKING:
    from luminal.tuning.search import Answer, Outcome


def shown(outcome: Outcome) -> str:
    """The whole of it, as text."""
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    with console.capture() as captured:
        if outcome.answers:
            console.print(table(outcome))
    return captured.get() + "\n".join(lines(outcome))


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
    taken = f"another schedule than the default is taken for {outcome.changed} of {total}; " if total else ""
    found.append(f"{taken}records in {outcome.path}")
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
