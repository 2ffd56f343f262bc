"""Join: reductions over the same elements computed in one pass, so that each element is read once for all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import ops
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import Body, inside


@dataclass(frozen=True)
class JoinReductions:
    """::

    r = sum over k of f(k)                 r, s = sums side by side over k in blocks:
    s = sum over k of g(k)      =>             r: f(k);  s: g(k)

    Everywhere that reductions of single values, with one primitive, of one type and over the same serial loops follow
    each other, and none reads the result of another. With ``blocks`` above 0, sums of floats, also one alone, add up
    the sums of blocks: one for each iteration of the first ``blocks`` loops. Legal everywhere: a reduction changes
    nothing but its result.
    """

    blocks: int = 0

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        return replace(nest, body=self._joined(nest.body))

    def _joined(self, body: Body) -> Body:
        result: list[ln.Statement] = []
        for group in groups(body):
            first = group[0]
            blocks = self._blocks(first)
            if isinstance(first, ln.Reduction) and (len(group) > 1 or blocks):
                names = tuple(r.name for r in group if isinstance(r, ln.Reduction))
                terms = tuple((r.name, r.value) for r in group if isinstance(r, ln.Reduction))
                result.append(ln.Reductions(names, first.op, first.dtype, first.loops, terms, blocks=blocks))
            elif isinstance(first, ln.Loop):
                result.append(replace(first, body=self._joined(first.body)))
            else:
                result.append(first)
        return tuple(result)

    def _blocks(self, first: ln.Statement) -> int:
        """How many loops of a sum and those that it goes with count blocks."""
        if not isinstance(first, ln.Reduction) or first.before or first.accumulators > 1:
            return 0
        sums = first.op is ops.SUM_REDUCE and first.dtype.is_float
        serial = all(loop.kind == "serial" for loop in first.loops)
        return max(0, min(self.blocks, len(first.loops) - 1)) if sums and serial else 0


def groups(body: Body) -> list[list[ln.Statement]]:
    """The statements of a body in order, reductions that one pass can compute in one list; any other alone in one."""
    found: list[list[ln.Statement]] = []
    for statement in body:
        if found and isinstance(statement, ln.Reduction) and _goes_with(statement, found[-1]):
            found[-1].append(statement)
        else:
            found.append([statement])
    return found


def most_joined(body: Body) -> int:
    """The most reductions of a body that one pass computes, at any depth; 0 where it has none."""
    sizes = [len(group) for group in groups(body) if isinstance(group[0], ln.Reduction)]
    return max([*sizes, *(most_joined(inside(s)) for s in body if isinstance(s, ln.Loop))], default=0)


def _goes_with(one: ln.Reduction, group: list[ln.Statement]) -> bool:
    first = group[0]
    if not isinstance(first, ln.Reduction) or one.before or first.before:
        return False
    alike = (one.op, one.dtype, one.loops) == (first.op, first.dtype, first.loops)
    serial = all(loop.kind == "serial" for loop in one.loops) and one.accumulators == first.accumulators == 1
    names = {r.name for r in group if isinstance(r, ln.Reduction)}
    read = {x.leaf.name for x in ln.postorder(one.value) if isinstance(x.leaf, ln.Temporary)}
    return alike and serial and not names & read
