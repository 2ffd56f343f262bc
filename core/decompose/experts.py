"""Mixtures of experts: each row of a batch is computed by the few of several layers that a router chooses for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from luminal.core.decompose.common import widened
from luminal.core.decompose.compare import equal
from luminal.core.decompose.indexing import gather_elements
from luminal.core.decompose.reduction import any_, softmax, sum_
from luminal.core.decompose.sorting import topk
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, expand, iota, select
from luminal.core.movement import reshape, transpose, unsqueeze

# The results of rows ``[experts, rows, features]``, of all experts, or of those whose numbers are given, one for each
# row: then ``experts`` is the number of these, and each has one row.
Experts: TypeAlias = Callable[[Node, Node | None], Node]


def routes(router: Node, k: int, normalised: bool, weights: Node | None = None) -> tuple[Node, Node]:
    """The experts that a router chooses for each row, ``[rows, k]``, and their shares: of all scores ``[rows,
    experts]`` by softmax, or as ``weights`` has them; ``normalised``, they sum to 1. The first of equals is chosen.

    Raises ShapeError where there are not ``k`` experts.
    """
    count = router.shape[1]
    if k < 1 or (isinstance(count, int) and k > count):
        raise ShapeError(f"expected k of 1 to {count}, the number of experts, found {k}")
    chosen = topk(router, k, 1)[1]
    return chosen, _shares(softmax(router, 1) if weights is None else weights, chosen, normalised)


@widened
def _shares(scores: Node, chosen: Node, normalised: bool) -> Node:
    shares = gather_elements(scores, chosen, 1)
    return shares / sum_(shares, 1, True) if normalised else shares


def mixture(x: Node, chosen: Node, shares: Node, experts: Experts, count: int) -> Node:
    """The results of the ``chosen`` of ``count`` experts for each row ``x [rows, features]``, summed by their shares.

    Where there are no more choices than experts, each reads the weights of its own; else all experts compute all rows,
    and what nobody chose counts nothing, whatever it is.
    """
    rows, k = chosen.shape
    if isinstance(rows, int) and isinstance(k, int) and rows * k <= count:
        repeated = reshape(expand(unsqueeze(x, [1]), (rows, k, x.shape[1])), [rows * k, 1, x.shape[1]])
        each = experts(repeated, reshape(chosen, [rows * k]))
        return _summed(reshape(each, [rows, k, each.shape[-1]]), shares, 1)
    taken = equal(unsqueeze(chosen, [2]), iota(count))  # [rows, k, experts]
    share = transpose(sum_(select(taken, unsqueeze(shares, [2]), 0), 1), 0, 1)
    asked = unsqueeze(transpose(any_(taken, 1), 0, 1), [2])
    return _summed(select(asked, experts(unsqueeze(x, [0]), None), 0), share, 0)


@widened
def _summed(each: Node, shares: Node, axis: int) -> Node:
    return sum_(each * unsqueeze(shares, [2]), axis)
