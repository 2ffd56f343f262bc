"""The models that are measured on GPUs, small, as libraries: emulated, and for OpenCL by pocl where it is installed."""

from __future__ import annotations

from functools import cache

import pytest

import luminal
from benchmarks.gpu import subjects
from luminal.comparison.measure import distance
from luminal.comparison.oracle import Oracle
from luminal.core.data import Array
from luminal.core.ir import Graph
from luminal.frontends.fx import importer
from luminal.module import Module
from luminal.tensors import to_numpy
from tests.test_opencl import needs_opencl


@cache
def read(name: str) -> tuple[Graph, dict[str, Array], Oracle]:
    """The model, inputs, and what float64 says of both, for all targets."""
    made = subjects.model(name, tiny=True)
    graph = importer.load(made.module, made.inputs)
    inputs = {node.attr.name: to_numpy(x, node.attr.name) for node, x in zip(graph.inputs, made.inputs, strict=True)}
    return graph, inputs, Oracle(graph, inputs)


def agrees(name: str, target: str, emulate: bool) -> None:
    graph, inputs, oracle = read(name)
    module = luminal.compile(graph, target=target, emulate=emulate)
    assert isinstance(module, Module)
    found = module.run(inputs)
    for key, node in graph.outputs:
        apart = distance(found[key], oracle.exact(node))
        assert not oracle.refutes(node, found[key]), (key, apart, oracle.allowed(node))


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "metal"])
@pytest.mark.parametrize("name", subjects.TINY)
def test_a_model_is_right_under_emulation(name: str, target: str) -> None:
    agrees(name, target, emulate=True)


@needs_opencl
@pytest.mark.parametrize("name", subjects.TINY)
def test_a_model_is_right_by_a_driver_of_opencl(name: str) -> None:
    agrees(name, "opencl", emulate=False)
