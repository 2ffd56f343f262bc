"""Adapters of low rank over frozen weights that are rounded to int8: what is trained is small, what is read is packed.

    python examples/train/lora.py [--epochs N]

A network that was trained on the digits 0 to 4 learns 5 to 9 as well, by its adapters alone. It needs scikit-learn. The
loss of each step is drawn into lora.svg.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from progress import Progress, plot
from sklearn.datasets import load_digits
from torch import nn

import luminal

RANK, WIDTH, BATCH, TESTED = 8, 512, 64, 360


class Adapted(nn.Module):
    """``linear``, frozen, and a product of two thin matrices beside it (Hu et al., 2021)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(RANK, linear.in_features) / linear.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + x @ self.down.T @ self.up.T


def train(step: luminal.Training, x: np.ndarray, y: np.ndarray, epochs: int, rate: float) -> list[float]:
    batches = len(y) // BATCH
    progress, random = Progress(epochs * batches), np.random.default_rng(0)
    for _ in range(epochs):
        for rows in random.permutation(len(y))[: batches * BATCH].reshape(batches, BATCH):
            progress(float(step(x[rows], y[rows], lr=rate)))
    return progress.losses


def accuracy(step: luminal.Training, x: np.ndarray, y: np.ndarray) -> float:
    return float((step.eval(x).argmax(1) == y).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8, help="of the adapters")
    given = parser.parse_args()
    pictures, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    x, y = (pictures[order] / 16).astype(np.float32), digits[order].astype(np.int64)
    known = y < 5
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 10))
    example = (torch.zeros(BATCH, 64),), (torch.zeros(BATCH, dtype=torch.int64),)
    dims = {"batch": (1, 512), "input": {0: "batch"}, "target": {0: "batch"}}
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    base = luminal.compile_training(module, nn.CrossEntropyLoss(), optimizer, *example, dims=dims, name="base")
    train(base, x[TESTED:][known[TESTED:]], y[TESTED:][known[TESTED:]], 5, 1e-3)
    print(f"before: {accuracy(base, x[:TESTED], y[:TESTED]):.1%} of all digits are right")
    base.write_back()

    adapted = nn.Sequential(*(Adapted(part) if isinstance(part, nn.Linear) else part for part in module))
    chosen = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=1e-2)
    step = luminal.compile_training(
        adapted, nn.CrossEntropyLoss(), optimizer, *example, dims=dims, weights="int8", name="lora"
    )
    print(f"{sum(p.numel() for p in chosen)} numbers are trained, {step.memory['state']} bytes of state")
    losses = train(step, x[TESTED:], y[TESTED:], given.epochs, 1e-2)
    print(f"after: {accuracy(step, x[:TESTED], y[:TESTED]):.1%}")
    plot("lora.svg", losses, "adapters over int8 weights: loss")


if __name__ == "__main__":
    main()
