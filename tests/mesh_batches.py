"""The batches of models that are trained on a mesh, for tests and the ranks that they start."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
STEPS, SAVED = 20, 10
ROWS, WORDS, LENGTH = 8, 32, 8


def batch(kind: str, number: int) -> tuple[Array, ...]:
    """Inputs and targets of a step."""
    rng = np.random.default_rng(number)
    if kind == "resnet":
        return rng.standard_normal((ROWS, 2, 8, 8), np.float32), rng.integers(0, 5, ROWS)
    return tuple(rng.integers(0, WORDS, (ROWS, LENGTH)) for _ in range(2))
