"""Values between the elements of an image, at places that the data of a call give: grid sampling, regions of interest,
deformable convolution.

An image is ``[N, C, *spatial]``; a place has one coordinate for each spatial axis, in elements, the first at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core.decompose.arithmetic import abs_, ceil, floor, remainder, round_, round_away
from luminal.core.decompose.common import count, lowest, require_axes, require_float, widened
from luminal.core.decompose.compare import clamp, less, less_equal, maximum
from luminal.core.decompose.reduction import max_
from luminal.core.decompose.resample import cubic_kernel, linear_kernel
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, binary, broadcast, cast, constant, dim, expand, gather, iota, reduce, select
from luminal.core.movement import permute, reshape, slice_, unsqueeze
from luminal.core.structured import while_loop
from luminal.core.symbolic import Int

LARGEST = 4  # how many times as long as the image a cell of a region counts as
PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class Interpolation:
    """``taps`` elements on either side, in all, under ``kernel`` of their distances."""

    kernel: Callable[[Node], Node] | None
    taps: int


INTERPOLATIONS = {
    "nearest": Interpolation(None, 1),
    "linear": Interpolation(linear_kernel, 2),
    "cubic": Interpolation(cubic_kernel(-0.75), 4),
}


@dataclass(frozen=True)
class Taps:
    """The elements around places ``[B, *P]``: ``values`` are ``[B, *P, taps.., C]`` and ``weights``
    ``[B, *P, taps.., 1]``, or None for one tap that counts whole."""

    values: Node
    weights: Node | None
    rank: int

    def interpolated(self) -> Node:
        """Their weighted sum, ``[B, C, *P]``."""
        axes = range(self.rank, self.values.rank - 1)
        if self.weights is None:
            result = reshape(self.values, [*self.values.shape[: self.rank], self.values.shape[-1]])
        else:
            result = reduce(ops.SUM_REDUCE, self.values * self.weights, axes)
        return permute(result, [0, self.rank, *range(1, self.rank)])


def taps(
    x: Node, places: Sequence[Node], batch: Node | None = None, mode: str = "linear", padding: str = "zeros",
    align_corners: bool = False, rounded_inside: bool = False,
) -> Taps:  # fmt: skip
    """The elements of ``x [N, C, *spatial]`` around ``places``, one value of shape ``[B, *P]`` for each spatial axis.

    ``batch [B]`` (int64) says which image each place belongs to; by default they are in order. Outside, an element is
    0 (``zeros``), the nearest at the border, or its reflection about the centres of the outermost elements
    (``align_corners``) or about their outer edges. The nearest element is that to the place itself, or with
    ``rounded_inside`` to the place that was brought inside.
    """
    spatial, sizes = x.rank - 2, x.shape[2:]
    if len(places) != spatial:
        raise ShapeError(f"sampling: {len(places)} coordinates for the {spatial} spatial axes of {list(x.shape)}")
    places = broadcast(*places)
    shape = places[0].shape
    images = iota(x.shape[0]) if batch is None else batch
    index = reshape(images, [shape[0], *[1] * (len(shape) - 1 + spatial)])
    inside: Node | None = None
    weights: Node | None = None
    by = INTERPOLATIONS[mode]
    for k, (place, size) in enumerate(zip(places, sizes, strict=True)):
        if by.kernel is None and not rounded_inside:
            place = round_(place)
        if padding != "zeros" and mode != "cubic":  # whose taps alone are brought inside, as in PyTorch
            low, high = _bounds(size, place, align_corners)
            place = select(less(place, low) | less(high, place), _inside(place, size, padding, align_corners), place)
        if by.kernel is None and rounded_inside:
            place = round_(place)
        own = [*shape, *(by.taps if j == k else 1 for j in range(spatial))]
        offset = cast(iota(by.taps) + (1 - by.taps // 2 if by.taps > 1 else 0), place.dtype)
        tap = reshape(unsqueeze(floor(place), [place.rank]) + offset, own)
        if by.kernel is not None:
            weight = by.kernel(tap - reshape(place, [*shape, *[1] * spatial]))
            weights = weight if weights is None else weights * weight
        if padding == "zeros":
            fits = less(-1, tap) & less(tap, count(size, tap.dtype))
            inside = fits if inside is None else inside & fits
        else:
            tap = _inside(tap, size, padding, align_corners)
        index = index * dim(size) + clamp(cast(tap, types.i64), 0, dim(size - 1))
    rows = reshape(permute(x, [0, *range(2, x.rank), 1]), [x.shape[0] * sym.product(sizes), x.shape[1]])
    values = gather(rows, index, 0)
    if inside is not None:
        values = select(unsqueeze(inside, [inside.rank]), values, 0)
    weights = None if weights is None else unsqueeze(cast(weights, x.dtype), [weights.rank])
    return Taps(values, weights, len(shape))


def _bounds(size: Int, like: Node, align_corners: bool) -> tuple[Node, Node]:
    edge = 0.0 if align_corners else 0.5
    last = count(size - 1, like.dtype)
    return last * 0 - edge, last + edge


def _inside(place: Node, size: Int, padding: str, align_corners: bool) -> Node:
    """A place brought inside: by clamping, or by reflection about both bounds."""
    if padding == "border":
        return clamp(place, 0, count(size - 1, place.dtype))
    low, high = _bounds(size, place, align_corners)
    span = high - low
    distance = remainder(abs_(place - low), maximum(span * 2, 1))
    return low + select(less(span, distance), span * 2 - distance, distance)


def grid_sample(
    x: Node, grid: Node, mode: str = "linear", padding: str = "zeros", align_corners: bool = False,
    rounded_inside: bool = False,
) -> Node:  # fmt: skip
    """``x [N, C, *spatial]`` at ``grid [N, *P, spatial]``: ``[N, C, *P]`` (ONNX GridSample; torch grid_sample with
    ``rounded_inside``, see ``taps``).

    Coordinates run from -1 to 1 over an axis, the last axis of ``x`` first; 1 is the centre of the last element
    (``align_corners``) or its outer edge.
    """
    require_axes(x, 3, "grid sampling")
    spatial = x.rank - 2
    if grid.rank != x.rank or grid.shape[-1] != spatial:
        raise ShapeError(f"grid sampling: a grid of shape {list(grid.shape)} does not fit {list(x.shape)}")
    if mode != "nearest":
        require_float(x, "grid sampling")
    dtype = types.f64 if types.f64 in (x.dtype, grid.dtype) else types.f32
    wide = cast(grid, dtype)
    places: list[Node] = []
    for axis, size in enumerate(x.shape[2:]):
        at = reshape(slice_(wide, -1, spatial - 1 - axis, 1), grid.shape[:-1])
        extent = count(size, dtype)
        places.append((at + 1) / 2 * (extent - 1) if align_corners else ((at + 1) * extent - 1) / 2)
    source = cast(x, x.dtype.compute) if mode != "nearest" else x
    return cast(taps(source, places, None, mode, padding, align_corners, rounded_inside).interpolated(), x.dtype)


@widened
def roi_align(
    x: Node, regions: Node, batch: Node, size: tuple[int, int], samples: int, scale: float, offset: float,
    largest: bool = False,
) -> Node:  # fmt: skip
    """Each of ``regions [R, 4]`` (left, top, right, bottom) of image ``batch [R]`` as ``[R, C, *size]``: the mean over
    ``samples`` by ``samples`` places in each cell (He et al., 2017); 0 samples are as many as a cell of the region has
    elements along each axis, which a loop takes one by one: along each at most ``LARGEST`` times the image's longer
    side, which no region inside the image comes near, so that one without end does not take forever.

    Coordinates are multiplied by ``scale``, then ``offset`` is subtracted; without an offset, regions are at least one
    element wide. With ``largest`` a cell is the largest of the weighted elements around its places (ONNX RoiAlign).
    """
    r = regions.shape[0]
    bounds = [reshape(slice_(regions, 1, k, 1), [r, 1, 1]) * scale - offset for k in range(4)]
    starts, extents = bounds[1::-1], [bounds[3] - bounds[1], bounds[2] - bounds[0]]
    if not offset:
        extents = [maximum(extent, 1) for extent in extents]
    sides = [extent / cells for extent, cells in zip(extents, size, strict=True)]
    number = cast(batch, types.i64)

    def pooled(within: Sequence[Node]) -> Node:
        """``[R, *size, C]`` of the samples at places ``within`` a cell, of 0 to 1, ``[R or 1, 1, samples]``."""
        places: list[Node] = []
        outside: Node | None = None
        for axis, cells in enumerate(size):
            place = starts[axis] + (reshape(cast(iota(cells), x.dtype), [cells, 1]) + within[axis]) * sides[axis]
            ends = count(x.shape[2 + axis], x.dtype)
            beyond = less(place, -1) | less(ends, place)
            taken = within[axis].shape[2]
            split: list[Int] = [r, cells, taken, 1, 1] if axis == 0 else [r, 1, 1, cells, taken]
            places.append(reshape(clamp(place, 0, ends - 1), split))
            outside = reshape(beyond, split) if outside is None else outside | reshape(beyond, split)
        assert outside is not None
        found = taps(x, places, number, "linear", "border")
        assert found.weights is not None
        terms = select(reshape(outside, [*outside.shape, 1, 1, 1]), 0, found.values * found.weights)
        # Of [R, rows, samples, columns, samples, taps, taps, C].
        return reduce(ops.MAX_REDUCE if largest else ops.SUM_REDUCE, terms, [2, 4, 5, 6])

    if samples:
        regular = reshape((cast(iota(samples), x.dtype) + 0.5) / samples, [1, 1, samples])
        result = pooled([regular, regular])
        return permute(result if largest else result / (samples * samples), [0, 3, 1, 2])
    limit = count(sym.maximum(x.shape[2], x.shape[3]) * LARGEST, x.dtype)
    rows, columns = (cast(clamp(ceil(side), 0, limit), types.i64) for side in sides)
    shape = [r, *size, x.shape[1]]

    def more(carried: Sequence[Node]) -> Node:
        return less(carried[0], max_(rows * columns))

    def step(carried: Sequence[Node]) -> Sequence[Node]:
        at, total = carried
        width = maximum(columns, 1)
        index = [binary(ops.DIV, at, width), binary(ops.MOD, at, width)]
        within = [
            (cast(k, x.dtype) + 0.5) / cast(maximum(most, 1), x.dtype)
            for k, most in zip(index, (rows, columns), strict=True)
        ]
        value = pooled(within)
        joined = maximum(total, value) if largest else total + value
        return at + 1, select(reshape(less(at, rows * columns), [r, 1, 1, 1]), joined, total)

    nothing = expand(constant(lowest(x) if largest else 0.0, x.dtype), shape)
    _, total = while_loop(more, step, [constant(0, types.i64), nothing])
    taken = reshape(rows * columns, [r, 1, 1, 1])
    result = total if largest else total / cast(maximum(taken, 1), x.dtype)
    return permute(select(less(0, taken), result, 0), [0, 3, 1, 2])


def roi_max_pool(x: Node, regions: Node, batch: Node, size: tuple[int, int], scale: float) -> Node:
    """The largest element in each of ``size`` cells of each of ``regions [R, 4]`` (left, top, right, bottom, the ends
    included) of image ``batch [R]``, as ``[R, C, *size]``; 0 for a cell outside of the image (Girshick, 2015).

    Corners are multiplied by ``scale`` and rounded, halves away from zero. Rows are pooled first, then columns: each
    takes time as the image is large, for each cell.
    """
    r = regions.shape[0]
    corners = [round_away(reshape(slice_(regions, 1, k, 1), [r, 1]) * scale) for k in range(4)]
    result = gather(x, cast(batch, types.i64), 0)
    inside: list[Node] = []
    for axis, cells in enumerate(size):
        start, length = corners[1 - axis], corners[3 - axis]
        extent = maximum(length - start + 1, 1) / cells
        cell = cast(iota(cells), x.dtype)
        first, last = floor(cell * extent) + start, ceil((cell + 1) * extent) + start
        place = cast(iota(x.shape[2 + axis]), x.dtype)
        inside.append(less_equal(unsqueeze(first, [2]), place) & less(place, unsqueeze(last, [2])))
    for axis, within in enumerate(inside):  # [R, C, H, W] to [R, C, rows, W] to [R, C, rows, columns]
        other = [1, 4] if axis == 0 else [1, 2]
        row = select(unsqueeze(within, other), unsqueeze(result, [2 + axis]), lowest(x))
        result = reduce(ops.MAX_REDUCE, row, [3 + axis])
    rows, columns = (reduce(ops.MAX_REDUCE, within, [2]) for within in inside)
    return select(unsqueeze(rows, [1, 3]) & unsqueeze(columns, [1, 2]), result, 0)


@widened
def deform_conv(
    x: Node, weight: Node, offsets: Node, bias: Node | None, mask: Node | None, strides: Sequence[int],
    pads_begin: Sequence[Int], dilations: Sequence[int], groups: int = 1, offset_groups: int = 1,
) -> Node:  # fmt: skip
    """A convolution whose taps are displaced by ``offsets`` and weighted by ``mask`` (Dai et al., 2017; Zhu et al.,
    2019).

    ``x`` is ``[N, C, *spatial]``, ``weight`` ``[M, C/groups, *kernel]``, ``offsets``
    ``[N, offset_groups * taps * axes, *windows]``, ``mask`` ``[N, offset_groups * taps, *windows]``; the result is
    ``[N, M, *windows]``. Elements outside are zero.
    """
    spatial, batch, channels = x.rank - 2, x.shape[0], x.shape[1]
    filters, per_group, *kernel = weight.shape
    depth = per_group * sym.product(kernel)
    windows = offsets.shape[2:]
    if per_group * groups != channels or sym.mod(channels, offset_groups) != 0 or sym.mod(filters, groups) != 0:
        raise ShapeError(f"deformable convolution: groups do not fit {list(x.shape)} and {list(weight.shape)}")
    image = reshape(x, [batch * offset_groups, sym.floordiv(channels, offset_groups), *x.shape[2:]])
    moved = reshape(offsets, [batch * offset_groups, *kernel, spatial, *windows])
    places: list[Node] = []
    for axis in range(spatial):
        window = iota(windows[axis]) * strides[axis] + dim(pads_begin[axis] * -1)
        tap = iota(kernel[axis]) * dilations[axis]
        still = reshape(tap, [kernel[axis], *[1] * (2 * spatial - 1 - axis)]) + reshape(
            window, [windows[axis], *[1] * (spatial - 1 - axis)]
        )
        own = reshape(slice_(moved, 1 + spatial, axis, 1), [batch * offset_groups, *kernel, *windows])
        places.append(own + cast(still, x.dtype))
    sampled = taps(image, places).interpolated()  # [N * offset_groups, C / offset_groups, *kernel, *windows]
    if mask is not None:
        sampled = sampled * reshape(mask, [batch * offset_groups, 1, *kernel, *windows])
    left = permute(
        reshape(sampled, [batch, groups, depth, sym.product(windows)]), [0, 1, 3, 2]
    )  # [N, groups, windows, C/groups * taps]
    right = reshape(weight, [groups, sym.floordiv(filters, groups), 1, depth])
    product = unsqueeze(left, [2]) * right
    result = reshape(reduce(ops.SUM_REDUCE, product, [4]), [batch, filters, *windows])
    return result if bias is None else result + reshape(bias, [1, filters, *[1] * spatial])
