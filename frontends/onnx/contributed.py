"""Operators of the domain com.microsoft that onnxruntime's optimisers write into models."""

from __future__ import annotations

from collections.abc import Callable

from luminal.core.decompose import contraction, math, normalize
from luminal.core.decompose.common import widened
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node
from luminal.core.movement import transpose
from luminal.frontends.onnx.contraction import convolved, gemm
from luminal.frontends.onnx.registry import Call, exactly, of_first, operator

DOMAIN = "com.microsoft"

operator("Gelu", domain=DOMAIN)(of_first(math.gelu))
operator("QuickGelu", domain=DOMAIN)(of_first(math.quick_gelu, alpha=1.702))


@operator("BiasGelu", domain=DOMAIN)
def _bias_gelu(call: Call) -> Node:
    return widened(lambda x, bias: math.gelu(x + bias))(call[0], call[1])


@operator("FastGelu", domain=DOMAIN)
def _fast_gelu(call: Call) -> Node:
    bias = call.get(1)
    if bias is None:
        return math.gelu(call[0], "tanh")
    return widened(lambda x, bias: math.gelu(x + bias, "tanh"))(call[0], bias)


def _residual(call: Call, bias: int) -> Node:
    """The sum that the operator also gives as its output 3."""
    total = call[0] + call[1]
    extra = call.get(bias)
    return total if extra is None else total + extra


@operator("SkipLayerNormalization", domain=DOMAIN)
def _skip_layer_normalization(call: Call) -> tuple[Node | None, ...]:
    total = _residual(call, 4)
    result = normalize.layer_norm(total, [-1], call[2], call.get(3), call.number("epsilon", 1e-12))
    return result, None, None, total


@operator("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def _skip_rms_normalization(call: Call) -> tuple[Node | None, ...]:
    total = _residual(call, 3)
    return normalize.rms_norm(total, [-1], call[2], call.number("epsilon", 1e-12)), None, None, total


@operator("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def _fused_matmul(call: Call) -> Node:
    a, b = call[0], call[1]
    if call.flag("transBatchA") or call.flag("transBatchB"):
        raise UnsupportedError("transposed batch axes (transBatchA, transBatchB) are not supported")
    a = transpose(a, -1, -2) if call.flag("transA") else a
    b = transpose(b, -1, -2) if call.flag("transB") else b
    alpha = call.number("alpha", 1.0)
    return widened(lambda a, b: contraction.matmul(a, b) * alpha)(a, b)


# ---- with an activation --------------------------------------------------------------------------------------------


# Each with the number of its parameters.
_ACTIVATIONS: dict[str, tuple[Callable[..., Node], int]] = {
    "": (lambda x: x, 0),
    "Relu": (math.relu, 0),
    "Sigmoid": (math.sigmoid, 0),
    "Tanh": (math.tanh, 0),
    "LeakyRelu": (math.leaky_relu, 1),
    "Clip": (math.clamp, 2),
    "HardSigmoid": (math.hardsigmoid, 2),
}


def _activated(call: Call, x: Node) -> Node:
    """The function that the attribute ``activation`` names, with its parameters."""
    name, parameters = call.text("activation", ""), call.numbers("activation_params") or []
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"the activation {name!r} is not supported")
    function, count = _ACTIVATIONS[name]
    exactly(parameters, count, "parameters of the activation")
    return function(x, *parameters)


@operator("FusedConv", domain=DOMAIN)
def _fused_conv(call: Call) -> Node:
    result, other = convolved(call, call[0], call[1], call.get(2)), call.get(3)
    return _activated(call, result if other is None else result + other)


@operator("FusedGemm", domain=DOMAIN)
def _fused_gemm(call: Call) -> Node:
    name, alpha = call.text("activation", ""), call.number("activation_alpha", 0.0)
    result = gemm(call)
    if name == "LeakyRelu":
        return math.leaky_relu(result, alpha)
    call.ignore("activation_beta", "activation_gamma")
    return _activated(call, result)
