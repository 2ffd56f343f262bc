"""Pooling over windows: views of a padded tensor, then a reduction over each window."""

from __future__ import annotations

import math
from collections.abc import Sequence

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.decompose.common import lowest, require_float, widened
from luminal.core.decompose.compare import equal, isnan, less
from luminal.core.decompose.contraction import sliding
from luminal.core.decompose.transposed import fold
from luminal.core.derivative import alike
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, axes, binary, cast, constant, dim, expand, iota, reduce, select, view
from luminal.core.movement import along, reshape, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import DType, i64


def window_counts(
    sizes: Sequence[Int], kernel: Sequence[int], strides: Sequence[int], pads_begin: Sequence[Int],
    pads_end: Sequence[Int], dilations: Sequence[int], ceil_mode: bool = False,
) -> list[Int]:  # fmt: skip
    """How many windows each axis has. With ``ceil_mode`` the last may reach past the padding, but must start before
    the input's end (PyTorch's rule, which ONNX took over)."""
    counts: list[Int] = []
    for size, k, s, begin, end, d in zip(sizes, kernel, strides, pads_begin, pads_end, dilations, strict=True):
        room = size + begin + end - d * (k - 1) - 1
        if ceil_mode:
            counts.append(sym.minimum(sym.ceildiv(room, s) + 1, sym.ceildiv(size + begin, s)))
        else:
            counts.append(sym.floordiv(room, s) + 1)
    return counts


def windows_of(
    x: Node, kernel: Sequence[int], strides: Sequence[int], pads_begin: Sequence[Int], dilations: Sequence[int],
    counts: Sequence[Int], value: float,
) -> Node:  # fmt: skip
    """``[.., *windows, *kernel]`` for ``counts`` windows, with ``value`` wherever one reaches outside ``x``."""
    sizes = x.shape[x.rank - len(kernel) :]
    reach = [
        (n - 1) * s + d * (k - 1) + 1 - size - begin
        for n, s, d, k, size, begin in zip(counts, strides, dilations, kernel, sizes, pads_begin, strict=True)
    ]
    return sliding(x, kernel, strides, pads_begin, reach, dilations, value, counts)


def max_pool(
    x: Node, kernel: Sequence[int], strides: Sequence[int] | None = None, pads_begin: Sequence[Int] | None = None,
    pads_end: Sequence[Int] | None = None, dilations: Sequence[int] | None = None, ceil_mode: bool = False,
) -> Node:  # fmt: skip
    """The largest element of each window over the last ``len(kernel)`` axes; padding never wins; NaN propagates.

    Strides and dilations default to 1, padding to 0.
    """
    unit, none = [1] * len(kernel), [0] * len(kernel)
    strides, begin, end, dilations = strides or unit, pads_begin or none, pads_end or none, dilations or unit
    counts = window_counts(x.shape[x.rank - len(kernel) :], kernel, strides, begin, end, dilations, ceil_mode)
    taps = windows_of(x, kernel, strides, begin, dilations, counts, lowest(x))
    over = range(x.rank, taps.rank)

    def taken() -> Node:
        order = _order(x, len(kernel))
        order = windows_of(order, kernel, strides, begin, dilations, counts, lowest(order))
        return _first_of_largest(taps, order, over)

    return alike(reduce(ops.MAX_REDUCE, taps, over), taken)


def _first_of_largest(x: Node, order: Node, over: Sequence[int]) -> Node:
    """The largest elements of ``x`` over axes as sums of what is taken among equals: see ``_order``."""
    first = expand(unsqueeze(_order_of_largest(x, order, over), over), x.shape)
    return reduce(ops.SUM_REDUCE, select(equal(order, first), x, 0), over)


def max_pool_place(
    x: Node, kernel: Sequence[int], strides: Sequence[int], pads_begin: Sequence[Int], pads_end: Sequence[Int],
    dilations: Sequence[int], ceil_mode: bool = False,
) -> Node:  # fmt: skip
    """Where the largest element of each window lies: its position (int64) in the last ``len(kernel)`` axes of ``x``,
    row-major; the first of equals in a window, NaN counting as the largest and the last of several as found (PyTorch).
    """
    counts = window_counts(x.shape[x.rank - len(kernel) :], kernel, strides, pads_begin, pads_end, dilations, ceil_mode)
    order = _order(x, len(kernel))
    taps, order = (
        windows_of(each, kernel, strides, pads_begin, dilations, counts, lowest(each)) for each in (x, order)
    )
    return _place(_order_of_largest(taps, order, range(x.rank, taps.rank)))


def _order(x: Node, spatial: int) -> Node:
    """For each element of ``x`` a number that is the larger, the sooner it is taken among equals: minus its position in
    the last ``spatial`` axes; of a NaN the position itself, from 1 on."""
    sizes = x.shape[x.rank - spatial :]
    place = expand(reshape(iota(sym.product(sizes)), sizes), x.shape)
    return select(isnan(x), place + 1, -place) if x.dtype.is_float else -place


def _order_of_largest(x: Node, order: Node, over: Sequence[int]) -> Node:
    """The largest ``order`` among the largest elements of ``x`` over axes."""
    best = reduce(ops.MAX_REDUCE, x, over)
    best = expand(unsqueeze(best, over), x.shape)
    largest = equal(x, best) | isnan(x) if x.dtype.is_float else equal(x, best)
    return reduce(ops.MAX_REDUCE, select(largest, order, lowest(order)), over)


def _place(order: Node) -> Node:
    return select(less(0, order), order - 1, -order)


def max_pool_index(
    x: Node, kernel: Sequence[int], strides: Sequence[int], pads_begin: Sequence[Int], pads_end: Sequence[Int],
    dilations: Sequence[int], ceil_mode: bool = False, column_major: bool = False,
) -> Node:  # fmt: skip
    """``max_pool_place`` as positions in the whole of ``x``, row-major, or with the first spatial axis innermost (ONNX
    MaxPool)."""
    lead, sizes = x.rank - len(kernel), x.shape[x.rank - len(kernel) :]
    place = max_pool_place(x, kernel, strides, pads_begin, pads_end, dilations, ceil_mode)
    if column_major:
        place = _column_major(place, sizes)
    before = along(iota(sym.product(x.shape[:lead])), 0, [sym.product(x.shape[:lead]), 1])
    return place + reshape(before * dim(sym.product(sizes)), [*x.shape[:lead], *[1] * len(kernel)])


def _column_major(place: Node, sizes: Sequence[Int]) -> Node:
    """Row-major positions as positions with the first axis innermost."""
    result = constant(0, i64)
    for axis in reversed(range(len(sizes))):
        result = result + binary(ops.MOD, place, dim(sizes[axis])) * dim(sym.product(sizes[:axis]))
        place = binary(ops.DIV, place, dim(sizes[axis]))
    return result


@widened
def avg_pool(
    x: Node, kernel: Sequence[int], strides: Sequence[int] | None = None, pads_begin: Sequence[Int] | None = None,
    pads_end: Sequence[Int] | None = None, dilations: Sequence[int] | None = None, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Node:  # fmt: skip
    """The mean of each window over the last ``len(kernel)`` axes.

    The sum is divided by ``divisor_override``, else by the number of taps that lie in the input, or with
    ``count_include_pad`` in the input and its stated padding (never in the overhang of ``ceil_mode``). Quotients of
    integers are truncated.
    """
    unit, none = [1] * len(kernel), [0] * len(kernel)
    strides, begin, end, dilations = strides or unit, pads_begin or none, pads_end or none, dilations or unit
    sizes = x.shape[x.rank - len(kernel) :]
    counts = window_counts(sizes, kernel, strides, begin, end, dilations, ceil_mode)
    taps = windows_of(x, kernel, strides, begin, dilations, counts, 0)
    total = reduce(ops.SUM_REDUCE, taps, range(x.rank, taps.rank))
    windows = kernel, strides, begin, end, dilations
    return _divided(total, sizes, *windows, count_include_pad, divisor_override)


def _divided(
    total: Node, sizes: Sequence[Int], kernel: Sequence[int], strides: Sequence[int], begin: Sequence[Int],
    end: Sequence[Int], dilations: Sequence[int], include_pad: bool, override: int | None,
) -> Node:  # fmt: skip
    """``total``, of an element for each window over axes of ``sizes``, divided by the number of taps that count."""
    if override is not None:
        return total / override
    counts = total.shape[total.rank - len(kernel) :]
    if _divides_evenly(sizes, kernel, strides, begin, end, dilations, counts, include_pad):
        return total / math.prod(kernel)
    divisor = constant(1, total.dtype)
    for k, size in enumerate(sizes):
        # A vector of ones, as long as what counts, under the same windows.
        counted, offset = (size + begin[k] + end[k], 0) if include_pad else (size, begin[k])
        ones = expand(constant(1, total.dtype), [counted])
        inside = windows_of(ones, [kernel[k]], [strides[k]], [offset], [dilations[k]], [counts[k]], 0)
        divisor = divisor * along(reduce(ops.SUM_REDUCE, inside, [1]), k, counts)
    return total / divisor


@widened
def avg_pool_gradient(
    gradient: Node, sizes: Sequence[Int], kernel: Sequence[int], strides: Sequence[int], padding: Sequence[Int],
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Node:  # fmt: skip
    """The gradient for an operand ``[.., *sizes]`` of ``avg_pool``, from the one for its result: each window's share,
    at each of its taps."""
    unit, lead = [1] * len(kernel), gradient.shape[: gradient.rank - len(kernel)]
    windows = kernel, strides, padding, padding, unit
    shares = _divided(gradient, sizes, *windows, count_include_pad, divisor_override)
    counts = gradient.shape[len(lead) :]
    rows, taps, places = sym.product(lead), math.prod(kernel), sym.product(counts)
    blocks = expand(reshape(shares, [rows, 1, places]), [rows, taps, places])
    reach = [
        (n - 1) * s + k - size - begin
        for n, s, k, size, begin in zip(counts, strides, kernel, sizes, padding, strict=True)
    ]
    return reshape(fold(blocks, kernel, strides, padding, sizes, reach, unit), [*lead, *sizes])


def _divides_evenly(
    sizes: Sequence[Int], kernel: Sequence[int], strides: Sequence[int], pads_begin: Sequence[Int],
    pads_end: Sequence[Int], dilations: Sequence[int], counts: Sequence[Int], include_pad: bool,
) -> bool:  # fmt: skip
    """Whether every tap of every window counts."""
    for size, k, s, begin, end, d, n in zip(
        sizes, kernel, strides, pads_begin, pads_end, dilations, counts, strict=True
    ):
        first, last = (0, size + begin + end) if include_pad else (begin, size + begin)
        if not sym.always(first * -1) or not sym.always(last - ((n - 1) * s + d * (k - 1) + 1)):
            return False
    return True


@widened
def adaptive_avg_pool(x: Node, output_size: Sequence[int | None]) -> Node:
    """Means over ``output_size`` nearly equal parts of the last axes; None keeps an axis as it is.

    Part ``i`` of an axis of extent ``n`` runs from ``floor(i*n/out)`` to ``ceil((i+1)*n/out)`` (PyTorch).
    """
    require_float(x, "adaptive_avg_pool")
    if 0 in output_size:
        return _no_parts(x, output_size, x.dtype)
    for axis, parts in _parts(x, output_size):
        total = reduce(ops.SUM_REDUCE, _part(x, axis, parts, 0), [axis + 1])
        x = total / _extents(x.shape[axis], parts, axis, total)
    return x


def _extents(size: Int, parts: Int, axis: int, like: Node) -> Node:
    """How many elements each of the parts of an axis of ``size`` has, along ``axis`` of ``like``."""
    if sym.mod(size, parts) == 0:
        return cast(dim(sym.floordiv(size, parts)), like.dtype)
    ones = expand(constant(1, like.dtype), [size])
    return along(reduce(ops.SUM_REDUCE, _part(ones, 0, parts, 0), [1]), axis, like.shape)


@widened
def adaptive_avg_pool_gradient(gradient: Node, sizes: Sequence[Int]) -> Node:
    """The gradient for an operand ``[.., *sizes]`` of ``adaptive_avg_pool``, from the one for its result. The parts
    that an element lies in are those of an axis of parts that is cut into as many as there are elements."""
    for axis, size in enumerate(sizes, gradient.rank - len(sizes)):
        shares = gradient / _extents(size, gradient.shape[axis], axis, gradient)
        gradient = reduce(ops.SUM_REDUCE, _part(shares, axis, size, 0), [axis + 1])
    return gradient


def adaptive_max_pool(x: Node, output_size: Sequence[int | None]) -> Node:
    """The largest element of each part, cut as ``adaptive_avg_pool`` does."""
    if 0 in output_size:
        return _no_parts(x, output_size, x.dtype)
    order = _order(x, len(output_size))
    for axis, parts in _parts(x, output_size):
        pieces, places = (_part(each, axis, parts, lowest(each)) for each in (x, order))
        over = [axis + 1]
        x = alike(reduce(ops.MAX_REDUCE, pieces, over), lambda: _first_of_largest(pieces, places, over))  # noqa: B023
        order = _order_of_largest(pieces, places, over)
    return x


def adaptive_max_pool_place(x: Node, output_size: Sequence[int | None]) -> Node:
    """Where the largest element of each part lies: see ``max_pool_place``."""
    if 0 in output_size:
        return _no_parts(x, output_size, i64)
    order = _order(x, len(output_size))
    for axis, parts in _parts(x, output_size):
        pieces, order = (_part(each, axis, parts, lowest(each)) for each in (x, order))
        x, order = reduce(ops.MAX_REDUCE, pieces, [axis + 1]), _order_of_largest(pieces, order, [axis + 1])
    return _place(order)


def _no_parts(x: Node, output_size: Sequence[int | None], dtype: DType) -> Node:
    """The result where an axis is cut into no parts: nothing."""
    shape = list(x.shape)
    for axis, parts in _parts(x, output_size):
        shape[axis] = parts
    return expand(constant(0, dtype), shape)


def _parts(x: Node, output_size: Sequence[int | None]) -> list[tuple[int, int]]:
    lead = x.rank - len(output_size)
    if lead < 0:
        raise ShapeError(f"adaptive pooling to {list(output_size)} needs more axes than {list(x.shape)} has")
    return [(lead + k, parts) for k, parts in enumerate(output_size) if parts is not None]


def _part(x: Node, axis: int, parts: Int, value: float) -> Node:
    """``axis`` cut into ``parts``, each an axis as long as the longest part and filled up with ``value``."""
    n = x.shape[axis]
    if sym.mod(n, parts) == 0:
        return reshape(x, [*x.shape[:axis], parts, sym.floordiv(n, parts), *x.shape[axis + 1 :]])
    # ceil((i+1)*n/parts) - floor(i*n/parts) is at most ceil(n/parts) + 1.
    longest = sym.ceildiv(n, parts) + 1
    shape = (*x.shape[:axis], parts, longest, *x.shape[axis + 1 :])
    index = list(axes(shape))
    part, within = index[axis], index.pop(axis + 1)
    start = sym.floordiv(part * n, parts)
    index[axis] = start + within
    inside = sym.ceildiv((part + 1) * n, parts) - 1 - start - within
    fill = constant(value, x.dtype).attr.array.tobytes()
    return view(x, shape, index, [inside], fill)
