"""The loop nest's interpreter: results by hand, and what it refuses."""

import numpy as np
import pytest

from luminal.core import ops, types
from luminal.core.errors import SpecError
from luminal.core.schedule.nest import ir
from luminal.core.schedule.nest.interpreter import run
from luminal.core.symbolic import Var
from tests.codegen_support import array, axis, bits, number, of, op, output

F32 = types.f32


def test_a_sum_down_columns_with_a_mask() -> None:
    r, row = axis("r", 3)
    c, column = axis("c", 2)
    value = ir.load("x", row * 2 + column, F32, valid=(row - 1,), fill=bits(10.0))
    total = ir.Reduction("total", ops.SUM_REDUCE, F32, (ir.Loop(r, 3, "serial", ()),), (), value)
    store = ir.Store("out", column, ir.temporary("total", F32), (-column + 0,))
    nest = ir.LoopNest((output("out"), array("x")), (), (ir.Loop(c, 2, "vector", (total, store), 16),))
    arrays = {"out": np.full(2, -1, np.float32), "x": np.arange(6, dtype=np.float32)}
    assert run(nest, arrays)
    np.testing.assert_array_equal(arrays["out"], [10 + 2 + 4, -1])


def test_an_index_out_of_range_is_reported_and_becomes_zero() -> None:
    i, at = axis("i", 3)
    row = Var("row", 0, 4)
    body = (
        ir.Let(row, ir.load("index", at, types.i64), 5),
        ir.Store("out", at, ir.load("table", of(row), F32)),
    )
    nest = ir.LoopNest(
        (output("out"), array("index", types.i64), array("table")), (), (ir.Loop(i, 3, "serial", body),), checked=True
    )
    arrays = {
        "out": np.zeros(3, np.float32),
        "index": np.array([4, 5, -1]),
        "table": np.arange(5, dtype=np.float32) + 1,
    }
    assert not run(nest, arrays)
    np.testing.assert_array_equal(arrays["out"], [5, 1, 1])


def test_a_tile() -> None:
    k, step = axis("k", 3)
    contract = ir.Contract(
        "tile", F32, "a", F32, step, 3, "b", F32, step * 2, (ir.Loop(k, 3, "serial", ()),), 2, 4, 2, 2
    )
    c, column = axis("c", 4)
    copy = ir.Loop(c, 4, "serial", (ir.Store("out", column, ir.load("tile", column, F32)),))
    nest = ir.LoopNest((output("out"), array("a"), array("b")), (), (ir.Alloc("tile", F32, 8), contract, copy))
    a, b = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32) + 1
    arrays = {"out": np.zeros(4, np.float32), "a": a, "b": b}
    run(nest, arrays)
    np.testing.assert_array_equal(arrays["out"].reshape(2, 2), a.reshape(2, 3) @ b.reshape(3, 2))


def refusal(*body: ir.Statement) -> str:
    nest = ir.LoopNest((output("out"), array("x")), (), body)
    with pytest.raises(SpecError) as caught:
        run(nest, {"out": np.zeros(4, np.float32), "x": np.ones(4, np.float32)})
    return str(caught.value)


def test_faults_of_a_nest_are_found() -> None:
    i, at = axis("i", 5)
    store = ir.Store("out", at, ir.load("x", 0, F32))
    assert "out[i]: element 4 of 4" in refusal(ir.Loop(i, 5, "serial", (store,)))
    assert "x[-1]: element -1 of 4" in refusal(ir.Store("out", 0, ir.load("x", -1, F32)))
    assert "variable i" in refusal(store)
    assert "temporary t has no value" in refusal(ir.Store("out", 0, ir.temporary("t", F32)))
    rows = Var("rows", 1, 6)  # a transform that declares less than it assigns misleads whatever relies on the bounds
    assert "rows becomes 7, and is declared as 1 .. 6" in refusal(ir.Assign(rows, 7))
    assert "array y is not in scope" in refusal(ir.Store("out", 0, op(ops.ADD, number(1.0), ir.load("y", 0, F32))))


def test_arrays_must_be_flat_and_of_the_declared_type() -> None:
    nest = ir.LoopNest((output("out"),), (), ())
    for wrong in (np.zeros(4, np.float64), np.zeros((2, 2), np.float32)):
        with pytest.raises(SpecError, match="expected flat float32"):
            run(nest, {"out": wrong})
