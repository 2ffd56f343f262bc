"""The orders of growth that docs/growth.md states: elements that primitives compute, counted at several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from luminal.core import ir, ops, traverse, types
from luminal.core import symbolic as sym
from luminal.core.decompose import (
    activation,
    attention,
    contraction,
    cumulative,
    distance,
    distinct,
    factorisation,
    fourier,
    histogram,
    indexing,
    ngrams,
    normalize,
    pooling,
    random,
    recurrent,
    reduction,
    resample,
    sampling,
    scattering,
    selection,
    sorting,
    suppression,
    transposed,
)
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.frontends.onnx import importer
from tests import onnx_models

PAGE = Path(__file__).resolve().parent.parent / "docs" / "growth.md"


def work(roots: Sequence[Node]) -> float:
    """How many elements are computed: the terms of sums, the rounds of loops, the comparisons of sorts."""
    total = 0.0
    done: set[tuple[Node, ...]] = set()
    for node in traverse.topological(roots):
        if node.op.kind in (Kind.SOURCE, Kind.VIEW):
            continue
        size = float(sym.upper(node.size) or 0)
        if node.op.kind is Kind.STRUCTURED:
            body = node.attr.bodies[-1]
            if body not in done:  # all results of one loop
                done.add(body)
                total += work(body) * int(str(node.inputs[len(node.attr.carries)].shape[0]))
        elif node.op.kind is Kind.REDUCE:
            total += float(sym.upper(node.inputs[0].size) or 0)
        elif node.op is ops.SORT:
            row = int(str(node.inputs[0].shape[-1]))
            kept = int(str(node.shape[-1]))
            total += float(sym.upper(node.inputs[0].size) or 0) * max(1.0, math.log2(min(row, kept) + 1))
        elif node.op is ops.SCATTER:
            total += size + float(sym.upper(node.inputs[2].size) or 0)
        else:
            total += size
    return total


def x(*shape: int, dtype: types.DType = types.f32, name: str = "x") -> Node:
    return ir.input_(name, shape, dtype)


def ids(*shape: int) -> Node:
    return x(*shape, dtype=types.i64, name="ids")


def image(n: int) -> Node:
    return x(1, 4, n, 8)


def weight(*shape: int) -> Node:
    return ir.constant(np.ones(shape, np.float32))


def grams(n: int) -> Node:
    return ngrams.count(ids(1, n), {(1,): 0, (1, 2): 1, (3, 1): 2}, 3, (1, 2), 1)


def leaves(n: int) -> Node:
    """Of trees of one node each, with a target of its own."""
    numbers = {"nodes_splits": np.zeros(n), "leaf_weights": np.ones(2 * n), "nodes_modes": np.zeros(n, np.uint8)}
    trees = range(n)
    proto, _ = onnx_models.one(
        "TreeEnsemble", np.zeros((1, 3)), domain="ai.onnx.ml", version=5, n_targets=n, tree_roots=[*trees],
        **{name: onnx.numpy_helper.from_array(values) for name, values in numbers.items()},
        nodes_featureids=[0] * n, nodes_trueleafs=[1] * n, nodes_falseleafs=[1] * n, nodes_truenodeids=[*trees],
        nodes_falsenodeids=[k + n for k in trees], leaf_targetids=[*trees, *trees],
    )  # fmt: skip
    return importer.load(proto).outputs[0][1]


def lstm(n: int) -> Node:
    weights = recurrent.Weights("iofg", weight(16, 3), weight(16, 4), weight(16), weight(16))
    state = ir.constant(np.zeros((2, 4), np.float32))
    return recurrent.lstm(x(n, 2, 3), weights, (state, state), recurrent.Course())[0]


def boxes(n: int) -> list[Node]:
    some = ir.constant(9, types.i64), ir.constant(0.5, types.f32), None
    return list(suppression.suppressed(x(1, n, 4), x(1, 2, n, name="scores"), *some))


def resized(n: int) -> Node:
    return resample.resample(image(n), [resample.Resampling(2, 2 * n)], resample.Method("linear"))


def attended(n: int) -> Node:
    return attention.scaled_dot_product_attention(*(x(1, 2, n, 16, name=name) for name in "qkv"))


def factored(n: int) -> list[Node]:
    matrix = x(1, n, n)
    solution = factorisation.solve_triangular(matrix, x(1, n, n, name="b"), upper=True)
    return [*factorisation.lu(matrix), *factorisation.cholesky(matrix), *factorisation.householder(matrix), solution]


# In the order of the page's rows.
BUILD: list[Callable[[int], Node | Sequence[Node]]] = [
    lambda n: activation.gelu(x(n) * 2.0),
    lambda n: [reduction.softmax(x(n), 0), normalize.layer_norm(x(n), [-1])],
    lambda n: [cumulative.cumsum(x(n), 0), *cumulative.cummax(x(n), 0), cumulative.logcumsumexp(x(n), 0)],
    lambda n: cumulative.associative(lambda a, b: [a[0] * b[0] + b[0]], [x(n)]),
    lambda n: [*sorting.sort(x(n)), *sorting.median(x(n)), *sorting.mode(x(n))],
    lambda n: sorting.topk(x(n), 8),
    lambda n: sorting.searchsorted(x(n), x(n, name="keys")),
    lambda n: distinct.distinct(x(n)).number,
    lambda n: indexing.embedding(x(1000, 16), ids(n)),
    lambda n: scattering.put(x(4, 16), ids(n), x(n, 16, name="new"), 0, "add"),
    lambda n: selection.nonzero(x(n)),
    lambda n: histogram.histogram(x(n), x(101, name="borders")),
    lambda n: random.categories(random.Random().words((n,)), x(n)),
    leaves,
    grams,
    lambda n: contraction.conv(image(n), weight(6, 4, 3, 3)),
    lambda n: transposed.conv_transpose(image(n), weight(4, 6, 3, 3), None, [2, 2], [0, 0], [2 * n + 1, 17], [1, 1]),
    lambda n: [pooling.max_pool(image(n), [3, 3]), pooling.avg_pool(image(n), [3, 3])],
    resized,
    lambda n: sampling.grid_sample(x(1, 2, 9, 9), x(1, n, 4, 2, name="grid")),
    (FOURIER := lambda n: fourier.fft(x(n, 2), [0])),
    lstm,
    lambda n: contraction.matmul(x(n, n), x(n, n, name="other")),
    lambda n: factorisation.det(x(n, n)),
    factored,
    attended,
    lambda n: distance.cdist(x(n, 5), x(n, 5, name="other")),
    boxes,
]
ORDERS: dict[str, Callable[[int], float]] = {
    "n": float,
    "n log n": lambda n: n * math.log2(n),
    "n^2": lambda n: float(n) ** 2,
    "n^3": lambda n: float(n) ** 3,
}


def rows() -> list[tuple[str, str]]:
    """The operators and the order of each row of the page."""
    lines = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")][2:]
    return [(cells[1].strip(), cells[4].strip()) for cells in lines]


@pytest.mark.parametrize(
    ("order", "build"),
    [pytest.param(order, build, id=name) for (name, order), build in zip(rows(), BUILD, strict=True)],
)
def test_the_page_says_how_it_grows(order: str, build: Callable[[int], Node | Sequence[Node]]) -> None:
    # Radices grow up to 64, so that the order of a transform shows from 64 * 64 elements on.
    large = (32, 64) if order == "n^3" else (1 << 12, 1 << 18) if build is FOURIER else (256, 1024)
    counts: list[float] = []
    for n in large:
        with ir.measuring({}):
            built = build(n)
        counts.append(work([built] if isinstance(built, Node) else list(built)))
    stated = ORDERS[order](large[1]) / ORDERS[order](large[0])
    assert 0.6 * stated < counts[1] / counts[0] < 1.4 * stated, (counts, stated)


def test_work_is_counted() -> None:
    """Of what is known: a product, a loop, and what a value of every size costs."""
    assert work([contraction.matmul(x(3, 4), x(4, 5, name="y"))]) == 3 * 4 * 5 * 2
    assert work([ir.sort(ids(2, 7))]) == 14 * 3
