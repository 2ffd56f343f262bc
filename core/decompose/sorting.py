"""Sorting, and what follows from an order: the first few, medians, modes; searching in what is sorted.

NaN comes after every number, and -0 equals 0. Orders are stable, descending ones too: equal elements keep theirs. So an
order is unique, and is found by sorting integers that hold an element's rank above and its position below; of elements
of 64 bits by sorting twice, by the lower half first. Costs are n log n, and n log k for the first k of few.
"""

from __future__ import annotations

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.common import normalized_axes
from luminal.core.decompose.compare import (
    bitwise_not,
    equal,
    isnan,
    less,
    less_equal,
    logical_not,
    maximum,
    not_equal,
)  # fmt: skip
from luminal.core.decompose.cumulative import cummax
from luminal.core.decompose.indexing import full
from luminal.core.decompose.reduction import argmax, sum_
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, binary, bitcast, cast, constant, dim, gather, iota, select
from luminal.core.ir import sort as in_order
from luminal.core.movement import along, permute, reshape, slice_, squeeze
from luminal.core.symbolic import Int
from luminal.core.types import bool_, f32, f64, i32, i64, u64

_HALF = 32  # bits of a rank, and of the position beside it
_LOW = (1 << _HALF) - 1
_LOWEST = {i32: -(1 << 31), i64: -(1 << 63)}


def rank(x: Node) -> Node:
    """Integers in the order of ``x``, of any real type: int64 for types of 64 bits, else int32."""
    if x.dtype.is_float:
        wide = x.dtype if x.dtype == f64 else f32
        integer = i64 if wide == f64 else i32
        bits = bitcast(cast(x, wide) + 0.0, integer)  # -0 becomes 0
        top = integer.bits - 1
        # Of negative floats, a larger magnitude is less: all bits but the sign are inverted.
        numbered = bits ^ (binary(ops.SHR, bits, top) & integer.max)
        return select(isnan(x), integer.max, numbered)
    if x.dtype.bits == 64:
        return bitcast(x, i64) ^ _LOWEST[i64] if x.dtype == u64 else x
    if x.dtype.kind == "u" and x.dtype.bits == 32:
        return bitcast(x, i32) ^ _LOWEST[i32]
    return cast(x, i32)


def _places(ranked: Node, count: Int) -> Node:
    """The positions of the first ``count`` of each row in the order of ``ranked`` (int32), as int64."""
    length = ranked.shape[-1]
    if not sym.always(_LOW - length):
        raise ShapeError(f"sort: rows of {length} elements are too long to sort: expected less than 2**{_HALF}")
    places = along(iota(length), -1, ranked.shape)
    both = binary(ops.SHL, cast(ranked, i64), _HALF) | places
    return in_order(both, count) & _LOW


def _order(ranked: Node, count: Int) -> Node:
    if ranked.dtype == i32:
        return _places(ranked, count)
    lower = cast((ranked & _LOW) + _LOWEST[i32], i32)
    upper = cast(binary(ops.SHR, ranked, _HALF), i32)
    first = _places(lower, ranked.shape[-1])
    return _taken(first, _places(_taken(upper, first), count))


def _taken(x: Node, places: Node) -> Node:
    """The elements of each row of ``x`` at the ``places`` (int64, none negative) of the same row."""
    if x.rank == 1:
        return gather(x, places, 0)
    rows = sym.product(x.shape[:-1])
    flat = reshape(places, [rows, places.shape[-1]])
    start = along(iota(rows), 0, flat.shape) * dim(x.shape[-1])
    return reshape(gather(reshape(x, [x.size]), start + flat, 0), places.shape)


def _last(x: Node, axis: int) -> tuple[Node, list[int]]:
    """``x`` with ``axis`` last, and the permutation that takes it back."""
    (axis,) = normalized_axes(x, axis)
    order = [*(k for k in range(x.rank) if k != axis), axis]
    return permute(x, order), [order.index(k) for k in range(x.rank)]


def topk(x: Node, count: Int, axis: int = -1, largest: bool = True) -> tuple[Node, Node]:
    """The ``count`` largest (or smallest) elements along ``axis``, the extreme one first, and their positions (int64);
    NaN is larger than any number, and of equal elements the one with the lower position comes first (torch.topk, ONNX
    TopK). Raises ShapeError where there may be fewer elements."""
    if x.rank == 0:
        values, places = topk(reshape(x, [1]), count, 0, largest)
        return reshape(values, []), reshape(places, [])
    moved, back = _last(x, axis)
    ranked = rank(moved)
    places = _order(bitwise_not(ranked) if largest else ranked, count)
    return permute(_taken(moved, places), back), permute(places, back)


def sort(x: Node, axis: int = -1, descending: bool = False) -> tuple[Node, Node]:
    """``x`` in order along ``axis``, and where each element was (int64) (torch.sort with ``stable=True``)."""
    lengths = [x.shape[k] for k in normalized_axes(x, axis)]
    return topk(x, lengths[0] if lengths else 1, axis, descending)


def argsort(x: Node, axis: int = -1, descending: bool = False) -> Node:
    """The positions (int64) at which the elements of ``x`` in order along ``axis`` are."""
    return sort(x, axis, descending)[1]


def kthvalue(x: Node, k: Int, axis: int = -1, keepdims: bool = False) -> tuple[Node, Node]:
    """The ``k``-th smallest element along ``axis``, counted from 1, and its position (int64)."""
    if not sym.always(k - 1):
        raise ShapeError(f"kthvalue: {k} is no number of an element, which are counted from 1")
    return _one([slice_(part, axis, k - 1, 1) if x.rank else part for part in topk(x, k, axis, False)], axis, keepdims)


def _one(parts: list[Node], axis: int, keepdims: bool) -> tuple[Node, Node]:
    values, places = parts if keepdims else [squeeze(part, [axis]) if part.rank else part for part in parts]
    return values, places


def median(x: Node, axis: int = -1, keepdims: bool = False, ignore_nan: bool = False) -> tuple[Node, Node]:
    """The lower median along ``axis`` and its position (int64): where there is a NaN, the first one, unless those are
    left out (torch.median, torch.nanmedian). Raises ShapeError where there may be no element."""
    if x.rank == 0:
        return x, constant(0, i64)
    moved, back = _last(x, axis)
    length = moved.shape[-1]
    if not sym.always(length - 1):
        raise ShapeError(f"median: expected at least one element along axis {axis} of {list(x.shape)}")
    places = _order(rank(moved), length)
    middle = full((*moved.shape[:-1], 1), dim(sym.floordiv(length - 1, 2)), i64)
    if x.dtype.is_float:
        numbers = sum_(cast(isnan(moved) ^ True, i64), -1, keepdims=True)
        if ignore_nan:
            middle = binary(ops.SHR, maximum(numbers - 1, 0), 1)
        else:
            middle = select(less(numbers, dim(length)), numbers, middle)
    place = _taken(places, middle)
    return _one([permute(part, back) for part in (_taken(moved, place), place)], axis, keepdims)


def runs(x: Node) -> tuple[Node, Node]:
    """Of rows ``x [.., n]`` in which equal elements are neighbours: whether each differs from the one before it, and
    where the run of equal elements that it belongs to begins (int64). NaN differs from NaN."""
    places = along(iota(x.shape[-1]), -1, x.shape)
    before = _taken(x, maximum(places - 1, 0))
    begins = not_equal(x, before) | equal(places, 0)
    return begins, cummax(select(begins, places, 0), -1)[0]


def mode(x: Node, axis: int = -1, keepdims: bool = False) -> tuple[Node, Node]:
    """The most frequent element along ``axis``, the least of several, and the position (int64) of its last occurrence
    (torch.mode). Raises ShapeError where there may be no element."""
    if x.rank == 0:
        return x, constant(0, i64)
    moved, back = _last(x, axis)
    if not sym.always(moved.shape[-1] - 1):
        raise ShapeError(f"mode: expected at least one element along axis {axis} of {list(x.shape)}")
    values, places = sort(moved)
    length = along(iota(moved.shape[-1]), -1, moved.shape) - runs(values)[1]
    last = argmax(length, -1, keepdims=True)
    return _one([permute(_taken(part, last), back) for part in (values, places)], axis, keepdims)


# ---- searching -----------------------------------------------------------------------------------------------------


def searchsorted(rows: Node, values: Node, right: bool = False) -> Node:
    """For each of ``values``, how many elements of a row in order are less (``right``: or equal): int64.

    ``rows`` is ``[n]``, for values of any shape, or ``[.., n]`` for values ``[.., m]`` (torch.searchsorted). By binary
    search, in ceil(log2(n+1)) steps. Raises ShapeError where n has no bound or the other axes differ.
    """
    if rows.rank != 1 and rows.shape[:-1] != values.shape[:-1]:
        raise ShapeError(f"searchsorted: rows {list(rows.shape)} and values {list(values.shape)} have different axes")
    length = rows.shape[-1]
    most = sym.upper(length)
    if length == 0:
        return full(values.shape, 0, i64)
    if most is None:
        raise ShapeError(f"searchsorted: the length of rows, {length}, has no bound")
    before = full(values.shape, 0, i64)
    after = full(values.shape, dim(length), i64)
    for _ in range(most.bit_length()):
        middle = binary(ops.SHR, before + after, 1)
        searched = less(before, after)  # else the middle may be the end of the row
        place = select(searched, middle, 0)
        found = gather(rows, place, 0) if rows.rank == 1 else _taken(rows, place)
        follows = logical_not(less(values, found) if right else less_equal(values, found))
        before, after = select(searched & follows, middle + 1, before), select(searched & follows, after, middle)
    return before


def isin(values: Node, among: Node) -> Node:
    """Whether each of ``values``, of any shape, equals one of ``among [n]`` (torch.isin); NaN equals nothing."""
    return find(sort(among)[0], values)[1]


def find(row: Node, values: Node) -> tuple[Node, Node]:
    """The first position (int64) of each of ``values``, of any shape, in ``row [n]``, which is in order, and whether it
    is there; elsewhere the position is some other of the row's."""
    length = row.shape[0]
    if length == 0:
        return full(values.shape, 0, i64), full(values.shape, False, bool_)
    place = searchsorted(row, values)
    inside = less(place, dim(length))
    place = select(inside, place, 0)
    return place, equal(gather(row, place, 0), values) & inside
