"""The transform that gives long reductions several accumulators."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_statements
from luminal.core.schedule.nest.walk import statements

SELDOM = 16  # steps of an accumulator from one beginning to the next, at least


@dataclass(frozen=True)
class Accumulate:
    """::

    r = sum over k of f(k)      =>      r = sum over k of f(k), in ``count`` accumulators

    A step does not wait for the sum of the step before. A float sum of more steps than a ``part`` is one of parts: its
    error grows with the number of terms that one accumulator sums. So are sums side by side, whose accumulators are
    one each, of as many steps as an accumulator takes in a part. Of every reduction whose innermost loop gives each
    accumulator two steps or more. Reductions of single integers stay as they are: compilers reorder them themselves,
    and GCC 12.2 computes wrong sums from several accumulators. Legal where no threads divide the loop; ``count`` is a
    power of two, since accumulators are added in pairs.
    """

    count: int
    part: int = 0

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        if self.count < 1 or self.count & (self.count - 1):
            raise ScheduleError(f"accumulate: {self.count} is no power of two")
        return replace(nest, body=replace_statements(nest.body, self._divided)[0])

    def divides(self, nest: ln.LoopNest) -> bool:
        """Whether any reduction of ``nest`` is long enough."""
        return any(self._divided(s) is not None for s in statements(nest.body))

    def _divided(self, statement: ln.Statement) -> list[ln.Statement] | None:
        if isinstance(statement, ln.Reductions):
            return [replace(statement, part=self.part // self.count)] if self._is_inexact(statement, 1) else None
        if not isinstance(statement, ln.Reduction) or not self._is_long(statement):
            return None
        if statement.loops[-1].kind == "thread":
            raise ScheduleError(f"accumulate: threads divide the loop over {str(statement.loops[-1].axis)!r}")
        part = self.part if self._is_inexact(statement, self.count) else 0
        return [replace(statement, accumulators=self.count, part=part)]

    def _is_long(self, reduction: ln.Reduction) -> bool:
        inner, least = reduction.loops[-1], 2 * self.count
        lanes = inner.lanes if inner.kind == "vector" else 1
        several = reduction.dtype.is_float or lanes > 1
        return several and (sym.upper(sym.floordiv(inner.extent, lanes)) or least) >= least

    def _is_inexact(self, reduction: ln.Reduction | ln.Reductions, accumulators: int) -> bool:
        """Whether ``accumulators`` sum more steps than they do in a part, and begin anew so seldom that it costs
        nothing."""
        sums = reduction.op is ops.SUM_REDUCE and reduction.dtype.is_float
        if not self.part or not sums or not reduction.loops:
            return False
        inner = reduction.loops[-1]
        lanes = inner.lanes if inner.kind == "vector" else 1
        steps = sym.upper(sym.product(loop.axis.hi + 1 for loop in reduction.loops))
        own = sym.upper(inner.extent)
        most, least = self.part // self.count * accumulators * lanes, SELDOM * accumulators * lanes
        return (steps is None or steps > most) and (own is None or own >= least)
