"""The header NAME_checkpoint.h of a library with states, which writes and reads them as a file of safetensors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luminal.codegen.interface import Interface, Tensor, c_string
from luminal.core.schedule.program.ir import Program

TEMPLATE, FILE = "checkpoint.h.j2", "{name}_checkpoint.h"

# The types of elements that safetensors have names for.
TYPES: Mapping[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8e4m3fn": "F8_E4M3",
    "float8e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_ALIGNMENT, _LINE = 8, 100  # bytes of the header, characters of a line of text


@dataclass(frozen=True)
class Row:
    """A state in the table of the header."""

    name: str
    quoted: str
    type: str
    dtype: str
    rank: int
    bytes: int
    shape: str


def written(interface: Interface, program: Program) -> bool:
    """Whether a library has the header: it has states, all of types that the format has, and all on each rank, which
    those of a pipeline's stages are not."""
    states = interface.states
    everywhere = program.pipeline is None or not program.pipeline.states
    return bool(states) and everywhere and all(state.dtype.name in TYPES for state in states)


def context(interface: Interface) -> dict[str, Any]:
    """What the template needs of the states."""
    rows = [_row(state) for state in interface.states]
    header: dict[str, Any] = {}
    end = 0
    for row, state in zip(rows, interface.states, strict=True):
        start, end = end, end + row.bytes
        header[row.name] = {"dtype": row.type, "shape": list(state.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"))
    text += " " * (-len(text) % _ALIGNMENT)
    return {
        "rows": rows,
        "rank": max(1, *(row.rank for row in rows)),
        "largest": max(1, *(row.bytes for row in rows)),
        "header": [c_string(text[at : at + _LINE]) for at in range(0, len(text), _LINE)],
    }


def _row(state: Tensor) -> Row:
    size = math.prod(n for n in state.shape if isinstance(n, int)) * state.dtype.itemsize  # states have fixed sizes
    shape = ", ".join(map(str, state.shape)) or "0"
    return Row(state.name, json.dumps(state.name), TYPES[state.dtype.name], state.c_dtype, state.rank, size, shape)
