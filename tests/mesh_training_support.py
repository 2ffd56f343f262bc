"""Small models that are trained on a mesh."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn

from tests import mesh_batches
from tests.drawn import draw
from tests.mesh_batches import LENGTH, WORDS
from tests.test_training_models import Decoder, of_words
from tests.training_support import Run


class Block(nn.Module):
    """A block of ResNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(y + self.norms[2](self.around(x)))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(2, 8, 1), Block(8, 8, 2))
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.blocks(x).mean((2, 3)))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=LENGTH, pad_token_id=None, bos_token_id=None,
            eos_token_id=None,
        )  # fmt: skip
        self.model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(tokens, use_cache=False).logits
        return found


def run(kind: str) -> Run:
    """A model with its optimiser, and its batches, all drawn by numpy."""
    module = {"gpt2": Decoder, "llama": Llama, "resnet": Images}[kind]()
    draw(module, 0, 0.2)
    module.train()

    def batch(number: int) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.from_numpy, mesh_batches.batch(kind, number)))

    if kind == "resnet":
        return Run(module, nn.CrossEntropyLoss(), torch.optim.SGD(module.parameters(), 0.05, 0.9), batch)
    clip = 1.0 if kind == "gpt2" else None
    return Run(module, of_words, torch.optim.AdamW(module.parameters(), 1e-3), batch, clip)


def shard(kind: str) -> dict[str, Any]:
    """Each rank has its rows of the batch."""
    return {name: {"data": 0} for name in ("x" if kind == "resnet" else "tokens", "target")}
