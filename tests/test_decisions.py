"""Questions and their candidates: values, what every chooser lists, and which of them is taken."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest

from luminal.core import ir, types
from luminal.core import target as targets
from luminal.core.decisions import FORMULA, KINDS, Candidate, Decisions, Question, Trial, structure
from luminal.core.decompose import attention, contraction, pooling
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.contraction.contraction import Tile
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target

TOPICS = {"tile": "layout", "order": "schedule", "chain": "schedule", "pass": "schedule", "form": "form"}
TARGETS = {"vectors": targets.AVX512, "matrices": targets.AVX512_AMX}


@cache
def graph() -> Graph:
    """A large product, the greatest of windows, and a chain of two products with a softmax between."""
    x, image = ir.input_("x", (640, 512), types.f32), ir.input_("image", (2, 8, 32, 32), types.f32)
    weight = ir.constant(np.random.default_rng(0).standard_normal((768, 512)).astype(np.float32))
    product = contraction.linear(x, weight, None)
    q, k, v = (ir.input_(name, (8, 384, 64), types.f32) for name in "qkv")
    mixed = attention.scaled_dot_product_attention(q, k, v)
    most = pooling.max_pool(image, [3, 3], [1, 1], [1, 1], [1, 1])
    return Graph("m", (x, image, q, k, v), (("y", product), ("most", most), ("z", mixed)))


def compiled(target: Target, decisions: Decisions) -> Program:
    return compile_graph(graph(), replace(target, decisions=decisions))


@cache
def questions(target: Target) -> dict[str, Question[object]]:
    trial = Trial(KINDS, 0, {})
    compiled(target, trial)
    return trial.questions


def chosen(target: Target, topic: str) -> Question[object]:
    """A question on ``topic`` that has several candidates."""
    return next(q for q in questions(target).values() if q.topic == topic and len(q.candidates) > 1)


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    found = TARGETS[request.param]
    return targets.parse(found, "bf16") if found.units else found


# ---- what choosers list ----------------------------------------------------------------------------------------------


def test_every_chooser_lists_candidates_that_are_values(target: Target) -> None:
    found = questions(target)
    assert {q.topic: q.kind for q in found.values()} == TOPICS
    for name, question in found.items():
        assert question.name == name and len(question.structure) == 24
        assert pickle.loads(pickle.dumps(question)) == question and len({question, question}) == 1
        texts = [str(candidate) for candidate in question.candidates]
        assert len(set(texts)) == len(texts) and all(text.isprintable() and text for text in texts)
        estimates = [candidate.estimate for candidate in question.candidates]
        assert estimates == sorted(estimates)
        for candidate in question.candidates:
            assert candidate.kind == question.kind and question.find(str(candidate)) == candidate
            content = candidate.content
            assert is_dataclass(content) and hash(content) == hash(replace(content))  # type: ignore[type-var]
            with pytest.raises(FrozenInstanceError):
                setattr(content, fields(content)[0].name, None)


@pytest.mark.parametrize("topic", ["tile", "order"])
def test_where_there_is_a_formula_candidates_have_its_estimate(topic: str) -> None:
    estimates = [candidate.estimate for candidate in chosen(targets.AVX512, topic).candidates]
    assert estimates[0] > 0 and len(set(estimates)) > 1


@pytest.mark.parametrize("topic", TOPICS)
def test_the_recorded_answer_is_followed(topic: str) -> None:
    target = targets.AVX512
    question = chosen(target, topic)
    second = question.candidates[1]
    plain, after = compiled(target, FORMULA), compiled(target, Decisions({question.name: str(second)}))
    if topic == "form":  # of a region, not of a kernel
        (noted,) = after.metadata["approximations"]
        assert noted["form"] == str(second) and not plain.metadata["approximations"]
    else:
        (asked,) = {a for kernel in after.kernels for a in kernel.scheduled.asked}
        assert asked.question == question and asked.taken == second
    assert {k.nest for k in plain.kernels} != {k.nest for k in after.kernels}
    assert not any(kernel.scheduled.asked for kernel in plain.kernels)


@pytest.mark.parametrize("topic", TOPICS)
def test_an_answer_that_names_no_candidate_leaves_the_estimate(topic: str) -> None:
    target = targets.AVX512
    after = compiled(target, Decisions({chosen(target, topic).name: "3 rows by 1 vectors of 5"}))
    assert [k.nest for k in after.kernels] == [k.nest for k in compiled(target, FORMULA).kernels]
    assert not any(kernel.scheduled.asked for kernel in after.kernels)


# ---- which is taken --------------------------------------------------------------------------------------------------

LISTED = [Candidate("layout", Tile(rows, 1, 8), estimate) for rows, estimate in ((5, 3.0), (7, 1.0), (5, 2.0))]
FIVE, SEVEN = (str(candidate) for candidate in LISTED[:2])
NAME = f"tile {structure('tile', 'of these sizes')}"


def ask(decisions: Decisions) -> tuple[int, int]:
    """The rows of what is taken, and of how many candidates, where that is noted."""
    taken, asked = decisions.ask("tile", lambda: "of these sizes", LISTED)
    assert asked is None or (asked.taken.content is taken and asked.question.name == NAME)
    return taken.rows, 0 if asked is None else len(asked.question.candidates)


def test_the_least_estimate_is_taken_unless_the_record_says_otherwise() -> None:
    """Of two candidates that read alike, only the one with the lesser estimate is one."""
    assert ask(FORMULA) == ask(Decisions({})) == ask(Decisions({"tile 0": FIVE})) == (7, 0)
    assert ask(Decisions({NAME: FIVE})) == (5, 2) and ask(Decisions({NAME: SEVEN})) == (7, 2)
    _, asked = Decisions({NAME: FIVE}).ask("tile", lambda: "of these sizes", LISTED)
    assert asked is not None and str(asked) == f"{NAME}: {FIVE}" and asked.taken.estimate == 2.0


def test_a_trial_takes_each_in_turn_and_the_default_first() -> None:
    assert [ask(Trial(KINDS, number, {})) for number in range(4)] == [(7, 2), (5, 2), (5, 2), (5, 2)]
    led = [Trial(KINDS, number, {}, {NAME: FIVE}) for number in range(2)]
    assert [ask(trial) for trial in led] == [(5, 2), (7, 2)]
    assert [str(candidate) for candidate in led[0].questions[NAME].candidates] == [FIVE, SEVEN]
    other = Trial(["schedule"], 1, {NAME: SEVEN}, {NAME: FIVE})
    assert ask(other) == (7, 2) and not other.questions


def test_by_formula_nothing_is_described() -> None:
    def described() -> str:
        raise AssertionError("it takes as long as a nest is")

    assert FORMULA.ask("tile", described, LISTED)[0].rows == 7


def test_the_names_of_questions_stay() -> None:
    """Records are found by them: what changes them needs another ``LANGUAGE``."""
    assert NAME == "tile 166277e069f5690e0cf4da1e"
