"""Layers as people write them, and the same as an expert writes them, for ``benchmarks.algebra``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Written(nn.Module):
    """A function of tensors, and of ``parts``."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


@dataclass(frozen=True)
class Form:
    """``make`` gives the module as it is written, as an expert writes it, and example inputs."""

    title: str
    make: Callable[[], tuple[nn.Module, nn.Module, tuple[Tensor, ...]]]


def attention() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    return (
        Written(lambda m, q, k, v: (q @ k.transpose(-1, -2)) @ v),
        Written(lambda m, q, k, v: q @ (k.transpose(-1, -2) @ v)),
        (q, k, v),
    )


def in_chunks(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, length: int = 64) -> Tensor:
    """Retention (Sun et al., 2023) in its chunkwise form: ``gamma`` [heads, 1, 1] is how a head decays."""
    heads, width = q.shape[1], q.shape[-1]
    q, k, v = (x.reshape(1, heads, -1, length, width) for x in (q, k, v))
    i, gamma = torch.arange(length), gamma[:, None]
    inside = torch.where(i[:, None] >= i, gamma ** (i[:, None] - i), 0.0)
    sums = k.transpose(-1, -2) @ (v * (gamma ** (length - 1 - i)).transpose(-1, -2))
    states = [torch.zeros_like(sums[:, :, 0])]
    for n in range(sums.shape[2] - 1):
        states.append(states[-1] * gamma[:, 0] ** length + sums[:, :, n])
    before = (q * (gamma ** (i + 1)).transpose(-1, -2)) @ torch.stack(states, 2)
    return (((q @ k.transpose(-1, -2)) * inside) @ v + before).flatten(2, 3)


def causal() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    gamma = torch.ones(8, 1, 1)
    return (
        Written(lambda m, q, k, v: torch.tril(q @ k.transpose(-1, -2)) @ v),
        Written(lambda m, q, k, v: in_chunks(q, k, v, m.gamma), gamma=gamma),
        (q, k, v),
    )


def decaying() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
    gamma = 1 - torch.exp2(-5.0 - torch.arange(8))[:, None, None]
    i = torch.arange(2048)
    decay = torch.where(i[:, None] >= i, gamma ** (i[:, None] - i), 0.0)
    return (
        Written(lambda m, q, k, v: ((q @ k.transpose(-1, -2)) * m.decay) @ v, decay=decay),
        Written(lambda m, q, k, v: in_chunks(q, k, v, m.gamma), gamma=gamma),
        (q, k, v),
    )


def chain() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    a, b, c = torch.randn(1024, 16), torch.randn(16, 1024), torch.randn(1024, 8)
    return Written(lambda m, a, b, c: (a @ b) @ c), Written(lambda m, a, b, c: a @ (b @ c)), (a, b, c)


def constant_chain() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    first, second = torch.randn(64, 1024) / 8, torch.randn(1024, 64) / 32
    return (
        Written(lambda m, x: (x @ m.first) @ m.second, first=first, second=second),
        Written(lambda m, x: x @ m.whole, whole=first @ second),
        (torch.randn(512, 64),),
    )


def graph_convolution(wide: int, narrow: int) -> Callable[[], tuple[nn.Module, nn.Module, tuple[Tensor, ...]]]:
    def make() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
        x, adjacent = torch.randn(1024, wide), torch.rand(1024, 1024)
        linear = nn.Linear(wide, narrow, bias=False)
        after = Written(lambda m, a, x: m.linear(a @ x), linear=linear)
        before = Written(lambda m, a, x: a @ m.linear(x), linear=linear)
        return (after, before, (adjacent, x)) if wide > narrow else (before, after, (adjacent, x))

    return make


def two_of_one_input() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    a, b, both = nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 512)
    both.weight.data, both.bias.data = a.weight.data + b.weight.data, a.bias.data + b.bias.data
    return Written(lambda m, x: m.a(x) + m.b(x), a=a, b=b), both, (torch.randn(256, 512),)


def two_in_turn() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    a, b, both = nn.Linear(128, 1024), nn.Linear(1024, 128), nn.Linear(128, 128)
    both.weight.data = b.weight.data @ a.weight.data
    both.bias.data = b.weight.data @ a.bias.data + b.bias.data
    return nn.Sequential(a, b), both, (torch.randn(512, 128),)


def mean_of_linear() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    linear = nn.Linear(512, 512)
    return (
        Written(lambda m, x: m.linear(x).mean(1), linear=linear),
        Written(lambda m, x: m.linear(x.mean(1)), linear=linear),
        (torch.randn(4, 256, 512),),
    )


class Branches(nn.Module):
    """A block of RepVGG, as it is trained (Ding et al., 2021)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.three = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.one = nn.Conv2d(channels, channels, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(3))
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x: Tensor) -> Tensor:
        three, one, none = self.norms
        return F.relu(three(self.three(x)) + one(self.one(x)) + none(x))

    def joined(self) -> nn.Conv2d:
        """One convolution in the place of all branches."""
        channels = self.three.out_channels
        whole = nn.Conv2d(channels, channels, 3, padding=1)
        identity = torch.eye(channels).reshape(channels, channels, 1, 1)
        filters = [self.three.weight, F.pad(self.one.weight, [1] * 4), F.pad(identity, [1] * 4)]
        scales = [norm.weight / torch.sqrt(norm.running_var + norm.eps) for norm in self.norms]
        whole.weight.data = sum(s.reshape(-1, 1, 1, 1) * w for s, w in zip(scales, filters, strict=True)).detach()
        shifts = (norm.bias - s * norm.running_mean for s, norm in zip(scales, self.norms, strict=True))
        whole.bias.data = sum(shifts).detach()
        return whole


def branches() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    block = Branches(64)
    return block, nn.Sequential(block.joined(), nn.ReLU()), (torch.randn(1, 64, 56, 56),)


def transition() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    norm, conv = nn.BatchNorm2d(256), nn.Conv2d(256, 128, 1, bias=False)
    written = nn.Sequential(norm, nn.ReLU(), conv, nn.AvgPool2d(2))
    return written, nn.Sequential(norm, nn.ReLU(), nn.AvgPool2d(2), conv), (torch.randn(1, 256, 56, 56),)


def upsampled() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    up, conv = nn.Upsample(scale_factor=4, mode="bilinear"), nn.Conv2d(256, 64, 1)
    return nn.Sequential(up, conv), nn.Sequential(conv, up), (torch.randn(1, 256, 32, 32),)


def concatenated() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    """SegFormer's head in small: features of several sizes, brought to one size, side by side, through one layer."""
    fuse = nn.Conv2d(256, 64, 1, bias=False)
    features = tuple(torch.randn(1, 64, 64 // s, 64 // s) for s in (1, 2, 4, 8))

    def up(x: Tensor) -> Tensor:
        return F.interpolate(x, size=(64, 64), mode="bilinear", align_corners=False)

    def apart(m: nn.Module, *features: Tensor) -> Tensor:
        parts = m.fuse.weight.chunk(4, 1)
        return sum(up(F.conv2d(x, w)) for x, w in zip(features, parts, strict=True))

    written = Written(lambda m, *features: m.fuse(torch.cat([up(x) for x in features], 1)), fuse=fuse)
    return written, Written(apart, fuse=fuse), features


def low_rank_update() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    """LoRA that is not merged (Hu et al., 2021)."""
    whole, down, up = nn.Linear(512, 512), nn.Linear(512, 8, bias=False), nn.Linear(8, 512, bias=False)
    merged = nn.Linear(512, 512)
    merged.weight.data = whole.weight.data + 2.0 * up.weight.data @ down.weight.data
    merged.bias.data = whole.bias.data
    written = Written(lambda m, x: m.whole(x) + m.up(m.down(x)) * 2.0, whole=whole, down=down, up=up)
    return written, merged, (torch.randn(64, 512),)


def low_rank() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    """Factors that someone multiplied out in the model."""
    down, up = torch.randn(1024, 16) / 32, torch.randn(16, 1024) / 4
    return (
        Written(lambda m, x, down, up: x @ (down @ up)),
        Written(lambda m, x, down, up: (x @ down) @ up),
        (torch.randn(64, 1024), down, up),
    )


def normalised() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    scale, linear, plain = torch.rand(512) + 0.5, nn.Linear(512, 512, bias=False), nn.Linear(512, 512, bias=False)
    plain.weight.data = linear.weight.data * scale

    def root(x: Tensor) -> Tensor:
        return torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    return (
        Written(lambda m, x: m.linear(x * root(x) * m.scale), linear=linear, scale=scale),
        Written(lambda m, x: m.plain(x) * root(x), plain=plain),
        (torch.randn(256, 512),),
    )


def table_of_rows() -> tuple[nn.Module, nn.Module, tuple[Tensor, ...]]:
    embedding, linear = nn.Embedding(500, 256), nn.Linear(256, 256)
    joined = nn.Embedding(500, 256)
    joined.weight.data = (embedding.weight.data @ linear.weight.data.T + linear.bias.data).detach()
    return nn.Sequential(embedding, linear), joined, (torch.randint(0, 500, (8, 128)),)


FORMS = {
    "attention": Form("linear attention, 2048 tokens", attention),
    "causal": Form("causal linear attention, 2048 tokens", causal),
    "decaying": Form("linear attention that decays by head (RetNet)", decaying),
    "chain": Form("chain of three matrices", chain),
    "constants": Form("chain with two constants", constant_chain),
    "graph-narrow": Form("graph convolution, to fewer features", graph_convolution(256, 16)),
    "graph-wide": Form("graph convolution, to more features", graph_convolution(16, 256)),
    "two-of-one": Form("two linear layers of one input", two_of_one_input),
    "two-in-turn": Form("linear on linear", two_in_turn),
    "mean": Form("mean of a linear layer", mean_of_linear),
    "branches": Form("RepVGG's block as trained", branches),
    "transition": Form("DenseNet's transition", transition),
    "upsampled": Form("bilinear upsampling before a 1x1 convolution", upsampled),
    "concatenated": Form("SegFormer's head: upsampled, side by side, fused", concatenated),
    "low-rank-update": Form("low-rank update (LoRA), not merged", low_rank_update),
    "low-rank": Form("low-rank factors, multiplied out", low_rank),
    "normalised": Form("RMSNorm before a product", normalised),
    "table": Form("linear layer of an embedding", table_of_rows),
}
