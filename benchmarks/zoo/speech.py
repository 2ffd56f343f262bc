"""Speech: an encoder of spectrograms."""

from __future__ import annotations

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from benchmarks.zoo.model import Model
from benchmarks.zoo.weights import randomise


class SpeechEncoder(nn.Module):
    """Features of every two frames of a mel spectrogram."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.encoder(input_features).last_hidden_state
        return features


def whisper_encoder(layers: int = 4, batch: int = 2, positions: int = 1500) -> Model:
    """The encoder of Whisper-tiny (Radford et al., 2022) on ``[batch, 80, 2 * positions]``; 8.2 M parameters at 4
    layers."""
    config = transformers.WhisperConfig(
        d_model=384,
        encoder_layers=layers,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        max_source_positions=positions,
    )
    with no_init_weights():
        module = SpeechEncoder(WhisperEncoder(config)).eval()
    shape = (batch, config.num_mel_bins, 2 * positions)
    inputs = (torch.randn(shape, generator=torch.Generator().manual_seed(1)),)
    # Branches that end in these add to the residual stream.
    ends = {"out_proj": 0.4, "fc2": 0.4}
    return Model(randomise(module, inputs, ends), inputs, {"input_features": {0: "batch"}, "batch": (1, 8)})
