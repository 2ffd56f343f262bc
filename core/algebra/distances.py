"""Matrices whose elements depend on how far a column lies from a row alone, as decays and masks do: they are computed
once for each distance, and not for each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from luminal.core import interp, ir, ops, symval, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Kind
from luminal.core.symbolic import Int, Var


def by_distance(node: Node, rows: int, columns: int, work: int) -> NDArray[np.float64] | None:
    """The elements of ``node`` along its dimensions other than ``rows`` and ``columns``, of one length, and last along
    the distance ``row - column``, from the least. None if they do not follow from the distance, as far as its operands
    tell, or if that takes more than ``work`` operations on elements. ``node`` depends on nothing of the run."""
    axes = ir.axes(node.shape)
    along = {v: e + 1 for k in (rows, columns) for e in [axes[k]] if (v := sym.as_var(e)) is not None}
    if len(along) < 2 or not _Proof(along).holds(node, axes):
        return None
    others = [k for k in range(node.rank) if k not in (rows, columns)]
    shape = (*(node.shape[k] for k in others), node.shape[rows])
    edges = []
    for edge in (rows, columns):
        index: list[Int] = [0] * node.rank
        for k, e in zip((*others, edge), ir.axes(shape), strict=True):
            index[k] = e
        edges.append(_read({}, node, shape, tuple(index)))
    sizes = [x.size for x in traverse.topological(edges) if x.op.kind is Kind.ELEMENTWISE]
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes) or sum(known) > work:
        return None
    below, above = (np.asarray(x, np.float64) for x in interp.run(edges, {}, mode="float64").outputs)
    return np.concatenate([above[..., :0:-1], below], -1)


def of_array(array: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The same of an array whose last two dimensions are rows and columns."""
    if not np.array_equal(array[..., 1:, 1:], array[..., :-1, :-1]):
        return None
    return np.concatenate([array[..., 0, :0:-1], array[..., 0]], -1)


def spread(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix of these elements, which lie in memory once: it cannot be written."""
    length, step = (distances.shape[-1] + 1) // 2, distances.strides[-1]
    shape = (*distances.shape[:-1], length, length)
    strides = (*distances.strides[:-1], step, -step)
    return as_strided(distances[..., length - 1 :], shape, strides, writeable=False)


class _Proof:
    """Whether values stay the same where all axes that are ``along`` move on by one."""

    def __init__(self, along: Mapping[Var, Int]) -> None:
        self.along = along
        self.known: dict[tuple[Node, tuple[Int, ...]], bool] = {}

    def stays(self, position: Int) -> bool:
        return bool(sym.substitute(position, self.along) == position)

    def holds(self, node: Node, at: tuple[Int, ...]) -> bool:
        """Whether ``node`` at ``at`` does."""
        if all(map(self.stays, at)):
            return True
        if (node, at) not in self.known:
            self.known[node, at] = self.found(node, at)
        return self.known[node, at]

    def found(self, node: Node, at: tuple[Int, ...]) -> bool:
        element = symval.element(node, at)
        if element is not None:
            return isinstance(element, float) or self.stays(element)
        if node.op in (ops.LESS_THAN, ops.EQUAL):
            left, right = (symval.element(x, at) for x in node.inputs)
            are_numbers = isinstance(left, int | sym.Expr) and isinstance(right, int | sym.Expr)
            if are_numbers and self.stays(left - right):  # type: ignore[operator, arg-type]
                return True
        if node.op.kind is Kind.ELEMENTWISE:
            return all(self.holds(x, at) for x in node.inputs)
        if node.op is ops.VIEW:
            by = ir.rename(node.shape, at)
            inner = tuple(sym.substitute(e, by) for e in node.attr.index)
            masks = (sym.substitute(v, by) for v in node.attr.valid)
            return all(map(self.stays, masks)) and self.holds(node.inputs[0], inner)
        return False


def _read(
    known: dict[tuple[Node, tuple[Int, ...]], Node], node: Node, shape: Sequence[Int], at: tuple[Int, ...]
) -> Node:
    """``node`` over ``shape``, read at ``at``: what it is computed from is read there too, if that is larger."""
    if (node, at) not in known:
        if node.op is ops.VIEW and not node.attr.valid:
            by = ir.rename(node.shape, at)
            made = _read(known, node.inputs[0], shape, tuple(sym.substitute(e, by) for e in node.attr.index))
        elif node.op.kind is Kind.ELEMENTWISE and not sym.always(sym.product(shape) - node.size):
            made = ir.elementwise(node.op, *(_read(known, x, shape, at) for x in node.inputs), attr=node.attr)
        else:
            made = ir.view(node, shape, at)
        known[node, at] = made
    return known[node, at]
