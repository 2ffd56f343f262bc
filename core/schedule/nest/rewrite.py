"""Substitution and traversal of nests, from which transforms are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from luminal.core import symbolic as sym
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import Body
from luminal.core.symbolic import Int, Var

P = TypeVar("P", bound=ln.Statement | ln.Prologue | ln.Scales)
T = TypeVar("T")


def _same(value: T) -> T:
    return value


def substitute_scalar(value: ln.Scalar, by: Mapping[Var, Int], memo: dict[ln.Scalar, ln.Scalar]) -> ln.Scalar:
    """``value`` with index variables replaced."""
    return replace_expressions(value, lambda e: sym.substitute(e, by), lambda valid: _conditions(valid, by), memo)


def replace_expressions(
    value: ln.Scalar,
    index: Callable[[Int], Int],
    conditions: Callable[[tuple[Int, ...]], tuple[Int, ...]],
    memo: dict[ln.Scalar, ln.Scalar],
) -> ln.Scalar:
    """``value`` with ``index`` applied to its index expressions, and ``conditions`` to those of each mask in it."""
    if value not in memo:
        leaf = value.leaf
        if isinstance(leaf, ln.Access):
            changed = ln.load(leaf.array, index(leaf.offset), value.dtype, conditions(leaf.valid), leaf.fill)
        elif isinstance(leaf, ln.Index):
            changed = ln.index(index(leaf.value))
        elif isinstance(leaf, ln.Holds):
            changed = ln.holds(conditions(leaf.valid))
        elif value.op is not None:
            operands = tuple(replace_expressions(o, index, conditions, memo) for o in value.operands)
            changed = ln.apply(value.op, operands, value.attr, value.dtype)
        else:
            changed = value
        memo[value] = changed
    return memo[value]


def replace_leaves(value: ln.Scalar, by: Mapping[ln.Scalar, ln.Scalar]) -> ln.Scalar:
    """``value`` with leaves replaced."""
    memo: dict[ln.Scalar, ln.Scalar] = dict(by)
    for scalar in ln.postorder(value):
        if scalar not in memo:
            operands = tuple(memo[o] for o in scalar.operands)
            memo[scalar] = scalar if scalar.op is None else ln.apply(scalar.op, operands, scalar.attr, scalar.dtype)
    return memo[value]


def _conditions(valid: tuple[Int, ...], by: Mapping[Var, Int]) -> tuple[Int, ...]:
    """``valid`` with index variables replaced, less the conditions that then always hold."""
    return tuple(v for c in valid if not sym.always(v := sym.substitute(c, by)))


def map_fields(
    part: P,
    scalar: Callable[[ln.Scalar], ln.Scalar] = _same,
    index: Callable[[Int], Int] = _same,
    conditions: Callable[[tuple[Int, ...]], tuple[Int, ...]] = _same,
    body: Callable[[Body], Body] = _same,
) -> P:
    """A statement with each function applied to its fields of that role, nested headers included; ``conditions`` takes
    a whole mask."""
    parts = part.fields

    def again(held: P) -> P:
        return map_fields(held, scalar, index, conditions, body)

    changes: dict[str, Any] = {}
    for names, change in ((parts.scalars, scalar), (parts.indices, index), (parts.nested, again)):
        changes |= {name: _each(getattr(part, name), change) for name in names}
    changes |= {name: tuple((of, scalar(value)) for of, value in getattr(part, name)) for name in parts.terms}
    changes |= {name: conditions(getattr(part, name)) for name in parts.conditions}
    changes |= {name: body(getattr(part, name)) for name in parts.body}
    return replace(part, **changes)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """The value of a field, one or several or None, with ``change`` applied."""
    return tuple(map(change, value)) if isinstance(value, tuple) else None if value is None else change(value)


def replace_scalars(body: Body, change: Callable[[ln.Scalar], ln.Scalar]) -> Body:
    """``body`` with ``change`` applied to every scalar that a statement holds."""
    return tuple(map_fields(s, scalar=change, body=lambda inner: replace_scalars(inner, change)) for s in body)


def replace_statements(body: Body, change: Callable[[ln.Statement], Iterable[ln.Statement] | None]) -> tuple[Body, int]:
    """``body`` with each statement, at any depth, replaced by what ``change`` returns for it, unless that is None; and
    how many were replaced. Statements inside a replaced one are not visited."""
    count = 0

    def inner(body: Body) -> Body:
        nonlocal count
        result: list[ln.Statement] = []
        for statement in body:
            changed = change(statement)
            count += changed is not None
            if changed is None:
                changed = (map_fields(statement, body=inner) if statement.fields.body else statement,)
            result += changed
        return tuple(result)

    replaced = inner(body)
    return replaced, count


def substitute(body: Body, by: Mapping[Var, Int]) -> Body:
    """``body`` with index variables replaced, without conditions that then always hold, and without an ``If`` of
    none."""
    memo: dict[ln.Scalar, ln.Scalar] = {}

    def inner(body: Body) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            changed = map_fields(
                statement,
                lambda value: substitute_scalar(value, by, memo),
                lambda value: sym.substitute(value, by),
                lambda valid: _conditions(valid, by),
                inner,
            )
            result += changed.body if isinstance(changed, ln.If) and not changed.valid else (changed,)
        return tuple(result)

    return inner(body)


def wrap(loops: list[ln.Loop], body: Body) -> Body:
    """``body`` inside ``loops``, outermost first."""
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    return body


def concatenated(first: ln.LoopNest, second: ln.LoopNest) -> ln.LoopNest:
    """Both nests as one kernel: they have the same array arguments and no tasks."""
    arrays = tuple(
        replace(a, written=a.written or b.written, finite=a.finite or b.finite, aligned=a.aligned and b.aligned)
        for a, b in zip(first.arrays, second.arrays, strict=True)
    )
    dims = tuple(sorted({*first.dims, *second.dims}, key=lambda v: v.name))
    return ln.LoopNest(arrays, dims, first.body + second.body, first.checked or second.checked)
