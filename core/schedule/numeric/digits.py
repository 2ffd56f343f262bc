"""How many significant bits of each value the outputs of a graph can tell, and functions of no more than these.

Where operands of contractions are rounded, what they are computed from need not be exact to the last place: the weights
of a softmax, rounded to bfloat16, are read to 8 bits. The demand goes from what rounds back to what is rounded, through
all that keeps relative errors as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from luminal.core import ir, ops, traverse
from luminal.core.ir import Node
from luminal.core.rules.functions import IDENTITIES
from luminal.core.rules.pattern import NODES, uniform
from luminal.core.schedule.contraction.contracted import Contracted, Make
from luminal.core.schedule.numeric import signs
from luminal.core.schedule.numeric.rounding import significant
from luminal.core.types import f32

ALL = 1 << 10  # bits: as many as there are
GUARD = 5  # bits beyond those that a rounding leaves: about one in 2**GUARD goes another way at most

_SAME = (ops.RECIP, ops.VIEW, ops.CONTIGUOUS, ops.SELECT, ops.MAX, ops.MAX_REDUCE)  # errors stay as large as they are
_PRODUCTS = (ops.MUL, ops.DIV)  # those of the operands add up
_SUMS = (ops.ADD, ops.SUM_REDUCE)  # they stay as large where no term is negative; else terms may cancel


def eased(whole: Contracted) -> Contracted:
    """The graph with its float32 exponentials, and functions of ``IDENTITIES``, of as many digits as can be told."""
    return whole.remade(_eased)


def _eased(roots: tuple[Node, ...], now: Mapping[Node, Node]) -> Make:
    readers = Counter(chain(roots, *(set(node.inputs) for node in traverse.topological(roots))))
    few = {node: count for node, count in demands(roots).items() if node.dtype == f32 and count < significant(f32)}
    short = {node: found for node, count in few.items() if (found := _short(node, count, readers)) is not None}

    def made(node: Node, operands: Sequence[Node]) -> Node:
        if node in short:
            function, x = short[node]
            return function(now[x])
        if node in few and node.op is ops.EXP2:
            return ir.unary(ops.EXP2, operands[0], ops.Scale(node.attr.scale, few[node]))
        return traverse.rebuild(node, operands)

    return made


# ---- functions that have a shorter form ------------------------------------------------------------------------------


def _short(node: Node, digits: int, readers: Mapping[Node, int]) -> tuple[Callable[[Node], Node], Node] | None:
    """The short form of the function that ``node`` is, and of what, where that has as many as ``digits`` and nobody
    else reads what ``node`` is computed from."""
    for row in IDENTITIES:
        if row.real.digits is None or digits > row.real.digits:
            continue
        x = row.argument(node, NODES)
        if x is not None and all(readers[part] == 1 for part in node.inputs if part is not x and uniform(part) is None):
            return row.right, x
    return None


# ---- the demand ------------------------------------------------------------------------------------------------------


def demands(roots: Iterable[Node]) -> dict[Node, int]:
    """The significant bits that are needed of every node: ``ALL`` of ``roots``, and of what loops and branches read."""
    roots = tuple(roots)
    order = traverse.topological(roots)
    positive, inexact = signs.not_negative(order), _inexact(order)
    found = dict.fromkeys(order, 0) | dict.fromkeys(roots, ALL)
    for node in reversed(order):
        digits = _asked(node, found[node], positive, inexact)
        for x in node.inputs:
            found[x] = max(found[x], digits)
    return found


def _asked(node: Node, digits: int, positive: set[Node], inexact: set[Node]) -> int:
    """The digits that ``node`` needs of its operands, if so many are needed of itself."""
    if node.op is ops.EQUAL and node.inputs[0] is node.inputs[1]:
        return 0  # it asks whether that is a number
    if not node.dtype.is_float:
        return ALL
    if node.op is ops.CAST:
        return min(digits, significant(node.dtype) + GUARD)
    if node.op in _PRODUCTS:
        return digits + inexact.issuperset(node.inputs)
    keeps = node.op in _SAME or (node.op in _SUMS and positive.issuperset(node.inputs))
    return digits if keeps else ALL


def _rounds(node: Node) -> bool:
    return node.op is ops.CAST and significant(node.dtype) < significant(node.inputs[0].dtype)


def _inexact(order: Sequence[Node]) -> set[Node]:
    """Those of ``order``, operands first, that the error of an exponential may be in; one that is rounded is not told
    from that rounding's."""
    found: set[Node] = set()
    for node in order:
        if node.op is ops.EXP2 or not (_rounds(node) or found.isdisjoint(signs.values(node))):
            found.add(node)
    return found
