"""Exponentials are as exact as the outputs of a graph can tell, and no less."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from luminal.codegen.render import render
from luminal.core import interp, ir, ops, structured, traverse, types
from luminal.core import target as targets
from luminal.core.decompose.activation import gelu, silu
from luminal.core.decompose.common import SHORT_DIGITS
from luminal.core.decompose.compare import clamp, less, maximum
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.error_function import times_normal, times_normal_short
from luminal.core.decompose.exponential import exp, log
from luminal.core.decompose.hyperbolic import one_plus_tanh_short, tanh
from luminal.core.decompose.reduction import prod, softmax, sum_
from luminal.core.ir import Graph, Node
from luminal.core.movement import pad
from luminal.core.origins import Origin
from luminal.core.pipeline import compile_graph
from luminal.core.rewrite import rewrite
from luminal.core.rules import functions
from luminal.core.rules.functions import IDENTITIES, Identity
from luminal.core.rules.pattern import NODES
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.numeric.digits import ALL, GUARD, demands, eased
from tests.schedule_support import canonical

Array = np.ndarray[Any, Any]

X = ir.input_("x", (8, 24), types.f32)
Y = ir.input_("y", (8, 26), types.f32)
W = ir.input_("w", (24, 4), types.f32)
FEW = types.bf16.significant + GUARD


def rounded(x: Node) -> Node:
    return ir.cast(ir.cast(x, types.bf16), types.f32)


def exponentials(*roots: Node) -> list[int]:
    found = demands(roots)
    return [found[node] for node in found if node.op is ops.EXP2]


EASED: dict[str, tuple[Callable[[], Node], int]] = {
    "the exponential": (lambda: rounded(exp(X)), FEW),
    "a product": (lambda: rounded(exp(X) * X), FEW),
    "a quotient": (lambda: rounded(X / exp(X)), FEW),
    "a product of two": (lambda: rounded(exp(X) * exp(X * X)), FEW + 1),
    "a product with what was rounded": (lambda: rounded(exp(X) * rounded(exp(X * X))), FEW),
    "a softmax": (lambda: rounded(softmax(X, -1)), FEW + 1),
    "a choice": (lambda: rounded(ir.select(less(X, 0), exp(X), X)), FEW),
    "the larger": (lambda: rounded(maximum(exp(X), exp(X * X))), FEW),
    "a sum of both": (lambda: rounded(exp(X) + maximum(X, 0)), FEW),
    "a sum with what is limited": (lambda: rounded(exp(X) + clamp(X, 0, 6)), FEW),
    "a gate": (lambda: rounded(silu(X)), FEW + 1),
    "a view": (lambda: rounded(ir.expand(sum_(exp(X), -1, keepdims=True), X.shape)), FEW),
    "what is padded": (lambda: rounded(pad(exp(X), [0, 1], [0, 1]) + exp(Y)), FEW),
    "a test for NaN": (lambda: rounded(ir.select(ir.binary(ops.EQUAL, exp(X), exp(X)), exp(X), X)), FEW),
}
EXACT: dict[str, Callable[[], Node]] = {
    "an output": lambda: exp(X),
    "a difference": lambda: rounded(exp(X) - 1),
    "a sum with what may be negative": lambda: rounded(sum_(exp(X) * X, -1)),
    "a sum with the larger of two": lambda: rounded(exp(X) + maximum(X, X * X * X)),
    "a sum with a border": lambda: rounded(pad(exp(X), [0, 1], [0, 1], -1) + exp(Y)),
    "a comparison": lambda: rounded(ir.select(less(exp(X), 1.5), X, X * X)),
    "an exponent": lambda: rounded(exp(ir.unary(ops.SIN, exp(X), ops.Quadrant()))),
    "a logarithm": lambda: rounded(log(exp(X) * X)),
    "an integer": lambda: rounded(ir.cast(ir.cast(exp(X), types.i32), types.f32)),
    "an index": lambda: rounded(ir.gather(X, ir.cast(exp(X), types.i64), 0)),
}


@pytest.mark.parametrize("name", EASED)
def test_what_is_read_rounded_needs_few_digits(name: str) -> None:
    make, digits = EASED[name]
    assert set(exponentials(make())) == {digits}


@pytest.mark.parametrize("name", EXACT)
def test_what_can_be_told_apart_is_exact(name: str) -> None:
    assert ALL in exponentials(EXACT[name]())


def test_a_product_of_many_asks_for_more() -> None:
    assert set(exponentials(rounded(prod(exp(X), -1)))) == {FEW + 5}  # 24 factors


def test_the_reader_that_needs_most_decides() -> None:
    shared = exp(X)
    assert exponentials(rounded(shared), shared + X) == [ALL]


@pytest.mark.parametrize("name", [name for name in EASED if name != "a product with what was rounded"])
def test_errors_within_the_digits_move_a_rounding_by_one_place(name: str) -> None:
    """Every exponential is off by as much as it may be, each its own way."""
    root = EASED[name][0]()
    random = np.random.default_rng(0)
    off: dict[Node, Node] = {}
    for node in demands([root]):
        if node.op is ops.EXP2:
            error = 2.0**-FEW * random.choice([-1.0, 1.0], node.shape)
            off[node] = node * ir.constant((1 + error).astype(np.float32))
    values = {n.attr.name: random.standard_normal(n.shape).astype(np.float32) for n in (X, Y)}
    exact, found = interp.evaluate([root, *traverse.substitute([root], off)], values)
    place = np.spacing(np.abs(exact)) * 2.0**16  # the last of bfloat16's 8 bits
    assert (np.abs(found - exact) <= place).all() and (found != exact).mean() < 0.25


def test_loops_are_eased_inside() -> None:
    def step(carries: Sequence[Node], slices: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        (carry,), (x,) = carries, slices
        return [exp(carry)], [sum_(rounded(exp(x)), -1)]

    (last,), (sums,) = structured.scan(step, [Y], [ir.input_("rows", (5, 8, 24), types.f32)])
    graph = eased(Contracted.of(Graph("loop", (), (("last", rounded(last)), ("sums", sums))))).graph
    digits = {n.shape: n.attr.digits for n in traverse.everything(graph.roots) if n.op is ops.EXP2}
    assert digits == {(8, 26): None, (8, 24): FEW}


# ---- shorter forms ---------------------------------------------------------------------------------------------------


def test_a_function_is_found_by_what_it_is_made_of() -> None:
    (whole,) = rewrite([gelu(X)])
    assert list(NODES.match(functions.of(times_normal), whole)) == [{"x": X}]
    others = [n for n in traverse.topological([whole]) if n.op is ops.CONSTANT]
    changed = [{n: ir.constant(np.asarray(n.attr.array * 3 + 1))} for n in others]
    readers = [n for n in traverse.topological([whole]) if X in n.inputs]
    z = ir.input_("z", X.shape, types.f32)
    changed += [{n: traverse.rebuild(n, [z if x is X else x for x in n.inputs])} for n in readers]
    assert len(others) > 10 and len(readers) > 1
    for by in changed:
        assert not list(NODES.match(functions.of(times_normal), *traverse.substitute([whole], by)))


def test_what_a_function_is_compared_with_leaves_no_trace() -> None:
    """The pattern's own operand may be an input of the model."""
    functions._spelled.cache_clear()
    origins: ir.Origins = {}
    x = ir.input_("x", (), types.f32)
    with ir.originating(origins, Origin("Neg", "own")):
        negated = ir.binary(ops.MUL, x, ir.constant(-1.0, types.f32))
    with ir.originating(origins, Origin("Gelu", "other")):
        weights = rounded(gelu(X))
    found = eased(Contracted.of(Graph("both", (x, X), (("n", negated), ("g", weights)), origins=origins))).graph
    assert [origin.op for origin in found.origins[negated]] == ["Neg"] and x not in found.origins
    assert found.origins.keys() <= {*origins, *traverse.everything(found.roots)}


# ---- a chosen precision ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "digits"), [("bf16", "<14>"), ("fp16", "<17>"), ("fp32", "")])
def test_operands_of_contractions_are_read_rounded(precision: str, digits: str) -> None:
    graph = Graph("weights", (X, W), (("y", matmul(softmax(X, -1), W)),))
    target = targets.parse("avx512-bf16", precision)
    files = render(compile_graph(graph, target), target).files
    found = [call for text in files.values() for call in re.findall(r"exp2_scaled(.*?)\(v", text)]
    assert found and set(found) == {digits}


@pytest.mark.parametrize(("precision", "stores"), [("bf16", 1), ("fp16", 0), ("fp32", 0)])
def test_what_a_precision_rounds_may_lose_subnormal_numbers_and_what_a_model_casts_not(
    precision: str, stores: int
) -> None:
    weights = ir.constant(np.ones(W.shape, np.float32))
    both = (("y", matmul(X * 3, weights)), ("z", ir.cast(X * 5, types.bf16)))
    target = targets.parse("avx512-bf16", precision)
    files = render(compile_graph(Graph("both", (X,), both), target), target).files
    assert sum(text.count("normal_or_zero(") for text in files.values()) == stores


@pytest.mark.parametrize(
    ("precision", "function", "shorter"),
    [("bf16", gelu, True), ("fp16", gelu, False), ("fp32", gelu, False), ("bf16", lambda x: gelu(x) + 1, False)],
)
def test_a_function_that_is_read_rounded_is_of_its_shorter_form(
    precision: str, function: Callable[[Node], Node], shorter: bool
) -> None:
    graph = Graph("weights", (X, W), (("y", matmul(function(X * 3), W)),))
    (root,) = canonical(graph, targets.parse("avx512-bf16", precision)).roots
    assert any(node.op is ops.DIV for node in traverse.topological([root])) != shorter


@pytest.mark.parametrize("number_first", [False, True])
def test_a_function_that_a_model_spells_out_is_of_its_shorter_form(number_first: bool) -> None:
    angle = tanh((X + X * X * X * 0.044715) * 0.7978845608)
    y = X * 0.5 * (ir.constant(1.0, types.f32) + angle if number_first else angle + 1)
    (root,) = canonical(Graph("gelu", (X, W), (("y", matmul(y, W)),)), targets.parse("avx512-bf16", "bf16")).roots
    assert [n.attr.digits for n in traverse.topological([root]) if n.op is ops.EXP2] == [SHORT_DIGITS]


def test_what_others_read_is_not_computed_twice() -> None:
    angle = tanh(X)
    graph = Graph("shared", (X, W), (("y", matmul((angle + 1) * X, W)), ("angle", angle)))
    roots = canonical(graph, targets.parse("avx512-bf16", "bf16")).roots
    assert sum(node.op is ops.EXP2 for node in traverse.topological(roots)) == 1


def _in_float64(function: Callable[[Node], Node]) -> Callable[[Array], Array]:
    def evaluated(values: Array) -> Array:
        (found,) = interp.evaluate([function(ir.input_("x", values.shape, types.f64))], {"x": values})
        return found

    return evaluated


@np.errstate(over="ignore")
def _one_plus_tanh(values: Array) -> Array:
    return 2 / (1 + np.exp(-2 * values))  # a sum in float64 has no digits left where the tanh is -1


ORACLES = {times_normal_short: _in_float64(times_normal), one_plus_tanh_short: _one_plus_tanh}


@pytest.mark.parametrize("row", [row for row in IDENTITIES if row.real.digits], ids=repr)
def test_shorter_forms_have_the_digits_that_they_claim(row: Identity) -> None:
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 90, -90, 3.4e38, -3.4e38]
    values = np.concatenate([special, np.linspace(-50, 12, 1 << 16)]).astype(np.float32)
    x = ir.input_("x", values.shape, types.f32)
    (found,) = interp.evaluate([row.right(x)], {"x": values})
    exact = ORACLES[row.right](values.astype(np.float64))
    stored, wanted = (v[: len(special)].astype(types.bf16.numpy) for v in (found, exact))
    assert stored.tobytes() == wanted.tobytes()
    found, exact = found[len(special) :], exact[len(special) :]
    inside = traverse.topological([row.right(x)])
    digits, lost = row.real.digits, row.real.lost
    assert digits is not None and all(node.attr.digits >= digits for node in inside if node.op is ops.EXP2)
    assert (np.abs(found - exact) <= np.abs(exact) * 2.0**-digits + lost).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_outputs_are_as_exact_as_ever(precision: str) -> None:
    graph = Graph("values", (X,), (("p", softmax(X, -1)), ("g", gelu(X))))
    target = targets.parse("avx512-bf16", precision)
    assert all(n.attr.digits is None for n in traverse.topological(canonical(graph, target).roots) if n.op is ops.EXP2)
