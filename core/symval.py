"""Symbolic values of nodes: the elements of small integer tensors in terms of the graph's dimension symbols.

Exporters compute shapes with tensors: a size becomes a number, is gathered, multiplied, concatenated and handed to a
reshape. Here such a tensor is read back, element by element, as integers and expressions. Evaluation is per element and
on demand: one element of a view of a large constant costs one element, and an element at a symbolic position (an axis
of the result) is an expression over that axis, which is how comparisons of positions are decided by their bounds.

An element is an ``int``, an ``Expr``, a ``float`` (of a float node whose value is known; an ``Expr`` there is a whole
number that the type represents exactly), or None where it depends on run-time data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from luminal.core import numerics, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Node, axes, rename
from luminal.core.ops import Kind, Op
from luminal.core.symbolic import Expr, Int
from luminal.core.types import DType, from_numpy

LIMIT = 1024  # most elements of a tensor, or of a reduction, that are evaluated
_DEPTH = 200  # longest chain of operands; a deeper one is a network, not a shape computation
_FACTORS = 12  # most factors in a term of a product of sizes and positions
_TERMS = 256  # most terms of such a product
_WORK = 1 << 16  # most elements of operands that are evaluated for one value; more are no shape computation either

Element: TypeAlias = Int | float | None
Index: TypeAlias = tuple[Int, ...]


def value(node: Node) -> np.ndarray[Any, Any] | None:
    """Every element of ``node`` (dtype object, the node's shape), or None where one is unknown, its shape is symbolic,
    or it has more than ``LIMIT`` elements."""
    sizes = _static(node.shape)
    if sizes is None:
        return None
    result = np.empty(sizes, object)
    with _bounded():
        for index in np.ndindex(*sizes):
            found = _element(node, index, 0)
            if found is None:
                return None
            result[index] = found
    return result


def scalar(node: Node) -> Int | None:
    """The one element of an integer or bool node of size 1, or None where it is unknown."""
    if node.dtype.is_float or any(d != 1 for d in node.shape):
        return None
    found = element(node, (0,) * node.rank)
    return None if isinstance(found, float) else found


def most(node: Node) -> int | None:
    """An upper bound of the one element of an integer node, from constants, sizes and minima; None if there is none."""
    found = scalar(node)
    if found is not None:
        return sym.upper(found)
    if not node.dtype.is_integer or node.size != 1:
        return None
    if node.op is ops.SELECT:
        condition, then, other = node.inputs
        bounds = [most(then), most(other)]
        if condition.op is ops.LESS_THAN and condition.inputs == (then, other):
            return min((bound for bound in bounds if bound is not None), default=None)
    elif node.op is ops.MAX:
        bounds = [most(operand) for operand in node.inputs]
    elif (node.op is ops.VIEW and not node.attr.valid) or (node.op is ops.CAST and node.inputs[0].dtype.is_integer):
        bounds = [most(node.inputs[0])]
    else:
        return None
    known = [bound for bound in bounds if bound is not None and bound <= int(node.dtype.max)]
    return max(known) if len(known) == len(bounds) else None


def formula(node: Node) -> Element:
    """The value at the position ``ir.axes(node.shape)``: an expression over those axes, or None."""
    return element(node, axes(node.shape))


def element(node: Node, index: Sequence[Int]) -> Element:
    """The element of ``node`` at ``index``, whose entries may be expressions; None where it is unknown."""
    with _bounded():
        return _element(node, tuple(index), 0)


@dataclass
class _Budget:
    left: int = _WORK  # elements that may still be evaluated
    stops: int = 0  # how often an element was not evaluated, because none were left or it was too deep
    partial: dict[tuple[Node, Index], Element] = field(default_factory=dict)  # results in spite of stops


_budget: ContextVar[_Budget] = ContextVar("budget")


@contextmanager
def _bounded() -> Iterator[None]:
    token = _budget.set(_Budget())
    try:
        yield
    finally:
        _budget.reset(token)


_memory: WeakKeyDictionary[Node, dict[Index, Element]] = WeakKeyDictionary()


def _element(node: Node, index: Index, depth: int) -> Element:
    if node.op is ops.INPUT:
        return None
    known = _memory.setdefault(node, {})
    if index in known:
        return known[index]
    budget = _budget.get()
    if depth > _DEPTH or budget.left == 0 or (node, index) in budget.partial:
        budget.stops += 1
        return budget.partial.get((node, index))
    budget.left -= 1
    before = budget.stops
    found = _evaluate(node, index, depth + 1)
    if budget.stops == before:
        known[index] = found
    else:  # not remembered: the next request has a new budget
        budget.partial[node, index] = found
    return found


def _evaluate(node: Node, index: Index, depth: int) -> Element:
    op = node.op
    if op in _READERS:
        return _READERS[op](node, index, depth)
    if op.kind is not Kind.ELEMENTWISE:
        return None
    operands: list[Element] = []
    for operand in node.inputs:
        operands.append(_element(operand, index, depth))
        if operands[-1] is None and op not in _LAZY:
            return None
    if all(isinstance(o, int | float) for o in operands):
        return _number(node, operands)
    rule = _SYMBOLIC.get(op)
    return None if rule is None else _checked(rule(node, *operands), node.dtype)


def _number(node: Node, operands: Sequence[Element]) -> Element:
    arrays = [np.array(o).astype(n.dtype.numpy) for o, n in zip(operands, node.inputs, strict=True)]
    return _plain(numerics.apply(node.op, node.attr, *arrays))


def _plain(array: np.ndarray[Any, Any]) -> Element:
    """The Python number that a 0-d array holds; integers and bool as int."""
    dtype = from_numpy(array.dtype)
    if dtype.kind in "ct":
        return None
    return float(array) if dtype.is_float else int(array)


def _checked(result: Element, dtype: DType) -> Element:
    """``result`` where ``dtype`` holds it for every value of the symbols: integers must not wrap nor floats round.

    Arithmetic on sizes is taken not to leave int64 where no bound is known.
    """
    if isinstance(result, float) or result is None:
        return result
    if dtype.is_float:
        limit = round(2.0 / dtype.eps)
        low, high = -limit, limit
    else:
        low, high = int(dtype.min), int(dtype.max)
    least, most = sym.lower(result), sym.upper(result)
    if least is None or most is None:
        return result if dtype.bits == 64 and dtype.kind == "i" else None
    return result if low <= least and most <= high else None


def _static(shape: Sequence[Int]) -> tuple[int, ...] | None:
    sizes = tuple(d for d in shape if isinstance(d, int))
    return sizes if len(sizes) == len(shape) and np.prod(sizes, dtype=np.float64) <= LIMIT else None


# ---- primitives that are not elementwise ---------------------------------------------------------------------------


def _constant(node: Node, index: Index, _: int) -> Element:
    if all(isinstance(i, int) for i in index):
        return _plain(np.asarray(node.attr.array[index]))
    if node not in _lines:
        _lines[node] = _affine(node.attr.array)
    line = _lines[node]
    if line is None:
        return None
    first, steps = line
    if isinstance(first, float):
        return first
    result: Int = first
    for step, position in zip(steps, index, strict=True):
        result = result + position * step
    return result


_lines: WeakKeyDictionary[Node, tuple[int | float, tuple[int, ...]] | None] = WeakKeyDictionary()


def _affine(array: np.ndarray[Any, Any]) -> tuple[int | float, tuple[int, ...]] | None:
    """``(first, steps)`` where ``array[i, j, ..] == first + steps[0]*i + steps[1]*j + ..``, as saved
    positions have it; a single number of any type is one too."""
    if array.size == 0 or (array.size > 1 and array.dtype.kind not in "iu"):
        return None
    first = _plain(array[(0,) * array.ndim])
    if array.size == 1 or not isinstance(first, int):
        return None if first is None or isinstance(first, Expr) else (first, (0,) * array.ndim)
    steps = tuple(
        int(array[(0,) * k + (1,) + (0,) * (array.ndim - k - 1)]) - first if extent > 1 else 0
        for k, extent in enumerate(array.shape)
    )
    if abs(first) + sum(abs(s) * n for s, n in zip(steps, array.shape, strict=True)) >= 1 << 62:
        return None
    expected = np.full((1,) * array.ndim, first, np.int64)
    for k, (step, extent) in enumerate(zip(steps, array.shape, strict=True)):
        expected = expected + step * np.arange(extent).reshape([-1 if j == k else 1 for j in range(array.ndim)])
    return (first, steps) if np.array_equal(expected, array) else None


def _view(node: Node, index: Index, depth: int) -> Element:
    by = rename(node.shape, index)
    conditions = [sym.substitute(v, by) for v in node.attr.valid]
    if any(sym.never(c) for c in conditions):
        return _plain(np.frombuffer(node.attr.fill, node.dtype.numpy)[0])
    if not all(sym.always(c) for c in conditions):
        return None
    return _element(node.inputs[0], tuple(sym.substitute(e, by) for e in node.attr.index), depth)


def _gather(node: Node, index: Index, depth: int) -> Element:
    data, positions = node.inputs
    axis = node.attr.axis
    at = _element(positions, index[axis : axis + positions.rank], depth)
    if at is None or isinstance(at, float) or not (sym.always(at) and sym.always(data.shape[axis] - 1 - at)):
        return None
    return _element(data, (*index[:axis], at, *index[axis + positions.rank :]), depth)


def _reduce(node: Node, index: Index, depth: int) -> Element:
    operand = node.inputs[0]
    reduced = _static([operand.shape[a] for a in node.attr.axes])
    if node.dtype.is_float or reduced is None:
        return None
    total: Element = 0 if node.op is ops.SUM_REDUCE else int(node.dtype.min)
    for position in itertools.product(*map(range, reduced)):
        kept, dropped = iter(index), iter(position)
        at = tuple(next(dropped) if k in node.attr.axes else next(kept) for k in range(operand.rank))
        term = _element(operand, at, depth)
        if term is None or isinstance(term, float) or isinstance(total, float) or total is None:
            return None
        total = _checked(total + term if node.op is ops.SUM_REDUCE else sym.maximum(total, term), node.dtype)
    return total


def _select(node: Node, index: Index, depth: int) -> Element:
    condition, then, other = node.inputs
    decided = _element(condition, index, depth)
    if decided is not None:
        return _element(then if decided else other, index, depth)
    joined = _joined(node, index, depth)
    if joined is not None:
        return joined
    a, b = _element(then, index, depth), _element(other, index, depth)
    if a is None or b is None or isinstance(a, float) or isinstance(b, float):
        return None
    if a == b:
        return a
    if condition.op is ops.LESS_THAN and not node.dtype.is_float:
        less = [_element(o, index, depth) for o in condition.inputs]
        if less == [a, b]:
            return sym.minimum(a, b)
        if less == [b, a]:
            return sym.maximum(a, b)
    return None


def _joined(node: Node, index: Index, depth: int) -> Element:
    """A concatenation whose parts continue one formula, as ``[-1] ++ [0, 1, ..]`` is ``i - 1``.

    The condition is ``i < bound`` for an axis ``i``; one of the sides is a single position. The other side's formula is
    that of all where it gives the single element too.
    """
    condition, then, other = node.inputs
    if condition.op is not ops.LESS_THAN or node.dtype.is_float:
        return None
    position, bound = (_element(o, index, depth) for o in condition.inputs)
    if not isinstance(position, Expr) or not isinstance(bound, int):
        return None
    variable = sym.as_var(position)
    if variable is None:
        return None
    before = sym.var(variable.name, variable.lo, bound - 1)
    after = sym.var(variable.name, bound, variable.hi)
    for one, single, rest, many in ((then, before, other, after), (other, after, then, before)):
        if isinstance(single, int):
            element, formula = (
                _element(part, tuple(sym.substitute(i, {variable: side}) for i in index), depth)
                for part, side in ((one, single), (rest, many))
            )
            many_variable = sym.as_var(many)
            if not isinstance(formula, int | Expr) or many_variable is None:
                continue
            whole = sym.substitute(formula, {many_variable: position})
            if sym.substitute(whole, {variable: single}) == element:
                return whole
    return None


_READERS: dict[Op, Callable[[Node, Index, int], Element]] = {
    ops.CONSTANT: _constant,
    ops.DIM: lambda node, index, depth: node.attr.value,
    ops.IOTA: lambda node, index, depth: index[0],
    ops.VIEW: _view,
    ops.GATHER: _gather,
    ops.SUM_REDUCE: _reduce,
    ops.MAX_REDUCE: _reduce,
    ops.SELECT: _select,
}


# ---- elementwise primitives over expressions -----------------------------------------------------------------------


def _whole(x: Element) -> Int | None:
    """``x`` as an integer expression; None for a fraction, an infinity or NaN."""
    if isinstance(x, float):
        return int(x) if x.is_integer() else None
    return x


def _both(function: Callable[[Int, Int], Element]) -> Callable[[Node, Element, Element], Element]:
    """A binary row over whole numbers."""

    def row(_: Node, x: Element, y: Element) -> Element:
        a, b = _whole(x), _whole(y)
        return None if a is None or b is None else function(a, b)

    return row


def _cast(node: Node, x: Element) -> Element:
    assert isinstance(x, Expr)
    return _not(_equal(x, 0)) if node.dtype.is_bool else x


def _divide(node: Node, x: Element, y: Element) -> Element:
    if not node.dtype.is_integer or not isinstance(x, int | Expr) or not isinstance(y, int | Expr):
        return None
    if not sym.always(y - 1):
        return None
    if sym.always(x):
        return sym.floordiv(x, y)
    return sym.floordiv(x * -1, y) * -1 if sym.always(x * -1) else None


def _product(a: Int, b: Int) -> Element:
    if isinstance(a, Expr) and isinstance(b, Expr):
        factors = sum(max(len(monomial) for monomial, _ in x.terms) for x in (a, b))
        if factors > _FACTORS or len(a.terms) * len(b.terms) > _TERMS:
            return None
    return a * b


def _equal(a: Int, b: Int) -> Element:
    if a == b:
        return 1
    return 0 if sym.never(a - b) or sym.never(b - a) else None


def _not(x: Element) -> Element:
    return None if x is None else int(not x)


def _and(node: Node, x: Element, y: Element) -> Element:
    return 0 if 0 in (x, y) else y if node.dtype.is_bool and x == 1 else x if node.dtype.is_bool and y == 1 else None


def _or(node: Node, x: Element, y: Element) -> Element:
    if node.dtype.is_bool and 1 in (x, y):
        return 1
    return y if x == 0 else x if y == 0 else None


def _shift_left(node: Node, x: Element, y: Element) -> Element:
    if not isinstance(x, Expr) or not isinstance(y, int):
        return None
    return x * (1 << y) if 0 <= y < node.dtype.bits else 0


def _shift_right(node: Node, x: Element, y: Element) -> Element:
    if not isinstance(x, Expr) or not isinstance(y, int) or not 0 <= y < node.dtype.bits:
        return None
    return sym.floordiv(x, 1 << y)


# A product or an alternative may be decided by one operand while the other is unknown.
_LAZY = (ops.AND, ops.OR)

_SYMBOLIC: dict[Op, Callable[..., Element]] = {
    ops.ADD: _both(lambda a, b: a + b),
    ops.MUL: _both(_product),
    ops.MOD: _both(lambda a, b: sym.mod(a, b) if sym.always(b - 1) else None),
    ops.DIV: _divide,
    ops.MAX: _both(sym.maximum),
    ops.LESS_THAN: _both(lambda a, b: 1 if sym.always(b - a - 1) else 0 if sym.always(a - b) else None),
    ops.EQUAL: _both(_equal),
    ops.AND: _and,
    ops.OR: _or,
    ops.SHL: _shift_left,
    ops.SHR: _shift_right,
    ops.CAST: _cast,
    ops.ROUND: lambda node, x: x,
    ops.CONTIGUOUS: lambda node, x: x,
}
