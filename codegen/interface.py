"""The public interface of a library, for the templates: its name, dims, entry points and their tensors.

The C header, the C++ wrapper, the Python module, the descriptor tables of library.cpp and the metadata are all rendered
from one :class:`Interface`, so they cannot disagree.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from luminal.codegen import system_names
from luminal.codegen.names import identifiers
from luminal.core.symbolic import Int
from luminal.core.types import DType

ABI_VERSION = 1

# C++ type of one element in NAME.hpp, by element type: a struct of its bits where C++ has none.
CPP_TYPES: Mapping[str, str] = {
    "bool": "bool",
    **{name: f"std::{name}_t" for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]},
    "int2": "Int2",
    "int4": "Int4",
    "uint2": "UInt2",
    "uint4": "UInt4",
    "float4e2m1": "Float4e2m1",
    "float8e4m3fn": "Float8e4m3fn",
    "float8e4m3fnuz": "Float8e4m3fnuz",
    "float8e5m2": "Float8e5m2",
    "float8e5m2fnuz": "Float8e5m2fnuz",
    "float8e8m0": "Float8e8m0",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "std::complex<float>",
    "complex128": "std::complex<double>",
    "text": "lm_text",
}

# The names of C++ and of NAME.hpp itself that its parameters, members and methods would hide.
_HEADER = frozenset(
    """Library Context Tensor View Error Int2 Int4 UInt2 UInt4 Float4e2m1 Float8e4m3fn Float8e4m3fnuz Float8e5m2
    Float8e5m2fnuz Float8e8m0 Float16 BFloat16 std""".split()  # noqa: SIM905
)
# Methods of its class Context.
_METHODS = frozenset(["handle", "reset"])


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension, its bounds (both included) and its name as part of a C identifier. The data of a run
    decides the size of one that is ``measured``."""

    name: str
    identifier: str
    lower: int
    upper: int
    measured: bool = False


@dataclass(frozen=True)
class Tensor:
    """An input or output; ``shape`` may hold expressions of dims. Contiguous, row-major."""

    name: str
    identifier: str
    dtype: DType
    shape: tuple[Int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def c_dtype(self) -> str:
        """The member of ``enum lm_dtype``."""
        return c_dtype(self.dtype)

    @property
    def cpp_type(self) -> str:
        return CPP_TYPES[self.dtype.name]

    @property
    def text(self) -> str:
        """Its text in a comment: ``input_ids: int64 [batch, sequence]``."""
        return comment(f"{self.name}: {self.dtype.name} [{', '.join(str(axis) for axis in self.shape)}]")


@dataclass(frozen=True)
class Entry:
    """One way to call the model. ``structure`` says how the outputs nest (any JSON value; passed through)."""

    name: str
    identifier: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    structure: Any
    arena_bytes: int

    @property
    def cpp_parameters(self) -> str:
        """The inputs as parameters of the C++ wrapper's method."""
        return ", ".join(f"const View<{tensor.cpp_type}>& {tensor.identifier}" for tensor in self.inputs)


@dataclass(frozen=True)
class Interface:
    """Everything that a library's user can see. ``name`` is a C identifier: it prefixes every exported function.
    ``states`` are values that a context keeps from one run to the next; ``relations`` say what the model needs of the
    sizes of its inputs."""

    name: str
    dims: tuple[Dim, ...]
    entries: tuple[Entry, ...]
    states: tuple[Tensor, ...] = ()
    relations: tuple[str, ...] = ()

    @property
    def structs(self) -> list[tuple[str, int]]:
        """The element types that C++ lacks: their names in NAME.hpp, and the bits of an element."""
        tensors = [tensor for entry in self.entries for tensor in (*entry.inputs, *entry.outputs)]
        used = {tensor.dtype for tensor in tensors if tensor.cpp_type[0].isupper()}
        return sorted((CPP_TYPES[dtype.name], 8 * dtype.itemsize) for dtype in used)

    @property
    def macro(self) -> str:
        """The prefix of the model's enumerators and include guards."""
        return self.name.upper()

    def metadata(self, **more: Any) -> dict[str, Any]:
        """The content of ``NAME_metadata_json``, with the given keys added (constants, target, origins, ...)."""
        return {
            "abi_version": ABI_VERSION,
            "name": self.name,
            "dims": [
                {"name": d.name, "lower": d.lower, "upper": d.upper, **({"measured": True} if d.measured else {})}
                for d in self.dims
            ],
            "entries": [
                {
                    "name": entry.name,
                    "structure": entry.structure,
                    "arena_bytes": entry.arena_bytes,
                    "inputs": [_tensor_metadata(tensor) for tensor in entry.inputs],
                    "outputs": [_tensor_metadata(tensor) for tensor in entry.outputs],
                }
                for entry in self.entries
            ],
            "states": [_tensor_metadata(state) for state in self.states],
            **more,
        }

    def metadata_json(self, **more: Any) -> str:
        """:meth:`metadata` as deterministic, ASCII-only text."""
        return json.dumps(self.metadata(**more), separators=(",", ":"))


# What a library exports, each behind the model's name.
FUNCTIONS = (
    "abi_version", "metadata_json", "open", "close", "context_create", "context_destroy", "workspace_size",
    "output_shape", "run", "set_weights", "reset", "get_state", "set_state", "last_error",
)  # fmt: skip


def c_dtype(dtype: DType) -> str:
    """The member of ``enum lm_dtype``."""
    return f"LM_{dtype.name.upper()}"


def dims(rows: Iterable[tuple[str, int, int]], measured: Collection[str] = ()) -> tuple[Dim, ...]:
    """Dims from ``(name, lower, upper)``, and the names of those that are measured."""
    rows = list(rows)
    names = identifiers([name for name, _, _ in rows], _HEADER)
    return tuple(
        Dim(name, identifier, low, high, name in measured)
        for (name, low, high), identifier in zip(rows, names, strict=True)
    )


def tensors(rows: Iterable[tuple[str, DType, Sequence[Int]]]) -> tuple[Tensor, ...]:
    """Inputs or outputs from ``(name, type, shape)``."""
    rows = list(rows)
    names = identifiers([name for name, _, _ in rows], _HEADER)
    return tuple(
        Tensor(name, identifier, dtype, tuple(shape))
        for (name, dtype, shape), identifier in zip(rows, names, strict=True)
    )


def entries(names: Sequence[str], states: Sequence[Tensor]) -> list[str]:
    """The names of entries as methods of C++, beside the accessors of ``states``."""
    accessors = {f"{verb}_{state.identifier}" for verb in ("get", "set") for state in states}
    return identifiers(names, _HEADER | _METHODS | accessors)


def library_name(called: str) -> str:
    """The name for a model that the user called ``called``: a C identifier that differs from all names of the system,
    so that its library, headers, functions and namespace neither hide nor clash with any (see ``system_names``).

    File names are compared without case, since some file systems do not tell ``libM`` from ``libm``.
    """
    (name,) = identifiers([called], _HEADER)
    taken = name in system_names.GLOBALS or name.lower() in system_names.FILES
    return f"{name}_model" if taken else name


def comment(text: str) -> str:
    """Text that is safe inside a C comment, on one line."""
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")


def c_string(text: str) -> str:
    """A C string literal for any text, as UTF-8."""
    return '"' + "".join(_c_character(byte) for byte in text.encode()) + '"'


def _c_character(byte: int) -> str:
    character = chr(byte)
    if character in '"\\':
        return "\\" + character
    # Octal escapes have at most three digits, so a digit that follows is not drawn in; "?" could begin a trigraph.
    return character if 32 <= byte < 127 and character != "?" else f"\\{byte:03o}"


def _tensor_metadata(tensor: Tensor) -> dict[str, Any]:
    shape = [axis if isinstance(axis, int) else str(axis) for axis in tensor.shape]
    return {"name": tensor.name, "dtype": tensor.dtype.name, "shape": shape}
