"""Operators on regions of images. Where torchvision is absent, operators of its schemas stand in for its own."""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import luminal
from luminal.frontends.fx import importer
from tests.fx_support import Call, check, floats, run

if importlib.util.find_spec("torchvision") is not None:
    import torchvision  # type: ignore[import-not-found]

    _LIBRARY = None
    assert torchvision
else:
    _LIBRARY = torch.library.Library("torchvision", "DEF")
    _LIBRARY.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _LIBRARY.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )


def overlap(a: torch.Tensor, b: torch.Tensor) -> float:
    """The intersection of two boxes as a part of their union, in the type of the boxes."""
    low, high = torch.maximum(a[:2], b[:2]), torch.minimum(a[2:], b[2:])
    common = (high - low).clamp(min=0).prod()
    return float(common / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - common))


def suppressed(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """One box after the other, the best first."""
    kept: list[int] = []
    for place in scores.argsort(descending=True, stable=True).tolist():
        if all(not overlap(dets[place], dets[other]) > iou_threshold for other in kept):
            kept.append(place)
    return torch.tensor(kept, dtype=torch.int64)


def aligned_regions(
    input: torch.Tensor, rois: torch.Tensor, spatial_scale: float, pooled_height: int, pooled_width: int,
    sampling_ratio: int, aligned: bool,
) -> torch.Tensor:  # fmt: skip
    """Means of bilinear samples, cell by cell (He et al., 2017)."""
    found = []
    height, width = input.shape[-2:]
    for image, *corners in rois.tolist():
        left, top, right, bottom = (c * spatial_scale - (0.5 if aligned else 0) for c in corners)
        tall, wide = bottom - top, right - left
        if not aligned:
            tall, wide = max(tall, 1), max(wide, 1)
        cells = torch.empty(input.shape[1], pooled_height, pooled_width)
        for row in range(pooled_height):
            for column in range(pooled_width):
                samples = []
                for i in range(sampling_ratio):
                    for j in range(sampling_ratio):
                        y = top + tall / pooled_height * (row + (i + 0.5) / sampling_ratio)
                        x = left + wide / pooled_width * (column + (j + 0.5) / sampling_ratio)
                        grid = torch.tensor([[[[2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1]]]])
                        sample = torch.nn.functional.grid_sample(
                            input[int(image)][None], grid.clamp(-1, 1), align_corners=True
                        )
                        outside = y < -1 or y > height or x < -1 or x > width
                        samples.append(sample.flatten() * (0 if outside else 1))
                cells[:, row, column] = torch.stack(samples).mean(0)
        found.append(cells)
    return torch.stack(found)


if _LIBRARY is not None:
    _LIBRARY.impl("nms", suppressed, "CPU")
    _LIBRARY.impl("roi_align", aligned_regions, "CPU")

    @torch.library.register_fake("torchvision::nms", lib=_LIBRARY)
    def _kept(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
        return dets.new_empty([torch.library.get_ctx().create_unbacked_symint()], dtype=torch.int64)

    @torch.library.register_fake("torchvision::roi_align", lib=_LIBRARY)
    def _cells(input: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, *_: Any) -> torch.Tensor:
        return input.new_empty([rois.shape[0], input.shape[1], height, width])


V = torch.ops.torchvision


def boxes(count: int, seed: int = 0) -> torch.Tensor:
    corners = floats(count, 2, seed=seed).abs() * 4
    return torch.cat([corners, corners + floats(count, 2, seed=seed + 1).abs() * 3 + 0.1], 1)


SCORES = floats(30, seed=5)
TIED = (SCORES * 2).round()
SQUARE = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
# Their overlap is 3 / 10 rounded to float32, which is above 0.3.
EDGE = torch.tensor([[0.0, 0.0, 10.0, 1.0], [7.0, 0.0, 10.0, 1.0]])
SUPPRESSED: dict[str, tuple[torch.Tensor, torch.Tensor, float]] = {
    "some": (boxes(30), SCORES, 0.3),
    "ties": (boxes(30), TIED, 0.3),
    "all": (boxes(30), SCORES, 1.0),
    "one": (SQUARE.repeat(4, 1), SCORES[:4], 0.5),
    "a threshold between two numbers": (EDGE, SCORES[:2], 0.3),
    "doubles": (boxes(30).double(), SCORES.double(), 0.2),
    "a single box": (SQUARE, SCORES[:1], 0.5),
    "none": (SQUARE[:0], SCORES[:0], 0.5),
}


@pytest.mark.parametrize("case", SUPPRESSED)
def test_boxes_that_overlap_a_better_one_are_left_out(case: str) -> None:
    dets, scores, threshold = SUPPRESSED[case]
    graph = importer.load(Call(lambda dets, scores: V.nms(dets, scores, threshold)), (dets, scores))
    (found,) = run(graph, (dets, scores))
    assert found.tolist() == suppressed(dets, scores, threshold).tolist()


def test_what_is_kept_is_read_from_other_tensors() -> None:
    """As many rows as a run finds; a library serves every number of them."""

    def detections(dets: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        kept = V.nms(dets + labels[:, None] * 100, scores, 0.3)[:10]
        return {"boxes": dets[kept], "scores": scores[kept], "labels": labels[kept]}

    labels = torch.arange(30) % 3
    module = Call(detections)
    compiled = luminal.compile(module, (boxes(30), SCORES, labels))
    for dets in (boxes(30), boxes(30, seed=7), SQUARE.repeat(30, 1)):
        kept = suppressed(dets + labels[:, None] * 100, SCORES, 0.3)[:10]
        found = compiled(dets, SCORES, labels)
        assert torch.equal(found["boxes"], dets[kept]) and torch.equal(found["labels"], labels[kept])
        assert torch.equal(found["scores"], SCORES[kept])


REGIONS = torch.cat([torch.tensor([[0.0], [1.0], [1.0]]), boxes(3, seed=3)], 1)
ALIGNED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "as they are": lambda x, r: V.roi_align(x, r, 1.0, 2, 3, 2, False),
    "scaled": lambda x, r: V.roi_align(x, r, 0.5, 2, 2, 1, False),
    "shifted": lambda x, r: V.roi_align(x, r, 0.75, 3, 2, 2, True),
}


@pytest.mark.parametrize("case", ALIGNED)
def test_means_over_regions(case: str) -> None:
    check(ALIGNED[case], floats(2, 3, 9, 8), REGIONS, tolerance=5e-6)


# ---- functions of torchvision that ask how many boxes there are ------------------------------------------------------


def classes_apart(boxes: torch.Tensor, scores: torch.Tensor, idxs: torch.Tensor, threshold: float) -> torch.Tensor:
    """Suppression in each class by itself, then all by falling score."""
    kept = [torch.empty(0, dtype=torch.int64)]
    for label in set(idxs.tolist()):
        places = torch.where(idxs == label)[0]
        kept.append(places[suppressed(boxes[places], scores[places], threshold)])
    found = torch.cat(kept)
    return found[scores[found].argsort(descending=True, stable=True)]


def regions_in_levels(
    x_filtered: list[torch.Tensor], boxes: list[torch.Tensor], output_size: list[int], sampling_ratio: int,
    scales: list[float], mapper: Callable[[list[torch.Tensor]], torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Region by region, each in the feature map of its level."""
    images = torch.cat([torch.full((len(part), 1), float(number)) for number, part in enumerate(boxes)])
    rois = torch.cat([images, torch.cat(boxes)], 1)
    cells = [
        aligned_regions(x_filtered[level], roi[None], scales[level], *output_size, sampling_ratio, False)
        for level, roi in zip(mapper(boxes).tolist(), rois, strict=True)
    ]
    return torch.cat([torch.empty(0, x_filtered[0].shape[1], *output_size), *cells])


def level_of(boxes: list[torch.Tensor]) -> torch.Tensor:
    """Large regions are looked up in the small map."""
    corners = torch.cat(boxes)
    return ((corners[:, 2:] - corners[:, :2]).prod(1) > 3).to(torch.int64)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Torchvision's modules of boxes and of poolers, or such with the functions above."""
    if _LIBRARY is None:
        return torchvision.ops.boxes, torchvision.ops.poolers
    made: dict[str, Any] = {"boxes": classes_apart, "poolers": regions_in_levels}
    for (name, function), entry in zip(made.items(), ("batched_nms", "_multiscale_roi_align"), strict=True):
        module = ModuleType(name)
        setattr(module, entry, function)
        monkeypatch.setitem(sys.modules, f"torchvision.ops.{name}", module)
    return sys.modules["torchvision.ops.boxes"], sys.modules["torchvision.ops.poolers"]


def test_boxes_are_suppressed_class_by_class_whatever_their_number(library: tuple[Any, Any]) -> None:
    def detections(dets: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        (places,) = torch.where(scores > 0)
        kept = library[0].batched_nms(dets[places], scores[places], labels[places], 0.3)
        return places[kept]

    labels = torch.arange(30) % 3
    compiled = luminal.compile(Call(detections), (boxes(30), SCORES, labels))
    for dets, scores in ((boxes(30), SCORES), (boxes(30, seed=7) - 20, -SCORES), (boxes(30), -SCORES.abs())):
        (places,) = torch.where(scores > 0)
        kept = classes_apart(dets[places], scores[places], labels[places], 0.3)
        assert torch.equal(compiled(dets, scores, labels), places[kept])


def test_regions_are_read_from_the_map_of_their_level_whatever_their_number(library: tuple[Any, Any]) -> None:
    maps, scales = [floats(2, 3, 12, 12), floats(2, 3, 6, 6, seed=1)], [1.0, 0.5]

    def cells(large: torch.Tensor, small: torch.Tensor, dets: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        (places,) = torch.where(scores > 0)
        regions = [dets[places], dets[:2]]
        found: torch.Tensor = library[1]._multiscale_roi_align([large, small], regions, [2, 2], 2, scales, level_of)
        return found

    compiled = luminal.compile(Call(cells), (*maps, boxes(8), SCORES[:8]))
    for scores in (SCORES[:8], -SCORES[:8], -SCORES[:8].abs()):
        dets = boxes(8, seed=2)
        expected = regions_in_levels(maps, [dets[torch.where(scores > 0)[0]], dets[:2]], [2, 2], 2, scales, level_of)
        assert 0 < level_of([dets]).sum() < 8
        torch.testing.assert_close(compiled(*maps, dets, scores), expected, rtol=1e-5, atol=1e-5)


class Coder:
    """Boxes as corners and extents relative to others."""

    def decode(self, rel_codes: torch.Tensor, boxes: list[torch.Tensor]) -> torch.Tensor:
        count = sum(part.size(0) for part in boxes)
        if count > 0:
            rel_codes = rel_codes.reshape(count, -1)
        found = self.decode_single(rel_codes, torch.cat(boxes))
        return found.reshape(count, -1, 4) if count > 0 else found

    def decode_single(self, rel_codes: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        return (rel_codes.reshape(boxes.shape[0], rel_codes.shape[1] // 4, 4) + boxes[:, None]).flatten(1)


def test_boxes_are_decoded_whatever_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("coders")
    module.BoxCoder = Coder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision.models.detection._utils", module)
    coder = Coder()

    def decoded(codes: torch.Tensor, dets: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        (places,) = torch.where(scores > 0)
        return coder.decode(codes[places], [dets[places]])

    codes, dets = floats(8, 12), boxes(8)
    compiled = luminal.compile(Call(decoded), (codes, dets, SCORES[:8]))
    for scores in (SCORES[:8], -SCORES[:8], -SCORES[:8].abs()):
        (places,) = torch.where(scores > 0)
        expected = codes[places].reshape(-1, 3, 4) + dets[places][:, None]
        torch.testing.assert_close(compiled(codes, dets, scores), expected, rtol=1e-6, atol=1e-6)
