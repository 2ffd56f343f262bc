"""Weights that stay narrow: B of a contraction as elementwise arithmetic on constants, done while B is loaded.

``(w - zero) * scale`` is an expression of constants, of which the widest-indexed one is narrow and the others vary
slower along K. Folded, it takes the bytes of the contraction's type; as a *prologue* of B it takes those of ``w``, and
of one ``zero`` and ``scale`` for each group. Which part of such an expression is computed when compiling, and which
where it is read, is decided by bytes alone. Nothing is rounded otherwise than the graph says.

Integers are stored in the narrowest type that holds their values; those of fewer than 8 bits share bytes along K, the
first in the lowest bits, and are taken apart by a shift and a cast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from luminal.core import interp, ir, ops, types
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Kind, Op
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

LEAST = 2  # times fewer bytes, for which weights stay narrow
TILES = 4  # of rows that read a panel, for which it is computed once, before them, if it takes no more than these
PANEL_BYTES = 384 << 10  # of the stack, and of the second-level cache

_INTEGERS = (types.u2, types.i2, types.u4, types.i4, types.u8, types.i8, types.u16, types.i16)


@dataclass(frozen=True)
class Leaf:
    """Values that are stored as ``dtype``: element ``index`` of ``source``, over the axes of a product, which is the
    same for ``every`` so many consecutive positions along K; ``per`` of them share a byte."""

    source: Node
    dtype: DType
    index: tuple[Int, ...]
    every: int
    per: int


@dataclass(frozen=True)
class Computed:
    """An elementwise primitive that is computed where B is read."""

    op: Op
    attr: Any
    operands: tuple[Part, ...]


Part: TypeAlias = Leaf | Computed | Node  # a node is a number


@dataclass(frozen=True)
class Prologue:
    """What computes B from what is stored."""

    root: Computed

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(dict.fromkeys(_leaves(self.root)))

    @property
    def bytes(self) -> float:
        """Of what is stored for each element of B."""
        return sum(leaf.dtype.itemsize / (leaf.per * leaf.every) for leaf in self.leaves)

    @property
    def operations(self) -> int:
        """Vector operations for each vector of B: those that every position along K takes."""
        fast = [part for part in set(_computed(self.root)) if _every(part) == 1]
        stored = [leaf for leaf in self.leaves if leaf.every == 1]
        return sum(2 if part.op is ops.CAST else 1 for part in fast) + sum(leaf.per > 1 for leaf in stored)

    @property
    def held(self) -> int:
        """Vectors for each vector of B that stay in registers along K: what varies slower, where others read it."""
        fast = [part for part in set(_computed(self.root)) if _every(part) == 1]
        operands = {x for part in fast for x in part.operands}
        return sum(not isinstance(x, Node) and _every(x) != 1 for x in operands)

    def value(self, stored: Mapping[Leaf, Node]) -> Node:
        """B computed from the values of its leaves, all of one shape."""
        shape = next(iter(stored.values())).shape

        def value(part: Part) -> Node:
            if isinstance(part, Node):
                return ir.expand(part, shape)
            if isinstance(part, Leaf):
                found = stored[part]
                return found if found.dtype == part.source.dtype else ir.cast(found, part.source.dtype)
            if part.op is ops.CAST and isinstance(part.operands[0], Leaf):  # which its own type holds exactly
                return ir.elementwise(part.op, stored[part.operands[0]], attr=part.attr)
            return ir.elementwise(part.op, *map(value, part.operands), attr=part.attr)

        return value(self.root)


def find(source: Node, index: tuple[Int, ...], along: Sequence[tuple[Int, Int]], width: Int) -> Prologue | None:
    """The prologue for B, element ``index`` of ``source``, an expression of constants; None where storing B as it is
    takes less than ``LEAST`` times the bytes. ``along`` are the axes of K with their extents, outermost first, and
    ``width`` is the number of elements for each position along K."""
    extents = [extent for _, extent in along]
    if not (isinstance(width, int) and all(isinstance(extent, int) for extent in extents) and source.dtype.is_float):
        return None
    splitter = _Splitter([(sym.as_var(axis), int(str(extent))) for axis, extent in along], width)
    bits, root = splitter.part(source, index)
    whole = width * splitter.depth * source.dtype.bits
    if not isinstance(root, Computed) or bits * LEAST > whole or _every(root) != 1:
        return None
    return Prologue(root)


class _Splitter:
    """Finds the part of an expression that takes the fewest bits to store what it reads."""

    def __init__(self, along: Sequence[tuple[Var | None, int]], width: int) -> None:
        self.along = along
        self.width = width
        self.depth = 1
        for _, extent in along:
            self.depth *= extent
        self.known: dict[tuple[Int, ...], int] = {}

    def part(self, node: Node, index: tuple[Int, ...]) -> tuple[int, Part]:
        """``node`` at ``index``, and the bits of all that is stored for it."""
        while node.op is ops.CONTIGUOUS or (node.op is ops.VIEW and not node.attr.valid):
            if node.op is ops.VIEW:
                by = ir.rename(node.shape, index)
                index = tuple(sym.substitute(e, by) for e in node.attr.index)
            (node,) = node.inputs
        if node.op is ops.CONSTANT and node.size == 1:
            return 0, _number(node)
        below, computed = self._computed(node, index)
        bits, leaf = self._leaf(node, index)
        return (bits, leaf) if computed is None or bits <= below else (below, computed)

    def _computed(self, node: Node, index: tuple[Int, ...]) -> tuple[int, Computed | None]:
        if node.op.kind is not Kind.ELEMENTWISE:
            return 0, None
        if any(_reads_positions(x) for x in node.inputs):
            return 0, None
        found = [self.part(x, index) for x in node.inputs]
        return sum(bits for bits, _ in found), Computed(node.op, node.attr, tuple(part for _, part in found))

    def _leaf(self, node: Node, index: tuple[Int, ...]) -> tuple[int, Leaf]:
        every = self._every(index)
        rows = self.depth // every
        dtype = narrowest(node)
        per = 8 // dtype.bits if dtype.bits < 8 else 1
        if rows % per or (per > 1 and not dtype.is_integer):
            per = 1
        return self.width * rows * max(8, dtype.bits) // per, Leaf(node, dtype, index, every, per)

    def _every(self, index: tuple[Int, ...]) -> int:
        """The most consecutive positions along K, of those that divide K, for which ``index`` stays the same."""
        if index not in self.known:
            counts = (count for count in range(self.depth, 0, -1) if self.depth % count == 0)
            self.known[index] = next(count for count in counts if self._is_constant(index, count))
        return self.known[index]

    def _is_constant(self, index: tuple[Int, ...], count: int) -> bool:
        within = Var("within", 0, count - 1)
        flat: Int = sym.axis("group", self.depth // count) * count + sym.expr(within)
        by: dict[Var, Int] = {}
        for axis, extent in reversed(self.along):
            digit, flat = sym.mod(flat, extent), sym.floordiv(flat, extent)
            if axis is not None:
                by[axis] = digit
        return count == 1 or not any(within in sym.variables(sym.substitute(e, by)) for e in index)


def narrowest(node: Node) -> DType:
    """The narrowest type that holds every value of an integer ``node``, which depends on constants alone; the type of
    other nodes."""
    if not node.dtype.is_integer or node.dtype.bits <= 4:
        return node.dtype
    (values,) = interp.evaluate([node])
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    fitting = (dtype for dtype in _INTEGERS if dtype.min <= low and high <= dtype.max)
    found = next(fitting, node.dtype)
    return found if found.bits < node.dtype.bits else node.dtype


def packed(leaf: Leaf, panels: Callable[[Node, int, int], Node]) -> Node:
    """The constant that stores a leaf. ``panels`` gives a source in panels: of every so many positions along K the one
    after so many others."""
    if leaf.per == 1:
        narrow = leaf.source if leaf.source.dtype == leaf.dtype else ir.cast(leaf.source, leaf.dtype)
        return interp.folded(ir.unary(ops.CONTIGUOUS, panels(narrow, leaf.every, 0)))
    digits = ir.binary(ops.AND, ir.cast(leaf.source, types.u8), _byte((1 << leaf.dtype.bits) - 1))
    whole: Node | None = None
    for number in range(leaf.per):
        digit = panels(digits, leaf.every * leaf.per, leaf.every * number)
        whole = digit if whole is None else ir.binary(ops.OR, whole, digit * (1 << number * leaf.dtype.bits))
    assert whole is not None
    return interp.folded(whole)


def unpacked(leaf: Leaf, panel: Node, depth: Int) -> Node:
    """The values of a leaf, in the type that stores them: of ``panel``, the bytes that hold them where the position
    along K is ``depth``."""
    if leaf.per == 1:
        return panel
    place = sym.mod(sym.floordiv(depth, leaf.every), leaf.per) * leaf.dtype.bits
    amount = ir.cast(ir.view(ir.iota(8), panel.shape, [place]), types.u8)
    return ir.cast(ir.binary(ops.SHR, panel, amount), leaf.dtype)


def constants(node: Node, index: tuple[Int, ...]) -> list[tuple[Node, tuple[Int, ...]]]:
    """The constants that the expression ``node`` at ``index`` reads, each with its own index."""
    if node.op is ops.VIEW:
        by = ir.rename(node.shape, index)
        return constants(node.inputs[0], tuple(sym.substitute(e, by) for e in node.attr.index))
    if node.op is ops.CONSTANT:
        return [(node, index)]
    if node.op.kind is not Kind.ELEMENTWISE:
        return []
    return [found for x in node.inputs for found in constants(x, index)]


def _byte(value: int) -> Node:
    return ir.constant(value, types.u8)


def _number(node: Node) -> Node:
    return ir.constant(node.attr.array.reshape(()))


def _reads_positions(node: Node) -> bool:
    return not any(part.op is ops.CONSTANT for part in ir.topological([node]))


def _leaves(part: Part) -> list[Leaf]:
    if isinstance(part, Leaf):
        return [part]
    return [leaf for x in part.operands for leaf in _leaves(x)] if isinstance(part, Computed) else []


def _computed(part: Part) -> list[Computed]:
    if not isinstance(part, Computed):
        return []
    return [part, *(found for x in part.operands for found in _computed(x))]


def _every(part: Part) -> int:
    """The positions along K for which ``part`` stays the same, at least; 0 for a number."""
    return min((leaf.every for leaf in _leaves(part)), default=0)
