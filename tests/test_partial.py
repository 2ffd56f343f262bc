"""Reductions of much to little: of parts, which threads share, and then of what these give."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import luminal
from luminal.core import interp, ir, ops, structured, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose.arithmetic import abs_
from luminal.core.decompose.compare import maximum
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.reduction import argmax, softmax
from luminal.core.ir import Graph, Node
from luminal.core.movement import flip, reshape, transpose
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.nest.text import nest_text
from luminal.core.schedule.numeric import long_reductions
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.core.types import DType
from tests.compiled_support import assert_same_bits
from tests.schedule_support import check_outputs, run_program, with_costs

Array = np.ndarray[Any, Any]


# Parts of 12 elements, of which 2 are worth it, and tasks of 4 columns.
SIZES = {"part": 12, "parts": 2, "part_columns": 4}
TARGET = with_costs(targets.AVX512, sizes=SIZES)


@pytest.fixture(autouse=True)
def short_sums(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sums of 10 terms."""
    monkeypatch.setattr(long_reductions, "ACCURATE_TERMS", 10)
    yield


def graph(*roots: Node) -> Graph:
    nodes = traverse.topological(roots)
    inputs = tuple(node for node in nodes if node.op is ops.INPUT)
    dims = {v for node in inputs for size in node.shape for v in sym.variables(size)}
    return Graph("g", inputs, tuple((f"y{k}", root) for k, root in enumerate(roots)), tuple(dims))


def reductions(found: Graph) -> list[Node]:
    return [node for node in traverse.topological(found.roots) if node.op.kind is ops.Kind.REDUCE]


def in_parts(whole: Graph, target: Target = TARGET) -> Graph:
    return long_reductions.in_parts(Contracted.of(whole), target).graph


def parted(*roots: Node) -> Graph:
    return in_parts(graph(*roots))


def compiled(*roots: Node) -> Program:
    return compile_graph(graph(*roots), TARGET)


# ---- what they give --------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parts_give_what_the_whole_gives(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3).filter(lambda s: np.prod(s) <= 8000))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    symbolic = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    dtype = data.draw(st.sampled_from([types.f32, types.f64, types.bf16, types.i8, types.i64, types.bool_]))
    op = ops.MAX_REDUCE if dtype is types.bool_ else data.draw(st.sampled_from([ops.SUM_REDUCE, ops.MAX_REDUCE]))
    sizes = tuple(sym.var(f"d{k}", 1, 40) if k in symbolic else size for k, size in enumerate(shape))
    x = ir.input_("x", sizes, dtype)
    computed = data.draw(st.booleans()) and dtype is not types.bool_
    whole = graph(ir.reduce(op, maximum(x, 1) * x if computed else x, axes))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    value = random.integers(-9, 9, shape).astype(dtype.numpy)
    expected = interp.run(whole, {"x": value}).outputs
    found = in_parts(whole)
    check_outputs(whole, expected, {"y0": interp.run(found, {"x": value}).outputs[0]}, int(np.prod(shape)))
    program = compile_graph(whole, TARGET)
    check_outputs(whole, expected, run_program(program, {"x": value}), int(np.prod(shape)))


@pytest.mark.parametrize("n", [1, 11, 12, 13, 24, 1000])
def test_a_library_gives_the_same_bits_on_any_number_of_threads(n: int) -> None:
    size = sym.var("n", 1, 100_000)
    x, y = ir.input_("x", (size, 3), types.f32), ir.input_("y", (size, 3), types.f32)
    whole = graph(
        ir.reduce(ops.SUM_REDUCE, x * y, [0, 1]),
        ir.reduce(ops.MAX_REDUCE, x, [0, 1]),
        ir.reduce(ops.SUM_REDUCE, x, [0]),
    )
    module = luminal.compile(whole, target=with_costs(targets.detect(), sizes=SIZES))
    random = np.random.default_rng(n)
    values = {name: random.standard_normal((n, 3)).astype(np.float32) for name in "xy"}
    found = list(module.run(values).values())
    check_outputs(whole, interp.run(whole, values).outputs, dict(zip(module.output_names, found, strict=True)), 3 * n)
    for threads in (1, 3):
        other = luminal.load(module.folder, threads=threads)
        assert_same_bits(list(other.run(values).values()), found)


@pytest.mark.parametrize("dtype", [types.f16, types.bf16])
def test_what_parts_give_is_not_rounded(dtype: DType) -> None:
    x = ir.input_("x", (24,), dtype)
    value = np.zeros(24, dtype.numpy)
    value[[0, 1, 12]] = 1, dtype.eps / 4, -1
    (found,) = interp.run(parted(ir.reduce(ops.SUM_REDUCE, x, [0])), {"x": value}).outputs
    assert found == value[1]


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_special_values_are_kept(value: float) -> None:
    x = ir.input_("x", (25,), types.f32)
    numbers = np.full(25, -np.inf, np.float32)
    numbers[13] = value
    results = parted(ir.reduce(ops.MAX_REDUCE, x, [0]), ir.reduce(ops.SUM_REDUCE, x, [0]))
    largest, total = interp.run(results, {"x": numbers}).outputs
    np.testing.assert_array_equal(largest, np.float32(value))
    np.testing.assert_array_equal(total, np.float32(np.nan if value != -np.inf else -np.inf))


def test_reductions_in_the_body_of_a_loop_are_in_parts() -> None:
    x = ir.input_("x", (5, 100), types.f32)

    def step(carries: Sequence[Node], rows: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        return [carries[0] + ir.reduce(ops.SUM_REDUCE, rows[0], [0])], []

    ((total,), _) = structured.scan(step, [ir.constant(0.0, types.f32)], [x])
    whole = graph(total)
    value = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float32)
    (expected,) = interp.run(whole, {"x": value}).outputs
    (found,) = interp.run(in_parts(whole), {"x": value}).outputs
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# ---- which are in parts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axes", "parts"),
    [
        ((24,), [0], (2,)),
        ((23,), [0], None),  # too little
        ((25,), [0], (3,)),  # no divisor: the last part is shorter
        ((33,), [0], (3,)),  # one not much smaller than a part
        ((15, 24), [1], (15, 2)),
        ((16, 24), [1], None),  # results enough for all threads
        ((8, 3), [0, 1], (2,)),  # whole rows
        ((2, 24), [0, 1], (2, 2)),
        ((24, 5), [0], (8, 5)),  # fewer of several columns
        ((4, 5), [0], None),
        ((11, 640), [0], (4, 640)),  # more terms than are exact enough
        ((10, 640), [0], None),  # enough columns for all threads
        ((99, 201), [1], None),  # along memory there are accumulators enough
        ((2, 3, 12), [0, 2], (2, 3)),
    ],
)
def test_parts(shape: tuple[int, ...], axes: list[int], parts: tuple[int, ...] | None) -> None:
    x = ir.input_("x", shape, types.f32)
    found = reductions(parted(ir.reduce(ops.SUM_REDUCE, x, axes)))
    assert found[0].shape == (parts if parts is not None else tuple(s for k, s in enumerate(shape) if k not in axes))
    assert (len(found) == 1) is (parts is None)


def test_what_many_parts_give_is_in_parts_again() -> None:
    x = ir.input_("x", (1000, 640), types.f32)
    found = reductions(parted(ir.reduce(ops.SUM_REDUCE, x, [0])))
    assert max(one.inputs[0].shape[k] for one in found for k in one.attr.axes) <= 10


@pytest.mark.parametrize("dtype", [types.i4, types.i2])
def test_the_largest_of_nothing_is_the_least_of_its_type(dtype: DType) -> None:
    x = ir.input_("x", (sym.var("n", 0, 99),), dtype)
    (found,) = interp.run(parted(ir.reduce(ops.MAX_REDUCE, x, [0])), {"x": np.zeros(0, dtype.numpy)}).outputs
    assert found == dtype.min


@pytest.mark.parametrize(
    "build",
    [
        lambda x, i: reshape(exp(x), (sym.product(x.shape),)),
        lambda x, i: flip(exp(x), [0]),
        lambda x, i: ir.gather(x, i, 0),
        lambda x, i: exp(ir.gather(x, i, 0)),
    ],
)
def test_nothing_is_stored_for_parts(build: Callable[[Node, Node], Node]) -> None:
    x = ir.input_("x", (sym.var("n", 1, 99), 3), types.f32)
    whole = build(x, ir.input_("i", (sym.var("m", 1, 99),), types.i64))
    program = compiled(ir.reduce(ops.SUM_REDUCE, whole, range(whole.rank)))
    assert (sym.upper(program.entries[0].arena_size) or 0) < 99 * 3 * 4


def test_attention_over_however_many_keys_is_one_pass() -> None:
    """Sums along memory stay what they are where rows are enough for all threads."""
    length = sym.var("s", 1, 99_999)
    q, k, v = (ir.input_(name, (8, length, 16), types.f32) for name in "qkv")
    program = compiled(matmul(softmax(matmul(q, transpose(k, 1, 2)), -1), v))
    assert all(math.prod(sym.upper(size) or 0 for size in b.shape) < 9e9 for b in program.buffers)


def test_a_gpu_has_parts_for_all_its_processors() -> None:
    x = ir.input_("x", (64, 48), types.f32)
    whole = graph(ir.reduce(ops.SUM_REDUCE, x, [1]))
    assert len(reductions(in_parts(whole, with_costs(targets.parse("cuda:sm_90"), sizes=SIZES)))) == 2
    assert len(reductions(in_parts(whole))) == 1


# ---- what that costs in kernels --------------------------------------------------------------------------------------


def test_what_only_a_reduction_reads_is_not_stored() -> None:
    for shape in ((24,), (25,), (20, 7)):
        x, y = (ir.input_(name, shape, types.f32) for name in "xy")
        assert len(compiled(ir.reduce(ops.SUM_REDUCE, abs_(x * y), range(len(shape)))).kernels) == 2


def test_what_is_shared_inside_is_cut_once() -> None:
    """There are 2**40 ways to the input."""
    x = value = ir.input_("x", (25,), types.f32)
    for _ in range(40):
        value = value * value
    assert len(reductions(parted(ir.reduce(ops.SUM_REDUCE, value + x, [0])))) == 2


def test_what_others_read_is_stored_once() -> None:
    x = ir.input_("x", (20, 7), types.f32)
    y = exp(x)
    program = compiled(y, ir.reduce(ops.SUM_REDUCE, y, [0, 1]))
    assert len(program.kernels) == 3
    assert sum("exp" in str(kernel.nest).lower() for kernel in program.kernels) == 1


def test_reductions_of_one_value_go_through_it_together() -> None:
    x = ir.input_("x", (20, 7), types.f32)
    total, most, squares = (ir.reduce(op, v, [0, 1]) for op, v in (
        (ops.SUM_REDUCE, x), (ops.MAX_REDUCE, x), (ops.SUM_REDUCE, x * x)
    ))  # fmt: skip
    program = compiled(total, most, squares)
    assert sum("x" in launch.arguments for launch in program.entries[0].launches) == 1


def test_rows_that_are_long_are_shared_too() -> None:
    x = ir.input_("x", (2, 50), types.f32)
    whole = graph(softmax(x, -1), argmax(x, -1))
    value = np.random.default_rng(0).standard_normal((2, 50)).astype(np.float32)
    program = compile_graph(whole, TARGET)
    check_outputs(whole, interp.run(whole, {"x": value}).outputs, run_program(program, {"x": value}), 50)


def test_axes_that_lie_together_in_memory_are_one_loop_up_to_the_end_of_the_last_part() -> None:
    x = ir.input_("x", (sym.var("n", 1, 80), 3), types.f32)
    (first, _) = compiled(ir.reduce(ops.SUM_REDUCE, x, [0, 1])).kernels
    assert "vector a1a2 < max(0, min(-12*a0 + 3*n, 12))" in nest_text(first.nest)
