"""Scalars that one function of the runtime headers computes, where the primitives take several steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from luminal.codegen.cpp import ctype
from luminal.core import ops
from luminal.core import symbolic as sym
from luminal.core.rules.match import Any_, C, Matcher, Pattern, X, Y, apply
from luminal.core.rules.quantised import quantised, restored
from luminal.core.schedule.nest.ir import Index, Literal, Scalar, postorder
from luminal.core.symbolic import Var
from luminal.core.types import f32, i8, i16, u8, u16

SMALLEST = 2.0**-100  # a product of at least this and a nonzero integer does not underflow

STORED = (u8, i8, u16, i16)  # the types of integers that ``quantise`` gives

Function: TypeAlias = Callable[[Scalar], tuple[str, tuple[Scalar, ...]] | None]


def function(scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """The name of a function that computes ``scalar``, and its arguments; None where there is none.

    ``quantise<T, zero>(x)`` is ``x`` rounded to a whole number, plus ``zero``, as the narrow integer type ``T``;
    ``fake_quantise<T, zero>(x)`` is the same minus ``zero``, as a float. For the others see ``OF_TWO``.
    """
    if scalar.op is ops.CAST:
        return _quantised(scalar) or _restored(scalar)
    if scalar.dtype.is_float:
        for name, pattern, holds in OF_TWO:
            for found in SCALARS.match(pattern, scalar):
                if holds(**found):
                    return name, (found["x"], found["y"])
    return None


def _quantised(scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """``quantise`` and its argument, where ``scalar`` matches."""
    found = quantised(scalar, SCALARS) if scalar.dtype in STORED else None
    return None if found is None else (f"quantise<{_parameters(scalar, found[1])}>", found[:1])


def _restored(scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """``fake_quantise`` and its argument, where ``scalar`` matches: the zero point subtracted is the one added."""
    whole, less = restored(scalar, SCALARS) or (None, 0)
    found = quantised(whole, SCALARS) if whole is not None and whole.dtype in STORED else None
    if whole is None or found is None or found[1] != less:
        return None
    return f"fake_quantise<{_parameters(whole, less)}>", found[:1]


def _parameters(whole: Scalar, zero: int) -> str:
    """The quantised type and the zero point as template arguments."""
    return ctype(whole.dtype) + (f", {zero}" if zero else "")


def beside_tiles(scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """As ``function``, for kernels of tile operations, which also have ``digits<T>(bytes, amount)``: the numbers of a
    type ``T`` below 8 bits that begin at bit ``amount`` of every byte, as floats."""
    if scalar.op is ops.CAST and scalar.dtype == f32:
        dtype = scalar.operands[0].dtype
        for found in SCALARS.match(DIGITS, scalar):
            if dtype.is_integer and dtype.bits < 8 and _begins_in_byte(found["amount"]):
                return f"digits<{ctype(dtype)}>", (found["bytes"], found["amount"])
    return function(scalar)


def in_bytes(scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    """As ``beside_tiles``, for bytes that are computed beside each other, whose numbers begin at known bits:
    ``digits_in_bytes<T, amount>(bytes)`` are those of a type ``T`` below 8 bits, ``shifted_left<amount>(bytes)`` and
    ``shifted_right<amount>(bytes)`` bytes moved by so many bits."""
    return _in_bytes(scalar) or beside_tiles(scalar)


def in_words(scalar: Scalar, axis: Var) -> tuple[str, tuple[Scalar, ...]] | None:
    """As ``in_bytes``, for vectors of bytes along ``axis`` that are computed four at a time, and for these alone.
    Numbers may also begin at a bit that all lanes share: ``shifted_right(bytes, amount)``."""
    if (found := _in_bytes(scalar)) is not None:
        return found
    if scalar.op is ops.CAST and scalar.dtype.is_integer and scalar.dtype.bits < 8 and scalar.operands[0].dtype == u8:
        return f"digits_in_bytes<{ctype(scalar.dtype)}, 0>", scalar.operands
    if scalar.op is ops.SHR and scalar.dtype == u8 and _begins_in_byte(amount := scalar.operands[1]):
        shared = not any(axis in sym.variables(s.leaf.value) for s in postorder(amount) if isinstance(s.leaf, Index))
        return ("shifted_right", scalar.operands) if shared else None
    return None


def _in_bytes(scalar: Scalar) -> tuple[str, tuple[Scalar, ...]] | None:
    if scalar.op is ops.CAST and scalar.dtype.is_integer and scalar.dtype.bits < 8:
        (shifted,) = scalar.operands
        amount = _known_shift(shifted) if shifted.op is ops.SHR else None
        if amount is not None:
            return f"digits_in_bytes<{ctype(scalar.dtype)}, {amount}>", shifted.operands[:1]
    for op, name in ((ops.SHR, "shifted_right"), (ops.SHL, "shifted_left")):
        amount = _known_shift(scalar) if scalar.op is op else None
        if amount is not None:
            return f"{name}<{amount}>", scalar.operands[:1]
    return None


def _known_shift(scalar: Scalar) -> int | None:
    """By how many bits, less than 8, ``scalar`` shifts lanes of u8; None where it does not, or that varies."""
    by = scalar.operands[1]
    while by.op is ops.CAST:
        (by,) = by.operands
    known = by.leaf.value if isinstance(by.leaf, Index) else _number(by)
    return int(known) if scalar.dtype == u8 and isinstance(known, int | float) and 0 <= known < 8 else None


def _begins_in_byte(amount: Scalar) -> bool:
    """Whether ``amount`` is an index below 8: the number of a bit of a byte."""
    leaf = amount.operands[0].leaf if amount.op is ops.CAST else amount.leaf
    highest = sym.upper(leaf.value) if isinstance(leaf, Index) else None
    return highest is not None and highest < 8


def _is_bound(x: Scalar, y: Scalar) -> bool:
    """Whether ``y`` is a literal other than NaN, and not +0 where ``x`` may be -0: MAX orders them, ``<`` does not."""
    value = _number(y)
    if value is None or math.isnan(value):
        return False
    return value != 0 or math.copysign(1, value) < 0 or _has_one_zero(x)


def _has_one_zero(scalar: Scalar) -> bool:
    """Whether a scalar is an integer, or a positive multiple of one, and never -0."""
    multiples = SCALARS.match(MULTIPLE, scalar) if scalar.dtype == f32 else ()
    return _is_integer(scalar) or any(
        _is_integer(found["x"]) and (_number(found["c"]) or 0) >= SMALLEST for found in multiples
    )


def _is_integer(scalar: Scalar) -> bool:
    """Whether a scalar was an integer before it became a float."""
    return scalar.op is ops.CAST and scalar.operands[0].dtype.is_integer


def _number(scalar: Scalar) -> float | None:
    """The value of a literal; None for other scalars."""
    if not isinstance(scalar.leaf, Literal):
        return None
    return float(np.frombuffer(scalar.leaf.bits, scalar.dtype.numpy)[0])


SCALARS: Matcher[Scalar] = Matcher(lambda scalar: scalar.operands, _number)
MULTIPLE = apply(ops.MUL, X, C)
DIGITS = apply(ops.CAST, apply(ops.CAST, apply(ops.SHR, Any_("bytes", u8), Any_("amount"))))

# Functions of two floats, the pattern that they compute, and the condition. ``lesser`` and ``greater`` are one
# instruction each on most machines. A maximum with a literal is one too, as the literal is not NaN.
OF_TWO: tuple[tuple[str, Pattern, Callable[..., bool]], ...] = (
    ("lesser", apply(ops.SELECT, apply(ops.LESS_THAN, X, Y), X, Y), lambda x, y: True),
    ("greater", apply(ops.SELECT, apply(ops.LESS_THAN, X, Y), Y, X), lambda x, y: True),
    ("greater", apply(ops.MAX, X, Y), _is_bound),
)
