"""The text of C++ types, literals and names."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from luminal.codegen.names import KEYWORDS, is_taken, plain
from luminal.core.errors import UnsupportedError
from luminal.core.types import DType

_TYPES = {
    "bool": "bool",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "uint8": "uint8_t",
    "uint16": "uint16_t",
    "uint32": "uint32_t",
    "uint64": "uint64_t",
    "int2": "int2_t",
    "int4": "int4_t",
    "uint2": "uint2_t",
    "uint4": "uint4_t",
    "float4e2m1": "float4e2m1",
    "float8e4m3fn": "float8e4m3fn",
    "float8e4m3fnuz": "float8e4m3fnuz",
    "float8e5m2": "float8e5m2",
    "float8e5m2fnuz": "float8e5m2fnuz",
    "float8e8m0": "float8e8m0",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
    "text": "uint64_t",  # its number
}

# Names that generated code must not declare: keywords, and functions of the runtime headers that kernels call.
RESERVED = KEYWORDS | frozenset(
    """lm vec mask wide Interleaved Tile DotTile MatrixTile MatrixRegisters multiples lanes_below lanes_from raise
    float16 bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0 float4e2m1 int2_t int4_t
    uint2_t uint4_t element_t lanes load load_partial load_masked load_strided load_columns gather store
    store_partial store_masked store_strided store_groups scatter bits_of move_elements clear_elements
    normal_or_zero prefetch prefetch_to_l2 broadcast iota generate extract low high join reduce_add reduce_max any
    all add sub mul neg abs div mod max fma multiply_add less lesser greater equal select quantise fake_quantise
    bit_and bit_or bit_xor bit_not shl shr sqrt recip round_even floor ceil trunc convert bitcast encode decode
    exp2_scaled log2_scaled sin_quadrant floor_div floor_mod minimum maximum Status status dims ahead ahead_step
    begin end main errno
    linux unix""".split()  # noqa: SIM905
)


def ctype(dtype: DType) -> str:
    """The C++ type of an element in memory. Raises UnsupportedError for types that have none."""
    if dtype.name not in _TYPES:
        raise UnsupportedError(f"element type {dtype} has no C++ code generation; expected one of {', '.join(_TYPES)}")
    return _TYPES[dtype.name]


LIMITS = {"int32_t": "INT32_MIN", "int64_t": "INT64_MIN", "float": "__builtin_inff()", "double": "__builtin_inf()"}


def literal(bits: bytes, dtype: DType, limits: Mapping[str, str] = LIMITS) -> str:
    """An element as a C++ expression of exactly its value, in its compute type. ``limits`` is how infinity or the least
    integer is written, by C++ type."""
    ctype(dtype)
    element = np.frombuffer(bits, dtype.numpy)[0]
    if dtype.is_bool:
        return "true" if element else "false"
    if dtype.is_text:
        return f"uint64_t{{{int(element['number']):#018x}u}}"
    if dtype.is_integer:
        return _integer(int(element), dtype.compute, limits)
    compute = dtype.compute
    value = compute.numpy.type(element)
    if np.isfinite(value):
        return _decimal(str(value)) + ("f" if compute.bits == 32 else "")
    if np.isnan(value):
        unsigned = value.view(f"u{compute.itemsize}")
        return f"bitcast<{ctype(compute)}>(uint{compute.bits}_t{{{int(unsigned):#0{compute.bits // 4 + 2}x}u}})"
    return ("-" if value < 0 else "") + limits[ctype(compute)]


def _integer(value: int, dtype: DType, limits: Mapping[str, str]) -> str:
    if value == dtype.min and ctype(dtype) in limits:
        return limits[ctype(dtype)]
    if dtype.name == "int32":
        return str(value)
    return f"{ctype(dtype)}{{{value}{'u' if dtype.kind == 'u' else ''}}}"


def _decimal(shortest: str) -> str:
    """``shortest``, the shortest decimal that reads back as the same value, as a C++ floating-point literal."""
    return shortest if re.search(r"[.e]", shortest) else shortest + ".0"


def comment(text: str) -> str:
    """``text`` made safe for a one-line comment after ``//``."""
    return "".join(c if c.isprintable() else "?" for c in text).rstrip().rstrip("\\")


def wrap(line: str, indent: int = 0, width: int = 120) -> str:
    """``line`` indented, and broken after commas where it is longer than ``width``; comments are not broken."""
    line = " " * indent + line if line else line
    if len(line) <= width or "//" in line:
        return line
    deeper = " " * (len(line) - len(line.lstrip()) + 8)
    lines = [""]
    for piece in re.split(r"(?<=, )", line):
        if len(lines[-1]) + len(piece.rstrip()) > width and lines[-1].strip():
            lines[-1] = lines[-1].rstrip()
            lines.append(deeper)
        lines[-1] += piece
    return "\n".join(lines)


class Names:
    """Identifiers of one function: each handed out once."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self._taken = set(RESERVED | taken)
        self._next: dict[str, int] = {}

    def fresh(self, prefix: str) -> str:
        """``prefix`` and the next number."""
        while True:
            number = self._next.get(prefix, 0)
            self._next[prefix] = number + 1
            name = f"{prefix}{number}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def like(self, name: str) -> str:
        """An unused identifier that resembles ``name``."""
        base = plain(name) or "value"
        base = f"n{base}" if base[0].isdigit() else base
        # Headers define macros in capitals alone, such as NULL and EOF.
        base = base if base != base.upper() or len(base) == 1 else base.lower()
        base = f"{base}_value" if is_taken(base) and base not in KEYWORDS else base
        candidate, suffix = base, 2
        while candidate in self._taken:
            candidate, suffix = f"{base}_{suffix}", suffix + 1
        self._taken.add(candidate)
        return candidate

    def release(self, name: str) -> None:
        """``name`` went out of scope and may be handed out again."""
        self._taken.discard(name)
