"""What luminal is timed beside: onnxruntime, OpenVINO, and PyTorch compiled and not, each as a user would set it up for
this model at these sizes in float32.

Threads of each keep waiting for work for a while after a run, spinning (onnxruntime and PyTorch's OpenMP for
milliseconds, OpenVINO's TBB for less). That is left as it is, since it is part of their speed inside a run;
``luminal.timing.interleaved`` waits until they sleep before another's turn.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import openvino
import torch
import torch._inductor.config

from benchmarks import zoo

Run = Callable[[], object]


def open_onnxruntime(model: zoo.Model, path: Path, threads: int) -> Run:
    """onnxruntime on the ONNX file ``path``, with all its optimisations, which are its default."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feeds = dict(zip(names, map(_array, model.inputs), strict=True))
    return lambda: session.run(None, feeds)


def open_openvino(model: zoo.Model, path: Path, threads: int) -> Run:
    """OpenVINO on the ONNX file ``path``; without the hint it computes in bfloat16 where the processor can."""
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    request = compiled.create_infer_request()
    arrays = [_array(value) for value in model.inputs]
    # Copying results out is part of a run for all others.
    return lambda: [np.array(output.data) for output in _infer(request, arrays)]


def _infer(request: openvino.InferRequest, arrays: list[np.ndarray]) -> list[openvino.Tensor]:
    request.infer(arrays, share_inputs=True)
    return request.output_tensors


def open_inductor(model: zoo.Model, path: Path, threads: int) -> Run:
    """torch.compile with its weights frozen, which lets it pack them."""
    torch._inductor.config.freezing = True
    compiled = torch.compile(model.module, dynamic=False)
    return lambda: _no_grad(compiled, model)


def open_eager(model: zoo.Model, path: Path, threads: int) -> Run:
    """PyTorch as it is."""
    return lambda: _no_grad(model.module, model)


def _no_grad(module: Callable[..., object], model: zoo.Model) -> object:
    with torch.no_grad():
        return module(*model.inputs)


def _array(value: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(value.numpy())


PEERS: dict[str, Callable[[zoo.Model, Path, int], Run]] = {
    "onnxruntime": open_onnxruntime,
    "OpenVINO": open_openvino,
    "torch.compile": open_inductor,
    "torch": open_eager,
}
