"""Loops, branches and sizes that data decides, as whole libraries: on the CPU, and on GPUs that are emulated."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import luminal
from luminal.core import interp, ir, ops, rewrite, structured, traverse, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import compare, selection
from luminal.core.errors import DTypeError, InputError, ShapeError, UnsupportedError
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.program import interpreter
from luminal.core.schedule.program import ir as programs
from luminal.core.spec import check_graph
from luminal.module import Module
from luminal.runtime.loader import LibraryError
from tests.compiled_support import assert_computes, resized
from tests.schedule_graphs import GRAPHS, SIZES

NAMES = ("a_recurrence_of_products", "loops_in_loops", "branches", "sizes_that_data_decides")
TARGETS = ("host", "cuda:sm_90", "metal")


@pytest.fixture(scope="module", params=TARGETS)
def module(request: pytest.FixtureRequest) -> Module:
    """All graphs in one library."""
    graphs = {name: GRAPHS[name]().graph for name in NAMES} | {"failing": failing(), "counted": counted()}
    graphs |= {"collected": collected(), "inside": inside()}
    found = luminal.compile(graphs, name="steps", target=request.param, emulate=request.param != "host")
    assert isinstance(found, Module)
    return found


def failing() -> Graph:
    """A loop that reads a table with positions that grow until the run fails: it would not end otherwise."""
    table, first = ir.input_("table", (4,), types.f32), ir.input_("first", (), types.i64)
    always = ir.binary(ops.LESS_THAN, first, 100)
    (last, _) = structured.while_loop(
        lambda carried: compare.logical_and(always, ir.binary(ops.LESS_THAN, ir.constant(-1.0, types.f32), carried[1])),
        lambda carried: [carried[0] + 1, ir.gather(table, carried[0], 0)],
        [first, ir.constant(0.0, types.f32)],
    )
    return Graph("failing", (table, first), (("y", last),))


def counted() -> Graph:
    """As many rows as are positive, at most as many as there are."""
    x = ir.input_("x", (sym.var("rows", 0, 9), 3), types.f32)
    measured: ir.Measured = {}
    with ir.measuring(measured):
        kept = selection.compress(x, compare.less(0.0, ir.reduce(ops.SUM_REDUCE, x, [1])), 0, "rows_kept")
    dims = (*sym.variables(x.shape[0]), *measured)
    return Graph("counted", (x,), (("y", kept * 2.0), ("count", ir.dim(kept.shape[0]))), dims, measured=measured)


def collected() -> Graph:
    """The rows ``first``, ``2 * first``, ... for as long as their sum is below a limit: at most six of them."""
    first, limit = ir.input_("first", (3,), types.f32), ir.input_("limit", (), types.f32)
    measured: ir.Measured = {}
    with ir.measuring(measured):
        (last,), (rows, numbers) = structured.collect(
            lambda number, carried: compare.less(ir.reduce(ops.SUM_REDUCE, carried[0], [0]), limit),
            lambda number, carried: ([carried[0] * 2.0], [carried[0], number]),
            [first], 6, "rounds",
        )  # fmt: skip
    outputs = (("last", last), ("rows", rows * 1.0), ("numbers", numbers + 0))
    return Graph("collected", (first, limit), outputs, tuple(measured), measured=measured)


def inside() -> Graph:
    """Sizes that data decides in the bodies of a scan, of a while loop and its condition, and of a branch: of rows of a
    table, those at which numbers are positive are summed."""
    x, table = ir.input_("x", (4, 6), types.f32), ir.input_("table", (6, 3), types.f32)

    def picked(numbers: Node) -> Node:
        rows = ir.gather(table, selection.places(compare.less(0.0, numbers)), 0)
        return ir.reduce(ops.SUM_REDUCE, rows, [0])

    def together(numbers: Node) -> Node:
        return ir.reduce(ops.SUM_REDUCE, numbers, [0])

    measured: ir.Measured = {}
    with ir.measuring(measured):
        (total,), (rows,) = structured.scan(
            lambda carried, row: ([carried[0] + picked(row[0])], [picked(row[0]) * 2.0]),
            [ir.constant(np.zeros(3, np.float32))], [x],
        )  # fmt: skip
        (last,) = structured.while_loop(
            lambda carried: compare.less(together(picked(carried[0])), together(together(table))),
            lambda carried: [carried[0] + together(picked(carried[0])) + 1.0],
            [together(x)],
        )
        (chosen,) = structured.cond(
            compare.less(0.0, together(together(x))), lambda: [picked(together(x))], lambda: [total]
        )
    results = (("total", total), ("rows", rows), ("last", last), ("chosen", chosen))
    dims = (*measured, *traverse.sizes_inside([node for _, node in results]))
    return Graph("inside", (x, table), results, dims, measured=measured)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [SIZES, {"batch": 1, "seq": 1}], ids=["many", "one"])
def test_every_target_computes_what_the_graph_says(module: Module, name: str, sizes: Mapping[str, int]) -> None:
    case = GRAPHS[name]()
    inputs = resized(case.graph, case.inputs, sizes) if case.graph.dims else case.inputs
    for _ in range(2):  # the second run has the plan, and the memory, of the first
        assert_computes(case.graph, inputs, list(module[name].run(inputs).values()), case.depth)


def test_a_loop_ends_where_a_step_fails(module: Module) -> None:
    inputs = {"table": np.zeros(4, np.float32), "first": np.array(0)}
    with pytest.raises(IndexError, match="an index is out of range"):
        module["failing"].run(inputs)
    assert module["failing"].run(inputs | {"first": np.array(100)})["y"] == 100


@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("sign", [-1, 0, 1])
def test_results_are_as_large_as_the_data_says(module: Module, rows: int, sign: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    x = sign * np.abs(x) if sign else x
    kept = x[x.sum(1) > 0]
    found = module["counted"].run({"x": x})
    np.testing.assert_array_equal(found["y"], kept * 2)
    assert found["count"] == len(kept)


@pytest.mark.parametrize("rounds", [0, 1, 6])
def test_loops_put_out_as_many_values_as_they_make_rounds(module: Module, rounds: int) -> None:
    first = np.array([1, 2, 3], np.float32)
    found = module["collected"].run({"first": first, "limit": np.float32(6.0 * 2**rounds - 1)})
    np.testing.assert_array_equal(found["last"], first * 2**rounds)
    np.testing.assert_array_equal(found["rows"], first * 2 ** np.arange(rounds)[:, None])
    np.testing.assert_array_equal(found["numbers"], np.arange(rounds))


@pytest.mark.parametrize("shift", [-2, 0, 2])
def test_bodies_measure_sizes_of_their_own(module: Module, shift: float) -> None:
    graph, random = inside(), np.random.default_rng(0)
    check_graph(graph)
    x, table = random.standard_normal((4, 6)) + shift, 1 + random.random((6, 3))
    inputs = {"x": x.astype(np.float32), "table": table.astype(np.float32)}
    wanted = interp.run(graph, inputs).outputs
    rows = np.stack([table[row > 0].sum(0) for row in x])
    np.testing.assert_allclose(wanted[0], rows.sum(0), rtol=1e-5)
    np.testing.assert_allclose(wanted[1], 2 * rows, rtol=1e-5)
    np.testing.assert_allclose(wanted[3], table[x.sum(0) > 0].sum(0) if x.sum() > 0 else rows.sum(0), rtol=1e-5)
    assert (wanted[2] > 0).all()
    for found, value in zip(module["inside"].run(inputs).values(), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5)


def test_a_loop_that_makes_more_rounds_than_there_is_room_for_fails(module: Module) -> None:
    inputs = {"first": np.ones(3, np.float32), "limit": np.float32(1e9)}
    with pytest.raises(LibraryError, match="a loop makes more rounds than there is room for"):
        module["collected"].run(inputs)
    with pytest.raises(InputError, match="a loop makes more rounds than there is room for"):
        interp.run(collected(), inputs)


PROGRAM = r"""
#include <cstdio>
#include "counted.hpp"

int main() {
    counted::Library library;
    counted::Context context(library);
    for (const float sign : {1.0f, -1.0f}) {
        const float x[] = {1, 2, 3, -4, -5, -6, 7, 8, 9};
        float signed_x[9];
        for (int i = 0; i < 9; ++i) signed_x[i] = sign * x[i];
        const auto result = context.main({signed_x, {3, 3}});
        std::printf("%lld %g;", static_cast<long long>(result.y.shape()[0]), result.y.size() > 3 ? result.y[3] : -1.0);
    }
}
"""


def test_a_cpp_program_sees_how_large_results_are(tmp_path: Path) -> None:
    found = luminal.compile(replace(counted(), name="counted"))
    assert isinstance(found, Module)
    folder = found.export(tmp_path / "counted", python_module=False)
    (folder / "main.cpp").write_text(PROGRAM)
    binary = [
        "g++",
        "-std=c++17",
        "-Wall",
        "-Werror",
        "main.cpp",
        "-L.",
        "-lcounted",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        "main",
    ]
    subprocess.run(binary, cwd=folder, check=True, timeout=120)
    done = subprocess.run([folder / "main"], cwd=folder, check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "2 14;1 -1;"


# ---- bodies that do not fit ------------------------------------------------------------------------------------------


def node(*shape: int, dtype: types.DType = types.f32) -> Node:
    return ir.input_("x", shape, dtype)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (
            lambda: structured.while_loop(lambda c: c[0], lambda c: c, [node(2, dtype=types.bool_)]),
            ShapeError, "While: expected a condition that is one bool",
        ),
        (
            lambda: structured.while_loop(
                lambda c: ir.binary(ops.LESS_THAN, c[0], 1.0), lambda c: [ir.cast(c[0], types.f64)], [node()]
            ),
            DTypeError, "While: a carry of float32 becomes float64",
        ),
        (
            lambda: structured.cond(node(dtype=types.bool_), lambda: [node(2)], lambda: [node(2, 3)]),
            ShapeError, r"Cond: expected result 0 to have as many axes in both .* \[2\] where the .*, else \[2, 3\]",
        ),
        (
            lambda: structured.cond(node(dtype=types.bool_), lambda: [node(2)], list),
            ShapeError, "Cond: one branch has 1 results, the other 0",
        ),
        (
            lambda: structured.scan(lambda c, x: (c, [selection.nonzero(x[0])]), [], [node(4, 2)]),
            UnsupportedError, r"Scan: a result has the shape \[found, 1\], which data decides in a body",
        ),
    ],
)  # fmt: skip
def test_faults_are_named(build: Any, error: type[Exception], message: str) -> None:
    with ir.measuring({}), pytest.raises(error, match=message):
        build()


def test_what_no_round_changes_is_computed_once() -> None:
    """And what only one branch needs, in that branch alone."""
    x, matrix = node(3, 4), ir.input_("matrix", (4, 4), types.f32)

    def step(carried: Any, element: Any) -> Any:
        return [ir.reduce(ops.SUM_REDUCE, element[0] * (matrix * 2.0 + 1.0), [1]) + carried[0]], []

    (last,), _ = structured.scan(step, [ir.constant(np.zeros(4, np.float32))], [x])
    assert ops.ADD not in {inner.op for inner in traverse.topological([last.attr.results[0].inputs[0]])}
    (result,) = structured.cond(ir.input_("flag", (), types.bool_), lambda: [matrix * 2.0], lambda: [matrix])
    assert [operand.op for operand in result.inputs] == [ops.INPUT, ops.INPUT]


@pytest.mark.parametrize("target", ["x86-64", "cuda:sm_90"])
def test_a_carry_that_is_scattered_into_stays_where_it_is(target: str) -> None:
    """Unless a round reads what it was before."""
    table, over = ir.input_("table", (8, 4), types.f32), ir.input_("over", (3, 4), types.f32)
    for late in (False, True):

        def step(carried: Any, element: Any, late: bool = late) -> Any:
            number, old = carried
            new = ir.scatter(old, number, element[0] + ir.gather(old, number, 0), 0)
            return [number + 1, new], [ir.reduce(ops.SUM_REDUCE, new * (old if late else 2.0), [0])]

        (_, last), (sums,) = structured.scan(step, [ir.constant(2, types.i64), table], [over])
        graph = Graph("cache", (table, over), (("last", last), ("sums", sums)))
        program = compile_graph(graph, targets.parse(target))
        (loop,) = (step for step in program.entries[0].steps if isinstance(step, programs.Loop))
        assert len(loop.carried) == 1 + late  # the number, and the table
        random = np.random.default_rng(0)
        values = {
            name: random.standard_normal(n).astype(np.float32) for name, n in (("table", (8, 4)), ("over", (3, 4)))
        }
        for (name, _), wanted in zip(graph.outputs, interp.run(graph, values).outputs, strict=True):
            np.testing.assert_allclose(interpreter.run(program, values, {})[name], wanted, rtol=1e-5)


def test_equal_loops_are_one_node() -> None:
    def build() -> Node:
        return structured.scan(lambda c, x: ([c[0] + x[0]], []), [node(2)], [ir.input_("over", (4, 2), types.f32)])[0][
            0
        ]

    assert build() is build()


def test_no_while_loop_is_run_when_compiling() -> None:
    """Not of constants either: this one would not end, alone or inside a scan."""
    zero = ir.constant(0, types.i64)

    def endless(first: Node) -> Node:
        return structured.while_loop(lambda c: ir.constant(True, types.bool_), lambda c: [c[0] + 1], [first])[0]

    (inside,), _ = structured.scan(lambda c, x: ([endless(c[0] + x[0])], []), [zero], [ir.iota(3)])
    for node in (endless(zero), inside, endless(zero) * 2):
        assert interp.constant_value(node) is None
        (found,) = rewrite.rewrite([node])
        assert ops.WHILE in {part.op for part in traverse.everything([found])}


def test_a_body_that_reads_a_size_is_no_constant() -> None:
    size = ir.dim(sym.var("batch", 1, 4))
    (last,), _ = structured.scan(lambda c, x: ([c[0] + x[0] * size], []), [ir.constant(0, types.i64)], [ir.iota(3)])
    assert interp.constant_value(last) is None
    (found,) = rewrite.rewrite([last])
    assert interp.evaluate([found], dims={"batch": 2})[0] == 6
