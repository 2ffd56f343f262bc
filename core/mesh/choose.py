"""Which way each node is computed, at the least cost over the whole graph.

Nodes are variables, their modes are values, and operands are edges with the cost of bringing them where they are
needed: a partitioned Boolean quadratic problem (Scholz and Eckstein, 2002). Variables of one or two neighbours are
eliminated exactly, as a dynamic programme does; residual networks fold up so to the last node. Of what is left, the
variable with most neighbours takes its locally cheapest value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
_NEVER = 1e30  # seconds; infinity would make NaN


class Problem:
    """Variables by number, each with a vector of costs; matrices of costs between two of them."""

    def __init__(self) -> None:
        self.costs: list[Array] = []
        self.edges: list[dict[int, Array]] = []
        self.fixed: dict[int, int] = {}  # values that were settled before the others

    def add(self, costs: Sequence[float]) -> int:
        """A variable with a value for each of ``costs``; its number."""
        self.costs.append(np.minimum(np.asarray(costs, float), _NEVER))
        self.edges.append({})
        return len(self.costs) - 1

    def join(self, a: int, b: int, costs: Array) -> None:
        """Adds ``costs[value of a, value of b]``."""
        costs = np.minimum(costs, _NEVER)
        if a == b:
            self.costs[a] = self.costs[a] + np.diagonal(costs)
            return
        for here, there, matrix in ((a, b, costs), (b, a, costs.T)):
            known = self.edges[here].get(there)
            self.edges[here][there] = matrix if known is None else known + matrix

    def solve(self) -> list[int]:
        """The value of each variable."""
        steps: list[tuple[int, Mapping[int, Array], Array]] = []
        left = set(range(len(self.costs)))
        ready = [n for n in sorted(left, reverse=True) if self._is_easy(n)]
        while left:
            while ready:
                number = ready.pop()
                if number in left and self._is_easy(number):
                    ready += self._eliminate(number, steps, left)
            if left:
                number = max(left, key=lambda n: (len(self.edges[n]), -n))
                self._settle(number)
                ready = [number]
        values = [0] * len(self.costs)
        for number, edges, costs in reversed(steps):
            total = costs + sum((matrix[:, values[other]] for other, matrix in edges.items()), np.zeros(len(costs)))
            values[number] = self.fixed.get(number, int(np.argmin(total)))
        return values

    def _is_easy(self, number: int) -> bool:
        return len(self.edges[number]) <= 2 or len(self.costs[number]) == 1

    def _settle(self, number: int) -> None:
        """Leaves a variable its cheapest value alone, whatever its neighbours would do then."""
        total = self.costs[number].copy()
        for other, matrix in self.edges[number].items():
            total += (matrix + self.costs[other][None, :]).min(axis=1)
        self.fixed[number] = best = int(np.argmin(total))
        self.costs[number] = self.costs[number][[best]]
        for other, matrix in list(self.edges[number].items()):
            self.edges[number][other] = matrix[[best]]
            self.edges[other][number] = matrix[[best]].T

    def _eliminate(self, number: int, steps: list[Any], left: set[int]) -> list[int]:
        """Takes a variable out; its neighbours, which bear its costs."""
        edges, costs = self.edges[number], self.costs[number]
        steps.append((number, dict(edges), costs))
        left.remove(number)
        neighbours = list(edges)
        for other in neighbours:
            del self.edges[other][number]
        if len(costs) == 1:
            for other in neighbours:
                self.costs[other] = np.minimum(self.costs[other] + edges[other][0] + costs[0] / len(neighbours), _NEVER)
        elif len(neighbours) == 1:
            (a,) = neighbours
            self.costs[a] = np.minimum(self.costs[a] + (costs[:, None] + edges[a]).min(axis=0), _NEVER)
        elif neighbours:
            a, b = neighbours
            both = costs[:, None, None] + edges[a][:, :, None] + edges[b][:, None, :]
            self.join(a, b, both.min(axis=0))
        self.edges[number] = {}
        return [other for other in neighbours if other in left]
