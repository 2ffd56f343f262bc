"""One output of a comparison: the distances of both sides from each other and from float64, and the verdict."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from luminal.comparison.measure import NOWHERE, distance, indecision
from luminal.comparison.oracle import Allowed
from luminal.comparison.report import Row
from luminal.core.types import from_numpy


def row(
    name: str, found: NDArray[Any], expected: NDArray[Any], exact: NDArray[Any], allowed: Allowed, strict: bool
) -> Row:
    """The row of the output ``name``: ``found`` is what luminal or the first side gives, ``expected`` what the
    reference or the second does; where ``strict``, ``found`` may be no further from ``exact`` than ``allowed``."""
    tensor = f"{found.dtype}{list(found.shape)}"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        problem = f"one side gives {tensor}, the other {expected.dtype}{list(expected.shape)}"
        return Row(name, tensor, NOWHERE, NOWHERE, NOWHERE, allowed, problem)
    apart, own, others = distance(found, expected), distance(found, exact), distance(expected, exact)
    if apart.misplaced:
        problem = f"{apart.misplaced} of {found.size} elements are NaN or infinite on one side only"
    else:
        problem = allowed.apart.problem(found, expected, "the reference")
    if not problem and strict and (from_numpy(found.dtype).kind in "fc" or allowed.own.exceptions):
        problem = allowed.own.problem(found, exact, "float64")
    undecided = "" if problem else indecision(found, expected, allowed.apart.most)
    return Row(name, tensor, apart, own, others, allowed, problem, undecided)
