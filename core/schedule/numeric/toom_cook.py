"""Minimal filtering: its matrices, as exact fractions, and their products with tiles.

``m`` outputs of a filter of ``r`` taps take ``m + r - 1`` products instead of ``m*r``: with ``d`` the ``m + r - 1``
inputs that they read and ``g`` the taps, ``y = A^T [(G g) . (B^T d)]``, and along two axes ``y = A^T [(G g G^T) . (B^T
d B)] A`` (Winograd, "Arithmetic Complexity of Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks", 2015). The matrices come from interpolation at points (Toom and Cook). Rounding errors are least for
small points together with their negatives and reciprocals (Barabasz, Anderson, Soodhalter and Gregg, "Error Analysis
and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", 2020).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from luminal.core.ir import Node

Array = np.ndarray[Any, Any]
Matrix = tuple[tuple[Fraction, ...], ...]
Place = tuple[int, ...]
Element = TypeVar("Element", Node, Array)


@dataclass(frozen=True)
class Filtering:
    """The matrices of F(m, r), exact: ``output`` is A^T ``[m, t]``, ``taps`` G ``[t, r]``, ``input`` B^T ``[t, t]``,
    with ``t = m + r - 1``."""

    m: int
    r: int
    output: Matrix
    taps: Matrix
    input: Matrix

    @property
    def size(self) -> int:
        """The number of inputs of a tile, which is also that of its products."""
        return self.m + self.r - 1


@lru_cache
def filtering(m: int, r: int) -> Filtering:
    """F(m, r) from interpolation at the first ``m + r - 2`` of the points 0, 1, -1, 1/2, -1/2, 2, -2, .. and at
    infinity.

    The product of polynomials of degree m - 1 and r - 1 follows from its values at the points: ``V^-1 [(V_m h) . (V_r
    g)]``, ``V`` a Vandermonde matrix. Filtering is its transpose in ``h``: ``A^T = V_m^T``, ``G = V_r`` and ``B^T =
    V^-T``, whose rows are the coefficients of Lagrange's polynomials, here without their denominators, which G has.
    """
    count = m + r - 2
    points = _points(count)

    def powers(length: int) -> Matrix:
        finite = tuple(tuple(point**k for k in range(length)) for point in points)
        return (*finite, tuple(Fraction(k == length - 1) for k in range(length)))

    polynomials = [_with_roots(p for p in points if p != point) for point in points]
    scales = [math.prod((point - p for p in points if p != point), start=Fraction(1)) for point in points]
    taps = tuple(tuple(x / scale for x in row) for row, scale in zip(powers(r), [*scales, Fraction(1)], strict=True))
    rows = [*polynomials, _with_roots(points)]
    padded = tuple(tuple(row) + (Fraction(0),) * (count + 1 - len(row)) for row in rows)
    return Filtering(m, r, tuple(zip(*powers(m), strict=True)), taps, padded)


def _points(count: int) -> list[Fraction]:
    """0, and then 1, 1/2, 2, 1/3, 3, .. with their negatives."""
    found = [Fraction(0)]
    for n in itertools.count(1):
        for value in dict.fromkeys((Fraction(1, n), Fraction(n))):
            found += [value, -value]
        if len(found) >= count:
            return found[:count]
    raise AssertionError


def _with_roots(roots: Iterable[Fraction]) -> list[Fraction]:
    """The coefficients of the product of ``x - root``, the constant first."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(root * x for x in found), Fraction(0)]
        found = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return found


def applied(matrix: Matrix, elements: Sequence[Element]) -> list[Element]:
    """``matrix`` times a vector of nodes or arrays. Two rows that differ in signs alone, such as those of a point and
    its negative, are computed as a sum and a difference of two shared parts."""
    found: dict[int, Element] = {}
    for k, row in enumerate(matrix):
        if k in found:
            continue
        twin = next((j for j in range(k + 1, len(matrix)) if _is_twin(row, matrix[j])), None)
        if twin is None:
            found[k] = _weighted(row, elements)
            continue
        pairs = list(zip(row, matrix[twin], strict=True))
        same, other = (
            _weighted([x if (x == y) is kept else Fraction(0) for x, y in pairs], elements) for kept in (True, False)
        )
        found[k], found[twin] = same + other, same - other
    return [found[k] for k in range(len(matrix))]


def _is_twin(row: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    """Whether rows with three nonzeros or more have equal magnitudes, some with equal and some with other signs."""
    if any(abs(x) != abs(y) for x, y in zip(row, other, strict=True)):
        return False
    same = sum(x == y != 0 for x, y in zip(row, other, strict=True))
    opposite = sum(x == -y != 0 for x, y in zip(row, other, strict=True))
    return same > 0 and opposite > 0 and same + opposite > 2


def _weighted(weights: Sequence[Fraction], elements: Sequence[Element]) -> Element:
    """The sum of elements times weights; elements whose weights have one magnitude are added before multiplying."""
    terms = [(w, x) for w, x in zip(weights, elements, strict=True) if w]
    total: Element | None = None
    for weight in dict.fromkeys(abs(w) for w, _ in sorted(terms, key=lambda term: abs(term[0]) != 1)):
        part: Element | None = None
        for w, x in sorted(((w, x) for w, x in terms if abs(w) == weight), key=lambda term: term[0] < 0):
            part = (x if w > 0 else -x) if part is None else part + x if w > 0 else part - x
        assert part is not None
        scaled = part if weight == 1 else part * (np.float32(weight) if isinstance(part, np.ndarray) else float(weight))
        total = scaled if total is None else total + scaled
    assert total is not None
    return total


def along_axes(matrices: Sequence[Matrix], elements: Mapping[Place, Element]) -> dict[Place, Element]:
    """A tile of ``elements`` by position, with a matrix applied along each axis in turn."""
    found = dict(elements)
    for axis in range(len(matrices)):
        found = _along(axis, matrices[axis], found)
    return dict(sorted(found.items()))


def _along(axis: int, matrix: Matrix, elements: Mapping[Place, Element]) -> dict[Place, Element]:
    lines: dict[Place, list[Element]] = {}
    for place in sorted(elements):
        lines.setdefault(_moved(place, axis, 0), []).append(elements[place])
    found: dict[Place, Element] = {}
    for first, line in lines.items():
        for k, product in enumerate(applied(matrix, line)):
            found[_moved(first, axis, k)] = product
    return found


def _moved(place: Place, axis: int, to: int) -> Place:
    return (*place[:axis], to, *place[axis + 1 :])
