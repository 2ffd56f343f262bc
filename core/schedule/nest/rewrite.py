"""Substitution and traversal of nests: what the transforms are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from luminal.core import symbolic as sym
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import Body, inside
from luminal.core.symbolic import Int, Var


def substitute_scalar(value: ln.Scalar, by: Mapping[Var, Int], memo: dict[ln.Scalar, ln.Scalar]) -> ln.Scalar:
    """``value`` with index variables replaced."""
    if value not in memo:
        memo[value] = _substituted(value, by, memo)
    return memo[value]


def _substituted(value: ln.Scalar, by: Mapping[Var, Int], memo: dict[ln.Scalar, ln.Scalar]) -> ln.Scalar:
    leaf = value.leaf
    if isinstance(leaf, ln.Access):
        valid = _conditions(leaf.valid, by)
        return ln.load(leaf.array, sym.substitute(leaf.offset, by), value.dtype, valid, leaf.fill)
    if isinstance(leaf, ln.Index):
        return ln.index(sym.substitute(leaf.value, by))
    if isinstance(leaf, ln.Holds):
        return ln.holds(_conditions(leaf.valid, by))
    if leaf is not None:
        return value
    assert value.op is not None
    operands = tuple(substitute_scalar(o, by, memo) for o in value.operands)
    return ln.apply(value.op, operands, value.attr, value.dtype)


def replace_leaves(value: ln.Scalar, by: Mapping[ln.Scalar, ln.Scalar]) -> ln.Scalar:
    """``value`` with leaves replaced."""
    memo: dict[ln.Scalar, ln.Scalar] = dict(by)
    for scalar in ln.postorder(value):
        if scalar not in memo:
            operands = tuple(memo[o] for o in scalar.operands)
            memo[scalar] = scalar if scalar.op is None else ln.apply(scalar.op, operands, scalar.attr, scalar.dtype)
    return memo[value]


def _conditions(valid: tuple[Int, ...], by: Mapping[Var, Int]) -> tuple[Int, ...]:
    return tuple(v for c in valid if not sym.always(v := sym.substitute(c, by)))


def replace_scalars(body: Body, change: Callable[[ln.Scalar], ln.Scalar]) -> Body:
    """``body`` with ``change`` applied to every scalar that a statement holds."""
    result: list[ln.Statement] = []
    for statement in body:
        match statement:
            case ln.Loop() | ln.If():
                statement = replace(statement, body=replace_scalars(statement.body, change))
            case ln.Let() | ln.Define() | ln.Store() | ln.Keep():
                statement = replace(statement, value=change(statement.value))
            case ln.Reduction():
                before = replace_scalars(statement.before, change)
                statement = replace(statement, before=before, value=change(statement.value))
            case ln.Reductions():
                statement = replace(statement, terms=tuple((name, change(value)) for name, value in statement.terms))
            case _:
                pass
        result.append(statement)
    return tuple(result)


def replace_statements(body: Body, change: Callable[[ln.Statement], Iterable[ln.Statement] | None]) -> tuple[Body, int]:
    """``body`` with other statements in place of those for which ``change`` gives any, however deep they lie, and how
    many those are; what a replaced statement holds is not looked at."""
    result: list[ln.Statement] = []
    count = 0
    for statement in body:
        changed = change(statement)
        if changed is not None:
            result += changed
            count += 1
            continue
        inner, within = replace_statements(inside(statement), change)
        if isinstance(statement, ln.Loop | ln.If):
            statement = replace(statement, body=inner)
        elif isinstance(statement, ln.Reduction):
            statement = replace(statement, before=inner)
        result.append(statement)
        count += within
    return tuple(result), count


def substitute(body: Body, by: Mapping[Var, Int]) -> Body:
    """``body`` with index variables replaced in every expression."""
    memo: dict[ln.Scalar, ln.Scalar] = {}

    def scalar(value: ln.Scalar) -> ln.Scalar:
        return substitute_scalar(value, by, memo)

    def index(value: Int) -> Int:
        return sym.substitute(value, by)

    result: list[ln.Statement] = []
    for statement in body:
        match statement:
            case ln.Loop():
                result.append(_loop(statement, by, substitute(statement.body, by)))
            case ln.Let():
                result.append(replace(statement, value=scalar(statement.value), extent=index(statement.extent)))
            case ln.Define():
                result.append(replace(statement, value=scalar(statement.value)))
            case ln.Store():
                valid = _conditions(statement.valid, by)
                offset = index(statement.offset)
                result.append(replace(statement, offset=offset, value=scalar(statement.value), valid=valid))
            case ln.Reduction():
                loops = tuple(_loop(loop, by, ()) for loop in statement.loops)
                before = substitute(statement.before, by)
                result.append(replace(statement, loops=loops, before=before, value=scalar(statement.value)))
            case ln.Reductions():
                loops = tuple(_loop(loop, by, ()) for loop in statement.loops)
                terms = tuple((name, scalar(value)) for name, value in statement.terms)
                result.append(replace(statement, loops=loops, terms=terms))
            case ln.Sort():
                moved_to = index(statement.offset)
                result.append(replace(statement, offset=moved_to, extent=index(statement.extent)))
            case ln.Keep():
                heap = replace(statement, offset=index(statement.offset), extent=index(statement.extent))
                result.append(replace(heap, value=scalar(statement.value)))
            case ln.Assign():
                result.append(replace(statement, value=index(statement.value)))
            case ln.Prefetch():
                result.append(replace(statement, offset=index(statement.offset)))
            case ln.Contract():
                moved = replace(statement, a_offset=index(statement.a_offset), a_row=index(statement.a_row))
                moved = replace(moved, b_offset=index(statement.b_offset), b_column=index(statement.b_column))
                moved = replace(moved, rows=index(statement.rows))
                moved = replace(moved, tile_offset=index(statement.tile_offset))
                if statement.a_ahead is not None:
                    moved = replace(moved, a_ahead=index(statement.a_ahead))
                if statement.b_ahead is not None:
                    moved = replace(moved, b_ahead=index(statement.b_ahead))
                if statement.prologue is not None:
                    computed = replace(statement.prologue, value=scalar(statement.prologue.value))
                    moved = replace(moved, prologue=computed)
                loops = tuple(_loop(loop, by, ()) for loop in statement.loops)
                result.append(replace(moved, loops=loops))
            case ln.If():
                inner = substitute(statement.body, by)
                valid = _conditions(statement.valid, by)
                result += [replace(statement, valid=valid, body=inner)] if valid else inner
            case ln.Alloc() | ln.Barrier():
                result.append(statement)
    return tuple(result)


def _loop(loop: ln.Loop, by: Mapping[Var, Int], body: Body) -> ln.Loop:
    return replace(loop, extent=sym.substitute(loop.extent, by), body=body)


def wrap(loops: list[ln.Loop], body: Body) -> Body:
    """``body`` inside ``loops``, outermost first."""
    for loop in reversed(loops):
        body = (replace(loop, body=body),)
    return body
