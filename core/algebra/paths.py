"""In which order the factors of a term are multiplied and summed: the cheapest, by dynamic programming over subsets.

A value between is over coordinates: axes, or positions of which fewer differ than of the axes behind them. So a product
with an upsampled image is computed of the image before, and one with rows of a table of the table, where that is less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from luminal.core import limits, ops
from luminal.core.algebra.cost import Price
from luminal.core.algebra.terms import Axis, Coordinate, Factor, Lookup, Term, plain
from luminal.core.sizes import typical
from luminal.core.types import DType

EXACT = 10  # factors, at most, of which all orders are compared; of more, the cheapest step is taken again and again
KEPT = 6  # forms of one product that are kept, over different coordinates


@dataclass(frozen=True)
class Path:
    """A factor, or a step: the product of ``left`` and ``right``, or ``left`` alone, over the coordinates ``domain``,
    summed over those that are not among ``coordinates``. ``way`` is the number of that domain among those there are."""

    factors: frozenset[int]
    coordinates: tuple[Coordinate, ...]
    cost: float
    constant: bool
    divides: bool = False
    factor: Factor | None = None
    left: Path | None = None
    right: Path | None = None
    domain: tuple[Coordinate, ...] = ()
    way: int = 0

    @cached_property
    def axes(self) -> frozenset[Axis]:
        return frozenset(axis for c in self.coordinates for axis in c.axes)

    @property
    def dtype(self) -> DType:
        of = self.factor or self.left
        assert of is not None
        return of.dtype

    @property
    def steps(self) -> tuple[Path, ...]:
        """Every step, operands first."""
        operands = (self.left, self.right) if self.factor is None else self.factor.added
        before = tuple(step for x in operands if x is not None for step in x.steps)
        return before if self.factor is not None and self.factor.node is not None else (*before, self)


def over(
    path: Path, coordinate: Callable[[Coordinate], Coordinate], factor: Callable[[Factor], Factor] = lambda f: f
) -> Path:
    """``path`` with ``coordinate(c)`` for each coordinate, and with ``factor(f)``, over such coordinates too, for each
    factor."""

    def remade(x: Path | None) -> Path | None:
        return None if x is None else over(x, coordinate, factor)

    return replace(
        path,
        coordinates=tuple(map(coordinate, path.coordinates)),
        domain=tuple(map(coordinate, path.domain)),
        factor=None if path.factor is None else factor_over(path.factor, coordinate, factor),
        left=remade(path.left),
        right=remade(path.right),
    )


def factor_over(
    f: Factor, coordinate: Callable[[Coordinate], Coordinate], factor: Callable[[Factor], Factor]
) -> Factor:
    """The same of a factor, and of what it adds."""
    added = tuple(over(path, coordinate, factor) for path in f.added)
    return replace(factor(f), coordinates=tuple(map(coordinate, f.coordinates)), added=added)


def size(coordinates: Iterable[Coordinate]) -> float:
    """The number of elements over coordinates, at typical sizes."""
    found = 1.0
    for c in coordinates:
        found *= typical(c.extent)
    return found


def cheapest(term: Term, itemsize: int, price: Price, outside: frozenset[Axis] = frozenset()) -> Path:
    """The cheapest way to compute ``term``, which is not summed over axes that something ``outside`` of it has too. Of
    equally cheap ways, the first in the order of the factors."""
    leaves = list(map(leaf, itertools.count(), term.factors))
    search = Search(term, itemsize, price, outside)
    found = search.greedy(leaves)
    return search.exact(leaves, found) if len(leaves) <= EXACT else found


def near(term: Term, itemsize: int, price: Price, most: float) -> list[Path]:
    """Ways to compute ``term`` that cost at most so much, the cheapest first, which differ in their last steps; none
    where it has too many factors to compare them all."""
    leaves = list(map(leaf, itertools.count(), term.factors))
    return Search(term, itemsize, price, frozenset()).last_steps(leaves, most) if len(leaves) <= EXACT else []


def leaf(number: int, factor: Factor) -> Path:
    """The path that is ``factor``, of that ``number`` in its term."""
    return Path(frozenset([number]), factor.coordinates, factor.cost, is_known(factor), factor.divides, factor)


def is_fixed(coordinates: Iterable[Coordinate]) -> bool:
    """Whether the number of elements over coordinates is known: constants over others are computed at a run."""
    return all(isinstance(c.extent, int) for c in coordinates)


def is_known(factor: Factor) -> bool:
    """Whether a factor depends on constants alone."""
    node = factor.node
    if node is None:
        return is_fixed(factor.coordinates) and all(path.constant for path in factor.added)
    return (node.inputs[0] if node.op is ops.VIEW else node).op is ops.CONSTANT


class Search:
    """The steps that there are from the factors of a ``term``, at a ``price``, and the cheapest path of them."""

    def __init__(self, term: Term, itemsize: int, price: Price, outside: frozenset[Axis]) -> None:
        self.term = term
        self.itemsize = itemsize
        self.price = price
        self.outside = outside
        self.open: dict[frozenset[int], frozenset[Axis]] = {}  # the axes on which other factors depend, or the outside

    def exact(self, leaves: Sequence[Path], known: Path) -> Path:
        """The cheapest of all orders; ``known`` is one, and what costs more than it is no part of the cheapest."""
        whole = self.subsets(leaves, known.cost)[frozenset(range(len(leaves)))]
        ways = [*map(self.ended, self.finished(whole)), known]
        return min(ways, key=lambda path: path.cost)

    def subsets(self, leaves: Sequence[Path], most: float) -> dict[frozenset[int], list[Path]]:
        """The paths of each subset of the factors that cost at most so much."""
        best: dict[frozenset[int], list[Path]] = {leaf.factors: self.with_sums([leaf]) for leaf in leaves}
        for count in range(2, len(leaves) + 1):
            for chosen in itertools.combinations(range(len(leaves)), count):
                best[frozenset(chosen)] = self.with_sums(self.joined(chosen, best, most))
        return best

    def joined(
        self, chosen: Sequence[int], best: Mapping[frozenset[int], Sequence[Path]], most: float
    ) -> Iterator[Path]:
        """Each product of the ``chosen`` factors of two paths that are the ``best`` of a part of them."""
        whole = frozenset(chosen)
        return (
            path
            for part in _halves(chosen)
            for x in best[part]
            for y in best[whole - part]
            if x.cost + y.cost <= most
            for path in self.products(x, y)
            if path.cost <= most
        )

    def last_steps(self, leaves: Sequence[Path], most: float) -> list[Path]:
        """Paths that cost at most so much, the cheapest first: one for each last step, with the cheapest before."""
        best = self.subsets(leaves, most)
        numbers = range(len(leaves))
        found = best[frozenset(numbers)] if len(leaves) == 1 else self.joined(numbers, best, most)
        summed = (one for path in found for one in (path, *self.sums(path)))
        ways = [path for path in map(self.ended, self.finished(summed)) if path.cost <= most]
        return sorted(ways, key=lambda path: path.cost)

    def ended(self, path: Path) -> Path:
        """``path`` with the cost of gathering the result from it."""
        return replace(path, cost=path.cost + self.gathers(path, ()))

    def gathers(self, x: Path, domain: Sequence[Coordinate]) -> float:
        """The cost of gathering ``x`` over ``domain``. A table that is made when compiling takes room beside what it is
        made of: it costs as much as reading all of it."""
        made = self.price.byte * self.itemsize * size(x.coordinates) if x.constant and x.factor is None else 0.0
        return sum(self.price.moved(e, self.itemsize) + made for e in _gathered(x, domain))

    def greedy(self, leaves: Sequence[Path]) -> Path:
        """The cheapest product of two, or sum of one, again and again."""
        parts = [self.finished(self.with_sums([leaf]))[0] for leaf in leaves]
        while len(parts) > 1:
            ways = [
                (path.cost - x.cost - y.cost, k, j, path)
                for (k, x), (j, y) in itertools.combinations(enumerate(parts), 2)
                for path in self.finished(self.products(x, y))
            ]
            _, k, j, path = min(ways, key=lambda way: way[:3])
            parts = [part for n, part in enumerate(parts) if n not in (k, j)] + [path]
        return self.ended(parts[0])

    def finished(self, paths: Iterable[Path]) -> list[Path]:
        """Those in which nothing is left to be summed that can be: of a divisor, not before something is divided."""
        return [path for path in paths if path.divides or not self.closed(path.factors, path.coordinates)]

    def with_sums(self, paths: Iterable[Path]) -> list[Path]:
        """``paths``, and each summed as far as it can be: the cheapest over each set of coordinates."""
        best: dict[frozenset[Coordinate], Path] = {}
        for path in paths:
            for one in (path, *self.sums(path)):
                key = frozenset(one.coordinates)
                if key not in best or one.cost < best[key].cost:
                    best[key] = one
        ranked = sorted(best.values(), key=lambda path: path.cost)
        done = self.finished(ranked)
        return [*done[:1], *(path for path in ranked if path not in done[:1])][:KEPT]

    def closed(self, factors: frozenset[int], coordinates: Iterable[Coordinate]) -> set[Axis]:
        """The axes to be summed on which no other factor depends."""
        open_ = self.open.get(factors)
        if open_ is None:
            others = (f for k, f in enumerate(self.term.factors) if k not in factors)
            open_ = self.open[factors] = self.outside.union(*(f.axes for f in others))
        return {v for c in coordinates for v in c.axes if v.summed and v not in open_}

    def sums(self, x: Path) -> Iterator[Path]:
        if x.divides:
            return
        closed = self.closed(x.factors, x.coordinates)
        if closed:
            domain, kept = _domain(x.coordinates, closed, flat=True)
            yield self.step(x, None, domain, kept)

    def products(self, x: Path, y: Path) -> Iterator[Path]:
        if x.divides and y.divides:
            return
        x, y = (y, x) if x.divides else (x, y)
        coordinates = tuple(dict.fromkeys((*x.coordinates, *y.coordinates)))
        closed = self.closed(x.factors | y.factors, coordinates)
        ways = [_domain(coordinates, closed, flat=True)]
        if any(c.axis is None for c in coordinates):
            ways += [way for way in (_domain(coordinates, closed, flat=False),) if way != ways[0]]
        for way, (domain, kept) in enumerate(ways):
            yield self.step(x, y, domain, kept, way)

    def step(self, x: Path, y: Path | None, domain: list[Coordinate], kept: list[Coordinate], way: int = 0) -> Path:
        operands = [x] if y is None else [x, y]
        factors = frozenset().union(*(o.factors for o in operands))
        tables = (c.position.table for o in operands for c in _looked_up(o, domain))  # type: ignore[union-attr]
        known = is_fixed(domain) and all(o.constant for o in operands)
        constant = known and all(table.op is ops.CONSTANT for table in tables)
        cost = sum(o.cost for o in operands)
        if constant:
            cost = cost if size(domain) <= limits.PRODUCTS and size(kept) <= limits.TABLE else math.inf
        else:
            sizes = [size(o.coordinates) for o in operands]
            cost += sum(self.gathers(o, domain) for o in operands)
            if len(kept) == len(domain):
                cost += self.price.map(size(domain), sizes, self.itemsize)
            else:
                shares = len(operands) == 2 and all(_has_own(o, other, kept) for o, other in (operands, operands[::-1]))
                cost += self.price.sum(size(domain), size(kept), sizes, self.itemsize, shares)
                if any(o.divides for o in operands):  # which no multiply-add does
                    cost += self.price.operation * size(domain)
        return Path(factors, tuple(kept), cost, constant, left=x, right=y, domain=tuple(domain), way=way)


def _has_own(x: Path, other: Path, kept: Iterable[Coordinate]) -> bool:
    """Whether the result has an axis that ``x`` has, and ``other`` has not."""
    return any(c.axes & x.axes and not c.axes & other.axes for c in kept)


def _looked_up(x: Path, domain: Sequence[Coordinate]) -> list[Coordinate]:
    """The coordinates whose positions tables hold, and that ``domain`` does not have."""
    return [c for c in x.coordinates if isinstance(c.position, Lookup) and c not in domain]


def _gathered(x: Path, domain: Sequence[Coordinate]) -> Iterator[float]:
    """The elements that are gathered if ``x`` is read over ``domain``."""
    looked = _looked_up(x, domain)
    if looked:
        axes = {axis for c in looked for axis in c.axes}
        yield size((*(c for c in x.coordinates if c not in looked), *map(plain, axes)))


def _domain(
    coordinates: Sequence[Coordinate], closed: set[Axis], flat: bool
) -> tuple[list[Coordinate], list[Coordinate]]:
    """The coordinates over which a product is computed, and those of its sum over ``closed`` axes. Positions that
    depend on closed axes are replaced by their axes to be summed, if that is to be ``flat``; others, if there are no
    more elements then."""
    alone = {c.axis for c in coordinates}
    if None not in alone and len(alone) == len(coordinates):  # as almost always: each is an axis of its own
        return list(coordinates), [c for c in coordinates if c.axis not in closed]
    domain: list[Coordinate] = []
    kept: list[Coordinate] = []
    for group in _connected(coordinates):
        axes = sorted({axis for c in group for axis in c.axes}, key=str)
        over = list(group)
        if any(c.axis is None for c in group):
            spread = [plain(axis) for axis in axes]
            touched = not closed.isdisjoint(axes)
            if (touched and flat) or (not touched and size(spread) <= size(group)):
                over = spread
        domain += over
        compound = any(c.axis is None for c in over)
        kept += [c for c in over if compound or c.axis not in closed]
    return domain, kept


def _connected(coordinates: Iterable[Coordinate]) -> list[list[Coordinate]]:
    """Coordinates in groups that share no axes, in their order."""
    groups: list[list[Coordinate]] = []
    for c in coordinates:
        touching = [group for group in groups if any(c.axes & other.axes for other in group)]
        groups = [group for group in groups if group not in touching]
        groups.append([*itertools.chain.from_iterable(touching), c])
    return groups


def _halves(chosen: Sequence[int]) -> Iterator[frozenset[int]]:
    """Each way to part ``chosen`` in two, as the part that has the first."""
    first, *others = chosen
    for count in range(len(others)):
        for more in itertools.combinations(others, count):
            yield frozenset((first, *more))
