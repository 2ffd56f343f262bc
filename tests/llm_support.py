"""Small language models of every family with random weights, compiled, and what transformers computes of them in
float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

import luminal.llm
from luminal.frontends.llm.checkpoint import Module
from luminal.llm import LanguageModel
from tests.drawn import draw

VOCABULARY, WIDTH, CONTEXT, WINDOW = 384, 64, 320, 48
CHUNK = 32  # tokens that are computed at once
LENGTH = 230  # of a sequence: beyond the rows of a ring, which has 128
Logits = NDArray[np.float64]

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    "initializer_range": 0.25, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_MIXTURE: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}


def _scaled(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **parameters}}


# By name, the class of the config and what it is given besides the sizes.
CONFIGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW, "head_dim": 16}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "use_sliding_window": True, "sliding_window": WINDOW,
                              "max_window_layers": 1}),
    "gemma": ("GemmaConfig", {"head_dim": 32, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 24}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": WINDOW, "sliding_window_pattern": 2,
                                   "query_pre_attn_scalar": 4}),
    "phi3": ("Phi3Config", {"partial_rotary_factor": 0.5}),
    "gpt2": ("GPT2Config", {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2MoeConfig", {**_MIXTURE, "num_experts": 4, "shared_expert_intermediate_size": 32}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_MIXTURE, "num_experts": 4, "norm_topk_prob": True, "head_dim": 16}),
    "mamba": ("MambaConfig", {"state_size": 8, "time_step_rank": 4, "intermediate_size": 128}),
    "falcon_mamba": ("FalconMambaConfig", {"state_size": 8, "time_step_rank": 4, "intermediate_size": 128}),
    "mamba2": ("Mamba2Config", {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 16}),
    "linear": ("LlamaConfig", _scaled("linear", factor=4.0)),
    "llama3": ("LlamaConfig", _scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                      original_max_position_embeddings=64)),
    "yarn": ("LlamaConfig", _scaled("yarn", factor=4.0, original_max_position_embeddings=80)),
    "longrope": ("Phi3Config", {**_scaled("longrope", short_factor=[1.0] * 8, long_factor=[1.0, 1.5, 2, 3, 4, 5, 6, 8]),
                                "original_max_position_embeddings": 64}),
}  # fmt: skip
# Of the weights: with these the 200 tokens that follow ``tokens(2, 70)`` in tests/test_llm.py are of at least 60 kinds,
# and the likeliest is ahead by more than 8 times what a float32 computation may be off.
SEEDS: Mapping[str, int] = {
    "llama": 3, "mistral": 2, "qwen2": 0, "qwen3": 0, "gemma": 2, "gemma2": 0, "gemma3": 7, "phi3": 0, "gpt2": 0,
    "mixtral": 1, "qwen2_moe": 0, "qwen3_moe": 0, "mamba": 0, "falcon_mamba": 0, "mamba2": 1, "linear": 0, "llama3": 0,
    "yarn": 3, "longrope": 0,
}  # fmt: skip


class InFloat64(TorchFunctionMode):
    """Whatever a model asks for in float32 is in float64: norms, angles and softmax of transformers ask for it whatever
    the type of the model."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


class Models(NamedTuple):
    """One model in float32 and the same in float64."""

    single: Any
    double: Any


@cache
def models(name: str) -> Models:
    kind, given = CONFIGS[name]
    config = getattr(transformers, kind)(**{**SIZES, **given})
    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    single = transformers.AutoModelForCausalLM.from_config(config, **eager).eval()
    draw(single, SEEDS[name], SIZES["initializer_range"])
    with torch.no_grad():
        for key, value in single.named_parameters():
            if name in ("gemma2", "gemma3") and "post_" in key:  # else the embedding outweighs all that layers add,
                value.add_(4.0)  # and each token is followed by itself
    with InFloat64():
        double = transformers.AutoModelForCausalLM.from_config(config, **eager).double().eval()
    double.load_state_dict(single.state_dict())
    return Models(single, double)


def logits(model: Any, tokens: NDArray[np.int64]) -> Logits:
    """What ``model`` says after each of ``tokens``."""
    single = next(model.parameters()).dtype == torch.float32
    given = torch.from_numpy(tokens)[None]
    with torch.no_grad():
        if single:
            found = model(given, use_cache=False).logits
        else:
            with InFloat64():
                found = model(given, use_cache=False).logits
        result: Logits = found[0].double().numpy()
    return result


def head_bound(model: Any, found: Logits) -> float:
    """The rounding of the last product alone, of so many terms (Higham, "Accuracy and Stability", 3.1):
    ``n u / (1 - n u)`` times the sum of magnitudes, of which the largest of all logits is no less than a logit."""
    terms = model.config.hidden_size * 2.0**-24
    return float(terms / (1 - terms) * np.abs(found).max())


def greedy(model: Any, prompt: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """``prompt`` and the ``count`` tokens that transformers' generation gives with ``model`` in float64."""
    with torch.no_grad(), InFloat64():
        found = model.generate(torch.from_numpy(prompt)[None], max_new_tokens=count, do_sample=False)[0]
    result: NDArray[np.int64] = found.numpy()
    return result


class Reference(NamedTuple):
    """What float64 says of a sequence, and how far off a float32 computation may be: twice as far as transformers'
    own, or the rounding of the last product."""

    tokens: NDArray[np.int64]
    logits: Logits
    error: float

    def check(self, position: int, found: NDArray[np.float32]) -> None:
        wanted = self.logits[position]
        assert np.abs(found - wanted).max() <= self.error, (position, np.abs(found - wanted).max(), self.error)
        second, first = np.sort(wanted)[-2:]
        if first - second > 2 * self.error:
            assert found.argmax() == wanted.argmax(), position


def reference(name: str, tokens: NDArray[np.int64]) -> Reference:
    single, double = models(name)
    wanted = logits(double, tokens)
    own = float(np.abs(logits(single, tokens) - wanted).max())
    return Reference(tokens, wanted, max(2 * own, head_bound(single, wanted)))


def tokens(seed: int, length: int = LENGTH) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length)


@cache
def known(name: str, seed: int) -> Reference:
    return reference(name, tokens(seed))


@cache
def compiled(name: str) -> LanguageModel:
    return luminal.llm.compile(models(name).single, slots=3, chunk=CHUNK, context=CONTEXT)


def emptied(name: str) -> LanguageModel:
    """The compiled model, which several tests share, without tokens."""
    found = compiled(name)
    found.reset()
    return found


class Changed(Module):
    """A model's checkpoint with another config."""

    def __init__(self, name: str, **changes: Any) -> None:
        super().__init__(models(name).single)
        self.changes = changes

    @property
    def config(self) -> Any:  # type: ignore[override]
        return {**self.module.config.to_dict(), **self.changes}
