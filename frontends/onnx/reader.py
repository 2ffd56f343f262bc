"""Reading a model: path, bytes or ModelProto -> ModelProto, with its external files; refuses what is not ONNX."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import onnx
from google.protobuf.message import DecodeError

from luminal.core.errors import ModelError, UnsupportedError
from luminal.frontends.onnx.external import ExternalFiles

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto

OPSETS = range(6, 29)
DEFAULT_DOMAINS = ("", "ai.onnx")


def read(source: Source) -> tuple[onnx.ModelProto, ExternalFiles]:
    """The model and the files that its external tensors live in, which stay unread.

    Raises ModelError where the source is missing, truncated, empty or no ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        model, path, what = source, None, "the model"
    elif isinstance(source, bytes):
        model, path, what = _parse(source, "the bytes"), None, "the bytes"
    else:
        path = Path(source)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from error
        model, what = _parse(content, str(path)), str(path)
    if not model.graph.output or not model.opset_import:
        raise ModelError(f"{what}: expected an ONNX model with a graph, outputs and an opset, found none")
    if not all(isinstance(text, str) for text in _texts(model)):
        raise ModelError(f"{what}: expected an ONNX model, found a name that is not UTF-8; the file is damaged")
    return model, ExternalFiles(path)


def _parse(content: bytes, what: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ModelError(
            f"{what}: expected an ONNX model, found {len(content)} bytes that do not parse; the file is truncated "
            "or of another format"
        ) from error
    return model


def _texts(model: onnx.ModelProto) -> Iterator[object]:
    """Every name in the model: the format does not enforce its encoding, and a name that breaks it comes as bytes."""
    yield from (entry.domain for entry in model.opset_import)
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output, *function.attribute)
        yield from (entry.domain for entry in function.opset_import)
        yield from _node_texts(function.node)
    yield from _graph_texts(model.graph)


def _graph_texts(graph: onnx.GraphProto) -> Iterator[object]:
    for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (size.dim_param for size in value.type.tensor_type.shape.dim)
    yield graph.name
    yield from _node_texts(graph.node)


def _node_texts(nodes: Iterable[onnx.NodeProto]) -> Iterator[object]:
    for node in nodes:
        yield from (node.op_type, node.domain, node.overload, node.name, *node.input, *node.output)
        yield from (text for entry in node.metadata_props for text in (entry.key, entry.value))
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            yield from _graph_texts(attribute.g)


def opsets(model: onnx.ModelProto) -> dict[str, int]:
    """The opset version of each domain; the default domain is ``""``.

    Raises ModelError for a version that is no number of an opset, UnsupportedError where the default domain's is
    outside those that the operator tables cover.
    """
    versions = domain_versions(model.opset_import)
    version = versions.get("", OPSETS[-1])
    if version not in OPSETS and (version > OPSETS[-1] or not _unchanged(model.graph, version)):
        raise UnsupportedError(
            f"the model needs opset {version}, luminal reads {OPSETS[0]} to {OPSETS[-1]}: convert it with "
            "onnx.version_converter, or export it again"
        )
    return versions


def _unchanged(graph: onnx.GraphProto, version: int) -> bool:
    """Whether every operator of an older opset still was what it is in the first that the tables cover."""
    for node in graph.node:
        if any(not _unchanged(attribute.g, version) for attribute in node.attribute):
            return False
        known = onnx.defs.has(node.op_type, version) and onnx.defs.has(node.op_type, OPSETS[0])
        if not known or onnx.defs.get_schema(node.op_type, OPSETS[0]).since_version > version:
            return False
    return True


def domain_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """The opset version of each domain in a model's or function's list of imports.

    Raises ModelError for a number that is no version.
    """
    versions = {domain(entry.domain): int(entry.version) for entry in imports}
    for name, version in versions.items():
        if not 1 <= version < 1 << 31:
            raise ModelError(f"expected a version of the opset {name or 'ai.onnx'!r}, found {version}")
    return versions


def domain(name: str) -> str:
    """``name`` with the default domain's two spellings made one."""
    return "" if name in DEFAULT_DOMAINS else name
