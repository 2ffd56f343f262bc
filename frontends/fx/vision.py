"""Operators on regions of images, as torchvision defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from luminal.core import types
from luminal.core.decompose import sampling, selection, suppression
from luminal.core.ir import Node, cast, constant
from luminal.core.movement import reshape, slice_, unsqueeze
from luminal.core.symbolic import Int
from luminal.frontends.fx.registry import register


def non_maximum_suppression(dets: Node, scores: Node, iou_threshold: float) -> Node:
    """The numbers of the boxes that are kept, by falling score. Overlaps are compared in double precision with the
    threshold, so of narrower types with the largest number that is not above it."""
    dtype = dets.dtype.compute
    threshold = dtype.numpy.type(iou_threshold)
    if float(threshold) > iou_threshold:
        threshold = np.nextafter(threshold, dtype.numpy.type(-np.inf))
    boxes, ranked = unsqueeze(cast(dets, dtype), [0]), unsqueeze(cast(scores, dtype), [0, 1])
    most = constant(np.iinfo(np.int64).max, types.i64)
    kept, order = suppression.suppressed(boxes, ranked, most, constant(float(threshold), dtype), None)
    return selection.masked_select(reshape(order, [order.size]), reshape(kept, [kept.size]))


def _regions(rois: Node) -> tuple[Node, Node]:
    """The corners ``[R, 4]``, and the image of each."""
    return slice_(rois, 1, 1, 4), reshape(slice_(rois, 1, 0, 1), [rois.shape[0]])


def roi_align(
    input: Node, rois: Node, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    aligned: bool,
) -> Node:  # fmt: skip
    wide = input.dtype.compute
    regions, batch = _regions(cast(rois, wide))
    size, samples, offset = (pooled_height, pooled_width), max(sampling_ratio, 0), 0.5 if aligned else 0.0
    found = sampling.roi_align(cast(input, wide), regions, batch, size, samples, spatial_scale, offset)
    return cast(found, input.dtype)


def roi_pool(input: Node, rois: Node, spatial_scale: float, pooled_height: int, pooled_width: int) -> tuple[Node, None]:
    """The second result is for gradients."""
    regions, batch = _regions(rois)
    return sampling.roi_max_pool(input, regions, batch, (pooled_height, pooled_width), spatial_scale), None


def deform_conv2d(
    input: Node, weight: Node, offset: Node, mask: Node, bias: Node, stride_h: int, stride_w: int, pad_h: Int,
    pad_w: Int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int, use_mask: bool,
) -> Node:  # fmt: skip
    return sampling.deform_conv(
        input, weight, offset, bias, mask if use_mask else None, [stride_h, stride_w], [pad_h, pad_w],
        [dilation_h, dilation_w], groups, offset_groups,
    )  # fmt: skip


_HANDLERS: dict[str, Callable[..., Any]] = {
    "nms": non_maximum_suppression,
    "roi_align": roi_align,
    "roi_pool": roi_pool,
    "deform_conv2d": deform_conv2d,
}
for _name, _handler in _HANDLERS.items():
    register(f"torchvision.{_name}.default", _handler)
