"""Losses by name, for models that come without one: of the model's output and a target, a mean over all elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from luminal.core.decompose import compare, reduction
from luminal.core.decompose.arithmetic import abs_
from luminal.core.decompose.exponential import exp, log1p
from luminal.core.decompose.indexing import gather_elements
from luminal.core.errors import InputError, nearest
from luminal.core.ir import Node, Shape, input_
from luminal.core.movement import unsqueeze
from luminal.core.types import DType, i64

TARGET = "target"


def _cross_entropy(scores: Node, target: Node) -> Node:
    """Of scores ``[batch, classes, ..]`` and the numbers of classes ``[batch, ..]``."""
    return -reduction.mean(gather_elements(reduction.log_softmax(scores, 1), unsqueeze(target, [1]), 1))


def _squared(found: Node, target: Node) -> Node:
    return reduction.mean((found - target) * (found - target))


def _absolute(found: Node, target: Node) -> Node:
    return reduction.mean(abs_(found - target))


def _binary(scores: Node, target: Node) -> Node:
    """Of scores before the sigmoid, and probabilities."""
    return reduction.mean(compare.maximum(scores, 0) - scores * target + log1p(exp(-abs_(scores))))


def _classes(shape: Shape, dtype: DType) -> tuple[Shape, DType]:
    return (shape[0], *shape[2:]), i64


def _alike(shape: Shape, dtype: DType) -> tuple[Shape, DType]:
    return shape, dtype


# By name: the loss, the shape and type of its target, and how many axes its output has at least.
LOSSES: Mapping[str, tuple[Callable[[Node, Node], Node], Callable[[Shape, DType], tuple[Shape, DType]], int]] = {
    "cross_entropy": (_cross_entropy, _classes, 2),
    "mse": (_squared, _alike, 0),
    "l1": (_absolute, _alike, 0),
    "binary_cross_entropy_with_logits": (_binary, _alike, 0),
}


def loss(name: str, output: Node, target: str = TARGET) -> tuple[Node, Node]:
    """The loss of that name of ``output``, and the input of its target. Raises InputError where there is none of that
    name, or the output does not fit it."""
    if name not in LOSSES:
        raise InputError(
            f"loss: expected the name of an output or one of {', '.join(LOSSES)}, found {name!r}{nearest(name, LOSSES)}"
        )
    rule, targets, rank = LOSSES[name]
    if not output.dtype.is_float or output.rank < rank:
        raise InputError(
            f"loss: {name} expects an output of floats with at least {rank} axes, found {output.dtype}"
            f"{list(output.shape)}"
        )
    given = input_(target, *targets(output.shape, output.dtype))
    return rule(output, given), given
