"""Reductions that share one pass although one of them reads another's result.

A state ``d`` is the reduction of ``a(x)``, and ``y`` the reduction of ``F(x, d)``. In blocks, ``d`` is not known before
the end. Where ``y`` for ``d'`` follows from ``y`` for ``d``, both can be carried from block to block, or computed for
parts of the axis and merged. For exponentials ``y`` moves by a factor, an exponential of the difference (Milakov and
Gimelshein, 2018). Squares of differences move by a triangular map of their first two moments (Chan, Golub and LeVeque,
1983). Both are read off the expressions; the purpose of the reductions does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.printer import brief
from luminal.core.schedule.nest import conditions
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import replace_leaves
from luminal.core.schedule.nest.walk import scalar_expressions
from luminal.core.symbolic import Var
from luminal.core.types import DType, bool_

# Factors of one term, at most. Repeated squaring doubles their number, and one pass would multiply by each: three
# kernels, which square stored values, are faster long before that.
FACTORS = 128
# Values that a product may have beside exponentials where what divides it moves out of its sum: of magnitudes up to
# 1e16, as the law of the algebra takes them, none overflows.
MOST_DATA = 2


@dataclass(frozen=True)
class Move:
    """The effect on a sum of a maximum's change from ``d`` to ``d'``: a factor ``Exp2[attr](scale * (d - d'))``. Where
    the sum reads ``d`` through a function ``guarded``, so does the factor: ``d`` where finite, or a bound of it."""

    state: str
    attr: Any
    scale: float
    guarded: ln.Scalar | None = None

    def of(self, maximum: ln.Scalar) -> ln.Scalar:
        """What the sum takes off where the maximum is ``maximum``."""
        if self.guarded is None:
            return maximum
        return replace_leaves(self.guarded, {ln.temporary(self.state, maximum.dtype): maximum})


@dataclass(frozen=True)
class Shift:
    """The square that a sum takes of ``varying + fixed``, of which ``varying`` alone varies along the axis.

    Over the real numbers, for any number m and with r and q the sums of ``varying - m`` and of its square over n terms,
    the sum is ``q + (m + fixed) * (2 * r + n * (m + fixed))``. With m close to the terms, r and q are small, and
    nothing cancels that the sum as it is spelled would keep.
    """

    varying: ln.Scalar
    fixed: ln.Scalar


@dataclass(frozen=True)
class Carried:
    """A reduction in a form that can be carried over blocks: ``outside * reduction of inside``, or 0.

    ``outside`` and ``inside`` are factors (for a maximum, ``inside`` is the value alone); those outside do not vary
    along the reduced axis. ``moves`` say how the carried part follows the states that ``inside`` reads, or ``shift``
    does, where ``inside`` is a square. The result is 0 where any of ``conditions`` fails; these do not vary along the
    axis either.
    """

    name: str
    op: ops.Op
    inside: tuple[ln.Scalar, ...]
    outside: tuple[ln.Scalar, ...]
    moves: tuple[Move, ...]
    conditions: tuple[ln.Scalar, ...] = ()
    shift: Shift | None = None

    @property
    def described(self) -> str:
        """The reduction, and how it follows what it reads, in words."""
        what = f"{self.name} = {self.op} of {ln.text(product(self.inside))}"
        if self.shift is not None:
            what += f"; a new {ln.text(self.shift.fixed)} shifts its first two moments"
        for move in dict.fromkeys(self.moves):
            old, new = (ln.temporary(move.state + suffix, self.inside[0].dtype) for suffix in ("", "'"))
            scale = "" if move.scale == 1.0 else f"{move.scale} * "
            difference = f"{scale}({ln.text(move.of(old))} - {ln.text(move.of(new))})"
            what += f"; with a new {move.state}', times Exp2[{brief(move.attr)}]({difference})"
        if self.outside:
            what += f"; in the end times {', '.join(map(ln.text, self.outside))}"
        return what


def derive(
    reductions: Sequence[ln.Reduction], row: Collection[Var], operand: DType | None = None
) -> tuple[Carried, ...]:
    """``reductions`` along the axes ``row``, each of which may read earlier ones, in the form that one pass carries.

    A factor that is rounded to the type ``operand`` counts as its value before rounding, as operands of contractions
    may be rounded anywhere before their product. The caller rounds what ``inside`` leaves unrounded.

    Raises ScheduleError where a change of a state does not act by a factor.
    """
    found: dict[str, Carried] = {}
    for reduction in reductions:
        found[reduction.name] = _carried(reduction, frozenset(row), found, operand)
    return tuple(found.values())


def _carried(
    reduction: ln.Reduction, row: frozenset[Var], before: dict[str, Carried], operand: DType | None = None
) -> Carried:
    if reduction.op is ops.MAX_REDUCE:
        if reads(reduction.value) & before.keys():
            raise ScheduleError(f"carry: the maximum {reduction.name} reads another reduction along its axis")
        return Carried(reduction.name, reduction.op, (reduction.value,), (), ())
    inside: list[ln.Scalar] = []
    outside: list[ln.Scalar] = []
    holds: list[ln.Scalar] = []
    rest = factors(reduction.value, operand)
    while rest:
        factor = rest.pop(0)
        chosen = _selected(factor, row, before)
        if chosen is not None:
            condition, value = chosen
            holds.append(condition)
            rest = [*factors(value, operand), *rest]
            _check_count(len(holds) + len(inside) + len(outside) + len(rest))
        else:
            (outside if row.isdisjoint(variables(factor)) else inside).append(factor)
    shift = _shift(inside, row, before)
    _check_range(inside, outside, before)
    moves = [] if shift else [move for factor in inside for move in _moves(factor, reduction.name, row, before)]
    return Carried(reduction.name, reduction.op, tuple(inside), tuple(outside), tuple(moves), tuple(holds), shift)


def _check_range(inside: Sequence[ln.Scalar], outside: Sequence[ln.Scalar], before: Mapping[str, Carried]) -> None:
    """Raises ScheduleError where what is ``inside`` might overflow or vanish without the factors ``outside``, by which
    it was multiplied: ``(x / max(x)) ** 4`` is at most 1, and ``x ** 4`` any number. Exponentials that follow a state
    are at most 1."""
    data = [f for f in inside if not (f.op is ops.EXP2 and reads(f) & before.keys())]
    if len(data) > MOST_DATA and any(reads(f) & before.keys() for f in outside):
        raise ScheduleError(f"carry: a product of {len(data)} values is divided by what is known at the end alone")


def factors(value: ln.Scalar, operand: DType | None = None) -> list[ln.Scalar]:
    """The factors of a product. A division is a product with the reciprocal; a value rounded to the type ``operand``
    counts as it is before rounding. Raises ScheduleError for more than ``FACTORS``."""
    found: list[ln.Scalar] = []
    rest = [value]
    while rest:
        value = rest.pop()
        if operand is not None and value.op is ops.CAST and value.operands[0].op is ops.CAST:
            (narrow,) = value.operands
            if narrow.dtype == operand and narrow.operands[0].dtype == value.dtype:
                rest.append(narrow.operands[0])
                continue
        if value.op is ops.MUL:
            rest += reversed(value.operands)
        elif value.op is ops.DIV and value.dtype.is_float:
            numerator, denominator = value.operands
            rest += [ln.apply(ops.RECIP, (denominator,), None, value.dtype), numerator]
        else:
            found.append(value)
            _check_count(len(found))
    return found


def _check_count(count: int) -> None:
    if count > FACTORS:
        raise ScheduleError(f"carry: a product of more than {FACTORS} factors")


def _moves(factor: ln.Scalar, name: str, row: frozenset[Var], before: dict[str, Carried]) -> list[Move]:
    states = sorted(reads(factor) & before.keys())
    if not states:
        return []
    if factor.op is not ops.EXP2 or len(states) > 1:
        raise ScheduleError(f"carry: {name} does not follow a change of {', '.join(states)} by a factor")
    (state,) = states
    terms = linear(factor.operands[0])
    taken = next((term for term in terms if _bounds(term, ln.temporary(state, factor.dtype), row)), None)
    of_state = terms.pop(taken) if taken is not None else 0.0
    carried = before[state]
    # It must be a maximum of the exponent itself: then a term of -inf has weight 0 whatever the other values are.
    own = {term: times * -of_state for term, times in linear(carried.inside[0]).items()}
    if carried.op is not ops.MAX_REDUCE or terms != own or of_state >= 0:
        raise ScheduleError(f"carry: the exponent of {name} is not a value less {state}, its maximum")
    assert taken is not None
    return [Move(state, factor.attr, -of_state, None if taken.op is None else taken)]


def _shift(inside: Sequence[ln.Scalar], row: frozenset[Var], before: dict[str, Carried]) -> Shift | None:
    """The shift of the square ``inside``, if it is one of a sum of terms that vary along the row, without reading a
    state, and others that do not and read one."""
    if len(inside) != 2 or inside[0] != inside[1] or not reads(inside[0]) & before.keys():
        return None
    varying: ln.Scalar | None = None
    fixed: ln.Scalar | None = None
    for term in _terms(inside[0]):
        if row.isdisjoint(variables(term)):
            fixed = term if fixed is None else ln.apply(ops.ADD, (fixed, term), None, term.dtype)
        elif reads(term) & before.keys():
            return None
        else:
            varying = term if varying is None else ln.apply(ops.ADD, (varying, term), None, term.dtype)
    return None if varying is None or fixed is None else Shift(varying, fixed)


def _terms(value: ln.Scalar) -> list[ln.Scalar]:
    """The terms of a sum, each once for every time that it is added. At most ``FACTORS``: a longer sum is one term."""
    found, rest = list[ln.Scalar](), [value]
    while rest:
        term = rest.pop()
        if term.op is ops.ADD and len(found) + len(rest) < FACTORS:
            rest += reversed(term.operands)
        else:
            found.append(term)
    return found


def _bounds(value: ln.Scalar, state: ln.Scalar, row: frozenset[Var]) -> bool:
    """Whether ``value`` is the maximum ``state`` or a function of it that bounds the same values: what it is where
    finite, or the larger of it and numbers that do not vary along the row."""
    if value.op is ops.MAX:
        fixed = [x for x in value.operands if x is not state]
        return len(fixed) == 1 and not reads(fixed[0]) and row.isdisjoint(variables(fixed[0]))
    return _is_finite_part(value, state)


def _is_finite_part(value: ln.Scalar, state: ln.Scalar) -> bool:
    """Whether ``value`` is ``state``, or that where it is finite, and some finite number elsewhere."""
    if value.op is not ops.SELECT:
        return value is state
    test, other, chosen = value.operands
    if test.op is not ops.EQUAL or chosen is not state or not _is_number_that(other, np.isfinite):
        return False
    minus_one = ln.literal(np.array(-1, state.dtype.numpy).tobytes(), state.dtype)
    negative = ln.apply(ops.MUL, (state, minus_one), None, state.dtype)
    magnitude, infinity = test.operands
    return _is_number_that(infinity, np.isinf) and magnitude in (
        state, ln.apply(ops.MAX, (state, negative), None, state.dtype),
    )  # fmt: skip


def _is_number_that(value: ln.Scalar, holds: Callable[[Any], Any]) -> bool:
    return isinstance(value.leaf, ln.Literal) and bool(holds(np.frombuffer(value.leaf.bits, value.dtype.numpy)[0]))


def _selected(factor: ln.Scalar, row: frozenset[Var], before: dict[str, Carried]) -> tuple[ln.Scalar, ln.Scalar] | None:
    """``(condition, value)`` where ``factor`` is ``value`` if the condition on the states holds, else 0, in the whole
    row."""
    if factor.op is not ops.SELECT or not reads(factor.operands[0]) & before.keys():
        return None
    condition, value, other = factor.operands
    if _is_zero(value):
        value, other, condition = other, value, conditions.negated(condition)
    condition = replace_leaves(condition, {s: t for s in ln.postorder(condition) if (t := _is_number(s, before))})
    return None if row & variables(condition) or not _is_zero(other) else (condition, value)


def _is_number(test: ln.Scalar, before: dict[str, Carried]) -> ln.Scalar | None:
    """A condition on the states that holds where a quotient is no NaN, if ``test`` compares the quotient with itself.

    The quotient is an exponential that follows its own maximum, so in 0 .. 1, divided by the sum of those. That sum is
    at least 1, or NaN as all the exponentials are; or 0, as the quotient's denominator, while everything was -inf.
    """
    if test.op is not ops.EQUAL or test.operands[0] != test.operands[1]:
        return None
    *numerator, reciprocal = factors(test.operands[0])
    denominator = reciprocal.operands[0] if reciprocal.op is ops.RECIP else reciprocal
    total = before.get(denominator.leaf.name) if isinstance(denominator.leaf, ln.Temporary) else None
    if total is None or denominator is reciprocal or not total.moves or any(move.guarded for move in total.moves):
        return None
    if len(numerator) != 1 or (total.inside, total.outside, total.conditions) != (tuple(numerator), (), ()):
        return None
    zero = ln.literal(np.zeros((), denominator.dtype.numpy).tobytes(), denominator.dtype)
    return ln.apply(ops.LESS_THAN, (zero, denominator), None, bool_)


def _is_zero(value: ln.Scalar) -> bool:
    return _is_number_that(value, np.logical_not)


def linear(value: ln.Scalar) -> dict[ln.Scalar, float]:
    """``value`` as a sum of scalars with constant factors."""
    found: dict[ln.Scalar, dict[ln.Scalar, float]] = {}
    for scalar in ln.postorder(value):
        found[scalar] = _linear(scalar, found)
    return found[value]


def _linear(value: ln.Scalar, below: Mapping[ln.Scalar, dict[ln.Scalar, float]]) -> dict[ln.Scalar, float]:
    if value.op is ops.ADD:
        found: dict[ln.Scalar, float] = {}
        for operand in value.operands:
            for term, factor in below[operand].items():
                found[term] = found.get(term, 0.0) + factor
        return found
    if value.op is ops.MUL:
        for one, other in (value.operands, value.operands[::-1]):
            if isinstance(other.leaf, ln.Literal):
                number = float(np.frombuffer(other.leaf.bits, other.dtype.numpy)[0])
                return {term: factor * number for term, factor in below[one].items()}
    return {value: 1.0}


# ---- what merges results of parts ----------------------------------------------------------------------------------


def number(value: float, dtype: DType) -> ln.Scalar:
    """A constant."""
    return ln.literal(np.array(value, dtype.numpy).tobytes(), dtype)


def is_empty(maximum: ln.Scalar) -> ln.Scalar:
    """Whether a maximum is -inf: of no values, or of -inf alone."""
    return ln.apply(ops.EQUAL, (maximum, number(-np.inf, maximum.dtype)), None, bool_)


def finite(maximum: ln.Scalar) -> ln.Scalar:
    """What to take off values of which ``maximum`` is the maximum: while it is -inf, any finite number will do, since
    every exponential of what is left is 0."""
    zero = number(0.0, maximum.dtype)
    return ln.apply(ops.SELECT, (is_empty(maximum), zero, maximum), None, maximum.dtype)


def factor(moves: Iterable[Move], old: Callable[[str], ln.Scalar], new: Callable[[str], ln.Scalar]) -> ln.Scalar:
    """The factor of a sum with ``moves`` as the maxima change from what ``old`` gives to what ``new`` gives."""
    found: list[ln.Scalar] = []
    for move in dict.fromkeys(moves):
        before, dtype = old(move.state), old(move.state).dtype
        negative = ln.apply(ops.MUL, (move.of(new(move.state)), number(-1.0, dtype)), None, dtype)
        difference = ln.apply(ops.ADD, (move.of(before), negative), None, dtype)
        if move.scale != 1.0:
            difference = ln.apply(ops.MUL, (difference, number(move.scale, dtype)), None, dtype)
        exponential = ln.apply(ops.EXP2, (difference,), move.attr, dtype)
        # While the old maximum is -inf, the carried part is 0, and -inf less -inf must not make it NaN.
        found.append(ln.apply(ops.SELECT, (is_empty(before), number(0.0, dtype), exponential), None, dtype))
    return product(found)


def product(of: Sequence[ln.Scalar]) -> ln.Scalar:
    """The product of one or more scalars."""
    result = of[0]
    for other in of[1:]:
        result = ln.apply(ops.MUL, (result, other), None, result.dtype)
    return result


# ---- what scalars depend on ----------------------------------------------------------------------------------------


def reads(value: ln.Scalar) -> set[str]:
    """The temporaries that ``value`` reads."""
    return {s.leaf.name for s in ln.postorder(value) if isinstance(s.leaf, ln.Temporary)}


def variables(value: ln.Scalar) -> set[Var]:
    """The index variables that ``value`` depends on, not counting its temporaries."""
    return {v for e in scalar_expressions(value) for v in sym.variables(e)}
