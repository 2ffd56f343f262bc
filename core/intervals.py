"""Between what the elements of float nodes lie, as far as their own arithmetic says it.

An element is a NaN, or lies between the two numbers. Whoever relies on that says what becomes of a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node

Interval: TypeAlias = tuple[float, float]

EVERYTHING: Interval = (-math.inf, math.inf)
_DEPTH = 32  # of operands that are looked at
_LARGEST = 1 << 20  # elements of a constant that is looked at
_OUTWARDS = 1 + 1e-2  # what the two ends are multiplied by: more than roundings to 8 bits and more move a value

# By the depth too, so that what is found of a node does not depend on what was asked before.
_intervals: WeakKeyDictionary[Node, dict[int, Interval]] = WeakKeyDictionary()
_positive: WeakKeyDictionary[Node, dict[int, bool]] = WeakKeyDictionary()


def interval(node: Node, depth: int = _DEPTH) -> Interval:
    """The least and the greatest value that elements of ``node`` may have, rounding included."""
    if not node.dtype.is_float or node.dtype.eps >= _OUTWARDS - 1 or depth == 0:
        return EVERYTHING
    known = _intervals.setdefault(node, {})
    if depth not in known:
        known[depth] = _held(*_of(node, depth - 1), node)
    return known[depth]


def _held(low: float, high: float, node: Node) -> Interval:
    """What a number between these is in the type of ``node``: it may be infinite, or vanish."""
    if math.isnan(low) or math.isnan(high):
        return EVERYTHING
    most, least = float(node.dtype.max), float(ml_dtypes.finfo(node.dtype.numpy).tiny)
    low = -math.inf if low < -most else 0.0 if 0 < low < least else min(low, most)
    high = math.inf if high > most else 0.0 if -least < high < 0 else max(high, -most)
    return low, high


def magnitude(node: Node) -> float:
    """The greatest absolute value that elements of ``node`` may have."""
    low, high = interval(node)
    return max(abs(low), abs(high))


def is_positive(node: Node, depth: int = _DEPTH) -> bool:
    """Whether each element of ``node`` is a NaN, +0 or above: none is -0."""
    if depth == 0 or not node.dtype.is_float:
        return False
    known = _positive.setdefault(node, {})
    if depth not in known:
        known[depth] = _is_positive(node, depth - 1)
    return known[depth]


def _is_positive(node: Node, deeper: int) -> bool:
    x = node.inputs
    match node.op:
        case ops.EXP2:
            return True
        case ops.MUL if x[0] is x[1]:
            return True
        case ops.CONSTANT:
            return node.attr.array.size <= _LARGEST and not np.signbit(np.asarray(node.attr.array, np.float64)).any()
        case ops.MUL | ops.ADD | ops.MAX | ops.DIV:
            return all(is_positive(operand, deeper) for operand in x)
        case ops.SELECT:
            return is_positive(x[1], deeper) and is_positive(x[2], deeper)
        case ops.SUM_REDUCE | ops.MAX_REDUCE | ops.SQRT | ops.RECIP | ops.CONTIGUOUS:
            return is_positive(x[0], deeper)
        case ops.CAST:
            return x[0].dtype.is_bool or is_positive(x[0], deeper)
        case ops.VIEW:
            return not node.attr.valid and is_positive(x[0], deeper)
    return False


def _of(node: Node, depth: int) -> Interval:
    def inner(k: int = 0) -> Interval:
        return interval(node.inputs[k], depth)

    match node.op:
        case ops.CONSTANT:
            return _of_constant(np.asarray(node.attr.array))
        case ops.SIN:
            return _wide([-1.0, 1.0])
        case ops.EXP2:
            return _wide([_exp2(_times(node.attr.scale, end)) for end in inner()])
        case ops.SQRT:
            return _wide([math.sqrt(max(0.0, end)) for end in inner()])
        case ops.CAST | ops.CONTIGUOUS:
            return (0.0, 1.0) if node.inputs[0].dtype.is_bool else _wide(inner())
        case ops.VIEW:
            return EVERYTHING if node.attr.valid else inner()
        case ops.MAX_REDUCE:
            return inner()
        case ops.ADD:
            (a, b), (c, d) = inner(), inner(1)
            return _wide([a + c, b + d])
        case ops.MUL:
            if node.inputs[0] is node.inputs[1]:
                low, high = inner()
                return _wide([0.0, max(low * low, high * high)])
            return _wide([_times(x, y) for x in inner() for y in inner(1)])
        case ops.MAX:
            (a, b), (c, d) = inner(), inner(1)
            return max(a, c), max(b, d)
        case ops.SELECT:
            return _selected(node, depth)
        case ops.SUM_REDUCE:
            count = sym.upper(sym.product(node.inputs[0].shape[k] for k in node.attr.axes))
            return EVERYTHING if count is None else _wide([min(0.0, count * inner()[0]), max(0.0, count * inner()[1])])
    return EVERYTHING


def _selected(node: Node, depth: int) -> Interval:
    """Of a select; of one that is the less of two values, no more than either."""
    condition, yes, no = node.inputs
    (a, b), (c, d) = (interval(x, depth) for x in (yes, no))
    if condition.op is ops.LESS_THAN and condition.inputs == (yes, no):
        return min(a, c), min(b, d)
    return min(a, c), max(b, d)


def _of_constant(array: NDArray[Any]) -> Interval:
    if not 0 < array.size <= _LARGEST:
        return EVERYTHING
    values = array.astype(np.float64)
    return float(np.nanmin(values, initial=math.inf)), float(np.nanmax(values, initial=-math.inf))


def _wide(ends: Sequence[float]) -> Interval:
    """From the least to the greatest of ``ends``, and a little beyond."""
    low, high = min(ends), max(ends)
    return low * _OUTWARDS if low < 0 else low / _OUTWARDS, high * _OUTWARDS if high > 0 else high / _OUTWARDS


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _exp2(x: float) -> float:
    return math.inf if x > 1024 else 2.0**x
