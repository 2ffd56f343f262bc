"""Paths as primitives: the inverse of reading a region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from luminal.core import interp, ir, ops
from luminal.core import symbolic as sym
from luminal.core.algebra.paths import Path
from luminal.core.algebra.terms import Axis, Coordinate, Lookup, Region, plain
from luminal.core.ir import Node
from luminal.core.symbolic import Int, Var


@dataclass(frozen=True)
class Value:
    """A node with a dimension for each of ``coordinates``."""

    node: Node
    coordinates: tuple[Coordinate, ...]

    def over(self, domain: Sequence[Coordinate]) -> Node:
        """The value at each point of ``domain``."""
        shape = tuple(c.extent for c in domain)
        at = dict(zip(domain, ir.axes(shape), strict=True))
        return self.read(shape, at, {c.axis: e for c, e in at.items() if c.axis is not None})

    def read(self, shape: Sequence[Int], at: Mapping[Coordinate, Int], by: Mapping[Var, Int]) -> Node:
        """The value over ``shape``: at the positions ``at`` along coordinates that these have, else at those that
        follow from the axes, for which ``by`` is put."""
        index: list[Int] = []
        valid: list[Int] = []
        for k, c in enumerate(self.coordinates):
            if c in at:
                index.append(at[c])
            elif isinstance(c.position, Lookup):
                return self.looked_up(k).read(shape, at, by)
            else:
                index.append(sym.substitute(c.position, by))
                valid += [sym.substitute(v, by) for v in c.valid]
        return ir.view(self.node, shape, index, valid, bytes(self.node.dtype.itemsize) if valid else b"")

    def looked_up(self, k: int) -> Value:
        """The value over the axes of coordinate ``k``, whose positions a table holds."""
        lookup = self.coordinates[k].position
        assert isinstance(lookup, Lookup)
        axes = tuple(plain(axis) for axis in sorted(self.coordinates[k].axes, key=str))
        shape = tuple(c.extent for c in axes)
        by: dict[Var, Int] = {c.axis: e for c, e in zip(axes, ir.axes(shape), strict=True) if c.axis is not None}
        table = ir.view(lookup.table, shape, lookup.over(by).index)
        found = ir.gather(self.node, table, k, lookup.failure)
        return Value(found, (*self.coordinates[:k], *axes, *self.coordinates[k + 1 :]))


def written(region: Region, paths: Sequence[Path]) -> Node:
    """The node that computes ``region`` by ``paths``, one for each of its terms."""
    if not paths:  # masks leave nothing to be summed
        return ir.expand(ir.constant(0, region.root.dtype), region.root.shape)
    by = _inverted(region.result, region.root.shape)
    results = [_value(path).read(region.root.shape, {}, by) for path in paths]
    return reduce(_plus, results)


def _plus(a: Node, b: Node) -> Node:
    return ir.elementwise(ops.ADD, a, b)


def _value(path: Path, in_constant: bool = False) -> Value:
    """What ``path`` computes. A constant is computed at once, so that nothing ``in_constant`` is rounded."""
    if path.factor is not None and path.factor.node is not None:
        return Value(path.factor.node, path.coordinates)
    if path.constant and not in_constant:
        value = _value(path, in_constant=True)
        return Value(folded(value.node), value.coordinates)
    if path.factor is not None:
        parts = [_value(p, in_constant).over(path.coordinates) for p in path.factor.added]
        return Value(reduce(_plus, parts), path.coordinates)
    assert path.left is not None
    node = _value(path.left, in_constant).over(path.domain)
    if path.right is not None:
        right = _value(path.right, in_constant).over(path.domain)
        node = ir.elementwise(ops.DIV if path.right.divides else ops.MUL, node, right)
    dropped = [k for k, c in enumerate(path.domain) if c not in path.coordinates]
    return Value(ir.reduce(ops.SUM_REDUCE, node, dropped), path.coordinates)


def folded(node: Node) -> Node:
    """A constant expression as a constant that is rounded once."""
    (found,) = interp.run([node], {}, mode="float64" if node.dtype.is_float else "typed").outputs
    return ir.constant(found, node.dtype)


def _inverted(result: Sequence[Int], shape: Sequence[Int]) -> dict[Var, Int]:
    """The axes of a region as positions in its root, of ``shape``. A dimension of several axes is a number in mixed
    radix, of which each is a digit."""
    by: dict[Var, Int] = {}
    for position, at in zip(result, ir.axes(tuple(shape)), strict=True):
        for axis in sym.variables(position):
            if isinstance(axis, Axis):
                by[axis] = sym.mod(sym.floordiv(at, _weight(position, axis)), axis.hi + 1)
    return by


def _weight(position: Int, axis: Axis) -> int:
    linear = sym.coefficient(position, axis)
    assert linear is not None and isinstance(linear[0], int)
    return linear[0]
