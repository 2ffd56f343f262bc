"""The exact values of a graph, and how far an implementation may be from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from luminal.comparison import ties
from luminal.comparison.measure import FACTOR, Rounding, beyond, distance, rounding
from luminal.core import interp, ir
from luminal.core.errors import InputError
from luminal.core.ir import Graph, Node
from luminal.core.precision import FP32, Precision
from luminal.core.schedule.contraction.contracted import Contracted
from luminal.core.schedule.numeric.rounding import exact as exact_nodes
from luminal.core.schedule.numeric.rounding import rounded

_Values = dict[Node, NDArray[Any]]


@dataclass(frozen=True)
class Bound:
    """How far an array may be from the expected one, relative to the latter's largest magnitude: each element up to
    ``usual``, except that at most ``exceptions`` elements may be up to ``most`` away."""

    usual: float
    most: float
    exceptions: int = 0

    def __add__(self, other: Bound) -> Bound:
        return Bound(self.usual + other.usual, self.most + other.most, self.exceptions + other.exceptions)

    def problem(self, found: NDArray[Any], expected: NDArray[Any], whose: str) -> str:
        """Why ``found`` is too far from ``expected``, in words; empty where it is not. They have one shape and type;
        elements count where both are finite."""
        far = distance(found, expected).relative
        count = beyond(found, expected, self.usual)
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

    Usually the library may be as far as rounding explains (``measure.rounding``), and the reference, which may round
    more often, as far as ``measure.limit``; either also ``measure.FACTOR`` times as far as the graph in its own types,
    run for the library with its rounding of contraction operands. Integers must be equal. But where the graph rounds
    inexact values to integers, both may be ``measure.FACTOR`` times as far as values beside ties move them (``ties``),
    at about as many elements.
    """

    own: Bound
    reference: Bound

    @property
    def apart(self) -> Bound:
        """How far the library and the reference may be from each other."""
        return self.own + self.reference


@dataclass(eq=False)
class _Side:
    """One of the two implementations: it computes the model after ``change``, with ``rounding``. ``beside`` is how far
    each element that is rounded to an integer may be off (None before that is known). ``moved`` are the values when all
    of these elements are shifted so far: in one direction, and in the other."""

    rounding: Mapping[Node, Rounding]
    change: Callable[[Graph], Graph] = lambda graph: graph
    beside: dict[Node, NDArray[Any]] | None = None
    values: _Values = field(default_factory=dict)
    moved: tuple[dict[Node, NDArray[Any] | None], ...] = field(default_factory=lambda: ({}, {}))

    @property
    def all(self) -> tuple[dict[Node, Any], ...]:
        return (self.values, *self.moved)

    def bound(self, node: Node, exact: NDArray[Any], usual: float) -> Bound:
        """The bound ``usual``, with exceptions for elements that values beside ties move."""
        moved = [x for values in self.moved if (x := values.get(node)) is not None and x.shape == exact.shape]
        exceptions = max((beyond(x, exact, usual) for x in moved), default=0)
        most = max((distance(x, exact).relative for x in moved), default=0.0) if exceptions else 0.0
        # The number of values beside ties varies by about its square root.
        return Bound(usual, max(usual, FACTOR * most), math.ceil(exceptions + FACTOR * math.sqrt(exceptions)))


class Oracle:
    """The interpreter on one set of inputs, in the types of the graph and in float64."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, NDArray[Any]],
        tolerance: float | None = None,
        precision: Precision = FP32,
        approximate: Callable[[Graph], Graph] | None = None,
    ) -> None:
        """``tolerance`` replaces the bounds from rounding: it is the distance allowed between library and reference.
        The library rounds the operands of contractions to ``precision``, and is compiled from ``approximate(graph)``.
        """
        self.graph, self.inputs, self.tolerance, self.precision = graph, inputs, tolerance, precision
        self.approximate = approximate
        self.dims = interp.bind(graph.given, inputs, {})
        self._exact: _Values = {}
        self._reference = _Side(rounding(graph.results, self.dims))
        self._own = self._reference
        if precision.unit or approximate is not None:
            kept = exact_nodes(graph)
            self._own = _Side(rounding(graph.results, self.dims, precision, kept), self._as_compiled)

    def compute(self, nodes: Collection[Node]) -> None:
        """Evaluate ``nodes`` at once. Raises IndexError where an index is out of range."""
        missing = [node for node in dict.fromkeys(nodes) if node not in self._exact]
        if not missing:
            return
        wanted = tuple((str(k), n) for k, n in enumerate(missing))
        roots = replace(self.graph, outputs=wanted)
        sides = list(dict.fromkeys((self._reference, self._own)))
        kept = ties.arguments(self.graph) if self._own.beside is None and self.tolerance is None else []
        typed, exact = (interp.run(roots, self.inputs, mode, kept) for mode in ("typed", "float64"))
        self._exact.update(zip(missing, exact.outputs, strict=True))
        # Which operands are rounded depends on all their readers, so the whole model is changed and run.
        whole = replace(self.graph, outputs=(*wanted, *self.graph.outputs))
        for side in sides:
            if side.beside is None:
                errors = {x: ties.steps(typed.kept[x], exact.kept[x], side.rounding[x].bound) for x in kept}
                side.beside = {x: step for x, step in errors.items() if step.any()}
            found = typed.outputs if side is self._reference else self._run(side.change(whole), len(missing), {})
            side.values.update(zip(missing, found, strict=True))
            for sign, moved in zip((1, -1), side.moved, strict=True) if side.beside else ():
                moved.update(zip(missing, self._beside_ties(side, whole, len(missing), sign), strict=True))

    def _beside_ties(self, side: _Side, graph: Graph, count: int, sign: int) -> Sequence[NDArray[Any] | None]:
        """The first ``count`` outputs with values beside ties shifted in the direction ``sign``. All are None where
        that gives a size or an index that the model cannot have."""
        by: dict[Node, Node] = {}
        values: dict[str, NDArray[Any]] = {}
        for number, (x, step) in enumerate((side.beside or {}).items()):
            by[x] = ir.input_(f"moved {number} of {graph.name}", x.shape, x.dtype)
            values[by[x].attr.name] = (sign * ties.signs(step.shape, number) * step).astype(x.dtype.numpy)
        try:
            return self._run(side.change(ties.moved(graph, by)), count, values)
        except (IndexError, InputError):
            return [None] * count

    def _run(self, graph: Graph, count: int, more: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        return interp.run(replace(graph, outputs=graph.outputs[:count]), {**self.inputs, **more}).outputs

    def _as_compiled(self, graph: Graph) -> Graph:
        chosen = graph if self.approximate is None else self.approximate(graph)
        return rounded(Contracted.of(chosen), self.precision).graph if self.precision.unit else chosen

    def forget(self) -> None:
        """Drop every value."""
        for values in (self._exact, *self._reference.all, *self._own.all):
            values.clear()

    def typed(self, node: Node) -> NDArray[Any]:
        """The value in the node's own type."""
        self.compute([node])
        return self._reference.values[node]

    def exact(self, node: Node) -> NDArray[Any]:
        """The value, in float64 where it is a float."""
        self.compute([node])
        return self._exact[node]

    def allowed(self, node: Node) -> Allowed:
        """How far from ``exact`` a value may be."""
        exact, is_float = self.exact(node), node.dtype.kind not in "biut"
        if self.tolerance is not None:
            half = self.tolerance / 2 if is_float else 0.0
            return Allowed(Bound(half, half), Bound(half, half))
        if not is_float:
            return Allowed(self._own.bound(node, exact, 0.0), self._reference.bound(node, exact, 0.0))
        own, reference = (FACTOR * distance(side.values[node], exact).relative for side in (self._own, self._reference))
        return Allowed(
            self._own.bound(node, exact, max(self._own.rounding[node].bound, own)),
            self._reference.bound(node, exact, max(self._reference.rounding[node].limit, reference)),
        )

    def refutes(self, node: Node, value: NDArray[Any]) -> bool:
        """Whether a compiled library is wrong to give ``value`` for ``node``."""
        return self._differs(node, value, self.allowed(node).own)

    def refutes_reference(self, node: Node, value: NDArray[Any]) -> bool:
        """Whether a reference is too far off with ``value`` for ``node``: it then computes something else."""
        return self._differs(node, value, self.allowed(node).reference)

    def _differs(self, node: Node, value: NDArray[Any], allowed: Bound) -> bool:
        typed = self.typed(node)
        if value.shape != typed.shape or value.dtype != typed.dtype:
            return True
        exact = self.exact(node)
        return distance(value, exact).misplaced > 0 or bool(allowed.problem(value, exact, "float64"))
