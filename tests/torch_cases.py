"""Cases of PyTorch's own operator database: what each is, its trace, and whether results agree with eager PyTorch's.

A case is one sample input of one entry of ``op_db`` in one element type. It is traced by ``make_fx``, once with all of
PyTorch's decompositions to core ATen and once with those that the front end asks for, imported, run through the
interpreter and compared with eager PyTorch at PyTorch's own tolerances.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._comparison import default_tolerances
from torch.testing._internal import common_utils
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo
from torch.utils import _pytree as pytree

from luminal.core import interp
from luminal.core.errors import LuminalError, UnsupportedError
from luminal.core.ir import Graph
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import from_torch, to_numpy
from luminal.frontends.fx.registry import target_name
from luminal.frontends.fx.tables import TABLE

Array = np.ndarray[Any, Any]

# For each sample it reads the sources of all callers to find a unittest.TestCase among them, of which there is none.
core.extract_test_fn = common_utils.extract_test_fn = lambda: None

TYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip
# They give memory as it was.
UNWRITTEN = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
# What a trace holds beside operators: results taken out of tuples, and constants that Python code made.
PLUMBING = {"operator.getitem", "aten.lift_fresh_copy.default"}
# Operators that may name any of equal elements by its position.
UNSTABLE = {"aten.sort.default", "aten.argsort.default", "aten.topk.default", "aten.kthvalue.default"}
NEARER = "nearer to float64 than eager"
DECOMPOSED = "as PyTorch's decomposition"


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


def traced(case: Case, core: torch.fx.GraphModule, used: set[Any]) -> torch.fx.GraphModule:
    """The case as the front end decomposes it: by PyTorch's rules for what its own table does not hold. ``core`` and
    ``used`` are what ``traced_core`` gives."""
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


def signature_of(case: Case, trace: torch.fx.GraphModule) -> str:
    """A hash of all that decides the trace's graph: operators, and types and shapes of the tensors."""
    text = f"{[(tensor.dtype, tensor.shape, tensor.stride()) for tensor in case.tensors]} {trace.code}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def are_ties(case: Case, found: Sequence[Array], wanted: Sequence[torch.Tensor]) -> bool:
    """Whether results agree but for the last, positions in rows of the case's first tensor, and these are of distinct
    elements that equal those wanted."""
    try:
        compare(case, found[:-1], wanted[:-1])
    except AssertionError:
        return False
    rows, ours, theirs = (np.atleast_1d(x) for x in (to_numpy(case.tensors[0]), found[-1], to_numpy(wanted[-1])))
    if ours.dtype != np.int64 or ours.shape != theirs.shape:
        return False
    return any(_lead_to_equals(rows.astype(np.float64), ours, theirs, axis) for axis in range(rows.ndim))


def _lead_to_equals(rows: Array, ours: Array, theirs: Array, axis: int) -> bool:
    if ours.ndim < rows.ndim:
        ours, theirs = np.expand_dims(ours, axis), np.expand_dims(theirs, axis)
    if np.delete(ours.shape, axis).tolist() != np.delete(rows.shape, axis).tolist():
        return False
    if not ours.size:
        return True
    if ours.min() < 0 or max(ours.max(), theirs.max()) >= rows.shape[axis]:
        return False
    distinct = (np.diff(np.sort(ours, axis), axis=axis) > 0).all()
    same = np.array_equal(np.take_along_axis(rows, ours, axis), np.take_along_axis(rows, theirs, axis), equal_nan=True)
    return bool(distinct and same)


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


@dataclass(frozen=True)
class Result:
    """How a case went: ``excluded`` or ``failed`` gives the reason; ``core`` names the core ATen operators of its
    trace, ``others`` the rest. Cases of one ``signature`` differ in the values of their tensors alone."""

    kind: tuple[str, str]
    number: int
    excluded: str = ""
    failed: str = ""
    core: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    signature: str = ""

    @property
    def passed(self) -> bool:
        return not self.excluded and not self.failed


def check(case: Case) -> Result:
    """Run one case through the interpreter."""
    core: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    excluded = failed = signature = ""
    try:
        wanted = expected(case)
        trace, used = traced_core(case)
        found = operators(trace)
        core = frozenset(str(operator) for operator in found if is_core(operator))
        others = frozenset(str(operator) for operator in found if not is_core(operator))
        if any(map(is_random, found)):
            raise Excluded("it draws random numbers")
        own = traced(case, trace, used)
        signature = signature_of(case, own)
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
    return Result(case.kind, case.number, excluded, failed, core, others, signature)


def difference(case: Case, found: Sequence[Array], wanted: Sequence[torch.Tensor], core: torch.fx.GraphModule) -> str:
    """What is wrong with the results, or nothing."""
    try:
        compare(case, found, wanted)
    except AssertionError as error:
        if UNSTABLE & {str(operator) for operator in operators(core)} and are_ties(case, found, wanted):
            return ""
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
