"""What is built: a shared library, linked from translation units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from luminal.codegen.toolchain import Toolchain
from luminal.core.schedule.program.ir import Kernel


@dataclass(frozen=True)
class Unit:
    """A translation unit: its text, the flags that it is compiled with, and the kernel that it holds, if it is one.
    ``headers`` are those at its head that many units include, so that they are worth precompiling."""

    text: str
    flags: tuple[str, ...]
    kernel: Kernel | None = None
    headers: tuple[str, ...] = ()

    @property
    def shared_flags(self) -> tuple[str, ...]:
        """The flags that decide how its ``headers`` are compiled: all but the model's name."""
        return tuple(flag for flag in self.flags if not flag.startswith("-DLM_NAMESPACE="))


@dataclass(frozen=True)
class Product:
    """A shared library, by the name of its file.

    ``units`` are compiled, by path. ``links`` are the linker's flags; a C++ library is linked if ``standard``.
    ``images`` are kernels for GPUs, whose images lie beside the units when those are compiled. ``files`` are other
    files that the linker reads. An ``archive`` holds the objects as they are, for a linker of its users'.
    """

    file: str
    compiler: Toolchain
    units: Mapping[str, Unit]
    links: tuple[str, ...]
    images: Mapping[str, Unit] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    standard: bool = False
    archive: bool = False

    @property
    def parts(self) -> int:
        """How many files are made, the library included."""
        return len(self.units) + len(self.images) + 1
