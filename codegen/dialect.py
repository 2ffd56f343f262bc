"""A language that kernels are written in, as a value: what differs between C++ for CPUs, CUDA and Metal.

All three are C++ to a large part, and the runtime headers of each have functions of the same names. So the emitter
writes one text, and asks a dialect for the rest: the head of a kernel, the numbers that have no literal, the calls that
take other arguments, and, where kernels run as grids of blocks, what the threads of a block share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from luminal.codegen import cpp
from luminal.core.errors import UnsupportedError
from luminal.core.ops import Op
from luminal.core.types import DType


@dataclass(frozen=True)
class Call:
    """One primitive on operands: their texts and types, the attribute, and the type of the result."""

    operands: tuple[str, ...]
    types: tuple[DType, ...]
    attr: Any
    dtype: DType


Row: TypeAlias = Callable[[Call], str]


@dataclass(frozen=True)
class Fold:
    """A reduction: the function that combines two partial results, the one that combines the lanes of a vector, and
    the element of the compute type that changes nothing."""

    combine: str
    lanes: str
    identity: Callable[[DType], bytes]


@dataclass(frozen=True)
class Head:
    """How a kernel's head is written. ``kernel`` formats its ``name`` and ``threads``, ``read`` and ``written`` the
    ``name`` and element ``type`` of an array, ``binding`` the ``number`` of a parameter; ``last`` follow the others."""

    kernel: str
    read: str
    written: str
    status: str
    dims: str
    binding: str = ""
    last: tuple[str, ...] = ()


@dataclass(frozen=True)
class BlockSyntax:
    """How the threads of a block are written: the numbers of the task, which is the block, and of the thread in it, and
    before an array what makes it shared."""

    task: str
    thread: str
    shared: str


@dataclass(frozen=True)
class Dialect:
    """A language. ``name`` is the one that targets use, ``language`` the one for people.

    ``lacks`` are element types that it does not have, ``reserved`` words that no name may hide beside those of C++,
    ``limits`` what stands for infinity or the least integer, by C++ type. ``table`` and ``reductions`` have a row for
    each primitive. ``raising`` formats the ``code`` of a status, ``unroll`` the ``count`` of iterations of a loop that
    stand side by side. ``block`` is None where a kernel is a loop over tasks, each run by one thread.
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
        """The type of an element in memory. Raises UnsupportedError for types that the language has not."""
        if dtype.name in self.lacks:
            raise UnsupportedError(f"element type {dtype}: {self.language} has none")
        return cpp.ctype(dtype)

    def literal(self, bits: bytes, dtype: DType) -> str:
        """An element as an expression of exactly its value and of the type in which it is computed."""
        self.type(dtype)
        return cpp.literal(bits, dtype, self.limits)

    def identity(self, op: Op, dtype: DType) -> str:
        """The element that the reduction ``op`` starts from, in the compute type of ``dtype``."""
        return self.literal(self.reductions[op].identity(dtype), dtype.compute)


def round_to(text: str, dtype: DType) -> str:
    """``text``, computed in the compute type of ``dtype``, rounded to ``dtype``."""
    return f"convert<{cpp.ctype(dtype)}>({text})" if dtype.compute != dtype else text
