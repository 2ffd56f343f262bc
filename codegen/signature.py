"""The signature of a kernel: one object renders its declaration, its definition and every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from luminal.codegen.cpp import RESERVED, Names, ctype
from luminal.core.errors import SpecError
from luminal.core.schedule.nest import LoopNest
from luminal.core.types import DType


@dataclass(frozen=True)
class Pointer:
    """An array parameter: its name in the nest and in the C++ text, and whether the kernel writes it."""

    array: str
    name: str
    dtype: DType
    written: bool

    @property
    def type(self) -> str:
        """The pointer's type, as it is declared and cast to."""
        return f"{'' if self.written else 'const '}{ctype(self.dtype)}*"


@dataclass(frozen=True)
class Signature:
    """``void name(arrays..., Status* status, const int64_t* dims, int64_t begin, int64_t end)``.

    ``status`` is passed only to kernels that may raise one, ``dims`` only to those that read a symbolic size. A kernel
    carries out its tasks ``begin .. end-1``.
    """

    name: str
    pointers: tuple[Pointer, ...]
    checked: bool
    reads_dims: bool

    @property
    def declaration(self) -> str:
        """The prototype, without a semicolon."""
        return f"void {self.name}({', '.join(self._parameters(''))})"

    @property
    def definition(self) -> str:
        """The head of the definition: arrays do not overlap."""
        return f"void {self.name}({', '.join(self._parameters(' __restrict'))})"

    def call(self, arguments: Mapping[str, str], times: int = 1) -> str:
        """A call: ``arguments`` maps arrays of the nest to expressions of their pointer types, and ``status`` and
        ``dims`` to theirs; the tasks are ``begin .. end-1``, or all tasks of those shares of ``times`` tasks."""
        values = [arguments[pointer.array] for pointer in self.pointers]
        values += [arguments[name] for name, used in (("status", self.checked), ("dims", self.reads_dims)) if used]
        values += [name if times == 1 else f"{name} * {times}" for name in ("begin", "end")]
        return f"{self.name}({', '.join(values)})"

    def _parameters(self, qualifier: str) -> list[str]:
        parameters = [f"{pointer.type}{qualifier} {pointer.name}" for pointer in self.pointers]
        if self.checked:
            parameters.append("Status* status")
        if self.reads_dims:
            parameters.append("const int64_t* dims")
        return [*parameters, "int64_t begin", "int64_t end"]


def of(name: str, nest: LoopNest, names: Names) -> Signature:
    """The signature of the kernel ``name`` for ``nest``; its parameters' names are taken from ``names``."""
    if name in RESERVED:
        raise SpecError(f"a kernel cannot be called {name!r}: the runtime headers use that name")
    pointers = tuple(Pointer(a.name, names.like(a.name), a.dtype, a.written) for a in nest.arrays)
    return Signature(name, pointers, nest.checked, bool(nest.dims))
