"""The part of ``docs/coverage.md`` that says which cases of ONNX's suites pass."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from luminal.frontends.onnx import control, operators, sequences
from luminal.frontends.onnx.reader import OPSETS, domain
from luminal.frontends.onnx.tensors import element_name
from tests import coverage_page
from tests.onnx_cases import MODELS, cases, everything, models


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


def page(interpreted: Mapping[str, str], compiled: Mapping[str, str]) -> str:
    """The page, from the reasons of failing of the cases that fail through the interpreter, and of those that pass it
    and fail compiled."""
    failed = {**interpreted, **compiled}

    def counts(names: Sequence[str]) -> str:
        return f"{_passed(names, failed)} / {len(names)} | {_passed(names, interpreted)}"

    rows: dict[Operator, list[str]] = defaultdict(list)
    for name, case in cases().items():
        rows[operator(name, case)].append(name)
    nodes = list(cases())
    lines = [
        coverage_page.ONNX,
        "",
        "`make coverage` (`python -m tests.onnx_suite --compiled`): the ONNX project's own suites for back ends "
        f"(onnx {onnx.__version__}), as compiled libraries of forty cases each, and through the interpreter "
        f"(`core/interp.py`). Of the suite of nodes **{_passed(nodes, failed)} of {len(nodes)} cases pass** compiled, "
        f"{_passed(nodes, interpreted)} through the interpreter. `make test` runs all that pass through the "
        "interpreter, and compiled a few of each theme and each sixteenth (`tests/test_onnx_compiled.py`).",
        "",
        "| suite | compiled | interpreter |",
        "|---|---|---|",
        f"| node | {counts(nodes)} |",
    ]
    for suite in MODELS:
        names = [name for name in models() if name.startswith(f"{suite}/")]
        shown = f"{suite}, the light models" if suite == "real" else suite
        lines.append(f"| {shown} | {counts(names)} |")
    lines += [
        "",
        "The fewest values without which a case does not import, those that decide shapes or axes, are given as "
        "`constants=`. Fourier transforms are compared with numpy's in double precision, as in the data that ONNX "
        "publishes (`exact_transforms` in `tests/onnx_cases.py`). An operator whose meaning is a *function* has no row "
        "in the importer's tables: the body that its schema gives is inlined. Opsets are the versions, from "
        f"{OPSETS[0]} to {OPSETS[-1]}, that changed the operator; types are those of the cases that pass.",
        "",
        "| operator | compiled | interpreter | opsets | by | types |",
        "|---|---|---|---|---|---|",
    ]
    for found, names in sorted(rows.items(), key=lambda row: (row[0].domain, row[0].name)):
        good = [name for name in names if name not in failed]
        kinds = ", ".join(sorted({kind for name in good for kind in element_types(cases()[name])}))
        means = found.means() if good else ""
        lines.append(f"| {found} | {counts(names)} | {found.versions()} | {means} | {kinds} |")
    reasons: dict[str, list[str]] = defaultdict(list)
    for name in everything():
        if name in failed:
            reasons[failed[name]].append(name)
    lines += ["", "## What fails, and why", ""]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(f"`{name.removeprefix('test_')}`" for name in sorted(names))
        lines.append(f"- **{len(names)}**: {reason.replace('|', '/')}<br>{shown}")
    return "\n".join(lines) + "\n"


def _passed(names: Sequence[str], failed: Mapping[str, str]) -> int:
    return sum(name not in failed for name in names)
