"""Functions that models spell out in simpler ones are known again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from luminal.core import interp, ir, structured, types
from luminal.core.decompose.error_function import erf, times_normal
from luminal.core.decompose.exponential import exp
from luminal.core.ir import Graph, Node
from luminal.core.rewrite import simplify
from luminal.core.schedule.numeric.spelled_out import known
from luminal.core.types import DType

ROOT = math.sqrt(2)
SPELLED: dict[str, Callable[[Node], Node]] = {
    "ONNX": lambda x: x * (erf(x / ROOT) + 1) * 0.5,
    "half of it first": lambda x: x * 0.5 * (1 + erf(x / ROOT)),
    "a cumulative distribution": lambda x: (0.5 * (1 + erf(x * (1 / ROOT)))) * x,
    "halves added": lambda x: x * (0.5 + erf(x / ROOT) * 0.5),
    "quarters doubled": lambda x: (x * 2) * (0.25 + 0.25 * erf(x / ROOT)),
}
OTHERS: dict[str, Callable[[Node], Node]] = {
    "another scale": lambda x: x * (1 + erf(x / ROOT)) * 0.25,
    "no scale": lambda x: x * (1 + erf(x / ROOT)),
    "another root": lambda x: x * (1 + erf(x * 0.7071)) * 0.5,
    "twice the number": lambda x: x * x * (1 + erf(x / ROOT)) * 0.5,
    "another number": lambda x: (x + 1) * (1 + erf(x / ROOT)) * 0.5,
    "another sum": lambda x: x * (2 + erf(x / ROOT)) * 0.5,
    "one less": lambda x: x * (1 - erf(x / ROOT)) * 0.5,
    "another function": lambda x: x * (1 + exp(x / ROOT)) * 0.5,
}


def graph(dtype: DType, *results: Callable[[Node], Node]) -> Graph:
    x = ir.input_("x", (5, 7), dtype)
    return simplify(Graph("g", (x,), tuple((f"y{k}", result(x)) for k, result in enumerate(results))))


@pytest.mark.parametrize("dtype", [types.f32, types.f64])
@pytest.mark.parametrize("name", SPELLED)
def test_a_number_times_the_normal_distribution(name: str, dtype: DType) -> None:
    assert known(graph(dtype, SPELLED[name])).roots == graph(dtype, times_normal).roots


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_stays(name: str) -> None:
    whole = graph(types.f32, OTHERS[name])
    assert known(whole) is whole


def test_one_function_of_another() -> None:
    function = SPELLED["ONNX"]
    twice = known(graph(types.f32, lambda x: function(exp(function(x)))))
    assert twice.roots == graph(types.f32, lambda x: times_normal(exp(times_normal(x)))).roots


@pytest.mark.parametrize(
    "part", [lambda x: erf(x / ROOT), lambda x: 1 + erf(x / ROOT), lambda x: x * (1 + erf(x / ROOT))]
)
def test_a_part_that_somebody_else_reads_is_not_computed_twice(part: Callable[[Node], Node]) -> None:
    whole = graph(types.f32, lambda x: x * (1 + erf(x / ROOT)) * 0.5, part)
    assert known(whole) is whole


def test_a_part_that_a_loop_puts_out_is_not_computed_twice() -> None:
    def step(carries: Sequence[Node], rows: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        distribution = 1 + erf(rows[0] / ROOT)
        return [carries[0] + rows[0] * distribution * 0.5], [distribution]

    x = ir.input_("x", (5, 7), types.f32)
    last, stacked = structured.scan(step, [ir.expand(ir.constant(0.0, types.f32), (7,))], [x])
    whole = simplify(Graph("g", (x,), (("y", last[0]), ("z", stacked[0]))))
    assert known(whole) is whole


def test_far_below_zero_it_is_exact() -> None:
    whole = graph(types.f32, SPELLED["ONNX"])
    x = np.linspace(-12, 4, 35).astype(np.float32).reshape(5, 7)
    (found,) = interp.run(known(whole), {"x": x}).outputs
    exact = x * torch.special.erfc(torch.from_numpy(-x / np.float64(ROOT))).numpy() / 2
    assert np.abs(found / exact - 1).max() < 4 * types.f32.eps
    (spelled,) = interp.run(whole, {"x": x}).outputs
    assert np.abs(spelled / exact - 1).max() > 0.01


@pytest.mark.parametrize("dtype", [types.i32, types.bf16])
def test_other_types_stay(dtype: DType) -> None:
    whole = graph(dtype, lambda x: x * (1 + x * x) * 2)
    assert known(whole) is whole


@pytest.mark.parametrize("first", [True, False])
def test_a_long_product_is_looked_through_for_a_while_only(first: bool) -> None:
    def long(x: Node) -> Node:
        distribution = 1 + erf(x / ROOT)
        y = x * distribution if first else x
        for _ in range(3000):
            y = y * x
        return (y if first else y * distribution) * 0.5

    whole = graph(types.f32, long)
    assert known(whole) is whole
