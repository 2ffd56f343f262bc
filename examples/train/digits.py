"""A small convolutional network on scikit-learn's digits: trained from Python, and exported to train from C.

    python examples/train/digits.py [--export FOLDER] [--epochs N]

It needs scikit-learn. The loss of each step is drawn into digits.svg. With ``--export``, FOLDER gets the library, and
the pictures as digits.data, for examples/train/digits.c.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from progress import Progress, plot
from sklearn.datasets import load_digits
from torch import nn

import luminal

BATCH, EPOCHS, TESTED = 64, 12, 360


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10),
    )  # fmt: skip


def data() -> tuple[np.ndarray, np.ndarray]:
    """All pictures, float32 [1797, 1, 8, 8], in an order of their own, and their digits."""
    pictures, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    return (pictures[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32), digits[order].astype(np.int64)


def compiled(module: nn.Module) -> luminal.Training:
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    dims = {"batch": (1, 512), "input": {0: "batch"}, "target": {0: "batch"}}
    example = torch.zeros(BATCH, 1, 8, 8), torch.zeros(BATCH, dtype=torch.int64)
    return luminal.compile_training(
        module, nn.CrossEntropyLoss(), optimizer, example[:1], example[1:], dims=dims, name="digits"
    )


def train(step: luminal.Training, pictures: np.ndarray, digits: np.ndarray, epochs: int) -> list[float]:
    """The loss of each step."""
    batches = len(digits) // BATCH
    progress, random = Progress(epochs * batches), np.random.default_rng(1)
    for epoch in range(epochs):
        rate = 3e-3 * (1 - epoch / epochs)
        for rows in random.permutation(len(digits))[: batches * BATCH].reshape(batches, BATCH):
            progress(float(step(pictures[rows], digits[rows], lr=rate)))
    return progress.losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--export", type=Path, help="the folder for the library and the pictures")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--plot", type=Path, default=Path("digits.svg"))
    given = parser.parse_args()
    pictures, digits = data()
    module = network()
    step = compiled(module)
    losses = train(step, pictures[TESTED:], digits[TESTED:], given.epochs)
    right = step.eval(pictures[:TESTED]).argmax(1) == digits[:TESTED]
    print(f"test accuracy {right.mean():.1%}")
    plot(given.plot, losses, "digits: loss")
    step.write_back()  # the PyTorch module has what was learnt
    if given.export:
        step.export(given.export)
        with open(given.export / "digits.data", "wb") as file:
            file.write(np.array([len(digits), TESTED], np.int64).tobytes() + pictures.tobytes() + digits.tobytes())


if __name__ == "__main__":
    main()
