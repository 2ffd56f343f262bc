"""Models of many architectures from ``transformers``, shrunk and with random weights: a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.zoo.weights import randomise

Inputs = dict[str, torch.Tensor]

BATCH, LENGTH, VOCABULARY = 2, 7, 99
IMAGE, SAMPLES, FRAMES = 32, 800, 24
HIDDEN, LOGITS = ("last_hidden_state",), ("logits",)


def _ids(length: int = LENGTH, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def _mask() -> torch.Tensor:
    """The second sentence is two tokens shorter."""
    return torch.tensor([[1] * LENGTH, [1] * (LENGTH - 2) + [0, 0]])


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def text() -> Inputs:
    return {"input_ids": _ids(), "attention_mask": _mask()}


def ids() -> Inputs:
    return {"input_ids": _ids()}


def translation() -> Inputs:
    return {**text(), "decoder_input_ids": _ids(5, 1)}


def image(batch: int = BATCH) -> Inputs:
    return {"pixel_values": _noise(batch, 3, IMAGE, IMAGE)}


def sound() -> Inputs:
    return {"input_values": _noise(BATCH, SAMPLES)}


def spectrum() -> Inputs:
    return {"input_values": _noise(BATCH, FRAMES, 16)}


def captioned() -> Inputs:
    return {**text(), **image()}


def embedded() -> Inputs:
    return {"inputs_embeds": _noise(BATCH, LENGTH, 32), "attention_mask": _mask()}


def features() -> Inputs:
    return {"input_features": _noise(BATCH, FRAMES, 16)}


def measured() -> Inputs:
    return {"past_values": _noise(BATCH, 16, 3)}


def decided() -> Inputs:
    return {
        "states": _noise(BATCH, 5, 3),
        "actions": _noise(BATCH, 5, 2),
        "returns_to_go": _noise(BATCH, 5, 1),
        "timesteps": torch.arange(5).repeat(BATCH, 1),
        "attention_mask": torch.ones(BATCH, 5, dtype=torch.int64),
    }


def cut_image() -> Inputs:
    """Features of an image, beside those of a text; how an image is cut by its mask would depend on data."""
    features = _noise(BATCH, 5, 32)
    return {**embedded(), "image_embeds": features, "pixel_mask": torch.ones(features.shape[:2], dtype=torch.int64)}


def recognition() -> Inputs:
    return {"input_features": _noise(BATCH, 16, FRAMES), "decoder_input_ids": _ids(5, 1)}


@dataclass(frozen=True)
class Architecture:
    """``kind`` is its family, ``model`` and ``config`` the names of its classes, ``sizes`` what makes it small, and
    ``outputs`` the fields of its result (none: it is a tensor itself)."""

    kind: str
    name: str
    model: str
    config: str
    inputs: Callable[[], Inputs]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = HIDDEN


class Named(nn.Module):
    """A model on tensors by position, and the named fields of its result as a tuple."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        return tuple(getattr(result, name) for name in self.outputs) if self.outputs else (result,)


def build(architecture: Architecture) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model, with weights that keep activations in range, and its example inputs."""
    torch.manual_seed(0)
    config = getattr(transformers, architecture.config)(**architecture.sizes)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if architecture.kind == "experts":
        config._experts_implementation = "batched_mm"  # the form that exports: no loop over experts
    model = getattr(transformers, architecture.model)(config).eval()
    inputs = architecture.inputs()
    tensors = tuple(inputs.values())
    module = Named(model, tuple(inputs), architecture.outputs).eval()
    # The last maps of an image are a few pixels: batch normalisations take their statistics from many images, since a
    # variance of two values may be next to nothing. They shift most of what follows them past the rectifiers.
    many = tuple(image(32).values()) if architecture.kind == "vision" else tensors
    return randomise(module, many, shift=1.0, balanced=True), tensors


# ---- the table -------------------------------------------------------------------------------------------------------

_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_MIX = {**_GROUPED, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
_VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": IMAGE,
    "patch_size": 8,
}  # fmt: skip
_SEQ = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_SOUND = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "vocab_size": 32,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_decoder_layers": 1,
    "num_heads": 4, "decoder_start_token_id": 0,
}  # fmt: skip


def _encoder(name: str, prefix: str, **sizes: Any) -> Architecture:
    return Architecture("text", name, f"{prefix}Model", f"{prefix}Config", text, {**_SMALL, **sizes})


def _decoder(name: str, prefix: str, kind: str = "decoder", **sizes: Any) -> Architecture:
    return Architecture(kind, name, f"{prefix}ForCausalLM", f"{prefix}Config", text, {**_GROUPED, **sizes}, LOGITS)


def _vision(name: str, prefix: str, **sizes: Any) -> Architecture:
    return Architecture("vision", name, f"{prefix}Model", f"{prefix}Config", image, sizes)


def _pair(name: str, prefix: str, model: str = "ForConditionalGeneration", **sizes: Any) -> Architecture:
    return Architecture("pair", name, f"{prefix}{model}", f"{prefix}Config", translation, {**_SEQ, **sizes}, LOGITS)


def _sound(name: str, prefix: str, **sizes: Any) -> Architecture:
    return Architecture("audio", name, f"{prefix}Model", f"{prefix}Config", sound, {**_SOUND, **sizes})


def _other(
    kind: str, name: str, prefix: str, head: str, inputs: Callable[[], Inputs], outputs: tuple[str, ...], **sizes: Any
) -> Architecture:
    return Architecture(kind, name, f"{prefix}{head}", f"{prefix}Config", inputs, sizes, outputs)


# fmt: off
TABLE: tuple[Architecture, ...] = (
    _encoder("albert", "Albert", embedding_size=16),
    _encoder("bert", "Bert"),
    _encoder("convbert", "ConvBert", embedding_size=32),
    _encoder("deberta", "Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    _encoder("deberta_v2", "DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
    _encoder("distilbert", "DistilBert", dim=32, n_layers=2, n_heads=4, hidden_dim=48),
    _encoder("electra", "Electra", embedding_size=16),
    _encoder("layoutlm", "LayoutLM"),
    _encoder("megatron_bert", "MegatronBert"),
    _encoder("mobilebert", "MobileBert", embedding_size=32, intra_bottleneck_size=16, true_hidden_size=16),
    _encoder("modernbert", "ModernBert", local_attention=4),
    _encoder("mpnet", "MPNet"),
    _encoder("roberta", "Roberta"),
    _encoder("roformer", "RoFormer", embedding_size=32),
    _encoder("squeezebert", "SqueezeBert", embedding_size=32, q_groups=2, k_groups=2, v_groups=2),
    _encoder("big_bird", "BigBird", attention_type="original_full"),
    _encoder("data2vec_text", "Data2VecText"),
    _encoder("esm", "Esm", position_embedding_type="rotary", mask_token_id=4, token_dropout=True),
    _encoder("eurobert", "EuroBert"),
    _encoder("fnet", "FNet"),
    _other(
        "text", "funnel", "Funnel", "Model", text, HIDDEN, vocab_size=VOCABULARY, block_sizes=[1, 1],
        num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=48,
    ),
    _encoder("ibert", "IBert"),
    _encoder("luke", "Luke", entity_vocab_size=10, entity_emb_size=8),
    _encoder("nomic_bert", "NomicBert"),
    _other(
        "text", "perceiver", "Perceiver", "ForMaskedLM", lambda: {"inputs": _ids()}, LOGITS, vocab_size=VOCABULARY,
        d_model=32, d_latents=32, num_latents=5, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=4,
        num_cross_attention_heads=4, max_position_embeddings=LENGTH, qk_channels=32, v_channels=32,
    ),
    _encoder("rembert", "RemBert", input_embedding_size=16),
    _encoder("splinter", "Splinter"),
    # Its own assertion on the lengths of sentences can be decided where these do not come from a call.
    _other(
        "text", "xlm", "XLM", "Model", embedded, HIDDEN, emb_dim=32, n_layers=2, n_heads=4, n_words=VOCABULARY,
        max_position_embeddings=64,
    ),
    _encoder("xlm_roberta_xl", "XLMRobertaXL"),
    _other(
        "text", "xlnet", "XLNet", "Model", text, HIDDEN, vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4,
        d_inner=48,
    ),
    # Decoders.
    _decoder("bloom", "Bloom", n_layer=2, n_head=4),
    _decoder("codegen", "CodeGen", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64),
    _decoder("cohere", "Cohere"),
    _decoder("falcon", "Falcon", num_kv_heads=2, new_decoder_architecture=True),
    _decoder("gemma", "Gemma", head_dim=8),
    _decoder("gemma2", "Gemma2", head_dim=8, sliding_window=4, query_pre_attn_scalar=8),
    Architecture(
        "decoder", "gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", text, {**_GROUPED, "head_dim": 8,
        "sliding_window": 4, "query_pre_attn_scalar": 8}, LOGITS,
    ),
    _decoder("glm", "Glm", head_dim=8),
    Architecture(
        "decoder", "gpt2", "GPT2LMHeadModel", "GPT2Config", text, {**_SMALL, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "n_positions": 64}, LOGITS,
    ),
    _decoder("gpt_bigcode", "GPTBigCode", n_embd=32, n_layer=2, n_head=4, n_positions=64),
    _decoder("gpt_neo", "GPTNeo", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4),
    _decoder("gpt_neox", "GPTNeoX", rotary_pct=0.5),
    _decoder("gptj", "GPTJ", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=64),
    _decoder("granite", "Granite"),
    _decoder("llama", "Llama"),
    _decoder("mistral", "Mistral", sliding_window=4),
    _decoder("mpt", "Mpt", d_model=32, n_heads=4, n_layers=2, max_seq_len=64, expansion_ratio=2),
    _decoder("olmo2", "Olmo2"),
    _decoder("opt", "OPT", ffn_dim=48, word_embed_proj_dim=32),
    _decoder("phi", "Phi"),
    _decoder("phi3", "Phi3", rope_scaling=None),
    _decoder("qwen2", "Qwen2"),
    _decoder("qwen3", "Qwen3", head_dim=8),
    _decoder("smollm3", "SmolLM3"),
    _decoder("stablelm", "StableLm"),
    _decoder("starcoder2", "Starcoder2", sliding_window=4),
    _decoder("apertus", "Apertus"),
    _decoder("arcee", "Arcee"),
    _decoder("biogpt", "BioGpt"),
    _decoder("bitnet", "BitNet"),
    _decoder("cohere2", "Cohere2", sliding_window=4),
    _decoder("diffllama", "DiffLlama"),
    _decoder("ernie4_5", "Ernie4_5"),
    _decoder("exaone4", "Exaone4", sliding_window=4),
    _decoder("glm4", "Glm4", head_dim=8),
    _decoder("gpt_neox_japanese", "GPTNeoXJapanese", intermediate_multiple_size=2, rotary_pct=0.5),
    _decoder("helium", "Helium", head_dim=8),
    _decoder("nemotron", "Nemotron"),
    _decoder("persimmon", "Persimmon"),
    _decoder("seed_oss", "SeedOss", head_dim=8),
    # Mixtures of experts.
    _decoder(
        "deepseek_v3", "DeepseekV3", "experts", **{**_MIX, "num_key_value_heads": 4, "n_routed_experts": 4,
        "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16,
        "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8},
    ),
    _decoder("gpt_oss", "GptOss", "experts", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    _decoder("granitemoe", "GraniteMoe", "experts", num_local_experts=4, num_experts_per_tok=2),
    _decoder("mixtral", "Mixtral", "experts", num_local_experts=4, num_experts_per_tok=2),
    _decoder("olmoe", "Olmoe", "experts", num_experts=4, num_experts_per_tok=2),
    _decoder(
        "qwen2_moe", "Qwen2Moe", "experts", num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        num_experts_per_tok=2,
    ),
    _decoder(
        "qwen3_moe", "Qwen3Moe", "experts", num_experts=4, moe_intermediate_size=16, num_experts_per_tok=2, head_dim=8,
    ),
    _decoder(
        "ernie4_5_moe", "Ernie4_5_Moe", "experts", moe_num_experts=4, moe_k=2, moe_intermediate_size=16,
        moe_layer_start_index=0, moe_num_shared_experts=1,
    ),
    _decoder(
        "glm4_moe", "Glm4Moe", "experts", head_dim=8, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, first_k_dense_replace=1, n_group=1, topk_group=1,
    ),
    Architecture(
        "experts", "llama4", "Llama4ForCausalLM", "Llama4TextConfig", text, {**_GROUPED, "head_dim": 8,
        "intermediate_size_mlp": 48, "num_local_experts": 4, "num_experts_per_tok": 1, "attention_chunk_size": 4,
        "interleave_moe_layer_step": 1}, LOGITS,
    ),
    _decoder(
        "minimax", "MiniMax", "experts", head_dim=8, num_local_experts=4, num_experts_per_tok=2, block_size=4,
        layer_types=["linear_attention", "full_attention"],
    ),
    _decoder("phimoe", "Phimoe", "experts", num_local_experts=4, num_experts_per_tok=2),
    # State-space models and other recurrences.
    Architecture(
        "recurrent", "mamba", "MambaForCausalLM", "MambaConfig", ids, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "num_hidden_layers": 2, "state_size": 4}, LOGITS,
    ),
    Architecture(
        "recurrent", "mamba2", "Mamba2ForCausalLM", "Mamba2Config", ids, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "num_hidden_layers": 2, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4}, LOGITS,
    ),
    Architecture(
        "recurrent", "falcon_mamba", "FalconMambaForCausalLM", "FalconMambaConfig", ids, {"vocab_size": VOCABULARY,
        "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, LOGITS,
    ),
    Architecture(
        "recurrent", "rwkv", "RwkvForCausalLM", "RwkvConfig", ids, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "attention_hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "context_length": 64}, LOGITS,
    ),
    _decoder(
        "recurrent_gemma", "RecurrentGemma", "recurrent", lru_width=32, head_dim=8, attention_window_size=4,
        block_types=["recurrent", "attention"], conv1d_width=3,
    ),
    _decoder(
        "jamba", "Jamba", "recurrent", attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
        expert_layer_offset=1, num_experts=1, num_experts_per_tok=1, mamba_d_state=4, mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    _decoder(
        "bamba", "Bamba", "recurrent", attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_d_state=4,
        mamba_n_groups=2, mamba_chunk_size=4,
    ),
    _decoder(
        "falcon_h1", "FalconH1", "recurrent", mamba_n_heads=8, mamba_d_head=8, mamba_d_state=4, mamba_d_ssm=64,
        mamba_n_groups=2, mamba_chunk_size=4,
    ),
    _decoder(
        "zamba2", "Zamba2", "recurrent", mamba_ngroups=2, mamba_d_state=4, n_mamba_heads=8, chunk_size=4,
        layers_block_type=["mamba", "hybrid"], num_mem_blocks=1, use_mem_rope=True,
    ),
    _decoder("lfm2", "Lfm2", "recurrent", layer_types=["conv", "full_attention"], conv_L_cache=3),
    _decoder(
        "qwen3_next", "Qwen3Next", "recurrent", head_dim=8, layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, num_experts=0,
        mlp_only_layers=[0, 1],
    ),
    # Encoders with decoders.
    _pair("bart", "Bart"),
    _pair("m2m100", "M2M100"),
    _pair("marian", "Marian", "MTModel"),
    _pair("mbart", "MBart"),
    _pair("pegasus", "Pegasus"),
    _other("pair", "t5", "T5", "ForConditionalGeneration", translation, LOGITS, **_T5),
    _other("pair", "umt5", "UMT5", "ForConditionalGeneration", translation, LOGITS, **_T5),
    _pair("bigbird_pegasus", "BigBirdPegasus", attention_type="original_full"),
    _other("pair", "longt5", "LongT5", "ForConditionalGeneration", translation, LOGITS, **{**_T5, "local_radius": 2}),
    _pair("mvp", "Mvp"),
    _pair("plbart", "PLBart"),
    _other(
        "pair", "t5gemma", "T5Gemma", "ForConditionalGeneration", translation, LOGITS, vocab_size=VOCABULARY,
        encoder={**_GROUPED, "head_dim": 8, "sliding_window": 4}, decoder={**_GROUPED, "head_dim": 8,
        "sliding_window": 4, "cross_attention_hidden_size": 32},
    ),
    # Vision.
    _vision("beit", "Beit", **_VIT),
    _vision("convnext", "ConvNext", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    _vision("convnext_v2", "ConvNextV2", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    _vision(
        "cvt", "Cvt", embed_dim=[16, 32], num_heads=[1, 2], depth=[1, 2], patch_sizes=[7, 3], patch_stride=[4, 2],
        patch_padding=[2, 1], mlp_ratio=[2.0, 2.0], attention_drop_rate=[0.0, 0.0], drop_rate=[0.0, 0.0],
        drop_path_rate=[0.0, 0.0], qkv_bias=[True, True], cls_token=[False, True], qkv_projection_method=["dw_bn"] * 2,
        kernel_qkv=[3, 3], padding_kv=[1, 1], stride_kv=[2, 2], padding_q=[1, 1], stride_q=[1, 1],
    ),
    _vision("deit", "DeiT", **_VIT),
    _vision("dinov2", "Dinov2", **_VIT),
    _vision(
        "focalnet", "FocalNet", image_size=IMAGE, patch_size=4, embed_dim=16, depths=[1, 1], hidden_sizes=[16, 32],
        focal_levels=[2, 2], focal_windows=[3, 3],
    ),
    _vision(
        "hiera", "Hiera", image_size=[IMAGE, IMAGE], embed_dim=16, depths=[1, 1], num_heads=[1, 2], num_query_pool=1,
        masked_unit_size=[4, 4], patch_size=[7, 7], query_stride=[2, 2], embed_dim_multiplier=2.0,
    ),
    _vision("poolformer", "PoolFormer", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
    _vision(
        "pvt", "Pvt", image_size=IMAGE, hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2,
        2, 2],
    ),
    _vision("regnet", "RegNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8),
    _vision("resnet", "ResNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]),
    _vision(
        "segformer", "Segformer", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2],
    ),
    _vision(
        "swin", "Swin", image_size=IMAGE, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 2], window_size=4,
    ),
    _vision(
        "swin_v2", "Swinv2", image_size=IMAGE, patch_size=2, embed_dim=16, depths=[2, 1], num_heads=[2, 2],
        window_size=4,
    ),
    _vision("vit", "ViT", **_VIT),
    _vision("yolos", "Yolos", **{**_VIT, "image_size": [IMAGE, IMAGE]}, num_detection_tokens=5),
    _vision("bit", "Bit", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_groups=4),
    _other(
        "vision", "depth_anything", "DepthAnything", "ForDepthEstimation", image, ("predicted_depth",),
        backbone_config=transformers.Dinov2Config(**{**_VIT, "num_hidden_layers": 4}, out_indices=[1, 2, 3, 4],
        reshape_hidden_states=False), reassemble_hidden_size=32, patch_size=8, neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16, head_hidden_size=8,
    ),
    _other(
        "vision", "detr", "Detr", "ForObjectDetection", image, ("logits", "pred_boxes"),
        backbone_config=transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1],
        out_features=["stage2"]), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_queries=5,
    ),
    _vision("dinov3", "DINOv3ViT", **_VIT),
    _vision("dinov3_convnext", "DINOv3ConvNext", hidden_sizes=[16, 32, 32, 32], depths=[1, 1, 1, 1]),
    _vision(
        "donut_swin", "DonutSwin", image_size=IMAGE, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2],
        window_size=4,
    ),
    _other(
        "vision", "dpt", "DPT", "ForDepthEstimation", image, ("predicted_depth",), **{**_VIT, "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16},
    ),
    _vision(
        "efficientnet", "EfficientNet", image_size=IMAGE, width_coefficient=0.25, depth_coefficient=0.1, hidden_dim=320,
    ),
    _vision("glpn", "GLPN", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2]),
    _vision("ijepa", "IJepa", **_VIT),
    _vision(
        "levit", "Levit", image_size=IMAGE, hidden_sizes=[16, 32, 48], num_attention_heads=[2, 2, 2], depths=[1, 1, 1],
        key_dim=[8, 8, 8],
    ),
    _vision("mobilenet_v1", "MobileNetV1", image_size=IMAGE, depth_multiplier=0.25),
    _vision("mobilenet_v2", "MobileNetV2", image_size=IMAGE, depth_multiplier=0.25),
    _vision(
        "mobilevit", "MobileViT", image_size=IMAGE, hidden_sizes=[16, 24, 32], num_attention_heads=2,
        neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32],
    ),
    _vision(
        "sam", "SamVision", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_dim=48, image_size=IMAGE,
        patch_size=8, window_size=2, global_attn_indexes=[1], output_channels=16, num_pos_feats=16,
    ),
    _vision("swiftformer", "SwiftFormer", image_size=IMAGE, depths=[1, 1, 1, 1], embed_dims=[16, 16, 32, 32]),
    _other(
        "vision", "swin2sr", "Swin2SR", "ForImageSuperResolution", image, ("reconstruction",), image_size=IMAGE,
        patch_size=1, embed_dim=16, depths=[1], num_heads=[2], window_size=4, upscale=2,
    ),
    _other(
        "vision", "upernet", "UperNet", "ForSemanticSegmentation", image, LOGITS,
        backbone_config=transformers.ConvNextConfig(hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1],
        out_features=["stage1", "stage2", "stage3", "stage4"]), hidden_size=16, use_auxiliary_head=False,
        pool_scales=[1, 2],
    ),
    _vision(
        "vitdet", "VitDet", **_VIT, pretrain_image_size=IMAGE, window_size=2, window_block_indices=[0],
        residual_block_indices=[1], use_relative_position_embeddings=True,
    ),
    _vision("vit_msn", "ViTMSN", **_VIT),
    # Sound.
    Architecture(
        "audio", "ast", "ASTModel", "ASTConfig", spectrum, {"hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 48, "patch_size": 8, "max_length": FRAMES, "num_mel_bins": 16,
        "frequency_stride": 4, "time_stride": 4},
    ),
    _sound("data2vec_audio", "Data2VecAudio", conv_pos_kernel_size=5, num_conv_pos_embeddings=2),
    _sound("hubert", "Hubert", feat_extract_norm="layer", do_stable_layer_norm=True),
    _sound("sew", "SEW", squeeze_factor=2),
    _sound("wav2vec2", "Wav2Vec2"),
    Architecture(
        "audio", "whisper", "WhisperForConditionalGeneration", "WhisperConfig", recognition, {**_SEQ,
        "num_mel_bins": 16, "max_source_positions": FRAMES // 2, "max_target_positions": 16}, LOGITS,
    ),
    _other(
        "audio", "clap", "ClapAudio", "Model", lambda: {"input_features": _noise(BATCH, 1, 32, 16)}, HIDDEN,
        spec_size=32, num_mel_bins=16, patch_size=2, patch_stride=[2, 2], patch_embeds_hidden_size=16, depths=[1, 1],
        num_attention_heads=[2, 2], window_size=4, num_classes=2,
    ),
    _other(
        "audio", "dac", "Dac", "Model", lambda: {"input_values": _noise(BATCH, 1, 640)}, ("audio_values",),
        encoder_hidden_size=8, downsampling_ratios=[4, 2], decoder_hidden_size=16, n_codebooks=2, codebook_size=16,
        codebook_dim=4,
    ),
    _other(
        "audio", "hifigan", "SpeechT5HifiGan", "", lambda: {"spectrogram": _noise(BATCH, 6, 8)}, (), model_in_dim=8,
        upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4], resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
    ),
    _other(
        "audio", "moonshine", "Moonshine", "ForConditionalGeneration", lambda: {"input_values": _noise(BATCH, 2000),
        "decoder_input_ids": _ids(5, 1)}, LOGITS, vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48,
        encoder_num_hidden_layers=1, decoder_num_hidden_layers=1, encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
    ),
    _sound("sew_d", "SEWD", squeeze_factor=2, position_buckets=8, max_position_embeddings=64),
    _other(
        "audio", "speech_to_text", "Speech2Text", "ForConditionalGeneration", lambda: {**features(),
        "decoder_input_ids": _ids(5, 1)}, LOGITS, **{**_SEQ, "input_feat_per_channel": 16, "conv_channels": 16,
        "max_source_positions": 64, "max_target_positions": 16},
    ),
    _other(
        "audio", "wav2vec2_bert", "Wav2Vec2Bert", "Model", features, HIDDEN, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=48, feature_projection_input_dim=16, conv_depthwise_kernel_size=3,
    ),
    _sound("wav2vec2_conformer", "Wav2Vec2Conformer", conv_depthwise_kernel_size=3),
    _sound("wavlm", "WavLM"),
    # Series of measurements and of decisions.
    _other(
        "series", "decision_transformer", "DecisionTransformer", "Model", decided, ("action_preds",), state_dim=3,
        act_dim=2, hidden_size=32, n_layer=2, n_head=4, max_ep_len=16,
    ),
    _other(
        "series", "patchtsmixer", "PatchTSMixer", "Model", measured, HIDDEN, num_input_channels=3, context_length=16,
        patch_length=4, patch_stride=4, num_layers=2, d_model=16,
    ),
    _other(
        "series", "patchtst", "PatchTST", "Model", measured, HIDDEN, num_input_channels=3, context_length=16,
        patch_length=4, patch_stride=4, num_hidden_layers=2, d_model=32, num_attention_heads=4, ffn_dim=48,
    ),
    # Several at once.
    Architecture(
        "several", "clip", "CLIPModel", "CLIPConfig", captioned, {"text_config": _SMALL, "vision_config": _VIT,
        "projection_dim": 16}, ("logits_per_image", "text_embeds"),
    ),
    Architecture(
        "several", "siglip", "SiglipModel", "SiglipConfig", captioned, {"text_config": {**_SMALL,
        "projection_size": 32}, "vision_config": _VIT}, ("logits_per_image", "text_embeds"),
    ),
    _other(
        "several", "blip", "Blip", "Model", captioned, ("logits_per_image", "text_embeds"), text_config={**_SMALL,
        "encoder_hidden_size": 32}, vision_config=_VIT, projection_dim=16,
    ),
    _other(
        "several", "chinese_clip", "ChineseCLIP", "Model", captioned, ("logits_per_image", "text_embeds"),
        text_config=_SMALL, vision_config=_VIT, projection_dim=16,
    ),
    _other(
        "several", "clipseg", "CLIPSeg", "ForImageSegmentation", captioned, LOGITS, text_config=_SMALL,
        vision_config=_VIT, projection_dim=16, extract_layers=[0, 1], reduce_dim=16, decoder_num_attention_heads=4,
        decoder_intermediate_size=32,
    ),
    _other("several", "git", "Git", "ForCausalLM", captioned, LOGITS, **{**_SMALL, "vision_config": _VIT}),
    _other(
        "several", "groupvit", "GroupViT", "Model", captioned, ("logits_per_image", "text_embeds"), text_config=_SMALL,
        vision_config={**_VIT, "depths": [1, 1, 0], "num_group_tokens": [4, 2, 0], "num_output_groups": [4, 2, 0]},
        projection_dim=16, projection_intermediate_dim=32,
    ),
    _other("several", "vilt", "Vilt", "Model", cut_image, HIDDEN, **{**_SMALL, **_VIT}),
)
# fmt: on
