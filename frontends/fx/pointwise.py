"""Elementwise operators: each family is a table of lines under the one rule of types that its members share."""

from __future__ import annotations

from collections.abc import Callable
from math import pi

from luminal.core import movement, ops, types
from luminal.core.decompose import math, normalize, numbers
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node, binary, broadcast, cast, constant
from luminal.core.types import DType
from luminal.frontends.fx.promotion import Operand, Scalar, as_node, promote
from luminal.frontends.fx.registry import aten, direct, table

Unary = Callable[[Node], Node]
Binary = Callable[[Node, Node], Node]


# ---- unary: functions of real numbers, for which integers become floats --------------------------


def _real(function: Unary) -> Callable[..., Node]:
    def handler(self: Node, *, result: DType) -> Node:
        return function(cast(self, result))

    return handler


table(
    {
        "acos arccos": math.acos,
        "acosh arccosh": math.acosh,
        "asin arcsin": math.asin,
        "asinh arcsinh": math.asinh,
        "atan arctan": math.atan,
        "atanh arctanh": math.atanh,
        "cos": math.cos,
        "cosh": math.cosh,
        "erf special_erf": math.erf,
        "erfc special_erfc": math.erfc,
        "exp": math.exp,
        "exp2 special_exp2": math.exp2,
        "digamma special_digamma special_psi": math.digamma,
        "expm1 special_expm1": math.expm1,
        "lgamma special_gammaln": math.lgamma,
        "log": math.log,
        "log10": math.log10,
        "log1p special_log1p": math.log1p,
        "log2": math.log2,
        "reciprocal": math.reciprocal,
        "rsqrt": math.rsqrt,
        "sigmoid special_expit": math.sigmoid,
        "sin": math.sin,
        "sinh": math.sinh,
        "sqrt": math.sqrt,
        "tan": math.tan,
        "tanh": math.tanh,
    },
    _real,
)


# ---- unary: functions whose result has the operand's type ----------------------------------------


direct(
    {
        "abs absolute": math.abs_,
        "bitwise_not": math.bitwise_not,
        "frac": math.frac,
        "neg negative": math.neg,
        "relu": math.relu,
        "relu6": math.relu6,
        "sign sgn": math.sign,
        "hardsigmoid": math.hardsigmoid,
        "hardswish": math.hardswish,
        "log_sigmoid": math.log_sigmoid,
        "mish": math.mish,
        "selu": math.selu,
        "silu": math.silu,
        "square": math.square,
        "isfinite": math.isfinite,
        "isinf": math.isinf,
        "isnan": math.isnan,
        "logical_not": math.logical_not,
        "signbit": math.signbit,
        "frexp.Tensor": numbers.frexp,
    }
)


def _rounding(function: Unary) -> Callable[..., Node]:
    """Rounding leaves integers as they are."""

    def handler(self: Node) -> Node:
        return function(self) if self.dtype.is_float else self

    return handler


table({"ceil": math.ceil, "floor": math.floor, "trunc fix": math.trunc, "round": math.round_}, _rounding)


@aten("round.decimals")
def round_decimals(self: Node, *, decimals: int = 0) -> Node:
    return math.round_(self, decimals) if self.dtype.is_float else self


@aten("isposinf")
def isposinf(self: Node) -> Node:
    return math.isinf(self, negative=False)


@aten("isneginf")
def isneginf(self: Node) -> Node:
    return math.isinf(self, positive=False)


@aten("angle")
def angle(self: Node, *, result: DType) -> Node:
    """The angle of real numbers: pi for those below zero."""
    x = cast(self, result)
    return math.where(math.isnan(x), x, math.where(x < 0, constant(pi, x.dtype), constant(0, x.dtype)))


# ---- binary arithmetic ---------------------------------------------------------------------------


def _arithmetic(function: Binary) -> Callable[..., Node]:
    """Operands in their common type; narrow floats meet in float32, so that a Python number is not rounded first."""

    def handler(self: Operand, other: Operand, *, result: DType) -> Node:
        a, b = promote([self, other], result.compute)
        return cast(function(a, b), result)

    return handler


def _true_division(a: Node, b: Node) -> Node:
    return a / b


table(
    {
        "atan2 arctan2": math.atan2,
        "copysign.Tensor copysign.Scalar": math.copysign,
        "div.Tensor div.Scalar true_divide.Tensor true_divide.Scalar divide.Tensor divide.Scalar": _true_division,
        "floor_divide floor_divide.Scalar": math.floor_divide,
        "fmax": math.number_maximum,
        "fmin": math.number_minimum,
        "fmod.Tensor fmod.Scalar": math.fmod,
        "hypot": math.hypot,
        "maximum max.other": math.maximum,
        "minimum min.other": math.minimum,
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": math.remainder,
    },
    _arithmetic,
)


def _sum(a: Node, b: Node) -> Node:
    return a | b if a.dtype.is_bool else a + b


def product(a: Node, b: Node) -> Node:
    """The product of two of one type; of truth values, their conjunction."""
    return a & b if a.dtype.is_bool else a * b


mul = _arithmetic(product)
table({"mul.Tensor mul.Scalar multiply.Tensor multiply.Scalar": mul}, lambda handler: handler)


@aten("add.Tensor", "add.Scalar")
def add(self: Operand, other: Operand, alpha: Scalar = 1, *, result: DType) -> Node:
    a, b = promote([self, other], result.compute)
    return cast(_sum(a, b if _is_one(alpha) else product(b, as_node(alpha, b.dtype))), result)


@aten("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def sub(self: Operand, other: Operand, alpha: Scalar = 1, *, result: DType) -> Node:
    a, b = promote([self, other], result.compute)
    return cast(a - (b if _is_one(alpha) else b * as_node(alpha, b.dtype)), result)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(self: Operand, other: Operand, alpha: Scalar = 1, *, result: DType) -> Node:
    return sub(other, self, alpha, result=result)


def _is_one(value: Scalar) -> bool:
    return not isinstance(value, bool) and value == 1


@aten("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode", "divide.Scalar_mode")
def div_mode(self: Operand, other: Operand, *, rounding_mode: str | None = None, result: DType) -> Node:
    a, b = promote([self, other], result.compute)
    if rounding_mode is None:
        return cast(a / b, result)
    if rounding_mode == "trunc" and result.compute != result:
        return math.trunc(cast(a / b, result))  # PyTorch's narrow floats are rounded after each step
    return cast(math.floor_divide(a, b) if rounding_mode == "floor" else math.trunc_divide(a, b), result)


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(self: Operand, exponent: Operand, *, result: DType) -> Node:
    """Small constant exponents of floats are spelled out as PyTorch's own kernel does."""
    spelled = _POWERS.get(exponent) if isinstance(exponent, int | float) and not isinstance(exponent, bool) else None
    if spelled is not None and (result.is_float or exponent in (2, 3)):
        return cast(spelled(as_node(self, result.compute)), result)
    base, power = promote([self, exponent], result.compute)
    return cast(math.pow_(base, power), result)


_POWERS: dict[float, Unary] = {
    -2: lambda x: math.reciprocal(x * x),
    -1: math.reciprocal,
    -0.5: math.rsqrt,
    0.5: math.sqrt,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
}


@aten("ldexp.Tensor")
def ldexp(self: Node, other: Node, *, result: DType) -> Node:
    """``self`` times the power of two in the type of ``other``."""
    power = math.exp2(other if other.dtype.is_float else cast(other, types.f32))
    return mul(self, power, result=result)


@aten("addcmul")
def addcmul(self: Node, tensor1: Node, tensor2: Node, value: Scalar = 1, *, result: DType) -> Node:
    x, a, b = promote([self, tensor1, tensor2], result.compute)
    return cast(x + (a * b if _is_one(value) else a * as_node(value, a.dtype) * b), result)


@aten("addcdiv")
def addcdiv(self: Node, tensor1: Node, tensor2: Node, value: Scalar = 1, *, result: DType) -> Node:
    x, a, b = promote([self, tensor1, tensor2], result.compute)
    return cast(x + (a / b if _is_one(value) else a * as_node(value, a.dtype) / b), result)


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(self: Node, end: Node, weight: Operand, *, result: DType) -> Node:
    """From ``self`` to ``end``, measured from the nearer end, so that both ends are met exactly (as PyTorch does)."""
    a, b, w = broadcast(*promote([self, end, weight], result.compute))
    near = (w < 0.5) & (w > -0.5)
    return cast(math.where(near, a + w * (b - a), b - (b - a) * (1 - w)), result)


# ---- comparisons, logic and numbers of one type -------------------------------------------------


def _of_promoted(function: Binary) -> Callable[..., Node]:
    def handler(self: Operand, other: Operand) -> Node:
        return function(*promote([self, other]))

    return handler


table(
    {
        "eq.Tensor eq.Scalar": math.equal,
        "ge.Tensor ge.Scalar greater_equal.Tensor greater_equal.Scalar": math.greater_equal,
        "gt.Tensor gt.Scalar greater.Tensor greater.Scalar": math.greater,
        "le.Tensor le.Scalar less_equal.Tensor less_equal.Scalar": math.less_equal,
        "lt.Tensor lt.Scalar less.Tensor less.Scalar": math.less,
        "ne.Tensor ne.Scalar not_equal.Tensor not_equal.Scalar": math.not_equal,
        "gcd": numbers.gcd,
        "lcm": numbers.lcm,
        "nextafter": numbers.nextafter,
    },
    _of_promoted,
)


def _logical(function: Binary) -> Callable[..., Node]:
    def handler(self: Node, other: Node) -> Node:
        return function(*broadcast(self, other))

    return handler


table({"logical_and": math.logical_and, "logical_or": math.logical_or, "logical_xor": math.logical_xor}, _logical)


def _bits(op: ops.Op) -> Callable[..., Node]:
    def handler(self: Operand, other: Operand) -> Node:
        return binary(op, *promote([self, other]))

    return handler


table(
    {
        "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor __and__.Tensor __and__.Scalar": ops.AND,
        "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor __or__.Tensor __or__.Scalar": ops.OR,
        "bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor __xor__.Tensor __xor__.Scalar": ops.XOR,
        "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar __lshift__.Tensor __lshift__.Scalar": ops.SHL,
        "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar __rshift__.Tensor __rshift__.Scalar": ops.SHR,
    },
    _bits,
)


# ---- choices -------------------------------------------------------------------------------------


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(condition: Node, self: Operand, other: Operand, *, result: DType) -> Node:
    return math.where(*broadcast(math.not_equal(condition, 0) if not condition.dtype.is_bool else condition,
                                 *promote([self, other], result)))  # fmt: skip


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Node, mask: Node, value: Operand) -> Node:
    return math.where(*broadcast(mask, as_node(value, self.dtype), self))


@aten("clamp", "clamp.Tensor", "clip", "clip.Tensor")
def clamp(self: Node, min: Operand | None = None, max: Operand | None = None, *, result: DType) -> Node:
    """Bounded by ``min`` first: where the bounds cross, ``max`` wins."""
    low, high = (None if b is None else as_node(b, result) for b in (min, max))
    return math.clamp(cast(self, result), low, high)


@aten("clamp_min", "clamp_min.Tensor")
def clamp_min(self: Node, min: Operand, *, result: DType) -> Node:
    return clamp(self, min, None, result=result)


@aten("clamp_max", "clamp_max.Tensor")
def clamp_max(self: Node, max: Operand, *, result: DType) -> Node:
    return clamp(self, None, max, result=result)


@aten("nan_to_num")
def nan_to_num(self: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Node:
    if not self.dtype.is_float:
        return self
    finite = math.where(math.isnan(self), nan or 0.0, self)
    high = self.dtype.max if posinf is None else posinf
    low = self.dtype.min if neginf is None else neginf
    return math.where(isposinf(self), high, math.where(isneginf(self), low, finite))


# ---- activations with parameters -----------------------------------------------------------------


direct(
    {
        "gelu": math.gelu,
        "leaky_relu": math.leaky_relu,
        "elu": math.elu,
        "celu": math.celu,
        "threshold": math.threshold,
        "hardshrink": math.hardshrink,
        "softshrink": math.softshrink,
        "glu": math.glu,
    }
)


@aten("hardtanh")
def hardtanh(self: Node, min_val: Scalar = -1, max_val: Scalar = 1) -> Node:
    return math.hardtanh(self, as_node(min_val, self.dtype), as_node(max_val, self.dtype))


@aten("softplus")
def softplus(self: Node, beta: float = 1, threshold: float = 20) -> Node:
    return math.softplus(self, beta, threshold)


@aten("prelu")
def prelu(self: Node, weight: Node) -> Node:
    """One slope, or one for each channel (axis 1)."""
    return math.prelu(self, normalize.channels(weight, self) if self.rank > 1 else movement.reshape(weight, []))


@aten("alpha_dropout", "feature_alpha_dropout")
def alpha_dropout(input: Node, p: float = 0.5, train: bool = False) -> Node:
    """The identity at inference."""
    if train:
        raise UnsupportedError("alpha dropout is active; export the module in evaluation mode, after .eval()")
    return input
