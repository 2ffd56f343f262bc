"""How many significant bits of each value the outputs of a graph can tell, and functions of no more than these.

Where operands of contractions are rounded, what they are computed from need not be exact to the last place: the weights
of a softmax, rounded to bfloat16, are read to 8 bits. The demand goes from what rounds back to what is rounded, through
all that keeps relative errors as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from luminal.core import ir, ops
from luminal.core.decompose.error_function import SHORT_DIGITS, times_normal, times_normal_short
from luminal.core.ir import Graph, Node, Origins, Shape
from luminal.core.ops import Kind
from luminal.core.rewrite import rewrite
from luminal.core.rules.pattern import uniform
from luminal.core.schedule.rounding import significant
from luminal.core.types import f32

ALL = 1 << 10  # as many as there are
GUARD = 5  # bits beyond those that a rounding leaves: it goes another way once in 2**GUARD times at most

_FACTORS = (ops.MUL, ops.DIV, ops.RECIP, ops.VIEW, ops.CONTIGUOUS)  # the relative error is the sum of the operands'
_CHOICES = (ops.MAX, ops.MAX_REDUCE)  # it is at most the largest of theirs; a sum's, where no term is negative
_SUMS = (ops.ADD, ops.SUM_REDUCE)


@dataclass(frozen=True)
class Shorter:
    """A function of a float32, and a shorter form of it where ``digits`` significant bits are enough."""

    function: Callable[[Node], Node]
    short: Callable[[Node], Node]
    digits: int


SHORTER = (Shorter(times_normal, times_normal_short, SHORT_DIGITS),)


def eased(graph: Graph) -> Graph:
    """``graph`` with its float32 exponentials, and the functions of ``SHORTER``, of as many digits as can be told."""
    origins: Origins = dict(graph.origins)
    return graph.computing(_eased(graph.roots, origins), origins=origins)


def _eased(roots: Iterable[Node], origins: Origins) -> tuple[Node, ...]:
    roots = tuple(roots)
    wanted = demands(roots)
    made: dict[Node, Node] = {}
    for node in ir.topological(roots):
        digits = wanted[node]
        with ir.originating(origins, *origins.get(node, ())):
            operands = [made[x] for x in node.inputs]
            short = _short(node, digits) if node.dtype == f32 and digits < ALL else None
            if node.op.kind is Kind.STRUCTURED:
                bodies = (_eased(body, origins) for body in node.attr.bodies)
                made[node] = ir.structured(node.op, operands, node.attr.over(*bodies))
            elif short is not None:
                function, x = short
                made[node] = function(made[x])
            elif node.op is ops.EXP2 and node.dtype == f32 and digits < ALL:
                made[node] = ir.unary(ops.EXP2, operands[0], ops.Scale(node.attr.scale, digits))
            else:
                made[node] = ir.rebuild(node, operands)
    return tuple(made[root] for root in roots)


def _short(node: Node, digits: int) -> tuple[Callable[[Node], Node], Node] | None:
    """The short form of the function that ``node`` is, and of what, where that has as many as ``digits``."""
    for row in SHORTER:
        if digits <= row.digits and (x := _operand(row.function, node)) is not None:
            return row.short, x
    return None


def _operand(function: Callable[[Node], Node], node: Node) -> Node | None:
    """The node of which ``node`` is ``function``, simplified; None where it is not."""
    place, whole = _pattern(function, node.shape)
    found: Node | None = None
    waiting = [(whole, node)]
    seen: set[tuple[Node, Node]] = set()
    while waiting:
        pair = pattern, part = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        number = uniform(pattern)
        if pattern is place:
            if found not in (None, part):
                return None
            found = part
        elif number is not None:
            other = uniform(part)
            if other is None or (other.dtype, other.tobytes()) != (number.dtype, number.tobytes()):
                return None
        elif (pattern.op, pattern.attr, pattern.dtype) != (part.op, part.attr, part.dtype):
            return None
        else:
            waiting += zip(pattern.inputs, part.inputs, strict=True)
    return found


@lru_cache(maxsize=1 << 8)
def _pattern(function: Callable[[Node], Node], shape: Shape) -> tuple[Node, Node]:
    """An input of that shape, and the simplified ``function`` of it."""
    place = ir.input_("x", shape, f32)
    (whole,) = rewrite([function(place)])
    return place, whole


def demands(roots: Iterable[Node]) -> dict[Node, int]:
    """The significant bits that are needed of every node: ``ALL`` of ``roots``."""
    roots = tuple(roots)
    order = ir.topological(roots)
    positive = _not_negative(order)
    found = dict.fromkeys(order, 0) | dict.fromkeys(roots, ALL)
    for node in reversed(order):
        for operand, digits in _asked(node, found[node], positive):
            found[operand] = max(found[operand], digits)
    return found


def _asked(node: Node, digits: int, positive: set[Node]) -> Iterator[tuple[Node, int]]:
    """The digits that ``node`` needs of each operand, if so many are needed of itself."""
    inputs = node.inputs
    if node.op is ops.EQUAL and inputs[0] is inputs[1]:
        return  # it asks whether that is a number
    if not node.dtype.is_float:
        digits = ALL
    elif node.op is ops.CAST and inputs[0].dtype.is_float:
        digits = min(digits, significant(node.dtype) + GUARD)
    elif node.op is ops.SELECT:
        yield inputs[0], ALL
        inputs = inputs[1:]
    elif node.op not in (*_FACTORS, *_CHOICES) and not (node.op in _SUMS and positive.issuperset(inputs)):
        digits = ALL
    for operand in inputs:
        yield operand, digits


def _not_negative(order: Sequence[Node]) -> set[Node]:
    """Those of ``order``, operands first, that are floats of which none is below zero."""
    found: set[Node] = set()
    for node in order:
        inputs = node.inputs[1:] if node.op is ops.SELECT else node.inputs
        known = [x in found for x in inputs]
        if not node.dtype.is_float:
            continue
        number = uniform(node)
        if number is not None:
            holds = bool(number >= 0)
        elif node.op is ops.MAX:
            holds = any(known)
        elif node.op is ops.VIEW and node.attr.valid:
            holds = known[0] and not any(node.attr.fill)
        elif node.op in (*_FACTORS, *_CHOICES, *_SUMS, ops.SELECT, ops.CAST):
            holds = all(known)
        else:
            holds = node.op is ops.EXP2
        if holds:
            found.add(node)
    return found
