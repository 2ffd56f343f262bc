"""Exact rules: each example's two sides agree to the bit on random and special values; a fixpoint keeps the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mpmath import mp

from luminal.core import interp, ir, movement, ops, rewrite, spec, traverse
from luminal.core import symbolic as sym
from luminal.core.decompose.error_function import times_normal, times_normal_short
from luminal.core.decompose.hyperbolic import one_plus_tanh_short
from luminal.core.errors import SpecError
from luminal.core.ir import Graph, Node
from luminal.core.origins import Origin
from luminal.core.rules import RULES, quotient
from luminal.core.rules.functions import IDENTITIES, Identity
from luminal.core.rules.pattern import NODES, Rule, instance
from luminal.core.schedule.numeric import bit_maxima, integers
from luminal.core.types import DType, bool_, f16, f32, i32, i64, u8

DIMS = {"S": 5}


def values(dtype: DType, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Random values, with the special ones of the type scattered among them."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        special = [int(dtype.min), int(dtype.max), 0, 1, int(dtype.max) - 1]
        result = rng.integers(-100 if dtype.kind == "i" else 0, 100, shape)
        chosen = np.array(special, dtype.numpy)[rng.integers(0, len(special), shape)]
        return np.where(rng.random(shape) < 0.4, chosen, result.astype(dtype.numpy))
    with np.errstate(all="ignore"):
        magnitudes = [0.0, np.inf, np.nan, float(dtype.max), dtype.eps, 1e-40, 1e-7, 1.0, 2.5]
        special = np.array([*magnitudes, *(-m for m in magnitudes)]).astype(dtype.numpy)
        result = (rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)).astype(dtype.numpy)
    return np.where(rng.random(shape) < 0.5, special[rng.integers(0, len(special), shape)], result)


def feed(roots: list[Node], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    inputs = sorted({n for n in traverse.topological(roots) if n.op is ops.INPUT}, key=lambda n: n.attr.name)
    return {
        n.attr.name: values(n.dtype, tuple(int(sym.evaluate(d, DIMS)) for d in n.shape), seed + k)
        for k, n in enumerate(inputs)
    }


def assert_same_bits(left: Node, right: Node) -> None:
    assert (left.shape, left.dtype) == (right.shape, right.dtype)
    for seed in range(3):
        expected, found = interp.evaluate([left, right], feed([left, right], seed), DIMS)
        if not left.dtype.is_float:
            np.testing.assert_array_equal(found, expected)
            continue
        wide_expected, wide_found = (x.astype(np.float64) for x in (expected, found))
        np.testing.assert_array_equal(wide_found, wide_expected)
        number = ~np.isnan(wide_expected)
        np.testing.assert_array_equal(np.signbit(wide_found[number]), np.signbit(wide_expected[number]))


@pytest.mark.parametrize("rule", (*RULES, *quotient.RULES), ids=repr)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_each_rule_holds_to_the_bit(rule: Rule) -> None:
    examples = list(rule.examples())
    assert examples, "a rule without an example is not tested"
    for left in examples:
        assert not rule.ops or left.op in rule.ops
        right = rule.rewrite(left)
        assert right is not None, f"the rule does not apply to its example {left}"
        assert right is not left
        assert_same_bits(left, right)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_the_fixpoint_of_each_example_holds_to_the_bit(rule: Rule) -> None:
    for left in rule.examples():
        (right,) = rewrite.rewrite([left])
        assert_same_bits(left, right)
        assert rewrite.rewrite([right]) == [right]


def test_equations_are_unique() -> None:
    equations = [rule.equation for rule in (*RULES, *IDENTITIES)]
    assert len(set(equations)) == len(equations)


def test_rules_that_run_anywhere_are_exact() -> None:
    assert not [rule for rule in (*RULES, *quotient.RULES) if rule.real is not None]


@pytest.mark.parametrize("rule", [integers.RULE, bit_maxima.RULE], ids=repr)
def test_real_rules_keep_their_bound(rule: Rule) -> None:
    for left in rule.examples():
        right = rule.rewrite(left)
        assert rule.real is not None and right is not None and right is not left
        exact, found = interp.evaluate([left, right], feed([left]))  # the left sides do not round
        np.testing.assert_allclose(found, exact, 4 * left.dtype.eps if left.dtype.is_float else 0)


# ---- identities of functions -----------------------------------------------------------------------------------------


def times_phi(x: Any) -> Any:
    return x * mp.erfc(-x / mp.sqrt(2)) / 2 if abs(x) < 1000 else x * (x > 0)


REAL: dict[Any, Callable[[Any], Any]] = {  # by what the rows make
    times_normal: times_phi,
    times_normal_short: times_phi,
    one_plus_tanh_short: lambda x: 2 / (1 + mp.exp(-2 * x)),
}


@pytest.mark.parametrize("row", IDENTITIES, ids=repr)
def test_each_identity_is_known_and_keeps_its_bound(row: Identity) -> None:
    for dtype in row.types:
        left = instance(row.left, dtype, row.numbers, (512,))
        x = ir.input_("x", left.shape, dtype)
        (known,) = rewrite.rewrite([left])
        assert row.argument(left, NODES) is row.argument(known, NODES) is x
        given = np.concatenate([values(dtype, (256,), 0), np.linspace(-14, 6, 256).astype(dtype.numpy)])
        found = interp.evaluate([row.right(x)], {"x": given})[0].astype(np.float64)
        with mp.workdps(50):
            exact = np.array([float(REAL[row.right](mp.mpf(float(value)))) for value in given])
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(found[~finite], exact[~finite])
        relative = 4 * dtype.eps if row.real.digits is None else 2.0**-row.real.digits
        bound = np.abs(exact[finite]) * relative + max(row.real.lost, float(np.finfo(dtype.numpy).smallest_subnormal))
        assert (np.abs(found[finite] - exact[finite]) <= bound).all()


# ---- what must not be rewritten --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left",
    [
        ir.input_("x", (8,), f32) + 0.0,  # -0 + 0 = 0
        ir.input_("x", (8,), f32) * 0.0,  # NaN and infinities
        ir.input_("x", (8,), f32) / 3.0,
        ir.binary(ops.EQUAL, ir.input_("x", (8,), f32), ir.input_("x", (8,), f32)),  # NaN
        ir.cast(ir.cast(ir.input_("x", (8,), f32), f16), f32),
        ir.cast(ir.cast(ir.input_("x", (8,), i64), i32), i64),
        (ir.input_("x", (8,), f32) + 1.0) + 2.0,
    ],
    ids=repr,
)
def test_floats_are_left_alone_where_a_rounding_or_a_special_value_would_move(left: Node) -> None:
    assert rewrite.rewrite([left]) == [left]


def test_expanded_constants_stay_expanded() -> None:
    x = ir.expand(ir.constant(2.0, f32), (512, 512)) * ir.expand(ir.constant(3.0, f32), (512, 512))
    (y,) = rewrite.rewrite([x])
    assert y.op is ops.VIEW
    assert y.inputs[0] is ir.constant(6.0, f32)
    weight = ir.constant(np.ones((64, 64), np.float32))
    turned = movement.permute(weight, (1, 0))
    assert rewrite.rewrite([turned]) == [turned]


def test_conditions_on_positions_are_kept_for_splitting() -> None:
    rows = movement.along(ir.iota(8), 0, (8, 8))
    columns = movement.along(ir.iota(8), 1, (8, 8))
    mask = ir.select(rows < columns, ir.expand(ir.constant(-np.inf, f32), (8, 8)), 0.0)
    (kept,) = rewrite.rewrite([mask])
    assert kept.op is ops.SELECT
    assert any(n.op is ops.IOTA for n in traverse.topological([kept]))


def test_shape_arithmetic_disappears() -> None:
    size = sym.var("S", 1, 9)
    x = ir.input_("x", (size, 4), f32)
    positions = ir.gather(ir.input_("table", (16, 4), f32), ir.iota(size), 0)
    scaled = x * ir.cast(ir.expand(ir.cast(ir.dim(size), f32), (size, 4)), f32)
    found = rewrite.rewrite([positions, scaled])
    assert found[0] is movement.slice_(ir.input_("table", (16, 4), f32), 0, 0, size)
    assert {n.op for n in traverse.topological([found[1]])} <= {ops.INPUT, ops.DIM, ops.CAST, ops.VIEW, ops.MUL}


# ---- graphs ----------------------------------------------------------------------------------------------------------


def test_simplify_keeps_inputs_names_and_joins_origins() -> None:
    origins: ir.Origins = {}
    unused = ir.input_("unused", (2,), f32)
    x = ir.input_("x", (2, 3), f32)
    weight = ir.constant(np.arange(3, dtype=np.float32))
    with ir.originating(origins, Origin("Mul", "first")):
        y = x * weight
    with ir.originating(origins, Origin("Mul", "second", "model.py:7")):
        z = y * 1.0
    graph = Graph("g", (x, unused), (("z", z),), origins=origins, names={weight: "layer.weight"})
    found = rewrite.simplify(graph)
    assert found.inputs == graph.inputs
    assert found.outputs == (("z", y),)
    assert found.names == {weight: "layer.weight"}
    assert found.origins[y] == (Origin("Mul", "first"), Origin("Mul", "second", "model.py:7"))
    assert set(found.origins) <= set(traverse.topological(found.results))
    assert graph.origins[y] == (Origin("Mul", "first"),)


def test_a_deep_chain_needs_no_recursion() -> None:
    x = ir.input_("x", (2,), f32)
    y = x
    for _ in range(3000):
        y = (y + 1.0) * 1.0
    (found,) = rewrite.rewrite([y])
    assert len([n for n in traverse.topological([found]) if n.op is ops.ADD]) == 3000


def swap(node: Node) -> Node | None:
    return ir.elementwise(node.op, *reversed(node.inputs))


def test_what_is_too_large_to_fold_is_not_walked_again_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large table joined of many small constants: that it is larger than they are is known from its operands."""
    walked: list[int] = []

    def counted(roots: Any, measured: Any = None) -> list[Node]:
        order = topological(roots, measured)
        walked.append(len(order))
        return order

    topological = traverse.topological
    value = movement.concatenate([ir.expand(ir.constant(k, f32), (1 << 14,)) for k in range(100)], 0)
    monkeypatch.setattr(traverse, "topological", counted)
    rewrite.rewrite([value])
    assert sum(walked) < 10 * len(topological([value]))


def test_rules_that_never_end_are_named() -> None:
    turning = Rule("x + y = y + x", (ops.ADD,), swap, lambda: ())
    growing = Rule("x * y = (x * y) * 1", (ops.MUL,), lambda n: n * 1.0, lambda: ())
    x, y = ir.input_("x", (2,), f32), ir.input_("y", (2,), f32)
    with pytest.raises(SpecError, match="never come to an end"):
        rewrite.rewrite([x + y], [turning])
    with pytest.raises(SpecError, match="never come to an end"):
        rewrite.rewrite([x * y], [growing])


def test_a_rule_that_changes_the_type_is_named() -> None:
    wrong = Rule("x + y = x", (ops.ADD,), lambda n: ir.cast(n, f16), lambda: ())
    x = ir.input_("x", (2,), f32)
    with pytest.raises(SpecError, match="expected the same shape and type"):
        rewrite.rewrite([x + 1.0], [wrong])


# ---- random graphs ---------------------------------------------------------------------------------------------------

SIDE = 4
SQUARE = (SIDE, SIDE)
TYPES = (f32, f16, i32, i64, u8, bool_)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, -np.inf)


def grow(pool: list[Node], draw: Any) -> Node:
    """A random primitive over nodes of ``pool``, all of which are square."""

    def pick(dtype: DType) -> Node:
        return draw(st.sampled_from([n for n in pool if n.dtype == dtype]))

    dtype = draw(st.sampled_from(TYPES))
    x, y = pick(dtype), pick(dtype)
    kinds = ["number", "position", "move", "cast", "select", "reduce", "gather", "one", "two", "two"]
    kind = draw(st.sampled_from(kinds))
    if kind == "number":
        held = [v for v in NUMBERS if dtype.is_float or (float(v).is_integer() and (v in (0, 1) or not dtype.is_bool))]
        return ir.expand(ir.constant(draw(st.sampled_from(held)), dtype), SQUARE)
    if kind == "position":
        return movement.along(ir.iota(SIDE), draw(st.sampled_from([0, 1])), SQUARE)
    if kind == "move":
        way = draw(st.sampled_from(["flip", "turn", "row", "shift", "flat"]))
        if way == "flip":
            return movement.flip(x, [draw(st.sampled_from([0, 1]))])
        if way == "turn":
            return movement.permute(x, (1, 0))
        if way == "row":
            return ir.expand(movement.slice_(x, 0, draw(st.integers(0, SIDE - 1)), 1), SQUARE)
        if way == "shift":
            return movement.pad(x, [1, 0], [-1, 0], draw(st.sampled_from([0, 1])))
        return movement.reshape(movement.flip(movement.reshape(x, (SIDE * SIDE,)), [0]), SQUARE)
    if kind == "cast":
        return ir.cast(x, draw(st.sampled_from(TYPES)))
    if kind == "select":
        return ir.select(pick(bool_), x, y)
    if kind == "reduce" and not dtype.is_bool:
        op, axis = draw(st.sampled_from([ops.MAX_REDUCE, ops.SUM_REDUCE])), draw(st.sampled_from([0, 1]))
        return ir.expand(movement.unsqueeze(ir.reduce(op, x, [axis]), [axis]), SQUARE)
    if kind == "gather":
        index = ir.binary(ops.MOD, pick(i64), SIDE)
        return ir.gather(x, movement.reshape(movement.slice_(index, 0, 0, 1), (SIDE,)), draw(st.sampled_from([0, 1])))
    if kind == "one" and dtype.is_float:
        if draw(st.booleans()):
            return ir.unary(ops.ROUND, x, ops.Rounding(draw(st.sampled_from(["even", "floor"]))))
        return ir.unary(draw(st.sampled_from([ops.SQRT, ops.RECIP])), x)
    bits = [ops.AND, ops.OR, ops.XOR, ops.EQUAL, ops.LESS_THAN, ops.MAX]
    whole = [ops.ADD, ops.MUL, ops.DIV, ops.MOD, ops.SHL, ops.SHR, *bits]
    real = [ops.ADD, ops.MUL, ops.DIV, ops.MOD, ops.EQUAL, ops.LESS_THAN, ops.MAX]
    return ir.binary(draw(st.sampled_from(real if dtype.is_float else bits if dtype.is_bool else whole)), x, y)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_random_graphs_keep_every_bit(data: Any) -> None:
    inputs = [ir.input_(dtype.name, SQUARE, dtype) for dtype in TYPES]
    pool = list(inputs)
    for _ in range(data.draw(st.integers(1, 25))):
        pool.append(grow(pool, data.draw))
    graph = Graph("random", tuple(inputs), tuple((f"y{k}", node) for k, node in enumerate(pool)))
    spec.check_graph(graph)
    found = rewrite.simplify(graph)
    spec.check_graph(found)
    assert rewrite.simplify(found).outputs == found.outputs
    for left, right in zip(graph.results, found.results, strict=True):
        if left is not right:
            assert_same_bits(left, right)
