"""A model opened for comparison: its graph, its reference, and the user's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from luminal import api, structure, tensors
from luminal.codegen import interface
from luminal.comparison.references import Interpreter, OnnxRuntime, Reference, Torch
from luminal.core.decompose import random
from luminal.core.errors import InputError
from luminal.core.ir import Graph

# The reference for each kind of model, unless the user names another.
REFERENCES = {"onnx": "onnxruntime", "torch": "torch", "graph": "interpreter"}


@dataclass(frozen=True)
class Source:
    """``examples`` are the arguments that the user gave, by the names of the graph's inputs, or None."""

    graph: Graph
    reference: Reference
    examples: Mapping[str, NDArray[Any]] | None


def open_source(
    model: Any,
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    reference: str = "auto",
    dims: Mapping[str, Any] | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    threads: int = 0,
) -> Source:
    """Import ``model`` and open ``reference``; see ``luminal.diff`` for the arguments and errors."""
    kind = kind_of(model)
    wanted = REFERENCES[kind] if reference == "auto" else reference
    if wanted not in REFERENCES.values():
        raise InputError(f"reference: expected auto, {', '.join(REFERENCES.values())}, found {reference!r}")
    if wanted not in (REFERENCES[kind], "interpreter"):
        raise InputError(f"{wanted} cannot run a model of the kind {kind}; {REFERENCES[kind]} can")
    found: Reference
    if kind == "torch":
        from luminal.frontends.fx import export

        source = export.open_program(model) if isinstance(model, str | Path) else model
        program = export.export(source, inputs, dims)
        called = Path(model).stem if source is not model else type(model).__name__.lower()
        graph = api.read(program, dims=dims, constants=constants, name=interface.library_name(called))
        found = Torch(source, program, graph, constants) if wanted == "torch" else Interpreter(graph)
    else:
        graph = api.read(model, dims=dims, constants=constants)
        if wanted == "onnxruntime":
            keys = structure.keys(graph.structure, [name for name, _ in graph.outputs])
            found = OnnxRuntime(model, constants, threads, keys=keys)
        else:
            found = Interpreter(graph)
    if reference == "auto" and any(state.name == random.STATE for state in graph.states):
        found = Interpreter(graph)  # frameworks draw other numbers
    return Source(graph, found, None if inputs is None else _examples(graph, inputs))


def kind_of(model: Any) -> str:
    if isinstance(model, Graph):
        return "graph"
    packages = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    program = isinstance(model, str | Path) and Path(model).suffix == ".pt2"
    return "torch" if program or "torch" in packages else "onnx"


def _examples(graph: Graph, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    names = [node.attr.name for node in graph.given]
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    arguments = structure.bind(graph.structure, names, args, kwargs)
    arrays = {name: tensors.to_numpy(given.numbers, name) for name, given in zip(names, arguments, strict=True)}
    for node in graph.given:
        arrays[node.attr.name] = tensors.from_file(arrays[node.attr.name], node.dtype.numpy)
        found = arrays[node.attr.name].dtype
        if found != node.dtype.numpy:
            raise InputError(f"input {node.attr.name!r}: expected {node.dtype}, found {found}; types are not converted")
    return arrays
