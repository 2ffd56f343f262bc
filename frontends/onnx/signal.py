"""Signals: Fourier transforms and the matrix of mel filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from luminal.core import limits
from luminal.core import symbolic as sym
from luminal.core.decompose import fourier
from luminal.core.errors import ModelError, UnsupportedError
from luminal.core.ir import Node, constant
from luminal.core.movement import unsqueeze
from luminal.frontends.onnx.registry import Call, operator, scalar, wrap_axis
from luminal.frontends.onnx.tensors import element_type

operator("DFT", since=17)(lambda call: _dft(call, call.axis(call[0].rank, 1)))


@operator("DFT", since=20)
def _dft_by_input(call: Call) -> Node:
    axis = -2 if call.get(2) is None else call.integer_at(2)
    return _dft(call, wrap_axis(axis, call[0].rank))


def _dft(call: Call, axis: int) -> Node:
    length = None if call.get(1) is None else call.integer_at(1)
    return fourier.dft(call[0], axis, length, call.flag("inverse"), call.flag("onesided"))


@operator("STFT")
def _stft(call: Call) -> Node:
    """As runtimes do, a real signal may lack the last axis of one element."""
    signal, window = call[0], call.get(2)
    if signal.rank == 2:
        signal = unsqueeze(signal, [2])
    if signal.rank != 3 or (window is not None and window.rank != 1):
        raise ModelError(f"expected a signal of 3 axes and a window of one, found {list(signal.shape)}")
    length = window.shape[0] if window is not None else signal.shape[1]
    if call.get(3) is not None:
        length = call.integer_at(3)
    if not isinstance(length, int):
        raise UnsupportedError(f"frames of {length} elements: give a frame_length, or fix it with {sym.fixing(length)}")
    if window is not None and window.shape != (length,):
        raise ModelError(f"expected a window of {length} elements, found {list(window.shape)}")
    return fourier.stft(signal, call.integer_at(1), length, window, call.flag("onesided", True))


@operator("MelWeightMatrix")
def _mel_weight_matrix(call: Call) -> Node:
    """Triangles between frequencies that are equally far apart in mel; all inputs are known when compiling."""
    bins, length, rate, low, high = (scalar(call.array(k), f"input {k}") for k in range(5))
    bins, length = int(bins), int(length)
    if bins < 1 or length < 1 or int(rate) < 1:
        raise ModelError(f"expected positive sizes and a positive rate, found {bins}, {length} and {rate}")
    limits.check_table(bins * (length // 2 + 1), "MelWeightMatrix")
    dtype = element_type(call.integer("output_datatype", 1), "attribute 'output_datatype'")
    mel = 2595 * np.log10(1 + np.array([low, high], np.float64) / 700)
    steps = np.arange(bins + 2) * ((mel[1] - mel[0]) / (bins + 2)) + mel[0]
    hertz = 700 * (10 ** (steps / 2595) - 1)
    corners = ((length + 1) * hertz // int(rate)).astype(np.int64)
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    place: Any = np.arange(length // 2 + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(centre == left, place == centre, (place - left) / (centre - left))
        falling = (right - place) / (right - centre)
    weights = np.where((place >= left) & (place <= centre), rising, 0)
    weights = np.where((place >= centre) & (place < right), falling, weights)
    return constant(weights, dtype)
