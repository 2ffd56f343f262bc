"""Mixtures of experts of the domain com.microsoft, as onnxruntime's model builders write them."""

from __future__ import annotations

import math as numbers
from collections.abc import Callable

from luminal.core import types
from luminal.core.decompose import experts, math
from luminal.core.decompose.common import widened
from luminal.core.decompose.contraction import matmul
from luminal.core.decompose.indexing import take
from luminal.core.decompose.quantization import centred
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, cast, constant
from luminal.core.movement import reshape, slice_, transpose, unsqueeze
from luminal.core.symbolic import floordiv, product
from luminal.frontends.onnx.contributed import DOMAIN
from luminal.frontends.onnx.contributed_quantization import unpacked
from luminal.frontends.onnx.registry import Call, describe, operator

# The matrices ``[experts, out, in]`` of all experts, or of those whose numbers are given.
_Matrices = Callable[[Node | None], Node]

_ACTIVATIONS: dict[str, Callable[[Node], Node]] = {
    "relu": math.relu,
    "gelu": lambda x: math.gelu(x, "tanh"),
    "silu": math.silu,
    "identity": lambda x: x,
}


@operator("MoE", domain=DOMAIN)
def _mixture(call: Call) -> Node:
    layers = [_floats(call, position) for position in (2, 4, 6)]
    chosen = experts.routes(call[1], call.integer("k", 1), call.flag("normalize_routing_weights"))
    return _mixed(call, layers, [call.get(position) for position in (3, 5, 7)], chosen)


@operator("QMoE", domain=DOMAIN)
def _quantized_mixture(call: Call) -> Node:
    if call.choice("quant_type", "int", ("int", "fp4", "nvfp4", "fp8", "wfp4afp8")) != "int":
        raise UnsupportedError("weights of floats (quant_type) are not supported, only of integers")
    call.ignore("accuracy_level")
    if call.integer("weights_prepacked", -1) == 1:
        raise UnsupportedError("weights in a device's own layout (weights_prepacked 1) are not supported")
    block, bits = call.integer("block_size", 0), call.integer("expert_weight_bits", 4)
    layers = [
        _integers(call, 2 + 3 * k, 11 + k, call.integer(f"fc{k + 1}_expert_weight_bits", bits), block) for k in range(3)
    ]
    # Unlike MoE's, shares by softmax are always those among the chosen.
    weights, normalised = call.get(14), call.flag("normalize_routing_weights")
    chosen = experts.routes(call[1], call.integer("k", 1), normalised or weights is None, weights)
    return _mixed(call, layers, [call.get(position) for position in (4, 7, 10)], chosen)


def _floats(call: Call, position: int) -> _Matrices | None:
    weights = call.get(position)
    if weights is None:
        return None
    if weights.rank != 3:
        raise ModelError(f"input {position}: expected matrices of each expert, found {describe(weights)}")
    return lambda chosen: weights if chosen is None else take(weights, chosen)


def _integers(call: Call, position: int, points: int, bits: int, block: int) -> _Matrices | None:
    """Numbers of ``bits`` bits along the last axis, with a scale for each row, or for each ``block`` of one."""
    weights, zeros = call.get(position), call.get(points)
    if weights is None:
        return None
    scales = call[position + 1]
    if bits not in (2, 4, 8):
        raise UnsupportedError(f"weights of {bits} bits are not supported")
    if weights.rank != 3 or weights.dtype != types.u8:
        raise ModelError(f"input {position}: expected bytes of 3 axes, found {describe(weights)}")
    rows, depth = weights.shape[1], weights.shape[2] * (8 // bits)
    blocks = floordiv(depth, block) if block else 1
    if product(scales.shape[1:]) != rows * blocks:
        raise ModelError(
            f"input {position + 1}: expected {blocks} scales for each of {rows} rows, found {describe(scales)}"
        )

    each = 8 // bits  # numbers in a byte

    def points_of(x: Node) -> Node:
        """The zero points ``[experts, rows, blocks, 1]``, packed along the last axis, which whole bytes end."""
        numbers = unpacked(x, bits, [*x.shape[:-1], x.shape[-1] * each])
        return reshape(slice_(numbers, -1, 0, blocks if block else rows), [x.shape[0], rows, blocks, 1])

    def decoded(chosen: Node | None) -> Node:
        def of(x: Node) -> Node:
            return x if chosen is None else take(x, chosen)

        count = of(weights).shape[0]
        whole = unpacked(of(weights), bits, [count, rows, blocks, floordiv(depth, blocks)])
        middle = constant(1 << (bits - 1), types.i32)
        scale = reshape(of(scales), [count, rows, blocks, 1])
        shifted = cast(centred(whole, middle if zeros is None else points_of(of(zeros))), scale.dtype)
        return reshape(widened(lambda x, y: x * y)(shifted, scale), [count, rows, depth])

    return decoded


def _mixed(
    call: Call, layers: list[_Matrices | None], biases: list[Node | None], routes: tuple[Node, Node]
) -> Node:  # fmt: skip
    """``routes`` are the experts that are chosen for each row, and their shares."""
    x, first, second, third = call[0], *layers
    assert first is not None and second is not None, "the first two layers are required inputs"
    if call.flag("use_sparse_mixer"):
        raise UnsupportedError("a sparse mixer (use_sparse_mixer) is not supported")
    width, count = x.shape[-1], call[2].shape[0]
    if not isinstance(count, int):
        raise UnsupportedError(f"a number of experts that is not fixed, {count}, is not supported")
    activated = _activation(call, third is not None)

    def experts_of(rows: Node, chosen: Node | None) -> Node:
        def layer(x: Node, matrices: _Matrices, bias: Node | None) -> Node:
            result = matmul(x, transpose(matrices(chosen), 1, 2))
            if bias is None:
                return result
            return result + unsqueeze(bias if chosen is None else take(bias, chosen), [1])

        up = None if third is None else layer(rows, third, biases[2])
        return layer(activated(layer(rows, first, biases[0]), up), second, biases[1])

    rows = reshape(x, [product(x.shape[:-1]), width])
    return reshape(experts.mixture(rows, *routes, experts_of, count), x.shape)


def _activation(call: Call, apart: bool) -> Callable[[Node, Node | None], Node]:
    """The function of what the first layer gives, and the third where there is one (``apart``)."""
    name, fusion = call.choice("activation_type", "relu", (*_ACTIVATIONS, "swiglu")), call.integer("swiglu_fusion", 0)
    alpha, beta = call.number("activation_alpha", 1.0), call.number("activation_beta", 0.0)
    limit = call.number("swiglu_limit", numbers.inf)
    after = call.flag("swiglu_limit_after_activation")
    if name != "swiglu":
        if apart:
            raise UnsupportedError(f"a third layer beside the activation {name!r} is not supported")
        return lambda x, _: _ACTIVATIONS[name](x)
    if apart == (fusion != 0):
        raise ModelError(f"attribute 'swiglu_fusion' is {fusion}, but the third layer is {'there' if apart else 'not'}")

    def swiglu(x: Node, up: Node | None) -> Node:
        half = floordiv(x.shape[-1], 2)
        if fusion == 1:
            x, up = (slice_(x, -1, k, half, 2) for k in (0, 1))
        elif up is None:
            x, up = (slice_(x, -1, start, half) for start in (0, half))
        gate = math.swish(x if after else math.clamp(x, None, limit), alpha)
        gate = math.clamp(gate, None, limit) if after else gate
        return gate * (math.clamp(up, -limit, limit) + beta)

    return swiglu
