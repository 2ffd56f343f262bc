"""Estimates of time, from the structure of a nest: coarse, for choices alone."""

from __future__ import annotations

import math
from collections.abc import Collection

from luminal.core.costs import Costs
from luminal.core.ops import COSTLY
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import headers, inside, values
from luminal.core.sizes import typical


def grain(nest: ln.LoopNest, costs: Costs) -> int:
    """How many tasks of ``nest`` a thread runs in the time that waking another thread takes; at least 1."""
    body = nest.tasks[-1].body if nest.tasks else nest.body
    return max(1, int(costs.threads.wake / _cycles(nest, body, costs)))


def cycles(nest: ln.LoopNest, costs: Costs) -> float:
    """Cycles of one launch on one thread, at typical sizes."""
    return _cycles(nest, nest.body, costs)


def _cycles(nest: ln.LoopNest, body: tuple[ln.Statement, ...], costs: Costs) -> float:
    """Cycles of one run of ``body``, a part of ``nest``: its computation, and storing its results."""
    return _body(body, costs) + costs.memory.stream * _stored(body, {array.name for array in nest.arrays})


def _stored(body: tuple[ln.Statement, ...], arrays: Collection[str]) -> float:
    """Bytes that one run of ``body`` stores in ``arrays``, at typical sizes; local arrays stay in the cache."""
    total = 0.0
    for statement in body:
        if isinstance(statement, ln.Loop):
            total += max(1, typical(statement.extent)) * _stored(statement.body, arrays)
        elif isinstance(statement, ln.Store) and statement.array in arrays:
            total += statement.value.dtype.bits / 8
    return total


def _body(body: tuple[ln.Statement, ...], costs: Costs) -> float:
    """Cycles of one run of ``body``, at typical sizes."""
    return 1 + sum(_statement(statement, costs) for statement in body)


def _statement(statement: ln.Statement, costs: Costs) -> float:
    match statement:
        case ln.Loop() | ln.Reduction():
            each = _body(inside(statement), costs) + _values(statement, costs)
            return math.prod(map(_count, headers(statement))) * each
        case ln.Reductions() | ln.Store() | ln.Define() | ln.Let():
            return math.prod(map(_count, headers(statement))) * _values(statement, costs)
        case ln.Contract():
            steps = math.prod(typical(loop.extent) for loop in statement.loops)
            reading = steps * statement.columns * statement.b_type.bits / 8 * costs.memory.stream
            return max(multiply_cycles(statement, costs), reading)
        case ln.Sort():
            extent = typical(statement.extent)
            return costs.arithmetic.compared * extent * extent.bit_length()
        case ln.KeepLeast():
            return _values(statement, costs) + costs.arithmetic.compared
        case _:
            return 0


def multiply_cycles(contract: ln.Contract, costs: Costs) -> float:
    """Cycles of the arithmetic of a tile, at typical sizes, without waiting for operands."""
    steps = math.prod(typical(loop.extent) for loop in contract.loops)
    products = steps * contract.max_rows * contract.columns
    if (unit := contract.unit) is not None:
        return products * unit.cycles / (unit.rows * unit.columns * unit.depth)
    vectors = steps * contract.columns / contract.lanes
    computing = 0.0 if contract.prologue is None else vectors * _value(contract.prologue.value, costs)
    return products / (costs.arithmetic.per_cycle * contract.lanes) + computing


def _count(loop: ln.Loop) -> float:
    """Iterations: vectors of a vector loop."""
    return max(1, typical(loop.extent)) / (loop.lanes if loop.kind == "vector" else 1)


def _values(statement: ln.Statement, costs: Costs) -> float:
    """Cycles of the scalars that a statement itself computes."""
    return sum(_value(value, costs) for value in values(statement))


def _value(value: ln.Scalar, costs: Costs) -> float:
    """Cycles of a scalar, each distinct part of it computed once."""
    total = 0.0
    seen: set[ln.Scalar] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            total += costs.arithmetic.costly if current.op in COSTLY else 1
            stack.extend(current.operands)
    return total
