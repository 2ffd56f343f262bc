"""What ``docs/coverage.md`` says of PyTorch's operator database."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import torch

from luminal.frontends.fx.export import rules
from luminal.frontends.fx.tables import COMPLEX, TABLE
from tests import coverage_page
from tests.torch_cases import DECOMPOSED, NEARER, Result, entries, is_core
from tests.torch_compiled import SIGNATURES, TOGETHER

Entries = dict[str, list[Result]]  # the results that count, by entry

COMPILED = f"{coverage_page.TORCH}, compiled"


def core_operators() -> list[str]:
    """Every overload in ``aten`` that PyTorch tags as core."""
    packets = (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten))
    overloads = [getattr(p, o) for p in packets if isinstance(p, torch._ops.OpOverloadPacket) for o in p.overloads()]
    return sorted(str(overload) for overload in overloads if is_core(overload))


def taken_by(name: str) -> str:
    """What of the front end takes the overload called ``name``, or ``nothing``."""
    if name in TABLE:
        return "table"
    if name in COMPLEX:
        return "complex"
    _, packet, overload = name.split(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    return "rules" if operator._schema.is_mutable or operator in rules() else "nothing"


def page(results: Sequence[Result], samples: int | None) -> str:
    """The part on cases in the interpreter: all of them, or the first ``samples`` of each entry and type."""
    which = "all samples" if samples is None else f"the first {samples} samples"
    core, rest = _split(results)
    excluded = Counter(result.excluded for result in results if result.excluded)
    lines = [
        coverage_page.TORCH,
        "",
        "`make coverage`: the entries of PyTorch's own operator database (`op_db`, "
        f"torch {torch.__version__.split('+')[0]}, {len(entries())} entries), {which} in every type of floats, "
        "integers and bool that an entry declares for CPUs. Each case is traced by `make_fx` with PyTorch's "
        "decompositions to core ATen, imported, run through the interpreter, and compared with eager PyTorch at the "
        "tolerances of `torch.testing.assert_close`, or the entry's own where these are wider. Where PyTorch leaves "
        "open which of equal elements a position names (an order that is not stable), any of them will do.",
        "",
        "An entry counts where every operator in every trace of it is tagged `torch.Tag.core`. Where PyTorch's rules "
        "decompose what the front end has lines for, the case is imported both ways, and each has to agree: the one "
        "with eager PyTorch, the other with its own graph in eager PyTorch.",
        "",
        f"Some results differ from eager PyTorch by its own rounding. {_sentence(NEARER)}: what PyTorch computes in "
        f"float64 lies nearer to luminal's result than to eager PyTorch's in the type of the case. "
        f"{_sentence(DECOMPOSED)}: eager PyTorch differs from itself in the same way, where it runs the decomposed "
        "graph. Neither counts as passed.",
        "",
        *_summaries(core, rest),
        "",
        f"Left out are {sum(excluded.values())} cases: "
        + "; ".join(f"{count}: {reason}" for reason, count in _grouped(excluded).most_common())
        + ".",
        "",
        "## Core ATen operators",
        "",
        "Cases are those whose trace holds the operator; types are those of the cases that pass. An operator is taken "
        "by a line of the front end's table, of its table for complex numbers, or by PyTorch's rules, which decompose "
        "it or turn what it writes into results.",
        "",
        "| operator | cases | types | by |",
        "|---|---|---|---|",
    ]
    for name in core_operators():
        counted, kinds = _of_operator(name, results)
        lines.append(f"| {name} | {counted} | {kinds} | {taken_by(name)} |")
    return "\n".join([*lines, *_reasons(core, rest)]) + "\n"


def compiled_page(results: Sequence[Result], kinds: int, machine: str) -> str:
    """The part on cases that pass in the interpreter and were compiled on ``machine``, of ``kinds`` entries and types
    that there are."""
    core, rest = _split(results)
    done = len({result.kind for result in results})
    which = f"all {kinds} pairs" if done == kinds else f"{done} of the {kinds} pairs, spread over both,"
    lines = [
        COMPILED,
        "",
        "`python -m tests.torch_suite --compiled`: of the cases above that pass, compiled: of each entry and type up "
        f"to {SIGNATURES} whose traces, shapes and types differ, {TOGETHER} to a library. Results are compared with "
        f"eager PyTorch as above. This run had {which} of an entry and a type that pass ({machine}).",
        "",
        *_summaries(core, rest),
        "",
        "## Core ATen operators, compiled",
        "",
        "| operator | cases | types |",
        "|---|---|---|",
    ]
    for name in core_operators():
        counted, kinds = _of_operator(name, results)
        if kinds:
            lines.append(f"| {name} | {counted} | {kinds} |")
    return "\n".join([*lines, *_reasons(core, rest)]) + "\n"


def _split(results: Sequence[Result]) -> tuple[Entries, Entries]:
    """The results that are not left out by entry: of entries of core ATen, and of the others."""
    by_entry: Entries = defaultdict(list)
    for result in results:
        if not result.excluded:
            by_entry[result.kind[0]].append(result)
    core = {name: found for name, found in by_entry.items() if not any(result.others for result in found)}
    return core, {name: found for name, found in by_entry.items() if name not in core}


def _of_operator(name: str, results: Sequence[Result]) -> tuple[str, str]:
    """How many cases hold the operator and pass, of how many; and the types of those that pass."""
    found = [result for result in results if name in result.core and not result.excluded]
    good = [result for result in found if result.passed]
    return f"{len(good)} / {len(found)}", ", ".join(sorted({result.kind[1] for result in good}))


def _summaries(core: Entries, rest: Entries) -> list[str]:
    return [
        f"| | entries | that pass whole | cases | that pass | {NEARER} | {DECOMPOSED} |",
        "|---|---|---|---|---|---|---|",
        _summary("core ATen", core),
        _summary("others", rest),
    ]


def _reasons(core: Entries, rest: Entries) -> list[str]:
    lines: list[str] = []
    for title, part in (("entries of core ATen", core), ("other entries", rest)):
        lines += ["", f"## What fails of {title}, and why", "", *(_failures(part) or ["Nothing."])]
    return lines


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _summary(title: str, entries: Entries) -> str:
    whole = sum(all(result.passed for result in found) for found in entries.values())
    cases = [result for found in entries.values() for result in found]
    passed = sum(result.passed for result in cases)
    share = f"{passed / max(len(cases), 1):.1%}"
    rounded = [str(sum(result.failed == reason for result in cases)) for reason in (NEARER, DECOMPOSED)]
    return f"| {title} | {len(entries)} | **{whole}** | {len(cases)} | **{passed}** ({share}) | {' | '.join(rounded)} |"


def _grouped(reasons: Counter[str]) -> Counter[str]:
    """By what comes before a colon."""
    grouped: Counter[str] = Counter()
    for reason, count in reasons.items():
        grouped[reason.split(":")[0]] += count
    return grouped


def _failures(entries: Entries) -> list[str]:
    """The reasons by the number of entries that fail for them."""
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for name, found in entries.items():
        for result in found:
            if not result.passed:
                reasons[re.sub(r"\d+(\.\d+)?(e[-+]\d+)?", "N", result.failed)][name] += 1
    lines: list[str] = []
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(f"`{name}` {count}" for name, count in sorted(names.items()))
        lines.append(f"- **{len(names)}**: {reason.replace('|', '/')}<br>{shown}")
    return lines
