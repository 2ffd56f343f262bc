"""The sizes that a model leaves open: what the user declares of them, and what the model itself is found to say.

A front end meets a fact of sizes where an operator needs it. It then raises an ``Implied``, which goes to the place
where the model is loaded: the fact is learnt, and the model is imported again under it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from luminal.core import relations
from luminal.core import symbolic as sym
from luminal.core.errors import InputError
from luminal.core.symbolic import Int, Var


class Range(NamedTuple):
    """Sizes from ``low`` to ``high``, both included: those that are ``rest`` more than a multiple of ``step``."""

    low: int
    high: int
    step: int = 1
    rest: int = 0

    @property
    def first(self) -> int:
        """The least size that there is in the range; above ``high`` where there is none."""
        return self.low + (self.rest - self.low) % self.step

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.low <= size <= self.high and size % self.step == self.rest

    def __str__(self) -> str:
        words = f"{self.low}..{self.high}"
        return words if self.step == 1 else f"{words} ({relations.multiple(self.step, self.rest)})"


_TRIED = 1 << 12  # values of a size at which a condition is tried
DEFAULT = Range(1, 1024)  # of a size of which nobody says anything; memory is planned at the upper bound


class ImpliedBound(Exception):
    """The model itself bounds a size for which the user declares nothing: it takes so many elements of a smaller
    value."""

    def __init__(self, size: Var, upper: int) -> None:
        super().__init__(f"{size} is at most {upper}")
        self.size = size
        self.upper = upper


class ImpliedRelation(Exception):
    """The model itself needs a ``relation`` between sizes: they do not fit the operator ``where`` without."""

    def __init__(self, relation: relations.Relation, where: str) -> None:
        super().__init__(f"{relation} ({where})")
        self.relation = relation
        self.where = where


Implied: TypeAlias = ImpliedBound | ImpliedRelation


@dataclass
class Facts:
    """What a model says of its sizes, by their names: the bounds that hold ``within`` those that are declared, a step
    with the remainder, and the ``values`` of sizes in terms of other symbols, with these symbols' names. ``stated`` are
    relations for the user, each with the operator that needs it."""

    within: dict[str, tuple[int, int]] = field(default_factory=dict)
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)
    values: dict[str, tuple[Int, Mapping[Var, str]]] = field(default_factory=dict)
    stated: list[str] = field(default_factory=list)


class Sizes:
    """The sizes of one import by their names, as expressions of symbols, under the ranges that are ``declared`` and
    the ``facts`` that are known. ``named`` maps the symbols, in the order of their appearance, to these names."""

    def __init__(self, declared: Mapping[str, Range], facts: Facts) -> None:
        self.declared = dict(declared)
        self.named: dict[Var, str] = {}
        self._facts = facts
        self._sizes: dict[str, Int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def size(self, name: str) -> Int:
        """The size ``name``: a symbol, or what it is known to be. Raises InputError where no size is left."""
        if name not in self._sizes:
            if name in self._facts.values:
                value, names = self._facts.values[name]
                self._sizes[name] = sym.substitute(value, {symbol: self.size(n) for symbol, n in names.items()})
            else:
                self._sizes[name] = self._symbol(name)
        return self._sizes[name]

    def fix(self, name: str, size: int) -> bool:
        """Take ``name`` to be ``size``; whether it may be that."""
        return size in self.declared.get(name, Range(size, size)) and self._sizes.setdefault(name, size) == size

    def expected(self, name: str) -> str:
        """What ``name`` is, or may be, in words."""
        if name in self._sizes:
            return f"{name} = {self._sizes[name]}"
        return f"{name}, in {self.declared[name]}" if name in self.declared else name

    def range(self, name: str) -> Range:
        """The sizes that ``name`` may have by what is declared and known."""
        low, high, step, rest = self.declared.get(name, DEFAULT)
        within = self._facts.within.get(name, (low, high))
        step, rest = self._facts.steps.get(name, (step, rest))
        return Range(max(low, within[0]), min(high, within[1]), step, rest)

    @property
    def assumed(self) -> frozenset[Var]:
        """The symbols for which nothing is declared."""
        return frozenset(symbol for symbol, name in self.named.items() if name not in self.declared)

    def require(self, pairs: Iterable[tuple[Int, Int]], where: str) -> None:
        """Raises ImpliedRelation where a relation of the symbols makes the sizes of one of the ``pairs`` equal, which
        the operator ``where`` needs."""
        relation = relations.implied([*pairs], [*self.named])
        if relation is not None:
            raise ImpliedRelation(relation, where)

    def learn(self, found: Implied) -> None:
        """Add to the facts, for another import, what this one ``found``."""
        if isinstance(found, ImpliedBound):
            name = self.named[found.size]
            most = sym.substitute(self._sizes[name], {found.size: found.upper})
            assert isinstance(most, int)
            self._narrow(name, self.range(name).low, most)
            return
        name = self.named[found.relation.symbol]
        size, given, facts = self._sizes[name], self.range(name), self._facts
        if isinstance(found.relation, relations.Stepped):
            step, rest = given.step * found.relation.step, given.step * found.relation.rest + given.rest
            facts.steps[name] = step, rest
            facts.stated.append(f"{relations.Stepped(Var(name, 0, 0), step, rest)} ({found.where})")
            return
        value = sym.substitute(size, {found.relation.symbol: found.relation.value})
        facts.values[name] = value, {symbol: self.named[symbol] for symbol in sym.variables(value)}
        facts.stated.append(f"{name} = {self.text(value)} ({found.where})")
        symbol = sym.as_var(value)
        if symbol is not None:
            self._narrow(self.named[symbol], given.low, given.high)

    def bounds(self, sizes: Iterable[Int]) -> str:
        """The bounds of the symbols in ``sizes``, in words."""
        symbols = {symbol for size in sizes for symbol in sym.variables(size)}
        return ", ".join(f"{symbol} in {symbol.lo}..{symbol.hi}" for symbol in self.named if symbol in symbols)

    def advice(self, condition: Any) -> str:
        """The bounds to declare for one size so that a ``condition`` of sizes holds (see ``LuminalError``), and what
        its symbols are; no bounds where those of one size do not do."""
        symbols = [symbol for symbol in self.named if symbol in condition.variables]
        if len(symbols) != len(condition.variables):
            return ""
        said = [f"{self.named[s]} = {self._sizes[self.named[s]]}" for s in symbols if self.named[s] != s.name]
        known = f", where {', '.join(said)}" if said else ""
        for symbol in symbols:
            others = [[(other.name, value) for value in _values(other, 8)] for other in symbols if other != symbol]
            tried = _values(symbol, _TRIED)
            allowed = [
                all(condition.holds({symbol.name: value, **dict(pairs)}) for pairs in itertools.product(*others))
                for value in tried
            ]
            run = _longest(tried, allowed)
            name = self.named[symbol]
            size = self._sizes[name]
            if not run or sym.variables(size) != {symbol}:
                continue
            low, second, high = (int(sym.evaluate(size, {symbol.name: v})) for v in (run[0], run[0] + 1, run[-1]))
            step = second - low
            bounds = [low, high, step] if step > 1 else [low, high]
            spelt = ":".join(map(str, bounds))
            return f" to dims={{{name!r}: ({', '.join(map(str, bounds))})}}, --dim {name}={spelt}{known}"
        return known

    def text(self, size: Int) -> str:
        """``size`` with the model's own names."""
        by: dict[Var, Int] = {}
        for symbol, name in self.named.items():
            if sym.as_var(self._sizes[name]) is not None:
                by[symbol] = sym.expr(Var(name, symbol.lo, symbol.hi))
        return str(sym.substitute(size, by))

    def _symbol(self, name: str) -> Int:
        """A new symbol, as far as the size may vary, with the step that is declared or implied."""
        identifier = _identifier(name)
        while any(identifier == symbol.name for symbol in self.named):
            identifier += "_"
        given = self.range(name)
        size = relations.stepped(identifier, given.low, given.high, given.step, given.rest)
        if size is None:
            raise InputError(
                f"dims: {name!r} would be {relations.multiple(given.step, given.rest)}, and none is in "
                f"{given.low}..{given.high}"
            )
        self.named |= dict.fromkeys(sym.variables(size), name)
        return size

    def _narrow(self, name: str, low: int, high: int) -> None:
        known = self._facts.within.get(name, (low, high))
        self._facts.within[name] = max(known[0], low), min(known[1], high)


def _values(symbol: Var, count: int) -> Sequence[int]:
    """The values of a symbol, or so many of them, spread evenly, with the first and the last."""
    values = range(symbol.lo, (sym.upper(symbol.hi) or symbol.lo) + 1)
    return values if len(values) <= count else [*values[:: -(-len(values) // (count - 1))], values[-1]]


def _longest(values: Sequence[int], allowed: Sequence[bool]) -> Sequence[int]:
    """The longest run of ``values`` that are ``allowed``, the last such."""
    ends = [-1, *(k for k, fits in enumerate(allowed) if not fits), len(values)]
    runs = [values[a + 1 : b] for a, b in itertools.pairwise(ends)]
    return max(reversed(runs), key=len)


def _identifier(name: str) -> str:
    """``name`` as an identifier; ``i0, i1, ..`` are the names of axes."""
    text = re.sub(r"\W", "_", name)
    return text if text.isidentifier() and not re.fullmatch(r"i\d+", text) else f"dim_{text}"
