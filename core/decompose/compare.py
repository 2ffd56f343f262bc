"""Comparisons, predicates, selection, minima and maxima.

Every comparison is false where an operand is NaN, except ``not_equal``, which is true there. Operands broadcast, and
one of two may be a Python number.
"""

from __future__ import annotations

import math

import numpy as np

from luminal.core import ops
from luminal.core.decompose.common import number, positive_infinity
from luminal.core.derivative import derivative, of_nodes
from luminal.core.ir import Node, Operand, binary, cast, constant, select
from luminal.core.types import bool_


def equal(a: Operand, b: Operand) -> Node:
    """``a == b``."""
    return binary(ops.EQUAL, a, b)


def not_equal(a: Operand, b: Operand) -> Node:
    """``a != b``, true where either is NaN."""
    return logical_not(equal(a, b))


def less(a: Operand, b: Operand) -> Node:
    """``a < b``."""
    return binary(ops.LESS_THAN, a, b)


def less_equal(a: Operand, b: Operand) -> Node:
    """``a <= b``; the negation of ``b < a`` would be true for NaN."""
    if _float(a, b):
        return less(a, b) | equal(a, b)
    return logical_not(less(b, a))


def greater(a: Operand, b: Operand) -> Node:
    """``a > b``."""
    return less(b, a)


def greater_equal(a: Operand, b: Operand) -> Node:
    """``a >= b``."""
    return less_equal(b, a)


def _float(*operands: Operand) -> bool:
    return any(isinstance(o, Node) and o.dtype.is_float for o in operands)


def truth(x: Node) -> Node:
    """``x != 0`` as bool (NaN is true)."""
    return cast(x, bool_)


def logical_not(x: Node) -> Node:
    """True where ``x`` is zero or false."""
    return truth(x) ^ True


def logical_and(a: Node, b: Node) -> Node:
    """Whether both operands are non-zero."""
    return truth(a) & truth(b)


def logical_or(a: Node, b: Node) -> Node:
    """Whether either operand is non-zero."""
    return truth(a) | truth(b)


def logical_xor(a: Node, b: Node) -> Node:
    """Whether exactly one operand is non-zero."""
    return truth(a) ^ truth(b)


def bitwise_not(x: Node) -> Node:
    """Every bit of an integer inverted; the negation of bool."""
    return x ^ (True if x.dtype.is_bool else -1)


def where(condition: Node, a: Operand, b: Operand) -> Node:
    """``a`` where ``condition`` is non-zero, else ``b``; broadcast."""
    return select(truth(condition), a, b)


def isnan(x: Node) -> Node:
    """Whether ``x`` is NaN; false for types that have none."""
    return not_equal(x, x) if x.dtype.is_float else _never(x)


def isinf(x: Node, negative: bool = True, positive: bool = True) -> Node:
    """Whether ``x`` is infinite, of the signs asked for."""
    if not x.dtype.is_float or not (negative or positive):
        return _never(x)
    infinity = positive_infinity(x)
    if negative and positive:
        return equal(binary(ops.MAX, x, -x), infinity)
    return equal(x, infinity) if positive else equal(x, -infinity)


def isfinite(x: Node) -> Node:
    """Whether ``x`` is neither NaN nor infinite."""
    return less(binary(ops.MAX, x, -x), positive_infinity(x)) if x.dtype.is_float else logical_not(_never(x))


def _never(x: Node) -> Node:
    return binary(ops.AND, truth(x), constant(False, bool_))


def _of_larger(g: Node, y: Node, a: Operand, b: Operand) -> list[Node | None]:
    """Equal operands share the gradient; where one is NaN, both have it (PyTorch)."""
    half = select(equal(a, b), g * 0.5, g)
    return of_nodes((a, select(less(a, b), 0, half)), (b, select(less(b, a), 0, half)))


@derivative(_of_larger)
def maximum(a: Operand, b: Operand) -> Node:
    """The larger operand; NaN where either is NaN, and 0 of -0 and 0."""
    return binary(ops.MAX, a, b)


@derivative(lambda g, y, a, b: _of_larger(g, y, *(_negated(x) for x in (a, b))))
def minimum(a: Operand, b: Operand) -> Node:
    """The smaller operand; NaN where either is NaN, and -0 of -0 and 0."""
    node = a if isinstance(a, Node) else b
    assert isinstance(node, Node)
    if node.dtype.is_bool:
        return binary(ops.AND, a, b)
    if node.dtype.is_integer:
        return select(less(b, a), b, a)
    # Against a number other than zero and NaN a select is exact: only x can be NaN, and it is what stays.
    for x, bound in ((a, b), (b, a)):
        value = number(bound)
        if value is not None and value != 0 and not math.isnan(value):
            return select(less(bound, x), bound, x)
    return -maximum(_negated(a), _negated(b))


def at_least(x: Node, bound: Operand) -> Node:
    """The larger of ``x`` and ``bound``, NaN where either is NaN; a zero of ``x`` stays where ``bound`` is one."""
    if not x.dtype.is_float or number(bound) not in (None, 0):
        return maximum(x, bound)
    return select(_outside(less(x, bound), bound), bound, x)


def at_most(x: Node, bound: Operand) -> Node:
    """The smaller of ``x`` and ``bound``: see ``at_least``."""
    if not x.dtype.is_float or number(bound) not in (None, 0):
        return minimum(x, bound)
    return select(_outside(less(bound, x), bound), bound, x)


def _outside(beyond: Node, bound: Operand) -> Node:
    """``beyond``, or the bound is NaN."""
    return beyond | isnan(bound) if isinstance(bound, Node) and number(bound) is None else beyond


def _of_number(beyond: Node, g: Node, a: Node, b: Node) -> list[Node | None]:
    """The first operand has the gradient where it is ``beyond`` or as far as the other, or the other is NaN."""
    first = beyond | equal(a, b) | isnan(b)
    return [select(first, g, 0), select(first, 0, g)]


@derivative(lambda g, y, a, b: _of_number(less(b, a), g, a, b))
def number_maximum(a: Node, b: Node) -> Node:
    """The larger operand, and where one is NaN the other (IEEE 754's maximumNumber)."""
    return _number_of(maximum(a, b), a, b)


@derivative(lambda g, y, a, b: _of_number(less(a, b), g, a, b))
def number_minimum(a: Node, b: Node) -> Node:
    """The smaller operand, and where one is NaN the other (IEEE 754's minimumNumber)."""
    return _number_of(minimum(a, b), a, b)


def _number_of(chosen: Node, a: Node, b: Node) -> Node:
    return select(isnan(a), b, select(isnan(b), a, chosen)) if chosen.dtype.is_float else chosen


def _negated(x: Operand) -> Operand:
    return -x if isinstance(x, Node) else -float(x)  # of the integer 0 too


def magnitude(x: Node) -> Node:
    """``|x|`` of a float but for the sign of zero, as one comparison."""
    return select(less(x, -x), -x, x)


def descending(x: Node) -> Node:
    """``-|x|`` of a float but for the sign of zero, as one comparison; the slope at zero is that of ``-x``."""
    return select(less(x, -x), x, -x)


def _of_clamped(g: Node, y: Node, x: Node, lo: Operand | None = None, hi: Operand | None = None) -> list[Node | None]:
    """The ends of the interval belong to it (PyTorch)."""
    inside = less_equal(lo, x) if lo is not None else equal(x, x)
    inside = inside & less_equal(x, hi) if hi is not None else inside
    result: list[Node | None] = [select(inside, g, 0)]
    if isinstance(lo, Node):
        below = less(x, lo)
        result.append(select(below if hi is None else below & less(lo, hi), g, 0))
    if isinstance(hi, Node):
        above = less(hi, x)
        result.append(select(above if lo is None else above | less(hi, lo), g, 0))
    return result


@derivative(_of_clamped)
def clamp(x: Node, lo: Operand | None = None, hi: Operand | None = None) -> Node:
    """``x`` limited to ``lo .. hi``: ``hi`` where ``lo > hi``, NaN where any is NaN. A zero keeps its sign where a
    bound is a zero of the other (as in PyTorch and onnxruntime)."""
    if lo is not None:
        x = at_least(x, _bounded(lo, x))
    return x if hi is None else at_most(x, _bounded(hi, x))


def _bounded(bound: Operand, x: Node) -> Operand:
    """A Python bound brought into the range of an integer type (and to bool's), which wrapping would turn around."""
    if isinstance(bound, Node) or x.dtype.is_float:
        return bound
    if math.isinf(bound):
        return x.dtype.max if bound > 0 else x.dtype.min
    return int(np.clip(int(bound), int(x.dtype.min), int(x.dtype.max)))
