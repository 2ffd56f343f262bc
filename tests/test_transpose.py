"""Transposition in registers: where it is chosen, that it changes no value, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from luminal.codegen.emitter import emit
from luminal.core import ir, movement, types
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.decompose import contraction as decompose
from luminal.core.errors import ScheduleError
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.choose import contraction
from luminal.core.schedule.choose.scheduler import Scheduler
from luminal.core.schedule.nest import interpreter as run_nest
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_statements
from luminal.core.schedule.nest.walk import statements
from luminal.core.schedule.numeric import quantise
from luminal.core.schedule.program.ir import Kernel
from luminal.core.schedule.transform import loops
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.schedule.transform.tensorise import Tensorise
from luminal.core.schedule.transform.transpose import StoreTileTransposed, TransposeInRegisters

pytestmark = pytest.mark.usefixtures("sums_as_spelled")

F32 = types.f32
ROWS, COLUMNS = 21, 37


def transposed_copy() -> ln.LoopNest:
    """y[j, i] = x[i, j], every loop serial."""
    i, j = sym.axis("i", ROWS), sym.axis("j", COLUMNS)
    i_axis, j_axis = (v for e in (i, j) if (v := sym.as_var(e)) is not None)
    store = ln.Store("y", j * ROWS + i, ln.load("x", i * COLUMNS + j, F32))
    body = ln.Loop(i_axis, ROWS, "serial", (ln.Loop(j_axis, COLUMNS, "serial", (store,)),))
    return ln.LoopNest((ln.Array("x", F32, False), ln.Array("y", F32, True)), (), (body,))


def copied_twice() -> ln.LoopNest:
    """The same, with a second loop over j beside the first; one of them is enough to be refused."""
    (outer,) = transposed_copy().body
    assert isinstance(outer, ln.Loop)
    return replace(transposed_copy(), body=(replace(outer, body=outer.body * 2),))


def product() -> ln.LoopNest:
    """y[j, i] = sum over k of a[i, k] * b[k, j] in panels of 16 columns, every loop serial."""
    i, j, k = sym.axis("i", 10), sym.axis("j", 32), sym.axis("k", 5)
    a, b = ln.load("a", i * 5 + k, F32), ln.load("b", sym.floordiv(j, 16) * 80 + k * 16 + sym.mod(j, 16), F32)
    i_axis, j_axis, k_axis = (v for e in (i, j, k) if (v := sym.as_var(e)) is not None)
    value = ln.apply(ir.ops.MUL, (a, b), None, F32)
    total = ln.Reduction("s", ir.ops.SUM_REDUCE, F32, (ln.Loop(k_axis, 5, "serial", ()),), (), value)
    store = ln.Store("y", j * 10 + i, ln.temporary("s", F32))
    body = ln.Loop(i_axis, 10, "serial", (ln.Loop(j_axis, 32, "serial", (total, store)),))
    return ln.LoopNest((ln.Array("a", F32, False), ln.Array("b", F32, False), ln.Array("y", F32, True)), (), (body,))


TRANSPOSED = (TransposeInRegisters("j", 16), loops.Vectorise("i", 16))
TILE = Tensorise("i", "j", 4, 16, 16)


def run(nest: ln.LoopNest, **sizes: int) -> np.ndarray:
    random = np.random.default_rng(5)
    arrays = {name: random.integers(-9, 9, size).astype(np.float32) for name, size in sizes.items()}
    arrays["y"] = np.zeros(1024, np.float32)
    run_nest.run(nest, arrays)
    return arrays["y"]


def test_transposing_changes_no_value() -> None:
    copied, x = transposed_copy(), ROWS * COLUMNS
    np.testing.assert_array_equal(run(loops.apply(copied, TRANSPOSED), x=x), run(copied, x=x))
    np.testing.assert_array_equal(run(loops.Vectorise("i", 16)(copied), x=x), run(copied, x=x))
    tiled = loops.apply(product(), (TILE, StoreTileTransposed()))
    np.testing.assert_array_equal(run(tiled, a=50, b=160), run(product(), a=50, b=160))


@pytest.mark.parametrize(
    ("nest", "schedule", "reason"),
    [
        (transposed_copy(), (TransposeInRegisters("k", 16),), "no loop over 'k'"),
        (transposed_copy(), (loops.Vectorise("j", 16), TransposeInRegisters("j", 16)), "the loop over 'j' is vector"),
        (transposed_copy(), (TransposeInRegisters("i", 16),), "a loop lies inside the loop over 'i'"),
        (copied_twice(), (TransposeInRegisters("j", 16),), "the loop over 'j' is not alone in another"),
        (
            transposed_copy(),
            (loops.Vectorise("j", 16), loops.Vectorise("i", 16)),
            "a vector loop lies inside the loop over 'i'",
        ),
        (product(), (TransposeInRegisters("j", 16),), "a reduction lies inside the loop over 'j'"),
        (transposed_copy(), (StoreTileTransposed(),), "no tile has rows"),
        (product(), (Tensorise("i", "j", 1, 16, 16), StoreTileTransposed()), "no tile has rows"),
        (product(), (TILE, StoreTileTransposed(), StoreTileTransposed()), "no tile has rows"),
    ],
    ids=lambda value: "" if isinstance(value, ln.LoopNest) else str(value),
)
def test_an_illegal_transform_says_why(nest: ln.LoopNest, schedule: loops.Schedule, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        loops.apply(nest, schedule)


def test_a_tile_that_more_than_stores_follow_is_not_transposed() -> None:
    def summed(statement: ln.Statement) -> list[ln.Statement] | None:
        if not isinstance(statement, ln.Loop) or statement.kind != "vector":
            return None
        inner = ln.Reduction("r", ir.ops.SUM_REDUCE, F32, (), (), ln.load("a", 0, F32))
        return [replace(statement, body=(inner, *statement.body))]

    tiled = loops.apply(product(), (TILE,))
    more = replace(tiled, body=replace_statements(tiled.body, summed)[0])
    with pytest.raises(ScheduleError, match="store tile transposed: a reduction lies inside the loop over 'j_0'"):
        StoreTileTransposed()(more)
    chosen = [contraction._stores_along_rows(Scheduler(nest, targets.AVX512), TILE) for nest in (tiled, more)]
    assert chosen == [True, False]


def kernels(output: Node, *inputs: Node) -> tuple[Kernel, ...]:
    dims = tuple(sorted({v for n in inputs for d in n.shape for v in sym.variables(d)}, key=str))
    return compile_graph(Graph("g", inputs, (("y", output),), dims), targets.AVX512).kernels


def text(*found: Kernel) -> str:
    return "\n".join(line for kernel in found for line in emit(kernel, {"rows": 0}).body)


def across(found: tuple[Kernel, ...]) -> list[bool]:
    return [any(isinstance(s, ln.Loop) and s.kind == "across" for s in statements(k.nest.body)) for k in found]


def convolution(shape: tuple[int, ...], channels: int, last: bool = False) -> tuple[Kernel, ...]:
    """Of an image whose channels come first; ``last``: they come last in what is put out."""
    x = ir.input_("x", shape, F32)
    weight = ir.constant(np.zeros((channels, shape[1], 1, 1), np.float32))
    y = decompose.conv(x, weight, ir.constant(np.zeros(channels, np.float32)))
    return kernels(movement.permute(y, (0, 2, 3, 1)) if last else y, x)


@pytest.mark.parametrize("last", [False, True])
def test_columns_of_a_tile_are_stored_where_a_result_lies_along_its_rows(last: bool) -> None:
    found = convolution((1, 32, 32, 32), 64, last)
    assert across(found) == [not last] and "store_strided" not in text(*found)


def test_a_tile_that_is_transposed_has_many_rows() -> None:
    """Whole vectors are transposed whatever the height: of a low tile, more lanes for nothing."""
    heights = []
    for last in (False, True):
        (kernel,) = convolution((1, 32, 32, 32), 64, last)
        heights += [s.max_rows for s in statements(kernel.nest.body) if isinstance(s, ln.Contract)]
    assert heights == [14, 6]


def test_a_single_row_is_stored_as_it_is() -> None:
    x = ir.input_("x", (1, 64), F32)
    y = decompose.linear(x, ir.constant(np.zeros((32, 64), np.float32)), None)
    assert across(kernels(movement.permute(y, (1, 0)), x)) == [False]


def test_neighbours_of_a_copy_are_loaded_and_neighbours_stored() -> None:
    rows = sym.var("rows", 1, 100)
    x = ir.input_("x", (rows, 40), F32)
    found = kernels(movement.permute(x, (1, 0)) * 2.0, x)
    code = text(*found)
    assert across(found) == [True] and "load_columns<16>" in code
    assert not {"load_strided", "gather", "store_strided", "scatter"} & set(code.replace("<", " ").split())


@pytest.mark.parametrize(
    ("channels", "dtype", "chosen"),
    [(1, F32, False), (2, F32, True), (3, F32, True), (4, types.bf16, True), (5, F32, False), (3, types.i8, False)],
    ids=str,
)
def test_few_channels_that_become_the_last_are_interleaved(channels: int, dtype: types.DType, chosen: bool) -> None:
    x = ir.input_("x", (2, channels, 24, 40), dtype)
    found = kernels(movement.permute(x + x, (0, 2, 3, 1)), x)
    assert across(found) == [chosen] and ("Interleaved<" in text(*found)) == chosen
    assert ("store_strided" not in text(*found)) or not chosen


@pytest.mark.parametrize(
    ("shape", "permutation", "tasks"), [((3, 50176), (1, 0), 13), ((4, 4, 300000), (0, 2, 1), 16)], ids=str
)
def test_what_is_interleaved_is_divided_as_well(
    shape: tuple[int, ...], permutation: tuple[int, ...], tasks: int
) -> None:
    x = ir.input_("x", shape, F32)
    (kernel,) = kernels(movement.permute(x * 2.0, permutation), x)
    assert "Interleaved" in text(kernel)
    assert math.prod(int(str(loop.extent)) for loop in kernel.nest.tasks) >= tasks


def test_lines_shorter_than_a_vector_are_interleaved_too() -> None:
    x = ir.input_("x", (8, 3, 14, 14), F32)
    assert "Interleaved" in text(*kernels(movement.permute(x * 2.0, (0, 2, 3, 1)), x))


def test_what_is_not_a_row_for_all_that_is_stored_is_not_interleaved() -> None:
    """Two results, one of which lies as the input does."""
    x = ir.input_("x", (3, 24, 40), F32)
    both = Graph("g", (x,), (("y", movement.permute(x * 2.0, (1, 2, 0))), ("z", x * 2.0)), ())
    assert not any(across(compile_graph(both, targets.AVX512).kernels))


@pytest.mark.parametrize(("dtype", "lanes"), [(types.f64, 8), (F32, 16), (types.i8, 16)], ids=str)
def test_a_block_fits_the_registers(dtype: types.DType, lanes: int) -> None:
    x = ir.input_("x", (48, 40), dtype)
    y = movement.permute(x, (1, 0))
    (kernel,) = kernels(y + y, x)
    found = {s.lanes for s in statements(kernel.nest.body) if isinstance(s, ln.Loop) and s.kind in ("vector", "across")}
    assert found == {lanes}


@pytest.mark.parametrize(("channels", "tasks"), [(64, [4]), (500, [8, 4]), (1024, [16])], ids=str)
def test_tasks_are_strips_of_rows_where_there_is_nothing_else(channels: int, tasks: list[int]) -> None:
    x = ir.input_("x", (channels, 1000), F32)
    (kernel,) = kernels(movement.permute(x, (1, 0)) * 2.0, x)
    assert across((kernel,)) == [True]
    assert [loop.extent for loop in kernel.nest.tasks] == tasks


@pytest.mark.parametrize("bits", [32, 4])
def test_rows_that_lie_side_by_side_are_fetched_a_few_steps_ahead(bits: int) -> None:
    """Each step of a tile reads another line of A: that of the fourth step after it is fetched, not of the first of
    those whose elements share a byte."""
    random = np.random.default_rng(3)
    x = ir.input_("x", (256, 16), F32)
    weight = ir.constant(random.standard_normal((512, 256)).astype(np.float32))
    y = decompose.linear(movement.permute(x, (1, 0)), weight, None)
    graph = Graph("g", (x,), (("y", y),), ())
    scheme = quantise.parse("int4" if bits == 4 else None)
    graph = quantise.quantised(graph, scheme) if scheme else graph
    (kernel,) = compile_graph(graph, targets.AVX512).kernels
    functions = "\n".join(line for lines in emit(kernel, {}).functions for line in lines)
    (fetched,) = (line for line in functions.splitlines() if "prefetch(a" in line)
    assert "+ 64)" in fetched


def test_elements_that_exist_in_part_are_transposed_too() -> None:
    x = ir.input_("x", (37, 40), F32)
    (kernel,) = kernels(movement.pad(movement.permute(x, (1, 0)), (0, 0), (21, 22)) * 2.0, x)
    code = text(kernel)
    assert "load_columns<16>" in code and "minimum" in code and "gather" not in code


def test_what_ends_before_the_first_lane_is_not_transposed() -> None:
    """Columns are zeros behind their last element, not before their first."""
    x = ir.input_("x", (37, 40), F32)
    (kernel,) = kernels(movement.pad(movement.permute(x, (1, 0)), (3, 5), (0, 0)) * 2.0, x)
    assert across((kernel,)) == [False]


def test_what_an_iteration_writes_is_not_read_before_it() -> None:
    nest = loops.apply(transposed_copy(), TRANSPOSED)
    (loop,) = (s for s in statements(nest.body) if isinstance(s, ln.Loop) and s.kind == "across")
    (store,) = loop.body
    (vectors,) = nest.body
    assert isinstance(store, ln.Store) and isinstance(vectors, ln.Loop)

    def code(array: str) -> str:
        outer = replace(vectors, body=(replace(loop, body=(replace(store, array=array),)),))
        return text(Kernel("k", Scheduled(replace(nest, body=(outer,)))))

    assert "load_columns" in code("y") and "load_columns" not in code("x")
