"""Cases of PyTorch's operator database, compiled: many graphs in one library, an entry point each."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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
    one_line,
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

Key = tuple[tuple[str, str], int]  # the kind and the number of a case


def chosen(results: Iterable[Result]) -> list[Result]:
    """Of each entry and type, cases that passed, at most so many as are to be compiled and no two of one signature."""
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    found: list[Result] = []
    for result in results:
        signatures = seen[result.kind]
        if result.passed and result.signature not in signatures and len(signatures) < SIGNATURES:
            signatures.add(result.signature)
            found.append(result)
    return found


def run_all(results: Iterable[Result], jobs: int) -> list[Result]:
    """How those that are chosen among ``results`` of the interpreter go where they are compiled."""
    picked = {(result.kind, result.number): result for result in chosen(results)}
    keys = list(picked)
    groups = [keys[start : start + TOGETHER] for start in range(0, len(keys), TOGETHER)]
    failed: dict[Key, str] = {}
    progress = Progress(len(groups), "libraries")
    workers = [Worker(run_group, SECONDS, MEMORY) for _ in range(jobs)]
    for _, found in each(groups, failures_of, workers):
        failed |= found
        progress.step(f"{len(failed)} cases fail")
    return [replace(result, failed=failed.get(key, "")) for key, result in picked.items()]


def failures_of(worker: Worker[list[Key]], keys: list[Key]) -> dict[Key, str]:
    """The reason of failing of each case that fails where it is compiled, together with others or alone."""
    try:
        (failed,) = worker.items(keys)
    except Lost as lost:
        if len(keys) == 1:
            return {keys[0]: str(lost)}
        half = len(keys) // 2
        return failures_of(worker, keys[:half]) | failures_of(worker, keys[half:])
    return dict(failed)


# ---- in a process --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """A case that was imported."""

    case: Case
    graph: Graph
    wanted: list[torch.Tensor]
    core: torch.fx.GraphModule

    @property
    def key(self) -> Key:
        return self.case.kind, self.case.number


def run_group(keys: list[Key]) -> Iterator[dict[Key, str]]:
    """The reasons of failing, once."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    yield check_compiled(list(instances(keys)))


def instances(keys: Sequence[Key]) -> Iterator[Instance]:
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for kind, number in keys:
        numbers[kind].add(number)
    for kind, wanted in numbers.items():
        entry = entries()[kind[0]]
        dtype = next(dtype for dtype in types_of(entry) if str(from_torch(dtype)) == kind[1])
        for case in cases(entry, dtype):
            if case.number in wanted:
                core, used = traced_core(case)
                yield Instance(case, importer.load(traced(case, core, used)), expected(case), core)
            if case.number == max(wanted):
                break


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
