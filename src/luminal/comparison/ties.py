"""Values that lie beside a tie of rounding, where two right implementations give neighbouring integers.

A model that quantises its activations can turn an error in the last place of a sum into a whole step of an integer,
which all readers of the element inherit. Which elements are affected depends on the order of summation. So the effect
on the outputs is measured by perturbation: the graph is run with every element that it rounds a little larger or
smaller, and once more in the other direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.comparison.measure import FACTOR
from luminal.core import ir, ops, rewrite, traverse
from luminal.core.ir import Graph, Node


def live(graph: Graph) -> dict[Node, None]:
    """The nodes that depend on an input, operands first."""
    found: dict[Node, None] = {}
    for node in traverse.topological(graph.results):
        if node.op is ops.INPUT or any(operand in found for operand in node.inputs):
            found[node] = None
    return found


def arguments(graph: Graph) -> list[Node]:
    """The operands that ``graph`` rounds to the nearest integer, outside of loops and branches.

    Other modes of rounding are left out: they jump at exact integers, which are frequent values.
    """
    rounds = (node for node in live(graph) if node.op is ops.ROUND and node.attr.mode == "even")
    return list(dict.fromkeys(node.inputs[0] for node in rounds))


def moved(graph: Graph, by: Mapping[Node, Node]) -> Graph:
    """``graph`` with ``by[x]`` added to each of its values ``x`` wherever it is rounded to the nearest integer."""
    origins: ir.Origins = dict(graph.origins)

    def make(node: Node, operands: Sequence[Node]) -> Node:
        step = by.get(node.inputs[0]) if node.op is ops.ROUND and node.attr.mode == "even" else None
        return traverse.rebuild(node, operands if step is None else [operands[0] + step])

    return graph.computing(rewrite.remade(graph.roots, origins, make), origins=origins)


def steps(typed: NDArray[Any], exact: NDArray[Any], bound: float) -> NDArray[Any]:
    """The error to assume for each element: ``FACTOR`` times its own or the median error, whichever is larger, and no
    less than ``bound`` times its magnitude; at most half an integer, which moves any element to a neighbour."""
    with np.errstate(all="ignore"):
        exact = exact.astype(np.float64)
        errors = np.nan_to_num(np.abs(typed.astype(np.float64) - exact), nan=0.0, posinf=0.0)
        typical = np.median(errors[errors > 0]) if errors.any() else 0.0
        least = bound * np.nan_to_num(np.abs(exact), nan=0.0, posinf=0.0)
    return np.asarray(np.minimum(0.5, np.maximum(least, FACTOR * np.maximum(errors, typical))))


def signs(shape: Sequence[int], number: int) -> NDArray[Any]:
    """1 or -1 for each element of the value of that number. If all were the same, their effects could cancel."""
    return np.random.default_rng(number).choice((-1.0, 1.0), tuple(shape))
