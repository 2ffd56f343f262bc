"""What every decomposition needs: the arithmetic type, constants read back, polynomials."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias

import numpy as np

from luminal.core import ops
from luminal.core.errors import DTypeError, ShapeError
from luminal.core.ir import Node, cast, constant, dim, multiply_add
from luminal.core.symbolic import Int
from luminal.core.types import DType

P = ParamSpec("P")

# Polynomial coefficients, lowest degree first, for each type that arithmetic is carried out in.
Coefficients: TypeAlias = Mapping[DType, tuple[float, ...]]
# The same of ``P`` and ``Q`` in a quotient ``P(x) / (c*x*P(x) + Q(x))``.
Quotients: TypeAlias = Mapping[DType, tuple[tuple[float, ...], tuple[float, ...]]]

SHORT_DIGITS = 13  # significant bits of the shorter forms of functions


def widened(function: Callable[P, Node]) -> Callable[P, Node]:
    """``function`` with float operands of fewer than 32 bits computed in float32 and its result rounded once.

    The result takes the type of the first narrow float operand; a predicate stays bool.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Node:
        floats = [a.dtype for a in (*args, *kwargs.values()) if isinstance(a, Node) and a.dtype.is_float]
        narrow = [dtype for dtype in floats if dtype.compute != dtype]
        if not narrow:
            return function(*args, **kwargs)
        wide_args: Any = [_wide(a) for a in args]
        wide_kwargs: Any = {name: _wide(a) for name, a in kwargs.items()}
        result = function(*wide_args, **wide_kwargs)
        return cast(result, narrow[0]) if result.dtype.is_float else result

    return wrapper


def real_function(function: Callable[P, Node]) -> Callable[P, Node]:
    """``widened``, of what floats alone have: raises DTypeError where the first operand holds something else."""
    wide = widened(function)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Node:
        for operand in args[:1]:
            if isinstance(operand, Node):
                require_float(operand, function.__name__)
        return wide(*args, **kwargs)

    return wrapper


def _wide(value: Any) -> Any:
    return cast(value, value.dtype.compute) if isinstance(value, Node) and value.dtype.is_float else value


def number(x: Node | float) -> float | int | bool | None:
    """The one value that ``x`` holds at every position, where it is a constant (repeated by a view or not)."""
    if not isinstance(x, Node):
        return x
    if x.op is ops.VIEW and not x.attr.valid:
        x = x.inputs[0]
    if x.op is not ops.CONSTANT or x.attr.array.size != 1:
        return None
    value = x.attr.array.reshape(-1)[0]
    return float(value) if x.dtype.is_float else bool(value) if x.dtype.is_bool else int(value)


def lowest(x: Node) -> float:
    """What no element of the type of ``x`` is less than: the maximum of nothing."""
    return -math.inf if x.dtype.is_float else x.dtype.min


def require_float(x: Node, what: str) -> None:
    """Raises DTypeError where ``x`` does not hold floats."""
    if not x.dtype.is_float:
        raise DTypeError(f"{what}: expected a float type, found {x.dtype}; convert the operand first")


def require_axes(x: Node, least: int, what: str) -> None:
    """Raises ShapeError where ``x`` has fewer than ``least`` axes."""
    if x.rank < least:
        raise ShapeError(f"{what}: expected at least {least} axes, found the shape {list(x.shape)}")


def normalized_axes(x: Node, axes: Iterable[int] | int | None) -> tuple[int, ...]:
    """``axes`` (None: all of them) as ascending numbers ``0 .. rank-1``; raises ShapeError for one out of range."""
    if axes is None:
        return tuple(range(x.rank))
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    # PyTorch and ONNX let a scalar be reduced over axis 0 or -1.
    rank = max(x.rank, 1)
    for axis in axes:
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is out of range for shape {list(x.shape)}")
    wrapped = sorted({axis % rank for axis in axes})
    return tuple(wrapped) if x.rank else ()


def count(size: Int, dtype: DType) -> Node:
    """A number of elements, known or symbolic, as a scalar of ``dtype``."""
    return constant(size, dtype) if isinstance(size, int) else cast(dim(size), dtype)


def horner(x: Node, coefficients: Sequence[float]) -> Node:
    """The polynomial ``c[0] + c[1]*x + c[2]*x**2 + ..`` by Horner's rule, each step rounded once; at least two
    coefficients."""
    result = multiply_add(x, coefficients[-1], coefficients[-2])
    for coefficient in reversed(coefficients[:-2]):
        result = multiply_add(result, x, coefficient)
    return result


def in_pairs(x: Node, coefficients: Sequence[float]) -> Node:
    """The polynomial of ``horner``, of an even number of ``coefficients``, by Horner's rule in ``x**2`` over the pairs
    ``c[k] + c[k + 1]*x``, the first step of Estrin's scheme: one product more, and a chain half as long."""
    pairs = zip(coefficients[::2], coefficients[1::2], strict=True)
    *lower, highest = (multiply_add(x, odd, even) for even, odd in pairs)
    result, square = highest, x * x
    for pair in reversed(lower):
        result = multiply_add(result, square, pair)
    return result


def positive_infinity(x: Node) -> Node:
    """Infinity as a constant of the type of ``x``."""
    return constant(np.inf, x.dtype)
