"""Operators that sample images at computed positions: grids, regions of interest, deformable convolution."""

from __future__ import annotations

from luminal.core.decompose import sampling
from luminal.core.errors import ModelError
from luminal.core.ir import Node
from luminal.core.movement import reshape, slice_
from luminal.frontends.onnx.registry import Call, exactly, operator
from luminal.frontends.onnx.windows import kernel_window

# Opset 16 named them by their number of axes.
_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}


@operator("GridSample", since=16)
def _grid_sample(call: Call) -> Node:
    mode = _MODES[call.choice("mode", "linear", _MODES)]
    padding = call.choice("padding_mode", "zeros", sampling.PADDINGS)
    return sampling.grid_sample(call[0], call[1], mode, padding, call.flag("align_corners"))


operator("RoiAlign")(lambda call: _roi_align(call, 0.0))


@operator("RoiAlign", since=16)
def _roi_align_by_mode(call: Call) -> Node:
    mode = call.choice("coordinate_transformation_mode", "half_pixel", ("half_pixel", "output_half_pixel"))
    return _roi_align(call, 0.5 if mode == "half_pixel" else 0.0)


def _roi_align(call: Call, offset: float) -> Node:
    samples = call.integer("sampling_ratio", 0)
    size = (call.integer("output_height", 1), call.integer("output_width", 1))
    largest = call.choice("mode", "avg", ("avg", "max")) == "max"
    return sampling.roi_align(
        call[0], call[1], call[2], size, samples, call.number("spatial_scale", 1.0), offset, largest
    )


@operator("MaxRoiPool")
def _max_roi_pool(call: Call) -> Node:
    """Regions are rows of the image's number and two corners."""
    size = call.integers("pooled_shape") or []
    exactly(size, 2, "sizes in pooled_shape")
    x, regions = call[0], call[1]
    if x.rank != 4 or regions.rank != 2 or regions.shape[1] != 5:
        raise ModelError(f"expected [N, C, H, W] and regions [R, 5], found {list(x.shape)} and {list(regions.shape)}")
    number = reshape(slice_(regions, 1, 0, 1), [regions.shape[0]])
    corners = slice_(regions, 1, 1, 4)
    return sampling.roi_max_pool(x, corners, number, (size[0], size[1]), call.number("spatial_scale", 1.0))


@operator("DeformConv")
def _deform_conv(call: Call) -> Node:
    x, weight = call[0], call[1]
    over = kernel_window(call, x, weight)
    return sampling.deform_conv(
        x, weight, call[2], call.get(3), call.get(4), over.strides, over.pads_begin, over.dilations,
        call.integer("group", 1), call.integer("offset_group", 1),
    )  # fmt: skip
