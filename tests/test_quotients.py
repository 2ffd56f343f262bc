"""Quotients that are rounded to integers of few bits, as products: the same integers for every float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.codegen import emitter
from luminal.core import interp, ir, ops, traverse
from luminal.core import target as targets
from luminal.core.decompose import compare
from luminal.core.decompose.quantization import centred, rounded
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.rewrite import simplify
from luminal.core.rules import RULES, quotient
from luminal.core.target import Target
from luminal.core.types import DType, f16, f32, f64, i8, i16, i32, u8, u16
from tests.schedule_support import run_program

Array = np.ndarray[Any, Any]

LENGTH = 4096
X = ir.input_("x", (LENGTH,), f32)
TYPES = (u8, i8, u16, i16)
(RULE,) = quotient.RULES


def quantised(x: Node, scale: float | Node, zero: int, to: DType) -> Node:
    """As ONNX's QuantizeLinear says it."""
    return rounded(x / scale, ir.constant(zero, to), to)


def graph(y: Node) -> Graph:
    return Graph("test", (X,), (("y", y),))


def run(y: Node, x: Array) -> Array:
    (found,) = interp.run(graph(y), {"x": x}).outputs
    return np.asarray(found)


def multiplied(y: Node, target: Target = targets.AVX2) -> Node:
    (_, found) = simplify(graph(y), (*RULES, *(quotient.RULES if target.fused else ()))).outputs[0]
    return found


def divides(y: Node) -> bool:
    return any(node.op is ops.DIV for node in traverse.topological([y]))


def samples(scale: float, zero: int, to: DType, seed: int) -> Array:
    """Numbers in and around the middle between two integers' own, and all that is special."""
    rng = np.random.default_rng(seed)
    special = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 2.0**31 * scale, -(2.0**31) * scale]
    )
    whole = rng.integers(int(to.min) - 2, int(to.max) + 3, LENGTH - special.size)
    middles = ((whole + 0.5 - zero) * scale).astype(np.float32)
    moved = (middles.view(np.int32) + rng.integers(-6, 7, middles.size)).astype(np.int32).view(np.float32)
    return np.concatenate([special.astype(np.float32), moved])


SCALES = st.tuples(st.floats(1, 2, width=32), st.integers(-60, 59)).map(lambda x: x[0] * 2.0 ** x[1])


@settings(max_examples=150, deadline=None)
@given(SCALES, st.sampled_from(TYPES), st.data())
def test_products_give_the_integers_of_quotients(scale: float, to: DType, data: st.DataObject) -> None:
    zero = data.draw(st.integers(int(to.min), int(to.max)))
    y = quantised(X, scale, zero, to)
    x = samples(scale, zero, to, data.draw(st.integers(0, 1000)))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(multiplied(y), x), run(y, x))


@pytest.mark.parametrize("exponent", [-60, -8, 0, 58])
def test_scales_need_no_division(exponent: int) -> None:
    scales = np.random.default_rng(0).uniform(1, 2, 60).astype(np.float32) * np.float32(2.0**exponent)
    left = [scale for scale in scales.tolist() if divides(multiplied(quantised(X, scale, 131, u8)))]
    assert len(left) <= 1, left


@pytest.mark.parametrize(("zero", "to"), [(131, u8), (-128, i8), (127, i8), (65535, u16)])
def test_every_step_is_compared(zero: int, to: DType) -> None:
    steps = quotient._steps(zero, to)
    assert steps.size == int(to.max) - int(to.min)
    with np.errstate(all="ignore"):
        (before, after) = (
            interp.evaluate([rounded(ir.constant((steps + side).astype(np.float32)), ir.constant(zero, to), to)])[0]
            for side in (-0.25, 0.25)
        )
    np.testing.assert_array_equal(after.astype(int) - before.astype(int), 1)


@pytest.mark.parametrize("example", list(RULE.examples()), ids=str)
def test_each_example_becomes_a_product(example: Node) -> None:
    made = RULE.rewrite(example)
    assert made is not None and not divides(made)
    assert RULE.rewrite(made) is None


def test_a_step_at_another_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One product, rounded, has steps of its own: the comparison must see that."""
    y = quantised(X, 0.037057184, 104, u8)
    assert not divides(multiplied(y))
    quotient._reciprocal.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(quotient, "multiply_add", lambda x, high, rest: x * high)
        assert divides(multiplied(y))
    quotient._reciprocal.cache_clear()


@pytest.mark.parametrize(
    "y",
    [
        rounded(X / ir.input_("scale", (LENGTH,), f32), None, u8),
        rounded(X / ir.constant(np.linspace(1, 2, LENGTH, dtype=np.float32)), None, u8),
        rounded(X / -0.1, None, u8),
        rounded(X / 1e-30, None, u8),
        rounded(X / float("inf"), None, u8),
        rounded(X / 0.1, None, i32),
        rounded(ir.cast(ir.cast(X, f64) / 0.1, f32), None, u8),
        ir.cast(ir.unary(ops.ROUND, X / 0.1, ops.Rounding("even")) + 0.5, u8),
        ir.cast(ir.unary(ops.ROUND, X / 0.1, ops.Rounding("even")) + 300.0, u8),
        ir.cast(ir.unary(ops.ROUND, X / 0.1, ops.Rounding("floor")), u8),
        ir.cast(X / 0.1, u8),
        X / 0.1,
    ],
    ids=[
        "unknown scale", "scales", "negative", "tiny", "infinite", "wide integers", "after float64", "half a zero",
        "zero point out of range", "floor", "truncated", "not rounded",
    ],
)  # fmt: skip
def test_other_quotients_stay(y: Node) -> None:
    assert divides(multiplied(y))


def test_machines_without_multiply_add_divide() -> None:
    assert divides(multiplied(quantised(X, 0.1, 3, u8), targets.X86_64))


# ---- their text ------------------------------------------------------------------------------------------------------


def texts(y: Node) -> str:
    program = compile_graph(graph(y), targets.AVX2)
    return "\n".join(line for k in program.kernels for line in emitter.emit(k, {}).body)


def restored(q: Node, scale: float, zero: int) -> Node:
    """As ONNX's DequantizeLinear says it."""
    return ir.cast(centred(q, ir.constant(zero, q.dtype)), f32) * scale


def test_what_is_quantised_and_restored_stays_a_float() -> None:
    y = quantised(restored(quantised(X, 0.1, 104, u8), 0.1, 104) * 0.3, 0.2, -3, i8)
    text = texts(y)
    assert "fake_quantise<uint8_t, 104>(" in text and "quantise<int8_t, -3>(" in text
    assert "div(" not in text and "round_even" not in text and "convert<" not in text


def test_another_zero_point_is_subtracted_as_it_is() -> None:
    text = texts(restored(quantised(X, 0.1, 104, u8), 0.1, 103))
    assert "fake_quantise" not in text and "= quantise<uint8_t, 104>(" in text


def test_a_zero_point_that_wraps_is_no_zero_point() -> None:
    """In int8, 127 less -3 is -126."""
    y = ir.cast(quantised(X, 0.1, -3, i8) + ir.constant(3, i8), f32)
    assert "fake_quantise" not in texts(y)
    x = samples(0.1, -3, i8, 0)
    with np.errstate(all="ignore"):
        found = run_program(compile_graph(graph(y), targets.AVX2), {"x": x})["y"]
        np.testing.assert_array_equal(found, run(y, x))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.5])
def test_sums_of_floats_with_any_number_are_none(number: float) -> None:
    assert "quantise" not in texts(ir.cast(ir.cast(X, f16) + number, f32))
    assert "quantise" not in texts(ir.cast(ir.unary(ops.ROUND, X, ops.Rounding("even")) + number, u8))


@pytest.mark.parametrize("mode", ["floor", "ceil", "trunc"])
def test_other_roundings_and_wider_integers_are_not_quantised(mode: str) -> None:
    assert "quantise" not in texts(ir.cast(ir.unary(ops.ROUND, X, ops.Rounding(mode)), u8))
    assert "quantise" not in texts(ir.cast(ir.unary(ops.ROUND, X, ops.Rounding("even")), i32))
    assert "quantise" not in texts(ir.cast(ir.unary(ops.ROUND, X, ops.Rounding("even")) + 300.0, u8))


def test_a_maximum_with_zero_need_not_ask_about_minus_zero_of_integers() -> None:
    q = quantised(X, 0.1, 104, u8)
    assert "= greater(" in texts(compare.maximum(restored(q, 0.1, 104), 0.0))
    assert "= max(" in texts(compare.maximum(X * 0.1, 0.0))
    assert "= max(" in texts(compare.maximum(restored(q, -0.1, 104), 0.0))
    assert "= max(" in texts(compare.maximum(restored(q, 1e-44, 104), 0.0))
