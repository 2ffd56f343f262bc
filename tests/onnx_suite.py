"""The ONNX project's own node tests: what each case is, whether it passes, and the page and list that say so.

``python -m tests.onnx_suite`` runs all of them through the interpreter and writes ``docs/coverage.md`` and
``tests/onnx_backend_passed.txt``; with ``--compiled`` it runs those that pass as compiled libraries and prints what
differs (``--only text`` for a part of them).
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

import luminal
from luminal.codegen import cpp
from luminal.core import interp, types
from luminal.core.errors import InputError, LuminalError, ShapeError, UnsupportedError
from luminal.core.ir import Graph, topological
from luminal.frontends.onnx import control, importer, operators, sequences
from luminal.frontends.onnx.reader import OPSETS, domain
from luminal.frontends.onnx.tensors import element_name
from luminal.module import Module
from tests import coverage_page

Array = np.ndarray[Any, Any]

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "onnx_backend_passed.txt"

# A value that decides shapes is given when the model is compiled, and such values are small.
DECIDES = 64
# Cases that are compiled into one library.
TOGETHER = 40


@lru_cache
def cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases' own numpy code overflows on purpose
        with exact_transforms():
            return {case.name: case for case in collect_testcases(None) if case.data_sets is not None}


def exact_transforms() -> AbstractContextManager[Any]:
    """Within this numpy's Fourier transforms are in double precision, as they were when ONNX wrote the data that it
    publishes. numpy 2 rounds those of float32 at each step: ``test_dft_inverse`` would expect 1.9e-7, its tolerance
    being 1e-7, where the sum that defines the transform is exactly 0, and 1e-15 is published."""
    names = ["fft", "ifft", "rfft", "irfft"]
    return mock.patch.multiple(np.fft, **{name: partial(in_double, getattr(np.fft, name)) for name in names})


def in_double(transform: Callable[..., Array], x: Array, *args: Any, **options: Any) -> Array:
    return transform(np.asarray(x, np.complex128 if np.iscomplexobj(x) else np.float64), *args, **options)


def listed() -> list[str]:
    return LIST.read_text().split() if LIST.exists() else []


# ---- one case ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instance:
    """A case, imported with one of its data sets."""

    graph: Graph
    inputs: dict[str, Array]
    expected: list[Array]


def instances(case: Any, prefix: str = "") -> Iterator[Instance]:
    """The case with each of its data sets; ``prefix`` is put before the names of inputs and outputs."""
    model = onnx.compose.add_prefix(case.model, prefix) if prefix else case.model
    for arguments, expected in case.data_sets:
        names = [value.name for value in model.graph.input]
        inputs = {name: argument(value) for name, value in zip(names, arguments, strict=False)}
        graph = load(model, inputs)
        left = {node.attr.name for node in graph.inputs}
        given = {name: value for name, value in inputs.items() if name in left}
        yield Instance(graph, given, [array(value) for value in flattened(expected)])


def load(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Graph:
    held = {name: value for name, value in inputs.items() if not isinstance(value, np.ndarray)}
    try:
        return importer.load(model, constants=held)
    except (InputError, ShapeError):
        small = {k: v for k, v in inputs.items() if k not in held and v.size <= DECIDES and v.ndim <= 1}
        return importer.load(model, constants={**held, **small})


def flattened(values: Sequence[Any]) -> list[Any]:
    """The tensors of sequences one by one."""
    return [part for value in values for part in (value if isinstance(value, list) else [value])]


def check(case: Any) -> None:
    """Run the case through the interpreter.

    Raises LuminalError where it does not import or holds types that libraries do not have, AssertionError where a
    result differs.
    """
    for instance in instances(case):
        outputs = interp.run(instance.graph, instance.inputs).outputs[: len(instance.graph.returned)]
        compare_all(outputs, instance.expected, case)
        for node in topological(instance.graph.results):
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


def check_compiled(names: Sequence[str]) -> None:
    """Compile the cases into one library, an entry for each data set, and run it; AssertionError names the cases whose
    results differ."""
    parts: dict[str, tuple[str, Instance]] = {}
    for position, name in enumerate(names):
        for number, instance in enumerate(instances(cases()[name], f"c{position}_")):
            parts[f"{name}_{number}"] = name, instance
    module = luminal.compile({entry: part.graph for entry, (_, part) in parts.items()}, name="cases")
    assert isinstance(module, Module)
    failed: list[str] = []
    for entry, (name, part) in parts.items():
        try:
            compare_all(list(module[entry].run(part.inputs).values()), part.expected, cases()[name])
        except (AssertionError, ValueError, RuntimeError) as error:
            failed.append(f"{name}: {one_line(error)}")
    assert not failed, "\n".join(failed)


def run_compiled(names: Sequence[str]) -> dict[str, str]:
    """The reason of failing for each case that fails where it is compiled, together with others or alone, by name."""
    try:
        check_compiled(names)
    except (LuminalError, AssertionError, ValueError, RuntimeError) as error:
        if len(names) == 1:
            return {names[0]: one_line(error)}
        half = len(names) // 2
        return run_compiled(names[:half]) | run_compiled(names[half:])
    return {}


# ---- the page ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operator:
    """An operator by its domain and name."""

    domain: str
    name: str

    def __str__(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name

    def versions(self) -> str:
        """The opset versions, among those that are read, since which the operator has another specification."""
        read = OPSETS if not self.domain else range(1, 100)
        found = {
            schema.since_version
            for version in read
            if onnx.defs.has(self.name, version, self.domain)
            for schema in [onnx.defs.get_schema(self.name, version, self.domain)]
        }
        return ", ".join(map(str, sorted(found)))

    def means(self) -> str:
        """What gives the operator its meaning: the importer and its tables, or the function body of its schema."""
        own = {*control.HANDLERS, *sequences.HANDLERS} if not self.domain else set()
        return "table" if self.name in own | operators.names(self.domain) else "function"


def operator(name: str, case: Any) -> Operator:
    """The operator that a case is about; of a function body that was spelled out, the function's."""
    whole = re.sub(r"_expanded(_ver\d+)?$", "", name)
    nodes = cases()[whole].model.graph.node if whole in cases() else case.model.graph.node
    node = next((node for node in nodes if node.op_type != "Constant"), nodes[0])
    return Operator(domain(node.domain), node.op_type)


def element_types(case: Any) -> set[str]:
    values = [*case.model.graph.input, *case.model.graph.output]
    return {element_name(v.type.tensor_type.elem_type) for v in values if v.type.HasField("tensor_type")}


def one_line(error: Exception) -> str:
    """The reason that an error gives, without what only this case has."""
    if isinstance(error, UnsupportedError) and error.places:
        return "; ".join(dict.fromkeys(f"{place.op}: {place.advice}" for place in error.places))
    text = " ".join(str(error).split())
    return text if isinstance(error, LuminalError) else f"{type(error).__name__}: {text}"[:160]


def run_all(names: Iterable[str]) -> dict[str, str]:
    """Run cases through the interpreter: the reason of failing for each that fails, by name."""
    failed: dict[str, str] = {}
    for name in names:
        try:
            check(cases()[name])
        except Exception as error:  # noqa: BLE001 - a crash is a line of the report
            failed[name] = one_line(error)
    return failed


def page(failed: Mapping[str, str]) -> str:
    rows: dict[Operator, list[str]] = defaultdict(list)
    for name, case in cases().items():
        rows[operator(name, case)].append(name)
    passed = len(cases()) - len(failed)
    lines = [
        "# Coverage",
        "",
        "`make coverage`: the ONNX project's own node tests, run through the interpreter (`core/interp.py`), which is "
        f"what compiled libraries are tested against. **{passed} of {len(cases())} cases pass** "
        f"(onnx {onnx.__version__}), all of element types that libraries have, too.",
        "",
        "Values that decide shapes are given as `constants=`. An operator whose meaning is a *function* has no row in "
        "the importer's tables: the body that its schema gives is inlined. Opsets are the versions, from "
        f"{OPSETS[0]} to {OPSETS[-1]}, that changed the operator; types are those of the cases that pass.",
        "",
        "| operator | cases | opsets | by | types |",
        "|---|---|---|---|---|",
    ]
    for found, names in sorted(rows.items(), key=lambda row: (row[0].domain, row[0].name)):
        good = [name for name in names if name not in failed]
        kinds = ", ".join(sorted({kind for name in good for kind in element_types(cases()[name])}))
        means = found.means() if good else ""
        lines.append(f"| {found} | {len(good)} / {len(names)} | {found.versions()} | {means} | {kinds} |")
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, reason in failed.items():
        reasons[reason].append(name)
    lines += ["", "## What fails, and why", ""]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(f"`{name.removeprefix('test_')}`" for name in sorted(names))
        lines.append(f"- **{len(names)}**: {reason.replace('|', '/')}<br>{shown}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The exit code says whether a listed case fails where it is compiled."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--compiled", action="store_true", help="compile the listed cases instead")
    options = parser.parse_args()
    names = [name for name in sorted(cases()) if options.only in name]
    if options.compiled:
        known = set(listed())
        names = [name for name in names if name in known]
        failed: dict[str, str] = {}
        for start in range(0, len(names), TOGETHER):
            failed |= run_compiled(names[start : start + TOGETHER])
    else:
        failed = run_all(names)
    for name, reason in failed.items():
        print(f"{name}: {reason}")
    print(f"{len(names) - len(failed)} of {len(names)} pass")
    if options.compiled:
        return int(bool(failed))
    if not options.only:
        LIST.write_text("".join(f"{name}\n" for name in names if name not in failed))
        coverage_page.write(page(failed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
