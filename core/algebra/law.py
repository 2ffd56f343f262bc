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

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.algebra.cost import elements
from luminal.core.algebra.paths import Path, size
from luminal.core.ir import Node, axes
from luminal.core.types import DType

# What inputs are taken to be at most, and at least where they are not zero, as a share of the exponents of their type:
# float32 from 1e-18 to 1e18.
_SHARE = 0.47

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


class Ranges:
    """The decimal exponents between which values of a region of floats lie, where they are not zero."""

    def __init__(self, dtype: DType) -> None:
        info = np.finfo(dtype.numpy)
        self.most = math.log10(float(info.max))
        self.least = math.log10(float(info.tiny))

    def allow(self, paths: Sequence[Path], spelled: Collection[Node]) -> bool:
        """Whether no step of ``paths`` may be infinite, or vanish, unless one of the ``spelled`` nodes may."""
        known: dict[Node, tuple[float, float]] = {}
        before = [self.of_node(node, spelled, known) for node in spelled]
        least = min([self.least, *(low for low, _ in before)])
        most = max([self.most, *(high for _, high in before)])
        steps = [self.of_path(step) for path in paths for step in path.steps]
        return all(low >= least and high <= most for low, high in steps)

    def leaf(self, node: Node) -> tuple[float, float]:
        source = node.inputs[0] if node.op is ops.VIEW else node
        if source.op is not ops.CONSTANT:
            return self.least * _SHARE, self.most * _SHARE
        largest = float(np.abs(np.asarray(source.attr.array, np.float64)).max(initial=0.0))
        exponent = math.log10(largest) if 0 < largest < math.inf else 0.0
        return exponent, exponent

    def of_node(
        self, node: Node, inside: Collection[Node], known: dict[Node, tuple[float, float]]
    ) -> tuple[float, float]:
        if node in known:
            return known[node]
        parts = [self.of_node(x, inside, known) if x in inside else self.leaf(x) for x in node.inputs]
        if node not in inside:
            found = self.leaf(node)
        elif node.op is ops.ADD:
            found = min(low for low, _ in parts), max(high for _, high in parts) + math.log10(2)
        elif node.op is ops.SUM_REDUCE:
            found = parts[0][0], parts[0][1] + math.log10(max(1.0, elements(node.inputs[0]) / max(1.0, elements(node))))
        else:
            found = self.combined(parts if node.op in (ops.MUL, ops.DIV) else parts[:1], node.op is ops.DIV)
        known[node] = found
        return found

    def of_path(self, path: Path) -> tuple[float, float]:
        if path.factor is not None:
            return self.leaf(path.factor.node)
        assert path.left is not None
        parts = [self.of_path(x) for x in (path.left, path.right) if x is not None]
        low, high = self.combined(parts, path.right is not None and path.right.divides)
        return low, high + math.log10(max(1.0, size(path.domain) / max(1.0, size(path.coordinates))))

    def combined(self, parts: Sequence[tuple[float, float]], divides: bool) -> tuple[float, float]:
        signed = [(-high, -low) if divides and k else (low, high) for k, (low, high) in enumerate(parts)]
        return sum(low for low, _ in signed), sum(high for _, high in signed)
