"""Symbolic integers and views, against plain Python and numpy on random expressions and random chains of movements."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from luminal.core import interp, ir, movement, ops, symval
from luminal.core import symbolic as sym
from luminal.core.errors import ShapeError
from luminal.core.symbolic import Int
from luminal.core.types import f32, i64

quick = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

S = sym.var("S", 1, 9)
B = sym.var("B", 1, 4)
# Axes whose ends are symbols, axes whose ends are numbers, and a symbol.
VARIABLES: dict[str, Int] = {
    "b": sym.axis("b", B),
    "s": sym.axis("s", S),
    "i": sym.var("i", 0, 5),
    "j": sym.var("j", -3, 7),
    "S": S,
}

# A tree is a function from bindings to a number, beside the expression that it should equal.
Tree = tuple[Int, Callable[[dict[str, int]], int]]


def leaf(name: str) -> Tree:
    return VARIABLES[name], lambda env: env[name]


def number(value: int) -> Tree:
    return value, lambda env: value


def join(op: str, x: Tree, y: Tree, den: Tree) -> Tree:
    (a, fa), (b, fb), (d, fd) = x, y, den
    if op == "+":
        return a + b, lambda env: fa(env) + fb(env)
    if op == "-":
        return a - b, lambda env: fa(env) - fb(env)
    if op == "*":
        return a * b, lambda env: fa(env) * fb(env)
    if op == "//":
        return sym.floordiv(a, d), lambda env: fa(env) // fd(env)
    if op == "%":
        return sym.mod(a, d), lambda env: fa(env) % fd(env)
    if op == "min":
        return sym.minimum(a, b), lambda env: min(fa(env), fb(env))
    return sym.maximum(a, b), lambda env: max(fa(env), fb(env))


divisors = st.one_of(
    st.integers(1, 12).map(number),
    st.just(leaf("S")),
    st.integers(2, 4).map(lambda k: (S * k, lambda env, k=k: env["S"] * k)),
    st.integers(1, 3).map(lambda k: (S + k, lambda env, k=k: env["S"] + k)),
)
leaves = st.one_of(st.sampled_from(sorted(VARIABLES)).map(leaf), st.integers(-9, 20).map(number))
operators = st.sampled_from(["+", "+", "*", "-", "//", "%", "min", "max"])
trees = st.recursive(leaves, lambda inner: st.builds(join, operators, inner, inner, divisors), max_leaves=8)


def bindings() -> list[dict[str, int]]:
    result = []
    for big_b, big_s in itertools.product((1, 4), (1, 2, 5, 9)):
        corners = itertools.product({0, big_b - 1}, {0, big_s // 2, big_s - 1}, (0, 2, 5), (-3, 0, 7))
        result += [{"B": big_b, "S": big_s, "b": b, "s": s, "i": i, "j": j} for b, s, i, j in corners]
    return result


BINDINGS = bindings()


@quick
@given(trees)
def test_simplification_keeps_the_value(tree: Tree) -> None:
    expression, expected = tree
    for env in BINDINGS:
        assert sym.evaluate(expression, env) == expected(env), (expression, env)


@quick
@given(trees)
def test_bounds_hold(tree: Tree) -> None:
    expression, expected = tree
    values = [expected(env) for env in BINDINGS]
    low, high = sym.lower(expression), sym.upper(expression)
    assert low is None or low <= min(values), (expression, low, min(values))
    assert high is None or max(values) <= high, (expression, high, max(values))


@quick
@given(trees)
def test_the_smaller_or_larger_of_two_is_bounded_by_either(tree: Tree) -> None:
    expression, expected = tree
    for env in BINDINGS:
        assert all(expected(env) <= sym.evaluate(e, env) for e in sym.either(expression, "min")), (expression, env)
        assert all(expected(env) >= sym.evaluate(e, env) for e in sym.either(expression, "max")), (expression, env)


def test_what_is_left_of_a_window_bounds_it_with_the_row() -> None:
    """Rows of a window of 3 over 8 rows with a border, of which those inside are counted."""
    r = sym.axis("r", 8)
    first, last = sym.maximum(1 - r, 0), sym.minimum(9 - r, 3) - 1
    assert (sym.lower(r + first - 1), sym.upper(r + last - 1)) == (-1, 8)
    assert [sym.lower(e) for e in sym.either(r + first - 1, "max")] == [0, -1]
    assert [sym.upper(e) for e in sym.either(r + last - 1, "min")] == [7, 8]
    product = sym.minimum(r, 3) - sym.minimum(r, 3) * r  # the smaller adds and is subtracted
    assert sym.either(product, "min") == [product]


@quick
@given(trees, trees)
def test_equal_values_in_normal_form_compare_equal(x: Tree, y: Tree) -> None:
    (a, _), (b, _) = x, y
    assert (a + b) * 2 - b * 2 == a * 2
    assert a - a == 0
    assert hash(a + b) == hash(b + a)


@quick
@given(trees, st.sampled_from(["s", "i", "j"]), trees)
def test_substitution_commutes_with_evaluation(tree: Tree, name: str, replacement: Tree) -> None:
    expression, expected = tree
    by, by_value = replacement
    variable = sym.as_var(VARIABLES[name])
    assert variable is not None
    for env in BINDINGS:
        inner = {**env, name: by_value(env)}
        in_range = variable.lo <= inner[name] <= sym.evaluate(variable.hi, env)
        if in_range and all(_within(name, sym.evaluate(by, e), e) for e in BINDINGS):
            assert sym.evaluate(sym.substitute(expression, {variable: by}), env) == expected(inner)


def _within(name: str, value: int, env: dict[str, int]) -> bool:
    variable = sym.as_var(VARIABLES[name])
    assert variable is not None
    return bool(variable.lo <= value <= sym.evaluate(variable.hi, env))


@quick
@given(trees, st.sampled_from(["b", "s", "i", "j", "S"]))
def test_linear_coefficients(tree: Tree, name: str) -> None:
    expression, expected = tree
    variable = sym.as_var(VARIABLES[name])
    assert variable is not None
    linear = sym.coefficient(expression, variable)
    if linear is not None:
        slope, rest = linear
        assert variable not in sym.variables(slope) | sym.variables(rest)
        for env in BINDINGS:
            assert sym.evaluate(slope, env) * env[name] + sym.evaluate(rest, env) == expected(env)


def test_symbolic_extents_dissolve_quotients() -> None:
    b, s, i = VARIABLES["b"], VARIABLES["s"], VARIABLES["i"]
    assert sym.floordiv(b * S + s, S) == b
    assert sym.mod(b * S + s, S) == s
    assert sym.floordiv((b * S + s) * 6 + i, S * 6) == b
    assert sym.mod(sym.floordiv((b * S + s) * 6 + i, 6), S) == s
    assert sym.floordiv(i, 3) * 3 + sym.mod(i, 3) == i


def test_what_has_one_quotient_is_divided() -> None:
    rows = sym.var("rows", 1, 8)
    assert sym.ceildiv(rows, 8) == 1 and sym.mod(rows + 7, 8) == rows - 1
    assert sym.floordiv(rows - 9, 8) == -1 and sym.mod(rows - 9, 8) == rows - 1
    assert not isinstance(sym.floordiv(rows + 8, 8), int), "8 rows make 2"


def test_sums_divide_exactly() -> None:
    b, s, i = VARIABLES["b"], VARIABLES["s"], VARIABLES["i"]
    assert sym.floordiv(b * 32 * S + b * 32, S + 1) == b * 32
    assert sym.floordiv(b * 32 * S + b * 32, S * 32 + 32) == b
    flat = ((b * 6 + i) * (S + 1)) + s
    assert sym.floordiv(flat, S + 1) == b * 6 + i and sym.mod(flat, S + 1) == s
    assert sym.floordiv(-2 * S - 2, S + 1) == -2
    assert sym.floordiv(s, S + 1) == 0, "a part of a sum is no multiple of it"


# ---- movement --------------------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


def factors(count: int, draw: Any) -> list[int]:
    """A random shape with ``count`` elements."""
    shape: list[int] = []
    while count > 1:
        divisor = draw(st.sampled_from([d for d in range(2, count + 1) if count % d == 0]))
        shape.append(divisor)
        count //= divisor
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return shape or [1]


def step(x: ir.Node, y: np.ndarray[Any, Any], draw: Any) -> tuple[ir.Node, np.ndarray[Any, Any]]:
    """One random movement of a node and of its numpy value."""
    kind = draw(st.sampled_from(["reshape", "permute", "slice", "flip", "pad", "windows", "expand", "squeeze"]))
    axis = draw(st.integers(0, y.ndim - 1)) if y.ndim else 0
    if kind == "reshape" or y.ndim == 0:
        shape = factors(y.size, draw)
        return movement.reshape(x, shape), y.reshape(shape)
    if kind == "permute":
        order = draw(st.permutations(range(y.ndim)))
        return movement.permute(x, order), y.transpose(order)
    if kind == "slice":
        step_ = draw(st.sampled_from([-2, -1, 1, 2]))
        first = draw(st.integers(0, y.shape[axis] - 1))
        room = (first if step_ < 0 else y.shape[axis] - 1 - first) // abs(step_) + 1
        size = draw(st.integers(1, room))
        taken = np.take(y, [first + step_ * k for k in range(size)], axis)
        return movement.slice_(x, axis, first, size, step_), taken
    if kind == "flip":
        return movement.flip(x, [axis]), np.flip(y, axis)
    if kind == "pad":
        before = [draw(st.integers(0, 2)) for _ in y.shape]
        after = [draw(st.integers(0, 2)) for _ in y.shape]
        value = draw(st.sampled_from([0, 0, -7]))
        return movement.pad(x, before, after, value), np.pad(
            y, list(zip(before, after, strict=True)), constant_values=value
        )
    if kind == "windows":
        size = draw(st.integers(1, y.shape[axis]))
        dilation = draw(st.integers(1, 2)) if 2 * (size - 1) < y.shape[axis] else 1
        stride = draw(st.integers(1, 3))
        count = (y.shape[axis] - dilation * (size - 1) - 1) // stride + 1
        parts = [
            np.take(y, [c * stride + k * dilation for c in range(count)], axis)
            for k in range(size)
        ]  # fmt: skip
        return movement.windows(x, axis, size, stride, dilation), np.stack(parts, -1)
    if kind == "squeeze":
        return movement.squeeze(x), np.squeeze(y)
    extra = draw(st.integers(1, 3))
    return ir.expand(x, (extra, *x.shape)), np.broadcast_to(y, (extra, *y.shape))


@settings(quick, max_examples=300)
@given(st.data())
def test_chains_of_movements_match_numpy(data: Any) -> None:
    shape = data.draw(shapes)
    y = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
    x = ir.input_("x", shape, f32)
    feed = {"x": y}
    for _ in range(data.draw(st.integers(1, 5))):
        x, y = step(x, y, data.draw)
        if y.size > 4000:
            break
    assert x.shape == y.shape
    np.testing.assert_array_equal(interp.evaluate([x], feed)[0], y)


@settings(quick, max_examples=100)
@given(st.data())
def test_symbolic_values_follow_movements(data: Any) -> None:
    shape = data.draw(shapes)
    y = np.arange(1, np.prod(shape) + 1, dtype=np.int64).reshape(shape)
    x = ir.constant(y)
    for _ in range(data.draw(st.integers(1, 3))):
        before = x, y
        x, y = step(x, y, data.draw)
        if y.size > symval.LIMIT:
            x, y = before
            break
    np.testing.assert_array_equal(np.array(symval.value(x), np.int64), y)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 5), (4, 9)])
def test_symbolic_shapes_match_numpy(batch: int, length: int) -> None:
    x = ir.input_("x", (B, S, 12), f32)
    heads = movement.permute(movement.reshape(x, (B, S, 3, 4)), (0, 2, 1, 3))
    merged = movement.reshape(movement.permute(heads, (0, 2, 1, 3)), (B * S, 12))
    last = movement.slice_(x, 1, S - 1, 1)
    both = movement.concatenate([x, movement.flip(x, [1])], 1)
    assert merged is movement.reshape(x, (B * S, 12))
    value = np.random.default_rng(0).standard_normal((batch, length, 12)).astype(np.float32)
    found = interp.evaluate([heads, merged, last, both], {"x": value})
    np.testing.assert_array_equal(found[0], value.reshape(batch, length, 3, 4).transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(found[1], value.reshape(-1, 12))
    np.testing.assert_array_equal(found[2], value[:, -1:])
    np.testing.assert_array_equal(found[3], np.concatenate([value, value[:, ::-1]], 1))


def test_views_of_views_are_one_node() -> None:
    x = ir.input_("x", (4, 6), f32)
    y = movement.transpose(movement.reshape(movement.flip(movement.pad(x, [1, 0], [1, 0]), [0]), (3, 12)), 0, 1)
    assert y.op is ops.VIEW
    assert y.inputs == (x,)
    assert movement.transpose(movement.transpose(x, 0, 1), 0, 1) is x
    assert movement.reshape(movement.reshape(x, (24,)), (4, 6)) is x


def test_empty_and_single_element_axes() -> None:
    x = ir.input_("x", (0, 3), f32)
    feed = {"x": np.empty((0, 3), np.float32)}
    assert interp.evaluate([movement.reshape(x, (3, 0))], feed)[0].shape == (3, 0)
    assert interp.evaluate([movement.pad(x, [1, 0], [1, 0], 2.0)], feed)[0].tolist() == [[2.0] * 3] * 2
    assert interp.evaluate([ir.reduce(ops.SUM_REDUCE, x, [0])], feed)[0].tolist() == [0.0] * 3
    assert interp.evaluate([ir.reduce(ops.MAX_REDUCE, x, [0])], feed)[0].tolist() == [-np.inf] * 3


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: movement.reshape(x, (5, 5)), "cannot reshape"),
        (lambda x: movement.permute(x, (0, 0)), "not a permutation"),
        (lambda x: movement.squeeze(x, [0]), "cannot squeeze"),
        (lambda x: ir.expand(x, (4, 7)), "do not broadcast"),
        (lambda x: movement.unsqueeze(x, [0, 0]), "repeat"),
    ],
)
def test_shape_errors_say_what_was_found(build: Callable[[ir.Node], ir.Node], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        build(ir.input_("x", (4, 6), f32))


# ---- symbolic values -------------------------------------------------------------------------------------------------


def test_shape_computations_fold_to_expressions() -> None:
    sizes = movement.concatenate([movement.reshape(ir.dim(d), [1]) for d in (B, S, 768)], 0)
    assert symval.value(sizes).tolist() == [B, S, 768]
    heads = movement.concatenate([movement.slice_(sizes, 0, 0, 2), ir.constant(np.array([12, 64]))], 0)
    assert symval.value(heads).tolist() == [B, S, 12, 64]
    assert symval.value(ir.gather(sizes, ir.constant(np.array([[2], [0]])), 0)).tolist() == [[768], [B]]
    assert symval.scalar(ir.binary(ops.DIV, ir.dim(S * 6), 3)) == S * 2
    assert symval.scalar(ir.reduce(ops.SUM_REDUCE, sizes, [0])) == B + S + 768
    assert symval.value(ir.cast(ir.cast(sizes, f32) * 2.0, i64)).tolist() == [B * 2, S * 2, 1536]


def test_positions_are_decided_by_bounds() -> None:
    position = movement.along(ir.iota(S), 1, (B, S))
    assert symval.formula(position < ir.dim(S)) == 1
    assert symval.formula(ir.dim(S) < position) == 0
    assert symval.formula(position < 3) is None
    assert symval.formula(ir.select(position < ir.dim(S), position, -1)) == ir.axes((B, S))[1]


def test_saved_positions_are_formulas() -> None:
    saved = ir.constant(np.arange(24).reshape(2, 12) * 3 - 5)
    i, j = ir.axes((2, 12))
    assert symval.formula(saved) == i * 36 + j * 3 - 5
    assert symval.formula(ir.constant(np.zeros((2, 3), np.int64))) == 0
    assert symval.formula(ir.constant(np.array([0, 1, 3]))) is None
    assert symval.formula(movement.slice_(ir.constant(np.arange(9)), 0, 0, S) < 9) == 1


def test_a_concatenation_that_continues_a_formula_is_one() -> None:
    shifted = movement.concatenate([ir.constant(np.array([-1])), ir.iota(S)], 0)
    (i,) = ir.axes((S + 1,))
    assert symval.formula(shifted) == i - 1
    longer = movement.concatenate([ir.iota(S), movement.reshape(ir.dim(S), (1,))], 0)
    assert symval.formula(movement.concatenate([ir.iota(4), ir.constant(np.array([4]))], 0)) == ir.axes((5,))[0]
    assert symval.formula(movement.concatenate([ir.iota(4), ir.constant(np.array([5]))], 0)) is None
    assert symval.formula(longer) in (i, None)


def test_run_time_data_has_no_symbolic_value() -> None:
    x = ir.input_("x", (3,), i64)
    assert symval.value(x) is None
    assert symval.value(x * 0 + 1) is None
    assert symval.value(ir.iota(2000)) is None
    joined = movement.concatenate([x, movement.reshape(ir.dim(S), [1])], 0)
    assert symval.value(joined) is None
    assert symval.value(movement.slice_(joined, 0, 3, 1)).tolist() == [S]


def test_what_took_too_much_work_is_known_where_it_takes_less() -> None:
    size = symval.LIMIT
    i, j = (movement.along(ir.iota(size), axis, (size, size)) for axis in range(2))
    sums = ir.reduce(ops.SUM_REDUCE, i * j, [1])
    assert symval.value(sums) is None
    assert [symval.element(sums, (k,)) for k in range(24)] == [k * size * (size - 1) // 2 for k in range(24)]
    chain = [ir.dim(S)]
    for _ in range(300):
        chain.append(ir.binary(ops.ADD, chain[-1], ir.dim(B)))
    assert symval.scalar(chain[-1]) is None
    assert symval.scalar(chain[150]) == S + B * 150


def test_bounds_of_a_quotient_hold_where_those_of_its_divisor_are_loose() -> None:
    x, y = sym.var("x", 0, 9), sym.var("y", 0, 9)
    for numerator in (x, x - 12, x + 3):
        quotient = sym.floordiv(numerator, x - y)  # somewhere else it is known that y < x
        low, high = sym.lower(quotient), sym.upper(quotient)
        found = [sym.evaluate(quotient, {"x": a, "y": b}) for a in range(10) for b in range(a)]
        assert low is not None and high is not None and low <= min(found) and max(found) <= high


def test_digits_of_a_flattened_axis_need_no_remainder() -> None:
    """An axis that numbers ``batch * length`` elements, seen again as the two: exporters flatten them for a product."""
    batch, length = sym.var("batch", 1, 32), sym.var("length", 1, 256)
    flat, column = sym.axis("flat", batch * length), sym.axis("column", 64)
    row = sym.floordiv(flat, length)
    assert sym.mod(row, batch) == row
    assert sym.floordiv(row, batch) == 0
    element = 64 * flat + column
    assert sym.floordiv(element, 64 * length) == row
    assert sym.mod(element, 64 * length) == 64 * sym.mod(flat, length) + column
    assert row * length + sym.mod(flat, length) == flat


def test_digits_of_an_axis_are_rejoined() -> None:
    """Three axes of four lines, flattened and seen again in panels of 64 columns, whose digits four divides."""
    x, d, e = sym.var("x", 0, 447), S * 2, sym.var("e", 1, 8)
    assert sym.floordiv(sym.mod(x, 56), 4) == sym.mod(sym.floordiv(x, 4), 14)
    line = sym.floordiv(x, 56) * 14 + sym.floordiv(sym.mod(x, 56), 4)
    assert line == sym.floordiv(x, 4)
    assert sym.floordiv(line, 16) * 64 + sym.mod(line, 16) * 4 + sym.mod(x, 4) == x
    assert sym.mod(line, 16) * 4 + sym.mod(x, 4) == sym.mod(x, 64)
    # And where sizes are symbols.
    assert sym.floordiv(sym.mod(x, d * e), d) == sym.mod(sym.floordiv(x, d), e)
    assert sym.mod(sym.mod(x, d * e), d) == sym.mod(x, d)
    assert sym.floordiv(sym.floordiv(x, d), e) == sym.floordiv(x, d * e)
    assert sym.mod(sym.floordiv(x, d), e) * d + sym.mod(x, d) == sym.mod(x, d * e)


def test_what_is_left_of_coefficients_may_add_up_to_nothing() -> None:
    """As a scale that is a float32 leaves it: 1/300 of 600 times a size."""
    n, m = sym.var("n", 1, 99), sym.var("m", 0, 4)
    assert sym.floordiv(n * 201, 100) == n * 2 and sym.mod(n * 201, 100) == n
    assert sym.floordiv(n * 536870925 + m, 268435456) == n * 2
    assert sym.floordiv(n * 199 + m * 301, 100) == sym.floordiv(n * 199 + m * 301, 100)
    wide = sym.var("w", 1, 100)
    for size, factor in ((wide, 201), (n, 202), (n, -101)):
        value = sym.floordiv(size * factor, 100)
        for at in (1, 49, 50, 51, 99, 100)[: 6 if size is wide else 5]:
            assert sym.evaluate(value, {"w": at, "n": at}) == factor * at // 100
