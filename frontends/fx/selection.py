"""Results as large as data decides: what is not zero, what a mask picks, what is distinct."""

from __future__ import annotations

import numpy as np

from luminal.core.decompose import distinct, indexing, selection
from luminal.core.ir import Node, constant
from luminal.core.movement import permute, reshape, slice_
from luminal.core.symbolic import Int
from luminal.frontends.fx.registry import aten

_NOTHING = constant(np.empty(0, np.int64))  # in the place of a result that is not asked for


@aten("nonzero")
def nonzero(self: Node) -> Node:
    return selection.nonzero(self)


@aten("nonzero_numpy")
def nonzero_numpy(self: Node) -> list[Node]:
    return selection.coordinates(self)


@aten("nonzero_static")
def nonzero_static(self: Node, *, size: Int, fill_value: int = -1) -> Node:
    return selection.first_nonzero(self, size, fill_value)


@aten("masked_select")
def masked_select(self: Node, mask: Node) -> Node:
    return selection.masked_select(self, mask)


@aten("_unique2")
def unique(
    self: Node, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Node, Node, Node]:
    """In order, whether that is asked for or not, as PyTorch does it; NaN equals nothing."""
    values, inverse, counts = _distinct(reshape(self, [self.size]))
    return (
        values,
        reshape(inverse, self.shape) if return_inverse else _NOTHING,
        counts if return_counts else _NOTHING,
    )


@aten("unique_dim")
def unique_dim(
    self: Node, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Node, Node, Node]:
    order = [dim % self.rank, *(k for k in range(self.rank) if k != dim % self.rank)]
    values, inverse, counts = _distinct(permute(self, order))
    return permute(values, [order.index(k) for k in range(self.rank)]), inverse, counts


@aten("unique_consecutive")
def unique_consecutive(
    self: Node, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Node, Node, Node]:
    """What differs from the element, or slice along ``dim``, before it; NaN does."""
    if dim is None:
        values, inverse, counts = _taken(flat := reshape(self, [self.size]), distinct.consecutive(flat))
        inverse = reshape(inverse, self.shape)
    else:
        order = [dim % self.rank, *(k for k in range(self.rank) if k != dim % self.rank)]
        values, inverse, counts = _taken(rows := permute(self, order), distinct.consecutive(rows))
        values = permute(values, [order.index(k) for k in range(self.rank)])
    return values, inverse if return_inverse else _NOTHING, counts if return_counts else _NOTHING


def _distinct(rows: Node) -> tuple[Node, Node, Node]:
    return _taken(rows, distinct.distinct(rows))


def _taken(rows: Node, found: distinct.Distinct) -> tuple[Node, Node, Node]:
    """The ones found along the first axis, which of them each row is, and how often each occurs."""
    size = selection.measured(found.count, rows.shape[0], "distinct")
    return indexing.take(rows, slice_(found.first, 0, 0, size), 0), found.number, slice_(found.times, 0, 0, size)
