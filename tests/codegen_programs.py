"""Small programs written by hand, for the tests of rendering, building and the program's specification."""

import numpy as np

from luminal.core import ops, types
from luminal.core.schedule.nest import ir
from luminal.core.schedule.program.ir import Buffer, Entry, Kernel, Launch, Program, Region, TensorSpec
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.symbolic import Var
from tests.codegen_support import array, axis, of, op, output, written

F32 = types.f32
COLUMNS = 24


def scaled_rows(name: str = "scaled_rows", threads: int = 1) -> Program:
    """``y[r, c] = x[r, c]**2 * weight[c]``, and ``half`` of it in an entry of its own; the number of rows is symbolic.

    Two kernels with an intermediate value, two entries that share the weight, a constant and a symbolic dimension. A
    row is done in vectors by one thread, or by the ``threads`` of a block.
    """
    rows = Var("rows", 1, 32)
    shape = (of(rows), COLUMNS)
    r, row = axis("r", of(rows))
    c, column = axis("c", COLUMNS)
    place = row * COLUMNS + column
    x = ir.load("x", place, F32)

    def kernel(name: str, value: ir.Scalar, *arrays: ir.Array) -> Kernel:
        kind, lanes = ("vector", 8) if threads == 1 else ("thread", threads)
        store = ir.Loop(c, COLUMNS, kind, (ir.Store("out", place, value),), lanes)
        tasks = (ir.Loop(r, of(rows), "parallel", (store,)),)
        nest = ir.LoopNest((output("out"), *arrays), (rows,), tasks, threads=threads)
        return Kernel(name, Scheduled(nest, written("parallel r", "vector c by 8")), (f"Mul '{name}' (model.py:3)",))

    def buffer(name: str, space: str, shape: tuple = shape, offset: int = 0) -> Buffer:
        size = (32 if shape[0] != COLUMNS else 1) * COLUMNS * 4
        return Buffer(name, F32, shape, tuple(range(len(shape))), space, offset, size)

    square = kernel("square", op(ops.MUL, x, x), array("x"))
    weigh = kernel("weigh", op(ops.MUL, x, ir.load("w", column, F32)), array("x"), array("w"))
    spec_x, spec_y = TensorSpec("x", F32, shape), TensorSpec("y", F32, shape)
    return Program(
        name,
        (rows,),
        (square, weigh),
        (
            buffer("x", "input"),
            buffer("y", "output"),
            buffer("squared", "arena"),
            buffer("weight", "constant", (COLUMNS,)),
        ),
        (
            Entry(
                "main", (spec_x,), (spec_y,),
                Region((
                    Launch(0, ("squared", "x"), ("Mul 'square' (model.py:3)",)),
                    Launch(1, ("y", "squared", "weight"), ("Mul 'weigh' (model.py:4)",)),
                )),
                32 * COLUMNS * 4,
            ),
            Entry(
                "weigh_only", (spec_x,), (spec_y,),
                Region((Launch(1, ("y", "x", "weight"), ("Mul 'weigh' (model.py:4)",)),)), 0,
            ),
        ),
        {"weight": np.linspace(-1, 1, COLUMNS, dtype=np.float32)},
        metadata={"source": "model.py"},
    )  # fmt: skip
