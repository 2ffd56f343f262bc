"""Linear models and support vectors (domain ai.onnx.ml)."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.decompose import contraction, coupling, indexing, math, reduction
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant, select
from luminal.core.movement import slice_, unsqueeze
from luminal.core.symbolic import Int
from luminal.core.types import f32
from luminal.frontends.onnx import scores
from luminal.frontends.onnx.registry import Call, operator
from luminal.frontends.onnx.scores import DOMAIN
from luminal.frontends.onnx.tensors import Array


def _matrix(call: Call, name: str, rows: int, columns: Int) -> Array:
    """The attribute ``name`` as ``[rows, columns]``, float32. Raises ModelError where it has another size."""
    values = np.array(call.numbers(name) or [], np.float32)
    if not isinstance(columns, int):
        raise ModelError(f"expected a known number of features, found {columns}: fix it with {sym.fixing(columns)}")
    if values.size != rows * columns:
        raise ModelError(f"attribute {name!r}: expected {rows} x {columns} numbers, found {values.size}")
    return values.reshape(rows, columns)


def _product(call: Call, x: Node, targets: int) -> Node:
    """``x [N, F]`` times the coefficients of each target, and its intercept: ``[N, targets]``."""
    weight = constant(_matrix(call, "coefficients", targets, x.shape[1]))
    intercepts = call.numbers("intercepts")
    if intercepts and len(intercepts) != targets:
        raise ModelError(f"attribute 'intercepts': expected {targets} numbers, found {len(intercepts)}")
    return contraction.linear(x, weight, constant(np.array(intercepts, np.float32)) if intercepts else None)


@operator("LinearRegressor", domain=DOMAIN)
def _linear_regressor(call: Call) -> Node:
    return scores.targets(_product(call, scores.features(call[0]), call.integer("targets", 1)), scores.transform(call))


@operator("LinearClassifier", domain=DOMAIN)
def _linear_classifier(call: Call) -> tuple[Node, Node]:
    """There is one row of coefficients for each class, or, of two classes, for the second alone."""
    call.ignore("multi_class")
    (classes, known), how, x = scores.labels(call), scores.transform(call), scores.features(call[0])
    count = len(call.numbers("intercepts") or ()) or known
    found = _product(call, x, count)
    if (count, known) == (1, 2):
        return scores.binary(reduction.sum_(found, 1), how, classes)
    if known != count:
        raise ModelError(f"expected labels of {count} classes, found {known}")
    return scores.top(found, how, classes)


# ---- support vectors -----------------------------------------------------------------------------------------------


def _kernel(call: Call, x: Node, vectors: Array) -> Node:
    """The kernel of each sample ``x [N, F]`` and each of the ``vectors [V, F]``: ``[N, V]``."""
    gamma, offset, degree = call.numbers("kernel_params") or [0.0, 0.0, 0.0]
    kind = call.choice("kernel_type", "LINEAR", ["LINEAR", "POLY", "RBF", "SIGMOID"])
    if kind == "RBF":
        apart = unsqueeze(x, [1]) - constant(vectors)
        return math.exp(reduction.sum_(apart * apart, 2) * -gamma)
    product = contraction.linear(x, constant(vectors))
    if kind == "LINEAR":
        return product
    product = product * gamma + offset
    return math.tanh(product) if kind == "SIGMOID" else math.pow_(product, degree)


@operator("SVMRegressor", domain=DOMAIN)
def _svm_regressor(call: Call) -> Node:
    """A sum of kernels of support vectors, or a linear function where there are none; for a one-class model, its sign
    (1 or -1)."""
    x = scores.features(call[0])
    count = call.integer("n_supports", 0)
    offset = (call.numbers("rho") or [0.0])[0]
    if count:
        x = _kernel(call, x, _matrix(call, "support_vectors", count, x.shape[1]))
    else:
        call.ignore("kernel_params", "support_vectors")
        if call.choice("kernel_type", "LINEAR", ["LINEAR", "POLY", "RBF", "SIGMOID"]) != "LINEAR":
            raise ModelError("expected support vectors for a kernel that is not linear")
    found = contraction.linear(x, constant(_matrix(call, "coefficients", 1, x.shape[1]))) + offset
    if call.flag("one_class"):
        found = select(math.less(0, found), constant(1, found.dtype), -1)
    return scores.targets(found, scores.transform(call))


@operator("SVMClassifier", domain=DOMAIN)
def _svm_classifier(call: Call) -> tuple[Node, Node]:
    """One against one: a sum of kernels of support vectors decides between each two classes. The class with the most
    wins is the label, the first of equals. Scores are those sums, or of two classes the sum and its negative."""
    (classes, count), how = scores.labels(call), scores.transform(call)
    sizes = call.integers("vectors_per_class")
    if not sizes or len(sizes) != count or min(sizes) < 0:
        raise UnsupportedError(f"expected the numbers of support vectors of {count} classes, found {sizes}")
    if count < 2 or (count == 2 and how not in ("NONE", "LOGISTIC")):
        raise UnsupportedError(f"the transform {how} of {count} classes is not supported")
    x, total = scores.features(call[0]), sum(sizes)
    kernels = _kernel(call, x, _matrix(call, "support_vectors", total, x.shape[1]))
    pairs = list(combinations(range(count), 2))
    weight = _pairwise(_matrix(call, "coefficients", count - 1, total), sizes, pairs)
    offset = _matrix(call, "rho", 1, len(pairs))
    apart = contraction.linear(kernels, constant(weight)) + constant(offset)
    first, second = (np.eye(count, dtype=np.float32)[[pair[k] for pair in pairs]] for k in (0, 1))
    won = cast(math.less(0, apart), f32)
    votes = contraction.linear(won, constant((first - second).T.copy())) + constant(second.sum(0))
    label = indexing.take(classes, reduction.argmax(votes, 1))
    if call.numbers("prob_a") or call.numbers("prob_b"):
        scale, shift = (_matrix(call, name, 1, len(pairs)) for name in ("prob_a", "prob_b"))
        likely = math.sigmoid((apart * constant(scale) + constant(shift)) * -1)  # of the first of each two
        likely = math.minimum(math.maximum(likely, constant(_LEAST, f32)), constant(1 - _LEAST, f32))
        each = [reduction.sum_(slice_(likely, 1, k, 1), 1) for k in range(len(pairs))]
        found = coupling.coupled(coupling.of_pairs(each, count))
        return label, scores.transformed(found, how)
    if count > 2:
        return label, scores.transformed(apart, how)
    return label, scores.binary(reduction.sum_(apart, 1), how, classes, complement=False)[1]


_LEAST = 1e-7  # probability of one of two classes


def _pairwise(coefficients: Array, sizes: list[int], pairs: list[tuple[int, int]]) -> Array:
    """The weight of each support vector for each pair of classes. Row ``k`` of the coefficients of a class is for the
    ``k``-th of the other classes."""
    starts = np.cumsum([0, *sizes])
    weight = np.zeros((len(pairs), coefficients.shape[1]), np.float32)
    for row, (a, b) in zip(weight, pairs, strict=True):
        for one, other in ((a, b - 1), (b, a)):
            own = slice(starts[one], starts[one + 1])
            row[own] = coefficients[other, own]
    return weight
