"""Weights drawn by numpy, for tests in which a result hangs on what is drawn: the likeliest word, say. What PyTorch
draws depends on the width of the machine's vectors."""

from __future__ import annotations

import numpy as np
import torch


def draw(module: torch.nn.Module, seed: int, spread: float) -> None:
    """Draws the parameters of ``module``, normally distributed with the standard deviation ``spread``, alike on every
    machine. Biases are a fifth of that, and norms, which are ones at first, are moved by as much."""
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, value in module.named_parameters():
            drawn = torch.from_numpy(generator.standard_normal(tuple(value.shape), np.float32))
            if name.endswith("bias"):
                value.copy_(drawn * 0.2)
            elif value.ndim == 1:
                value.add_(drawn * 0.2)
            else:
                value.copy_(drawn * spread)
