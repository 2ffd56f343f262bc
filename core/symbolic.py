"""Integer expressions: dimensions, indices and the conditions of validity masks.

What they are, their normal form and their bounds are in ``expressions``; here are the functions of them.
"""

# ruff: noqa: F403, F405 - one address for expressions and their functions

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from luminal.core.expressions import *


def ceildiv(num: Int, den: Int) -> Int:
    """``ceil(num / den)`` for ``den > 0``."""
    return floordiv(num + den - 1, den)


def minimum(a: Int, b: Int) -> Int:
    """The smaller of two expressions; decided where bounds allow."""
    if always(b - a):
        return a
    if always(a - b):
        return b
    return expr(MinMax("min", *sorted((a, b), key=str)))


def maximum(a: Int, b: Int) -> Int:
    """The larger of two expressions; decided where bounds allow."""
    if always(a - b):
        return a
    if always(b - a):
        return b
    return expr(MinMax("max", *sorted((a, b), key=str)))


def product(values: Any) -> Int:
    """The product of an iterable of expressions."""
    total: Int = math.prod(values)
    return total


# ---- substitution and evaluation -----------------------------------------------------------------------------------


def substitute(value: Int, by: Mapping[Var, Int]) -> Int:
    """``value`` with variables replaced and simplified again."""
    if isinstance(value, int) or not by:
        return value
    terms: list[tuple[Monomial, int]] = []
    for monomial, coefficient in value.terms:
        term: Int = 1
        for atom in monomial:
            replaced = _substitute_atom(atom, by)
            term = replaced if term == 1 else term * replaced
        terms += [(m, c * coefficient) for m, c in terms_of(term)]
    return normal(terms)


def _substitute_atom(atom: Atom, by: Mapping[Var, Int]) -> Int:
    if isinstance(atom, Var):
        return by.get(atom, expr(atom))
    if isinstance(atom, FloorDiv):
        return floordiv(substitute(atom.num, by), substitute(atom.den, by))
    if isinstance(atom, Mod):
        return mod(substitute(atom.num, by), substitute(atom.den, by))
    assert isinstance(atom, MinMax)
    combine: Callable[[Int, Int], Int] = minimum if atom.which == "min" else maximum
    return combine(substitute(atom.a, by), substitute(atom.b, by))


def fixing(*sizes: Int) -> str:
    """What a user gives to fix the symbols in ``sizes``."""
    names = sorted({symbol.name for size in sizes for symbol in variables(size)})
    return f"dims={{{', '.join(f'{name!r}: SIZE' for name in names)}}}"


def evaluate(value: Int, env: Mapping[str, Any]) -> Any:
    """The number (or numpy array, where ``env`` holds arrays) that ``value`` has under the bindings ``env`` by name.

    Raises KeyError for a variable that ``env`` does not bind.
    """
    total: Any = 0
    for monomial, coefficient in terms_of(value):
        term: Any = coefficient
        for atom in monomial:
            term = term * _evaluate_atom(atom, env)
        total = total + term
    return total


def _evaluate_atom(atom: Atom, env: Mapping[str, Any]) -> Any:
    if isinstance(atom, Var):
        return env[atom.name]
    if isinstance(atom, FloorDiv):
        return evaluate(atom.num, env) // evaluate(atom.den, env)
    if isinstance(atom, Mod):
        return evaluate(atom.num, env) % evaluate(atom.den, env)
    assert isinstance(atom, MinMax)
    a, b = evaluate(atom.a, env), evaluate(atom.b, env)
    smaller = (a <= b) * a + (a > b) * b
    return smaller if atom.which == "min" else a + b - smaller


def coefficient(value: Int, of: Var) -> tuple[Int, Int] | None:
    """``(c, rest)`` with ``value == c*of + rest`` and neither holding ``of``; None where it is not linear in ``of``."""
    slope: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for monomial, factor in terms_of(value):
        occurrences = sum(a == of for a in monomial)
        inside = any(of in variables(expr(a)) for a in monomial if a != of)
        if inside or occurrences > 1:
            return None
        if occurrences:
            others = list(monomial)
            others.remove(of)
            slope.append((tuple(others), factor))
        else:
            rest.append((monomial, factor))
    return normal(slope), normal(rest)
