"""Language models: what they compute of every family, and sequences that are rewound, forked, kept and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import luminal.llm
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.errors import ArtifactError, InputError, ModelError, UnsupportedError
from luminal.core.pipeline import compile_graphs
from luminal.core.types import bool_
from luminal.frontends.llm import families, graph
from luminal.frontends.llm.cache import BLOCK, Room
from luminal.frontends.llm.checkpoint import Module
from luminal.frontends.llm.config import Attention
from luminal.llm import LanguageModel
from tests import llm_support as support
from tests.llm_support import (
    CHUNK,
    CONFIGS,
    CONTEXT,
    LENGTH,
    VOCABULARY,
    Changed,
    compiled,
    emptied,
    greedy,
    known,
    logits,
    models,
    reference,
    tokens,
)


@pytest.fixture
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return emptied(request.param)


WINDOWED = ("llama", "mistral", "gemma3")


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_float64(name: str) -> None:
    """Two sequences at positions of their own, with a slot between them that is left alone: a prompt in several parts,
    then token by token, beyond the rows of every ring."""
    model, first, second = emptied(name), known(name, 0), known(name, 1)
    for slot, case, length in ((0, first, 70), (2, second, 3)):
        model.prefill(slot, case.tokens[:length].tolist())
        case.check(length - 1, model.logits(slot))
    for at in range(70, LENGTH):
        model.decode({0: int(first.tokens[at]), 2: int(second.tokens[at - 67])})
        first.check(at, model.logits(0))
        second.check(at - 67, model.logits(2))
    assert [model.length(slot) for slot in range(3)] == [LENGTH, 0, LENGTH - 67]


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_are_those_of_transformers(name: str) -> None:
    """In float64, so that they are the same on every machine."""
    model, prompt = emptied(name), tokens(2, 70)  # beyond where longrope takes other angles
    wanted = greedy(models(name).double, prompt, 200)
    case = reference(name, wanted)
    assert case.logits[69:-1].argmax(1).tolist() == wanted[70:].tolist()
    best = np.sort(case.logits[69:-1])[:, -2:]
    assert (best[:, 1] - best[:, 0]).min() > 2 * case.error  # else another token might be as good
    assert len(set(wanted[70:])) >= 50
    model.prefill(1, prompt.tolist())
    found = []
    for _ in range(200):
        found.append(int(model.logits(1).argmax()))
        model.decode({1: found[-1]})
    assert found == wanted[70:].tolist()


@pytest.mark.parametrize("model", WINDOWED, indirect=True)
def test_a_prompt_may_be_read_in_any_parts(model: LanguageModel, request: pytest.FixtureRequest) -> None:
    case = known(request.node.callspec.params["model"], 3)
    at = 0
    for length in (1, CHUNK, 2, 63, CHUNK + 1, 90):
        model.prefill(2, case.tokens[at : at + length].tolist())
        at += length
        case.check(at - 1, model.logits(2))


@pytest.mark.parametrize("model", WINDOWED, indirect=True)
def test_a_sequence_is_rewound_and_takes_another_way(model: LanguageModel, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["model"]
    case, other = known(name, 0), tokens(4, 60)
    model.prefill(0, case.tokens[:200].tolist())
    model.rewind(0, 180)
    with pytest.raises(InputError, match="slot 0: expected a token since it was emptied or rewound"):
        model.logits(0)
    way = reference(name, np.concatenate([case.tokens[:180], other]))
    model.prefill(0, other[:30].tolist())
    way.check(209, model.logits(0))
    for at in range(210, 240):
        model.decode({0: int(way.tokens[at])})
        way.check(at, model.logits(0))
    model.rewind(0, 0)
    model.prefill(0, case.tokens[:40].tolist())
    case.check(39, model.logits(0))


@pytest.mark.parametrize("model", ["mistral"], indirect=True)
def test_a_ring_says_when_it_has_lost_what_a_rewind_needs(model: LanguageModel) -> None:
    case = known("mistral", 0)
    model.prefill(0, case.tokens[:200].tolist())
    rows = model.shape.rows()[0]
    least = 200 - rows + support.WINDOW - 1  # the first whose window is still there
    with pytest.raises(InputError, match="slot 0: its windows no longer hold what token"):
        model.rewind(0, least - 1)
    assert model.length(0) == 200
    model.rewind(0, least)
    for at in range(least, least + 70):
        model.decode({0: int(case.tokens[at])})
        case.check(at, model.logits(0))


@pytest.mark.parametrize("model", WINDOWED, indirect=True)
def test_a_fork_goes_on_by_itself(model: LanguageModel, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["model"]
    case = known(name, 1)
    model.prefill(1, tokens(9, 200).tolist())  # what was there before is of no account
    model.prefill(0, case.tokens[:150].tolist())
    model.fork(0, 1)
    assert model.length(1) == 150
    np.testing.assert_array_equal(model.logits(1), model.logits(0))
    way = reference(name, np.concatenate([case.tokens[:150], tokens(5, 20)]))
    for at in range(150, 170):
        model.decode({0: int(case.tokens[at]), 1: int(way.tokens[at])})
        case.check(at, model.logits(0))
        way.check(at, model.logits(1))


def test_slots_do_not_see_each_other() -> None:
    """To the bit: what other slots of a step do changes nothing."""
    model, case = emptied("llama"), known("llama", 0)
    model.prefill(0, case.tokens[:40].tolist())
    model.fork(0, 2)
    model.prefill(1, tokens(6, 100).tolist())
    model.decode({0: 5, 1: 7, 2: 5})
    np.testing.assert_array_equal(model.logits(0), model.logits(2))


@pytest.mark.parametrize("model", ["gemma3"], indirect=True)
def test_slots_are_saved_and_restored(model: LanguageModel, tmp_path: Path) -> None:
    case = known("gemma3", 0)
    model.prefill(1, case.tokens[:150].tolist())
    kept = model.logits(1)
    model.save(tmp_path / "deep" / "state.npz", [1])
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["state.npz"]
    model.prefill(0, tokens(7, 10).tolist())
    before = model.logits(0)
    model.rewind(1, 0)
    model.prefill(1, tokens(8, 200).tolist())
    model.restore(tmp_path / "deep" / "state.npz")
    assert [model.length(slot) for slot in range(3)] == [10, 150, 0]
    np.testing.assert_array_equal(model.logits(1), kept)
    np.testing.assert_array_equal(model.logits(0), before)
    for at in range(150, 160):
        model.decode({1: int(case.tokens[at])})
        case.check(at, model.logits(1))


def test_a_state_that_does_not_belong_here_is_refused(tmp_path: Path) -> None:
    model, other = emptied("llama"), compiled("mistral")
    model.prefill(0, [1, 2, 3])
    model.save(tmp_path / "state")
    with pytest.raises(ArtifactError, match="belongs to another model"):
        other.restore(tmp_path / "state")
    content = (tmp_path / "state").read_bytes()
    for damaged in (content[:200], content[:-100], b"", content[:1000] + b"\xff" * 40 + content[1040:]):
        (tmp_path / "damaged").write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"the state in .*damaged"):
            model.restore(tmp_path / "damaged")
    assert model.length(0) == 3


def test_an_exported_model_is_loaded_with_what_belongs_to_it(tmp_path: Path) -> None:
    model, case = compiled("mistral"), known("mistral", 0)
    for _ in range(2):  # a second export replaces the first
        folder = model.export(tmp_path / "out", python_module=False)
    again = luminal.llm.load(folder)
    assert (again.vocabulary, again.context, again.slots) == (VOCABULARY, CONTEXT, 3)
    assert again.shape == model.shape and again.files == model.files and "config.json" in again.files
    again.prefill(0, case.tokens[:140].tolist())
    case.check(139, again.logits(0))
    with pytest.raises(ArtifactError, match="holds a model, but no language model"):
        (folder / "language_model.json").unlink()
        luminal.llm.load(folder)


def test_what_is_asked_for_is_checked() -> None:
    model = emptied("llama")
    for call, message in (
        (lambda: model.prefill(3, [1]), "expected a slot of 0 to 2, found 3"),
        (lambda: model.prefill(0, []), "expected a list of one or more tokens"),
        (lambda: model.prefill(0, [1.5]), "expected a list of one or more tokens"),
        (lambda: model.prefill(0, [VOCABULARY]), f"expected tokens of 0 to {VOCABULARY - 1}, found {VOCABULARY}"),
        (lambda: model.decode({0: -1}), "found -1"),
        (lambda: model.prefill(0, [1] * (CONTEXT + 1)), "slot 0 holds 0 tokens: expected at most 320 more, found 321"),
        (lambda: model.rewind(0, 1), "expected a length of 0 to 0, found 1"),
        (lambda: model.logits(0), "slot 0: expected a token"),
    ):
        with pytest.raises(InputError, match=message):
            call()
    model.prefill(0, [1] * CONTEXT)
    with pytest.raises(InputError, match="slot 0 holds 320 tokens"):
        model.decode({0: 1, 1: 1})
    assert model.length(0) == CONTEXT and model.length(1) == 0


# ---- what is read of a checkpoint ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "error", "message"),
    [
        ("llama", {"model_type": "llamma"}, UnsupportedError, "expected one of llama, .*, found 'llamma'; the nearest"),
        ("llama", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, UnsupportedError, "found 'spiral'"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, ModelError, "lacks 'factor'"),
        ("llama", {"hidden_act": "mish"}, UnsupportedError, "'hidden_activation': expected silu, .*, found 'mish'"),
        ("llama", {"num_hidden_layers": "2"}, ModelError, "'num_hidden_layers': expected a number from 1 to .*'2'"),
        ("gemma2", {"query_pre_attn_scalar": 0}, ModelError, "'query_pre_attn_scalar': expected a number above 0"),
        ("llama", {"num_key_value_heads": 3}, ModelError, "expected a number of heads that 3 heads of keys divide"),
        ("llama", {"intermediate_size": 95}, ModelError, r"gate_proj.weight': expected the shape \[95, 64\], found"),
        ("phi3", {"num_key_value_heads": 1}, ModelError, r"qkv_proj.weight': expected the shape \[64, 64\], found"),
        ("llama", {"num_hidden_layers": 3}, ModelError, "no tensor 'model.layers.2.input_layernorm.weight'"),
        ("llama", {"num_hidden_layers": 1}, ModelError, "has tensors that nothing reads: model.layers.1."),
        ("qwen3", {"model_type": "qwen2"}, ModelError, "has tensors that nothing reads: .*k_norm"),
        ("gemma3", {"layer_types": ["full_attention", "linear_attention"]}, UnsupportedError, "'linear_attention'"),
        ("gemma3", {"use_bidirectional_attention": True}, UnsupportedError, "'use_bidirectional_attention'"),
        ("mixtral", {"num_experts_per_tok": 5}, ModelError, "'num_experts_per_tok': expected at most 4, found 5"),
    ],
)
def test_what_does_not_make_a_model_is_said(name: str, changes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        families.read(Changed(name, **changes), CONTEXT)


def test_dynamic_angles_are_refused_where_they_would_change() -> None:
    changed = Changed("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    config, _ = families.read(changed, CONTEXT)
    assert config == families.read(Module(models("llama").single), CONTEXT)[0]
    with pytest.raises(UnsupportedError, match="'dynamic': expected a context of at most 320"):
        families.read(changed, CONTEXT + 1)


def test_configs_of_earlier_versions_mean_the_same() -> None:
    """Angles had other names, and kinds of layers were a number."""
    for name, former in (
        ("yarn", {"rope_parameters": None, "rope_theta": 10_000.0, "rope_scaling": {
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 80}}),
        ("gemma3", {"rope_parameters": None, "rope_theta": 1_000_000.0, "rope_local_base_freq": 10_000.0,
                    "layer_types": None, "sliding_window_pattern": 2}),
    ):  # fmt: skip
        now, _ = families.read(Module(models(name).single), CONTEXT)
        assert families.read(Changed(name, **former), CONTEXT)[0] == now


def test_longrope_takes_its_factors_by_the_context() -> None:
    """Of a short library the short ones: as transformers for sequences that are short."""
    config, _ = families.read(Module(models("longrope").single), 64)
    mixer = config.layers[0].mixer
    assert isinstance(mixer, Attention)
    rotary = mixer.rotary
    inverse = models("longrope").single.model.rotary_emb.original_inv_freq
    assert rotary is not None
    np.testing.assert_allclose(rotary.frequencies, inverse.numpy(), rtol=1e-6)


def test_logits_of_the_reference_are_in_float64() -> None:
    """The float64 model of transformers rounds to float32 on its way; what tests compare with does not."""
    single, double = models("llama")
    case = tokens(0, 50)
    with torch.no_grad():
        mixed = double(torch.from_numpy(case)[None], use_cache=False).logits[0].numpy()
    own, rounded = np.abs(logits(single, case) - logits(double, case)).max(), np.abs(mixed - logits(double, case)).max()
    assert 0 < rounded < own


# ---- the program -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_a_step_writes_rows_in_place_and_copies_no_cache(name: str) -> None:
    """What else a step has that grows with the filled rows is a mask, and scores, of which there is one for a row."""
    program = compiled(name).module.program
    assert program is not None
    states = {state.buffer for state in program.states}
    buffers = {buffer.name: buffer for buffer in program.buffers}
    for entry in program.entries:
        if entry.name not in ("decode", "prefill"):
            continue
        used = {argument for step in entry.launches for argument in step.arguments}
        assert states <= used and not {f"{state}.next" for state in states} & used
        if entry.name == "decode":
            growing = [b for n in used if _grows((b := buffers[n]).shape)]
            assert growing and all(8 * buffer.size < buffers["keys_0"].size for buffer in growing)


def _grows(shape: tuple[sym.Int, ...]) -> bool:
    return any(v.name.startswith("blocks") for size in shape for v in sym.variables(size))


def test_a_step_costs_what_is_filled() -> None:
    """Operations grow with the position, by those of the rows that are read."""
    program = compiled("llama").module.program
    assert program is not None
    (entry,) = (entry for entry in program.entries if entry.name == "decode")

    def operations(blocks: int) -> int:
        sizes = {"first": 0, "batch": 1, f"blocks_{CONTEXT}": blocks}
        return sum(int(sym.evaluate(step.operations, sizes)) for step in entry.launches)

    one, two, five = map(operations, (1, 2, 5))
    heads, size, layers = 4, support.WIDTH // 4, 2
    assert two - one == layers * 2 * 2 * heads * size * BLOCK and five - two == 3 * (two - one)


def test_a_group_of_queries_reads_the_cache_where_it_lies() -> None:
    """Seven queries for a key: by estimate alone tiles would have 24 columns, which do not divide what is read."""
    config = transformers.LlamaConfig(
        **{**support.SIZES, "hidden_size": 112, "num_hidden_layers": 1, "num_attention_heads": 14, "head_dim": 64}
    )
    single = transformers.AutoModelForCausalLM.from_config(config)
    decoder = graph.graphs("seven", *families.read(Module(single), CONTEXT), Room(CONTEXT))["decode"]
    program = compile_graphs("seven", {"decode": decoder}, targets.parse("avx2"))
    growing = [buffer for buffer in program.buffers if buffer.space == "arena" and _grows(buffer.shape)]
    assert growing and all(buffer.dtype == bool_ for buffer in growing)
