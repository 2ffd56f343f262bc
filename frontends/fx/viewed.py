"""A traced graph without the results that need no kernel: those that are its inputs, and views of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils import _pytree as pytree

# Views of all elements: their memory is that of what they view, to the last byte.
_VIEWS = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overloads in {
        "alias": "default", "detach": "default", "permute": "default", "t": "default", "transpose": "int",
        "squeeze": "default dim dims", "unsqueeze": "default", "view": "default",
    }.items()
    for overload in overloads.split()
)  # fmt: skip


class Viewed(NamedTuple):
    """``computed`` takes what the graph takes and returns a flat list without a value twice; None where that would be
    empty. ``rest``, which PyTorch runs and which takes no time, makes the results of the graph of the inputs at the
    positions ``takes`` and of that list."""

    computed: torch.fx.GraphModule | None
    rest: torch.fx.GraphModule
    takes: Sequence[int]


def without_views(module: torch.fx.GraphModule, views: bool = True) -> Viewed:
    """A traced ``module`` in two parts (see ``program.is_traced``); without ``views`` only inputs are left out.

    AOTAutograd's forward graphs return parameters, and transposed ones, for the backward graphs to read: a library
    would copy them.
    """
    results = module.graph.output_node().args[0]
    leaves = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.fx.Node)]
    free = _free(leaves, views)
    sources = dict.fromkeys([*leaves, *(operand for node in free for operand in node.all_input_nodes)])
    placeholders = module.graph.find_nodes(op="placeholder")
    takes = [k for k, node in enumerate(placeholders) if node in sources]
    bases = [node for node in sources if node not in free and node.op != "placeholder"]
    rest, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in [*(placeholders[k] for k in takes), *bases]:
        copies[node] = rest.placeholder(node.name)
    for node in module.graph.nodes:
        if node in free:
            copies[node] = rest.node_copy(node, copies.__getitem__)
    rest.output(torch.fx.map_arg(results, copies.__getitem__))
    return Viewed(_computing(module, bases), torch.fx.GraphModule(module, rest), takes)


def _free(leaves: Sequence[torch.fx.Node], views: bool) -> dict[torch.fx.Node, None]:
    """The nodes that PyTorch is to run: views, and sizes of inputs, if ``views`` are wanted."""
    found: dict[torch.fx.Node, None] = {}
    waiting = list(leaves) if views else []
    while waiting:
        node = waiting.pop()
        is_view = node.target in _VIEWS and all(map(_is_size, node.all_input_nodes[1:]))
        if node.op == "call_function" and node not in found and (is_view or _is_size(node)):
            found[node] = None
            waiting += node.all_input_nodes
    return found


def _is_size(node: torch.fx.Node) -> bool:
    """Whether ``node`` is a number that PyTorch finds of the shapes of inputs alone."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if node.op == "placeholder":
        return True
    if node.target is torch.ops.aten.sym_size.int:
        return bool(node.args[0].op == "placeholder")
    is_number = node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt | int)
    return is_number and all(map(_is_size, node.all_input_nodes))


def _computing(module: torch.fx.GraphModule, bases: Sequence[torch.fx.Node]) -> torch.fx.GraphModule | None:
    """``module`` with the results ``bases``."""
    if not bases:
        return None
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    graph.graph_copy(module.graph, copies)
    graph.output([copies[node] for node in bases]).meta = dict(module.graph.output_node().meta)
    graph.eliminate_dead_code()
    return torch.fx.GraphModule(module, graph)
