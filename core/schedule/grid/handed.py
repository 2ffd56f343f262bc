"""Products whose stages are filled by warps that only copy, in blocks that stay for several tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import BlockLimits
from luminal.core.schedule.grid.legality import check
from luminal.core.schedule.grid.staged import StagedSteps
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.hand_over import HandOver
from luminal.core.schedule.nest.rewrite import wrap
from luminal.core.schedule.nest.walk import Body, arrays_touched, perfect_loops, statements
from luminal.core.symbolic import Int, Var


@dataclass(frozen=True)
class HandedSteps(StagedSteps):
    """The same, where a step's stages are a slot that is handed over when it is filled, and given back when the product
    that reads it has ended: the product of the step after it is then under way. There is a slot for each of the
    ``ahead`` steps, and one more."""

    @property
    def stages(self) -> int:
        return min(self.ahead + 1, self.count) if isinstance(self.count, int) else self.ahead + 1

    def body(self) -> Body:
        if self.ahead < 1:
            raise ScheduleError("stage: stages are handed over a step ahead, or more")
        if any(operand.box is None for operand in self.operands):
            raise ScheduleError("stage: an operand that is handed over is no box that a device copies")
        # The first step gives no slot back. Beyond the last one, zeros are copied and multiplied; where the number of
        # steps is known, none are.
        after = self.count - 1
        whole, rest = sym.ceildiv(after, self.stages), 0
        if isinstance(after, int):
            whole, rest = divmod(after, self.stages)
        number = sym.axis("k_1", whole)
        rounds = tuple(s for k in range(self.stages) for s in self._step(number * self.stages + 1 + k, 1 + k))
        variable = sym.as_var(number)
        if whole != 0 and variable is not None:
            rounds = (ln.Loop(variable, whole, "serial", rounds),)
        done = whole * self.stages + 1
        last = tuple(s for k in range(rest) for s in self._step(done + k, 1 + k))
        end = HandOver(rest % self.stages, filled=False)
        return (*self._filled(0, 0), self._product(0), *(rounds if whole != 0 else ()), *last, end)

    def _step(self, step: Int, slot: int) -> Body:
        """A step in the slot of a number; the slot before it is given back."""
        slot, before = slot % self.stages, (slot - 1) % self.stages
        given = HandOver(before, filled=False, products=1)
        return (*self._filled(step, slot), self._product(step, slot), given)

    def _filled(self, step: Int, slot: int) -> Body:
        return (*self._copies(step, slot), HandOver(slot, filled=True))


@dataclass(frozen=True)
class Persist:
    """::

    for n < N:  for m < M:             for b < blocks:
        s = alloc                          s = alloc
        body(n, m)             =>          for t < N*M/blocks:
                                               number = blocks*t + b  as the digits  m/rows, n, m%rows
                                               body(n, m)

    The tasks, which the outer loops number, become turns of as many ``blocks``, the last of them partial. Tiles that
    are computed at once lie in groups of ``rows`` along the innermost loop, so that what they read is in a cache for
    the others of the group. Legal where ``rows`` divide that loop, or it is the only one.
    """

    blocks: int
    rows: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, body = perfect_loops(nest.body)
        if not loops or any(loop.kind != "serial" for loop in loops):
            raise ScheduleError("persist: the nest has no outer loops that are serial")
        *others, inner = loops
        if others and sym.mod(inner.extent, self.rows) != 0:
            raise ScheduleError(f"persist: groups of {self.rows} do not fill the loop over {str(inner.axis)!r}")
        count = sym.product(loop.extent for loop in loops)
        turns = sym.ceildiv(count, self.blocks)
        block, turn = Var("g0", 0, self.blocks - 1), sym.axis("g1", turns)
        number = turn * self.blocks + sym.expr(block)
        tile = Var("g2", 0, count - 1)
        values: list[tuple[Var, Int]] = []
        rest: Int = sym.expr(tile)
        if others:
            *outer, across = others
            low, rest = sym.mod(rest, self.rows), sym.floordiv(rest, self.rows)
            values.append((across.axis, sym.mod(rest, across.extent)))
            rest = sym.floordiv(rest, across.extent)
            groups = sym.floordiv(inner.extent, self.rows)
            values.append((inner.axis, sym.mod(rest, groups) * self.rows + low))
            rest = sym.floordiv(rest, groups)
            for loop in reversed(outer):
                values.append((loop.axis, sym.mod(rest, loop.extent)))
                rest = sym.floordiv(rest, loop.extent)
        else:
            values.append((inner.axis, rest))
        allocations = tuple(s for s in body if isinstance(s, ln.Alloc))
        inside = tuple(s for s in body if not isinstance(s, ln.Alloc))
        inside = (ln.Assign(tile, number), *(ln.Assign(*value) for value in values), *inside)
        beyond = count - 1 - number
        if not sym.always(beyond):
            inside = (ln.If((beyond,), inside),)
        variable = sym.as_var(turn)
        turned = inside if variable is None else (ln.Loop(variable, turns, "serial", inside),)
        return replace(nest, body=wrap([ln.Loop(block, self.blocks, "serial", ())], (*allocations, *turned)))


def rows_at_once(blocks: int, tall: int, wide: int, rows: Int) -> int:
    """Into how many of ``rows`` tiles ``blocks`` tiles of ``tall`` by ``wide`` are best grouped, so that together they
    read least: a divisor of ``rows``."""
    if not isinstance(rows, int):
        return 1
    best = math.sqrt(blocks * wide / tall)
    divisors = [d for d in range(1, rows + 1) if rows % d == 0]
    return min(divisors, key=lambda d: abs(math.log(d / best)))


@dataclass(frozen=True)
class SpecialiseWarps:
    """``copiers`` threads besides the ``threads`` of a block copy boxes and hand them over, and nothing else; the
    others do the rest. No barrier of the block is needed.

    Legal where shared arrays are filled by boxes that are handed over, and read by products in the background alone, or
    are those through which warps exchange elements; and where ``limits`` allow a block so many arrays and registers.
    """

    threads: int
    copiers: int
    limits: BlockLimits

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, body = perfect_loops(nest.body)
        tasks = [loop for loop in loops if loop.kind == "parallel"]
        body = wrap(loops[len(tasks) :], body)
        every = statements(body)
        shared = {s.name for s in every if isinstance(s, ln.Alloc) and s.space != "registers"}
        filled = {s.array for s in every if isinstance(s, ln.CopyBox)}
        boxes = {id(inner) for s in every if isinstance(s, ln.CopyBox) for inner in statements(s.body)}
        for statement in every:
            if id(statement) in boxes or isinstance(statement, ln.CopyBox | ln.Loop | ln.If | ln.Alloc):
                continue
            if isinstance(statement, ln.Barrier | ln.Let | ln.Sort):
                raise ScheduleError("specialise warps: threads that copy take no part in what all threads do together")
            background = isinstance(statement, ln.Contract) and statement.background
            of_warps = isinstance(statement, ln.Regroup) and statement.through not in filled
            if not (background or of_warps) and not shared.isdisjoint(set().union(*arrays_touched((statement,)))):
                raise ScheduleError("specialise warps: a shared array is used by others than products and boxes")
        if not boxes or not any(isinstance(s, HandOver) for s in every):
            raise ScheduleError("specialise warps: nothing is copied as boxes and handed over")
        result = replace(nest, body=wrap(tasks, body), threads=self.threads, copiers=self.copiers)
        check(result, self.limits)
        return result
