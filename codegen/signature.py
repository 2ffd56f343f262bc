"""The signature of a kernel: one object renders its declaration, its definition and every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from luminal.codegen.cpp import RESERVED, Names, ctype
from luminal.codegen.dialect import Dialect
from luminal.core.errors import SpecError
from luminal.core.grid import REGISTER
from luminal.core.schedule.nest.ir import Alloc, LoopNest
from luminal.core.schedule.nest.walk import statements
from luminal.core.symbolic import Int
from luminal.core.types import DType

AHEAD, AHEAD_STEP = "ahead", "ahead_step"  # the address that a kernel prefetches for later ones, bytes per step
FETCHED = (f"const char* {AHEAD}", f"int64_t {AHEAD_STEP}")


@dataclass(frozen=True)
class Pointer:
    """An array: its name in the nest and in the text, and whether the kernel writes it. ``space`` is that of an
    ``Alloc``, of ``extent`` elements, in panels where it has a ``row``; parameters of the kernel are ``global``.
    ``aligned`` is as in ``nest.Array``."""

    array: str
    name: str
    dtype: DType
    written: bool
    space: str = "global"
    extent: int = 0
    aligned: bool = True
    row: int = 0

    @property
    def type(self) -> str:
        """The pointer's type, as it is declared and cast to."""
        return f"{'' if self.written else 'const '}{ctype(self.dtype)}*"


@dataclass(frozen=True)
class BoxMap:
    """A parameter that describes an array as a tensor of which boxes are copied: as ``nest.CopyBox``."""

    name: str
    array: str
    itemsize: int
    sizes: tuple[Int, ...]
    strides: tuple[Int, ...]
    first: Int
    lines: int


@dataclass(frozen=True)
class Signature:
    """``void name(arrays..., Status* status, const int64_t* dims, const char* ahead, int64_t ahead_step, int64_t begin,
    int64_t end)``.

    ``status`` is passed only to kernels that may raise one, ``dims`` only to those that read a symbolic size, and
    ``ahead`` and ``ahead_step`` to those that prefetch from there, so many bytes a step. A kernel carries out its tasks
    ``begin .. end-1``; where it runs as a grid, one for each block of ``threads``, which share ``shared`` bytes, of
    which the host asks for ``requested`` when it launches the kernel. ``maps`` come after all pointers. A thread
    ``holds`` arrays in so many registers.
    """

    name: str
    dialect: Dialect
    threads: int
    pointers: tuple[Pointer, ...]
    checked: bool
    reads_dims: bool
    fetches: bool = False
    shared: int = 0
    requested: int = 0
    maps: tuple[BoxMap, ...] = ()
    holds: int = 0

    @property
    def declaration(self) -> str:
        """The prototype, without a semicolon."""
        if self.dialect.block is not None:
            return self.definition
        arrays = [f"{pointer.type} {pointer.name}" for pointer in self.pointers]
        return f"{self._kernel}({', '.join(self._parameters(arrays))})"

    def at_level(self, level: str, namespace: str) -> str:
        """The prototype of the kernel that was compiled for ``level``, by the symbol that it has."""
        return f'{replace(self, name=f"{self.name}_{level}").declaration} __asm__("{namespace}_{level}_{self.name}")'

    @property
    def definition(self) -> str:
        """The head of the definition, which declares that arrays do not overlap."""
        return f"{self._kernel}({', '.join(self._parameters(self._arrays))})"

    @property
    def typed(self) -> list[tuple[str, str]]:
        """The type and the name of each parameter that is a pointer."""
        types = [(pointer.type, pointer.name) for pointer in self.pointers]
        others = (("Status*", "status", self.checked), ("const int64_t*", "dims", self.reads_dims))
        return types + [(of, name) for of, name, used in others if used]

    @property
    def _kernel(self) -> str:
        head = self.dialect.head
        holding = head.holding(self.threads, self.holds) if self.holds else ""
        return head.kernel.format(name=self.name, threads=self.threads, holding=holding)

    @property
    def _arrays(self) -> list[str]:
        head = self.dialect.head
        forms = [(pointer, head.written if pointer.written else head.read) for pointer in self.pointers]
        return [form.format(type=ctype(pointer.dtype), name=pointer.name) for pointer, form in forms]

    @property
    def parameters(self) -> int:
        """How many pointers it takes: arrays, then ``status`` and ``dims``."""
        return len(self.pointers) + self.checked + self.reads_dims

    def described(self, tensors: Sequence[str]) -> list[str]:
        """The parameters as messages name them, such as ``x0 (input 'ids')``; ``tensors`` describes the arrays."""
        arrays = [f"{pointer.name} ({tensor})" for pointer, tensor in zip(self.pointers, tensors, strict=True)]
        return arrays + [name for name, used in (("status", self.checked), ("dims", self.reads_dims)) if used]

    def call(self, arguments: Mapping[str, str], times: int = 1) -> str:
        """A call. ``arguments`` maps arrays of the nest to expressions of their pointer types, and ``status``,
        ``dims``, ``ahead`` and ``ahead_step``, if the kernel has them, to expressions. It runs the tasks
        ``begin .. end-1``, or, where those number shares of ``times`` tasks, all tasks of the shares."""
        values = self.values(arguments)
        last = [form.split()[1] for form in self.dialect.head.last]
        values += [name if times == 1 else f"{name} * {times}" for name in last]
        return f"{self.name}({', '.join(values)})"

    def values(self, arguments: Mapping[str, str]) -> list[str]:
        """The arguments of a call, without the tasks; ``arguments`` as for :meth:`call`."""
        values = [arguments[pointer.array] for pointer in self.pointers]
        used = (("status", self.checked), ("dims", self.reads_dims), (AHEAD, self.fetches), (AHEAD_STEP, self.fetches))
        values += [arguments[name] for name, passed in used if passed]
        return values + [arguments[of.name] for of in self.maps if of.name in arguments]

    def call_of(self, pointers: str) -> str:
        """A call whose arguments are the elements of ``pointers``, an array of untyped pointers in the order of the
        parameters. Only for kernels that do not prefetch for later ones."""
        types = {pointer.array: pointer.type for pointer in self.pointers}
        types |= {"status": "Status*"} if self.checked else {}
        types |= {"dims": "const int64_t*"} if self.reads_dims else {}
        casts = {name: f"static_cast<{of}>({pointers}[{place}])" for place, (name, of) in enumerate(types.items())}
        places = enumerate(self.maps, len(types))
        casts |= {of.name: f"*static_cast<const TensorMap*>({pointers}[{place}])" for place, of in places}
        return self.call(casts)

    def _parameters(self, arrays: list[str]) -> list[str]:
        head = self.dialect.head
        parameters = [*arrays]
        parameters += [form for form, used in ((head.status, self.checked), (head.dims, self.reads_dims)) if used]
        parameters += [head.map.format(name=of.name) for of in self.maps]
        bound = [text + head.binding.format(number=number) for number, text in enumerate(parameters)]
        passed = self.dialect.block.passed if self.dialect.block is not None and self.shared else ""
        return [*bound, *(FETCHED if self.fetches else ()), *head.last, *filter(None, [passed])]


def of(name: str, nest: LoopNest, names: Names, dialect: Dialect, fetches: bool = False) -> Signature:
    """The signature of the kernel ``name`` for ``nest``; its parameters' names are taken from ``names``. With
    ``fetches`` the kernel prefetches what later kernels read.

    Raises SpecError for a name that the runtime headers use, UnsupportedError for types that ``dialect`` lacks.
    """
    if name in RESERVED | dialect.reserved:
        raise SpecError(f"a kernel cannot be called {name!r}: the runtime headers use that name")
    for array in nest.arrays:
        dialect.type(array.dtype)
    pointers = tuple(Pointer(a.name, names.like(a.name), a.dtype, a.written, aligned=a.aligned) for a in nest.arrays)
    held = [s for s in statements(nest.body) if isinstance(s, Alloc) and s.space == "registers"]
    holds = sum(s.extent * s.dtype.compute.itemsize for s in held) // REGISTER // max(1, nest.threads)
    return Signature(
        name, dialect, nest.threads + nest.copiers, pointers, nest.checked, bool(nest.dims), fetches, holds=holds
    )
