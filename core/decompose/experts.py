"""Mixtures of experts: each row of a batch is computed by the few of several layers that a router chooses for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from luminal.core import symbolic as sym
from luminal.core.decompose.common import widened
from luminal.core.decompose.compare import equal, less
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.indexing import gather_elements
from luminal.core.decompose.reduction import any_, softmax, sum_
from luminal.core.decompose.selection import measured
from luminal.core.decompose.sorting import topk
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, constant, dim, expand, gather, iota, reduce, scatter, select
from luminal.core.movement import reshape, slice_, transpose, unsqueeze
from luminal.core.ops import ADD, MAX_REDUCE
from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.types import i64

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

    Where there are no more choices than experts, each reads the weights of its own. Else each expert computes the rows
    that chose it, as many of all as chose the expert of most rows: those beyond its own count nothing, whatever they
    are. Where there is no upper bound of the rows, all experts compute all of them.
    """
    rows, k = chosen.shape
    most = sym.upper(rows * k)
    if most is not None and most <= count:
        repeated = reshape(expand(unsqueeze(x, [1]), (rows, k, x.shape[1])), [rows * k, 1, x.shape[1]])
        each = experts(repeated, reshape(chosen, [rows * k]))
        return _summed(reshape(each, [rows, k, each.shape[-1]]), shares, 1)
    taken = equal(unsqueeze(chosen, [2]), iota(count))  # [rows, k, experts]
    share = transpose(sum_(select(taken, unsqueeze(shares, [2]), 0), 1), 0, 1)
    asked = transpose(any_(taken, 1), 0, 1)  # [experts, rows]
    if most is None:
        return _summed(select(unsqueeze(asked, [2]), experts(unsqueeze(x, [0]), None), 0), share, 0)
    number, routed = _routed(asked, -(-typical(rows) * typical(k) // count))
    each = experts(gather(x, number, 0), None)
    return _put_back(each, routed, gather_elements(share, number, 1), number, rows)


def _routed(asked: Node, usual: int) -> tuple[Node, Node]:
    """The numbers of the rows that are ``asked`` of each expert, ``[experts, rows]``, in their order, and whether there
    are so many: both ``[experts, most]``, for the most rows of any, often the ``usual`` number."""
    count, rows = asked.shape
    holds = cast(asked, i64)
    counts = sum_(holds, 1)
    most = measured(reduce(MAX_REDUCE, counts, [0]), rows, "routed", usual)
    # What is not asked goes to one more place, the last of each expert.
    place = select(asked, cumsum(holds, 1, exclusive=True), dim(rows)) + unsqueeze(iota(count), [1]) * dim(rows + 1)
    numbers = scatter(expand(constant(0, i64), (count * (rows + 1),)), place, expand(iota(rows), asked.shape), 0)
    numbers = slice_(reshape(numbers, [count, rows + 1]), 1, 0, most)
    return numbers, less(iota(most), unsqueeze(counts, [1]))


@widened
def _put_back(each: Node, routed: Node, shares: Node, number: Node, rows: Int) -> Node:
    """The sums for each row of what experts have computed of it, one expert after the other."""
    weighted = select(unsqueeze(routed, [2]), each * unsqueeze(shares, [2]), 0)
    return scatter(expand(constant(0, each.dtype), (rows, each.shape[-1])), number, weighted, 0, ADD)


@widened
def _summed(each: Node, shares: Node, axis: int) -> Node:
    return sum_(each * unsqueeze(shares, [2]), axis)
