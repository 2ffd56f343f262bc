"""LSTMs whose weights are bytes, as onnxruntime's dynamic quantiser writes them, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import luminal
from luminal.core.errors import LuminalError
from tests import onnx_models as models
from tests.onnx_models import floats

Array = np.ndarray[Any, Any]

INPUTS, HIDDEN, STEPS, BATCH = 10, 16, 5, 3


def quantized(
    directions: int = 1,
    dtype: Any = np.int8,
    zero: int = 0,
    channels: bool = False,
    bias: bool = True,
    states: bool = False,
    lengths: list[int] | None = None,
    peepholes: bool = False,
    steps: int = STEPS,
    batch: int = BATCH,
    **options: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    generator, limits = np.random.default_rng(0), np.iinfo(dtype)
    weights, recurrent = (
        generator.integers(limits.min, limits.max + 1, (directions, rows, 4 * HIDDEN)).astype(dtype)
        for rows in (INPUTS, HIDDEN)
    )
    shape = (directions, 4 * HIDDEN) if channels else (directions,)
    scales = [generator.uniform(0.001, 0.003, shape).astype(np.float32) for _ in range(2)]
    point = np.full(shape, zero, dtype)
    inputs = [
        floats(steps, batch, INPUTS),
        weights,
        recurrent,
        floats(directions, 8 * HIDDEN, seed=1) * np.float32(0.1) if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        *(floats(directions, batch, HIDDEN, seed=seed) * np.float32(0.5) if states else None for seed in (2, 3)),
        floats(directions, 3 * HIDDEN, seed=4) * np.float32(0.3) if peepholes else None,
        scales[0],
        point,
        scales[1],
        point,
    ]
    fixed = [k for k in (1, 2, 3, 7, 8, 9, 10, 11) if inputs[k] is not None]
    options.setdefault("direction", "bidirectional" if directions == 2 else "forward")
    return models.one(
        "DynamicQuantizeLSTM", *inputs, fixed=fixed, outputs=3, domain="com.microsoft", hidden_size=HIDDEN, **options
    )


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bidirectional": {"directions": 2},
    "backwards": {"direction": "reverse"},
    "a scale for each channel": {"directions": 2, "channels": True},
    "unsigned": {"dtype": np.uint8, "zero": 131},
    "unsigned channels": {"dtype": np.uint8, "zero": 131, "channels": True},
    "zero point": {"zero": 3},
    "first states": {"states": True},
    "lengths": {"directions": 2, "states": True, "lengths": [5, 3, 4]},
    "short lengths": {"directions": 2, "lengths": [2, 4, 1]},
    "peepholes": {"peepholes": True},
    "no bias": {"bias": False},
    "clip": {"clip": 0.5},
    "coupled": {"input_forget": 1},
    "other activations": {"activations": ["Relu", "Tanh", "Sigmoid"]},
    "one step": {"steps": 1, "batch": 1},
    "batch": {"batch": 7},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_matches_onnxruntime(options: dict[str, Any]) -> None:
    proto, given = quantized(**options)
    models.assert_close(models.imported(proto, given), models.by_onnxruntime(proto, given))


BAD: dict[str, tuple[int, Array | None, str]] = {
    "scale for half the channels": (8, np.ones((1, 2 * HIDDEN), np.float32), "a scale: expected shape"),
    "zero point for half the channels": (11, np.zeros((1, 2 * HIDDEN), np.int8), "a zero point: expected shape"),
    "no scale for the direction": (8, np.ones((0,), np.float32), "direction 0"),
    "no scale": (10, None, "input 10 is required"),
    "float weights": (1, floats(1, INPUTS, 4 * HIDDEN), "W: expected bytes"),
    "flat weights": (2, np.zeros((HIDDEN, 4 * HIDDEN), np.int8), "R: expected bytes of 3 axes"),
    "weights as LSTM has them": (1, np.zeros((1, 4 * HIDDEN, INPUTS), np.int8), "W: expected shape"),
}


@pytest.mark.parametrize(("position", "value", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused(position: int, value: Array | None, message: str) -> None:
    proto, given = quantized()
    (node,) = proto.graph.node
    name = node.input[position]
    kept = [tensor for tensor in proto.graph.initializer if tensor.name != name]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    if value is None:
        node.input[position] = ""
    else:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    with pytest.raises(LuminalError, match=message):
        models.imported(proto, given)


@pytest.mark.parametrize(("channels", "weight"), [(False, QuantType.QUInt8), (True, QuantType.QInt8)])
def test_what_the_quantiser_writes(tmp_path: Path, channels: bool, weight: Any) -> None:
    """A model of two layers, quantised dynamically, as a library."""
    nodes = [
        models.node("LSTM", "x W0 R0 B0", "y0 h0 c0", hidden_size=HIDDEN, direction="bidirectional"),
        models.node("Transpose", "y0", "t0", perm=[0, 2, 1, 3]),
        models.node("Reshape", "t0 shape", "x1"),
        models.node("LSTM", "x1 W1 R1", "y", hidden_size=HIDDEN),
    ]
    weights = {
        "W0": floats(2, 4 * HIDDEN, INPUTS, seed=1) / 4, "R0": floats(2, 4 * HIDDEN, HIDDEN, seed=2) / 4,
        "B0": floats(2, 8 * HIDDEN, seed=3) / 9, "W1": floats(1, 4 * HIDDEN, 2 * HIDDEN, seed=4) / 4,
        "R1": floats(1, 4 * HIDDEN, HIDDEN, seed=5) / 4, "shape": np.array([0, 0, -1]),
    }  # fmt: skip
    x = floats(STEPS, 1, INPUTS)
    proto = models.model(nodes, [models.declared("x", x, ["steps", 1, INPUTS])], ["y", "c0"], initializers=weights)
    for output in proto.graph.output:  # the quantiser asks for their types
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(proto, tmp_path / "lstm.onnx")
    quantize_dynamic(tmp_path / "lstm.onnx", tmp_path / "quantized.onnx", per_channel=channels, weight_type=weight)
    quantised = onnx.load(tmp_path / "quantized.onnx")
    assert [node.op_type for node in quantised.graph.node].count("DynamicQuantizeLSTM") == 2
    wanted = models.by_onnxruntime(quantised, {"x": x})
    found = luminal.compile(quantised, dims={"steps": (1, 20)}).run({"x": x})
    models.assert_close([found["y"], found["c0"]], wanted)
