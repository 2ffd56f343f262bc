"""Exponentials are as exact as the outputs of a graph can tell, and no less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from luminal.core import interp, ir, ops, types
from luminal.core import target as targets
from luminal.core.decompose.activation import gelu, silu
from luminal.core.decompose.compare import less, maximum
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.reduction import softmax, sum_
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import canonical
from luminal.core.precision import BF16, FP16
from luminal.core.schedule.demand import ALL, GUARD, SHORTER, Shorter, demands
from luminal.core.schedule.rounding import significant

Array = np.ndarray[Any, Any]

X = ir.input_("x", (8, 24), types.f32)
W = ir.input_("w", (24, 4), types.f32)
FEW = significant(types.bf16) + GUARD


def rounded(x: Node) -> Node:
    return ir.cast(ir.cast(x, types.bf16), types.f32)


def exponentials(*roots: Node) -> list[int]:
    found = demands(roots)
    return [found[node] for node in found if node.op is ops.EXP2]


EASED: dict[str, Callable[[], Node]] = {
    "the exponential": lambda: rounded(exp(X)),
    "a product": lambda: rounded(exp(X) * X),
    "a quotient": lambda: rounded(X / exp(X)),
    "a softmax": lambda: rounded(softmax(X, -1)),
    "a choice": lambda: rounded(ir.select(less(X, 0), exp(X), X)),
    "the larger": lambda: rounded(maximum(exp(X), exp(X * X))),
    "a gate": lambda: rounded(silu(X)),
    "a view": lambda: rounded(ir.expand(sum_(exp(X), -1, keepdims=True), (8, 24))),
    "a test for NaN": lambda: rounded(ir.select(ir.binary(ops.EQUAL, exp(X), exp(X)), exp(X), X)),
}
EXACT: dict[str, Callable[[], Node]] = {
    "an output": lambda: exp(X),
    "a difference": lambda: rounded(exp(X) - 1),
    "a sum with what may be negative": lambda: rounded(sum_(exp(X) * X, -1)),
    "a comparison": lambda: rounded(ir.select(less(exp(X), 1.5), X, X * X)),
    "an exponent": lambda: rounded(exp(ir.unary(ops.SIN, exp(X), ops.Quadrant()))),
    "an index": lambda: rounded(ir.gather(X, ir.cast(exp(X), types.i64), 0)),
}


@pytest.mark.parametrize("name", EASED)
def test_what_is_read_rounded_needs_few_digits(name: str) -> None:
    assert set(exponentials(EASED[name]())) == {FEW}


@pytest.mark.parametrize("name", EXACT)
def test_what_can_be_told_apart_is_exact(name: str) -> None:
    assert ALL in exponentials(EXACT[name]())


def test_the_reader_that_needs_most_decides() -> None:
    shared = exp(X)
    assert exponentials(rounded(shared), shared + X) == [ALL]


@pytest.mark.parametrize("name", EASED)
def test_errors_within_the_digits_move_a_rounding_by_one_place(name: str) -> None:
    """Every exponential is off by as much as it may be, each its own way."""
    root = EASED[name]()
    random = np.random.default_rng(0)
    off: dict[Node, Node] = {}
    for node in demands([root]):
        if node.op is ops.EXP2:
            error = 2.0**-FEW * random.choice([-1.0, 1.0], node.shape)
            off[node] = node * ir.constant((1 + error).astype(np.float32))
    values = {"x": random.standard_normal(X.shape).astype(np.float32)}
    exact, found = interp.evaluate([root, *ir.substitute([root], off)], values)
    place = np.spacing(np.abs(exact)) * 2.0**16  # the last of bfloat16's 8 bits
    assert (np.abs(found - exact) <= place).all() and (found != exact).mean() < 0.25


@pytest.mark.parametrize(("precision", "digits"), [(BF16, FEW), (FP16, significant(types.f16) + GUARD)])
def test_operands_of_contractions_are_read_rounded(precision: Any, digits: int) -> None:
    graph = Graph("weights", (X, W), (("y", matmul(softmax(X, -1), W)),))
    target = targets.parse("avx512-bf16", precision.name)
    scales = {n.attr for n in ir.topological(canonical(graph, target).roots) if n.op is ops.EXP2}
    assert [scale.digits for scale in scales] == [digits]


@pytest.mark.parametrize(
    ("precision", "function", "shorter"),
    [("bf16", gelu, True), ("fp16", gelu, False), ("fp32", gelu, False), ("bf16", lambda x: gelu(x) + 1, False)],
)
def test_a_function_that_is_read_rounded_is_of_its_shorter_form(
    precision: str, function: Callable[[Node], Node], shorter: bool
) -> None:
    graph = Graph("weights", (X, W), (("y", matmul(function(X * 3), W)),))
    (root,) = canonical(graph, targets.parse("avx512-bf16", precision)).roots
    assert any(node.op is ops.DIV for node in ir.topological([root])) != shorter


@pytest.mark.parametrize("row", SHORTER, ids=lambda row: row.function.__name__)
def test_shorter_forms_have_the_digits_that_they_claim(row: Shorter) -> None:
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 90, -90]
    values = np.concatenate([special, np.linspace(-20, 12, 1 << 16)]).astype(np.float32)
    x = ir.input_("x", values.shape, types.f32)
    found, exact = interp.evaluate([row.short(x), row.function(x)], {"x": values})
    stored, wanted = (v[: len(special)].astype(types.bf16.numpy) for v in (found, exact))
    assert stored.tobytes() == wanted.tobytes()
    found, exact = found[len(special) :], exact[len(special) :]
    smallest = 2.0**-134  # half of the least bfloat16 above zero
    assert (np.abs(found - exact) <= np.abs(exact) * 2.0**-row.digits + smallest).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_outputs_are_as_exact_as_ever(precision: str) -> None:
    graph = Graph("values", (X,), (("p", softmax(X, -1)), ("g", gelu(X))))
    target = targets.parse("avx512-bf16", precision)
    assert all(n.attr.digits is None for n in ir.topological(canonical(graph, target).roots) if n.op is ops.EXP2)
