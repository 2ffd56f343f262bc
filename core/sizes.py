"""Solves for the sizes of dimension symbols from the shapes of inputs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from luminal.core import symbolic as sym
from luminal.core.symbolic import Int, Var


@dataclass(frozen=True)
class Solution:
    """``symbol`` is ``(size - rest) // slope``, ``size`` being that of axis number ``axis``. ``slope`` is positive for
    all sizes, or negative; it and ``rest`` are over symbols that earlier solutions give."""

    symbol: Var
    axis: int
    slope: Int
    rest: Int

    def value(self, size: Int) -> Int:
        """The symbol's value if the axis has ``size``. It is a solution only if the extent then equals ``size``."""
        if sym.always(self.slope):
            return sym.floordiv(size - self.rest, self.slope)
        return sym.floordiv(self.rest - size, self.slope * -1)


def solve(axes: Sequence[Int], known: Collection[Var] = ()) -> list[Solution]:
    """How the symbols in the extents ``axes`` follow from the sizes of these axes, in an order in which they can be
    computed: those that stand alone on an axis first. Symbols for which there is no way are left out.

    A symbol is solved from an extent that is linear in it and has no other that is unknown by then.
    """
    found = list[Solution]()
    solved = set(known)
    for number, extent in enumerate(axes):
        alone = sym.as_var(extent)
        if alone is not None and alone not in solved:
            found.append(Solution(alone, number, 1, 0))
            solved.add(alone)
    while True:
        solution = next((s for n, extent in enumerate(axes) if (s := _solution(extent, n, solved))), None)
        if solution is None:
            return found
        found.append(solution)
        solved.add(solution.symbol)


def _solution(extent: Int, number: int, solved: set[Var]) -> Solution | None:
    unknown = sym.variables(extent) - solved
    if len(unknown) != 1:
        return None
    (symbol,) = unknown
    linear = sym.coefficient(extent, symbol)
    if linear is None or not (sym.always(linear[0] - 1) or sym.never(linear[0])):
        return None
    return Solution(symbol, number, *linear)


def largest(size: Int) -> int:
    """The upper bound of a size if it has one, else a representative number."""
    return sym.upper(size) or typical(size)


def least(size: Int) -> int:
    """The least value of a size, at least 1."""
    return max(1, sym.lower(size) or 1)


def typical(size: Int) -> int:
    """A representative number for a size: itself, or the geometric mean of its bounds, where symbols that have a usual
    value have that."""
    if isinstance(size, int):
        return size
    usual = {v: v.usual for v in sym.variables(size) if v.usual is not None}
    if usual:
        return typical(sym.substitute(size, usual))
    low, high = sym.lower(size), sym.upper(size)
    if low is None or high is None:
        return 128
    return max(1, math.isqrt(max(1, low) * max(1, high)))
