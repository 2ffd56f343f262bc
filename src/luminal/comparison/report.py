"""The result of a comparison, and its text."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from luminal import notebook
from luminal.comparison import page
from luminal.comparison.losses import Mixed
from luminal.comparison.measure import Distance, finite
from luminal.comparison.oracle import Allowed
from luminal.core.origins import Origin

WIDE = 100  # columns of a screen that has room for the outputs' shapes


@dataclass(frozen=True)
class Row:
    """One output of one trial.

    ``distance`` is that of luminal from the reference, ``exact`` that of luminal from the float64 oracle, ``reference``
    that of the reference from the oracle; ``allowed`` is what rounding explains. ``problem`` says why the output
    disagrees; it is empty where it agrees. ``undecided`` says why these inputs tell a right output from no wrong one,
    where that is so.
    """

    output: str
    tensor: str
    distance: Distance
    exact: Distance
    reference: Distance
    allowed: Allowed
    problem: str = ""
    undecided: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


@dataclass(frozen=True)
class Trial:
    """One set of inputs: how they were made, the sizes of the symbolic dimensions, a row for every output."""

    inputs: str
    dims: Mapping[str, int]
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.dims.items())
        return f"{self.inputs} ({sizes})" if sizes else self.inputs


@dataclass(frozen=True)
class Change:
    """What changed the value: a ``rule``, a ``transform``, or the code of a ``kernel`` (``kind``), its text, and its
    place among those applied: the ``number``-th of ``count``. ``before`` and ``after`` are the value of an element."""

    kind: str
    name: str
    number: int = 0
    count: int = 0
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        where = f", number {self.number} of {self.count}" if self.number else ""
        return f"{self.kind} {self.name}{where}"

    @property
    def values(self) -> str:
        """The value before and after, in words; empty where it is not known."""
        return f"{self.before} becomes {self.after}" if self.before else self.after


@dataclass(frozen=True)
class Finding:
    """Where a mismatch comes from.

    ``origin`` is the first source operator whose value diverges (None where no operator does by itself), ``distance``
    how far, ``stage`` the first stage of the compiler that computes it wrongly, ``change`` the rule or transform that
    does so there, ``folder`` the reproducer, and ``command`` the line that runs it.
    """

    origin: Origin | None
    stage: str
    distance: Distance
    explanation: str
    folder: Path | None = None
    change: Change | None = None
    command: str = ""


@dataclass(frozen=True)
class Report:
    """The result of ``luminal.diff``; ``print`` shows a table. ``ok`` says whether every output of every trial
    agrees as far as the inputs decide; ``undecided`` what they do not. ``mixed`` says which operators lose most in the
    precision or the weights that were chosen, where that was asked for."""

    model: str
    reference: str
    target: str
    trials: tuple[Trial, ...]
    finding: Finding | None = None
    mixed: Mixed | None = None

    @property
    def ok(self) -> bool:
        return all(trial.ok for trial in self.trials)

    @property
    def undecided(self) -> dict[str, str]:
        """The outputs that no trial decides anything about, and why."""
        rows = [row for trial in self.trials for row in trial.rows]
        decided = {row.output for row in rows if not row.undecided}
        return {row.output: row.undecided for row in rows if row.output not in decided}

    @property
    def worst(self) -> float:
        """The largest error against the reference relative to the scale of an output."""
        return max((row.distance.relative for trial in self.trials for row in trial.rows), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """The report as values that JSON can hold: numbers that it cannot, such as infinities, are texts."""
        found = self.finding
        verdict = "differs" if not self.ok else "undecided" if self.undecided else "agrees"
        rows = [
            {"inputs": trial.inputs, "dims": dict(trial.dims), "output": row.output, "tensor": row.tensor,
             "problem": row.problem, "undecided": row.undecided, "allowed": finite(row.allowed.apart.most),
             **{name: _measures(getattr(row, name)) for name in ("distance", "exact", "reference")}}
            for trial in self.trials for row in trial.rows
        ]  # fmt: skip
        return {
            "mixed": None if self.mixed is None else self.mixed.as_json(),
            "model": self.model, "first": self.target, "second": self.reference, "verdict": verdict, "outputs": rows,
            "finding": None if found is None else {
                "operator": None if found.origin is None else str(found.origin), "stage": found.stage,
                "explanation": found.explanation, "distance": _measures(found.distance),
                "change": None if found.change is None else asdict(found.change),
                "folder": None if found.folder is None else str(found.folder), "command": found.command,
            },
        }  # fmt: skip

    def html(self) -> str:
        """The report as one page of HTML, which needs nothing else."""
        return page.page(self.as_json())

    def _repr_html_(self) -> str:
        """What notebooks show: the same as a terminal."""
        return notebook.html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lost: list[RenderableType] = [] if self.mixed is None else [self.mixed.table(), Text(self.mixed.advice)]
        yield Group(self._table(options.max_width >= WIDE), *self._problems(), *self._verdict(), *lost)

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=120, force_terminal=False)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()

    def _table(self, shapes: bool) -> Table:
        who = self.reference
        title = f"{self.model} for {self.target}: distance from {who}; that of luminal and of {who} from float64"
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
        table.add_column("output", overflow="fold")
        for heading in ("ULP", "absolute", "relative", "cosine", "float64", "theirs"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("")
        for trial in self.trials:
            table.add_row(Text(str(trial), "bold"))
            for row in trial.rows:
                table.add_row(
                    f"  {row.output} {row.tensor}" if shapes else f"  {row.output}",
                    _number(row.distance.ulp),
                    _number(row.distance.absolute),
                    _number(row.distance.relative),
                    f"{row.distance.cosine:.5f}",
                    _number(row.exact.relative),
                    _number(row.reference.relative),
                    Text("ok", "green") if row.ok else Text("no", "bold red"),
                )
        return table

    def _problems(self) -> list[Text]:
        return [
            Text(f"{row.output} on {trial}: {row.problem}", "red")
            for trial in self.trials
            for row in trial.rows
            if not row.ok
        ]

    def _verdict(self) -> list[Text]:
        if self.ok and self.undecided:
            advice = "pass inputs of your own, for which it varies"
            return [Text(f"undecided: {name}: {why}; {advice}", "yellow") for name, why in self.undecided.items()]
        if self.ok:
            allowed = max((row.allowed.apart.most for t in self.trials for row in t.rows), default=0.0)
            far = f"largest error {_number(self.worst)} of an output's scale, {_number(allowed)} allowed"
            return [Text(f"agrees: {far}", "green")]
        found = self.finding
        if found is None:
            return [Text("differs", "bold red")]
        lines = []
        if found.origin is not None:
            lines.append(Text(f"first diverging operator: {found.origin}", "bold"))
        lines.append(Text(f"introduced by: {found.stage} ({found.explanation})"))
        if found.change is not None:
            lines.append(Text(f"changed by: {found.change}", "bold"))
            lines += [Text(f"value: {found.change.values}")] if found.change.values else []
        if found.command:
            lines.append(Text(f"to see it again: {found.command}"))
        if found.folder is not None:
            lines.append(Text(f"reproducer: {found.folder}"))
        return lines


def _measures(found: Distance) -> dict[str, float | str]:
    return {name: finite(value) for name, value in asdict(found).items()}


def _number(value: float) -> str:
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    return f"{value:.0f}" if value == int(value) and value < 1e5 else f"{value:.1e}"
