"""The law: a form may take another's place only if the bound of its error is no larger.

A sum of products, computed in any order, is off by at most ``c*eps`` times the same sum of the absolute values of all
terms: no order changes that. What else a new order could do is refused here.

- *Cancelling.* A matrix whose rows cancel (differences, centring, a Laplacian) is summed against its data as spelled:
  if its data were summed before, small differences of it would be lost, which the spelled form keeps.
- *Range.* No value between may be infinite, or vanish, where none was before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.algebra.cost import elements
from luminal.core.algebra.paths import Path, size
from luminal.core.ir import Node, axes
from luminal.core.types import DType

# What inputs are taken to be at most, and at least where they are not zero, as a share of the exponents of their type:
# float32 from 1e-16 to 1e16, so that a sum of a million products of two is finite.
_SHARE = 0.42

# The sum along an axis of numbers that are independent is about the root of the sum of their squares. Where it is less
# than this share of that, they cancel by design.
_CANCELLING = 0.5


def cancels(node: Node) -> bool:
    """Whether a constant factor of the sum ``node`` cancels along the axes that are summed."""
    product = node.inputs[0]
    if not node.dtype.is_float or product.op is not ops.MUL:
        return False
    over = axes(product.shape)
    summed = {v for k in node.attr.axes if (v := sym.as_var(over[k])) is not None}
    return any(_cancels(x, summed) for x in product.inputs)


def _cancels(factor: Node, summed: set[sym.Var]) -> bool:
    view = factor.attr if factor.op is ops.VIEW else None
    source = factor if view is None else factor.inputs[0]
    if source.op is not ops.CONSTANT:
        return False
    index = axes(source.shape) if view is None else view.index
    along = tuple(k for k, e in enumerate(index) if sym.variables(e) & summed and source.shape[k] != 1)
    if not along:
        return False
    array = np.asarray(source.attr.array, np.float64)
    total, squares = array.sum(along), np.square(array).sum(along)
    return float(np.square(total).sum()) < _CANCELLING**2 * float(squares.sum())


@dataclass(frozen=True)
class _Extent:
    """How large a value may be: factors of ``data``, times constants of decimal exponents from ``low`` to ``high``."""

    data: int
    low: float
    high: float


class Ranges:
    """How large the values of a region of floats may be, where they are not zero."""

    def __init__(self, dtype: DType) -> None:
        info = np.finfo(dtype.numpy)
        self.most = math.log10(float(info.max))
        self.least = math.log10(float(info.tiny))

    def allow(self, paths: Sequence[Path], spelled: Collection[Node]) -> bool:
        """Whether no step of ``paths`` may be infinite, or vanish, unless one of the ``spelled`` nodes may that is made
        of data too."""
        known: dict[Node, _Extent] = {}
        before = [self.of_node(node, spelled, known) for node in spelled]
        steps = [self.of_path(step) for path in paths for step in (path, *path.steps)]
        return all(self.holds(step) or any(_as_far(step, other) for other in before) for step in steps)

    def holds(self, extent: _Extent) -> bool:
        """Whether the type holds a value."""
        reach = extent.data * _SHARE
        return extent.high + reach * self.most <= self.most and extent.low + reach * self.least >= self.least

    def leaf(self, node: Node, is_spelled: bool = False) -> _Extent:
        """How large the elements of a factor may be: of a constant, the largest, as sums are about as large; where it
        ``is_spelled``, the least too, which may vanish in a product then."""
        source = node.inputs[0] if node.op is ops.VIEW else node
        if source.op is not ops.CONSTANT:
            return _Extent(1, 0.0, 0.0)
        sizes = np.abs(np.asarray(source.attr.array, np.float64))
        sizes = sizes[(sizes > 0) & (sizes < math.inf)]
        if not sizes.size:
            return _Extent(0, 0.0, 0.0)
        high = math.log10(float(sizes.max()))
        return _Extent(0, math.log10(float(sizes.min())) if is_spelled else high, high)

    def of_node(self, node: Node, inside: Collection[Node], known: dict[Node, _Extent]) -> _Extent:
        if node not in known:
            operands = node.inputs[node.op is ops.SELECT :]
            parts = [self.of_node(x, inside, known) if x in inside else self.leaf(x, True) for x in operands]
            if node.op in (ops.ADD, ops.SELECT):
                known[node] = _sum(parts)
            elif node.op is ops.MULTIPLY_ADD:
                known[node] = _sum([_combined(parts[:2], False, 1.0), parts[2]])
            else:
                factors = parts if node.op in (ops.MUL, ops.DIV) else parts[:1]
                terms = elements(node.inputs[0]) / max(1.0, elements(node)) if node.op is ops.SUM_REDUCE else 1.0
                known[node] = _combined(factors, node.op is ops.DIV, terms)
        return known[node]

    def of_path(self, path: Path) -> _Extent:
        if path.factor is not None and path.factor.node is not None:
            return self.leaf(path.factor.node, path.divides)  # quotients are as large as the least divisor makes them
        if path.factor is not None:
            return _sum([self.of_path(p) for p in path.factor.added])
        assert path.left is not None
        parts = [self.of_path(x) for x in (path.left, path.right) if x is not None]
        divides = path.right is not None and path.right.divides
        return _combined(parts, divides, size(path.domain) / max(1.0, size(path.coordinates)))


def _sum(parts: Sequence[_Extent]) -> _Extent:
    return _Extent(max(p.data for p in parts), min(p.low for p in parts), max(p.high for p in parts))


def _combined(parts: Sequence[_Extent], divides: bool, terms: float) -> _Extent:
    """The sum of so many ``terms``, each a product, or a quotient, of ``parts``. A divisor counts as a factor does: as
    data it may be as small as a factor may be large."""
    data = sum(p.data for p in parts)
    signed = [(-p.high, -p.low) if divides and k else (p.low, p.high) for k, p in enumerate(parts)]
    low, high = (sum(ends) for ends in zip(*signed, strict=True))
    return _Extent(data, low, high + math.log10(max(1.0, terms)))


def _as_far(step: _Extent, other: _Extent) -> bool:
    """Whether ``other``, of as much data, may be as large and as small."""
    return 0 < step.data <= other.data and step.high <= other.high + _SLACK and step.low >= other.low - _SLACK


_SLACK = 1.0  # a decimal digit: sums in another order have other lengths
