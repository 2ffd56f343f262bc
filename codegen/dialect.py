"""A language that kernels are written in, as a value: the differences between C++ for CPUs, CUDA, Metal and OpenCL.

All are largely C++, and the runtime headers of each have functions of the same names. So the emitter writes one
text, and a dialect supplies the rest: the head of a kernel, numbers that have no literal, calls with other arguments,
and, where kernels run as grids of blocks, the syntax of threads and of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from luminal.codegen import cpp
from luminal.core.errors import UnsupportedError
from luminal.core.grid import WARP
from luminal.core.ops import Op
from luminal.core.types import DType


@dataclass(frozen=True)
class Call:
    """An application of a primitive: texts and types of the operands, the attribute, and the type of the result."""

    operands: tuple[str, ...]
    types: tuple[DType, ...]
    attr: Any
    dtype: DType


Row: TypeAlias = Callable[[Call], str]


@dataclass(frozen=True)
class Fold:
    """A reduction: the function that combines two partial results, the function that combines the lanes of a vector,
    and the identity element, as bytes of the compute type."""

    combine: str
    lanes: str
    identity: Callable[[DType], bytes]


@dataclass(frozen=True)
class Head:
    """Formats of a kernel's head: ``kernel`` of its ``name`` and ``threads``, and of what ``holding`` makes of their
    number and of the registers that each holds arrays in, if it does; ``read`` and ``written`` of the ``name`` and
    element ``type`` of an array; ``binding`` of the ``number`` of a parameter; ``map``, where devices copy boxes, of
    the ``name`` of what describes an array. ``last`` are the last parameters."""

    kernel: str
    read: str
    written: str
    status: str
    dims: str
    binding: str = ""
    last: tuple[str, ...] = ()
    map: str = ""
    holding: Callable[[int, int], str] = lambda threads, registers: ""


@dataclass(frozen=True)
class BlockSyntax:
    """The text of the number of the task, which is the block, and of the thread's number in it. ``shared`` formats the
    declaration of an array that a block shares, of its ``alignment``, element ``type``, ``name``, ``extent``, and the
    ``first`` of its bytes among those of all such arrays, which the host passes as the last parameter, ``passed``,
    where a kernel cannot own them. The threads of a ``warp`` run in step.

    A kernel with more than ``own`` bytes of such arrays, if that is not 0, declares them as ``requested``, and the host
    asks for them when it launches the kernel."""

    task: str
    thread: str
    shared: str
    passed: str = ""
    warp: int = WARP
    own: int = 0
    requested: str = ""


@dataclass(frozen=True)
class Dialect:
    """A language. Targets call it ``name``, messages ``language``.

    ``lacks`` are element types that it does not have, ``reserved`` names that kernels must not declare, besides those
    of C++, ``limits`` the text of infinity or the least integer, by C++ type. ``table`` and ``reductions`` have a row
    for each primitive. ``raising`` formats the ``code`` of a status, ``unroll`` the unroll ``count`` of a loop.
    ``block`` is None where a kernel is a loop over tasks, each run by one thread.
    """

    name: str
    language: str
    head: Head
    table: Mapping[Op, Row]
    reductions: Mapping[Op, Fold]
    limits: Mapping[str, str]
    raising: str
    unroll: str
    lacks: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    block: BlockSyntax | None = None

    def __str__(self) -> str:
        return self.name

    def type(self, dtype: DType) -> str:
        """The type of an element in memory. Raises UnsupportedError for types that the language lacks."""
        if dtype.name in self.lacks:
            raise UnsupportedError(f"element type {dtype}: {self.language} has none")
        return cpp.ctype(dtype)

    def literal(self, bits: bytes, dtype: DType) -> str:
        """An element as an expression of exactly its value, in its compute type."""
        self.type(dtype)
        return cpp.literal(bits, dtype, self.limits)

    def identity(self, op: Op, dtype: DType) -> str:
        """The identity element of the reduction ``op``, in the compute type of ``dtype``."""
        return self.literal(self.reductions[op].identity(dtype), dtype.compute)


def round_to(text: str, dtype: DType) -> str:
    """``text``, computed in the compute type of ``dtype``, rounded to ``dtype``."""
    return f"convert<{cpp.ctype(dtype)}>({text})" if dtype.compute != dtype else text
