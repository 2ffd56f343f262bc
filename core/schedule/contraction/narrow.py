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
from weakref import WeakKeyDictionary

from luminal.core import interp, ir, ops, types
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.ops import Kind, Op
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.contraction.roles import is_computed, is_constant
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


@dataclass(frozen=True, eq=False)
class Computed:
    """An elementwise primitive that is computed where B is read, the same for ``every`` so many consecutive positions
    along K, at least; 0 where all of its operands are numbers. There is one of each in a prologue: where parts are
    shared, to compare them otherwise than by identity would take as long as to write them out."""

    op: Op
    attr: Any
    operands: tuple[Part, ...]
    every: int


Part: TypeAlias = Leaf | Computed | Node  # a node is a number
Place: TypeAlias = tuple[Node, tuple[Int, ...]]  # an element of a node, over the axes of a product


@dataclass(frozen=True)
class Prologue:
    """What computes B from what is stored."""

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
        """Of what is stored for each element of B."""
        return sum(leaf.dtype.itemsize / (leaf.per * leaf.every) for leaf in self.leaves)

    @property
    def operations(self) -> int:
        """Vector operations for each vector of B: those that every position along K takes."""
        stored = [leaf for leaf in self.leaves if leaf.every == 1]
        return sum(2 if part.op is ops.CAST else 1 for part in self._fast) + sum(leaf.per > 1 for leaf in stored)

    @property
    def held(self) -> int:
        """Vectors for each vector of B that stay in registers along K: what varies slower, where others read it."""
        operands = {x for part in self._fast for x in part.operands}
        return sum(not isinstance(x, Node) and x.every != 1 for x in operands)

    @property
    def _fast(self) -> list[Computed]:
        return [part for part in self.parts if isinstance(part, Computed) and part.every == 1]

    def value(self, stored: Mapping[Leaf, Node]) -> Node:
        """B computed from the values of its leaves, all of one shape."""
        shape = next(iter(stored.values())).shape
        values: dict[Part, Node] = {}
        for part in self.parts:
            if isinstance(part, Node):
                values[part] = ir.expand(part, shape)
            elif isinstance(part, Leaf):
                found = stored[part]
                values[part] = found if found.dtype == part.source.dtype else ir.cast(found, part.source.dtype)
            elif part.op is ops.CAST and isinstance(part.operands[0], Leaf):  # which its own type holds exactly
                values[part] = ir.elementwise(part.op, stored[part.operands[0]], attr=part.attr)
            else:
                values[part] = ir.elementwise(part.op, *(values[x] for x in part.operands), attr=part.attr)
        return values[self.root]


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
    if not isinstance(root, Computed) or bits * LEAST > whole or root.every != 1:
        return None
    return Prologue(root)


def narrow_weights(found: Contraction) -> Prologue | None:
    """What computes B where it is read, if that takes far fewer bytes than storing what it computes."""
    b = found.b
    if b.valid or b.source.dtype != found.dtype or not is_constant(b.source):
        return None
    along = [(found.axes[k], found.shape[k]) for k in found.k]
    return find(b.source, b.index, along, found.count((*found.batch, *found.n)))


class _Splitter:
    """Finds the part of an expression that takes the fewest bits to store what it reads."""

    def __init__(self, along: Sequence[tuple[Var | None, int]], width: int) -> None:
        self.along = along
        self.width = width
        self.depth = 1
        for _, extent in along:
            self.depth *= extent
        self.known: dict[tuple[Int, ...], int] = {}
        self.parts: dict[Place, tuple[int, Part]] = {}
        self.made: dict[tuple[Op, Any, tuple[Part, ...]], Computed] = {}

    def part(self, node: Node, index: tuple[Int, ...]) -> tuple[int, Part]:
        """``node`` at ``index``, and the bits of all that is stored for it."""
        first = _stored_at(node, index)
        stack = [first]
        while stack:
            place = stack[-1]
            operands = self._operands(*place)
            pending = dict.fromkeys(x for x in operands or () if x not in self.parts)
            stack += pending
            if not pending:
                self.parts[stack.pop()] = self._part(*place, operands)
        return self.parts[first]

    def _operands(self, node: Node, index: tuple[Int, ...]) -> list[Place] | None:
        """What ``node`` is computed from where it may be computed where B is read."""
        if node.op.kind is not Kind.ELEMENTWISE or not all(is_computed(x) for x in node.inputs):
            return None
        return [_stored_at(x, index) for x in node.inputs]

    def _part(self, node: Node, index: tuple[Int, ...], operands: list[Place] | None) -> tuple[int, Part]:
        if node.op is ops.CONSTANT and node.size == 1:
            return 0, _number(node)
        bits, leaf = self._leaf(node, index)
        below = sum(self.parts[x][0] for x in operands or ())
        if operands is None or bits <= below:
            return bits, leaf
        return below, self._computed(node.op, node.attr, tuple(self.parts[x][1] for x in operands))

    def _computed(self, op: Op, attr: Any, operands: tuple[Part, ...]) -> Computed:
        made = (op, attr, operands)
        if made not in self.made:
            every = min((x.every for x in operands if not isinstance(x, Node) and x.every), default=0)
            self.made[made] = Computed(op, attr, operands, every)
        return self.made[made]

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


def narrowest(node: Node, among: Sequence[DType] = _INTEGERS) -> DType:
    """The first type ``among`` some, the narrowest first, that holds every value of an integer ``node``, which depends
    on constants alone, in fewer bits than its own type; the type of other nodes."""
    if not node.dtype.is_integer or node.dtype.bits <= 4:
        return node.dtype
    narrower = [dtype for dtype in among if dtype.bits < node.dtype.bits]
    low, high = _ends(node) if narrower else (0, 0)
    return next((dtype for dtype in narrower if dtype.min <= low and high <= dtype.max), node.dtype)


_known_ends: WeakKeyDictionary[Node, tuple[int, int]] = WeakKeyDictionary()


def _ends(node: Node) -> tuple[int, int]:
    """The least and the largest value of integers that depend on constants alone, 0 among them."""
    if node not in _known_ends:
        (values,) = interp.evaluate([node])
        _known_ends[node] = int(values.min(initial=0)), int(values.max(initial=0))
    return _known_ends[node]


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


def constants(node: Node, index: tuple[Int, ...]) -> Mapping[Node, tuple[Int, ...]]:
    """The constants that the expression ``node`` at ``index`` reads, each with the index of its first read."""
    found: dict[Node, tuple[Int, ...]] = {}
    stack = [(node, index)]
    while stack:
        node, index = stack.pop()
        if node in found:
            continue
        found[node] = index
        if node.op is ops.VIEW:
            by = ir.rename(node.shape, index)
            stack.append((node.inputs[0], tuple(sym.substitute(e, by) for e in node.attr.index)))
        elif node.op.kind is Kind.ELEMENTWISE:
            stack += [(x, index) for x in reversed(node.inputs)]
    return {x: at for x, at in found.items() if x.op is ops.CONSTANT}


def _byte(value: int) -> Node:
    return ir.constant(value, types.u8)


def _number(node: Node) -> Node:
    return ir.constant(node.attr.array.reshape(()))


def _stored_at(node: Node, index: tuple[Int, ...]) -> Place:
    """What ``node`` is a view or a copy of, and where ``index`` is in that."""
    while node.op is ops.CONTIGUOUS or (node.op is ops.VIEW and not node.attr.valid):
        if node.op is ops.VIEW:
            by = ir.rename(node.shape, index)
            index = tuple(sym.substitute(e, by) for e in node.attr.index)
        (node,) = node.inputs
    return node, index
