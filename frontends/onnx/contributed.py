"""Operators of the domain com.microsoft that onnxruntime's optimisers write into models."""

from __future__ import annotations

from luminal.core.decompose import contraction, math, normalize
from luminal.core.decompose.common import widened
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node
from luminal.core.movement import transpose
from luminal.frontends.onnx.registry import Call, operator

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


@operator("FusedMatMul", domain=DOMAIN)
def _fused_matmul(call: Call) -> Node:
    a, b = call[0], call[1]
    if call.flag("transBatchA") or call.flag("transBatchB"):
        raise UnsupportedError("transposed batch axes (transBatchA, transBatchB) are not supported")
    a = transpose(a, -1, -2) if call.flag("transA") else a
    b = transpose(b, -1, -2) if call.flag("transB") else b
    alpha = call.number("alpha", 1.0)
    return widened(lambda a, b: contraction.matmul(a, b) * alpha)(a, b)
