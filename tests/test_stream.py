"""Chains of contractions in one pass: the algebra, the conditions, the transform, and what comes of them compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import luminal
from luminal.codegen.emitter import emit
from luminal.core import interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import attention, compare, contraction, exponential, reduction
from luminal.core.errors import ScheduleError
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.nest import carried, conditions, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.program.ir import Kernel
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.schedule.transform.stream import Stream
from luminal.module import Module
from tests.schedule_graphs import SEQ, SIZES, Source
from tests.schedule_support import run_program, transforms
from tests.stream_support import (
    CHANGES,
    COLUMNS,
    DEPTH,
    HEADS,
    ROWS,
    Made,
    assert_close,
    attend,
    attend_or_zero,
    causal,
    make,
    poisoned,
    run,
    special_scores,
    window,
    with_mask,
)

pytestmark = pytest.mark.usefixtures("sums_as_spelled")


def streamed(made: Made, block: int = 1, group: int = 1, rows: int = 2, first_rows: int = 0) -> ln.LoopNest:
    """The nest with ``block`` panels to a block."""
    assert made.cluster.chain is not None and made.cluster.tile is not None
    first, last = replace(made.cluster.chain.tile, rows=first_rows or rows), replace(made.cluster.tile, rows=rows)
    return Stream("k0", "a1", first, last, block * first.columns, group)(made.lowered.nest)


# ---- the transform -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES)
def test_a_chain_is_found_and_its_serial_nest_is_right(change: str) -> None:
    made = make(CHANGES[change])
    assert_close(run(made.lowered.nest, made), made.expected)


@pytest.mark.parametrize(
    ("block", "group", "rows", "first_rows"), [(1, 1, 2, 2), (1, 3, 4, 2), (2, 2, 3, 1), (3, 1, 11, 4), (2, 3, 1, 1)]
)
@pytest.mark.parametrize("change", CHANGES)
def test_blocks_and_groups_of_any_size_give_the_same(
    change: str, block: int, group: int, rows: int, first_rows: int
) -> None:
    made = make(CHANGES[change])
    nest = streamed(made, block, group, rows, first_rows)
    assert_close(run(nest, made), made.expected)
    assert emit(Kernel("chain", Scheduled(nest)), {}).body


SOME_OR_ALL = (1, 3)  # panels of a block: one of three, or all


@pytest.mark.parametrize("change", [CHANGES["plain"], causal], ids=["plain", "causal"])
def test_one_block_carries_nothing(change: Callable[[ir.Node], ir.Node]) -> None:
    """Neither the maxima before a block, nor what sums of it were before."""
    for block in SOME_OR_ALL:
        assert _carries(streamed(make(change), block)) == {block == 1}


@pytest.mark.parametrize("change", [causal, window])
def test_one_of_several_blocks_carries_nothing(change: Callable[[ir.Node], ir.Node]) -> None:
    """All rows are one tile, which visits the first columns alone."""
    made = make(change)
    nest = streamed(made, 2, rows=ROWS)
    assert _carries(nest) == {False}
    assert_close(run(nest, made), made.expected)


def _carries(nest: ln.LoopNest) -> set[bool]:
    """Whether maxima are kept as they will be, named as they were, and sums begun and added to."""
    inside = list(walk.statements(nest.body))
    (last,) = (s.tile for s in inside if isinstance(s, ln.Contract) and s.tile != "tile")
    return {
        any(isinstance(s, ln.Alloc) and s.name.endswith("_next") for s in inside),
        any(isinstance(s, ln.Define) and s.name.endswith("_old") for s in inside),
        any(isinstance(s, ln.Store) and s.array == last for s in inside),
        any(isinstance(s, ln.Contract) and s.accumulate for s in inside),
    }


def visited(nest: ln.LoopNest) -> list[tuple[int, int]]:
    """The columns ``[begin, end)`` that each task looks at."""
    bounds: dict[str, sym.Int] = {s.axis.name: s.value for s in walk.statements(nest.body) if isinstance(s, ln.Assign)}
    groups = next(loop for loop in walk.statements(nest.body) if isinstance(loop, ln.Loop) and loop.axis.name == "a1_2")
    found = []
    for number in range(int(sym.evaluate(groups.extent, {}))):
        values: dict[str, int] = {"a1_2": number}
        for name in ("a1_tile", "a1_tiles", "a1_begin", "a1_height", "k0_begin", "k0_end"):
            if name in bounds:
                values[name] = int(sym.evaluate(bounds[name], values))
        found.append((values.get("k0_begin", 0), values.get("k0_end", COLUMNS)))
    return found


def test_blocks_that_count_for_nothing_are_not_visited() -> None:
    assert visited(streamed(make(CHANGES["plain"]))) == [(0, COLUMNS)] * 6
    ends = [end for _, end in visited(streamed(make(causal)))]
    assert ends == [1, 3, 5, 7, 9, 11]
    begins = [begin for begin, _ in visited(streamed(make(window)))]
    assert begins == [0, 0, 0, 2, 4, 6]


def test_what_is_not_visited_is_not_read() -> None:
    # Beyond the last row's own column, in a block of its own.
    clean, made = (make(causal, arrays) for arrays in poisoned(12))
    np.testing.assert_array_equal(run(streamed(made), made)[:, :4], run(streamed(clean), clean)[:, :4])


@pytest.mark.parametrize("block", SOME_OR_ALL)
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_special_scores_come_out_as_from_two_passes(special: float, block: int) -> None:
    made = make(CHANGES["plain"], special_scores(special))
    with np.errstate(all="ignore"):
        found, expected = run(streamed(made, block), made), run(made.lowered.nest, made)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(expected[0]).any() and not np.isnan(found[1]).any()


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "plain"])
def test_what_is_taken_off_large_scores_is_their_own_maximum(change: str) -> None:
    """Anything else would do for small ones."""
    random = np.random.default_rng(3)
    queries = (1000 * random.standard_normal((HEADS, ROWS, DEPTH))).astype(np.float32)
    made = make(CHANGES[change], {"x0": queries})
    found = run(streamed(made, rows=4, first_rows=2), made)
    assert_close(found / 1000, made.expected / 1000)


def test_a_row_of_scores_that_are_all_the_least_number_is_an_average() -> None:
    mask = np.zeros((HEADS, ROWS, COLUMNS), np.float32)
    mask[1, 2] = np.finfo(np.float32).min
    made = make(lambda scores: scores * 0.3 + ir.constant(mask))
    found = run(streamed(made), made)
    assert_close(found, made.expected)


@pytest.mark.parametrize("block", SOME_OR_ALL)
@pytest.mark.parametrize("masked", [slice(0, 9), slice(9, 21), slice(0, 21)], ids=["first", "last", "all"])
def test_rows_that_are_masked_in_part_or_whole(masked: slice, block: int) -> None:
    made = make(with_mask(masked))
    with np.errstate(all="ignore"):
        found = run(streamed(made, block), made)
    assert np.isnan(found[0, 4]).all() == (masked == slice(0, 21))
    keep = ~np.isnan(made.expected)
    np.testing.assert_array_equal(np.isnan(found), ~keep)
    assert_close(found[keep], made.expected[keep])


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1.0])
@pytest.mark.parametrize("masked", [slice(0, 9), slice(0, 21)], ids=["first", "all"])
@pytest.mark.parametrize("block", SOME_OR_ALL)
def test_rows_whose_weights_are_no_numbers_are_zero_where_the_graph_says_so(
    special: float, masked: slice, block: int
) -> None:
    made = make(with_mask(masked, special), form=attend_or_zero)
    with np.errstate(all="ignore"):
        found = run(streamed(made, block, rows=4, first_rows=2), made)
    assert (made.expected[0, 4] == 0).all() == (masked == slice(0, 21))
    assert (made.expected[1, 5] == 0).all() == (special not in (-np.inf, 1.0))
    np.testing.assert_array_equal(found == 0, made.expected == 0)
    assert_close(found, made.expected)


def unnormalised(q: ir.Node, k: ir.Node, v: ir.Node, change: Callable[[ir.Node], ir.Node]) -> ir.Node:
    """``exp(scores - their maximum) @ v``."""
    scores = change(contraction.matmul(q, movement.transpose(k, -2, -1)))
    return contraction.matmul(exponential.exp(scores - reduction.max_(scores, [-1], True)), v)


def one_more(q: ir.Node, k: ir.Node, v: ir.Node, change: Callable[[ir.Node], ir.Node]) -> ir.Node:
    """As ``unnormalised``, by one more than the sum of the weights."""
    scores = change(contraction.matmul(q, movement.transpose(k, -2, -1)))
    weights = exponential.exp(scores - reduction.max_(scores, [-1], True))
    return contraction.matmul(weights * ir.unary(ops.RECIP, reduction.sum_(weights, [-1], True) + 1.0), v)


@pytest.mark.parametrize("masked", [slice(0, 9), slice(0, 21)], ids=["first", "all"])
@pytest.mark.parametrize("form", [unnormalised, one_more])
def test_weights_that_no_sum_divides_are_nan_where_the_graph_says(form: Callable[..., ir.Node], masked: slice) -> None:
    made = make(with_mask(masked), form=form)
    with np.errstate(all="ignore"):
        found = run(streamed(made), made)
    assert np.isnan(found[0, 4]).all() == (masked == slice(0, 21))
    keep = ~np.isnan(made.expected)
    np.testing.assert_array_equal(np.isnan(found), ~keep)
    scale = max(1.0, float(np.abs(made.expected[keep]).max()))
    assert_close(found[keep] / scale, made.expected[keep] / scale)


# ---- the algebra ---------------------------------------------------------------------------------------------------


def reductions(value: Callable[[ln.Scalar, ln.Scalar], ln.Scalar], first: ops.Op) -> list[ln.Reduction]:
    axis = ln.Loop(sym.Var("t", 0, 7), 8, "serial", ())
    x = ln.load("x", sym.expr(axis.axis), types.f32)
    state = ln.temporary("d", types.f32)
    return [
        ln.Reduction("d", first, types.f32, (axis,), (), x),
        ln.Reduction("y", ops.SUM_REDUCE, types.f32, (axis,), (), value(x, state)),
    ]


def number(value: float) -> ln.Scalar:
    return ln.literal(np.float32(value).tobytes(), types.f32)


def binary(op: ops.Op, left: ln.Scalar, right: ln.Scalar) -> ln.Scalar:
    return ln.apply(op, (left, right), None, types.f32)


def exp2(value: ln.Scalar) -> ln.Scalar:
    return ln.apply(ops.EXP2, (value,), ops.Scale(1.0), types.f32)


def less(x: ln.Scalar, d: ln.Scalar) -> ln.Scalar:
    return binary(ops.ADD, x, binary(ops.MUL, d, number(-1.0)))


def test_an_exponential_of_a_difference_moves_by_a_factor() -> None:
    _, y = carried.derive(reductions(lambda x, d: exp2(less(x, d)), ops.MAX_REDUCE), [sym.Var("t", 0, 7)])
    assert y.moves == (carried.Move("d", ops.Scale(1.0), 1.0),) and y.outside == ()


def test_a_scale_of_the_exponent_moves_too_and_factors_without_the_axis_leave_the_sum() -> None:
    other = ln.temporary("other", types.f32)
    found = reductions(
        lambda x, d: binary(ops.DIV, exp2(binary(ops.MUL, less(x, d), number(3.0))), other), ops.MAX_REDUCE
    )
    _, y = carried.derive(found, [sym.Var("t", 0, 7)])
    assert y.moves == (carried.Move("d", ops.Scale(1.0), 3.0),)
    assert y.outside == (ln.apply(ops.RECIP, (other,), None, types.f32),) and len(y.inside) == 1


@pytest.mark.parametrize(
    ("infinite", "instead", "follows"),
    [(math.inf, 0.0, True), (-math.inf, 1.0, True), (3.0, 0.0, False), (math.inf, -math.inf, False)],
)
def test_a_maximum_may_be_replaced_where_it_is_infinite(infinite: float, instead: float, follows: bool) -> None:
    def value(x: ln.Scalar, d: ln.Scalar) -> ln.Scalar:
        test = ln.apply(ops.EQUAL, (d, number(infinite)), None, types.bool_)
        return exp2(less(x, ln.apply(ops.SELECT, (test, number(instead), d), None, types.f32)))

    found = reductions(value, ops.MAX_REDUCE)
    if follows:
        (move,) = carried.derive(found, [sym.Var("t", 0, 7)])[-1].moves
        assert move.guarded is not None and move.of(number(2.0)) != move.guarded
    else:
        with pytest.raises(ScheduleError, match="its maximum"):
            carried.derive(found, [sym.Var("t", 0, 7)])


def or_zero(value: ln.Scalar, of: ln.Scalar) -> ln.Scalar:
    """``value``, 0 where ``of`` is NaN."""
    is_number = ln.apply(ops.EQUAL, (of, of), None, types.bool_)
    return ln.apply(ops.SELECT, (is_number, value, number(0.0)), None, types.f32)


def test_whether_a_quotient_is_a_number_is_asked_of_its_own_sum_only() -> None:
    x = ln.load("x", sym.expr(sym.Var("t", 0, 7)), types.f32)
    d, total, other = (ln.temporary(name, types.f32) for name in ("d", "y", "other"))
    weight = exp2(less(x, d))

    def last(value: ln.Scalar) -> tuple[ln.Scalar, ...]:
        found = reductions(lambda x, d: exp2(less(x, d)), ops.MAX_REDUCE)
        sum_ = ln.Reduction("z", ops.SUM_REDUCE, types.f32, found[0].loops, (), value)
        return carried.derive([*found, sum_], [found[0].loops[0].axis])[-1].conditions

    share = binary(ops.DIV, weight, total)
    assert last(share) == ()
    assert last(or_zero(share, share)) == (ln.apply(ops.LESS_THAN, (number(0.0), total), None, types.bool_),)
    for of in (weight, binary(ops.DIV, weight, other), binary(ops.DIV, x, total)):
        with pytest.raises(ScheduleError, match="by a factor"):
            last(or_zero(share, of))


@pytest.mark.parametrize(
    ("value", "first", "reason"),
    [
        (lambda x, d: binary(ops.MUL, less(x, d), less(x, binary(ops.ADD, d, d))), ops.SUM_REDUCE, "by a factor"),
        (lambda x, d: exp2(binary(ops.ADD, x, d)), ops.MAX_REDUCE, "its maximum"),
        (lambda x, d: exp2(less(x, d)), ops.SUM_REDUCE, "its maximum"),
        (lambda x, d: binary(ops.ADD, exp2(less(x, d)), x), ops.MAX_REDUCE, "by a factor"),
    ],
    ids=["two differences", "sum", "shifted by a sum", "not a product"],
)
def test_what_does_not_move_by_a_factor_is_refused(
    value: Callable[[ln.Scalar, ln.Scalar], ln.Scalar], first: ops.Op, reason: str
) -> None:
    with pytest.raises(ScheduleError, match=reason):
        carried.derive(reductions(value, first), [sym.Var("t", 0, 7)])


def repeated(op: ops.Op, value: ln.Scalar, times: int) -> ln.Scalar:
    """``value`` with itself by ``op``, that with itself, and so on."""
    for _ in range(times):
        value = binary(op, value, value)
    return value


def test_a_product_of_too_many_factors_is_refused_before_they_are_written_out() -> None:
    axis = sym.Var("t", 0, 7)
    found = reductions(lambda x, d: repeated(ops.MUL, exp2(less(x, d)), 7), ops.MAX_REDUCE)
    assert len(carried.derive(found, [axis])[-1].inside) == carried.FACTORS
    for squared in (8, 60):
        found = reductions(lambda x, d, n=squared: repeated(ops.MUL, exp2(less(x, d)), n), ops.MAX_REDUCE)
        with pytest.raises(ScheduleError, match=f"more than {carried.FACTORS} factors"):
            carried.derive(found, [axis])

    def chosen(x: ln.Scalar, d: ln.Scalar) -> ln.Scalar:
        value = x
        for number_ in range(60):
            condition = ln.apply(ops.LESS_THAN, (d, number(number_)), None, types.bool_)
            value = ln.apply(ops.SELECT, (condition, binary(ops.MUL, value, value), number(0.0)), None, types.f32)
        return value

    with pytest.raises(ScheduleError, match=f"more than {carried.FACTORS} factors"):
        carried.derive(reductions(chosen, ops.MAX_REDUCE), [axis])


def test_a_sum_with_itself_is_twice_each_of_its_terms() -> None:
    x, y = ln.load("x", 0, types.f32), ln.load("y", 0, types.f32)
    doubled = repeated(ops.ADD, binary(ops.ADD, x, binary(ops.MUL, y, number(-3.0))), 60)
    assert carried.linear(doubled) == {x: 2.0**60, y: -3 * 2.0**60}


AT_I, AT_J = (ln.index(sym.var(name, 0, 9)) for name in "ij")


def logical(op: ops.Op, *operands: ln.Scalar) -> ln.Scalar:
    return ln.apply(op, operands, None, types.bool_)


def true_() -> ln.Scalar:
    return ln.literal(b"\1", types.bool_)


@pytest.mark.parametrize(
    ("condition", "at"),
    [
        (logical(ops.LESS_THAN, AT_J, AT_I), lambda i, j: j < i),
        (logical(ops.XOR, logical(ops.LESS_THAN, AT_I, AT_J), true_()), lambda i, j: j <= i),
        (
            logical(ops.AND, logical(ops.LESS_THAN, AT_J, AT_I), ln.load("mask", 0, types.bool_)),
            lambda i, j: j < i,
        ),
        (ln.load("mask", 0, types.bool_), lambda i, j: True),
        (logical(ops.OR, logical(ops.LESS_THAN, AT_J, AT_I), true_()), lambda i, j: True),
    ],
    ids=["less", "not", "and", "memory", "or"],
)
def test_conditions_are_necessary(condition: ln.Scalar, at: Callable[[int, int], bool]) -> None:
    minus_infinity = number(-math.inf)
    score = ln.apply(ops.SELECT, (condition, number(1.0), minus_infinity), None, types.f32)
    needed = conditions.minus_infinity_unless(binary(ops.MUL, binary(ops.ADD, score, number(2.0)), number(0.5)))
    for i in range(10):
        for j in range(10):
            assert all(sym.evaluate(c, {"i": i, "j": j}) >= 0 for c in needed) == at(i, j)


@pytest.mark.parametrize("dtype", [types.i8, types.u8, types.i64], ids=str)
def test_conditions_on_integers_hold_for_rows_at_which_they_wrap_around(dtype: types.DType) -> None:
    """Row minus column, in ``dtype``, below 5: at a difference of 128 an int8 is negative."""
    at_i, at_j = (ln.apply(ops.CAST, (ln.index(sym.var(name, 0, 511)),), None, dtype) for name in "ij")
    one, five = (ln.literal(np.array(value).astype(dtype.numpy).tobytes(), dtype) for value in (-1, 5))
    difference = ln.apply(ops.ADD, (at_i, ln.apply(ops.MUL, (at_j, one), None, dtype)), None, dtype)
    below = logical(ops.LESS_THAN, difference, five)
    needed = conditions.minus_infinity_unless(
        ln.apply(ops.SELECT, (below, number(1.0), number(-math.inf)), None, types.f32)
    )
    i, j = np.indices((512, 512))
    counts = (i - j).astype(dtype.numpy) < 5
    assert all((sym.evaluate(c, {"i": i, "j": j}) >= 0)[counts].all() for c in needed)
    assert bool(needed) == (dtype is types.i64)


def test_conditions_on_parts_that_are_read_again_and_again() -> None:
    place = AT_J
    for _ in range(59):
        place = ln.apply(ops.ADD, (place, place), None, types.i64)
    assert conditions.affine_index(place) == sym.var("j", 0, 9) * 2**59
    assert conditions.affine_index(ln.apply(ops.ADD, (place, place), None, types.i64)) is None  # 9 * 2**60 wraps around
    value = ln.apply(ops.SELECT, (logical(ops.LESS_THAN, AT_J, AT_I), number(0.0), number(-np.inf)), None, types.f32)
    assert conditions.minus_infinity_unless(value)
    assert conditions.minus_infinity_unless(repeated(ops.ADD, value, 60)) == conditions.minus_infinity_unless(value)


def test_a_finite_mask_proves_nothing() -> None:
    condition = logical(ops.LESS_THAN, AT_J, AT_I)
    score = ln.apply(ops.SELECT, (condition, number(1.0), number(np.finfo(np.float32).min)), None, types.f32)
    assert conditions.minus_infinity_unless(score) == []
    masked = ln.apply(ops.SELECT, (condition, number(1.0), number(-math.inf)), None, types.f32)
    assert conditions.minus_infinity_unless(binary(ops.MUL, masked, number(-1.0))) == []


# ---- whole programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [targets.X86_64, targets.AVX512], ids=lambda t: t.name)
def test_symbolic_sizes_and_shared_heads(target: targets.Target) -> None:
    source = Source()
    q, k, v = source.input(1, 4, SEQ, 6), source.input(1, 2, SEQ, 6), source.input(1, 2, SEQ, 5)
    y = attention.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    (seq,) = (v for v in sym.variables(SEQ))
    graph = ir.Graph("heads", tuple(source.nodes), (("y", y),), (seq,))
    program = compile_graph(graph, target)
    assert any(kernel.name.startswith("chain") for kernel in program.kernels)
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    assert expected.shape[2] == SIZES["seq"]
    assert_close(run_program(program, source.arrays)["y"], expected)


def test_a_chain_that_cannot_stream_stays_three_kernels() -> None:
    """The middle is a norm: its sum of squares does not follow the mean by a factor."""
    source = Source()
    x = contraction.matmul(source.input(9, 8), source.weight(8, 16))
    mean = reduction.mean(x, [-1], keepdims=True)
    y = contraction.matmul((x - mean) * ir.unary(ops.RECIP, reduction.sum_((x - mean) * (x - mean), [-1], True)),
                           source.weight(16, 8))  # fmt: skip
    reached: dict[str, Any] = {}
    program = compile_graph(ir.Graph("norm", tuple(source.nodes), (("y", y),)), targets.AVX512, reached.__setitem__)
    (reason,) = reached["arrangement"].refused.values()
    assert "does not follow a change of r0 by a factor" in reason
    assert not any(kernel.name.startswith("chain") for kernel in program.kernels)


@pytest.mark.parametrize("squared", [5, 9])
def test_weights_that_are_squared_again_and_again(squared: int) -> None:
    """As one pass while their factors are few; each squaring doubles what the weights are wrong by."""
    source = Source()
    scores = contraction.matmul(source.input(9, 8), source.weight(8, 16)) * 9.0
    weights = reduction.softmax(scores, -1)
    for _ in range(squared):
        weights = weights * weights
    graph = ir.Graph("powers", tuple(source.nodes), (("y", contraction.matmul(weights, source.weight(16, 8))),))
    reached: dict[str, Any] = {}
    program = compile_graph(graph, targets.AVX512, reached.__setitem__)
    assert any(kernel.name.startswith("chain") for kernel in program.kernels) == (squared == 5)
    if squared != 5:
        assert f"more than {carried.FACTORS} factors" in str(reached["arrangement"].refused)
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    error = np.abs(run_program(program, source.arrays)["y"] - expected).max()
    assert error <= 4 * 2**squared * types.f32.eps * np.abs(expected).max()


@pytest.mark.parametrize("target", [targets.AVX512, targets.GPUS["cuda:sm_90"]], ids=lambda t: t.name)
def test_scores_with_a_formula_of_positions_that_reads_its_parts_again_and_again(target: targets.Target) -> None:
    """A walk that writes it out would not end."""
    source = Source()
    (seq,) = sym.variables(SEQ)
    formula = ir.cast(ir.iota(SEQ), types.f32) * 0.1
    for _ in range(20):
        formula = formula * formula * 0.5 + formula * 0.5
    scores = contraction.matmul(source.input(SEQ, 8), movement.transpose(source.input(SEQ, 8), 0, 1))
    scores = scores + ir.expand(movement.reshape(formula, [1, SEQ]), (SEQ, SEQ))
    y = contraction.matmul(reduction.softmax(scores, -1), source.input(SEQ, 8))
    graph = ir.Graph("positions", tuple(source.nodes), (("y", y),), (seq,))
    program = compile_graph(graph, target)
    assert any(kernel.name.startswith("chain") for kernel in program.kernels)
    (expected,) = interp.run(graph, source.arrays, mode="float64").outputs
    assert_close(run_program(program, source.arrays)["y"], expected)


def test_a_product_of_integers_before_a_sum_of_floats_stays_apart() -> None:
    source = Source()
    q, k = (ir.cast(source.input(9, 8, dtype=types.i8, below=9), types.i32) for _ in range(2))
    scores = ir.cast(contraction.matmul(q, movement.transpose(k, 0, 1)), types.f32) * 0.01
    y = contraction.matmul(reduction.softmax(scores, -1), source.input(9, 8))
    reached: dict[str, Any] = {}
    program = compile_graph(ir.Graph("mixed", tuple(source.nodes), (("y", y),)), targets.AVX512, reached.__setitem__)
    assert "a product of int32 before a sum of float32" in str(reached["arrangement"].refused)
    assert not any(kernel.name.startswith("chain") for kernel in program.kernels)


def test_weights_that_are_an_output_are_stored() -> None:
    source = Source()
    weights = reduction.softmax(contraction.matmul(source.input(9, 8), source.weight(8, 16)), -1)
    y = contraction.matmul(weights, source.weight(16, 8))
    program = compile_graph(ir.Graph("seen", tuple(source.nodes), (("y", y), ("w", weights))), targets.AVX512)
    assert not any(kernel.name.startswith("chain") for kernel in program.kernels)


def test_memory_grows_with_the_sequence_only() -> None:
    def arena(length: int) -> int:
        q, k, v = (ir.input_(name, (8, length, 64), types.f32) for name in "qkv")
        return (
            compile_graph(ir.Graph("long", (q, k, v), (("y", attend(q, k, v)),)), targets.AVX512).entries[0].arena_size
        )

    assert arena(4096) <= 2.05 * arena(2048)  # panels are whole


class Biased(torch.nn.Module):
    """Attention with soft-capped scores and a learned bias for each distance."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(2 * length - 1, generator=torch.Generator().manual_seed(2)))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length = q.shape[-2]
        at = torch.arange(length)
        scores = 30 * torch.tanh(q @ k.transpose(-1, -2) / 8 / 30) + self.bias[at[:, None] - at[None, :] + length - 1]
        return torch.softmax(scores, -1) @ v


def test_a_score_function_that_no_library_knows_is_one_kernel() -> None:
    length = 300
    model = Biased(length).eval()
    generator = torch.Generator().manual_seed(3)
    inputs = tuple(torch.randn(1, 2, length, 64, generator=generator) for _ in range(3))
    module = luminal.compile(model, inputs)
    assert [kernel["name"] for kernel in module.manifest["kernels"] if kernel["name"].startswith("contraction")] == []
    with torch.no_grad():
        exact = model.double()(*(x.double() for x in inputs)).numpy()
        (found,) = module.library.run([x.numpy() for x in inputs])
    assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_few_rows_are_tiles_of_one() -> None:
    """Of at most three queries of 48 elements, on vectors of 8: as many vectors of a row as there are registers for."""
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, 8, rows, 48, generator=generator) for rows in (2, 64, 64))
    module = luminal.compile(Attention(), (q, k, v), dims={"q": {2: "s"}, "s": (1, 3)}, target="avx2")
    assert isinstance(module, Module) and module.program is not None
    (chain,) = (kernel for kernel in module.program.kernels if kernel.name.startswith("chain"))
    assert [stream.last.rows for stream in transforms(chain, Stream)] == [1]
    for rows in (1, 2, 3):
        x = torch.randn(1, 8, rows, 48, generator=generator)
        torch.testing.assert_close(module(x, k, v), Attention()(x, k, v))


def test_a_length_may_be_read_as_a_number_too() -> None:
    """The width of the only block is that length, too: the number is computed where the block has no name yet."""
    length = sym.var("past", 0, 40) + 1
    shapes = {"q": (1, 4, 1, 16), "k": (1, 2, length, 16), "v": (1, 2, length, 16)}
    q, k, v = (ir.input_(name, shape, types.f32) for name, shape in shapes.items())
    seen = ir.iota(length) < ir.select(compare.equal(ir.dim(length), 1), 1, ir.dim(length - 3))
    y = attention.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
    graph = ir.Graph("tail", (q, k, v), (("y", y),), tuple(sym.variables(length)))
    module = luminal.compile(graph, target="avx2")
    assert isinstance(module, Module) and module.program is not None
    assert any(kernel.name.startswith("chain") for kernel in module.program.kernels)
    drawn = np.random.default_rng(4)
    given = {name: drawn.standard_normal((1, heads, size, 16), np.float32) for name, heads, size in
             (("q", 4, 1), ("k", 2, 12), ("v", 2, 12))}  # fmt: skip
    found = module.run(given)["y"]
    x, keys, values = (torch.from_numpy(array) for array in given.values())
    wanted = torch.nn.functional.scaled_dot_product_attention(x, keys[:, :, :9], values[:, :, :9], enable_gqa=True)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)
