"""PyTorch's own operator database: whether its cases pass, and the page and list that say so.

``python -m tests.torch_suite`` runs all cases (see ``tests.torch_cases``) through the interpreter and writes its part
of ``docs/coverage.md`` and ``tests/torch_passed.txt``, which names those that pass; ``--compiled`` runs these as
compiled libraries instead and writes a part of its own (see ``tests.torch_compiled``), with ``--minutes`` of as many
as there is time for. ``--only text`` takes the entries whose name holds the text, and writes nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path

import torch

from luminal.core import target as targets
from tests import coverage_page, torch_compiled, torch_page
from tests.torch_cases import Result, cases, check, entries, types_of
from tests.workers import Lost, Progress, Worker, each

LIST = Path(__file__).with_name("torch_passed.txt")
# A case may take so long, and a process so much memory.
SECONDS = 120
MEMORY = 12 << 30


# ---- many cases ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The cases of an entry, the first ``samples`` of each type where that is not None, without the first ``done``."""

    name: str
    samples: int | None = None
    done: int = 0


@dataclass(frozen=True)
class Begun:
    """A case whose result is what comes next."""

    kind: tuple[str, str]
    number: int


def run_part(part: Part) -> Iterator[Begun | Result]:
    """For each case, that it is begun and how it went."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    entry = entries()[part.name]
    every = (case for dtype in types_of(entry) for case in islice(cases(entry, dtype), part.samples))
    for case in islice(every, part.done, None):
        yield Begun(case.kind, case.number)
        yield check(case)


def results_of(worker: Worker[Part], part: Part) -> list[Result]:
    """Every case of the part; one with which the process is lost has failed. Raises Lost where that is before a case
    is begun."""
    results: list[Result] = []
    while True:
        begun: Begun | None = None
        try:
            for item in worker.items(Part(part.name, part.samples, len(results))):
                begun = item if isinstance(item, Begun) else None
                if isinstance(item, Result):
                    results.append(item)
            return results
        except Lost as lost:
            if begun is None:
                raise
            results.append(Result(begun.kind, begun.number, failed=str(lost)))


def run_all(names: Sequence[str], jobs: int, samples: int | None = None) -> list[Result]:
    """Every case of the entries, in their order, from ``jobs`` processes; says how far it is."""
    found: dict[str, list[Result]] = {}
    progress = Progress(len(names), "entries")
    workers = [Worker(run_part, SECONDS, MEMORY) for _ in range(jobs)]
    for part, results in each([Part(name, samples) for name in names], results_of, workers):
        found[part.name] = results
        progress.step(f"{sum(map(len, found.values()))} cases")
    return [result for name in names for result in found[name]]


# ---- the list of what passes ---------------------------------------------------------------------------------------


def listed() -> dict[tuple[str, str], list[int]]:
    """The numbers of the cases that passed, by entry and type."""
    found: dict[tuple[str, str], list[int]] = {}
    for line in LIST.read_text().splitlines() if LIST.exists() else []:
        entry, dtype, *ranges = line.split()
        ends = [[int(end) for end in text.split("-")] for text in ranges]
        found[entry, dtype] = [number for span in ends for number in range(span[0], span[-1] + 1)]
    return found


def listing(results: Iterable[Result]) -> str:
    """A line for each entry and type, with the numbers of the cases that passed as ranges."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for result in results:
        if result.passed:
            numbers[result.kind].append(result.number)
    return "".join(f"{entry} {dtype} {_ranges(found)}\n" for (entry, dtype), found in numbers.items())


def _ranges(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(f"{low}-{high}" if low != high else str(low) for low, high in spans)


def main() -> int:
    """The exit code says whether a case fails where it is compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="entries whose name holds this text")
    parser.add_argument("--compiled", action="store_true", help="compile the cases that are listed")
    parser.add_argument("--minutes", type=float, default=math.inf, help="compile as many as there is time for")
    parser.add_argument("--samples", type=int, help="of each entry and type, the first so many (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    if options.compiled:
        chosen = {kind: numbers for kind, numbers in listed().items() if options.only in kind[0]}
        results = torch_compiled.run_all(chosen, options.jobs, options.minutes)
        report(results, named=False)  # they were named as they failed
        if not options.only:
            coverage_page.write(torch_page.compiled_page(results, len(chosen), machine()))
        return int(not all(result.passed for result in results))
    names = [name for name in entries() if options.only in name]
    results = run_all(names, options.jobs, options.samples)
    report(results, named=bool(options.only))
    if not options.only:
        LIST.write_text(listing(results))
        coverage_page.write(torch_page.page(results, options.samples))
    return 0


def machine() -> str:
    """The target and the day."""
    return f"target `{targets.detect().name}`, {date.today()}"


def report(results: Sequence[Result], named: bool) -> None:
    """Counts, and where ``named`` the cases that fail."""
    for result in results:
        if result.failed and named:
            print(*result.kind, result.number, result.failed)
    print(f"{sum(result.passed for result in results)} of {sum(not result.excluded for result in results)} pass")


if __name__ == "__main__":
    sys.exit(main())
