"""Generated libraries against the interpreter: every structure that the scheduler treats apart, every element type."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import luminal
from luminal.core import interp, ir, movement, ops, types
from luminal.core import symbolic as sym
from luminal.core.decompose import (
    activation,
    compare,
    contraction,
    exponential,
    hyperbolic,
    indexing,
    reduction,
    sorting,
)
from luminal.core.errors import ModelError
from luminal.core.ir import Graph, Node
from luminal.core.target import Target
from luminal.core.types import DType
from tests.compiled_support import Array, assert_computes, assert_same_bits, compiled_graph, resized
from tests.emulation import HOST, OTHERS
from tests.schedule_graphs import GRAPHS, SIZES

# Graphs that between them hold every kind of kernel: these are compiled for the lesser targets, too.
REPRESENTATIVE = ("attention_block", "convolution_chain", "lookups", "integers", "half_precision")


def agrees(graph: Graph, target: Target, runs: list[dict[str, Array]], terms: int) -> None:
    """The library computes what the graph says, to the same bits with one thread and with two."""
    folder = compiled_graph(graph, target).folder
    one, two = (luminal.load(folder, threads=threads) for threads in (1, 2))
    assert one.library.metadata["target"]["name"] == target.name
    for inputs in runs:
        found = list(one.run(inputs).values())
        assert_computes(graph, inputs, found, terms)
        assert_same_bits(list(two.run(inputs).values()), found)


@pytest.mark.parametrize(
    ("name", "target"),
    [(name, HOST) for name in GRAPHS] + [(name, target) for target in OTHERS for name in REPRESENTATIVE],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_graph(name: str, target: Target) -> None:
    case = GRAPHS[name]()
    sizes = [SIZES, {"batch": 1, "seq": 1}, {"batch": 4, "seq": 9}]
    runs = [resized(case.graph, case.inputs, size) for size in (sizes if case.graph.dims else sizes[:1])]
    agrees(case.graph, target, runs, case.depth)


@pytest.mark.parametrize("target", [HOST, *OTHERS], ids=lambda target: target.name)
def test_sums_of_integers_of_every_length(target: Target) -> None:
    """GCC 12.2 sums several interleaved accumulators wrongly where a vector holds more than one of each."""
    count = sym.var("count", 0, 70)
    kinds = (types.i8, types.u8, types.i16, types.i32, types.i64, types.u64)
    nodes = [ir.input_(f"x{k}", (count,), dtype) for k, dtype in enumerate(kinds)]
    outputs = [
        (f"{op}{k}", ir.reduce(op, x, [0])) for k, x in enumerate(nodes) for op in (ops.SUM_REDUCE, ops.MAX_REDUCE)
    ]
    graph = Graph("integer_sums", tuple(nodes), tuple(outputs), tuple(sym.variables(count)))
    module = compiled_graph(graph, target)
    for size in range(71):
        inputs = {f"x{k}": np.arange(size).astype(dtype.numpy) % 7 + 1 for k, dtype in enumerate(kinds)}
        expected = interp.run(graph, inputs).outputs
        for (name, _), found, wanted in zip(outputs, module.run(inputs).values(), expected, strict=True):
            assert found == wanted, (name, size)


# ---- element types ---------------------------------------------------------------------------------------------------


def graph_of(name: str, inputs: dict[str, Array], build: Callable[..., dict[str, Node]]) -> Graph:
    nodes = [ir.input_(key, value.shape, types.from_numpy(value.dtype)) for key, value in inputs.items()]
    return Graph(name, tuple(nodes), tuple(build(*nodes).items()))


FLOATS = (types.f64, types.f32, types.f16, types.bf16)
SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan]


def float_graph(x: Node, y: Node, w: Node) -> dict[str, Node]:
    return {
        "pairs": indexing.stack([x + y, x * y, x / y, compare.maximum(x, y), ir.binary(ops.MOD, x, y)]),
        "singles": indexing.stack([ir.unary(op, x) for op in (ops.SQRT, ops.RECIP)]),
        "compared": indexing.stack([x < y, ir.binary(ops.EQUAL, x, y)]),
        "rounded": ir.unary(ops.ROUND, x, ops.Rounding("even")),
        "whole": ir.cast(x, types.i32),
        "narrow": ir.cast(x, types.f16),
        "curves": indexing.stack([hyperbolic.tanh(w), exponential.exp(w), activation.silu(w)]),
        "rows": reduction.softmax(w, -1),
        "totals": reduction.sum_(w, [0]),
        "product": contraction.matmul(w, movement.permute(w, (1, 0))),
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_types(dtype: DType) -> None:
    """Special values in every pair, and sums, rows and products of ordinary ones."""
    special = np.array([*SPECIAL, dtype.max, dtype.eps], np.float64).astype(dtype.numpy)
    x, y = (np.ascontiguousarray(part) for part in np.broadcast_arrays(special[:, None], special[None, :]))
    w = np.random.default_rng(3).standard_normal((13, 21)).astype(dtype.numpy)
    inputs = {"x": x, "y": y, "w": w}
    agrees(graph_of(f"floats_{dtype}", inputs, float_graph), HOST, [inputs], 64)


INTEGERS = (types.i8, types.i32, types.i64, types.u8, types.u64)


def integer_graph(x: Node, y: Node) -> dict[str, Node]:
    binary = (ops.ADD, ops.MUL, ops.DIV, ops.MOD, ops.MAX, ops.AND, ops.OR, ops.XOR, ops.SHL, ops.SHR)
    return {
        "pairs": indexing.stack([ir.binary(op, x, y) for op in binary]),
        "chosen": ir.select(x < y, x, y),
        "floats": ir.cast(x, types.f32),
        "wrapped": ir.cast(x, types.i8),
        "total": ir.reduce(ops.SUM_REDUCE, movement.reshape(x, (x.size,)), [0]),
        "largest": ir.reduce(ops.MAX_REDUCE, x, [1]),
        "contracted": contraction.matmul(x, y),
    }


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_at_their_limits(dtype: DType) -> None:
    """Overflow, division by zero, the lowest number by -1, shifts by negative and by too much: nothing traps."""
    bits = np.iinfo(dtype.numpy).bits
    limits = [dtype.min, dtype.max, 0, 1, 3, bits - 1, bits, bits + 1]
    limits += [-1, -2, -bits] if dtype.kind == "i" else [dtype.max - 1]
    values = np.array(limits, dtype.numpy)
    x, y = (np.ascontiguousarray(part) for part in np.broadcast_arrays(values[:, None], values[None, :]))
    inputs = {"x": x, "y": y}
    agrees(graph_of(f"integers_{dtype}", inputs, integer_graph), HOST, [inputs], 1)


def test_orders_of_types() -> None:
    """Equal elements, NaN, infinities, both zeros, and the ends of integers; positions, and so values, exactly."""
    random = np.random.default_rng(2)
    inputs: dict[str, Array] = {}
    for dtype in (types.f64, types.bf16, types.i8, types.u32, types.u64, types.bool_):
        special = SPECIAL if dtype.is_float else [dtype.min, dtype.max, 0, 1]
        inputs[str(dtype)] = random.choice(np.array(special, dtype.numpy), (3, 50))

    def build(*nodes: Node) -> dict[str, Node]:
        outputs: dict[str, Node] = {}
        for x in nodes:
            outputs[f"{x.dtype} sorted"], outputs[f"{x.dtype} order"] = sorting.sort(x, 1, x.dtype.is_float)
        return outputs

    agrees(graph_of("orders", inputs, build), HOST, [inputs], 1)


def test_axes_of_size_zero_and_one() -> None:
    def build(none: Node, one: Node) -> dict[str, Node]:
        return {
            "nothing": none + 1.0,
            "sum": ir.reduce(ops.SUM_REDUCE, none, [1]),
            "max": ir.reduce(ops.MAX_REDUCE, none, [1]),
            "product": contraction.matmul(none, movement.permute(none, (1, 0))),
            "joined": movement.concatenate([one, ir.expand(one, (1, 1))], 1),
            "row": reduction.softmax(one, -1),
        }

    inputs = {"none": np.zeros((3, 0), np.float32), "one": np.full((1, 1), 2, np.float32)}
    agrees(graph_of("empty", inputs, build), HOST, [inputs], 1)


# ---- sizes ---------------------------------------------------------------------------------------------------------


def sized(*shapes: tuple[sym.Int, ...], output: Callable[..., Node] = lambda *inputs: inputs[0] * 2.0) -> Graph:
    """A graph of float inputs ``x0``, ``x1``, .. of these shapes."""
    inputs = tuple(ir.input_(f"x{k}", shape, types.f32) for k, shape in enumerate(shapes))
    dims = {v for shape in shapes for extent in shape for v in sym.variables(extent)}
    return Graph("sized", inputs, (("y", output(*inputs)),), tuple(sorted(dims, key=lambda v: v.name)))


def test_sizes_that_occur_in_expressions_alone_are_solved() -> None:
    """``h`` from twice ``h``; then ``past`` from a product with it; ``rest`` from a difference, last."""
    h, past, rest = sym.var("h", 1, 8), sym.var("past", 0, 9), sym.var("rest", 0, 5)
    last = lambda *inputs: movement.concatenate([x * 2.0 for x in inputs], 0)  # noqa: E731
    graph = sized((past - rest + 6,), (h * past + 1,), (2 * h,), output=last)
    runs = []
    for sizes in ({"h": 3, "past": 4, "rest": 2}, {"h": 1, "past": 0, "rest": 5}, {"h": 8, "past": 9, "rest": 0}):
        shapes = [[int(sym.evaluate(extent, sizes)) for extent in node.shape] for node in graph.inputs]
        runs.append({f"x{k}": np.arange(shape[0], dtype=np.float32) for k, shape in enumerate(shapes)})
    agrees(graph, HOST, runs, 1)


def test_sizes_that_no_solution_fits_are_refused() -> None:
    module = compiled_graph(sized((2 * sym.var("h", 1, 8),)), HOST)
    assert module.run({"x0": np.ones(16, np.float32)})["y"].shape == (16,)
    with pytest.raises(ValueError, match=r"has size 7, expected 6: the shape is \[2\*h\]"):
        module.run({"x0": np.ones(7, np.float32)})
    with pytest.raises(ValueError, match=r'has size 18, for which "h" would be outside its bounds 1..8'):
        module.run({"x0": np.ones(18, np.float32)})


def test_a_size_that_does_not_follow_from_the_inputs_is_refused_by_the_compiler() -> None:
    h, w = sym.var("h", 1, 8), sym.var("w", 1, 8)
    with pytest.raises(ModelError, match=r"dimension 'h' does not follow .* occurs only in h\*w; expected an axis"):
        luminal.compile(sized((h * w,)))
    with pytest.raises(ModelError, match="it occurs in none"):
        luminal.compile(sized((3,), output=lambda x: ir.expand(x, (h, 3))))
