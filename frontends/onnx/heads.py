"""Heads of attention, which are an axis of their own, ``[batch, heads, length, size]``, or lie beside each other in
``[batch, length, heads * size]``."""

from __future__ import annotations

from luminal.core.errors import ModelError
from luminal.core.ir import Node
from luminal.core.movement import permute, reshape
from luminal.core.symbolic import Int, floordiv


def by_head(x: Node, heads: Int) -> Node:
    """``[batch, heads, length, size]`` of ``[batch, length, heads * size]``, or of what has that form already.

    Raises ModelError for another number of axes, and for no heads.
    """
    if x.rank == 4:
        return x
    if x.rank != 3 or (isinstance(heads, int) and heads < 1):
        raise ModelError(f"expected 4 axes, or 3 and the number of heads, found {list(x.shape)} and {heads} heads")
    batch, length, width = x.shape
    return permute(reshape(x, [batch, length, heads, floordiv(width, heads)]), [0, 2, 1, 3])


def joined(x: Node) -> Node:
    """``[batch, length, heads * size]`` of ``[batch, heads, length, size]``."""
    batch, heads, length, size = x.shape
    return reshape(permute(x, [0, 2, 1, 3]), [batch, length, heads * size])
