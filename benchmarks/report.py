"""The tables, the charts and the page that come of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import attention, decoding, filtering, products, searching, tables
from benchmarks.chart import Bars
from benchmarks.chart import draw as draw_chart
from benchmarks.errors import worst
from benchmarks.goals import AGAINST, FASTER, MEAN, Result, Verdict, faster, mean, verdicts, wanted
from benchmarks.measure import Compiled, Sample
from benchmarks.peers import PEERS
from benchmarks.results import Results
from benchmarks.suite import CASES, FRONT_ENDS, LASTING, PRECISIONS, Case, Setting
from benchmarks.suite import luminal as contender
from luminal import profile
from luminal.peak import Peak
from luminal.timing import text

MODELS, ATTENTION = "models/", "attention/"


# ---- parts of the results --------------------------------------------------------------------------------------------


def part(case: str, setting: Setting) -> str:
    """The name of a model's part in a setting."""
    return f"{MODELS}{setting.precision}/{setting.batch}/{setting.threads}/{case}"


def results(found: Results) -> list[Result]:
    """The models that were measured: by precision, the main setting first, each in the order of the suite."""
    read = []
    for name, value in found.under(MODELS).items():
        precision, batch, threads, case = name.split("/")
        setting = Setting(precision, int(batch), int(threads))
        if case in CASES and value["samples"]:
            read.append(Result(CASES[case], setting, value["layers"], tuple(map(sample, value["samples"]))))
    order = list(CASES)
    return sorted(read, key=lambda r: (*_rank(r.setting), order.index(r.case.name)))


def _rank(setting: Setting) -> tuple[bool, int, int, int]:
    return not setting.main, list(PRECISIONS).index(setting.precision), setting.batch, -setting.threads


def kept(found: Results, case: Case, setting: Setting, layers: int) -> list[dict[str, Any]]:
    """The samples of a model that this machine has measured, as JSON."""
    value = found.get(part(case.name, setting), here=True)
    return [] if value is None or (case.decoder and value["layers"] != layers) else list(value["samples"])


def expected(found: Results, case: Case, setting: Setting) -> float | None:
    """The seconds that a process of a model took when it was last measured; None where it never was."""
    value = found.get(part(case.name, setting))
    return None if value is None else fmean(sample["seconds"] for sample in value["samples"])


def heads(found: Results, threads: int) -> list[attention.Result]:
    """Long attention, as it was measured."""
    return [attention.Result(**row) for row in found.get(f"{ATTENTION}{threads}") or ()]


def sample(found: Mapping[str, Any]) -> Sample:
    """A sample from its JSON."""
    compiled = {key: Compiled(**value) for key, value in found["compiled"].items()}
    kernels = tuple(profile.KernelTime(**{**k, "origins": tuple(k["origins"])}) for k in found["kernels"])
    own = {field.name for field in fields(Sample)}
    values = {**found, "compiled": compiled, "kernels": kernels, "peak": Peak(**found["peak"])}
    return Sample(**{name: value for name, value in values.items() if name in own})


# ---- tables ----------------------------------------------------------------------------------------------------------


def headings(setting: Setting) -> tuple[str, ...]:
    """Those of the table of a setting; times are in milliseconds."""
    ours = ("luminal from", "ahead of the best", "symbolic / fixed") if setting.main else ("ahead of the best",)
    costs = ("compile", "memory", "library") if setting.main else ()
    return ("model", *ours, "luminal", *_peers(setting), "of ceiling", *costs)


def rows(found: Sequence[Result]) -> list[tuple[str, ...]]:
    """The cells under ``headings``, of models in one setting: in a main one a row for each front end."""
    made = []
    for result in found:
        for front_end in result.setting.front_ends:
            fixed = contender(front_end)
            advantage = result.advantage(contender=fixed)
            ahead = "" if advantage is None else f"{advantage:.2f}x {result.best_peer}"
            columns = headings(result.setting)
            share, of = result.ceiling(fixed)
            cells = {
                "model": result.title,
                "luminal from": front_end,
                "ahead of the best": ahead,
                "luminal": _milliseconds(result, fixed),
                **{peer: _milliseconds(result, peer) if peer in result.peers else "" for peer in PEERS},
                "of ceiling": f"{share:.0%} {of}",
            }
            if result.setting.main:
                first = result.samples[0]  # its process started with an empty cache
                cells |= {
                    "symbolic / fixed": f"{result.ratio(contender(front_end, 'symbolic'), fixed):.2f}",
                    "compile": text(first.compiled[fixed].seconds),
                    "memory": f"{first.compiled[fixed].memory / 2**30:.2f} GiB",
                    "library": f"{first.library / 2**20:.2f} MiB" if fixed == result.setting.headline else "",
                }
            made.append(tuple(cells[column] for column in columns))
    return made


def _milliseconds(result: Result, contender: str) -> str:
    """The median, and the minimum."""
    return " ".join((_number(1e3 * result.seconds(contender)), f"({_number(1e3 * result.best(contender))})"))


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def error_rows(found: Sequence[Result]) -> list[tuple[str, ...]]:
    """A model and the largest error of each contender, with luminal first; under ``error_headings``."""
    return [
        (
            r.title,
            *(f"{worst(s.errors[key] for s in r.samples):.1e}" if key in (keys[0], *r.peers) else "" for key in keys),
        )
        for r in found
        for keys in [[r.setting.headline, *_peers(r.setting)]]
    ]


def error_headings(setting: Setting) -> tuple[str, ...]:
    return ("model", "luminal", *_peers(setting))


def _peers(setting: Setting) -> list[str]:
    return [peer for peer, about in PEERS.items() if setting.precision in about.precisions]


def summary(found: Sequence[Result]) -> str:
    """The geometric means over the models of how many times faster luminal is than each peer, and than the best."""
    means, setting = [], found[0].setting
    for peer in _peers(setting):
        ratios = [result.ratio(peer, setting.headline) for result in found if peer in result.peers]
        means += [f"{mean(ratios):.2f}x {peer}"] if ratios else []
    best = [ratio for result in found if (ratio := result.advantage()) is not None]
    means += [f"{mean(best):.2f}x the best of them for each model"] if best else []
    counts = sorted({len(result.samples) for result in found})
    processes = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    noise = mean(result.seconds(setting.headline) / result.best(setting.headline) for result in found)
    return (
        f"Speed in the geometric mean of these models, from {setting.front_ends[0]}: {', '.join(means)}. luminal's "
        f"median run took {noise:.2f} times its shortest: the more, the more else ran on the machine. Processes of "
        f"each model: {processes}."
    )


GOAL_HEADINGS = (
    "the best peer's time / luminal's", "float32", "found", "reached", "bfloat16, OpenVINO's time", "found", "reached",
)  # fmt: skip


def goal_rows(found: Sequence[Result]) -> list[tuple[str, ...]]:
    """How far ahead each model is to be, and is, under ``GOAL_HEADINGS``."""
    columns = [verdict_rows(faster(precision, found)) for precision in FASTER]
    return [(*wide, *narrow[1:]) for wide, narrow in zip(*columns, strict=True)]


def verdict_rows(found: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """The cells under ``VERDICT_HEADINGS``."""
    return [(v.what, v.goal, v.found, {True: "yes", False: "**no**", None: ""}[v.reached]) for v in found]


VERDICT_HEADINGS = ("what", "to reach", "found", "reached")


def chart(found: Sequence[Result]) -> str:
    """An SVG of speeds relative to the first peer: luminal and the others, a group of bars for each model."""
    setting = found[0].setting
    base, *rest = _peers(setting)
    others = {"luminal": setting.headline, **{peer: peer for peer in rest}}
    groups = [
        Bars(r.title, {name: r.ratio(base, key) for name, key in others.items() if key in (setting.headline, *r.peers)})
        for r in found
        if base in r.peers
    ]
    return draw_chart(f"Speed relative to {base}: {setting}", groups, base)


# ---- the page --------------------------------------------------------------------------------------------------------


ABOUT_GOALS = f"At {str(Setting()).partition(', ')[2]}, from {FRONT_ENDS[0]}; how it was measured is said below."
ABOUT_SHORT = " What does not reach its number is at the end of this page, with its kernels."
ABOUT = (
    "`python -m benchmarks`: everybody gets the same inputs and threads, and all take turns in one process (since "
    f"2026-11-26 for {LASTING:g} seconds at least, and since later that day in drawn orders); milliseconds, medians "
    "over fresh processes of the medians of the runs of each, and the minimum of all in parentheses. `ahead of the "
    "best` is the best peer's time over luminal's in the same process: above 1, luminal is faster. onnxruntime and "
    "OpenVINO (with `INFERENCE_PRECISION_HINT`; it would use bfloat16 unasked) read the ONNX file at fixed sizes, "
    "torch.compile has its weights frozen, torch is eager. Whatever spins after a run to wait for more work is left "
    "to fall asleep before another's turn. `symbolic / fixed` is what symbolic dimensions cost luminal. `of ceiling` "
    "is the least time that the machine would need for the model's contractions at the peak of its multiply-adds "
    "(FMA) or of its products of bfloat16 (bf16) or bytes (int8), or to read as many bytes as its inputs, outputs "
    "and weights have, by what it reached in the same processes, as a part of luminal's time. `compile` is from an "
    "ExportedProgram or an ONNX file to a callable with an empty cache, `memory` the growth of resident memory "
    "meanwhile, compilers included, `library` the size without weights."
)
FROM_PYTORCH = "The largest distance of an output from float32 PyTorch's, relative to the output's largest magnitude."
ABOUT_ERRORS = {
    "bf16": "luminal rounds the operands of contractions alone, and sums in float32; torch and torch.compile have "
    "everything in bfloat16.",
    "int8": "Everybody computes the same ONNX file: what it rounds to integers is most of the distance.",
}
SHOWN = 8  # kernels of a model that does not reach its number
NAMED = 3  # operators that a kernel was made for


def write(found: Results, page: Path) -> None:
    """The page, and the charts beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    charts: dict[str, str] = {}
    for setting, models in by_setting(results(found)).items():
        if setting.main and any(_peers(setting)[0] in r.peers for r in models):
            suffix = "" if setting.precision == "fp32" else f"-{setting.precision}"
            charts[setting.precision] = f"{page.stem}{suffix}.svg"
            page.with_name(charts[setting.precision]).write_text(chart(models), encoding="utf-8")
    page.write_text(text_of(found, charts), encoding="utf-8")


def text_of(found: Results, charts: Mapping[str, str]) -> str:
    """The page for ``docs/``; ``charts`` are file names by precision."""
    models = results(found)
    lines = ["# Benchmarks", "", *(f"{line}.\n" for line in found.machines)]
    lines += _peaks(models) if len(found.machines) == 1 else []
    lines += ["## What they are to show", "", ABOUT_GOALS + (ABOUT_SHORT if _short_of(models) else ""), ""]
    lines += [*tables.markdown(GOAL_HEADINGS, goal_rows(models), left=7), ""]
    shown = [*verdicts(models), *products.verdicts(found), *decoding.verdicts(found), *searching.verdicts(found)]
    lines += [*tables.markdown(VERDICT_HEADINGS, verdict_rows(shown), left=4), ""]
    if models:
        lines += ["## Models", "", ABOUT, ""]
    for setting, group in by_setting(models).items():
        lines += [f"### {_sentence(str(setting))}", ""]
        if setting.main and setting.precision in charts:
            lines += [f"![speeds in {PRECISIONS[setting.precision]}]({charts[setting.precision]})", ""]
        lines += [summary(group), "", *tables.markdown(headings(setting), rows(group), 2 if setting.main else 1), ""]
        failed = {
            f"{r.title}: {peer} does not run ({why})"
            for r in group
            for s in r.samples
            for peer, why in s.failed.items()
        }
        lines += [f"{line}.\n" for line in sorted(failed)]
        if setting.precision != "fp32":
            errors = tables.markdown(error_headings(setting), error_rows(group), left=1)
            lines += [f"{FROM_PYTORCH} {ABOUT_ERRORS[setting.precision]}", "", *errors, ""]
    lines += products.section(found) + decoding.section(found) + filtering.section(found) + searching.section(found)
    for number in found.under(ATTENTION):
        shown_heads = attention.rows(heads(found, int(number)))
        lines += [f"## Long attention, {number} thread{'s' if number != '1' else ''}", "", attention.ABOUT, ""]
        lines += [*tables.markdown(attention.HEADINGS, shown_heads), ""]
    lines += _short_of(models)
    return "\n".join(lines).rstrip() + "\n"


def by_setting(found: Sequence[Result]) -> dict[Setting, list[Result]]:
    """The models in each setting."""
    groups: dict[Setting, list[Result]] = {}
    for result in found:
        groups.setdefault(result.setting, []).append(result)
    return groups


def _peaks(models: Sequence[Result]) -> list[str]:
    """What so many threads reached at the most while models were measured, a line for each number of threads."""
    found: dict[int, Peak] = {}
    for result in models:
        for one in result.samples:
            found[result.setting.threads] = one.peak | found.get(result.setting.threads, one.peak)
    lines = []
    for threads, peak in sorted(found.items()):
        units = {"float32": peak.operations, "bfloat16": peak.bf16, "8-bit integers": peak.int8}
        rates = ", ".join(f"{rate / 1e9:.0f} of {name}" for name, rate in units.items() if rate)
        count = f"{threads} thread{'s' if threads > 1 else ''}"
        lines.append(
            f"At the most, {count} reached 10^9 operations a second (a multiply-add is two): {rates}; and read "
            f"{peak.bytes / 1e9:.0f} GB/s from memory.\n"
        )
    return lines


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:]


def _short_of(models: Sequence[Result]) -> list[str]:
    """The kernels of the models that do not reach their numbers, and the models of a mean that does not."""
    short = [result for result in models if missing(result) > 1]
    means = [line for precision in FASTER for line in _short_mean(precision, models)]
    if not short and not means:
        return []
    about = (
        "The kernels that take the most time, of one process; `luminal bench --kernels` shows them all. `of ceiling` "
        "is the part of its time that the machine would need for what bounds a kernel, its multiplications or its "
        "bytes as a stream from memory: what caches hold may be above 100%. Exponentials and whatever else a kernel "
        "computes beside its products take time of the same units, and count as none of it: where attention has heads "
        "of 64, on AVX-512, 17 instructions for each vector of scores beside 128 multiply-adds in float32, or 64 in "
        "bfloat16 where that multiplies twice as fast."
    )
    lines = ["## What does not reach its number", "", about, ""]
    for result in short:
        first = next((s for s in result.samples if s.kernels), None)
        if first is None:
            continue
        lines += [f"### {result.title}; {result.setting}", ""]
        lines += [f"{_asked_for(result)} {_where(first)}", ""]
        cells = [
            (kernel.name, _made_for(kernel), *profile.cells(kernel, first.kernel_seconds, first.peak))
            for kernel in first.kernels[:SHOWN]
        ]
        lines += [*tables.markdown(("kernel", "made for", *profile.HEADINGS), cells), ""]
    return lines + means


def _short_mean(precision: str, models: Sequence[Result]) -> list[str]:
    """What a mean asks for that is not reached, and where each of its models stands; nothing where it is."""
    *_, verdict = faster(precision, models)
    if verdict.reached is not False:
        return []
    group = [r for r in models if r.setting == Setting(precision) and r.case.name in FASTER[precision]]
    cells, times, shares = [], [], []
    for result in group:
        ahead = result.advantage(AGAINST[precision]) or 0.0
        share, of = result.ceiling(result.setting.headline)
        first = next((s for s in result.samples if s.kernels), None)
        times.append(ahead)
        shares.append(share)
        parts = _parts(first) if first is not None else []
        near = f"{sum(a * b for a, b in parts) / sum(a for a, _ in parts):.0%}" if parts else ""
        cells.append((result.title, f"{ahead:.2f}", f"{share:.0%} {of}", f"{ahead / share:.2f}", near))
    more = MEAN[precision] / mean(times)
    about = (
        f"It asks every model to be {more:.2f} times as fast: they stand at {mean(shares):.0%} of their ceilings, and "
        f"would at {more * mean(shares):.0%}, geometric means. `at its ceiling` is how far ahead of the same peers a "
        "model would be that did nothing but its contractions, at the peak; `kernels` what part of their time the "
        "kernels that take the most would need for what bounds each."
    )
    headings = ("model", "ahead", "of ceiling", "at its ceiling", "kernels")
    title = f"### The mean of these {len(group)}; {Setting(precision)}"
    return [title, "", about, "", *tables.markdown(headings, cells, left=1), ""]


def missing(result: Result) -> float:
    """How many times faster a model would have to be for what it is to reach in its setting: 1 where it does."""
    goal, against = wanted(result)
    advantage = result.advantage(against)
    return 1.0 if advantage is None else max(1.0, goal / advantage)


def _asked_for(result: Result) -> str:
    """What the number that a model does not reach would ask of the machine."""
    ours = result.setting.headline
    (share, of), seconds, times = result.ceiling(ours), result.seconds(ours), missing(result)
    what = {"reading": "reading its bytes"}.get(of, f"{of} at the peak of the same processes")
    return (
        f"Its number asks for {text(seconds / times)}, {share * times:.0%} of {what}; it takes {text(seconds)}, "
        f"{share:.0%} of that."
    )


def _where(found: Sample) -> str:
    """How the time divides between what is near its ceiling and what is not."""
    parts = _parts(found)
    together = sum(share for share, _ in parts)
    far = sum(share for share, part in parts if part < 0.5)
    return (
        f"Its kernels take {text(found.kernel_seconds)}. The {len(parts)} that take the most take {together:.0%} of "
        f"that, and would need {sum(share * part for share, part in parts):.0%} at their ceilings; those that reach "
        f"less than half of theirs take {far:.0%}."
    )


def _parts(found: Sample) -> list[tuple[float, float]]:
    """Of each of the kernels that take the most, its share of the time of all, and what part of it its ceiling is."""
    return [(k.seconds / found.kernel_seconds, min(k.ceiling(found.peak)[0], 1.0)) for k in found.kernels]


def _made_for(kernel: profile.KernelTime) -> str:
    names = list(dict.fromkeys(origin.partition(" ")[0] for origin in kernel.origins))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
