"""Activations that are rounded where quantised weights multiply them: which, how, and what is said of it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import luminal
from luminal.core import ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction
from luminal.core.errors import InputError
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.numeric import activations, quantise
from luminal.module import Module
from tests.test_quantise import rounded as rounded_weights

Array = np.ndarray[Any, Any]
UNIT = 2.0**-24
ROWS, DEPTH, COLUMNS = 5, 512, 160


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x: Array, to: str, block: int) -> Array:
    """``x [rows, K]`` as the formulas have it."""
    if to == "bf16":
        return np.asarray(x.astype(ml_dtypes.bfloat16).astype(np.float32))
    parts = x.reshape(x.shape[0], -1, block)
    scale = np.abs(parts).max(-1, keepdims=True) / np.float32(127)
    whole = np.rint(parts / np.where(scale == 0, np.float32(1), scale))
    return np.asarray((whole * scale.astype(np.float64)).reshape(x.shape))


def linear(depth: int = DEPTH) -> tuple[Graph, Array]:
    weight = drawn(0, COLUMNS, depth)
    rows = sym.Var("rows", 1, 64)
    x = ir.input_("x", (sym.expr(rows), depth), types.f32)
    y = contraction.matmul(x, movement.transpose(ir.constant(weight), 0, 1))
    return Graph("linear", (x,), (("y", y),), (rows,)), weight


@pytest.mark.parametrize("to", ["bf16", "q8"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_products_are_those_of_the_rounded_numbers(weights: str, to: str) -> None:
    """Of one row and of several: one with zeros, one with numbers of very different sizes."""
    graph, weight = linear()
    module = luminal.compile(graph, weights=weights, activations=to, threads=2)
    assert isinstance(module, Module)
    x = drawn(1, ROWS, DEPTH)
    x[1], x[2, ::3] = 0, x[2, ::3] * 1e-5
    real = rounded(x, to, DEPTH if weights == "int8" else 32).astype(np.float64)
    factors = real, rounded_weights(weight, weights).astype(np.float64).T
    wanted, magnitudes = factors[0] @ factors[1], np.abs(factors[0]) @ np.abs(factors[1])
    for count in (1, ROWS):
        found = module(x[:count])
        assert (np.abs(found - wanted[:count]) <= 4 * np.sqrt(DEPTH) * UNIT * magnitudes[:count]).all()
    exact = x.astype(np.float64) @ factors[1]
    assert np.abs(wanted - exact).max() > 1e3 * UNIT * magnitudes.max()  # rounding is seen
    assert module.approximated("activations") == 1 and f"activations: : {to}" in module.explain()


def test_one_scale_of_a_row_gives_sums_of_integers() -> None:
    """A unit for bytes computes them, of a prompt as of one token."""
    graph, _ = linear()
    target = targets.parse("avx512-vnni")
    scheme = quantise.parse("int8")
    assert scheme is not None
    made = activations.rounded(quantise.quantised(graph, scheme), "q8")
    seen: dict[str, Any] = {}
    program = compile_graph(made, target, seen.__setitem__)
    tiles = [kernel for kernel in program.kernels if "vpdpbusd" in str(kernel.nest)]
    assert len(tiles) == 1


def test_what_is_not_quantised_or_fills_no_blocks_stays() -> None:
    graph, _ = linear()
    assert activations.rounded(graph, "q8").roots == graph.roots
    scheme = quantise.parse("int4-128")
    assert scheme is not None
    made = activations.rounded(quantise.quantised(graph, scheme), "q8")
    assert [x.option for x in made.approximations] == ["weights", "activations"]
    odd, _ = linear(420)  # of int8 rows, whatever their length
    assert len(activations.rounded(quantise.quantised(odd, quantise.ALL["int8"]), "q8").approximations) == 2


def test_names_are_checked() -> None:
    graph, _ = linear()
    with pytest.raises(InputError, match="unknown activations 'q4': expected float32, bf16, q8"):
        luminal.compile(graph, activations="q4")
    assert activations.parse("float32") is None


@pytest.mark.parametrize(("to", "weights"), [("q8", "int8"), ("q8", "int4"), ("bf16", "int8")])
def test_diff_knows_of_it(to: str, weights: str) -> None:
    """What rounding explains is no mismatch; without the option the same library would be one."""
    module = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256)).eval()
    with torch.no_grad():
        for number, value in enumerate(module.parameters()):
            value.copy_(torch.from_numpy(drawn(number, *value.shape)) / 16)
    x = torch.from_numpy(drawn(9, 3, 256))
    report = luminal.diff(module, (x,), weights=weights, activations=to, threads=2)
    assert report.ok and f"activations in {to} (operators: 2)" in str(report.as_json())
