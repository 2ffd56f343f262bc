"""Adapters of low rank: loaded, chosen for each sequence, exchanged, without compiling again."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import luminal.llm
from luminal.core.errors import InputError, LuminalError, ModelError, UnsupportedError
from luminal.llm import LanguageModel, Sampling, tokens
from luminal.llm.generate import Options, Scheduler
from tests import llm_support as support
from tests.language_support import write_folder

save_file = pytest.importorskip("safetensors.numpy", reason="not installed: pip install safetensors").save_file

ROOM: Mapping[str, Any] = {"context": 64, "slots": 2, "chunk": 16, "adapters": 2, "rank": 8, "threads": 2}
TOKENS = np.random.default_rng(5).integers(0, support.VOCABULARY, 24)
# By configuration, the modules of a layer that the adapters change.
MODULES = {
    "llama": ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"),
    "phi3": ("self_attn.qkv_proj", "mlp.gate_up_proj"),
    "gpt2": ("attn.c_attn", "mlp.c_fc", "mlp.c_proj"),
}
SETTINGS = {"peft_type": "LORA", "r": 4, "lora_alpha": 12, "bias": "none", "target_modules": ["any"]}


class Drawn(NamedTuple):
    """An adapter: the matrices of each module, by its name."""

    matrices: dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]
    strength: float


@cache
def compiled(name: str) -> LanguageModel:
    return luminal.llm.compile(support.models(name).single, **ROOM)


def adapter(name: str, folder: Path, seed: int, rank: int = 4, **settings: Any) -> Drawn:
    """A random one, written as PEFT does."""
    draw, found = np.random.default_rng(seed), {}
    for key, module in support.models(name).single.named_modules():
        if key.endswith(MODULES[name]):
            outputs, inputs = module.weight.shape[:: -1 if name == "gpt2" else 1]
            into, out = draw.standard_normal((rank, inputs)), draw.standard_normal((outputs, rank))
            found[key] = (0.1 * into).astype(np.float32), (0.2 * out).astype(np.float32)
    assert len(found) == 2 * len(MODULES[name])
    folder.mkdir(exist_ok=True)
    given = {**SETTINGS, "r": rank, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    parts = {
        f"base_model.model.{key}.lora_{part}.weight": array
        for key, pair in found.items()
        for part, array in zip("AB", pair, strict=True)
    }
    save_file(parts, folder / "adapter_model.safetensors")
    return Drawn(found, given["lora_alpha"] / (rank**0.5 if given.get("use_rslora") else rank))


def check(name: str, model: LanguageModel, slot: int, drawn: Drawn | None, strength: float = 1.0) -> None:
    """That a slot's logits are those of the model whose weights the adapter has been added to."""
    found, own = [], []
    for whole in (support.models(name).double, support.models(name).single):
        whole = copy.deepcopy(whole)
        with torch.no_grad():
            for key, (into, out) in ({} if drawn is None else drawn.matrices).items():
                weight = whole.get_submodule(key).weight
                added = torch.from_numpy(out).double() @ torch.from_numpy(into).double() * drawn.strength * strength
                weight += (added.T if name == "gpt2" else added).to(weight.dtype)
        (own if found else found).append(support.logits(whole, TOKENS)[-1])
    bound = max(2 * np.abs(own[0] - found[0]).max(), support.head_bound(support.models(name).double, found[0]))
    assert np.abs(model.logits(slot) - found[0]).max() <= bound


def run(model: LanguageModel, slot: int, number: int | None, strength: float = 1.0) -> None:
    model.rewind(slot, 0)
    model.use_adapter(slot, number, strength)
    model.prefill(slot, TOKENS[:-3].tolist())


@pytest.mark.parametrize("name", MODULES)
def test_sequences_have_adapters_of_their_own(name: str, tmp_path: Path) -> None:
    model = compiled(name)
    first, second = adapter(name, tmp_path / "a", 1), adapter(name, tmp_path / "b", 2, 8, use_rslora=True)
    model.load_adapter(0, tmp_path / "a")
    model.load_adapter(1, tmp_path / "b")
    for ways in (((0, 1.0), (1, 1.0)), ((1, 0.5), (None, 1.0))):
        for slot, (number, strength) in enumerate(ways):
            run(model, slot, number, strength)
        for token in TOKENS[-3:]:
            model.decode({0: int(token), 1: int(token)})
        for slot, (number, strength) in enumerate(ways):
            check(name, model, slot, None if number is None else (first, second)[number], strength)


def test_an_adapter_is_exchanged_kept_and_copied(tmp_path: Path) -> None:
    model = compiled("llama")
    adapter("llama", tmp_path / "a", 1)
    other = adapter("llama", tmp_path / "b", 3, alpha_pattern={"q_proj": 12})
    model.load_adapter(0, tmp_path / "a")
    run(model, 0, 0)
    model.load_adapter(0, tmp_path / "b")
    assert model.length(0) == 0  # it was computed with what was there
    run(model, 0, 0)
    model.decode({0: int(TOKENS[-3])})
    model.fork(0, 1)
    model.save(tmp_path / "state.npz", [1])
    model.reset()
    model.restore(tmp_path / "state.npz")
    for token in TOKENS[-2:]:
        model.decode({1: int(token)})
    check("llama", model, 1, other)


def test_what_is_exported_takes_adapters(tmp_path: Path) -> None:
    drawn = adapter("llama", tmp_path / "a", 1)
    model = luminal.llm.load(compiled("llama").export(tmp_path / "out", python_module=False), threads=2)
    assert model.adapters == 2
    model.load_adapter(1, tmp_path / "a")
    run(model, 1, 1)
    model.prefill(1, TOKENS[-3:].tolist())
    check("llama", model, 1, drawn)


def test_without_an_adapter_nothing_changes(tmp_path: Path) -> None:
    model, plain = compiled("llama"), luminal.llm.compile(support.models("llama").single, **{**ROOM, "adapters": 0})
    adapter("llama", tmp_path / "a", 1)
    model.load_adapter(0, tmp_path / "a")
    run(model, 0, None)
    plain.prefill(0, TOKENS[:-3].tolist())
    np.testing.assert_array_equal(model.logits(0), plain.logits(0))
    with pytest.raises(InputError, match="no room for adapters: compile it with adapters="):
        plain.load_adapter(0, tmp_path / "a")


def test_answers_with_and_without_share_nothing(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="not installed: pip install tokenizers")
    model, prompt = compiled("llama"), TOKENS.tolist()
    adapter("llama", tmp_path / "a", 1)
    model.load_adapter(0, tmp_path / "a")
    expected = {number: greedy(model, number, prompt) for number in (None, 0)}
    assert expected[None] != expected[0]
    scheduler = Scheduler(model, tokens.load(write_folder(tmp_path / "tokenizer")))
    for ways in ((0, None), (None, 0), (0, 0)):
        made = {}
        for place, number in enumerate(ways):
            options = Options(4, Sampling(temperature=0.0), endless=True, adapter=number)
            made[place] = scheduler.answer(prompt, options)
            scheduler.add(made[place])
        while scheduler.answers:
            scheduler.step()
        assert [made[place].made for place in made] == [expected[number] for number in ways]
    assert made[0].reused > 0  # of the same adapter


def greedy(model: LanguageModel, number: int | None, prompt: list[int]) -> list[int]:
    model.rewind(0, 0)
    model.use_adapter(0, number)
    model.prefill(0, prompt)
    found = []
    for _ in range(4):
        found.append(int(model.logits(0).argmax()))
        model.decode({0: found[-1]})
    return found


REFUSED: list[tuple[dict[str, Any], type[LuminalError], str]] = [
    ({"peft_type": "LOHA"}, UnsupportedError, "'peft_type': expected 'LORA', found 'LOHA'"),
    ({"use_dora": True}, UnsupportedError, "'use_dora': expected None, found True"),
    ({"modules_to_save": ["lm_head"]}, UnsupportedError, "'modules_to_save'"),
    ({"lora_alpha": "x"}, ModelError, "'lora_alpha': expected a number, found 'x'"),
    ({"rank": 9}, ModelError, "has rank 9: expected at most 8"),
]


@pytest.mark.parametrize(("settings", "error", "message"), REFUSED)
def test_folders_that_are_wrong_are_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[LuminalError], message: str
) -> None:
    adapter("llama", tmp_path / "a", 1, settings.pop("rank", 4))
    given = {**SETTINGS, **settings}
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(given))
    with pytest.raises(error, match=message):
        compiled("llama").load_adapter(0, tmp_path / "a")


def test_matrices_that_are_wrong_are_refused(tmp_path: Path) -> None:
    model, path = compiled("llama"), tmp_path / "a" / "adapter_model.safetensors"
    adapter("llama", tmp_path / "a", 1)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    for arrays, error, message in (
        ({name: np.zeros((4, 63), np.float32), name.replace("_A", "_B"): np.zeros((64, 4), np.float32)}, ModelError,
         r"expected matrices \[4, 64\] and \[64, 4\], found \[4, 63\]"),
        ({name: np.zeros((4, 64), np.float32)}, ModelError, "expected lora_A and lora_B, found only lora_A"),
        ({"lm_head.weight": np.zeros((4, 64), np.float32)}, UnsupportedError, "found 'lm_head.weight'"),
        ({name.replace("q_proj", "k_norm"): np.zeros((4, 64), np.float32),
          name.replace("q_proj", "k_norm").replace("_A", "_B"): np.zeros((64, 4), np.float32)}, ModelError,
         "is no product of this model"),
    ):  # fmt: skip
        save_file(arrays, path)
        with pytest.raises(error, match=message):
            model.load_adapter(0, tmp_path / "a")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelError, match="truncated"):
        model.load_adapter(0, tmp_path / "a")
    with pytest.raises(InputError, match="expected an adapter of 0 to 1, found 2"):
        model.load_adapter(2, tmp_path / "a")
    model.rewind(1, 0)
    model.prefill(1, [1])
    with pytest.raises(InputError, match="expected no tokens where its adapter is set, found 1"):
        model.use_adapter(1, None)
    with pytest.raises(InputError, match="adapters: expected a number from 0"):
        luminal.llm.compile(support.models("llama").single, adapters=-1)
