"""Bisection to the rule and the transform that changed a value, on mistakes planted in each, and what is written down
of them."""

import json
import shlex
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from typer.testing import CliRunner

import luminal
from luminal.cli import app
from luminal.comparison import bisection, kernels, survival
from luminal.comparison.report import Report
from luminal.core import interp, ir, ops, rewrite, traverse
from luminal.core import target as targets
from luminal.core.errors import ModelError
from luminal.core.ir import Graph, Node
from luminal.core.origins import Origin
from luminal.core.pipeline import compile_graph
from luminal.core.rules import RULES
from luminal.core.rules.pattern import Rule
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.transform.loops import Merge, Vectorise
from luminal.core.types import f32
from luminal.module import Module
from tests.comparison_models import classifier, saved

DIMS = {"batch": (1, 16)}
TARGET = targets.parse("avx2")


def _steps() -> Graph:
    """``y = ((x * 1) / 2) * 1 + ...``: each of four operators is simplified by a rule."""
    x = ir.input_("x", (5, 7), f32)
    origins: ir.Origins = {}
    y = x
    steps: dict[str, Callable[[Node], Node]] = {
        "once": lambda y: y * 1.0,
        "halved": lambda y: y / 2.0,
        "sine": lambda y: ir.unary(ops.SIN, y),
        "again": lambda y: y * 1.0,
        "an eighth": lambda y: y / 8.0,
    }
    for name, step in steps.items():
        with ir.originating(origins, Origin("Step", name)):
            y = step(y)
    return Graph("steps", (x,), (("y", y),), origins=origins)


def test_the_first_rewrites_alone_are_made() -> None:
    graph = _steps()
    x = {"x": np.linspace(-2, 2, 35, dtype=np.float32).reshape(5, 7)}
    with rewrite.replaying() as every:
        whole = rewrite.simplify(graph, RULES)
    assert every.made >= 4 and every.last is not None
    sizes = []
    for limit in range(every.made + 1):
        with rewrite.replaying(limit) as replay:
            made = rewrite.simplify(graph, RULES)
        assert replay.made == limit
        np.testing.assert_array_equal(interp.run(made, x).outputs[0], interp.run(graph, x).outputs[0])
        sizes.append(sum(node.op in (ops.DIV, ops.MUL) for node in traverse.topological(made.results)))
    assert sizes[0] == 4 and made.roots == whole.roots
    with rewrite.replaying(0):  # nothing is left of it afterwards
        pass
    assert rewrite.simplify(graph, RULES).roots == whole.roots


def _wrong(rule: Rule) -> Rule:
    """The rule with a result that is 1.5 times as large."""

    def larger(node: Node) -> Node | None:
        found = rule.rewrite(node)
        return None if found is None else found * 1.5

    return replace(rule, rewrite=larger)


def test_the_rule_is_named_and_the_operator_it_was_applied_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from luminal.core import pipeline

    wrong = tuple(_wrong(rule) if rule.equation.startswith("x / c = ") else rule for rule in RULES)
    monkeypatch.setattr(pipeline, "RULES", wrong)
    report = luminal.diff(_steps(), target=TARGET, save=tmp_path)
    finding = report.finding
    assert finding is not None and finding.change is not None and finding.origin is not None
    assert finding.stage == "simplification" and finding.origin.name == "halved"
    assert finding.change.kind == "rule" and finding.change.name == "x / c = x * (1/c), c a power of two"
    assert 0 < finding.change.number < finding.change.count
    before, after = (float(text.rpartition(" ")[2]) for text in (finding.change.before, finding.change.after))
    assert after == pytest.approx(1.5 * before)
    assert "changed by: rule x / c" in str(report)


def test_bisection_finds_every_place() -> None:
    for first in range(1, 40):
        asked: list[int] = []

        def fails(k: int, first: int = first, asked: list[int] = asked) -> bool:
            asked.append(k)
            return k >= first

        assert bisection.least(39, fails) == first and len(asked) <= 6


def _wrong_stores(monkeypatch: pytest.MonkeyPatch, changed: Callable[[ln.Store], ln.Store]) -> None:
    """``Vectorise`` that changes what its loop stores."""
    done = Vectorise.__call__

    def wrong(self: Vectorise, nest: ln.LoopNest) -> ln.LoopNest:
        def moved(statement: ln.Statement) -> ln.Statement:
            if isinstance(statement, ln.Loop):
                return replace(statement, body=tuple(map(moved, statement.body)))
            return changed(statement) if isinstance(statement, ln.Store) else statement

        found = done(self, nest)
        return replace(found, body=tuple(map(moved, found.body)))

    monkeypatch.setattr(Vectorise, "__call__", wrong)


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Vectorise`` that doubles what its loop stores."""
    _wrong_stores(monkeypatch, lambda s: replace(s, value=ln.apply(ops.ADD, (s.value, s.value), None, f32)))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Vectorise`` that stores beyond all memory."""
    _wrong_stores(monkeypatch, lambda s: replace(s, offset=s.offset + (1 << 45)))


def test_the_transform_is_named(doubled: None, tmp_path: Path) -> None:
    x = ir.input_("x", (6, 40), f32)
    origins: ir.Origins = {}
    with ir.originating(origins, Origin("Sin", "wave")):
        y = ir.unary(ops.SIN, x)
    report = luminal.diff(Graph("wave", (x,), (("y", y),), origins=origins), target=TARGET, save=tmp_path)
    finding = report.finding
    assert finding is not None and finding.change is not None and finding.origin is not None
    assert finding.stage == "scheduling" and finding.origin.name == "wave"
    assert finding.change.kind == "transform" and finding.change.name.startswith("Vectorise(")
    assert 1 <= finding.change.number <= finding.change.count


def test_a_library_that_ends_its_process_is_found_too(elsewhere: None, tmp_path: Path) -> None:
    x = ir.input_("x", (6, 40), f32)
    y = ir.unary(ops.SIN, x)
    graph = Graph("wave", (x,), (("y", y),), origins={y: (Origin("Sin", "wave"),)})
    report = luminal.diff(graph, target=TARGET, save=tmp_path)
    assert not report.ok and "Segmentation fault" in report.trials[0].rows[0].problem
    finding = report.finding
    assert finding is not None and finding.change is not None and finding.origin is not None
    assert finding.origin.name == "wave" and finding.change.name.startswith("Vectorise(")


def test_results_are_those_of_the_run_that_the_other_process_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more, in this process, the library might end it."""

    def ends(module: Module, inputs: Any) -> Any:
        raise AssertionError("the library ran in this process")

    monkeypatch.setattr(Module, "run", ends)
    x = ir.input_("x", (6, 40), f32)
    assert luminal.diff(Graph("wave", (x,), (("y", ir.unary(ops.SIN, x)),)), target=TARGET).ok


class Asked:
    """In the place of the process that tries libraries: it is ready, and answers each run after ``seconds``, if ever.
    It notes how many ask at once."""

    def __init__(self, seconds: float | None) -> None:
        self.connection, self.seconds = self, seconds
        self.asked: list[object] = []
        self.most = self.stops = 0

    def send(self, request: object) -> None:
        self.asked.append(request)
        self.most = max(self.most, len(self.asked))

    def poll(self, limit: float) -> bool:
        if self.asked[-1] is not None:
            time.sleep(min(limit, self.seconds or limit))
        return self.asked[-1] is None or self.seconds is not None

    def recv(self) -> None:
        self.asked.pop()

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture(scope="module")
def sine() -> Module:
    x = ir.input_("x", (6,), f32)
    made = luminal.compile(Graph("wave", (x,), (("y", ir.unary(ops.SIN, x)),)), target=TARGET)
    assert isinstance(made, Module)
    return made


def test_a_run_that_takes_long_is_no_fault_of_the_library(sine: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Asked(None)
    monkeypatch.setattr(survival, "_process", process)
    monkeypatch.setenv("LUMINAL_DIFF_LIMIT", "0.25")
    with pytest.raises(ModelError, match=r"wave: a run was not done after 0.25 seconds.* set LUMINAL_DIFF_LIMIT"):
        survival.fault(sine, {"x": np.zeros(6, np.float32)})
    assert process.stops == 1  # what hangs does not stay


def test_threads_that_try_libraries_take_turns(sine: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Asked(0.01)
    monkeypatch.setattr(survival, "_process", process)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: survival.fault(sine, {"x": np.zeros(6, np.float32)}), range(8)))
    assert found == [""] * 8 and process.most == 1 and process.stops == 0


def test_nothing_agrees_with_the_opposite() -> None:
    for values in (np.array([0.0, np.nan, np.inf]), np.array([0, 5], np.int8), np.array([True, False]),
                   np.array(["", "a"], object), np.array([1j, np.nan])):  # fmt: skip
        other = survival.opposite(values)
        assert other.dtype == values.dtype and other.shape == values.shape
        assert not any(a == b or (a != a and b != b) for a, b in zip(values, other, strict=True))


def test_kernels_of_a_right_compiler_are_right() -> None:
    graph = luminal.read(classifier(), dims=DIMS)
    program = compile_graph(graph, TARGET)
    assert kernels.culprit(program, TARGET, {"batch": 3}) is None
    for kernel in program.kernels:
        made = kernels.prefixes(kernel.scheduled)
        assert made[-1][1] == kernel.nest and len(made) == len(kernel.scheduled.schedule) + 1
    assert any(isinstance(t, Merge | Vectorise) for k in program.kernels for t in k.scheduled.schedule)


def test_what_another_nest_overwrote_is_tried_alone(doubled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nests run in one process, where one that writes beyond its arrays changes what others computed: here all of a
    process but the last compute nonsense."""
    done = kernels._Runs.written

    def overwritten(runs: Any, wanted: Any) -> Any:
        found = done(runs, wanted)
        return [{k: v + 7 for k, v in x.items()} for x in found[:-1]] + found[-1:]

    monkeypatch.setattr(kernels._Runs, "written", overwritten)
    x = ir.input_("x", (6, 40), f32)
    graph = Graph("waves", (x,), (("y", ir.unary(ops.SIN, x)), ("z", ir.reduce(ops.SUM_REDUCE, x, [0]))))
    program = compile_graph(graph, TARGET)
    found = kernels.culprit(program, TARGET, {})
    assert found is not None and found.transform is not None and found.transform.startswith("Vectorise(")


# ---- what is written down --------------------------------------------------------------------------------------------


@pytest.fixture
def no_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simplification that takes sums for their first terms."""
    from luminal.core import pipeline

    simplify = pipeline.simplify

    def made(node: Node, operands: Any) -> Node:
        return operands[0] if node.op is ops.ADD else traverse.rebuild(node, operands)

    def wrong(graph: Graph, rules: Any) -> Graph:
        found = simplify(graph, rules)
        return found.computing(rewrite.remade(found.roots, dict(found.origins), made))

    monkeypatch.setattr(pipeline, "simplify", wrong)


def test_the_reproducer_reproduces(no_bias: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = luminal.diff(saved(classifier(), tmp_path), dims=DIMS, target="avx2", save=tmp_path / "found")
    assert report.finding is not None and report.finding.origin is not None
    assert report.finding.origin.name == "bias"
    program, *words = shlex.split(report.finding.command)
    assert program == "luminal" and (tmp_path / "found" / "command.txt").read_text().strip() == report.finding.command
    (node,) = onnx.load(tmp_path / "found" / "model.onnx").graph.node
    assert node.name == "bias"
    page = tmp_path / "report.html"
    failed = CliRunner().invoke(app, [*words, "--json", "--html", str(page)])
    assert failed.exit_code == 1, failed.output
    found = json.loads(failed.stdout)
    assert found["verdict"] == "differs" and found["finding"]["operator"] == "Add 'bias'"
    text = page.read_text()
    assert "Add &#39;bias&#39;" in text and "http" not in text and "differs" in text
    monkeypatch.undo()
    right = CliRunner().invoke(app, words)
    assert right.exit_code == 0, right.output


def test_the_reproducer_of_a_module_is_a_program(no_bias: None, tmp_path: Path) -> None:
    report = luminal.diff(torch.nn.Linear(5, 3), (torch.randn(2, 5),), target="avx2", save=tmp_path)
    assert report.finding is not None and "model.pt2" in report.finding.command
    assert CliRunner().invoke(app, shlex.split(report.finding.command)[1:]).exit_code == 1


def test_reports_hold_what_json_cannot() -> None:
    x = ir.input_("x", (1,), f32)
    report = luminal.diff(Graph("inf", (x,), (("y", x / 0.0),)), {"x": np.ones(1, np.float32)}, target="avx2")
    assert isinstance(report, Report)
    json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert report.html().startswith("<!DOCTYPE html>")
