"""Long attention by itself: plain PyTorch code of it, and of a variant that no library has a kernel for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import nn

import luminal
from benchmarks import errors, machine
from luminal.display import Display
from luminal.module import Module
from luminal.timing import interleaved, text

SEQUENCE, HEADS, WIDTH = 4096, 8, 64
CAP = 30.0

ABOUT = (
    f"Sequence {SEQUENCE}, {HEADS} heads of {WIDTH}, one sample: two matrix products and a softmax. The second "
    "function caps the scores softly and adds a bias for each distance: `softmax(tanh(x / c) * c + bias[i - j])`. "
    "`fused` is PyTorch's own `scaled_dot_product_attention`, where that computes the function. `memory` is the "
    "workspace that luminal's library asks for, and the growth of resident memory that a first run of PyTorch causes; "
    "`error` the largest distance from float64, relative to the largest magnitude."
)
HEADINGS = (
    "function", "", "/ torch", "/ fused", "luminal", "torch", "fused", "memory", "torch's memory", "error",
    "torch's error",
)  # fmt: skip


class Attention(nn.Module):
    """``softmax(q k' / sqrt(d)) v`` for ``[heads, sequence, width]``."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-2, -1) / WIDTH**0.5
        return torch.softmax(scores, dim=-1) @ v


class CappedAttention(nn.Module):
    """The same with scores softly capped, and a bias for each distance of a query from a key."""

    def __init__(self, sequence: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.bias = nn.Parameter(torch.randn(2 * sequence - 1, generator=generator), requires_grad=False)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.shape[-2]
        positions = torch.arange(length)
        distances = positions[:, None] - positions[None, :] + length - 1
        scores = q @ k.transpose(-2, -1) / WIDTH**0.5
        scores = torch.tanh(scores / CAP) * CAP + self.bias[distances]
        return torch.softmax(scores, dim=-1) @ v


@dataclass(frozen=True)
class Result:
    """Times in seconds by implementation; bytes of memory and errors of luminal and of PyTorch."""

    function: str
    times: dict[str, float]
    memory: tuple[int, int]
    errors: tuple[float, float]


def measure(threads: int, runs: int, sequence: int = SEQUENCE) -> list[Result]:
    """Time both functions at a length."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(torch.randn(HEADS, sequence, WIDTH, generator=generator) for _ in range(3))
    fused = nn.functional.scaled_dot_product_attention
    print("\nlong attention", file=sys.stderr)
    with Display(Console(stderr=True)) as display, torch.no_grad():
        return [
            _measure("attention", Attention(), inputs, fused, threads, runs, display),
            _measure("capped, with relative bias", CappedAttention(sequence), inputs, None, threads, runs, display),
        ]


def _measure(
    name: str,
    module: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    fused: Callable[..., torch.Tensor] | None,
    threads: int,
    runs: int,
    display: Display,
) -> Result:
    compiled = luminal.compile(
        module, inputs, threads=threads, progress=lambda stage, part: display.report(f"{name}: {stage}", part)
    )
    assert isinstance(compiled, Module)
    with machine.Peak() as peak:
        theirs = module(*inputs).numpy()
    arrays = [value.numpy() for value in inputs]
    (ours,) = compiled.library.run(arrays)
    contenders: dict[str, Callable[[], object]] = {
        "luminal": lambda: compiled.library.run(arrays),
        "torch": lambda: module(*inputs),
    }
    if fused is not None:
        contenders["fused"] = lambda: fused(*(value[None] for value in inputs))
    times = interleaved(
        contenders, runs, warmup=1, watch=lambda done, total: display.report(f"{name}: time", done / total)
    )
    (again,) = compiled.library.run(arrays)
    if again.tobytes() != ours.tobytes():
        raise RuntimeError(f"{name}: two runs on the same inputs differ by {np.abs(again - ours).max():g}")
    display.report(f"{name}: float64", 0.0)
    exact = _exact(module, inputs)
    display.report(f"{name}: float64", 1.0)
    ours_error, theirs_error = (errors.relative(found.astype(np.float64), exact) for found in (ours, theirs))
    workspace = compiled.library.metadata["entries"][0]["arena_bytes"]
    seconds = {key: timing.median for key, timing in times.items()}
    return Result(name, seconds, (workspace, peak.bytes), (ours_error, theirs_error))


def _exact(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> NDArray[np.float64]:
    """The function in float64, head by head."""
    module.double()
    heads = [module(*(value[head : head + 1].double() for value in inputs)) for head in range(HEADS)]
    module.float()
    exact: NDArray[np.float64] = torch.cat(heads).numpy()
    return exact


def rows(results: list[Result]) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``."""
    return [
        (
            *(r.function, ""),
            *(f"{r.times['luminal'] / r.times[key]:.2f}" if key in r.times else "" for key in ("torch", "fused")),
            *(text(r.times[key]) if key in r.times else "" for key in ("luminal", "torch", "fused")),
            *(f"{size / 2**20:.0f} MiB" for size in r.memory),
            *(f"{error:.1e}" for error in r.errors),
        )
        for r in results
    ]
