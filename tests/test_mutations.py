"""Planted faults (``tests.mutations``): what is changed, that it is planted, and that diff names one of each group."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import luminal
from luminal.codegen import cpp, dialect_cpp
from luminal.comparison import bisection
from luminal.comparison.oracle import Oracle
from luminal.core import ir, ops
from luminal.core.ir import Graph
from luminal.core.origins import Origin
from luminal.core.rules import arithmetic
from luminal.core.schedule.transform import loops
from luminal.core.types import f32
from tests import mutated_models, mutations
from tests.mutations import Mutation

SOURCE = """
def f(a, b, c):
    if a and b:
        c.write(a, b)
    x = [k for k in c if k]
    c += (a, b)
    return x[0] - a[b], min(a, b)
"""


def test_every_kind_of_change() -> None:
    (function,) = (f for _, f in mutations.functions(ast.parse(SOURCE)))
    words = [how for how, *_ in mutations.changes(function)]
    assert {span for how, _, span in mutations.changes(function) if "c.write" in how} == {(4, 4)}
    for part in (
        "the condition 'a and b' is True", "the condition 'a and b' is False", "'b' is dropped of 'a and b'",
        "'c.write(a, b)' is skipped", "the last arguments are swapped in 'min(a, b)'", "the condition 'k' is dropped",
        "'c += (a, b)' is skipped", "operands are swapped in 'x[0] - a[b]'", "the index is one more in 'x[0]'",
        "the last element of '(a, b)' is left out",
    ):  # fmt: skip
        assert part in words
    for number in range(len(words)):  # each gives another function, which Python accepts
        tree = ast.parse(SOURCE)
        (changed,) = (f for _, f in mutations.functions(tree))
        mutations.changes(changed)[number][1]()
        compile(ast.fix_missing_locations(tree), "changed", "exec")
        assert ast.dump(tree) != ast.dump(ast.parse(SOURCE)), words[number]


def _the(file: str, function: str, how: str) -> Mutation:
    (found,) = (m for m in mutations.mutations() if (m.file, m.function, m.how) == (file, function, how))
    return found


def test_mutations_are_of_every_group_and_the_same_every_time() -> None:
    found = mutations.mutations()
    assert found == mutations.mutations() and len(found) > 1000
    assert {mutation.group for mutation in found} == {"rule", "transform", "dialect"}


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts the code of the functions back in which these tests plant faults."""
    functions = (arithmetic._reciprocal_of_power_of_two, loops.Split.__call__, dialect_cpp._round, cpp.literal)
    kept = [function.__code__ for function in functions]
    yield
    for function, code in zip(functions, kept, strict=True):
        function.__code__ = code


def test_a_planted_rule_is_found_and_named(restored: None) -> None:
    planted = _the("core/rules/arithmetic.py", "_reciprocal_of_power_of_two", "operands are swapped in '1.0 / divisor'")
    x = ir.input_("x", (5, 7), f32)
    y = ir.unary(ops.SIN, x) / 4.0
    graph, inputs = Graph("quarter", (x,), (("y", y),)), {"x": np.linspace(-2, 2, 35, dtype=np.float32).reshape(5, 7)}
    oracle = Oracle(graph, inputs)
    target = mutations.TARGET
    assert bisection.changed(graph, inputs, target, lambda found: oracle.refutes(y, found[0])) is None
    assert mutations.plant(planted) == 1
    found = bisection.changed(graph, inputs, target, lambda found: oracle.refutes(y, found[0]))
    assert found is not None and found.stage == "simplification" and found.step is not None
    assert str(found.step.rule) == "x / c = x * (1/c), c a power of two"
    values = bisection.values(found.after, inputs, found.step)
    assert values is not None
    before, after = (float(text.rpartition(" ")[2]) for text in values)
    assert after == pytest.approx(16 * before)


def test_a_dialect_that_writes_every_nest_wrong_is_not_taken_for_a_transform(restored: None) -> None:
    """The serial nest is wrong when it is compiled, and another than the scheduled one: no transform is to blame."""
    planted = _the("codegen/cpp.py", "literal", "the condition 'np.isfinite(value)' is False")
    x = ir.input_("x", (6, 40), f32)
    y = ir.binary(ops.MAX, x * 3.0, x + 1.0)
    origins = dict.fromkeys((y, *y.inputs), (Origin("Max", "lines"),))
    graph = Graph("lines", (x,), (("y", y),), origins=origins)
    inputs = {"x": np.linspace(-2, 2, 240, dtype=np.float32).reshape(6, 40)}
    assert mutations.plant(planted) == 1
    report = luminal.diff(graph, inputs, reference="interpreter", target=mutations.TARGET)
    assert report.finding is not None and report.finding.stage == "code generation", str(report)
    assert str(report.finding.origin) == "Max 'lines'"


def test_a_run_that_was_cut_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def judged(mutation: Mutation, *of: object) -> mutations.Outcome:
        tried.append(str(mutation))
        return mutations.Outcome(mutation, "cnn", "found", operator="Conv 'conv1'", stage="scheduling", seconds=2.0)

    def reached(graph: Graph) -> set[tuple[str, int]]:
        return {(mutation.file, mutation.span[0]) for mutation in mutations.mutations()}

    monkeypatch.setattr(mutations, "judged", judged)
    monkeypatch.setattr(mutations, "child", lambda work: work())
    monkeypatch.setattr(mutations, "reached", reached)
    monkeypatch.setattr(mutations, "_sources", lambda graph: "")
    lines = tmp_path / "cnn-1.jsonl"
    first = mutations.run("cnn", "cnn", 1, 3, 60.0, lines)
    both = mutations.run("cnn", "cnn", 1, 5, 60.0, lines)
    assert len(first) == 3 and both[:3] == first and len(tried) == len(set(tried)) == 5
    assert mutations.summary(both)["operator"] == 1.0 and mutations.summary(both)["found"] == 5
    with pytest.raises(ValueError, match="expected mutations of these sources by this seed"):
        mutations.run("cnn", "cnn", 2, 9, 60.0, lines)


def test_methods_of_transforms_are_replaced(restored: None) -> None:
    before = loops.Split.__call__.__code__
    planted = next(m for m in mutations.mutations() if m.function == "Split.__call__")
    assert mutations.plant(planted) == 1 and loops.Split.__call__.__code__ != before


def test_the_models_in_which_faults_are_planted() -> None:
    for name in ("cnn", "gpt"):
        graph, sizes = mutated_models.graph(name)
        assert sizes == {"batch": 3} and len(graph.origins) > 8
