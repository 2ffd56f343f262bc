"""Identities of products and sums for ``egglog``: see ``benchmarks.saturation``."""
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Iterator

from egglog import Expr, StringLike, birewrite, eq, function, i64, i64Like, rewrite, rule, ruleset, set_, set_cost


class Term(Expr):
    """A tensor, or what is made of tensors."""

    def __init__(self, name: StringLike) -> None: ...

    def __mul__(self, other: Term) -> Term: ...

    def __add__(self, other: Term) -> Term: ...


@function
def summed(axis: i64Like, x: Term) -> Term: ...


@function(merge=lambda a, b: a | b)
def axes(x: Term) -> i64: ...


@function
def volume(mask: i64Like) -> i64: ...


@ruleset
def analysis(a: Term, b: Term, x: Term, k: i64, m: i64, n: i64, v: i64) -> Iterator[object]:
    """On which axes a term depends, and what it costs: as many multiplications, or additions, as it has elements."""
    yield rule(eq(x).to(a * b), eq(m).to(axes(a)), eq(n).to(axes(b))).then(set_(axes(x)).to(m | n))
    yield rule(eq(x).to(a + b), eq(m).to(axes(a)), eq(n).to(axes(b))).then(set_(axes(x)).to(m | n))
    yield rule(eq(x).to(summed(k, a)), eq(m).to(axes(a))).then(set_(axes(x)).to(m & (m ^ k)))
    yield rule(eq(x).to(a * b), eq(m).to(axes(x)), eq(v).to(volume(m))).then(set_cost(a * b, v))
    yield rule(eq(x).to(a + b), eq(m).to(axes(x)), eq(v).to(volume(m))).then(set_cost(a + b, v))


@ruleset
def identities(a: Term, b: Term, c: Term, k: i64, j: i64, m: i64) -> Iterator[object]:
    """``a (b + c)`` is not multiplied out: that may enlarge the error."""
    yield rewrite(a * b).to(b * a)
    yield birewrite((a * b) * c).to(a * (b * c))
    yield rewrite(a + b).to(b + a)
    yield birewrite((a + b) + c).to(a + (b + c))
    yield rewrite(a * b + a * c).to(a * (b + c))
    yield rewrite(summed(k, a + b)).to(summed(k, a) + summed(k, b))
    yield rewrite(summed(k, a) + summed(k, b)).to(summed(k, a + b))
    yield rewrite(summed(k, summed(j, a))).to(summed(j, summed(k, a)))
    yield rewrite(summed(k, a * b)).to(a * summed(k, b), eq(m).to(axes(a)), eq(m & k).to(i64(0)))
    yield rewrite(a * summed(k, b)).to(summed(k, a * b), eq(m).to(axes(a)), eq(m & k).to(i64(0)))
