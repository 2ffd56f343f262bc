"""How far results are from what they should be, where what is no number must not pass for right."""

from __future__ import annotations

import math
from collections.abc import Iterable

from luminal.comparison.measure import Array, distance


def worst(errors: Iterable[float]) -> float:
    """The largest of several; NaN where one is NaN, which ``max`` keeps only where it comes first."""
    found = list(errors)
    return math.nan if any(map(math.isnan, found)) else max(found)


def relative(found: Array, expected: Array) -> float:
    """The largest difference, relative to the largest magnitude of ``expected``; NaN where one of them is NaN or
    infinite where the other is not, and infinite where their shapes differ."""
    apart = distance(found, expected)
    return math.nan if apart.misplaced else apart.relative
