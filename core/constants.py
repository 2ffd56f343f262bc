"""What is known of a value when compiling: whether it depends on constants alone, on positions or on the run.

One walk finds everything that is asked about constants. Rules fold and decide by ``known``; contractions pack what
``is_constant``; kernels compute where they read it what ``is_computed``, and rather than fold it what ``is_narrow``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from luminal.core import interp, ops, traverse
from luminal.core.ir import Node
from luminal.core.ops import Kind

DIGITS = 8  # most elements that are computed from one element of a constant, as by unpacking bits
_COUNTED = 1 << 62  # limit of counted bytes: the number of paths through a graph can be exponential


class Known(IntEnum):
    """How much of a node's value is known when compiling, from least to most."""

    RUN_TIME = 0  # depends on an input or on a symbolic size
    STRUCTURE = 1  # a condition on positions, or a choice between two numbers by one: splits index sets, so is kept
    POSITION = 2  # an integer function of positions
    VALUE = 3  # computed from constants


@dataclass(frozen=True)
class _Fact:
    """Of one node: how much is ``known``; whether it is ``decided``, which is to depend on constants and positions
    alone, though its own size may be symbolic; whether ``positions`` are involved; the elements of the largest constant
    below it, and the bytes of all, a constant counted once for each path to it."""

    known: Known
    decided: bool
    positions: bool
    elements: int
    most_bytes: int


_facts: WeakKeyDictionary[Node, _Fact] = WeakKeyDictionary()


def known(node: Node) -> Known:
    """How much of the value of ``node`` is known when compiling."""
    return _fact(node).known


def is_constant(node: Node) -> bool:
    """Whether ``node`` depends on constants alone, or on positions too if it is at most ``DIGITS`` times larger."""
    fact = _fact(node)
    if not is_computed(node):
        return False
    return not fact.positions or (isinstance(node.size, int) and node.size <= DIGITS * fact.elements)


def is_computed(node: Node) -> bool:
    """Whether ``node`` depends on at least one constant, and besides constants on positions alone."""
    fact = _fact(node)
    return fact.decided and fact.elements > 0


def is_decided(node: Node) -> bool:
    """Whether ``node`` depends on constants and positions alone, and has a known size."""
    return _fact(node).decided and isinstance(node.size, int)


def is_narrow(node: Node, narrower: int) -> bool:
    """Whether ``node`` is arithmetic on constants that take at most 1/``narrower`` of its bytes: a kernel decodes it
    as it reads it, for folded it would have more bytes to read."""
    if not is_constant(node) or not isinstance(node.size, int):
        return False
    walked = traverse.topological([node])
    arithmetic = all(x.op.kind in (Kind.SOURCE, Kind.VIEW, Kind.ELEMENTWISE) for x in walked)
    return arithmetic and constant_bytes(node) * narrower <= node.size * node.dtype.itemsize


def constant_bytes(node: Node) -> int:
    """The bytes of all constants that ``node`` depends on."""
    return sum(int(part.attr.nbytes) for part in traverse.topological([node]) if part.op is ops.CONSTANT)


def shrinks(node: Node, result_bytes: int) -> bool:
    """Whether ``result_bytes`` are no more than the constants that ``node`` depends on have."""
    # The fact is an upper bound, which saves most walks.
    return result_bytes <= _fact(node).most_bytes and result_bytes <= constant_bytes(node)


def uniform(node: Node) -> np.ndarray[Any, Any] | None:
    """The one number that all elements of ``node`` are (a 0-d array), if it is or views a constant of size 1."""
    if node.op is ops.CONSTANT and node.attr.array.size == 1:
        return np.asarray(node.attr.array.reshape(()))
    if node.op is ops.VIEW:
        inner = uniform(node.inputs[0])
        if inner is not None and (not node.attr.valid or inner.tobytes() == node.attr.fill):
            return inner
    return None


def _fact(node: Node) -> _Fact:
    stack = [node] if node not in _facts else []
    while stack:
        pending = [operand for operand in stack[-1].inputs if operand not in _facts]
        if pending:
            stack += pending
        else:
            last = stack.pop()
            _facts[last] = _found(last)
    return _facts[node]


def _found(node: Node) -> _Fact:
    if node.op is ops.CONSTANT:
        return _Fact(Known.VALUE, True, False, max(1, math.prod(node.attr.shape)), int(node.attr.nbytes))
    below = [_facts[operand] for operand in node.inputs]
    decided = bool(below) and all(fact.decided for fact in below) and node.op is not ops.EXCHANGE
    if node.op is ops.IOTA:
        decided = isinstance(node.size, int)
    return _Fact(
        _known(node),
        decided,
        node.op is ops.IOTA or any(fact.positions for fact in below),
        max((fact.elements for fact in below), default=0),
        min(_COUNTED, sum(fact.most_bytes for fact in below)),
    )


def _known(node: Node) -> Known:
    if not all(isinstance(d, int) for d in node.shape) or node.op is ops.EXCHANGE:
        return Known.RUN_TIME
    if node.op.kind is Kind.SOURCE:
        return Known.POSITION if node.op is ops.IOTA else Known.RUN_TIME
    if node.op.kind is Kind.STRUCTURED and interp.has_symbols(node):
        return Known.RUN_TIME
    least = min(_facts[operand].known for operand in node.inputs)
    if least is Known.RUN_TIME or node.op is ops.VIEW:
        return least
    if node.op is ops.SELECT and _facts[node.inputs[0]].known is Known.STRUCTURE:
        branches = node.inputs[1:]
        values = all(_facts[b].known is Known.VALUE for b in branches)
        return Known.VALUE if values and any(uniform(b) is None for b in branches) else Known.STRUCTURE
    if least is Known.POSITION:
        return Known.VALUE if node.dtype.is_float else Known.STRUCTURE if node.dtype.is_bool else Known.POSITION
    return least
