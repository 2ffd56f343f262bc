"""Between what the elements of integer nodes lie, as far as constants, sizes and arithmetic say it."""

from __future__ import annotations

from typing import TypeAlias
from weakref import WeakKeyDictionary

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.symbolic import Int
from luminal.core.types import DType

Range: TypeAlias = tuple[Int, Int]

_DEPTH = 64  # of operands that are looked at
_LARGEST = 1 << 24  # elements of a constant that is looked at

_known: WeakKeyDictionary[Node, Range | None] = WeakKeyDictionary()


def within(index: Node, extent: Int) -> bool:
    """Whether all elements of ``index`` are proven to be in ``0 .. extent - 1``.

    What follows from values of constants holds for each weights file that a library takes: it takes only those that
    were made with the same source text, for which the same was proven.
    """
    found = range_of(index)
    return found is not None and sym.always(found[0]) and sym.always(extent - 1 - found[1])


def range_of(node: Node, depth: int = _DEPTH) -> Range | None:
    """The least and the largest value that elements of an integer node may have, both included; None where it has no
    elements, or nothing is known."""
    if not (node.dtype.is_integer or node.dtype.is_bool) or depth == 0:
        return None
    if node not in _known:
        found = _range(node, depth - 1)
        if found is None or not _fits(found, node.dtype):
            found = None if node.dtype.bits > 32 else _all(node.dtype)
        _known[node] = found
    return _known[node]


def _all(dtype: DType) -> Range:
    return (0, 1) if dtype.is_bool else (int(dtype.min), int(dtype.max))


def _fits(found: Range, dtype: DType) -> bool:
    least, most = _all(dtype)
    return sym.always(found[0] - least) and sym.always(most - found[1])


def _range(node: Node, depth: int) -> Range | None:
    match node.op:
        case ops.CONSTANT:
            array = node.attr.array
            return (int(array.min()), int(array.max())) if 0 < array.size <= _LARGEST else None
        case ops.IOTA:
            return 0, node.shape[0] - 1
        case ops.DIM:
            return node.attr.value, node.attr.value
        case ops.CAST | ops.CONTIGUOUS | ops.GATHER:
            return range_of(node.inputs[0], depth)
        case ops.VIEW:
            found = range_of(node.inputs[0], depth)
            return None if node.attr.valid else found
        case ops.SELECT:
            return _joined(range_of(node.inputs[1], depth), range_of(node.inputs[2], depth))
        case ops.ADD | ops.MUL:
            a, b = (range_of(operand, depth) for operand in node.inputs)
            if a is None or b is None:
                return None
            if node.op is ops.ADD:
                return a[0] + b[0], a[1] + b[1]
            positive = sym.always(a[0]) and sym.always(b[0])
            return (a[0] * b[0], a[1] * b[1]) if positive else None
    return None


def _joined(a: Range | None, b: Range | None) -> Range | None:
    if a is None or b is None:
        return None
    return sym.minimum(a[0], b[0]), sym.maximum(a[1], b[1])
