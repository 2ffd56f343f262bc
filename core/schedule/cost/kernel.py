"""Estimates of time, from the structure of a nest: coarse, and only ever used to choose."""

from __future__ import annotations

import math
from collections.abc import Collection

from luminal.core.ops import COSTLY
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import headers, inside, values
from luminal.core.sizes import typical

WAKE = 20_000  # cycles in which a sleeping thread can be woken, and its work waited for
_BYTE = 0.1  # cycles of a core for a byte of weights, which few rows multiply faster than they come, or of a result
_COMPARED = 4  # cycles of a comparison with what follows from it, on average
_COSTLY = 10  # cycles of a division, an exponential or a look-up, as a multiple of an addition's


def grain(nest: ln.LoopNest) -> int:
    """How many tasks of ``nest`` one thread does in the time that waking another would take; at least 1."""
    body = nest.tasks[-1].body if nest.tasks else nest.body
    return max(1, int(WAKE / _cycles(nest, body)))


def cycles(nest: ln.LoopNest) -> float:
    """Cycles of one launch on one thread, at typical sizes."""
    return _cycles(nest, nest.body)


def _cycles(nest: ln.LoopNest, body: tuple[ln.Statement, ...]) -> float:
    """Cycles of one run of ``body``, a part of ``nest``: what it computes, and the bytes of results that it stores."""
    return _body(body) + _BYTE * _stored(body, {array.name for array in nest.arrays})


def _stored(body: tuple[ln.Statement, ...], arrays: Collection[str]) -> float:
    """Bytes that one run of ``body`` stores in ``arrays``, at typical sizes; what a task keeps to itself stays near."""
    total = 0.0
    for statement in body:
        if isinstance(statement, ln.Loop):
            total += max(1, typical(statement.extent)) * _stored(statement.body, arrays)
        elif isinstance(statement, ln.Store) and statement.array in arrays:
            total += statement.value.dtype.bits / 8
    return total


def _body(body: tuple[ln.Statement, ...]) -> float:
    """Cycles of one run of ``body``, at typical sizes."""
    return 1 + sum(_statement(statement) for statement in body)


def _statement(statement: ln.Statement) -> float:
    match statement:
        case ln.Loop() | ln.Reduction():
            return math.prod(map(_count, headers(statement))) * (_body(inside(statement)) + _values(statement))
        case ln.Reductions() | ln.Store() | ln.Define() | ln.Let():
            return math.prod(map(_count, headers(statement))) * _values(statement)
        case ln.Contract():
            steps = math.prod(typical(loop.extent) for loop in statement.loops)
            reading = steps * statement.columns * statement.b_type.bits / 8 * _BYTE
            return max(multiplying(statement), reading)
        case ln.Sort():
            extent = typical(statement.extent)
            return _COMPARED * extent * extent.bit_length()
        case ln.Keep():
            return _values(statement) + _COMPARED
        case _:
            return 0


def multiplying(contract: ln.Contract) -> float:
    """Cycles of what a tile computes, at typical sizes, however slowly its operands come."""
    steps = math.prod(typical(loop.extent) for loop in contract.loops)
    products = steps * contract.max_rows * contract.columns
    if (unit := contract.unit) is not None:
        return products * unit.cycles / (unit.rows * unit.columns * unit.depth)
    vectors = steps * contract.columns / contract.lanes
    computing = 0.0 if contract.prologue is None else vectors * _value(contract.prologue.value)
    return products / (2 * contract.lanes) + computing


def _count(loop: ln.Loop) -> float:
    """Iterations: vectors of a vector loop."""
    return max(1, typical(loop.extent)) / (loop.lanes if loop.kind == "vector" else 1)


def _values(statement: ln.Statement) -> float:
    """Cycles of what a statement computes itself."""
    return sum(map(_value, values(statement)))


def _value(value: ln.Scalar) -> float:
    """Cycles of a value, each distinct part of it computed once."""
    total = 0.0
    seen: set[ln.Scalar] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            total += _COSTLY if current.op in COSTLY else 1
            stack.extend(current.operands)
    return total
