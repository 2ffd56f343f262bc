"""Regions in other forms, against the forms as spelled: in integers to the bit, in floats within the bound."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from luminal.core import interp, ir, movement, ops, traverse
from luminal.core import target as targets
from luminal.core.algebra import stage, terms, write
from luminal.core.algebra.cost import Price
from luminal.core.algebra.paths import cheapest
from luminal.core.ir import Graph, Node
from luminal.core.types import DType, f32, i64

AVX2 = targets.parse("avx2", None, 2)
READ = (ops.MUL, ops.ADD, ops.DIV, ops.SUM_REDUCE, ops.VIEW, ops.GATHER)


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
        match self.draw(st.sampled_from(["sum", "sum", "sum", "window", "pad", "gather", "flip", "join", "split"])):
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


def forms(root: Node, price: Price) -> Node:
    """``root`` in the form that is cheapest at ``price``, worth it or not, within the law or not."""
    region = terms.read(root, lambda node: node.op in READ)
    return write.written(region, [cheapest(term, root.dtype.itemsize, price) for term in region.terms])


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
def test_floats_stay_within_the_bound(data: Any) -> None:
    maker = Maker(data.draw, f32)
    root = maker.region()
    graph = Graph("g", tuple(n for n in traverse.topological([root]) if n.op is ops.INPUT), (("y", root),))
    found, _ = stage.improved(graph, AVX2)
    (exact,) = interp.run(graph, maker.inputs, mode="float64").outputs
    magnitude = np.abs(magnitudes(root, maker.inputs))
    (result,) = interp.run(found, maker.inputs).outputs
    # One rounding for each product and each term of each sum, at most: far more than there are.
    roundings = sum(n.inputs[0].rank * 8 if n.op is ops.SUM_REDUCE else 1 for n in traverse.topological([root]))
    assert (np.abs(result - exact) <= roundings * np.finfo(np.float32).eps * magnitude).all()


def magnitudes(root: Node, inputs: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """``root`` of the absolute values of all inputs and constants, in float64."""
    by = {n: ir.constant(np.asarray(np.abs(n.attr.array))) for n in traverse.topological([root]) if n.op is ops.CONSTANT}
    (node,) = traverse.substitute([root], {n: c for n, c in by.items() if n.dtype.is_float})
    absolute = {k: np.abs(x) if x.dtype.kind == "f" else x for k, x in inputs.items()}
    return interp.run([node], absolute, mode="float64").outputs[0]
