"""The first operator that made a NaN, found by running a graph in the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core import derivative, interp, traverse
from luminal.core.ir import Graph, Node


def first(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> str:
    """What made the first NaN that the first output of ``graph`` depends on, in words, for these ``inputs``, states
    included."""
    name, root = graph.returned[0]
    given = [node.attr.name for node in graph.inputs if node.dtype.is_float and _has_nan(inputs[node.attr.name])]
    if given:
        return f"{name} is NaN: there are NaN in {', '.join(given)} before the step"
    (root,) = derivative.stripped([root])
    order = traverse.topological([root])
    kept = interp.run(graph, inputs, keep=order).kept
    for node in order:
        if node.dtype.is_float and node in kept and _has_nan(kept[node]):
            return f"{name} is NaN: {_described(graph, node, kept)}"
    return f"{name} is NaN, but not where the same step runs in the order that the model spells"


def _has_nan(array: NDArray[Any]) -> bool:
    return bool(np.isnan(np.asarray(array, np.float64)).any())


def _described(graph: Graph, node: Node, kept: Mapping[Node, NDArray[Any]]) -> str:
    where = "; ".join(map(str, graph.origins.get(node, ()))) or "an operator of the backward pass"
    operands = []
    for operand in node.inputs:
        if operand in kept and operand.size:
            values = np.asarray(kept[operand], np.float64)
            operands.append(f"{operand.dtype}{list(operand.shape)} between {values.min():g} and {values.max():g}")
    count = int(np.isnan(np.asarray(kept[node], np.float64)).sum())
    return f"{count} first come from {node.op} of {where}, which reads {' and '.join(operands) or 'constants'}"
