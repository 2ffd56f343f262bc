"""Identities of exponentials, logarithms, powers and roots: that each holds, loses nothing, and is refused where it
would."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpmath import mp

from luminal.core import interp, ir, ops, traverse
from luminal.core import target as targets
from luminal.core.algebra import functions, stage
from luminal.core.decompose.arithmetic import reciprocal, rsqrt, sqrt
from luminal.core.decompose.exponential import exp, log
from luminal.core.decompose.reduction import sum_
from luminal.core.intervals import interval, is_positive, magnitude
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import rewritten
from luminal.core.rewrite import simplify
from luminal.core.rules import exponents
from luminal.core.rules.exponents import IDENTITIES, Identity
from luminal.core.target import EXACT
from luminal.core.types import bf16, f16, f32, f64

Array = np.ndarray[Any, Any]
SPECIAL = [0.0, math.inf, math.nan, 1.0, 1e-3, 0.5, 30.0, 60.0, 120.0]
EXAMPLES = [(row, left) for row in IDENTITIES for left in row.rule.examples()]


def drawn(dtype: Any) -> Array:
    """Values of every size and sign, small ones and special ones among them."""
    rng = np.random.default_rng(0)
    sizes = rng.standard_normal(400) * 10.0 ** rng.uniform(-3, 2, 400)
    values = np.concatenate([sizes, SPECIAL, np.negative(SPECIAL), 1 + rng.standard_normal(40) * 1e-4])
    return values.astype(dtype.numpy)


def exact(node: Node, x: Array) -> Array:
    """``node`` of each element of ``x`` with 60 digits; infinities and NaN as the primitives have them."""
    whole: dict[Node, Any] = {}
    with mp.workdps(60):
        values = []
        for value in x:
            for n in traverse.topological([node]):
                whole[n] = _value(n, [whole[operand] for operand in n.inputs], value)
            values.append(float(whole[node]))
    return np.array(values)


def _value(n: Node, of: list[Any], x: Any) -> Any:
    match n.op:
        case ops.INPUT:
            return mp.mpf(float(x))
        case ops.CONSTANT:
            return mp.mpf(float(np.asarray(n.attr.array).reshape(-1)[0]))
        case ops.VIEW:
            return of[0]
        case ops.EXP2:
            return mp.mpf(2) ** (of[0] * mp.mpf(n.attr.scale))
        case ops.LOG2:
            if of[0] == 0:
                return -mp.inf
            return mp.nan if of[0] < 0 or mp.isnan(of[0]) else mp.log(of[0], 2) * mp.mpf(n.attr.scale)
        case ops.SQRT:
            return mp.nan if of[0] < 0 or mp.isnan(of[0]) else mp.sqrt(of[0])
        case ops.RECIP | ops.DIV:
            top, bottom = of if len(of) == 2 else (mp.mpf(1), of[0])
            return (mp.nan if top == 0 or mp.isnan(top) else mp.inf) if bottom == 0 else top / bottom
        case ops.MUL:
            return of[0] * of[1]
        case ops.ADD:
            return of[0] + of[1]
        case ops.MAX:
            return mp.nan if any(map(mp.isnan, of)) else max(of)
        case ops.SIN:
            return mp.nan if mp.isinf(of[0]) else mp.sin(of[0] + n.attr.quadrant * mp.pi / 2)
    raise AssertionError(n.op)


def run(node: Node, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(interp.evaluate([node], {"x": x})[0])


def fault(left: Node, right: Node) -> str:
    """What is wrong with ``right`` in the place of ``left``; empty where nothing is."""
    shape = drawn(left.dtype).shape
    left, right = (_of_length(node, shape) for node in (left, right))
    x = drawn(left.dtype)
    before, after = run(left, x), run(right, x)
    lost = np.isfinite(before) & ~np.isfinite(after) | np.isnan(after) & ~np.isnan(before)
    if lost.any():
        return f"no number at {x[lost][:3]}"
    both = np.isfinite(before) & np.isfinite(after)
    zeros = both & (before == 0) & (after == 0)
    if (np.signbit(before) != np.signbit(after))[zeros].any():
        return f"another zero at {x[zeros][:3]}"
    real = exact(left, x)
    told = both & np.isfinite(real) & (np.abs(real) >= np.finfo(x.dtype).tiny) & (before != 0)
    unit = np.spacing(np.abs(real[told]).astype(x.dtype)).astype(np.float64)
    errors = [np.abs(y[told].astype(np.float64) - real[told]) / unit for y in (before, after)]
    worse = errors[1] > np.maximum(errors[0].max(), 4.0)
    if worse.any():
        return f"{errors[1].max():.1f} ULP where it was {errors[0].max():.1f}, at {x[told][worse][:3]}"
    # Where no step of the left side is beyond the type, infinities and NaN stay where they are.
    steps = [run(node, x) for node in traverse.topological([left]) if node.inputs and node.op is not ops.VIEW]
    within = np.isfinite(x) & np.all([np.isfinite(s) & ((s == 0) | (np.abs(s) > 1e-30)) for s in steps], 0)
    gone = within & ~np.isclose(before, after, rtol=1e-3, atol=1e-6)
    return f"something else at {x[gone][:3]}" if gone.any() else ""


def _of_length(node: Node, shape: tuple[int, ...]) -> Node:
    """The same of an input of another length."""
    made: dict[Node, Node] = {}
    for n in traverse.topological([node]):
        if n.op is ops.INPUT:
            made[n] = ir.input_(n.attr.name, shape, n.dtype)
        elif n.op is ops.VIEW:
            made[n] = ir.expand(made[n.inputs[0]], shape)
        elif n.inputs:
            made[n] = ir.elementwise(n.op, *(made[x] for x in n.inputs), attr=n.attr)
        else:
            made[n] = n
    return made[node]


@pytest.mark.parametrize(("row", "left"), EXAMPLES, ids=[f"{row}, {left.dtype}" for row, left in EXAMPLES])
def test_each_identity_holds_and_loses_nothing(row: Identity, left: Node) -> None:
    right = row.rule.rewrite(left)
    assert right is not None and right is not left and row.rule.real is not None
    assert fault(left, right) == ""


UNSOUND: dict[str, tuple[Callable[[Node], Node], Callable[[Node], Node]]] = {
    "sqrt(x)**2 = x": (lambda x: sqrt(x) * sqrt(x), lambda x: x),
    "x / sqrt(x) = sqrt(x)": (lambda x: sqrt(x), lambda x: x / sqrt(x)),
    "log(x * x) = 2 log(x)": (lambda x: log(x * x), lambda x: log(x) * 2.0),
    "exp(x) * exp(x/3) = exp(x + x/3)": (lambda x: exp(x) * exp(x * (1 / 3)), lambda x: exp(x + x * (1 / 3))),
    "log(exp(x)) = x of zeros": (lambda x: log(exp(x * 0.01)), lambda x: x * 0.01),
    "log(x) = log(sqrt(x)) * 2": (lambda x: log(x), lambda x: log(sqrt(x)) * 2.0),
    "exp(log(x) * 3) for x**3": (lambda x: x * x * x, lambda x: exp(log(x) * 3.0)),
    "1 / (x * x) = rsqrt(x * x)**2 ": (lambda x: reciprocal(x * x), lambda x: rsqrt(x * x) * rsqrt(x * x) * 1.00001),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_identity_is_caught(name: str) -> None:
    left, right = (made(ir.input_("x", (8,), f32)) for made in UNSOUND[name])
    assert fault(left, right)


# ---- where they are refused ------------------------------------------------------------------------------------------

X = ir.input_("x", (8,), f32)
Y = ir.input_("y", (8,), f32)
REFUSED = {
    "the root of what may be below zero": sqrt(X) * sqrt(X),
    "a quotient by the root of what may be 0": (X * X + Y * Y) / sqrt(X * X + Y * Y),
    "exponents without bounds": exp(X) * exp(Y),
    "exponents beyond the bound": exp(ir.unary(ops.SIN, X)) * exp(ir.unary(ops.SIN, Y) * 4.0),
    "an exponential that may be infinite": log(exp(X)),
    "an exponential of other numbers": log(exp(ir.unary(ops.SIN, X) * 100.0)),
    "another base": log(ir.unary(ops.EXP2, ir.unary(ops.SIN, X))),
    "the logarithm of what may be below zero": exp(log(X)),
    "another power": exp(log(X * X) * 3.0),
    "the reciprocal of -0": log(reciprocal(X)),
    "a root of other factors": sqrt(X * Y),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_change_more_than_the_last_bits_stays(name: str) -> None:
    nodes = traverse.topological([REFUSED[name]])
    assert not [row for row in IDENTITIES for node in nodes if node.op in row.rule.ops and row.rule.rewrite(node)]


def test_narrow_types_stay() -> None:
    for dtype in (bf16, f16):
        x = ir.input_("x", (8,), dtype)
        node = reciprocal(reciprocal(x))
        assert not [row for row in IDENTITIES if ops.RECIP in row.rule.ops and row.rule.rewrite(node)]


# ---- in a graph ------------------------------------------------------------------------------------------------------


def graph(*results: Node) -> Graph:
    inputs = [n for n in traverse.topological(results) if n.op is ops.INPUT]
    return simplify(Graph("g", tuple(inputs), tuple((f"y{k}", node) for k, node in enumerate(results))))


def count(found: Graph, *which: ops.Op) -> int:
    return sum(node.op in which for node in traverse.topological(found.roots))


def test_a_graph_gets_simpler_functions_and_says_so() -> None:
    whole = graph(sum_(log(sqrt(exp(X) * exp(X))), 0), rsqrt(X * X + 1.0) * rsqrt(X * X + 1.0))
    found = stage.improved(whole, targets.AVX2)
    assert count(found, ops.SQRT) == 0 and count(found, ops.EXP2, ops.LOG2) < count(whole, ops.EXP2, ops.LOG2) + 1
    notes = [note.what for note in found.approximations if note.option == "algebra"]
    assert "exp(x) * exp(x) = exp(2x)" in notes and "1/sqrt(x) * 1/sqrt(x) = 1/x, x >= 0" in notes
    x = np.random.default_rng(0).standard_normal(8).astype(np.float32)
    for before, after in zip(interp.run(whole, {"x": x}, mode="float64").outputs, interp.run(found, {"x": x}).outputs,
                             strict=True):  # fmt: skip
        np.testing.assert_allclose(after, before, rtol=4e-7, atol=4e-7)
    assert rewritten(whole, replace(targets.AVX2, algebra=EXACT)).approximations == ()


def test_what_others_read_is_not_computed_twice() -> None:
    for second in (exp(X), exp(X) + 1.0):
        whole = graph(exp(X) * exp(X), second)
        assert functions.simpler(whole) is whole
    whole = graph(sqrt(X * X), X * X)
    assert count(functions.simpler(whole), ops.SQRT) == 0  # no less work, whoever reads the square


def test_equations_are_unique_and_say_what_happens_to_the_bound() -> None:
    equations = [row.rule.equation for row in IDENTITIES]
    assert len(set(equations)) == len(equations) == len(exponents.IDENTITIES)
    assert all(row.rule.real and ";" in row.rule.real.applied for row in IDENTITIES)


# ---- intervals -------------------------------------------------------------------------------------------------------


def test_intervals_hold_what_is_computed() -> None:
    s, c = ir.unary(ops.SIN, X), ir.constant(np.array([-2.0, 0.5, 3.0, 1, 1, 1, 1, 0], np.float32))
    nodes = [s, s * c, s + c, exp(s), exp(s * c), sqrt(s * s), ir.binary(ops.MAX, s, X), sum_(s * c, 0),
             ir.select(s < c, s, c), ir.cast(s, bf16), exp(X), X * X + 0.5, reciprocal(X)]  # fmt: skip
    for scale in (1.0, 1e3, 1e-30):
        x = (np.random.default_rng(1).standard_normal(8) * scale).astype(np.float32)
        for node in nodes:
            low, high = interval(node)
            with np.errstate(all="ignore"):
                values = np.asarray(interp.evaluate([node], {"x": x})[0], np.float64)
            assert (values >= low).all() and (values <= high).all(), node
    assert magnitude(s) < 1.02 and magnitude(s * c) < 3.1 and interval(X)[1] == math.inf
    assert interval(X * X + 0.5)[0] > 0.4 and interval(ir.select(s < c, s, c))[1] < 1.02


def test_a_small_bound_may_vanish_and_a_large_one_be_infinite() -> None:
    small, large = (ir.constant(np.full(8, v, np.float32)) for v in (1e-30, 1e30))
    low, _ = interval(ir.elementwise(ops.MUL, small, ir.binary(ops.MAX, X, small)))
    assert low == 0
    assert interval(ir.elementwise(ops.MUL, large, ir.binary(ops.MAX, ir.unary(ops.SIN, X), large)))[1] == math.inf
    beyond = ir.cast(ir.constant(np.full(8, 1e300)), f32)
    assert interval(beyond)[1] == math.inf and interval(ir.cast(ir.input_("d", (8,), f64), f32)) == (
        -math.inf,
        math.inf,
    )


def test_signs() -> None:
    assert is_positive(X * X) and is_positive(exp(X)) and is_positive(sum_(exp(X) + X * X, 0))
    assert not is_positive(X) and not is_positive(sqrt(X)) and not is_positive(X * Y)
    assert not is_positive(ir.expand(ir.constant(-0.0, f32), (8,)) + X * X)
    deep = X * X
    for _ in range(200):
        deep = deep + deep
    assert isinstance(is_positive(deep), bool) and interval(deep)[0] <= 0
