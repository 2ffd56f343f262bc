"""The oracle: contractions, views, both modes, memory, sizes, errors; the printer and the specification of a graph."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from luminal.core import interp, ir, movement, ops, printer, spec, strided, structured
from luminal.core import symbolic as sym
from luminal.core.errors import DTypeError, InputError, ShapeError, SpecError
from luminal.core.ir import Graph, Node
from luminal.core.origins import Origin
from luminal.core.types import bf16, f16, f32, f64, i8, i32, i64

Array = np.ndarray[Any, Any]
B = sym.var("B", 1, 8)
S = sym.var("S", 1, 16)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product_sum(a: Node, b: Node) -> Node:
    """The matrix product of the last two axes of nodes of one batch shape."""
    *batch, m, k = a.shape
    n = b.shape[-1]
    whole = (*batch, m, n, k)
    left = ir.expand(movement.reshape(a, (*batch, m, 1, k)), whole)
    right = ir.expand(movement.reshape(movement.transpose(b, -1, -2), (*batch, 1, n, k)), whole)
    return ir.reduce(ops.SUM_REDUCE, left * right, [len(whole) - 1])


def windows_sum(x: Node, w: Node, stride: int, border: int) -> Node:
    """The sum over channels and a window of ``x`` [n, c, h, w], padded, times ``w`` [o, c, kh, kw]."""
    n = x.shape[0]
    o, c, kh, kw = w.shape
    assert isinstance(kh, int) and isinstance(kw, int)
    framed = movement.pad(x, [0, 0, border, border], [0, 0, border, border])
    sliding = movement.windows(movement.windows(framed, 2, kh, stride), 3, kw, stride)
    h, v = sliding.shape[2:4]
    whole = (n, o, c, h, v, kh, kw)
    left = ir.expand(movement.reshape(sliding, (n, 1, c, h, v, kh, kw)), whole)
    right = ir.expand(movement.reshape(w, (1, o, c, 1, 1, kh, kw)), whole)
    return ir.reduce(ops.SUM_REDUCE, left * right, [2, 5, 6])


# ---- contractions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("m", "k", "n"), [(4, 5, 6), (1, 5, 6), (4, 1, 6), (4, 5, 1), (1, 1, 1), (4, 0, 6)])
def test_products_match_numpy(batch: tuple[int, ...], m: int, k: int, n: int) -> None:
    x, y = random(*batch, m, k), random(*batch, k, n, seed=1)
    node = product_sum(ir.input_("x", x.shape, f32), ir.input_("y", y.shape, f32))
    (typed,) = interp.evaluate([node], {"x": x, "y": y})
    (double,) = interp.evaluate([node], {"x": x, "y": y}, mode="float64")
    assert (typed.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(double, x.astype(np.float64) @ y.astype(np.float64), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(typed, double, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("stride", "border", "size"), [(1, 1, 3), (2, 3, 7), (1, 0, 1), (2, 0, 1), (3, 1, 2)])
def test_windows_match_a_plain_loop(stride: int, border: int, size: int) -> None:
    x, w = random(2, 3, 9, 8), random(4, 3, size, size, seed=1)
    node = windows_sum(ir.input_("x", (B, 3, 9, 8), f32), ir.constant(w), stride, border)
    framed = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (border, border), (border, border)])
    h, v = ((n + 2 * border - size) // stride + 1 for n in (9, 8))
    expected = np.zeros((2, 4, h, v))
    for i, j in np.ndindex(h, v):
        patch = framed[:, :, i * stride : i * stride + size, j * stride : j * stride + size]
        expected[:, :, i, j] = np.tensordot(patch, w.astype(np.float64), ([1, 2, 3], [1, 2, 3]))
    for mode, tolerance in (("typed", 1e-5), ("float64", 1e-13)):
        np.testing.assert_allclose(
            interp.evaluate([node], {"x": x}, mode=mode)[0], expected, rtol=tolerance, atol=tolerance
        )


def test_pieces_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = random(3, 40, 20), random(3, 20, 30, seed=1)
    node = product_sum(ir.input_("x", x.shape, f32), ir.input_("y", y.shape, f32))
    narrow = product_sum(ir.input_("x", x.shape, f16), ir.input_("y", y.shape, f16))
    halves = {"x": x.astype(np.float16), "y": y.astype(np.float16)}
    whole = interp.evaluate([node], {"x": x, "y": y}, mode="float64"), interp.evaluate([narrow], halves)
    monkeypatch.setattr(strided, "LIMIT", 4096)
    np.testing.assert_allclose(interp.evaluate([node], {"x": x, "y": y}, mode="float64")[0], whole[0][0], rtol=1e-12)
    np.testing.assert_array_equal(interp.evaluate([narrow], halves)[0], whole[1][0])


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_sixteen_bit_products_are_rounded_before_they_are_summed(dtype: Any) -> None:
    x, y = (random(4, 9, seed=s).astype(dtype.numpy) for s in (0, 1))
    node = product_sum(ir.input_("x", (4, 9), dtype), movement.transpose(ir.input_("y", (4, 9), dtype), 0, 1))
    products = (x.astype(np.float32)[:, None] * y.astype(np.float32)).astype(dtype.numpy)
    expected = products.astype(np.float32).sum(-1).astype(dtype.numpy)
    np.testing.assert_array_equal(interp.evaluate([node], {"x": x, "y": y})[0], expected)


def test_casts_between_product_and_sum() -> None:
    x, y = random(4, 9), random(9, 5, seed=1)
    whole = (4, 5, 9)
    left = ir.expand(movement.reshape(ir.input_("x", (4, 9), f32), (4, 1, 9)), whole)
    right = ir.expand(movement.reshape(movement.transpose(ir.input_("y", (9, 5), f32), 0, 1), (1, 5, 9)), whole)
    node = ir.reduce(ops.SUM_REDUCE, ir.cast(left * right, f64), [2])
    expected = (x[:, None] * y.T).astype(np.float64).sum(-1)
    np.testing.assert_allclose(interp.evaluate([node], {"x": x, "y": y})[0], expected, rtol=1e-15)
    counted = ir.reduce(ops.SUM_REDUCE, ir.cast(left * right, i32), [2])
    expected = (x[:, None] * y.T).astype(np.int32).sum(-1)
    for mode in interp.MODES:
        np.testing.assert_array_equal(interp.evaluate([counted], {"x": x, "y": y}, mode=mode)[0], expected)


def test_integer_products_are_exact_and_wrap() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(-128, 128, (7, 300)).astype(np.int8), rng.integers(-128, 128, (300, 5)).astype(np.int8)
    a, b = ir.input_("x", x.shape, i8), ir.input_("y", y.shape, i8)
    wide, wrapped = product_sum(ir.cast(a, i32), ir.cast(b, i32)), product_sum(a, b)
    found = interp.evaluate([wide, wrapped], {"x": x, "y": y})
    exact = x.astype(np.int64) @ y.astype(np.int64)
    np.testing.assert_array_equal(found[0], exact)
    np.testing.assert_array_equal(found[1], exact.astype(np.int8))
    large = np.full((2, 3), 1 << 40), np.full((3, 2), (1 << 30) + 1)
    node = product_sum(ir.input_("x", (2, 3), i64), ir.input_("y", (3, 2), i64))
    np.testing.assert_array_equal(interp.evaluate([node], dict(zip("xy", large, strict=True)))[0], large[0] @ large[1])


def test_the_product_is_never_spelled_out() -> None:
    """Logits of a language model: the product alone would be 32 * 50257 * 768 floats, 4.9 GB."""
    x, w = random(32, 768), random(768, 50257, seed=1)
    node = product_sum(ir.input_("x", x.shape, f32), ir.constant(w))
    tracemalloc.start()
    try:
        for mode in interp.MODES:
            interp.evaluate([node], {"x": x}, mode=mode)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * strided.LIMIT


def test_deep_windows_take_seconds() -> None:
    x = ir.input_("x", (1, 3, 112, 112), f32)
    y = windows_sum(x, ir.constant(random(64, 3, 7, 7)), 2, 3)
    for seed in range(8):
        y = windows_sum(y, ir.constant(random(64, 64, 3, 3, seed=seed) / 24), 1, 1)
    start = time.perf_counter()
    interp.run([y], {"x": random(1, 3, 112, 112)}, "float64")
    assert time.perf_counter() - start < 20


# ---- views and values ------------------------------------------------------------------------------------------------


def test_views_copy_nothing_where_strides_suffice() -> None:
    x = np.arange(24.0).reshape(2, 3, 4)
    node = movement.reshape(movement.flip(ir.input_("x", (2, 3, 4), f64), [2]), (6, 4))
    found = strided.read(x, node.attr, (6, 4), ir.axes((6, 4)))
    assert np.shares_memory(found, x)
    np.testing.assert_array_equal(found, x[:, :, ::-1].reshape(6, 4))
    spread = strided.read(x[:, :, :1], ops.View((*ir.axes((2, 3, 5))[:2], 0)), (2, 3, 5), ir.axes((2, 3, 5)))
    assert strided.repeated(spread) == (False, False, True)


def test_masks_that_are_no_border() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    over = ir.axes((3, 4))
    fill = np.array(-1, np.float32).tobytes()
    lower = ir.view(ir.input_("x", (3, 4), f32), (3, 4), over, [over[0] - over[1]], fill)
    (found,) = interp.evaluate([lower], {"x": x})
    np.testing.assert_array_equal(found, np.where(np.tri(3, 4, dtype=bool), x, -1))
    turned = movement.reshape(movement.pad(ir.input_("x", (3, 4), f32), [1, 0], [1, 3], 5), (7, 5))
    (found,) = interp.evaluate([turned], {"x": x})
    np.testing.assert_array_equal(found, np.pad(x, [(1, 1), (0, 3)], constant_values=5).reshape(7, 5))


def test_gather_along_every_axis() -> None:
    x = random(4, 5, 6)
    index = np.array([[0, 3], [2, 1]])
    for axis in range(3):
        node = ir.gather(ir.input_("x", x.shape, f32), ir.input_("index", (2, 2), i64), axis)
        np.testing.assert_array_equal(interp.evaluate([node], {"x": x, "index": index})[0], np.take(x, index, axis))
    repeated = ir.gather(ir.input_("x", x.shape, f32), ir.expand(ir.input_("index", (2, 1), i64), (2, 3)), 1)
    found = interp.evaluate([repeated], {"x": x, "index": index[:, :1]})[0]
    np.testing.assert_array_equal(found, np.take(x, np.broadcast_to(index[:, :1], (2, 3)), 1))


def test_a_scan_of_two_carries_is_a_loop() -> None:
    xs, first = random(5, 3), random(3)
    over, start = ir.input_("xs", (5, 3), f32), ir.input_("first", (3,), f32)

    def step(carried: Sequence[Node], element: Sequence[Node]) -> tuple[Sequence[Node], Sequence[Node]]:
        return (carried[0] * element[0], carried[0] + carried[1]), (carried[1] - element[0],)

    (a, b), (y,) = structured.scan(step, (start, start), (over,))
    found = interp.evaluate([y, a, b], {"xs": xs, "first": first})
    p, q, expected = first, first, []
    for x in xs:
        expected.append(q - x)
        p, q = p * x, p + q
    for one, other in zip(found, (np.stack(expected), p, q), strict=True):
        np.testing.assert_array_equal(one, other)
    exact = interp.evaluate([a], {"xs": xs, "first": first}, mode="float64")[0]
    np.testing.assert_allclose(exact, first.astype(np.float64) * xs.astype(np.float64).prod(0), rtol=1e-14)


def test_a_scan_that_changes_what_it_carries_is_refused() -> None:
    over, start = ir.input_("xs", (5, 3), f32), ir.input_("first", (3,), f32)
    with pytest.raises(ShapeError, match=r"a carry of shape \[3\] becomes \[1, 3\]"):
        structured.scan(lambda c, x: ([movement.unsqueeze(c[0], [0])], []), [start], [over])
    with pytest.raises(DTypeError, match="a carry of float32 becomes int64"):
        structured.scan(lambda c, x: ([ir.cast(c[0], i64)], []), [start], [over])
    with pytest.raises(ShapeError, match="operands of one length, found"):
        structured.scan(lambda c, x: (c, x), [start], [over, start])


def test_an_index_out_of_range_names_the_node_and_its_origin() -> None:
    origins: ir.Origins = {}
    table, index = ir.input_("x", (4, 2), f32), ir.input_("index", (3,), i64)
    with ir.originating(origins, Origin("Gather", "embeddings", "model.py:12")):
        node = ir.gather(table, index, 0)
    graph = Graph("g", (table, index), (("y", node),), origins=origins)
    for bad in (4, -1):
        feed = {"x": random(4, 2), "index": np.array([0, bad, 1])}
        with pytest.raises(IndexError, match=rf"embeddings.*model.py:12.*index {bad} is out of range.*extent 4"):
            interp.run(graph, feed)


# ---- the float64 mode ------------------------------------------------------------------------------------------------


def test_doubles_are_kept_and_decisions_are_typed() -> None:
    x = ir.input_("x", (3,), f32)
    third = x / 3.0
    exact = third * 3.0
    rounded = ir.unary(ops.ROUND, exact * 0.5, ops.Rounding("floor"))
    condition = ir.binary(ops.EQUAL, exact, x)
    chosen = ir.select(condition, third, 0.0)
    value = np.array([1.0, 2.0, 7.0], np.float32)
    found = interp.run([third, rounded, condition, chosen], {"x": value}, "float64").outputs
    np.testing.assert_array_equal(found[0], value.astype(np.float64) / 3)
    typed = interp.run([third, rounded, condition, chosen], {"x": value}).outputs
    np.testing.assert_array_equal(found[1], typed[1])
    np.testing.assert_array_equal(found[2], typed[2])
    np.testing.assert_array_equal(found[3], np.where(typed[2], found[0], 0))
    assert [f.dtype for f in found] == [np.float64, np.float64, np.bool_, np.float64]


def test_narrow_casts_do_not_round_doubles() -> None:
    x = ir.input_("x", (4,), f32)
    value = random(4)
    node = ir.cast(ir.cast(x, bf16), f32) * 2.0
    (double,) = interp.evaluate([node], {"x": value}, mode="float64")
    np.testing.assert_array_equal(double, value.astype(np.float64) * 2)
    (typed,) = interp.evaluate([node], {"x": value})
    np.testing.assert_array_equal(typed, value.astype(bf16.numpy).astype(np.float32) * 2)


def test_a_remainder_keeps_the_typed_quotient() -> None:
    x = ir.input_("x", (3,), f32)
    node = ir.binary(ops.MOD, x * 3.0, 1.0)
    value = np.array([0.1, 1 / 3, 5.25], np.float32)
    (typed,), (double,) = (interp.evaluate([node], {"x": value}, mode=mode) for mode in interp.MODES)
    np.testing.assert_allclose(double, typed, atol=1e-6)


# ---- running ---------------------------------------------------------------------------------------------------------


def test_kept_nodes_come_back_beside_the_outputs() -> None:
    x = ir.input_("x", (3,), f32)
    middle = x * 2.0
    result = interp.run([middle + 1.0], {"x": random(3)}, keep=[middle])
    np.testing.assert_array_equal(result.kept[middle] + 1, result.outputs[0])


def test_sizes_are_bound_from_shapes() -> None:
    x, y = ir.input_("x", (B, S * 2 + 1), f32), ir.input_("y", (S, B + S), f32)
    size = ir.dim(B * S)
    feed = {"x": random(2, 7), "y": random(3, 5)}
    assert interp.evaluate([x + 0.0, y + 0.0, size], feed)[2] == 6
    assert interp.evaluate([size], dims={"B": 2, "S": 5}) == [10]
    with pytest.raises(InputError, match="B, S"):
        interp.evaluate([size])


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": random(2, 3).astype(np.float64), "y": random(2)}, "expected float32 of rank 2"),
        ({"x": random(2), "y": random(2)}, "found float32 of shape"),
        ({"x": random(2, 3), "y": random(3)}, "axis 0 of input 'y': expected B = 2, found 3"),
        ({"x": random(9, 3), "y": random(9)}, "B = 9 is outside its bounds 1 .. 8"),
        ({"x": random(2, 4), "y": random(2)}, "axis 1 of input 'x': expected 3, found 4"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(feed: dict[str, Array], message: str) -> None:
    x, y = ir.input_("x", (B, 3), f32), ir.input_("y", (B,), f32)
    with pytest.raises(InputError, match=message.replace("..", r"\.\.")):
        interp.run(Graph("g", (x, y), (("z", x + 1.0),)), feed)


def test_intermediates_are_freed() -> None:
    x = ir.input_("x", (1 << 18,), f32)
    y = x
    for _ in range(50):
        y = ir.unary(ops.SQRT, y * y)
    tracemalloc.start()
    try:
        interp.run([y], {"x": random(1 << 18)})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20


def test_modes_are_checked() -> None:
    with pytest.raises(ValueError, match="expected a mode of typed, float64"):
        interp.run([ir.constant(1.0, f32)], {}, mode="exact")


# ---- printer and specification ---------------------------------------------------------------------------------------


def small_graph() -> Graph:
    origins: ir.Origins = {}
    x = ir.input_("x", (B, 4), f32)
    weight = ir.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    with ir.originating(origins, Origin("MatMul", "dense", "model.py:3")):
        y = product_sum(x, ir.expand(weight, (4, 3)))
    with ir.originating(origins, Origin("Pad", "pad")):
        z = movement.pad(y * 0.5, [0, 1], [0, 0], -1)
    dims = (d for d in [sym.as_var(B)] if d is not None)
    return Graph("small", (x,), (("z", z),), tuple(dims), origins, {weight: "dense.weight"})


def test_a_graph_prints_as_numbered_lines() -> None:
    assert printer.text(small_graph()) == (
        "graph small\n"
        "  dim B in 1 .. 8\n"
        "  %0: float32[B, 4] = Input x\n"
        "  %1: float32[B, 3, 4] = View %0 [i0, i1, i2] -> [i0, i2]  # MatMul 'dense' at model.py:3\n"
        "  %2: float32[4, 3] = Constant dense.weight #fd46663c\n"
        "  %3: float32[B, 3, 4] = View %2 [i0, i1, i2] -> [i2, i1]  # MatMul 'dense' at model.py:3\n"
        "  %4: float32[B, 3, 4] = Mul %1 %3  # MatMul 'dense' at model.py:3\n"
        "  %5: float32[B, 3] = SumReduce[2] %4  # MatMul 'dense' at model.py:3\n"
        "  %6: float32[] = Constant 0.5  # Pad 'pad'\n"
        "  %7: float32[B, 3] = View %6 [i0, i1] -> []  # Pad 'pad'\n"
        "  %8: float32[B, 3] = Mul %5 %7  # Pad 'pad'\n"
        "  %9: float32[B, 4] = View %8 [i0, i1] -> [i0, i1 - 1] where i1 - 1 >= 0 else -1.0  # Pad 'pad'\n"
        "  output z = %9\n"
    )


def test_a_well_formed_graph_passes() -> None:
    spec.check_graph(small_graph())


def forged(op: ops.Op, inputs: tuple[Node, ...], attr: Any, shape: ir.Shape, dtype: Any) -> Node:
    """A node that no builder would make."""
    node = Node()
    node.op, node.inputs, node.attr, node.shape, node.dtype = op, inputs, attr, shape, dtype
    return node


def malformed() -> dict[str, Graph]:
    x = ir.input_("x", (4,), f32)
    other = ir.input_("z", (5,), f32)
    sized = ir.input_("sized", (B,), f32)
    (i,) = ir.axes((4,))
    stranger = sym.axis("i7", 3)
    flipped = movement.flip(x, [0])

    def graph(node: Node, *inputs: Node) -> Graph:
        return Graph("bad", inputs or (x,), (("y", node),))

    return {
        "outputs repeat: y": Graph("bad", (x,), (("y", x), ("y", x))),
        "inputs repeat: x": Graph("bad", (x, ir.input_("x", (5,), f32)), (("y", x),)),
        "expected an Input": Graph("bad", (flipped,), (("y", flipped),)),
        "not among the graph's inputs": Graph("bad", (), (("y", x),)),
        "does not declare: B in 1 .. 8": graph(sized, sized),
        "not interned": graph(forged(ops.ADD, (x, x), None, (4,), f32)),
        "expected operands of one shape": graph(forged(ops.ADD, (x, other), None, (4,), f32), x, other),
        "expected 2 operands, found 1": graph(forged(ops.ADD, (x,), None, (4,), f32)),
        "a view to be composed": graph(forged(ops.VIEW, (flipped,), ops.View((i,)), (4,), f32)),
        "no axes of": graph(forged(ops.VIEW, (x,), ops.View((stranger,)), (4,), f32)),
        "leaves axis 0 of extent 4": graph(forged(ops.VIEW, (x,), ops.View((i + 1,)), (4,), f32)),
        "expected a fill of 4 bytes": graph(forged(ops.VIEW, (x,), ops.View((i,), (i - 1,), b"0"), (4,), f32)),
    }


@pytest.mark.parametrize("problem", list(malformed()))
def test_a_malformed_graph_is_refused_with_its_surroundings(problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec.check_graph(malformed()[problem])
    assert problem in str(caught.value)
