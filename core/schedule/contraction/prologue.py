"""Prologues: B of a contraction as elementwise arithmetic on stored constants, done while a tile loads B (``narrow``
finds them)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from luminal.core import ir, ops
from luminal.core.ir import Node
from luminal.core.ops import Op
from luminal.core.symbolic import Int
from luminal.core.types import DType


@dataclass(frozen=True)
class Leaf:
    """Stored values: element ``index`` of ``source``, over the axes of a product, kept as ``dtype``. The element is the
    same for ``every`` consecutive positions along K; ``per`` elements share a byte."""

    source: Node
    dtype: DType
    index: tuple[Int, ...]
    every: int
    per: int


@dataclass(frozen=True, eq=False)
class Computed:
    """An elementwise primitive that is computed when B is read. Its value is the same for at least ``every``
    consecutive positions along K; ``every`` is 0 if all operands are numbers. A prologue holds each one once, so they
    are compared by identity: comparing shared parts by content takes time exponential in their depth."""

    op: Op
    attr: Any
    operands: tuple[Part, ...]
    every: int


Part: TypeAlias = Leaf | Computed | Node  # a node is a constant of one number
Place: TypeAlias = tuple[Node, tuple[Int, ...]]  # a node, and the index of its element over the axes of a product


@dataclass(frozen=True)
class Prologue:
    """The expression that computes B from the stored leaves."""

    root: Computed

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Every part once, operands first."""
        found: dict[Part, None] = {}
        stack: list[tuple[Part, bool]] = [(self.root, False)]
        while stack:
            part, done = stack.pop()
            if done or not isinstance(part, Computed):
                found[part] = None
            elif part not in found:
                stack += [(part, True), *((x, False) for x in reversed(part.operands))]
        return tuple(found)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(part for part in self.parts if isinstance(part, Leaf))

    @property
    def bytes(self) -> float:
        """The bytes that are stored for each element of B."""
        return sum(leaf.dtype.itemsize / (leaf.per * leaf.every) for leaf in self.leaves)

    @property
    def operations(self) -> int:
        """Vector operations for each vector of B, without those whose result several positions along K share."""
        stored = [leaf for leaf in self.leaves if leaf.every == 1]
        return sum(2 if part.op is ops.CAST else 1 for part in self._fast) + sum(leaf.per > 1 for leaf in stored)

    @property
    def held(self) -> int:
        """Registers for each vector of B that hold values shared by several positions along K."""
        operands = {x for part in self._fast for x in part.operands}
        return sum(not isinstance(x, Node) and x.every != 1 for x in operands)

    @property
    def _fast(self) -> list[Computed]:
        return [part for part in self.parts if isinstance(part, Computed) and part.every == 1]

    def value(self, stored: Mapping[Leaf, Node]) -> Node:
        """B computed from the values of the leaves, which all have the shape of the result."""
        shape = next(iter(stored.values())).shape
        values: dict[Part, Node] = {}
        for part in self.parts:
            if isinstance(part, Node):
                values[part] = ir.expand(part, shape)
            elif isinstance(part, Leaf):
                found = stored[part]
                values[part] = found if found.dtype == part.source.dtype else ir.cast(found, part.source.dtype)
            elif part.op is ops.CAST and isinstance(part.operands[0], Leaf):  # the stored type holds the leaf exactly
                values[part] = ir.elementwise(part.op, stored[part.operands[0]], attr=part.attr)
            else:
                values[part] = ir.elementwise(part.op, *(values[x] for x in part.operands), attr=part.attr)
        return values[self.root]
