"""Recurrent layers, each direction of each a scan along time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch._decomp import decomposition_table

from luminal.core.decompose import recurrent
from luminal.core.decompose.activation import relu
from luminal.core.decompose.hyperbolic import tanh
from luminal.core.decompose.indexing import stack
from luminal.core.decompose.recurrent import Activation, Course, Weights
from luminal.core.errors import UnsupportedError
from luminal.core.ir import Node
from luminal.core.movement import concatenate, permute, slice_, squeeze
from luminal.frontends.fx.registry import aten

# One direction of one layer: input, its parameters and first states, its course; all states, and the last of each.
_Layer: TypeAlias = Callable[[Node, Sequence[Node], Sequence[Node], Course], tuple[Node, ...]]


@aten("lstm.input")
def lstm(
    input: Node, hx: Sequence[Node], params: Sequence[Node], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Node, ...]:  # fmt: skip
    projected = hx[0].shape[-1] != hx[1].shape[-1]

    def layer(x: Node, own: Sequence[Node], first: Sequence[Node], course: Course) -> tuple[Node, ...]:
        weights = Weights("ifgo", *own[: len(own) - projected])
        projection = own[-1] if projected else None
        return recurrent.lstm(x, weights, (first[0], first[1]), course, projection=projection)

    count = (4 if has_biases else 2) + projected
    return _stacked(layer, input, hx, params, count, num_layers, dropout, train, bidirectional, batch_first)


@aten("gru.input")
def gru(
    input: Node, hx: Node, params: Sequence[Node], has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> tuple[Node, ...]:  # fmt: skip
    def layer(x: Node, own: Sequence[Node], first: Sequence[Node], course: Course) -> tuple[Node, ...]:
        return recurrent.gru(x, Weights("rzh", *own), first[0], course)

    count = 4 if has_biases else 2
    return _stacked(layer, input, [hx], params, count, num_layers, dropout, train, bidirectional, batch_first)


def _rnn(
    activation: Activation, input: Node, hx: Node, params: Sequence[Node], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Node, ...]:  # fmt: skip
    def layer(x: Node, own: Sequence[Node], first: Sequence[Node], course: Course) -> tuple[Node, ...]:
        return recurrent.rnn(x, Weights("h", *own), first[0], course, activation)

    count = 4 if has_biases else 2
    return _stacked(layer, input, [hx], params, count, num_layers, dropout, train, bidirectional, batch_first)


aten("rnn_tanh.input")(partial(_rnn, tanh))
aten("rnn_relu.input")(partial(_rnn, relu))


@contextmanager
def step_by_step() -> Iterator[None]:
    """Around the tracing of forward and backward passes: PyTorch writes a layer as its steps. What it would call of
    oneDNN's gives no gradients in a traced graph."""
    with patch.object(torch._C, "_get_mkldnn_enabled", lambda: False):
        yield


@contextmanager
def any_length() -> Iterator[None]:
    """Around the export of a module: gives PyTorch the shapes of a layer's results. It would find them by running the
    layer step by step, which fixes the number of steps."""

    def shapes(
        x: torch.Tensor, first: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        states = first if isinstance(first, list | tuple) else [first]
        whole = x.new_empty([*x.shape[:2], states[0].shape[2] * (2 if bidirectional else 1)])
        return whole, *(torch.empty_like(state) for state in states)

    with ExitStack() as stack:
        for layer in (torch.ops.aten.lstm, torch.ops.aten.gru, torch.ops.aten.rnn_tanh, torch.ops.aten.rnn_relu):
            forget = layer.input._dispatch_cache.clear  # PyTorch keeps which kernel it chose, also after the patch
            stack.callback(forget)
            kernels = layer.input.py_kernels
            stack.enter_context(patch.dict(kernels, {torch._C.DispatchKey.CompositeImplicitAutograd: shapes}))
            stack.enter_context(patch.dict(decomposition_table, {layer.input: shapes}))  # where a program is decomposed
            forget()
        yield


def _stacked(
    layer: _Layer, x: Node, first: Sequence[Node], params: Sequence[Node], count: int, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Node, ...]:  # fmt: skip
    """Layers one after the other, each with ``count`` parameters in each direction; the states of ``first`` and those
    returned are ``[layers * directions, batch, width]``."""
    if train and dropout:
        raise UnsupportedError("dropout in training; export the module in evaluation mode, after .eval()")
    x = permute(x, [1, 0, 2]) if batch_first else x
    last: list[tuple[Node, ...]] = []
    for _ in range(num_layers):
        whole: list[Node] = []
        for reverse in (False, True)[: 1 + bidirectional]:
            number = len(last)
            states = [squeeze(slice_(state, 0, number, 1), [0]) for state in first]
            own = params[number * count : (number + 1) * count]
            y, *after = layer(x, own, states, Course(reverse))
            whole.append(y)
            last.append(tuple(after))
        x = concatenate(whole, 2)
    return permute(x, [1, 0, 2]) if batch_first else x, *(stack(states, 0) for states in zip(*last, strict=True))
