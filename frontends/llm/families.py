"""Families of language models as transformers names them: what a ``config.json`` means, and where the tensors lie.

A family is a row of ``FAMILIES``: a table of tensors, and what sets it apart from a Llama.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from luminal.core.errors import ModelError, UnsupportedError, nearest
from luminal.frontends.llm.blocks import Kind
from luminal.frontends.llm.checkpoint import Checkpoint
from luminal.frontends.llm.config import Attention, Config, Experts, Feed, HeadSpace, Layer, Norm, Rotary, StateSpace
from luminal.frontends.llm.rotary import rotary
from luminal.frontends.llm.settings import Settings
from luminal.frontends.llm.tensors import Names, Packed, Tensors, find

# ---- where tensors lie: a role, and the stem of a name or several that it may have ----------------------------------

_LLAMA: Names = {
    "embedding": ("embed_tokens",),
    "norm": ("norm",),
    "head": ("lm_head",),
    "layers.#.norm": ("layers.#.input_layernorm",),
    "layers.#.query": ("layers.#.self_attn.q_proj",),
    "layers.#.key": ("layers.#.self_attn.k_proj",),
    "layers.#.value": ("layers.#.self_attn.v_proj",),
    "layers.#.query_norm": ("layers.#.self_attn.q_norm",),
    "layers.#.key_norm": ("layers.#.self_attn.k_norm",),
    "layers.#.out": ("layers.#.self_attn.o_proj",),
    "layers.#.network_norm": ("layers.#.post_attention_layernorm",),
    "layers.#.gate": ("layers.#.mlp.gate_proj",),
    "layers.#.up": ("layers.#.mlp.up_proj",),
    "layers.#.down": ("layers.#.mlp.down_proj",),
}
_TWICE_NORMED: Names = {
    **_LLAMA,
    "layers.#.norm_after": ("layers.#.post_attention_layernorm",),
    "layers.#.network_norm": ("layers.#.pre_feedforward_layernorm",),
    "layers.#.network_norm_after": ("layers.#.post_feedforward_layernorm",),
}
_PACKED: Names = {
    **_LLAMA,
    **{f"layers.#.{role}": (Packed("layers.#.self_attn.qkv_proj", ("query", "key", "value")),)
       for role in ("query", "key", "value")},
    **{f"layers.#.{role}": (Packed("layers.#.mlp.gate_up_proj", ("gate", "up")),) for role in ("gate", "up")},
}  # fmt: skip
# In safetensors each expert has tensors of its own; modules and GGUF hold those of all experts together.
_EXPERTS: Names = {
    "layers.#.router": ("layers.#.mlp.gate", "layers.#.block_sparse_moe.gate"),
    **{f"layers.#.experts.{role}": (
           Packed("layers.#.mlp.experts.gate_up_proj", ("experts.gate", "experts.up")),
           f"layers.#.mlp.experts.{role}_proj", f"layers.#.mlp.experts.*.{role}_proj",
           f"layers.#.block_sparse_moe.experts.*.{disk}")
       for role, disk in (("gate", "w1"), ("up", "w3"))},
    "layers.#.experts.down": (
        "layers.#.mlp.experts.down_proj", "layers.#.mlp.experts.*.down_proj", "layers.#.block_sparse_moe.experts.*.w2"
    ),
    **{f"layers.#.shared.{role}": (f"layers.#.mlp.shared_expert.{role}_proj",) for role in ("gate", "up", "down")},
    "layers.#.shared_router": ("layers.#.mlp.shared_expert_gate",),
}  # fmt: skip
_MIXTURE: Names = {**_LLAMA, **_EXPERTS}
_GPT2: Names = {
    "embedding": ("wte",),
    "positions": ("wpe",),
    "norm": ("ln_f",),
    "head": ("lm_head",),
    "layers.#.norm": ("h.#.ln_1",),
    **{f"layers.#.{role}": (Packed("h.#.attn.c_attn", ("query", "key", "value"), transposed=True),)
       for role in ("query", "key", "value")},
    "layers.#.out": (Packed("h.#.attn.c_proj", transposed=True),),
    "layers.#.network_norm": ("h.#.ln_2",),
    "layers.#.up": (Packed("h.#.mlp.c_fc", transposed=True),),
    "layers.#.down": (Packed("h.#.mlp.c_proj", transposed=True),),
}  # fmt: skip

_MAMBA: Names = {
    "embedding": ("embeddings",),
    "norm": ("norm_f",),
    "head": ("lm_head",),
    "layers.#.norm": ("layers.#.norm",),
    **{f"layers.#.{role}": (Packed("layers.#.mixer.in_proj", ("inner", "gate")),) for role in ("inner", "gate")},
    "layers.#.taps": ("layers.#.mixer.conv1d",),
    "layers.#.selection": ("layers.#.mixer.x_proj",),
    "layers.#.step": ("layers.#.mixer.dt_proj",),
    "layers.#.decay": ("layers.#.mixer.A_log",),
    "layers.#.skip": ("layers.#.mixer.D",),
    "layers.#.out": ("layers.#.mixer.out_proj",),
}
_MAMBA2: Names = {
    **_MAMBA,
    **{f"layers.#.{role}": (Packed("layers.#.mixer.in_proj", ("gate", "inner", "step")),)
       for role in ("gate", "inner", "step")},
    "layers.#.delay": ("layers.#.mixer.dt_bias",),
    "layers.#.inner_norm": ("layers.#.mixer.norm",),
}  # fmt: skip

# ---- what a config means ---------------------------------------------------------------------------------------------

_ACTIVATIONS: Mapping[str, Any] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
}  # fmt: skip
_WINDOWED: Mapping[str, bool] = {"sliding_attention": True, "full_attention": False}
Windows: TypeAlias = Callable[[Settings, int], bool]


def _never(settings: Settings, layer: int) -> bool:
    return False


def _always(settings: Settings, layer: int) -> bool:
    return True


def _if_used(settings: Settings, layer: int) -> bool:
    return settings.flag("use_sliding_window")


def _upper_if_used(settings: Settings, layer: int) -> bool:
    return settings.flag("use_sliding_window") and layer >= settings.count("max_window_layers", default=28)


def _every_other(settings: Settings, layer: int) -> bool:
    return layer % 2 == 0


def _lower_every_other_if_used(settings: Settings, layer: int) -> bool:
    below = layer < settings.count("max_window_layers", default=28)
    return settings.flag("use_sliding_window") and below and layer % 2 == 0


def _but_every_nth(settings: Settings, layer: int) -> bool:
    return (layer + 1) % settings.count("sliding_window_pattern", default=6) != 0


_INFINITY: Mapping[str, str] = {"__float__": "Infinity"}  # as transformers writes it
Space: TypeAlias = Callable[[Settings, int, Norm, Any], StateSpace | HeadSpace]


def _by_channels(settings: Settings, width: int, norm: Norm, activation: Any) -> StateSpace:
    default = int(settings.positive("expand", default=2.0) * width)
    rank = settings.given.get("time_step_rank")
    return StateSpace(
        settings.count("intermediate_size", default=default),
        settings.count("state_size", default=16, most=_MOST),
        _taps(settings),
        -(-width // 16) if rank == "auto" else settings.count("time_step_rank", default=-(-width // 16)),
        activation,
    )


def _normed(settings: Settings, width: int, norm: Norm, activation: Any) -> StateSpace:
    of_selection = Norm(settings.real("mixer_rms_eps", default=1e-6))
    return replace(_by_channels(settings, width, norm, activation), norm=of_selection)


def _by_heads(settings: Settings, width: int, norm: Norm, activation: Any) -> HeadSpace:
    heads, size = (settings.count(name, most=_MOST) for name in ("num_heads", "head_dim"))
    groups = settings.count("n_groups", default=8)
    if heads % groups:
        raise ModelError(f"the config's 'num_heads': expected a number that {groups} groups divide, found {heads}")
    limits = settings.items("time_step_limit")
    if limits not in ([], [0.0, math.inf], [0.0, _INFINITY]):  # transformers keeps to them in prompts alone
        raise UnsupportedError(f"the config's 'time_step_limit': expected 0 and infinity, found {limits}")
    state = settings.count("state_size", default=128, most=_MOST)
    return HeadSpace(heads, size, groups, state, _taps(settings), activation, norm)


def _taps(settings: Settings) -> int:
    found = settings.count("conv_kernel", default=4, most=_MOST)
    if found < 2:
        raise UnsupportedError(f"the config's 'conv_kernel': expected 2 or more positions, found {found}")
    return found


@dataclass(frozen=True)
class Family:
    """What sets a family apart. ``windows`` says of a layer whether it has a window, where the config does not list the
    kinds of layers."""

    names: Names
    windows: Windows = _never
    norm_offset: float = 0.0
    norms_after: bool = False
    query_norms: bool = False
    scaled_embedding: bool = False
    activation: str = "silu"
    rotary_base: float = 10_000.0
    local_rotary_base: float | None = None  # of layers with windows, where they have their own
    experts: bool = False
    always_normalised: bool = False  # the shares of experts, whatever the config says
    capped: bool = False
    gpt2: bool = False
    tied: bool = False  # unless the config says otherwise
    space: Space | None = None  # of a recurrence, in place of attention


_GEMMA: Mapping[str, Any] = {
    "norm_offset": 1.0, "scaled_embedding": True, "activation": "gelu_pytorch_tanh", "tied": True
}  # fmt: skip
_GEMMA3 = Family(
    _TWICE_NORMED, _but_every_nth, **_GEMMA, norms_after=True, query_norms=True, capped=True,
    rotary_base=1_000_000.0, local_rotary_base=10_000.0,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {
    "llama": Family(_LLAMA),
    "mistral": Family(_LLAMA, _always),
    "qwen2": Family(_LLAMA, _upper_if_used),
    "qwen3": Family(_LLAMA, _upper_if_used, query_norms=True),
    "gemma": Family(_LLAMA, **_GEMMA),
    "gemma2": Family(_TWICE_NORMED, _every_other, **_GEMMA, norms_after=True, capped=True),
    "gemma3_text": _GEMMA3,
    "gemma3": _GEMMA3,
    "phi3": Family(_PACKED, _always),
    "gpt2": Family(_GPT2, activation="gelu_new", gpt2=True, tied=True),
    "mixtral": Family(_MIXTURE, _always, experts=True, always_normalised=True),
    "qwen2_moe": Family(_MIXTURE, _lower_every_other_if_used, experts=True),
    "qwen3_moe": Family(_MIXTURE, _if_used, experts=True, query_norms=True),
    "mamba": Family(_MAMBA, space=_by_channels, tied=True),
    "falcon_mamba": Family(_MAMBA, space=_normed, tied=True),
    "mamba2": Family(_MAMBA2, space=_by_heads),
}
# Layers, experts and features of a head, at most: what a config says of them is used before the tensors are looked at.
_MOST = 1 << 14
# Positions that a model is made for which does not look back.
_ANY = (1 << 24) - 1
# What changes what a model computes, and is not known here: it must be absent or have one of these values.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "use_bidirectional_attention": (None, False),
    "add_cross_attention": (None, False),
    "is_decoder": (None, False, True),
    "quantization_config": (None,),
}


def kind(checkpoint: Checkpoint) -> str:
    """The name of the family of a checkpoint. Raises UnsupportedError where it is not known."""
    return _kind(_of_text(checkpoint.config))


def _kind(given: Mapping[str, Any]) -> str:
    name = given.get("model_type")
    if name not in FAMILIES:
        raise UnsupportedError(
            f"the model's type: expected one of {', '.join(FAMILIES)}, found {name!r}{nearest(str(name), FAMILIES)}; "
            "other models compile by luminal.compile"
        )
    return str(name)


def made_for(checkpoint: Checkpoint) -> int:
    """The most positions that a model was made for."""
    return _made_for(Settings(_of_text(checkpoint.config), 0), FAMILIES[kind(checkpoint)])


def _made_for(settings: Settings, family: Family) -> int:
    return _ANY if family.space is not None else settings.count("max_position_embeddings", "n_positions")


def read(checkpoint: Checkpoint, context: int, blocks: Kind | None = None) -> tuple[Config, Tensors]:
    """What a checkpoint computes, and its tensors by role, for a library of ``context`` positions; matrices rounded to
    ``blocks``, if any. Raises UnsupportedError for what is not supported, ModelError for a config or tensors that do
    not make a model."""
    family, given = FAMILIES[kind(checkpoint)], _of_text(checkpoint.config)
    for setting, allowed in _REFUSED.items():
        if given.get(setting) not in allowed:
            raise UnsupportedError(f"the config's {setting!r}: expected {allowed[0]!r}, found {given[setting]!r}")
    settings = Settings(given, context)
    config = _config(settings, family, made_for(checkpoint))
    tied = settings.flag("tie_word_embeddings", family.tied)
    return config, find(checkpoint, config, family.names, tied, blocks)


def described(config: Mapping[str, Any], context: int) -> tuple[Config, Names]:
    """What a ``config.json`` says that a model computes, and where its tensors lie. Raises as ``read`` does."""
    given = _of_text(config)
    family = FAMILIES[_kind(given)]
    settings = Settings(given, context)
    return _config(settings, family, _made_for(settings, family)), family.names


def _of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that is about text, where the model has others beside it."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) and inner.get("model_type") in FAMILIES else config


def _config(settings: Settings, family: Family, made_for: int) -> Config:
    width = settings.count("hidden_size", "n_embd")
    eps = settings.real("rms_norm_eps", "layer_norm_epsilon", default=1e-6)
    norm = Norm(eps, centred=family.gpt2, offset=settings.real("norm_offset", default=family.norm_offset))
    count = settings.count("num_hidden_layers", "n_layer", most=_MOST)
    if family.space is not None:
        layers = (Layer(family.space(settings, width, norm, _activation(settings, family)), None, norm),) * count
    else:
        layers = _with_attention(settings, family, made_for, width, norm, count)
    return Config(
        vocabulary=settings.count("vocab_size"),
        width=width,
        context=made_for,
        layers=layers,
        norm=norm,
        embedding_factor=width**0.5 if family.scaled_embedding else 1.0,
        learned_positions=family.gpt2,
        cap=settings.real("final_logit_softcapping", default=0.0) if family.capped else 0.0,
    )


def _with_attention(
    settings: Settings, family: Family, made_for: int, width: int, norm: Norm, count: int
) -> tuple[Layer, ...]:
    heads = settings.count("num_attention_heads", "n_head")
    kinds = settings.items("layer_types") or [None] * count
    if len(kinds) != count:
        raise ModelError(f"the config's 'layer_types': expected {count} of them, found {len(kinds)}")
    return tuple(
        Layer(
            _attention(settings, family, made_for, width, heads, norm, number, kind),
            _network(settings, family, width, number),
            norm,
            family.norms_after,
        )
        for number, kind in enumerate(kinds)
    )


def _attention(
    settings: Settings, family: Family, made_for: int, width: int, heads: int, norm: Norm, number: int, kind: Any
) -> Attention:  # fmt: skip
    kv_heads = heads if family.gpt2 else settings.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ModelError(f"expected a number of heads that {kv_heads} heads of keys divide, found {heads}")
    if not settings.has("head_dim") and width % heads:
        raise ModelError(f"expected a 'hidden_size' that {heads} heads divide, found {width}")
    size = settings.count("head_dim", default=width // heads, most=_MOST)
    windowed = _is_windowed(settings, family, number, kind)
    scale = settings.positive("query_pre_attn_scalar", default=size) ** -0.5
    if family.gpt2:
        scale = size**-0.5 if settings.flag("scale_attn_weights", True) else 1.0
        scale = scale / (number + 1) if settings.flag("scale_attn_by_inverse_layer_idx") else scale
    return Attention(
        heads, kv_heads, size, scale,
        window=settings.count("sliding_window") if windowed else None,
        rotary=None if family.gpt2 else _rotary(settings, family, made_for, size, windowed),
        cap=settings.real("attn_logit_softcapping", default=0.0) if family.capped else 0.0,
        norm=norm if family.query_norms else None,
    )  # fmt: skip


def _is_windowed(settings: Settings, family: Family, number: int, kind: Any) -> bool:
    """Whether a layer, of the ``kind`` that the config lists, has a window."""
    if kind is not None and kind not in _WINDOWED:
        raise UnsupportedError(
            f"the config's 'layer_types': expected {' or '.join(map(repr, _WINDOWED))}, found {kind!r}"
        )
    windowed = family.windows(settings, number) if kind is None else _WINDOWED[kind]
    return windowed and settings.has("sliding_window") and settings.flag("use_sliding_window", True)


def _rotary(settings: Settings, family: Family, made_for: int, head: int, windowed: bool) -> Rotary:
    given = settings.mapping("rope_parameters")
    local = windowed and family.local_rotary_base is not None
    kind = "sliding_attention" if local else "full_attention"
    base = settings.positive("rope_theta", default=family.rotary_base)
    if local:
        assert family.local_rotary_base is not None
        base = settings.positive("rope_local_base_freq", default=family.local_rotary_base)
    if any(name in given for name in _WINDOWED):
        given = Settings(given, settings.context).mapping(kind)
    elif not given and not local:
        given = settings.mapping("rope_scaling")
    share = settings.positive("partial_rotary_factor", default=1.0)
    originally = settings.given.get("original_max_position_embeddings")
    wanted = {"rope_theta": base, "partial_rotary_factor": share, "original_max_position_embeddings": originally}
    found = {**wanted, **{name: value for name, value in given.items() if value is not None}}
    if found.get("rope_type", found.get("type")) == "su":  # the first name of it
        found["rope_type"] = "longrope"
    size = int(head * Settings(found, settings.context).positive("partial_rotary_factor"))
    if not 2 <= size <= head or size % 2:
        raise ModelError(f"rotary positions: expected pairs of a head's {head} features, found {size}")
    return rotary(found, size, made_for, settings.context, settings.flag("rope_interleaved"))


def _activation(settings: Settings, family: Family) -> Any:
    named = {"hidden_act": family.activation, **{k: v for k, v in settings.given.items() if v is not None}}
    names = ("hidden_activation", "activation_function", "hidden_act")
    return Settings(named, settings.context).one_of(_ACTIVATIONS, *names)


def _network(settings: Settings, family: Family, width: int, number: int) -> Feed | Experts:
    activation = _activation(settings, family)
    if family.gpt2:
        return Feed(settings.count("n_inner", default=4 * width), activation, gated=False)
    dense = Feed(settings.count("intermediate_size"), activation)
    sparse = settings.count("decoder_sparse_step", default=1)
    if not family.experts or number in settings.items("mlp_only_layers") or (number + 1) % sparse:
        return dense
    inner = settings.count("moe_intermediate_size", default=dense.width)
    shared = "shared_expert_intermediate_size"
    count = settings.count("num_local_experts", "num_experts", most=_MOST)
    chosen = settings.count("num_experts_per_tok")
    if chosen > count:
        raise ModelError(f"the config's 'num_experts_per_tok': expected at most {count}, found {chosen}")
    return Experts(
        count, chosen, Feed(inner, activation),
        normalised=family.always_normalised or settings.flag("norm_topk_prob"),
        shared=Feed(settings.count(shared), activation) if settings.has(shared) else None,
    )  # fmt: skip
