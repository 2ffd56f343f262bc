"""Forms of random regions over a finite field, where every one must give the same: products, sums and quotients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from luminal.core import interp, ir, ops, traverse
from luminal.core import target as targets
from luminal.core.algebra.cost import Price
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.types import f32, i64
from tests.schedule_support import run_program
from tests.test_algebra import PRICES, READ, Maker, forms

Array = np.ndarray[Any, Any]
P = (1 << 31) - 1  # a prime: products of two residues fit 63 bits


def residues(values: Array) -> Array:
    """Whole numbers as elements of the field."""
    assert (values == np.rint(values)).all(), "a constant that is no whole number"
    return values.astype(np.int64) % P


def inverse(values: Array) -> Array:
    result, square, exponent = np.ones_like(values), values, P - 2
    while exponent:
        if exponent & 1:
            result = result * square % P
        square, exponent = square * square % P, exponent >> 1
    return result


def evaluate(root: Node, inputs: Mapping[str, Array]) -> Array:
    """``root`` over the field; ``inputs`` are residues, or indices of look-ups."""
    found: dict[Node, Array] = {}
    for node in traverse.topological([root]):
        x = [found[operand] for operand in node.inputs]
        match node.op:
            case ops.INPUT:
                found[node] = inputs[node.attr.name]
            case ops.CONSTANT:
                array = np.asarray(node.attr.array)
                found[node] = array if node.dtype is i64 else residues(array)
            case ops.ADD:
                found[node] = (x[0] + x[1]) % P
            case ops.MUL:
                found[node] = x[0] * x[1] % P
            case ops.DIV:
                found[node] = x[0] * inverse(x[1]) % P
            case ops.SUM_REDUCE:
                total = x[0]
                for axis in sorted(node.attr.axes, reverse=True):
                    total = total.sum(axis) % P
                found[node] = total
            case ops.CAST if node.inputs[0].dtype is i64:  # the length of an axis, as a factor
                found[node] = residues(x[0])
            case _:  # what moves elements alone
                assert node.op in (ops.VIEW, ops.GATHER, ops.SELECT, ops.IOTA, ops.LESS_THAN, ops.CONTIGUOUS), node.op
                found[node] = moved(node, x)
    return found[root]


def moved(node: Node, x: list[Array]) -> Array:
    """A node that copies elements, run on residues."""
    given_ = [ir.input_(f"i{k}", array.shape, of.dtype if of.dtype.is_bool else i64)
              for k, (array, of) in enumerate(zip(x, node.inputs, strict=True))]  # fmt: skip
    attr = node.attr
    if isinstance(attr, ops.View) and attr.fill:
        assert not any(attr.fill), "a fill other than zero"
        attr = ops.View(attr.index, attr.valid, bytes(i64.itemsize))
    if node.op is ops.VIEW:
        copy = ir.view(given_[0], node.shape, attr.index, attr.valid, attr.fill)
    elif node.op is ops.GATHER:
        copy = ir.gather(given_[0], given_[1], attr.axis)
    else:
        copy = ir.elementwise(node.op, *given_, attr=attr) if node.inputs else node
    return np.asarray(interp.evaluate([copy], {f"i{k}": array for k, array in enumerate(x)})[0])


class Whole(Maker):
    """A region of floats whose constants are small whole numbers, so that what is computed of these is exact."""

    def array(self, shape: tuple[int, ...]) -> Array:
        return self.rng.integers(-3, 4, shape).astype(self.dtype.numpy)

    def product(self, a: Any, b: Any) -> Any:
        found = super().product(a, b)
        node = found.node
        divisor = node.inputs[1] if node.op is ops.MUL else None
        if divisor is not None and not _constants(divisor) and self.draw(st.booleans()):
            return type(found)(ir.elementwise(ops.DIV, *node.inputs), found.names)
        return found


def _constants(node: Node) -> bool:
    return any(n.op is ops.CONSTANT for n in traverse.topological([node]))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_form_is_the_same_over_a_finite_field(data: Any) -> None:
    maker = Whole(data.draw, f32)
    root = maker.region()
    assume(root.op in READ)
    other = forms(root, data.draw(PRICES))
    rng = np.random.default_rng(0)
    inputs = {
        name: array if name.startswith("t") else rng.integers(1, P, array.shape) for name, array in maker.inputs.items()
    }
    np.testing.assert_array_equal(evaluate(other, inputs), evaluate(root, inputs))


def test_an_axis_of_a_divisor_alone_is_summed_after_the_division() -> None:
    """``sum over j of x[i] / y[j] * z[i]``: neither x nor y can be summed before."""
    x, y, z = (ir.input_(name, (size,), f32) for name, size in (("x", 6), ("y", 4), ("z", 6)))
    shape = (6, 4)
    i, j = ir.axes(shape)
    across, down, again = (ir.view(node, shape, [axis]) for node, axis in ((x, i), (y, j), (z, i)))
    root = ir.reduce(ops.SUM_REDUCE, ir.elementwise(ops.DIV, across, down) * again, [1])
    rng = np.random.default_rng(0)
    inputs = {"x": rng.integers(1, P, 6), "y": rng.integers(1, P, 4), "z": rng.integers(1, P, 6)}
    wanted = inputs["x"] * inputs["z"] % P * (inverse(inputs["y"]).sum() % P) % P
    for found in (root, forms(root, Price(1.0, 1.0, 1.0))):
        np.testing.assert_array_equal(evaluate(found, inputs), wanted)
    graph = Graph("g", (x, y, z), (("r", root),))
    values = {name: rng.uniform(1, 2, array.shape).astype(np.float32) for name, array in inputs.items()}
    (exact,) = interp.run(graph, values, mode="float64").outputs
    for target in (targets.AVX2, targets.GPUS["cuda:sm_90"]):
        np.testing.assert_allclose(run_program(compile_graph(graph, target), values)["r"], exact, rtol=1e-6)


def test_a_form_with_another_sum_is_told() -> None:
    x, w = ir.input_("x", (3, 4), f32), ir.input_("w", (3, 4), f32)
    rng = np.random.default_rng(0)
    inputs = {name: rng.integers(1, P, (3, 4)) for name in "xw"}
    product = ir.reduce(ops.SUM_REDUCE, x * w, [1])
    apart = ir.reduce(ops.SUM_REDUCE, x, [1]) * ir.reduce(ops.SUM_REDUCE, w, [1])
    assert (evaluate(product, inputs) != evaluate(apart, inputs)).all()
    same = ir.reduce(ops.SUM_REDUCE, w * x * 2.0, [1])
    np.testing.assert_array_equal(evaluate(same, inputs), evaluate(product, inputs) * 2 % P)


@pytest.mark.parametrize("value", [1, 2, 3, P - 1])
def test_the_field_has_inverses(value: int) -> None:
    one = inverse(np.array([value])) * value % P
    assert one.tolist() == [1] and math.gcd(value, P) == 1
