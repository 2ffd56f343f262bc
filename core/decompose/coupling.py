"""Probabilities of classes from probabilities of each two of them: T.-F. Wu, C.-J. Lin, R. C. Weng, Probability
estimates for multi-class classification by pairwise coupling, JMLR 5 (2004), their second method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luminal.core.decompose import math, reduction
from luminal.core.decompose.indexing import full
from luminal.core.ir import Node, constant, select
from luminal.core.movement import concatenate, permute, reshape, slice_, unsqueeze
from luminal.core.structured import while_loop
from luminal.core.types import i64

_ROUNDS = 100  # at most, and as many as there are classes
_NEAR = 0.005  # by the number of classes: as far as conditions of the optimum may be missed


def coupled(pairwise: Node) -> Node:
    """``[N, C]``, the probabilities that fit best to ``pairwise [N, C, C]``: of class i where it is i or j.

    They minimise ``sum over i, j of (r_ji p_i - r_ij p_j)^2``, each coordinate in turn, until every row is near.
    """
    size, count = pairwise.shape[0], pairwise.shape[1]
    assert isinstance(count, int)
    apart = constant(1 - np.eye(count), pairwise.dtype)
    turned = permute(pairwise, [0, 2, 1])
    squares = reduction.sum_(turned * turned * apart, 2, keepdims=True)  # of r_ji over j, for each i
    own = constant(np.eye(count), pairwise.dtype)
    q = select(math.equal(own, 1), squares, turned * pairwise * -1)
    near = _NEAR / count

    def far(p: Node) -> Node:
        products, total = _products(q, p)
        return math.less_equal(near, reduction.max_(math.abs_(products - total), 1, keepdims=True))

    def step(carries: Sequence[Node]) -> list[Node]:
        number, p, moves = carries
        old, (products, total) = p, _products(q, p)
        for k in range(count):
            row = reshape(slice_(q, 1, k, 1), [size, count])
            diagonal, gradient = slice_(row, 1, k, 1), slice_(products, 1, k, 1)
            by = (total - gradient) / diagonal
            total = (total + by * (by * diagonal + gradient * 2)) / (by + 1) / (by + 1)
            products = (products + by * row) / (by + 1)
            p = (p + by * constant(np.eye(count)[k], p.dtype)) / (by + 1)
        p = select(moves, p, old)
        return [number + 1, p, moves & far(p)]

    def goes_on(carries: Sequence[Node]) -> Node:
        number, _, moves = carries
        return math.less(number, max(_ROUNDS, count)) & reduction.any_(moves, [0, 1])

    first = full((size, count), 1 / count, pairwise.dtype)
    return while_loop(goes_on, step, [constant(0, i64), first, far(first)])[1]


def _products(q: Node, p: Node) -> tuple[Node, Node]:
    """``Q p`` of each row, and ``p Q p``, ``[N, 1]``."""
    products = reduction.sum_(q * unsqueeze(p, [1]), 2)
    return products, reduction.sum_(products * p, 1, keepdims=True)


def of_pairs(first: Sequence[Node], count: int) -> Node:
    """``[N, C, C]`` from the probabilities ``[N]`` of the first class of each pair, in the order (0, 1), (0, 2) .."""
    size = first[0].shape[0]
    table = {}
    pairs = iter(first)
    for i in range(count):
        for j in range(i + 1, count):
            table[i, j] = next(pairs)
            table[j, i] = 1 - table[i, j]
    none = full((size,), 0, first[0].dtype)
    cells = [reshape(table.get((i, j), none), [size, 1]) for i in range(count) for j in range(count)]
    return reshape(concatenate(cells, 1), [size, count, count])
