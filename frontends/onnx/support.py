"""Operators of a model that no table knows, found from the model alone, before anything is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import onnx

from luminal.core.errors import Unsupported
from luminal.frontends.onnx import functions, operators
from luminal.frontends.onnx.origins import location
from luminal.frontends.onnx.reader import domain, domain_versions, opsets
from luminal.frontends.onnx.tensors import element_name


def unlisted(model: onnx.ModelProto) -> list[Unsupported]:
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
                yield Unsupported(full_name(node), node_name(node), operands, location(node), advice(node, opset))

    if all(functions.importable(node, versions) or functions.key(node) in local for node in model.graph.node):
        return list(walk(model.graph.node, versions, {}))
    return list(walk(model.graph.node, versions, _declared_types(model.graph)))


def used(model: onnx.ModelProto) -> Counter[tuple[str, int]]:
    """The number of nodes of each operator, by its full name and version, in the model and in its functions. Calls of
    the functions do not count themselves."""
    versions, local = opsets(model), functions.local(model)
    bodies = [(body.node, {**versions, **domain_versions(body.opset_import)}) for body in local.values()]
    return Counter(
        (full_name(node), functions.meaning(node, opset))
        for nodes, opset in [(model.graph.node, versions), *bodies]
        for node in functions.everywhere(nodes)
        if functions.key(node) not in local
    )


def advice(node: onnx.NodeProto, opset: Mapping[str, int]) -> str:
    """What a user can do about an operator that has no table entry."""
    name = domain(node.domain)
    if name and name not in opset and not operators.names(name):
        return f"the domain {node.domain!r} is no standard one: give the model a function with this operator's meaning"
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
        return "its graphs are not understood: export the model without it"
    if node.op_type == "ImageDecoder":
        return "files of images are not decoded: give the model the decoded pixels"
    return "it has no decomposition yet: compute it outside the model, or add one (see CONTRIBUTING.md)"


def _declared_types(graph: onnx.GraphProto) -> dict[str, str]:
    """Types and shapes by value name, as the model declares them."""
    found: dict[str, str] = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        tensor_type = value.type.tensor_type
        if value.type.HasField("tensor_type"):
            shape = [str(d.dim_value if d.HasField("dim_value") else d.dim_param or "?") for d in tensor_type.shape.dim]
            extents = f"[{', '.join(shape)}]" if tensor_type.HasField("shape") else ""
            found[value.name] = element_name(tensor_type.elem_type) + extents
        else:
            found[value.name] = str(value.type.WhichOneof("value") or "?").removesuffix("_type")
    for tensor in graph.initializer:
        found[tensor.name] = f"{element_name(tensor.data_type)}{list(tensor.dims)}"
    return found


def full_name(node: onnx.NodeProto) -> str:
    """The operator's type, with its domain where that is not the default."""
    return f"{node.domain}.{node.op_type}" if domain(node.domain) else str(node.op_type)


_NAME = 500  # characters of a name that messages and generated code repeat


def node_name(node: onnx.NodeProto) -> str:
    """The node's name, or its first output's where it has none; of one that nobody reads to the end, the beginning."""
    return (str(node.name) or next((str(name) for name in node.output if name), ""))[:_NAME]
