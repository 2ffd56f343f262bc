"""Matrix products of groups whose extents are data, as the experts of a mixture take them."""

from __future__ import annotations

from luminal.core import ops
from luminal.core.decompose.common import widened
from luminal.core.decompose.compare import equal, less, less_equal, minimum
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.indexing import gather_elements, take
from luminal.core.ir import Node, cast, dim, iota, reduce, select
from luminal.core.movement import along, squeeze, transpose, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import i64


def grouped_matmul(a: Node, b: Node, ends: Node) -> Node:
    """Matrix products of groups that lie one after the other along one axis; group ``g`` stops before ``ends[g]``.

    Groups of rows: ``[S, K] x [G, K, N] -> [S, N]``, zero in rows after the last group; of columns: ``[G, M, K] x
    [K, S] -> [M, S]``; of what is summed: ``[M, S] x [S, N] -> [G, M, N]``.
    """
    if a.rank == 3:
        return transpose(grouped_matmul(transpose(b, 0, 1), transpose(a, 1, 2), ends), 0, 1)
    return _of_groups(a, b, ends) if b.rank == 2 else _grouped_rows(a, b, ends)


@widened
def _of_groups(a: Node, b: Node, ends: Node) -> Node:
    size, groups = b.shape[0], ends.shape[0]
    number = _group(size, ends)
    inside = equal(unsqueeze(number, [0]), unsqueeze(iota(groups), [1]))  # [G, S]
    left = select(unsqueeze(inside, [1]), unsqueeze(a, [0]), 0)
    right = select(unsqueeze(inside, [2]), unsqueeze(b, [0]), 0)
    return matmul(left, right)


@widened
def _grouped_rows(a: Node, b: Node, ends: Node) -> Node:
    """Few rows read the matrices of their groups, many are multiplied by all of them."""
    size, groups = a.shape[0], b.shape[0]
    number = _group(size, ends)
    place = minimum(number, dim(groups - 1))
    if isinstance(size, int) and isinstance(groups, int) and size <= groups:
        rows = squeeze(matmul(unsqueeze(a, [1]), take(b, place, 0)), [1])
    else:
        each = matmul(unsqueeze(a, [0]), b)  # [G, S, N]
        rows = squeeze(gather_elements(each, along(place, 1, (1, *each.shape[1:])), 0), [0])
    return select(unsqueeze(less(number, dim(groups)), [1]), rows, 0)


def _group(size: Int, ends: Node) -> Node:
    """The group of each of ``size`` positions; after the last one, their number."""
    past = less_equal(unsqueeze(cast(ends, i64), [0]), unsqueeze(iota(size), [1]))
    return reduce(ops.SUM_REDUCE, cast(past, i64), [1])
