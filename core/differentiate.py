"""A graph that computes a value, and the graph that computes its gradients.

Inputs and states stay; outputs are the value, where it is asked for, then a gradient for each of the nodes that it is
differentiated by. The graph has to be built while functions remember their derivatives (``derivative.recorded``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from luminal.core import derivative, ir, traverse
from luminal.core.errors import InputError
from luminal.core.gradient import gradients
from luminal.core.ir import Graph, Node

COTANGENT = "cotangent"


def differentiated(graph: Graph, by: Sequence[Node], value: bool = True, cotangent: bool = False) -> Graph:
    """``graph`` with its one output, then the gradients of its sum with respect to inputs ``by``: outputs of the names
    ``gradient.0``, .. in their order. With ``cotangent`` an input of that name, after those that the caller gives and
    of the shape of the output, weighs its elements; without it the output is one number. Without ``value`` the
    gradients come alone.

    Raises InputError where there are several outputs, or one of a type that has no gradients, or of more elements than
    one where no cotangent is given; and UnsupportedError as ``gradients`` does.
    """
    (name, y), *others = graph.returned
    if others:
        found = ", ".join(name for name, _ in graph.returned)
        raise InputError(f"gradients: expected a model with one output, found {found}; return the one to differentiate")
    if not y.dtype.is_float:
        raise InputError(f"gradients: expected an output of floats, found {name}: {y.dtype}{list(y.shape)}")
    for node in by:
        if not node.dtype.is_float:
            raise InputError(
                f"gradients: expected inputs of floats to differentiate by, found {node.attr.name}: "
                f"{node.dtype}{list(node.shape)}; leave it out of wrt"
            )
    if not cotangent and y.size != 1:
        raise InputError(
            f"gradients: expected an output of one number, found {name}: {y.dtype}{list(y.shape)}; reduce it, or ask "
            "for cotangent=True and give the gradient of each element"
        )
    origins = dict(graph.origins)
    weights = ir.input_(_free(COTANGENT, graph), y.shape, y.dtype) if cotangent else None
    with derivative.recorded():
        parts = gradients(y, by, weights, origins)
    outputs = [*([(name, y)] if value else []), *((f"gradient.{k}", part) for k, part in enumerate(parts))]
    outputs += graph.outputs[len(graph.returned) :]
    inputs = (*graph.given, *([weights] if weights is not None else []), *graph.inputs[len(graph.given) :])
    made = derivative.plain(replace(graph, inputs=inputs, outputs=tuple(outputs), origins=origins, structure={}))
    used = set(traverse.everything(made.roots))
    return replace(made, origins={node: found for node, found in made.origins.items() if node in used})


def _free(name: str, graph: Graph) -> str:
    taken = {node.attr.name for node in graph.inputs}
    while name in taken:
        name += "_"
    return name
