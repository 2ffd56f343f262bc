"""What luminal is timed beside: onnxruntime, OpenVINO, and PyTorch compiled and not, each as a user would set it up for
this model at these sizes in this precision.

In bfloat16, OpenVINO is told to compute so, and PyTorch's modules are converted, weights and inputs; onnxruntime has no
such kernels for CPUs. In integers, those that read ONNX get one file, whose contractions have been quantised.

Threads of each keep waiting for work for a while after a run, spinning (onnxruntime and PyTorch's OpenMP for
milliseconds, OpenVINO's TBB for less). That is left as it is, since it is part of their speed inside a run;
``luminal.timing.interleaved`` waits until they sleep before another's turn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
import torch
import torch._inductor.config

from benchmarks import zoo
from benchmarks.suite import Setting

Run = Callable[[], object]
HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}  # OpenVINO's names of precisions


@dataclass(frozen=True)
class Peer:
    """A framework: ``open(model, path, setting)`` makes ready what ``path``, an ONNX file of fixed sizes, or ``model``
    itself says, to be run again and again. It raises RuntimeError where it cannot compute in the precision."""

    open: Callable[[zoo.Model, Path, Setting], Run]
    precisions: tuple[str, ...] = ("fp32", "bf16")


def open_onnxruntime(model: zoo.Model, path: Path, setting: Setting) -> Run:
    """onnxruntime on the ONNX file, with all its optimisations, which are its default."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setting.threads
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feeds = dict(zip(names, map(_array, model.inputs), strict=True))
    return lambda: session.run(None, feeds)


def open_openvino(model: zoo.Model, path: Path, setting: Setting) -> Run:
    """OpenVINO on the ONNX file; without the hint it computes in bfloat16 where the processor can."""
    hint = HINTS[setting.precision]
    settings = {
        "INFERENCE_PRECISION_HINT": hint,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": setting.threads,
    }
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if used != hint:
        raise RuntimeError(f"it computes in {used} where {hint} was asked for")
    request = compiled.create_infer_request()
    arrays = [_array(value) for value in model.inputs]
    # Copying results out is part of a run for all others.
    return lambda: [np.array(output.data) for output in _infer(request, arrays)]


def _infer(request: openvino.InferRequest, arrays: list[np.ndarray]) -> list[openvino.Tensor]:
    request.infer(arrays, share_inputs=True)
    results: list[openvino.Tensor] = request.output_tensors
    return results


def open_inductor(model: zoo.Model, path: Path, setting: Setting) -> Run:
    """torch.compile with its weights frozen, which lets it pack them."""
    converted = _converted(model, setting)
    compiled = torch.compile(converted.module, dynamic=False)
    with torch._inductor.config.patch(freezing=True):
        _no_grad(compiled, converted)
    return lambda: _no_grad(compiled, converted)


def open_eager(model: zoo.Model, path: Path, setting: Setting) -> Run:
    """PyTorch as it is."""
    converted = _converted(model, setting)
    return lambda: _no_grad(converted.module, converted)


def _converted(model: zoo.Model, setting: Setting) -> zoo.Model:
    """The module and the inputs of float32 in the setting's precision."""
    if setting.precision == "fp32":
        return model
    module = copy.deepcopy(model.module).to(torch.bfloat16)
    inputs = tuple(value.bfloat16() if value.is_floating_point() else value for value in model.inputs)
    return model._replace(module=module, inputs=inputs)


def _no_grad(module: Callable[..., object], model: zoo.Model) -> object:
    with torch.no_grad():
        return module(*model.inputs)


def _array(value: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.numpy())


PEERS = {
    "onnxruntime": Peer(open_onnxruntime, ("fp32", "int8")),
    "OpenVINO": Peer(open_openvino, ("fp32", "bf16", "int8")),
    "torch.compile": Peer(open_inductor),
    "torch": Peer(open_eager),
}
