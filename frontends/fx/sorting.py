"""Sorting, choice by rank, search in sorted tensors, and histograms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from luminal.core.decompose import histogram as histograms
from luminal.core.decompose import indexing, sorting
from luminal.core.decompose.compare import equal, logical_not
from luminal.core.decompose.reduction import max_, min_
from luminal.core.derivative import remembered
from luminal.core.errors import ModelError
from luminal.core.ir import Node, cast
from luminal.core.movement import reshape
from luminal.core.symbolic import Int
from luminal.core.types import DType
from luminal.frontends.fx.promotion import Operand, Scalar, as_node, promote
from luminal.frontends.fx.reduction import evenly
from luminal.frontends.fx.registry import aten, direct

# ---- orders, and elements by their places in them ------------------------------------------------


direct(
    {
        "sort": sorting.sort,
        "argsort": sorting.argsort,
        "kthvalue": sorting.kthvalue,
        "mode": sorting.mode,
        "median.dim": sorting.median,
    }
)


@aten("sort.stable")
def sort_stable(self: Node, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Node, Node]:
    """Every order is stable here."""
    return sorting.sort(self, dim, descending)


@aten("argsort.stable")
def argsort_stable(self: Node, *, stable: bool, dim: int = -1, descending: bool = False) -> Node:
    return sorting.argsort(self, dim, descending)


@aten("msort")
def msort(self: Node) -> Node:
    return sorting.sort(self, 0)[0]


@aten("topk")
def topk(self: Node, k: Int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Node, Node]:
    """The results are sorted also where any order is allowed."""
    return sorting.topk(self, k, dim, largest)


def _of_all(function: Callable[[Node, int], tuple[Node, Node]], x: Node) -> Node:
    if x.size == 0:
        return indexing.full((), math.nan, x.dtype)
    return remembered(function(reshape(x, [x.size]), 0)[0], evenly, x)


@aten("median")
def median(self: Node) -> Node:
    return _of_all(sorting.median, self)


@aten("nanmedian")
def nanmedian(self: Node) -> Node:
    return _of_all(nanmedian_dim, self)


@aten("nanmedian.dim")
def nanmedian_dim(self: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    return sorting.median(self, dim, keepdim, ignore_nan=True)


# ---- searching -----------------------------------------------------------------------------------


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    sorted_sequence: Node,
    self: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
    result: DType,
) -> Node:
    if side not in (None, "left", "right"):
        raise ModelError(f"side: expected left or right, found {side!r}")
    rows = sorted_sequence if sorter is None else indexing.gather_elements(sorted_sequence, sorter, -1)
    rows, values = promote([rows, self])
    return cast(sorting.searchsorted(rows, values, right or side == "right"), result)


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(self: Operand, boundaries: Node, *, out_int32: bool = False, right: bool = False, result: DType) -> Node:
    return searchsorted(boundaries, self, right=right, result=result)


@aten("isin.Tensor_Tensor", "isin.Scalar_Tensor")
def isin(elements: Operand, test_elements: Node, *, assume_unique: bool = False, invert: bool = False) -> Node:
    values, among = promote([elements, test_elements])
    return _found(sorting.isin(values, reshape(among, [among.size])), invert)


@aten("isin.Tensor_Scalar")
def isin_scalar(elements: Node, test_element: Scalar, *, assume_unique: bool = False, invert: bool = False) -> Node:
    return _found(equal(elements, as_node(test_element, elements.dtype)), invert)


def _found(found: Node, invert: bool) -> Node:
    return logical_not(found) if invert else found


# ---- histograms ----------------------------------------------------------------------------------


def _between(x: Node, ends: Sequence[Scalar] | None, bins: int, margin: float) -> Node:
    """Edges of ``bins`` between the two ``ends``, or else between the least and the greatest element; ``margin`` to
    either side of a single number."""
    if ends is None and x.size == 0:
        ends = (0, 1)
    low, high = (min_(x), max_(x)) if ends is None else (as_node(end, x.dtype) for end in ends)
    return histograms.edges(low, high, bins, margin)


@aten("histc")
def histc(self: Node, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> Node:
    return histograms.histogram(self, _between(self, None if min == max else (min, max), bins, 1.0))


@aten("histogram.bin_ct")
def histogram_of(
    self: Node,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Node | None = None,
    density: bool = False,
) -> tuple[Node, Node]:
    return histogram(self, _between(self, range, bins, 0.5), weight=weight, density=density)


@aten("histogram.bins_tensor")
def histogram(self: Node, bins: Node, *, weight: Node | None = None, density: bool = False) -> tuple[Node, Node]:
    return histograms.histogram(self, bins, weight, density), bins
