"""Recurrent layers: RNN, LSTM and GRU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TypeAlias

from luminal.core import types
from luminal.core.decompose import activation, recurrent
from luminal.core.decompose.hyperbolic import tanh
from luminal.core.decompose.indexing import full, stack
from luminal.core.decompose.recurrent import Activation, Course, QuantizedWeights, Weights
from luminal.core.errors import ModelError, ShapeError
from luminal.core.ir import Node
from luminal.core.movement import permute, slice_, squeeze
from luminal.core.relations import unequal
from luminal.core.symbolic import Int
from luminal.frontends.onnx.math import thresholded_relu
from luminal.frontends.onnx.registry import Call, describe, exactly, operator

# Each direction: its input, its number and its course, the activations; gives all states, and the last of each.
_Layer: TypeAlias = Callable[[Node, int, Course, list[Activation]], tuple[Node, ...]]

_B, _LENGTHS, _H, _C, _P = 3, 4, 5, 6, 7  # the positions of optional inputs


@operator("RNN")
def _rnn(call: Call) -> tuple[Node, ...]:
    def layer(x: Node, number: int, course: Course, functions: list[Activation]) -> tuple[Node, ...]:
        return recurrent.rnn(x, _weights(call, number, "h"), _first(call, _H, number), course, *functions)

    return _directions(call, layer, "h", ["Tanh"])


@operator("GRU")
def _gru(call: Call) -> tuple[Node, ...]:
    after = call.flag("linear_before_reset")

    def layer(x: Node, number: int, course: Course, functions: list[Activation]) -> tuple[Node, ...]:
        weights, first = _weights(call, number, "zrh"), _first(call, _H, number)
        return recurrent.gru(x, weights, first, course, functions, after)

    return _directions(call, layer, "zrh", ["Sigmoid", "Tanh"])


@operator("LSTM")
def _lstm(call: Call) -> tuple[Node, ...]:
    return _long_short(call, lambda number: _weights(call, number, "iofg"))


@operator("DynamicQuantizeLSTM", domain="com.microsoft")
def _dynamic_quantized_lstm(call: Call) -> tuple[Node, ...]:
    """An LSTM with weights ``[directions, features, 4 * hidden]`` and ``[directions, hidden, 4 * hidden]`` of integers,
    each with scales and zero points ``[directions]`` or ``[directions, 4 * hidden]``."""
    for name, x in (("W", call[1]), ("R", call[2])):
        if x.dtype not in (types.u8, types.i8) or x.rank != 3:
            raise ModelError(f"{name}: expected bytes of 3 axes, found {describe(x)}")
    inputs = (call[0], *(permute(call[k], [0, 2, 1]) for k in (1, 2)), *call.inputs[3:])
    straight = replace(call, inputs=inputs)

    def weights(number: int) -> Weights:
        float_ = _weights(straight, number, "iofg")
        (input_scale, input_zero), (state_scale, state_zero) = (
            _parameters(straight, first, number) for first in (_P + 1, _P + 3)
        )
        return QuantizedWeights(
            *(getattr(float_, f.name) for f in fields(Weights)),
            input_scale=input_scale, input_zero=input_zero, state_scale=state_scale, state_zero=state_zero,
        )  # fmt: skip

    return _long_short(straight, weights)


def _parameters(call: Call, first: int, number: int) -> list[Node]:
    """A scale and a zero point of a direction: one, or one for each row."""
    rows = []
    for name, x in (("scale", call[first]), ("zero point", call[first + 1])):
        row = _row(x, number)
        if row.rank:
            _expect(f"a {name}", row, [4 * _hidden(call)])
        rows.append(row)
    return rows


def _long_short(call: Call, weights: Callable[[int], Weights]) -> tuple[Node, ...]:
    coupled, given = call.flag("input_forget"), call.get(_P)

    def layer(x: Node, number: int, course: Course, functions: list[Activation]) -> tuple[Node, ...]:
        peepholes = {}
        if given is not None:
            vectors = _row(given, number)
            _expect("P", vectors, [3 * _hidden(call)])
            size = _hidden(call)
            peepholes = {name: slice_(vectors, 0, k * size, size) for k, name in enumerate("iof")}
        first = _first(call, _H, number), _first(call, _C, number)
        return recurrent.lstm(x, weights(number), first, course, functions, peepholes, coupled=coupled)

    return _directions(call, layer, "iofg", ["Sigmoid", "Tanh", "Tanh"])


# ---- what the three share ------------------------------------------------------------------------------------------


def _directions(call: Call, layer: _Layer, gates: str, usual: list[str]) -> tuple[Node, ...]:
    """All directions one beside the other: ``Y`` ``[time, directions, batch, hidden]`` and the last states
    ``[directions, batch, hidden]``; with ``layout`` 1, the batch is the first axis of all values."""
    direction = call.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    x = permute(call[0], [1, 0, 2]) if _batch_first(call) else call[0]
    _expect("W", call[1], [len(backwards), len(gates) * _hidden(call), x.shape[-1]])
    _expect("R", call[2], [len(backwards), len(gates) * _hidden(call), _hidden(call)])
    if call.opset < 7:
        call.ignore("output_sequence")  # the outputs that the model names decide
    declared = call.integer("hidden_size", 0)
    if declared not in (0, _hidden(call)):
        raise ModelError(f"hidden_size is {declared}, but R is for {_hidden(call)}")
    clip = call.number("clip") if "clip" in call.attributes else None
    functions = _activations(call, usual * len(backwards))
    results = [
        layer(x, k, Course(backward, call.get(_LENGTHS), clip), functions[k * len(usual) : (k + 1) * len(usual)])
        for k, backward in enumerate(backwards)
    ]
    whole, *last = ([result[k] for result in results] for k in range(len(results[0])))
    if _batch_first(call):
        return permute(stack(whole, 0), [2, 1, 0, 3]), *(stack(states, 1) for states in last)
    return stack(whole, 1), *(stack(states, 0) for states in last)


def _batch_first(call: Call) -> bool:
    return call.flag("layout")


def _hidden(call: Call) -> Int:
    if call[0].rank != 3 or call[2].rank != 3:
        raise ShapeError(f"expected X and R of 3 axes, found {describe(call[0])} and {describe(call[2])}")
    return call[2].shape[2]


def _expect(name: str, x: Node, shape: list[Int]) -> None:
    if list(x.shape) != shape:
        raise ShapeError(f"{name}: expected shape {shape}, found {list(x.shape)}", unequal(x.shape, shape))


def _row(x: Node, number: int) -> Node:
    count = x.shape[0] if x.rank else 0
    if not isinstance(count, int) or number >= count:
        raise ShapeError(f"expected a value for direction {number}, found {describe(x)}")
    return squeeze(slice_(x, 0, number, 1), [0])


def _weights(call: Call, number: int, order: str) -> Weights:
    biases: list[Node] = []
    if call.get(_B) is not None:
        row, size = _row(call[_B], number), len(order) * _hidden(call)
        _expect("B", row, [2 * size])
        biases = [slice_(row, 0, k * size, size) for k in (0, 1)]
    return Weights(order, _row(call[1], number), _row(call[2], number), *biases)


def _first(call: Call, position: int, number: int) -> Node:
    """The first state of a direction ``[batch, hidden]``; zeros where the model gives none."""
    batch = call[0].shape[0 if _batch_first(call) else 1]
    shape = [batch, _hidden(call)]
    given = call.get(position)
    if given is None:
        return full(shape, 0, call[0].dtype)
    state = _row(permute(given, [1, 0, 2]) if _batch_first(call) and given.rank == 3 else given, number)
    _expect("an initial state", state, shape)
    return state


# ---- activations ---------------------------------------------------------------------------------------------------

# Of each, the function of x, alpha and beta, and their defaults, as many as it has.
_ACTIVATIONS: dict[str, tuple[Callable[..., Node], tuple[float, ...]]] = {
    "relu": (activation.relu, ()),
    "tanh": (tanh, ()),
    "sigmoid": (activation.sigmoid, ()),
    "affine": (lambda x, alpha, beta: x * alpha + beta, (1.0, 0.0)),
    "leakyrelu": (activation.leaky_relu, (0.01,)),
    "thresholdedrelu": (thresholded_relu, (1.0,)),
    "scaledtanh": (lambda x, alpha, beta: tanh(x * beta) * alpha, (1.0, 1.0)),
    "hardsigmoid": (activation.hardsigmoid, (0.2, 0.5)),
    "elu": (activation.elu, (1.0,)),
    "softsign": (activation.softsign, ()),
    "softplus": (activation.softplus, ()),
}


def _activations(call: Call, usual: list[str]) -> list[Activation]:
    """The functions of all directions; each takes its ``alpha`` and ``beta`` from the lists of the model, in order,
    as far as it has such, and its defaults when they end. The schema's default of RNN has a second function, for a
    second direction, which is not there where there is one."""
    given = call.texts("activations")
    if given is not None and len(given) == 2 * len(usual):
        given = given[: len(usual)]
    if given is not None:
        exactly(given, len(usual), "activations")
    scales = {name: iter(call.numbers(f"activation_{name}") or ()) for name in ("alpha", "beta")}
    return [_activation(name, scales["alpha"], scales["beta"]) for name in given or usual]


def _activation(name: str, *scales: Iterator[float]) -> Activation:
    if name.lower() not in _ACTIVATIONS:
        raise ModelError(f"attribute 'activations': expected any of {', '.join(_ACTIVATIONS)}, found {name!r}")
    function, defaults = _ACTIVATIONS[name.lower()]
    numbers = [next(given, default) for given, default in zip(scales, defaults, strict=False)]
    return lambda x: function(x, *numbers)
