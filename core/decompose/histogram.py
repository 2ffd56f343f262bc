"""Histograms: how many elements lie between neighbouring edges. Their cost is n log b for b bins."""

from __future__ import annotations

from luminal.core.decompose.common import require_float, widened
from luminal.core.decompose.compare import equal, less, less_equal, minimum
from luminal.core.decompose.indexing import full
from luminal.core.decompose.reduction import sum_
from luminal.core.decompose.scattering import put
from luminal.core.decompose.sorting import searchsorted
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, iota, select
from luminal.core.movement import reshape, slice_


@widened
def edges(lowest: Node, highest: Node, bins: int, margin: float) -> Node:
    """``bins + 1`` edges at equal distances from scalar ``lowest`` to ``highest``, each counted from the nearer of the
    two, as PyTorch has them; ``margin`` to either side where both are one number. Raises ShapeError where there is no
    bin, DTypeError where they are no floats."""
    require_float(lowest, "histogram")
    if bins < 1:
        raise ShapeError(f"histogram: expected at least one bin, found {bins}")
    one = equal(lowest, highest)
    lowest, highest = select(one, lowest - margin, lowest), select(one, highest + margin, highest)
    step = (highest - lowest) / bins
    places = iota(bins + 1)
    behind, ahead = (cast(part, lowest.dtype) for part in (places, bins - places))
    return select(less(places, (bins + 1) // 2), lowest + step * behind, highest - step * ahead)


def histogram(x: Node, borders: Node, weight: Node | None = None, density: bool = False) -> Node:
    """How many elements of ``x``, of any shape, each bin has: ``[b]``, of the type of ``x``, for ascending ``borders
    [b+1]``. A bin has its lower border, and the last has both; what lies outside, and NaN, is in none.

    With ``weight`` (the shape of ``x``), the sum of weights instead; as a ``density``, divided by the sum of all and by
    the width of the bin (torch.histogram). Raises ShapeError where there is no bin.
    """
    bins = borders.shape[0] - 1
    if not isinstance(bins, int) or bins < 1:
        raise ShapeError(f"histogram: expected at least two borders, a known number, found {borders.shape[0]}")
    flat = reshape(x, [x.size])
    lowest, highest = (reshape(slice_(borders, 0, place, 1), []) for place in (0, bins))
    inside = less_equal(lowest, flat) & less_equal(flat, highest)
    place = minimum(searchsorted(borders, flat, right=True) - 1, bins - 1)
    each = full([x.size], 1, x.dtype) if weight is None else cast(reshape(weight, [x.size]), x.dtype)
    room = full([bins + 1], 0, x.dtype)
    total = slice_(put(room, select(inside, place, bins), each, 0, "add"), 0, 0, bins)
    if not density:
        return total
    widths = slice_(borders, 0, 1, bins) - slice_(borders, 0, 0, bins)
    return total / sum_(total) / widths
