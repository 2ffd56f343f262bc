"""Terms that share factors become one product with the sum of what is left: ``x w + x v = x (w + v)``.

The bound of the error does not grow: ``|x| |w + v|`` is at most ``|x| |w| + |x| |v|``. A factor is shared too if it is
the other at one position of a window: a product with an image is one with windows of it, by filters that are zero but
for one element. Pairs of terms are joined as
long as the whole gets cheaper, the cheapest first; a joined term may be joined again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from luminal.core import ir, ops
from luminal.core import symbolic as sym
from luminal.core.algebra.cost import Price
from luminal.core.algebra.paths import Path, cheapest, factor_over, is_fixed, near, size
from luminal.core.algebra.terms import Axis, Coordinate, Factor, Lookup, Term, plain
from luminal.core.ir import Node
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

INDICATOR = 1 << 24  # elements of a matrix of ones and zeros, at most: a larger one takes longer to make than it saves
MOST = 16  # terms of a sum, at most, of which all pairs are compared


@dataclass(frozen=True)
class Sum:
    """The cheapest path of each of some terms, and what they and their addition over ``elements`` cost."""

    terms: tuple[Term, ...]
    paths: tuple[Path, ...]
    cost: float


def cheapest_sum(terms: Sequence[Term], elements: float, itemsize: int, price: Price) -> Sum:
    """The cheapest form of a sum of ``terms``, each over ``elements``."""
    *_, last = sums(terms, elements, itemsize, price)
    return last


def near_sums(terms: Sequence[Term], elements: float, itemsize: int, price: Price, ratio: float) -> list[Sum]:
    """Forms of a sum that cost at most ``ratio`` times as much as the cheapest, which is the first: those on the way to
    it, and those in which one term is computed by another path."""
    steps = list(sums(terms, elements, itemsize, price))
    found = steps[:-1]
    for form in steps:
        for k, (term, path) in enumerate(zip(form.terms, form.paths, strict=True)):
            for other in near(term, itemsize, price, path.cost + (ratio - 1) * form.cost):
                others = (*form.paths[:k], other, *form.paths[k + 1 :])
                found.append(Sum(form.terms, others, form.cost - path.cost + other.cost))
    last = steps[-1]
    return [last, *(x for x in sorted(found, key=lambda form: form.cost) if x.cost <= ratio * last.cost)]


def sums(terms: Sequence[Term], elements: float, itemsize: int, price: Price) -> Iterator[Sum]:
    """Forms of a sum of ``terms``, each cheaper than the one before, as terms are joined; the last is the cheapest."""

    def of(terms: Sequence[Term], paths: Sequence[Path]) -> Sum:
        added = price.map(elements, [elements], itemsize) * (len(paths) - 1)
        return Sum(tuple(terms), tuple(paths), sum(path.cost for path in paths) + added)

    paths = [cheapest(term, itemsize, price) for term in terms]
    is_known = [path.constant and _is_plain(path) for path in paths]
    known = [path for path, is_one in zip(paths, is_known, strict=True) if is_one]
    if len(known) > 1:
        term = Term((total(known, itemsize, price),))
        varying = [(t, path) for t, path, is_one in zip(terms, paths, is_known, strict=True) if not is_one]
        terms, paths = [*(t for t, _ in varying), term], [*(p for _, p in varying), cheapest(term, itemsize, price)]
    best = of(terms, paths)
    yield best

    @cache
    def ways(a: Term, b: Term) -> list[tuple[Term, Path]]:
        found = itertools.chain(_joined(a, b, itemsize, price), _joined(b, a, itemsize, price))
        return [(term, cheapest(term, itemsize, price)) for term in found]

    while 1 < len(best.terms) <= MOST:
        found = best
        for i, j in itertools.combinations(range(len(best.terms)), 2):
            for joined in ways(best.terms[i], best.terms[j]):
                parts = {k: (t, p) for k, (t, p) in enumerate(zip(best.terms, best.paths, strict=True)) if k != j}
                parts[i] = joined
                new = of([t for t, _ in parts.values()], [path for _, path in parts.values()])
                found = new if new.cost < found.cost else found
        if found is best:
            break
        best = found
        yield best


def _joined(a: Term, b: Term, itemsize: int, price: Price) -> Iterator[Term]:
    """``a + b`` as one term, for each way in which ``b`` has factors of ``a``."""
    seen: set[frozenset[int]] = set()
    for first, second in itertools.product(a.factors, b.factors):
        match = _matched(first, second, _Match())
        if match is None:
            continue
        match, pairs = _shared(a, b, match)
        if frozenset(pairs) in seen:
            continue
        seen.add(frozenset(pairs))
        ours = [f for k, f in enumerate(a.factors) if k not in pairs]
        others = [match.renamed(f) for k, f in enumerate(b.factors) if k not in pairs.values()]
        theirs = [f for f in others if f is not None]
        if len(theirs) < len(others):
            continue
        theirs += [indicator(axis, at, b.factors[0].dtype) for axis, at in match.at.items()]
        if not ours or not theirs or any(f.divides for f in (*ours, *theirs)):
            continue
        kept = tuple(a.factors[k] for k in sorted(pairs))
        added = _added([Term(tuple(ours)), Term(tuple(theirs))], kept, itemsize, price)
        if added is not None:
            yield Term((*kept, added))


@dataclass(frozen=True)
class _Match:
    """How factors of one term are those of another: ``by`` renames summed axes of the first, and those of the other
    that are ``at`` a position have just this one. So an element of an image is one of the window around it."""

    by: Mapping[Axis, Axis] = field(default_factory=dict)
    at: Mapping[Axis, Int] = field(default_factory=dict)

    def renamed(self, factor: Factor) -> Factor | None:
        """``factor`` over the other's axes; None if it sums over one of them itself."""
        new = {x for y, x in self.by.items() if x != y and y in factor.axes}
        inner = {v for path in factor.added for step in path.steps for c in step.domain for v in c.axes}
        return None if new & inner else renamed(factor, self.by)


def renamed(factor: Factor, by: Mapping[Axis, Axis]) -> Factor:
    """``factor`` over other axes, which its name says."""

    def named(f: Factor) -> Factor:
        moved = "".join(f"{{{y}:{x}}}" for y, x in by.items() if x != y and y in f.axes)
        return replace(f, name=f.name and f.name + moved)

    return factor_over(factor, lambda c: _over(c, by), named)


def _matched(a: Factor, b: Factor, known: _Match) -> _Match | None:
    """How ``b`` is ``a``, beside what is ``known``; None if it is another factor."""
    first, second = (a.node, a.coordinates), (b.node, b.coordinates)
    if a.node is not b.node:
        first, second = _of_source(a), _of_source(b)  # two views of one tensor
    if first[0] is not second[0] or a.divides != b.divides or a.added != b.added:
        return None
    match: _Match | None = known
    for ours, theirs in zip(first[1], second[1], strict=True):
        match = match and (_same(ours, theirs, match) or _aligned(ours, theirs, match))
    return match


def _of_source(factor: Factor) -> tuple[Node | None, tuple[Coordinate, ...]]:
    """The tensor that a factor views, and a coordinate for each of its dimensions; the factor's own where it is a view
    of another kind."""
    node = factor.node
    own = (node, factor.coordinates)
    if node is None or node.op is not ops.VIEW or node.attr.valid:
        return own
    axes = dict(zip(ir.axes(node.shape), factor.coordinates, strict=True))
    found = []
    for extent, index in zip(node.inputs[0].shape, node.attr.index, strict=True):
        used = [c for e, c in axes.items() if sym.variables(e) & sym.variables(index)]
        if index in axes:
            found.append(replace(axes[index], extent=extent))
        elif any(c.valid or isinstance(c.position, Lookup) for c in used):
            return own
        else:
            by: dict[Var, Int] = {}
            for e, c in axes.items():
                if not isinstance(c.position, Lookup) and (v := sym.as_var(e)) is not None:
                    by[v] = c.position
            found.append(Coordinate(sym.substitute(index, by), extent))
    return node.inputs[0], tuple(found)


def _same(ours: Coordinate, theirs: Coordinate, known: _Match) -> _Match | None:
    """The match in which two coordinates are the same."""
    by = dict(known.by)
    for x, y in zip(*(sorted(c.axes, key=str) for c in (ours, theirs)), strict=False):
        both = x.summed and y.summed and x.hi == y.hi and x not in known.at
        if y not in by and (x == y or (both and x not in by.values())):
            by[y] = x
    return replace(known, by=by) if _over(theirs, by) == ours else None


def _aligned(ours: Coordinate, theirs: Coordinate, known: _Match) -> _Match | None:
    """The match in which ``theirs`` is ``ours`` at one position of a summed axis."""
    theirs = _over(theirs, known.by)
    if isinstance(ours.position, Lookup) or isinstance(theirs.position, Lookup) or theirs.valid:
        return None
    for axis in sorted(ours.axes, key=str):
        linear = sym.coefficient(ours.position, axis)
        if (
            not axis.summed
            or not isinstance(axis.hi, int)
            or axis in known.by.values()
            or linear is None
            or linear[0] not in (1, -1)
        ):
            continue
        at = (theirs.position - linear[1]) * linear[0]
        inside = sym.always(at) and sym.always(axis.hi - at) and (isinstance(at, int) or _is_result(at, axis))
        masked = not all(sym.always(sym.substitute(v, {axis: at})) for v in ours.valid)
        if inside and not masked and known.at.get(axis, at) == at:
            return replace(known, at={**known.at, axis: at})
    return None


def _is_result(position: Int, summed: Axis) -> bool:
    """Whether a position is that along an axis of the result, of a known length, and the indicator of where ``summed``
    is there a matrix that is worth making."""
    axis = sym.as_var(position)
    if not isinstance(axis, Axis) or axis.summed or not isinstance(axis.hi, int) or not isinstance(summed.hi, int):
        return False
    return (axis.hi + 1) * (summed.hi + 1) <= INDICATOR


def indicator(axis: Axis, at: Int, dtype: DType) -> Factor:
    """One where ``axis`` is ``at``, and zero elsewhere."""
    other = sym.as_var(at)
    extents = [axis.hi + 1, *([other.hi + 1] if isinstance(other, Axis) else [])]
    counts = [extent for extent in extents if isinstance(extent, int)]
    assert counts == extents
    array = np.eye(counts[0], counts[1]) if len(counts) == 2 else np.arange(counts[0]) == at
    coordinates = (plain(axis), *([plain(other)] if isinstance(other, Axis) else []))
    name = f"at({axis}<{counts[0]},{at}{f'<{counts[1]}' if len(counts) == 2 else ''})"
    return Factor(ir.constant(np.asarray(array, dtype.numpy)), coordinates, name=name)


def _shared(a: Term, b: Term, match: _Match) -> tuple[_Match, dict[int, int]]:
    """The most factors that are the same in ``a`` and ``b``, by number, and the match in which they are."""
    pairs: dict[int, int] = {}
    for (k, first), (j, second) in itertools.product(enumerate(a.factors), enumerate(b.factors)):
        found = None if k in pairs or j in pairs.values() else _matched(first, second, match)
        if found is not None:
            match, pairs[k] = found, j
    return match, pairs


def _over(c: Coordinate, by: Mapping[Axis, Axis]) -> Coordinate:
    names: dict[Var, Int] = {x: sym.expr(y) for x, y in by.items()}
    position = c.position.over(names) if isinstance(c.position, Lookup) else sym.substitute(c.position, names)
    return replace(c, position=position, valid=tuple(sym.substitute(v, names) for v in c.valid))


def _added(rests: Sequence[Term], kept: Sequence[Factor], itemsize: int, price: Price) -> Factor | None:
    """The sum of ``rests`` as a factor, over the axes that they have; each is summed over those that only it has."""
    outside = frozenset(axis for factor in kept for axis in factor.axes)
    # An axis of another factor is not summed in a rest: to its path, one more factor has it.
    paths = [cheapest(rest, itemsize, price, outside) for rest in rests]
    return total(paths, itemsize, price) if all(map(_is_plain, paths)) else None


def _is_plain(path: Path) -> bool:
    """Whether a value is over axes alone: a mask that one value has is none of a sum with it."""
    return all(c.axis is not None for c in path.coordinates)


def total(paths: Sequence[Path], itemsize: int, price: Price) -> Factor:
    """The sum of what ``paths`` compute, as a factor."""
    coordinates = tuple(dict.fromkeys(c for path in paths for c in path.coordinates))
    elements = size(coordinates)
    constant = is_fixed(coordinates) and all(path.constant for path in paths)
    cost = sum(path.cost for path in paths)
    cost += 0.0 if constant else price.map(elements, [size(p.coordinates) for p in paths], itemsize)
    return Factor(None, coordinates, added=tuple(paths), cost=cost)
