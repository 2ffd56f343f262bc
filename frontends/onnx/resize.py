"""Resize and its predecessor Upsample."""

from __future__ import annotations

import math
from collections.abc import Sequence

from luminal.core import symbolic as sym
from luminal.core.decompose.resample import NEAREST, Method, Resampling, resample, scaled_size
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node
from luminal.core.movement import reshape, slice_
from luminal.frontends.onnx.registry import Call, exactly, operator, wrap_axis

_TRANSFORMS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)  # fmt: skip


def _by_scales(x: Node, axes: Sequence[int], scales: Sequence[float]) -> list[Resampling]:
    exactly(scales, len(axes), "scales")
    if any(not 0 < scale < math.inf for scale in scales):
        raise ModelError(f"expected positive scales, found {list(scales)}")
    return [
        Resampling(axis, scaled_size(x.shape[axis], scale), scale) for axis, scale in zip(axes, scales, strict=True)
    ]


@operator("Upsample")
def _upsample_by_attribute(call: Call) -> Node:
    if call.opset < 7:
        return _upsample(call, [1, 1, call.number("height_scale"), call.number("width_scale")])
    scales = call.numbers("scales")
    if scales is None:
        raise ModelError("the attribute 'scales' is required")
    return _upsample(call, scales)


operator("Upsample", since=9)(lambda call: _upsample(call, call.array(1).tolist()))


@operator("Resize")
def _resize_by_scales(call: Call) -> Node:
    """Opset 10: as Upsample, and it may also make smaller."""
    return _upsample(call, call.array(1).tolist())


def _upsample(call: Call, scales: Sequence[float]) -> Node:
    x, kind = call[0], call.choice("mode", "nearest", ("nearest", "linear"))
    return resample(x, _by_scales(x, range(x.rank), scales), Method(kind, "asymmetric", "floor"))


@operator("Resize", since=11)
def _resize(call: Call) -> Node:
    x = call[0]
    given = call.integers("axes")
    axes = list(range(x.rank)) if given is None else [wrap_axis(axis, x.rank) for axis in given]
    method = Method(
        call.choice("mode", "nearest", ("nearest", "linear", "cubic")),
        call.choice("coordinate_transformation_mode", "half_pixel", _TRANSFORMS),
        call.choice("nearest_mode", "round_prefer_floor", tuple(NEAREST)),
        call.number("cubic_coeff_a", -0.75),
        call.flag("antialias"),
        call.flag("exclude_outside"),
        call.number("extrapolation_value", 0.0),
    )
    if method.kind == "nearest" and method.antialias:
        raise ModelError("mode 'nearest' has no antialiasing")
    policy = call.choice("keep_aspect_ratio_policy", "stretch", ("stretch", "not_larger", "not_smaller"))
    scales = call.get(2)
    if scales is not None and scales.size != 0:
        if not scales.dtype.is_float:
            raise ModelError(f"expected scales of a float type, found {scales.dtype}")
        along = _by_scales(x, axes, call.array(2).tolist())
    else:
        sizes = call.values(3)
        exactly(sizes, len(axes), "sizes")
        along = [Resampling(axis, size) for axis, size in zip(axes, sizes, strict=True)]
        along = along if policy == "stretch" else _kept_in_proportion(x, along, policy)
    if method.transform == "tf_crop_and_resize":
        along = _cropped(call[1], along)
    return resample(x, along, method)


def _kept_in_proportion(x: Node, along: Sequence[Resampling], policy: str) -> list[Resampling]:
    """One scale for all axes: the smallest or the largest of those that the sizes ask for; ties of halves round up."""
    extents: list[int] = []
    ratios: list[float] = []
    for by in along:
        extent = x.shape[by.axis]
        if not isinstance(by.size, int) or not isinstance(extent, int):
            raise UnsupportedError(
                f"keep_aspect_ratio_policy from {extent} to {by.size}: fix the sizes with {sym.fixing(extent, by.size)}"
            )
        extents.append(extent)
        ratios.append(by.size / extent)
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [
        Resampling(by.axis, math.floor(extent * scale + 0.5), scale) for by, extent in zip(along, extents, strict=True)
    ]


def _cropped(roi: Node, along: Sequence[Resampling]) -> list[Resampling]:
    """``roi`` holds the starts of all axes, then their ends."""
    exactly(range(roi.size if isinstance(roi.size, int) else 0), 2 * len(along), "elements of the region of interest")
    bounds = [reshape(slice_(roi, 0, k, 1), []) for k in range(2 * len(along))]
    return [
        Resampling(by.axis, by.size, by.scale, start, end)
        for by, start, end in zip(along, bounds[: len(along)], bounds[len(along) :], strict=True)
    ]
