"""A mismatch as a model that anyone can run: ``model.onnx`` or ``model.pt2``, ``model.npz``, and the command line.

Of an ONNX model it is the named operator alone, if that shows the mismatch by itself; else the model as it was given.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.comparison.references import OnnxRuntime, Reference, Torch
from luminal.comparison.report import Finding
from luminal.core.errors import LuminalError
from luminal.tensors import to_file

Arrays = Mapping[str, NDArray[Any]]
MODEL = "model"  # the name of the files, before their endings


def write(
    finding: Finding,
    reference: Reference,
    inputs: Arrays,
    options: Sequence[str],
    differs: Callable[[Path, Arrays], bool],
) -> Finding:
    """``finding`` with the command that shows it again, whose model and inputs are written to its folder; as it is
    where the model has no file: a graph of luminal's own.

    ``options`` are those of the command line that the comparison was made with, but for dimensions, which the inputs
    have; ``differs`` says whether luminal disagrees on a model file and inputs.
    """
    folder = finding.folder
    assert folder is not None
    if isinstance(reference, OnnxRuntime):
        path = folder / f"{MODEL}.onnx"
        given = _operator(reference, finding, inputs, path)
        if given is None or not _holds(differs, path, given):
            given = inputs
            _whole(reference, path)
    elif isinstance(reference, Torch):
        import torch

        path, given = folder / f"{MODEL}.pt2", inputs
        torch.export.save(reference.program, path)
    else:
        return finding
    arrays = folder / f"{MODEL}.npz"
    np.savez(arrays, **{name: to_file(value) for name, value in given.items()})  # type: ignore[arg-type]
    command = shlex.join(["luminal", "diff", str(path), "--input", str(arrays), *options])
    (folder / "command.txt").write_text(f"{command}\n")
    return replace(finding, command=command)


def _holds(differs: Callable[[Path, Arrays], bool], path: Path, inputs: Arrays) -> bool:
    try:
        return differs(path, inputs)
    except LuminalError:  # the operator needs more of the model: types, or shapes that it computes
        return False


def _whole(reference: OnnxRuntime, path: Path) -> None:
    import onnx

    proto = reference.loaded()
    big = proto.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF
    onnx.save(proto, path, save_as_external_data=big, location=f"{MODEL}.data" if big else None)


def _operator(reference: OnnxRuntime, finding: Finding, inputs: Arrays, path: Path) -> Arrays | None:
    """Writes a model of the operator that is named, and gives its inputs; None where there is no such node, or one with
    a body, which may read anything."""
    import onnx

    proto = reference.loaded()
    wanted = "" if finding.origin is None else finding.origin.name
    node = next((n for n in proto.graph.node if wanted and wanted in (n.name, *n.output[:1])), None)
    if node is None or any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        return None
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    read = [name for name in dict.fromkeys(node.input) if name and name not in weights]
    values = reference.tensors(inputs, [*read, *filter(None, node.output)])
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in values.items()}
    graph = onnx.helper.make_graph(
        [node],
        "operator",
        [onnx.helper.make_tensor_value_info(name, kinds[name], values[name].shape) for name in read],
        [onnx.helper.make_tensor_value_info(n, kinds[n], values[n].shape) for n in node.output if n],
        [weights[name] for name in dict.fromkeys(node.input) if name in weights],
    )
    made = onnx.helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    onnx.save(made, path)
    return {name: values[name] for name in read}
