"""Operators whose result sizes depend on data: nonzero elements, elements under a mask, distinct elements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from luminal.core import interp
from luminal.core.decompose import distinct, indexing, selection, sorting
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.reduction import sum_
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, cast, constant, dim, gather, iota
from luminal.core.movement import permute, reshape, slice_, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import i64
from luminal.frontends.fx import sizes
from luminal.frontends.fx.registry import aten, direct


@contextmanager
def any_count() -> Iterator[None]:
    """Around the export of a module, inside ``exporting``, which admits one thread at a time: a size that data decides
    begins with 0. Operators that were defined before PyTorch could say so have results of at least 2."""
    context = torch._library.fake_impl.FakeImplCtx

    def unknown(self: Any, *, min: int = 0, max: int | None = None) -> Any:
        return self.new_dynamic_size(min=min, max=max)

    with patch.object(context, "create_unbacked_symint", unknown):
        yield


_NOTHING = constant(np.empty(0, np.int64))  # takes the place of a result that the call does not ask for


direct({"nonzero": selection.nonzero, "nonzero_numpy": selection.coordinates, "masked_select": selection.masked_select})


@aten("nonzero_static")
def nonzero_static(self: Node, *, size: Int, fill_value: int = -1) -> Node:
    return selection.first_nonzero(self, size, fill_value)


@aten("repeat_interleave.Tensor")
def repeated_positions(repeats: Node, *, output_size: Int | None = None, within: tuple[int, int] | None = None) -> Node:
    """The position of each element of ``repeats``, repeated as often as its value. ``output_size`` is the total, and a
    run fails where it is wrong; without it, the total must be known or bounded."""
    total = sum_(cast(repeats, i64), 0)
    known = interp.constant_value(total)
    if output_size is None and known is None and within is None:
        raise UnsupportedError(
            "the data of a call decides how long the result is: state it, output_size=SIZE, or bound it, "
            "torch._check(result.shape[0] <= MOST)"
        )
    if output_size is None:
        output_size = int(known) if known is not None else sizes.found(total, within or (0, 0))
    ends = cumsum(cast(repeats, i64), 0)
    positions = cast(sorting.searchsorted(ends, iota(output_size), right=True), repeats.dtype)
    # Index 0 is the only valid one, so the gather fails where the total differs from the size.
    stated = constant(output_size, i64) if isinstance(output_size, int) else dim(output_size)
    return gather(unsqueeze(positions, [0]), total - stated, 0)


@aten("_unique2")
def unique(
    self: Node, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Node, Node, Node]:
    """Sorted always, as in PyTorch, whatever ``sorted`` is; NaN equals nothing."""
    values, inverse, counts = _distinct(reshape(self, [self.size]))
    return (values, reshape(inverse, self.shape) if return_inverse else _NOTHING, counts if return_counts else _NOTHING)


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
    """Elements, or slices along ``dim``, that differ from the one before; NaN always differs."""
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
