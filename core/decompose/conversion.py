"""Conversions that ``Cast`` and ``Bitcast`` are not: to 8-bit floats, with another rule for numbers beyond the largest,
and of bytes to types of another width."""

from __future__ import annotations

import functools
import operator

import numpy as np

from luminal.core import ops, types
from luminal.core import symbolic as sym
from luminal.core.decompose import math
from luminal.core.decompose.indexing import stack
from luminal.core.errors import ShapeError
from luminal.core.ir import Node, binary, bitcast, cast, constant, select
from luminal.core.movement import reshape, slice_, squeeze
from luminal.core.types import DType


def overflowing(x: Node, to: DType) -> Node:
    """``x`` as ``to``; beyond the largest number, its infinity, or NaN where it has none."""
    x = _wide(x)
    largest = to.max
    # Beyond half a step above the largest value, rounding leaves the range; ties go up where the largest is odd.
    step = largest - float(np.nextafter(to.numpy.type(largest), to.numpy.type(0)))
    odd = int(to.numpy.type(largest).view(np.uint8)) & 1
    edge = constant(largest + step / 2, x.dtype)
    magnitude = math.abs_(x)
    beyond = math.greater_equal(magnitude, edge) if odd else math.greater(magnitude, edge)
    overflow: Node | float = float("nan")
    if to == types.f8e5m2:
        overflow = select(math.less(x, 0), float("-inf"), constant(float("inf"), x.dtype))
    return cast(select(beyond, overflow, x), to)


def saturating(x: Node, to: DType) -> Node:
    """``x`` as ``to``; beyond the largest number, infinity included, that."""
    return cast(math.clamp(_wide(x), -to.max, to.max), to)


def to_power_of_two(x: Node, mode: str, saturate: bool) -> Node:
    """The magnitude of ``x`` as float8e8m0: the exponent of its float32 alone, rounded ``up``, ``down`` or to the
    ``nearest`` as its fraction says. Infinity becomes NaN, and so does what is beyond the largest, unless ``saturate``.
    """
    bits = bitcast(cast(x, types.f32), types.u32)
    exponent = binary(ops.AND, binary(ops.SHR, bits, 23), 0xFF)
    fraction = binary(ops.AND, bits, 0x7FFFFF)
    half = constant(0x400000, types.u32)
    # Half a step rounds up where the exponent is not the lowest.
    nearest = math.less(half, fraction) | (math.equal(fraction, half) & math.less(0, exponent))
    up = {"up": math.less(0, fraction), "down": math.less(fraction, 0), "nearest": nearest}[mode]
    up = up & math.less(exponent, 0xFE if saturate else 0xFF)
    return bitcast(cast(exponent + cast(up, types.u32), types.u8), types.f8e8m0)


def _wide(x: Node) -> Node:
    """Edges between 8-bit numbers are values of floats of at least 16 bits."""
    return x if x.dtype.is_float and x.dtype.bits >= 16 else cast(x, types.f32)


_UNSIGNED = {1: types.u8, 2: types.u16, 4: types.u32, 8: types.u64}


def reinterpreted(x: Node, to: DType) -> Node:
    """The bytes of ``x`` as numbers of type ``to``, the lowest first: a last axis of ``n`` elements becomes one of
    ``n * x.dtype.itemsize / to.itemsize``. Raises ShapeError where that is no whole number."""
    have, want = x.dtype.itemsize, to.itemsize
    bits = _bits(x)
    if have == want:
        return _of_bits(bits, to)
    if not x.rank:
        raise ShapeError(f"a number of {have} bytes has no elements of {want}")
    *lead, last = x.shape
    if have > want:
        parts = [cast(_shifted(bits, ops.SHR, 8 * want * k), _UNSIGNED[want]) for k in range(have // want)]
        return _of_bits(reshape(stack(parts, -1), [*lead, last * (have // want)]), to)
    count = want // have
    if sym.mod(last, count) != 0:
        raise ShapeError(f"a last axis of {last} elements of {x.dtype} is no whole number of {to}")
    whole = cast(reshape(bits, [*lead, sym.floordiv(last, count), count]), _UNSIGNED[want])
    parts = [_shifted(squeeze(slice_(whole, -1, k, 1), [-1]), ops.SHL, 8 * have * k) for k in range(count)]
    return _of_bits(functools.reduce(operator.or_, parts), to)


def _bits(x: Node) -> Node:
    unsigned = _UNSIGNED[x.dtype.itemsize]
    return cast(x, unsigned) if x.dtype.is_bool else bitcast(x, unsigned)


def _of_bits(bits: Node, to: DType) -> Node:
    return math.not_equal(bits, 0) if to.is_bool else bitcast(bits, to)


def _shifted(x: Node, op: ops.Op, by: int) -> Node:
    return binary(op, x, constant(by, x.dtype)) if by else x
