"""Boxes of which those are left out that overlap a better one too much (greedy non-maximum suppression)."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import ir
from luminal.core.decompose import indexing, sorting
from luminal.core.decompose.compare import less, logical_and, logical_not, maximum, minimum
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, cast, constant, expand, iota, select
from luminal.core.movement import permute, reshape, slice_, unsqueeze
from luminal.core.relations import unequal
from luminal.core.structured import scan
from luminal.core.types import bool_, i64


def corners(boxes: Node) -> Node:
    """``[.., 4]`` boxes given by any two opposite corners ``y1 x1 y2 x2``, by the lower one and the upper one.

    Raises ShapeError where there are not four numbers to a box.
    """
    _check_boxes(boxes)
    a, b = slice_(boxes, -1, 0, 2), slice_(boxes, -1, 2, 2)
    return indexing.stack([*_columns(minimum(a, b)), *_columns(maximum(a, b))], -1)


def around_centers(boxes: Node) -> Node:
    """``[.., 4]`` boxes ``x y width height`` around their centers, by their corners ``y1 x1 y2 x2``.

    Raises ShapeError where there are not four numbers to a box.
    """
    _check_boxes(boxes)
    x, y, width, height = _columns(boxes)
    return indexing.stack([y - height * 0.5, x - width * 0.5, y + height * 0.5, x + width * 0.5], -1)


def _check_boxes(boxes: Node) -> None:
    if boxes.rank < 1 or boxes.shape[-1] != 4:
        raise ShapeError(f"expected boxes of four numbers, found {list(boxes.shape)}")


def suppressed(boxes: Node, scores: Node, most: Node, overlap: Node, least: Node | None) -> tuple[Node, Node]:
    """Which boxes are kept, ``[batch, classes, n]`` as bool from the best score to the worst, and which box each is.

    ``boxes [batch, n, 4]`` are corners, ``scores [batch, classes, n]``. From the best box on, each is kept whose score
    is above ``least``, whose intersection with no kept box is more than ``overlap`` of their union, while fewer than
    ``most`` (int64) of its class are kept. Raises ShapeError where the shapes do not fit.
    """
    fits = boxes.rank == scores.rank == 3 and boxes.shape[2] == 4
    if not fits or (scores.shape[0], scores.shape[2]) != boxes.shape[:2]:
        raise ShapeError(
            f"expected boxes [batch, n, 4] and scores [batch, classes, n], found {list(boxes.shape)} and "
            f"{list(scores.shape)}",
            unequal((scores.shape[0], scores.shape[2]), boxes.shape[:2]) if fits else (),
        )
    batch, classes, count = scores.shape
    ranked, order = sorting.sort(scores, -1, descending=True)
    shape = (batch, classes, count, 4)
    place = expand(unsqueeze(order, [3]), shape)
    found = indexing.gather_elements(expand(unsqueeze(boxes, [1]), shape), place, 2)
    good = expand(constant(True, bool_), ranked.shape) if least is None else less(least, ranked)
    outer = (batch, classes)

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (out, taken), (box, enough, position) = carried, element
        kept = logical_and(logical_and(enough, logical_not(ir.gather(out, position, 2))), less(taken, most))
        near = less(overlap, _overlap(unsqueeze(box, [2]), found))
        return (out | logical_and(unsqueeze(kept, [2]), near), taken + cast(kept, i64)), (kept,)

    nothing = expand(constant(False, bool_), (*outer, count)), expand(constant(0, i64), outer)
    over = permute(found, [2, 0, 1, 3]), permute(good, [2, 0, 1]), iota(count)
    _, (kept,) = scan(step, nothing, over)
    return permute(kept, [1, 2, 0]), order


def _columns(x: Node) -> list[Node]:
    assert isinstance(x.shape[-1], int)
    return [reshape(slice_(x, -1, k, 1), x.shape[:-1]) for k in range(x.shape[-1])]


def _overlap(a: Node, b: Node) -> Node:
    """Of boxes by their corners, broadcast, the intersection as a part of the union; 0 where there is none."""
    top, left, bottom, right = (
        pick(x, y) for pick, x, y in zip((maximum, maximum, minimum, minimum), _columns(a), _columns(b), strict=True)
    )
    height, width = maximum(bottom - top, 0), maximum(right - left, 0)
    common = height * width
    union = _area(a) + _area(b) - common
    return select(less(0, common), common / select(less(0, union), union, 1), 0)


def _area(box: Node) -> Node:
    top, left, bottom, right = _columns(box)
    return (bottom - top) * (right - left)
