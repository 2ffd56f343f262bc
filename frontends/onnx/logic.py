"""Comparisons, logic, bits and conversions of type."""

from __future__ import annotations

from functools import partial

from luminal.core import ops, types
from luminal.core.decompose import conversion, math, text
from luminal.core.errors import ModelError
from luminal.core.ir import Node, binary, bitcast, cast
from luminal.core.types import DType
from luminal.frontends.onnx.registry import Call, of_first, of_pair, operator
from luminal.frontends.onnx.tensors import element_type

for _name, _function in {
    "Equal": math.equal,
    "Less": math.less,
    "LessOrEqual": math.less_equal,
    "Greater": math.greater,
    "GreaterOrEqual": math.greater_equal,
    "And": math.logical_and,
    "Or": math.logical_or,
    "Xor": math.logical_xor,
}.items():
    operator(_name)(of_pair(_function))

for _name, _op in {"BitwiseAnd": ops.AND, "BitwiseOr": ops.OR, "BitwiseXor": ops.XOR}.items():
    operator(_name)(of_pair(partial(binary, _op)))

operator("Not")(of_first(math.logical_not))
operator("BitwiseNot")(of_first(math.bitwise_not))
operator("IsNaN")(of_first(math.isnan))
operator("Where")(lambda call: math.where(call[0], call[1], call[2]))


@operator("IsInf")
def _is_inf(call: Call) -> Node:
    negative, positive = call.flag("detect_negative", True), call.flag("detect_positive", True)
    return math.isinf(call[0], negative=negative, positive=positive)


@operator("BitShift")
def _bit_shift(call: Call) -> Node:
    direction = call.text("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"attribute 'direction': expected LEFT or RIGHT, found {direction!r}")
    return binary(ops.SHL if direction == "LEFT" else ops.SHR, call[0], call[1])


# ---- conversions ---------------------------------------------------------------------------------------------------


operator("Cast")(lambda call: _cast_to(call, element_type(call.integer("to"), "attribute 'to'")))
operator("CastLike")(lambda call: _cast_to(call, call[1].dtype))
operator("BitCast")(lambda call: bitcast(call[0], element_type(call.integer("to"), "attribute 'to'")))


def _cast_to(call: Call, to: DType) -> Node:
    return converted(
        call[0], to, call.flag("saturate", True), call.choice("round_mode", "up", ("up", "down", "nearest"))
    )


def converted(x: Node, to: DType, saturate: bool = True, mode: str = "up") -> Node:
    """``x`` as ``to``. For 8-bit floats it is said whether values beyond the largest saturate or become the type's
    infinity or NaN, and ``mode`` is how to round to powers of two."""
    if x.dtype.is_text or to.is_text:
        return text.converted(x, to)
    if to.bits < 8 and to.is_integer and x.dtype.is_float:
        return cast(cast(x, types.i32), to)  # wraps, where a direct conversion would saturate
    if to.bits != 8 or not to.is_float:
        return cast(x, to)
    if x.dtype == to:
        return x
    if to == types.f8e8m0:
        return conversion.to_power_of_two(x, mode, saturate)
    return conversion.saturating(x, to) if saturate else conversion.overflowing(x, to)
