"""Loop nests that use every statement, every form of access and every element type of code generation."""

from dataclasses import replace

import numpy as np

from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core.schedule.nest import ir, rewrite, walk
from luminal.core.schedule.transform.accumulate import Accumulate
from luminal.core.symbolic import Var
from tests.codegen_support import Case, array, axis, bits, number, of, op, output

LOG2_E = 1.4426950408889634
F32 = types.f32
rng = np.random.default_rng(7)


def normal(*shape: int, dtype: types.DType = F32) -> np.ndarray:
    return rng.standard_normal(int(np.prod(shape))).astype(dtype.numpy)


def zeros(*shape: int, dtype: types.DType = F32) -> np.ndarray:
    return np.zeros(int(np.prod(shape)), dtype.numpy)


def vector(variable: Var, extent: sym.Int, *body: ir.Statement, lanes: int = 16) -> ir.Loop:
    return ir.Loop(variable, extent, "vector", body, lanes)


def serial(variable: Var, extent: sym.Int, *body: ir.Statement) -> ir.Loop:
    return ir.Loop(variable, extent, "serial", body)


def parallel(variable: Var, extent: sym.Int, *body: ir.Statement) -> ir.Loop:
    return ir.Loop(variable, extent, "parallel", body)


def load(name: str, offset: sym.Int, dtype: types.DType = F32, **mask: object) -> ir.Scalar:
    return ir.load(name, offset, dtype, **mask)  # type: ignore[arg-type]


CASES: dict[str, Case] = {}


def case(function):  # type: ignore[no-untyped-def]
    CASES[function.__name__] = function()
    return function


# ---- elementwise ----------------------------------------------------------------------------------------------------


@case
def exponential() -> Case:
    """out[i] = exp(x[i]) + 0.1, a tail of four."""
    i, at = axis("i", 100)
    value = op(ops.ADD, op(ops.EXP2, load("x", at), attr=ops.Scale(LOG2_E)), number(0.1))
    nest = ir.LoopNest((output("out"), array("x")), (), (vector(i, 100, ir.Store("out", at, value)),))
    return Case(nest, {"out": zeros(100), "x": normal(100)})


@case
def symbolic_extent() -> Case:
    """The same over n elements, in tasks of a row each."""
    n = Var("n", 0, 64)
    r, row = axis("row", 3)
    i, at = axis("i", of(n))
    place = row * of(n) + at
    body = parallel(r, 3, vector(i, of(n), ir.Store("out", place, op(ops.MUL, load("x", place), load("x", place)))))
    nest = ir.LoopNest((output("out"), array("x")), (n,), (body,))
    runs = [({"out": zeros(3 * size), "x": normal(3 * size)}, {"n": size}) for size in (1, 15, 16, 17, 64, 0)]
    return Case(nest, *runs[0], more=runs[1:])


@case
def flattened_rows() -> Case:
    """out[b, s] = x[b, s] + bias[s], one loop over b*S + s with S symbolic."""
    s = Var("S", 1, 40)
    i, at = axis("i", of(s) * 3)
    value = op(ops.ADD, load("x", at), load("bias", sym.mod(at, of(s))))
    nest = ir.LoopNest(
        (output("out"), array("x"), array("bias")), (s,), (vector(i, of(s) * 3, ir.Store("out", at, value)),)
    )
    runs = [({"out": zeros(3 * n), "x": normal(3 * n), "bias": normal(n)}, {"S": n}) for n in (1, 7, 16, 40)]
    return Case(nest, *runs[0], more=runs[1:])


@case
def padding_by_lanes() -> Case:
    """out[i] = x[i - 3] inside, 7.5 outside: the mask differs between lanes."""
    i, at = axis("i", 90)
    value = load("x", at - 3, valid=(at - 3, -at + 3 + 69), fill=bits(7.5))
    nest = ir.LoopNest((output("out"), array("x")), (), (vector(i, 90, ir.Store("out", at, value)),))
    return Case(nest, {"out": zeros(90), "x": normal(70)})


@case
def padding_by_rows() -> Case:
    """Rows around the input are filled: the mask is the same for all lanes, and nothing is read where it fails."""
    r, row = axis("r", 6)
    c, column = axis("c", 20)
    value = load("x", (row - 2) * 20 + column, valid=(row - 2, -row + 4), fill=bits(-1.0))
    store = ir.Store("out", row * 20 + column, op(ops.ADD, value, load("x", column)))
    nest = ir.LoopNest((output("out"), array("x")), (), (parallel(r, 6, vector(c, 20, store)),))
    return Case(nest, {"out": zeros(120), "x": normal(60)})


@case
def masked_store() -> Case:
    """Only every element below the bound is written."""
    i, at = axis("i", 50)
    r, row = axis("r", 3)
    store = ir.Store("out", row * 40 + at, load("x", at), (-at + 39, row - 1))
    nest = ir.LoopNest((output("out"), array("x")), (), (serial(r, 3, vector(i, 50, store)),))
    return Case(nest, {"out": normal(120), "x": normal(50)})


@case
def strides() -> Case:
    """Reversed, strided and repeated elements, stored with a stride."""
    i, at = axis("i", 37)
    value = op(ops.ADD, op(ops.MUL, load("x", -at + 36), load("x", at * 3 + 1)), load("x", 5))
    nest = ir.LoopNest((output("out"), array("x")), (), (vector(i, 37, ir.Store("out", at * 2 + 1, value)),))
    return Case(nest, {"out": normal(75), "x": normal(112)})


@case
def quotients() -> Case:
    """Rows of 16 are contiguous in groups of 16 lanes, rows of 5 are not, and a mask depends on a remainder."""
    i, at = axis("i", 80)
    value = op(ops.ADD, load("x", at // 16 * 20 + at % 16), load("x", at // 5 * 6 + at % 5))
    masked = load("x", at, valid=(at % 16 - 4, -(at // 16) + 3), fill=bits(2.0))
    nest = ir.LoopNest(
        (output("out"), array("x")), (), (vector(i, 80, ir.Store("out", at, op(ops.ADD, value, masked))),)
    )
    return Case(nest, {"out": zeros(80), "x": normal(100)})


@case
def negative_quotients() -> Case:
    """Floor division and remainder of indices of either sign, in lanes and in scalars."""
    i, at = axis("i", 30)
    r, row = axis("r", 5)
    lanes = (at - 13) // 4 + (at - 13) % 3 + (at - 13) // 7 + 10
    scalar = (row - 3) // 2 + (row - 3) % 3 + 2
    value = op(ops.ADD, load("x", lanes), load("x", scalar))
    nest = ir.LoopNest(
        (output("out"), array("x")), (), (serial(r, 5, vector(i, 30, ir.Store("out", row * 30 + at, value))),)
    )
    return Case(nest, {"out": zeros(150), "x": normal(40)})


@case
def minima() -> Case:
    """Clamped indices: a replicated border."""
    i, at = axis("i", 40)
    value = load("x", sym.minimum(sym.maximum(at - 4, 0), 29))
    nest = ir.LoopNest((output("out"), array("x")), (), (vector(i, 40, ir.Store("out", at, value)),))
    return Case(nest, {"out": zeros(40), "x": normal(30)})


@case
def indices_as_values() -> Case:
    """A causal mask from positions, and positions as numbers."""
    r, row = axis("r", 9)
    c, column = axis("c", 21)
    positions = op(ops.CAST, ir.index(column * 2 + row), attr=ops.To(F32), dtype=F32)
    value = op(ops.SELECT, ir.holds((row - column,)), positions, number(-np.inf))
    value = op(
        ops.SELECT, ir.holds((row - 3, column - 2)), value, op(ops.CAST, ir.index(row), attr=ops.To(F32), dtype=F32)
    )
    nest = ir.LoopNest(
        (output("out"),), (), (parallel(r, 9, vector(c, 21, ir.Store("out", row * 21 + column, value))),)
    )
    return Case(nest, {"out": zeros(189)})


@case
def named_indices() -> Case:
    """Assign: of what all lanes share, and of what they do not."""
    i, at = axis("i", 64)
    r, row = axis("r", 4)
    base, column = Var("base", 0, 192), Var("column", 0, 63)
    body = (
        ir.Assign(base, row * 64),
        vector(i, 64, ir.Assign(column, at), ir.Store("out", of(base) + of(column), load("x", of(base) + of(column)))),
    )
    nest = ir.LoopNest((output("out"), array("x")), (), (parallel(r, 4, *body),))
    return Case(nest, {"out": zeros(256), "x": normal(256)})


# ---- rows that become columns ---------------------------------------------------------------------------------------


def turned(dtype: types.DType, values: np.ndarray, rows: int, columns: int, **mask: object) -> Case:
    """y[j, i] = x[i, j]."""
    i, row = axis("i", rows)
    j, column = axis("j", columns)
    at = load("x", row * columns + column, dtype, **mask)
    loop = ir.Loop(j, columns, "across", (ir.Store("y", column * rows + row, at),), 16)
    nest = ir.LoopNest((output("y", dtype), array("x", dtype)), (), (vector(i, rows, loop),))
    return Case(nest, {"y": zeros(rows, columns, dtype=dtype), "x": values})


@case
def turned_floats() -> Case:
    """Blocks, whole and partial along either axis."""
    return turned(F32, normal(37, 21), 37, 21)


@case
def turned_in_one_block() -> Case:
    return turned(F32, normal(16, 16), 16, 16)


@case
def turned_doubles() -> Case:
    return turned(types.f64, normal(19, 33, dtype=types.f64), 19, 33)


@case
def turned_bytes() -> Case:
    return turned(types.i8, rng.integers(-99, 99, 40 * 20).astype(np.int8), 40, 20)


@case
def turned_truths() -> Case:
    return turned(types.bool_, rng.integers(0, 2, 20 * 17).astype(bool), 20, 17)


@case
def turned_halves() -> Case:
    return turned(types.f16, normal(18, 35, dtype=types.f16), 18, 35)


@case
def turned_up_to_an_end() -> Case:
    """The first 30 rows exist, and the first 18 elements of each."""
    (_, row), (_, column) = axis("i", 37), axis("j", 21)
    return turned(F32, normal(29 * 21 + 18), 37, 21, valid=(29 - row, 17 - column), fill=bits(0.0))


@case
def turned_up_to_an_end_before_ones() -> Case:
    (_, row), (_, column) = axis("i", 37), axis("j", 21)
    return turned(F32, normal(29 * 21 + 18), 37, 21, valid=(29 - row, 17 - column), fill=bits(1.0))


@case
def turned_where_a_store_is() -> Case:
    """y[j, i] = x[i, j] for the first 30 rows; z[i, j] = v[j, i] = 2 w[i, j]."""
    (i, row), (j, column) = axis("i", 37), axis("j", 21)
    at, other = load("x", row * 21 + column), load("w", row * 21 + column)
    stores = (
        ir.Define("twice", op(ops.ADD, other, other)),
        ir.Store("y", column * 37 + row, at, (29 - row,)),
        ir.Store("z", row * 21 + column, ir.temporary("twice", F32)),
        ir.Store("v", column * 37 + row, ir.temporary("twice", F32)),
    )
    loop = ir.Loop(j, 21, "across", stores, 16)
    arrays = (output("y"), output("z"), output("v"), array("x"), array("w"))
    nest = ir.LoopNest(arrays, (), (vector(i, 37, loop),))
    return Case(nest, {**{name: zeros(37, 21) for name in "yzv"}, "x": normal(37, 21), "w": normal(37, 21)})


@case
def turned_rows_of_any_number() -> Case:
    """y[j, i] = x[i, j] + z[i] for a number of rows that is a dimension."""
    rows = Var("rows", 1, 50)
    count = of(rows)
    (i, row), (j, column) = axis("i", count), axis("j", 33)
    value = op(ops.ADD, load("x", row * 33 + column), load("z", row))
    loop = ir.Loop(j, 33, "across", (ir.Store("y", column * count + row, value),), 16)
    nest = ir.LoopNest((output("y"), array("x"), array("z")), (rows,), (vector(i, count, loop),))
    return Case(nest, {"y": zeros(23, 33), "x": normal(23, 33), "z": normal(23)}, {"rows": 23})


# ---- rows -----------------------------------------------------------------------------------------------------------


@case
def row_exponentials() -> Case:
    """Each row's exponentials divided by their sum, S symbolic; one row holds NaN, one only -inf."""
    s = Var("S", 1, 300)
    r, row = axis("r", 5)
    j, column = axis("j", of(s))
    x = load("x", row * of(s) + column)
    shifted = op(ops.EXP2, op(ops.ADD, x, op(ops.MUL, ir.temporary("most", F32), number(-1.0))), attr=ops.Scale(LOG2_E))
    header = vector(j, of(s))
    body = (
        ir.Reduction("most", ops.MAX_REDUCE, F32, (header,), (), x),
        ir.Reduction("total", ops.SUM_REDUCE, F32, (header,), (), shifted),
        ir.Define("scale", op(ops.RECIP, ir.temporary("total", F32))),
        vector(j, of(s), ir.Store("out", row * of(s) + column, op(ops.MUL, shifted, ir.temporary("scale", F32)))),
    )
    nest = ir.LoopNest((output("out"), array("x")), (s,), (parallel(r, 5, *body),))
    runs = []
    for size in (257, 1, 16, 40, 64, 130):
        x_value = normal(5, size)
        x_value[size] = np.nan
        x_value[2 * size : 3 * size] = -np.inf
        runs.append(({"out": zeros(5, size), "x": x_value}, {"S": size}))
    return Case(nest, *runs[0], more=runs[1:], ulps=8)


@case
def row_moments() -> Case:
    """Rows shifted and scaled to mean 0 and variance 1, then weighted; 200 columns."""
    r, row = axis("r", 5)
    j, column = axis("j", 200)
    x = load("x", row * 200 + column)
    centred = op(ops.ADD, x, op(ops.MUL, ir.temporary("mean", F32), number(-1.0)))
    variance = op(ops.ADD, op(ops.MUL, ir.temporary("squares", F32), number(1 / 200)), number(1e-5))
    scaled = op(ops.MUL, centred, ir.temporary("scale", F32))
    header = vector(j, 200)
    body = (
        ir.Reduction("sum", ops.SUM_REDUCE, F32, (header,), (), x),
        ir.Define("mean", op(ops.MUL, ir.temporary("sum", F32), number(1 / 200))),
        ir.Reduction("squares", ops.SUM_REDUCE, F32, (header,), (), op(ops.MUL, centred, centred)),
        ir.Define("scale", op(ops.RECIP, op(ops.SQRT, variance))),
        vector(
            j, 200,
            ir.Store("out", row * 200 + column, op(ops.ADD, op(ops.MUL, scaled, load("w", column)), load("b", column))),
        ),
    )  # fmt: skip
    nest = ir.LoopNest((output("out"), array("x"), array("w"), array("b")), (), (parallel(r, 5, *body),))
    return Case(nest, {"out": zeros(1000), "x": normal(1000), "w": normal(200), "b": normal(200)}, ulps=8)


@case
def columns_summed() -> Case:
    """A sum down the rows: the vector loop outside, the serial one inside."""
    n = Var("n", 1, 50)
    c, column = axis("c", 24)
    r, row = axis("r", of(n))
    total = ir.Reduction("total", ops.SUM_REDUCE, F32, (serial(r, of(n)),), (), load("x", row * 24 + column))
    nest = ir.LoopNest(
        (output("out"), array("x")), (n,), (vector(c, 24, total, ir.Store("out", column, ir.temporary("total", F32))),)
    )
    runs = [({"out": zeros(24), "x": normal(24 * size)}, {"n": size}) for size in (1, 3, 4, 9, 50)]
    return Case(nest, *runs[0], more=runs[1:], ulps=16)


@case
def columns_scaled() -> Case:
    """Columns divided by their sums: vectors outside, a sum and a loop of stores inside."""
    n = Var("n", 0, 9)
    c, column = axis("c", 24)
    r, row = axis("r", of(n))
    value = load("x", row * 24 + column)
    total = ir.Reduction("total", ops.SUM_REDUCE, F32, (serial(r, of(n)),), (), value)
    store = ir.Store("out", row * 24 + column, op(ops.MUL, value, op(ops.RECIP, ir.temporary("total", F32))))
    nest = ir.LoopNest((output("out"), array("x")), (n,), (vector(c, 24, total, serial(r, of(n), store)),))
    runs = [({"out": zeros(24 * size), "x": normal(24 * size)}, {"n": size}) for size in (3, 0, 9)]
    return Case(nest, *runs[0], more=runs[1:], ulps=64)


@case
def windows() -> Case:
    """The largest of each 3x3 window with stride 2 and a border, over 8 channels in lanes; a mean beside it."""
    size, out, channels = 9, 5, 8
    y, oy = axis("y", out)
    x, ox = axis("x", out)
    c, channel = axis("c", channels)
    ky, dy = axis("ky", 3)
    kx, dx = axis("kx", 3)
    iy, ix = oy * 2 + dy - 1, ox * 2 + dx - 1
    inside = (iy, -iy + size - 1, ix, -ix + size - 1)
    place = (iy * size + ix) * channels + channel
    loops = (serial(ky, 3), serial(kx, 3))
    body = (
        ir.Reduction("most", ops.MAX_REDUCE, F32, loops, (), load("x", place, valid=inside, fill=bits(-np.inf))),
        ir.Reduction("sum", ops.SUM_REDUCE, F32, loops, (), load("x", place, valid=inside, fill=bits(0.0))),
        ir.Store("most", (oy * out + ox) * channels + channel, ir.temporary("most", F32)),
        ir.Store("mean", (oy * out + ox) * channels + channel, op(ops.MUL, ir.temporary("sum", F32), number(1 / 9))),
    )
    tasks = parallel(y, out, parallel(x, out, vector(c, channels, *body, lanes=8)))
    nest = ir.LoopNest((output("most"), output("mean"), array("x")), (), (tasks,))
    elements = out * out * channels
    return Case(nest, {"most": zeros(elements), "mean": zeros(elements), "x": normal(size * size * channels)})


@case
def windows_across_lanes() -> Case:
    """The same with the columns in lanes: strided loads under masks that differ between lanes."""
    width, out = 20, 10
    x, ox = axis("x", out)
    kx, dx = axis("kx", 3)
    ix = ox * 2 + dx - 1
    value = load("x", ix, valid=(ix, -ix + width - 1), fill=bits(0.0))
    total = ir.Reduction("sum", ops.SUM_REDUCE, F32, (serial(kx, 3),), (), value)
    nest = ir.LoopNest(
        (output("out"), array("x")),
        (),
        (vector(x, out, total, ir.Store("out", ox, ir.temporary("sum", F32)), lanes=8),),
    )
    return Case(nest, {"out": zeros(out), "x": normal(width)})


@case
def side_by_side() -> Case:
    """Sums of products, and maxima, of neighbouring rows over a range that may be empty, along vectors with a tail."""
    r, row = axis("r", 4)
    c, column = axis("c", 20)
    k, step = axis("k", 3)
    over = (serial(k, row + -1),)  # not at all in the first row and the second
    x = [load("x", (step + n) * 20 + column) for n in range(3)]
    w = [load("w", step + n) for n in range(2)]
    products = [("a", op(ops.MUL, x[0], w[0])), ("b", op(ops.MUL, x[1], w[0])), ("b", op(ops.MUL, x[2], w[1]))]
    body = (
        ir.Reductions(("a", "b"), ops.SUM_REDUCE, F32, over, tuple(products)),
        ir.Reductions(("c", "d"), ops.MAX_REDUCE, F32, over, (("c", x[0]), ("d", w[1]))),
        *(
            ir.Store(name, row * 20 + column, op(ops.ADD, ir.temporary(name, F32), number(1.0)))
            for name in ("a", "b", "c", "d")
        ),
    )
    nest = ir.LoopNest((*map(output, "abcd"), array("x"), array("w")), (), (serial(r, 4, vector(c, 20, *body)),))
    return Case(nest, {**{name: zeros(80) for name in "abcd"}, "x": normal(100), "w": normal(4)})


@case
def side_by_side_in_half_precision() -> Case:
    """Terms that are written out, without vectors: each product rounds to its type, the sum in float32 and once."""
    half = types.bf16
    x = [load("x", n, half) for n in range(3)]
    terms = [("a", op(ops.MUL, x[0], x[1])), ("a", op(ops.MUL, x[1], x[2])), ("b", x[0]), ("a", x[2])]
    body = (
        ir.Reductions(("a", "b", "none"), ops.SUM_REDUCE, half, (), tuple(terms)),
        *(ir.Store("out", n, ir.temporary(name, half)) for n, name in enumerate(("a", "b", "none"))),
    )
    nest = ir.LoopNest((output("out", half), array("x", half)), (), body)
    return Case(nest, {"out": zeros(3, dtype=half), "x": normal(3, dtype=half)})


@case
def scalar_reductions() -> Case:
    """Without vector loops: a long sum, and a sum over two loops of a product of what does not depend on the inner."""
    i, at = axis("i", 103)
    a, outer = axis("a", 5)
    b, inner = axis("b", 7)
    body = (
        ir.Reduction("long", ops.SUM_REDUCE, F32, (serial(i, 103),), (), load("x", at)),
        ir.Reduction(
            "nested", ops.SUM_REDUCE, F32, (serial(a, 5), serial(b, 7)), (),
            op(ops.MUL, load("x", outer), load("x", outer * 7 + inner)),
        ),
        ir.Store("out", 0, ir.temporary("long", F32)),
        ir.Store("out", 1, ir.temporary("nested", F32)),
    )  # fmt: skip
    nest = ir.LoopNest((output("out"), array("x")), (), body)
    return Case(nest, {"out": zeros(2), "x": normal(103)}, ulps=32)


@case
def empty_reduction() -> Case:
    """Reductions over nothing, and a load that only an empty loop would make."""
    n = Var("n", 0, 8)
    j, column = axis("j", of(n))
    value = op(ops.MUL, load("x", 0), load("x", column))
    body = (
        ir.Reduction("sum", ops.SUM_REDUCE, F32, (vector(j, of(n)),), (), value),
        ir.Reduction("most", ops.MAX_REDUCE, F32, (serial(j, of(n)),), (), value),
        ir.Store("out", 0, ir.temporary("sum", F32)),
        ir.Store("out", 1, ir.temporary("most", F32)),
    )
    nest = ir.LoopNest((output("out"), array("x")), (n,), body)
    runs = [({"out": normal(2), "x": normal(size)}, {"n": size}) for size in (8, 0, 1)]
    return Case(nest, *runs[0], more=runs[1:])


# ---- indices read at run time ---------------------------------------------------------------------------------------


@case
def table_rows() -> Case:
    """Rows of a table by indices: one index a row, and an index out of range."""
    t, token = axis("t", 6)
    c, column = axis("c", 20)
    row = Var("row", 0, 9)
    body = (
        ir.Let(row, load("index", token, types.i64), 10),
        vector(c, 20, ir.Store("out", token * 20 + column, load("table", of(row) * 20 + column))),
    )
    nest = ir.LoopNest(
        (output("out"), array("index", types.i64), array("table")), (), (parallel(t, 6, *body),), checked=True
    )
    good = np.array([0, 9, 3, 3, 1, 0])
    arrays = {"out": zeros(120), "index": good, "table": normal(200)}
    bad = [{**arrays, "index": np.where(good == 9, wrong, good)} for wrong in (10, -1, 1 << 40)]
    return Case(nest, arrays, more=[(b, {}) for b in bad])


@case
def table_elements() -> Case:
    """An index in each lane; lanes behind the end of the loop must not raise."""
    i, at = axis("i", 21)
    row = Var("row", 0, 9)
    index = op(ops.ADD, load("index", at, types.i64), number(-5, types.i64))
    body = (
        ir.Let(row, index, 10),
        ir.Store("out", at, op(ops.ADD, load("table", of(row) * 3 + 1), load("table", of(row) * 2 + at))),
    )
    nest = ir.LoopNest(
        (output("out"), array("index", types.i64), array("table")), (), (vector(i, 21, *body),), checked=True
    )
    good = rng.integers(0, 10, 21) + 5
    arrays = {"out": zeros(21), "index": good, "table": normal(60)}
    bad = [{**arrays, "index": np.where(np.arange(21) == place, 15, good)} for place in (0, 20)]
    return Case(nest, arrays, more=[(b, {}) for b in bad])


@case
def table_sums() -> Case:
    """Rows of a table summed by index: the index is read inside the reduction."""
    j, place = axis("j", 12)
    c, column = axis("c", 16)
    row = Var("row", 0, 4)
    total = ir.Reduction(
        "total", ops.SUM_REDUCE, F32, (serial(j, 12),), (ir.Let(row, load("index", place, types.i64), 5),),
        load("table", of(row) * 16 + column),
    )  # fmt: skip
    body = vector(c, 16, total, ir.Store("out", column, ir.temporary("total", F32)))
    nest = ir.LoopNest((output("out"), array("index", types.i64), array("table")), (), (body,), checked=True)
    return Case(nest, {"out": zeros(16), "index": rng.integers(0, 5, 12), "table": normal(80)}, ulps=16)


# ---- tiles ----------------------------------------------------------------------------------------------------------


def tiled(
    rows: sym.Int, columns: int, depth: sym.Int, dims: tuple[Var, ...], max_rows: int, lanes: int,
    a_type: types.DType = F32, b_type: types.DType = F32, dtype: types.DType = F32,
) -> ir.LoopNest:  # fmt: skip
    """out = a @ b + bias, b packed in panels of 2*lanes columns."""
    width = 2 * lanes
    p, panel = axis("p", columns // width)
    t, tile = axis("t", sym.ceildiv(rows, max_rows))
    k, step = axis("k", depth)
    c, column = axis("c", width)
    height = Var("height", 1, max_rows)
    r = Var("r", 0, of(height) - 1)
    first = tile * max_rows
    contract = ir.Contract(
        "tile", dtype, "a", a_type, first * depth + step, depth, "b", b_type, panel * width * depth + step * width,
        (serial(k, depth),), of(height), max_rows, width, lanes,
    )  # fmt: skip
    value = op(ops.ADD, load("tile", of(r) * width + column, dtype), load("bias", panel * width + column, dtype))
    store = ir.Store("out", (first + of(r)) * columns + panel * width + column, value)
    body = (
        ir.Alloc("tile", dtype, max_rows * width),
        ir.Assign(height, sym.minimum(max_rows, rows - tile * max_rows)),
        contract,
        serial(r, of(height), vector(c, width, store, lanes=lanes)),
    )
    arrays = (output("out", dtype), array("a", a_type), array("b", b_type), array("bias", dtype))
    return ir.LoopNest(arrays, dims, (parallel(p, columns // width, parallel(t, sym.ceildiv(rows, max_rows), *body)),))


def tile_arrays(
    rows: int, columns: int, depth: int, a_type: types.DType = F32, b_type: types.DType = F32, dtype: types.DType = F32
) -> dict[str, np.ndarray]:
    made = normal if dtype.is_float else lambda *s, dtype: rng.integers(-128, 128, int(np.prod(s))).astype(dtype.numpy)
    return {
        "out": zeros(rows, columns, dtype=dtype),
        "a": made(rows, depth, dtype=a_type),
        "b": made(depth, columns, dtype=b_type),
        "bias": made(columns, dtype=dtype),
    }


@case
def contraction() -> Case:
    """Thirty rows in tiles of fourteen: two heights occur."""
    return Case(tiled(30, 64, 40, (), 14, 16), tile_arrays(30, 64, 40), ulps=64)


@case
def contraction_symbolic() -> Case:
    """Rows and depth are symbolic: every height may occur."""
    m, k = Var("M", 1, 40), Var("K", 1, 64)
    runs = [(tile_arrays(rows, 32, depth), {"M": rows, "K": depth}) for rows, depth in ((17, 33), (1, 1), (6, 5))]
    return Case(tiled(of(m), 32, of(k), (m, k), 6, 8), *runs[0], more=runs[1:], ulps=64)


@case
def contraction_float64() -> Case:
    return Case(tiled(9, 32, 20, (), 4, 8, *[types.f64] * 3), tile_arrays(9, 32, 20, *[types.f64] * 3), ulps=64)


@case
def contraction_integers() -> Case:
    kinds = (types.i8, types.i8, types.i32)
    return Case(tiled(9, 32, 20, (), 4, 16, *kinds), tile_arrays(9, 32, 20, *kinds))


@case
def contraction_bfloat16() -> Case:
    """Weights of 16 bits, sums and results in float."""
    kinds = (F32, types.bf16, F32)
    return Case(tiled(9, 32, 20, (), 4, 16, *kinds), tile_arrays(9, 32, 20, *kinds), ulps=64)


@case
def contraction_float16() -> Case:
    """Everything in 16 bits: the sums are float, rounded once."""
    return Case(tiled(9, 32, 20, (), 4, 16, *[types.f16] * 3), tile_arrays(9, 32, 20, *[types.f16] * 3), ulps=2)


@case
def contraction_in_blocks() -> Case:
    """Sums of blocks of eight products are added in the tile; each step fetches a part of the panel after this one, and
    of the rows after these."""
    nest = tiled(9, 64, 24, (), 4, 16)
    loops, inside = walk.perfect_loops(nest.body)
    alloc, height, contract, rest = inside
    assert isinstance(contract, ir.Contract)
    outer, block = axis("block", 3)
    inner, step = axis("step", 8)
    by = {contract.loops[0].axis: block * 8 + step}
    contract = replace(
        contract,
        a_offset=sym.substitute(contract.a_offset, by),
        b_offset=sym.substitute(contract.b_offset, by),
        loops=(serial(outer, 3), serial(inner, 8)),
        outer=1,
        a_ahead=sym.substitute(contract.a_offset, by) + (8 + sym.mod(block * 8 + step, 16)) * 24,
        b_ahead=24 * 32 * (of(loops[0].axis) + 1) + (of(loops[1].axis) * 24 + block * 8 + step) * 11,
    )
    body = rewrite.wrap(loops, (alloc, height, contract, rest))
    return Case(replace(nest, body=body), tile_arrays(9, 64, 24), ulps=64)


@case
def contraction_window() -> Case:
    """Two loops, of which the outer one moves a window of symbolic width."""
    w = Var("W", 3, 20)
    d, tap = axis("d", 3)
    k, step = axis("k", 8)
    c, column = axis("c", 16)
    r = Var("r", 0, 3)
    contract = ir.Contract(
        "tile", F32, "a", F32, tap * 8 * of(w) + step + 8, 8, "b", F32, (tap * 8 + step) * 16,
        (serial(d, 3), serial(k, 8)), 4, 4, 16, 16,
    )  # fmt: skip
    store = ir.Store("out", of(r) * 16 + column, load("tile", of(r) * 16 + column))
    nest = ir.LoopNest(
        (output("out"), array("a"), array("b")), (w,),
        (ir.Alloc("tile", F32, 64), contract, serial(r, 4, vector(c, 16, store))),
    )  # fmt: skip
    runs = [({"out": zeros(64), "a": normal(3 * 8 * n), "b": normal(24 * 16)}, {"W": n}) for n in (5, 20)]
    return Case(nest, *runs[0], more=runs[1:], ulps=64)


# ---- thread-local arrays --------------------------------------------------------------------------------------------


@case
def local_arrays() -> Case:
    """A value read before and after a store, in one body and around a loop."""
    r, row = axis("r", 4)
    i, at = axis("i", 24)
    j, other = axis("j", 24)
    body = (
        ir.Alloc("local", F32, 24),
        vector(i, 24, ir.Store("local", at, load("x", row * 24 + at))),
        ir.Define("before", load("local", 3)),
        serial(j, 24, ir.Store("local", 3, op(ops.ADD, load("local", 3), load("x", other)))),
        ir.Define("after", load("local", 3)),
        vector(
            i, 24,
            ir.Store(
                "out", row * 24 + at,
                op(
                    ops.ADD,
                    load("local", -at + 23),
                    op(ops.ADD, ir.temporary("before", F32), ir.temporary("after", F32)),
                ),
            ),
        ),
    )  # fmt: skip
    nest = ir.LoopNest((output("out"), array("x")), (), (parallel(r, 4, *body),))
    return Case(nest, {"out": zeros(96), "x": normal(96)}, ulps=16)


# ---- element types --------------------------------------------------------------------------------------------------


def elementwise(value: ir.Scalar, arrays: dict[str, np.ndarray], lanes: int = 16, ulps: float = 0.0) -> Case:
    """out[i] = value, over the arrays' first 37 elements."""
    i, at = axis("i", 37)
    declared = tuple(array(name, types.from_numpy(values.dtype)) for name, values in arrays.items())
    nest = ir.LoopNest(
        (output("out", value.dtype), *declared), (), (vector(i, 37, ir.Store("out", at, value), lanes=lanes),)
    )
    return Case(nest, {"out": zeros(37, dtype=value.dtype), **arrays}, ulps=ulps)


def element(name: str, dtype: types.DType) -> ir.Scalar:
    return load(name, axis("i", 37)[1], dtype)


def halves(dtype: types.DType) -> Case:
    """Every operation rounds to the type: (x*y + x/y)**(1/2), its largest with x, and bits."""
    integer = {8: types.i8, 16: types.i16}[dtype.bits]
    x, y = element("x", dtype), element("y", dtype)
    value = op(ops.SQRT, op(ops.ADD, op(ops.MUL, x, y), op(ops.DIV, x, y)))
    value = op(ops.MAX, op(ops.SELECT, op(ops.LESS_THAN, x, y), value, number(0.1, dtype)), x)
    magnitude = op(ops.AND, op(ops.BITCAST, value, attr=ops.To(integer), dtype=integer), number(integer.max, integer))
    return elementwise(
        op(ops.BITCAST, magnitude, attr=ops.To(dtype), dtype=dtype),
        {"x": np.abs(normal(37, dtype=dtype)), "y": np.abs(normal(37, dtype=dtype))},
    )


def bounded(dtype: types.DType) -> Case:
    """What one instruction does where the primitives say two or three: bounds on either side, NaN kept."""
    x, y = element("x", dtype), element("y", dtype)
    low, high, zero = number(-0.5, dtype), number(0.75, dtype), number(0.0, dtype)
    value = op(ops.MULTIPLY_ADD, x, y, op(ops.SELECT, op(ops.LESS_THAN, x, y), x, y))
    value = op(ops.MAX, op(ops.SELECT, op(ops.LESS_THAN, high, value), high, value), low)
    value = op(ops.SELECT, op(ops.LESS_THAN, value, zero), zero, op(ops.MAX, zero, value))
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    x_values, y_values = (np.concatenate([special, normal(32)]).astype(dtype.numpy) for _ in range(2))
    return elementwise(value, {"x": x_values, "y": y_values[::-1].copy()})


for kind in (types.f32, types.f64, types.bf16):
    CASES[f"bounded_{kind}"] = bounded(kind)


def runs(dtype: types.DType, size: int) -> Case:
    """Lanes stored in runs of ``size`` elements side by side, 24 from one to the next; the last group is not whole."""
    i, at = axis("i", 70)
    store = ir.Store("out", at // size * 24 + at % size, load("x", at, dtype))
    nest = ir.LoopNest((output("out", dtype), array("x", dtype)), (), (vector(i, 70, store),))
    return Case(nest, {name: (normal(n) * 20).astype(dtype.numpy) for name, n in (("out", 24 * 35), ("x", 70))})


for kind, size in ((types.bf16, 2), (types.f32, 2), (types.f32, 4), (types.i8, 4)):
    CASES[f"runs_{kind}_{size}"] = runs(kind, size)


def interleaved(dtype: types.DType, count: int, apart: int = 0, first: int = 0) -> Case:
    """``count`` rows of which one element each lies side by side; the last group of lanes is not whole. With ``apart``
    there are elements between; rows before the ``first`` are not stored."""
    i, at = axis("i", 70)
    r, row = axis("r", count)
    value = load("x", row * 70 + at) if dtype.compute == F32 else load("x", row * 70 + at, dtype)
    store = ir.Store("out", at * (count + apart) + row, value, valid=(row - first,) if first else ())
    rows = ir.Loop(r, count, "across", (store,), count)
    nest = ir.LoopNest((output("out", dtype), array("x", value.dtype)), (), (vector(i, 70, rows),))
    sizes = {"out": (70 * (count + apart), dtype), "x": (70 * count, value.dtype)}
    return Case(nest, {name: (normal(n) * 20).astype(of.numpy) for name, (n, of) in sizes.items()})


for kind, size in ((types.bf16, 2), (types.bf16, 3), (types.f16, 4), (F32, 3), (types.i32, 4), (types.f64, 3)):
    CASES[f"interleaved_{kind}_{size}"] = interleaved(kind, size)
CASES["apart_float32_3"] = interleaved(F32, 3, apart=1)
CASES["guarded_float32_3"] = interleaved(F32, 3, first=1)


def interleaved_twice(added: bool) -> Case:
    """Two results of three rows each, lane by lane, of different types; or one to which what is there is ``added``."""
    i, at = axis("i", 70)
    r, row = axis("r", 3)
    value, place = load("x", row * 70 + at), at * 3 + row
    stores = [ir.Store("out", place, op(ops.ADD, value, load("out", place)) if added else value)]
    stores += [] if added else [ir.Store("other", place, op(ops.MUL, value, number(3.0)))]
    arrays = [output("out"), *([] if added else [output("other", types.bf16)]), array("x")]
    rows = ir.Loop(r, 3, "across", tuple(stores), 3)
    nest = ir.LoopNest(tuple(arrays), (), (vector(i, 70, rows),))
    return Case(nest, {a.name: normal(210, dtype=a.dtype) for a in arrays})


CASES["interleaved_twice"] = interleaved_twice(added=False)
CASES["added_float32_3"] = interleaved_twice(added=True)


def moves(dtype: types.DType, size: int) -> Case:
    """Rows of ``size`` elements that become columns of as many side by side, zeros beyond the last row."""
    i, at = axis("i", 6)
    r, row = axis("r", 9)
    e, part = axis("e", size)
    value = load("x", row * 6 * size + at * size + part, dtype, valid=(-row + 6,), fill=bytes(dtype.itemsize))
    store = ir.Store("out", (at * 9 + row) * size + part, value)
    nest = ir.LoopNest(
        (output("out", dtype), array("x", dtype)), (), (serial(i, 6, serial(r, 9, vector(e, size, store))),)
    )
    sizes = {"out": 54 * size, "x": 42 * size}
    return Case(nest, {name: (normal(n) * 20).astype(dtype.numpy) for name, n in sizes.items()})


for kind, size in ((types.bf16, 2), (types.f16, 4), (types.i8, 4), (types.f32, 2), (types.bf16, 18)):
    CASES[f"moves_{kind}_{size}"] = moves(kind, size)
for kind, size in ((types.bf16, 3), (types.bool_, 4), (types.f4e2m1, 4)):
    CASES[f"leaves_{kind}_{size}"] = moves(kind, size)

CASES["halves_float16"] = halves(types.f16)
CASES["halves_bfloat16"] = halves(types.bf16)
for kind in (types.f8e4m3fn, types.f8e4m3fnuz, types.f8e5m2, types.f8e5m2fnuz):
    CASES[f"eighths_{kind}"] = halves(kind)


@case
def powers_of_two() -> Case:
    """A type without zero or sign: products, and what rounding down makes of them."""
    x, y = element("x", types.f8e8m0), element("y", types.f8e8m0)
    value = op(ops.MAX, op(ops.MUL, x, y), op(ops.ROUND, y, attr=ops.Rounding("floor")))
    exponents = np.arange(37, dtype=np.uint8)
    arrays = {"x": (exponents * 6).view(types.f8e8m0.numpy), "y": (exponents * 7 % 255).view(types.f8e8m0.numpy)}
    return elementwise(value, arrays)


@case
def four_bits() -> Case:
    """Bits of integers that are those of floats, a number, and a mask beyond which there is a fill."""
    at = axis("i", 37)[1]
    x = load("x", at, types.u4, valid=(at - 5,), fill=bits(7, types.u4))
    value = op(ops.BITCAST, x, attr=ops.To(types.f4e2m1), dtype=types.f4e2m1)
    value = op(ops.ADD, op(ops.MUL, value, number(1.5, types.f4e2m1)), value)
    return elementwise(value, {"x": rng.integers(0, 16, 37).astype(types.u4.numpy)})


@case
def stored_halves() -> Case:
    """What is read back has been rounded as it was stored."""
    i, at = axis("i", 24)
    r, row = axis("r", 4)
    x = load("x", row * 24 + at)
    back = op(ops.CAST, load("local", at, types.bf16), attr=ops.To(F32), dtype=F32)
    square = op(ops.CAST, op(ops.MUL, x, x), attr=ops.To(types.bf16), dtype=types.bf16)
    nest = ir.LoopNest(
        (output("out"), array("x")),
        (),
        (
            parallel(
                r, 4,
                ir.Alloc("local", types.bf16, 24),
                vector(
                    i, 24,
                    ir.Store("local", at, square),
                    ir.Store("out", row * 24 + at, op(ops.ADD, back, x)),
                ),
            ),
        ),
    )  # fmt: skip
    return Case(nest, {"out": zeros(96), "x": normal(96)}, ulps=0)


@case
def half_sums() -> Case:
    """A sum of 16-bit values is carried in float and rounded once."""
    j, column = axis("j", 150)
    total = ir.Reduction("total", ops.SUM_REDUCE, types.bf16, (vector(j, 150),), (), load("x", column, types.bf16))
    nest = ir.LoopNest(
        (output("out", types.bf16), array("x", types.bf16)),
        (),
        (total, ir.Store("out", 0, ir.temporary("total", types.bf16))),
    )
    return Case(nest, {"out": zeros(1, dtype=types.bf16), "x": normal(150, dtype=types.bf16)}, ulps=1)


def integers(dtype: types.DType, lanes: int) -> Case:
    """Arithmetic at the limits of an integer type, zero divisors and oversized shifts included."""
    low, high = int(dtype.min), int(dtype.max)
    values = np.array([low, high, 0, 1, high // 3, low // 5 + 1, min(7, high)], dtype.numpy)
    if dtype.kind == "i":
        values = np.append(values, dtype.numpy.type(-1))
    pairs = np.array([(a, b) for a in values for b in values], dtype.numpy)[np.arange(37) * 5 % len(values) ** 2]
    x, y = element("x", dtype), element("y", dtype)
    value = op(ops.XOR, op(ops.DIV, x, y), op(ops.MOD, x, y))
    value = op(ops.ADD, op(ops.MUL, value, x), op(ops.SHL, x, op(ops.AND, y, number(15, dtype))))
    value = op(ops.MAX, op(ops.OR, value, op(ops.SHR, x, y)), op(ops.SHR, y, number(3, dtype)))
    value = op(ops.SELECT, op(ops.EQUAL, x, y), number(low, dtype), value)
    return elementwise(value, {"x": pairs[:, 0].copy(), "y": pairs[:, 1].copy()}, lanes)


for kind, count in (
    ("int8", 16),
    ("int16", 8),
    ("int32", 16),
    ("int64", 8),
    ("uint8", 16),
    ("uint32", 4),
    ("uint64", 2),
    ("int4", 16),
    ("uint4", 16),
    ("int2", 8),
    ("uint2", 8),
):
    CASES[f"limits_{kind}"] = integers(types.ALL[kind], count)


@case
def functions_float64() -> Case:
    x = element("x", types.f64)
    value = op(ops.ADD, op(ops.SIN, x, attr=ops.Quadrant(1)), op(ops.LOG2, op(ops.MUL, x, x), attr=ops.Scale(0.5)))
    return elementwise(op(ops.MOD, value, number(0.3, types.f64)), {"x": normal(37, dtype=types.f64)}, 8, ulps=16)


@case
def bools() -> Case:
    """Bools in memory, logic on them, and their numbers."""
    x, y, z = element("x", F32), element("y", types.f64), element("z", types.bool_)
    logic = op(ops.OR, op(ops.LESS_THAN, x, number(0.0)), op(ops.EQUAL, y, number(1.0, types.f64)))
    logic = op(
        ops.XOR,
        op(ops.AND, logic, op(ops.XOR, z, number(True, types.bool_))),
        op(ops.LESS_THAN, y, number(0.5, types.f64)),
    )
    return elementwise(
        op(ops.SELECT, z, logic, op(ops.MAX, logic, op(ops.EQUAL, z, logic))),
        {"x": normal(37), "y": np.round(normal(37, dtype=types.f64)), "z": rng.random(37) < 0.5},
    )


@case
def padding_of_bools_by_rows() -> Case:
    """Rows of bools around the input are filled: of both, side by side and by indices, the lanes are masks alike."""
    r, row = axis("r", 6)
    c, column = axis("c", 20)
    inside = {"valid": (row - 2, -row + 4), "fill": bits(True, types.bool_)}
    side_by_side = load("x", (row - 2) * 20 + column, types.bool_, **inside)
    turned = load("x", (row - 2) * 20 - column + 19, types.bool_, **inside)
    store = ir.Store("out", row * 20 + column, op(ops.XOR, side_by_side, turned))
    nest = ir.LoopNest(
        (output("out", types.bool_), array("x", types.bool_)), (), (parallel(r, 6, vector(c, 20, store)),)
    )
    return Case(nest, {"out": zeros(120, dtype=types.bool_), "x": rng.integers(0, 2, 60).astype(bool)})


@case
def any_true() -> Case:
    """Whether any element of a row is true; a scalar condition chooses a vector."""
    r, row = axis("r", 5)
    j, column = axis("j", 40)
    flag = load("x", row * 40 + column, types.bool_)
    body = (
        ir.Reduction("any", ops.MAX_REDUCE, types.bool_, (vector(j, 40),), (), flag),
        ir.Store("any", row, ir.temporary("any", types.bool_)),
        vector(
            j, 40,
            ir.Store(
                "out", row * 40 + column,
                op(ops.SELECT, ir.temporary("any", types.bool_), load("y", column), number(float("nan"))),
            ),
        ),
    )  # fmt: skip
    nest = ir.LoopNest(
        (output("any", types.bool_), output("out"), array("x", types.bool_), array("y")), (), (parallel(r, 5, *body),)
    )
    flags = np.zeros((5, 40), bool)
    flags[1, 39] = flags[3, 0] = flags[4, 20] = True
    return Case(nest, {"any": zeros(5, dtype=types.bool_), "out": zeros(200), "x": flags.reshape(-1), "y": normal(40)})


@case
def conversions() -> Case:
    """A value through every type that is narrower or wider than the one before."""
    value = op(ops.MUL, element("x", F32), number(300.0))
    for kind in (
        "int32",
        "int8",
        "float16",
        "uint8",
        "int64",
        "bfloat16",
        "float64",
        "uint32",
        "bool",
        "int16",
        "float32",
    ):
        target = types.ALL[kind]
        step = op(ops.CAST, value, attr=ops.To(target), dtype=target)
        value = op(ops.ADD, step, number(3, target)) if kind in ("int32", "float16", "uint8", "float64") else step
    return elementwise(op(ops.ROUND, value, attr=ops.Rounding("floor")), {"x": normal(37)})


@case
def integer_sums() -> Case:
    """Sums that wrap and maxima of integers, over lanes wider than a register."""
    j, column = axis("j", 45)
    x = load("x", column, types.i64)
    body = (
        ir.Reduction("sum", ops.SUM_REDUCE, types.i64, (vector(j, 45),), (), x),
        ir.Reduction("most", ops.MAX_REDUCE, types.i64, (vector(j, 45),), (), x),
        ir.Store("out", 0, ir.temporary("sum", types.i64)),
        ir.Store("out", 1, ir.temporary("most", types.i64)),
    )
    nest = ir.LoopNest((output("out", types.i64), array("x", types.i64)), (), body)
    return Case(nest, {"out": zeros(2, dtype=types.i64), "x": rng.integers(-(2**63), 2**63 - 1, 45)})


# For blocks, whose threads have one accumulator each; CPUs get several where reductions are long.
SINGLE = dict(CASES)
CASES = {name: replace(each, nest=Accumulate(4)(each.nest)) for name, each in SINGLE.items()}
