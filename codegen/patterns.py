"""Scalars that one function of the runtime headers computes, where the primitives take several steps."""

from __future__ import annotations

import math

import numpy as np

from luminal.core import ops
from luminal.core.schedule.nest import Literal, Scalar


def function(scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """The name of a function that gives ``scalar``, and its arguments; None where there is none.

    ``lesser(a, b)`` is ``a < b ? a : b`` and ``greater(a, b)`` is ``a < b ? b : a``, an instruction each on most
    machines. So is a maximum with a number: it need not ask whether that is NaN.
    """
    if not scalar.dtype.is_float:
        return None
    if scalar.op is ops.SELECT and scalar.operands[0].op is ops.LESS_THAN:
        compared, branches = scalar.operands[0].operands, scalar.operands[1:]
        if branches == compared:
            return "lesser", compared
        if branches == compared[::-1]:
            return "greater", compared
    if scalar.op is ops.MAX:
        for x, bound in (scalar.operands, scalar.operands[::-1]):
            if _is_bound(bound):
                return "greater", (x, bound)
    return None


def arguments(scalar: Scalar) -> tuple[Scalar, ...]:
    """What the text of ``scalar`` is made of."""
    found = function(scalar)
    return scalar.operands if found is None else found[1]


def _is_bound(scalar: Scalar) -> bool:
    """Whether a scalar is a number other than +0, which is larger than the -0 that it equals."""
    if not isinstance(scalar.leaf, Literal):
        return False
    value = float(np.frombuffer(scalar.leaf.bits, scalar.dtype.numpy)[0])
    return not math.isnan(value) and (value != 0 or math.copysign(1, value) < 0)
