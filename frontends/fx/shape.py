"""Movement: every handler is a view, or a select among views; nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luminal.core import movement
from luminal.core import symbolic as sym
from luminal.core.decompose import conversion, indexing
from luminal.core.derivative import detached
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, axes, broadcast_shape, cast, constant, expand, select, view
from luminal.core.symbolic import Int
from luminal.core.types import DType, bool_
from luminal.frontends.fx.promotion import converted, promote, result_type
from luminal.frontends.fx.registry import aten, direct, register, table

_END = (1 << 63) - 1  # how a schema spells an open end


def bound(value: Int | None, extent: Int, default: Int) -> Int:
    """A slice bound clamped to ``0 .. extent``."""
    if value is None or value == _END:
        return default
    return sym.minimum(sym.maximum(indexing.from_front(value, extent), 0), extent)


# ---- identities ----------------------------------------------------------------------------------


@aten(
    "alias", "alias_copy", "clone", "contiguous", "lift", "lift_fresh", "lift_fresh_copy",
    "resolve_conj", "resolve_neg", "positive",
)  # fmt: skip
def identity(self: Node) -> Node:
    return self


aten("detach", "detach_")(detached)


@aten("_to_copy", "to.dtype", "to.dtype_layout", "to.device")
def to(self: Node, *arguments: Any, dtype: DType | None = None) -> Node:
    given = next((a for a in arguments if isinstance(a, DType)), dtype)
    return converted(self, given or self.dtype)


register("prims.convert_element_type.default", converted)


@aten("type_as", "to.other")
def type_as(self: Node, other: Node, *arguments: Any) -> Node:
    return converted(self, other.dtype)


@aten("copy")
def copy(self: Node, src: Node, non_blocking: bool = False) -> Node:
    return expand(converted(src, self.dtype), self.shape)


# ---- reshapes and permutations -------------------------------------------------------------------


direct(
    {
        "view reshape _unsafe_view _reshape_copy view_copy": movement.reshape,
        "squeeze": movement.squeeze,
        "repeat tile": indexing.tile,
    }
)


@aten("view.dtype", "view_copy.dtype")
def view_as_type(self: Node, dtype: DType) -> Node:
    """The same bytes as another type."""
    return conversion.reinterpreted(self, dtype)


@aten("view_as", "reshape_as")
def reshape_as(self: Node, other: Node) -> Node:
    return movement.reshape(self, other.shape)


@aten("flatten.using_ints")
def flatten(self: Node, start_dim: int = 0, end_dim: int = -1) -> Node:
    if self.rank == 0:
        return movement.reshape(self, [1])
    first, last = start_dim % self.rank, end_dim % self.rank
    return movement.reshape(
        self, [*self.shape[:first], sym.product(self.shape[first : last + 1]), *self.shape[last + 1 :]]
    )


@aten("unflatten.int")
def unflatten(self: Node, dim: int, sizes: Sequence[Int]) -> Node:
    dim %= self.rank
    sizes = list(sizes)
    if -1 in sizes:
        sizes[sizes.index(-1)] = sym.floordiv(self.shape[dim], sym.product(sizes) * -1)
    return movement.reshape(self, [*self.shape[:dim], *sizes, *self.shape[dim + 1 :]])


@aten("permute", "permute_copy")
def permute(self: Node, dims: Sequence[int]) -> Node:
    return movement.permute(self, dims) if self.rank else self


@aten("transpose.int", "transpose_copy.int", "swapaxes", "swapdims")
def transpose(self: Node, dim0: int, dim1: int) -> Node:
    return movement.transpose(self, dim0, dim1) if self.rank else self


@aten("t", "numpy_T", "t_copy")
def reversed_axes(self: Node) -> Node:
    return movement.permute(self, range(self.rank - 1, -1, -1)) if self.rank > 1 else self


@aten("mT")
def matrix_transpose(self: Node) -> Node:
    return movement.transpose(self, -1, -2)


@aten("movedim.int", "moveaxis.int")
def move_axis(self: Node, source: int, destination: int) -> Node:
    return move_axes(self, [source], [destination])


@aten("movedim.intlist", "moveaxis.intlist")
def move_axes(self: Node, source: Sequence[int], destination: Sequence[int]) -> Node:
    if self.rank == 0:
        return self
    order = [-1] * self.rank
    for a, b in zip(source, destination, strict=True):
        order[b % self.rank] = a % self.rank
    rest = iter(a for a in range(self.rank) if a not in order)
    return movement.permute(self, [next(rest) if a < 0 else a for a in order])


@aten("squeeze.dim")
def squeeze(self: Node, dim: int) -> Node:
    return squeeze_dims(self, [dim])


@aten("squeeze.dims")
def squeeze_dims(self: Node, dim: Sequence[int]) -> Node:
    """Axes whose extent is not 1 are left alone, as PyTorch does."""
    return movement.squeeze(self, [a for a in dim if self.rank and self.shape[a] == 1])


@aten("unsqueeze")
def unsqueeze(self: Node, dim: int) -> Node:
    return movement.unsqueeze(self, [dim])


# ---- repetition ----------------------------------------------------------------------------------


@aten("expand", "expand_copy")
def broadcast_to(self: Node, size: Sequence[Int], *, implicit: bool = False) -> Node:
    offset = len(size) - self.rank
    return expand(self, [self.shape[k - offset] if d == -1 else d for k, d in enumerate(size)])


@aten("expand_as")
def expand_as(self: Node, other: Node) -> Node:
    return expand(self, other.shape)


@aten("broadcast_tensors")
def broadcast_tensors(tensors: Sequence[Node]) -> list[Node]:
    shape = broadcast_shape(*(t.shape for t in tensors))
    return [expand(t, shape) for t in tensors]


@aten("repeat_interleave.self_int")
def repeat_interleave(self: Node, repeats: Int, dim: int | None = None, *, output_size: Int | None = None) -> Node:
    """Each element ``repeats`` times in a row along an axis (of the flattened tensor by default)."""
    flat = movement.reshape(self, [self.size]) if dim is None else self
    return indexing.repeat_interleave(flat, repeats, dim or 0)


# ---- parts ---------------------------------------------------------------------------------------


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(self: Node, dim: int = 0, start: Int | None = None, end: Int | None = None, step: int = 1) -> Node:
    extent = self.shape[dim]
    first = bound(start, extent, 0)
    last = bound(end, extent, extent)
    size = sym.maximum(sym.ceildiv(last - first, step), 0)
    return movement.slice_(self, dim, first, size, step)


@aten("narrow", "narrow_copy")
def narrow(self: Node, dim: int, start: Int, length: Int) -> Node:
    return movement.slice_(self, dim, indexing.from_front(start, self.shape[dim]), length)


@aten("select.int", "select_copy.int")
def select_(self: Node, dim: int, index: Int) -> Node:
    part = movement.slice_(self, dim, indexing.from_front(index, self.shape[dim]), 1)
    return movement.squeeze(part, [dim])


@aten("unbind.int", "unbind_copy.int")
def unbind(self: Node, dim: int = 0) -> list[Node]:
    return [select_(self, dim, k) for k in range(_static(self.shape[dim], "the number of tensors that unbind gives"))]


@aten("split_with_sizes", "split.sizes", "split_with_sizes_copy")
def split_with_sizes(self: Node, split_sizes: Sequence[Int], dim: int = 0) -> list[Node]:
    return indexing.split(self, split_sizes, dim)


@aten("split.Tensor", "split_copy.Tensor")
def split(self: Node, split_size: Int, dim: int = 0) -> list[Node]:
    extent = self.shape[dim]
    if extent == 0:
        return [self]
    count = _static(sym.ceildiv(extent, split_size), "the number of parts that split gives")
    starts = [k * split_size for k in range(count)]
    return split_with_sizes(self, [sym.minimum(split_size, extent - start) for start in starts], dim)


@aten("chunk")
def chunk(self: Node, chunks: int, dim: int = 0) -> list[Node]:
    """At most ``chunks`` parts of equal size, the last one smaller."""
    return split(self, sym.maximum(sym.ceildiv(self.shape[dim], chunks), 1), dim)


def _static(count: Int, what: str) -> int:
    if not isinstance(count, int):
        raise UnsupportedError(f"{what} is {count}; it must not depend on a symbolic size")
    return count


@aten("diagonal", "diagonal_copy")
def diagonal(self: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """The diagonal of two axes, as a last axis of its own."""
    dim1, dim2 = dim1 % self.rank, dim2 % self.rank
    row, column = max(-offset, 0), max(offset, 0)
    length = sym.maximum(sym.minimum(self.shape[dim1] - row, self.shape[dim2] - column), 0)
    shape = (*(d for k, d in enumerate(self.shape) if k not in (dim1, dim2)), length)
    *outer, along = axes(shape)
    rest = iter(outer)
    index = [along + row if k == dim1 else along + column if k == dim2 else next(rest) for k in range(self.rank)]
    return view(self, shape, index)


@aten("unfold", "unfold_copy")
def unfold(self: Node, dimension: int, size: int, step: int) -> Node:
    if self.rank == 0:  # the one window itself, without an axis for their number
        return movement.slice_(movement.reshape(self, [1]), 0, 0, size)
    return movement.windows(self, dimension, size, step)


@aten("as_strided", "as_strided_copy")
def as_strided(
    self: Node, size: Sequence[Int], stride: Sequence[Int], storage_offset: Int | None = None, *, contiguous: bool
) -> Node:
    """A view of the elements in storage order, which is known where it is row-major."""
    if not contiguous:
        raise UnsupportedError("as_strided of a view or of a tensor that is not contiguous; clone it before")
    shape = tuple(size)
    flat: Int = storage_offset or 0
    for index, step in zip(axes(shape), stride, strict=True):
        flat = flat + index * step
    return view(movement.reshape(self, [self.size]), shape, [flat])


# ---- order ---------------------------------------------------------------------------------------


@aten("flip")
def flip(self: Node, dims: Sequence[int]) -> Node:
    return movement.flip(self, dims if self.rank else [])  # PyTorch takes a number for a vector of one


@aten("roll")
def roll(self: Node, shifts: Sequence[Int], dims: Sequence[int] = ()) -> Node:
    if not dims:
        return movement.reshape(indexing.roll(movement.reshape(self, [self.size]), shifts, [0]), self.shape)
    return indexing.roll(self, shifts, dims)


# ---- joining -------------------------------------------------------------------------------------


@aten("cat", "concat", "concatenate")
def cat(tensors: Sequence[Node], dim: int = 0) -> Node:
    """Tensors joined along an axis; empty vectors are left out, whatever the rank of the others (a PyTorch legacy)."""
    dtype = result_type(*tensors)
    parts = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    return movement.concatenate(promote(parts, dtype), dim)


@aten("stack")
def stack(tensors: Sequence[Node], dim: int = 0) -> Node:
    return cat([movement.unsqueeze(t, [dim]) for t in tensors], dim)


@aten("constant_pad_nd")
def constant_pad(self: Node, pad: Sequence[Int], value: float = 0) -> Node:
    """Padding by (before, after) pairs from the last axis backwards; negative amounts crop."""
    return movement.pad(self, *_by_axis(self, pad), value)


def _by_axis(x: Node, pad: Sequence[Int]) -> tuple[list[Int], list[Int]]:
    """What is added before and after each axis, given pairs from the last axis backwards."""
    untouched: list[Int] = [0] * (x.rank - len(pad) // 2)
    return untouched + list(pad[-2::-2]), untouched + list(pad[::-2])


@aten("pad")
def pad(self: Node, pad: Sequence[Int], mode: str = "constant", value: float | None = None) -> Node:
    """As ``constant_pad_nd``, or continued from inside; see ``_pad_from_inside`` for the modes."""
    if mode == "constant":
        return constant_pad(self, pad, value or 0)
    before, after = _by_axis(self, pad)
    for axis in range(self.rank):
        if before[axis] != 0 or after[axis] != 0:
            self = _pad_from_inside(self, axis, before[axis], after[axis], mode)
    return self


def _pad_from_inside(x: Node, axis: int, before: Int, after: Int, mode: str) -> Node:
    """One axis continued with its own elements: mirrored at the edge (``reflect``), the edge repeated (``replicate``),
    or starting over (``circular``)."""
    extent = x.shape[axis]
    shape = (*x.shape[:axis], before + extent + after, *x.shape[axis + 1 :])
    index = list(axes(shape))
    place = index[axis] - before
    if mode == "replicate":
        place = sym.minimum(sym.maximum(place, 0), extent - 1)
    elif mode == "circular":  # of what is left after cropping
        first = sym.maximum(before * -1, 0)
        left = extent - first - sym.maximum(after * -1, 0)
        place = sym.mod(place - first, left) + first
    else:
        assert mode == "reflect", mode
        mirrored = sym.maximum(place, place * -1)
        place = sym.minimum(mirrored, (extent - 1) * 2 - mirrored)
    index[axis] = place
    return view(x, shape, index)


table(
    {
        "reflection_pad1d reflection_pad2d reflection_pad3d": "reflect",
        "replication_pad1d replication_pad2d replication_pad3d": "replicate",
    },
    lambda mode: lambda self, padding: pad(self, padding, mode),
)


# ---- updates of a part: the functional forms of in-place writes ----------------------------------


@aten("slice_scatter")
def slice_scatter(
    self: Node, src: Node, dim: int = 0, start: Int | None = None, end: Int | None = None, step: int = 1
) -> Node:
    """``self`` with a slice replaced by ``src``."""
    extent = self.shape[dim]
    first = bound(start, extent, 0)
    size = sym.maximum(sym.ceildiv(bound(end, extent, extent) - first, step), 0)
    source = expand(cast(src, self.dtype), (*self.shape[: dim % self.rank], size, *self.shape[dim % self.rank + 1 :]))
    if step == 1:
        rest = movement.slice_(self, dim, first + size, extent - first - size)
        return movement.concatenate([movement.slice_(self, dim, 0, first), source, rest], dim)
    index = list(axes(self.shape))
    place = index[dim] - first
    index[dim] = sym.floordiv(place, step)
    inside = [place, size - 1 - index[dim], sym.mod(place, step) * -1]
    written = view(source, self.shape, index, inside, bytes(self.dtype.itemsize))
    return select(view(constant(True, bool_), self.shape, [], inside, bytes(1)), written, self)


@aten("diagonal_scatter")
def diagonal_scatter(self: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """``self`` with a diagonal of two axes replaced by ``src``, whose last axis runs along it."""
    dim1, dim2 = dim1 % self.rank, dim2 % self.rank
    index = axes(self.shape)
    row, column = index[dim1], index[dim2]
    place = row + min(offset, 0)  # along the diagonal
    inside = [column - row - offset, row + offset - column, place]
    rest = [i for k, i in enumerate(index) if k not in (dim1, dim2)]
    written = view(cast(src, self.dtype), self.shape, [*rest, place], inside, bytes(self.dtype.itemsize))
    return select(view(constant(True, bool_), self.shape, [], inside, bytes(1)), written, self)


@aten("select_scatter")
def select_scatter(self: Node, src: Node, dim: int, index: Int) -> Node:
    """``self`` with one position of an axis replaced by ``src``."""
    place = indexing.from_front(index, self.shape[dim])
    return slice_scatter(self, movement.unsqueeze(src, [dim]), dim, place, place + 1)
