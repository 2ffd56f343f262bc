"""Normalisations, and dropout, which does nothing once a model is trained."""

from __future__ import annotations

from luminal.core import symbolic as sym
from luminal.core import types
from luminal.core.decompose import math, normalize, reduction
from luminal.core.decompose.common import widened
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, cast, expand
from luminal.core.movement import pad, reshape, windows
from luminal.frontends.onnx.registry import Call, operator
from luminal.frontends.onnx.tensors import element_type


@operator("BatchNormalization")
def _batch_normalization(call: Call) -> Node | tuple[Node, ...]:
    momentum, eps = call.number("momentum", 0.9), call.number("epsilon", 1e-5)
    if not call.flag("spatial", True):
        raise UnsupportedError("statistics for each position (spatial=0) are not supported")
    if call.flag("training_mode") or (call.opset < 7 and not call.flag("is_test")):
        if call.wants(3):
            raise UnsupportedError("statistics that training saves for the gradient are not supported: take 3 outputs")
        return _batch_normalization_in_training(call, momentum, eps)
    return normalize.batch_norm(call[0], call[1], call[2], call[3], call[4], eps)


def _batch_normalization_in_training(call: Call, momentum: float, eps: float) -> tuple[Node, ...]:
    """With the statistics of the batch; also the running ones, moved towards these."""
    x = call[0]
    wide = cast(x, x.dtype.compute)
    over = [0, *range(2, x.rank)]
    mean, variance = reduction.mean(wide, over), reduction.variance(wide, over, correction=0)
    running = [
        cast(cast(old, wide.dtype) * momentum + new * (1 - momentum), old.dtype)
        for old, new in ((call[3], mean), (call[4], variance))
    ]
    return normalize.batch_norm(x, call[1], call[2], mean, variance, eps), *running


@operator("InstanceNormalization")
def _instance_normalization(call: Call) -> Node:
    return normalize.instance_norm(call[0], call[1], call[2], call.number("epsilon", 1e-5))


@operator("GroupNormalization", since=18)
def _group_normalization_by_group(call: Call) -> Node:
    """Until opset 21 there is one scale and bias for each group."""
    groups, each = call.integer("num_groups"), sym.floordiv(call[0].shape[1], call.integer("num_groups"))
    scale, bias = (reshape(expand(reshape(call[k], [groups, 1]), [groups, each]), [groups * each]) for k in (1, 2))
    return normalize.group_norm(call[0], groups, scale, bias, call.number("epsilon", 1e-5))


@operator("GroupNormalization", since=21)
def _group_normalization(call: Call) -> Node:
    call.ignore("stash_type")
    return normalize.group_norm(call[0], call.integer("num_groups"), call[1], call[2], call.number("epsilon", 1e-5))


@operator("LayerNormalization")
def _layer_normalization(call: Call) -> tuple[Node | None, ...]:
    x = call[0]
    axes = range(call.axis(x.rank, -1), x.rank)
    eps, stash = call.number("epsilon", 1e-5), element_type(call.integer("stash_type", 1), "attribute 'stash_type'")
    if stash not in (types.f32, types.f64):
        raise UnsupportedError(f"statistics in {stash} (stash_type) are not supported, only in float32 or float64")
    result = normalize.layer_norm(x, axes, call[1], call.get(2), eps)
    mean = deviation = None
    if call.wants(1) or call.wants(2):
        wide = cast(x, x.dtype.compute)
        mean = cast(reduction.mean(wide, axes, True), stash)
        variance = reduction.variance(wide, axes, True, correction=0)
        deviation = cast(math.rsqrt(variance + eps), stash)
    return result, mean, deviation


@operator("RMSNormalization", "SimplifiedLayerNormalization")  # onnxruntime gave it the second name, before ONNX did
@operator("SimplifiedLayerNormalization", domain="com.microsoft")
def _rms_normalization(call: Call) -> Node:
    call.ignore("stash_type")
    axes = range(call.axis(call[0].rank, -1), call[0].rank)
    return normalize.rms_norm(call[0], axes, call[1], call.number("epsilon", 1e-5))


@operator("LpNormalization")
def _lp_normalization(call: Call) -> Node:
    axis = call.axis(call[0].rank, -1)
    order = call.integer("p", 2)

    @widened
    def normalized(x: Node) -> Node:
        norm = normalize.lp_norm(x, axis, order, keepdims=True)
        # Specification: a norm of 0 gives 0.
        return math.where(math.equal(norm, 0), 0, x / norm)

    return normalized(call[0])


@operator("LRN")
def _local_response_normalization(call: Call) -> Node:
    """``x / (bias + alpha/size * sum(x**2 over size neighbouring channels)) ** beta`` (Krizhevsky et al., 2012)."""
    size = call.integer("size")
    alpha, beta, bias = call.number("alpha", 0.0001), call.number("beta", 0.75), call.number("bias", 1.0)

    @widened
    def normalized(x: Node) -> Node:
        before, after = (size - 1) // 2, size // 2
        axes: list[tuple[int, int]] = [(0, 0)] * x.rank
        axes[1] = (before, after)
        squares = pad(x * x, [b for b, _ in axes], [a for _, a in axes])
        total = reduction.sum_(windows(squares, 1, size), x.rank)
        return x / math.pow_(total * (alpha / size) + bias, beta)

    return normalized(call[0])


@operator("MeanVarianceNormalization")
def _mean_variance_normalization(call: Call) -> Node:
    axes = call.integers("axes") or [0, 2, 3]

    @widened
    def normalized(x: Node) -> Node:
        centred = x - reduction.mean(x, axes, True)
        variance = reduction.mean(centred * centred, axes, True)
        return centred / (math.sqrt(variance) + 1e-9)  # the specification's constant

    return normalized(call[0])
