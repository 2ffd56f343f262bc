"""How many significant bits of each value the outputs of a graph can tell, and exponentials of no more than these.

Where operands of contractions are rounded, what they are computed from need not be exact to the last place: the weights
of a softmax, rounded to bfloat16, are read to 8 bits. The demand goes from what rounds back to what is rounded, through
all that keeps relative errors as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from luminal.core import ir, ops
from luminal.core.ir import Graph, Node, Origins
from luminal.core.ops import Kind
from luminal.core.rewrite import remade
from luminal.core.rules.pattern import uniform
from luminal.core.schedule.rounding import significant
from luminal.core.types import f32

ALL = 1 << 10  # as many as there are
GUARD = 5  # bits beyond those that a rounding leaves: it goes another way once in 2**GUARD times at most

_FACTORS = (ops.MUL, ops.DIV, ops.RECIP, ops.VIEW, ops.CONTIGUOUS)  # the relative error is the sum of the operands'
_CHOICES = (ops.MAX, ops.MAX_REDUCE)  # it is at most the largest of theirs; a sum's, where no term is negative
_SUMS = (ops.ADD, ops.SUM_REDUCE)


def eased(graph: Graph) -> Graph:
    """``graph`` with its float32 exponentials of as many digits as can be told."""
    wanted = demands(graph.roots)
    origins: Origins = dict(graph.origins)

    def make(node: Node, operands: Sequence[Node]) -> Node:
        if node.op is ops.EXP2 and node.dtype == f32 and wanted[node] < ALL:
            return ir.unary(ops.EXP2, operands[0], ops.Scale(node.attr.scale, wanted[node]))
        return ir.rebuild(node, operands)

    return graph.computing(remade(graph.roots, origins, make), origins=origins)


def demands(roots: Iterable[Node]) -> dict[Node, int]:
    """The significant bits that are needed of every node: ``ALL`` of ``roots``, and of what bodies compute."""
    roots = tuple(roots)
    order = ir.topological(roots)
    positive = _not_negative(order)
    found = dict.fromkeys(order, 0) | dict.fromkeys(roots, ALL)
    for node in reversed(order):
        for operand, digits in _asked(node, found[node], positive):
            found[operand] = max(found[operand], digits)
    for node in order:
        for body in node.attr.bodies if node.op.kind is Kind.STRUCTURED else ():
            for inner, digits in demands(body).items():
                found[inner] = max(found.get(inner, 0), digits)
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
