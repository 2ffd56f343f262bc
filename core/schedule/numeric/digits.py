"""How many significant bits of each value reach the outputs of a graph, and functions computed to no more than these.

If the operands of a contraction are rounded, the values they are computed from need not be exact to the last place: the
weights of a softmax, rounded to bfloat16, are read to 8 bits. The demand for bits is passed from the rounding back to
its operands, through all primitives that do not enlarge relative errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from luminal.core import ir, ops, traverse
from luminal.core.constants import uniform
from luminal.core.ir import Node
from luminal.core.rules.functions import IDENTITIES
from luminal.core.rules.pattern import NODES
from luminal.core.schedule.contraction.contracted import Contracted, Make
from luminal.core.schedule.numeric import signs
from luminal.core.types import f32

ALL = 1 << 10  # bits: all that a type has
GUARD = 5  # bits beyond those that a rounding keeps: at most about one value in 2**GUARD rounds differently

_SAME = (ops.RECIP, ops.VIEW, ops.CONTIGUOUS, ops.SELECT, ops.MAX, ops.MAX_REDUCE)  # relative errors stay the same
_PRODUCTS = (ops.MUL, ops.DIV)  # relative errors of the operands add up
_SUMS = (ops.ADD, ops.SUM_REDUCE)  # relative errors do not grow if no term is negative; else terms may cancel


def eased(whole: Contracted) -> Contracted:
    """The graph with float32 exponentials, and functions of ``IDENTITIES``, computed to as many bits as are needed."""
    return whole.remade(_eased)


def _eased(roots: tuple[Node, ...], now: Mapping[Node, Node]) -> Make:
    readers = Counter(chain(roots, *(set(node.inputs) for node in traverse.topological(roots))))
    few = {node: count for node, count in demands(roots).items() if node.dtype == f32 and count < f32.significant}
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
    """The short form of the function that ``node`` computes, and its argument; None if no row of ``IDENTITIES`` has one
    of ``digits`` bits or more, or if another node reads the operands of ``node``."""
    for row in IDENTITIES:
        if row.real.digits is None or digits > row.real.digits:
            continue
        x = row.argument(node, NODES)
        if x is not None and all(readers[part] == 1 for part in node.inputs if part is not x and uniform(part) is None):
            return row.right, x
    return None


# ---- the demand ------------------------------------------------------------------------------------------------------


def demands(roots: Iterable[Node]) -> dict[Node, int]:
    """The significant bits needed of each node: ``ALL`` for ``roots`` and for the operands of loops and branches."""
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
    """The significant bits that ``node`` needs of its operands if ``digits`` are needed of its result."""
    if node.op is ops.EQUAL and node.inputs[0] is node.inputs[1]:
        return 0  # x == x tests for NaN
    if not node.dtype.is_float:
        return ALL
    if node.op is ops.CAST:
        return min(digits, node.dtype.significant + GUARD)
    if node.op in _PRODUCTS:
        return digits + inexact.issuperset(node.inputs)
    keeps = node.op in _SAME or (node.op in _SUMS and positive.issuperset(node.inputs))
    return digits if keeps else ALL


def _rounds(node: Node) -> bool:
    return node.op is ops.CAST and node.dtype.significant < node.inputs[0].dtype.significant


def _inexact(order: Sequence[Node]) -> set[Node]:
    """The nodes of ``order`` (operands first) whose value may carry the error of an exponential. A rounding ends this:
    after it, only the rounding's own error counts."""
    found: set[Node] = set()
    for node in order:
        if node.op is ops.EXP2 or not (_rounds(node) or found.isdisjoint(signs.values(node))):
            found.add(node)
    return found
