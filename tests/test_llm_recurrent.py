"""Language models whose layers are recurrences: what they keep, and what sequences can and cannot do with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import luminal.llm
from luminal.core import interp, ops, traverse
from luminal.core.decompose.recurrent import selective_scan
from luminal.core.errors import ArtifactError, InputError, ModelError, UnsupportedError
from luminal.core.ir import Graph, input_
from luminal.core.types import f32
from luminal.frontends.llm import blocks, families, graph, stored
from luminal.frontends.llm.cache import Room
from luminal.frontends.llm.checkpoint import Module
from luminal.llm import LanguageModel
from luminal.llm.generate import Generator, Options
from luminal.llm.tokens import Tokenizer
from tests.language_support import bytes_tokenizer
from tests.llm_support import CHUNK, CONTEXT, Changed, emptied, greedy, known, models, reference, tokens

NAME = "mamba"
FAMILIES = ("mamba", "falcon_mamba", "mamba2")


@pytest.fixture
def model() -> LanguageModel:
    return emptied(NAME)


def drawn(seed: int, length: int) -> list[int]:
    found: list[int] = tokens(seed, length).tolist()
    return found


# ---- the scan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [1, 7])
def test_a_selective_scan_is_the_recurrence_that_it_says(time: int) -> None:
    """In float64, by hand; of one step without a loop."""
    random, batch, state, channels = np.random.default_rng(0), 2, 3, 5
    shapes = {
        "x": (time, batch, channels), "step": (time, batch, channels), "decay": (state, channels),
        "into": (time, batch, state, 1), "out": (time, batch, state, 1), "first": (batch, state, channels),
    }  # fmt: skip
    arrays = {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [input_(name, shape, f32) for name, shape in shapes.items()]
    made = Graph("scan", tuple(nodes), tuple(zip(("y", "last"), selective_scan(*nodes), strict=True)))
    loops = {node.inputs for node in traverse.topological(made.results) if node.op is ops.SCAN}
    assert len(loops) == (time > 1)
    x, step, decay, into, out, h = (array.astype(np.float64) for array in arrays.values())
    wanted = []
    for t in range(time):
        h = np.exp(step[t, :, None] * decay) * h + step[t, :, None] * x[t, :, None] * into[t]
        wanted.append((h * out[t]).sum(1))
    y, last = interp.run(made, arrays).outputs
    np.testing.assert_allclose(y, np.array(wanted), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, h, rtol=1e-5, atol=1e-6)


# ---- sequences -------------------------------------------------------------------------------------------------------


def test_a_prompt_may_be_read_in_any_parts(model: LanguageModel) -> None:
    """Shorter than the sums over positions, and longer than a part; beside other slots."""
    case, at = known(NAME, 0), 0
    model.prefill(0, drawn(9, 40))
    for length in (1, 2, CHUNK, 1, 63, CHUNK + 1):
        model.prefill(1, case.tokens[at : at + length].tolist())
        at += length
        case.check(at - 1, model.logits(1))
        model.decode({0: 5, 2: 6})  # slot 1 lies between
    assert at < 150
    for after in range(at, 150):
        model.decode({1: int(case.tokens[after])})
        case.check(after, model.logits(1))


def test_slots_do_not_see_each_other(model: LanguageModel) -> None:
    """To the bit: what other slots of a step do changes nothing."""
    model.prefill(0, drawn(1, 40))
    model.fork(0, 2)
    model.prefill(1, drawn(2, 100))
    model.decode({0: 5, 1: 7, 2: 5})
    np.testing.assert_array_equal(model.logits(0), model.logits(2))


def test_a_sequence_goes_back_to_its_beginning_alone(model: LanguageModel) -> None:
    case = known(NAME, 0)
    model.prefill(1, case.tokens[:100].tolist())
    model.rewind(1, 100)
    case.check(99, model.logits(1))
    for length in (99, 50, 1):
        with pytest.raises(InputError, match=rf"slot 1: a recurrence of 100 tokens keeps nothing of .* {length} alone"):
            model.rewind(1, length)
    assert model.length(1) == 100
    model.decode({1: int(case.tokens[100])})
    case.check(100, model.logits(1))
    model.rewind(1, 0)
    other = known(NAME, 3)
    model.decode({1: int(other.tokens[0])})  # what the rows hold is of no account, one token at a time
    other.check(0, model.logits(1))
    model.rewind(1, 0)
    model.prefill(1, other.tokens[:40].tolist())  # nor in parts
    other.check(39, model.logits(1))


def test_a_fork_goes_on_by_itself(model: LanguageModel) -> None:
    case = known(NAME, 1)
    model.prefill(1, drawn(9, 90))
    model.prefill(0, case.tokens[:70].tolist())
    model.fork(0, 1)
    assert model.length(1) == 70
    np.testing.assert_array_equal(model.logits(1), model.logits(0))
    way = reference(NAME, np.concatenate([case.tokens[:70], drawn(5, 20)]))
    for at in range(70, 90):
        model.decode({0: int(case.tokens[at]), 1: int(way.tokens[at])})
        case.check(at, model.logits(0))
        way.check(at, model.logits(1))


def test_what_was_saved_is_gone_back_to(model: LanguageModel, tmp_path: Path) -> None:
    case = known(NAME, 0)
    model.prefill(1, case.tokens[:100].tolist())
    kept = model.logits(1)
    model.save(tmp_path / "state", [1])
    model.prefill(1, drawn(8, 30))
    model.prefill(0, drawn(7, 10))
    before = model.logits(0)
    model.restore(tmp_path / "state")
    assert [model.length(slot) for slot in range(3)] == [10, 100, 0]
    np.testing.assert_array_equal(model.logits(1), kept)
    np.testing.assert_array_equal(model.logits(0), before)
    for at in range(100, 110):
        model.decode({1: int(case.tokens[at])})
        case.check(at, model.logits(1))
    with np.load(tmp_path / "state") as found:
        arrays = dict(found.items())
    arrays["1.space_0_rows"] = arrays["1.space_0_rows"][:-1]
    with (tmp_path / "state").open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ArtifactError, match=r"expected 'space_0_rows' of slot 1 as float32\[8, 128\]"):
        model.restore(tmp_path / "state")


def test_a_library_is_loaded_again(model: LanguageModel, tmp_path: Path) -> None:
    again = luminal.llm.load(model.export(tmp_path / "out", python_module=False))
    assert again.shape == model.shape and again.shape.recurrent and again.shape.windows == ()
    for each in (model, again):
        each.prefill(0, drawn(4, 40))
        each.decode({0: 3})
    np.testing.assert_array_equal(again.logits(0), model.logits(0))
    with pytest.raises(InputError, match="slot 0: a recurrence of 41 tokens"):
        again.rewind(0, 40)


def test_a_prompt_that_goes_on_is_not_computed_again(model: LanguageModel) -> None:
    """One that parts from what is held begins anew, in a slot that is free if there is one."""
    generator = Generator(model, Tokenizer(bytes_tokenizer()))
    first = drawn(2, 30)

    def answered(prompt: list[int]) -> list[int]:
        made = [piece.token for piece in generator.stream(prompt, Options(max_tokens=12, endless=True))]
        wanted = greedy(models(NAME).double, np.array(prompt), 12)
        assert made == wanted[len(prompt) :].tolist()
        return made

    answered([*first, *answered(first), 7, 8])
    answered(first[:20])
    assert sorted(model.length(slot) for slot in range(3)) == [0, 31, 55]


# ---- what is read of a checkpoint ------------------------------------------------------------------------------------


def value(node: Any) -> Any:
    return interp.run(Graph("value", (), (("value", node),)), {}).outputs[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_read_from_the_folders_that_transformers_writes(tmp_path: Path, name: str) -> None:
    source = models(name).single
    source.save_pretrained(tmp_path)
    wanted, theirs = families.read(Module(source), CONTEXT)
    written = json.loads((tmp_path / "config.json").read_text())
    for changes in ({}, {"intermediate_size": None, "expand": 2.0}, {"time_step_rank": "auto"}):
        (tmp_path / "config.json").write_text(json.dumps({**written, **changes}))
        found, ours = families.read(stored.opened(tmp_path), CONTEXT)
        assert found == wanted and found.recurrent
    for role in theirs._sources:
        np.testing.assert_array_equal(value(ours[role]), value(theirs[role]))


def test_what_is_kept_has_one_size() -> None:
    """Whatever the context; nothing grows with the tokens so far."""
    sizes = []
    for context in (64, 1 << 20):
        config, tensors_ = families.read(Module(models(NAME).single), context)
        made = graph.graphs("model", config, tensors_, Room(context, 3, 32))
        assert {size.name for each in made.values() for size in each.dims} == {"first", "batch", "length"}
        sizes.append({s.name: s.input.shape for each in made.values() for s in each.states})
    assert sizes[0] == sizes[1]
    assert sizes[0]["space_1"] == (4, 8, 128) and sizes[0]["inputs_1"] == (4, 3, 128)


def test_small_matrices_are_not_rounded() -> None:
    config, tensors_ = families.read(Module(models(NAME).single), 64, blocks.ENCODED["q8_0"])
    made = graph.graphs("model", config, tensors_, Room(64))["decode"]
    rounded = {note.what.split()[0] for note in tensors_.approximations(made)}
    layer = "backbone.layers.0.mixer."
    assert {f"{layer}in_proj.weight", f"{layer}out_proj.weight"} <= rounded
    assert not any(part in name for name in rounded for part in ("A_log", "conv1d", "x_proj", "dt_proj"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapters": 1}, "adapters: expected 0 for this model, found 1: adapters are for products of attention"),
        ({"speculate": 2}, "speculate: expected 0 for this model, found 2: drafts that are wrong are taken back"),
        ({"cache": "int8"}, "cache: expected float32 for this model, found 'int8': it has no keys and values"),
    ],
)
def test_what_a_recurrence_cannot_do_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        luminal.llm.compile(models(NAME).single, **options)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"conv_kernel": 1}, UnsupportedError, "'conv_kernel': expected 2 or more positions, found 1"),
        ({"conv_kernel": 3}, ModelError, r"conv1d.weight': expected the shape \[128, 1, 3\], found \[128, 1, 4\]"),
        ({"state_size": 9}, ModelError, r"x_proj.weight': expected the shape \[22, 128\], found \[20, 128\]"),
        ({"time_step_rank": "few"}, ModelError, "'time_step_rank': expected a number of 1 or more, found 'few'"),
        ({"hidden_act": "mish"}, UnsupportedError, "found 'mish'"),
        ({"num_hidden_layers": 1}, ModelError, "has tensors that nothing reads: backbone.layers.1."),
    ],
)
def test_what_does_not_make_a_model_is_said(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        families.read(Changed(NAME, **changes), CONTEXT)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"time_step_limit": [0.0, 0.1]}, UnsupportedError, "'time_step_limit': expected 0 and infinity, found"),
        ({"n_groups": 3}, ModelError, "'num_heads': expected a number that 3 groups divide, found 8"),
        ({"n_groups": 4}, ModelError, r"in_proj.weight': expected the shape \[192, 64\], found \[296, 64\]"),
    ],
)
def test_what_does_not_make_a_model_of_heads_is_said(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        families.read(Changed("mamba2", **changes), CONTEXT)
