"""The elements of its arrays that a nest touches: offsets, and the slabs that consecutive parts of its tasks touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, product

from luminal.core import symbolic as sym
from luminal.core.grid import SMALL, WARP
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import headers, reads, statements
from luminal.core.sizes import typical
from luminal.core.symbolic import Int, Var

BOUNDS = 16  # alternatives of minima that are tried for the bounds of an index, at most: a limit of effort


@dataclass(frozen=True)
class Slab:
    """The elements that each of ``parts`` equal divisions of the tasks touches: part ``p`` lies in ``[base + p*stride,
    base + (p+1)*stride)`` for every ``base`` in ``first .. last``."""

    parts: Int
    stride: Int
    first: int
    last: int


@lru_cache(maxsize=1 << 10)
def task_counts(nest: ln.LoopNest) -> tuple[Int, ...]:
    """Into how many parts the outermost parallel loop, the outermost two, and so on, divide the tasks."""
    loops = nest.tasks
    counts = (sym.product(loop.extent for loop in loops[: k + 1]) for k in range(len(loops)))
    return tuple(count for count in counts if typical(count) > 1)


@lru_cache(maxsize=1 << 12)
def slabs(nest: ln.LoopNest, array: str) -> tuple[Slab, ...]:
    """The slabs of ``array``, one for each depth of the parallel loops at which iterations touch disjoint slabs."""
    loops = nest.tasks
    dims = set(nest.dims)
    shorter = _exact_bounds(nest)
    found: list[Slab] = []
    part: Int = 0
    for depth, loop in enumerate(loops):
        part = part * loop.extent + sym.var(loop.axis.name, loop.axis.lo, loop.axis.hi)
        linear = [sym.coefficient(offset, loop.axis) for offset in offsets(nest, array)]
        strides = {c[0] for c in linear if c is not None}
        if None in linear or len(strides) != 1:
            continue
        (stride,) = strides
        if not sym.always(stride - 1) or not sym.variables(stride) <= dims:
            continue
        inner = [offset - part * stride for offset in offsets(nest, array)]
        ends = [_upper_bound(offset + 1 - stride, shorter) for offset in inner]
        starts = [_lower_bound(offset, shorter) for offset in inner]
        if None not in ends and None not in starts:
            first, last = max(e for e in ends if e is not None), min(s for s in starts if s is not None)
            if first <= last:
                parts = sym.product(outer.extent for outer in loops[: depth + 1])
                found.append(Slab(parts, stride, first, last))
    return tuple(found)


def _exact_bounds(nest: ln.LoopNest) -> list[dict[Var, Int]]:
    """Variables with exact bounds for axes whose loops may end before the axis's own bound, as in a last, shorter
    block. An extent that is a minimum gives one alternative for each of its arguments."""
    body = statements(nest.body)
    named = _assigned(body)
    extents: dict[Var, set[Int]] = {}
    for axis, extent in chain.from_iterable(map(_axes, body)):
        extents.setdefault(axis, set()).add(_inlined(extent, named))
    single = {axis: next(iter(of)) for axis, of in extents.items() if len(of) == 1}
    found = {axis: e for axis, e in single.items() if not isinstance(e, int) or axis.hi != e - 1}
    options: list[dict[Var, Int]] = []
    for chosen in islice(product(*(sym.either(extent, "min") for extent in found.values())), BOUNDS):
        by: dict[Var, Int] = {}
        for axis, extent in zip(found, chosen, strict=True):  # outer loops first: inner extents depend on them
            by[axis] = sym.axis(axis.name, sym.substitute(extent, by))
        options.append(by)
    return options


def _upper_bound(value: Int, shorter: Sequence[dict[Var, Int]]) -> int | None:
    """The lowest proven upper bound of ``value``."""
    found = (sym.upper(e) for by in shorter for e in sym.either(sym.substitute(value, by), "min"))
    return min((bound for bound in found if bound is not None), default=None)


def _lower_bound(value: Int, shorter: Sequence[dict[Var, Int]]) -> int | None:
    """The highest proven lower bound of ``value``."""
    found = (sym.lower(e) for by in shorter for e in sym.either(sym.substitute(value, by), "max"))
    return max((bound for bound in found if bound is not None), default=None)


def offsets(nest: ln.LoopNest, array: str) -> tuple[Int, ...]:
    """Every offset, over loop axes, at which ``nest`` may read or write ``array``, masks left out."""
    body = statements(nest.body)
    named = _assigned(body)
    found = chain.from_iterable(_offsets(statement, array) for statement in body)
    return tuple(dict.fromkeys(_inlined(offset, named) for offset in found))


def _assigned(body: Sequence[ln.Statement]) -> dict[Var, Int]:
    """The variables that an ``Assign`` defines, each with its value, where that is the same everywhere."""
    values: dict[Var, set[Int]] = {}
    for statement in body:
        if isinstance(statement, ln.Assign):
            values.setdefault(statement.axis, set()).add(statement.value)
    return {axis: next(iter(given)) for axis, given in values.items() if len(given) == 1}


def _axes(statement: ln.Statement) -> list[tuple[Var, Int]]:
    """The axes that a statement loops over, with their extents."""
    found = [(loop.axis, loop.extent) for loop in headers(statement)]
    if isinstance(statement, ln.Contract) and (row := sym.as_var(sym.axis("e0", statement.rows))) is not None:
        found.insert(0, (row, statement.rows))
    return found


def _offsets(statement: ln.Statement, array: str) -> list[Int]:
    found = [access.offset for access in reads(statement) if access.array == array]
    match statement:
        case ln.Store() if statement.array == array:
            found.append(statement.offset)
        case ln.Sort() | ln.KeepLeast() if statement.array == array:
            found.append(statement.offset + sym.axis("e2", statement.extent))  # any of the elements that it orders
        case ln.Combine() if statement.array == array:
            found.append(statement.offset + sym.axis("e2", statement.count))
        case ln.Regroup() if statement.array == array:
            found.append(statement.offset + sym.axis("e2", SMALL))
        case ln.Regroup() if statement.through == array:
            found.append(statement.place + sym.axis("e2", WARP * SMALL))
        case ln.Contract():
            row, column = sym.axis("e0", statement.rows), sym.axis("e1", statement.columns)
            if statement.a == array:
                found.append(statement.a_offset + statement.a_row * row)
            if statement.b == array and statement.prologue is None:
                b = statement.b_offset + statement.b_column * column
                if statement.unit is not None:
                    k, group = sym.expr(statement.loops[-1].axis), statement.unit.group
                    b = statement.b_offset + sym.floordiv(k, group) * (statement.columns * group) + column * group
                    b = b + sym.mod(k, group)
                found.append(b)
    return found


def _inlined(offset: Int, named: dict[Var, Int]) -> Int:
    """``offset`` with assigned variables replaced by their values."""
    while sym.variables(offset) & named.keys():
        offset = sym.substitute(offset, named)
    return offset
