"""Functions: operators defined by a graph of other operators, in the model itself or in ONNX's schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import onnx

from luminal.core.errors import ModelError
from luminal.core.ir import Node
from luminal.frontends.onnx import control, gradient, operators, sequences
from luminal.frontends.onnx.reader import domain
from luminal.frontends.onnx.tensors import ELEMENT_NUMBERS

Key: TypeAlias = tuple[str, str, str]

# The most operators of a model after inlining: the first number, plus the second for each operator in the file.
_FEW, _REPEATED = 10_000, 30


def key(node: onnx.NodeProto) -> Key:
    """Domain, name and overload, which identify the function that a node calls."""
    return domain(node.domain), node.op_type, node.overload


def local(model: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    """The model's own functions.

    Raises ModelError where two have one name, where one calls itself, directly or through others, and where inlining
    them gives more operators than any real model has.
    """
    found = {(domain(f.domain), f.name, f.overload): f for f in model.functions}
    if len(found) < len(model.functions):
        raise ModelError("expected functions of different names, found two of one name")
    calls = {function: [key(node) for node in everywhere(body.node)] for function, body in found.items()}
    operators: dict[Key, int] = {}  # the number of operators in a call of each function, inlined
    for start in found:
        path: dict[Key, None] = {}
        stack = [start]
        while stack:
            function = stack[-1]
            waiting = [called for called in calls[function] if called in found and called not in operators]
            if function not in operators and waiting:
                path[function] = None
                if waiting[0] in path:
                    raise ModelError(f"the function {waiting[0][1]!r} calls itself")
                stack.append(waiting[0])
                continue
            path.pop(function, None)
            operators[function] = sum(operators.get(called, 1) for called in calls[function])
            stack.pop()
    written = sum(map(len, calls.values())) + len(model.graph.node)
    total = sum(operators.get(key(node), 1) for node in everywhere(model.graph.node))
    if total > _FEW + _REPEATED * written:
        raise ModelError(f"the model's {len(found)} functions call each other so often that it has {total} operators")
    return found


def everywhere(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of the graphs inside them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from everywhere(attribute.g.node)


def importable(node: onnx.NodeProto, opset: Mapping[str, int]) -> bool:
    """Whether the operator is in a table, or a schema defines it."""
    name = domain(node.domain)
    if name == "" and node.op_type in (*control.HANDLERS, *sequences.HANDLERS):
        return True
    if gradient.is_gradient(node):
        return True
    version = opset.get(name, 1)
    if operators.find(name, node.op_type, version) is not None:
        return True
    schema = _schema(node, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def meaning(node: onnx.NodeProto, opset: Mapping[str, int]) -> int:
    """The version in which the operator got its current definition; without a schema, the version of its domain."""
    version = opset.get(domain(node.domain), 1)
    schema = _schema(node, version)
    return version if schema is None else int(schema.since_version)


def expansion(node: onnx.NodeProto, inputs: Sequence[Node | None], opset: int) -> onnx.FunctionProto | None:
    """The function body in ``node``'s schema, with the node's attributes substituted; None where there is none."""
    schema = _schema(node, opset)
    if schema is None:
        return None
    body = onnx.FunctionProto()
    if schema.has_function:
        body.ParseFromString(schema.get_function_with_opset_version(_version(schema.function_opset_versions, opset)))
    elif schema.has_context_dependent_function:
        version = _version(schema.context_dependent_function_opset_versions, opset)
        try:
            text = schema.get_context_dependent_function_with_opset_version(
                version, node.SerializeToString(), [_type(value).SerializeToString() for value in inputs]
            )
        except RuntimeError as error:  # of onnx, which writes the body as text, with the node's attributes in it
            raise ModelError(f"no meaning can be given to this {node.op_type}: {error}") from error
        body.ParseFromString(text)
    if not body.node:
        return None
    defaults = [a.default_value for a in schema.attributes.values() if a.default_value.name]
    return _with_attributes(body, [*defaults, *node.attribute])


def bind(function: onnx.FunctionProto, node: onnx.NodeProto) -> onnx.FunctionProto:
    """``function`` with the attributes of its call ``node`` substituted."""
    missing = set(function.attribute) - {attribute.name for attribute in node.attribute}
    if missing:
        raise ModelError(f"function {function.name!r} needs the attributes {sorted(missing)}")
    return _with_attributes(function, [*function.attribute_proto, *node.attribute])


def _schema(node: onnx.NodeProto, opset: int) -> Any:
    """The operator's schema (the onnx package declares no types for its functions), or None where it has none."""
    try:
        return onnx.defs.get_schema(node.op_type, opset, domain(node.domain))
    except onnx.defs.SchemaError:
        return None


def _version(versions: Sequence[int], opset: int) -> int:
    """The newest body that is not newer than the model, else the oldest: its own opset imports say how to read it."""
    older = [version for version in versions if version <= opset]
    return max(older) if older else min(versions)


def _type(value: Node | None) -> onnx.TypeProto:
    if value is None:
        return onnx.TypeProto()
    shape = [size if isinstance(size, int) else str(size) for size in value.shape]
    return onnx.helper.make_tensor_type_proto(ELEMENT_NUMBERS[value.dtype], shape)


def _with_attributes(body: onnx.FunctionProto, given: Sequence[onnx.AttributeProto]) -> onnx.FunctionProto:
    """``body`` with each reference to an attribute of the function replaced by its value, or dropped where the call
    gives none; a later entry of ``given`` wins."""
    values = {attribute.name: attribute for attribute in given}
    bound = onnx.FunctionProto()
    bound.CopyFrom(body)
    for node in bound.node:
        _bind_node(node, values)
    return bound


def _bind_node(node: onnx.NodeProto, values: Mapping[str, onnx.AttributeProto]) -> None:
    for attribute in node.attribute:
        for inner in attribute.g.node:
            _bind_node(inner, values)
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return
    kept = []
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name not in values:
                continue
            copy = onnx.AttributeProto()
            copy.CopyFrom(values[attribute.ref_attr_name])
            copy.name = attribute.name
            kept.append(copy)
        else:
            kept.append(attribute)
    copies = [onnx.AttributeProto.FromString(attribute.SerializeToString()) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend(copies)
