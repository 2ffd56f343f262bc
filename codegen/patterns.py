"""Scalars that one function of the runtime headers computes, where the primitives take several steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from luminal.codegen.cpp import ctype
from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.schedule.nest import Index, Literal, Scalar
from luminal.core.types import f32, u8

Function: TypeAlias = Callable[[Scalar], tuple[str, tuple[Scalar, ...]] | None]


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


def beside_tiles(scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """As ``function``, in kernels of tile operations: ``digits<T>(bytes, amount)`` are the numbers of fewer
    than 8 bits that begin at a bit of every byte, as floats."""
    if scalar.op is ops.CAST and scalar.dtype == f32:
        (number,) = scalar.operands
        if number.op is ops.CAST and number.dtype.is_integer and number.dtype.bits < 8:
            (shifted,) = number.operands
            if shifted.op is ops.SHR and shifted.dtype == u8 and _begins_in_byte(shifted.operands[1]):
                return f"digits<{ctype(number.dtype)}>", shifted.operands
    return function(scalar)


def _begins_in_byte(amount: Scalar) -> bool:
    """Whether a scalar is the number of one of 8 bits."""
    leaf = amount.operands[0].leaf if amount.op is ops.CAST else amount.leaf
    highest = sym.upper(leaf.value) if isinstance(leaf, Index) else None
    return highest is not None and highest < 8


def _is_bound(scalar: Scalar) -> bool:
    """Whether a scalar is a number other than +0, which is larger than the -0 that it equals."""
    if not isinstance(scalar.leaf, Literal):
        return False
    value = float(np.frombuffer(scalar.leaf.bits, scalar.dtype.numpy)[0])
    return not math.isnan(value) and (value != 0 or math.copysign(1, value) < 0)
