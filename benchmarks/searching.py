"""What a search for schedules gains: a model compiled by formula and as it was tuned, taking turns."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

import luminal
from benchmarks import tables
from benchmarks.goals import FASTER, Verdict, at_most_seconds, told
from benchmarks.results import Results
from benchmarks.suite import CASES, DECODER_LAYERS, Case
from luminal.core import config
from luminal.display import Display
from luminal.frontends.fx.export import export
from luminal.module import Module
from luminal.timing import interleaved, text
from luminal.tuning.search import QUICK

SLOWER = 1.02  # times the default's time that a tuned model may take
SECONDS = 60.0  # that ``search="quick"`` may take


@dataclass(frozen=True)
class Row:
    """What came of tuning a model for ``budget`` seconds, which took ``spent``: medians and minimums in seconds, by
    formula and tuned, and how many kernels are others than by formula."""

    model: str
    medians: tuple[float, float]
    best: tuple[float, float]
    changed: int
    kernels: int
    budget: float
    spent: float


def measure(case: Case, threads: int, budget: float, runs: int, records: Path, display: Display) -> Row:
    """Tune a model (unless ``budget`` is 0), which leaves ``records``, and time it with them and without."""
    torch.set_num_threads(threads)
    os.environ[config.RECORDS.variable] = str(records)
    model = case.build(DECODER_LAYERS)
    program = export(model.module, model.inputs, None)
    os.environ[config.NO_RECORDS.variable] = "1"
    default = _compiled(program, threads, display)
    os.environ[config.NO_RECORDS.variable] = "0"
    started = time.perf_counter()
    if budget:
        luminal.tune(program, budget=budget, threads=threads, progress=display.report)
    spent = time.perf_counter() - started
    tuned = _compiled(program, threads, display)
    arrays = [np.ascontiguousarray(value.numpy()) for value in model.inputs]
    contenders = {"default": partial(default.library.run, arrays), "tuned": partial(tuned.library.run, arrays)}
    times = interleaved(contenders, runs, watch=lambda done, total: display.report("time", done / total))
    before, after = ({k.nest for k in m.program.kernels} for m in (default, tuned) if m.program is not None)
    return Row(
        case.title,
        (times["default"].median, times["tuned"].median),
        (times["default"].best, times["tuned"].best),
        len(after - before),
        len(after),
        budget,
        spent,
    )


def _compiled(program: torch.export.ExportedProgram, threads: int, display: Display) -> Module:
    module = luminal.compile(program, threads=threads, progress=display.report)
    assert isinstance(module, Module)
    return module


# ---- output ----------------------------------------------------------------------------------------------------------

PREFIX = "search/"
HEADINGS = ("model", "kernels changed", "tuned / default", "of shortest runs", "default", "tuned", "budget", "search")
ABOUT = (
    f"`python -m benchmarks.tuning`: what `luminal tune` finds within its budget ({QUICK:.0f} s is that of "
    '`search="quick"`) with nothing measured before, and how long a model takes with it and by formula, taking turns; '
    "medians. Where no kernel changed, both are the same library, and what the ratio is away from 1 is noise."
)


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``."""
    return [
        (
            row.model,
            f"{row.changed} of {row.kernels}",
            f"{row.medians[1] / row.medians[0]:.3f}",
            f"{row.best[1] / row.best[0]:.3f}",
            *map(text, row.medians),
            text(row.budget),
            text(row.spent),
        )
        for row in rows
    ]


def part(case: Case, threads: int) -> str:
    """The name of a model's part."""
    return f"{PREFIX}{threads}/{case.name}"


def parts(found: Results) -> dict[int, list[Row]]:
    """What was measured, by threads."""
    rows = {name.partition("/")[::2]: Row(**row) for name, row in found.under(PREFIX).items()}
    measured: dict[int, list[Row]] = {}
    for threads, name in sorted(rows, key=lambda key: (int(key[0]), list(CASES).index(key[1]))):
        measured.setdefault(int(threads), []).append(rows[threads, name])
    return measured


def verdicts(found: Results) -> list[Verdict]:
    """Whether tuned models are no slower, of those that have other kernels for it, and were tuned in time; of all
    models that have goals."""
    rows = [row for row in parts(found).get(2, ()) if row.budget == QUICK]
    slower = '`search="quick"`: the most that a model takes after it, as a part of the default\'s time'
    longest = '`search="quick"`: the longest search'
    if not {CASES[name].title for name in FASTER["fp32"]} <= {row.model for row in rows}:
        goals = {slower: f"at most {SLOWER:.2f}", longest: f"at most {SECONDS:.0f} s"}
        return [Verdict(what, goal, "not measured", None) for what, goal in goals.items()]
    ratios = {row.model: row.medians[1] / row.medians[0] for row in rows if row.changed}
    most = max(ratios, key=lambda model: ratios[model], default="")
    ratio = ratios.get(most, 1.0)
    about = f" ({most})" if most else ", in no model was a kernel changed"
    spent = max(row.spent for row in rows)
    return [
        Verdict(
            slower,
            f"at most {SLOWER:.2f}",
            told(ratio, lambda value: value <= SLOWER) + about,
            ratio <= SLOWER,
        ),
        at_most_seconds(longest, SECONDS, spent),
    ]


def section(found: Results) -> list[str]:
    """The section of the page."""
    measured = parts(found)
    lines = ["## Schedules by measurement", "", ABOUT, ""] if measured else []
    for threads, rows in measured.items():
        lines += [f"### Search, {threads} thread{'s' if threads > 1 else ''}", ""]
        lines += [*tables.markdown(HEADINGS, cells(rows), left=1), ""]
    return lines
