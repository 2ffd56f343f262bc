"""Integer expressions in normal form, their bounds, quotients and remainders.

An expression is a polynomial with integer coefficients over atoms, kept in normal form, so that equal expressions
compare equal. Atoms are variables (dimension symbols and loop axes, both with bounds) and the quotients, remainders,
minima and maxima that no rule could dissolve. Whatever is constant is a plain ``int``; functions here take and return
``int | Expr``.

Bounds may themselves be symbolic: an axis of extent ``S`` runs over ``0 .. S-1``, which is what lets ``(b*S + s) // S``
simplify to ``b``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias, Union

Int: TypeAlias = Union[int, "Expr"]
Monomial: TypeAlias = tuple["Atom", ...]


class Atom:
    """A factor of a monomial. Subclasses are frozen dataclasses; ``key`` orders them deterministically."""

    __slots__ = ()

    @property
    def key(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Var(Atom):
    """A named integer in ``lo .. hi`` (both inclusive; ``hi`` may be symbolic); ``usual``, where that is known."""

    name: str
    lo: int
    hi: Int
    usual: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FloorDiv(Atom):
    """``floor(num / den)`` with ``den > 0``."""

    num: Int
    den: Int

    def __str__(self) -> str:
        return f"({_grouped(self.num)} // {_grouped(self.den)})"


@dataclass(frozen=True)
class Mod(Atom):
    """``num - den * floor(num / den)`` with ``den > 0``, so the result is in ``0 .. den-1``."""

    num: Int
    den: Int

    def __str__(self) -> str:
        return f"({_grouped(self.num)} % {_grouped(self.den)})"


@dataclass(frozen=True)
class MinMax(Atom):
    """The smaller (``which = "min"``) or larger (``"max"``) of two expressions."""

    which: str
    a: Int
    b: Int

    def __str__(self) -> str:
        return f"{self.which}({self.a}, {self.b})"


def _grouped(value: Int) -> str:
    text = str(value)
    return f"({text})" if isinstance(value, Expr) and len(value.terms) > 1 else text


class Expr:
    """A non-constant polynomial in normal form: ``terms`` maps sorted monomials to non-zero coefficients."""

    __slots__ = ("_hash", "_text", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._text: str | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self._hash == other._hash and self.terms == other.terms)

    def __add__(self, other: Int) -> Int:
        return normal([*self.terms, *terms_of(other)])

    __radd__ = __add__

    def __neg__(self) -> Int:
        return self * -1

    def __sub__(self, other: Int) -> Int:
        return self + other * -1

    def __rsub__(self, other: Int) -> Int:
        return self * -1 + other

    def __mul__(self, other: Int) -> Int:
        if isinstance(other, int):
            return Expr(tuple((m, c * other) for m, c in self.terms)) if other else 0
        products = [
            (tuple(sorted(ma + mb, key=lambda a: a.key)), ca * cb) for ma, ca in self.terms for mb, cb in other.terms
        ]
        return normal(products)

    __rmul__ = __mul__

    def __floordiv__(self, other: Int) -> Int:
        return floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Int:
        return floordiv(other, self)

    def __mod__(self, other: Int) -> Int:
        return mod(self, other)

    def __rmod__(self, other: int) -> Int:
        return mod(other, self)

    def __str__(self) -> str:
        if self._text is None:
            self._text = _text(self.terms)
        return self._text

    def __repr__(self) -> str:
        return str(self)

    @property
    def constant(self) -> int:
        """The constant term."""
        return next((c for m, c in self.terms if not m), 0)


def _text(terms: tuple[tuple[Monomial, int], ...]) -> str:
    parts: list[str] = []
    for monomial, coefficient in sorted(terms, key=lambda t: (not t[0], [a.key for a in t[0]])):
        factors = [str(a) for a in monomial]
        magnitude = abs(coefficient)
        if magnitude != 1 or not factors:
            factors.insert(0, str(magnitude))
        sign = "-" if coefficient < 0 else "+"
        parts.append(f" {sign} " + "*".join(factors) if parts else ("-" if coefficient < 0 else "") + "*".join(factors))
    return "".join(parts)


def terms_of(value: Int) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(value, Expr):
        return value.terms
    return (((), int(value)),) if value else ()


def normal(terms: list[tuple[Monomial, int]]) -> Int:
    """Collect like monomials; rejoin ``d*(x//d) + x%d`` into ``x`` and ``d*((x//d) % e) + x%d`` into ``x % (d*e)``."""
    total: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        total[monomial] = total.get(monomial, 0) + coefficient
    total = {m: c for m, c in total.items() if c}
    rejoined = _rejoin(total)
    if rejoined is not None:
        return rejoined
    if not total:
        return 0
    if len(total) == 1 and () in total:
        return total[()]
    return Expr(tuple(sorted(total.items(), key=lambda t: [a.key for a in t[0]])))


def _rejoin(total: dict[Monomial, int]) -> Int | None:
    if len(total) < 2:
        return None
    remainders = {a for monomial in total for a in monomial if isinstance(a, Mod)}
    for monomial, coefficient in total.items():
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Mod):
                continue
            factor = _product(monomial[:position] + monomial[position + 1 :], coefficient)
            high = floordiv(atom.num, atom.den)
            wholes = [(high, atom.num)]
            wholes += [
                (expr(digit), mod(atom.num, atom.den * digit.den))
                for digit in sorted(remainders - {atom}, key=lambda a: a.key)
                if mod(high, digit.den) == expr(digit)
            ]
            for part, whole in wholes:
                wanted = terms_of(part * atom.den * factor)
                if wanted and all(total.get(m) == c for m, c in wanted):
                    taken = {monomial, *(m for m, _ in wanted)}
                    left = [(m, c) for m, c in total.items() if m not in taken]
                    return normal([*left, *terms_of(whole * factor)])
    return None


def _product(monomial: Monomial, coefficient: int) -> Int:
    return Expr(((monomial, coefficient),)) if monomial else coefficient


def expr(atom: Atom) -> Expr:
    """``atom`` alone, as an expression."""
    return Expr((((atom,), 1),))


def var(name: str, lo: int, hi: Int) -> Int:
    """A variable in ``lo .. hi`` inclusive; a plain int where the range holds one value."""
    return lo if hi == lo else expr(Var(name, lo, hi))


def axis(name: str, extent: Int) -> Int:
    """A loop variable over ``0 .. extent-1`` (the constant 0 where the extent is 1)."""
    return var(name, 0, extent - 1)


def as_var(value: Int) -> Var | None:
    """The variable that ``value`` is, if it is exactly one variable."""
    atom = _alone(value)
    return atom if isinstance(atom, Var) else None


def atoms(value: Int) -> set[Atom]:
    """Every atom at the top level of ``value`` (not those inside quotients)."""
    return {a for m, _ in terms_of(value) for a in m}


def operands(atom: Atom) -> tuple[Int, ...]:
    """The expressions that ``atom`` is made of; none of a variable."""
    if isinstance(atom, FloorDiv | Mod):
        return atom.num, atom.den
    return (atom.a, atom.b) if isinstance(atom, MinMax) else ()


def variables(value: Int) -> set[Var]:
    """Every variable that occurs anywhere in ``value``, bounds of variables excluded."""
    found: set[Var] = set()
    for atom in atoms(value):
        if isinstance(atom, Var):
            found.add(atom)
        else:
            found.update(*map(variables, operands(atom)))
    return found


# ---- bounds -------------------------------------------------------------------------------------------------------


def _atom_lo(atom: Atom) -> Int | None:
    if isinstance(atom, Var):
        return atom.lo
    if isinstance(atom, Mod):
        return 0
    if isinstance(atom, FloorDiv):
        low, least, most = lower(atom.num), lower(atom.den), upper(atom.den)
        if low is None or low < 0:
            return low  # divisors are not negative, and a quotient by 0 is 0
        return low // most if most is not None and least is not None and least >= 1 else 0
    assert isinstance(atom, MinMax)
    a, b = lower(atom.a), lower(atom.b)
    if atom.which == "max":
        return a if b is None else b if a is None else max(a, b)
    return None if a is None or b is None else min(a, b)


def _atom_hi(atom: Atom) -> Int | None:
    if isinstance(atom, Var):
        return atom.hi
    if isinstance(atom, Mod):
        return atom.den - 1
    if isinstance(atom, FloorDiv):
        high, least = upper(atom.num), lower(atom.den) or 0
        if high is None:
            return None
        return high // max(least, 1) if high >= 0 else -1 if least >= 1 else 0
    assert isinstance(atom, MinMax)
    a, b = upper(atom.a), upper(atom.b)
    if atom.which == "min":
        return a if b is None else b if a is None else min(a, b)
    return None if a is None or b is None else max(a, b)


def _depth(atom: Atom) -> int:
    """Variables whose bounds name other variables must be replaced first."""
    if isinstance(atom, Var):
        return 0 if isinstance(atom.hi, int) else 1 + max(_depth(a) for a in atoms(atom.hi))
    return 1 + max((_depth(v) for v in variables(expr(atom))), default=0)


@lru_cache(maxsize=1 << 16)
def lower(value: Int) -> int | None:
    """A proven lower bound of ``value``, or None where none could be found."""
    for _ in range(64):
        if isinstance(value, int):
            return value
        pending = sorted(atoms(value), key=lambda a: (-_depth(a), a.key))
        # Where no atom pushes one way only, the ends of one that pushes both ways give a weaker bound.
        ends = (end(value, atom) for end in (_extreme, _both_ends) for atom in pending)
        bound = next((end for end in ends if end is not None), None)
        if bound is None:
            return None
        value = bound
    return None


def _extreme(value: Expr, atom: Atom) -> Int | None:
    """``value`` with ``atom`` at the end of its range that makes ``value`` smallest, if that end is certain."""
    rising = falling = False
    for monomial, coefficient in value.terms:
        if atom not in monomial:
            continue
        others = list(monomial)
        others.remove(atom)
        if any((low := _atom_lo(a)) is None or not isinstance(low, int) or low < 0 for a in others):
            return None
        if coefficient > 0:
            rising = True
        else:
            falling = True
    if rising and falling:
        return None
    end = _atom_lo(atom) if rising else _atom_hi(atom)
    return None if end is None else _replace_atom(value, atom, end)


def _both_ends(value: Expr, atom: Atom) -> Int | None:
    """A lower bound of ``value`` with ``atom`` at its low end where it adds and at its high end where it subtracts."""
    low, high = _atom_lo(atom), _atom_hi(atom)
    total: Int = 0
    for monomial, coefficient in value.terms:
        term = Expr(((monomial, coefficient),))
        if atom in monomial:
            end = _extreme(term, atom)
            if end is None or low is None or high is None:
                return None
            total = total + end
        else:
            total = total + term
    return total


def _replace_atom(value: Expr, atom: Atom, by: Int) -> Int:
    total: Int = 0
    for monomial, coefficient in value.terms:
        term: Int = coefficient
        for factor in monomial:
            term = term * (by if factor == atom else expr(factor))
        total = total + term
    return total


def upper(value: Int) -> int | None:
    """A proven upper bound of ``value``, or None where none could be found."""
    if isinstance(value, int):
        return value
    low = lower(value * -1)
    return None if low is None else -low


def either(value: Int, which: str) -> list[Int]:
    """``value`` with every smaller (``which = "min"``) or larger (``"max"``) of two that adds to it replaced by the one
    and by the other: it exceeds none of these, or falls below none. A bound of one of them may be better than what
    ``upper`` or ``lower`` finds for ``value``."""
    if not isinstance(value, Expr):
        return [value]
    for atom in sorted((a for a in atoms(value) if isinstance(a, MinMax) and a.which == which), key=lambda a: a.key):
        if [(monomial, c > 0) for monomial, c in value.terms if atom in monomial] == [((atom,), True)]:
            return [found for e in (atom.a, atom.b) for found in either(_replace_atom(value, atom, e), which)]
    return [value]


def always(value: Int) -> bool:
    """Whether ``value >= 0`` is proven."""
    low = lower(value)
    return low is not None and low >= 0


def never(value: Int) -> bool:
    """Whether ``value < 0`` is proven."""
    high = upper(value)
    return high is not None and high < 0


# ---- quotients and remainders --------------------------------------------------------------------------------------


def _divide_term(monomial: Monomial, coefficient: int, den: Int) -> Int | None:
    """The exact quotient of one term by ``den`` (an int, or an expression of one term), if there is one."""
    ((den_monomial, den_coefficient),) = terms_of(den)
    if coefficient % den_coefficient:
        return None
    rest = list(monomial)
    for atom in den_monomial:
        if atom not in rest:
            return None
        rest.remove(atom)
    return _product(tuple(rest), coefficient // den_coefficient)


def _split(num: Int, den: Int) -> tuple[Int, Int]:
    """``(q, r)`` with ``num == q*den + r``, where ``q`` takes every term that ``den`` divides exactly."""
    if isinstance(den, Expr) and len(den.terms) != 1:
        return _split_by_sum(num, den)
    quotient: Int = 0
    rest: Int = 0
    for monomial, coefficient in terms_of(num):
        exact = _divide_term(monomial, coefficient, den)
        if exact is not None:
            quotient = quotient + exact
        elif isinstance(den, int) and not monomial:
            quotient, rest = quotient + coefficient // den, rest + coefficient % den
        else:
            rest = rest + _product(monomial, coefficient)
    return quotient, rest


def _split_by_sum(num: Int, den: Expr) -> tuple[Int, Int]:
    """``_split`` by a sum: ``q`` takes the multiples of ``den`` that stand in ``num`` with all their terms, as
    ``b + h`` does in ``b*S + b + h*S + h + s`` by ``S + 1``."""
    quotient: Int = 0
    rest = num
    pivot = max((monomial for monomial, _ in den.terms), key=len)
    for monomial, _ in terms_of(num):
        factor = _divide_term(monomial, 1, _product(pivot, 1))
        if factor is None:
            continue
        multiple = den * factor
        found = dict(terms_of(rest))
        shares = [(found.get(m, 0), c) for m, c in terms_of(multiple)]
        times = min(abs(has) // abs(c) for has, c in shares)
        signs = {has * c > 0 for has, c in shares}
        if times and len(signs) == 1:
            times = times if signs.pop() else -times
            quotient, rest = quotient + factor * times, rest - multiple * times
    return quotient, rest


def _common(num: Int, den: Int) -> tuple[int, Int, Int] | None:
    """``(g, high, low)`` with ``num == g*high + low``, ``g`` dividing ``den`` and ``0 <= low < g`` proven."""
    content = math.gcd(*(c for _, c in terms_of(den)))
    factors = {math.gcd(c, content) for m, c in terms_of(num) if m}
    for g in sorted((f for f in factors if f > 1), reverse=True):
        high, low = _split(num, g)
        if always(low) and always(g - 1 - low):
            return g, high, low
    return None


def _is_digit(value: Int, den: Int) -> bool:
    """Whether ``value`` is a quotient ``a // b`` with ``0 <= a < b*den``, and so in ``0 .. den-1``."""
    atom = _alone(value)
    return isinstance(atom, FloorDiv) and always(atom.num) and always(atom.den * den - 1 - atom.num)


def _alone(value: Int) -> Atom | None:
    """The atom that ``value`` is, if it is exactly one."""
    if not isinstance(value, Expr) or len(value.terms) != 1:
        return None
    ((monomial, coefficient),) = value.terms
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def _same_quotient(value: Int, den: Int) -> int | None:
    """``value // den``, where it is proven to be the same for all values of their variables; else None."""
    if isinstance(den, int):
        low, high = lower(value), upper(value)
        if low is not None and high is not None and low // den == high // den:
            return low // den
    elif always(value) and always(den - 1 - value):
        return 0
    elif never(value) and always(value + den):
        return -1
    return 0 if _is_digit(value, den) else None


def _whole(num: Int, den: Int) -> Int | None:
    """``num // den``, where that is a sum of terms since what is left of every coefficient adds up to nothing, as
    ``201*n // 100`` is ``2*n`` for ``n < 100``; else None."""
    if not isinstance(den, int) or isinstance(num, int):
        return None
    parts = [(monomial, coefficient // den) for monomial, coefficient in num.terms]
    if not any(times for _, times in parts):
        return None
    whole = normal([(monomial, times) for monomial, times in parts if times])
    same = _same_quotient(num - whole * den, den)
    return None if same is None else whole + same


@lru_cache(maxsize=1 << 16)
def floordiv(num: Int, den: Int) -> Int:
    """``floor(num / den)`` for ``den > 0``; 0 for ``den == 0``: an axis of extent 0 has no positions to number."""
    if den == 0:
        return 0
    if den == 1:
        return num
    if isinstance(num, int) and isinstance(den, int):
        return num // den
    quotient, rest = _split(num, den)
    same = _same_quotient(rest, den)
    if same is not None:
        return quotient + same
    if quotient != 0:
        return quotient + floordiv(rest, den)
    whole = _whole(num, den)
    if whole is not None:
        return whole
    common = _common(num, den)
    if common is not None and common[0] != den:
        return floordiv(common[1], floordiv(den, common[0]))
    atom = _alone(num)
    if isinstance(atom, FloorDiv):
        return floordiv(atom.num, atom.den * den)
    if isinstance(atom, Mod) and mod(atom.den, den) == 0:
        return mod(floordiv(atom.num, den), floordiv(atom.den, den))
    return expr(FloorDiv(num, den))


@lru_cache(maxsize=1 << 16)
def mod(num: Int, den: Int) -> Int:
    """``num`` modulo ``den`` for ``den > 0``, in ``0 .. den-1``; 0 for ``den == 0``, as ``floordiv``."""
    if den in (0, 1):
        return 0
    if isinstance(num, int) and isinstance(den, int):
        return num % den
    _, rest = _split(num, den)
    same = _same_quotient(rest, den)
    if same is not None:
        return rest - den * same
    whole = _whole(rest, den)
    if whole is not None:
        return rest - whole * den
    common = _common(rest, den)
    if common is not None and common[0] != den:
        g, high, low = common
        return mod(high, floordiv(den, g)) * g + low
    atom = _alone(rest)
    if isinstance(atom, Mod) and mod(atom.den, den) == 0:
        return mod(atom.num, den)
    return expr(Mod(rest, den))
