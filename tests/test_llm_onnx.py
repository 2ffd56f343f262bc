"""Language models that are ONNX files, as onnxruntime-genai and optimum write them, beside onnxruntime."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import pytest

import luminal.llm
from luminal.core import ops, traverse
from luminal.core.errors import InputError, UnsupportedError
from luminal.frontends.llm.cache import Room
from luminal.frontends.llm.onnx_files import located
from luminal.frontends.llm.sampling import HALVES
from luminal.llm import LanguageModel
from luminal.llm.onnx_decoder import Model
from luminal.llm.sampling import Sampler, Sampling
from tests import llm_support, onnx_decoders
from tests.onnx_decoders import CONTEXT, Session

FORMS = ("genai", "optimum")
# What float32 computations in other orders may be apart: of logits of a few units, far below what tells tokens apart.
CLOSE = 2e-4


@cache
def folder(form: str) -> Path:
    made = Path(mkdtemp())
    if form == "genai":
        return onnx_decoders.genai(made)
    return onnx_decoders.optimum(llm_support.models("llama").single, made)


def file(form: str) -> Path:
    found = located(folder(form))
    assert found is not None
    return found


@cache
def compiled(form: str) -> LanguageModel:
    return luminal.llm.compile(folder(form), context=CONTEXT, slots=2, chunk=24, speculate=3)


def prompt(model: LanguageModel, seed: int, length: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, model.vocabulary, length).tolist()
    return found


@pytest.mark.parametrize("form", FORMS)
def test_greedy_tokens_are_those_of_onnxruntime(form: str) -> None:
    """Of a prompt in several parts, then token by token, in a slot that is not the first."""
    model = compiled(form)
    model.reset()
    session, given = Session(file(form)), prompt(model, 1, 30)
    model.prefill(1, given)
    wanted = session.step(given)
    seen = []
    for _ in range(60):
        found = model.logits(1)
        assert np.abs(found - wanted).max() < CLOSE
        second, first = np.sort(wanted)[-2:]
        assert first - second > 4 * CLOSE and found.argmax() == wanted.argmax()
        seen.append(int(wanted.argmax()))
        model.decode({1: seen[-1]})
        wanted = session.step(seen[-1:])
    assert len(set(seen)) > 8 and model.length(1) == 90


@pytest.mark.parametrize("form", FORMS)
def test_slots_are_apart_and_can_be_forked_and_rewound(form: str) -> None:
    model = compiled(form)
    model.reset()
    first, second = prompt(model, 2, 9), prompt(model, 3, 20)
    model.prefill(0, first)
    model.prefill(1, second)
    model.decode({0: 7, 1: 8})  # one after the other, at positions of their own
    for slot, tokens in ((0, [*first, 7]), (1, [*second, 8])):
        assert np.abs(model.logits(slot) - Session(file(form)).step(tokens)).max() < CLOSE
    model.fork(1, 0)
    model.rewind(1, 5)
    model.prefill(1, first)
    model.decode({0: 9})
    assert np.abs(model.logits(0) - Session(file(form)).step([*second, 8, 9])).max() < CLOSE
    assert np.abs(model.logits(1) - Session(file(form)).step([*second[:5], *first])).max() < CLOSE


@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_verified_and_taken_back(form: str) -> None:
    model = compiled(form)
    model.reset()
    session, given = Session(file(form)), prompt(model, 5, 20)
    model.prefill(1, given)
    session.step(given)
    samplers = [Sampler(Sampling(), model.vocabulary)] * 4
    for right in (4, 1, 3):
        more = prompt(model, right, 4)
        model.verify(1, [*more[:right], *(7 for _ in more[right:])], samplers)
        model.rewind(1, model.length(1) - 4)
        chosen, logits = model.verify(1, more[:right], samplers[:right])
        for k, token in enumerate(more[:right]):
            wanted = session.step([token])
            assert np.abs(logits[k] - wanted).max() < CLOSE
            second, first = np.sort(wanted)[-2:]
            assert first - second > 4 * CLOSE and chosen[k] == wanted.argmax()
        assert np.abs(model.logits(1) - wanted).max() < CLOSE


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_written_in_place(form: str) -> None:
    """No step joins the rows of a cache to others: what is read is the state, into which only the new rows go."""
    _, graphs = Model(file(form)).entries("decoder", Room(CONTEXT, 2, 24, spare=24), HALVES)
    for entry in ("prefill", "decode"):
        made = graphs[entry]
        states = {state.input for state in made.states if state.name != "logits"}
        for node in traverse.topological(made.roots):
            if states & set(node.inputs):
                assert node.op is ops.SCATTER, (entry, node)
        assert len(states) == 4


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_model_is_opened_again(form: str, tmp_path: Path) -> None:
    model = compiled(form)
    model.reset()
    again = luminal.llm.load(model.export(tmp_path / "out", python_module=False))
    given = prompt(model, 4, 12)
    for each in (model, again):
        each.prefill(0, given)
        each.decode({0: 3})
    np.testing.assert_array_equal(again.logits(0), model.logits(0))
    assert again.shape == model.shape and again.context == CONTEXT
    if form == "genai":
        assert json.loads(again.files["generation_config.json"]) == {"eos_token_id": 5}


def test_a_folder_says_for_how_many_positions_the_model_was_made(tmp_path: Path) -> None:
    assert Model(file("genai")).made_for == CONTEXT
    assert Model(file("optimum")).made_for == llm_support.CONTEXT
    shutil.copy(file("genai"), tmp_path / "any.onnx")
    assert located(tmp_path) == tmp_path / "any.onnx" and Model(tmp_path / "any.onnx").made_for is None
    shutil.copy(file("genai"), tmp_path / "other.onnx")
    assert located(tmp_path) is None  # of two, neither is meant


def test_what_is_no_decoder_is_refused(tmp_path: Path) -> None:
    proto = onnx.load(file("genai"))
    proto.graph.input[0].name = "tokens"
    onnx.save(proto, tmp_path / "other.onnx")
    with pytest.raises(UnsupportedError, match=r"expected a decoder with the inputs input_ids.*found .*'tokens'"):
        luminal.llm.compile(tmp_path / "other.onnx")
    with pytest.raises(InputError, match="adapters: an ONNX model does not say"):
        luminal.llm.compile(file("genai"), adapters=1)
    with pytest.raises(InputError, match="weights of an ONNX model: expected int8"):
        luminal.llm.compile(file("genai"), weights="q8_0")
