"""What a compiled model is compared with: the framework that it came from, or the interpreter."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from luminal import tensors
from luminal.core import interp
from luminal.core.errors import ModelError
from luminal.core.ir import Graph

Arrays = dict[str, NDArray[Any]]


class Reference(Protocol):
    """An implementation that runs the source model."""

    @property
    def name(self) -> str: ...

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs of the model by name."""
        ...

    def values(self, inputs: Mapping[str, NDArray[Any]], operators: Collection[str]) -> dict[str, list[NDArray[Any]]]:
        """The values of the source operators of these names, as far as the reference can report them."""
        ...


class Interpreter:
    """The graph, run by the numpy interpreter in its own types."""

    name = "interpreter"

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        found = interp.run(self._graph, inputs).outputs
        return {name: array for (name, _), array in zip(self._graph.outputs, found, strict=True)}

    def values(self, inputs: Mapping[str, NDArray[Any]], operators: Collection[str]) -> dict[str, list[NDArray[Any]]]:
        return {}


class OnnxRuntime:
    """onnxruntime on the CPU.

    As a reference it has basic optimisations only, which do not change results. With all optimisations, which are
    fastest, some products of dequantised weights round their activations to 8 bits, whatever their type.
    """

    name = "onnxruntime"

    def __init__(
        self,
        model: Any,
        constants: Mapping[str, NDArray[Any]] | None = None,
        threads: int = 0,
        *,
        fastest: bool = False,
        keys: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """``model`` is a path, the bytes or the ModelProto of an ONNX model; ``constants`` are inputs that every run is
        given. All optimisations are made where it is to be the ``fastest``. An output that is a sequence of maps is
        given as an array, whose columns are of the ``keys`` under its name (else in the maps' own order). Raises
        ModelError where onnxruntime is not installed or refuses the model."""
        if importlib.util.find_spec("onnxruntime") is None:
            raise ModelError("onnxruntime is not installed: pip install 'luminal[diff]', or choose another reference")
        self._model = model
        self._constants = dict(constants or {})
        self._threads = threads
        self._fastest = fastest
        self._keys = dict(keys or {})
        source = os.fspath(model) if isinstance(model, str | os.PathLike) else model
        self._session = self._open(source if isinstance(source, str | bytes) else source.SerializeToString())

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        return self._run(self._session, inputs)

    def values(self, inputs: Mapping[str, NDArray[Any]], operators: Collection[str]) -> dict[str, list[NDArray[Any]]]:
        import onnx

        proto, folder = self._proto()
        outputs: dict[str, list[str]] = {}
        for node in proto.graph.node:
            named = [name for name in node.output if name]
            operator = node.name or (named[0] if named else "")
            if operator in operators:
                outputs.setdefault(operator, []).extend(named)
        known = {value.name for value in proto.graph.output}
        added = dict.fromkeys(name for names in outputs.values() for name in names if name not in known)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
        found = self._run(self._open(proto.SerializeToString(), folder), inputs)
        return {operator: [found[name] for name in names] for operator, names in outputs.items()}

    def loaded(self) -> Any:
        """A ModelProto of the model, with its weights."""
        import onnx

        proto, folder = self._proto()
        if folder is not None:
            onnx.external_data_helper.load_external_data_for_model(proto, str(folder))
        return proto

    def tensors(self, inputs: Mapping[str, NDArray[Any]], names: Collection[str]) -> Arrays:
        """The values of tensors of the graph by name."""
        import onnx

        proto, folder = self._proto()
        given = {**self._constants, **inputs}
        known = {value.name for value in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known and n not in given)
        found = {**given, **self._run(self._open(proto.SerializeToString(), folder), inputs)}
        return {name: found[name] for name in names}

    def _proto(self) -> tuple[Any, Path | None]:
        import onnx

        if isinstance(self._model, bytes):
            return onnx.load_from_string(self._model), None
        if isinstance(self._model, str | os.PathLike):
            path = Path(self._model)
            return onnx.load(path, load_external_data=False), path.parent
        proto = onnx.ModelProto()
        proto.CopyFrom(self._model)
        return proto, None

    def _open(self, model: str | bytes, folder: Path | None = None) -> Any:
        import onnxruntime

        options = session_options(self._threads, self._fastest)
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        try:
            return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except _refusals() as error:
            raise ModelError(f"onnxruntime refuses the model: {_first_line(error)}; {_OTHERWISE}") from error

    def _run(self, session: Any, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        wanted = [value.name for value in session.get_inputs()]
        given = {**self._constants, **inputs}
        names = [value.name for value in session.get_outputs()]
        try:
            found = session.run(names, {name: given[name] for name in wanted if name in given})
        except _refusals() as error:
            raise ModelError(f"onnxruntime cannot run the model: {_first_line(error)}; {_OTHERWISE}") from error
        return {name: _columns(value, self._keys.get(name)) for name, value in zip(names, found, strict=True)}


def _columns(value: Any, keys: Sequence[Any] | None) -> NDArray[Any]:
    """An output of onnxruntime as an array, maps with a column for each of their keys."""
    if not isinstance(value, list) or not (keys or (value and isinstance(value[0], dict))):
        return np.asarray(value)
    keys = list(value[0]) if keys is None else keys
    return np.array([[row[key] for key in keys] for row in value], np.float32).reshape(len(value), len(keys))


def session_options(threads: int, fastest: bool) -> Any:
    """onnxruntime's ``SessionOptions`` for ``threads`` threads (0: its default), with all optimisations or the basic.

    Its threads do not spin while they wait: after a run, they would take the processor from what runs next in this
    process. Its own times are the same without spinning.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if not fastest:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3  # errors only
    return options


_OTHERWISE = 'luminal.diff(..., reference="interpreter") compares with luminal\'s own interpreter'


def _refusals() -> tuple[type[Exception], ...]:
    """The exceptions of onnxruntime for a model or input that it does not accept."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    found = (getattr(state, name, None) for name in (*names, "RuntimeException"))
    return (RuntimeError, ValueError, *(error for error in found if error is not None))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class Torch:
    """PyTorch: the module itself in eager mode, or the exported program where there is nothing else."""

    name = "torch"

    def __init__(
        self, model: Any, program: Any, graph: Graph, constants: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        """``program`` is the ExportedProgram of ``model`` that ``graph`` was imported from."""
        import torch

        self._program = program
        self._module = model if isinstance(model, torch.nn.Module) else program.module()
        self._graph = graph
        self._constants = dict(constants or {})

    @property
    def program(self) -> Any:
        """The ExportedProgram of the model."""
        return self._program

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        import torch
        from torch.utils import _pytree as pytree

        signature = self._program.module_call_graph[0].signature
        given = self._leaves(inputs)
        args, kwargs = pytree.tree_unflatten(given, signature.in_spec)
        kept = {state.output: self._buffer(state.name) for state in self._graph.states}
        before = {name: buffer.clone() for name, buffer in kept.items()}
        with torch.no_grad():
            leaves = pytree.tree_leaves(self._module(*args, **kwargs))
            after = {name: _array(buffer.clone(), name) for name, buffer in kept.items()}
            for name, buffer in kept.items():  # each run is the first
                buffer.copy_(before[name])
        described = _described(self._graph, "outputs")
        if len(described) != len(leaves):
            raise ModelError(f"the module returns {len(leaves)} values, its exported program {len(described)}")
        found = {
            leaf.get("leaf", leaf.get("size")): value
            for leaf, value in zip(described, leaves, strict=True)
            if "value" not in leaf
        }
        taken = zip(_described(self._graph, "inputs"), given, strict=True)
        found |= {leaf["left"]: value for leaf, value in taken if "left" in leaf}
        return {name: _array(found[k], name) for k, (name, _) in enumerate(self._graph.returned)} | after

    def _buffer(self, state: str) -> Any:
        """The buffer that is a state: one of that name, or of that placeholder in the program."""
        named = self._program.graph_signature.inputs_to_buffers
        return self._module.get_buffer(named.get(state, state))

    def values(self, inputs: Mapping[str, NDArray[Any]], operators: Collection[str]) -> dict[str, list[NDArray[Any]]]:
        import torch

        found: dict[str, list[NDArray[Any]]] = {}

        class Recorder(torch.fx.Interpreter):  # type: ignore[misc]
            def run_node(self, n: Any) -> Any:
                value = super().run_node(n)
                if n.op == "call_function" and n.name in operators:
                    parts = value if isinstance(value, list | tuple) else [value]
                    found[n.name] = [_array(p, n.name) for p in parts if isinstance(p, torch.Tensor | int)]
                return value

        program = self._program
        leaves = iter(self._leaves(inputs))
        arguments = [
            next(leaves)
            if spec.kind.name == "USER_INPUT"
            else program.state_dict.get(spec.target, program.constants.get(spec.target))
            for spec in program.graph_signature.input_specs
        ]
        with torch.no_grad():
            Recorder(program.graph_module).run(*arguments)
        return found

    def _leaves(self, inputs: Mapping[str, NDArray[Any]]) -> list[Any]:
        """The arguments of a call, flat: arrays by name as tensors, and the constants of the exported program."""
        given = {**self._constants, **inputs}
        leaves: list[Any] = []
        specs = [spec for spec in self._program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
        for spec, leaf in zip(specs, _described(self._graph, "inputs"), strict=True):
            fixed = not hasattr(spec.arg, "name") or spec.arg.name not in given
            value = spec.arg.value if fixed else tensors.to_torch(np.array(given[spec.arg.name]))
            leaves.append(tensors.complex_numbers(value) if "complex" in leaf else value)
        return leaves


def _described(graph: Graph, side: str) -> list[Mapping[str, Any]]:
    """The descriptions of the leaves of the ``inputs`` or ``outputs``."""
    from luminal.frontends.fx import structure

    return [leaf for _, leaf in structure.paths(dict(graph.structure[side]))]


def _array(value: Any, name: str) -> NDArray[Any]:
    if isinstance(value, int):
        return np.asarray(value, np.int64)
    return tensors.to_numpy(tensors.pairs(value, name) if value.is_complex() else value, name)
