"""Shrunken models of many architectures, through ``torch.export``, the interpreter and compiled libraries."""

from __future__ import annotations

import copy

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
COMPILED = ("bert", "mamba", "mixtral", "t5")  # of different kinds
BY_NAME = {architecture.name: architecture for architecture in TABLE}


def references(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[list[Array], list[Array]]:
    """What PyTorch gives in float32, and in float64 from the same numbers."""
    double = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs)
    with torch.no_grad():
        single = [to_numpy(tensor) for tensor in module(*inputs)]
        exact = [to_numpy(tensor).astype(np.float64) for tensor in copy.deepcopy(module).double()(*double)]
    return single, exact


def assert_agrees(found: list[Array], exact: list[Array]) -> None:
    for value, truth in zip(found, exact, strict=True):
        assert value.shape == truth.shape
        assert np.abs(value - truth).max() <= TOLERANCE * np.abs(truth).max()


def test_the_table() -> None:
    kinds = {architecture.kind for architecture in TABLE}
    assert len(BY_NAME) == len(TABLE) >= 100
    assert kinds == {"text", "decoder", "experts", "recurrent", "pair", "vision", "audio", "several", "series"}


@pytest.mark.parametrize("architecture", TABLE, ids=lambda architecture: architecture.name)
def test_architecture(architecture: Architecture) -> None:
    module, inputs = architectures.build(architecture)
    single, exact = references(module, inputs)
    # An answer of zeros, or of one number everywhere, must not pass for right, nor a model that multiplies roundings.
    assert all(np.isfinite(array).all() and array.std() > 0.02 for array in exact)
    assert_agrees(single, exact)
    graph = importer.load(module, inputs)
    given = arrays(graph, inputs)
    results = [interp.run(graph, given).outputs]
    if architecture.name in COMPILED:
        compiled = luminal.compile(graph, target="avx2", threads=1)
        results.append(compiled.library.run([given[node.attr.name] for node in graph.inputs]))
    for found in results:
        assert [array.dtype for array in found] == [array.dtype for array in single]
        assert_agrees(found, exact)
