"""The program: what a compiled library does, step by step, and where every value lies.

It is the whole input of code generation: kernels (loop nests), buffers with their place in memory, and entry points
that launch kernels in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.schedule.nest import LoopNest
from luminal.core.sizes import solve
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

SPACES = ("input", "output", "constant", "arena")
ALIGNMENT = 64  # bytes; of every buffer in the arena and in the weights


@dataclass(frozen=True)
class Buffer:
    """A value in memory.

    ``shape`` is in elements; ``order`` lists its axes from the slowest to the fastest in memory. ``space`` is one of
    ``SPACES``; an input or output is the entry's tensor of the same name. ``offset`` is in bytes from the start of the
    arena (0 in other spaces: code generation lays out the weights); ``size`` is in bytes, at the upper bounds of the
    dimensions.
    """

    name: str
    dtype: DType
    shape: tuple[Int, ...]
    order: tuple[int, ...]
    space: str
    offset: int
    size: int
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """A step: kernel number ``kernel`` on buffers named in the order of its nest's arrays. ``origins`` are the source
    operators that the step computes. One thread does ``grain`` tasks sooner than it could wake another.
    ``operations`` are the floating-point operations of its contractions, two for each product that is summed."""

    kernel: int
    arguments: tuple[str, ...]
    origins: tuple[str, ...] = ()
    grain: int = 1
    operations: Int = 0


@dataclass(frozen=True)
class Phase:
    """Consecutive steps, ``first`` to ``last`` inclusive, between which no thread waits for another: each thread runs
    its part of the ``shares`` of one step, then of the next. A share is ``tasks[k]`` consecutive tasks of the k-th
    step. At most one step of a phase can raise a status. ``linked`` says that a step reads what an earlier one wrote:
    then each share goes through all steps before the next begins, while what it wrote is in the cache."""

    first: int
    last: int
    shares: Int
    tasks: tuple[int, ...]
    linked: bool = False


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of an entry: contiguous, row-major, ``shape`` in elements."""

    name: str
    dtype: DType
    shape: tuple[Int, ...]


@dataclass(frozen=True)
class Entry:
    """An entry point. ``arena_size`` is in bytes, at the upper bounds of the dimensions. ``structure`` is the front
    end's description of nested inputs and outputs (anything that JSON can hold), for the loader. A step that is in none
    of the ``phases`` is one by itself."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[Launch, ...]
    arena_size: int
    structure: Any = None
    phases: tuple[Phase, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A loop nest with its name (an identifier), the source operators that it first was made for, and its schedule as
    text."""

    name: str
    nest: LoopNest
    origins: tuple[str, ...] = ()
    schedule: str = ""


@dataclass(frozen=True)
class Program:
    """A model ready for code generation.

    ``dims`` are the symbolic dimensions in the order in which the library keeps their sizes. ``constants`` gives the
    value of every constant buffer, laid out as its kernels read it (axes in the buffer's ``order``), ``digests`` a hash
    of its content. ``metadata`` is passed through to the library's description of itself: strings, numbers, lists and
    mappings that JSON can hold.
    """

    name: str
    dims: tuple[Var, ...]
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    entries: tuple[Entry, ...]
    constants: Mapping[str, np.ndarray[Any, Any]]
    digests: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        return self._by_name[name]

    @property
    def finite(self) -> frozenset[str]:
        """The constants that no kernel may find infinite or NaN, whatever values replace theirs."""
        return frozenset(
            name
            for entry in self.entries
            for step in entry.steps
            for name, array in zip(step.arguments, self.kernels[step.kernel].nest.arrays, strict=True)
            if array.finite
        )

    @property
    def _by_name(self) -> dict[str, Buffer]:
        found: dict[str, Buffer] | None = self.__dict__.get("_index")
        if found is None:
            found = {buffer.name: buffer for buffer in self.buffers}
            object.__setattr__(self, "_index", found)
        return found


# ---- printing ------------------------------------------------------------------------------------------------------


def text(program: Program) -> str:
    """The program for reading and for golden files; constants by type and shape, kernels by name and schedule."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    yield f"program {program.name}"
    for dim in program.dims:
        yield f"  dim {dim.name}: {dim.lo}..{dim.hi}"
    for number, kernel in enumerate(program.kernels):
        arrays = ", ".join(f"{a.name}:{a.dtype}{'*' if a.written else ''}" for a in kernel.nest.arrays)
        yield f"  kernel {number} {kernel.name}({arrays})"
        yield from (f"    {line}" for line in kernel.schedule.splitlines())
    for buffer in program.buffers:
        place = f"{buffer.space}+{buffer.offset}" if buffer.space == "arena" else buffer.space
        order = "" if buffer.order == tuple(range(len(buffer.shape))) else f" order {list(buffer.order)}"
        yield f"  buffer {buffer.name}: {_tensor(buffer.dtype, buffer.shape)}{order} {place} ({buffer.size} bytes)"
    for entry in program.entries:
        yield f"  entry {entry.name}, arena {entry.arena_size} bytes"
        yield from (f"    in  {t.name}: {_tensor(t.dtype, t.shape)}" for t in entry.inputs)
        yield from (f"    out {t.name}: {_tensor(t.dtype, t.shape)}" for t in entry.outputs)
        starts = {phase.first: phase for phase in entry.phases}
        ends = {phase.last for phase in entry.phases}
        indent = "    "
        for number, step in enumerate(entry.steps):
            if number in starts:
                phase = starts[number]
                order = ", one by one" if phase.linked else ""
                yield f"    {phase.shares} shares of {' + '.join(map(str, phase.tasks))} tasks{order}"
                indent = "      "
            origins = f"  # {'; '.join(step.origins)}" if step.origins else ""
            yield f"{indent}{program.kernels[step.kernel].name}({', '.join(step.arguments)}){origins}"
            indent = "    " if number in ends else indent


def _tensor(dtype: DType, shape: tuple[Int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


# ---- specification -------------------------------------------------------------------------------------------------


def check(program: Program) -> None:
    """Raises SpecError where the program breaks what code generation relies on."""
    _expect(program.name.isidentifier() and program.name.isascii(), f"its name {program.name!r} is no C identifier")
    _distinct("dimension", [dim.name for dim in program.dims])
    _distinct("kernel", [kernel.name for kernel in program.kernels])
    _distinct("buffer", [buffer.name for buffer in program.buffers])
    _distinct("entry", [entry.name for entry in program.entries])
    dims = set(program.dims)
    for dim in program.dims:
        _expect(isinstance(dim.hi, int), f"dimension {dim.name} has no constant upper bound")
    for kernel in program.kernels:
        _expect(kernel.name.isidentifier(), f"kernel name {kernel.name!r} is no identifier")
        _distinct(f"array of kernel {kernel.name}", [array.name for array in kernel.nest.arrays])
        unknown = [dim.name for dim in kernel.nest.dims if dim not in dims]
        _expect(not unknown, f"kernel {kernel.name} reads unknown dimensions {unknown}")
    for buffer in program.buffers:
        _check_buffer(program, buffer)
    for entry in program.entries:
        _check_entry(program, entry)
        _check_dims(program, entry)
        _check_order(program, entry)
        _check_phases(program, entry)
    for name in sorted(program.finite):
        known = program.buffer(name).space == "constant" and bool(np.isfinite(program.constants[name]).all())
        _expect(known, f"buffer {name} is not known to be finite, but a kernel relies on it")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise SpecError(f"program: {message}")


def _distinct(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    _expect(not twice, f"{what} names must be distinct, found {', '.join(twice)} more than once")


def _check_buffer(program: Program, buffer: Buffer) -> None:
    where = f"buffer {buffer.name}"
    _expect(buffer.space in SPACES, f"{where}: unknown space {buffer.space!r}")
    _expect(sorted(buffer.order) == list(range(len(buffer.shape))), f"{where}: order {buffer.order} is no permutation")
    elements = sym.upper(sym.product(buffer.shape))
    _expect(elements is not None, f"{where}: no upper bound for its shape {list(buffer.shape)}")
    if buffer.space == "arena":
        _expect(buffer.offset % ALIGNMENT == 0, f"{where}: offset {buffer.offset} is not aligned to {ALIGNMENT} bytes")
    if buffer.space == "constant":
        _expect(buffer.name in program.constants, f"{where} has no value")
        value = program.constants[buffer.name]
        _expect(value.dtype == buffer.dtype.numpy, f"{where}: expected {buffer.dtype}, its value is {value.dtype}")
        _expect(value.nbytes <= buffer.size, f"{where}: {value.nbytes} bytes of value, {buffer.size} of space")


def _check_dims(program: Program, entry: Entry) -> None:
    """The size of every dimension that the entry uses follows from the shapes of its inputs."""
    known = {solution.symbol for solution in solve([extent for t in entry.inputs for extent in t.shape])}
    used = {v for t in (*entry.inputs, *entry.outputs) for extent in t.shape for v in sym.variables(extent)}
    used.update(dim for step in entry.steps for dim in program.kernels[step.kernel].nest.dims)
    missing = sorted(dim.name for dim in used - known)
    _expect(not missing, f"entry {entry.name}: the inputs do not say how large {', '.join(missing)} is")


def _check_order(program: Program, entry: Entry) -> None:
    """Every output is written, and nothing in the arena is read before a step writes it."""
    written: set[str] = set()
    for number, step in enumerate(entry.steps):
        arrays = program.kernels[step.kernel].nest.arrays
        for name, array in zip(step.arguments, arrays, strict=True):
            fresh = program.buffer(name).space == "arena" and name not in written and not array.written
            _expect(not fresh, f"entry {entry.name}, step {number}: {name} is read before anything is written to it")
        written |= {name for name, array in zip(step.arguments, arrays, strict=True) if array.written}
    missing = [t.name for t in entry.outputs if t.name not in written]
    _expect(not missing, f"entry {entry.name}: nothing writes {', '.join(missing)}")


def _check_entry(program: Program, entry: Entry) -> None:
    tensors = {tensor.name: (space, tensor) for space in ("input", "output") for tensor in getattr(entry, space + "s")}
    _distinct(f"tensor of entry {entry.name}", [t.name for t in (*entry.inputs, *entry.outputs)])
    for number, step in enumerate(entry.steps):
        where = f"entry {entry.name}, step {number}"
        _expect(0 <= step.kernel < len(program.kernels), f"{where}: kernel {step.kernel} does not exist")
        kernel = program.kernels[step.kernel]
        arrays = kernel.nest.arrays
        _expect(
            len(arrays) == len(step.arguments),
            f"{where}: {kernel.name} takes {len(arrays)} arrays, found {len(step.arguments)}",
        )
        for name, array in zip(step.arguments, arrays, strict=True):
            _expect(name in program._by_name, f"{where}: buffer {name} does not exist")
            buffer = program.buffer(name)
            _expect(buffer.dtype == array.dtype, f"{where}: {array} is given {name} of type {buffer.dtype}")
            if buffer.space in ("input", "output"):
                _expect(
                    name in tensors and tensors[name][0] == buffer.space,
                    f"{where}: {name} is no {buffer.space} of the entry",
                )
            if buffer.space == "arena":
                _expect(buffer.offset + buffer.size <= entry.arena_size, f"{where}: {name} ends behind the arena")
            if array.written:
                _expect(buffer.space in ("output", "arena"), f"{where}: {name} is written, but lies in {buffer.space}")
        buffers = [program.buffer(name) for name in step.arguments]
        for i, array in enumerate(arrays):
            # Kernels take restrict pointers, so that loads need not wait for stores.
            shared = [b.name for j, b in enumerate(buffers) if array.written and j != i and _overlap(buffers[i], b)]
            _expect(not shared, f"{where}: {buffers[i].name}, which the step writes, overlaps {', '.join(shared)}")


def _check_phases(program: Program, entry: Entry) -> None:
    """Phases follow each other, divide the tasks of their steps, and keep what their steps use apart in the arena."""
    free = 0
    for phase in entry.phases:
        where = f"entry {entry.name}, steps {phase.first} to {phase.last}"
        _expect(free <= phase.first < phase.last < len(entry.steps), f"{where}: no phase can be there")
        free = phase.last + 1
        steps = entry.steps[phase.first : free]
        nests = [program.kernels[step.kernel].nest for step in steps]
        _expect(sum(nest.checked for nest in nests) <= 1, f"{where}: more than one can raise a status")
        for nest, tasks in zip(nests, phase.tasks, strict=True):
            count = sym.product(loop.extent for loop in nest.tasks)
            _expect(phase.shares * tasks == count, f"{where}: {count} tasks are not {phase.shares} shares of {tasks}")
        buffers = {program.buffer(name) for step in steps for name in step.arguments}
        shared = sorted(a.name for a in buffers for b in buffers if a is not b and _overlap(a, b))
        _expect(not shared, f"{where}: {', '.join(shared)} overlap")


def _overlap(a: Buffer, b: Buffer) -> bool:
    if a.space != "arena" or b.space != "arena":
        return a is b
    return a.offset < b.offset + b.size and b.offset < a.offset + a.size
