"""The law on ranges: which quotients a form may have between, and which it may not."""

from __future__ import annotations

import numpy as np
import pytest

from luminal.core import interp, ir, movement, ops
from luminal.core import target as targets
from luminal.core.algebra import law, stage, terms
from luminal.core.algebra.cost import Price
from luminal.core.algebra.paths import Path, Search, leaf
from luminal.core.decompose.contraction import matmul
from luminal.core.ir import Graph, Node
from luminal.core.types import f32

ROWS, COLUMNS = 64, 256
READ = (ops.MUL, ops.DIV, ops.SUM_REDUCE, ops.VIEW)


def along(node: Node, axis: int) -> Node:
    shape = (ROWS, COLUMNS)
    return ir.view(node, shape, [ir.axes(shape)[axis]])


def quotient(least: float) -> Node:
    """``sum over j of x[i] * 1e-20 * v[j] / c[i]``, with ``c`` of ones, and one number ``least``."""
    x, v = ir.input_("x", (ROWS,), f32), ir.input_("v", (COLUMNS,), f32)
    divisors = np.ones(ROWS, np.float32)
    divisors[3] = least
    small = ir.constant(np.full((ROWS, COLUMNS), 1e-20, np.float32))
    product = along(x, 0) * small * along(v, 1)
    return ir.reduce(ops.SUM_REDUCE, ir.elementwise(ops.DIV, product, along(ir.constant(divisors), 0)), [1])


def first_divided(root: Node) -> tuple[list[Path], list[Node]]:
    """The path in which ``x`` is divided first, and the nodes as spelled."""
    region = terms.read(root, lambda node: node.op in READ)
    (term,) = region.terms
    leaves = [leaf(number, factor) for number, factor in enumerate(term.factors)]
    (by,) = (x for x in leaves if x.divides)
    (x,) = (x for x in leaves if x.axes == by.axes and not (x.constant or x.divides))
    path = next(Search(term, 4, Price(1.0, 1.0, 1.0), frozenset()).products(x, by))
    return [path], list(region.spelled)


@pytest.mark.parametrize(("least", "allowed"), [(1.0, True), (1e-3, True), (1e-30, False)])
def test_the_least_divisor_says_how_large_a_quotient_may_be(least: float, allowed: bool) -> None:
    """As spelled, 1e-20 comes before the division by 1e-30: the quotient alone would be infinite for x = 1e15."""
    assert law.Ranges(f32).allow(*first_divided(quotient(least))) == allowed


def test_a_divisor_that_is_data_does_not_keep_attention_from_another_order() -> None:
    """``((q k') / n) v``, n a number for each row, is ``(q (k' v)) / n``: the divisor counts on both sides."""
    q, k, v, n = (ir.input_(name, shape, f32) for name, shape in
                  (("q", (512, 16)), ("k", (512, 16)), ("v", (512, 16)), ("n", (512,))))  # fmt: skip
    scores = matmul(q, movement.transpose(k, 0, 1))
    mixed = matmul(ir.elementwise(ops.DIV, scores, movement.along(n, 0, scores.shape)), v)
    graph = Graph("g", (q, k, v, n), (("y", mixed),))
    found = stage.improved(graph, targets.AVX2)
    assert [note.what for note in found.approximations] and found.roots != graph.roots
    rng = np.random.default_rng(0)
    inputs = {x.attr.name: rng.uniform(0.5, 1.5, x.shape).astype(np.float32) for x in graph.inputs}
    (exact,) = interp.run(graph, inputs, mode="float64").outputs
    np.testing.assert_allclose(interp.run(found, inputs).outputs[0], exact, rtol=1e-5)
