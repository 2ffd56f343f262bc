"""Models, comparisons and programs for the tests of compiled libraries."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import luminal
from luminal.comparison import measure
from luminal.core import interp, types
from luminal.core import symbolic as sym
from luminal.core.ir import Graph
from luminal.core.target import Target
from luminal.core.types import from_numpy
from luminal.module import Module

Array = np.ndarray[Any, Any]


def compiled_graph(graph: Graph, target: Target) -> Module:
    module = luminal.compile(graph, target=target)
    assert isinstance(module, Module)
    return module


# ---- comparing ------------------------------------------------------------------------------------------------------


def assert_computes(graph: Graph, inputs: Mapping[str, Array], found: Sequence[Array], terms: int) -> None:
    """``found`` is what ``graph`` computes: exact for integers, and for floats within rounding of the interpreter in
    the nodes' own types and in float64.

    ``terms`` is the longest chain of additions into one value; the error of a sum of n terms grows as sqrt(n).
    """
    for mode in interp.MODES:
        expected = interp.run(graph, inputs, mode).outputs
        for (name, node), value, wanted in zip(graph.outputs, found, expected, strict=True):
            assert value.shape == wanted.shape and value.dtype == node.dtype.numpy, name
            if not node.dtype.is_float:
                np.testing.assert_array_equal(value, wanted, err_msg=f"{name} ({mode})")
                continue
            eps = max(node.dtype.eps, types.f64.eps if node.dtype == types.f64 else types.f32.eps)
            with np.errstate(over="ignore"):  # float64 holds what overflows in the node's own type
                reference = wanted.astype(value.dtype).astype(np.float64)
            wide, finite = value.astype(np.float64), np.isfinite(reference)
            np.testing.assert_array_equal(wide[~finite], reference[~finite], err_msg=f"{name} ({mode})")
            scale = float(np.abs(reference[finite]).max(initial=1.0))
            worst = float(np.abs(wide[finite] - reference[finite]).max(initial=0.0))
            assert worst <= 4 * np.sqrt(terms) * eps * scale, f"{name} ({mode}): {worst} of {scale}"


def exactly(graph: Graph, inputs: Mapping[str, Array], unit: float = types.f32.eps) -> list[tuple[Array, float]]:
    """The outputs of ``graph`` in float64, each with how far any order of its sums may be off: as its longest path
    rounds, to ``unit``, in values as large as its largest."""
    wanted = interp.run(graph, inputs, "float64").outputs
    bounds = measure.rounding(graph.roots, {})
    return [
        (value, bounds[node].bound * unit / types.f32.eps * float(np.abs(value).max(initial=0.0)))
        for node, value in zip(graph.results, wanted, strict=True)
    ]


def error(found: Array, reference: Array) -> float:
    """The largest difference as a part of the largest reference value."""
    assert found.shape == reference.shape and found.dtype == reference.dtype
    assert np.isfinite(found).all()
    return float(np.abs(found - reference).max() / np.abs(reference).max())


def resized(graph: Graph, inputs: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, Array]:
    """Inputs of other sizes, with the same values over again."""
    made: dict[str, Array] = {}
    for node in graph.inputs:
        value = inputs[node.attr.name]
        for axis, extent in enumerate(node.shape):
            value = np.take(value, np.arange(int(sym.evaluate(extent, sizes))), axis, mode="wrap")
        made[node.attr.name] = value
    return made


def assert_same_bits(found: Sequence[Array], expected: Sequence[Array]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert from_numpy(a.dtype) == from_numpy(b.dtype) and a.shape == b.shape
        assert a.tobytes() == b.tobytes()


# ---- a small model ---------------------------------------------------------------------------------------------------

VOCABULARY, WIDTH, HEADS = 50, 24, 2


class SmallEncoder(nn.Module):
    """One block of a transformer: a lookup, attention, norms, GELU; its results are nested."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide = nn.Linear(WIDTH, 70)
        self.narrow = nn.Linear(70, WIDTH)

    def forward(self, ids: torch.Tensor, weight: torch.Tensor) -> dict[str, Any]:
        x = self.table(ids)
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.mix(x).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, WIDTH)
        x = self.norm(x + mixed)
        x = x + self.narrow(nn.functional.gelu(self.wide(x)))
        mean = (x * weight.unsqueeze(-1)).mean(1)
        return {"tokens": x, "pooled": (mean, mean.argmax(-1)), "width": WIDTH}


DIMS = {"ids": ("batch", "length"), "weight": ("batch", "length"), "batch": (1, 4), "length": (1, 8)}


def arguments(batch: int = 2, length: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """``ids`` and ``weight`` for a SmallEncoder."""
    generator = torch.Generator().manual_seed(batch * 100 + length)
    ids = torch.randint(0, VOCABULARY, (batch, length), generator=generator)
    return ids, torch.rand(batch, length, generator=generator)


def compiled(name: str, seed: int = 0, target: str = "host") -> tuple[SmallEncoder, Module]:
    """A SmallEncoder and the library that it becomes."""
    model = SmallEncoder(seed).eval()
    module = luminal.compile(model, arguments(), dims=DIMS, name=name, target=target)
    assert isinstance(module, Module)
    return model, module


def outputs(module: Module, batch: int = 3, length: int = 7) -> list[Array]:
    """What ``module``, a SmallEncoder, computes of ``arguments(batch, length)``."""
    values = (value.numpy() for value in arguments(batch, length))
    return list(module.run(dict(zip(module.input_names, values, strict=True))).values())


def printed_by(program: Sequence[str | Path], weights: Path, batch: int, length: int) -> list[Array]:
    """The same, as the command ``program`` prints it: tests/native/encoder_test.c."""
    ids, weight = (value.numpy().ravel().tolist() for value in arguments(batch, length))
    text = " ".join(map(repr, (batch, length, *ids, *weight)))
    done = subprocess.run([*program, weights], input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    numbers = done.stdout.split()
    tokens, pooled = batch * length * WIDTH, batch * WIDTH
    assert len(numbers) == tokens + pooled + batch
    return [
        np.array(numbers[:tokens], np.float32).reshape(batch, length, WIDTH),
        np.array(numbers[tokens : tokens + pooled], np.float32).reshape(batch, WIDTH),
        np.array(numbers[tokens + pooled :], np.int64),
    ]
