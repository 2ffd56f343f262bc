"""Linear quantisation: integers that stand for real numbers by a scale and a zero point."""

from __future__ import annotations

from luminal.core import types
from luminal.core.decompose.quantization import centred, integer_product, rounded
from luminal.core.errors import ModelError
from luminal.core.ir import Node, cast, expand
from luminal.core.movement import reshape
from luminal.frontends.onnx.contraction import convolved
from luminal.frontends.onnx.logic import converted
from luminal.frontends.onnx.registry import Call, operator
from luminal.frontends.onnx.tensors import element_type


def _per_axis(parameter: Node, x: Node, axis: int, block: int) -> Node:
    """A scale or zero point as a value that broadcasts against ``x``: one for all, one for each index of ``axis``, or
    one for each block of ``block`` indices."""
    if parameter.size == 1:
        return reshape(parameter, [])
    if parameter.rank == 1 and not block:
        count, length = parameter.size, x.shape[axis]
        if isinstance(count, int) and isinstance(length, int) and count != length:
            raise ModelError(
                f"expected a scale and a zero point for each of the {length} indices of axis {axis} of "
                f"{list(x.shape)}, found {count}"
            )
        return reshape(parameter, [parameter.size, *[1] * (x.rank - 1 - axis)])
    if parameter.rank != x.rank or not block:
        raise ModelError(f"a scale of shape {list(parameter.shape)} does not fit {list(x.shape)} along axis {axis}")
    blocks = parameter.shape[axis]
    spread = [*parameter.shape[: axis + 1], block, *parameter.shape[axis + 1 :]]
    split = reshape(parameter, [*parameter.shape[: axis + 1], 1, *parameter.shape[axis + 1 :]])
    whole = [*parameter.shape[:axis], blocks * block, *parameter.shape[axis + 1 :]]
    return reshape(expand(split, spread), whole)


def _axis(call: Call) -> tuple[int, int]:
    rank = max(call[0].rank, 1)
    axis = call.integer("axis", 1)
    # The attribute has no influence where one scale serves all, and its default may then lie outside.
    return axis % rank if -rank <= axis < rank else 0, call.integer("block_size", 0)


def _check_scale(scale: Node) -> None:
    if not scale.dtype.is_float:
        raise ModelError(f"expected a scale of floats, found {scale.dtype}")


@operator("DequantizeLinear")
@operator("DequantizeLinear", domain="com.microsoft")  # with 16 bits, before ONNX had them
def _dequantize(call: Call) -> Node:
    x, scale, zero = call[0], call[1], call.get(2)
    _check_scale(scale)
    if x.dtype.is_bool or (x.dtype.is_float and x.dtype.bits > 8):
        raise ModelError(f"expected integers, or floats of 8 bits or fewer, found {x.dtype}")
    if zero is not None and zero.dtype != x.dtype:
        raise ModelError(f"expected a zero point of the type of what it belongs to, {x.dtype}, found {zero.dtype}")
    axis, block = _axis(call)
    # Integers are subtracted as integers: exact, as far as float32 holds the difference.
    whole = x if zero is None or x.dtype.is_float else centred(x, _per_axis(zero, x, axis, block))
    result = cast(whole, types.f32) * cast(_per_axis(scale, x, axis, block), types.f32)
    out = call.integer("output_dtype", 0)
    return cast(result, element_type(out, "attribute 'output_dtype'") if out else scale.dtype)


@operator("QuantizeLinear")
@operator("QuantizeLinear", domain="com.microsoft")
def _quantize(call: Call) -> Node:
    x, scale, zero = call[0], call[1], call.get(2)
    axis, block = _axis(call)
    out = call.integer("output_dtype", 0)
    to = zero.dtype if zero is not None else element_type(out, "attribute 'output_dtype'") if out else types.u8
    saturate = call.flag("saturate", True)
    call.ignore("precision")
    _check_scale(scale)
    if to.is_bool or to.bits > (8 if to.is_float else 16):
        raise ModelError(f"expected integers of at most 16 bits, or floats of 8 or fewer, to quantise to, found {to}")
    scaled = cast(x, types.f32) / cast(_per_axis(scale, x, axis, block), types.f32)
    if to.is_float:  # whose zero point is 0
        return converted(scaled, to, saturate)
    return rounded(scaled, None if zero is None else _per_axis(zero, x, axis, block), to)


# ---- products, exact in int32 ---------------------------------------------------------------------------------------


def _by_row(parameter: Node) -> Node:
    """One scale or zero point for each row of the left matrix, laid along the rows."""
    return parameter if parameter.size == 1 or parameter.rank != 1 else reshape(parameter, [parameter.size, 1])


def _by_channel(parameter: Node, rank: int) -> Node:
    """One scale or zero point for each output channel, laid along the axis before ``rank - 1`` others."""
    return parameter if parameter.size == 1 else reshape(parameter, [parameter.size, *[1] * (rank - 1)])


@operator("MatMulInteger")
def _matmul_integer(call: Call) -> Node:
    a_zero = call.get(2)
    return integer_product(call[0], None if a_zero is None else _by_row(a_zero), call[1], call.get(3))


@operator("ConvInteger")
def _conv_integer(call: Call) -> Node:
    x, weight, zero = call[0], call[1], call.get(3)
    zero = None if zero is None else _by_channel(zero, weight.rank)
    return convolved(call, centred(x, call.get(2)), centred(weight, zero), None)


@operator("QLinearMatMul")
def _quantized_matmul(call: Call) -> Node:
    """Scaled and rounded once."""
    (a, a_scale, a_zero), (b, b_scale, b_zero), (scale, zero) = (
        [call[k] for k in range(3)],
        [call[k] for k in range(3, 6)],
        [call[k] for k in range(6, 8)],
    )
    product = integer_product(a, _by_row(a_zero), b, b_zero)
    factor = cast(_by_row(a_scale), types.f32) * cast(b_scale, types.f32) / cast(scale, types.f32)
    return rounded(cast(product, types.f32) * factor, zero, zero.dtype)


def quantized_conv(call: Call) -> Node:
    """Scaled and rounded once; weights may have a scale for each output channel."""
    x, weight, bias = call[0], call[3], call.get(8)
    total = convolved(call, centred(x, reshape(call[2], [])), centred(weight, _by_channel(call[5], weight.rank)), bias)
    factor = cast(call[1], types.f32) * cast(call[4], types.f32) / cast(call[6], types.f32)
    factor = _by_channel(factor, x.rank - 1)
    return rounded(cast(total, types.f32) * factor, call[7], call[7].dtype)


operator("QLinearConv")(quantized_conv)
