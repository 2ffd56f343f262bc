"""Two forms of a region in one library, where which of them is cheaper changes within the bounds of a size.

The forms are the cheapest at either end of the bounds. The size of a run decides, by one comparison: with fewer than so
many elements along the dimension the first is computed, else the second. A region has two forms at most, and only
where that saves much, so a library grows by little.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from luminal.core import ir, ops, structured
from luminal.core import symbolic as sym
from luminal.core.algebra import form, write
from luminal.core.algebra.cost import Price
from luminal.core.algebra.paths import Path, size
from luminal.core.algebra.terms import Axis, Coordinate, Factor, Lookup, Region, Term
from luminal.core.ir import Node
from luminal.core.symbolic import Int, Var
from luminal.core.types import i64

GAIN = 2.0  # times as cheap as a single form, at least, that the second has to be at one end of the bounds
SAVED = 20_000.0  # cycles of a run, at least, that it has to save there: a branch costs about a tenth
ROOM = 16 << 20  # bytes of one value between, at most, at the upper end: memory is planned for both forms

_TEXT = re.compile(r"(\S+) < (\d+) \? (.*) : (.*)")


@dataclass(frozen=True)
class BySize:
    """``below`` is computed while ``dim`` is less than ``bound``, else ``above``."""

    dim: Var
    bound: int
    below: tuple[Path, ...]
    above: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.dim.name} < {self.bound} ? {form.written(self.below)} : {form.written(self.above)}"

    def node(self, region: Region) -> Node:
        """The node that computes ``region`` so."""
        less = ir.binary(ops.LESS_THAN, ir.dim(sym.expr(self.dim)), ir.constant(self.bound, i64))
        (found,) = structured.cond(
            less, lambda: [write.written(region, self.below)], lambda: [write.written(region, self.above)]
        )
        return found


def dims(region: Region) -> list[Var]:
    """The sizes of ``region`` that are known only when it runs."""
    extents = [*region.root.shape, *(axis.hi for term in region.terms for axis in term.axes)]
    found = {v for extent in extents for v in sym.variables(extent) if not isinstance(v, Axis)}
    return sorted((v for v in found if isinstance(v.hi, int) and v.hi > _low(v)), key=lambda v: v.name)


def read(text: str, region: Region, price: Price) -> BySize | None:
    """What ``str`` wrote; None if the text says something else."""
    match = _TEXT.fullmatch(text)
    dim = next((v for v in dims(region) if match and v.name == match[1]), None)
    if match is None or dim is None:
        return None
    below, above = (tuple(form.read(part, region, price)) for part in match.groups()[2:])
    return BySize(dim, int(match[2]), below, above)


def found(region: Region, price: Price, cheapest: Callable[[Region], Sequence[Path]]) -> BySize | None:
    """The two forms that save the most at an end of the bounds of one size, if that is enough; ``cheapest`` gives the
    paths of the cheapest form of a region."""
    best, most = None, 0.0
    single = form.written(cheapest(region))
    for dim in dims(region):
        assert isinstance(dim.hi, int)
        ends = [at(region, dim, value) for value in (_low(dim), dim.hi)]
        below, above = (form.written(cheapest(end)) for end in ends)
        if below == above or "at(" in f"{single}{below}{above}":  # a position depends on the size that it was found for
            continue
        saved = []
        for end, own in zip(ends, (below, above), strict=True):
            before, after = (cost(text, end, price) for text in (single, own))
            saved.append(before - after if before >= GAIN * after else 0.0)
        if max(saved) > max(most, SAVED) and all(room(text, ends[1], price) <= ROOM for text in (below, above)):
            bound = _bound(region, dim, below, above, price)
            most = max(saved)
            best = BySize(dim, bound, *(tuple(form.read(text, region, price)) for text in (below, above)))
    return best


def _low(dim: Var) -> int:
    """The lower end of the bounds. An axis of one element is none, so a form without it would be found there."""
    return max(dim.lo, 2)


def _bound(region: Region, dim: Var, below: str, above: str, price: Price) -> int:
    """The least size at which ``above`` costs no more than ``below``, which costs less at the lower end."""
    low, high = _low(dim), dim.hi
    assert isinstance(high, int)
    while high - low > 1:
        middle = (low + high) // 2
        now = at(region, dim, middle)
        if cost(above, now, price) <= cost(below, now, price):
            high = middle
        else:
            low = middle
    return high


def cost(text: str, region: Region, price: Price) -> float:
    """What a form of ``region`` costs, without the addition of its terms."""
    return sum(path.cost for path in form.read(text, region, price))


def room(text: str, region: Region, price: Price) -> float:
    """Bytes of the largest value between."""
    paths = form.read(text, region, price)
    steps = [step for path in paths for step in path.steps if step not in paths and not step.constant]
    return max((size(step.coordinates) for step in steps), default=0.0) * region.root.dtype.itemsize


# ---- a region at one size ------------------------------------------------------------------------------------------


def at(region: Region, dim: Var, value: int) -> Region:
    """``region`` where ``dim`` is ``value``. Its tensors stay, and are read over fewer elements."""
    by: dict[Var, Int] = {dim: value}
    for axis in sorted({axis for term in region.terms for axis in term.axes}, key=str):
        by[axis] = sym.expr(replace(axis, hi=sym.substitute(axis.hi, {dim: value})))
    terms = tuple(Term(tuple(_factor(f, by) for f in term.factors)) for term in region.terms)
    shape = tuple(sym.substitute(extent, {dim: value}) for extent in region.root.shape)
    root = ir.input_(f"{dim.name}={value}", shape, region.root.dtype)
    return replace(region, root=root, terms=terms, result=tuple(sym.substitute(e, by) for e in region.result))


def _factor(factor: Factor, by: dict[Var, Int]) -> Factor:
    return replace(factor, coordinates=tuple(_coordinate(c, by) for c in factor.coordinates))


def _coordinate(c: Coordinate, by: dict[Var, Int]) -> Coordinate:
    position = c.position.over(by) if isinstance(c.position, Lookup) else sym.substitute(c.position, by)
    valid = tuple(sym.substitute(v, by) for v in c.valid)
    return replace(c, position=position, extent=sym.substitute(c.extent, by), valid=valid)
