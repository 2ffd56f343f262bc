"""What is left of a value where data decides how much: the elements, rows or positions at which a condition holds.

The size of the result is known when the condition has been computed (``ir.measure``); there is room for everything.
"""

from __future__ import annotations

from luminal.core import interp, ir, limits
from luminal.core import symbolic as sym
from luminal.core.decompose import indexing
from luminal.core.decompose.compare import equal, less, less_equal, maximum, not_equal
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.reduction import all_, sum_
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, binary, cast, constant, dim, expand, gather, iota, scatter, select
from luminal.core.movement import reshape, slice_
from luminal.core.ops import DIV, MOD, Failure
from luminal.core.symbolic import Int
from luminal.core.types import bool_, i64


def measured(count: Node, size: Int, name: str, usual: int | None = None) -> Int:
    """``count`` as a size, at most ``size``, often the ``usual`` one; a number where it is known. Raises ShapeError
    where ``size`` has no upper bound."""
    most = sym.upper(size)
    if most is None:
        raise ShapeError(f"{name}: expected a size that has an upper bound, found {size}")
    known = interp.constant_value(count)
    return ir.measure(count, most, name, usual=usual) if known is None else int(known)


def numbers(first: Node, limit: Node, step: int, bounds: tuple[int, int], name: str = "range") -> Node:
    """``first, first + step, ..`` below ``limit`` (above it, where ``step`` is negative), for integers that a run
    finds; the size of the result is called ``name``. A run that finds fewer or more numbers than the ``bounds`` fails.
    Raises ShapeError for a step of 0."""
    if step == 0:
        raise ShapeError("arange: the step must not be 0")
    begin, end = cast(first, i64), cast(limit, i64)
    span = end - begin if step > 0 else begin - end
    count = binary(DIV, maximum(span, constant(0, i64)) + (abs(step) - 1), constant(abs(step), i64))
    least, most = bounds
    count = gather(iota(most - least + 1) + least, count - least, 0, Failure.ROOM)
    return cast(iota(ir.measure(count, most, name, least)) * step + begin, first.dtype)


def places(condition: Node, name: str = "found", usual: int | None = None) -> Node:
    """The positions (int64) at which a flat ``condition`` holds, ascending; the size of the result is called ``name``,
    and is often the ``usual`` one.

    Raises ShapeError where the condition has no known largest size.
    """
    (size,) = condition.shape
    kept, count = _kept(condition)
    return slice_(kept, 0, 0, measured(count, size, name, usual))


def _kept(condition: Node) -> tuple[Node, Node]:
    """The positions at which a flat ``condition`` holds, with room for one more than there are elements, and how many
    they are."""
    (size,) = condition.shape
    holds = cast(condition, i64)
    # What does not count goes to one more slot, the last.
    slot = select(condition, cumsum(holds, 0, exclusive=True), ir.dim(size))
    return scatter(expand(constant(0, i64), (size + 1,)), slot, iota(size), 0), sum_(holds)


def nonzero(x: Node, name: str = "found") -> Node:
    """The indices, ``[how many, rank]`` as int64 in row-major order, of the elements that are not zero (NaN is not)."""
    columns = coordinates(x, name)
    return indexing.stack(columns, 1) if x.rank else expand(constant(0, i64), (places(_flat(x), name).shape[0], 0))


def coordinates(x: Node, name: str = "found") -> list[Node]:
    """The columns of ``nonzero``, one for each axis."""
    return _along_axes(places(_flat(x), name), x)


def _along_axes(at: Node, x: Node) -> list[Node]:
    """Row-major positions in ``x`` as one for each axis."""
    columns: list[Node] = []
    for size in reversed(x.shape):
        columns.append(ir.binary(MOD, at, ir.dim(size)))
        at = ir.binary(DIV, at, ir.dim(size))
    return columns[::-1]


def first_nonzero(x: Node, count: Int, fill: int) -> Node:
    """The first ``count`` rows of ``nonzero``; where there are fewer, rows of ``fill`` follow."""
    if not x.rank:
        return expand(constant(0, i64), (count, 0))
    kept, held = _kept(_flat(x))
    number = expand(iota(count), (count,))
    found = less(number, held)
    at = indexing.take(kept, select(found, number, ir.dim(x.size)), 0)
    return indexing.stack([select(found, column, fill) for column in _along_axes(at, x)], 1)


def _flat(x: Node) -> Node:
    return reshape(x if x.dtype == bool_ else not_equal(x, 0), (x.size,))


def compress(x: Node, condition: Node, axis: int, name: str = "found") -> Node:
    """The slices of ``x`` along ``axis`` at which a flat ``condition`` holds; it may be shorter than the axis.

    Raises ShapeError where the condition has not one axis.
    """
    if condition.rank != 1:
        raise ShapeError(f"expected a condition of one axis, found {list(condition.shape)}")
    return indexing.take(x, places(condition, name), axis)


def split(x: Node, sizes: Node, axis: int, name: str = "part") -> list[Node]:
    """``x`` cut along ``axis`` into parts as large as the integers ``sizes``, of which there is a known number, say.

    A run fails where one is negative or they do not add up. Raises ShapeError where they are not along one axis of a
    known size, or the axis that is cut has no upper bound.
    """
    if sizes.rank != 1 or not isinstance(sizes.shape[0], int):
        raise ShapeError(f"{name}: expected a known number of sizes along one axis, found {list(sizes.shape)}")
    axis %= x.rank
    extent, parts = x.shape[axis], sizes.shape[0]
    limits.check_parts(parts, "a split")
    sizes = cast(sizes, i64)
    fits = less(-1, sizes) & less_equal(sizes, dim(extent))
    fit = all_(fits) & equal(sum_(sizes), dim(extent))
    sizes = gather(sizes, select(fit, iota(parts), -1), 0)
    starts = cumsum(sizes, 0, exclusive=True)
    found: list[Node] = []
    for k in range(parts):
        size, start = (reshape(slice_(numbers, 0, k, 1), []) for numbers in (sizes, starts))
        found.append(gather(x, iota(measured(size, extent, name)) + start, axis))
    return found


def masked_select(x: Node, condition: Node, name: str = "found") -> Node:
    """The elements, in row-major order, at which a ``condition`` holds; both are broadcast to one shape."""
    x, condition = ir.broadcast(x, condition)
    return compress(reshape(x, (x.size,)), reshape(condition, (x.size,)), 0, name)
