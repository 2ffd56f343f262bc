"""The one matcher: nodes and scalars alike, operands in both orders, and each part of what is shared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from luminal.codegen.patterns import SCALARS
from luminal.core import ir, ops
from luminal.core.ir import Node
from luminal.core.rules.match import Alone, Any_, Apply, C, Matcher, Number, Pattern, Product, Scaled, Shifted, X, Y
from luminal.core.rules.match import apply as of
from luminal.core.rules.pattern import NODES
from luminal.core.schedule.nest import ir as nests
from luminal.core.types import f32, f64, i8, i32

A, B = ir.input_("a", (3,), f32), ir.input_("b", (3,), f32)
ADD, MUL, LESS_THAN = ops.ADD, ops.MUL, ops.LESS_THAN


def found(pattern: Pattern, node: Node) -> list[dict[str, Any]]:
    return list(NODES.match(pattern, node))


def test_operands_match_in_both_orders_where_order_does_not_matter() -> None:
    assert found(of(ADD, X, 1), 1 + A) == [{"x": A}]
    assert found(of(ADD, X, Y), A + B) == [{"x": A, "y": B}, {"x": B, "y": A}]
    assert found(of(LESS_THAN, X, 1), A < 1) == [{"x": A}] and not found(of(LESS_THAN, X, 1), A > 1)
    assert found(of(ADD, X, X), A + A) == [{"x": A}] and not found(of(ADD, X, X), A + B)


def test_numbers_are_told_apart_by_the_sign_of_zero_and_by_their_type() -> None:
    assert found(of(ADD, X, -0.0), A + -0.0) and not found(of(ADD, X, -0.0), A + 0.0)
    assert found(of(ADD, X, Number(1, f32)), A + 1) and not found(of(ADD, X, Number(1, f64)), A + 1)
    assert found(Any_("x", f32), A) and not found(Any_("x", f64), A)
    byte = ir.input_("q", (3,), i8)
    assert found(of(ops.AND, X, -1), byte & -1) and found(of(ops.AND, X, 255), byte & -1)
    assert found(Number(np.nan), ir.constant(np.nan, f32)) and not found(Number(0.5), ir.constant(1, i32))


def test_the_same_patterns_match_scalars() -> None:
    x, y = nests.load("x", 0, f32), nests.load("y", 0, f32)
    half = nests.literal(np.float32(0.5).tobytes(), f32)
    product = nests.apply(MUL, (half, nests.apply(ADD, (x, y), None, f32)), None, f32)
    assert next(SCALARS.match(of(MUL, of(ADD, X, Y), C), product)) == {"x": x, "y": y, "c": half}
    assert next(SCALARS.match(Scaled("n", of(ADD, X, Y)), product)) == {"n": 0.5, "x": x, "y": y}
    assert not list(SCALARS.match(of(MUL, X, 0.25), product))


def test_numbers_beside_a_term() -> None:
    assert found(Shifted("n", of(MUL, X, Y)), 2 + A * B)[0] == {"n": 2.0, "x": A, "y": B}
    assert found(Shifted("n", X), A) == [{"n": 0.0, "x": A}]
    assert found(Scaled("n", X), A / 4) == [{"n": 0.25, "x": A}] and found(Scaled("n", X), A / 0.0)[0]["n"] == 1
    whole = ir.input_("i", (3,), i32)
    assert found(Scaled("n", X), whole / 4) == [{"n": 1.0, "x": whole / 4}]  # what is left over is lost


@pytest.mark.parametrize(
    "product", [lambda x, y: x * 2 * (x + y) * 3, lambda x, y: (x + y) * 6 * x, lambda x, y: 2 * (3 * ((y + x) * x))]
)
def test_products_match_in_any_order(product: Callable[[Node, Node], Node]) -> None:
    pattern = Product("n", (of(ADD, X, Y), X))
    assert {"n": 6.0, "x": A, "y": B} in found(pattern, product(A, B))
    assert {"n": 6.0, "x": A * B, "y": B} in found(pattern, product(A * B, B))  # a factor may be a product itself
    assert not found(pattern, product(A, B) * A) and not found(pattern, product(A, B) * B)


def test_what_others_read_is_not_alone() -> None:
    inner = A + B
    pattern = of(MUL, Alone(of(ADD, X, Y)), C)
    assert list(Matcher(lambda node: node.inputs, NODES.number, lambda node: node is inner).match(pattern, inner * 2))
    assert not list(Matcher(lambda node: node.inputs, NODES.number, lambda node: False).match(pattern, inner * 2))


DEPTH = 60


def shared(x: Any, times: Callable[[Any, float], Any], both: Callable[[Any, Any], Any], first: float) -> Any:
    """Two to the power of ``DEPTH`` terms, if it were written out; both orders of each product look alike at first."""
    for step in range(DEPTH):
        x = both(times(x, first if step == 0 else 2.0), times(x, 3.0))
    return x


def test_what_is_shared_is_walked_once() -> None:
    pattern: Apply = shared(X, lambda x, n: of(MUL, x, n), lambda x, y: of(MUL, x, y), 2.0)
    same, other = (shared(A, lambda x, n: x * n, lambda x, y: x * y, first) for first in (2.0, 2.5))
    assert found(pattern, same) == [{"x": A}]
    assert not found(pattern, other)
