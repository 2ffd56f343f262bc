"""Shrunken models of many architectures, through ``torch.export``, the interpreter and compiled libraries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import luminal
from luminal.core import interp
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import to_numpy
from tests import architectures
from tests.architectures import TABLE, Architecture
from tests.compiled_support import Array
from tests.fx_support import arrays

TOLERANCE = 1e-5  # of the largest reference value
COMPILED = ("bert", "mamba", "swin", "t5")  # of different kinds
BY_NAME = {architecture.name: architecture for architecture in TABLE}


def references(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> list[Array]:
    with torch.no_grad():
        expected = [to_numpy(tensor) for tensor in module(*inputs)]
    # An answer of zeros, or of one number everywhere, must not pass for right.
    assert all(np.isfinite(array).all() and array.std() > 0.02 for array in expected)
    return expected


def assert_agrees(found: list[Array], expected: list[Array], exact: list[Array]) -> None:
    """Within the tolerance of PyTorch; where that is further from the exact result itself, not much further than it."""
    for value, reference, truth in zip(found, expected, exact, strict=True):
        assert value.shape == reference.shape and value.dtype == reference.dtype
        scale = np.abs(truth).max()
        if np.abs(value - reference).max() > TOLERANCE * scale:
            assert np.abs(value - truth).max() <= 2 * np.abs(reference - truth).max()


def test_the_table() -> None:
    kinds = {architecture.kind for architecture in TABLE}
    assert len(BY_NAME) == len(TABLE) >= 40
    assert kinds >= {"text", "decoder", "recurrent", "pair", "vision", "audio", "several"}


@pytest.mark.parametrize("architecture", TABLE, ids=lambda architecture: architecture.name)
def test_architecture(architecture: Architecture) -> None:
    module, inputs = architectures.build(architecture)
    expected = references(module, inputs)
    graph = importer.load(module, inputs)
    given = arrays(graph, inputs)
    typed, exact = (interp.run(graph, given, mode).outputs for mode in interp.MODES)
    assert_agrees(typed, expected, exact)
    if architecture.name in COMPILED:
        compiled = luminal.compile(graph, target="avx2", threads=1)
        found = compiled.library.run([given[node.attr.name] for node in graph.inputs])
        assert_agrees(found, expected, exact)
