"""Determinants, by elimination with the largest pivots."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from luminal.core import symbolic as sym
from luminal.core.decompose.arithmetic import abs_, sign
from luminal.core.decompose.common import require_float, widened
from luminal.core.decompose.compare import equal
from luminal.core.decompose.exponential import log
from luminal.core.decompose.indexing import gather_nd
from luminal.core.decompose.reduction import argmax
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, constant, expand, iota, select
from luminal.core.movement import reshape, slice_, unsqueeze


@widened
def det(x: Node) -> Node:
    """The determinant of each matrix ``[.., n, n]``, in n steps that leave a matrix smaller by one (ONNX Det).

    Raises ShapeError where the matrices are not square, or their size is not known.
    """
    return reshape(_product(_pivots(x)), x.shape[:-2])


def slogdet(x: Node) -> tuple[Node, Node]:
    """The sign of the determinant of each matrix ``[.., n, n]`` and the logarithm of its magnitude, which overflows
    nowhere; 0 and -inf of a singular one (torch.linalg.slogdet). Raises as ``det`` does."""
    pivots, lead = _pivots(x), x.shape[:-2]
    logarithm = log(abs_(pivots[0]))
    for pivot in pivots[1:]:
        logarithm = logarithm + log(abs_(pivot))
    return reshape(_product([sign(pivot) for pivot in pivots]), lead), reshape(logarithm, lead)


def _product(factors: Sequence[Node]) -> Node:
    return functools.reduce(operator.mul, factors)


def _pivots(x: Node) -> list[Node]:
    """The pivots of the matrices ``[.., n, n]``, each ``[count of matrices]``; one has the other sign where rows were
    exchanged for it, so that their product is the determinant. Those of no rows are a single 1."""
    require_float(x, "det")
    size = x.shape[-1] if x.rank > 1 else None
    if not isinstance(size, int) or x.shape[-2] != size:
        raise ShapeError(f"det: expected square matrices of known size, found {list(x.shape)}")
    count = sym.product(x.shape[:-2])
    rest = reshape(x, [count, size, size])
    result = [expand(constant(1, x.dtype), [count])] if size == 0 else []
    for left in range(size, 0, -1):
        place = argmax(abs_(reshape(slice_(rest, 2, 0, 1), [count, left])), 1)
        chosen = unsqueeze(gather_nd(rest, unsqueeze(place, [1]), 1), [1])  # the row of the pivot
        pivot = slice_(chosen, 2, 0, 1)
        result.append(reshape(pivot, [count]) * select(equal(place, 0), constant(1, x.dtype), -1))
        if left == 1:
            break
        # The first row takes the place of the pivot's.
        moved = equal(reshape(iota(left), [1, left, 1]), reshape(place, [count, 1, 1]))
        rest = slice_(select(moved, slice_(rest, 1, 0, 1), rest), 1, 1, left - 1)
        # A pivot of 0 has only zeros below it, which stay.
        divisor = select(equal(pivot, 0), 1, pivot)
        rest = rest - slice_(rest, 2, 0, 1) / divisor * chosen
        rest = slice_(rest, 2, 1, left - 1)
    return result
