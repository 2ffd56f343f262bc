"""Resampling along axes: nearest, linear and cubic interpolation, with and without antialiasing.

Interpolation is separable, so each axis is resampled by itself: for every element of the result a few elements of the
operand (its taps) are gathered and summed under weights. Positions and weights are computed in float64 from the
positions of the result, at compile time where sizes are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from luminal.core import interp, ops, types
from luminal.core import symbolic as sym
from luminal.core.decompose.arithmetic import abs_, ceil, floor, round_
from luminal.core.decompose.compare import clamp, less, maximum, where
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, axes, cast, constant, dim, gather, iota, reduce, select, view
from luminal.core.movement import reshape, slice_, unsqueeze
from luminal.core.symbolic import Int

# Of a float64 distance from a tap: its weight.
Kernel = Callable[[Node], Node]


@dataclass(frozen=True)
class Resampling:
    """How one axis is resampled.

    ``size`` is the extent of the result; ``scale`` the ratio of the sizes where the source states it, which may differ
    from the quotient of the extents. ``start`` and ``end`` bound the part of the axis that is cropped, as fractions of
    the distance between its first and last element (``mode`` ``tf_crop_and_resize`` alone).
    """

    axis: int
    size: Int
    scale: float | None = None
    start: Node | None = None
    end: Node | None = None


def scaled_size(size: Int, scale: float) -> Int:
    """``floor(size * scale)`` exactly."""
    ratio = Fraction(scale)
    return sym.floordiv(size * ratio.numerator, ratio.denominator)


# ---- positions -----------------------------------------------------------------------------------------------------


def _number(value: Int) -> Node:
    return cast(dim(value), types.f64)


def positions(extent: Int, by: Resampling, mode: str) -> Node:
    """Where each element of the result lies in an axis of ``extent`` elements, in float64 (ONNX Resize,
    ``coordinate_transformation_mode``); raises ShapeError for a mode that is not one of these.

    Products come before quotients, and a ratio of sizes is not rounded by itself, so that positions on an element, and
    halfway between two, are found exactly there.
    """
    result = cast(iota(by.size), types.f64)
    before, after = _number(extent), _number(by.size)
    # The size of the result before it was made an integer.
    whole = after if by.scale is None else constant(by.scale, types.f64) * before

    def unscaled(place: Node) -> Node:
        return place * before / after if by.scale is None else place / constant(by.scale, types.f64)

    if mode == "half_pixel":
        return unscaled(result + 0.5) - 0.5
    if mode == "pytorch_half_pixel":
        return select(less(1, whole), unscaled(result + 0.5) - 0.5, 0)
    if mode == "half_pixel_symmetric":
        return unscaled(result + 0.5 - after / 2) + (before - 1) / 2  # from the middle outwards
    if mode == "tf_half_pixel_for_nn":
        return unscaled(result + 0.5)
    if mode == "asymmetric":
        return unscaled(result)
    if mode == "align_corners":
        return select(less(1, whole), result * (before - 1) / (whole - 1), 0)
    if mode == "tf_crop_and_resize" and by.start is not None and by.end is not None:
        start, end, last = cast(by.start, types.f64), cast(by.end, types.f64), before - 1
        within = select(less(1, whole), result * (end - start) * last / (whole - 1), (end - start) * last / 2)
        return within + start * last
    raise ShapeError(f"resampling: {mode!r} is no mode of transforming coordinates")


# ---- nearest -------------------------------------------------------------------------------------------------------

NEAREST: dict[str, Callable[[Node], Node]] = {
    "round_prefer_floor": lambda x: ceil(x - 0.5),
    "round_prefer_ceil": lambda x: floor(x + 0.5),
    "floor": floor,
    "ceil": ceil,
}


def nearest(x: Node, axis: int, place: Node, rounding: str = "round_prefer_floor") -> Node:
    """The element of ``x`` nearest to each of ``place`` (float64) along ``axis``; the ends are repeated."""
    last = x.shape[axis] - 1
    index = clamp(cast(NEAREST[rounding](place), types.i64), 0, dim(last))
    return _picked(x, axis, _fixed(index))


def _picked(x: Node, axis: int, index: Node) -> Node:
    """``x`` at ``index [n]`` along ``axis``: a view where the positions are equally spaced, or each is repeated equally
    often."""
    if index.op is not ops.CONSTANT or index.size == 0:
        return gather(x, index, axis)
    array = index.attr.array
    steps = np.diff(array)
    if (steps == steps[:1]).all():
        return slice_(x, axis, int(array[0]), len(array), int(steps[0]) if steps.size else 1)
    times = int((array == array[0]).sum())
    if (array == array[0] + np.arange(len(array)) // times).all():
        shape = (*x.shape[:axis], len(array), *x.shape[axis + 1 :])
        over = list(axes(shape))
        over[axis] = sym.floordiv(over[axis], times) + int(array[0])
        return view(x, shape, over)
    return gather(x, index, axis)


# ---- weighted ------------------------------------------------------------------------------------------------------


def linear_kernel(distance: Node) -> Node:
    """``1 - |d|`` within a distance of 1."""
    return maximum(1 - abs_(distance), 0)


def cubic_kernel(a: float) -> Kernel:
    """Cubic convolution of parameter ``a``, within a distance of 2 (Keys, 1981)."""

    def kernel(distance: Node) -> Node:
        d = abs_(distance)
        near = ((d * (a + 2) - (a + 3)) * d) * d + 1
        far = ((d * a - 5 * a) * d + 8 * a) * d - 4 * a
        return where(less(1, d), where(less(d, 2), far, 0), near)

    return kernel


def weighted(
    x: Node, axis: int, place: Node, kernel: Kernel, support: int, shrink: float = 1.0, exclude_outside: bool = False
) -> Node:
    """``x`` interpolated at ``place`` (float64) along ``axis``: the elements within ``support`` under the weights that
    ``kernel`` gives to their distances.

    ``shrink`` below 1 widens the kernel to ``support / shrink`` elements, and the weights then sum to 1: this is
    antialiasing. Beyond the ends the last element is repeated, or with ``exclude_outside`` the taps there get no weight
    and the others are made to sum to 1.
    """
    first = math.floor(-support / shrink) + 1
    count = 2 - 2 * first
    base = floor(place)
    offset = cast(iota(count) + first, types.f64)
    tap = unsqueeze(base, [1]) + offset
    weights = kernel((tap - unsqueeze(place, [1])) * shrink)
    last = _number(x.shape[axis] - 1)
    if exclude_outside:
        weights = select(less(tap, 0) | less(last, tap), 0, weights)
    if exclude_outside or shrink < 1:
        total = reduce(ops.SUM_REDUCE, weights, [1])
        weights = weights / unsqueeze(total, [1])
    index = _fixed(cast(clamp(tap, 0, last), types.i64))
    factors = reshape(_fixed(cast(weights, x.dtype)), [place.size, count, *[1] * (x.rank - 1 - axis)])
    return reduce(ops.SUM_REDUCE, gather(x, index, axis) * factors, [axis + 1])


def _fixed(node: Node) -> Node:
    """A value computed from known sizes, as a constant."""
    value = interp.constant_value(node)
    return node if value is None else constant(value)


# ---- several axes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """What is done along every axis: ``kind`` is ``nearest``, ``linear`` or ``cubic``, ``transform`` a mode of
    ``positions``."""

    kind: str
    transform: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    outside: float = 0.0


def resample(x: Node, along: Sequence[Resampling], method: Method) -> Node:
    """``x`` resampled along several axes (ONNX Resize).

    Integers are interpolated in float64, rounded to nearest even and saturated. Raises ShapeError where antialiasing
    needs a ratio of sizes that is not known.
    """
    dtype = x.dtype
    interpolated = method.kind != "nearest"
    if interpolated:
        x = cast(x, dtype.compute if dtype.is_float else types.f64)
    outside: Node | None = None
    for by in along:
        extent = x.shape[by.axis]
        cropped = method.transform == "tf_crop_and_resize"
        if by.size == extent and (by.scale is None or by.scale == 1) and not cropped:
            continue
        place = positions(extent, by, method.transform)
        if not interpolated:
            x = nearest(x, by.axis, place, method.rounding)
        else:
            kernel, support = (linear_kernel, 1) if method.kind == "linear" else (cubic_kernel(method.cubic), 2)
            shrink = _shrink(extent, by) if method.antialias else 1.0
            x = weighted(x, by.axis, place, kernel, support, shrink, method.exclude_outside)
        if cropped:
            beyond = less(place, 0) | less(_number(extent - 1), place)
            beyond = reshape(_fixed(beyond), [by.size, *[1] * (x.rank - 1 - by.axis)])
            outside = beyond if outside is None else outside | beyond
    if interpolated and dtype.is_integer:
        x = clamp(round_(x), float(dtype.min), float(dtype.max))
    x = cast(x, dtype)
    return x if outside is None else select(outside, method.outside, x)


def _shrink(extent: Int, by: Resampling) -> float:
    if by.scale is not None:
        return min(by.scale, 1.0)
    if isinstance(extent, int) and isinstance(by.size, int):
        return min(by.size / extent, 1.0)
    raise ShapeError(f"resampling: antialiasing from {extent} to {by.size} elements needs known sizes")
