"""Quotients that are rounded to integers of few bits, as products with the divisor's reciprocal.

Quantised models divide by a constant scale and round before they store: ``cast(round(x / c) + z)``. A division takes
the time of a dozen products. The reciprocal as a sum of two numbers, ``h + l``, gives

    x / c  =  x * h + x * l,    the second product rounded, and the sum of both once

with an error slightly above half an ULP: the rounded quotient itself, unless the exact one is very close to halfway
between two numbers (Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when the
divisor is known in advance", 2004). Whether that matters is decided exactly: both sides are monotonic step functions of
``x`` with integer values, so they are equal everywhere if every step is at the same float. ``h`` is the reciprocal
rounded towards zero: ``l`` then has the same sign, and an infinite ``x`` stays infinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from luminal.core import ir, ops, traverse
from luminal.core.constants import uniform
from luminal.core.ir import Node
from luminal.core.multiply_add import multiply_add
from luminal.core.rules.pattern import EXAMPLE_SHAPE, NODES, Rule, filled_as
from luminal.core.rules.quantised import quantised
from luminal.core.types import DType, f32, i8, u8

LEAST_DIVISOR, GREATEST_DIVISOR = 2.0**-60, 2.0**60  # for these, both parts of the reciprocal are normal numbers
NEAR = 3  # floats on either side of a step that are compared


def _multiplied(node: Node) -> Node | None:
    """The cast ``node`` without its division; None if it has none, or if the result would differ for some ``x``."""
    found = quantised(node, NODES)
    if found is None:
        return None
    quotient, zero = found
    divisor = uniform(quotient.inputs[1]) if quotient.op is ops.DIV else None
    parts = None if divisor is None else _reciprocal(float(divisor), zero, node.dtype)
    if parts is None:
        return None
    x = quotient.inputs[0]
    high, low = parts
    return traverse.substitute([node], {quotient: ir.multiply_add(x, high, x * low)})[0]


@cache
def _reciprocal(divisor: float, zero: int, to: DType) -> tuple[float, float] | None:
    """Two parts of ``1 / divisor`` with which every float32 gives the same integer as its quotient; None if some float
    would not, or if the float32 reciprocal is exact, as of a power of two."""
    if not LEAST_DIVISOR <= divisor <= GREATEST_DIVISOR:
        return None
    high = np.float32(1 / divisor)
    if float(high) * divisor > 1:  # exact: 48 bits
        high = np.nextafter(high, np.float32(0))
    low = np.float32((1 - float(high) * divisor) / divisor)
    if low == 0:
        return None
    # The floats at and beside every step, which is halfway between two integers.
    steps = _steps(zero, to)
    bits = (steps * divisor).astype(np.float32).view(np.int32)
    x = (bits[:, None] + np.arange(-NEAR, NEAR + 1, dtype=np.int32)).view(np.float32)
    wanted = np.rint(x / np.float32(divisor))
    crossed = (wanted.min(1) < steps) & (wanted.max(1) > steps)
    found = np.rint(multiply_add(x, np.asarray(high), x * low))
    return (float(high), float(low)) if crossed.all() and np.array_equal(wanted, found) else None


def _steps(zero: int, to: DType) -> np.ndarray[Any, Any]:
    """The quotients at which the rounded integer of type ``to`` changes; ``zero`` is the zero point."""
    return np.arange(int(to.min), int(to.max), dtype=np.float64) + 0.5 - zero


def _examples() -> Iterator[Node]:
    x = ir.input_("x", EXAMPLE_SHAPE, f32)
    for scale, zero, to in ((0.1, 0, u8), (3.7e-3, 128, u8), (0.0235, -3, i8), (11.0, 0, i8)):
        whole = ir.unary(ops.ROUND, x / filled_as(scale, x), ops.Rounding("even"))
        yield ir.cast(whole + zero if zero else whole, to)


# For machines with a fused multiply-add instruction.
RULES = (Rule("cast(round(x / c) + z) = cast(round(x * h + x * l) + z)", (ops.CAST,), _multiplied, _examples),)
