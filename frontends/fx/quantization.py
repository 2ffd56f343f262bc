"""PyTorch's quantisation: the operators of PT2E, products of integers, and quantisation that is undone at once.

PT2E's operators compute what their kernels in ``torch.ao.quantization.fx._decomposed`` do, in the same order and types.
A scale or zero point is a number, a tensor of one, or a tensor that broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from luminal.core import movement, types
from luminal.core.decompose import compare, contraction, grouped, math, quantization, reduction
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, cast, constant
from luminal.core.types import DType
from luminal.frontends.fx.promotion import Operand, as_node, converted, promote
from luminal.frontends.fx.registry import aten, register


def _number(value: Operand, dtype: DType) -> Node:
    """A number, which a tensor of one may hold: in PyTorch's kernels it becomes one of Python's."""
    return as_node(movement.reshape(value, []) if isinstance(value, Node) else value, dtype)


def _times(a: Operand, b: Operand) -> Node:
    """The product in the operands' common type."""
    x, y = promote([a, b])
    return x * y


def _plus(a: Operand, b: Operand) -> Node:
    x, y = promote([a, b])
    return x + y


def _minus(a: Operand, b: Operand) -> Node:
    x, y = promote([a, b])
    return x - y


def _of_channels(parameter: Node, axis: int, rank: int) -> Node:
    """A vector of parameters along ``axis`` of ``rank`` axes."""
    return movement.reshape(parameter, [parameter.size if k == axis % rank else 1 for k in range(rank)])


def _bounded(x: Node, low: Operand, high: Operand, dtype: DType) -> Node:
    return converted(compare.clamp(x, _number(low, x.dtype), _number(high, x.dtype)), dtype)


# ---- PT2E --------------------------------------------------------------------------------------------------------


def quantize_per_tensor(
    input: Node, scale: Operand, zero_point: Operand, quant_min: Operand, quant_max: Operand, dtype: DType
) -> Node:
    """Integers from floats. The inverse of the scale is one of double precision, rounded."""
    x = cast(input, types.f32)
    inverse = cast(math.reciprocal(_number(scale, types.f64)), types.f32)
    return _bounded(math.round_(x * inverse) + _number(zero_point, types.f32), quant_min, quant_max, dtype)


def dequantize_per_tensor(
    input: Node, scale: Operand, zero_point: Operand, quant_min: Operand, quant_max: Operand, dtype: DType, *,
    out_dtype: DType | None = None,
) -> Node:  # fmt: skip
    """Floats from integers; narrow types round after each step."""
    to = out_dtype or types.f32
    x = cast(cast(cast(input, to), to.compute) - _number(zero_point, to.compute), to)
    return cast(cast(x, to.compute) * _number(scale, to.compute), to)


def quantize_per_channel(
    input: Node, scales: Node, zero_points: Node, axis: int, quant_min: int, quant_max: int, dtype: DType
) -> Node:
    x = cast(input, types.f32)
    scales, zero_points = (_of_channels(p, axis, x.rank) for p in (scales, zero_points))
    whole = math.round_(_times(x, math.reciprocal(scales)))
    return _bounded(_plus(whole, zero_points), quant_min, quant_max, dtype)


def dequantize_per_channel(
    input: Node, scales: Node, zero_points: Node | None, axis: int, quant_min: int, quant_max: int, dtype: DType, *,
    out_dtype: DType | None = None,
) -> Node:  # fmt: skip
    x = input if zero_points is None else _minus(input, _of_channels(zero_points, axis, input.rank))
    return cast(_times(x, _of_channels(scales, axis, input.rank)), out_dtype or types.f32)


def quantize_per_token(
    input: Node, scales: Node, zero_points: Node, quant_min: int, quant_max: int, dtype: DType
) -> Node:
    """A scale and a zero point for each row, which is added before rounding."""
    moved = _plus(_times(input, math.reciprocal(scales)), zero_points)
    return _bounded(math.round_(moved), quant_min, quant_max, dtype)


def dequantize_per_token(
    input: Node, scales: Node, zero_points: Node, quant_min: int, quant_max: int, dtype: DType, output_dtype: DType
) -> Node:
    return cast(_times(_minus(input, zero_points), scales), output_dtype)


def quantize_per_channel_group(
    input: Node, scales: Node, zero_points: Node, quant_min: int, quant_max: int, dtype: DType, group_size: int = 128
) -> Node:
    """As ``quantize_per_token`` of groups of ``group_size`` columns."""
    rows = _grouped(input, scales, group_size)
    found = quantize_per_token(rows, _column(scales), _column(zero_points), quant_min, quant_max, dtype)
    return movement.reshape(found, input.shape)


def dequantize_per_channel_group(
    input: Node, scales: Node, zero_points: Node | None, quant_min: int, quant_max: int, dtype: DType, group_size: int,
    output_dtype: DType,
) -> Node:  # fmt: skip
    rows = _grouped(input, scales, group_size)
    zero = constant(0, types.i32) if zero_points is None else _column(zero_points)
    return movement.reshape(
        dequantize_per_token(rows, _column(scales), zero, quant_min, quant_max, dtype, output_dtype), input.shape
    )


def _grouped(x: Node, scales: Node, size: int) -> Node:
    columns = x.shape[-1]
    if isinstance(columns, int) and size > columns and scales.shape[-1] == 1:
        size = columns
    return movement.reshape(x, [-1, size])


def _column(parameter: Node) -> Node:
    return movement.reshape(parameter, [parameter.size, 1])


def choose_qparams(input: Node, quant_min: int, quant_max: int, eps: float, dtype: DType) -> tuple[Node, Node]:
    """The scale and the zero point of all elements, vectors of one."""
    low, high = reduction.min_(input), reduction.max_(input)
    scale, zero = quantization.parameters(low, high, quant_min, quant_max, constant(eps, types.f32))
    return _one(scale, types.f64), _one(zero, types.i64)


def choose_symmetric_qparams(
    input: Node, quant_min: int, quant_max: int, eps: float, dtype: DType
) -> tuple[Node, Node]:
    low, high = reduction.min_(input), reduction.max_(input)
    scale = quantization.symmetric_scale(low, high, quant_min, quant_max, constant(eps, types.f32))
    return _one(scale, types.f64), _one(constant(128 if dtype == types.u8 else 0, types.i64), types.i64)


def _one(x: Node, dtype: DType) -> Node:
    return cast(movement.reshape(x, [1]), dtype)


def fake_quant_per_channel(
    input: Node, scales: Node, zero_points: Node, axis: int, quant_min: int, quant_max: int
) -> Node:
    return _fake(input, scales, zero_points, quant_min, quant_max, axis)[0]


_PT2E: dict[str, Callable[..., Any]] = {
    "quantize_per_tensor.default quantize_per_tensor.tensor quantize_per_tensor.tensor2": quantize_per_tensor,
    "dequantize_per_tensor.default dequantize_per_tensor.tensor dequantize_per_tensor.tensor2": dequantize_per_tensor,
    "quantize_per_channel.default": quantize_per_channel,
    "dequantize_per_channel.default": dequantize_per_channel,
    "quantize_per_token.default": quantize_per_token,
    "dequantize_per_token.default": dequantize_per_token,
    "quantize_per_channel_group.default": quantize_per_channel_group,
    "dequantize_per_channel_group.default": dequantize_per_channel_group,
    "choose_qparams.tensor": choose_qparams,
    "choose_qparams_symmetric.tensor": choose_symmetric_qparams,
    "convert_element_type.no_fuse": converted,
    "fake_quant_per_channel.default": fake_quant_per_channel,
}
for _overloads, _handler in _PT2E.items():
    for _overload in _overloads.split():
        register(f"quantized_decomposed.{_overload}", _handler)


# ---- quantisation that is undone at once ---------------------------------------------------------------------------


def _fake(x: Node, scale: Operand, zero: Operand, low: int, high: int, axis: int | None = None) -> tuple[Node, Node]:
    """``x`` as the integers ``low .. high`` hold it, and where it lies within their range; by a float32 scale."""
    wide = x.dtype.compute
    scale, zero = (
        _number(p, types.f32)
        if axis is None or not isinstance(p, Node)
        else cast(_of_channels(p, axis, x.rank), types.f32)
        for p in (scale, zero)
    )
    place = math.round_(cast(x, wide) * cast(math.reciprocal(scale), wide)) + cast(zero, wide)
    whole = compare.number_minimum(compare.number_maximum(place, constant(low, wide)), constant(high, wide))
    within = compare.less_equal(low, place) & compare.less_equal(place, high)
    return cast((whole - cast(zero, wide)) * cast(scale, wide), x.dtype), within


@aten("fake_quantize_per_tensor_affine_cachemask")
def fake_quantize_with_mask(
    self: Node, scale: Operand, zero_point: Operand, quant_min: int, quant_max: int
) -> tuple[Node, Node]:
    return _fake(self, scale, zero_point, quant_min, quant_max)


@aten("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def fake_quantize_where_enabled(
    self: Node, scale: Node, zero_point: Node, fake_quant_enabled: Node, quant_min: int, quant_max: int
) -> tuple[Node, Node]:
    found, within = _fake(self, scale, zero_point, quant_min, quant_max)
    enabled = compare.not_equal(movement.reshape(fake_quant_enabled, []), 0)
    return math.where(enabled, found, self), within | compare.logical_not(enabled)


@aten("fake_quantize_per_channel_affine_cachemask")
def fake_quantize_channels_with_mask(
    self: Node, scale: Node, zero_point: Node, axis: int, quant_min: int, quant_max: int
) -> tuple[Node, Node]:
    return _fake(self, scale, zero_point, quant_min, quant_max, axis)


@aten("_fake_quantize_learnable_per_tensor_affine")
def fake_quantize_learnable(
    self: Node, scale: Node, zero_point: Node, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Node:
    """A learned zero point is rounded to an integer in the range, halves up."""
    zero = math.trunc(compare.clamp(cast(zero_point, types.f32) + 0.5, quant_min, quant_max))
    return _fake(self, scale, zero, quant_min, quant_max)[0]


@aten("_fake_quantize_learnable_per_channel_affine")
def fake_quantize_learnable_channels(
    self: Node, scale: Node, zero_point: Node, axis: int, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Node:
    """Learned zero points are rounded to integers in the range, halves to even."""
    zero = compare.clamp(math.round_(cast(zero_point, types.f32)), quant_min, quant_max)
    return _fake(self, scale, zero, quant_min, quant_max, axis)[0]


# ---- products ----------------------------------------------------------------------------------------------------


@aten("_int_mm")
def integer_matmul(self: Node, mat2: Node) -> Node:
    """The product of 8-bit integers, in int32."""
    return quantization.integer_product(self, None, mat2, None)


@aten("_weight_int8pack_mm")
def matmul_of_int8_weight(self: Node, mat2: Node, scales: Node) -> Node:
    """``[M, K] x [N, K] -> [M, N]`` with a scale for each output channel, summed in float32."""
    wide = self.dtype.compute
    return cast(contraction.linear(cast(self, wide), cast(mat2, wide)) * cast(scales, wide), self.dtype)


@aten("_grouped_mm")
def grouped_matmul(
    self: Node, mat2: Node, offs: Node | None = None, bias: Node | None = None, out_dtype: DType | None = None
) -> Node:
    """Groups of rows, columns or terms that stop before ``offs``; without it, a batch of products."""
    if bias is not None:
        raise UnsupportedError("a bias of grouped matrix products: add it to the result")
    wide = self.dtype.compute
    a, b = cast(self, wide), cast(mat2, wide)
    product = contraction.matmul(a, b) if offs is None else grouped.grouped_matmul(a, b, offs)
    return cast(product, out_dtype or self.dtype)


register("transformers.grouped_mm_fallback.default", lambda input, weight, offs: grouped_matmul(input, weight, offs))
