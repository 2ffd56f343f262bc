"""Schedules chosen by measurement: questions, records, and candidates that are wrong, crash or hang."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import luminal
from luminal import timing
from luminal.codegen import render
from luminal.core import interp, ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decisions import FORMULA, KINDS, LANGUAGE, Asked, C, Candidate, Decisions, Question, Trial
from luminal.core.decompose import contraction, reduction
from luminal.core.errors import InputError, TargetError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.choose import cpu
from luminal.core.schedule.choose.cpu import MemoryPass
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import wrap
from luminal.core.schedule.nest.walk import perfect_loops
from luminal.core.schedule.program.ir import Program
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.symbolic import Int
from luminal.core.target import Target
from luminal.timing import Timing
from luminal.tuning import confirm, devices, judge, records, search, subject, worker
from luminal.tuning.bench import Bench, Compiled, Contender, Part
from luminal.tuning.expected import expected
from luminal.tuning.outcome import NO_FASTER, Outcome
from luminal.tuning.records import Measured, Records, RecordsError, winner
from luminal.tuning.subject import Argument, Race, Subject, Work
from tests.schedule_graphs import GRAPHS
from tests.schedule_support import changed, check_outputs, run_program

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

F32 = types.f32


@pytest.fixture(autouse=True)
def with_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LUMINAL_NO_RECORDS")
    monkeypatch.setenv("LUMINAL_RECORDS", str(tmp_path / "user"))


def linear(rows: Int = 96, depth: int = 64, columns: int = 128, x: str = "x", w: str = "w") -> Graph:
    """A product, and the greatest of each row of it."""
    values = np.random.default_rng(0).standard_normal((columns, depth)).astype(np.float32)
    given = ir.input_(x, (rows, depth), F32)
    product = contraction.linear(given, ir.constant(values), None)
    dims = tuple(sym.variables(rows))
    return Graph("m", (given,), (("y", product), ("most", reduction.max_(product, (1,)))), dims)


class Listed(Trial):
    """A trial with the texts of the candidates of each question."""

    @property
    def candidates(self) -> dict[str, tuple[str, ...]]:
        return {name: tuple(map(str, question.candidates)) for name, question in self.questions.items()}


def asked(graph: Graph, target: Target = targets.AVX2, number: int = 0) -> Listed:
    trial = Listed(KINDS, number, {})
    compile_graph(graph, replace(target, decisions=trial))
    return trial


def recorded(graph: Graph, winners: dict[str, str], target: Target = targets.AVX2) -> Program:
    return compile_graph(graph, replace(target, decisions=Decisions(winners)))


# ---- questions ------------------------------------------------------------------------------------------------------


def test_a_question_has_no_name_in_it() -> None:
    batch, size = sym.var("batch", 8, 32), sym.var("size", 8, 32)
    first = asked(linear(batch))
    assert {question.partition(" ")[0] for question in first.candidates} >= {"tile", "order", "pass"}
    assert asked(linear(size, x="ids", w="weight")).candidates == first.candidates


def test_a_question_depends_on_sizes_types_and_bounds() -> None:
    def tiles(graph: Graph) -> set[str]:
        return {question for question in asked(graph).candidates if question.startswith("tile")}

    batch, larger = sym.var("batch", 8, 32), sym.var("batch", 8, 64)
    found = [tiles(linear(batch)), tiles(linear(larger)), tiles(linear(96)), tiles(linear(96, depth=32))]
    assert all(len(one) == 1 for one in found)
    assert len(set().union(*found)) == len(found)


def test_the_first_candidate_is_the_formula() -> None:
    graph = linear()
    by_formula = compile_graph(graph, targets.AVX2)
    trial = asked(graph)
    by_record = recorded(graph, {question: texts[0] for question, texts in trial.candidates.items()})
    assert [k.nest for k in by_record.kernels] == [k.nest for k in by_formula.kernels]
    assert all(len(set(texts)) == len(texts) for texts in trial.candidates.values())


@pytest.mark.parametrize("kind", ["tile", "order", "pass"])
def test_a_record_changes_the_kernel_which_names_it(kind: str) -> None:
    graph = linear()
    trial = asked(graph)
    question, texts = next((q, t) for q, t in trial.candidates.items() if q.startswith(kind) and len(t) > 1)
    before, after = compile_graph(graph, targets.AVX2), recorded(graph, {question: texts[1]})
    changed = [k for k in after.kernels if k.nest not in {kernel.nest for kernel in before.kernels}]
    assert changed
    assert f"measured {question}: {texts[1]}" in changed[0].scheduled.lines
    bundle = render.render(after, targets.AVX2)
    assert f"//     measured {question}: {texts[1]}" in bundle.files[f"kernels/{changed[0].name}.cpp"]
    assert bundle.source_hash != render.render(before, targets.AVX2).source_hash


def test_an_answer_that_is_no_candidate_is_none() -> None:
    graph = linear()
    stale = dict.fromkeys(asked(graph).candidates, "9 rows by 9 vectors of 9")
    after = recorded(graph, stale)
    assert [k.nest for k in after.kernels] == [k.nest for k in compile_graph(graph, targets.AVX2).kernels]
    assert not any(k.scheduled.asked for k in after.kernels)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_every_candidate_computes_the_same(name: str, number: int) -> None:
    case = GRAPHS[name]()
    trial = Trial(KINDS, number, {})
    program = compile_graph(case.graph, replace(targets.X86_64, decisions=trial))
    if {k.nest for k in program.kernels} != {k.nest for k in compile_graph(case.graph, targets.X86_64).kernels}:
        check_outputs(
            case.graph, interp.run(case.graph, case.inputs).outputs, run_program(program, case.inputs), case.depth
        )


# ---- what is legal, and what is right -------------------------------------------------------------------------------


def softmax() -> Graph:
    given = ir.input_("x", (64, 40), F32)
    return Graph("m", (given,), (("y", reduction.softmax(given, 1)),))


def plant(monkeypatch: pytest.MonkeyPatch, planted: MemoryPass) -> None:
    candidates = cpu._pass_candidates
    monkeypatch.setattr(cpu, "_pass_candidates", lambda state, axes: [*candidates(state, axes)[:1], planted])
    # Nothing but the transforms themselves may stand between it and the kernel.
    monkeypatch.setattr(cpu, "_may_vectorise", lambda axis, state: True)


def test_an_illegal_candidate_is_refused_and_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph = softmax()
    (plain,) = compile_graph(graph, targets.AVX2).kernels
    plant(monkeypatch, MemoryPass("a0", 0, 64))  # its rows have loops inside
    trial = asked(graph, number=1)
    (question,) = trial.candidates
    assert "lies inside the loop" in trial.refusals[question]
    assert recorded(graph, {question: str(MemoryPass("a0", 0, 64))}).kernels[0].nest == plain.nest
    monkeypatch.setattr(devices, "Bench", Hand)
    Hand.times = {str(MemoryPass("a0", 0, 64)): 1e-9}
    file = Records(tmp_path / "records")
    outcome = search.tune("m", {"main": graph}, targets.AVX2, 1, 60.0, file)
    (answer,) = outcome.answers
    assert "it is not legal" in answer.measured[1].fault and answer.chosen.place == 0


def test_a_refused_candidate_is_counted_once_where_other_questions_have_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant(monkeypatch, MemoryPass("a0", 0, 64))
    x, rows = softmax(), linear(x="other")
    graph = Graph("m", (*x.inputs, *rows.inputs), (*x.outputs, ("z", rows.outputs[0][1])))
    assert any(len(texts) > 2 for question, texts in asked(graph).candidates.items() if question.startswith("order"))
    monkeypatch.setattr(devices, "Bench", Hand)
    Hand.times = {}
    outcome = search.tune("m", {"main": graph}, targets.AVX2, 1, math.inf, Records(tmp_path / "records"))
    (answer,) = (a for a in outcome.answers if a.question.startswith("pass"))
    assert [m.place for m in answer.measured] == [0, 1] and "it is not legal" in answer.measured[1].fault


def test_the_reference_is_that_of_numpy() -> None:
    program = compile_graph(linear(), targets.AVX2)
    kernel = next(k for k in program.kernels if k.name.startswith("contraction"))
    launch = next(step for step in program.entries[0].launches if program.kernels[step.kernel] is kernel)
    of = subject.of(program, kernel, launch, 0)
    assert kernel.scheduled.serial is not None
    found = expected(kernel.scheduled.serial, of)
    x, panels = (subject.drawn(argument, place) for place, argument in enumerate(of.arguments[:2]))
    columns = program.buffer(launch.arguments[1]).shape[-1]
    assert isinstance(columns, int)
    b = panels.reshape(-1, 64, columns).transpose(1, 0, 2).reshape(64, 128)
    y = (x.reshape(96, 64).astype(np.float64) @ b).reshape(-1)
    (wanted,) = found.values()
    assert len(wanted.positions) > 8 and {0, len(y) - 1} <= set(wanted.positions.tolist())
    assert not wanted.fault(y[wanted.positions].astype(np.float32))
    wrong = y[wanted.positions].astype(np.float32)
    wrong[3] += np.float32(0.001)
    assert "1 of" in wanted.fault(wrong)
    wrong[3] = np.nan
    assert "nan" in wanted.fault(wrong)


def doubled() -> tuple[Program, Part]:
    given = ir.input_("x", (20_000,), F32)
    program = compile_graph(Graph("m", (given,), (("y", given * 2.0),)), targets.detect())
    (kernel,), (launch,) = program.kernels, program.entries[0].launches
    return program, Part(kernel, launch, 1)


def contender(place: int, text: str, program: Program, part: Part) -> Contender:
    return Contender(place, Candidate("schedule", text), program, (part,))


def test_wrong_crashing_and_endless_candidates_are_contained() -> None:
    program, part = doubled()
    assert part.kernel.scheduled.serial is not None
    ((loop,), (store,)) = perfect_loops(part.kernel.scheduled.serial.body)
    assert isinstance(store, ln.Store)
    one = ln.literal(np.float32(1).tobytes(), F32)
    far = ln.load("x0", sym.expr(loop.axis) + (1 << 44), F32)
    count = sym.axis("a9", 1 << 60)
    again = sym.as_var(count)
    assert again is not None
    counted = ln.apply(ops.CAST, (ln.index(count),), ops.To(F32), F32)
    bodies = {
        "wrong": wrap([loop], (replace(store, value=ln.apply(ops.ADD, (store.value, one), None, F32)),)),
        "crash": wrap([loop], (replace(store, value=far),)),
        "endless": wrap(
            [ln.Loop(again, 1 << 60, "serial", ()), loop],
            (replace(store, value=ln.apply(ops.ADD, (store.value, counted), None, F32)),),
        ),
        "serial": part.kernel.scheduled.serial.body,
    }
    parts = {name: replace(part, kernel=changed(part.kernel, body=body)) for name, body in bodies.items()}
    contenders = [contender(0, "default", program, part)]
    contenders += [contender(k, name, program, p) for k, (name, p) in enumerate(parts.items(), 1)]
    with Bench(targets.detect(), threads=2, hang=5.0) as bench:
        compiled = bench.compile([c.parts[0].kernel for c in contenders])
        found = {m.candidate: m for m in bench.measure(compiled, contenders, 0.1)}
    assert "writes something else" in found["wrong"].fault
    assert "Segmentation fault" in found["crash"].fault
    assert "not done after" in found["endless"].fault
    assert found["default"].runs and found["serial"].runs
    assert not found["default"].fault and not found["serial"].fault


def test_a_contender_is_named_before_each_of_its_samples() -> None:
    """So that whatever ends the process, be it in a late round, is laid to the one that was running."""
    program, part = doubled()
    of = subject.of(program, part.kernel, part.launch, 0)
    log: list[str] = []

    class Library(worker.Library):
        def __init__(self) -> None:
            pass

        def run(self, of: Subject, sets: worker.Sets, first: int = 0, runs: int = 1) -> float:
            log.append("run")
            return runs * 1e-3

    def tell(message: object) -> None:
        log.append(f"begin {message}" if isinstance(message, int) else "end")

    race = Race("planted", 1, 1 << 20, 0.0, [[Work(of, 1, {})]] * 2)
    worker.answer(race, {"planted": Library()}, {}, tell)
    rounds = log[log.index("begin 1") + 1 :]
    rounds = rounds[rounds.index("begin 0") :]
    expected = [f"begin {place}" for _ in range(timing.LEAST) for place in (0, 1)]
    assert rounds[:-1:2] == expected and set(rounds[1::2]) == {"run"} and rounds[-1] == "end"


def test_a_candidate_that_does_not_compile_is_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    program, part = doubled()
    assert part.kernel.scheduled.serial is not None
    serial = replace(part, kernel=replace(part.kernel, scheduled=Scheduled(part.kernel.scheduled.serial)))
    kernel_text = render.kernel_text
    monkeypatch.setattr(
        render, "kernel_text", lambda text: kernel_text(text) + ("" if text.kernel.nest.tasks else "\n#error planted\n")
    )
    contenders = [contender(0, "default", program, part), contender(1, "serial", program, serial)]
    with Bench(targets.detect(), threads=1) as bench:
        compiled = bench.compile([c.parts[0].kernel for c in contenders])
        default, rejected = bench.measure(compiled, contenders, 0.05)
    assert default.runs and not default.fault
    assert not rejected.runs and rejected.fault == "the compiler rejects it"


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_those_that_are_far_behind_leave_the_race() -> None:
    seconds = {0: [4.0], 1: [1.0], 2: [9.0, 1.1, 1.1], 3: [3.5], 4: [1.2], 5: [1.26]}

    def sample(place: int) -> object:
        return lambda number: seconds[place][min(number, len(seconds[place]) - 1)]

    now = iter(range(1000))
    runs = timing.race([sample(place) for place in seconds], 12.0, lambda: float(next(now)))  # type: ignore[misc]
    assert [len(found) for found in runs] == [16, 16, 16, 2, 16, 5]
    assert runs[2][:3] == [9.0, 1.1, 1.1]  # one bad sample is no reason


def test_what_is_drawn_is_the_same_everywhere_and_fit_to_compute_with() -> None:
    for dtype in ("float32", "bfloat16", "int8", "int64", "bool", "float8_e4m3fn"):
        argument = Argument(dtype, 300_000, False, 0)
        values = subject.drawn(argument, 1)
        assert values.dtype == argument.numpy and values.size == 300_000
        assert values.tobytes() == subject.drawn(argument, 1).tobytes() != subject.drawn(argument, 2).tobytes()
        assert np.isfinite(values.astype(np.float64)).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4", "int2"])
def test_all_integers_of_few_bits_are_drawn(dtype: str) -> None:
    """What mistakes their signs, or bits that share a byte, must show."""
    argument = Argument(dtype, 5000, False, 0)
    known = types.from_numpy(argument.numpy)
    assert set(subject.drawn(argument, 1).astype(int).tolist()) == set(range(int(known.min), int(known.max) + 1))


def test_a_question_has_one_list_of_candidates() -> None:
    """Also where a weight that was packed for one product is read by another of the same sizes."""

    class Asking(Trial):
        def answer(self, question: Question[C]) -> Asked:
            assert self.questions.get(question.name, question) == question
            return super().answer(question)

    weight = ir.constant(np.random.default_rng(0).standard_normal((96, 80)).astype(np.float32))
    x, y = ir.input_("x", (33, 96), types.f32), ir.input_("y", (33, 96), types.f32)
    products = tuple((name, contraction.matmul(v, weight)) for name, v in (("a", x), ("b", y)))
    for graph in (Graph("tied", (x, y), products), *(make().graph for make in GRAPHS.values())):
        for target in (targets.AVX512, targets.AVX512_BF16):
            trial = Asking(KINDS, 1, {})
            compile_graph(graph, replace(target, decisions=trial))
            assert trial.questions or graph.name != "tied"


def test_runs_go_through_as_many_weights_as_a_model_has() -> None:
    weights, value = Argument("float32", 1000, True, 0), Argument("float32", 10, False, 1)
    of = Subject(0, 1, 1, False, (weights, value, replace(value, same=1)), ())
    memory = worker.Memory(20_000)
    sets = memory.sets(of)
    first = [pointers[0] for pointers in sets.pointers]
    assert len(set(first)) == len(first) == 4 and all(address % 64 == 0 for address in first)
    assert len({pointers[1] for pointers in sets.pointers}) == 1
    assert all(pointers[1] == pointers[2] for pointers in sets.pointers)


# ---- records ---------------------------------------------------------------------------------------------------------


def row(place: int, best: float, median: float = 0.0, fault: str = "", runs: int = 9) -> Measured:
    return Measured(place, f"candidate {place}", best, median or best, runs, fault)


@pytest.mark.parametrize(
    ("rows", "expected_place"),
    [
        ([row(0, 1.0), row(1, 0.9)], 1),
        ([row(0, 1.0), row(1, 0.98)], 0),  # too little to be sure of
        ([row(0, 1.0), row(1, 1.2)], 0),
        ([row(0, 1.0, median=1.2), row(1, 0.9)], 0),  # in the noise of the default
        ([row(0, 1.0), row(1, 0.9, median=1.1)], 0),  # in its own
        ([row(0, 1.0), row(1, 0.9), row(2, 0.85, median=1.1)], 1),  # another is faster by more than its own
        ([row(0, 1.0, median=1.05), row(1, 0.9)], 1),
        ([row(0, 1.0), row(1, 0.5, fault="wrong"), row(2, 0.9)], 2),
        ([row(0, 1.0), row(1, 0.0, runs=0, fault="crash")], 0),
        ([row(0, 1.0, fault="wrong"), row(1, 0.5)], 0),  # there is nothing to compare it with
        ([row(0, 1.0), row(2, 0.5), row(1, 0.5)], 1),
        ([row(1, 0.5)], 0),
        ([], 0),
    ],
)
def test_a_candidate_wins_by_more_than_the_noise(rows: list[Measured], expected_place: int) -> None:
    expected_text = f"candidate {expected_place}" if expected_place else None
    assert winner(rows) == winner(rows[::-1]) == expected_text


def timings(*seconds: float) -> list[Timing]:
    """Those of models that take the same time in every run."""
    return [Timing((time,)) for time in seconds]


def faster(programs: Sequence[Program], *rest: object) -> list[Timing]:
    """Models of which the second is the faster."""
    return timings(1.0, 0.9)


class Hand(Bench):
    """A bench whose times are given by hand; ``stop`` is the question at which it is interrupted."""

    times: ClassVar[dict[str, float]] = {}
    stop = 1 << 30
    asked: ClassVar[list[list[str]]] = []

    def compile(self, kernels: Sequence[object]) -> Compiled:
        return Compiled(Path(), {})

    def measure(self, compiled: Compiled, contenders: Sequence[Contender], seconds: float) -> list[Measured]:
        if len(Hand.asked) >= Hand.stop:
            raise KeyboardInterrupt
        Hand.asked.append([str(c.candidate) for c in contenders])
        assert [c.place for c in contenders] == sorted(c.place for c in contenders)
        found = [(c, Hand.times.get(str(c.candidate), 1.0)) for c in contenders]
        return [Measured(c.place, str(c.candidate), time, time, 9, c.fault) for c, time in found]


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> type[Hand]:
    monkeypatch.setattr(devices, "Bench", Hand)
    monkeypatch.setattr(confirm, "timings", faster)
    Hand.times, Hand.stop, Hand.asked = {}, 1 << 30, []
    return Hand


def second_candidates(graph: Graph) -> dict[str, float]:
    """Every second candidate half as slow."""
    return {texts[1]: 0.5 for texts in asked(graph).candidates.values() if len(texts) > 1}


def test_the_same_times_choose_the_same_schedules(by_hand: type[Hand], tmp_path: Path) -> None:
    graph = linear()
    by_hand.times = second_candidates(graph)
    kernels = []
    for name in ("first", "second"):
        file = Records(tmp_path / name)
        search.tune("m", {"main": graph}, targets.AVX2, 2, 60.0, file)
        decisions = records.decisions(targets.AVX2, 2, file)
        assert decisions.answers
        program = compile_graph(graph, replace(targets.AVX2, decisions=decisions))
        kernels.append([(k.nest, k.scheduled.text) for k in program.kernels])
    assert kernels[0] == kernels[1]
    assert {nest for nest, _ in kernels[0]}.isdisjoint(k.nest for k in compile_graph(graph, targets.AVX2).kernels)
    # Another machine, or another number of threads, is asked anew.
    assert records.decisions(targets.AVX2, 1, Records(tmp_path / "first")) is FORMULA
    assert records.decisions(targets.AVX512, 2, Records(tmp_path / "first")) is FORMULA


def test_what_no_run_of_the_model_has_confirmed_is_not_taken(
    by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that is interrupted before its end leaves what it measured to the next one, which confirms it."""
    graph, file = linear(), Records(tmp_path / "records")
    thirds = {texts[2]: 0.6 for texts in asked(graph).candidates.values() if len(texts) > 2}
    by_hand.times = thirds | second_candidates(graph)  # nor is what is faster than the default, but not the fastest

    def interrupted(*_: object) -> list[Timing]:
        raise KeyboardInterrupt

    def tune() -> Outcome:
        return search.tune("m", {"main": graph}, targets.AVX2, 1, 60.0, file)

    def compiled() -> list[ln.LoopNest]:
        decisions = records.decisions(targets.AVX2, 1, file)
        return [k.nest for k in compile_graph(graph, replace(targets.AVX2, decisions=decisions)).kernels]

    monkeypatch.setattr(confirm, "timings", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune()
    plain, measured = [k.nest for k in compile_graph(graph, targets.AVX2).kernels], len(by_hand.asked)
    assert measured and compiled() == plain
    monkeypatch.setattr(confirm, "timings", faster)
    outcome = tune()
    assert len(by_hand.asked) == measured and outcome.seconds == (1.0, 0.9)
    assert outcome.known == len(outcome.answers) == measured
    assert not set(compiled()) & set(plain)
    assert tune().seconds is None


NOISE = Timing((1.0, 1.05, 1.05)), Timing((0.96, 1.0, 1.0))


@pytest.mark.parametrize("found", [timings(1.0, 1.01), timings(1.0, 0.999), [*NOISE], [*NOISE[::-1]]])
def test_what_does_not_make_the_model_faster_is_not_taken(
    found: list[Timing], by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By more than the noise, as of a kernel."""
    graph, file = linear(), Records(tmp_path / "records")
    by_hand.times = second_candidates(graph)
    seen: list[list[ln.LoopNest]] = []

    def alike(programs: Sequence[Program], *rest: object) -> list[Timing]:
        seen.extend([kernel.nest for kernel in program.kernels] for program in programs)
        return found

    monkeypatch.setattr(confirm, "timings", alike)
    outcome = search.tune("m", {"main": graph}, targets.AVX2, 1, 60.0, file)
    plain = [k.nest for k in compile_graph(graph, targets.AVX2).kernels]
    assert seen[0] == plain and not set(seen[1]) & set(plain)
    assert outcome.seconds == tuple(timing.median for timing in found)
    assert all(answer.chosen.place == 0 for answer in outcome.answers)
    decisions = records.decisions(targets.AVX2, 1, file)
    after = compile_graph(graph, replace(targets.AVX2, decisions=decisions))
    assert [k.nest for k in after.kernels] == plain


def several() -> tuple[Graph, dict[str, float]]:
    """A graph of products of several sizes, and times that make the third tile of each the winner."""
    given = ir.input_("x", (96, 64), F32)
    outputs = []
    for columns in (128, 256, 384, 512, 640):
        values = np.random.default_rng(columns).standard_normal((columns, 64)).astype(np.float32)
        outputs.append((f"y{columns}", contraction.linear(given, ir.constant(values), None)))
    graph = Graph("several", (given,), tuple(outputs))
    tiles = [texts for question, texts in asked(graph).candidates.items() if question.startswith("tile")]
    return graph, {texts[2]: 0.5 for texts in tiles}


def taken(program: Program) -> set[str]:
    """The questions about tiles where a program has another candidate than the formula's."""
    questions = asked(several()[0]).candidates
    return {
        a.question.name
        for kernel in program.kernels
        for a in kernel.scheduled.asked
        if a.question.topic == "tile" and str(a.taken) != questions[a.question.name][0]
    }


@pytest.mark.parametrize("bad", range(5))
def test_only_what_is_to_blame_for_a_slower_model_is_taken_back(
    bad: int, by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, by_hand.times = several()
    tiles = sorted(question for question in asked(graph).candidates if question.startswith("tile"))
    file, now, compared = Records(tmp_path / "records"), iter(range(10**6)), []

    def model(programs: Sequence[Program], *rest: object) -> list[Timing]:
        found = [taken(program) for program in programs]
        compared.append(found)
        return timings(*(1.0 - 0.02 * len(one) + 0.5 * (tiles[bad] in one) for one in found))

    monkeypatch.setattr(confirm, "timings", model)
    outcome = search.tune("m", {"main": graph}, targets.AVX2, 1, 1e9, file, clock=lambda: float(next(now)))
    good = set(tiles) - {tiles[bad]}
    winners = records.decisions(targets.AVX2, 1, file)
    assert len(tiles) == 5 and taken(compile_graph(graph, replace(targets.AVX2, decisions=winners))) == good
    assert {a.question for a in outcome.answers if a.chosen.place} == good
    assert compared[0] == [set(), set(tiles)] and outcome.seconds == (1.0, pytest.approx(1.4))
    # It is settled: no later search runs the model again.
    count = len(compared)
    search.tune("m", {"main": graph}, targets.AVX2, 1, 1e9, file)
    assert len(compared) == count


def test_what_is_measured_again_is_compared_with_the_default(
    by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with what an earlier search chose, which would be no faster than itself."""
    graph, by_hand.times = several()
    file, compared = Records(tmp_path / "records"), []

    def model(programs: Sequence[Program], *rest: object) -> list[Timing]:
        compared.append([len(taken(program)) for program in programs])
        return timings(*(1.0 - 0.02 * number for number in compared[-1]))

    monkeypatch.setattr(confirm, "timings", model)
    for again in (False, True):
        search.tune("m", {"main": graph}, targets.AVX2, 1, 1e9, file, again=again)
        after = compile_graph(graph, replace(targets.AVX2, decisions=records.decisions(targets.AVX2, 1, file)))
        assert len(taken(after)) == 5
    assert compared == [[0, 5]] * 2


def test_what_there_was_no_time_to_confirm_is_left_to_a_later_search(
    by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, by_hand.times = several()
    file, runs = Records(tmp_path / "records"), 0
    time = 0.0

    def model(programs: Sequence[Program], *rest: object) -> list[Timing]:
        nonlocal runs, time
        runs, time = runs + 1, time + 10.0
        before, after = (len(taken(program)) for program in programs)
        return timings(1.0, 1.1 if after - before == 5 else 0.9)

    monkeypatch.setattr(confirm, "timings", model)
    first = search.tune("m", {"main": graph}, targets.AVX2, 1, 15.0, file, clock=lambda: time)
    plain = compile_graph(graph, targets.AVX2)
    after = compile_graph(graph, replace(targets.AVX2, decisions=records.decisions(targets.AVX2, 1, file)))
    assert runs == 1 and first.answers and {a.chosen.place for a in first.answers} == {0}
    assert [k.nest for k in after.kernels] == [k.nest for k in plain.kernels]
    second = search.tune("m", {"main": graph}, targets.AVX2, 1, 1e9, file, clock=lambda: time)
    assert len([a for a in second.answers if a.chosen.place]) == 5 and runs == 4


def test_an_interrupted_search_goes_on_where_it_was(by_hand: type[Hand], tmp_path: Path) -> None:
    graph, file = linear(), Records(tmp_path / "records")
    by_hand.stop = 2
    with pytest.raises(KeyboardInterrupt):
        search.tune("m", {"main": graph}, targets.AVX2, 1, 60.0, file)
    machine = records.machine(targets.AVX2, 1)
    before = file.latest(machine)
    assert len(before) == 2
    by_hand.stop = 1 << 30
    outcome = search.tune("m", {"main": graph}, targets.AVX2, 1, 60.0, file)
    assert outcome.known == 2 and outcome.left == 0 and outcome.answers
    after = file.latest(machine)
    assert {question: after[question] for question in before} == before
    assert len(by_hand.asked) == len(after) == 2 + len(outcome.answers)
    assert search.tune("m", {"main": graph}, targets.AVX2, 1, 60.0, file).answers == ()
    assert len(search.tune("m", {"main": graph}, targets.AVX2, 1, 60.0, file, again=True).answers) == len(after)


def test_a_search_ends_when_its_time_is_over(
    by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "BATCH", 1)
    graph, now, file = linear(), iter(range(10**6)), Records(tmp_path / "some")
    everything = len(search.tune("m", {"main": graph}, targets.AVX2, 1, 1e9, Records(tmp_path / "all")).answers)
    outcome = search.tune("m", {"main": graph}, targets.AVX2, 1, 15.0, file, clock=lambda: float(next(now)))
    assert 0 < len(outcome.answers) < everything and next(now) < 40
    assert outcome.left or outcome.more


def test_a_budget_may_have_no_end(by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BATCH", 1)
    seen: list[float] = []
    outcome = search.tune(
        "m", {"main": linear()}, targets.AVX2, 1, math.inf, Records(tmp_path / "records"),
        progress=lambda stage, fraction: seen.append(fraction),
    )  # fmt: skip
    assert len(outcome.answers) == len(seen) > 1 and not outcome.left and not outcome.more
    assert set(seen) == {0.0}


def test_a_later_search_measures_candidates_that_a_short_one_had_no_time_for(
    by_hand: type[Hand], tmp_path: Path
) -> None:
    now, file, machine = iter(range(10**6)), Records(tmp_path / "records"), records.machine(targets.AVX2, 1)
    graphs = {"main": linear()}
    search.tune("m", graphs, targets.AVX2, 1, 11.0, file, clock=lambda: float(next(now)))
    short = {question: len(rows) for question, rows in file.latest(machine).items()}
    assert short and set(short.values()) == {2}
    search.tune("m", graphs, targets.AVX2, 1, 1e9, file)
    full = {question: len(rows) for question, rows in file.latest(machine).items()}
    assert min(full[question] for question in short) > 2
    assert search.tune("m", graphs, targets.AVX2, 1, 1e9, file).answers == ()


def test_who_wants_no_records_is_not_made_to_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_NO_RECORDS", "1")
    for tuned in (lambda: luminal.tune(linear(), budget=1), lambda: luminal.compile(linear(), search="quick")):
        with pytest.raises(InputError, match="not tuned with LUMINAL_NO_RECORDS=1"):
            tuned()


def _killed(path: Path) -> None:
    file = Records(path)
    file.add("machine", "first", file.begin(), [row(0, 1.0), row(1, 0.5)])
    with file._writing() as database:
        database.execute("INSERT INTO measurement VALUES ('machine', 'second', 1, 0, 'x', 1.0, 1.0, 9, '')")
        os.kill(os.getpid(), signal.SIGKILL)


def _many(path: Path, name: str) -> None:
    file = Records(path)
    run = file.begin()
    for number in range(20):
        file.add("machine", f"{name} {number}", run, [row(0, 1.0), row(1, 0.5)])


def test_records_survive_a_kill_and_are_shared_by_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "records"
    process = context.Process(target=_killed, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert Records(path).latest("machine") == {"first": [row(0, 1.0), row(1, 0.5)]}
    several = [context.Process(target=_many, args=(path, name)) for name in ("a", "b")]
    for process in several:
        process.start()
    for process in several:
        process.join()
        assert process.exitcode == 0
    assert len(Records(path).latest("machine")) == 41
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*), count(DISTINCT run) FROM measurement").fetchone() == (82, 3)


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder for ``lock``: every user may enter those above it."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        (Path(name) / "locked").mkdir()
        yield Path(name) / "locked"
        os.seteuid(user)
        (Path(name) / "locked").chmod(0o755)


def lock(folder: Path) -> None:
    """From now on, nothing can be made in ``folder``, nor its files be changed."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    os.seteuid(os.geteuid() or 65534)


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_records_in_a_read_only_folder_are_read(mode: str, locked: Path) -> None:
    """Earlier versions made files in WAL mode, in which reading, too, needs a file beside."""
    file = Records(locked / "records")
    file.add("machine", "q", file.begin(), [row(0, 1.0), row(1, 0.5)])
    with sqlite3.connect(file.path) as database:
        assert database.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (mode.lower(),)
    database.close()
    assert [path.name for path in locked.iterdir()] == ["records"]
    lock(locked)
    assert file.latest("machine") == {"q": [row(0, 1.0), row(1, 0.5)]} and file.machines() == ["machine"]
    with pytest.raises(RecordsError, match="cannot be written") as error:
        file.begin()
    assert "remove" not in str(error.value) and str(file.path) in str(error.value)


def test_records_that_cannot_be_made_are_not_to_be_removed(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock(locked)
    for path in (locked / "tuning.sqlite", locked / "beneath" / "tuning.sqlite"):
        monkeypatch.delenv("LUMINAL_RECORDS", raising=False)
        monkeypatch.setenv("LUMINAL_CACHE", str(path.parent))
        with pytest.raises(RecordsError, match=r"cannot be written .*: set LUMINAL_CACHE to another folder") as error:
            Records().begin()
        monkeypatch.setenv("LUMINAL_RECORDS", str(path))
        with pytest.raises(RecordsError, match=r"cannot be written .*: name another file in LUMINAL_RECORDS") as other:
            Records().begin()
        assert all("remove" not in str(e.value) and str(path) in str(e.value) for e in (error, other))


def test_records_of_an_earlier_version_are_written_to(tmp_path: Path) -> None:
    file = Records(tmp_path / "records")
    with sqlite3.connect(file.path) as database:
        database.execute("PRAGMA journal_mode = WAL")
    database.close()
    file.add("machine", "q", file.begin(), [row(0, 1.0)])
    assert Records(tmp_path / "records").latest("machine") == {"q": [row(0, 1.0)]}


def test_who_comes_second_to_new_records_waits(tmp_path: Path) -> None:
    file = Records(tmp_path / "records")
    first = sqlite3.connect(file.path, isolation_level=None)
    first.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor() as pool:
        second, reading = pool.submit(file.begin), pool.submit(file.latest, "machine")
        time.sleep(0.2)
        first.execute("COMMIT")
        assert second.result() == 1 and reading.result() == {}
    first.close()


def test_records_that_others_hold_are_not_to_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PATIENCE", 0.1)
    file = Records(tmp_path / "records")
    file.begin()
    other = sqlite3.connect(file.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for use in (file.begin, file.machines):
        with pytest.raises(RecordsError, match=r"another process has been writing .*try again") as error:
            use()
        assert "remove" not in str(error.value)
    other.close()


def test_the_latest_run_counts(tmp_path: Path) -> None:
    file = Records(tmp_path / "records")
    assert file.latest("machine") == {} and not file.path.exists()
    first, second = file.begin(), file.begin()
    file.add("machine", "q", second, [row(0, 1.0), row(1, 1.0)])
    file.add("machine", "q", first, [row(0, 1.0), row(1, 0.5)])
    assert records.winners(file, "machine") == {"q": "candidate 0"}


@pytest.mark.parametrize("damage", ["text", "version"])
def test_records_that_cannot_be_used_are_a_clear_error(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "records"
    if damage == "text":
        path.write_text("this is no database " * 100)
    else:
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE old (x)")
            database.execute("PRAGMA user_version = 77")
    monkeypatch.setenv("LUMINAL_RECORDS", str(path))
    with pytest.raises(RecordsError, match=r"cannot be used.*LUMINAL_NO_RECORDS") as error:
        luminal.compile(linear())
    assert str(path) in str(error.value)
    monkeypatch.setenv("LUMINAL_NO_RECORDS", "1")
    assert records.decisions(targets.AVX2, 1) is FORMULA


def test_the_package_brings_records_that_a_command_writes(
    by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, file = linear(), Records(tmp_path / "records")
    by_hand.times = second_candidates(graph)
    search.tune("m", {"main": graph}, targets.AVX2, 2, 60.0, file)
    written = tmp_path / "new" / "shipped.json"
    count = records.save(written, file)
    machine = records.machine(targets.AVX2, 2)
    found = records.shipped(written)[machine]
    chosen = {question: text for question, text in records.winners(file, machine).items() if text in by_hand.times}
    assert found == chosen and len(chosen) == count > 1
    monkeypatch.setattr(records, "shipped", lambda: {machine: found})
    decisions = records.decisions(targets.AVX2, 2, Records(tmp_path / "none"))
    assert decisions.answers == found
    # What the user measured comes first.
    user = Records(tmp_path / "user")
    question = next(iter(found))
    user.add(machine, question, user.begin(), [row(0, 1.0), row(1, 1.0)])
    decisions = records.decisions(targets.AVX2, 2, user)
    assert decisions.answers == {**found, question: "candidate 0"}


def test_a_record_of_the_package_is_what_a_candidate_has_to_beat(
    by_hand: type[Hand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the default of its question, also where it is not among the first by estimate, and of the model's run."""
    graph, machine = linear(), records.machine(targets.AVX2, 1)
    question, texts = max(asked(graph).candidates.items(), key=lambda item: len(item[1]))
    brought = texts[Bench.beam]
    monkeypatch.setattr(records, "shipped", lambda: {machine: {question: brought}})
    seen: list[list[ln.LoopNest]] = []

    def watching(programs: Sequence[Program], *rest: object) -> list[Timing]:
        seen.append([kernel.nest for kernel in programs[0].kernels])
        return faster(programs, *rest)

    monkeypatch.setattr(confirm, "timings", watching)
    # Faster than the formula's, and no faster than the package's; another question has one that is faster.
    other, others = next((q, t) for q, t in asked(graph).candidates.items() if q.startswith("pass"))
    by_hand.times = {texts[1]: 0.5, brought: 0.5, others[1]: 0.5}
    file = Records(tmp_path / "records")
    search.tune("m", {"main": graph}, targets.AVX2, 1, 1e9, file)
    rows = file.latest(machine)[question]
    assert [m.candidate for m in rows if not m.place] == [brought] and winner(rows) is None
    assert rows[1].candidate == texts[0]
    decisions = records.decisions(targets.AVX2, 1, file)
    assert decisions.answers[question] == brought and decisions.answers[other] == others[1]
    with_it = [kernel.nest for kernel in recorded(graph, {question: brought}).kernels]
    assert seen == [with_it] and with_it != [kernel.nest for kernel in compile_graph(graph, targets.AVX2).kernels]
    # What the package brought and nothing was faster than comes with the next one too.
    records.save(tmp_path / "shipped.json", file)
    saved = json.loads((tmp_path / "shipped.json").read_text())["machines"][machine]
    assert saved == {question: brought, other: others[1]}


def test_the_shipped_records_are_of_this_language() -> None:
    table = json.loads(records.SHIPPED.read_text())
    assert table["language"] == LANGUAGE
    assert all({"target", "caches", "threads"} <= json.loads(machine).keys() for machine in table["machines"])


# ---- the whole path --------------------------------------------------------------------------------------------------


def test_a_quick_search_measures_and_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUMINAL_RECORDS", str(tmp_path / "records"))
    graph = linear(rows=48, depth=32, columns=64)
    module = luminal.compile(graph, search="quick", threads=1)
    found = Records().latest(records.machine(targets.parse("host", threads=1), 1))
    assert found and all(m.runs and m.fault in ("", NO_FASTER) for rows in found.values() for m in rows)
    assert isinstance(module, luminal.Module)
    questions = {question for kernel in module.manifest["kernels"] for question in kernel.get("measured", {})}
    assert questions and questions <= found.keys()
    x = np.random.default_rng(1).standard_normal((48, 32)).astype(np.float32)
    w = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    y, most = module(x)
    np.testing.assert_allclose(y, x @ w.T, atol=1e-4)
    np.testing.assert_array_equal(most, y.max(1))
    outcome = luminal.tune(graph, budget=60, threads=1)
    assert outcome.known and not outcome.left


def test_what_cannot_be_tuned_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "lacking", lambda target: "found no nvdisasm")
    with pytest.raises(
        TargetError,
        match=r"schedules for cuda:sm_90 cannot be measured here: this machine has no CUDA.*found no nvdisasm",
    ):
        luminal.tune(linear(), budget=5, target="cuda:sm_90")
    with pytest.raises(InputError, match="search: expected one of none, quick"):
        luminal.compile(linear(), search="slow")
    for budget in (0, -1, math.nan, "x", None, True):
        with pytest.raises(InputError, match="budget: expected seconds, more than none, found"):
            luminal.tune("absent.onnx", budget=budget)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="winograd: expected the precision fp32, found bf16"):
        luminal.tune(linear(), budget=5, precision="bf16", winograd=1e-3)


def test_what_is_tuned_is_what_the_options_make_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned: list[ir.Graph] = []
    monkeypatch.setattr(search, "tune", lambda name, graphs, *_, **__: tuned.extend(graphs.values()))
    graph = linear(rows=2, depth=256, columns=256)
    for weights in (None, "int8"):
        luminal.tune(graph, budget=5, weights=weights)
    kinds = [{n.dtype for n in traverse.everything(g.roots)} for g in tuned]
    assert types.i8 not in kinds[0] and types.i8 in kinds[1]
