"""What affine conditions say about values: where an exponential is zero by structure, not by its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.schedule.nest import ir as ln
from luminal.core.symbolic import Int
from luminal.core.types import DType, bool_


def minus_infinity_unless(value: ln.Scalar) -> list[Int]:
    """Conditions (``>= 0``); where any of them fails, ``value`` is -inf, and its exponential zero.

    What is added to -inf is taken to be neither NaN nor +inf, and a factor to be positive only where it is a constant.
    """
    found: list[Int] = []
    seen: set[ln.Scalar] = set()
    stack = [value]
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.op is ops.SELECT:
            condition, chosen, other = value.operands
            if is_minus_infinity(other):
                found += implied(condition)
                stack.append(chosen)
            elif is_minus_infinity(chosen):
                found += denied(condition)
                stack.append(other)
        elif value.op is ops.ADD:
            stack += reversed(value.operands)
        elif value.op is ops.MUL:
            pairs = (value.operands, value.operands[::-1])
            scaled = (one for one, other in pairs if isinstance(other.leaf, ln.Literal) and _number(other) > 0)
            stack += islice(scaled, 1)
    return found


def is_minus_infinity(value: ln.Scalar) -> bool:
    """Whether ``value`` is the constant -inf."""
    return isinstance(value.leaf, ln.Literal) and value.dtype.is_float and _number(value) == -np.inf


def _number(literal: ln.Scalar) -> float:
    assert isinstance(literal.leaf, ln.Literal)
    return float(np.frombuffer(literal.leaf.bits, literal.dtype.numpy)[0])


def implied(condition: ln.Scalar) -> list[Int]:
    """Affine conditions (``>= 0``) that hold wherever ``condition`` is true."""
    if isinstance(condition.leaf, ln.Holds):
        return list(condition.leaf.valid)
    if condition.op is ops.AND and condition.dtype.is_bool:
        return [c for operand in condition.operands for c in implied(operand)]
    if condition.op is ops.LESS_THAN:
        less, more = map(affine_index, condition.operands)
        return [] if less is None or more is None else [more - less - 1]
    inverted = _inverted(condition)
    return [] if inverted is None else denied(inverted)


def denied(condition: ln.Scalar) -> list[Int]:
    """Affine conditions (``>= 0``) that hold wherever ``condition`` is false."""
    if condition.op is ops.OR and condition.dtype.is_bool:
        return [c for operand in condition.operands for c in denied(operand)]
    if condition.op is ops.LESS_THAN:
        less, more = map(affine_index, condition.operands)
        return [] if less is None or more is None else [less - more]
    inverted = _inverted(condition)
    return [] if inverted is None else implied(inverted)


def _inverted(condition: ln.Scalar) -> ln.Scalar | None:
    """``x`` where ``condition`` is its negation."""
    if condition.op is ops.XOR and condition.dtype.is_bool:
        for one, other in (condition.operands, condition.operands[::-1]):
            if isinstance(other.leaf, ln.Literal) and any(other.leaf.bits):
                return one
    if condition.op is ops.EQUAL and condition.operands[0].dtype.is_bool:
        for one, other in (condition.operands, condition.operands[::-1]):
            if isinstance(other.leaf, ln.Literal) and not any(other.leaf.bits):
                return one
    return None


def negated(condition: ln.Scalar) -> ln.Scalar:
    """True where ``condition`` is false."""
    inverted = _inverted(condition)
    return ln.apply(ops.XOR, (condition, ln.literal(b"\1", bool_)), None, bool_) if inverted is None else inverted


def affine_index(value: ln.Scalar) -> Int | None:
    """An integer scalar as an affine expression of loop indices; None where it is none, or its type might overflow."""
    found: dict[ln.Scalar, Int | None] = {}
    for scalar in ln.postorder(value):
        exact = _exact(scalar, found) if scalar.dtype.is_integer else None
        held = exact is not None and _holds(scalar.dtype, exact)
        found[scalar] = exact if held else None  # otherwise the integer may wrap around
    return found[value]


def _holds(dtype: DType, value: Int) -> bool:
    return sym.always(value - int(dtype.min)) and sym.always(int(dtype.max) - value)


def _exact(value: ln.Scalar, positions: Mapping[ln.Scalar, Int | None]) -> Int | None:
    """``value`` as an expression, before it is wrapped to its type; ``positions`` are those of its operands."""
    if isinstance(value.leaf, ln.Index):
        return value.leaf.value
    if isinstance(value.leaf, ln.Literal):
        return int(np.frombuffer(value.leaf.bits, value.dtype.numpy)[0])
    if value.op is ops.CAST:
        return positions[value.operands[0]]
    if value.op is ops.ADD or value.op is ops.MUL:
        left, right = (positions[x] for x in value.operands)
        if left is None or right is None:
            return None
        if value.op is ops.ADD:
            return left + right
        return left * right if isinstance(left, int) or isinstance(right, int) else None
    return None
