"""A graph of which luminal can compile a part, in parts: modules for luminal, and modules for PyTorch."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from luminal.frontends.fx.program import is_function

LUMINAL, PYTORCH = "luminal_", "pytorch_"  # what the names of the parts begin with
_OBSTACLE = "luminal.obstacle"  # in the metadata of a node: its name in the whole graph


class Split(NamedTuple):
    """``module`` calls the parts; ``luminal`` names those that luminal is to compile, ``pytorch`` the part of PyTorch
    in which each of the obstacles is, by the name of its node."""

    module: torch.fx.GraphModule
    luminal: tuple[str, ...]
    pytorch: Mapping[str, str]


def split(module: torch.fx.GraphModule, obstacles: Collection[torch.fx.Node]) -> Split | None:
    """A traced ``module`` (see ``program.is_traced``) in as few parts as its order of computation allows, without the
    ``obstacles`` in any that is luminal's; ``module`` itself stays as it is. None where no part would be luminal's, and
    where nodes write into what they are given: nothing but their order says what others read then."""
    if any(_writes(node) for node in module.graph.nodes):
        return None
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    graph.output(graph.graph_copy(module.graph, copies))
    whole = torch.fx.GraphModule(module, graph)
    for node in obstacles:
        copies[node].meta[_OBSTACLE] = node.name
    rest = {copies[node] for node in _rest(module, obstacles)}
    rest |= _attributes_apart(whole, rest)
    _fuse(whole, LUMINAL, lambda node: node.op in ("call_function", "get_attr") and node not in rest)
    _fuse(whole, PYTORCH, lambda node: node.op in ("call_function", "get_attr") and not _is_result(node))
    parts = _numbered(whole)
    apart = {node.meta[_OBSTACLE]: name for name, part in parts.items() if name.startswith(PYTORCH)
             for node in part.graph.nodes if node.op == "call_function" and _OBSTACLE in node.meta}  # fmt: skip
    luminal = tuple(name for name in parts if name.startswith(LUMINAL))
    return Split(whole, luminal, apart) if luminal else None


def _numbered(whole: torch.fx.GraphModule) -> dict[str, torch.fx.GraphModule]:
    """The parts by their names, numbered anew in the order in which they run."""
    calls = whole.graph.find_nodes(op="call_module")
    parts = [whole.get_submodule(str(node.target)) for node in calls]
    for node in calls:
        delattr(whole, str(node.target))
    counts = dict.fromkeys((LUMINAL, PYTORCH), 0)
    found = {}
    for node, part in zip(calls, parts, strict=True):
        prefix = LUMINAL if str(node.target).startswith(LUMINAL) else PYTORCH
        node.target = f"{prefix}{counts[prefix]}"
        counts[prefix] += 1
        whole.add_submodule(node.target, part)
        found[node.target] = part
    whole.recompile()
    return found


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _is_part(node: torch.fx.Node) -> bool:
    """Whether ``node`` takes one of several results."""
    return node.op == "call_function" and node.target is operator.getitem


def _is_result(node: torch.fx.Node) -> bool:
    return _is_part(node) and node.all_input_nodes[0].op == "call_module"


def _rest(module: torch.fx.GraphModule, obstacles: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes that are PyTorch's."""
    found = set(obstacles)
    for node in module.graph.nodes:
        reads = node.all_input_nodes
        is_input = any(operand.op == "placeholder" and operand in found for operand in reads)
        if is_input or not is_function(node) or (_is_part(node) and reads[0] in found):
            found.add(node)
    # as_strided takes memory as the views before it left it, which are then of one part with it.
    waiting = [node for node in found if "as_strided" in str(node.target)]
    while waiting:
        for operand in waiting.pop().all_input_nodes:
            if getattr(operand.target, "is_view", False) and operand not in found:
                found.add(operand)
                waiting.append(operand)
    return found


def _attributes_apart(whole: torch.fx.GraphModule, rest: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """Give each reader of an attribute a node of its own for it, so that both can be in one part. Returns those that
    PyTorch's nodes read."""
    found = set()
    for node in whole.graph.find_nodes(op="get_attr"):
        for user in list(node.users):
            with whole.graph.inserting_before(user):
                own = whole.graph.node_copy(node)
            user.replace_input_with(node, own)
            if user.op == "output" or user in rest:
                found.add(own)
        whole.graph.erase_node(node)
    return found


class _Those(OperatorSupportBase):  # type: ignore[misc]  # PyTorch has no types for it
    def __init__(self, supported: Any) -> None:
        self.supported = supported

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return bool(self.supported(node))


def _fuse(whole: torch.fx.GraphModule, prefix: str, supported: Any) -> None:
    """Let modules, whose names begin with ``prefix``, take the place of the nodes that are ``supported``."""
    partitioner = CapabilityBasedPartitioner(whole, _Those(supported), allows_single_node_partition=True)
    partitioner.fuse_partitions(partitioner.propose_partitions(), prefix)
