"""Small ONNX models made by hand, run through the importer and the interpreter, and through a reference."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.reference import ReferenceEvaluator

from luminal.core import interp
from luminal.core.ir import Graph
from luminal.frontends.onnx import importer

Array = np.ndarray[Any, Any]
CONTRIBUTED = "com.microsoft"


def floats(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node by the names of its inputs and outputs, which blanks part."""
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def element(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def declared(name: str, array: Array, shape: Sequence[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element(array), array.shape if shape is None else shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    *,
    initializers: Mapping[str, Array] | None = None,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model whose outputs are of undeclared type, as a graph may leave them for shape inference."""
    graph = helper.make_graph(
        nodes,
        "test",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in (initializers or {}).items()],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


def one(
    op: str,
    *inputs: Array | None,
    opset: int = 17,
    outputs: int = 1,
    domain: str = "",
    version: int = 1,
    fixed: Sequence[int] = (),
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one operator and its inputs by name; those at the positions ``fixed`` are initializers, None is left
    out."""
    names = ["" if array is None else f"x{k}" for k, array in enumerate(inputs)]
    given = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    initializers = {f"x{k}": given.pop(f"x{k}") for k in fixed}
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, name="node", domain=domain, **attributes)
    proto = model(
        [node],
        [declared(name, array) for name, array in given.items()],
        results,
        initializers=initializers,
        opset=opset,
        domains={domain: version} if domain else None,
    )
    return proto, given


def run(graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
    return interp.run(graph, inputs).outputs


def imported(proto: onnx.ModelProto, inputs: Mapping[str, Array], **options: Any) -> list[Array]:
    return run(importer.load(proto, **options), inputs)


def by_onnxruntime(proto: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Without it, sums of two products of bytes saturate at 16 bits on processors without dot products of bytes; with
    # it, those of weights that are constants do not.
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def by_reference(proto: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    return list(ReferenceEvaluator(proto).run(None, dict(inputs)))


def assert_close(found: Sequence[Array], wanted: Sequence[Array], tolerance: float = 1e-6) -> None:
    """Equal types and shapes; what is no float, and what is not finite, equal; floats within ``tolerance`` of the
    largest."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind in "biuO":
            np.testing.assert_array_equal(a, b)
        else:
            x, y = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(y)
            scale = float(np.abs(y[finite]).max(initial=1.0))
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * scale)
