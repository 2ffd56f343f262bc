"""Terms that share factors become one product with the sum of what is left: ``x w + x v = x (w + v)``.

The bound of the error does not grow: ``|x| |w + v|`` is at most ``|x| |w| + |x| |v|``. Pairs of terms are joined as
long as the whole gets cheaper, the cheapest first; a joined term may be joined again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.algebra.cost import Price
from luminal.core.algebra.paths import Path, cheapest, size
from luminal.core.algebra.terms import Axis, Coordinate, Factor, Lookup, Term
from luminal.core.symbolic import Int, Var

MOST = 16  # terms of a sum, at most, of which all pairs are compared


@dataclass(frozen=True)
class Sum:
    """The cheapest path of each of some terms, and what they and their addition over ``elements`` cost."""

    terms: tuple[Term, ...]
    paths: tuple[Path, ...]
    cost: float


def cheapest_sum(terms: Sequence[Term], elements: float, itemsize: int, price: Price) -> Sum:
    """The cheapest form of a sum of ``terms``, each over ``elements``."""

    def of(terms: Sequence[Term], paths: Sequence[Path]) -> Sum:
        added = price.map(elements, [elements], itemsize) * (len(paths) - 1)
        return Sum(tuple(terms), tuple(paths), sum(path.cost for path in paths) + added)

    paths = [cheapest(term, itemsize, price) for term in terms]
    is_known = [path.constant and _is_plain(path) for path in paths]
    known = [path for path, is_one in zip(paths, is_known, strict=True) if is_one]
    if len(known) > 1:
        term = Term((_sum(known, itemsize, price),))
        varying = [(t, path) for t, path, is_one in zip(terms, paths, is_known, strict=True) if not is_one]
        terms, paths = [*(t for t, _ in varying), term], [*(p for _, p in varying), cheapest(term, itemsize, price)]
    best = of(terms, paths)
    while 1 < len(best.terms) <= MOST:
        found = best
        for i, j in itertools.combinations(range(len(best.terms)), 2):
            for joined in _joined(best.terms[i], best.terms[j], itemsize, price):
                parts = {k: (t, p) for k, (t, p) in enumerate(zip(best.terms, best.paths, strict=True)) if k != j}
                parts[i] = joined, cheapest(joined, itemsize, price)
                new = of([t for t, _ in parts.values()], [path for _, path in parts.values()])
                found = new if new.cost < found.cost else found
        if found is best:
            break
        best = found
    return best


def _joined(a: Term, b: Term, itemsize: int, price: Price) -> Iterator[Term]:
    """``a + b`` as one term, for each way in which they share factors."""
    seen: set[frozenset[int]] = set()
    for first in a.factors:
        for second in b.factors:
            by = _matched(first, second, {})
            if by is None:
                continue
            shared, pairs = _shared(a, b, by)
            key = frozenset(pairs)
            if key in seen:
                continue
            seen.add(key)
            rests = [_rest(a, set(pairs)), _rest(_renamed(b, shared), set(pairs.values()))]
            if any(rest is None for rest in rests):
                continue
            kept = tuple(a.factors[k] for k in sorted(pairs))
            added = _added([rest for rest in rests if rest is not None], kept, itemsize, price)
            if added is not None:
                yield Term((*kept, added))


def _matched(a: Factor, b: Factor, known: Mapping[Axis, Axis]) -> dict[Axis, Axis] | None:
    """How summed axes of ``b`` are to be renamed for it to be ``a``, beside those of which that is ``known``; None if
    it is another factor."""
    if a.node is not b.node or a.divides != b.divides or a.added != b.added:
        return None
    by = dict(known)
    for left, right in zip(a.coordinates, b.coordinates, strict=True):
        ours, theirs = (sorted(c.axes, key=str) for c in (left, right))
        for x, y in zip(ours, theirs, strict=False):
            both = x.summed and y.summed and x.hi == y.hi
            if y not in by and (x == y or (both and x not in by.values())):
                by[y] = x
        if _over(right, by) != left:
            return None
    return by


def _shared(a: Term, b: Term, by: dict[Axis, Axis]) -> tuple[dict[Axis, Axis], dict[int, int]]:
    """The most factors that are the same in ``a`` and ``b``, by number, with a renaming under which they are."""
    pairs: dict[int, int] = {}
    for k, first in enumerate(a.factors):
        for j, second in enumerate(b.factors):
            found = None if j in pairs.values() else _matched(first, second, by)
            if found is not None:
                by, pairs[k] = found, j
                break
    return by, pairs


def _over(c: Coordinate, by: Mapping[Axis, Axis]) -> Coordinate:
    names: dict[Var, Int] = {x: sym.expr(y) for x, y in by.items()}
    position = c.position.over(names) if isinstance(c.position, Lookup) else sym.substitute(c.position, names)
    return replace(c, position=position, valid=tuple(sym.substitute(v, names) for v in c.valid))


def _renamed(term: Term, by: Mapping[Axis, Axis]) -> Term:
    return Term(tuple(replace(f, coordinates=tuple(_over(c, by) for c in f.coordinates)) for f in term.factors))


def _rest(term: Term, without: set[int]) -> Term | None:
    """The factors of ``term`` but for those numbered ``without``; None if there are none, or one that divides."""
    factors = tuple(f for k, f in enumerate(term.factors) if k not in without)
    return Term(factors) if factors and not any(f.divides for f in factors) else None


def _added(rests: Sequence[Term], kept: Sequence[Factor], itemsize: int, price: Price) -> Factor | None:
    """The sum of ``rests`` as a factor, over the axes that they have; each is summed over those that only it has."""
    outside = frozenset(axis for factor in kept for axis in factor.axes)
    # An axis of another factor is not summed in a rest: to its path, one more factor has it.
    paths = [cheapest(rest, itemsize, price, outside) for rest in rests]
    return _sum(paths, itemsize, price) if all(map(_is_plain, paths)) else None


def _is_plain(path: Path) -> bool:
    """Whether a value is over axes alone: a mask that one value has is none of a sum with it."""
    return all(c.axis is not None for c in path.coordinates)


def _sum(paths: Sequence[Path], itemsize: int, price: Price) -> Factor:
    """The sum of what ``paths`` compute, as a factor."""
    coordinates = tuple(dict.fromkeys(c for path in paths for c in path.coordinates))
    elements = size(coordinates)
    constant = all(path.constant for path in paths)
    cost = sum(path.cost for path in paths)
    cost += 0.0 if constant else price.map(elements, [size(p.coordinates) for p in paths], itemsize)
    return Factor(None, coordinates, added=tuple(paths), cost=cost)
