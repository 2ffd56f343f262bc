"""Operators of the domain com.microsoft that onnxruntime's optimisers write into models."""

from __future__ import annotations

from luminal.core.decompose import contraction, math, normalize
from luminal.core.decompose.common import widened
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node
from luminal.core.movement import transpose
from luminal.frontends.onnx.contraction import convolved, gemm
from luminal.frontends.onnx.registry import Call, exactly, operator

DOMAIN = "com.microsoft"


@operator("Gelu", domain=DOMAIN)
def _gelu(call: Call) -> Node:
    return math.gelu(call[0])


@operator("BiasGelu", domain=DOMAIN)
def _bias_gelu(call: Call) -> Node:
    return widened(lambda x, bias: math.gelu(x + bias))(call[0], call[1])


@operator("FastGelu", domain=DOMAIN)
def _fast_gelu(call: Call) -> Node:
    bias = call.get(1)
    if bias is None:
        return math.gelu(call[0], "tanh")
    return widened(lambda x, bias: math.gelu(x + bias, "tanh"))(call[0], bias)


@operator("QuickGelu", domain=DOMAIN)
def _quick_gelu(call: Call) -> Node:
    return math.quick_gelu(call[0], call.number("alpha", 1.702))


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


def _activated(call: Call, x: Node) -> Node:
    """The function that the attribute ``activation`` names, with its parameters."""
    name, parameters = call.text("activation", ""), call.numbers("activation_params") or []
    count = {"": 0, "Relu": 0, "Sigmoid": 0, "Tanh": 0, "LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}.get(name)
    if count is None:
        raise UnsupportedError(f"the activation {name!r} is not supported")
    exactly(parameters, count, "parameters of the activation")
    if name == "":
        return x
    if name in ("Relu", "Sigmoid", "Tanh"):
        return {"Relu": math.relu, "Sigmoid": math.sigmoid, "Tanh": math.tanh}[name](x)
    if name == "LeakyRelu":
        return math.leaky_relu(x, parameters[0])
    return (math.clamp if name == "Clip" else math.hardsigmoid)(x, parameters[0], parameters[1])


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
