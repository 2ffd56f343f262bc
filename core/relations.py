"""Relations between symbolic sizes: what has to hold for two sizes to be equal.

A model may need sizes to agree that are free by themselves: the batches of two inputs, or the two sides of a network
that halves an image and doubles it again. Front ends ask here what that says about the symbols, and import the model
again under it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from luminal.core import symbolic as sym
from luminal.core.expressions import FloorDiv, Mod, operands
from luminal.core.symbolic import Int, Var


@dataclass(frozen=True)
class Equal:
    """``symbol`` has the value ``value``, which does not contain it."""

    symbol: Var
    value: Int

    def __str__(self) -> str:
        return f"{self.symbol} = {self.value}"


@dataclass(frozen=True)
class Stepped:
    """``symbol`` is ``rest`` more than a multiple of ``step``."""

    symbol: Var
    step: int
    rest: int = 0

    def __str__(self) -> str:
        return f"{self.symbol} is {multiple(self.step, self.rest)}"


Relation: TypeAlias = Equal | Stepped

_STEPS = 4096  # the largest step that is looked for
_RESTS = 64  # the largest step with which other remainders than 0 are tried
_TOGETHER = 3  # symbols that are tried together


def implied(pairs: Sequence[tuple[Int, Int]], free: Sequence[Var]) -> Relation | None:
    """A relation of the ``free`` symbols without which the two sizes of one of the ``pairs`` would not be equal for any
    value; None where none is found. Where either of two symbols can be given by the other, the later one is.

    A step is sufficient for the sizes to be equal, and need not be necessary: ``2 * ceil(c / 2) = c``, where ``c`` is
    ``ceil(h / 16)``, holds for ``h = 17`` too, but is a fact of multiples of 32.
    """
    for a, b in pairs:
        difference = a - b
        symbols = [symbol for symbol in free if symbol in sym.variables(difference)]
        found = _equal(difference, symbols) or _stepped(difference, symbols)
        if found is not None:
            return found
    return None


def unequal(left: Sequence[Int], right: Sequence[Int]) -> list[tuple[Int, Int]]:
    """The sizes of two shapes of one rank that differ, axis by axis."""
    return [(a, b) for a, b in zip(left, right, strict=False) if a != b] if len(left) == len(right) else []


def _equal(difference: Int, symbols: Sequence[Var]) -> Equal | None:
    """A symbol by which ``difference`` is 0: the last that is a single symbol or a number, else the last there is."""
    found: list[Equal] = []
    for symbol in reversed(symbols):
        linear = sym.coefficient(difference, symbol)
        if linear is None or linear[0] == 0:
            continue
        slope, rest = linear
        if not isinstance(slope, int) and not (sym.always(slope - 1) or sym.never(slope)):
            continue
        value = sym.floordiv(rest * -1, slope) if sym.always(slope) else sym.floordiv(rest, slope * -1)
        if value * slope + rest == 0 and _fits(symbol, value):
            found.append(Equal(symbol, value))
    simple = (e for e in found if isinstance(e.value, int) or sym.as_var(e.value) is not None)
    return next(simple, next(iter(found), None))


def _fits(symbol: Var, value: Int) -> bool:
    """Whether ``value`` is a size, and ``symbol`` can have it."""
    low, high = sym.lower(value), sym.upper(value)
    most = sym.upper(symbol.hi)
    return low is not None and low >= 0 and (high is None or high >= symbol.lo) and (most is None or low <= most)


def _stepped(difference: Int, symbols: Sequence[Var]) -> Stepped | None:
    """A symbol and the least step with which ``difference`` is 0, alone or beside steps of other symbols."""
    divisors = {symbol: divisor for symbol in symbols if 1 < (divisor := _divisor(difference, symbol)) <= _STEPS}
    for count in range(1, min(len(divisors), _TOGETHER) + 1):
        for group in itertools.combinations(divisors, count):
            first = divisors[group[0]]
            for rest in range(first if count == 1 and first <= _RESTS else 1):
                steps = {symbol: (divisors[symbol], rest) for symbol in group}
                if _vanishes(difference, steps):
                    return _least(difference, steps, group[0])
    return None


def _least(difference: Int, steps: Mapping[Var, tuple[int, int]], symbol: Var) -> Stepped:
    """The step of ``symbol`` made as small as ``difference`` allows, the others as they are."""
    step, rest = steps[symbol]
    for smaller in range(2, step):
        if step % smaller == 0 and _vanishes(difference, {**steps, symbol: (smaller, rest % smaller)}):
            return Stepped(symbol, smaller, rest % smaller)
    return Stepped(symbol, step, rest)


def _vanishes(difference: Int, steps: Mapping[Var, tuple[int, int]]) -> bool:
    """Whether ``difference`` is 0 for all symbols that have these steps and rests."""
    by: dict[Var, Int] = {}
    for symbol, (step, rest) in steps.items():
        size = stepped(symbol.name, symbol.lo, sym.upper(symbol.hi) or symbol.lo, step, rest)
        if size is None:
            return False
        by[symbol] = size
    return sym.substitute(difference, by) == 0


def stepped(name: str, low: int, high: int, step: int, rest: int = 0) -> Int | None:
    """The sizes in ``low .. high`` that are ``rest`` more than a multiple of ``step``, in a symbol that counts them; it
    has the ``name``, with the step. None where there are none."""
    first, last = -((rest - low) // step), (high - rest) // step
    if last < first:
        return None
    return sym.var(name if step == 1 else f"{name}_{step}", first, last) * step + rest


def multiple(step: int, rest: int = 0) -> str:
    """``a multiple of 32`` in words, or ``3 more than`` one."""
    return f"{f'{rest} more than ' if rest else ''}a multiple of {step}"


def _divisor(value: Int, symbol: Var) -> int:
    """The product of all numbers that ``symbol`` is divided by, along the deepest quotients of ``value``."""
    return math.lcm(1, *_divisors(value, symbol, 1))


def _divisors(value: Int, symbol: Var, outside: int) -> Collection[int]:
    found: set[int] = set()
    for atom in sym.atoms(value):
        number = outside
        if isinstance(atom, FloorDiv | Mod) and isinstance(atom.den, int) and symbol in sym.variables(atom.num):
            number = outside * atom.den
            found.add(number)
        for inside in operands(atom):
            if number <= _STEPS:
                found |= set(_divisors(inside, symbol, number))
    return found
