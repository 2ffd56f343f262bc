"""Unroll and jam: neighbouring iterations computed together, so that each operand is loaded once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.neutral import finite_arrays, neutral_unless
from luminal.core.schedule.nest.rewrite import replace_leaves, replace_scalars, substitute, substitute_scalar
from luminal.core.schedule.transform.loops import replace_loops


@dataclass(frozen=True)
class UnrollAndJam:
    """::

    for a < 2:                                        r_0, r_1 = sums side by side over k of
        r = sum over k, t < 2 of x[k, a + t]*w[t]         r_0: x[k, 0]*w[0];    r_1: x[k, 1]*w[0]
        y[a] = r                              =>          r_0: x[k, 1]*w[1];    r_1: x[k, 2]*w[1]
                                                      y[0] = r_0
                                                      y[1] = r_1

    Everywhere that ``axis`` is looped over. ``unroll`` names the innermost loop of the reductions, whose terms are
    written out too, or is empty. Each reduction keeps the order of its terms; those whose mask never holds are left
    out where they change nothing. Legal where the extents are numbers, and the body has nothing but reductions of
    single values, definitions, stores and loops over stores: its iterations are independent, as all outside reductions
    are.
    """

    axis: str
    unroll: str = ""

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return replace_loops(nest, self.axis, partial(self._jammed, finite=finite_arrays(nest)), "unroll and jam")

    def _jammed(self, loop: ln.Loop, finite: frozenset[str]) -> Iterator[ln.Statement]:
        count = loop.extent
        if loop.kind != "serial" or not isinstance(count, int):
            raise ScheduleError(f"unroll and jam: the loop over {self.axis!r} is {loop.kind}, of extent {count}")
        copies: list[dict[ln.Scalar, ln.Scalar]] = [{} for _ in range(count)]
        for statement in loop.body:
            if isinstance(statement, ln.Reductions):
                yield self._more_side_by_side(statement, loop, copies, finite)
            if isinstance(statement, ln.Reduction):
                yield self._side_by_side(statement, loop, copies, finite)
            if isinstance(statement, ln.Loop) and self._only_stores(statement, loop):
                yield self._elements(statement, loop, copies)
                continue
            for number, renamed in enumerate(copies):
                if isinstance(statement, ln.Define | ln.Store):
                    (copy,) = substitute((statement,), {loop.axis: number})
                    (copy,) = replace_scalars((copy,), partial(replace_leaves, by=renamed))
                    yield replace(copy, name=f"{copy.name}_{number}") if isinstance(copy, ln.Define) else copy
                elif not isinstance(statement, ln.Reduction | ln.Reductions):
                    kind = type(statement).__name__.lower()
                    raise ScheduleError(f"unroll and jam: a {kind} lies inside the loop over {self.axis!r}")
                if isinstance(statement, ln.Define | ln.Reduction):
                    dtype = statement.dtype if isinstance(statement, ln.Reduction) else statement.value.dtype
                    name = statement.name
                    renamed[ln.temporary(name, dtype)] = ln.temporary(f"{name}_{number}", dtype)
                elif isinstance(statement, ln.Reductions):
                    for name in statement.names:
                        of = ln.temporary(name, statement.dtype)
                        renamed[of] = ln.temporary(f"{name}_{number}", statement.dtype)

    def _only_stores(self, inner: ln.Loop, loop: ln.Loop) -> bool:
        """Whether ``inner`` is a serial loop over stores alone, as long in each iteration of ``loop``."""
        stores = all(
            isinstance(s, ln.Store) or (isinstance(s, ln.Loop) and self._only_stores(s, loop)) for s in inner.body
        )
        return stores and inner.kind == "serial" and loop.axis not in sym.variables(inner.extent)

    def _elements(self, inner: ln.Loop, loop: ln.Loop, copies: list[dict[ln.Scalar, ln.Scalar]]) -> ln.Loop:
        """``inner``, each iteration of which stores what it does for every iteration of ``loop``."""
        body: list[ln.Statement] = []
        for statement in inner.body:
            if isinstance(statement, ln.Loop):
                body.append(self._elements(statement, loop, copies))
                continue
            for number, renamed in enumerate(copies):
                copy = substitute((statement,), {loop.axis: number})
                body += replace_scalars(copy, partial(replace_leaves, by=renamed))
        return replace(inner, body=tuple(body))

    def _more_side_by_side(
        self,
        reductions: ln.Reductions,
        loop: ln.Loop,
        copies: list[dict[ln.Scalar, ln.Scalar]],
        finite: frozenset[str],
    ) -> ln.Reductions:
        """``reductions`` for every iteration of ``loop``, term by term."""
        parts = [
            self._side_by_side(
                ln.Reduction(name, reductions.op, reductions.dtype, reductions.loops, (), value), loop, copies, finite
            )
            for name, value in reductions.terms
        ]
        names = tuple(f"{name}_{number}" for number in range(len(copies)) for name in reductions.names)
        terms = [term for part in parts for term in part.terms]
        return replace(reductions, names=names, loops=parts[0].loops if parts else reductions.loops, terms=tuple(terms))

    def _side_by_side(
        self,
        reduction: ln.Reduction,
        loop: ln.Loop,
        copies: list[dict[ln.Scalar, ln.Scalar]],
        finite: frozenset[str],
    ) -> ln.Reductions:
        *outer, inner = reduction.loops
        if reduction.before or any(x.kind != "serial" for x in reduction.loops):
            raise ScheduleError(
                f"unroll and jam: {reduction.name} is more than the reduction of one value over serial loops"
            )
        steps = inner.extent if self.unroll else 1
        if (self.unroll and inner.axis.name != self.unroll) or not isinstance(steps, int):
            raise ScheduleError(f"unroll and jam: {reduction.name} has {inner.axis} < {inner.extent} innermost")
        if any(sym.variables(x.extent) & {loop.axis} for x in reduction.loops):
            raise ScheduleError(f"unroll and jam: how far {reduction.name} runs depends on {self.axis!r}")
        names = [f"{reduction.name}_{number}" for number in range(len(copies))]
        terms: list[tuple[str, ln.Scalar]] = []
        for step in range(steps):
            for number, name in enumerate(names):
                at = {loop.axis: number} | ({inner.axis: step} if self.unroll else {})
                value = replace_leaves(substitute_scalar(reduction.value, at, {}), copies[number])
                if not any(sym.never(c) for c in neutral_unless(value, reduction.op, finite)):
                    terms.append((name, value))
        loops = tuple(outer) if self.unroll else reduction.loops
        return ln.Reductions(tuple(names), reduction.op, reduction.dtype, loops, tuple(terms))
