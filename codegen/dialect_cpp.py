"""C++ for CPUs: the text of every primitive that a loop nest can hold, one table row each, keyed by ``core.ops``.

A row gives a call of the runtime headers (``luminal/simd.hpp``, ``luminal/math.hpp``). The same text serves scalars and
vectors: there a scalar is a vector of one lane.
"""

from __future__ import annotations

import numpy as np

from luminal.codegen import cpp
from luminal.codegen.cpp import ctype
from luminal.codegen.dialect import Call, Dialect, Fold, Head, Row, round_to
from luminal.core import ops
from luminal.core.ops import Op
from luminal.core.types import DType, u16


def _function(name: str) -> Row:
    return lambda call: f"{name}({', '.join(call.operands)})"


def _rounded(name: str) -> Row:
    """A function whose result has to be rounded to a 16-bit type: arithmetic is in float."""
    exact = _function(name)
    return lambda call: round_to(exact(call), call.dtype)


def _scaled(name: str) -> Row:
    return lambda call: round_to(f"{name}({call.operands[0]}, {float(call.attr.scale)!r})", call.dtype)


def _sin(call: Call) -> str:
    return round_to(f"sin_quadrant({call.operands[0]}, {call.attr.quadrant})", call.dtype)


_ROUNDINGS = {"even": "round_even", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}


def _round(call: Call) -> str:
    return f"{_ROUNDINGS[call.attr.mode]}({call.operands[0]})"


def _cast(call: Call) -> str:
    return f"convert<{ctype(call.dtype)}>({call.operands[0]})"


def _bitcast(call: Call) -> str:
    """Sixteen-bit floats are held as float, and bools as masks: their bits are made and taken on the way."""
    (text,), (source,), target = call.operands, call.types, call.dtype
    if source.is_bool or target.is_bool:
        return _cast(call)
    bits: DType = source
    if source.compute != source:
        text, bits = f"encode<{ctype(source)}>({text})", u16
    if target.compute != target:
        text = text if bits == u16 else f"bitcast<uint16_t>({text})"
        return f"decode<{ctype(target)}>({text})"
    return text if bits == target else f"bitcast<{ctype(target)}>({text})"


TABLE: dict[Op, Row] = {
    ops.LOG2: _scaled("log2_scaled"),
    ops.EXP2: _scaled("exp2_scaled"),
    ops.SIN: _sin,
    ops.SQRT: _rounded("sqrt"),
    ops.RECIP: _rounded("recip"),
    ops.CAST: _cast,
    ops.BITCAST: _bitcast,
    ops.ROUND: _round,
    ops.ADD: _rounded("add"),
    ops.MUL: _rounded("mul"),
    ops.MOD: _rounded("mod"),
    ops.LESS_THAN: _function("less"),
    ops.DIV: _rounded("div"),
    ops.EQUAL: _function("equal"),
    ops.MAX: _function("max"),
    ops.AND: _function("bit_and"),
    ops.OR: _function("bit_or"),
    ops.XOR: _function("bit_xor"),
    ops.SHL: _function("shl"),
    ops.SHR: _function("shr"),
    ops.MULTIPLY_ADD: _rounded("multiply_add"),
    ops.SELECT: _function("select"),
    ops.CONTIGUOUS: lambda call: call.operands[0],
}


def _zero(dtype: DType) -> bytes:
    return bytes(dtype.itemsize)


def _lowest(dtype: DType) -> bytes:
    return np.array(-np.inf if dtype.is_float else dtype.min, dtype.numpy).tobytes()


REDUCTIONS: dict[Op, Fold] = {
    ops.SUM_REDUCE: Fold("add", "reduce_add", _zero),
    ops.MAX_REDUCE: Fold("max", "reduce_max", _lowest),
}

CPP = Dialect(
    "cpp",
    "C++",
    Head(
        "void {name}",
        "const {type}* __restrict {name}",
        "{type}* __restrict {name}",
        "Status* status",
        "const int64_t* dims",
        last=("int64_t begin", "int64_t end"),
    ),
    TABLE,
    REDUCTIONS,
    cpp.LIMITS,
    "status->raise({code});",
    "#pragma GCC unroll {count}",
)
