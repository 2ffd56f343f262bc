"""Matrix products, einsum, convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import symbolic as sym
from luminal.core.decompose import contraction, factorisation, transposed
from luminal.core.ir import Node
from luminal.core.symbolic import Int
from luminal.frontends.onnx.registry import Call, exactly, operator
from luminal.frontends.onnx.windows import kernel_window

operator("MatMul")(lambda call: contraction.matmul(call[0], call[1]))


def gemm(call: Call) -> Node:
    """The product that the attributes of a call describe."""
    if call.opset < 7:
        call.ignore("broadcast")  # later versions always do
    return contraction.gemm(
        call[0],
        call[1],
        call.get(2),
        alpha=call.number("alpha", 1.0),
        beta=call.number("beta", 1.0),
        trans_a=call.flag("transA"),
        trans_b=call.flag("transB"),
    )


operator("Gemm")(gemm)
operator("Det")(lambda call: factorisation.det(call[0]))
operator("Einsum")(lambda call: contraction.einsum(call.text("equation"), *call.operands))
operator("Conv")(lambda call: convolved(call, call[0], call[1], call.get(2)))


def convolved(call: Call, x: Node, weight: Node, bias: Node | None) -> Node:
    """The convolution that the attributes of a call describe."""
    over = kernel_window(call, x, weight)
    return contraction.conv(
        x, weight, bias, over.strides, over.pads_begin, over.pads_end, over.dilations, call.integer("group", 1)
    )


@operator("ConvTranspose")
def _conv_transpose(call: Call) -> Node:
    x, weight = call[0], call[1]
    over, spatial = kernel_window(call, x, weight), x.rank - 2
    extra = call.integers("output_padding") or [0] * spatial
    wanted: Sequence[Int] | None = call.integers("output_shape")
    automatic = call.text("auto_pad", "NOTSET")
    if wanted is None and automatic.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(x.shape[2:], over.strides, strict=True)]
    exactly(extra, spatial, "entries of 'output_padding'")
    whole = [
        (size - 1) * stride + more + (k - 1) * dilation + 1
        for size, stride, more, k, dilation in zip(
            x.shape[2:], over.strides, extra, over.kernel, over.dilations, strict=True
        )
    ]
    begin = over.pads_begin
    if wanted is None:
        wanted = [size - b - e for size, b, e in zip(whole, begin, over.pads_end, strict=True)]
    else:
        # The padding follows from the size: one half before, the odd element before too but for SAME_UPPER.
        wanted = list(wanted)[-spatial:]
        exactly(wanted, spatial, "entries of 'output_shape'")
        total = [sym.maximum(size - want, 0) for size, want in zip(whole, wanted, strict=True)]
        begin = [sym.floordiv(t if automatic == "SAME_UPPER" else t + 1, 2) for t in total]
    return transposed.conv_transpose(
        x, weight, call.get(2), over.strides, begin, wanted, over.dilations, call.integer("group", 1)
    )


@operator("Col2Im")
def _col2im(call: Call) -> Node:
    sizes, kernel = call.values(1), call.integers_at(2)
    spatial = len(sizes)
    pads = call.integers("pads") or [0] * (2 * spatial)
    strides, dilations = call.integers("strides") or [1] * spatial, call.integers("dilations") or [1] * spatial
    for what, values in {"sizes of blocks": kernel, "strides": strides, "dilations": dilations}.items():
        exactly(values, spatial, what)
    exactly(pads, 2 * spatial, "pads")
    return transposed.fold(call[0], kernel, strides, pads[:spatial], sizes, pads[spatial:], dilations)
