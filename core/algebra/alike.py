"""Regions that differ in their tensors alone: what was found for one holds for all, as for the layers of a model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace

from luminal.core.algebra.paths import Path, is_known
from luminal.core.algebra.terms import Coordinate, Factor, Lookup, Region
from luminal.core.ir import Node


def described(region: Region) -> tuple[Hashable, tuple[Node, ...]]:
    """All of ``region`` that the cheapest form depends on, with numbers for its tensors, and the tensors."""
    tensors: dict[Node, int] = {}

    def number(node: Node) -> int:
        return tensors.setdefault(node, len(tensors))

    def coordinate(c: Coordinate) -> Hashable:
        if isinstance(c.position, Lookup):
            table = c.position.table
            return number(table), table.op, c.position.index, c.position.failure, c.extent, c.valid
        return c

    def factor(f: Factor) -> Hashable:
        assert f.node is not None
        return number(f.node), f.node.dtype, is_known(f), f.divides, tuple(map(coordinate, f.coordinates))

    terms = tuple(tuple(map(factor, term.factors)) for term in region.terms)
    return (region.root.dtype, region.root.shape, terms), tuple(tensors)


def renewed(path: Path, by: Mapping[Node, Node]) -> Path:
    """``path`` over other tensors."""

    def coordinate(c: Coordinate) -> Coordinate:
        if not isinstance(c.position, Lookup):
            return c
        return replace(c, position=replace(c.position, table=by.get(c.position.table, c.position.table)))

    def factor(f: Factor) -> Factor:
        node = None if f.node is None else by.get(f.node, f.node)
        added = tuple(renewed(p, by) for p in f.added)
        return replace(f, node=node, coordinates=tuple(map(coordinate, f.coordinates)), added=added)

    return replace(
        path,
        coordinates=tuple(map(coordinate, path.coordinates)),
        domain=tuple(map(coordinate, path.domain)),
        factor=None if path.factor is None else factor(path.factor),
        left=None if path.left is None else renewed(path.left, by),
        right=None if path.right is None else renewed(path.right, by),
    )
