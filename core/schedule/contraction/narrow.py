"""Weights that stay narrow: B of a contraction as elementwise arithmetic on constants, done while B is loaded.

In ``(w - zero) * scale``, ``w`` is narrow and has an element for each of B; ``zero`` and ``scale`` are the same for a
group of positions along K. Folded, the expression takes the bytes of the contraction's type. As a *prologue* of B it
takes those of ``w``, and one ``zero`` and ``scale`` for each group. Which parts are folded, and which are computed when
B is read, is decided by bytes alone. Rounding stays as the graph has it.

Integers are stored in the narrowest type that holds their values. Those of fewer than 8 bits share bytes along K, the
first in the lowest bits; a shift and a cast unpack them. Zeros and ones take a bit each. Numbers of other widths stay
narrow where the graph puts them together from digits, as 6 bits from 4 and 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from luminal.core import interp, ir, ops, types
from luminal.core import symbolic as sym
from luminal.core.constants import is_computed, is_constant
from luminal.core.costs import COSTS, Memory
from luminal.core.ir import Node
from luminal.core.ops import Kind, Op
from luminal.core.schedule.contraction.contraction import Contraction
from luminal.core.schedule.contraction.prologue import Computed, Leaf, Part, Place, Prologue
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

_INTEGERS = (types.u2, types.i2, types.u4, types.i4, types.u8, types.i8, types.u16, types.i16)


def find(
    source: Node, index: tuple[Int, ...], along: Sequence[tuple[Int, Int]], width: Int, memory: Memory = COSTS.memory
) -> Prologue | None:
    """The prologue for B, element ``index`` of ``source``, an expression of constants; None if it does not save a
    factor of ``memory.narrower`` in bytes. ``along`` has the axes of K with their extents, outermost first; ``width``
    is the number of elements of B for each position along K."""
    extents = [extent for _, extent in along]
    if not (isinstance(width, int) and all(isinstance(extent, int) for extent in extents) and source.dtype.is_float):
        return None
    splitter = _Splitter([(sym.as_var(axis), int(str(extent))) for axis, extent in along], width)
    bits, root = splitter.part(source, index)
    whole = width * splitter.depth * source.dtype.bits
    if not isinstance(root, Computed) or bits * memory.narrower > whole or root.every != 1:
        return None
    return Prologue(root)


def narrow_weights(found: Contraction, memory: Memory) -> Prologue | None:
    """The prologue for B of ``found``, as an earlier pass has found it if one has; None where B is not constant or a
    prologue saves too few bytes (``find``)."""
    b = found.b
    if found.prologue is not None:
        return found.prologue
    if b.valid or b.source.dtype != found.dtype or not is_constant(b.source):
        return None
    along = [(found.axes[k], found.shape[k]) for k in found.k]
    return find(b.source, b.index, along, found.count((*found.batch, *found.n)), memory)


class _Splitter:
    """Splits an expression of constants into stored leaves and computed parts, so that the leaves take fewest bits."""

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
        """The bits of all leaves stored for ``node`` at ``index``, and the part that gives its value."""
        first = stored_at(node, index)
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
        """The operands of ``node`` if it may be computed when B is read, else None."""
        if node.op.kind is not Kind.ELEMENTWISE or not all(is_computed(x) for x in node.inputs):
            return None
        return [stored_at(x, index) for x in node.inputs]

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
        per = next(count for count in _counts(node, dtype) if rows % count == 0)
        bits = 8 // per if per > 1 else max(8, dtype.bits)
        return self.width * rows * bits, Leaf(node, types.u8 if bits == 1 else dtype, index, every, per)

    def _every(self, index: tuple[Int, ...]) -> int:
        """The largest divisor of K such that ``index`` is the same for each group of so many positions along K."""
        if index not in self.known:
            self.known[index] = _same_for(index, self.along, self.depth)
        return self.known[index]


def same_for(index: tuple[Int, ...], along: Sequence[tuple[Int, int]]) -> int:
    """The largest divisor of all positions ``along`` axes, outermost first, such that ``index`` is the same for each
    group of so many consecutive ones."""
    return _same_for(index, [(sym.as_var(axis), extent) for axis, extent in along], math.prod(n for _, n in along))


def _same_for(index: tuple[Int, ...], along: Sequence[tuple[Var | None, int]], depth: int) -> int:
    counts = (count for count in range(depth, 0, -1) if depth % count == 0)
    return next(count for count in counts if _is_constant(index, along, depth, count))


def _is_constant(index: tuple[Int, ...], along: Sequence[tuple[Var | None, int]], depth: int, count: int) -> bool:
    within = Var("within", 0, count - 1)
    flat: Int = sym.axis("group", depth // count) * count + sym.expr(within)
    by: dict[Var, Int] = {}
    for axis, extent in reversed(along):
        digit, flat = sym.mod(flat, extent), sym.floordiv(flat, extent)
        if axis is not None:
            by[axis] = digit
    return count == 1 or not any(within in sym.variables(sym.substitute(e, by)) for e in index)


def narrowest(node: Node, among: Sequence[DType] = _INTEGERS) -> DType:
    """The first type ``among`` those given, narrowest first, that holds every value of ``node`` in fewer bits than its
    own type; else its own type. An integer ``node`` must depend on constants alone."""
    if not node.dtype.is_integer or node.dtype.bits <= 4:
        return node.dtype
    narrower = [dtype for dtype in among if dtype.bits < node.dtype.bits]
    low, high = _ends(node) if narrower else (0, 0)
    return next((dtype for dtype in narrower if dtype.min <= low and high <= dtype.max), node.dtype)


_known_ends: WeakKeyDictionary[Node, tuple[int, int]] = WeakKeyDictionary()


def _ends(node: Node) -> tuple[int, int]:
    """The least and the largest of 0 and the values of an integer ``node`` that depends on constants alone."""
    if node not in _known_ends:
        (values,) = interp.evaluate([node])
        _known_ends[node] = int(values.min(initial=0)), int(values.max(initial=0))
    return _known_ends[node]


def _counts(node: Node, dtype: DType) -> tuple[int, ...]:
    """How many values of ``node``, kept as ``dtype``, may share a byte, the most first."""
    if not dtype.is_integer or dtype.bits >= 8:
        return (1,)
    single = dtype == types.u2 and _ends(node)[1] <= 1
    return (*((8,) if single else ()), 8 // dtype.bits, 1)


def packed(leaf: Leaf, panels: Callable[[Node, int, int], Node]) -> Node:
    """The constant that stores a leaf. ``panels(source, every, first)`` gives ``source`` in panels, taking position
    ``first`` of every ``every`` positions along K."""
    if leaf.per == 1:
        narrow = leaf.source if leaf.source.dtype == leaf.dtype else ir.cast(leaf.source, leaf.dtype)
        return interp.folded(ir.unary(ops.CONTIGUOUS, panels(narrow, leaf.every, 0)))
    bits = 8 // leaf.per
    digits = ir.binary(ops.AND, ir.cast(leaf.source, types.u8), _byte((1 << bits) - 1))
    whole: Node | None = None
    for number in range(leaf.per):
        digit = panels(digits, leaf.every * leaf.per, leaf.every * number)
        whole = digit if whole is None else ir.binary(ops.OR, whole, digit * (1 << number * bits))
    assert whole is not None
    return interp.folded(whole)


def unpacked(leaf: Leaf, panel: Node, depth: Int, run: int = 1) -> Node:
    """The values of a leaf, in the type that stores them. ``panel`` has the bytes that hold them, ``depth`` is the
    position along K, or that of the group. Those that share a byte are ``run`` elements of the leaf apart."""
    if leaf.per == 1:
        return panel
    bits = 8 // leaf.per
    place = sym.mod(sym.floordiv(depth, leaf.every * run), leaf.per) * bits
    amount = ir.cast(ir.view(ir.iota(8), panel.shape, [place]), types.u8)
    found = ir.binary(ops.SHR, panel, amount)
    return ir.cast(found, leaf.dtype) if leaf.dtype.bits == bits else found & 1


def _byte(value: int) -> Node:
    return ir.constant(value, types.u8)


def _number(node: Node) -> Node:
    return ir.constant(node.attr.array.reshape(()))


def stored_at(node: Node, index: tuple[Int, ...]) -> Place:
    """The node that ``node`` is a view or copy of, and ``index`` as an index into it."""
    while node.op is ops.CONTIGUOUS or (node.op is ops.VIEW and not node.attr.valid):
        if node.op is ops.VIEW:
            by = ir.rename(node.shape, index)
            index = tuple(sym.substitute(e, by) for e in node.attr.index)
        (node,) = node.inputs
    return node, index
