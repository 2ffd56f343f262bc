"""Small models that are trained on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from benchmarks.eager import EPS, ORDERS, Run
from tests import mesh_batches
from tests.drawn import draw
from tests.mesh_batches import LENGTH, WORDS
from tests.test_training_models import Decoder, of_words


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


@dataclass(frozen=True)
class Steps:
    """What steps of training come to in float64, and how far PyTorch's in float32 come from it: at the most, over
    several orders of the rows of a batch, as ranks sum in another one. Losses by step; all else by name, after one."""

    losses: tuple[float, ...]
    errors: tuple[float, ...]
    values: Mapping[int, Mapping[str, torch.Tensor]]
    apart: Mapping[int, Mapping[str, float]]

    def check_losses(self, found: list[float]) -> None:
        """Of the first steps, as far off as twice what PyTorch has been by then."""
        most = np.maximum.accumulate(self.errors)
        for number, loss in enumerate(found):
            exact = self.losses[number]
            assert abs(loss - exact) <= 2 * most[number] + 4 * EPS * abs(exact), (number, loss, exact, most[number])
        wanted = self.losses[: len(found)]
        assert abs(wanted[-1] - wanted[0]) > 100 * most[len(found) - 1]  # steps that were left out would be seen

    def check(self, number: int, found: Mapping[str, Any]) -> None:
        """All values after so many steps, in their norms."""
        assert found
        for name, value in found.items():
            exact = self.values[number][name]
            error = float(torch.linalg.norm(torch.as_tensor(value).double() - exact))
            floor = EPS * float(torch.linalg.norm(exact))
            assert error <= 2 * self.apart[number][name] + 2 * floor, (name, error, self.apart[number][name], floor)


def steps(make: Callable[[], Run], count: int, at: tuple[int, ...]) -> Steps:
    """So many steps; of what they come to, everything that they change after those ``at``."""
    exact, *others = (make().copied(dtype) for dtype in (torch.float64, *[torch.float32] * ORDERS))
    losses, errors, values, apart = [], [], {}, {}
    for number in range(count):
        losses.append(float(exact.step(number)))
        errors.append(max(abs(float(x.step(number, order)) - losses[-1]) for order, x in enumerate(others)))
        if number + 1 in at:
            near = [named(x) for x in others]
            values[number + 1] = {name: value.clone() for name, value in named(exact).items()}
            apart[number + 1] = {
                name: max(float(torch.linalg.norm(x[name].double() - value.double())) for x in near)
                for name, value in values[number + 1].items()
            }
    return Steps(tuple(losses), tuple(errors), values, apart)


def named(run: Run) -> dict[str, torch.Tensor]:
    """All numbers that a step changes: parameters and statistics by their names, what the optimiser keeps of each."""
    found = {name: value.detach() for name, value in run.module.named_parameters()}
    found |= {name: value for name, value in run.module.named_buffers() if value.is_floating_point()}
    for name, parameter in run.module.named_parameters():
        kept = run.optimizer.state.get(parameter, {})
        found |= {f"{name}.{key}": value for key, value in kept.items() if torch.is_tensor(value) and value.ndim}
    return found


@cache
def taken(kind: str) -> Steps:
    """The steps of a model, with everything at the one after which ranks save."""
    return steps(lambda: run(kind), mesh_batches.STEPS, (mesh_batches.SAVED,))
