"""What a model is made of, beside the tables of docs/coverage.md."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper

from luminal.coverage import Coverage, coverage
from tests import coverage_page, onnx_models


def nodes(found: Coverage) -> dict[tuple[str, int | None], int]:
    return {(operator.name, operator.opset): operator.nodes for operator in found.operators}


def test_the_tables_are_those_of_the_page() -> None:
    """Else: python -m tests.coverage_page."""
    assert coverage_page.DATA.read_text() == coverage_page.tables()


def test_the_tables_hold_the_counts_of_the_interpreter() -> None:
    """Not those of the compiled cases, of which the page has a table too."""
    page = coverage_page.PAGE.read_text()
    found = json.loads(coverage_page.DATA.read_text())
    headers = {"onnx": "| operator | compiled | interpreter |", "torch": "| operator | cases | types | by |"}
    for suite, header in headers.items():
        rows = page.split(header)[1].split("\n\n")[0].splitlines()[2:]
        cells = [[cell.strip() for cell in row.split("|")] for row in rows]
        assert found[suite] == {name: [int(count) for count in cases.split(" / ")] for _, name, cases, *_ in cells}
    assert any(passed < every for passed, every in found["torch"].values())


def parsed(text: str) -> onnx.ModelProto:
    header = '<ir_version: 10, opset_import: ["" : 18, "own" : 1, "com.microsoft" : 1]>'
    return onnx.parser.parse_model(f"{header} {text}")


def test_graphs_inside_and_functions_count_as_they_are_written() -> None:
    found = coverage(
        parsed("""
        test (float[2, 3] x, bool c) => (y) {
          a = If (c) <
            then_branch: graph = yes () => (p) { p = Relu (x) },
            else_branch: graph = no () => (q) { q = Neg (x) }
          >
          b = own.Twice (a)  d = own.Twice (b)  y = com.microsoft.BiasGelu (d, a)
        }
        <domain: "own", opset_import: ["" : 12]> Twice (v) => (w) { u = Relu (v)  w = Add (u, v) }
        """)
    )
    assert nodes(found) == {
        ("Add", 7): 1, ("If", 16): 1, ("Neg", 13): 1, ("Relu", 14): 1, ("Relu", 6): 1, ("com.microsoft.BiasGelu", 1): 1,
    }  # fmt: skip
    assert found.places == ()


def test_what_is_not_supported_is_said_of_its_operator() -> None:
    proto = onnx_models.model(
        [
            helper.make_node("Perhaps", ["x"], ["a"], name="first"),
            helper.make_node("Perhaps", ["a"], ["b"], name="second"),
            helper.make_node("Abs", ["b"], ["y"]),
        ],
        [onnx_models.declared("x", np.ones(3, np.float32))],
        ["y"],
    )
    absolute, perhaps = coverage(proto).operators
    assert absolute.cases == (1, 1) and absolute.places == ()
    assert perhaps.cases is None and [place.node for place in perhaps.places] == ["first", "second"]


class Choice(torch.nn.Module):
    def forward(self, x: torch.Tensor, c: torch.Tensor) -> Any:
        return torch.cond(c, torch.sin, lambda v: torch.cos(torch.cos(v)), (x.relu(),))


def test_programs_of_pytorch() -> None:
    program = torch.export.export(Choice(), (torch.ones(3), torch.tensor(True))).run_decompositions()
    found = coverage(program)
    assert nodes(found) == {
        ("aten.cos.default", None): 2, ("aten.relu.default", None): 1, ("aten.sin.default", None): 1, ("cond", None): 1,
    }  # fmt: skip
    cases = {operator.name: operator.cases for operator in found.operators}
    assert cases["cond"] is None
    passed, all_ = cases["aten.relu.default"] or (0, 0)
    assert 0 < passed <= all_
