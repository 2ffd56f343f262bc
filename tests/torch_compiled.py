"""Cases of PyTorch's operator database, compiled: many graphs in one library, an entry point each."""

from __future__ import annotations

import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch

import luminal
from luminal.core.errors import LuminalError
from luminal.core.ir import Graph
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import from_torch, to_numpy
from luminal.module import Module
from tests.torch_cases import (
    Array,
    Case,
    Result,
    cases,
    difference,
    entries,
    expected,
    is_core,
    one_line,
    operators,
    signature_of,
    traced,
    traced_core,
    types_of,
)
from tests.workers import Lost, Progress, Worker, each

# Traces that are compiled for each entry and type, and into one library.
SIGNATURES = 8
TOGETHER = 60
# A library may take so long, and a process so much memory.
SECONDS = 900
MEMORY = 12 << 30

Kind = tuple[str, str]  # an entry and a type
Key = tuple[Kind, int]  # a case, by its kind and number
Task = list[tuple[Kind, list[int]]]  # kinds, and the numbers of cases to choose from


def tasks(listed: Mapping[Kind, Sequence[int]]) -> list[Task]:
    """As many kinds to a task as may fill a library; each round over the entries takes another type of each, so that
    the first tasks hold something of all entries and types."""
    by_entry: dict[str, list[Kind]] = defaultdict(list)
    for kind in listed:
        by_entry[kind[0]].append(kind)
    found: list[Task] = []
    room = 0
    for turn in range(max(map(len, by_entry.values()), default=0)):
        for place, kinds in enumerate(by_entry.values()):
            if turn >= len(kinds):
                continue
            kind = kinds[(place + turn) % len(kinds)]
            most = min(len(listed[kind]), SIGNATURES)
            if most > room:
                found.append([])
                room = TOGETHER
            found[-1].append((kind, list(listed[kind])))
            room -= most
    return found


def run_all(listed: Mapping[Kind, Sequence[int]], jobs: int, minutes: float = math.inf) -> list[Result]:
    """How cases of those ``listed`` go where they are compiled, no more being begun after so many ``minutes``; says how
    far it is."""
    every = tasks(listed)
    found: list[Result] = []
    progress = Progress(len(every), "libraries")
    workers = [Worker(run_task, SECONDS, MEMORY) for _ in range(jobs)]
    with closing(each(every, results_of, workers)) as done:
        for _, results in done:
            found += results
            for result in results:
                if result.failed:
                    print(*result.kind, result.number, result.failed, file=sys.stderr)
            progress.step(f"{len(found)} cases, {sum(not result.passed for result in found)} fail")
            if progress.minutes > minutes:
                break
    places = {kind: place for place, kind in enumerate(listed)}
    return sorted(found, key=lambda result: (places[result.kind], result.number))


def results_of(worker: Worker[Task], task: Task) -> list[Result]:
    """How the cases that are chosen go; one with which the process is lost, together with others or alone, has
    failed."""
    found: list[list[Result]] = []
    try:
        for results in worker.items(task):
            found.append(results)
        return found[-1]
    except Lost as lost:
        chosen = found[0] if found else []
        if len(chosen) == 1:
            return [replace(chosen[0], failed=str(lost))]
        keys: Task = [(result.kind, [result.number]) for result in chosen] or task
        if len(keys) == 1:  # lost before a case was chosen
            return [Result(keys[0][0], keys[0][1][0], failed=str(lost))]
        half = len(keys) // 2
        return results_of(worker, keys[:half]) + results_of(worker, keys[half:])


# ---- in a process --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """A case that was imported."""

    case: Case
    graph: Graph
    wanted: list[torch.Tensor]
    core: torch.fx.GraphModule
    signature: str

    @property
    def key(self) -> Key:
        return self.case.kind, self.case.number

    def result(self, failed: str) -> Result:
        found = operators(self.core)
        core = frozenset(str(operator) for operator in found if is_core(operator))
        others = frozenset(str(operator) for operator in found if not is_core(operator))
        return Result(*self.key, "", failed, core, others, self.signature)


def run_task(task: Task) -> Iterator[list[Result]]:
    """The cases that are chosen, as if they passed; then how they go."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parts = [part for kind, numbers in task for part in instances(kind, set(numbers))]
    yield [part.result("") for part in parts]
    failed = check_compiled(parts)
    yield [part.result(failed.get(part.key, "")) for part in parts]


def instances(kind: Kind, numbers: set[int]) -> Iterator[Instance]:
    """Of the cases of these numbers at most so many as are to be compiled, no two of one signature."""
    entry = entries()[kind[0]]
    dtype = next(dtype for dtype in types_of(entry) if str(from_torch(dtype)) == kind[1])
    seen: set[str] = set()
    for case in cases(entry, dtype):
        if case.number in numbers:
            core, used = traced_core(case)
            trace = traced(case, core, used)
            signature = signature_of(case, trace)
            if signature not in seen:
                seen.add(signature)
                yield Instance(case, importer.load(trace), expected(case), core, signature)
        if case.number == max(numbers) or len(seen) == SIGNATURES:
            return


def run_compiled(parts: Sequence[Instance]) -> list[list[Array]]:
    """The results of graphs that are compiled together."""
    module = luminal.compile({f"case{k}": part.graph for k, part in enumerate(parts)}, name="cases", threads=1)
    assert isinstance(module, Module)
    return [
        module.library.run([to_numpy(tensor) for tensor in part.case.tensors], f"case{k}")
        for k, part in enumerate(parts)
    ]


def check_compiled(parts: Sequence[Instance]) -> dict[Key, str]:
    """The reason of failing of each case that fails, together with others or alone."""
    if not parts:
        return {}
    try:
        found = run_compiled(parts)
    except (LuminalError, ValueError, RuntimeError) as error:
        if len(parts) == 1:
            return {parts[0].key: one_line(error)}
        half = len(parts) // 2
        return check_compiled(parts[:half]) | check_compiled(parts[half:])
    failed = {
        part.key: difference(part.case, results, part.wanted, part.core)
        for part, results in zip(parts, found, strict=True)
    }
    return {key: reason for key, reason in failed.items() if reason}
