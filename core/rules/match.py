"""Patterns of elementwise primitives, and one matcher for the nodes of graphs and the scalars of nests.

Terms of both kinds are interned: equal terms are one object, and a function is a graph with shared parts. So the
matcher tests each pair of a pattern and a term once for agreeing primitives and numbers. Only the orders of operands
that agree are then searched for bindings of names.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from luminal.core import ops
from luminal.core.ops import Op
from luminal.core.types import DType, bool_

FACTORS = 6  # most factors of a product that are searched, and most nested products


class Term(Protocol):
    """A term that can be matched: its primitive (None in a leaf), the primitive's attribute, and the result's type."""

    @property
    def op(self) -> Op | None: ...
    @property
    def attr(self) -> Any: ...
    @property
    def dtype(self) -> DType: ...


T = TypeVar("T", bound=Term)


# ---- patterns: compared by identity, like terms ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Any_:
    """Any term; the same name twice is the same term."""

    name: str
    dtype: DType | None = None  # None: any type; in a rule's example, that of the example


@dataclass(frozen=True, eq=False)
class Number:
    """A constant all of whose elements are this number, with this sign of zero."""

    value: float
    dtype: DType | None = None  # None: any type that has it; in a rule's example, that of the example


@dataclass(frozen=True, eq=False)
class Constant:
    """Any constant whose elements are all one number; the term is bound to ``name``."""

    name: str


@dataclass(frozen=True, eq=False)
class Apply:
    """An elementwise primitive; operands of a commutative one match in both orders. If the pattern occurs several times
    in another, all occurrences match one term."""

    op: Op
    operands: tuple[Pattern, ...]
    attr: Any = None


@dataclass(frozen=True, eq=False)
class Composed:
    """``function`` of what ``inner`` matches. ``spelled`` gives the pattern of ``function`` of ``X`` for a type."""

    function: Callable[..., Any]
    spelled: Callable[[DType], Pattern]
    inner: Pattern


@dataclass(frozen=True, eq=False)
class Shifted:
    """What ``inner`` matches, or that plus a number, which is bound to ``name``: 0.0 where there is none."""

    name: str
    inner: Pattern


@dataclass(frozen=True, eq=False)
class Scaled:
    """What ``inner`` matches, or a product or real quotient of it and a number. The factor (for a quotient, the
    reciprocal of the number) is bound to ``name``: 1.0 where there is no number."""

    name: str
    inner: Pattern


@dataclass(frozen=True, eq=False)
class Product:
    """A product of ``factors``, each once, and of numbers, in any order. The product of the numbers is bound to
    ``name``. A factor that is ``Any_`` stands after one in which it occurs."""

    name: str
    factors: tuple[Pattern, ...]


@dataclass(frozen=True, eq=False)
class Alone:
    """What ``inner`` matches, if nothing else reads it, so that replacing the whole pattern removes it."""

    inner: Pattern


Pattern: TypeAlias = Any_ | Number | Constant | Apply | Composed | Shifted | Scaled | Product | Alone
Bound: TypeAlias = dict[Any, Any]  # terms and numbers by their names; inside the matcher, terms by an ``Apply`` too

X, Y, Z = Any_("x"), Any_("y"), Any_("z")
P = Any_("p", bool_)
TRUE, FALSE = Number(1, bool_), Number(0, bool_)
C, D = Constant("c"), Constant("d")


def apply(op: Op, *operands: Pattern | float, attr: Any = None) -> Apply:
    """A pattern of ``op``; a Python number stands for a constant of that value."""
    return Apply(op, tuple(Number(o) if isinstance(o, int | float) else o for o in operands), attr)


# ---- the matcher -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matcher(Generic[T]):
    """Matches patterns on one kind of terms, which three functions read: ``operands`` of a term, the ``number`` of a
    constant of one number (else None), and whether only one other term reads it (``alone``)."""

    operands: Callable[[T], tuple[T, ...]]
    number: Callable[[T], Any]
    alone: Callable[[T], bool] = lambda term: True

    def match(self, pattern: Pattern, term: T) -> Iterator[dict[str, Any]]:
        """Every way in which ``term`` is an instance of ``pattern``: what the names of ``pattern`` stand for."""
        for bound in self._match(pattern, term, {}, {}):
            yield {name: found for name, found in bound.items() if isinstance(name, str)}

    def _match(self, pattern: Pattern, term: T, bound: Bound, asked: dict[Any, bool]) -> Iterator[Bound]:
        """The extensions of ``bound`` with which ``term`` is an instance of ``pattern``."""
        if not self._agrees(pattern, term, asked):
            return
        match pattern:
            case Apply():
                yield from self._applied(pattern, term, bound, asked)
            case Any_() | Constant():
                if bound.get(pattern.name, term) is term:
                    yield {**bound, pattern.name: term}
            case Number():
                yield bound
            case Composed():
                for found in self.match(pattern.spelled(term.dtype), term):
                    yield from self._match(pattern.inner, found[X.name], bound, asked)
            case Shifted():
                x, number = self._beside_number(ops.ADD, term) or (term, 0.0)
                yield from self._match(pattern.inner, x, {**bound, pattern.name: number}, asked)
            case Scaled():
                x, number = self._beside_number(ops.MUL, term) or self._quotient(term) or (term, 1.0)
                yield from self._match(pattern.inner, x, {**bound, pattern.name: number}, asked)
            case Product():
                yield from self._product(pattern, term, bound, asked)
            case Alone():
                if self.alone(term):
                    yield from self._match(pattern.inner, term, bound, asked)

    def _agrees(self, pattern: Pattern, term: T, asked: dict[Any, bool]) -> bool:
        """Whether ``term`` has the primitives and numbers of ``pattern``, for any bindings of names."""
        key = pattern, term
        if key not in asked:
            asked[key] = self._has(pattern, term, asked)
        return asked[key]

    def _has(self, pattern: Pattern, term: T, asked: dict[Any, bool]) -> bool:
        match pattern:
            case Apply():
                if term.op is not pattern.op or (pattern.attr is not None and term.attr != pattern.attr):
                    return False
                return bool(self._orders(pattern, term, asked))
            case Any_():
                return pattern.dtype in (None, term.dtype)
            case Constant():
                return self.number(term) is not None
            case Number():
                return pattern.dtype in (None, term.dtype) and _is(self.number(term), pattern.value, term.dtype)
        return True  # asked of the parts

    def _orders(self, pattern: Apply, term: T, asked: dict[Any, bool]) -> list[tuple[T, ...]]:
        """The orders in which the operands of ``term`` agree with those of ``pattern``."""
        operands = self.operands(term)
        orders = [operands]
        if pattern.op.commutative and operands[0] is not operands[1]:
            orders.append(operands[::-1])
        return [
            order
            for order in orders
            if all(self._agrees(inner, x, asked) for inner, x in zip(pattern.operands, order, strict=True))
        ]

    def _applied(self, pattern: Apply, term: T, bound: Bound, asked: dict[Any, bool]) -> Iterator[Bound]:
        if pattern in bound:
            if bound[pattern] is term:
                yield bound
            return
        for operands in self._orders(pattern, term, asked):
            found = [bound]
            for inner, x in zip(pattern.operands, operands, strict=True):
                found = [extended for before in found for extended in self._match(inner, x, before, asked)]
            yield from ({**extended, pattern: term} for extended in found)

    # ---- numbers beside a term ----

    def _beside_number(self, op: Op, term: T) -> tuple[T, float] | None:
        """``(x, number)`` if ``term`` is the commutative ``op`` of x and a constant number, else None."""
        if term.op is op:
            first, second = self.operands(term)
            for x, other in ((first, second), (second, first)):
                if (number := self.number(other)) is not None:
                    return x, float(number)
        return None

    def _quotient(self, term: T) -> tuple[T, float] | None:
        """``(x, 1 / number)`` if ``term`` is a float quotient of x by a nonzero constant number, else None."""
        if term.op is ops.DIV and term.dtype.is_float:
            x, divisor = self.operands(term)
            if number := self.number(divisor):
                return x, 1 / float(number)
        return None

    def _product(self, pattern: Product, term: T, bound: Bound, asked: dict[Any, bool]) -> Iterator[Bound]:
        if term.op is not ops.MUL:
            return
        parts = [term]
        for part in parts:
            if part.op is ops.MUL and len(parts) < FACTORS and (part is term or self.alone(part)):
                parts += self.operands(part)
        found: list[tuple[Bound, tuple[T, ...]]] = [(bound, ())]
        for factor in pattern.factors:
            if isinstance(factor, Any_):
                found = [(before, (*chosen, before[factor.name])) for before, chosen in found]
            else:
                found = [
                    (extended, (*chosen, part))
                    for before, chosen in found
                    for part in parts
                    for extended in self._match(factor, part, before, asked)
                ]
        for extended, chosen in found:
            numbers, factors = self._factors(term, chosen, FACTORS)
            if Counter(factors) == Counter(chosen):
                yield {**extended, pattern.name: numbers}

    def _factors(self, term: T, whole: tuple[T, ...], depth: int) -> tuple[float, tuple[T, ...]]:
        """The product of the numbers in a product, and its other factors. Factors in ``whole`` are not split."""
        number = self.number(term)
        if number is not None:
            return float(number), ()
        if term in whole or term.op is not ops.MUL or depth == 0:
            return 1.0, (term,)
        first, second = self.operands(term)
        (a, left), (b, right) = (self._factors(x, whole, depth - 1) for x in (first, second))
        return a * b, left + right


def _is(found: Any, value: float, dtype: DType) -> bool:
    """Whether the number ``found``, of ``dtype``, is ``value`` (integers wrap), with its sign of zero."""
    if found is None:
        return False
    if dtype.is_float:
        x = float(found)
        return (x == value and math.copysign(1, x) == math.copysign(1, value)) or (x != x and value != value)
    if not float(value).is_integer():
        return False
    if dtype.is_bool:
        return bool(int(found) == value)
    return dtype.is_integer and (int(found) - int(value)) % (1 << dtype.bits) == 0
