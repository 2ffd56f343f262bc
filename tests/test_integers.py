"""Contractions of integers: exact rewriting to unsigned times signed bytes, and what real numbers become of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from luminal.comparison.oracle import Oracle
from luminal.core import interp, ir, ops, structured, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction as decompose
from luminal.core.decompose.quantization import centred, rounded
from luminal.core.ir import Graph, Node
from luminal.core.matrix import AMX_INT8, DOT_INT8, MADD_INT8, MatrixUnit
from luminal.core.movement import pad, slice_
from luminal.core.pipeline import compile_graph
from luminal.core.rewrite import simplify
from luminal.core.schedule.contraction.contraction import operand
from luminal.core.schedule.contraction.roles import contraction_of
from luminal.core.schedule.nest.ir import Contract
from luminal.core.schedule.nest.walk import statements
from luminal.core.schedule.numeric import integers
from luminal.core.schedule.program.ir import Program
from luminal.core.spec import check_graph
from luminal.core.target import Target
from luminal.core.types import DType, f32, i8, i32, u8
from luminal.frontends.onnx import importer
from tests import onnx_models as models
from tests import tiles
from tests.compiled_support import compiled_graph
from tests.schedule_support import canonical, run_program

Array = np.ndarray[Any, Any]

UNIT_ROUNDOFF = 2.0**-24
AVX512 = targets.AVX512
HERE = [
    pytest.param(target, marks=pytest.mark.skipif(bool(tiles.missing(target)), reason=tiles.missing(target)))
    for target in (targets.AVX2, AVX512, targets.AVX512_VNNI, targets.AVX512_AMX)
]


class Values:
    """Inputs and constants of random numbers; ``arrays`` are those of the inputs, by name."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.inputs: list[Node] = []
        self.arrays: dict[str, Array] = {}

    def array(self, shape: Sequence[int], dtype: DType) -> Array:
        if dtype.is_float:
            return (self.random.standard_normal(shape) * 3).astype(dtype.numpy)
        return self.random.integers(int(dtype.min), int(dtype.max) + 1, shape).astype(dtype.numpy)

    def node(self, shape: Sequence[int], dtype: DType, constant: bool) -> Node:
        return self.given(np.asarray(self.array(shape, dtype)), constant)

    def given(self, array: Array, constant: bool = False) -> Node:
        if constant:
            return ir.constant(array)
        name = f"x{len(self.inputs)}"
        self.inputs.append(ir.input_(name, array.shape, types.from_numpy(array.dtype)))
        self.arrays[name] = array
        return self.inputs[-1]

    def graph(self, *outputs: Node) -> Graph:
        return Graph("test", tuple(self.inputs), tuple((f"y{k}", y) for k, y in enumerate(outputs)))


def integral(graph: Graph) -> Graph:
    """``graph`` as a target that has a unit for bytes computes it."""
    found = simplify(simplify(graph, (integers.RULE,)))
    check_graph(found)
    return found


def products(graph: Graph) -> list[tuple[DType, DType, DType]]:
    """The types of A, B and the sum of every contraction; constants that folded into int32 as what holds them."""
    found = [(node, r) for node in traverse.everything(graph.roots) if (r := contraction_of(node)) is not None]
    return [(r.a.source.dtype, _held(r.b.source), node.dtype) for node, r in found]


def _held(node: Node) -> DType:
    if node.op is ops.CONSTANT and node.dtype == i32 and np.isin(node.attr.array, np.arange(-128, 128)).all():
        return i8
    return node.dtype


BYTES = (u8, i8, i32)


# ---- integers --------------------------------------------------------------------------------------------------------

ZEROS = ("none", "zero", "number", "run time", "each", "each at run time")


def zero_point(values: Values, kind: str, dtype: DType, shape: Sequence[int]) -> Node | None:
    """A zero point of ``dtype``, or one for each of ``shape``, which broadcasts."""
    if kind == "none":
        return None
    if kind == "zero":
        return ir.constant(0, dtype)
    return values.node(shape if kind.startswith("each") else (), dtype, not kind.endswith("run time"))


@st.composite
def matrix_products(draw: st.DrawFn) -> tuple[Values, Node]:
    values = Values(draw(st.integers(0, 1000)))
    batch = draw(st.sampled_from([(), (2,), (2, 3)]))
    rows, depth, columns = draw(st.integers(1, 5)), draw(st.integers(2, 9)), draw(st.integers(2, 6))
    narrow = st.sampled_from([types.u8, types.i8, types.u4, types.i4])
    a_type, b_type = draw(narrow), draw(narrow)
    shared, constant = draw(st.booleans()), draw(st.booleans())
    a = values.node((*batch, rows, depth), a_type, False)
    b = values.node((depth, columns) if shared else (*batch, depth, columns), b_type, constant)
    a_zero = zero_point(values, draw(st.sampled_from(ZEROS)), a_type, (rows, 1))
    b_zero = zero_point(values, draw(st.sampled_from(ZEROS)), b_type, (columns,))
    left, right = centred(a, a_zero), centred(b, b_zero)
    if draw(st.booleans()):  # the same product, its operands exchanged
        transposed = [ir.view(x, (*x.shape[:-2], x.shape[-1], x.shape[-2]), _swapped(x)) for x in (right, left)]
        return values, decompose.matmul(*transposed)
    return values, decompose.matmul(left, right)


def _swapped(x: Node) -> list[sym.Int]:
    *outer, row, column = ir.axes((*x.shape[:-2], x.shape[-1], x.shape[-2]))
    return [*outer, column, row]


@given(matrix_products())
@settings(max_examples=150, deadline=None)
def test_matrix_products_are_the_same_integers(case: tuple[Values, Node]) -> None:
    values, node = case
    graph = values.graph(node)
    found = integral(graph)
    if contraction_of(node) is not None:
        assert set(products(found)) == {BYTES}
    for mode in interp.MODES:
        for x, y in zip(*(interp.run(g, values.arrays, mode).outputs for g in (found, graph)), strict=True):
            np.testing.assert_array_equal(x, y)


@given(
    st.integers(0, 1000), st.sampled_from([u8, i8]), st.sampled_from([u8, i8]), st.sampled_from(ZEROS[:3]),
    st.sampled_from(ZEROS), st.sampled_from([(1, 1), (2, 1), (1, 2)]), st.sampled_from([0, 1, 2]), st.booleans(),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_windows_with_borders_are_the_same_integers(
    seed: int, a: DType, b: DType, a_zero: str, b_zero: str, strides: tuple[int, int], pad: int, grouped: bool
) -> None:
    values = Values(seed)
    x, weight = values.node((2, 4, 5, 6), a, False), values.node((6, 2 if grouped else 4, 3, 2), b, True)
    left = centred(x, zero_point(values, a_zero, a, ()))
    right = centred(weight, zero_point(values, b_zero, b, (6, 1, 1, 1)))
    y = decompose.conv(left, right, None, strides, (pad, 0), (0, pad), (1, 1), 2 if grouped else 1)
    graph = values.graph(y)
    found = integral(graph)
    assert set(products(found)) == {BYTES}
    expected = interp.run(graph, values.arrays).outputs
    np.testing.assert_array_equal(interp.run(found, values.arrays).outputs, expected)


@pytest.mark.parametrize("example", list(integers.RULE.examples()))
def test_the_rule_applies_to_its_examples_once(example: Node) -> None:
    made = integers.RULE.rewrite(example)
    assert made is not None
    (total,) = (x for x in traverse.topological([made]) if contraction_of(x) is not None)
    assert made is not example and integers.RULE.rewrite(total) is total


def test_sums_wrap_as_they_did() -> None:
    values = Values(0)
    a = values.given(np.full((2, 70000), 255, np.uint8))
    b = values.given(np.full((70000, 2), -128, np.int8), True)
    graph = values.graph(decompose.matmul(centred(a, ir.constant(0, u8)), centred(b, ir.constant(127, i8))))
    (found,), (expected,) = (interp.run(g, values.arrays).outputs for g in (integral(graph), graph))
    np.testing.assert_array_equal(found, expected)
    assert expected[0, 0] == np.int64(-255 * 255 * 70000).astype(np.int32)


def test_a_is_not_summed_where_b_has_no_zero_point() -> None:
    values = Values(0)
    a, b = values.node((5, 16), i8, False), values.node((16, 6), i8, True)
    for weight, zero, sums in ((b, None, 1), (b, 0, 1), (b, 3, 2), (ir.bitcast(b, u8) ^ 128, 128, 1)):
        point = None if zero is None else ir.constant(zero, weight.dtype)
        found = integral(values.graph(decompose.matmul(centred(a, ir.constant(7, i8)), centred(weight, point))))
        assert sum(node.op is ops.SUM_REDUCE for node in traverse.topological(found.roots)) == sums


def test_sums_of_large_constants_fold() -> None:
    values = Values(0)
    a, b = values.node((3, 300), u8, False), values.node((300, 300), u8, True)
    found = integral(values.graph(decompose.matmul(centred(a, ir.constant(7, u8)), centred(b, ir.constant(128, u8)))))
    assert sum(node.op is ops.SUM_REDUCE for node in traverse.topological(found.roots)) == 1
    assert [n.dtype for n in traverse.topological(found.roots) if n.op is ops.CONSTANT and n.size == 300**2] == [i8]


def test_a_border_holds_the_zero_point() -> None:
    values = Values(0)
    x, weight = values.node((1, 2, 4, 4), i8, False), values.node((3, 2, 3, 3), i8, True)
    y = decompose.conv(centred(x, ir.constant(-5, i8)), centred(weight, None), None, None, (1, 1), (1, 1))
    (border,) = (n for n in traverse.topological(integral(values.graph(y)).roots) if n.op is ops.VIEW and n.attr.valid)
    assert border.dtype == u8 and border.attr.fill == bytes([128 - 5])


def test_products_in_loops_are_of_bytes_too() -> None:
    values = Values(0)
    first, rows = values.node((3, 8), i8, False), values.node((4, 3, 8), i8, False)
    weight = values.node((8, 8), i8, True)

    def step(carries: Sequence[Node], xs: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        total = decompose.matmul(centred(carries[0], None), centred(weight, None))
        return [ir.cast(total + ir.cast(xs[0], i32), i8)], []

    (last,), _ = structured.scan(step, [first], [rows])
    graph = values.graph(last)
    assert products(integral(graph)) == [BYTES]
    (found,), (expected,) = (interp.run(g, values.arrays).outputs for g in (integral(graph), graph))
    np.testing.assert_array_equal(found, expected)


# ---- real numbers ----------------------------------------------------------------------------------------------------


def real(whole: Node, zero: Node | None, scale: Node | None, late: bool = False) -> Node:
    """``(whole - zero) * scale`` in float32, the difference taken of integers or, where it is ``late``, of floats."""
    if late and zero is not None:
        found = ir.cast(whole, f32) - ir.cast(zero, f32)
    else:
        found = ir.cast(centred(whole, zero), f32)
    return found if scale is None else found * scale


@given(
    st.integers(0, 1000), st.sampled_from([u8, i8]), st.sampled_from([u8, i8]), st.sampled_from(ZEROS),
    st.sampled_from(ZEROS), st.sampled_from(["none", "number", "each", "each at run time"]),
    st.sampled_from(["none", "number", "each"]), st.booleans(), st.booleans(), st.integers(2, 400),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_real_products_are_nearer_than_any_sum_of_floats(
    seed: int, a: DType, b: DType, a_zero: str, b_zero: str, a_scale: str, b_scale: str,
    constant: bool, late: bool, depth: int,
) -> None:  # fmt: skip
    values = Values(seed)
    late &= "run time" not in a_zero + b_zero
    left, right = values.node((5, depth), a, False), values.node((depth, 6), b, constant)
    scales = [
        None if kind == "none" else values.node(shape if "each" in kind else (), f32, "run time" not in kind)
        for kind, shape in ((a_scale, (5, 1)), (b_scale, (6,)))
    ]
    y = decompose.matmul(
        real(left, zero_point(values, a_zero, a, (5, 1)), scales[0], late),
        real(right, zero_point(values, b_zero, b, (6,)), scales[1], late),
    )
    graph = values.graph(y)
    made = integral(graph)
    assert products(made) == [BYTES]
    (exact,), (found,) = interp.run(graph, values.arrays, "float64").outputs, interp.run(made, values.arrays).outputs
    # The sums of float64 that it is compared with have errors of their own, relative to the largest term.
    assert (np.abs(found - exact) <= 3.01 * UNIT_ROUNDOFF * np.abs(exact) + 1e-9).all()


@given(
    st.integers(0, 1000), st.sampled_from([u8, i8]), st.sampled_from([u8, i8]), st.sampled_from(ZEROS[:3]),
    st.sampled_from(["number", "each"]), st.integers(0, 1),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_sums_without_rows_and_columns_are_exact_in_floats(
    seed: int, a: DType, b: DType, a_zero: str, b_scale: str, border: int
) -> None:
    """As in depthwise convolutions, where each channel has its own windows and weights."""
    values = Values(seed)
    x = real(values.node((1, 6, 9, 9), a, False), zero_point(values, a_zero, a, ()), ir.constant(0.0173, f32))
    scale = values.node((6, 1, 1, 1) if b_scale == "each" else (), f32, True)
    weight = real(values.node((6, 1, 3, 3), b, True), None, scale)
    y = decompose.conv(x, weight, None, None, (border, border), (border, border), groups=6)
    graph = values.graph(y)
    made = integral(graph)
    assert made.results != graph.results and BYTES not in products(made)
    (exact,), (found,) = interp.run(graph, values.arrays, "float64").outputs, interp.run(made, values.arrays).outputs
    assert (np.abs(found - exact) <= 3.01 * UNIT_ROUNDOFF * np.abs(exact) + 1e-9).all()
    program = compile_graph(graph, targets.AVX512_VNNI)
    np.testing.assert_array_equal(run_program(program, values.arrays)["y0"], found)


def test_longer_sums_without_rows_and_columns_stay() -> None:
    for depth, exact in ((514, True), (515, False)):  # 515 * 255 * 128 is above 2**24
        values = Values(0)
        x, weight = (real(values.node((3, depth), t, False), None, ir.constant(0.1, f32)) for t in (u8, i8))
        graph = values.graph(ir.reduce(ops.SUM_REDUCE, x * weight, [1]))
        assert (simplify(graph, (integers.RULE,)).results != graph.results) is exact


def chain(values: Values, *, weights: DType = i8) -> Node:
    """Two products, and windows, of activations that are rounded to 8 bits between them."""
    x = values.node((1, 4, 7, 7), f32, False)
    scale, zero = ir.constant(0.0625, f32), ir.constant(117, u8)
    for channels, border in ((8, 1), (8, 0)):
        q = rounded(x / scale, zero, u8)
        weight = values.node((channels, x.shape[1], 3, 3), weights, True)
        s = ir.constant((np.arange(channels * 1.0).reshape(-1, 1, 1, 1) + 1).astype(np.float32) / 1024)
        x = decompose.conv(real(q, zero, scale), real(weight, None, s), None, None, (border, border), (border, border))
    return rounded(x, zero, u8)


def test_rounded_activations_are_stored_in_a_byte() -> None:
    values = Values(3)
    seen: dict[str, Any] = {}
    graph = integral(values.graph(chain(values)))
    program = compile_graph(graph, AVX512, seen.__setitem__)
    assert {n.dtype for n in seen["arrangement"].fusion.stored} == {u8}
    assert products(graph) == [BYTES, BYTES]
    (expected,), found = interp.run(graph, values.arrays).outputs, run_program(program, values.arrays)
    np.testing.assert_array_equal(found["y0"], expected)


def test_what_zero_points_add_joins_the_contraction() -> None:
    """Even where it is a product of rows and columns, which is as large as the result."""
    values = Values(0)
    a, b = values.node((9, 40), u8, False), values.node((40, 33), u8, True)
    zeros = [values.node(shape, u8, True) for shape in ((9, 1), (33,))]
    graph = integral(values.graph(decompose.matmul(centred(a, zeros[0]), centred(b, zeros[1]))))
    seen: dict[str, Any] = {}
    program = compile_graph(graph, AVX512, seen.__setitem__)
    assert [cluster.kind for cluster in seen["arrangement"].fusion.clusters] == ["row", "contraction"]
    (expected,), found = interp.run(graph, values.arrays).outputs, run_program(program, values.arrays)
    np.testing.assert_array_equal(found["y0"], expected)


def refused() -> dict[str, Callable[[Values], Node]]:
    def product(a: Callable[[Node], Node], depth: int = 8, dtype: DType = i8) -> Callable[[Values], Node]:
        def made(values: Values) -> Node:
            weight = real(values.node((depth, 6), i8, True), None, ir.constant(0.5, f32))
            return decompose.matmul(a(values.node((5, depth), dtype, False)), weight)

        return made

    def padded(zero: Callable[[Values], Node]) -> Callable[[Values], Node]:
        def made(values: Values) -> Node:
            x, weight = values.node((1, 2, 4, 4), u8, False), values.node((3, 2, 3, 3), i8, True)
            return decompose.conv(centred(x, zero(values)), centred(weight, None), None, None, (1, 1), (1, 1))

        return made

    def both(values: Values) -> Node:
        a, b = (
            real(values.node((4, 8), i8, False), None, ir.expand(values.node((), f32, False), (4, 8))) for _ in range(2)
        )
        return decompose.matmul(a, ir.view(b, (8, 4), _swapped(b)))

    def beside(values: Values) -> Node:
        """Rows of zeros around rows of a scale each."""
        rows = real(values.node((5, 8), i8, False), None, values.node((5, 1), f32, False))
        return decompose.matmul(pad(rows, (1, 0), (1, 0)), real(values.node((8, 6), i8, True), None, None))

    along = ir.constant(np.arange(1, 9, dtype=np.float32))
    return {
        "a scale along the sum": product(lambda x: real(x, None, along)),
        "a zero point along the sum": product(lambda x: ir.cast(x, f32) - ir.cast(ir.constant(np.arange(8)), f32)),
        "a zero point that is no integer": product(lambda x: ir.cast(x, f32) - 0.5),
        "a sum that may leave int32": product(lambda x: real(x, None, None), 2**31 // 128**2 + 1),
        "a sum of nothing": product(lambda x: real(x, None, None), 0),
        "integers of 16 bits": product(lambda x: real(x, None, None), dtype=types.i16),
        "numbers that are no integers": product(lambda x: x, dtype=f32),
        "a scale that is too large": product(lambda x: real(x, None, ir.constant(2.0**41, f32))),
        "a scale that is infinite": product(lambda x: real(x, None, ir.constant(np.inf, f32))),
        "a rounding between": product(lambda x: ir.cast(ir.cast(real(x, None, None), types.f16), f32)),
        "scales of one factor of which a run decides one": lambda values: product(
            lambda x: real(x, None, ir.constant(0.5, f32)) * values.node((), f32, False)
        )(values),
        "a border along which scales differ": beside,
        "scales that are both known at run time only": both,
        "a border of a number that a run decides": padded(lambda values: values.node((), u8, False)),
        "a border of several numbers": padded(lambda _: ir.constant(np.array([[[1]], [[2]]], np.uint8))),
        "a border of a number that is no byte": padded(lambda _: ir.constant(300, types.i16)),
    }


@pytest.mark.parametrize("case", refused())
def test_what_is_no_product_of_bytes_stays(case: str) -> None:
    values = Values(0)
    graph = values.graph(refused()[case](values))
    assert simplify(graph, (integers.RULE,)).results == graph.results


def test_the_longest_sum_that_fits() -> None:
    values = Values(0)
    depth = (2**31 - 1) // 128**2
    a, b = values.given(np.full((2, depth), -128, np.int8)), values.given(np.full((depth, 2), -128, np.int8))
    graph = values.graph(decompose.matmul(real(a, None, None), real(b, None, None)))
    made = integral(graph)
    assert products(made) == [BYTES]
    (found,) = interp.run(made, values.arrays).outputs
    np.testing.assert_array_equal(found, np.full((2, 2), np.float32(depth * 128**2)))


def test_scales_that_a_run_decides_come_last() -> None:
    values = Values(0)
    a, b = values.given(np.full((2, 8), 100, np.uint8)), values.given(np.full((8, 3), 100, np.int8))
    large = values.given(np.array([[2.0**120], [2.0**-110]], np.float32))
    small = ir.constant(np.full(3, 2.0**-50, np.float32))
    graph = values.graph(decompose.matmul(real(a, None, large), real(b, None, small)))
    (found,), (exact,) = interp.run(integral(graph), values.arrays).outputs, interp.run(graph, values.arrays).outputs
    np.testing.assert_array_equal(found[0], exact[0])
    assert np.isfinite(found).all()


@pytest.mark.parametrize("constant", [False, True], ids=["one scale", "two"])
def test_no_scale_but_a_finite_one_gives_numbers(constant: bool) -> None:
    values = Values(0)
    a, b = values.node((4, 8), u8, False), values.node((8, 3), i8, True)
    scale = values.given(np.array([[np.inf], [-np.inf], [np.nan], [0.5]], np.float32))
    each = ir.constant(np.full(3, 0.25, np.float32)) if constant else None
    graph = values.graph(decompose.matmul(real(a, None, scale), real(b, None, each)))
    made = integral(graph)
    assert products(made) == [BYTES]
    with np.errstate(invalid="ignore"):
        (found,), (exact,) = interp.run(made, values.arrays).outputs, interp.run(graph, values.arrays).outputs
    assert np.isnan(exact[:3]).all(), "the terms are of both signs"
    np.testing.assert_array_equal(found, exact)


def test_symbolic_sizes_are_bounded() -> None:
    for most, expected in ((4096, BYTES), (1 << 20, (f32, f32, f32))):
        size = sym.expr(sym.Var("S", 1, most))
        a, b = ir.input_("a", (3, size), u8), ir.input_("b", (size, 4), i8)
        y = decompose.matmul(real(a, ir.constant(9, u8), None), real(b, ir.constant(2, i8), None))
        found = integral(Graph("test", (a, b), (("y", y),), tuple(sym.variables(size))))
        assert products(found) == [expected]
    values = Values(0)
    arrays = {"a": values.array((3, 70), u8), "b": values.array((70, 4), i8)}
    graph = integral(Graph("test", (a, b), (("y", y),), tuple(sym.variables(size))))
    expected_sum = (arrays["a"].astype(np.int64) - 9) @ (arrays["b"].astype(np.int64) - 2)
    np.testing.assert_array_equal(interp.run(graph, arrays).outputs[0], expected_sum.astype(np.float32))


# ---- where it is done ------------------------------------------------------------------------------------------------


def test_operands_are_seen_through_casts_that_hold_all_integers() -> None:
    for narrow, wide, seen in (
        (i8, i32, True), (u8, i32, True), (u8, types.i16, True), (types.i16, i32, True), (i8, types.u32, False),
        (types.u32, i32, False), (types.i4, i32, False), (types.bool_, i32, False), (i8, f32, False),
    ):  # fmt: skip
        x = ir.input_("x", (3, 4), narrow)
        found = operand(ir.view(ir.cast(x, wide), (4, 3), _swapped(x)))
        assert (found.source is x) == seen and found.index == tuple(_swapped(x))


def test_targets_with_a_unit_for_bytes_ask_for_it() -> None:
    values = Values(0)
    x, weight = values.node((5, 8), u8, False), values.node((8, 6), i8, True)
    scale = ir.constant(0.25, f32)
    graph = values.graph(decompose.matmul(real(x, ir.constant(3, u8), scale), real(weight, None, scale)))
    assert products(canonical(graph, targets.X86_64)) == [(f32, f32, f32)]
    assert products(canonical(graph, targets.AVX2)) == [BYTES]
    assert products(canonical(graph, targets.AVX512_VNNI)) == [BYTES]


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("channels", [2, 3])
def test_few_channels_are_read_in_groups_with_zeros(channels: int, pad: int) -> None:
    """Around a border the zero point is beside them, which those zeros multiply as well."""
    values = Values(channels)
    x, weight = values.node((1, channels, 9, 8), u8, False), values.node((20, channels, 3, 3), i8, True)
    left = centred(x, zero_point(values, "number", u8, ()))
    graph = values.graph(decompose.conv(left, centred(weight, None), None, None, (pad, pad), (pad, pad)))
    program = compile_graph(graph, targets.AVX512_VNNI)
    (contract,) = (s for k in program.kernels for s in statements(k.nest.body) if isinstance(s, Contract))
    assert contract.unit == DOT_INT8 and contract.loops[-1].extent == (4 if pad else channels)
    found = run_program(program, values.arrays)["y0"]
    np.testing.assert_array_equal(found, interp.run(graph, values.arrays).outputs[0])


@pytest.mark.parametrize("sliced", ["x", "weight", "both"])
def test_terms_beside_a_slice_are_not_counted(sliced: str) -> None:
    values = Values(5)
    x = values.node((1, 3 if sliced == "weight" else 5, 9, 8), u8, False)
    weight = values.node((20, 3 if sliced == "x" else 5, 3, 3), i8, True)
    x, weight = slice_(x, 1, 0, 3), slice_(weight, 1, 0, 3)
    graph = values.graph(decompose.conv(centred(x, None), centred(weight, None), None, None, (1, 1), (1, 1)))
    program = compile_graph(graph, targets.AVX512_VNNI)
    found = run_program(program, values.arrays)["y0"]
    np.testing.assert_array_equal(found, interp.run(graph, values.arrays).outputs[0])


def test_constants_of_integer_products_are_packed_in_bytes() -> None:
    values = Values(0)
    for low, high, expected in ((-128, 128, i8), (0, 256, u8), (0, 128, i8), (-300, 300, types.i16), (0, 1 << 20, i32)):
        weight = ir.constant(values.random.integers(low, high, (64, 48)).astype(np.int32))
        graph = values.graph(decompose.matmul(centred(values.node((9, 64), u8, False), None), weight))
        seen: dict[str, Any] = {}
        program = compile_graph(graph, AVX512, seen.__setitem__)
        prepared = traverse.topological(seen["preparation for kernels"].roots)
        (panels,) = (n for n in prepared if n.op is ops.CONSTANT and n.size != 1)
        assert panels.dtype == expected
        found = run_program(program, values.arrays)["y0"]
        np.testing.assert_array_equal(found, interp.run(graph, values.arrays).outputs[0])
        values = Values(1)


def test_what_units_round_otherwise_is_allowed_for() -> None:
    """Scales for which every second sum lies halfway between two integers, if nothing is rounded before."""
    values = Values(0)
    x, weight = values.node((20, 64), u8, False), values.node((64, 50), i8, True)
    tenth, fiftieth = ir.constant(0.1, f32), ir.constant(0.02, f32)
    total = decompose.matmul(real(x, ir.constant(128, u8), tenth), real(weight, None, tenth))
    y = real(rounded(total / fiftieth / 64, None, i8), None, fiftieth)
    graph = values.graph(y)
    (found,) = interp.run(integral(graph), values.arrays).outputs
    oracle = Oracle(graph, values.arrays)
    assert not np.array_equal(found, oracle.typed(y))
    assert not oracle.refutes(y, found) and oracle.refutes(y, found + 1)


# ---- units -----------------------------------------------------------------------------------------------------------

UNITS = {"avx2": MADD_INT8, "avx512-vnni": DOT_INT8, "amx": AMX_INT8}
on_each = pytest.mark.parametrize("target", UNITS)


def units_of(program: Program) -> list[MatrixUnit | None]:
    return [s.unit for k in program.kernels for s in statements(k.nest.body) if isinstance(s, Contract)]


@on_each
@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 40), st.integers(2, 150), st.integers(2, 40), st.sampled_from([u8, i8]), st.sampled_from([u8, i8]),
    st.sampled_from(ZEROS), st.sampled_from(ZEROS), st.booleans(),
)  # fmt: skip
def test_a_product_of_any_size_is_exact(
    target: str, rows: int, depth: int, columns: int, a: DType, b: DType, a_zero: str, b_zero: str, constant: bool
) -> None:
    values = Values(rows + depth + columns)
    left = centred(values.node((rows, depth), a, False), zero_point(values, a_zero, a, (rows, 1)))
    right = centred(values.node((depth, columns), b, constant), zero_point(values, b_zero, b, (columns,)))
    graph = values.graph(decompose.matmul(left, right))
    program = compile_graph(graph, targets.parse(target))
    assert set(units_of(program)) == {UNITS[target]}
    (expected,) = interp.run(graph, values.arrays).outputs
    np.testing.assert_array_equal(run_program(program, values.arrays)["y0"], expected)


@pytest.mark.parametrize(
    ("channels", "gap", "unit", "depth"),
    [
        (3, 1, AMX_INT8, 12), (4, 1, AMX_INT8, 12), (6, 1, AMX_INT8, 24), (8, 1, AMX_INT8, 24), (64, 1, AMX_INT8, 64),
        (4, 2, DOT_INT8, 4), (6, 2, AMX_INT8, 8), (8, 2, AMX_INT8, 8), (12, 2, AMX_INT8, 12),
    ],
)  # fmt: skip
def test_windows_are_multiplied_in_tiles_where_runs_are_long_enough(
    channels: int, gap: int, unit: MatrixUnit, depth: int
) -> None:
    """All channels of neighbouring positions are one run; with a ``gap`` between these, those of one are, with zeros
    beside them."""
    values = Values(channels)
    x, weight = values.node((1, channels, 9, 8), u8, False), values.node((20, channels, 3, 3), i8, True)
    left = centred(x, zero_point(values, "number", u8, ()))
    graph = values.graph(decompose.conv(left, centred(weight, None), None, None, (2, 2), (2, 2), dilations=(1, gap)))
    program = compile_graph(graph, targets.AVX512_AMX)
    (contract,) = (s for k in program.kernels for s in statements(k.nest.body) if isinstance(s, Contract))
    assert (contract.unit, contract.depth) == (unit, depth)
    found = run_program(program, values.arrays)["y0"]
    np.testing.assert_array_equal(found, interp.run(graph, values.arrays).outputs[0])


def test_a_row_is_multiplied_by_vectors() -> None:
    values = Values(0)
    a, b = values.node((1, 64), u8, False), values.node((64, 40), i8, True)
    graph = values.graph(decompose.matmul(centred(a, None), centred(b, None)))
    assert units_of(compile_graph(graph, targets.AVX512_AMX)) == [DOT_INT8]


SIZES = [(5, 40), (63, 7), (130, 33), (259, 96)]


@pytest.mark.parametrize("target", HERE, ids=lambda target: target.name)
def test_a_library_s_products_are_exact(target: Target) -> None:
    """Rows of any number, and terms that leave tails of every kind."""
    values, rows = Values(1), sym.expr(sym.Var("rows", 1, 70))
    inputs: list[Node] = []
    outputs: list[tuple[str, Node]] = []
    for depth, columns in SIZES:
        x, weight = ir.input_(f"x{depth}", (rows, depth), u8), values.node((depth, columns), i8, True)
        inputs.append(x)
        outputs.append((f"y{depth}", decompose.matmul(centred(x, ir.constant(3, u8)), centred(weight, None))))
    graph = Graph("products", tuple(inputs), tuple(outputs), tuple(sym.variables(rows)))
    runnable = tiles.runnable(target)
    module = compiled_graph(graph, runnable)
    assert module.program is not None
    assert {unit and unit.name for unit in units_of(module.program)} == {unit_for(runnable)}
    for count in (1, 2, 16, 17, 33, 70):
        arrays = {x.attr.name: values.array((count, depth), u8) for x, (depth, _) in zip(inputs, SIZES, strict=True)}
        expected = interp.run(graph, arrays).outputs
        for found, wanted in zip(module.run(arrays).values(), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


# ---- models ----------------------------------------------------------------------------------------------------------

node = helper.make_node


def model(
    nodes: Sequence[onnx.NodeProto], values: Values, inputs: dict[str, Array], **constants: Any
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    declared = [models.declared(name, array) for name, array in inputs.items()]
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return models.model(nodes, declared, ["y"], initializers=arrays), inputs


def matmul_integer(values: Values) -> tuple[onnx.ModelProto, dict[str, Array]]:
    inputs = {"x": values.array((9, 40), u8)}
    zeros = {"az": np.uint8(7), "bz": values.array((33,), i8)}
    return model(
        [node("MatMulInteger", ["x", "w", "az", "bz"], ["y"])], values, inputs, w=values.array((40, 33), i8), **zeros
    )


def conv_integer(values: Values) -> tuple[onnx.ModelProto, dict[str, Array]]:
    inputs = {"x": values.array((1, 6, 9, 8), u8)}
    weight = values.array((20, 6, 3, 3), u8)
    nodes = [node("ConvInteger", ["x", "w", "z", "wz"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1])]
    return model(nodes, values, inputs, w=weight, z=np.uint8(131), wz=np.uint8(128))


def quantised_product(values: Values) -> tuple[onnx.ModelProto, dict[str, Array]]:
    nodes = [node("QLinearMatMul", ["x", "s", "z", "w", "s", "z", "t", "z"], ["y"])]
    inputs = {"x": values.array((9, 40), u8)}
    scales = {"s": np.float32(2**-7), "t": np.float32(0.5), "z": np.uint8(113)}
    return model(nodes, values, inputs, w=values.array((40, 24), u8), **scales)


def quantised_windows(values: Values) -> tuple[onnx.ModelProto, dict[str, Array]]:
    names = ["x", "s", "z", "w", "ws", "wz", "t", "z", "b"]
    nodes = [node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1], group=2)]
    inputs = {"x": values.array((1, 8, 7, 9), u8)}
    return model(
        nodes, values, inputs, w=values.array((12, 4, 3, 3), i8), s=np.float32(2**-5), z=np.uint8(99),
        ws=(np.arange(12) + 1).astype(np.float32) / 128, wz=np.zeros(12, np.int8), t=np.float32(2),
        b=values.random.integers(-5000, 5000, 12).astype(np.int32),
    )  # fmt: skip


def dynamic_product(values: Values) -> tuple[onnx.ModelProto, dict[str, Array]]:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", "wz"], ["m"]),
        node("Cast", ["m"], ["f"], to=1),
        node("Mul", ["s", "ws"], ["t"]),
        node("Mul", ["f", "t"], ["y"]),
    ]
    inputs = {"x": values.array((9, 40), f32)}
    return model(nodes, values, inputs, w=values.array((40, 24), i8), wz=np.int8(0), ws=values.array((24,), f32))


def around(name: str, source: str, **axis: int) -> list[onnx.NodeProto]:
    """``source`` rounded to 8 bits, and what that stands for as ``name``."""
    parameters = ["s", "z"]
    return [
        node("QuantizeLinear", [source, *parameters], [f"{name}_q"], **axis),
        node("DequantizeLinear", [f"{name}_q", *parameters], [name], **axis),
    ]


def real_windows(values: Values) -> tuple[onnx.ModelProto, dict[str, Array]]:
    nodes = [
        *around("d", "x"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=0),
        node("DequantizeLinear", ["b", "bs"], ["c"], axis=0),
        node("Conv", ["d", "v", "c"], ["e"], pads=[1, 1, 1, 1]),
        node("Relu", ["e"], ["r"]),
        *around("y", "r"),
    ]
    scale, scales = np.float32(2**-4), (np.arange(20) + 1).astype(np.float32) / 2048
    inputs, bias = {"x": values.array((1, 12, 9, 8), f32)}, values.random.integers(-900, 900, 20).astype(np.int32)
    return model(
        nodes, values, inputs, s=scale, z=np.uint8(101), w=values.array((20, 12, 3, 3), i8), ws=scales,
        wz=np.zeros(20, np.int8), b=bias, bs=scales * scale,
    )  # fmt: skip


def real_product(values: Values) -> tuple[onnx.ModelProto, dict[str, Array]]:
    nodes = [
        *around("d", "x"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=1),
        node("MatMul", ["d", "v"], ["y"]),
    ]
    scales = {"ws": (np.arange(24) + 1).astype(np.float32) / 512, "wz": values.array((24,), u8)}
    w = values.array((40, 24), u8)
    return model(nodes, values, {"x": values.array((9, 40), f32)}, s=np.float32(0.05), z=np.uint8(120), w=w, **scales)


def real_scores(values: Values) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Of two activations."""
    nodes = [
        *around("d", "x"),
        *around("e", "k"),
        node("Transpose", ["e"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["d", "t"], ["y"]),
    ]
    inputs = {name: values.array((2, 9, 24), f32) for name in "xk"}
    return model(nodes, values, inputs, s=np.float32(2**-4), z=np.int8(3))


MODELS = (
    matmul_integer, conv_integer, quantised_product, quantised_windows, dynamic_product, real_windows, real_product,
    real_scores,
)  # fmt: skip


SHORT_RUNS = (quantised_windows,)  # of 4 channels, beside which lie those of another group


def unit_for(target: Target, made: Callable[..., object] | None = None) -> str | None:
    """The name of the unit that multiplies bytes, as those of ``made``."""
    units = (unit.name for unit in target.units_of(*BYTES) if unit.in_vectors or made not in SHORT_RUNS)
    return next(units, None)


@pytest.mark.parametrize("target", HERE, ids=lambda target: target.name)
@pytest.mark.parametrize("made", MODELS)
def test_models_compile_to_what_they_are_elsewhere(
    made: Callable[[Values], tuple[onnx.ModelProto, dict[str, Array]]], target: Target
) -> None:
    proto, inputs = made(Values(5))
    graph = integral(importer.load(proto))
    assert products(graph) == [BYTES]
    runnable = tiles.runnable(target)
    module = compiled_graph(graph, runnable)
    assert module.program is not None
    assert {unit and unit.name for unit in units_of(module.program)} == {unit_for(runnable, made)}
    (found,) = module.run(inputs).values()
    np.testing.assert_array_equal(found, interp.run(graph, inputs).outputs[0])
    (elsewhere,) = models.by_onnxruntime(proto, inputs)
    assert found.dtype == elsewhere.dtype
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, elsewhere)
    else:  # which scales once, too, but in another order
        np.testing.assert_allclose(found, elsewhere, rtol=8 * UNIT_ROUNDOFF, atol=0)
