"""Matrix products, einsum, convolutions."""

from __future__ import annotations

from luminal.core import types
from luminal.core.decompose import contraction
from luminal.core.errors import ModelError
from luminal.core.ir import Node, cast
from luminal.core.movement import reshape
from luminal.frontends.onnx.registry import Call, exactly, operator
from luminal.frontends.onnx.windows import window

operator("MatMul")(lambda call: contraction.matmul(call[0], call[1]))


@operator("Gemm")
def _gemm(call: Call) -> Node:
    return contraction.gemm(
        call[0],
        call[1],
        call.get(2),
        alpha=call.number("alpha", 1.0),
        beta=call.number("beta", 1.0),
        trans_a=call.flag("transA"),
        trans_b=call.flag("transB"),
    )


@operator("Einsum")
def _einsum(call: Call) -> Node:
    return contraction.einsum(call.text("equation"), *call.operands)


@operator("Conv")
def _conv(call: Call) -> Node:
    x, weight, bias = call[0], call[1], call.get(2)
    return _convolve(call, x, weight, bias)


def _convolve(call: Call, x: Node, weight: Node, bias: Node | None) -> Node:
    if x.rank < 3 or weight.rank != x.rank:
        raise ModelError(f"expected an input and a kernel of one rank, at least 3, found {x.rank} and {weight.rank}")
    kernel = [size for size in weight.shape[2:] if isinstance(size, int)]
    exactly(kernel, x.rank - 2, "fixed sizes of the kernel")
    over = window(call, x.shape[2:], kernel)
    return contraction.conv(
        x, weight, bias, over.strides, over.pads_begin, over.pads_end, over.dilations, call.integer("group", 1)
    )


# ---- of 8-bit integers, exact in int32 -----------------------------------------------------------------------------


def _centred(x: Node, zero_point: Node | None) -> Node:
    """``x - zero_point`` as int32."""
    wide = cast(x, types.i32)
    return wide if zero_point is None else wide - cast(zero_point, types.i32)


@operator("MatMulInteger")
def _matmul_integer(call: Call) -> Node:
    a, b, a_zero, b_zero = call[0], call[1], call.get(2), call.get(3)
    if a_zero is not None and a_zero.rank == 1 and a_zero.size != 1:
        a_zero = reshape(a_zero, [a_zero.size, 1])  # one for each row
    return contraction.matmul(_centred(a, a_zero), _centred(b, b_zero))


@operator("ConvInteger")
def _conv_integer(call: Call) -> Node:
    x, weight, w_zero = call[0], call[1], call.get(3)
    if w_zero is not None and w_zero.rank == 1 and w_zero.size != 1:
        w_zero = reshape(w_zero, [w_zero.size, *[1] * (weight.rank - 1)])  # one for each output channel
    return _convolve(call, _centred(x, call.get(2)), _centred(weight, w_zero), None)
