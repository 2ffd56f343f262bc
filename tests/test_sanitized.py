"""Kernels of the precisions that this machine computes in, and of rounded weights, under AddressSanitizer and
UndefinedBehaviorSanitizer.

The watched library takes the place of the exported one, in a Python that has the sanitizers' runtime loaded. What else
a library is made of, and float32, is watched in test_artifact.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import luminal
from luminal.module import Module
from tests import onnx_models, sanitized
from tests.runtime_example import LINK_LIBRARIES, run

RUN = """
import sys

import numpy as np
from luminal.runtime import loader

inputs, outputs, library = sys.argv[1:]
found = loader.load(library, threads=2).run(list(np.load(inputs).values()))
np.savez(outputs, *found)
"""


class Mixed(nn.Module):
    """Convolutions, windows, products, attention, a norm and a sort, at sizes that no tile divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Conv2d(5, 67, 3, padding=1), nn.Conv2d(67, 67, 3, padding=1)
        self.wide, self.square = nn.Linear(67, 288), nn.Linear(288, 288)
        self.norm = nn.LayerNorm(288)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        tokens = self.square(self.wide(nn.functional.max_pool2d(x, 3, 2, 1).flatten(2).transpose(1, 2)))
        heads = tokens.unflatten(2, (6, 48)).transpose(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        normal = self.norm(tokens + mixed)
        return normal, normal.sort(-1).values


def quantised() -> onnx.ModelProto:
    """A product and a convolution of 8-bit integers, written as what they stand for."""
    rng = np.random.default_rng(4)
    scale = ["s", "z"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *scale], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", *scale], ["x_d"]),
        helper.make_node("DequantizeLinear", ["filter", "filter_s"], ["filter_d"], axis=0),
        helper.make_node("Conv", ["x_d", "filter_d"], ["windows"], pads=[1, 1, 1, 1]),
        helper.make_node("QuantizeLinear", ["windows", *scale], ["w_q"]),
        helper.make_node("DequantizeLinear", ["w_q", *scale], ["w_d"]),
        helper.make_node("DequantizeLinear", ["matrix", "matrix_s"], ["matrix_d"], axis=1),
        helper.make_node("MatMul", ["w_d", "matrix_d"], ["y"]),
    ]
    constants = {
        "s": np.float32(0.05), "z": np.uint8(120),
        "filter": rng.integers(-127, 128, (19, 5, 3, 3)).astype(np.int8), "filter_s": np.full(19, 0.01, np.float32),
        "matrix": rng.integers(-127, 128, (21, 37)).astype(np.int8), "matrix_s": np.full(37, 0.01, np.float32),
    }  # fmt: skip
    declared = onnx_models.declared("x", np.zeros((1, 5, 21, 21), np.float32))
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return onnx_models.model(nodes, [declared], ["y"], initializers=arrays)


OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"precision": "bf16"},
    "float16": {"precision": "fp16"},
    "int8 weights": {"weights": "int8"},
    "int4 weights": {"weights": "int4"},
    "filtering": {"winograd": 1e-3},
    "integers": {},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_no_access_is_out_of_bounds_and_nothing_undefined(kind: str, tmp_path: Path) -> None:
    x = torch.randn(1, 5, 21, 21, generator=torch.Generator().manual_seed(5))
    source = quantised() if kind == "integers" else Mixed().eval()
    inputs = None if kind == "integers" else (x,)
    module = luminal.compile(source, inputs, name="watched", threads=2, **OPTIONS[kind])
    assert isinstance(module, Module)
    assert all(module.approximated(option) for option in OPTIONS[kind] if option != "precision")
    exported = module.export(tmp_path / "exported", python_module=False)
    library = exported / "libwatched.so"
    run(["g++", *sanitized.FLAGS, "-shared", *sanitized.objects(exported, tmp_path), "-o", library, *LINK_LIBRARIES])
    np.savez(tmp_path / "inputs.npz", x.numpy())
    runtime = [run(["g++", f"-print-file-name={name}"]).strip() for name in ("libasan.so", "libubsan.so")]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtime),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", RUN, tmp_path / "inputs.npz", tmp_path / "outputs.npz", library]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for found, expected in zip(
        np.load(tmp_path / "outputs.npz").values(), module.run([x.numpy()]).values(), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
