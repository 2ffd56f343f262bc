"""How often a while loop runs, where that follows from its condition: ``i < n`` for a counter ``i``."""

from __future__ import annotations

from collections.abc import Sequence

from luminal.core import ir, ops, symval, traverse
from luminal.core import symbolic as sym
from luminal.core.ir import Node
from luminal.core.movement import reshape
from luminal.core.symbolic import Expr, Int, Var

MOST = 1 << 23  # rounds: up to here every counter is exact in float32, in which exporters compare them

_ROUND = Var("round", 0, MOST)
_FOREVER = Var("forever", 0, MOST)


def counted(
    holds: Node, number: Node, carries: Sequence[Node], first: Sequence[Node], following: Sequence[Node]
) -> Int | None:
    """The number of rounds of a while loop, as a number or a size; None where it does not follow.

    ``holds`` is the condition before the round ``number``, and ``following`` are the carries after it, both over
    ``carries``, which begin as ``first``. Carries that stay what they are, or that each round increases by the same
    whole number, are replaced by what they are in the round. What is left has to be a conjunction of comparisons, or of
    bools that the round before has found in such a way.
    """
    number_ = sym.expr(_ROUND)
    known = {number: ir.dim(number_)}
    before: dict[Node, tuple[Node, Node]] = {}  # carried bools: what they begin as, and are after a round
    for carry, start, after in zip(carries, first, following, strict=True):
        if after is carry:
            known[carry] = start
        elif carry.dtype.is_integer and carry.size == 1:
            value = progression(carry, start, after)
            if value is not None:
                at = ir.cast(ir.dim(value[0] + number_ * value[1]), carry.dtype)
                known[carry] = reshape(at, carry.shape)
        elif carry.dtype.is_bool and carry.size == 1:
            before[carry] = start, after
    terms: list[Int] = []
    for part in conjunction(holds):
        carried = before.get(_one(part))
        if carried is None:
            found = _first_false(part, known)
        else:
            found = _through_carry(carried[0], conjunction(carried[1]), known)
        if found is None:
            return None
        if found is not _NEVER:
            terms.append(found)
    if not terms:
        return None  # it runs forever, or as long as a body that fails lets it
    result = terms[0]
    for term in terms[1:]:
        result = sym.minimum(result, term)
    most = sym.upper(result)
    return result if most is not None and most <= MOST else None


def progression(carry: Node, start: Node, after: Node) -> tuple[Int, int] | None:
    """The first value of an integer carry and how much each round adds to it; None where it is no such carry."""
    value = Var("carry", 0, MOST)
    at = reshape(ir.cast(ir.dim(sym.expr(value)), carry.dtype), carry.shape)
    (moved,) = traverse.substitute([after], {carry: at})
    next_, begin = symval.scalar(moved), symval.scalar(start)
    if next_ is None or begin is None:
        return None
    step = next_ - sym.expr(value)
    return (begin, step) if isinstance(step, int) else None


_NEVER = sym.expr(_FOREVER)  # no round at which a condition is false


def _through_carry(start: Node, parts: Sequence[Node], known: dict[Node, Node]) -> Int | None:
    """The first round at which a carried bool is false, which begins as ``start``, and is after each round whether all
    ``parts`` hold."""
    begins = symval.scalar(start)
    if begins == 0:
        return 0
    if begins is None and len(parts) != 1:
        return None
    result: Int = _NEVER
    for part in parts:
        if begins is None:
            # The same comparison, one round earlier: then the first round is as any other.
            a, b = _difference(part, known), _difference(start, {})
            if a is None or b is None or sym.substitute(a, {_ROUND: -1}) != b:
                return None
            found = _first_not_positive(a, 1)
        else:
            found = _first_false(part, known)
            found = found if found is None or found is _NEVER else found + 1
        if found is None:
            return None
        if found is not _NEVER:
            result = found if result is _NEVER else sym.minimum(result, found)
    return result


def _first_false(part: Node, known: dict[Node, Node]) -> Int | None:
    """The first round at which a condition is false."""
    (at,) = traverse.substitute([part], known)
    decided = symval.scalar(at)
    if isinstance(decided, int):
        return _NEVER if decided else 0
    difference = _difference(part, known)
    return None if difference is None else _first_not_positive(difference, 0)


def _first_not_positive(difference: Int, after: int) -> Int | None:
    """The first round, from ``-after`` on and counted from there, at which ``difference`` is not above 0."""
    linear = sym.coefficient(difference, _ROUND)
    if linear is None or not isinstance(linear[0], int) or linear[0] >= 0:
        return None
    slope, rest = -linear[0], linear[1]
    return sym.maximum(sym.floordiv(rest + slope - 1, slope) + after, 0)


def _difference(part: Node, known: dict[Node, Node]) -> Int | None:
    """An expression that is above 0 where a comparison holds, and not above 0 where it does not."""
    part, negated = _one(part), False
    while part.op is ops.EQUAL or part.op is ops.XOR:  # of a bool and a constant: a negation
        values = [symval.scalar(operand) for operand in part.inputs]
        if not part.inputs[0].dtype.is_bool or not any(isinstance(value, int) for value in values):
            return None
        fixed = 0 if isinstance(values[0], int) else 1
        negated ^= bool(values[fixed]) == (part.op is ops.XOR)
        part = _one(part.inputs[1 - fixed])
    if part.op is not ops.LESS_THAN:
        return None
    found: list[Int] = []
    for operand in traverse.substitute(part.inputs, known):
        value = symval.element(operand, (0,) * operand.rank)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int | Expr):
            return None
        found.append(value)
    less, more = found
    return less - more + 1 if negated else more - less


def conjunction(condition: Node) -> list[Node]:
    """The parts of a condition that must all hold."""
    condition = _one(condition)
    if condition.op is ops.AND and condition.dtype.is_bool:
        return [part for operand in condition.inputs for part in conjunction(operand)]
    return [condition]


def _one(node: Node) -> Node:
    """``node``, or what a view of its one element is of."""
    while node.op is ops.VIEW and node.size == 1 and node.inputs[0].size == 1 and not node.attr.valid:
        node = node.inputs[0]
    return node
