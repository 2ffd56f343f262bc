"""The page of what was measured on GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.parts import EAGER, FLASH, FUSED, OURS, TUNED
from benchmarks.suite import CASES
from benchmarks.tables import markdown
from luminal.timing import text as time_text

Kept = Mapping[str, Mapping[str, Any]]
Row = Mapping[str, Any]

# How far from float64 a contender may be, relative to the largest magnitude, before a time says nothing.
LIMITS = {"bf16": 0.1, "fp32": 1e-3}

ABOUT = (
    "`python -m benchmarks.gpu --write docs/gpu.md`. A time is the median of runs that take turns, each with cold "
    "caches, between two events on the GPU; float32 is computed as float32. "
    f"`{EAGER}` is PyTorch, whose products are cuBLAS's, `{TUNED}` is `torch.compile` in that mode, "
    f"`{FUSED}` its own `scaled_dot_product_attention`, `{FLASH}` the package of that name. "
    "Errors are the largest distance from float64, relative to the largest magnitude. Weights are drawn. "
    "The goals: products at 95 % of cuBLAS, what memory bounds at 90 % of a copy, "
    f"models 1.2 times as fast as `{TUNED}`."
)


def text(kept: Kept) -> str:
    """The page for ``docs/``."""
    lines = ["# On a GPU", "", ABOUT]
    for card in dict.fromkeys(part["card"] for part in kept.values()):
        of_card = {name: part for name, part in kept.items() if part["card"] == card}
        days = sorted(part["day"] for part in of_card.values())
        lines += ["", f"## {card}", "", f"{' to '.join(dict.fromkeys((days[0], days[-1])))}."]
        for section in (_memory, _rates, _models, _checks, _sanitized, _tuned):
            lines += section(of_card)
        lines += _missing(of_card)
    return "\n".join(lines) + "\n"


def wrong(kept: Kept) -> list[str]:
    """What must not be: results that are no results, and faults."""
    found = []
    for name, part in kept.items():
        for row in part["rows"]:
            errors = row.get("errors", {})
            found += [
                f"{name}: {row['what']}: luminal's error is {error:.1e}"
                for key, error in errors.items()
                if (key == OURS or name.startswith("tune/")) and not error <= LIMITS[row["precision"]]
            ]
            found += [f"{name}: {key}: {why}" for key, why in row.get("failed", {}).items() if key == OURS]
            if row.get("wrong"):
                found.append(f"{name}: {row['precision']}: {', '.join(row['wrong'])} differ from the interpreter")
            if row.get("faults") or row.get("status"):
                found.append(f"{name}: {row['faults']} faults, exit code {row['status']}")
    return found


def _rows(kept: Kept, *prefixes: str) -> list[Row]:
    return [row for name, part in kept.items() if name.startswith(prefixes) for row in part["rows"]]


def _ratio(row: Row, of: str, by: str = OURS) -> str:
    """How many times as fast ``by`` is as ``of``."""
    times = row["times"]
    return f"{times[of] / times[by]:.2f}" if of in times and by in times else ""


def _time(row: Row, name: str) -> str:
    return time_text(row["times"][name]) if name in row["times"] else ""


def _error(row: Row, name: str) -> str:
    return f"{row['errors'][name]:.1e}" if name in row["errors"] else ""


def _section(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return ["", f"### {title}", "", *markdown(headings, cells)] if cells else []


def _memory(kept: Kept) -> list[str]:
    def rate(row: Row, name: str) -> str:
        return f"{row['bytes'] / row['times'][name] / 1e9:.0f}" if name in row["times"] else ""

    cells = [
        (row["what"], row["precision"], rate(row, OURS), rate(row, "copy"), rate(row, EAGER), rate(row, TUNED),
         _ratio(row, "copy"), _error(row, OURS))
        for row in _rows(kept, "copy")
    ]  # fmt: skip
    headings = ("function", "", "luminal GB/s", "copy GB/s", f"{EAGER} GB/s", f"{TUNED} GB/s", "of copy", "error")
    return _section("Bound by memory", headings, cells)


def _rates(kept: Kept) -> list[str]:
    def rate(row: Row, name: str) -> str:
        return f"{row['operations'] / row['times'][name] / 1e12:.3g}" if name in row["times"] else ""

    names = (OURS, EAGER, TUNED, FUSED, FLASH)
    cells = [
        (row["what"], row["precision"], *(rate(row, name) for name in names),
         *(_ratio(row, name) for name in names[1:]), _error(row, OURS))
        for row in _rows(kept, "products", "attention")
    ]  # fmt: skip
    rates, ratios = ([f"{sign}{name}" for name in names[first:]] for sign, first in (("", 0), ("/ ", 1)))
    return _section("Products and attention, TFLOP/s", ("", "", *rates, *ratios, "error"), cells)


def _models(kept: Kept) -> list[str]:
    rows = _rows(kept, "model", "decode", "train")
    cells = [
        (CASES[row["what"]].title if row["what"] in CASES else row["what"], row["precision"],
         *(_time(row, name) for name in (OURS, EAGER, TUNED)), _ratio(row, EAGER), _ratio(row, TUNED),
         _error(row, OURS), _error(row, EAGER))
        for row in rows
    ]  # fmt: skip
    headings = ("", "", "luminal", EAGER, TUNED, f"/ {EAGER}", f"/ {TUNED}", "error", f"{EAGER}'s error")
    lines = _section("Models, a step of decoding, a training step", headings, cells)
    ratios = [r["times"][TUNED] / r["times"][OURS] for r in rows if TUNED in r["times"] and OURS in r["times"]]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"Geometric mean over {len(ratios)}: {mean:.2f} times as fast as {TUNED}."]
    return lines


def _checks(kept: Kept) -> list[str]:
    cells = [
        (row["what"], row["precision"], f"{row['error']:.1e}", ", ".join(row["wrong"]) or "right")
        for row in _rows(kept, "check")
    ]
    return _section("Tiny models against the interpreter", ("model", "", "error", "verdict"), cells)


def _sanitized(kept: Kept) -> list[str]:
    cells = [(row["what"], row.get("missing") or f"{row['faults']} faults") for row in _rows(kept, "sanitizer")]
    return _section("compute-sanitizer", ("tool", "MiniLM"), cells)


def _tuned(kept: Kept) -> list[str]:
    cells = []
    for row in _rows(kept, "tune"):
        times = row["times"]
        if not times:
            continue
        best = min(times, key=times.__getitem__)
        cells.append((row["what"], best, _time(row, "default"), _time(row, best), _ratio(row, "default", best)))
    return _section("Schedules, measured", ("", "fastest", "default", "fastest", "gain"), cells)


def _missing(kept: Kept) -> list[str]:
    """What failed or was stopped."""
    lines = []
    for name, part in kept.items():
        lines += [f"- {name}: {word} {part[word]}" for word in ("failed", "stopped") if word in part]
        for row in part["rows"]:
            lines += [f"- {name}: {row['what']}: {key} fails: {why}" for key, why in row.get("failed", {}).items()]
    return ["", "### What is missing", "", *lines] if lines else []
