"""Random numbers, from luminal's generator (``core.decompose.random``).

Each operator is a draw of its own, and each call draws anew. The attribute ``seed`` gives an operator a key of its own:
the bits of that float32, or for Dropout, where it is one, the integer.
"""

from __future__ import annotations

import numpy as np

from luminal.core.decompose import random as draws
from luminal.core.decompose.exponential import exp
from luminal.core.decompose.random import Words
from luminal.core.decompose.reduction import max_
from luminal.core.errors import DTypeError
from luminal.core.interp import constant_value
from luminal.core.ir import Node, Shape, cast, constant, expand
from luminal.core.types import DType, bool_, f32, i32
from luminal.frontends.onnx.registry import Call, operator, scalar
from luminal.frontends.onnx.tensors import element_type


def _words(call: Call, shape: Shape) -> Words:
    if "seed" not in call.attributes:
        return call.random.words(shape)
    if call.op == "Dropout":
        return call.random.words(shape, call.integer("seed"))
    return call.random.words(shape, int(np.float32(call.number("seed")).view(np.uint32)))


def _type(call: Call, default: DType) -> DType:
    return element_type(call.integer("dtype"), "attribute 'dtype'") if "dtype" in call.attributes else default


@operator("RandomUniform", "RandomUniformLike")
def _uniform(call: Call) -> Node:
    low, high = call.number("low", 0.0), call.number("high", 1.0)
    shape, dtype = _result(call)
    return cast(draws.uniform(_words(call, shape), dtype.compute) * (high - low) + low, dtype)


@operator("RandomNormal", "RandomNormalLike")
def _normal(call: Call) -> Node:
    mean, scale = call.number("mean", 0.0), call.number("scale", 1.0)
    shape, dtype = _result(call)
    return cast(draws.normal(_words(call, shape), dtype.compute) * scale + mean, dtype)


def _result(call: Call) -> tuple[Shape, DType]:
    """The shape and type of what is drawn."""
    like = call.op.endswith("Like")
    dtype = _type(call, call[0].dtype if like else f32)
    if not dtype.is_float:
        raise DTypeError(f"expected numbers of a float type to be drawn, found {dtype}")
    return call[0].shape if like else tuple(call.integers("shape") or ()), dtype


@operator("Bernoulli")
def _bernoulli(call: Call) -> Node:
    return cast(draws.bernoulli(_words(call, call[0].shape), call[0]), _type(call, call[0].dtype))


@operator("Multinomial")
def _multinomial(call: Call) -> Node:
    """The input holds logarithms of probabilities, up to a summand for each row."""
    logarithms = cast(call[0], call[0].dtype.compute)
    weights = exp(logarithms - max_(logarithms, 1, keepdims=True))
    words = _words(call, (call[0].shape[0], call.integer("sample_size", 1)))
    return cast(draws.categories(words, weights), _type(call, i32))


@operator("Dropout")
def _dropout(call: Call) -> tuple[Node, Node]:
    """From version 7 to 11 models say nothing of training."""
    x = call[0]
    if call.opset < 7 and not call.flag("is_test"):
        dropped, mask = draws.dropout(_words(call, x.shape), x, call.number("ratio", 0.5))
        return dropped, cast(mask, x.dtype)
    training = call.get(2) is not None and scalar(call.array(2), "training_mode")
    ratio = call.get(1) if call.opset >= 12 else None
    if training and (ratio is None or constant_value(ratio) != 0):
        return draws.dropout(_words(call, x.shape), x, 0.5 if ratio is None else ratio)
    call.ignore("ratio", "seed")
    kept = constant(True, bool_) if call.opset >= 10 else constant(1, x.dtype)
    return x, expand(kept, x.shape)
