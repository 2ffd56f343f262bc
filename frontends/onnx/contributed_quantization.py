"""Quantised operators of the domain com.microsoft, which onnxruntime's quantiser writes into models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core.decompose import contraction, indexing, math, pooling, reduction
from luminal.core.decompose.common import widened
from luminal.core.decompose.quantization import centred, dynamic_product, integer_product, rounded
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, binary, cast, constant, iota
from luminal.core.movement import concatenate, permute, reshape, slice_, transpose, unsqueeze
from luminal.core.symbolic import Int
from luminal.frontends.onnx.contributed import DOMAIN
from luminal.frontends.onnx.pooling import averaged
from luminal.frontends.onnx.quantization import quantized_conv
from luminal.frontends.onnx.registry import Call, operator, wrap_axis
from luminal.frontends.onnx.windows import window


def _real(call: Call, first: int) -> Node:
    """The dequantised values of inputs ``first`` (integers), ``first + 1`` (scale) and ``first + 2`` (zero point)."""
    zero = call.get(first + 2)
    whole = centred(call[first], None if zero is None else reshape(zero, []))
    return cast(whole, types.f32) * cast(reshape(call[first + 1], []), types.f32)


def _quantized(call: Call, x: Node, scale: int) -> Node:
    """``x`` quantised with the scale at input ``scale`` and the next input as zero point, to the type of input 0."""
    zero = call.get(scale + 1)
    return rounded(
        x / cast(reshape(call[scale], []), types.f32), None if zero is None else reshape(zero, []), call[0].dtype
    )


operator("QLinearAdd", domain=DOMAIN)(lambda call: _quantized(call, _real(call, 0) + _real(call, 3), 6))
operator("QLinearMul", domain=DOMAIN)(lambda call: _quantized(call, _real(call, 0) * _real(call, 3), 6))
operator("QLinearSigmoid", domain=DOMAIN)(lambda call: _quantized(call, math.sigmoid(_real(call, 0)), 3))


@operator("QLinearLeakyRelu", domain=DOMAIN)
def _leaky_relu(call: Call) -> Node:
    return _quantized(call, math.leaky_relu(_real(call, 0), call.number("alpha", 0.01)), 3)


@operator("QLinearWhere", domain=DOMAIN)
def _where(call: Call) -> Node:
    """``x`` or ``y``, each with a scale and a zero point of its own."""
    real = math.where(call[0], _real(call, 1), _real(call, 4))
    return rounded(real / cast(reshape(call[7], []), types.f32), reshape(call[8], []), call[1].dtype)


@operator("QLinearGlobalAveragePool", domain=DOMAIN)
def _global_average_pool(call: Call) -> Node:
    x = _real(call, 0)
    axes = range(1, x.rank - 1) if call.flag("channels_last") else range(2, x.rank)
    return _quantized(call, reduction.mean(x, axes, True), 3)


def channels_first(call: Call, function: Callable[[Call], Node]) -> Node:
    """``function`` of a call whose first input may have its channels in the last axis, and its result then, too."""
    if not call.flag("channels_last"):
        return function(call)
    rank = call[0].rank
    inner = replace(call, inputs=(permute(call[0], [0, rank - 1, *range(1, rank - 1)]), *call.inputs[1:]))
    return permute(function(inner), [0, *range(2, rank), 1])


@operator("QLinearAveragePool", domain=DOMAIN)
def _average_pool(call: Call) -> Node:
    return channels_first(call, lambda inner: _quantized(inner, averaged(inner, _real(inner, 0)), 3))


@operator("NhwcMaxPool", domain=DOMAIN)
def _max_pool(call: Call) -> Node:
    """Channels are the last axis."""
    rank = call[0].rank
    x = permute(call[0], [0, rank - 1, *range(1, rank - 1)])
    largest = pooling.max_pool(x, *window(call, x.shape[2:]).sizes, call.flag("ceil_mode"))
    return permute(largest, [0, *range(2, rank), 1])


operator("QLinearConv", domain=DOMAIN)(lambda call: channels_first(call, quantized_conv))


@operator("QLinearSoftmax", domain=DOMAIN)
def _softmax(call: Call) -> Node:
    x = _real(call, 0)
    axis = call.axis(x.rank, -1)
    if call.integer("opset", 13) >= 13:
        return _quantized(call, reduction.softmax(x, axis), 3)
    rows = reshape(x, [*x.shape[:axis], sym.product(x.shape[axis:])])
    return _quantized(call, reshape(reduction.softmax(rows, axis), x.shape), 3)


@operator("QLinearConcat", domain=DOMAIN)
def _concat(call: Call) -> Node:
    """After the scale and zero point of the result: integers, scale and zero point of each part."""
    if len(call.inputs) < 5 or len(call.inputs) % 3 != 2:
        raise ModelError(f"expected three inputs for each part after the first two, found {len(call.inputs) - 2}")
    parts = [_real(call, first) for first in range(2, len(call.inputs), 3)]
    whole = concatenate(parts, wrap_axis(call.integer("axis"), parts[0].rank))
    return rounded(whole / cast(reshape(call[0], []), types.f32), reshape(call[1], []), call[2].dtype)


# ---- products ------------------------------------------------------------------------------------------------------


@operator("MatMulIntegerToFloat", domain=DOMAIN)
def _matmul_integer_to_float(call: Call) -> Node:
    product = integer_product(call[0], call.get(4), call[1], call.get(5))
    result = cast(product, types.f32) * (call[2] * call[3])
    bias = call.get(6)
    return result if bias is None else result + bias


@operator("DynamicQuantizeMatMul", domain=DOMAIN)
def _dynamic_quantize_matmul(call: Call) -> Node:
    """The left matrix is first made bytes between its own lowest and highest value, and 0."""
    bias = call.get(4)
    result = dynamic_product(call[0], call[1], call[2], call.get(3))
    return result if bias is None else result + bias


@operator("QGemm", domain=DOMAIN)
def _gemm(call: Call) -> Node:
    """Exact in int32, with the bias, then scaled; rounded where there is a scale of the result."""
    a, b = (transpose(x, 0, 1) if call.flag(f"trans{n}") else x for n, x in (("A", call[0]), ("B", call[3])))
    total, bias = integer_product(a, call[2], b, call[5]), call.get(6)
    total = total if bias is None else total + bias
    real = cast(total, types.f32) * (call[1] * call[4] * call.number("alpha", 1.0))
    return real if call.get(7) is None else rounded(real / call[7], call.get(8), call[8].dtype)


@operator("GatherBlockQuantized", domain=DOMAIN)
def _gather_blocks(call: Call) -> Node:
    """Rows of a table of integers of 2, 4 or 8 bits, of which each block along an axis has a scale and a zero point."""
    data, index, scales, zeros = call[0], call[1], call[2], call.get(3)
    gathered, quantized = (
        call.axis_named(name, data.rank, k) for name, k in (("gather_axis", 0), ("quantize_axis", 1))
    )
    bits, block = call.integer("bits", 4), call.integer("block_size", 128)
    if bits not in (2, 4, 8):
        raise UnsupportedError(f"a table of {bits} bits is not supported")
    if gathered == quantized:
        raise ModelError(f"gather_axis and quantize_axis are both {gathered}: blocks lie along another axis than rows")
    if data.dtype == types.u8 and bits < 8:
        last = data.shape[-1] * (8 // bits)
        data = unpacked(data, bits, [*data.shape[:-1], last])
        if zeros is not None:
            zeros = slice_(unpacked(zeros, bits, [*zeros.shape[:-1], zeros.shape[-1] * (8 // bits)]), -1, 0,
                           scales.shape[-1])  # fmt: skip
    middle = 1 << (bits - 1) if call[0].dtype == types.u8 else 0
    rows = [indexing.take(x, index, gathered) for x in (data, scales)]
    points = middle if zeros is None else cast(indexing.take(zeros, index, gathered), types.i32)
    axis = quantized if quantized < gathered else quantized + index.rank - 1

    def spread(x: Node) -> Node:
        size = rows[0].shape[axis]
        return indexing.take(
            x, constant(np.arange(size) // block) if isinstance(size, int) else iota(size) / block, axis
        )

    wide = cast(rows[0], types.i32) - (spread(points) if isinstance(points, Node) else points)
    return widened(lambda x, y: x * y)(cast(wide, scales.dtype), spread(rows[1]))


@operator("MatMulNBits", domain=DOMAIN)
def _matmul_bits(call: Call) -> Node:
    """A product with weights of 2, 4 or 8 bits, in blocks along K of a scale and a zero point each."""
    a, depth, columns = call[0], call.integer("K"), call.integer("N")
    bits, block = call.integer("bits", 4), call.integer("block_size")
    call.ignore("accuracy_level", "weight_prepacked")
    if bits not in (2, 4, 8) or call.get(4) is not None:
        raise UnsupportedError(f"weights of {bits} bits, or in another order (g_idx), are not supported")
    blocks = -(-depth // block)
    weight = unpacked(call[1], bits, [columns, blocks, block])
    scales = reshape(call[2], [columns, blocks, 1])
    zeros, bias = call.get(3), call.get(5)
    if zeros is None:
        points = constant(1 << (bits - 1), types.i32)
        real = cast(centred(weight, points), scales.dtype)
    elif zeros.dtype == types.u8:
        row = -(-blocks * bits // 8) * 8 // bits  # whole bytes
        points = slice_(unpacked(zeros, bits, [columns, row]), 1, 0, blocks)
        real = cast(centred(weight, unsqueeze(points, [2])), scales.dtype)
    else:
        real = cast(weight, scales.dtype) - reshape(zeros, [columns, blocks, 1])
    matrix = slice_(reshape(widened(lambda x, y: x * y)(real, scales), [columns, blocks * block]), 1, 0, depth)
    return contraction.linear(a, matrix, bias)


# What each number of 4 bits stands for: three bits of a magnitude behind a sign, and the quantiles of the normal
# distribution (Dettmers et al., 2023).
_FP4 = (0.0, 0.00520833, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25)
_NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
    0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
_FOUR_BITS = {0: (*_FP4, *(-x for x in _FP4)), 1: _NF4}


@operator("MatMulBnb4", domain=DOMAIN)
def _matmul_bnb4(call: Call) -> Node:
    """A product with weights of 4 bits, each the number of a value in a table, times the largest of its block."""
    a, depth, columns, block = call[0], call.integer("K"), call.integer("N"), call.integer("block_size")
    kind = call.integer("quant_type")
    call.ignore("training_mode")
    if kind not in _FOUR_BITS:
        raise ModelError(f"attribute 'quant_type': expected 0 (FP4) or 1 (NF4), found {kind}")
    if not call.flag("transB", True):
        raise UnsupportedError("weights that are not transposed (transB 0) are not supported")
    count = depth * columns
    blocks = -(-count // block)
    if call[1].size != -(-count // 2) or call[2].size != blocks:
        raise ModelError(
            f"expected {-(-count // 2)} bytes and {blocks} scales for {columns} x {depth} weights in blocks of "
            f"{block}, found {call[1].size} and {call[2].size}"
        )
    pairs = reshape(call[1], [call[1].size, 1])
    digits = binary(ops.AND, binary(ops.SHR, pairs, constant(np.array([4, 0], np.uint8))), constant(15, types.u8))
    numbers = slice_(reshape(digits, [2 * call[1].size]), 0, 0, count)
    table = constant(np.array(_FOUR_BITS[kind]).astype(a.dtype.numpy))
    scales = indexing.take(call[2], constant(np.arange(count) // block))
    weight = widened(lambda x, scale: x * scale)(indexing.take(table, cast(numbers, types.i64)), scales)
    return contraction.linear(a, reshape(weight, [columns, depth]))


def unpacked(x: Node, bits: int, shape: list[Int]) -> Node:
    """The numbers of ``bits`` bits that are packed in bytes, the lowest first."""
    each = 8 // bits
    if sym.product(shape) != x.size * each:
        raise ModelError(f"{list(x.shape)} bytes do not hold {shape} elements of {bits} bits")
    shifts = cast(iota(each) * bits, types.u8)
    digits = binary(ops.SHR, reshape(x, [x.size, 1]), shifts)
    return reshape(binary(ops.AND, digits, constant((1 << bits) - 1, types.u8)), shape)
