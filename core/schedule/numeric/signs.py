"""Which values are never below zero, for any inputs of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.constants import uniform
from luminal.core.ir import Node

_LIKE_ALL = (ops.VIEW, ops.CONTIGUOUS, ops.SELECT, ops.CAST, ops.ADD, ops.MUL, ops.MAX, ops.SUM_REDUCE, ops.MAX_REDUCE)


def values(node: Node) -> Sequence[Node]:
    """The operands of ``node`` without the condition of a Select."""
    return node.inputs[1:] if node.op is ops.SELECT else node.inputs


def not_negative(order: Sequence[Node]) -> set[Node]:
    """The float nodes of ``order`` (operands first) that have no element below zero. A zero may be -0, and a NaN have
    either sign."""
    found: set[Node] = set()
    above: set[Node] = set()  # nodes without -0, too: a positive number divided by -0 is -inf
    for node in order:
        if node.dtype.is_float and (_follows(node, found, above) or _is_limited(node, found)):
            found.add(node)
            if _follows(node, above, above):
                above.add(node)
    return found


def _follows(node: Node, known: set[Node], above: set[Node]) -> bool:
    """Whether ``node`` has the property of the ``known`` nodes (never below zero, or ``above``) by its operands."""
    number = uniform(node)
    if number is not None:
        return not np.signbit(number.astype(np.float64))
    if node.op in (ops.DIV, ops.RECIP):
        return node.inputs[-1] in above and known.issuperset(node.inputs)
    if node.op is ops.VIEW and node.attr.valid and any(node.attr.fill):
        return False
    if node.op is ops.MAX_REDUCE and not all(sym.always(node.inputs[0].shape[k] - 1) for k in node.attr.axes):
        return False  # the maximum of no elements is -inf
    return node.op is ops.EXP2 or (node.op in _LIKE_ALL and known.issuperset(values(node)))


def _is_limited(node: Node, known: set[Node]) -> bool:
    """Whether ``node`` is a maximum with a ``known`` operand, up to the sign of zero: a Max, or ``Select(x < bound,
    bound, x)``. The latter is ``x`` where the bound is NaN."""
    if node.op is ops.MAX:
        return not known.isdisjoint(node.inputs)
    if node.op is not ops.SELECT:
        return False
    condition, bound, x = node.inputs
    if condition.op is not ops.LESS_THAN or condition.inputs != (x, bound):
        return False
    number = uniform(bound)
    return x in known or (bound in known and number is not None and not np.isnan(number.astype(np.float64)))
