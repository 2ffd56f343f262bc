"""Reading a nest: its statements, their scalars and index expressions, and the arrays that they touch. The roles of the
fields of a statement are in ``ir.Fields``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from luminal.core.schedule.nest import ir as ln
from luminal.core.symbolic import Int, Var

Body = tuple[ln.Statement, ...]


def accesses(value: ln.Scalar) -> list[ln.Access]:
    """Every array element that a scalar reads, once each."""
    return list(dict.fromkeys(s.leaf for s in ln.postorder(value) if isinstance(s.leaf, ln.Access)))


def statements(body: Iterable[ln.Statement]) -> list[ln.Statement]:
    """Every statement of a body, nested ones included."""
    found: list[ln.Statement] = []
    for statement in body:
        found.append(statement)
        if inner := inside(statement):
            found += statements(inner)
    return found


def inside(statement: ln.Statement) -> Body:
    """The statements that a statement holds."""
    names = statement.fields.body
    return tuple(_in_fields(statement, names)) if names else ()


def headers(statement: ln.Statement) -> tuple[ln.Loop, ...]:
    """The loops that a statement itself runs, outermost first; statements inside it are left out."""
    if isinstance(statement, ln.Loop):
        return (statement,)
    return tuple(part for part in _in_fields(statement, statement.fields.nested) if isinstance(part, ln.Loop))


def values(statement: ln.Statement | ln.Prologue | ln.Scales) -> tuple[ln.Scalar, ...]:
    """The scalars that a statement itself computes; statements inside it are left out."""
    nested = _in_fields(statement, statement.fields.nested)
    return (*_own_values(statement), *(v for part in nested for v in values(part)))


def reads(statement: ln.Statement) -> list[ln.Access]:
    """The array elements that the scalars of a statement read, once each for each scalar."""
    return [access for value in values(statement) for access in accesses(value)]


def expressions(statement: ln.Statement | ln.Prologue | ln.Scales) -> list[Int]:
    """Every index expression of a statement itself; statements inside it are left out."""
    parts = statement.fields
    own = _in_fields(statement, parts.indices + parts.conditions)
    own += [e for part in _in_fields(statement, parts.nested) for e in expressions(part)]
    return own + [e for value in _own_values(statement) for e in scalar_expressions(value)]


def scalar_expressions(value: ln.Scalar) -> list[Int]:
    """Every index expression inside a scalar."""
    leaves = (scalar.leaf for scalar in ln.postorder(value) if scalar.op is None)
    return list(dict.fromkeys(e for leaf in leaves for e in leaf_expressions(leaf)))


def leaf_expressions(leaf: ln.Leaf | None) -> tuple[Int, ...]:
    """The index expressions of a leaf: an offset before its conditions."""
    match leaf:
        case ln.Access():
            return (leaf.offset, *leaf.valid)
        case ln.Index():
            return (leaf.value,)
        case ln.Holds():
            return leaf.valid
    return ()


def variables_bound(body: Body) -> set[Var]:
    """The variables that statements of ``body`` bind."""
    parts = (part for s in statements(body) for part in (s, *_in_fields(s, s.fields.nested)))
    return {axis for part in parts for axis in _in_fields(part, part.fields.binds)}


def arrays_touched(body: Body) -> tuple[set[str], set[str]]:
    """The arrays that ``body`` reads, and those that it writes."""
    every = statements(body)
    read = {access.array for statement in every for access in reads(statement)}
    return read.union(*(_in_fields(s, s.fields.reads) for s in every)), set(arrays_written(body))


def arrays_written(body: Iterable[ln.Statement]) -> frozenset[str]:
    """The arrays that ``body`` writes."""
    return frozenset(array for s in statements(body) for array in _in_fields(s, s.fields.writes))


def _own_values(statement: ln.Statement | ln.Prologue | ln.Scales) -> list[ln.Scalar]:
    parts = statement.fields
    return _in_fields(statement, parts.scalars) + [value for _, value in _in_fields(statement, parts.terms)]


def _in_fields(statement: ln.Statement | ln.Prologue | ln.Scales, names: tuple[str, ...]) -> list[Any]:
    """The values of the fields ``names``, one after the other."""
    found: list[Any] = []
    for name in names:
        value = getattr(statement, name)
        if isinstance(value, tuple):
            found += value
        elif value is not None:
            found.append(value)
    return found


def stack_bytes(nest: ln.LoopNest) -> int:
    """Bytes of all local arrays of a task, as if all were alive at once."""
    arrays = (s for s in statements(nest.body) if isinstance(s, ln.Alloc) and s.space == "local")
    return sum(array.extent * array.dtype.itemsize for array in arrays)


def perfect_loops(body: Body) -> tuple[list[ln.Loop], Body]:
    """The perfectly nested loops at the top of a body, outermost first, and the statements inside them."""
    loops: list[ln.Loop] = []
    while len(body) == 1 and isinstance(body[0], ln.Loop):
        loops.append(body[0])
        body = body[0].body
    return loops, body
