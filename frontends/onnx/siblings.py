"""Forests that converters write tree by tree: one ensemble with an output for each tree."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import onnx
from onnx import helper

_TREES = ("nodes_treeids", "target_treeids")
_LISTS = frozenset(
    [*_TREES, "nodes_nodeids", "nodes_featureids", "nodes_modes", "nodes_values", "nodes_truenodeids",
     "nodes_falsenodeids", "nodes_hitrates", "nodes_missing_value_tracks_true", "target_nodeids", "target_ids",
     "target_weights"]
)  # fmt: skip
_PLAIN = {"n_targets": 1, "aggregate_function": b"SUM", "post_transform": b"NONE"}


def joined(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """``nodes`` with ensembles of one regression tree each, over the same value, made one node, in the place of the
    first. It has as many outputs as they were."""
    same: dict[Hashable, str] = {}  # the first value that is computed in this way
    first: dict[str, str] = {}  # by the name of a value, that of the first that equals it
    groups: dict[Hashable, list[int]] = {}
    for number, node in enumerate(nodes):
        inputs = tuple(first.get(name, name) for name in node.input)
        if _is_plain(node):
            groups.setdefault((inputs, frozenset(a.name for a in node.attribute)), []).append(number)
        elif len(node.output) == 1 and not any(a.HasField("g") or a.graphs for a in node.attribute):
            how = (node.domain, node.op_type, inputs, tuple(a.SerializeToString() for a in node.attribute))
            first[node.output[0]] = same.setdefault(how, node.output[0])
    result: list[onnx.NodeProto | None] = list(nodes)
    for numbers in groups.values():
        if len(numbers) > 1:
            for number in numbers:
                result[number] = None
            result[numbers[0]] = _one([nodes[number] for number in numbers])
    return [node for node in result if node is not None]


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether it is one tree for one target, and no more."""
    if (node.op_type, node.domain) != ("TreeEnsembleRegressor", "ai.onnx.ml") or len(node.output) != 1:
        return False
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    lists = {name: value for name, value in given.items() if name in _LISTS}
    plain = {name: _PLAIN.get(name) for name in given if name not in _LISTS}
    trees = "n_targets" in given and all(
        isinstance(lists.get(name), list) and min(lists[name], default=-1) >= 0 for name in _TREES
    )
    alone = trees and len({*lists["nodes_treeids"], *lists["target_treeids"]}) == 1
    return alone and plain == {name: given[name] for name in plain}


def _one(nodes: Sequence[onnx.NodeProto]) -> onnx.NodeProto:
    """Each ensemble's trees get numbers of their own, and vote for a target of their own."""
    lists: dict[str, Any] = {}
    last = 0
    for target, node in enumerate(nodes):
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in _LISTS}
        trees = {name: [last + number for number in given[name]] for name in _TREES}
        last = 1 + max(trees["nodes_treeids"] + trees["target_treeids"])
        targets = [target if number == 0 else len(nodes) for number in given.get("target_ids", [])]
        for name, values in {**given, **trees, "target_ids": targets}.items():
            lists.setdefault(name, []).extend(values)
    outputs = [node.output[0] for node in nodes]
    lists |= {"n_targets": len(nodes)}
    return helper.make_node(nodes[0].op_type, nodes[0].input, outputs, nodes[0].name, domain=nodes[0].domain, **lists)
