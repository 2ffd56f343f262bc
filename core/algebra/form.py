"""A form as text, and back: what was found for a region is noted in the manifest, and computed again without a search.

The text has the factors of the region by number, in the order of its terms. ``(a * b)`` is a product, summed over all
axes on which no other factor depends, ``(a *1 b)`` the same over compound positions, ``a / b`` a quotient, ``sum(a)``
a sum of one factor, ``[a + b]`` a sum of values that is a factor. ``f3{r7:r1}`` is a factor over another axis, and
``at(r5<3,o2<8)`` is one where the positions along two axes are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeAlias

from luminal.core import symbolic as sym
from luminal.core.algebra.cost import Price
from luminal.core.algebra.factoring import indicator, renamed, total
from luminal.core.algebra.paths import Path, Search, leaf
from luminal.core.algebra.terms import Axis, Factor, Region, Term
from luminal.core.errors import InputError

_TOKEN = re.compile(r"\s*(sum\(|at\([^)]*\)(?:\{\w+:\w+\})*|f\d+(?:\{\w+:\w+\})*|\*1|[()\[\]+*/])")
_MOVED = re.compile(r"\{(\w+):(\w+)\}")
_PLACE = re.compile(r"at\((\w+)<(\d+),(?:(\d+)|(\w+)<(\d+))\)")


def written(paths: Sequence[Path]) -> str:
    """The sum of what ``paths`` compute, as text."""
    return " + ".join(map(_written, paths))


def _written(path: Path) -> str:
    if path.factor is not None:
        return path.factor.name if path.factor.node is not None else f"[{written(path.factor.added)}]"
    assert path.left is not None
    if path.right is None:
        return f"sum({_written(path.left)})"
    sign = "/" if path.right.divides else "*"
    return f"({_written(path.left)} {sign}{path.way or ''} {_written(path.right)})"


def read(text: str, region: Region, price: Price) -> list[Path]:
    """The paths that ``text`` says, over the factors of ``region``. Raises InputError where it says none."""
    return _Reader(text, region, price).paths()


class _Reader:
    """Reads a text, token by token, and then makes paths of it: what a step sums depends on the factors around it."""

    def __init__(self, text: str, region: Region, price: Price) -> None:
        self.text = text
        self.price = price
        self.dtype = region.root.dtype
        self.factors = {factor.name: factor for term in region.terms for factor in term.factors}
        found: list[str] = _TOKEN.findall(text)
        if "".join(found) != "".join(text.split()):
            self.fail()
        self.tokens = iter([*found, ""])
        self.next: str = next(self.tokens)

    def fail(self) -> NoReturn:
        raise InputError(
            f"algebra: {self.text!r} is no form of the region with {', '.join(self.factors)}; expected a form that a "
            "manifest of the same model says"
        )

    def take(self, *expected: str) -> str:
        """The next token, which is one of those expected."""
        token = self.next
        if expected and token not in expected:
            self.fail()
        self.next = next(self.tokens, "")
        return token

    def paths(self) -> list[Path]:
        parts = self.sum("")
        return [self.path(part, frozenset()) for part in parts]

    def sum(self, end: str) -> list[_Part]:
        parts = [self.part()]
        while self.take("+", end) == "+":
            parts.append(self.part())
        return parts

    def part(self) -> _Part:
        token = self.take()
        match token:
            case "(":
                left, sign, right = self.part(), self.take("*", "*1", "/"), self.part()
                self.take(")")
                return _Product(left, right, int(sign == "*1"))
            case "sum(":
                inner = self.part()
                self.take(")")
                return _Product(inner, None, 0)
            case "[":
                return _Sum(tuple(self.sum("]")))
            case _:
                return self.factor(token)

    def factor(self, token: str) -> Factor:
        name, moved = token.split("{")[0], _MOVED.findall(token)
        place = _PLACE.fullmatch(name)
        if place is not None:
            axis, count, number, other, length = place.groups()
            at = int(number) if number else sym.expr(Axis(other, 0, int(length) - 1))
            factor = indicator(Axis(axis, 0, int(count) - 1, summed=True), at, self.dtype)
        elif name in self.factors:
            factor = self.factors[name]
        else:
            self.fail()
        for before, after in moved:
            by = {axis: replace(axis, name=after) for axis in factor.axes if axis.name == before}
            factor = renamed(factor, by)
        return factor

    def path(self, part: _Part, outside: frozenset[Axis]) -> Path:
        """The path that ``part`` says, not summed over axes that something ``outside`` of it has."""
        leaves = list(_leaves(part))
        plain = [leaf for leaf in leaves if isinstance(leaf, Factor)]
        around = outside.union(axis for factor in plain for axis in factor.axes)
        made: dict[int, Path] = {}
        factors: list[Factor] = []
        for number, found in enumerate(leaves):
            if isinstance(found, _Sum):
                added = [self.path(x, around) for x in found.parts]
                found = total(added, self.dtype.itemsize, self.price)
            factors.append(found)
            made[number] = leaf(number, found)
        search = Search(Term(tuple(factors)), self.dtype.itemsize, self.price, outside)
        numbers = iter(range(len(leaves)))

        def step(part: _Part) -> Path:
            if not isinstance(part, _Product):
                return made[next(numbers)]
            left = step(part.left)
            ways = list(search.sums(left) if part.right is None else search.products(left, step(part.right)))
            if part.way >= len(ways):
                self.fail()
            return ways[part.way]

        return step(part)


@dataclass(frozen=True)
class _Sum:
    """A sum of parts, which is a factor of what is around it."""

    parts: tuple[_Part, ...]


@dataclass(frozen=True)
class _Product:
    """A product in one of several ways, or a sum of ``left`` alone."""

    left: _Part
    right: _Part | None
    way: int


_Part: TypeAlias = "Factor | _Sum | _Product"


def _leaves(part: _Part) -> Iterator[Factor | _Sum]:
    """The factors of a part, in the order of the text."""
    if not isinstance(part, _Product):
        yield part
    else:
        yield from _leaves(part.left)
        if part.right is not None:
            yield from _leaves(part.right)
