"""Regions in other forms, against the forms as spelled: in integers to the bit, in floats within the bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.core import interp, ir, movement, ops, traverse
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.algebra import form, stage, terms, write
from luminal.core.algebra.cost import Price
from luminal.core.algebra.factoring import cheapest_sum
from luminal.core.algebra.shared import FREE, Shared
from luminal.core.decompose import contraction as decompose
from luminal.core.decompose.contraction import linear, matmul
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.rewrite import readers, simplify
from luminal.core.types import DType, bool_, f32, i64
from tests.schedule_support import run_program

AVX2 = targets.parse("avx2", None, 2)
READ = (ops.MUL, ops.ADD, ops.DIV, ops.SUM_REDUCE, ops.VIEW, ops.GATHER, ops.SELECT)


# ---- random regions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """A node whose dimensions have names."""

    node: Node
    names: tuple[str, ...]


class Maker:
    """Draws a region: factors, joined by products, sums, views and gathers."""

    def __init__(self, draw: Callable[[Any], Any], dtype: DType) -> None:
        self.draw = draw
        self.dtype = dtype
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
        self.sizes = {name: draw(st.sampled_from([2, 3, 4])) for name in "abcde"}
        self.inputs: dict[str, np.ndarray[Any, Any]] = {}
        self.fresh = itertools.count()

    def array(self, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if self.dtype.is_integer:
            return self.rng.integers(-9, 10, shape).astype(self.dtype.numpy)
        return self.rng.standard_normal(shape).astype(self.dtype.numpy)

    def tensor(self, shape: tuple[int, ...]) -> Node:
        if self.draw(st.booleans()):
            return ir.constant(self.array(shape))
        name = f"x{next(self.fresh)}"
        self.inputs[name] = self.array(shape)
        return ir.input_(name, shape, self.dtype)

    def table(self, count: int, extent: int) -> Node:
        array = self.rng.integers(0, extent, count)
        if self.draw(st.booleans()):
            return ir.constant(array)
        name = f"t{next(self.fresh)}"
        self.inputs[name] = array
        return ir.input_(name, (count,), i64)

    def factor(self) -> Named:
        names = tuple(self.draw(st.permutations("abcde"))[: self.draw(st.integers(0, 3))])
        return Named(self.tensor(tuple(self.sizes[n] for n in names)), names)

    def name(self, extent: int) -> str:
        name = f"n{next(self.fresh)}"
        self.sizes[name] = extent
        return name

    def product(self, a: Named, b: Named) -> Named:
        names = tuple(dict.fromkeys(a.names + b.names))
        shape = tuple(self.sizes[n] for n in names)
        over = dict(zip(names, ir.axes(shape), strict=True))
        left, right = (ir.view(x.node, shape, [over[n] for n in x.names]) for x in (a, b))
        return Named(ir.elementwise(ops.MUL, left, right), names)

    def changed(self, x: Named) -> Named:
        """``x`` through a view, a gather or a sum along one of its axes."""
        if not x.names:
            return x
        k = self.draw(st.integers(0, len(x.names) - 1))
        extent = self.sizes[x.names[k]]
        names = list(x.names)
        match self.draw(
            st.sampled_from(["sum", "sum", "sum", "window", "pad", "gather", "flip", "join", "split", "concat"])
        ):
            case "sum":
                return Named(ir.reduce(ops.SUM_REDUCE, x.node, [k]), tuple(names[:k] + names[k + 1 :]))
            case "window":
                size = self.draw(st.integers(1, extent))
                stride = self.draw(st.integers(1, 2))
                node = movement.windows(x.node, k, size, stride)
                names[k] = self.name(int(node.shape[k]))
                return Named(node, (*names, self.name(size)))
            case "pad":
                amounts = [0] * len(names)
                amounts[k] = 1
                names[k] = self.name(extent + 2)
                return Named(movement.pad(x.node, amounts, amounts), tuple(names))
            case "gather":
                count = self.draw(st.integers(1, 5))
                names[k] = self.name(count)
                return Named(ir.gather(x.node, self.table(count, extent), k), tuple(names))
            case "concat":
                more = self.tensor(tuple(self.sizes[n] for n in names))
                names[k] = self.name(2 * extent)
                return Named(movement.concatenate([x.node, more], k), tuple(names))
            case "flip":
                names[k] = self.name(extent)
                return Named(movement.flip(x.node, [k]), tuple(names))
            case "join" if k + 1 < len(names):
                size = extent * self.sizes[names[k + 1]]
                shape = [self.sizes[n] for n in names]
                names[k : k + 2] = [self.name(size)]
                shape[k : k + 2] = [size]
                return Named(movement.reshape(x.node, shape), tuple(names))
            case "split" if extent % 2 == 0 and extent > 2:
                shape = [self.sizes[n] for n in names]
                names[k : k + 1] = [self.name(extent // 2), self.name(2)]
                shape[k : k + 1] = [extent // 2, 2]
                return Named(movement.reshape(x.node, shape), tuple(names))
            case _:
                return x

    def region(self) -> Node:
        parts = [self.factor() for _ in range(self.draw(st.integers(2, 5)))]
        while len(parts) > 1:
            parts = [self.product(parts[0], parts[1]), *parts[2:]]
            for _ in range(self.draw(st.integers(0, 3))):
                parts[0] = self.changed(parts[0])
            parts = parts[1:] + parts[:1] if self.draw(st.booleans()) else parts
        if self.draw(st.booleans()):
            bias = Named(self.tensor(tuple(self.sizes[n] for n in parts[0].names)), parts[0].names)
            parts[0] = Named(ir.elementwise(ops.ADD, parts[0].node, bias.node), parts[0].names)
            parts[0] = self.product(parts[0], self.factor())
        for _ in range(self.draw(st.integers(1, 3))):
            parts[0] = self.changed(parts[0])
        return parts[0].node

    def branches(self) -> Node:
        """The sum of some branches that read one signal: products, scales, windows, one after the other."""
        n, c = (self.sizes[name] for name in "ab")
        x = self.tensor((n, c))
        parts = [self.branch(x, c) for _ in range(self.draw(st.integers(2, 5)))]
        while len(parts) > 1:
            parts = [*parts[2:], ir.elementwise(ops.ADD, parts[0], parts[1])]
        return parts[0]

    def branch(self, x: Node, c: int) -> Node:
        match self.draw(st.sampled_from(["product", "scale", "window", "itself", "two"])):
            case "product":
                return matmul(x, self.tensor((c, c)))
            case "scale":
                return x * movement.along(self.tensor((c,)), 1, x.shape)
            case "window":
                size = self.draw(st.sampled_from([1, 3]))
                found = movement.windows(movement.pad(x, [size // 2, 0], [size // 2, 0]), 0, size, 1)  # n, c, size
                shape = (x.shape[0], c, size, c)
                i = ir.axes(shape)
                w = ir.view(self.tensor((c, size, c)), shape, [i[1], i[2], i[3]])
                return ir.reduce(ops.SUM_REDUCE, ir.view(found, shape, [i[0], i[1], i[2]]) * w, [1, 2])
            case "two":
                return self.branch(self.branch(x, c), c)
            case _:
                return x


def forms(root: Node, price: Price) -> Node:
    """``root`` in the form that is cheapest at ``price``, worth it or not, within the law or not."""
    region = terms.read(root, lambda node: node.op in READ)
    found = cheapest_sum(region.terms, 1.0, root.dtype.itemsize, price)
    return write.written(region, found.paths)


PRICES = st.builds(Price, *[st.floats(1e-3, 1.0)] * 3)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_form_of_integers_is_the_same_to_the_bit(data: Any) -> None:
    maker = Maker(data.draw, i64)
    root = maker.region()
    if root.op not in READ:
        return
    (wanted,) = interp.run([root], maker.inputs).outputs
    (found,) = interp.run([forms(root, data.draw(PRICES))], maker.inputs).outputs
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_branches_of_one_signal_are_the_same_to_the_bit(data: Any) -> None:
    maker = Maker(data.draw, i64)
    root = maker.branches()
    if root.op not in READ:
        return
    (wanted,) = interp.run([root], maker.inputs).outputs
    (found,) = interp.run([forms(root, data.draw(PRICES))], maker.inputs).outputs
    np.testing.assert_array_equal(found, wanted)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_floats_stay_within_the_bound(data: Any) -> None:
    maker = Maker(data.draw, f32)
    root = maker.region()
    graph = Graph("g", tuple(n for n in traverse.topological([root]) if n.op is ops.INPUT), (("y", root),))
    found = stage.improved(graph, AVX2)
    (exact,) = interp.run(graph, maker.inputs, mode="float64").outputs
    magnitude = np.abs(magnitudes(root, maker.inputs))
    (result,) = interp.run(found, maker.inputs).outputs
    # One rounding for each product and each term of each sum, at most: far more than there are.
    roundings = sum(n.inputs[0].rank * 8 if n.op is ops.SUM_REDUCE else 1 for n in traverse.topological([root]))
    assert (np.abs(result - exact) <= roundings * np.finfo(np.float32).eps * magnitude).all()


def magnitudes(root: Node, inputs: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """``root`` of the absolute values of all inputs and constants, in float64."""
    by = {
        n: ir.constant(np.asarray(np.abs(n.attr.array))) for n in traverse.topological([root]) if n.op is ops.CONSTANT
    }
    (node,) = traverse.substitute([root], {n: c for n, c in by.items() if n.dtype.is_float})
    absolute = {k: np.abs(x) if x.dtype.kind == "f" else x for k, x in inputs.items()}
    return interp.run([node], absolute, mode="float64").outputs[0]


# ---- forms that are found ------------------------------------------------------------------------------------------


def x_(name: str, *shape: Any) -> Node:
    return ir.input_(name, shape, f32)


def weight(*shape: int, seed: int = 0) -> Node:
    return ir.constant(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def mean(x: Node, axis: int) -> Node:
    total = ir.reduce(ops.SUM_REDUCE, x, [axis])
    return total / float(x.shape[axis])


def pooled(x: Node) -> Node:
    """The mean of windows of 2 x 2."""
    found = movement.windows(movement.windows(x, 2, 2, 2), 3, 2, 2)
    return ir.reduce(ops.SUM_REDUCE, found, [4, 5]) * 0.25


def pointwise(x: Node, w: Node) -> Node:
    """A convolution by 1 x 1: channels last in the product, as the front ends have them."""
    moved = movement.permute(x, [0, 2, 3, 1])
    return movement.permute(linear(moved, w), [0, 3, 1, 2])


def doubled(x: Node) -> Node:
    """The nearest element, for an image of twice the size."""
    n, c, h, w = x.shape
    shape = (n, c, h * 2, w * 2)
    i = ir.axes(shape)
    return ir.view(x, shape, [i[0], i[1], sym.floordiv(i[2], 2), sym.floordiv(i[3], 2)])


def attention() -> Node:
    q, k, v = (x_(name, 2, 64, 16) for name in "qkv")
    return matmul(matmul(q, movement.transpose(k, 1, 2)), v)


def conv(x: Node, w: Node, padding: int, stride: int = 1) -> Node:
    return decompose.conv(x, w, pads_begin=[padding] * 2, pads_end=[padding] * 2, strides=[stride] * 2)


def normalised_attention() -> Node:
    """Weights that two read: the product with values, and the sum that they are divided by. Features are positive."""
    q, k, v = (x_(name, 2, 64, 16) for name in "qkv")
    weights = matmul(q * q + 1.0, movement.transpose(k * k + 1.0, 1, 2))
    total = ir.view(ir.reduce(ops.SUM_REDUCE, weights, [2]), weights.shape, ir.axes(weights.shape)[:2])
    return matmul(weights / total, v)


def two_layers(adjacency: Node, diagonal: bool = False) -> Node:
    """Two layers of a graph convolution by its formula: both read the adjacency with scales, or between matrices that
    have these on their diagonal."""
    scale = ir.binary(ops.MAX, ir.reduce(ops.SUM_REDUCE, adjacency, [1]), 0.0)
    rows, columns = (movement.along(scale, k, adjacency.shape) for k in range(2))
    i, j = (movement.along(ir.iota(64), k, adjacency.shape) for k in range(2))
    on_diagonal = ir.select(ir.binary(ops.EQUAL, i, j), rows, 0.0)
    normal = matmul(matmul(on_diagonal, adjacency), on_diagonal) if diagonal else rows * adjacency * columns
    hidden = matmul(matmul(normal, x_("x", 64, 8)), weight(8, 4))
    return matmul(matmul(normal, ir.binary(ops.MAX, hidden, 0.0)), weight(4, 4, seed=1))


def read_by_two(x: Node) -> Node:
    """Two layers of one signal, with a rectifier between them and their sum."""
    first, second = (ir.binary(ops.MAX, pointwise(x, weight(8, 16, seed=k)), 0.0) for k in range(2))
    return first + second


def along_channels(x: Node) -> Node:
    return movement.reshape(x, [1, *x.shape, 1, 1])


# Each with how many multiplications a run makes: as spelled, and at most in the form that is found.
FORMS: dict[str, tuple[Callable[[], Node], int, int]] = {
    "linear attention": (attention, 2 * 2 * 64 * 64 * 16, 2 * 2 * 64 * 16 * 16),
    "chain": (lambda: matmul(matmul(x_("x", 64, 8), x_("y", 8, 64)), x_("z", 64, 1)), 64 * 64 * 9, 64 * 8 * 2),
    "constants": (lambda: linear(linear(x_("x", 32, 16), weight(64, 16)), weight(16, 64)), 32 * 64 * 32, 32 * 16 * 16),
    "two linear layers": (
        lambda: linear(linear(x_("x", 32, 16), weight(64, 16), weight(64)), weight(16, 64), weight(16)),
        32 * 64 * 32, 32 * 16 * 16,
    ),
    "mean of a linear layer": (
        lambda: mean(linear(x_("x", 2, 50, 64), weight(32, 64), weight(32)), 1), 2 * 50 * 64 * 32, 2 * 64 * 32 + 64,
    ),
    "pooling after channels": (
        lambda: pooled(pointwise(x_("x", 1, 16, 8, 8), weight(8, 16))), 64 * 16 * 8 + 128, 16 * 16 * 8,
    ),
    "pooling before channels": (
        lambda: pointwise(pooled(x_("x", 1, 256, 28, 28)), weight(128, 256)), 196 * 256 * 129, 196 * 256 * 129,
    ),
    "channels after doubling": (
        lambda: pointwise(doubled(x_("x", 1, 16, 8, 8)), weight(8, 16)), 256 * 16 * 8, 64 * 16 * 8,
    ),
    "concatenation": (
        lambda: pointwise(movement.concatenate([doubled(x_(name, 1, 4, 8, 8)) for name in "xy"], 1), weight(8, 8)),
        256 * 8 * 8, 2 * 64 * 4 * 8,
    ),
    "two linear layers of one input": (
        lambda: linear(x_("x", 32, 64), weight(48, 64), weight(48)) + linear(x_("x", 32, 64), weight(48, 64, seed=1)),
        2 * 32 * 64 * 48, 32 * 64 * 48,
    ),
    "low-rank update": (
        lambda: linear(x_("x", 32, 64), weight(64, 64))
        + linear(linear(x_("x", 32, 64), weight(4, 64)), weight(64, 4)) * 0.5,
        32 * 64 * 72 + 32 * 64, 32 * 64 * 64,
    ),
    "low-rank update of weights that are not known": (
        lambda: linear(x_("x", 8, 64), x_("w", 64, 64))
        + linear(linear(x_("x", 8, 64), x_("a", 4, 64)), x_("b", 64, 4)),
        8 * 64 * 72, 8 * 64 * 72,
    ),
    "branches over one window": (
        lambda: conv(x_("x", 1, 8, 16, 16), weight(8, 8, 3, 3), padding=1) * along_channels(weight(8))
        + conv(x_("x", 1, 8, 16, 16), weight(8, 8, 1, 1), padding=0) * along_channels(weight(8, seed=1))
        + x_("x", 1, 8, 16, 16) * along_channels(weight(8, seed=2)),
        256 * 8 * 83, 256 * 8 * 72,
    ),
    "branches over windows of two sizes": (
        lambda: conv(x_("x", 1, 8, 16, 16), weight(8, 8, 1, 1), padding=0)
        + conv(x_("x", 1, 8, 16, 16), weight(8, 8, 1, 1, seed=1), padding=0)
        + conv(x_("x", 1, 8, 16, 16), weight(8, 8, 3, 3), padding=1),
        256 * 8 * 88, 256 * 8 * 72,
    ),
    "branches over one window, every second": (
        lambda: conv(x_("x", 1, 8, 16, 16), weight(8, 8, 3, 3), padding=1, stride=2)
        + conv(x_("x", 1, 8, 16, 16), weight(8, 8, 1, 1), padding=0, stride=2) * along_channels(weight(8)),
        64 * 8 * 81, 64 * 8 * 72,
    ),
    "rows of a table": (
        lambda: linear(ir.gather(weight(10, 32), ir.input_("rows", (50,), i64), 0), weight(16, 32)), 50 * 16 * 32, 0,
    ),
    "diagonal between": (
        lambda: matmul(x_("x", 32, 64) * weight(64), weight(64, 48, seed=1)), 32 * 64 * 49, 32 * 64 * 49,
    ),
}  # fmt: skip


def multiplications(root: Node) -> int:
    return sum(int(n.size) for n in traverse.topological([root]) if n.op is ops.MUL)


def as_graph(root: Node) -> Graph:
    return Graph("g", tuple(n for n in traverse.topological([root]) if n.op is ops.INPUT), (("y", root),))


def drawn(graph: Graph, scale: float = 1.0, shift: float = 0.0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {
        n.attr.name: rng.integers(0, 10, n.shape)
        if n.dtype.is_integer
        else (rng.standard_normal(n.shape) * scale + shift).astype(np.float32)
        for n in graph.inputs
    }


@pytest.mark.parametrize("name", FORMS)
def test_the_form_that_is_found(name: str) -> None:
    made, before, after = FORMS[name]
    graph = simplify(as_graph(made()))
    found = stage.improved(graph, AVX2)
    assert multiplications(graph.results[0]) >= before
    assert multiplications(found.results[0]) <= after
    inputs = drawn(graph)
    (wanted,) = interp.run(graph, inputs, mode="float64").outputs
    (result,) = interp.run(found, inputs).outputs
    assert np.abs(result - wanted).max() < 1e-6 * np.abs(wanted).max()
    assert (found is graph) == (not found.approximations)


# What several read, each with how many multiplications there are at most if each computes it again.
READ_TWICE: dict[str, tuple[Callable[[], Node], int]] = {
    "attention whose weights are normalised": (normalised_attention, 2 * 2 * 64 * 16 * 16 + 3 * 2 * 64 * 16),
    "adjacency with scales, in two layers": (
        lambda: two_layers(x_("a", 64, 64)), 2 * 64 * 64 * 4 + 4 * 64 * 4 + 64 * 8 * 4 + 64 * 4 * 4,
    ),
    "adjacency between diagonal matrices, in two layers": (
        lambda: two_layers(x_("a", 64, 64), diagonal=True), 2 * 64 * 64 * 4 + 4 * 64 * 4 + 64 * 8 * 4 + 64 * 4 * 4,
    ),
    "pooled, and read by two layers": (
        lambda: read_by_two(pooled(pointwise(x_("x", 1, 16, 8, 8), weight(16, 16)))), 16 * 16 * (16 + 8 + 8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ_TWICE)
def test_what_two_regions_read_may_be_computed_by_each(name: str) -> None:
    made, most = READ_TWICE[name]
    graph = simplify(as_graph(made()))
    found = stage.improved(graph, AVX2)
    assert multiplications(found.results[0]) <= most < multiplications(graph.results[0])
    inputs = drawn(graph)
    (wanted,) = interp.run(graph, inputs, mode="float64").outputs
    (result,) = interp.run(found, inputs).outputs
    assert np.abs(result - wanted).max() < 1e-6 * np.abs(wanted).max()
    forms = {place.region: place.form for place in found.approximations}
    assert stage.improved(graph, replace(AVX2, forms=forms)).results == found.results


def test_whole_path(tmp_path: Any) -> None:
    """A compiled library computes the form that was found, and its manifest says so."""
    graph = as_graph(attention())
    program = compile_graph(graph, AVX2)
    (noted,) = program.metadata["approximations"]
    assert noted["option"] == "algebra" and "(q * sum[" in noted["what"]
    inputs = drawn(graph)
    (wanted,) = interp.run(graph, inputs, mode="float64").outputs
    (found,) = run_program(program, inputs).values()
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    assert not compile_graph(graph, replace(AVX2, algebra=targets.EXACT)).metadata["approximations"]


# ---- the law -------------------------------------------------------------------------------------------------------


def wide(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-15, 15, shape)


def cancelling(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Numbers of which each is nearly the opposite of the one before it, along every axis."""
    signs = np.array([1, -1])[np.indices(shape).sum(0) % 2]
    return signs + rng.standard_normal(shape) * 1e-4


KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray[Any, Any]]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "large mean": lambda rng, shape: rng.standard_normal(shape) + 1e4,
    "wide range": wide,
    "cancelling": cancelling,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMS)
def test_the_error_is_within_the_law(name: str, kind: str) -> None:
    """In units of ``eps`` times the sum of absolute values: at most twice that of the form as spelled, or half the root
    of the number of terms, which roundings of a sum one after another add up to. Where the absolute values have an
    infinite sum, the order alone decides whether a sum is finite."""
    graph = simplify(as_graph(FORMS[name][0]()))
    rng = np.random.default_rng(1)
    inputs = {n: x if x.dtype.kind == "i" else KINDS[kind](rng, x.shape).astype("f") for n, x in drawn(graph).items()}
    (exact,) = interp.run(graph, inputs, mode="float64").outputs
    magnitude = np.abs(magnitudes(graph.results[0], inputs))
    with np.errstate(over="ignore", invalid="ignore"):
        found = stage.improved(graph, AVX2)
        spelled, derived = (interp.run(g, inputs).outputs[0] for g in (graph, found))
        unit = np.finfo(np.float32).eps * magnitude
        counts = np.isfinite(spelled) & (magnitude > 0) & (magnitude < np.finfo(np.float32).max)
        errors = [(np.abs(y - exact) / unit)[counts].max() for y in (spelled, derived)]
    sums = [n for n in traverse.topological(found.roots) if n.op is ops.SUM_REDUCE]
    terms = sum(int(n.inputs[0].size) // int(n.size) for n in sums)
    assert counts.any() and errors[1] <= max(2 * errors[0], math.sqrt(terms) / 2)


def laplacian(n: int) -> np.ndarray[Any, Any]:
    return (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1) - np.eye(n, k=n - 1) - np.eye(n, k=1 - n)).astype("f")


CANCELLING = {
    "centring": np.eye(32, dtype=np.float32) - np.float32(1 / 32),
    "laplacian": laplacian(32),
    "differences": (np.eye(31, 32) - np.eye(31, 32, k=1)).astype(np.float32),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_what_cancels_is_summed_as_spelled(name: str) -> None:
    """With a large mean, every digit would be lost: it goes at first in the form as spelled."""
    cancelling = ir.constant(CANCELLING[name])
    x, v = x_("x", 32, 32), x_("v", 32, 1)
    graph = as_graph(matmul(matmul(cancelling, x), v))
    found = stage.improved(graph, AVX2)
    inputs = drawn(graph, scale=1e-2, shift=1e4)
    (exact,) = interp.run(graph, inputs, mode="float64").outputs
    spelled, derived = (np.abs(interp.run(g, inputs).outputs[0] - exact).max() for g in (graph, found))
    assert derived <= 2 * spelled
    other = as_graph(matmul(matmul(weight(*CANCELLING[name].shape), x), v))
    assert stage.improved(other, AVX2) is not other  # the shapes alone would ask for another order


def test_differences_are_not_multiplied_out() -> None:
    """``(x - m) w`` is not ``x w - m w``."""
    x = x_("x", 64, 32)
    centred = x - movement.along(mean(x, 1), 0, x.shape)
    graph = as_graph(matmul(matmul(centred, weight(32, 64)), weight(64, 4, seed=1)))
    found = stage.improved(graph, AVX2)
    sums = [n for n in traverse.topological(found.roots) if n.op is ops.ADD]
    assert len(sums) == 1 and any(x in n.inputs for n in sums)


def test_features_that_nearly_cancel_are_not_multiplied_out() -> None:
    """``(q + 1) k`` is not ``q k + k``, though what is around it sums: the features of linear attention are such."""
    q, k, v = (x_(name, 64, 16) for name in "qkv")
    graph = as_graph(matmul(matmul(q + 1.0, movement.transpose(k + 1.0, 0, 1)), v))
    found = stage.improved(graph, AVX2)
    assert found.approximations
    inputs = drawn(graph, scale=1e-4, shift=-1.0)
    (exact,) = interp.run(graph, inputs, mode="float64").outputs
    spelled, derived = (np.abs(interp.run(g, inputs).outputs[0] - exact).max() for g in (graph, found))
    assert derived <= 2 * spelled


def test_a_pass_over_rows_is_not_parted() -> None:
    """Sums along the rows of one tensor are computed in one pass, whatever else they are multiplied by."""
    x = x_("x", 64, 256)
    total, squares = (ir.reduce(ops.SUM_REDUCE, y, [1]) for y in (x, x * x))
    graph = as_graph(ir.reduce(ops.MAX_REDUCE, x, [1]) * total + squares)
    assert stage.improved(graph, AVX2) is graph


def test_no_value_between_overflows() -> None:
    """``(x v) w`` is finite for small x, ``v w`` is not; with smaller numbers, v and w become one constant."""

    def of(size: float) -> Graph:
        v, w = (ir.constant(np.full((16, 16), size, np.float32)) for _ in range(2))
        return as_graph(matmul(matmul(x_("x", 64, 16), v), w))

    for size in (1e25, 1e-30):
        graph = of(size)
        assert stage.improved(graph, AVX2) is graph
    assert stage.improved(of(1e3), AVX2).approximations


def test_a_rounding_by_a_large_number_stays() -> None:
    """``(y + c) - c`` rounds y to an integer."""
    y = matmul(matmul(x_("x", 64, 16), weight(16, 64)), weight(64, 8))
    graph = as_graph((y + 1.5 * 2**23) + -1.5 * 2**23)
    found = stage.improved(graph, AVX2)
    (result,) = interp.run(found, drawn(graph)).outputs
    assert found.approximations and np.array_equal(result, np.round(result)) and result.any()


def test_two_readers_share_what_they_read() -> None:
    """What has another reader is computed anyway."""
    h = matmul(x_("x", 64, 64), x_("w", 64, 64))
    graph = Graph("g", (x_("x", 64, 64), x_("w", 64, 64), x_("v", 64, 1)), (("h", h), ("y", matmul(h, x_("v", 64, 1)))))
    assert stage.improved(graph, AVX2) is graph


def test_a_constant_of_a_symbolic_size_is_no_constant() -> None:
    """The counts of a mean over pairs of rows, the last of which may be alone."""
    n = sym.expr(sym.Var("n", 1, 600))
    pairs = sym.ceildiv(n, 2)
    x = ir.input_("x", (n, 16), f32)
    i, j, k = ir.axes((pairs, 2, 16))
    inside = (n - 1 - 2 * i - j,)
    rows = ir.reduce(ops.SUM_REDUCE, ir.view(x, (pairs, 2, 16), (2 * i + j, k), inside, bytes(4)), [1])
    counts = ir.reduce(ops.SUM_REDUCE, ir.view(ir.constant(1.0, f32), (pairs, 2, 16), (), inside, bytes(4)), [1])
    y = matmul(matmul(ir.elementwise(ops.DIV, rows, counts), weight(16, 64)), weight(64, 8))
    graph = Graph("g", (x,), (("y", y),), tuple(sym.variables(n)))
    found = stage.improved(graph, AVX2)
    assert found.approximations
    for size in (1, 2, 7):
        arrays = {"x": np.random.default_rng(size).standard_normal((size, 16)).astype(np.float32)}
        (exact,) = interp.run(graph, arrays, mode="float64").outputs
        (result,) = interp.run(found, arrays).outputs
        roundings = 2 + 1 + 16 + 64  # sums of two rows, of 16 and of 64 products, and the division
        assert (np.abs(result - exact) <= roundings * np.finfo(np.float32).eps * magnitudes(y, arrays)).all()


# ---- derivations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_a_derivation_is_replayed_without_a_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = simplify(as_graph(FORMS[name][0]()))
    found = stage.improved(graph, AVX2)
    forms = {made.region: made.form for made in found.approximations}

    def search(*arguments: Any) -> Any:
        raise AssertionError("a search")

    monkeypatch.setattr(stage, "cheapest_form", search)
    again = stage.improved(graph, replace(AVX2, forms=forms))
    assert again.results == found.results  # nodes are interned: the same primitives, and constants of the same bits
    assert again.approximations == found.approximations
    assert stage.improved(graph, replace(AVX2, forms={})) is graph


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_form_is_read_from_its_text(data: Any) -> None:
    maker = Maker(data.draw, i64)
    root = maker.branches() if data.draw(st.booleans()) else maker.region()
    if root.op not in READ:
        return
    price = data.draw(PRICES)
    region = terms.read(root, lambda node: node.op in READ)
    paths = cheapest_sum(region.terms, 1.0, root.dtype.itemsize, price).paths
    again = form.read(form.written(paths), region, price)
    assert write.written(region, again) is write.written(region, paths)


@pytest.mark.parametrize("text", ["", "(f0 * f9)", "(f0 *", "f0 f1", "(f0 * f1))", "sum(f0", "(f0 *1 f1)", "?"])
def test_a_text_that_is_no_form_is_refused(text: str) -> None:
    x = x_("x", 4, 8)
    region = terms.read(matmul(x, x_("w", 8, 2)), lambda node: node.op in READ)
    with pytest.raises(InputError, match="is no form of the region with f0, f1; expected a form that a manifest"):
        form.read(text, region, Price(1, 1, 1))


@pytest.mark.parametrize("joined", [True, False])
def test_no_region_reads_what_it_shares_through_a_concatenation(joined: bool) -> None:
    """Two sums share a factor; a select that puts them side by side stores both, and one with zeros is a mask."""
    x, y, z, w = (ir.input_(name, (8, 8), f32) for name in "xyzw")
    shared = matmul(x, y)
    left, right = matmul(shared, z), matmul(shared, w)
    here = ir.input_("here", (8, 8), bool_)
    root = ir.select(here, left, right if joined else 0.0)
    root = root if joined else root + ir.select(here, 0.0, right)
    nodes = traverse.topological([root])[::-1]
    read = readers([root])
    uses: dict[Node, int] = {}
    for node in nodes:
        uses[node] = sum(uses.get(x, 1) if x is not None and x.op in FREE else 1 for x in read.get(node, ()))
    ends = Shared(nodes, read, uses).ends(shared)
    assert set(ends) == ({left, right} if joined else {root})
