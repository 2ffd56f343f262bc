"""Rotary position embeddings (Su et al., "RoFormer", 2021)."""

from __future__ import annotations

from luminal.core.decompose.common import widened
from luminal.core.decompose.indexing import stack
from luminal.core.errors import ShapeError
from luminal.core.ir import Node
from luminal.core.movement import concatenate, reshape, slice_
from luminal.core.symbolic import Int


@widened
def rotated(x: Node, cos: Node, sin: Node, interleaved: bool = False) -> Node:
    """Pairs of elements along the last axis of ``x [.., D]``, turned by angles of which ``cos`` and ``sin`` are given,
    ``[.., R]``, broadcast; what is beyond the first ``2 R`` elements stays.

    A pair is two neighbours where ``interleaved``, else an element of the first half and one of the second. Raises
    ShapeError where ``D`` is less than ``2 R``.
    """
    width, size = cos.shape[-1], x.shape[-1]
    if not isinstance(width, int) or not isinstance(size, int) or 2 * width > size:
        raise ShapeError(f"rotary embedding: expected at least {2 * width} elements, found {size}")
    turned = slice_(x, -1, 0, 2 * width)
    if interleaved:
        pairs = reshape(turned, [*x.shape[:-1], width, 2])
        a, b = (reshape(slice_(pairs, -1, k, 1), [*x.shape[:-1], width]) for k in (0, 1))
    else:
        a, b = (slice_(turned, -1, k * width, width) for k in (0, 1))
    parts = [a * cos - b * sin, b * cos + a * sin]
    shape: list[Int] = [*x.shape[:-1], 2 * width]
    result = reshape(stack(parts, -1), shape) if interleaved else concatenate(parts, -1)
    return result if 2 * width == size else concatenate([result, slice_(x, -1, 2 * width, size - 2 * width)], -1)
