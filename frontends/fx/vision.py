"""Operators on regions of images, as torchvision defines them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

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


# ---- functions of torchvision that ask how many boxes there are ------------------------------------------------------


@contextmanager
def any_boxes() -> Iterator[None]:
    """Around the export of a module, inside ``exporting``, which admits one thread at a time: functions of torchvision
    that branch by a number of boxes, or take it as an integer, give the same results by a program for any number.
    Nothing changes where torchvision is not in use."""
    with ExitStack() as stack:
        for module, path, function in _OF_ANY_NUMBER:
            owner: Any = sys.modules.get(module)
            *owners, name = path.split(".")
            for part in owners if owner is not None else ():
                owner = getattr(owner, part, None)
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, function))
        yield


def _batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """Suppression among boxes of one class, by moving those of each class to a place of its own: what torchvision does
    with few boxes. (With many it takes the classes one by one, to save time.) No boxes have no largest coordinate."""
    lowest = boxes.new_full((1,), -torch.inf)
    largest = torch.cat([boxes.flatten(), lowest]).max()
    moved = boxes + (idxs.to(boxes) * (largest + 1))[:, None]
    kept: Tensor = torch.ops.torchvision.nms(moved, scores, iou_threshold)
    return kept


def _multiscale_roi_align(
    x_filtered: list[Tensor], boxes: list[Tensor], output_size: list[int], sampling_ratio: int,
    scales: list[float] | None, mapper: Callable[[list[Tensor]], Tensor] | None,
) -> Tensor:  # fmt: skip
    """Each region in the feature map of its level."""
    if scales is None or mapper is None:
        raise ValueError("scales and mapper should not be None")
    images = [part.new_full((part.shape[0], 1), number) for number, part in enumerate(boxes)]
    rois = torch.cat([torch.cat(images), torch.cat(boxes)], 1)

    def aligned(x: Tensor, regions: Tensor, scale: float) -> Tensor:
        height, width = output_size
        found: Tensor = torch.ops.torchvision.roi_align(x, regions, scale, height, width, sampling_ratio, False)
        return found

    if len(x_filtered) == 1:
        return aligned(x_filtered[0], rois, scales[0])
    levels = mapper(boxes)
    result = x_filtered[0].new_zeros((rois.shape[0], x_filtered[0].shape[1], *output_size))
    for level, (x, scale) in enumerate(zip(x_filtered, scales, strict=True)):
        (places,) = torch.where(levels == level)
        result[places] = aligned(x, rois[places], scale).to(result.dtype)
    return result


def _decode(self: Any, rel_codes: Tensor, boxes: list[Tensor]) -> Tensor:
    """The boxes of each class, from offsets relative to ``boxes``, a row for each of these, as its callers give them.
    (Torchvision gives no boxes another shape, so it asks whether there are any.)"""
    decoded: Tensor = self.decode_single(rel_codes.flatten(1), torch.cat(boxes))
    return decoded.reshape(decoded.shape[0], decoded.shape[1] // 4, 4)


_OF_ANY_NUMBER: tuple[tuple[str, str, Callable[..., Tensor]], ...] = (
    ("torchvision.ops.boxes", "batched_nms", _batched_nms),
    ("torchvision.ops.poolers", "_multiscale_roi_align", _multiscale_roi_align),
    ("torchvision.models.detection._utils", "BoxCoder.decode", _decode),
)
