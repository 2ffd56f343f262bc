"""Exponentials of values less their maximum, with fewer roundings: rewrites of a pass, each with its error.

They hold over the real numbers, where the order of sums may change too. ``row_without_factor`` and ``of_multiples``
move a positive factor of the values into the exponential's own constant. ``by_multiply_add`` takes off the maximum, and
multiplies, in one step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from luminal.core import ops
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.carried import Carried, Move, finite, linear, number, reads
from luminal.core.schedule.nest.conditions import is_minus_infinity
from luminal.core.schedule.nest.rewrite import replace_leaves, replace_scalars, wrap
from luminal.core.schedule.nest.walk import perfect_loops
from luminal.core.types import DType, bool_

# ---- a factor of all values ------------------------------------------------------------------------------------------


def multiple(value: ln.Scalar) -> tuple[float, ln.Scalar]:
    """``(c, x)``, of the type of ``value``, which is the number c > 0 times x; c is 1 where nothing better is known.

    A product that is rounded to a narrow type is one without that rounding where x has that type and c is a power of
    two: it only moves the exponent. That is exact but below the least normal number of the type, where rounding would
    add an error of at most half the least number above zero. c does not take x beyond the range of the type.
    """
    if value.op is ops.SELECT:
        condition, *pair = value.operands
        for place, other in enumerate(reversed(pair)):
            if is_minus_infinity(other):  # which is c times itself
                c, x = multiple(pair[place])
                pair[place] = x
                return c, ln.apply(ops.SELECT, (condition, *pair), value.attr, value.dtype)
    product, narrow = value, value.op is ops.CAST and value.dtype.is_float and value.dtype.compute != value.dtype
    if narrow:
        (product,) = value.operands
    if product.op is not ops.MUL or not product.dtype.is_float:
        return 1.0, value
    for x, by in (product.operands, product.operands[::-1]):
        factor = _constant(by)
        if factor is None or not 0 < factor < math.inf:
            continue
        if not narrow and product.dtype.compute == product.dtype:
            return factor, x
        same = x.op is ops.CAST and x.operands[0].dtype == value.dtype
        power = math.frexp(factor)[0] == math.frexp(1.0)[0]
        if narrow and same and power and factor <= _room(value.dtype, product.dtype):
            return factor, x.operands[0]
    return 1.0, value


def _constant(value: ln.Scalar) -> float | None:
    return float(np.frombuffer(value.leaf.bits, value.dtype.numpy)[0]) if isinstance(value.leaf, ln.Literal) else None


def _room(narrow: DType, wide: DType) -> float:
    """The most that a value of ``narrow`` may be multiplied by: where it is then too large for one, so it is for one of
    ``wide``, or it never is."""
    return math.inf if float(narrow.max) * 2 > float(wide.max) else 1.0


def row_without_factor(nest: ln.LoopNest) -> ln.LoopNest:
    """``nest``, whose first loop fills a row: with a row of x where it is c * x (``multiple``), and c * x where it is
    read."""
    loops, body = perfect_loops(nest.body)
    match body:
        case (ln.Alloc() as row, ln.Loop(body=(*before, ln.Store() as store)) as fill, *rest):
            c, x = multiple(store.value)
        case _:
            return nest
    if c == 1.0:
        return nest

    def read(value: ln.Scalar) -> ln.Scalar:
        by: dict[ln.Scalar, ln.Scalar] = {}
        for scalar in ln.postorder(value):
            of_row = scalar.operands[0] if scalar.op is ops.CAST else scalar
            if not isinstance(of_row.leaf, ln.Access) or of_row.leaf.array != row.name:
                continue
            compute = row.dtype.compute
            wide = of_row if compute == row.dtype else ln.apply(ops.CAST, (of_row,), ops.To(compute), compute)
            times = ln.apply(ops.MUL, (wide, number(c, compute)), None, compute)
            to = scalar.dtype
            by[scalar] = times if to == compute else ln.apply(ops.CAST, (times,), ops.To(to), to)
        return replace_leaves(value, by)

    filled = replace(fill, body=(*before, replace(store, value=x)))
    return replace(nest, body=wrap(loops, (row, filled, *replace_scalars(tuple(rest), read))))


def of_multiples(states: Sequence[Carried]) -> tuple[list[Carried], dict[str, float]]:
    """``states`` of a pass, where a maximum of ``a * x`` over the row, with the number a > 0, is that of ``x``; and by
    its name what it is to be multiplied with.

    Rounding keeps the order, so the maximum of rounded products is the rounded product of the maximum. Exponentials of
    ``a * x`` less the maximum become those of ``a`` times the difference, with one rounding fewer: their error is no
    larger. The exponential's constant has to stay a normal number: infinity times the difference 0 would be NaN.
    """
    bases: dict[str, tuple[float, ln.Scalar]] = {}
    for state in states:
        if state.op is not ops.MAX_REDUCE:
            continue
        moves = _moves(states, state.name)
        ((x, a), *more) = linear(state.inside[0]).items()
        plain = not more and all(move.guarded is None for move in moves)
        if a > 0 and plain and all(_is_normal(move.attr.scale * move.scale * a) for move in moves):
            bases[state.name] = a, x

    def exponential(factor: ln.Scalar, move: Move) -> ln.Scalar:
        """``factor``, which follows the maximum as ``move`` says."""
        x, dtype = bases[move.state][1], factor.dtype
        less = ln.apply(ops.MUL, (ln.temporary(move.state, dtype), number(-1.0, dtype)), None, dtype)
        return ln.apply(ops.EXP2, (ln.apply(ops.ADD, (x, less), None, dtype),), attr(move), dtype)

    def attr(move: Move) -> ops.Scale:
        return ops.Scale(move.attr.scale * move.scale * bases[move.state][0], move.attr.digits)

    result = []
    for state in states:
        if state.name in bases:
            state = replace(state, inside=(bases[state.name][1],))
        elif bases:
            state = _with_moves(state, bases, exponential, lambda m: replace(m, attr=attr(m), scale=1.0))
        result.append(state)
    return result, {name: a for name, (a, _) in bases.items()}


def _moves(states: Sequence[Carried], maximum: str) -> list[Move]:
    """How ``states`` follow ``maximum``."""
    return [move for state in states for move in state.moves if move.state == maximum]


def _is_normal(value: float) -> bool:
    """Whether a number above zero is within the normal ones of float32."""
    return float(np.finfo(np.float32).tiny) <= value <= float(np.finfo(np.float32).max)


def _with_moves(
    state: Carried, maxima: Collection[str], exponential: Callable[[ln.Scalar, Move], ln.Scalar],
    moved: Callable[[Move], Move],
) -> Carried:  # fmt: skip
    """``state`` with other exponentials and moves, where they follow one of ``maxima``; they are in the same order."""
    moves = iter(state.moves)
    inside, after = list[ln.Scalar](), list[Move]()
    for factor in state.inside:
        move = next(moves) if reads(factor) else None
        known = move is not None and move.state in maxima
        inside.append(exponential(factor, move) if known and move else factor)
        after += [] if move is None else [moved(move) if known else move]
    return replace(state, inside=tuple(inside), moves=tuple(after))


# ---- one multiply-add ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScaledMaximum:
    """How the maximum ``state``, of values of ``precision`` significant bits, is taken off such a value x before
    ``2**(factor * (x - maximum))``: in float32 by ``x * scale - maximum * scale``, both rounded once.

    ``scale`` is the factor where the maximum is below ``limit`` in magnitude. What is taken off is then not exact. But
    it is the same for all terms, whose quotients are as without that, and at most 1 from what it should be
    (``is_near``), so that nothing overflows. From ``limit`` on ``scale`` is a power of two below the factor, by which
    products are exact: the greatest terms are 1, and all others, which are at least ``2**-precision`` of the maximum
    less, below the least normal number, as they should be. The exponent has one rounding fewer than the scaled
    difference, and none is larger.
    """

    state: str
    factor: float
    precision: int

    @property
    def power(self) -> float:
        """The power of two below the factor by which no number overflows."""
        return min(2.0 ** math.floor(math.log2(self.factor)), 1.0)

    @property
    def limit(self) -> float:
        exponents = 2.0 ** math.ceil(math.log2(-np.finfo(np.float32).minexp))  # of all normal numbers below 1
        return exponents * 2.0**self.precision / self.power

    @property
    def is_near(self) -> bool:
        """Whether rounding changes a product below ``limit`` by at most 1."""
        return _is_normal(self.factor) and self.limit * self.factor * float(np.finfo(np.float32).epsneg) <= 1

    @property
    def scale(self) -> str:
        """The name of what is multiplied with."""
        return f"{self.state}_scale"

    @property
    def offset(self) -> str:
        """The name of what is added: the negative of what is taken off."""
        return f"{self.state}_offset"

    def defined(self, maximum: ln.Scalar) -> tuple[ln.Define, ln.Define]:
        """The definitions of both for a value of the maximum."""
        dtype = maximum.dtype
        negative = ln.apply(ops.MUL, (maximum, number(-1.0, dtype)), None, dtype)
        magnitude = ln.apply(ops.MAX, (maximum, negative), None, dtype)
        below = ln.apply(ops.LESS_THAN, (magnitude, number(self.limit, dtype)), None, bool_)
        factors = (number(self.factor, dtype), number(self.power, dtype))
        scale = ln.apply(ops.SELECT, (below, *factors), None, dtype)
        taken = ln.apply(ops.MUL, (finite(maximum), ln.temporary(self.scale, dtype)), None, dtype)
        offset = ln.apply(ops.MUL, (taken, number(-1.0, dtype)), None, dtype)
        return ln.Define(self.scale, scale), ln.Define(self.offset, offset)


def precision(value: ln.Scalar) -> int:
    """How many significant bits ``value`` has at most. A function of narrow numbers may have all of its type."""
    found: dict[ln.Scalar, int] = {}
    for scalar in ln.postorder(value):
        most = 0 if is_minus_infinity(scalar) else scalar.dtype.significant
        if scalar.op is ops.CAST:
            most = min(most, found[scalar.operands[0]])
        elif scalar.op is ops.SELECT:
            most = max(found[x] for x in scalar.operands[1:])
        found[scalar] = most
    return found[value]


def by_multiply_add(states: Sequence[Carried]) -> tuple[list[Carried], dict[str, ScaledMaximum]]:
    """``states`` of a pass, after which nothing but the last is used, with exponentials by multiply-adds where that is
    a quotient; and by its name how each maximum is taken off. The caller asks for fewer digits of exponentials than
    float32 has, as factors are rounded to that."""
    *others, result = states
    if result.inside[0].dtype.numpy != np.float32 or not _is_quotient(result, others):
        return list(states), {}
    taken: dict[str, ScaledMaximum] = {}
    for maximum in others:
        moves = _moves(states, maximum.name)
        factors = {move.attr.scale * move.scale for move in moves}
        if maximum.op is ops.MAX_REDUCE and len(factors) == 1 and all(move.guarded is None for move in moves):
            (factor,) = factors
            found = ScaledMaximum(maximum.name, factor, precision(maximum.inside[0]))
            if found.is_near and linear(maximum.inside[0]) == {maximum.inside[0]: 1.0}:
                taken[maximum.name] = found

    def exponential(factor: ln.Scalar, move: Move) -> ln.Scalar:
        dtype, of = factor.dtype, taken[move.state]
        (x,) = next(state for state in others if state.name == move.state).inside
        scaled = (x, ln.temporary(of.scale, dtype), ln.temporary(of.offset, dtype))
        exponent = ln.apply(ops.MULTIPLY_ADD, scaled, None, dtype)
        return ln.apply(ops.EXP2, (exponent,), replace(move.attr, scale=1.0), dtype)

    def moved(move: Move) -> Move:
        dtype = result.inside[0].dtype
        by = (ln.temporary(move.state, dtype), ln.temporary(taken[move.state].scale, dtype))
        return Move(move.state, replace(move.attr, scale=1.0), 1.0, ln.apply(ops.MUL, by, None, dtype))

    made = [s if s.op is ops.MAX_REDUCE else _with_moves(s, taken, exponential, moved) for s in states]
    return made, taken


def _is_quotient(result: Carried, others: Sequence[Carried]) -> bool:
    """Whether ``result`` stays the same where all sums that follow a maximum are multiplied by one number: it is
    divided by sums that follow what it follows, and reads nothing else of ``others`` but whether those are positive."""
    sums = {ln.temporary(state.name, state.inside[0].dtype): state for state in others}
    reciprocal = {ln.apply(ops.RECIP, (x,), None, x.dtype): state for x, state in sums.items()}
    by = [reciprocal[factor] for factor in result.outside if factor in reciprocal]
    free = [factor for factor in result.outside if factor not in reciprocal]
    free += [
        c
        for c in result.conditions
        if not (c.op is ops.LESS_THAN and _constant(c.operands[0]) == 0 and c.operands[1] in sums)
    ]
    free += [x for state in by for x in (*state.outside, *state.conditions)]
    names = {state.name for state in others}
    followed = Counter(move.state for state in by for move in state.moves)
    return not any(reads(x) & names for x in free) and Counter(move.state for move in result.moves) == followed
