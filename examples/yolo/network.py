"""A small detector in the form of YOLOv8 (Ultralytics, 2023), for those who have no weights at hand.

Three maps of features, 8, 16 and 32 pixels apart, each give for every place a box and the scores of the classes. A
side of a box is the mean of a distribution over 16 distances (Li et al., "Generalized Focal Loss", 2020).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

STRIDES, BINS = (8, 16, 32), 16


class Convolution(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
        )


class Stage(nn.Module):
    """Half the resolution, then a residual block on one half of the channels (Wang et al., "CSPNet", 2020)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.down, self.out = Convolution(inputs, outputs, 3, 2), Convolution(outputs + half, outputs, 1)
        self.block = nn.Sequential(Convolution(half, half), Convolution(half, half))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, changed = self.down(x).chunk(2, 1)
        result: torch.Tensor = self.out(torch.cat([kept, changed, changed + self.block(changed)], 1))
        return result


class Detector(nn.Module):
    """``float32[batch, 3, height, width]`` of 0 to 1 to ``[batch, 4 + classes, places]``: middle and size of a box in
    pixels, and the scores. Sides are multiples of 32."""

    def __init__(self, classes: int = 80, width: int = 16) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width, 16 * width]
        self.stem = Convolution(3, widths[0], 3, 2)
        self.stages = nn.ModuleList(Stage(a, b) for a, b in pairwise(widths))
        self.merged = nn.ModuleList(Convolution(widths[k] + widths[k + 1], widths[k], 1) for k in (3, 2))
        self.boxes = nn.ModuleList(nn.Conv2d(w, 4 * BINS, 1) for w in widths[2:])
        self.scores = nn.ModuleList(nn.Conv2d(w, classes, 1) for w in widths[2:])
        self.register_buffer("distances", torch.arange(float(BINS)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, maps = self.stem(images), []
        for stage in self.stages:
            maps.append(x := stage(x))
        small, middle, large = maps[-3:]
        middle = self.merged[0](torch.cat([middle, functional.interpolate(large, scale_factor=2.0)], 1))
        small = self.merged[1](torch.cat([small, functional.interpolate(middle, scale_factor=2.0)], 1))
        return torch.cat([self._found(k, level) for k, level in enumerate((small, middle, large))], 2)

    def _found(self, level: int, x: torch.Tensor) -> torch.Tensor:
        """Boxes and scores ``[batch, 4 + classes, places]`` of one map."""
        batch, _, height, width = x.shape
        shares = self.boxes[level](x).view(batch, 4, BINS, height * width).softmax(2)
        left, top, right, bottom = (shares * self.distances[:, None]).sum(2).unbind(1)
        row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        across, down = (axis.reshape(1, -1) + 0.5 for axis in (column, row))
        box = torch.stack([across + (right - left) / 2, down + (bottom - top) / 2, left + right, top + bottom], 1)
        scores = self.scores[level](x).sigmoid().flatten(2)
        return torch.cat([box * STRIDES[level], scores], 1)
