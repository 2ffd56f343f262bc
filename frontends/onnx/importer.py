"""ONNX model -> core Graph.

The operators themselves are in the tables by theme (``math``, ``reduction``, ``tensor``, ...); this module walks a
graph's nodes in order, gives each operator's function its inputs, inlines functions, and keeps account of what is
unsupported, so that everything is reported at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from luminal.core import ir, ops, symval
from luminal.core.errors import LuminalError, ModelError, Unsupported, UnsupportedError
from luminal.core.ir import Graph, Node, Origin, Origins, originating
from luminal.core.movement import concatenate, reshape
from luminal.frontends.onnx import functions, operators
from luminal.frontends.onnx.external import ExternalFiles
from luminal.frontends.onnx.inputs import Bounds, ImpliedBound, Inputs
from luminal.frontends.onnx.origins import location
from luminal.frontends.onnx.reader import Source, domain, domain_versions, opsets, read
from luminal.frontends.onnx.registry import Call, describe
from luminal.frontends.onnx.tensors import element_name, sparse_to_numpy, to_numpy

_SUBGRAPH_ADVICE = "operators with subgraphs are not supported: export the model without loops and branches on data"
_SHAPE_LIMIT = 64  # elements of a tensor that may be a shape
_FOLDED = 64  # elements of an integer value that is rewritten as numbers and sizes as soon as they are known


class _Missing:
    """The value of an output whose operator is unsupported: what depends on it is skipped, not reported again."""


_MISSING = _Missing()
Value: TypeAlias = Node | _Missing | None


def load(
    model: Source,
    *,
    dims: Bounds | None = None,
    constants: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Graph:
    """The graph of primitives that an ONNX model computes.

    ``model`` is a path (external data is read from beside it, mapped), the bytes of a file, or a ModelProto. ``dims``
    gives symbolic sizes (``dim_param`` names, or ``input_axis`` where a size is unknown and has no name) their bounds,
    both inclusive, or fixes them with an int; a size without bounds is taken to be 1 to 1024, or to what the model's
    own tables allow (a position embedding of 512 rows). ``constants`` fixes inputs by name: an input whose value
    decides axes or shapes must be given there. ``name`` defaults to the file's name, or the graph's.

    Raises ModelError for a file that is missing, malformed or inconsistent, InputError for dims and constants that do
    not fit the model, and UnsupportedError listing every place that luminal cannot compile.
    """
    proto, files = read(model)
    found = _unlisted(proto)
    if found:
        raise UnsupportedError("the model holds operators that luminal does not support:", found)
    importer, graph = _build(proto, files, dims, constants, name or _graph_name(model, proto))
    if importer.unsupported:
        raise UnsupportedError("the model uses operators in ways that luminal does not support:", importer.unsupported)
    return graph


def unsupported(
    model: Source, *, dims: Bounds | None = None, constants: Mapping[str, Any] | None = None
) -> list[Unsupported]:
    """Every place of the model that luminal cannot compile; empty where ``load`` would succeed.

    Raises the other errors of ``load``.
    """
    proto, files = read(model)
    importer, _ = _build(proto, files, dims, constants, "")
    # What hides behind an unsupported operator is not reached by the importer, but its operator is known from its name.
    reached = {(place.op, place.node) for place in importer.unsupported}
    return [*importer.unsupported, *(place for place in _unlisted(proto) if (place.op, place.node) not in reached)]


def _build(
    proto: onnx.ModelProto, files: ExternalFiles, dims: Bounds | None, constants: Mapping[str, Any] | None, name: str
) -> tuple[_Importer, Graph]:
    uppers: dict[str, int] = {}
    while True:
        importer = _Importer(proto, files, dims, constants, uppers)
        try:
            return importer, importer.graph(name)
        except ImpliedBound as found:
            uppers[importer.assumed[found.size]] = found.upper  # lower than before, so this comes to an end


def _graph_name(model: Source, proto: onnx.ModelProto) -> str:
    if isinstance(model, bytes | onnx.ModelProto):
        return str(proto.graph.name) or "model"
    return Path(model).stem


# ---- what no table has ---------------------------------------------------------------------------------------------


def _unlisted(model: onnx.ModelProto) -> list[Unsupported]:
    """Operators without an entry and without a function body, wherever they are, found before anything is built."""
    versions = opsets(model)
    local = functions.local(model)
    called: set[functions.Key] = set()

    def walk(
        nodes: Iterable[onnx.NodeProto], opset: Mapping[str, int], known: Mapping[str, str]
    ) -> Iterator[Unsupported]:
        for node in nodes:
            key = functions.key(node)
            if key in local:
                if key not in called:
                    called.add(key)
                    body = local[key]
                    yield from walk(body.node, {**versions, **domain_versions(body.opset_import)}, {})
            elif not functions.importable(node, opset):
                operands = tuple(known.get(name, "?") for name in node.input)
                yield Unsupported(_full_name(node), _node_name(node), operands, location(node), _advice(node, opset))

    if all(functions.importable(node, versions) or functions.key(node) in local for node in model.graph.node):
        return list(walk(model.graph.node, versions, {}))
    return list(walk(model.graph.node, versions, _declared_types(model)))


def _advice(node: onnx.NodeProto, opset: Mapping[str, int]) -> str:
    name = domain(node.domain)
    if name and name not in opset and not operators.names(name):
        return f"the domain {node.domain!r} is no standard one: give the model a function with this operator's meaning"
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        return _SUBGRAPH_ADVICE
    if node.op_type.startswith(("Sequence", "Optional", "SplitToSequence", "ConcatFromSequence")):
        return "sequences and optional values are not supported: export the model with tensors only"
    if node.op_type.startswith(("String", "Regex", "TfIdf", "LabelEncoder")):
        return "strings are not supported: convert them to numbers before the model"
    return "no table entry and no function body: see CONTRIBUTING.md for how to add an operator"


def _declared_types(model: onnx.ModelProto) -> dict[str, str]:
    """Types and shapes by value name, as the model declares them or shape inference finds them."""
    # Inference reads the values of small tensors only; weights stay where they are.
    bare = onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions,
        graph=onnx.GraphProto(
            name=model.graph.name, node=model.graph.node, input=model.graph.input, output=model.graph.output,
            value_info=model.graph.value_info,
            initializer=[
                tensor if math.prod(tensor.dims) <= _SHAPE_LIMIT
                else onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
                for tensor in model.graph.initializer
            ],
        ),
    )  # fmt: skip
    try:
        graph = onnx.shape_inference.infer_shapes(bare).graph
    except onnx.shape_inference.InferenceError:
        graph = model.graph  # inconsistent types; the declared ones are still worth showing
    found: dict[str, str] = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        tensor_type = value.type.tensor_type
        if value.type.HasField("tensor_type"):
            shape = [str(d.dim_value if d.HasField("dim_value") else d.dim_param or "?") for d in tensor_type.shape.dim]
            extents = f"[{', '.join(shape)}]" if tensor_type.HasField("shape") else ""
            found[value.name] = element_name(tensor_type.elem_type) + extents
        else:
            found[value.name] = str(value.type.WhichOneof("value") or "?").removesuffix("_type")
    for tensor in model.graph.initializer:
        found[tensor.name] = f"{element_name(tensor.data_type)}{list(tensor.dims)}"
    return found


def _full_name(node: onnx.NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if domain(node.domain) else str(node.op_type)


def _node_name(node: onnx.NodeProto) -> str:
    return str(node.name) or next((str(name) for name in node.output if name), "")


# ---- building ------------------------------------------------------------------------------------------------------


class _Scope:
    """The values of one graph or function body by name; initializers become constants when first read."""

    def __init__(
        self,
        files: ExternalFiles,
        names: dict[Node, str],
        graph: onnx.GraphProto | None = None,
        outer: _Scope | None = None,
    ) -> None:
        self._outer = outer
        self._values: dict[str, Value] = {}
        self._files = files
        self._names = names
        self._dense = {tensor.name: tensor for tensor in graph.initializer} if graph else {}
        self._sparse = {tensor.values.name: tensor for tensor in graph.sparse_initializer} if graph else {}

    @property
    def initialized(self) -> set[str]:
        return {*self._dense, *self._sparse}

    def __setitem__(self, name: str, value: Value) -> None:
        self._values[name] = value

    def __getitem__(self, name: str) -> Value:
        """The value called ``name``; None for ``""``, which stands for an input that is left out."""
        if not name:
            return None
        if name not in self._values:
            if name in self._dense:
                node = ir.constant(to_numpy(self._dense[name], self._files))
            elif name in self._sparse:
                node = ir.constant(sparse_to_numpy(self._sparse[name], self._files))
            elif self._outer is not None:
                return self._outer[name]
            else:
                raise ModelError(f"the value {name!r} is read before any operator, input or initializer gives it")
            self._names.setdefault(node, name)
            self._values[name] = node
        return self._values[name]


class _Importer:
    """One import: the tables that grow while the nodes are walked."""

    def __init__(
        self,
        model: onnx.ModelProto,
        files: ExternalFiles,
        dims: Bounds | None,
        constants: Mapping[str, Any] | None,
        uppers: Mapping[str, int],
    ) -> None:
        self._model = model
        self._files = files
        self._opsets = opsets(model)
        self._local = functions.local(model)
        self._origins: Origins = {}
        self._names: dict[Node, str] = {}
        self._scope = _Scope(files, self._names, model.graph)
        # Before IR version 4 every initializer was an input too, with the initializer as its default.
        self._inputs = Inputs(
            [value for value in model.graph.input if value.name not in self._scope.initialized], dims, constants, uppers
        )
        self.assumed = self._inputs.assumed
        self.unsupported: list[Unsupported] = []

    def graph(self, name: str) -> Graph:
        """The graph; meaningful only where ``unsupported`` stays empty."""
        for input_name, node in self._inputs.nodes.items():
            self._scope[input_name] = node
        self._nodes(self._model.graph.node, self._scope, self._opsets, ())
        outputs: list[tuple[str, Node]] = []
        for value in self._model.graph.output:
            found = self._scope[value.name]
            if isinstance(found, Node):
                outputs.append((value.name, found))
        results = [node for _, node in outputs]
        reachable = ir.topological([*self._inputs.nodes.values(), *results])
        graph_inputs = tuple(node for node in self._inputs.nodes.values() if node.op is ops.INPUT)
        return Graph(
            name=name,
            inputs=graph_inputs,
            outputs=tuple(outputs),
            dims=self._inputs.dims,
            origins={node: self._origins[node] for node in reachable if node in self._origins},
            names={node: self._names[node] for node in reachable if node in self._names},
            structure={
                "kind": "onnx",
                "inputs": [node.attr.name for node in graph_inputs],
                "outputs": [output for output, _ in outputs],
            },
        )

    def _nodes(
        self, nodes: Iterable[onnx.NodeProto], scope: _Scope, opset: Mapping[str, int], within: tuple[Origin, ...]
    ) -> None:
        for node in nodes:
            self._node(node, scope, opset, within)

    def _node(self, node: onnx.NodeProto, scope: _Scope, opset: Mapping[str, int], within: tuple[Origin, ...]) -> None:
        own = Origin(_full_name(node), _node_name(node), location(node))
        # A function's body is named by the path of calls that leads to it.
        if within:
            path = f"{within[-1].name}/{own.name}"
            own = Origin(own.op, path, own.location or within[-1].location)
        read = [scope[name] for name in node.input]
        if any(value is _MISSING for value in read):
            self._bind(node, scope, [_MISSING] * len(node.output))
            return
        inputs = [value for value in read if not isinstance(value, _Missing)]
        with originating(self._origins, own), _located(own, inputs):
            try:
                results = self._apply(node, inputs, scope, opset, own)
            except UnsupportedError as error:
                operands = tuple("-" if value is None else describe(value) for value in inputs)
                # An error with places comes from a nested body, which has reported them.
                if not error.places:
                    self.unsupported.append(Unsupported(own.op, own.name, operands, own.location, str(error)))
                results = [_MISSING] * len(node.output)
            self._bind(node, scope, results)

    def _apply(
        self, node: onnx.NodeProto, inputs: Sequence[Node | None], scope: _Scope, opset: Mapping[str, int], own: Origin
    ) -> Sequence[Value]:
        key = functions.key(node)
        if key in self._local:
            return self._inline(functions.bind(self._local[key], node), inputs, node.output, own)
        name = domain(node.domain)
        if (name, node.op_type) == ("", "If"):
            return self._branch(node, inputs, scope, opset, own)
        version = opset.get(name, 1)
        call = Call(
            node.op_type,
            version,
            tuple(inputs),
            tuple(node.output),
            {attribute.name: attribute for attribute in node.attribute},
            self._files,
            frozenset(self.assumed),
        )
        function = operators.find(name, node.op_type, version)
        found = None if function is None else function(call)
        if found is None:
            body = functions.expansion(node, inputs, version)
            if body is None:
                raise UnsupportedError(_advice(node, opset))
            return self._inline(body, inputs, node.output, own)
        if call.unread():
            raise UnsupportedError(f"the attributes {', '.join(call.unread())} are not supported")
        results = found if isinstance(found, tuple) else (found,)
        for position, output in enumerate(node.output):
            if output and (position >= len(results) or results[position] is None):
                raise UnsupportedError(f"output {position} ({output!r}) is not supported")
        return [None if result is None else _folded(result) for result in results]

    def _branch(
        self, node: onnx.NodeProto, inputs: Sequence[Node | None], scope: _Scope, opset: Mapping[str, int], own: Origin
    ) -> Sequence[Value]:
        """``If`` on a condition that is known: exporters write such for sizes that they had not resolved."""
        taken = symval.scalar(inputs[0]) if inputs and inputs[0] is not None else None
        if not isinstance(taken, int):
            raise UnsupportedError(_SUBGRAPH_ADVICE)
        wanted = "then_branch" if taken else "else_branch"
        body = next((a.g for a in node.attribute if a.name == wanted), None)
        if body is None:
            raise ModelError(f"attribute {wanted!r} is required, but the model does not give it")
        inner = _Scope(self._files, self._names, body, scope)
        known = len(self.unsupported)
        self._nodes(body.node, inner, opset, (own,))
        if len(self.unsupported) > known:
            return [_MISSING] * len(node.output)
        return [inner[output.name] for output in body.output]

    def _inline(
        self, body: onnx.FunctionProto, inputs: Sequence[Node | None], wanted: Sequence[str], own: Origin
    ) -> Sequence[Value]:
        if len(inputs) > len(body.input):
            raise ModelError(f"function {body.name!r} takes {len(body.input)} inputs, found {len(inputs)}")
        scope = _Scope(self._files, self._names)
        for position, formal in enumerate(body.input):
            scope[formal] = inputs[position] if position < len(inputs) else None
        known = len(self.unsupported)
        self._nodes(body.node, scope, {**self._opsets, **domain_versions(body.opset_import)}, (own,))
        if len(self.unsupported) > known:
            return [_MISSING] * len(wanted)
        # A body may leave out what this call does not take.
        return [scope[output] if name else None for output, name in zip(body.output, wanted, strict=False)]

    def _bind(self, node: onnx.NodeProto, scope: _Scope, values: Sequence[Value]) -> None:
        for output, value in zip(node.output, values, strict=False):
            if output:
                scope[output] = value


@contextmanager
def _located(origin: Origin, inputs: Sequence[Node | None]) -> Iterator[None]:
    """Errors inside the block say at which operator they were met, and on which inputs."""
    try:
        yield
    except LuminalError as error:
        if getattr(error, "located", False):
            raise
        operands = ", ".join("-" if value is None else describe(value) for value in inputs)
        located = type(error)(f"{origin}({operands}): {error}")
        located.located = True  # type: ignore[attr-defined]
        raise located from error


def _folded(node: Node) -> Node:
    """A small integer or bool value rewritten as numbers and sizes, where they are known: so chains of shape
    arithmetic never grow."""
    if node.dtype.is_float or node.dtype.kind == "c" or node.op in (ops.CONSTANT, ops.DIM):
        return node
    if not isinstance(node.size, int) or node.size > _FOLDED:
        return node
    value = symval.value(node)
    if value is None:
        return node
    elements = list(value.reshape(-1))
    if all(isinstance(element, int) for element in elements):
        return ir.constant(np.array(elements, node.dtype.numpy).reshape(value.shape))
    sizes = [reshape(ir.dim(element), [1]) for element in elements]
    return ir.cast(reshape(concatenate(sizes, 0), value.shape), node.dtype)
