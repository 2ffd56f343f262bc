"""Which way each node is computed, at the least cost over the whole graph.

Nodes are variables, their modes are values, and operands are edges with the cost of bringing them where they are
needed: a partitioned Boolean quadratic problem (Scholz and Eckstein, 2002). First, values are left out than which
another one is better whatever the neighbours do (dead-end elimination: Goldstein, 1994). Then variables are eliminated
exactly, as a dynamic programme does, those first that leave the smallest table of their neighbours (bucket elimination:
Dechter, 1999); residual networks fold up so to the last node. Where the smallest table is too large, the variable with
most neighbours takes its locally cheapest value.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
_NEVER = 1e30  # seconds; infinity would make NaN
_MOST = 1 << 16  # entries of a table


@dataclass(frozen=True)
class _Table:
    """Costs by the values of some variables, an axis each."""

    over: tuple[int, ...]
    costs: Array

    def along(self, order: Sequence[int]) -> Array:
        """The costs with an axis for each variable of ``order``, which has all of its own."""
        place = {number: k for k, number in enumerate(self.over)}
        moved = self.costs.transpose([place[number] for number in order if number in place])
        sizes = iter(moved.shape)
        return moved.reshape([next(sizes) if number in place else 1 for number in order])


class Problem:
    """Variables by number, each with a vector of costs; matrices of costs between two of them."""

    def __init__(self) -> None:
        self.costs: list[Array] = []
        self.tables: dict[int, _Table] = {}
        self.of: list[set[int]] = []  # the tables of each variable
        self.made = 0

    def add(self, costs: Sequence[float]) -> int:
        """A variable with a value for each of ``costs``; its number."""
        self.costs.append(np.minimum(np.asarray(costs, float), _NEVER))
        self.of.append(set())
        return len(self.costs) - 1

    def join(self, a: int, b: int, costs: Array) -> None:
        """Adds ``costs[value of a, value of b]``."""
        costs = np.minimum(costs, _NEVER)
        if a == b:
            self.costs[a] = self.costs[a] + np.diagonal(costs)
        else:
            self._put(_Table((a, b), costs))

    def solve(self) -> list[int]:
        """The value of each variable."""
        kept = self._prune()
        steps: list[tuple[int, tuple[int, ...], Array]] = []  # a variable, others, and its value by theirs
        left = {number for number, costs in enumerate(self.costs) if len(costs) > 1}
        for number in sorted(set(range(len(self.costs))) - left):
            self._settle(number, steps)
        waiting = [(self._entries(number), number) for number in left]
        heapq.heapify(waiting)
        while left:
            entries, number = heapq.heappop(waiting)
            if number not in left or entries != self._entries(number):
                continue  # there is another row for it, as it is now
            if entries > _MOST:
                heapq.heappush(waiting, (entries, number))
                number = max(left, key=lambda n: (len(self._others(n)), -n))
                others = self._settle(number, steps)
            else:
                others = self._eliminate(number, steps)
            left.remove(number)
            for other in others:
                heapq.heappush(waiting, (self._entries(other), other))
        values = [0] * len(self.costs)
        for number, others_, best in reversed(steps):
            values[number] = int(best[tuple(values[other] for other in others_)])
        return [kept[number][value] for number, value in enumerate(values)]

    def _prune(self) -> list[list[int]]:
        """Leaves out values that no cheapest solution needs; of each variable those that are left."""
        kept = [list(range(len(costs))) for costs in self.costs]
        waiting = dict.fromkeys(range(len(kept)))
        while waiting:
            number = next(iter(waiting))
            del waiting[number]
            left = self._needed(number)
            if len(left) == len(kept[number]):
                continue
            kept[number] = [kept[number][value] for value in left]
            self.costs[number] = self.costs[number][left]
            for key in self.of[number]:
                table = self.tables[key]
                self.tables[key] = _Table(table.over, table.costs.take(left, table.over.index(number)))
            waiting |= dict.fromkeys(self._others(number))
        return kept

    def _needed(self, number: int) -> list[int]:
        """The values of a variable, which has tables with one other each, without those than which another is better,
        or as good and before it."""
        costs = self.costs[number]
        if len(costs) == 1:
            return [0]
        more = costs[:, None] - costs[None, :]  # what one value instead of another costs more, at worst
        by_other: dict[int, Array] = {}
        for key in self.of[number]:
            table = self.tables[key]
            (other,) = set(table.over) - {number}
            matrix = table.along((number, other))
            by_other[other] = by_other[other] + matrix if other in by_other else matrix
        for matrix in by_other.values():
            more = more + (matrix[:, None, :] - matrix[None, :, :]).max(axis=2)
        left = list(range(len(costs)))
        for value in reversed(range(len(costs))):
            if any(other != value and more[other, value] <= 0 for other in left):
                left.remove(value)
        return left

    def _put(self, table: _Table) -> None:
        for number in table.over:
            self.of[number].add(self.made)
        self.tables[self.made] = table
        self.made += 1

    def _taken(self, number: int) -> list[_Table]:
        """The tables of a variable, which are taken out."""
        found = []
        for key in sorted(self.of[number]):
            table = self.tables.pop(key)
            for other in table.over:
                self.of[other].discard(key)
            found.append(table)
        return found

    def _others(self, number: int) -> list[int]:
        return sorted({other for key in self.of[number] for other in self.tables[key].over} - {number})

    def _entries(self, number: int) -> int:
        """The size of the table that is needed to eliminate a variable."""
        return math.prod(len(self.costs[n]) for n in (number, *self._others(number)))

    def _eliminate(self, number: int, steps: list[tuple[int, tuple[int, ...], Array]]) -> list[int]:
        """Takes a variable out; its neighbours, which bear its costs together."""
        others = self._others(number)
        order = (*others, number)
        total = self.costs[number].reshape([1] * len(others) + [-1])
        for table in self._taken(number):
            total = total + table.along(order)
        steps.append((number, tuple(others), total.argmin(axis=-1)))
        least = np.minimum(total.min(axis=-1), _NEVER)
        if len(others) == 1:
            self.costs[others[0]] = np.minimum(self.costs[others[0]] + least, _NEVER)
        elif others:
            self._put(_Table(tuple(others), least))
        return others

    def _settle(self, number: int, steps: list[tuple[int, tuple[int, ...], Array]]) -> list[int]:
        """Leaves a variable its cheapest value alone, whatever its neighbours would do then."""
        others, tables = self._others(number), self._taken(number)
        total = self.costs[number].copy()
        for table in tables:
            costs = table.costs
            for axis, other in enumerate(table.over):
                if other != number:
                    costs = costs + self.costs[other].reshape([-1 if k == axis else 1 for k in range(costs.ndim)])
            total += costs.min(axis=tuple(k for k, other in enumerate(table.over) if other != number))
        best = int(total.argmin())
        steps.append((number, (), np.array(best)))
        for table in tables:
            axis = table.over.index(number)
            over, costs = (*table.over[:axis], *table.over[axis + 1 :]), table.costs.take(best, axis)
            if len(over) == 1:
                self.costs[over[0]] = np.minimum(self.costs[over[0]] + costs, _NEVER)
            else:
                self._put(_Table(over, costs))
        return others
