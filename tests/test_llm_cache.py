"""Language models whose cache is in 8 bits: what it holds, what is computed of it, and sequences in it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

import luminal.llm
from luminal.core import symbolic as sym
from luminal.core.errors import ArtifactError, InputError
from luminal.core.types import i8
from luminal.llm import LanguageModel
from tests.llm_support import CONTEXT, VOCABULARY, InFloat64, Models, head_bound, models

NAME = "gemma2"  # of its two layers one has a window, which is a ring, and scores have a cap
CHUNK, LENGTH = 32, 170  # the ring has 128 rows
STEP = 2.0**-20  # of scales and quotients that are computed in float32, several times over


@cache
def compiled() -> LanguageModel:
    return luminal.llm.compile(models(NAME).single, slots=3, chunk=CHUNK, context=CONTEXT, cache="int8")


@pytest.fixture
def model() -> LanguageModel:
    compiled().reset()
    return compiled()


def tokens(seed: int, length: int = LENGTH) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY, length)]


class Rows(transformers.DynamicCache):
    """A cache that gives attention these rows ``[2, layers, kv heads, length, head size]`` of keys and of values,
    whatever a model computes, which it keeps."""

    def __init__(self, rows: NDArray[np.float64]) -> None:
        super().__init__()
        self.rows, self.computed = rows, np.zeros_like(rows)

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        given = []
        for part, found in enumerate((key_states, value_states)):
            self.computed[part, layer_idx] = found[0].double().numpy()
            given.append(torch.from_numpy(self.rows[part, layer_idx])[None].to(found.dtype))
        return tuple(given)


def computed(model: Any, prompt: list[int], rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], Rows]:
    """The logits of a model of transformers, whose attention reads ``rows``, and the rows that it would write."""
    held = Rows(rows)
    with torch.no_grad():
        given = torch.tensor([prompt])
        if next(model.parameters()).dtype == torch.float32:
            found = model(given, past_key_values=held, use_cache=False).logits
        else:
            with InFloat64():
                found = model(given, past_key_values=held, use_cache=False).logits
    return found[0].double().numpy(), held


def test_it_holds_rounded_rows_and_attention_reads_these(model: LanguageModel, tmp_path: Path) -> None:
    """Each number is within half a step of what float64 computes from the rows before, and logits are those of float64
    with the rows as they are held; in parts of a prompt and token by token, beyond where the ring wraps."""
    prompt, config = tokens(0), models(NAME).single.config
    layers, heads, size = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
    held = np.zeros((2, layers, heads, LENGTH, size), np.int8)
    scales = np.zeros((2, layers, heads, LENGTH), np.float32)
    found: dict[int, NDArray[np.float32]] = {}
    windows = [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]
    at = 0
    while at < LENGTH:
        count = min(CHUNK, 160 - at) if at < 160 else 1
        if count > 1:
            model.prefill(1, prompt[at : at + count])
        else:
            model.decode({1: prompt[at]})
        model.save(tmp_path / "state", [1])
        with np.load(tmp_path / "state") as stored:
            for layer, window in enumerate(windows):
                new = np.arange(at, at + count)
                rows = new % model.shape.room.rows(window)
                held[0, layer, :, new] = stored[f"1.keys_{layer}_rows"][:, :, rows].transpose(2, 0, 1)
                held[1, layer, :, new] = stored[f"1.values_{layer}_rows"][:, rows].transpose(1, 0, 2)
                for part, of in enumerate(("key", "value")):
                    scales[part, layer, :, new] = stored[f"1.{of}_scales_{layer}_rows"][:, rows].T
        at += count
        found[at - 1] = model.logits(1)
    assert held.min() >= -127 and (np.abs(held.astype(int)).max(-1) == 127).all()  # all of the range is used
    rows = held.astype(np.float64) * scales.astype(np.float64)[..., None]
    pair: Models = models(NAME)
    (exact, double), (own, single) = (computed(part, prompt, rows) for part in (pair.double, pair.single))
    for part in range(2):
        for layer in range(layers):
            float32 = 2 * np.abs(single.computed[part, layer] - double.computed[part, layer]).max()
            step = scales[part, layer].astype(np.float64)[..., None]
            assert 0 < float32 < step.min() / 100
            off = np.abs(rows[part, layer] - double.computed[part, layer])
            assert (off <= step * (0.5 + 127 * STEP) + float32).all()
            largest = np.abs(double.computed[part, layer]).max(-1)
            assert (np.abs(largest - 127 * step[..., 0]) <= largest * STEP + float32).all()
    error = max(2 * np.abs(own - exact).max(), head_bound(pair.single, exact))
    for position, logits in found.items():
        assert np.abs(logits - exact[position]).max() <= error, position


def test_sequences_are_forked_rewound_restored_and_computed_side_by_side(model: LanguageModel, tmp_path: Path) -> None:
    """To the bit what one sequence alone gives."""
    first, second = tokens(1, 150), tokens(2, 20)

    def logits(slot: int, given: list[int]) -> NDArray[np.float32]:
        for token in given:
            model.decode({slot: token})
        return model.logits(slot)

    model.prefill(0, first)
    wanted = logits(0, second)
    model.rewind(0, 150)
    np.testing.assert_array_equal(logits(0, second), wanted)
    model.rewind(0, 150)
    model.fork(0, 2)
    model.save(tmp_path / "state", [0])
    model.prefill(1, tokens(3, 40))
    for token in second:  # slot 1 lies between, at another position
        model.decode({0: 7, 1: 9, 2: token})
    np.testing.assert_array_equal(model.logits(2), wanted)
    model.restore(tmp_path / "state")
    np.testing.assert_array_equal(logits(0, second), wanted)


def test_it_is_read_where_it_lies(model: LanguageModel) -> None:
    """A step has no copy of the cache, in whatever type: what grows with the filled rows is a mask, and scores."""
    program = model.module.program
    assert program is not None
    buffers = {buffer.name: buffer for buffer in program.buffers}
    wholes = [buffers[f"{part}_{layer}"] for part in ("keys", "values") for layer in range(2)]
    assert all(whole.dtype == i8 for whole in wholes)
    (decode,) = (entry for entry in program.entries if entry.name == "decode")
    used = {argument for step in decode.launches for argument in step.arguments}
    assert {whole.name for whole in wholes} <= used
    sizes = {n: {v.name for d in buffers[n].shape for v in sym.variables(d)} for n in used}
    growing = [buffers[n] for n in used if any(name.startswith("blocks") for name in sizes[n])]
    assert growing and all(8 * buffer.size < wholes[0].size for buffer in growing)


def test_a_library_says_what_its_cache_is(model: LanguageModel, tmp_path: Path) -> None:
    assert model.module.approximated("cache") == 2  # of decode and of prefill
    assert "int8" in model.module.explain()
    again = luminal.llm.load(model.export(tmp_path / "out", python_module=False))
    assert again.shape == model.shape and again.shape.room.cache == "int8"
    again.prefill(0, [1, 2, 3])
    model.prefill(0, [1, 2, 3])
    np.testing.assert_array_equal(again.logits(0), model.logits(0))
    with pytest.raises(InputError, match="cache: expected float32 or int8, found 'int4'"):
        luminal.llm.compile(models(NAME).single, cache="int4")


def test_states_of_another_cache_are_refused(model: LanguageModel, tmp_path: Path) -> None:
    model.prefill(0, [1, 2, 3])
    model.save(tmp_path / "state", [0])
    with np.load(tmp_path / "state") as stored:
        arrays = {name: array.astype(np.float32) if array.dtype == np.int8 else array for name, array in stored.items()}
    with (tmp_path / "state").open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(ArtifactError, match=r"'keys_0_rows' of slot 0 as int8\["):
        model.restore(tmp_path / "state")
