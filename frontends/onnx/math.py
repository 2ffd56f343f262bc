"""Elementwise operators: arithmetic, functions, activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from luminal.core import types
from luminal.core.decompose import math
from luminal.core.decompose.common import widened
from luminal.core.ir import Node, Operand, cast
from luminal.core.movement import reshape
from luminal.frontends.onnx.registry import Call, Importer, of_first, of_pair, operator


def _variadic(function: Callable[[Node, Node], Node]) -> Importer:
    return lambda call: reduce(function, call.operands)


for _name, _function in {
    "Abs": math.abs_,
    "Acos": math.acos,
    "Acosh": math.acosh,
    "Asin": math.asin,
    "Asinh": math.asinh,
    "Atan": math.atan,
    "Atanh": math.atanh,
    "Ceil": math.ceil,
    "Cos": math.cos,
    "Cosh": math.cosh,
    "Erf": math.erf,
    "Exp": math.exp,
    "Floor": math.floor,
    "HardSwish": math.hardswish,
    "Log": math.log,
    "Mish": math.mish,
    "Neg": math.neg,
    "Reciprocal": math.reciprocal,
    "Relu": math.relu,
    "Round": math.round_,
    "Sigmoid": math.sigmoid,
    "Sin": math.sin,
    "Sinh": math.sinh,
    "Softplus": math.softplus,
    "Softsign": math.softsign,
    "Sqrt": math.sqrt,
    "Tan": math.tan,
    "Tanh": math.tanh,
}.items():
    operator(_name)(of_first(_function))

# Of NaN, the sign is NaN, unlike PyTorch's.
operator("Sign")(of_first(lambda x: math.where(math.isnan(x), x, math.sign(x))))
operator("Add")(of_pair(lambda a, b: a + b))
operator("Sub")(of_pair(math.sub))
operator("Mul")(of_pair(lambda a, b: a * b))
operator("Div")(of_pair(lambda a, b: a / b))  # of integers: truncates toward zero
operator("Max")(_variadic(math.maximum))
operator("Min")(_variadic(math.minimum))


@operator("PRelu")
def _prelu(call: Call) -> Node:
    """Before version 7, a slope with one axis holds one value for each channel."""
    x, slope = call[0], call[1]
    if call.opset < 7 and slope.size != 1:
        slope = reshape(slope, [slope.size, *[1] * (x.rank - 2)])
    return _sloped(x, slope)


@widened
def _sloped(x: Node, slope: Operand) -> Node:
    """``x * slope`` below zero, else ``x``: a zero stays, whatever the slope is. In PyTorch's it has the slope."""
    return math.where(math.less(x, 0), x * slope, x)


@operator("Sum")
def _sum(call: Call) -> Node:
    @widened
    def total(*operands: Node) -> Node:
        return reduce(lambda a, b: a + b, operands)

    return total(*call.operands)


@operator("Mean")
def _mean(call: Call) -> Node:
    @widened
    def mean(*operands: Node) -> Node:
        return reduce(lambda a, b: a + b, operands) / len(operands)

    return mean(*call.operands)


@operator("Pow")
def _pow(call: Call) -> Node:
    base, exponent = call.pair()
    if base.dtype == exponent.dtype or not base.dtype.is_integer or not exponent.dtype.is_float:
        return math.pow_(base, cast(exponent, base.dtype))
    # An integer to a fractional power is a fraction before it is an integer again.
    return cast(math.pow_(cast(base, types.f64), cast(exponent, types.f64)), base.dtype)


operator("Mod")(lambda call: (math.fmod if call.flag("fmod") else math.remainder)(call[0], call[1]))


@operator("Clip")
def _clip_by_attributes(call: Call) -> Node:
    """The defaults are the limits of float32, which infinities become; a narrower type does not reach them."""
    x = call[0]
    low, high = call.number("min", types.f32.min), call.number("max", types.f32.max)
    return math.clamp(x, None if low < x.dtype.min else low, None if high > x.dtype.max else high)


operator("Clip", since=11)(lambda call: math.clamp(call[0], call.get(1), call.get(2)))


# ---- activations ---------------------------------------------------------------------------------------------------


def thresholded_relu(x: Node, limit: float) -> Node:
    """``x`` where it is above ``limit``, else 0, of NaN too."""
    return math.where(math.less(limit, x), x, 0)


operator("Celu")(of_first(math.celu, alpha=1.0))
operator("Elu")(of_first(math.elu, alpha=1.0))
operator("Gelu")(lambda call: math.gelu(call[0], call.text("approximate", "none")))
operator("HardSigmoid")(of_first(math.hardsigmoid, alpha=0.2, beta=0.5))
operator("LeakyRelu")(of_first(_sloped, alpha=0.01))
operator("Selu")(of_first(math.selu, alpha=1.6732632423543772, gamma=1.0507009873554805))
operator("Swish")(of_first(math.swish, alpha=1.0))
operator("ThresholdedRelu")(of_first(thresholded_relu, alpha=1.0))
