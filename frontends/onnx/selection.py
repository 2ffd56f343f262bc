"""Operators whose result sizes depend on data: selected elements, distinct elements, boxes that are kept."""

from __future__ import annotations

import numpy as np

from luminal.core import interp
from luminal.core.decompose import distinct, indexing, selection, suppression
from luminal.core.ir import Node, cast, constant
from luminal.core.movement import permute, reshape, slice_
from luminal.core.types import f32, i64
from luminal.frontends.onnx.registry import Call, operator


@operator("Compress")
def _compress(call: Call) -> Node:
    """The elements where a condition holds; where it is computed, only the run knows how many."""
    x = call[0]
    if "axis" in call.attributes:
        axis = call.axis(x.rank)
    else:
        x, axis = reshape(x, [x.size]), 0
    condition = call[1]
    if interp.constant_value(condition) is None:
        return selection.compress(x, condition, axis, _count(call))
    places = np.nonzero(call.array(1).reshape(-1))[0]
    return indexing.take(x, constant(places.astype(np.int64)), axis)


operator("NonZero")(lambda call: permute(selection.nonzero(call[0], _count(call)), [1, 0]))


@operator("Unique")
def _unique(call: Call) -> tuple[Node, Node, Node, Node]:
    """Distinct elements, or slices along an axis; NaN equals NaN, as numpy has it."""
    x = call[0]
    axis = call.axis(x.rank) if "axis" in call.attributes else None
    rows = reshape(x, [x.size]) if axis is None else permute(x, [axis, *(k for k in range(x.rank) if k != axis)])
    found = distinct.distinct(rows, call.flag("sorted", True), nan_is_one=True)
    size = selection.measured(found.count, rows.shape[0], _count(call))
    first, times = (slice_(part, 0, 0, size) for part in (found.first, found.times))
    return indexing.take(x if axis is not None else rows, first, axis or 0), first, found.number, times


@operator("NonMaxSuppression")
def _non_max_suppression(call: Call) -> Node:
    """Of each kept box its batch, its class and its number, by batch, class and falling score."""
    boxes, scores = call[0], call[1]
    if call.integer("center_point_box", 0):
        boxes = suppression.around_centers(boxes)
    else:
        boxes = suppression.corners(boxes)
    most = _scalar(call.get(2), 0)
    overlap, least = _scalar(call.get(3), 0.0), call.get(4)
    kept, order = suppression.suppressed(boxes, scores, most, overlap, None if least is None else reshape(least, []))
    at = selection.nonzero(kept, _count(call))
    box = indexing.gather_nd(order, at)
    return indexing.stack([*(reshape(slice_(at, 1, k, 1), [at.shape[0]]) for k in range(2)), box], 1)


def _scalar(given: Node | None, otherwise: float) -> Node:
    kind = i64 if isinstance(otherwise, int) else f32
    return constant(otherwise, kind) if given is None else cast(reshape(given, []), kind)


def _count(call: Call) -> str:
    """The name of the dimension that is the size of the results."""
    return f"{next(name for name in call.outputs if name)}_count"
