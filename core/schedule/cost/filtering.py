"""Cycles of a convolution, as the sum that it is and by minimal filtering."""

from __future__ import annotations

from luminal.core.target import Target
from luminal.core.types import f32


def of_sum(weights: int, rows: int, target: Target) -> float:
    """Of the sum of products of so many ``weights`` with ``rows`` windows."""
    return weights * (rows + target.costs.filtering.weight) / _per_cycle(target)


def of_tiles(tiles: int, positions: int, k: int, n: int, there: int, back: int, target: Target) -> float:
    """Of ``tiles`` of so many ``positions``, from ``k`` channels to ``n``: the products of whole tiles, the operations
    of the transforms ``there`` and ``back``, for each channel, and what it takes to move what these write and to read
    the filters."""
    costs = target.costs.filtering
    products = positions * n * k * (tiles + costs.weight)
    others = costs.operation * (k * there + n * back) + costs.moved * positions * (k + n)
    return (products + tiles * others) / _per_cycle(target)


def _per_cycle(target: Target) -> int:
    """Multiply-adds of a core in a cycle."""
    return target.costs.arithmetic.per_cycle * target.lanes(f32)
