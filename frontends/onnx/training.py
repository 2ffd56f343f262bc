"""Optimisers: one step of training each, of any number of tensors at once (domain ai.onnx.preview.training)."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import types
from luminal.core.decompose import math
from luminal.core.errors import ModelError
from luminal.core.ir import Node, cast
from luminal.core.movement import reshape
from luminal.frontends.onnx.registry import Call, operator

DOMAIN = "ai.onnx.preview.training"


def _groups(call: Call, kinds: int) -> list[tuple[Node, ...]]:
    """After the learning rate and the count of updates: all tensors, then all their gradients, then their states."""
    tensors = call.operands[2:]
    if not tensors or len(tensors) % kinds:
        raise ModelError(f"expected {kinds} inputs for each tensor after the first two, found {len(tensors)}")
    count = len(tensors) // kinds
    return [tuple(tensors[k::count]) for k in range(count)]


def _rate_and_count(call: Call) -> tuple[Node, Node]:
    return reshape(call[0], []), reshape(call[1], [])


def _by_kind(updated: Sequence[tuple[Node, ...]]) -> tuple[Node, ...]:
    return tuple(node for kind in zip(*updated, strict=True) for node in kind)


@operator("Adagrad", domain=DOMAIN)
def _adagrad(call: Call) -> tuple[Node, ...]:
    """Duchi et al., 2011."""
    rate, count = _rate_and_count(call)
    penalty, eps = call.number("norm_coefficient", 0.0), call.number("epsilon", 0.0)
    decay = call.number("decay_factor", 0.0)

    def update(x: Node, gradient: Node, squares: Node) -> tuple[Node, Node]:
        step = cast(rate, x.dtype) / (cast(count, x.dtype) * decay + 1)
        gradient = gradient + x * penalty
        squares = squares + gradient * gradient
        return x - step * gradient / (math.sqrt(squares) + eps), squares

    return _by_kind([update(*group) for group in _groups(call, 3)])


@operator("Adam", domain=DOMAIN)
def _adam(call: Call) -> tuple[Node, ...]:
    """Kingma and Ba, 2015."""
    rate, count = _rate_and_count(call)
    alpha, beta, eps = call.number("alpha", 0.9), call.number("beta", 0.999), call.number("epsilon", 0.0)
    penalty, after = call.number("norm_coefficient", 0.0), call.number("norm_coefficient_post", 0.0)
    # The powers lose digits near 1, so they are taken in float64.
    steps = cast(count, types.f64)
    bias = math.sqrt(1 - math.pow_(steps * 0 + beta, steps)) / (1 - math.pow_(steps * 0 + alpha, steps))
    corrected = math.where(math.greater(count, 0), cast(rate, types.f64) * bias, cast(rate, types.f64))

    def update(x: Node, gradient: Node, mean: Node, squares: Node) -> tuple[Node, Node, Node]:
        gradient = gradient + x * penalty
        mean = mean * alpha + gradient * (1 - alpha)
        squares = squares * beta + gradient * gradient * (1 - beta)
        moved = x - cast(corrected, x.dtype) * (mean / (math.sqrt(squares) + eps))
        return moved * (1 - after), mean, squares

    return _by_kind([update(*group) for group in _groups(call, 4)])


@operator("Momentum", domain=DOMAIN)
def _momentum(call: Call) -> tuple[Node, ...]:
    """Descent with momentum, or with Nesterov's."""
    rate, count = _rate_and_count(call)
    alpha, beta, penalty = call.number("alpha"), call.number("beta"), call.number("norm_coefficient")
    nesterov = call.choice("mode", "standard", ("standard", "nesterov")) == "nesterov"

    def update(x: Node, gradient: Node, momentum: Node) -> tuple[Node, Node]:
        gradient = gradient + x * penalty
        # The first gradient counts whole.
        share = math.where(math.greater(count, 0), cast(count * 0, x.dtype) + beta, 1)
        momentum = momentum * alpha + gradient * share
        direction = gradient + momentum * alpha if nesterov else momentum
        return x - cast(rate, x.dtype) * direction, momentum

    return _by_kind([update(*group) for group in _groups(call, 3)])
