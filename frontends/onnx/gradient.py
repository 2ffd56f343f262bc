"""The operator Gradient: derivatives of a value of the model with respect to others, and the nodes between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx

from luminal.frontends.onnx.reader import domain


def is_gradient(node: onnx.NodeProto) -> bool:
    return domain(node.domain) == "ai.onnx.preview.training" and node.op_type == "Gradient"


def between(nodes: Iterable[onnx.NodeProto], given: Collection[str], wanted: str) -> list[onnx.NodeProto]:
    """Of ``nodes``, in their order, those through which the value ``wanted`` depends on the values ``given``."""
    dependent = set(given)
    following: list[tuple[onnx.NodeProto, set[str]]] = []
    for node in nodes:
        read = set(_read([node]))
        if not dependent.isdisjoint(read) and dependent.isdisjoint(node.output):
            dependent.update(filter(None, node.output))
            following.append((node, read))
    needed = {wanted} - set(given)
    found: list[onnx.NodeProto] = []
    for node, read in reversed(following):
        if not needed.isdisjoint(node.output):
            needed |= read - set(given)
            found.append(node)
    return found[::-1]


def _read(nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    """The names that ``nodes`` read, and that the graphs inside them do."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            yield from _read(attribute.g.node)
            yield from (output.name for output in attribute.g.output)
