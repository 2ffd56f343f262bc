"""Reading at positions that a tensor holds."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import movement
from luminal.core.decompose import indexing, scattering, selection
from luminal.core.decompose.compare import not_equal
from luminal.core.ir import Node, cast
from luminal.frontends.fx.registry import aten


@aten("embedding")
def embedding(
    weight: Node, indices: Node, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Node:
    return indexing.embedding(weight, indices)


@aten("index_select")
def index_select(self: Node, dim: int, index: Node) -> Node:
    if self.rank == 0:
        return self
    return indexing.take(self, index if index.rank else movement.reshape(index, [1]), dim)


@aten("take_along_dim")
def take_along_dim(self: Node, indices: Node, dim: int | None = None) -> Node:
    if dim is None:
        return gather(movement.reshape(self, [self.size]), 0, movement.reshape(indices, [indices.size]))
    return gather(self, dim, indices)


@aten("gather")
def gather(self: Node, dim: int, index: Node, *, sparse_grad: bool = False) -> Node:
    if self.rank != index.rank:  # a scalar stands for a vector of one, and no position for any number of axes
        if index.size == 0:
            return indexing.full(index.shape, 0, self.dtype)
        shape = index.shape
        self, index = (movement.reshape(x, [x.size]) for x in (self, index))
        return movement.reshape(indexing.gather_elements(self, index, 0), shape)
    return indexing.gather_elements(self, index, dim)


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(self: Node, indices: Sequence[Node | None]) -> Node:
    """A mask stands for the indices at which it holds, one for each of its axes."""
    picks: list[Node | None] = []
    for picked in indices:
        picks += selection.coordinates(picked) if picked is not None and picked.dtype.is_bool else [picked]
    return indexing.index(self, picks)


_BAGS = ("sum", "mean", "amax")


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: Node, indices: Node, offsets: Node, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Node | None = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[Node, None, None, None]:  # fmt: skip
    """Rows of ``weight`` reduced over each bag of indices; what follows is for gradients. The last offset may be the
    end of the last bag."""
    rows = cast(indexing.embedding(weight, indices), weight.dtype.compute)
    if per_sample_weights is not None:
        rows = rows * movement.along(cast(per_sample_weights, rows.dtype), 0, rows.shape)
    counted = not_equal(indices, padding_idx) if padding_idx >= 0 else None
    bags = scattering.reduce_bags(rows, offsets, _BAGS[mode], counted)
    if include_last_offset:
        bags = movement.slice_(bags, 0, 0, offsets.shape[0] - 1)
    return cast(bags, weight.dtype), None, None, None
