"""GGUF's names, as tables: its metadata as a ``config.json``, its tensors by the names of safetensors folders.

A row is a new architecture. Tensors are stored as the folders have them, but for what ``Change`` lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from luminal.core.data import Array
from luminal.core.errors import ModelError, UnsupportedError, nearest
from luminal.frontends.llm.checkpoint import Weight
from luminal.frontends.llm.files import Blocked, Floats, Transposed

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Read: TypeAlias = Callable[[str], Weight]


class Change(Enum):
    """How a tensor of GGUF differs from that of a folder."""

    NONE = "it does not"
    QUERIES = "pairs that are turned are neighbours among the rows of a head, not in its halves"
    KEYS = "the same, of heads of keys"
    TRANSPOSED = "rows are columns"
    ROW = "a matrix of one row is a vector"


@dataclass(frozen=True)
class Row:
    """A tensor: its name in GGUF and in a folder, with ``{i}`` for the layer."""

    name: str
    folder: str
    change: Change = Change.NONE


@dataclass(frozen=True)
class Fact:
    """An entry of ``config.json``, and the key of GGUF that has it, after the architecture's name. Without a
    ``default``, a file must have it; None stands for an entry that is left out."""

    name: str
    key: str
    kind: type = int
    default: Any = ...


@dataclass(frozen=True)
class Architecture:
    """What a file of one architecture means. ``fixed`` are entries of ``config.json`` that GGUF leaves to programs,
    ``more`` those that have to be computed."""

    model_type: str
    facts: tuple[Fact, ...]
    rows: tuple[Row, ...]
    fixed: Mapping[str, Any]
    more: Callable[[_File], dict[str, Any]] = lambda file: {}


@dataclass(frozen=True)
class Named:
    """A model by the names of folders: its ``config.json``, and by name what opens a tensor."""

    config: Mapping[str, Any]
    weights: Mapping[str, Callable[[], Weight]]


@dataclass(frozen=True)
class _File:
    """A file's metadata and shapes of tensors, and how tensors are read; ``where`` names the file in messages."""

    architecture: str
    metadata: Mapping[str, Any]
    shapes: Shapes
    read: Read
    where: str

    def fact(self, key: str, kind: type, default: Any = ...) -> Any:
        """The value under a key of the architecture. Raises ModelError where it lacks or has another type."""
        name = f"{self.architecture}.{key}"
        found = self.metadata.get(name, default)
        if found is ...:
            raise ModelError(f"{self.where}: the metadata lacks {name!r}{nearest(name, self.metadata.keys())}")
        if found is default:
            return default
        if isinstance(found, (np.ndarray, list)):
            same = [*dict.fromkeys(np.asarray(found).reshape(-1).tolist())]
            if len(same) != 1:
                raise UnsupportedError(f"{self.where}: expected one {name!r} for all layers, found {str(same)[:80]}")
            (found,) = same
        if kind is float and type(found) is int:
            found = float(found)
        if type(found) is not kind:
            raise ModelError(f"{self.where}: expected {name!r} to be a {kind.__name__}, found {str(found)[:80]!r}")
        return found

    def floats(self, name: str) -> list[float] | None:
        """The numbers of a small tensor, if there is one of that name."""
        if name not in self.shapes:
            return None
        found = self.read(name)
        if not isinstance(found, Floats) or len(found.shape) != 1 or found.shape[0] > 1 << 16:
            raise ModelError(f"{self.where}: expected {name!r} to be a vector of floats, found {list(found.shape)}")
        return [float(x) for x in found.array()]

    @property
    def head_size(self) -> int:
        heads = self.fact("attention.head_count", int)
        default = self.fact("embedding_length", int) // max(heads, 1)
        return int(self.fact("attention.key_length", int, default))

    def rotary(self, key: str = "rope.freq_base") -> dict[str, Any]:
        """The parameters of rotary positions."""
        found: dict[str, Any] = {"rope_theta": self.fact(key, float, 10000.0), "rope_type": "default"}
        kind = self.fact("rope.scaling.type", str, "none")
        original = self.fact("rope.scaling.original_context_length", int, None)
        factor = self.fact("rope.scaling.factor", float, None)
        if factor is None and kind != "longrope":
            kind = "none"
        factors = {name: self.floats(f"{name}.weight") for name in ("rope_freqs", "rope_factors_short")}
        if factors["rope_freqs"] is not None:  # a factor for each pair, whatever it was made from
            numbers = factors["rope_freqs"]
            found |= {"rope_type": "longrope", "short_factor": numbers, "long_factor": numbers, "attention_factor": 1.0}
        elif factors["rope_factors_short"] is not None:
            long = self.floats("rope_factors_long.weight")
            found |= {"rope_type": "longrope", "short_factor": factors["rope_factors_short"], "long_factor": long}
            found["attention_factor"] = self.fact("rope.scaling.attn_factor", float, None)
        elif kind != "none":
            found |= {"rope_type": kind, "factor": factor}
            if kind == "yarn":
                found["attention_factor"] = self.fact("rope.scaling.attn_factor", float, None)
        if original is not None:
            found["original_max_position_embeddings"] = original
        return {name: value for name, value in found.items() if value is not None}


def of(metadata: Mapping[str, Any], shapes: Shapes, read: Read, where: str) -> Named:
    """The model of a file with these ``metadata`` and tensors, which ``read`` opens by name.

    Raises UnsupportedError for an architecture that has no row, or a tensor that its rows do not have; ModelError where
    metadata lack or do not fit.
    """
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError(f"{where}: the metadata lacks 'general.architecture', so it is no model")
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"{where}: expected an architecture of {', '.join(ARCHITECTURES)}, found {name[:80]!r}"
            f"{nearest(name[:80], ARCHITECTURES)}; take the model's folder of safetensors, or its ONNX file"
        )
    file = _File(name, metadata, shapes, read, where)
    found = ARCHITECTURES[name]
    if callable(found):
        found = found(file)
    config: dict[str, Any] = {"model_type": found.model_type, **found.fixed}
    config |= {fact.name: file.fact(fact.key, fact.kind, fact.default) for fact in found.facts}
    config |= found.more(file)
    if "token_embd.weight" not in shapes:
        raise ModelError(f"{where}: there is no tensor 'token_embd.weight'")
    config["vocab_size"] = shapes["token_embd.weight"][0]
    config["tie_word_embeddings"] = "output.weight" not in shapes
    for key in ("bos", "eos", "padding"):
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if type(token) is int:
            config["pad_token_id" if key == "padding" else f"{key}_token_id"] = token
    return Named({k: v for k, v in config.items() if v is not None}, _weights(found, file))


def _weights(architecture: Architecture, file: _File) -> dict[str, Callable[[], Weight]]:
    rows = {_pattern(row.name): row for row in architecture.rows}
    found: dict[str, Callable[[], Weight]] = {}
    unknown = []
    for name in file.shapes:
        if name in _FACTORS:
            continue
        matched = next(((row, m) for pattern, row in rows.items() if (m := pattern.fullmatch(name))), None)
        if matched is None:
            unknown.append(name)
            continue
        row, match = matched
        layer = int(match["i"]) if "{i}" in row.name else 0
        found[row.folder.format(i=layer)] = _opener(file, name, row.change)
    if unknown:
        raise UnsupportedError(
            f"{file.where}: a model of architecture {file.architecture!r} is expected to have no tensors "
            f"{', '.join(repr(name[:80]) for name in unknown[:4])} ({len(unknown)} unknown in all)"
        )
    return found


_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(re.escape("{i}"), r"(?P<i>\d{1,5})"))


def _opener(file: _File, name: str, change: Change) -> Callable[[], Weight]:
    return lambda: _changed(file, name, change)


def _changed(file: _File, name: str, change: Change) -> Weight:
    """A tensor as a folder has it."""
    weight = file.read(name)
    assert isinstance(weight, (Floats, Blocked))
    match change:
        case Change.QUERIES | Change.KEYS:
            heads = file.fact("attention.head_count", int)
            if change is Change.KEYS:
                heads = file.fact("attention.head_count_kv", int, heads)
            if heads < 1 or weight.shape[0] % (2 * heads):
                raise ModelError(f"{file.where}: {name!r} has {weight.shape[0]} rows, which {heads} heads cannot share")
            # Row p of head h, as pairs: the first half of a head are the first of each pair.
            order = np.arange(weight.shape[0]).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
            return _read(weight, lambda rows: rows[order])
        case Change.TRANSPOSED:
            if len(weight.shape) != 2:
                raise ModelError(f"{file.where}: expected {name!r} to be a matrix, found {list(weight.shape)}")
            return Transposed(weight)
        case Change.ROW:
            return replace(_read(weight, lambda row: row[None]), shape=(1, *weight.shape))
    return weight


def _read(weight: Floats | Blocked, of: Callable[[Array], Array]) -> Floats | Blocked:
    """``weight`` with ``of`` applied to the rows that are read."""
    if isinstance(weight, Floats):
        array = weight.array
        return replace(weight, array=lambda: of(array()))
    blocks = weight.blocks
    return replace(weight, blocks=lambda: of(blocks()))


# ---- the architectures ---------------------------------------------------------------------------------------------


_SIZES = (
    Fact("hidden_size", "embedding_length"),
    Fact("num_hidden_layers", "block_count"),
    Fact("num_attention_heads", "attention.head_count"),
    Fact("num_key_value_heads", "attention.head_count_kv", default=None),
    Fact("intermediate_size", "feed_forward_length", default=None),
    Fact("max_position_embeddings", "context_length"),
    Fact("rms_norm_eps", "attention.layer_norm_rms_epsilon", float),
)
_WINDOW = Fact("sliding_window", "attention.sliding_window", default=None)
_EXPERTS = (Fact("num_experts_per_tok", "expert_used_count"),)

_ENDS = (
    Row("token_embd.weight", "model.embed_tokens.weight"),
    Row("output_norm.weight", "model.norm.weight"),
    Row("output.weight", "lm_head.weight"),
)
_LAYER = "model.layers.{i}."


def _linear(name: str, folder: str, change: Change = Change.NONE) -> tuple[Row, ...]:
    """A matrix of a layer, and its bias if there is one."""
    return (
        Row(f"blk.{{i}}.{name}.weight", f"{_LAYER}{folder}.weight", change),
        Row(f"blk.{{i}}.{name}.bias", f"{_LAYER}{folder}.bias", change),
    )


def _norm(name: str, folder: str, change: Change = Change.NONE) -> Row:
    return Row(f"blk.{{i}}.{name}.weight", f"{_LAYER}{folder}.weight", change)


def _attention(queries: Change = Change.NONE, keys: Change = Change.NONE) -> tuple[Row, ...]:
    return (
        *_linear("attn_q", "self_attn.q_proj", queries),
        *_linear("attn_k", "self_attn.k_proj", keys),
        *_linear("attn_v", "self_attn.v_proj"),
        *_linear("attn_output", "self_attn.o_proj"),
    )


_NETWORK = (
    *_linear("ffn_gate", "mlp.gate_proj"), *_linear("ffn_up", "mlp.up_proj"), *_linear("ffn_down", "mlp.down_proj"),
)  # fmt: skip
_NORMS = (_norm("attn_norm", "input_layernorm"), _norm("ffn_norm", "post_attention_layernorm"))
_HEAD_NORMS = (_norm("attn_q_norm", "self_attn.q_norm"), _norm("attn_k_norm", "self_attn.k_norm"))
# The tensors of all experts together, as no folder has them.
_ROUTED = (
    _norm("ffn_gate_inp", "mlp.gate"),
    _norm("ffn_gate_exps", "mlp.experts.gate_proj"),
    _norm("ffn_up_exps", "mlp.experts.up_proj"),
    _norm("ffn_down_exps", "mlp.experts.down_proj"),
)
_SHARED = (
    _norm("ffn_gate_inp_shexp", "mlp.shared_expert_gate", Change.ROW),
    _norm("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    _norm("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    _norm("ffn_up_shexp", "mlp.shared_expert.up_proj"),
)


def _rotated(file: _File) -> dict[str, Any]:
    return {"head_dim": file.head_size, "rope_parameters": file.rotary()}


def _biased(file: _File) -> dict[str, Any]:
    biases = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    return _rotated(file) | {name: tensor in file.shapes for name, tensor in biases.items()}


def _llama(file: _File) -> Architecture:
    """Mistral's models have this architecture too, and so have mixtures of experts like Mixtral."""
    attention = _attention(Change.QUERIES, Change.KEYS)
    if not file.fact("expert_count", int, 0):
        return Architecture("llama", _SIZES, (*_ENDS, *attention, *_NETWORK, *_NORMS), {"hidden_act": "silu"}, _biased)
    facts = (*_SIZES, Fact("num_local_experts", "expert_count"), *_EXPERTS)
    rows = (*_ENDS, *attention, *_NORMS, *_ROUTED)
    return Architecture("mixtral", facts, rows, {"hidden_act": "silu"}, _rotated)


_GEMMA_NORMS = (
    _norm("attn_norm", "input_layernorm"),
    _norm("post_attention_norm", "post_attention_layernorm"),
    _norm("ffn_norm", "pre_feedforward_layernorm"),
    _norm("post_ffw_norm", "post_feedforward_layernorm"),
)
# The 1 that is added to the weights of norms is in the file's.
_GEMMA_FIXED = {"norm_offset": 0.0, "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
# Of Gemma's largest models, queries are scaled by another number than the size of a head. GGUF says so by the layers.
_GEMMA_LARGEST = (46, 62)


def _gemma(file: _File) -> dict[str, Any]:
    size = file.head_size
    if file.fact("block_count", int) in _GEMMA_LARGEST:
        size = file.fact("embedding_length", int) // max(file.fact("attention.head_count", int), 1)
    return {"head_dim": file.head_size, "query_pre_attn_scalar": size}


def _gemma2(file: _File) -> dict[str, Any]:
    return {
        **_gemma(file),
        "rope_parameters": file.rotary(),
        "attn_logit_softcapping": file.fact("attn_logit_softcapping", float, 50.0),
        "final_logit_softcapping": file.fact("final_logit_softcapping", float, 30.0),
        "layer_types": _layer_types(file, 2),
    }


def _gemma3(file: _File) -> dict[str, Any]:
    near = {"rope_type": "default", "rope_theta": file.fact("rope.freq_base_swa", float, 10000.0)}
    every = {"sliding_attention": near, "full_attention": file.rotary()}
    return {**_gemma(file), "rope_parameters": every, "layer_types": _layer_types(file, 6)}


def _layer_types(file: _File, every: int) -> list[str]:
    """Windows in all layers but one of ``every``, the last of each group."""
    layers = file.fact("block_count", int)
    if layers > len(file.shapes):
        raise ModelError(f"{file.where}: {layers} layers, but only {len(file.shapes)} tensors")
    return ["sliding_attention" if (k + 1) % every else "full_attention" for k in range(layers)]


def _phi3(file: _File) -> dict[str, Any]:
    turned = file.fact("rope.dimension_count", int, file.head_size)
    rotary = file.rotary() | {"partial_rotary_factor": turned / max(file.head_size, 1)}
    original = rotary.get("original_max_position_embeddings")
    found = {"rope_parameters": rotary, "partial_rotary_factor": rotary["partial_rotary_factor"]}
    return found | ({"original_max_position_embeddings": original} if original else {})


_GPT2 = "transformer.h.{i}."
_GPT2_MATRICES = {
    "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
_GPT2_NORMS = {"attn_norm": "ln_1", "ffn_norm": "ln_2"}

ARCHITECTURES: Mapping[str, Architecture | Callable[[_File], Architecture]] = {
    "llama": _llama,
    "qwen2": Architecture(
        "qwen2",
        _SIZES,
        (*_ENDS, *_attention(), *_NETWORK, *_NORMS),
        {"hidden_act": "silu", "use_sliding_window": False},
        _rotated,
    ),
    "qwen2moe": Architecture(
        "qwen2_moe",
        (
            *_SIZES,
            Fact("num_experts", "expert_count"),
            *_EXPERTS,
            Fact("moe_intermediate_size", "expert_feed_forward_length"),
            Fact("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        ),
        (*_ENDS, *_attention(), *_NORMS, *_ROUTED, *_SHARED),
        {"hidden_act": "silu", "norm_topk_prob": False, "decoder_sparse_step": 1, "use_sliding_window": False},
        _rotated,
    ),
    "qwen3": Architecture(
        "qwen3",
        _SIZES,
        (*_ENDS, *_attention(), *_HEAD_NORMS, *_NETWORK, *_NORMS),
        {"hidden_act": "silu", "use_sliding_window": False},
        _biased,
    ),
    "qwen3moe": Architecture(
        "qwen3_moe",
        (
            *_SIZES,
            Fact("num_experts", "expert_count"),
            *_EXPERTS,
            Fact("moe_intermediate_size", "expert_feed_forward_length"),
        ),
        (*_ENDS, *_attention(), *_HEAD_NORMS, *_NORMS, *_ROUTED),
        {"hidden_act": "silu", "norm_topk_prob": True, "decoder_sparse_step": 1, "use_sliding_window": False},
        _biased,
    ),
    "gemma2": Architecture(
        "gemma2",
        (*_SIZES, _WINDOW),
        (*_ENDS, *_attention(), *_NETWORK, *_GEMMA_NORMS),
        _GEMMA_FIXED,
        _gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        (*_SIZES, _WINDOW),
        (*_ENDS, *_attention(), *_HEAD_NORMS, *_NETWORK, *_GEMMA_NORMS),
        _GEMMA_FIXED,
        _gemma3,
    ),
    "phi3": Architecture(
        "phi3",
        (*_SIZES, _WINDOW),
        (
            *_ENDS,
            *_linear("attn_qkv", "self_attn.qkv_proj"),
            *_linear("attn_output", "self_attn.o_proj"),
            *_linear("ffn_up", "mlp.gate_up_proj"),
            *_linear("ffn_down", "mlp.down_proj"),
            *_NORMS,
        ),
        {"hidden_act": "silu", "attention_bias": False},
        _phi3,
    ),
    "gpt2": Architecture(
        "gpt2",
        (
            Fact("n_embd", "embedding_length"),
            Fact("n_layer", "block_count"),
            Fact("n_head", "attention.head_count"),
            Fact("n_inner", "feed_forward_length", default=None),
            Fact("n_positions", "context_length"),
            Fact("layer_norm_epsilon", "attention.layer_norm_epsilon", float),
        ),
        (
            Row("token_embd.weight", "transformer.wte.weight"),
            Row("position_embd.weight", "transformer.wpe.weight"),
            *(Row(f"output_norm.{x}", f"transformer.ln_f.{x}") for x in ("weight", "bias")),
            Row("output.weight", "lm_head.weight"),
            *(
                Row(f"blk.{{i}}.{name}.weight", f"{_GPT2}{folder}.weight", Change.TRANSPOSED)
                for name, folder in _GPT2_MATRICES.items()
            ),
            *(Row(f"blk.{{i}}.{name}.bias", f"{_GPT2}{folder}.bias") for name, folder in _GPT2_MATRICES.items()),
            *(
                Row(f"blk.{{i}}.{name}.{x}", f"{_GPT2}{folder}.{x}")
                for name, folder in _GPT2_NORMS.items()
                for x in ("weight", "bias")
            ),
        ),
        {"activation_function": "gelu_new"},
    ),
}
