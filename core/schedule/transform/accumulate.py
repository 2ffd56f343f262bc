"""The transform that gives long reductions several accumulators."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_statements
from luminal.core.schedule.nest.walk import statements


@dataclass(frozen=True)
class Accumulate:
    """::

    r = sum over k of f(k)      =>      r = sum over k of f(k), in ``count`` accumulators

    A step does not wait for the sum of the step before. Of every reduction whose innermost loop gives each accumulator
    two steps or more. Reductions of single integers stay as they are: compilers reorder them themselves, and GCC 12.2
    computes wrong sums from several accumulators. Legal where no threads divide the loop; ``count`` is a power of two,
    since accumulators are added in pairs.
    """

    count: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        if self.count < 1 or self.count & (self.count - 1):
            raise ScheduleError(f"accumulate: {self.count} is no power of two")
        return replace(nest, body=replace_statements(nest.body, self._divided)[0])

    def divides(self, nest: ln.LoopNest) -> bool:
        """Whether any reduction of ``nest`` is long enough."""
        return any(isinstance(s, ln.Reduction) and self._is_long(s) for s in statements(nest.body))

    def _divided(self, statement: ln.Statement) -> list[ln.Statement] | None:
        if not isinstance(statement, ln.Reduction) or not self._is_long(statement):
            return None
        if statement.loops[-1].kind == "thread":
            raise ScheduleError(f"accumulate: threads divide the loop over {str(statement.loops[-1].axis)!r}")
        return [replace(statement, accumulators=self.count)]

    def _is_long(self, reduction: ln.Reduction) -> bool:
        inner, least = reduction.loops[-1], 2 * self.count
        lanes = inner.lanes if inner.kind == "vector" else 1
        several = reduction.dtype.is_float or lanes > 1
        return several and (sym.upper(sym.floordiv(inner.extent, lanes)) or least) >= least
