"""A small convolutional network, as a library for any target, and the C program that runs it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import luminal
from luminal.codegen import platform as platforms
from luminal.codegen import toolchain
from luminal.core import target as targets
from luminal.module import Module
from tests.compiled_support import Array
from tests.runtime_example import NATIVE, run

BATCH = 3


@functools.cache
def source() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    features = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.GELU())
    module = nn.Sequential(*features, nn.Flatten(), nn.Linear(16 * 6 * 6, 10), nn.Softmax(-1)).eval()
    return module, torch.randn(BATCH, 3, 16, 16)


@functools.cache
def compiled(target: str) -> Module:
    module, x = source()
    dims = {"batch": (1, 4), "input": {0: "batch"}}
    made = luminal.compile(module, (x,), dims=dims, name="images", target=target)
    assert isinstance(made, Module)
    return made


def assert_right(found: Array) -> None:
    """Softmax's results are below 1, and sums of 600 products lie before it."""
    module, x = source()
    expected = module.double()(x.double()).detach().numpy()
    module.float()
    assert found.shape == expected.shape and np.abs(found - expected).max() < 1e-6


def c_program(folder: Path, target: str, out: Path, name: str = "images", extra: Sequence[str] = ()) -> None:
    """Compiles the C program of the tests that runs the model ``name``, for a target, against the library in
    ``folder``."""
    description = targets.parse(target)
    platform = platforms.ALL[description.system]
    compiler = toolchain.find(description.architecture, platform)
    library = folder / platform.library_file(name)
    source_file = ["-std=c99", "-x", "c", NATIVE / f"{name}_test.c", "-x", "none"]
    done = compiler.link([*map(str, source_file), f"-I{folder}", str(library), *extra, "-o", str(out)], folder)
    assert done.returncode == 0, done.stderr[:3000]


def outputs(command: list[str | Path], folder: Path) -> Array:
    source()[1].numpy().tofile(folder / "x.bin")
    run([*command, "x.bin", "y.bin", str(BATCH)], folder=folder)
    return np.fromfile(folder / "y.bin", np.float32).reshape(BATCH, 10)
