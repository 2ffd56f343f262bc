"""The transform that computes a panel of B once for several tiles of rows, where a prologue computes B."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.costs import Stack
from luminal.core.errors import ScheduleError
from luminal.core.printer import brief
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import flat_index, loops_of_b
from luminal.core.schedule.nest.rewrite import wrap
from luminal.core.schedule.nest.walk import accesses, perfect_loops


@dataclass(frozen=True, repr=False)
class Unpack:
    """::

    for n_1 < panels:  for m_1 < tiles:               for n_1 < panels:
        tile = Contract(A rows, f(panel n_1))    =>       panel = f(panel n_1)
                                                          for m_1 < tiles:  tile = Contract(A rows, panel)

    The panel that a prologue computes for every tile is computed once, before the innermost serial loops that do not
    move it. Legal where there is such a loop, and where a panel takes at most ``room`` bytes.
    """

    room: int = Stack.panel

    __repr__ = brief

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, inside = perfect_loops(nest.body)
        contract = next((s for s in inside if isinstance(s, ln.Contract)), None)
        if contract is None or contract.prologue is None:
            raise ScheduleError("unpack: there is no tile whose right operand is computed")
        column, value = contract.prologue.column, contract.prologue.value
        moving = {v for access in accesses(value) for v in sym.variables(access.offset)}
        first = len(loops)
        while first and loops[first - 1].kind == "serial" and loops[first - 1].axis not in moving:
            first -= 1
        outer, tiles = loops[:first], loops[first:]
        if not tiles:
            raise ScheduleError("unpack: the loop around the tile is not serial, or moves its right operand")
        extent = _extent(contract)
        if extent is None or not unpackable(contract, self.room):
            raise ScheduleError(f"unpack: a panel may take more than {self.room} bytes")
        start = flat_index(contract.loops) * contract.columns
        body: tuple[ln.Statement, ...] = (ln.Store("panel", start + sym.expr(column), value),)
        body = (ln.Loop(column, contract.columns, "vector", body, contract.lanes),)
        steps = loops_of_b(contract)
        for loop in reversed(contract.loops):
            body = (replace(loop, kind="serial" if loop in steps else "unroll", body=body),)
        plain = replace(contract, b="panel", b_type=contract.dtype, b_offset=start, prologue=None, b_ahead=None)
        inner = wrap(tiles, tuple(plain if s is contract else s for s in inside))
        return replace(nest, body=wrap(outer, (ln.Alloc("panel", contract.dtype, extent), *body, *inner)))


def unpackable(contract: ln.Contract, room: int) -> bool:
    """Whether the tile computes its right operand, one that no unit reads in groups, and a panel of it takes at most
    ``room`` bytes."""
    extent = _extent(contract)
    computed = contract.prologue is not None and contract.unit is None
    return computed and extent is not None and extent * contract.dtype.itemsize <= room


def _extent(contract: ln.Contract) -> int | None:
    """Elements of a panel, indexed by ``flat_index``; None where they have no bound."""
    return sym.upper(sym.product(loop.axis.hi + 1 for loop in contract.loops) * contract.columns)
