"""Writing at positions: scatters, and reductions of what meets at a position.

``by`` is ``add``, ``mul``, ``max`` or ``min``, which combine what meets at a position with the old element, one after
the other in row-major order of the positions; or empty: the last one stays. Positions outside an axis make the run
fail, negative ones count from the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.arithmetic import floor_divide
from luminal.core.decompose.common import require_axes, widened
from luminal.core.decompose.compare import bitwise_not, equal, maximum
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.indexing import full, linear_position, wrapped
from luminal.core.decompose.sorting import searchsorted
from luminal.core.derivative import remembered
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, broadcast, cast, constant, expand, gather, iota, scatter, select
from luminal.core.movement import along, permute, reshape, slice_, unsqueeze
from luminal.core.relations import unequal
from luminal.core.types import bool_, i64

_BY = {"add": ops.ADD, "mul": ops.MUL, "max": ops.MAX}
# Sums and products of truth values: whether any, and whether all hold.
_OF_BOOL = {"add": "max", "mul": "min"}


def _combined(data: Node, index: Node, new: Node, axis: int, by: str) -> Node:
    by = _OF_BOOL.get(by, by) if data.dtype.is_bool else by
    if by:
        return _reduced(data, index, new, axis, by)
    return remembered(scatter(data, index, new, axis), _of_replaced, data, index, new, axis)


def _of_replaced(g: Node, y: Node, data: Node, index: Node, new: Node, axis: int) -> list[Node | None]:
    """Where positions repeat, which leaves open what stays, each new element has the gradient (PyTorch)."""
    nothing = expand(constant(0, g.dtype), new.shape)
    return [scatter(g, index, nothing, axis), None, gather(g, index, axis)]


@widened
def _reduced(data: Node, index: Node, new: Node, axis: int, by: str) -> Node:
    if by == "min":
        return _turned(scatter(_turned(data), index, _turned(new), axis, ops.MAX))
    return scatter(data, index, new, axis, _BY[by])


def _turned(x: Node) -> Node:
    """``x`` with its order turned round; twice gives ``x``."""
    return x * -1 if x.dtype.is_float else bitwise_not(x)


def put(data: Node, index: Node, new: Node, axis: int = 0, by: str = "") -> Node:
    """``data`` with ``new`` at positions ``index`` (any integer type, any shape) along ``axis``.

    Shape of ``new``: ``data.shape[:axis] + index.shape + data.shape[axis+1:]`` (torch.index_copy, torch.index_add).
    """
    axis %= max(data.rank, 1)
    return _combined(data, wrapped(index, data.shape[axis]), new, axis, by)


def scatter_elements(data: Node, index: Node, new: Node, axis: int, by: str = "") -> Node:
    """``data`` with ``new[i, j, ..]`` at ``[.., index[i, j, ..], ..]``: each index picks along ``axis`` and keeps its
    own position on the other axes (torch.scatter, ONNX ScatterElements)."""
    if data.rank != index.rank or index.shape != new.shape:
        shapes = ", ".join(str(list(x.shape)) for x in (data, index, new))
        raise ShapeError(
            f"scatter_elements: {shapes}: expected as many axes, and one shape of positions and elements",
            unequal(index.shape, new.shape),
        )
    if data.rank == 0:
        return reshape(put(reshape(data, [1]), reshape(index, [1]), reshape(new, [1]), 0, by), [])
    axis %= data.rank
    picks = [index if k == axis else along(iota(d), k, index.shape) for k, d in enumerate(index.shape)]
    flat = reshape(linear_position(picks, data.shape), [index.size])
    result = _combined(reshape(data, [data.size]), flat, reshape(new, [new.size]), 0, by)
    return reshape(result, data.shape)


def scatter_nd(data: Node, index: Node, new: Node, by: str = "") -> Node:
    """``data`` with slices of ``new`` at coordinates in the last axis of ``index``.

    Shape of ``new``: ``index.shape[:-1] + data.shape[n:]`` with ``n = index.shape[-1]`` (ONNX ScatterND).
    """
    require_axes(index, 1, "scatter_nd")
    n = index.shape[-1]
    if not isinstance(n, int):
        raise ShapeError(f"scatter_nd: the last size of the indices, {n}, must be known")
    require_axes(data, n, f"scatter_nd of {n} coordinates")
    places = index.shape[:-1]
    picks = [reshape(slice_(index, -1, k, 1), places) for k in range(n)]
    position = linear_position(picks, data.shape[:n]) if n else expand(constant(0, i64), places)
    flat = reshape(data, [sym.product(data.shape[:n]), *data.shape[n:]])
    return reshape(_combined(flat, position, new, 0, by), data.shape)


def index_put(data: Node, indices: Sequence[Node | None], new: Node, by: str = "") -> Node:
    """``data`` with ``new``, broadcast, at ``data[indices]``: see ``indexing.index`` for what ``indices`` may be."""
    at = [k for k, i in enumerate(indices) if i is not None]
    picks = broadcast(*(cast(i, i64) for i in indices if i is not None))
    beside = at[-1] - at[0] == len(at) - 1  # else the axes of the positions come first
    order = [*range(data.rank)] if beside else [*at, *(k for k in range(data.rank) if k not in at)]
    axis, until = (at[0], at[-1] + 1) if beside else (0, len(at))
    moved = permute(data, order)
    before, sizes, after = moved.shape[:axis], moved.shape[axis:until], moved.shape[until:]
    new = expand(new, [*before, *picks[0].shape, *after])
    flat = reshape(moved, [*before, sym.product(sizes), *after])
    result = reshape(_combined(flat, linear_position(picks, sizes), new, axis, by), moved.shape)
    return permute(result, [order.index(k) for k in range(data.rank)])


def masked_put(data: Node, mask: Node, new: Node, by: str = "") -> Node:
    """``data`` with slices of ``new [n, *data.shape[mask.rank:]]``, one after the other, where ``mask``, over the first
    axes, holds; at most ``n`` elements hold, else the run fails. ``by`` is empty or ``add`` (``data[mask] = new``)."""
    if new.size == 0 or data.size == 0:
        return data
    held = reshape(mask, [mask.size])
    number = select(held, cumsum(held, 0) - 1, 0)
    picked = reshape(gather(new, number, 0), data.shape)
    where = expand(unsqueeze(mask, range(mask.rank, data.rank)), data.shape)
    return select(where, added(data, picked) if by else picked, data)


def added(data: Node, new: Node) -> Node:
    """The sum; of bool, whether either holds."""
    return data | new if data.dtype.is_bool else data + new


def masked_scatter(data: Node, mask: Node, new: Node) -> Node:
    """``data`` with the elements of ``new``, one after the other, where ``mask``, broadcast, holds
    (torch.masked_scatter)."""
    mask, data = broadcast(mask, data)
    return masked_put(data, mask, reshape(new, [new.size]))


def scatter_reduce(data: Node, index: Node, new: Node, axis: int, how: str, include_self: bool = True) -> Node:
    """``scatter_elements`` that reduces what meets at a position: ``how`` is ``sum``, ``prod``, ``mean``, ``amax`` or
    ``amin``. The old element takes part only with ``include_self``; where nothing is put, it stays
    (torch.scatter_reduce). Means of integers are rounded down."""
    by = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}[how]
    counted = full(index.shape, 1, i64)
    if not include_self:
        start = full(index.shape, _start(by, data), data.dtype)
        data = scatter_elements(data, index, start, axis)
    total = scatter_elements(data, index, new, axis, by)
    if how != "mean":
        return total
    count = scatter_elements(full(data.shape, int(include_self), i64), index, counted, axis, "add")
    count = cast(maximum(count, 1), data.dtype)
    return total / count if data.dtype.is_float else floor_divide(total, count)


def reduce_bags(rows: Node, starts: Node, how: str, counted: Node | None = None) -> Node:
    """Of ``rows [n, ..]`` those from each of ``starts [b]``, ascending from 0, up to the next reduced: ``[b, ..]``.

    ``how`` is ``sum``, ``mean`` or ``amax``; only rows that are ``counted [n]`` take part, and where none does, the
    result is 0 (torch.nn.functional.embedding_bag)."""
    counted = full(rows.shape[:1], True, bool_) if counted is None else counted
    bag = searchsorted(starts, iota(rows.shape[0]), right=True) - 1
    shape = (*starts.shape, *rows.shape[1:])
    by, start = ("max", -math.inf) if how == "amax" else ("add", 0)
    taking = along(counted, 0, rows.shape)
    total = put(full(shape, start, rows.dtype), bag, select(taking, rows, start), 0, by)
    if how == "sum":
        return total
    count = along(put(full(starts.shape, 0, i64), bag, cast(counted, i64), 0, "add"), 0, shape)
    return total / cast(maximum(count, 1), rows.dtype) if how == "mean" else select(equal(count, 0), 0, total)


def _start(by: str, data: Node) -> float:
    """What a reduction of nothing is."""
    lowest, highest = (-math.inf, math.inf) if data.dtype.is_float else (data.dtype.min, data.dtype.max)
    return {"add": 0, "mul": 1, "max": lowest, "min": highest}[by]
