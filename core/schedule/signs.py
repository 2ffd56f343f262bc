"""Which values are never below zero, whatever a graph is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from luminal.core import ops
from luminal.core.ir import Node
from luminal.core.rules.pattern import uniform

_LIKE_ALL = (ops.VIEW, ops.CONTIGUOUS, ops.SELECT, ops.CAST, ops.ADD, ops.MUL, ops.SUM_REDUCE, ops.MAX_REDUCE)


def values(node: Node) -> Sequence[Node]:
    """The operands that a result may be."""
    return node.inputs[1:] if node.op is ops.SELECT else node.inputs


def not_negative(order: Sequence[Node]) -> set[Node]:
    """Those of ``order``, operands first, that are floats of which none is below zero. A zero may be -0, and a NaN of
    either sign."""
    found: set[Node] = set()
    above: set[Node] = set()  # those that are no -0 either: what is divided by -0 is below zero
    for node in order:
        if node.dtype.is_float and _follows(node, found, above, any):
            found.add(node)
            if _follows(node, above, above, all):
                above.add(node)
    return found


def _follows(node: Node, known: set[Node], above: set[Node], some: Callable[[Iterable[bool]], bool]) -> bool:
    """Whether ``node`` is like those that are ``known``; of a larger operand, ``some`` need be."""
    number = uniform(node)
    if number is not None:
        return not np.signbit(number.astype(np.float64))
    if node.op in (ops.DIV, ops.RECIP):
        return node.inputs[-1] in above and known.issuperset(node.inputs)
    if node.op is ops.VIEW and node.attr.valid and any(node.attr.fill):
        return False
    if node.op is ops.MAX or (node.op is ops.SELECT and _is_larger(node)):
        return some(x in known for x in values(node))
    return node.op is ops.EXP2 or (node.op in _LIKE_ALL and known.issuperset(values(node)))


def _is_larger(select: Node) -> bool:
    """Whether a choice is the larger of its operands, but for the sign of a zero."""
    condition, bound, x = select.inputs
    return condition.op is ops.LESS_THAN and condition.inputs == (x, bound)
