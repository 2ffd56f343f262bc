"""A small GPT that learns the characters of Python's own manual, ``pydoc_data.topics``.

    python examples/train/gpt.py [--steps N] [--compare]

The loss of each step is drawn into gpt.svg. With ``--compare``, PyTorch trains the same model on the same batches.
"""

from __future__ import annotations

import argparse
import copy
import functools
from pathlib import Path
from pydoc_data.topics import topics

import torch
from progress import Progress, plot
from torch import nn
from torch.nn import functional

import luminal

LENGTH, BATCH, WIDTH, HEADS, LAYERS = 64, 16, 96, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.joint(self.first(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.characters(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def loss_of(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--compare", action="store_true", help="train in PyTorch, too")
    parser.add_argument("--plot", type=Path, default=Path("gpt.svg"))
    given = parser.parse_args()
    text = "".join(topics[key] for key in sorted(topics))
    alphabet = {character: number for number, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([alphabet[character] for character in text])

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(numbers) - LENGTH - 1, (BATCH,), generator=torch.Generator().manual_seed(step))
        rows = torch.stack([numbers[at : at + LENGTH + 1] for at in starts.tolist()])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    torch.manual_seed(0)
    module = GPT(len(alphabet))
    other = copy.deepcopy(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    schedule = functools.partial(
        torch.optim.lr_scheduler.OneCycleLR, max_lr=3e-3, total_steps=given.steps, cycle_momentum=False
    )
    scheduler = schedule(optimizer)
    x, target = batch(0)
    step = luminal.compile_training(module, loss_of, optimizer, (x,), (target,), clip_norm=1.0, name="gpt")
    progress = Progress(given.steps)
    for number in range(given.steps):
        progress(float(step(*batch(number))))
        optimizer.step()  # PyTorch's scheduler wants it; without gradients it changes nothing
        scheduler.step()
    plot(given.plot, progress.losses, f"gpt: loss, {len(text)} characters")
    print(f"loss {progress.losses[0]:.3f} -> {sum(progress.losses[-10:]) / 10:.3f}")
    if given.compare:
        theirs = torch.optim.AdamW(other.parameters(), lr=1e-3)
        scheduler = schedule(theirs)
        progress = Progress(given.steps)
        for number in range(given.steps):
            x, target = batch(number)
            theirs.zero_grad()
            loss = loss_of(other(x), target)
            loss.backward()
            nn.utils.clip_grad_norm_(other.parameters(), 1.0)
            theirs.step()
            scheduler.step()
            progress(float(loss.detach()))
        print(f"PyTorch: loss {progress.losses[0]:.3f} -> {sum(progress.losses[-10:]) / 10:.3f}")


if __name__ == "__main__":
    main()
