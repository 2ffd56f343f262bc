"""Reading at positions, ranges, and rearrangements: gathers, one-hot, triangles, repeats, splits.

Positions outside an axis make the run fail, also where several axes are indexed at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from luminal.core import ops, ranges
from luminal.core import symbolic as sym
from luminal.core.decompose.common import require_axes
from luminal.core.decompose.compare import equal, less
from luminal.core.derivative import remembered
from luminal.core.errors import ShapeError, UnsupportedError
from luminal.core.ir import (
    Node,
    Operand,
    axes,
    broadcast,
    cast,
    constant,
    dim,
    expand,
    gather,
    iota,
    lift,
    select,
    view,
)  # fmt: skip
from luminal.core.movement import along, concatenate, permute, reshape, slice_, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import DType, bool_, f64, i32, i64


def wrapped(index: Node, size: Int) -> Node:
    """Positions as int64 with negative ones counted from the end of an axis of extent ``size``.

    Positions that are known not to be negative are left alone.
    """
    index = cast(index, i64) if index.dtype != i64 else index
    if nonnegative(index):
        return index
    return select(index < 0, index + dim(size), index)


def nonnegative(index: Node) -> bool:
    """Whether every element is known to be at least 0."""
    if index.op is ops.CONSTANT:
        return bool((index.attr.array >= 0).all())
    if index.op is ops.DIM:
        return sym.always(index.attr.value)
    if index.op is ops.CAST:
        source = index.inputs[0]
        return source.dtype.kind in "bu" or (source.dtype.is_integer and nonnegative(source))
    if index.op is ops.VIEW:
        return nonnegative(index.inputs[0]) and not index.attr.valid
    if index.op is ops.AND:
        return any(nonnegative(operand) for operand in index.inputs)
    if index.op in (ops.ADD, ops.MUL, ops.MAX):
        return all(nonnegative(operand) for operand in index.inputs)
    found = ranges.range_of(index)
    return found is not None and sym.always(found[0])


def take(data: Node, index: Node, axis: int = 0) -> Node:
    """``data`` at positions ``index`` (any integer type, any shape) along ``axis``; negative positions count from the
    end. Result shape: ``data.shape[:axis] + index.shape + data.shape[axis+1:]`` (numpy.take, ONNX Gather)."""
    axis %= max(data.rank, 1)
    return gather(data, wrapped(index, data.shape[axis]), axis)


def embedding(weight: Node, index: Node) -> Node:
    """Rows of ``weight [V, D]`` at ``index``: ``[*index, D]``. A negative position is out of range."""
    return gather(weight, cast(index, i64), 0)


def linear_position(indices: Sequence[Node], sizes: Sequence[Int]) -> Node:
    """The row-major position of ``indices`` (int64, broadcast, negative ones counted from the end) in an array of
    extents ``sizes``, or -1, which no gather accepts, where one of several indices is outside its axis."""
    if all(ranges.within(index, size) for index, size in zip(indices, sizes, strict=True)):
        return _inside(indices, sizes)
    position: Node | None = None
    inside: Node | None = None
    for index, size in zip(indices, sizes, strict=True):
        known = nonnegative(index)
        index = wrapped(index, size)
        if not ranges.within(index, size):
            fits = index < dim(size)
            if not known:
                fits = fits & less(-1, index)
            inside = fits if inside is None else inside & fits
        position = index if position is None else position * dim(size) + index
    assert position is not None
    return position if len(indices) == 1 or inside is None else select(inside, position, -1)


def _inside(indices: Sequence[Node], sizes: Sequence[Int]) -> Node:
    """``linear_position`` of indices that are known to be inside. It is computed in 32 bits where an index is given in
    these, and they hold the last position."""
    last = sym.upper(sym.product(sizes))
    given = any(index.dtype == i32 or (index.op is ops.CAST and index.inputs[0].dtype == i32) for index in indices)
    dtype = i32 if given and last is not None and last <= i32.max else i64
    position = constant(0, dtype)
    for index, size in zip(indices, sizes, strict=True):
        position = position * cast(dim(size), dtype) + cast(index, dtype)
    return cast(position, i64)


def gather_elements(data: Node, index: Node, axis: int) -> Node:
    """``result[i, j, ..] = data[.., index[i, j, ..], ..]``: each index picks along ``axis`` and keeps its own position
    on the other axes, where it may be shorter than ``data`` (torch.gather, ONNX GatherElements)."""
    if data.rank != index.rank:
        raise ShapeError(f"gather_elements: {list(data.shape)} and {list(index.shape)} must have as many axes")
    if data.rank == 0:
        return data
    axis %= data.rank
    picks = [index if k == axis else along(iota(d), k, index.shape) for k, d in enumerate(index.shape)]
    found = gather(reshape(data, [data.size]), linear_position(picks, data.shape), 0)
    one_of_each = all(d == (1 if k == axis else data.shape[k]) for k, d in enumerate(index.shape))
    return remembered(found, _of_one_of_each, data, index, axis) if one_of_each else found


def _of_one_of_each(g: Node, y: Node, data: Node, index: Node, axis: int) -> Sequence[Node | None]:
    """Each row of ``data`` has the gradient at one position. Comparing positions takes no memory, unlike zeros to add
    the gradients to."""
    size = data.shape[axis]
    dtype = i32 if (most := sym.upper(size)) is not None and most <= i32.max else i64
    here = cast(wrapped(index, size), dtype)
    hit = equal(expand(here, data.shape), cast(along(iota(size), axis, data.shape), dtype))
    return [select(hit, expand(g, data.shape), 0), None]


def gather_nd(data: Node, index: Node, batch_dims: int = 0) -> Node:
    """Slices of ``data`` at coordinates in the last axis of ``index``, after ``batch_dims`` shared leading axes.

    Result shape: ``index.shape[:-1] + data.shape[batch_dims + n:]`` with ``n = index.shape[-1]`` (ONNX GatherND).
    """
    require_axes(index, 1, "gather_nd")
    n = index.shape[-1]
    if not isinstance(n, int):
        raise ShapeError(f"gather_nd: the last size of the indices, {n}, must be known")
    require_axes(data, batch_dims + n, f"gather_nd of {n} coordinates after {batch_dims} axes")
    places = index.shape[:-1]
    batch = [along(iota(data.shape[k]), k, places) for k in range(batch_dims)]
    picks = [reshape(slice_(index, -1, k, 1), places) for k in range(n)]
    indexed = batch_dims + n
    flat = reshape(data, [sym.product(data.shape[:indexed]), *data.shape[indexed:]])
    if indexed == 0:
        return expand(data, [*places, *data.shape])
    return gather(flat, linear_position([*batch, *picks], data.shape[:indexed]), 0)


def index(data: Node, indices: Sequence[Node | None]) -> Node:
    """``data[indices]`` with integer tensors that broadcast together, and None for axes taken whole (``:``).

    The indexed axes are replaced, where they are adjacent, by the broadcast shape, else it goes in front (numpy).
    """
    at = [k for k, i in enumerate(indices) if i is not None]
    picks = broadcast(*(cast(i, i64) for i in indices if i is not None))
    if not at:
        return data
    if len(at) == 1:
        return take(data, picks[0], at[0])
    adjacent = at[-1] - at[0] == len(at) - 1
    rest = [k for k in range(data.rank) if k not in at]
    moved = permute(data, [*at, *rest])
    kept = moved.shape[len(at) :]
    flat = reshape(moved, [sym.product(moved.shape[: len(at)]), *kept])
    result = gather(flat, linear_position(picks, moved.shape[: len(at)]), 0)
    if not adjacent:
        return result
    width = picks[0].rank
    order = [*range(width, width + at[0]), *range(width), *range(width + at[0], result.rank)]
    return permute(result, order)


def one_hot(index: Node, depth: Int, on: Operand = 1, off: Operand = 0, axis: int = -1, dtype: DType = i64) -> Node:
    """``on`` where a new ``axis`` of extent ``depth`` is at the position that ``index`` names, else ``off``; negative
    positions count from the end, and one out of range gives a row of ``off`` (ONNX OneHot)."""
    axis %= index.rank + 1
    shape = (*index.shape[:axis], depth, *index.shape[axis:])
    hit = equal(unsqueeze(wrapped(index, depth), [axis]), along(iota(depth), axis, shape))
    zero = constant(0, dtype)
    return select(hit, lift(on, zero), lift(off, zero))


def arange(start: Int | float, stop: Int | float, step: Int | float = 1, dtype: DType = i64) -> Node:
    """``start, start + step, ..`` below ``stop`` (above it, where ``step`` is negative).

    Floats are computed in float64 as ``start + i*step`` and rounded once. Raises ShapeError for a step of 0.
    """
    if step == 0:
        raise ShapeError("arange: the step must not be 0")
    if any(isinstance(v, float) for v in (start, stop, step)):
        if not all(isinstance(v, int | float) for v in (start, stop, step)):
            raise ShapeError("arange: a float range needs known bounds")
        length = max(0, math.ceil((float(stop) - float(start)) / float(step)))  # type: ignore[arg-type]
        return cast(cast(iota(length), f64) * float(step) + float(start), dtype)  # type: ignore[arg-type]
    assert not isinstance(start, float) and not isinstance(stop, float) and isinstance(step, int)
    span, stride = (stop - start, step) if step > 0 else (start - stop, -step)
    extent = sym.maximum(sym.ceildiv(span, stride), 0)
    positions = iota(extent)
    positions = positions if step == 1 else positions * step
    return cast(positions if start == 0 else positions + dim(start), dtype)


def full(shape: Sequence[Int], value: Operand, dtype: DType) -> Node:
    """``value`` everywhere."""
    return expand(value if isinstance(value, Node) else constant(value, dtype), shape)


def eye(rows: Int, columns: Int, offset: int = 0, dtype: DType = i64) -> Node:
    """1 where ``column == row + offset``, else 0."""
    shape = (rows, columns)
    hit = equal(along(iota(rows), 0, shape) + offset, along(iota(columns), 1, shape))
    return cast(hit, dtype)


def below_diagonal(rows: Int, columns: Int, offset: Int = 0) -> Node:
    """Whether ``column <= row + offset``, as ``[rows, columns]``: the condition of a lower triangle."""
    shape = (rows, columns)
    return less(along(iota(columns), 1, shape), along(iota(rows), 0, shape) + dim(offset + 1))


def tril(x: Node, offset: Int = 0) -> Node:
    """The last two axes with zeros above diagonal ``offset``."""
    require_axes(x, 2, "tril")
    return select(below_diagonal(x.shape[-2], x.shape[-1], offset), x, 0)


def triu(x: Node, offset: Int = 0) -> Node:
    """The last two axes with zeros below diagonal ``offset``."""
    require_axes(x, 2, "triu")
    return select(below_diagonal(x.shape[-2], x.shape[-1], offset - 1), lift(0, x), x)


def tile(x: Node, repeats: Sequence[Int]) -> Node:
    """``x`` laid side by side ``repeats[k]`` times along axis ``k``; missing leading axes are put in (numpy.tile)."""
    rank = max(x.rank, len(repeats))
    x = reshape(x, [*[1] * (rank - x.rank), *x.shape])
    times = [*[1] * (rank - len(repeats)), *repeats]
    paired = reshape(x, [size for d in x.shape for size in (1, d)])
    laid = expand(paired, [size for r, d in zip(times, x.shape, strict=True) for size in (r, d)])
    return reshape(laid, [r * d for r, d in zip(times, x.shape, strict=True)])


def repeat_interleave(x: Node, repeats: Int, axis: int) -> Node:
    """Each element along ``axis`` repeated ``repeats`` times in place."""
    axis %= x.rank
    lead, tail = x.shape[: axis + 1], x.shape[axis + 1 :]
    spread = expand(unsqueeze(x, [axis + 1]), [*lead, repeats, *tail])
    return reshape(spread, [*x.shape[:axis], x.shape[axis] * repeats, *tail])


def stack(parts: Sequence[Node], axis: int = 0) -> Node:
    """``parts`` of one shape along a new ``axis``."""
    axis %= parts[0].rank + 1
    return concatenate([unsqueeze(part, [axis]) for part in parts], axis)


def split(x: Node, sizes: Sequence[Int], axis: int = 0) -> list[Node]:
    """``x`` cut along ``axis`` into parts of ``sizes``; raises ShapeError where they do not add up."""
    axis %= x.rank
    parts: list[Node] = []
    start: Int = 0
    for size in sizes:
        parts.append(slice_(x, axis, start, size))
        start = start + size
    if start != x.shape[axis]:
        raise ShapeError(
            f"split: sizes {list(sizes)} do not add up to axis {axis} of {list(x.shape)}", [(start, x.shape[axis])]
        )
    return parts


def from_front(position: Int, extent: Int) -> Int:
    """A position or slice bound, which counts from the end of an axis where it is negative, counted from its front.

    Raises UnsupportedError where the sign is not known.
    """
    if sym.always(position):
        return position
    if sym.never(position):
        return position + extent
    raise UnsupportedError(f"whether the position {position} counts from the front or the end depends on a size")


def roll(x: Node, shifts: Sequence[Int], over: Sequence[int]) -> Node:
    """Elements moved ``shifts[k]`` places along axis ``over[k]``, those pushed off the end coming back in front."""
    for shift, axis in zip(shifts, over, strict=True):
        size = x.shape[axis]
        if size == 0:
            continue
        position = list(axes(x.shape))
        position[axis] = sym.mod(position[axis] - shift, size)
        x = view(x, x.shape, position)
    return x


def reversed_sequences(x: Node, lengths: Node) -> Node:
    """Of each sequence ``x [batch, time, ..]`` the first elements backwards, as many as ``lengths [batch]`` (int64)
    says; the others stay."""
    lengths, position = unsqueeze(lengths, [1]), iota(x.shape[1])
    place = select(less(position, lengths), lengths - 1 - position, position)
    return gather_nd(x, unsqueeze(place, [2]), 1)


def masked_fill(x: Node, mask: Node, value: Operand) -> Node:
    """``value`` where ``mask`` holds, else ``x``; broadcast."""
    return select(cast(mask, bool_), lift(value, x), x)
