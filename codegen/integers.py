"""The type in which a kernel computes its indices: 32 bits where they suffice."""

from __future__ import annotations

import math

from luminal.core import symbolic as sym
from luminal.core.schedule.nest.ir import LoopNest
from luminal.core.schedule.nest.walk import expressions, statements
from luminal.core.symbolic import Atom, Int

LIMIT = (1 << 31) - (1 << 12)  # leaves room for the last increment of a loop's axis


def of(nest: LoopNest) -> str:
    """``int`` where every index of ``nest``, and every intermediate value of one, is proved smaller than ``LIMIT`` for
    all sizes; else ``int64_t``."""
    found = [e for statement in statements(nest.body) for e in expressions(statement)]
    return "int" if all(map(_fits, [*found, nest.task_count])) else "int64_t"


def _fits(value: Int) -> bool:
    return _magnitude(value) < LIMIT and all(_fits(part) for atom in sym.atoms(value) for part in sym.operands(atom))


def _magnitude(value: Int) -> float:
    """A bound of the absolute value of ``value`` and of its intermediate sums and products."""
    if isinstance(value, int):
        return abs(value)
    return sum(abs(factor) * math.prod(max(1.0, _bound(atom)) for atom in atoms) for atoms, factor in value.terms)


def _bound(atom: Atom) -> float:
    """A bound of the absolute value of ``atom``; infinite where none is known."""
    value = sym.expr(atom)
    ends = sym.lower(value), sym.upper(value)
    return max(math.inf if end is None else abs(end) for end in ends)
