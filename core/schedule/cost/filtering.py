"""Cycles of a convolution, as a plain sum of products and by minimal filtering."""

from __future__ import annotations

from luminal.core.target import Target
from luminal.core.types import f32


def direct_cycles(weights: int, rows: int, target: Target) -> float:
    """Cycles of the sum of products of ``weights`` weights with ``rows`` windows."""
    return weights * (rows + target.costs.filtering.weight) / _per_cycle(target)


def filtered_cycles(tiles: int, positions: int, k: int, n: int, there: int, back: int, target: Target) -> float:
    """Cycles of ``tiles`` tiles of ``positions`` positions each, from ``k`` channels to ``n``: their products, the
    ``there`` and ``back`` operations of the two transforms for each channel, and moving transformed values and
    filters."""
    costs = target.costs.filtering
    products = positions * n * k * (tiles + costs.weight)
    others = costs.operation * (k * there + n * back) + costs.moved * positions * (k + n)
    return (products + tiles * others) / _per_cycle(target)


def _per_cycle(target: Target) -> int:
    """Multiply-adds of a core in a cycle."""
    return target.costs.arithmetic.per_cycle * target.lanes(f32)
