"""ONNX files whose products are in integers, as onnxruntime's own tool quantises them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

PRODUCTS = ["Conv", "Gemm", "MatMul"]


class _Once(CalibrationDataReader):
    """Inputs to calibrate on: one set of them."""

    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self._left = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def quantised(path: Path, inputs: Sequence[np.ndarray]) -> Path:
    """The ONNX file beside ``path``, made where it is not there, whose convolutions and matrix products multiply 8-bit
    integers: weights with a scale for each channel, activations with one calibrated on ``inputs``, by onnxruntime's own
    tool. What is between them stays float32."""
    made, part = path.with_name("quantised.onnx"), path.with_name("part.onnx")
    if made.exists():
        return made
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path.with_name("prepared.onnx"))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    logging.disable(logging.WARNING)  # that a model should be prepared, as it has been
    quantize_static(
        options.optimized_model_filepath,
        part,
        _Once(dict(zip(names, inputs, strict=True))),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=PRODUCTS,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    logging.disable(logging.NOTSET)
    os.replace(part, made)
    return made
