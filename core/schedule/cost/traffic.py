"""How many elements of its arrays a kernel touches, counted in its nest, and which views repeat elements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.grid import SMALL
from luminal.core.ir import Node
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import headers, inside, reads
from luminal.core.symbolic import Int, Var


def elements_touched(nest: ln.LoopNest, sizes: Mapping[str, int]) -> dict[str, int]:
    """Elements that one launch reads or writes of each array, each access counted: an upper bound.

    ``sizes`` gives the dimensions. Repeated accesses count again, so a launch touches no more than the smaller of this
    and the array's size.
    """
    found: Counter[str] = Counter({array.name: 0 for array in nest.arrays})
    _body(nest.body, 1, {dim: sizes[dim.name] for dim in nest.dims}, found)
    return {array.name: found[array.name] for array in nest.arrays}


def reads_again(node: Node) -> bool:
    """Whether ``node`` is a view with more elements than its operand: windows that overlap."""
    return node.op is ops.VIEW and sym.always(node.size - node.inputs[0].size - 1)


def _body(body: tuple[ln.Statement, ...], times: int, dims: Mapping[Var, Int], found: Counter[str]) -> None:
    for statement in body:
        own = times * math.prod(_most(loop.extent, dims) for loop in headers(statement))
        match statement:
            case ln.Store():
                found[statement.array] += times
            case ln.Sort() | ln.KeepLeast():
                extent = _most(statement.extent, dims)
                passes = extent.bit_length()
                found[statement.array] += times * passes * (extent if isinstance(statement, ln.Sort) else 1)
            case ln.Combine():
                found[statement.array] += times * statement.count
            case ln.Regroup():
                for name in (statement.array, statement.through):
                    found[name] += times * SMALL
            case ln.Contract():
                found[statement.a] += own * _most(statement.rows, dims)
                own *= statement.columns
                if statement.prologue is None:
                    found[statement.b] += own
        for access in reads(statement):
            found[access.array] += own
        _body(inside(statement), own, dims, found)


def _most(extent: Int, dims: Mapping[Var, Int]) -> int:
    """The extent at these dimensions; its upper bound where it depends on outer loops."""
    bound = sym.upper(sym.substitute(extent, dims))
    assert bound is not None, f"extent {extent} has no bound"
    return max(bound, 0)
