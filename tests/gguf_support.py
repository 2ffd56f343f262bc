"""Language models written as GGUF files by the package of that name, the way llama.cpp's converter does it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type

Array = np.ndarray[Any, Any]

_SIZES: Mapping[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": None, "bos_token_id": 1,
    "eos_token_id": 2, "rms_norm_eps": 1e-5,
}  # fmt: skip
_EXPERTS: Mapping[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}  # fmt: skip
_LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0 + k / 8 for k in range(8)],
         "long_factor": [2.0 + k for k in range(8)], "attention_factor": 1.25}  # fmt: skip
# By name, GGUF's architecture, the class of the config, and what it is given besides the sizes.
MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "llama": ("llama", "LlamaConfig", {}),
    "llama3": ("llama", "LlamaConfig", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "linear": ("llama", "LlamaConfig", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mixtral": ("llama", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}),
    "qwen2": ("qwen2", "Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2_moe": ("qwen2moe", "Qwen2MoeConfig", {**_EXPERTS, "shared_expert_intermediate_size": 64}),
    "qwen3": ("qwen3", "Qwen3Config", {"head_dim": 32}),
    "qwen3_moe": ("qwen3moe", "Qwen3MoeConfig", {**_EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "gemma2": ("gemma2", "Gemma2Config", {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32}),
    "gemma3": ("gemma3", "Gemma3TextConfig", {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 32,
                                              "num_hidden_layers": 7}),
    "phi3": ("phi3", "Phi3Config", {"sliding_window": 32}),
    "phi3_long": ("phi3", "Phi3Config", {"rope_parameters": _LONG, "original_max_position_embeddings": 32}),
    "gpt2": ("gpt2", "GPT2Config", {"num_key_value_heads": 4, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
}  # fmt: skip


def model(name: str, **more: Any) -> Any:
    """A model of random weights: those of norms and biases, too."""
    _, kind, given = MODELS[name]
    config = getattr(transformers, kind)(**{**_SIZES, **given, **more})
    torch.manual_seed(len(name))
    found = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for value in found.parameters():
            value.add_(torch.randn_like(value) * 0.2)
    return found


def write(
    path: Path, name: str, source: Any, kind: Callable[[str, Array], Type] = lambda name, array: Type.F32
) -> dict[str, tuple[Type, Array]]:
    """``source``, a model of that name, as a file; ``kind`` says how each tensor is stored. Returns for each name in
    the file its kind and its bytes as written."""
    architecture, _, _ = MODELS[name]
    writer = gguf.GGUFWriter(path, architecture)
    _describe(writer, architecture, source.config)
    stored: dict[str, tuple[Type, Array]] = {}
    for called, array in _tensors(architecture, source).items():
        chosen = kind(called, array)
        stored[called] = chosen, gguf.quants.quantize(array, chosen)
    add(writer, stored)
    return stored


def add(writer: Any, stored: Mapping[str, tuple[Type, Array]]) -> None:
    """Ends a file with these tensors."""
    for name, (kind, data) in stored.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, architecture: str, config: Any) -> None:
    rope = config.to_dict().get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_bos_token_id(1)
    if architecture == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(size * rope.get("partial_rotary_factor", 1.0)))
    if architecture not in ("qwen2", "phi3"):
        writer.add_key_length(size)
        writer.add_value_length(size)
    if getattr(config, "sliding_window", None) and architecture in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture in ("qwen2moe", "qwen3moe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _tensors(architecture: str, source: Any) -> dict[str, Array]:
    """The tensors by GGUF's names, which the package knows, and as the converter changes them."""
    config = source.config
    wanted = gguf.MODEL_ARCH[architecture.upper()]
    names = gguf.get_tensor_name_map(wanted, config.num_hidden_layers)
    found: dict[str, Array] = {}
    for name, tensor in source.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy().copy()
        name = name.replace("mlp.experts.down_proj", "mlp.experts.down_proj.weight")
        if (routed := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.gate_up_proj", name)) is not None:
            gate, up = np.split(array, 2, 1)
            found |= {f"blk.{routed[1]}.ffn_gate_exps.weight": gate, f"blk.{routed[1]}.ffn_up_exps.weight": up}
            continue
        called = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert called is not None, name
        if architecture == "llama" and (heads := _heads(name, config)):
            array = array.reshape(heads, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        if architecture in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if architecture == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight$", name):
            array = np.ascontiguousarray(array.T)
        if name.endswith("shared_expert_gate.weight"):
            array = array.reshape(-1)
        found[called] = array
    rope = config.to_dict().get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (np.arange(0, 16, 2) / 16)
        slowed, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        found["rope_freqs.weight"] = (plain / slowed.double().numpy()).astype(np.float32)
    if rope.get("rope_type") == "longrope":
        for kind in ("short", "long"):
            found[f"rope_factors_{kind}.weight"] = np.array(rope[f"{kind}_factor"], np.float32)
    return found


def _heads(name: str, config: Any) -> int:
    if "q_proj" in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if "k_proj" in name else 0
