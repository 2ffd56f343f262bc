"""Distances between rows: norms of their differences."""

from __future__ import annotations

import numpy as np

from luminal.core.decompose.common import widened
from luminal.core.decompose.indexing import full, take
from luminal.core.decompose.normalize import lp_norm
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, constant
from luminal.core.movement import unsqueeze
from luminal.core.types import i64


@widened
def cdist(a: Node, b: Node, p: float = 2) -> Node:
    """The Lp distance of every row of ``a [.., M, D]`` from every row of ``b [.., N, D]``: ``[.., M, N]``; the axes
    before broadcast."""
    return _norm(unsqueeze(a, [-2]) - unsqueeze(b, [-3]), p)


@widened
def pdist(x: Node, p: float = 2) -> Node:
    """The Lp distances of each row of ``x [N, D]`` from those after it, as a vector of N (N - 1) / 2.

    Raises ShapeError where N is not known.
    """
    rows = x.shape[0]
    if not isinstance(rows, int):
        raise ShapeError(f"pdist: the number of rows, {rows}, must be known")
    first, second = (constant(places, i64) for places in np.triu_indices(rows, 1))
    return _norm(take(x, first) - take(x, second), p)


def _norm(x: Node, p: float) -> Node:
    if x.shape[-1] == 0:
        return full(x.shape[:-1], 0, x.dtype)
    return lp_norm(x, -1, p)
