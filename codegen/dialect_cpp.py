"""C++ for CPUs: the text of every primitive that a loop nest can hold, one table row each, keyed by ``core.ops``.

A row gives a call of the runtime headers (``luminal/simd.hpp``, ``luminal/math.hpp``). The same text serves scalars and
vectors: there a scalar is a vector of one lane.
"""

from __future__ import annotations

from luminal.codegen import cpp
from luminal.codegen.cpp import ctype
from luminal.codegen.dialect import Call, Dialect, Fold, Head, Row, round_to
from luminal.core import numerics, ops
from luminal.core.ops import Op
from luminal.core.types import DType, u8, u16


def _function(name: str) -> Row:
    return lambda call: f"{name}({', '.join(call.operands)})"


def _rounded(name: str) -> Row:
    """A function in the compute type, whose result is rounded, or wrapped, to the type of the node."""
    exact = _function(name)
    return lambda call: round_to(exact(call), call.dtype)


def _scaled(name: str) -> Row:
    def row(call: Call) -> str:
        enough = "" if call.attr.digits is None else f"<{call.attr.digits}>"
        return round_to(f"{name}{enough}({call.operands[0]}, {float(call.attr.scale)!r})", call.dtype)

    return row


_ROUNDINGS = {"even": "round_even", "floor": "floor", "ceil": "ceil", "trunc": "trunc"}


def _round(call: Call) -> str:
    """16-bit types hold the result exactly. Narrower types may have no zero, or no negative zero: it is rounded."""
    whole = f"{_ROUNDINGS[call.attr.mode]}({call.operands[0]})"
    return round_to(whole, call.dtype) if call.dtype.bits < 16 else whole


def _cast(call: Call) -> str:
    return f"convert<{ctype(call.dtype)}>({call.operands[0]})"


def _bitcast(call: Call) -> str:
    """A value is held in its compute type, and a bool as a mask, so its bits have to be encoded first, and those of the
    result decoded."""
    (text,), (source,), target = call.operands, call.types, call.dtype
    if source.is_bool or target.is_bool:
        return _cast(call)
    bits, stored = source, u16 if source.bits == 16 else u8
    if source.compute != source:
        text, bits = f"encode<{ctype(source)}>({text})", stored
    if target.compute != target:
        text = text if bits == stored else f"bitcast<{ctype(stored)}>({text})"
        return f"decode<{ctype(target)}>({text})"
    return text if bits == target else f"bitcast<{ctype(target)}>({text})"


TABLE: dict[Op, Row] = {
    ops.LOG2: _scaled("log2_scaled"),
    ops.EXP2: _scaled("exp2_scaled"),
    ops.SIN: lambda call: round_to(f"sin_quadrant({call.operands[0]}, {call.attr.quadrant})", call.dtype),
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
    ops.SHL: _rounded("shl"),
    ops.SHR: _function("shr"),
    ops.MULTIPLY_ADD: _rounded("multiply_add"),
    ops.SELECT: _function("select"),
    ops.CONTIGUOUS: lambda call: call.operands[0],
}


def _lowest(dtype: DType) -> bytes:
    return numerics.convert(numerics.of_nothing(ops.MAX_REDUCE, dtype), dtype.compute).tobytes()


REDUCTIONS: dict[Op, Fold] = {
    ops.SUM_REDUCE: Fold("add", "reduce_add", lambda dtype: bytes(dtype.compute.itemsize)),
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
