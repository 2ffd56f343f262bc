"""Forms of regions chosen by measurement: which are candidates, what they compute, and how a record is found again."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import luminal
from luminal.codegen import render
from luminal.core import interp, ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.algebra import choice, write
from luminal.core.algebra.choice import SPELLED
from luminal.core.decisions import Candidate, Decisions, Question, Trial
from luminal.core.decompose.contraction import linear, matmul
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.program.ir import Program
from luminal.core.symbolic import Int
from luminal.timing import Timing
from luminal.tuning import confirm, devices, forms, records, search
from luminal.tuning.bench import Bench, Compiled, Contender
from luminal.tuning.outcome import NO_FASTER
from luminal.tuning.records import Measured, Records
from tests.schedule_support import run_program

F32 = types.f32
AVX2 = targets.AVX2


@pytest.fixture(autouse=True)
def with_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LUMINAL_NO_RECORDS")
    monkeypatch.setenv("LUMINAL_RECORDS", str(tmp_path / "user"))


def as_graph(root: Node, dims: Sequence[Int] = ()) -> Graph:
    inputs = tuple(n for n in traverse.topological([root]) if n.op is ops.INPUT)
    return Graph("m", inputs, (("found", root),), tuple(v for e in dims for v in sym.variables(e)))


def chain(rows: Int = 80, names: str = "xyz") -> Graph:
    """Three matrices, of which either product may be the first: it costs about as much."""
    shapes = ((rows, 64), (64, 72), (72, 88))
    x, y, z = (ir.input_(name, shape, F32) for name, shape in zip(names, shapes, strict=True))
    return as_graph(matmul(matmul(x, y), z), [rows])


def asked(graph: Graph) -> dict[str, Question[choice.Named]]:
    trial = Trial(("form",), 0, {})
    compile_graph(graph, replace(AVX2, decisions=trial))
    return trial.questions


def the_question(graph: Graph) -> Question[choice.Named]:
    (question,) = asked(graph).values()
    return question


def drawn(graph: Graph, sizes: dict[str, int] | None = None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {n.attr.name: [int(sym.evaluate(e, sizes or {})) for e in n.shape] for n in graph.inputs}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def is_right(graph: Graph, program: Program) -> bool:
    inputs = drawn(graph)
    (wanted,) = interp.run(graph, inputs, mode="float64").outputs
    (found,) = run_program(program, inputs).values()
    return bool(np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max())


def contracted(program: Program) -> set[tuple[int, ...]]:
    """The shapes of what a program's kernels leave to one another."""
    return {tuple(map(int, b.shape)) for b in program.buffers if b.space == "arena" and len(b.shape) == 2}


# ---- candidates ----------------------------------------------------------------------------------------------------


def test_forms_that_cost_about_as_much_are_candidates() -> None:
    question = the_question(chain())
    assert question.kind == "form" and question.topic == "form"
    assert [str(c) for c in question.candidates] == [SPELLED, "(f0 * (f1 * f2))"]


def test_forms_that_cost_more_are_none() -> None:
    x, y, z = ir.input_("x", (64, 8), F32), ir.input_("y", (8, 64), F32), ir.input_("z", (64, 1), F32)
    assert not asked(as_graph(matmul(matmul(x, y), z)))  # one order is 40 times as cheap
    w = ir.constant(np.ones((32, 16), np.float32))
    assert not asked(as_graph(linear(ir.input_("x", (8, 16), F32), w, ir.constant(np.ones(32, np.float32)))))


def test_the_first_candidate_is_what_the_stage_takes_by_itself() -> None:
    for graph in (chain(), as_graph(pooled())):
        assert asked(graph)
        first = {name: str(question.candidates[0]) for name, question in asked(graph).items()}
        plain = compile_graph(graph, AVX2)
        by_record = compile_graph(graph, replace(AVX2, decisions=Decisions(first)))
        assert [k.nest for k in by_record.kernels] == [k.nest for k in plain.kernels]


def pooled() -> Node:
    """The mean of the rows of a product, by which one may divide sooner or later."""
    x, w = ir.input_("x", (2, 50, 64), F32), ir.constant(np.random.default_rng(0).standard_normal((32, 64), np.float32))
    return ir.reduce(ops.SUM_REDUCE, linear(x, w), [1]) / 50.0


def test_a_question_has_no_name_in_it() -> None:
    batch, size = sym.var("batch", 75, 85), sym.var("size", 75, 85)
    assert the_question(chain(batch)).name == the_question(chain(size, "abc")).name != the_question(chain()).name
    assert the_question(chain(sym.var("batch", 75, 86))).name != the_question(chain(batch)).name


def test_every_candidate_is_a_graph_that_computes_the_same() -> None:
    x, w = ir.input_("x", (40, 64), F32), ir.constant(np.random.default_rng(1).standard_normal((64, 64), np.float32))
    rows = ir.gather(x, ir.input_("rows", (50,), types.i64), 0)
    for graph in (chain(), chain(sym.var("batch", 75, 85)), as_graph(pooled()), as_graph(matmul(matmul(rows, w), w))):
        for question in asked(graph).values():
            choices = [c.content.choice for c in question.candidates if c.content.choice is not None]
            graphs = choice.graphs([*choices, choice.spelled(choices[0].whole, ())])
            assert graphs is not None
            assert forms.faults(graphs[:-1], graphs[-1]) == [""] * len(choices)


# ---- records -------------------------------------------------------------------------------------------------------


def test_a_record_decides_the_form() -> None:
    graph = chain()
    question = the_question(graph)
    other = str(question.candidates[1])
    plain = compile_graph(graph, AVX2)
    programs = [compile_graph(graph, replace(AVX2, decisions=Decisions({question.name: other}))) for _ in range(2)]
    assert (80, 72) in contracted(plain) and not plain.metadata["approximations"]
    assert (64, 88) in contracted(programs[0]) and (80, 72) not in contracted(programs[0])
    assert is_right(graph, programs[0])
    (noted,) = programs[0].metadata["approximations"]
    assert noted["form"] == other and "as measured" in noted["what"]
    hashes = [render.render(program, AVX2).source_hash for program in (*programs, plain)]
    assert hashes[0] == hashes[1] != hashes[2]
    # The derivation in the manifest gives the same without the records.
    replayed = compile_graph(graph, replace(AVX2, forms={noted["region"]: noted["form"]}))
    assert [k.nest for k in replayed.kernels] == [k.nest for k in programs[0].kernels]


def test_a_record_of_what_is_spelled_keeps_it() -> None:
    graph = as_graph(pooled())
    question = the_question(graph)
    assert str(question.candidates[0]) != SPELLED
    kept = compile_graph(graph, replace(AVX2, decisions=Decisions({question.name: str(question.candidates[1])})))
    assert [k.nest for k in kept.kernels] != [k.nest for k in compile_graph(graph, AVX2).kernels]
    assert is_right(graph, kept)


def test_an_answer_that_is_no_candidate_is_none() -> None:
    graph = chain()
    stale = compile_graph(graph, replace(AVX2, decisions=Decisions({the_question(graph).name: "((f0 * f2) * f1)"})))
    assert [k.nest for k in stale.kernels] == [k.nest for k in compile_graph(graph, AVX2).kernels]


# ---- the search ----------------------------------------------------------------------------------------------------


class Hand(Bench):
    """A bench whose times are given by hand."""

    times: ClassVar[dict[str, float]] = {}

    def compile(self, kernels: Sequence[object]) -> Compiled:
        return Compiled(Path(), {})

    def measure(self, compiled: Compiled, contenders: Sequence[Contender], seconds: float) -> list[Measured]:
        found = [(c, Hand.times.get(str(c.candidate), 1.0)) for c in contenders]
        return [Measured(c.place, str(c.candidate), time, time, 9, c.fault) for c, time in found]


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> type[Hand]:
    monkeypatch.setattr(devices, "Bench", Hand)
    monkeypatch.setattr(confirm, "timings", lambda programs, *rest: [Timing((1.0,)), Timing((0.9,))])
    Hand.times = {}
    return Hand


def test_the_same_times_choose_the_same_library(by_hand: type[Hand], tmp_path: Path) -> None:
    graph = chain()
    by_hand.times = {"(f0 * (f1 * f2))": 0.5}
    hashes = []
    for name in ("first", "second"):
        file = Records(tmp_path / name)
        outcome = search.tune("m", {"main": graph}, AVX2, 2, 60.0, file)
        assert "form" in {answer.question.partition(" ")[0] for answer in outcome.answers}
        program = compile_graph(graph, replace(AVX2, decisions=records.decisions(AVX2, 2, file)))
        assert (64, 88) in contracted(program) and is_right(graph, program)
        hashes.append(render.render(program, AVX2).source_hash)
    assert hashes[0] == hashes[1]
    outcome = search.tune("m", {"main": graph}, AVX2, 2, 60.0, file)
    assert outcome.known and not outcome.new


def test_a_form_that_is_no_faster_is_not_taken(
    by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, file = chain(), Records(tmp_path / "records")
    by_hand.times = {"(f0 * (f1 * f2))": 0.5}
    monkeypatch.setattr(confirm, "timings", lambda programs, *rest: [Timing((1.0,)), Timing((1.1,))])
    search.tune("m", {"main": graph}, AVX2, 2, 60.0, file)
    (rows,) = (rows for question, rows in file.latest(records.machine(AVX2, 2)).items() if question.startswith("form"))
    assert [row.fault for row in rows] == ["", NO_FASTER]
    program = compile_graph(graph, replace(AVX2, decisions=records.decisions(AVX2, 2, file)))
    assert [k.nest for k in program.kernels] == [k.nest for k in compile_graph(graph, AVX2).kernels]


def test_a_form_that_computes_something_else_is_not_chosen(
    by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write.written

    def planted(region: object, paths: object) -> Node:
        made = written(region, paths)  # type: ignore[arg-type]
        return ir.elementwise(ops.ADD, made, ir.expand(ir.constant(1.0, F32), made.shape))

    monkeypatch.setattr(write, "written", planted)
    file = Records(tmp_path / "records")
    by_hand.times = {"(f0 * (f1 * f2))": 0.5}
    outcome = search.tune("m", {"main": chain()}, AVX2, 2, 60.0, file)
    (answer,) = (a for a in outcome.answers if a.question.startswith("form"))
    assert "it computes something else" in answer.measured[1].fault and answer.chosen.place == 0


def test_forms_are_measured_as_often_as_the_model_has_them() -> None:
    """Layers that are alike ask one question."""
    x = ir.input_("x", (80, 64), F32)
    weights = itertools.count()
    for _ in range(3):
        y, z = (ir.input_(f"w{next(weights)}", shape, F32) for shape in ((64, 72), (72, 64)))
        x = ir.elementwise(ops.MAX, matmul(matmul(x, y), z), ir.expand(ir.constant(0, F32), (80, 64)))
    listing = forms.Listing({}, {})
    compile_graph(as_graph(x), replace(AVX2, decisions=listing))
    (question,) = listing.questions.values()
    assert listing.times == {question.name: 3}
    contenders = forms.contenders(question.candidates, 3, AVX2, {})
    assert [sum(part.times for part in c.parts) for c in contenders] == [6, 6]


# ---- the whole path ------------------------------------------------------------------------------------------------


def test_tuning_measures_forms_and_compiling_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain()
    monkeypatch.setattr(search, "KINDS", ("form",))  # those that come after it are measured in tests/test_tuning.py
    outcome = luminal.tune(graph, budget=math.inf, threads=1)
    (answer,) = (a for a in outcome.answers if a.question.startswith("form"))
    assert len(answer.measured) == 2 and all(m.runs for m in answer.measured) and not answer.rejected
    # Whatever was measured, each of the two is a library that computes the product.
    x, y, z = (values for values in drawn(graph).values())
    machine = records.machine(targets.parse("host", threads=1), 1)
    for times in ((1.0, 0.5), (0.5, 1.0)):
        rows = [Measured(m.place, m.candidate, time, time, 9) for m, time in zip(answer.measured, times, strict=True)]
        file = Records()
        file.add(machine, answer.question, file.begin(), rows)
        folders = []
        for number in range(2):
            module = luminal.compile(graph, threads=1)
            assert isinstance(module, luminal.Module)
            np.testing.assert_allclose(module(x, y, z), x @ y @ z, rtol=1e-3, atol=1e-3)
            folders.append(tmp_path / f"{number} {times}")
            module.export(folders[-1], python_module=False)
        libraries = [(folder / "libm.so").read_bytes() for folder in folders]
        assert libraries[0] == libraries[1]
        noted = json.loads((folders[0] / "manifest.json").read_text())["approximations"]
        assert bool(noted) == (times[1] < times[0])


def test_a_candidate_is_its_text() -> None:
    graph = chain()
    first, second = (the_question(g) for g in (graph, chain(names="abc")))
    assert first == second and isinstance(first.candidates[0], Candidate)
