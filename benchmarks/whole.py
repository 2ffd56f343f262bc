"""Whole models as people write them, with random weights, for ``benchmarks.algebra``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from benchmarks.zoo.weights import randomise


@dataclass(frozen=True)
class Whole:
    """``make`` gives the model, and example inputs."""

    title: str
    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


# ---- SegFormer (Xie et al., 2021) ------------------------------------------------------------------------------------


class Segments(nn.Module):
    """What a model of transformers gives for each pixel."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=pixels).logits
        return logits


def segformer(size: int = 512) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """SegFormer-B0, which the configuration is by default."""
    model = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(num_labels=150))
    inputs = (torch.randn(1, 3, size, size),)
    return randomise(Segments(model).eval(), inputs, {"output.dense": 0.3, "mlp.dense2": 0.3}), inputs


# ---- a transformer with linear attention (Katharopoulos et al., 2020) ------------------------------------------------


class LinearAttention(nn.Module):
    """Attention whose weights are products of features, normalised to a sum of one: products first, as spelled."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.all(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = F.elu(parts[0]) + 1, F.elu(parts[1]) + 1, parts[2]
        weights = q @ k.transpose(-1, -2)
        weights = weights / weights.sum(-1, keepdim=True)
        found: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return found


class LinearLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = LinearAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        found: Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return found


def linear_transformer(
    layers: int = 6, width: int = 256, heads: int = 8, length: int = 1024
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = nn.Sequential(nn.Embedding(1000, width), *(LinearLayer(width, heads) for _ in range(layers)))
    inputs = (torch.randint(0, 1000, (1, length)),)
    return randomise(model.eval(), inputs, {"attention.out": 0.3, "down": 0.3}), inputs


# ---- a graph convolutional network (Kipf and Welling, 2017) ----------------------------------------------------------


class GraphNetwork(nn.Module):
    """``relu(D^-1/2 (A + I) D^-1/2 X W)``, layer by layer, by its formula: A is dense, and an input."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(a, b) / a**0.5 for a, b in itertools.pairwise(widths))

    def forward(self, adjacency: Tensor, x: Tensor) -> Tensor:
        looped = adjacency + torch.eye(adjacency.shape[0])
        scale = torch.diag(looped.sum(1).pow(-0.5))
        for number, weight in enumerate(self.weights):
            x = scale @ looped @ scale @ x @ weight
            x = F.relu(x) if number + 1 < len(self.weights) else x
        return x


class ScaledNetwork(GraphNetwork):
    """The same with a scale of rows and columns in place of a diagonal matrix."""

    def forward(self, adjacency: Tensor, x: Tensor) -> Tensor:
        looped = adjacency + torch.eye(adjacency.shape[0])
        scale = looped.sum(1).pow(-0.5)
        normalised = scale[:, None] * looped * scale[None, :]
        for number, weight in enumerate(self.weights):
            x = normalised @ x @ weight
            x = F.relu(x) if number + 1 < len(self.weights) else x
        return x


def graph_network(kind: type[GraphNetwork], nodes: int = 1024) -> tuple[nn.Module, tuple[Tensor, ...]]:
    edges = (torch.rand(nodes, nodes) < 0.01).float()
    return kind(256, 64, 64, 16).eval(), (torch.maximum(edges, edges.T), torch.randn(nodes, 256))


# ---- RepVGG (Ding et al., 2021) --------------------------------------------------------------------------------------


class Trained(nn.Module):
    """A block as it is trained: convolutions by 3 x 3 and by 1 x 1, and the input itself where it has the same shape,
    each with a norm of its own."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.three = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.one = nn.Conv2d(before, after, 1, stride, bias=False)
        self.of_three, self.of_one = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.of_input = nn.BatchNorm2d(after) if before == after and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        found = self.of_three(self.three(x)) + self.of_one(self.one(x))
        return F.relu(found if self.of_input is None else found + self.of_input(x))


def repvgg(size: int = 224) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """RepVGG-A0, before its branches are joined."""
    blocks = [Trained(3, 48, 2)]
    for count, width in ((2, 48), (4, 96), (14, 192), (1, 1280)):
        for number in range(count):
            blocks.append(Trained(blocks[-1].three.out_channels, width, 2 if number == 0 else 1))
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))
    inputs = (torch.randn(1, 3, size, size),)
    return randomise(model.eval(), inputs, shift=1.0), inputs


# ---- DenseNet (Huang et al., 2017) -----------------------------------------------------------------------------------


class DenseLayer(nn.Sequential):
    """Features that join those that it is given."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__(
            nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, super().forward(x)], 1)


def densenet(size: int = 224) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """DenseNet-121."""
    growth, width = 32, 64
    stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
    parts: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for block, count in enumerate((6, 12, 24, 16)):
        if block:
            parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(count):
            parts.append(DenseLayer(width, growth))
            width += growth
    parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]
    inputs = (torch.randn(1, 3, size, size),)
    return randomise(nn.Sequential(*parts).eval(), inputs, shift=1.0), inputs


MODELS = {
    "segformer": Whole("SegFormer-B0, 512 x 512", segformer),
    "linear-transformer": Whole("transformer with linear attention: 6 layers, 1024 tokens", linear_transformer),
    "graph-network": Whole("GCN with scales, 3 layers", lambda: graph_network(ScaledNetwork)),
    "graph-network-diagonal": Whole("GCN with diagonal matrices, 3 layers", lambda: graph_network(GraphNetwork)),
    "repvgg": Whole("RepVGG-A0 as trained, 224 x 224", repvgg),
    "densenet": Whole("DenseNet-121, 224 x 224", densenet),
}
