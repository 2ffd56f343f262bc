"""The ONNX project's own suites for back ends: whether each case passes, and the page and list that say so.

``python -m tests.onnx_suite`` runs all cases through the interpreter, and with ``--compiled`` those that pass as
compiled libraries, too, many in one; with ``--new`` only those that the list does not name as compiled. It writes its
part of ``docs/coverage.md`` and the list, ``tests/onnx_passed.txt``: the cases that pass through the interpreter, with
``interpreted`` behind those that pass nowhere else. With ``--only text``, for cases whose name holds the text, it
writes nothing.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import luminal
from luminal.codegen import cpp
from luminal.core import interp, types
from luminal.core.decompose import random
from luminal.core.errors import InputError, LuminalError, ShapeError, UnsupportedError
from luminal.core.ir import Graph
from luminal.core.traverse import topological
from luminal.frontends.onnx import importer
from luminal.module import Module
from tests import coverage_page, onnx_page
from tests.onnx_cases import everything
from tests.workers import Lost, Progress, Worker, each

Array = np.ndarray[Any, Any]

LIST = Path(__file__).with_name("onnx_passed.txt")

# The elements of a value that may decide shapes or axes.
DECIDES = 64
# Cases that are compiled into one library, and what that may take: seconds, and bytes of address space.
TOGETHER = 40
SECONDS = 300
MEMORY = 16 << 30


DRAWS = "it expects the numbers that numpy's generator draws; tests/test_random.py tests the distributions instead"


def listed(compiled: bool = False) -> list[str]:
    """The cases that pass through the interpreter; where ``compiled``, those of them that pass compiled, too."""
    rows = [line.split() for line in LIST.read_text().splitlines()]
    return [name for name, *mark in rows if not (compiled and mark)]


# ---- one case ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """A case, imported with one of its data sets."""

    graph: Graph
    inputs: dict[str, Array]
    expected: list[Array]


def instances(case: Any) -> Iterator[Instance]:
    """The case with each of its data sets."""
    weights = {tensor.name for tensor in case.model.graph.initializer}
    names = [value.name for value in case.model.graph.input if value.name not in weights]
    for arguments, expected in case.data_sets:
        inputs = {name: argument(value) for name, value in zip(names, arguments, strict=False)}
        graph = load(case.model, inputs)
        left = {node.attr.name for node in graph.inputs}
        given = {name: value for name, value in inputs.items() if name in left}
        yield Instance(graph, given, [array(value) for value in flattened(expected)])


def load(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Graph:
    """The model with the fewest values fixed: sequences, and small tensors without which it does not import."""
    fixed = {name: value for name, value in inputs.items() if not isinstance(value, np.ndarray)}
    try:
        return importer.load(model, constants=fixed, dims=empty(model, inputs))
    except (InputError, ShapeError):
        small = [name for name in inputs.keys() - fixed.keys() if inputs[name].size <= DECIDES]
    fixed |= {name: inputs[name] for name in small}
    graph = importer.load(model, constants=fixed)
    for name in sorted(small):
        fewer = {other: value for other, value in fixed.items() if other != name}
        try:
            graph, fixed = importer.load(model, constants=fewer), fewer
        except LuminalError:
            continue
    return graph


def empty(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Bounds of the symbolic sizes that are 0 in ``inputs``: those that nobody declares are taken to be 1 or more."""
    found: dict[str, tuple[int, int]] = {}
    for value in model.graph.input:
        given = inputs.get(value.name)
        if isinstance(given, np.ndarray):
            sizes = zip(value.type.tensor_type.shape.dim, given.shape, strict=False)
            found |= {size.dim_param: (0, 1024) for size, extent in sizes if size.dim_param and extent == 0}
    return found


def flattened(values: Sequence[Any]) -> list[Any]:
    """The tensors of sequences one by one."""
    return [part for value in values for part in (value if isinstance(value, list) else [value])]


def check(case: Any) -> None:
    """Run the case through the interpreter.

    Raises LuminalError where it does not import or holds types that libraries do not have, AssertionError where a
    result differs.
    """
    for instance in instances(case):
        graph = instance.graph
        outputs = interp.run(graph, instance.inputs).outputs[: len(graph.returned)]
        try:
            compare_all(outputs, instance.expected, case)
        except AssertionError:
            if random.STATE not in {state.name for state in graph.states}:
                raise
            raise AssertionError(DRAWS) from None
        for node in topological(graph.results):
            cpp.ctype(node.dtype)


def argument(value: Any) -> Any:
    """A tensor, a sequence of them, or nothing."""
    if isinstance(value, list):
        return [array(part) for part in value]
    return None if value is None else array(value)


def array(value: Any) -> Array:
    """Cases of types that numpy has not by itself come as TensorProto."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def compare_all(found: Sequence[Array], wanted: Sequence[Array], case: Any) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        compare(a, b, case.rtol, case.atol)


def compare(found: Array, wanted: Array, rtol: float, atol: float) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (found.dtype, found.shape, wanted.dtype)
    dtype = types.from_numpy(found.dtype)
    if not dtype.is_float:
        np.testing.assert_array_equal(found, wanted)
        return
    # The cases' own numpy code rounds 16-bit values elsewhere than the operators that it spells out.
    rtol = max(rtol, 2 * dtype.eps) if dtype.bits <= 16 else rtol
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol, atol)


# ---- many cases in one library -------------------------------------------------------------------------------------


def run_compiled(names: Sequence[str]) -> dict[str, str]:
    """Compile the cases into one library, an entry for each data set, and run it: the reason of failing for each case
    whose results differ."""
    known = everything()
    parts: dict[str, tuple[str, Instance]] = {}
    for position, name in enumerate(names):
        for number, instance in enumerate(instances(known[name])):
            parts[f"c{position}_{number}"] = name, instance
    module = luminal.compile({entry: part.graph for entry, (_, part) in parts.items()}, name="cases")
    assert isinstance(module, Module)
    failed: dict[str, str] = {}
    for entry, (name, part) in parts.items():
        try:
            compare_all(list(module[entry].run(part.inputs).values()), part.expected, known[name])
        except (AssertionError, ValueError, RuntimeError) as error:
            failed[name] = one_line(error)
    return failed


def check_compiled(names: Sequence[str]) -> None:
    """AssertionError names the cases that fail in one library."""
    failed = run_compiled(names)
    assert not failed, "\n".join(f"{name}: {reason}" for name, reason in failed.items())


# ---- all of them ---------------------------------------------------------------------------------------------------


def one_line(error: Exception) -> str:
    """The reason that an error gives, without what only this case has."""
    if isinstance(error, UnsupportedError) and error.places:
        return "; ".join(dict.fromkeys(f"{place.op}: {place.advice}" for place in error.places))
    text = " ".join(str(error).split())
    return text if isinstance(error, LuminalError) or text == DRAWS else f"{type(error).__name__}: {text}"[:160]


def run_all(names: Iterable[str]) -> dict[str, str]:
    """Run cases through the interpreter: the reason of failing for each that fails, by name."""
    failed: dict[str, str] = {}
    for name in names:
        try:
            check(everything()[name])
        except Exception as error:  # noqa: BLE001 - a crash is a line of the report
            failed[name] = one_line(error)
    return failed


def compile_all(names: Sequence[str], jobs: int) -> dict[str, str]:
    """The reason of failing for each that fails compiled, ``jobs`` libraries at a time; says how far it is."""
    small = [name for name in names if not name.startswith("real/")]
    tasks = [small[start : start + TOGETHER] for start in range(0, len(small), TOGETHER)]
    tasks += [[name] for name in names if name.startswith("real/")]
    failed: dict[str, str] = {}
    progress = Progress(len(tasks), "libraries")
    for _, found in each(tasks, failures, [Worker(run_task, SECONDS, MEMORY) for _ in range(jobs)]):
        failed |= {name: f"compiled: {reason}" for name, reason in found.items()}
        progress.step(f"{len(failed)} cases fail")
    return failed


def run_task(names: list[str]) -> Iterator[dict[str, str] | str]:
    """The reasons of failing by name, or the one of having none, once."""
    try:
        yield run_compiled(names)
    except Exception as error:  # noqa: BLE001 - a crash is a line of the report
        yield one_line(error)


def failures(worker: Worker[list[str]], names: list[str]) -> dict[str, str]:
    """The reason of failing for each that fails. Where they do not compile together, or the process is lost with them,
    they are halved until it is one."""
    try:
        (found,) = worker.items(names)
    except Lost as lost:
        found = str(lost)
    if isinstance(found, dict):
        return found
    if len(names) == 1:
        return {names[0]: found}
    half = len(names) // 2
    return failures(worker, names[:half]) | failures(worker, names[half:])


def main() -> int:
    """The exit code says whether a case that passes through the interpreter fails where it is compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--compiled", action="store_true", help="compile the cases that pass as well")
    parser.add_argument("--new", action="store_true", help="compile those of them that are not listed as compiled yet")
    parser.add_argument("--jobs", type=int, default=1, help="libraries that are compiled at a time")
    options = parser.parse_args()
    names = [name for name in sorted(everything()) if options.only in name]
    interpreted = run_all(names)
    passed = [name for name in names if name not in interpreted]
    known = [] if options.compiled else listed(compiled=True)
    left = [name for name in passed if name not in known]
    if options.compiled or options.new:
        compiled = compile_all(left, options.jobs)
    else:
        compiled = dict.fromkeys(left, "not compiled yet")
    failed = interpreted | compiled
    for name, reason in failed.items():
        print(f"{name}: {reason}")
    if not options.only:
        LIST.write_text("".join(f"{name} interpreted\n" if name in compiled else f"{name}\n" for name in passed))
        coverage_page.write(onnx_page.page(interpreted, compiled))
    print(f"{len(passed)} of {len(names)} pass through the interpreter, {len(names) - len(failed)} compiled")
    print(f"{seconds():.0f} s of CPU time")
    return int((options.compiled or options.new) and bool(compiled))


def seconds() -> float:
    """The CPU time of this process and all that have ended which it or they started."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    sys.exit(main())
