"""What the values of a graph are, and how far an implementation may be from them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from luminal.comparison import ties
from luminal.comparison.measure import FACTOR, beyond, distance, rounding
from luminal.core import interp
from luminal.core.ir import Graph, Node
from luminal.core.precision import FP32, Precision
from luminal.core.quantise import Scheme, quantised
from luminal.core.schedule.rounding import rounded
from luminal.core.texts import is_texts
from luminal.core.winograd import transformed

_Values = dict[Node, NDArray[Any]]


@dataclass(frozen=True)
class Bound:
    """How far an array may be from what is expected, relative to the largest magnitude of that: every element
    ``usual``, but for some that may be up to ``most`` away, at most ``exceptions`` of them."""

    usual: float
    most: float
    exceptions: int = 0

    def __add__(self, other: Bound) -> Bound:
        return Bound(self.usual + other.usual, self.most + other.most, self.exceptions + other.exceptions)

    def problem(self, found: NDArray[Any], expected: NDArray[Any], whose: str) -> str:
        """Why ``found`` is too far from an array of its shape and type, in words, and empty where it is not; over the
        elements where both are finite."""
        far = distance(found, expected).relative
        count = 0 if is_texts(found) else beyond(found, expected, self.usual)
        may = f", {self.exceptions} may" if self.exceptions else ""
        if count > self.exceptions and not self.usual:
            return f"{count} of {found.size} elements differ{may}"
        if far > self.most:
            return f"{far:.1e} of the scale from {whose}, {self.most:.1e} allowed"
        if count > self.exceptions:
            return f"{count} of {found.size} elements are more than {self.usual:.1e} of the scale from {whose}{may}"
        return ""


@dataclass(frozen=True)
class Allowed:
    """How far from float64 the compiled library (``own``) and the ``reference`` may be.

    Usually it is what rounding explains (``measure.rounding``), and for the reference, which may round more often, what
    ``measure.limit`` explains; for either, ``measure.FACTOR`` times the distance of the graph in its own types, the
    library's operands of contractions rounded as it rounds them. Integers are the same. But where the graph rounds to
    integers what is not exact, both may be as far, at as many elements, as ``measure.FACTOR`` times what the values
    beside ties move (``ties``).
    """

    own: Bound
    reference: Bound

    @property
    def apart(self) -> Bound:
        """How far the two may be from each other."""
        return self.own + self.reference


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
        winograd: float | None = None,
    ) -> None:
        """``tolerance`` replaces what rounding explains: between the library and the reference in all. The library
        rounds the operands of contractions to ``precision``, and ``weights`` as they say, and computes convolutions
        within the budget ``winograd``."""
        self.graph, self.inputs, self.tolerance, self.precision = graph, inputs, tolerance, precision
        self.weights, self.winograd = weights, winograd
        self.dims = interp.bind(graph.given, inputs, {})
        self._rounding = rounding(graph.results, self.dims)
        self._chosen = rounding(graph.results, self.dims, precision) if precision.unit else self._rounding
        self._beside: dict[Node, float] | None = None  # how far from a tie what is rounded may go either way
        self._typed: _Values = {}
        self._exact: _Values = {}
        self._rounds_otherwise = bool(precision.unit or weights or winograd)
        self._rounded: _Values = {} if self._rounds_otherwise else self._typed
        self._moved: tuple[_Values, ...] = ({}, {})

    def compute(self, nodes: Collection[Node]) -> None:
        """Evaluate ``nodes`` at once. Raises IndexError where an index is out of range."""
        missing = [node for node in dict.fromkeys(nodes) if node not in self._typed]
        if not missing:
            return
        wanted = tuple((str(k), n) for k, n in enumerate(missing))
        roots = replace(self.graph, outputs=wanted)
        kept = ties.arguments(self.graph) if self._beside is None else []
        typed, exact = (interp.run(roots, self.inputs, mode, kept) for mode in ("typed", "float64"))
        if self._beside is None:
            errors = {x: self._error(x, typed.kept[x], exact.kept[x]) for x in kept}
            self._beside = {x: error for x, error in errors.items() if error}
        values = [(self._typed, typed.outputs), (self._exact, exact.outputs)]
        # What is rounded as was chosen depends on all that reads it: the whole model is.
        whole = replace(self.graph, outputs=(*wanted, *self.graph.outputs))
        if self._rounds_otherwise:
            values.append((self._rounded, self._as_compiled(whole, len(wanted))))
        if self._beside:
            for sign, moved in zip((1, -1), self._moved, strict=True):
                by = {x: sign * error for x, error in self._beside.items()}
                values.append((moved, self._as_compiled(ties.moved(whole, by), len(wanted))))
        for known, found in values:
            known.update(zip(missing, found, strict=True))

    def _error(self, node: Node, typed: NDArray[Any], exact: NDArray[Any]) -> float:
        """How far from ``exact`` an implementation may be, absolutely."""
        apart = distance(typed, exact)
        return FACTOR * max(self._chosen[node].bound * apart.scale, apart.absolute)

    def _as_compiled(self, graph: Graph, count: int) -> list[NDArray[Any]]:
        """The first ``count`` outputs of ``graph`` with all roundings that were chosen."""
        chosen = approximated(graph, self.weights, self.winograd)
        chosen = rounded(chosen, self.precision) if self.precision.unit else chosen
        return interp.run(replace(chosen, outputs=chosen.outputs[:count]), self.inputs).outputs

    def forget(self) -> None:
        """Drop every value."""
        for values in (self._typed, self._exact, self._rounded, *self._moved):
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
        exact, is_float = self.exact(node), node.dtype.kind not in "biut"
        if self.tolerance is not None:
            half = self.tolerance / 2 if is_float else 0.0
            return Allowed(Bound(half, half), Bound(half, half))
        if not is_float:
            return Allowed(self._beside_ties(node, 0.0), self._beside_ties(node, 0.0))
        own, reference = (FACTOR * distance(x[node], exact).relative for x in (self._rounded, self._typed))
        return Allowed(
            self._beside_ties(node, max(self._chosen[node].bound, own)),
            self._beside_ties(node, max(self._rounding[node].limit, reference)),
        )

    def _beside_ties(self, node: Node, usual: float) -> Bound:
        """``usual``, and what values beside ties move."""
        exact = self._exact[node]
        moved = [values[node] for values in self._moved if node in values]
        exceptions = max((beyond(x, exact, usual) for x in moved), default=0)
        most = max((distance(x, exact).relative for x in moved), default=0.0) if exceptions else 0.0
        return Bound(usual, max(usual, FACTOR * most), math.ceil(FACTOR * exceptions))

    def refutes(self, node: Node, value: NDArray[Any]) -> bool:
        """Whether a compiled library is wrong to give ``value`` for ``node``."""
        return self._differs(node, value, self.allowed(node).own)

    def refutes_reference(self, node: Node, value: NDArray[Any]) -> bool:
        """Whether a reference that gives ``value`` for ``node`` means something else."""
        return self._differs(node, value, self.allowed(node).reference)

    def _differs(self, node: Node, value: NDArray[Any], allowed: Bound) -> bool:
        typed = self.typed(node)
        if value.shape != typed.shape or value.dtype != typed.dtype:
            return True
        exact = self.exact(node)
        return distance(value, exact).misplaced > 0 or bool(allowed.problem(value, exact, "float64"))
