"""What the classifiers and regressors of ai.onnx.ml share: features, labels of classes, transforms of their scores."""

from __future__ import annotations

import numpy as np

from luminal.core import texts
from luminal.core.decompose import indexing, math, reduction
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant, select
from luminal.core.movement import unsqueeze
from luminal.core.types import f32, i64
from luminal.frontends.onnx.registry import Call

DOMAIN = "ai.onnx.ml"
_NEARLY_ZERO = 1e-7  # of SOFTMAX_ZERO, in onnxruntime


def rows(x: Node) -> Node:
    """Features ``[N, F]`` as they are given; a vector is one row."""
    if x.rank not in (1, 2):
        raise ModelError(f"expected features [N, F] or [F], found {list(x.shape)}")
    return x if x.rank == 2 else unsqueeze(x, [0])


def features(x: Node) -> Node:
    """``rows`` of float32."""
    return cast(rows(x), f32)


def labels(call: Call, integers: str = "classlabels_ints") -> tuple[Node, int]:
    """The labels of the classes, texts or the ``integers`` that an attribute lists, and how many there are."""
    numbers, words = call.integers(integers), call.texts("classlabels_strings")
    if bool(numbers) == bool(words):
        raise ModelError(f"expected the labels of classes in one of {integers} and classlabels_strings")
    listed = texts.of(words, (len(words),)) if words else np.array(numbers, np.int64)
    return constant(listed), len(listed)


def transform(call: Call) -> str:
    """The name of the transform that the scores go through."""
    how = call.choice("post_transform", "NONE", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
    if how == "PROBIT":
        raise UnsupportedError("the transform PROBIT, which runtimes compute in different ways, is not supported")
    return how


def transformed(scores: Node, how: str) -> Node:
    """Scores ``[N, E]`` of several classes or targets after a transform; SOFTMAX_ZERO leaves zeros what they are."""
    if how == "LOGISTIC":
        return math.sigmoid(scores)
    if how == "SOFTMAX":
        return reduction.softmax(scores, 1)
    if how == "SOFTMAX_ZERO":
        counts = math.less(_NEARLY_ZERO, math.abs_(scores))
        most = reduction.max_(scores, 1, keepdims=True)
        weights = select(counts, math.exp(scores - most), 0)
        rest = select(counts, weights, scores * math.exp(most * -1))
        return rest / reduction.sum_(weights, 1, keepdims=True)
    return scores


def targets(scores: Node, how: str) -> Node:
    """The results of a regression ``[N, targets]``. Raises UnsupportedError where one target is transformed."""
    if how != "NONE" and scores.shape[1] == 1:
        raise UnsupportedError(f"the transform {how} of one target, which runtimes leave out, is not supported")
    return transformed(scores, how)


def top(scores: Node, how: str, classes: Node) -> tuple[Node, Node]:
    """The label of the largest of the scores ``[N, classes]``, the first of equal ones, and what becomes of them."""
    return indexing.take(classes, reduction.argmax(scores, 1)), transformed(scores, how)


def binary(score: Node, how: str, classes: Node, threshold: float = 0.0, complement: bool = True) -> tuple[Node, Node]:
    """The second of two labels where the ``score [N]`` is above a threshold, else the first; and scores of both.

    Without a logistic function, that of the first is what is missing to 1 (``complement``), or the opposite.
    """
    label = indexing.take(classes, cast(math.less(threshold, score), i64))
    if how == "LOGISTIC":
        return label, math.sigmoid(indexing.stack([score * -1, score], 1))
    return label, indexing.stack([1 - score if complement else score * -1, score], 1)
