"""PyTorch's own operator database: what each case is, whether it passes, and the page and list that say so.

A case is one sample input of one entry of ``op_db`` in one element type. It is traced by ``make_fx``, once with all of
PyTorch's decompositions to core ATen and once with those that the front end asks for, imported, run through the
interpreter and compared with eager PyTorch at PyTorch's own tolerances. ``python -m tests.torch_suite`` runs all of
them and writes its part of ``docs/coverage.md`` and ``tests/torch_passed.txt`` (``--only text``: the entries whose name
holds the text, and writes nothing; ``--compiled``: distinct traces of those that pass, compiled).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo
from torch.utils import _pytree as pytree

import luminal
from luminal.core import interp
from luminal.core.errors import LuminalError, UnsupportedError
from luminal.core.ir import Graph
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import from_torch, to_numpy
from luminal.frontends.fx.registry import target_name
from luminal.frontends.fx.tables import TABLE
from luminal.module import Module
from tests import coverage_page

Array = np.ndarray[Any, Any]

LIST = Path(__file__).with_name("torch_passed.txt")
HEADING = "# Coverage of PyTorch's operators"

TYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
# They give memory as it was.
UNWRITTEN = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
# What a trace holds beside operators: results taken out of tuples, and constants that Python code made.
PLUMBING = {"operator.getitem", "aten.lift_fresh_copy.default"}
NEARER = "nearer to float64 than eager"
DECOMPOSED = "as PyTorch's decomposition"
# Traces that are compiled for each entry and type, and into one library.
SIGNATURES = 8
TOGETHER = 40


# ---- cases ---------------------------------------------------------------------------------------------------------


@lru_cache
def entries() -> dict[str, OpInfo]:
    """The entries of the database by name, variants told apart."""
    return {entry.full_name: entry for entry in op_db}


@dataclass(frozen=True)
class Case:
    """A sample input of an entry. ``function`` takes its tensors and gives the tensors of the results."""

    entry: OpInfo
    dtype: torch.dtype
    number: int
    tensors: tuple[torch.Tensor, ...]
    function: Callable[..., list[torch.Tensor]] = field(compare=False)

    @property
    def kind(self) -> tuple[str, str]:
        """The entry and the type, as the list of what passes has them."""
        return self.entry.full_name, str(from_torch(self.dtype))

    @property
    def name(self) -> str:
        return f"{' '.join(self.kind)} {self.number}"


def types_of(entry: OpInfo) -> list[torch.dtype]:
    supported = entry.supported_dtypes("cpu")
    return [dtype for dtype in TYPES if dtype in supported]


def cases(entry: OpInfo, dtype: torch.dtype) -> Iterator[Case]:
    """Every sample of the entry, the same ones in every run."""
    torch.manual_seed(0)
    for number, sample in enumerate(entry.sample_inputs("cpu", dtype, requires_grad=False)):
        leaves, tree = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(
            *tensors: torch.Tensor, leaves: list[Any] = leaves, tree: Any = tree, places: list[int] = places
        ) -> list[torch.Tensor]:
            given = dict(zip(places, tensors, strict=True))
            arguments, named = pytree.tree_unflatten([given.get(k, leaf) for k, leaf in enumerate(leaves)], tree)
            results = pytree.tree_leaves(entry.op(*arguments, **named))
            return [result for result in results if isinstance(result, torch.Tensor)]

        yield Case(entry, dtype, number, tuple(leaves[place] for place in places), function)


class Excluded(Exception):
    """A case that asks nothing of a compiler; the text says why."""


class Rules(dict[Any, Callable[..., Any]]):
    """Decompositions by operator, and the operators that were ``used``."""

    def __init__(self, rules: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__(rules)
        self.used: set[Any] = set()

    def __getitem__(self, operator: Any) -> Callable[..., Any]:
        self.used.add(operator)
        return super().__getitem__(operator)


@lru_cache
def core_rules() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions to core ATen."""
    return dict(torch._decomp.core_aten_decompositions())


def traced(case: Case) -> torch.fx.GraphModule:
    """The case as the front end decomposes it: by PyTorch's rules for what its own table does not hold."""
    core, used = traced_core(case)
    if not any(str(operator) in TABLE for operator in used):
        return core
    return _traced(case, {operator: rule for operator, rule in core_rules().items() if str(operator) not in TABLE})


def traced_core(case: Case) -> tuple[torch.fx.GraphModule, set[Any]]:
    """The case as a graph of core ATen, as far as PyTorch's rules lead there, and the operators that were decomposed.
    Raises Excluded where there is no graph."""
    rules = Rules(core_rules())
    return _traced(case, rules), rules.used


def _traced(case: Case, rules: Mapping[Any, Callable[..., Any]]) -> torch.fx.GraphModule:
    if any(tensor.layout is not torch.strided for tensor in case.tensors):
        raise Excluded("sparse tensors")
    try:
        graph = make_fx(case.function, rules)(*case.tensors)
        if any(map(is_mutable, operators(graph))):
            graph = make_fx(torch.func.functionalize(graph), rules)(*case.tensors)
            for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
                graph.graph.erase_node(node)  # the new value of an argument, which is no result
        return graph
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        text = str(error)
        if "trying to get value out of a tracing tensor" in text:
            raise Excluded("it reads a Python number off the data") from error
        raise Excluded(f"PyTorch does not trace it: {text.splitlines()[0][:100]}") from error


def operators(graph: torch.fx.GraphModule) -> set[Any]:
    """The operators of a trace."""
    found = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    return {target for target in found if target_name(target) not in PLUMBING}


def is_core(operator: Any) -> bool:
    return isinstance(operator, torch._ops.OpOverload) and torch.Tag.core in operator.tags


def is_mutable(operator: Any) -> bool:
    return isinstance(operator, torch._ops.OpOverload) and operator._schema.is_mutable


def is_random(operator: Any) -> bool:
    return isinstance(operator, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in operator.tags


def expected(case: Case) -> list[torch.Tensor]:
    """The results of eager PyTorch. Raises Excluded where it fails."""
    if case.entry.name in UNWRITTEN:
        raise Excluded("it gives memory as it was")
    try:
        return case.function(*(tensor.clone() for tensor in case.tensors))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, AssertionError) as error:
        raise Excluded(f"eager PyTorch fails: {str(error).splitlines()[0][:100]}") from error


# ---- one case ------------------------------------------------------------------------------------------------------


def tolerances(case: Case) -> dict[torch.dtype, tuple[float, float]]:
    """Relative and absolute tolerance by element type, where the entry widens the default for its own tests."""
    found: dict[torch.dtype, tuple[float, float]] = {}
    for decorator in case.entry.decorators:
        if not isinstance(decorator, DecorateInfo) or decorator.device_type not in (None, "cpu"):
            continue
        if decorator.dtypes is not None and case.dtype not in decorator.dtypes:
            continue
        for override in decorator.decorators:
            if isinstance(override, toleranceOverride | precisionOverride):
                for dtype, allowed in override.d.items():
                    rtol, atol = found.get(dtype, default_tolerances(dtype))
                    wider = (allowed.rtol, allowed.atol) if isinstance(override, toleranceOverride) else (0, allowed)
                    found[dtype] = max(rtol, wider[0]), max(atol, wider[1])
    return found


def run(graph: Graph, tensors: Sequence[torch.Tensor]) -> list[Array]:
    values = {node.attr.name: to_numpy(tensor) for node, tensor in zip(graph.inputs, tensors, strict=True)}
    with np.errstate(all="ignore"):
        return interp.run(graph, values).outputs


def compare(case: Case, found: Sequence[Array], wanted: Sequence[torch.Tensor]) -> None:
    """Raises AssertionError where a result differs."""
    assert len(found) == len(wanted), f"{len(found)} results, expected {len(wanted)}"
    allowed = tolerances(case)
    for a, b in zip(found, map(real, wanted), strict=True):
        expected = to_numpy(b)
        assert a.dtype == expected.dtype and a.shape == expected.shape, (a.dtype, a.shape, b.dtype, b.shape)
        if not np.array_equal(a, expected):
            rtol, atol = allowed.get(b.dtype, (None, None))
            torch.testing.assert_close(_tensor(a, b.dtype), b, rtol=rtol, atol=atol, equal_nan=True)


def _tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """numpy has no bfloat16 of its own."""
    plain = np.ascontiguousarray(array) if array.dtype.isbuiltin == 1 else array.astype(np.float32)
    return torch.from_numpy(plain).reshape(array.shape).to(dtype)


def is_nearer(case: Case, found: Sequence[Array], wanted: Sequence[torch.Tensor]) -> bool:
    """Whether what was found, wherever it is not ``wanted``, lies nearer in all to what PyTorch computes in float64."""
    wide = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in case.tensors)
    try:
        exact = case.function(*wide)
    except (RuntimeError, ValueError, TypeError):  # as where an argument of another type meets the wider ones
        return False
    ours = theirs = 0.0
    for a, b, x in zip(found, map(real, wanted), map(real, exact), strict=True):
        if a.shape != b.shape or b.shape != x.shape:
            return False
        a, b, x = (value.astype(np.float64) for value in (a, to_numpy(b), to_numpy(x)))
        differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        ours, theirs = ours + _distance(a[differ], x[differ]), theirs + _distance(b[differ], x[differ])
    return ours < theirs


def _distance(a: Array, b: Array) -> float:
    """The sum of the distances of elements; infinite where one of two is not finite."""
    with np.errstate(invalid="ignore"):
        away = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
    return float(np.nan_to_num(away, nan=np.inf).sum())


def real(value: torch.Tensor) -> torch.Tensor:
    """The tensor as the compiled model has it: of complex numbers, their parts."""
    value = value.detach()
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value.resolve_neg()


# ---- many cases ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How a case went: ``excluded`` or ``failed`` gives the reason; ``core`` names the core ATen operators of its
    trace, ``others`` the rest."""

    kind: tuple[str, str]
    number: int
    excluded: str = ""
    failed: str = ""
    core: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    @property
    def passed(self) -> bool:
        return not self.excluded and not self.failed


def check(case: Case) -> Result:
    """Run one case through the interpreter."""
    core: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    excluded = failed = ""
    try:
        wanted = expected(case)
        trace, _ = traced_core(case)
        found = operators(trace)
        core = frozenset(str(operator) for operator in found if is_core(operator))
        others = frozenset(str(operator) for operator in found if not is_core(operator))
        if any(map(is_random, found)):
            raise Excluded("it draws random numbers")
        own = traced(case)
        results = run(importer.load(own), case.tensors)
        failed = difference(case, results, wanted, trace)
        if own is not trace and not failed:
            failed = difference(case, run(importer.load(trace), case.tensors), decomposed(case, trace), trace)
    except Excluded as error:
        excluded = str(error)
    except UnsupportedError as error:
        failed = "; ".join(dict.fromkeys(f"{place.op}: {place.advice}" for place in error.places)) or str(error)
    except Exception as error:  # noqa: BLE001 - a crash is a line of the report
        failed = one_line(error)
    return Result(case.kind, case.number, excluded, failed, core, others)


def difference(case: Case, found: Sequence[Array], wanted: Sequence[torch.Tensor], core: torch.fx.GraphModule) -> str:
    """What is wrong with the results, or nothing."""
    try:
        compare(case, found, wanted)
    except AssertionError as error:
        if is_nearer(case, found, wanted):
            return NEARER
        try:
            compare(case, found, decomposed(case, core))
        except AssertionError:
            return f"it differs: {one_line(error)}"
        return DECOMPOSED
    return ""


def decomposed(case: Case, core: torch.fx.GraphModule) -> list[torch.Tensor]:
    """The results of the graph of core ATen in eager PyTorch."""
    with torch.no_grad():
        return core(*(tensor.clone() for tensor in case.tensors))


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, LuminalError) else f"{type(error).__name__}: {text}"[:160]


def run_entry(name: str, samples: int | None = None) -> list[Result]:
    """Every case of an entry, or the first ``samples`` of each type."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    entry = entries()[name]
    return [check(case) for dtype in types_of(entry) for case in islice(cases(entry, dtype), samples)]


def run_all(names: Sequence[str], jobs: int, samples: int | None = None) -> list[Result]:
    """``run_entry`` for each, in ``jobs`` processes; says how far it is."""
    results: list[Result] = []
    start = time.monotonic()
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for done, found in enumerate(pool.map(partial(run_entry, samples=samples), names), 1):
            results += found
            spent = time.monotonic() - start
            if sys.stderr.isatty() or done % 50 == 0 or done == len(names):
                left = spent / done * (len(names) - done)
                print(f"{done} of {len(names)} entries, {len(results)} cases, {left:.0f} s left", file=sys.stderr)
    return results


# ---- compiled ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """A case that was imported under names of its own."""

    case: Case
    graph: Graph
    wanted: list[torch.Tensor]


def instances(results: Iterable[Result]) -> Iterator[Instance]:
    """Of each entry and type, cases that passed, at most so many as are to be compiled and no two of one signature."""
    passed: dict[tuple[str, str], set[int]] = defaultdict(set)
    for result in results:
        if result.passed:
            passed[result.kind].add(result.number)
    for kind, numbers in passed.items():
        entry = entries()[kind[0]]
        dtype = next(dtype for dtype in types_of(entry) if str(from_torch(dtype)) == kind[1])
        seen: set[str] = set()
        for case in cases(entry, dtype):
            if case.number not in numbers or len(seen) == SIGNATURES:
                continue
            trace = traced(case)
            signature = f"{[(x.dtype, x.shape) for x in case.tensors]} {trace.code}"
            if signature in seen:
                continue
            seen.add(signature)
            yield Instance(case, importer.load(trace), expected(case))


def run_compiled(parts: Sequence[Instance]) -> list[list[Array]]:
    """The results of graphs that are compiled together."""
    module = luminal.compile({f"case{k}": part.graph for k, part in enumerate(parts)}, name="cases")
    assert isinstance(module, Module)
    return [
        module.library.run([to_numpy(tensor) for tensor in part.case.tensors], f"case{k}")
        for k, part in enumerate(parts)
    ]


def check_compiled(parts: Sequence[Instance]) -> dict[str, str]:
    """The reason of failing of each case that fails where it is compiled, together with others or alone, by name."""
    try:
        found = run_compiled(parts)
    except (LuminalError, ValueError, RuntimeError) as error:
        if len(parts) == 1:
            return {parts[0].case.name: one_line(error)}
        half = len(parts) // 2
        return check_compiled(parts[:half]) | check_compiled(parts[half:])
    failed: dict[str, str] = {}
    for part, results in zip(parts, found, strict=True):
        try:
            compare(part.case, results, part.wanted)
        except AssertionError as error:
            failed[part.case.name] = one_line(error)
    return failed


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


# ---- the page ------------------------------------------------------------------------------------------------------


def core_operators() -> list[str]:
    """Every overload in ``aten`` that PyTorch tags as core."""
    packets = (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten))
    overloads = [getattr(p, o) for p in packets if isinstance(p, torch._ops.OpOverloadPacket) for o in p.overloads()]
    return sorted(str(overload) for overload in overloads if is_core(overload))


def page(results: Sequence[Result], samples: int | None) -> str:
    which = "all samples" if samples is None else f"the first {samples} samples"
    by_entry: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        if not result.excluded:
            by_entry[result.kind[0]].append(result)
    core = {name: found for name, found in by_entry.items() if not any(result.others for result in found)}
    rest = {name: found for name, found in by_entry.items() if name not in core}
    excluded = Counter(result.excluded for result in results if result.excluded)
    lines = [
        HEADING,
        "",
        "`make coverage`: the entries of PyTorch's own operator database (`op_db`, "
        f"torch {torch.__version__.split('+')[0]}, {len(entries())} entries), {which} in every type of floats, "
        "integers and bool that an entry declares for CPUs. Each case is traced by `make_fx` with PyTorch's "
        "decompositions to core ATen, imported, run through the interpreter, and compared with eager PyTorch at the "
        "tolerances of `torch.testing.assert_close`, or the entry's own where these are wider.",
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
        f"| | entries | that pass whole | cases | that pass | {NEARER} | {DECOMPOSED} |",
        "|---|---|---|---|---|---|---|",
        _summary("core ATen", core),
        _summary("others", rest),
        "",
        f"Left out are {sum(excluded.values())} cases: "
        + "; ".join(f"{count}: {reason}" for reason, count in _grouped(excluded).most_common())
        + ".",
        "",
        "## Core ATen operators",
        "",
        "Cases are those whose trace holds the operator; types are those of the cases that pass.",
        "",
        "| operator | cases | types | supported |",
        "|---|---|---|---|",
    ]
    for name in core_operators():
        found = [result for result in results if name in result.core and not result.excluded]
        good = [result for result in found if result.passed]
        kinds = ", ".join(sorted({result.kind[1] for result in good}))
        lines.append(f"| {name} | {len(good)} / {len(found)} | {kinds} | {'yes' if name in TABLE else 'no'} |")
    for title, part in (("entries of core ATen", core), ("other entries", rest)):
        lines += ["", f"## What fails of {title}, and why", "", *_failures(part)]
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _summary(title: str, entries: dict[str, list[Result]]) -> str:
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


def _failures(entries: dict[str, list[Result]]) -> list[str]:
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


def main() -> int:
    """The exit code says whether a case fails where it is compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="entries whose name holds this text")
    parser.add_argument("--compiled", action="store_true", help="compile the cases that pass as well")
    parser.add_argument("--samples", type=int, help="of each entry and type, the first so many (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    names = [name for name in entries() if options.only in name]
    results = run_all(names, options.jobs, options.samples)
    for result in results:
        if result.failed and options.only:
            print(*result.kind, result.number, result.failed)
    print(f"{sum(result.passed for result in results)} of {sum(not result.excluded for result in results)} pass")
    if options.compiled:
        parts = list(instances(results))
        failed: dict[str, str] = {}
        for start in range(0, len(parts), TOGETHER):
            failed |= check_compiled(parts[start : start + TOGETHER])
        for name, reason in failed.items():
            print(f"{name}: {reason}")
        print(f"{len(parts) - len(failed)} of {len(parts)} pass where they are compiled")
        return int(bool(failed))
    if not options.only:
        LIST.write_text(listing(results))
        coverage_page.write(page(results, options.samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
