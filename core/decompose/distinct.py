"""Distinct elements, and how often each occurs: what is known of them before their number is.

Results have room for as many as there are elements; those beyond the number of distinct ones are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from luminal.core.decompose.compare import not_equal
from luminal.core.decompose.cumulative import cumsum
from luminal.core.decompose.indexing import full
from luminal.core.decompose.reduction import sum_
from luminal.core.decompose.scattering import put
from luminal.core.decompose.sorting import argsort, rank
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, dim, gather, iota, select
from luminal.core.movement import flip, reshape, slice_
from luminal.core.symbolic import Int, product
from luminal.core.types import i64


@dataclass(frozen=True)
class Distinct:
    """Distinct elements of ``n``, all int64: ``count`` says how many there are, ``first [n]`` where each occurs first,
    ``times [n]`` how often, and ``number [n]``, for every element, which of them it is."""

    count: Node
    first: Node
    times: Node
    number: Node


def distinct(x: Node, by_value: bool = True, nan_is_one: bool = False) -> Distinct:
    """The distinct elements along the first axis of ``x``, from the least to the greatest (of rows, by their first
    elements first), or else in the order in which they occur first. Every NaN is an element of its own, unless
    ``nan_is_one``; -0 equals 0.

    Costs a sort for each element of a row. Raises ShapeError where ``x`` has no axis, or rows of a symbolic size.
    """
    columns, length = _columns(x)
    ranks = [rank(column) for column in columns]
    order = iota(length)
    for column in reversed(ranks):
        order = gather(order, argsort(gather(column, order, 0), 0), 0)
    found = _runs(ranks if nan_is_one else columns, order)
    if by_value:
        return found
    turn = argsort(select(iota(length) < found.count, found.first, dim(length)), 0)
    place = put(_zeros(length), turn, iota(length))
    first, times = (gather(each, turn, 0) for each in (found.first, found.times))
    return Distinct(found.count, first, times, gather(place, found.number, 0))


def _columns(x: Node) -> tuple[list[Node], Int]:
    """The columns of what lies along the first axis, and the length of that."""
    if x.rank == 0:
        raise ShapeError("distinct: expected an axis, found a scalar")
    length, width = x.shape[0], product(x.shape[1:])
    if not isinstance(width, int):
        raise ShapeError(f"distinct: the size of a row, {width}, must be known")
    rows = reshape(x, [length, width])
    return [reshape(slice_(rows, 1, k, 1), [length]) for k in range(width)], length


def consecutive(x: Node) -> Distinct:
    """The elements along the first axis of ``x`` that differ from the one before, in their order; every NaN does."""
    columns, length = _columns(x)
    return _runs(columns, iota(length))


def _runs(columns: Sequence[Node], order: Node) -> Distinct:
    """Of rows that ``columns`` hold and that are taken in an ``order``, those that differ from the one before."""
    (length,) = order.shape
    begins = _zeros(length) < 0
    for column in columns:
        begins = begins | _differs(gather(column, order, 0))
    begins = begins | (iota(length) < 1)
    runs = cumsum(cast(begins, i64), 0) - 1
    times = put(_zeros(length), runs, full([length], 1, i64), 0, "add")
    first = put(_zeros(length), flip(runs, [0]), flip(order, [0]))
    number = put(_zeros(length), order, runs)
    return Distinct(sum_(cast(begins, i64)), first, times, number)


def _zeros(length: Int) -> Node:
    return full([length], 0, i64)


def _differs(column: Node) -> Node:
    """Whether an element is another than the one before it; of the first, anything."""
    places = iota(column.shape[0]) - 1
    return not_equal(column, gather(column, select(places < 0, 0, places), 0))
