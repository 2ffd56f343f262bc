"""The modes of Pad, as views joined along each axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from luminal.core import symbolic as sym
from luminal.core.errors import ModelError, ShapeError, UnsupportedError
from luminal.core.ir import Node, dim, expand, iota, select
from luminal.core.movement import along, concatenate, pad, slice_
from luminal.core.symbolic import Int

# One side's new elements from what is there: (x, axis, amount, at the front) -> node of extent `amount` along the axis.
Border = Callable[[Node, int, int, bool], Node]


def padded(x: Node, axes: Sequence[int], pads: Sequence[Int], mode: str, value: Node | float) -> Node:
    """``x`` with ``pads`` elements before each of ``axes``, then after each of them; negative amounts crop.

    ``value`` fills in mode ``constant``. Raises UnsupportedError for modes other than constant, edge, reflect and wrap,
    and for those but constant where an amount is symbolic.
    """
    if len(pads) != 2 * len(axes):
        raise ModelError(f"expected {2 * len(axes)} pads for {len(axes)} axes, found {len(pads)}")
    before: list[Int] = [0] * x.rank
    after: list[Int] = [0] * x.rank
    for axis, front, back in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        before[axis], after[axis] = front, back
    if mode == "constant":
        return _constant(x, before, after, value)
    if mode not in _BORDERS:
        raise UnsupportedError(f"mode {mode!r} is not one of constant, {', '.join(_BORDERS)}")
    for axis, (front, back) in enumerate(zip(before, after, strict=True)):
        if not isinstance(front, int) or not isinstance(back, int):
            raise UnsupportedError(f"mode {mode!r} by symbolic amounts {front}, {back}: fix the sizes they come from")
        x = _extended(_cropped(x, axis, front, back), axis, max(front, 0), max(back, 0), _BORDERS[mode])
    return x


def _constant(x: Node, before: Sequence[Int], after: Sequence[Int], value: Node | float) -> Node:
    if not isinstance(value, Node):
        return pad(x, before, after, value)
    result = pad(x, before, after)
    for axis, front in enumerate(before):
        if front == 0 and after[axis] == 0:
            continue
        position = along(iota(result.shape[axis]), axis, result.shape)
        outside = (position < dim(front)) | (position > dim(front + x.shape[axis] - 1))
        result = select(outside, value, result)
    return result


def _cropped(x: Node, axis: int, front: int, back: int) -> Node:
    size = x.shape[axis] + min(front, 0) + min(back, 0)
    return slice_(x, axis, max(-front, 0), size)


def _extended(x: Node, axis: int, front: int, back: int, border: Border) -> Node:
    """Both sides extended; in rounds where a side takes more elements than one period holds."""
    while front or back:
        most = _period(x, axis, border)
        now = [min(side, most) for side in (front, back)]
        parts = [border(x, axis, now[0], True), x, border(x, axis, now[1], False)]
        x = concatenate([part for part in parts if part.shape[axis] != 0], axis)
        front, back = front - now[0], back - now[1]
    return x


def _period(x: Node, axis: int, border: Border) -> int:
    """The most elements that one round can add: the lower bound of the extent, less one if it reflects."""
    if border is _edge:
        return 1 << 62
    low = sym.lower(x.shape[axis] - (1 if border is _reflect else 0))
    if low is None or low <= 0:
        raise ShapeError(f"axis {axis} of {list(x.shape)} may hold too few elements to be reflected or repeated")
    return low


def _edge(x: Node, axis: int, amount: int, front: bool) -> Node:
    end = slice_(x, axis, 0 if front else x.shape[axis] - 1, 1)
    return expand(end, [*x.shape[:axis], amount, *x.shape[axis + 1 :]])


def _reflect(x: Node, axis: int, amount: int, front: bool) -> Node:
    return slice_(x, axis, amount if front else x.shape[axis] - 2, amount, -1)


def _wrap(x: Node, axis: int, amount: int, front: bool) -> Node:
    return slice_(x, axis, x.shape[axis] - amount if front else 0, amount)


_BORDERS: dict[str, Border] = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}
