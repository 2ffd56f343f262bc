"""Writing at positions that a tensor holds."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import movement
from luminal.core.decompose import indexing, scattering
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, expand, iota
from luminal.core.symbolic import Int
from luminal.frontends.fx.promotion import Scalar, as_node
from luminal.frontends.fx.registry import aten, direct
from luminal.frontends.fx.shape import as_strided

_HOW = {"add": "sum", "multiply": "prod", "sum": "sum", "prod": "prod", "mean": "mean", "amax": "amax", "amin": "amin"}


def _how(reduce: str) -> str:
    if reduce not in _HOW:
        raise ModelError(f"reduce: expected {', '.join(_HOW)}, found {reduce!r}")
    return _HOW[reduce]


def _first(x: Node, shape: Sequence[Int]) -> Node:
    """The part of ``x`` that positions of ``shape`` have elements for; they may be fewer on every axis."""
    for axis, size in enumerate(shape):
        x = movement.slice_(x, axis, 0, size)
    return x


@aten("scatter.src")
def scatter(self: Node, dim: int, index: Node, src: Node) -> Node:
    return scattering.scatter_elements(self, index, _first(src, index.shape), dim)


@aten("scatter.value")
def scatter_value(self: Node, dim: int, index: Node, value: Scalar) -> Node:
    return scatter(self, dim, index, expand(as_node(value, self.dtype), index.shape))


@aten("scatter.reduce")
def scatter_by(self: Node, dim: int, index: Node, src: Node, *, reduce: str) -> Node:
    return scatter_reduce(self, dim, index, src, reduce)


@aten("scatter_reduce.two")
def scatter_reduce(self: Node, dim: int, index: Node, src: Node, reduce: str, *, include_self: bool = True) -> Node:
    return scattering.scatter_reduce(self, index, _first(src, index.shape), dim, _how(reduce), include_self)


@aten("scatter.value_reduce")
def scatter_value_reduce(self: Node, dim: int, index: Node, value: Scalar, *, reduce: str) -> Node:
    return scatter_reduce(self, dim, index, expand(as_node(value, self.dtype), index.shape), reduce)


@aten("scatter_add")
def scatter_add(self: Node, dim: int, index: Node, src: Node) -> Node:
    return scatter_reduce(self, dim, index, src, "sum")


@aten("index_copy")
def index_copy(self: Node, dim: int, index: Node, source: Node) -> Node:
    return _put(self, dim, index, source, "")


@aten("index_add")
def index_add(self: Node, dim: int, index: Node, source: Node, *, alpha: Scalar = 1) -> Node:
    return _put(self, dim, index, source if alpha == 1 else source * as_node(alpha, source.dtype), "add")


@aten("index_reduce")
def index_reduce(self: Node, dim: int, index: Node, source: Node, reduce: str, *, include_self: bool = True) -> Node:
    if self.rank == 0:
        self, source = (movement.reshape(x, [1]) for x in (self, source))
        return movement.reshape(index_reduce(self, 0, index, source, reduce, include_self=include_self), [])
    places = movement.along(movement.reshape(index, [index.size]), dim, source.shape)
    return scattering.scatter_reduce(self, places, source, dim, _how(reduce), include_self)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: Node, dim: int, index: Node, value: Scalar | Node) -> Node:
    index = movement.reshape(index, [index.size])
    value = as_node(value, self.dtype)
    if self.rank == 0:
        return _put(self, dim, index, value, "")
    axis = dim % self.rank
    return _put(self, dim, index, expand(value, [*self.shape[:axis], index.size, *self.shape[axis + 1 :]]), "")


def _put(self: Node, dim: int, index: Node, source: Node, by: str) -> Node:
    """``source`` put at positions ``index`` (a vector, or one position) along ``dim``."""
    index = movement.reshape(index, [index.size])
    if self.rank == 0:
        source = movement.reshape(source, [source.size])
        return movement.reshape(scattering.put(movement.reshape(self, [1]), index, source, 0, by), [])
    axis = dim % self.rank
    shape = [*self.shape[:axis], index.size, *self.shape[axis + 1 :]]
    return scattering.put(self, index, movement.reshape(source, shape), axis, by)


@aten("put")
def put(self: Node, index: Node, source: Node, accumulate: bool = False) -> Node:
    flat = movement.reshape(self, [self.size])
    places, elements = (movement.reshape(x, [index.size]) for x in (index, source))
    return movement.reshape(scattering.put(flat, places, elements, 0, "add" if accumulate else ""), self.shape)


@aten("as_strided_scatter")
def as_strided_scatter(
    self: Node, src: Node, size: Sequence[Int], stride: Sequence[Int], storage_offset: Int | None = None, *,
    contiguous: bool,
) -> Node:  # fmt: skip
    """``src`` at the elements that ``as_strided`` views."""
    places = as_strided(iota(self.size), size, stride, storage_offset, contiguous=contiguous)
    return put(self, places, expand(src, size))


@aten("index_put", "_unsafe_index_put")
def index_put(self: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    if not any(i is not None and i.dtype.is_bool for i in indices):
        return scattering.index_put(self, indices, values, "add" if accumulate else "")
    mask = indices[0]
    if len(indices) != 1 or mask is None:
        raise UnsupportedError("a mask as an index beside others; where() may express it")
    kept = self.shape[mask.rank :]
    values = cast(values, self.dtype)
    if values.rank > len(kept) and values.shape[0] != 1:
        by = "add" if accumulate else ""
        return scattering.masked_put(self, mask, expand(values, [values.shape[0], *kept]), by)
    value = movement.squeeze(values, [0]) if values.rank > len(kept) else values
    where = movement.unsqueeze(mask, range(mask.rank, self.rank))
    return indexing.masked_fill(self, where, scattering.added(self, value) if accumulate else value)


direct({"masked_scatter": scattering.masked_scatter})
