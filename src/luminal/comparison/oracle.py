"""What the values of a graph are, and how far an implementation may be from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.comparison.measure import FACTOR, distance, rounding
from luminal.core import interp
from luminal.core.ir import Graph, Node
from luminal.core.precision import FP32, Precision
from luminal.core.quantise import Scheme, quantised
from luminal.core.schedule.integers import integral
from luminal.core.schedule.rounding import rounded
from luminal.core.target import Target
from luminal.core.winograd import transformed


@dataclass(frozen=True)
class Allowed:
    """How far from float64 the compiled library (``own``) and the ``reference`` may be, relative to the scale of a
    value: what rounding explains (``measure.rounding``), and for the reference, which may round more often, what
    ``measure.limit`` explains; for either, ``measure.FACTOR`` times the distance of the graph in its own
    types, the library's operands of contractions rounded as it rounds them.
    """

    own: float
    reference: float


def approximated(graph: Graph, weights: Scheme | None, winograd: float | None) -> Graph:
    """``graph`` as it is compiled with ``weights`` that are rounded and within the error budget ``winograd``."""
    graph = graph if weights is None else quantised(graph, weights)
    return graph if winograd is None else transformed(graph, winograd)


class Oracle:
    """The interpreter on one set of inputs, in the types of the graph and in float64."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, NDArray[Any]],
        tolerance: float | None = None,
        precision: Precision = FP32,
        weights: Scheme | None = None,
        target: Target | None = None,
        winograd: float | None = None,
    ) -> None:
        """``tolerance`` replaces what rounding explains: between the library and the reference in all. The library
        rounds the operands of contractions to ``precision``, and ``weights`` as they say, computes contractions of
        integers as ``target`` does, and convolutions within the budget ``winograd``."""
        self.graph, self.inputs, self.tolerance, self.precision = graph, inputs, tolerance, precision
        self.weights, self.target, self.winograd = weights, target, winograd
        self.dims = interp.bind(graph.given, inputs, {})
        self._rounding = rounding(graph.results, self.dims)
        self._chosen = rounding(graph.results, self.dims, precision) if precision.unit else self._rounding
        self._typed: dict[Node, NDArray[Any]] = {}
        self._exact: dict[Node, NDArray[Any]] = {}
        computed = graph if target is None else integral(graph, target)
        self._rounds_otherwise = bool(precision.unit or weights or winograd or computed.results != graph.results)
        self._rounded: dict[Node, NDArray[Any]] = {} if self._rounds_otherwise else self._typed

    def compute(self, nodes: Collection[Node]) -> None:
        """Evaluate ``nodes`` at once. Raises IndexError where an index is out of range."""
        missing = [node for node in dict.fromkeys(nodes) if node not in self._typed]
        if missing:
            roots = replace(self.graph, outputs=tuple((str(k), n) for k, n in enumerate(missing)))
            for mode, values in (("typed", self._typed), ("float64", self._exact)):
                found = interp.run(roots, self.inputs, mode).outputs
                values.update(zip(missing, found, strict=True))
            if self._rounds_otherwise:
                # What is rounded depends on all that reads it: the whole model is.
                chosen = replace(roots, outputs=(*roots.outputs, *self.graph.outputs))
                chosen = approximated(chosen, self.weights, self.winograd)
                chosen = chosen if self.target is None else integral(chosen, self.target)
                chosen = rounded(chosen, self.precision) if self.precision.unit else chosen
                found = interp.run(replace(chosen, outputs=chosen.outputs[: len(missing)]), self.inputs).outputs
                self._rounded.update(zip(missing, found, strict=True))

    def forget(self) -> None:
        """Drop every value."""
        for values in (self._typed, self._exact, self._rounded):
            values.clear()

    def typed(self, node: Node) -> NDArray[Any]:
        """The value in the node's own type."""
        self.compute([node])
        return self._typed[node]

    def exact(self, node: Node) -> NDArray[Any]:
        """The value in float64, where it is a float."""
        self.compute([node])
        return self._exact[node]

    def allowed(self, node: Node) -> Allowed:
        """How far from ``exact`` a value may be."""
        if self.tolerance is not None:
            return Allowed(self.tolerance / 2, self.tolerance / 2)
        exact = self.exact(node)
        own, reference = (FACTOR * distance(x[node], exact).relative for x in (self._rounded, self._typed))
        return Allowed(max(self._chosen[node].bound, own), max(self._rounding[node].limit, reference))

    def refutes(self, node: Node, value: NDArray[Any]) -> bool:
        """Whether a compiled library is wrong to give ``value`` for ``node``."""
        return self._differs(node, value, self.allowed(node).own)

    def refutes_reference(self, node: Node, value: NDArray[Any]) -> bool:
        """Whether a reference that gives ``value`` for ``node`` means something else."""
        return self._differs(node, value, self.allowed(node).reference)

    def _differs(self, node: Node, value: NDArray[Any], allowed: float) -> bool:
        typed = self.typed(node)
        if value.shape != typed.shape or value.dtype != typed.dtype:
            return True
        if node.dtype.kind in "biut":
            return not np.array_equal(value, typed)
        apart = distance(value, self.exact(node))
        return apart.misplaced > 0 or apart.relative > allowed
