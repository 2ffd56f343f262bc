"""The program: what a compiled library does, step by step, and where every value lies.

It is the whole input of code generation: kernels (loop nests), buffers with their place in memory, and entry points
that launch kernels in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.ops import EVERY, Exchanged, Group, Passed
from luminal.core.schedule.nest.ir import LoopNest
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.symbolic import Int, Var
from luminal.core.types import DType

SPACES = ("input", "output", "constant", "arena", "part", "state", "share")
ALIGNMENT = 64  # bytes; of every buffer in the arena and in the weights


def aligned(size: int) -> int:
    """``size`` rounded up to the alignment of buffers."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Buffer:
    """A value in memory.

    ``shape`` is in elements; ``order`` lists its axes from slowest to fastest in memory. ``space`` is one of
    ``SPACES``; an input or output is the entry's tensor of the same name. ``offset`` is in bytes from the start of the
    arena, or of the states of a context (0 in other spaces: code generation lays out the weights); ``size`` is in
    bytes, at the upper bounds of the dimensions. A buffer in space ``part`` is an element of ``whole`` along its first
    axis, at the round in ``counter``, or so many rows of it: part number ``counter``. A
    buffer in space ``share`` does not exist as a whole: a thread has the portion of its current share, of a phase that
    lists it among its ``portions``.
    """

    name: str
    dtype: DType
    shape: tuple[Int, ...]
    order: tuple[int, ...]
    space: str
    offset: int
    size: int
    origins: tuple[str, ...] = ()
    whole: str = ""
    counter: Var | int | None = None


@dataclass(frozen=True)
class Fetch:
    """What a launch prefetches for a later one: bytes of the constant ``buffer`` from ``first`` on, ``stride`` for each
    step of its kernel's tiles, ``part`` for each task. It may run a little past the end."""

    buffer: str
    first: int
    stride: Int
    part: Int

    def __str__(self) -> str:
        return f"{self.buffer} from {self.first} on, {self.stride} bytes a step, {self.part} a task"


@dataclass(frozen=True)
class Launch:
    """A step: kernel number ``kernel`` on buffers named in the order of its nest's arrays. ``origins`` are the source
    operators that the step computes. One thread does ``grain`` tasks sooner than it could wake another.
    ``operations`` are the additions and multiplications of its contractions, two for each product that is summed."""

    kernel: int
    arguments: tuple[str, ...]
    origins: tuple[str, ...] = ()
    grain: int = 1
    operations: Int = 0
    fetch: Fetch | None = None


@dataclass(frozen=True)
class Portion:
    """A share's elements of a ``buffer`` in space ``share``: ``length`` of them, from ``first + share * length`` on.
    They lie ``offset`` bytes into the thread's memory for portions."""

    buffer: str
    first: int
    length: int
    offset: int = 0


@dataclass(frozen=True)
class Phase:
    """Consecutive steps, ``first`` to ``last`` inclusive, between which no thread waits for another: each thread runs
    its part of the ``shares`` of one step, then of the next. A share is ``tasks[k]`` consecutive tasks of the k-th
    step. At most one step can raise a status. ``linked``: a step reads what an earlier one wrote, so each share runs
    through all steps before the next share begins, while its results are in the cache. Of buffers with ``portions``,
    which no step outside such phases uses, a thread has the portion of its current share alone."""

    first: int
    last: int
    shares: Int
    tasks: tuple[int, ...]
    linked: bool = False
    portions: tuple[Portion, ...] = ()

    def grain(self, steps: Sequence[Launch]) -> int:
        """How many shares a thread runs in the time of waking another; a share runs its tasks of all ``steps``."""
        work = sum(Fraction(times, step.grain) for step, times in zip(steps, self.tasks, strict=True))
        return max(1, int(1 / work))


@dataclass(frozen=True)
class Region:
    """Steps in their order. A step that is in none of the ``phases`` is one by itself."""

    steps: tuple[Step, ...]
    phases: tuple[Phase, ...] = ()


@dataclass(frozen=True)
class HostCall:
    """A step: a function of the host (see ``core.host``) on row-major buffers, the last of which is the result.
    ``take`` and ``give`` move texts between a caller's tensors and buffers of numbers."""

    function: str
    arguments: tuple[str, ...]
    origins: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        return f"host {self.function}"


@dataclass(frozen=True)
class Exchange:
    """A step: begins an exchange of the row-major buffer ``operand`` between ranks (see ``core.exchange``); what this
    rank gets is in ``result`` once a ``Wait`` for this ``ticket`` has ended. Until then nothing may write either."""

    attr: Exchanged
    operand: str
    result: str
    ticket: int
    origins: tuple[str, ...] = ()

    @property
    def arguments(self) -> tuple[str, str]:
        return self.operand, self.result

    @property
    def called(self) -> str:
        return f"start {self.attr.kind} over {self.attr.group.axis}"


@dataclass(frozen=True)
class Transfer:
    """A step: begins to send the row-major ``buffer`` to another rank, or to receive it from there, as ``attr`` says.
    A ``Wait`` for its ticket ends it: until then nothing may write the buffer, or, where it is received, read it."""

    attr: Passed
    buffer: str
    origins: tuple[str, ...] = ()

    @property
    def ticket(self) -> int:
        return self.attr.ticket

    @property
    def arguments(self) -> tuple[str]:
        return (self.buffer,)

    @property
    def called(self) -> str:
        way = "send to" if self.attr.sends else "receive from"
        return f"{way} {self.attr.group.axis} {self.attr.peer}"


@dataclass(frozen=True)
class Wait:
    """A step: waits until the exchange or transfer of that ``ticket``, of the buffers ``arguments``, has ended."""

    ticket: int
    arguments: tuple[str, ...]
    origins: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        return f"wait for {self.arguments[-1]}"


TAKE, GIVE = "take", "give"


@dataclass(frozen=True)
class Loop:
    """A step: the ``body``, ``rounds`` times, while ``counter`` counts from 0; or, where that is None, as often as
    ``flag``, a buffer of one bool, holds after ``test`` has run. After each round, the pairs of buffers in ``carried``
    exchange their contents: the next round reads the first of a pair, this round has written the second."""

    counter: Var
    rounds: Int | None
    body: Region
    carried: tuple[tuple[str, str], ...] = ()
    test: Region = Region(())
    flag: str = ""


@dataclass(frozen=True)
class Branch:
    """A step: ``then`` where ``flag``, a buffer of one bool, holds, else ``other``."""

    flag: str
    then: Region
    other: Region


@dataclass(frozen=True)
class Stages:
    """A step: the region of this rank's place among the ranks of ``group``."""

    group: Group
    regions: tuple[Region, ...]


@dataclass(frozen=True)
class Measure:
    """A step: from here on the size of ``dim`` is ``count``, a buffer of one int64; before, it is its upper bound."""

    dim: Var
    count: str


Call: TypeAlias = HostCall | Exchange | Transfer | Wait
Numbered: TypeAlias = Launch | Call
Step: TypeAlias = Numbered | Loop | Branch | Stages | Measure


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of an entry: contiguous, row-major, ``shape`` in elements. Its ``buffer`` has its name, or,
    where another entry has a buffer of that name, one of its own."""

    name: str
    dtype: DType
    shape: tuple[Int, ...]
    other_name: str = ""

    @property
    def buffer(self) -> str:
        return self.other_name or self.name


@dataclass(frozen=True)
class Entry:
    """An entry point. ``arena_size`` is in bytes, at the upper bounds of the dimensions. ``structure`` is the front
    end's description of nested inputs and outputs (anything that JSON can hold), for the loader."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    region: Region
    arena_size: int
    structure: Any = None

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.region.steps

    @property
    def launches(self) -> Iterator[Launch]:
        """The launches in the order of the steps, with those inside loops and branches, once each."""
        return launches(self.region)


@dataclass(frozen=True)
class State:
    """A value that a context keeps from one run to the next, in the buffer ``buffer`` of the space ``state``: a fixed
    shape, row-major. Before the first run it is the constant ``initial``; None: zeros."""

    buffer: str
    initial: str | None


@dataclass(frozen=True)
class Kernel:
    """A scheduled nest with its name (an identifier) and the source operators that it first was made for. ``fetches``:
    a launch may have it fetch something."""

    name: str
    scheduled: Scheduled
    origins: tuple[str, ...] = ()
    fetches: bool = False

    @property
    def nest(self) -> LoopNest:
        return self.scheduled.nest


@dataclass(frozen=True)
class Pipeline:
    """The ranks of a program that have stages of it, along ``group``; the stage that each constant is for, and the one
    that keeps each state, or ``EVERY``. What every stage has lies at the same place in each; other constants, and other
    states, begin behind that in each stage."""

    group: Group
    homes: Mapping[str, int]
    states: Mapping[str, int] = field(default_factory=dict)

    def has(self, home: int, stage: int) -> bool:
        """Whether what is at ``home`` is on the ranks of ``stage``."""
        return home in (stage, EVERY)

    def stage(self, rank: int) -> int:
        return rank // self.group.stride % self.group.size

    def beside(self, rank: int) -> int:
        """The number of a rank among those of its stage."""
        stride = self.group.stride
        return rank // (stride * self.group.size) * stride + rank % stride


@dataclass(frozen=True)
class Program:
    """A model ready for code generation.

    ``dims`` are the symbolic dimensions in the order in which the library keeps their sizes. ``constants`` gives the
    value of every constant buffer, laid out as its kernels read it (axes in the buffer's ``order``), ``digests`` a hash
    of its content. ``metadata`` is passed through to the library's description of itself: strings, numbers, lists and
    mappings that JSON can hold. ``texts`` are those whose numbers are in constants and kernels. ``mesh`` has the axes
    of the mesh that the program is one rank of, with their sizes; in a ``pipeline``, ranks have a stage's constants.
    """

    name: str
    dims: tuple[Var, ...]
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    entries: tuple[Entry, ...]
    constants: Mapping[str, np.ndarray[Any, Any]]
    digests: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    texts: tuple[str, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()
    pipeline: Pipeline | None = None

    @property
    def ranks(self) -> int:
        """How many processes run the program together."""
        return math.prod(size for _, size in self.mesh)

    @property
    def tickets(self) -> int:
        """One more than the largest ticket of an exchange or transfer."""
        steps = (step for entry in self.entries for step in numbered(entry.region))
        return max((step.ticket + 1 for step in steps if isinstance(step, Exchange | Transfer)), default=0)

    @property
    def state_size(self) -> int:
        """Bytes of all states of a context; in a pipeline, of the stage with most."""
        return max(self.state_sizes)

    @property
    def state_sizes(self) -> list[int]:
        """Bytes of all states of a context, on the ranks of each stage."""
        pipeline = self.pipeline
        buffers = map(self.buffer, (state.buffer for state in self.states))
        ends = {buffer.name: buffer.offset + buffer.size for buffer in buffers}
        if pipeline is None:
            return [max(ends.values(), default=0)]
        return [
            max((end for name, end in ends.items() if pipeline.has(pipeline.states[name], stage)), default=0)
            for stage in range(pipeline.group.size)
        ]

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        return self.named[name]

    def bytes_of(self, portion: Portion) -> int:
        """Bytes of a portion, in a thread's memory for portions."""
        return aligned(portion.length * self.buffer(portion.buffer).dtype.itemsize)

    @property
    def portion_size(self) -> int:
        """Bytes that a thread needs for the portions of any phase."""
        phases = (phase for entry in self.entries for _, phase in together(entry.region))
        return max((p.offset + self.bytes_of(p) for phase in phases for p in phase.portions), default=0)

    @property
    def portions_at_once(self) -> int:
        """How many threads can have portions at once: one for each share, at most the largest 32-bit number."""
        phases = (phase for entry in self.entries for _, phase in together(entry.region) if phase.portions)
        counts = (sym.upper(phase.shares) for phase in phases)
        most = (1 << 31) - 1
        return max((most if count is None else min(count, most) for count in counts), default=0)

    @property
    def finite(self) -> frozenset[str]:
        """The constants that no kernel may find infinite or NaN, whatever values replace theirs."""
        return frozenset(
            name
            for entry in self.entries
            for step in entry.launches
            for name, array in zip(step.arguments, self.kernels[step.kernel].nest.arrays, strict=True)
            if array.finite
        )

    @property
    def measured(self) -> frozenset[Var]:
        """The dimensions whose sizes are computed."""
        return frozenset(dim for entry in self.entries for dim in measured(entry.region))

    @property
    def named(self) -> dict[str, Buffer]:
        found: dict[str, Buffer] | None = self.__dict__.get("_index")
        if found is None:
            found = {buffer.name: buffer for buffer in self.buffers}
            object.__setattr__(self, "_index", found)
        return found


def place_of(program: Program, name: str) -> Buffer:
    """The buffer that holds ``name``."""
    buffer = program.buffer(name)
    while buffer.space == "part":
        buffer = program.buffer(buffer.whole)
    return buffer


def inner(step: Step) -> tuple[Region, ...]:
    """The regions that a step holds."""
    match step:
        case Launch() | HostCall() | Exchange() | Transfer() | Wait() | Measure():
            return ()
        case Stages():
            return step.regions
        case Loop():
            return (step.test, step.body)
        case Branch():
            return (step.then, step.other)


def measured(region: Region) -> Iterator[Var]:
    """The dimensions that are measured in a region and the regions inside it."""
    for step in region.steps:
        if isinstance(step, Measure):
            yield step.dim
        for nested in inner(step):
            yield from measured(nested)


def numbered(region: Region) -> Iterator[Numbered]:
    """The launches, calls of the host, exchanges and waits of a region and of those inside it, in the order in which
    runs number them."""
    for step in region.steps:
        if isinstance(step, Numbered):
            yield step
        for nested in inner(step):
            yield from numbered(nested)


def launches(region: Region) -> Iterator[Launch]:
    """The launches of a region and of the regions inside it."""
    return (step for step in numbered(region) if isinstance(step, Launch))


def together(region: Region, first: int = 0) -> Iterator[tuple[int, Phase]]:
    """The phases of a region and of the regions inside it, each with the number of its first launch."""
    phases = {phase.first: phase for phase in region.phases}
    for number, step in enumerate(region.steps):
        if number in phases:
            yield first, phases[number]
        first += isinstance(step, Numbered)
        for nested in inner(step):
            yield from together(nested, first)
            first += sum(1 for _ in numbered(nested))


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
        yield from (f"    {line}" for line in kernel.scheduled.lines)
    for buffer in program.buffers:
        place = {
            "arena": f"arena+{buffer.offset}",
            "state": f"state+{buffer.offset}",
            "part": f"{buffer.whole}[{buffer.counter.name if isinstance(buffer.counter, Var) else buffer.counter}]",
        }.get(buffer.space, buffer.space)
        order = "" if buffer.order == tuple(range(len(buffer.shape))) else f" order {list(buffer.order)}"
        yield f"  buffer {buffer.name}: {_tensor(buffer.dtype, buffer.shape)}{order} {place} ({buffer.size} bytes)"
    for state in program.states:
        yield f"  state {state.buffer}, at first {state.initial or 'zeros'}"
    for entry in program.entries:
        yield f"  entry {entry.name}, arena {entry.arena_size} bytes"
        yield from (f"    in  {t.name}: {_tensor(t.dtype, t.shape)}" for t in entry.inputs)
        yield from (f"    out {t.name}: {_tensor(t.dtype, t.shape)}" for t in entry.outputs)
        yield from _steps(program, entry.region, "    ")


def _steps(program: Program, region: Region, indent: str) -> Iterator[str]:
    starts = {phase.first: phase for phase in region.phases}
    ends = {phase.last for phase in region.phases}
    inside = indent
    for number, step in enumerate(region.steps):
        if number in starts:
            phase = starts[number]
            order = ", one by one" if phase.linked else ""
            portions = "".join(f", {p.length} elements of {p.buffer} at once" for p in phase.portions)
            yield f"{indent}{phase.shares} shares of {' + '.join(map(str, phase.tasks))} tasks{order}{portions}"
            inside = indent + "  "
        match step:
            case Launch():
                origins = f"  # {'; '.join(step.origins)}" if step.origins else ""
                also = f", fetches {step.fetch}" if step.fetch else ""
                yield f"{inside}{program.kernels[step.kernel].name}({', '.join(step.arguments)}){also}{origins}"
            case HostCall():
                origins = f"  # {'; '.join(step.origins)}" if step.origins else ""
                yield f"{indent}host {step.function}({', '.join(step.arguments)}){origins}"
            case Exchange():
                origins = f"  # {'; '.join(step.origins)}" if step.origins else ""
                yield f"{indent}{step.called}({', '.join(step.arguments)}), ticket {step.ticket}{origins}"
            case Transfer() | Wait():
                what = f"({step.buffer})" if isinstance(step, Transfer) else ""
                yield f"{indent}{step.called}{what}, ticket {step.ticket}"
            case Stages():
                for place, stage in enumerate(step.regions):
                    yield f"{indent}{step.group.axis} {place}"
                    yield from _steps(program, stage, indent + "  ")
            case Loop():
                if step.rounds is None:
                    yield f"{indent}while {step.flag}, after"
                    yield from _steps(program, step.test, indent + "    ")
                else:
                    yield f"{indent}for {step.counter.name} below {step.rounds}"
                yield from _steps(program, step.body, indent + "  ")
                yield from (f"{indent}  exchange {a}, {b}" for a, b in step.carried)
            case Measure():
                yield f"{indent}{step.dim.name} = {step.count}"
            case Branch():
                yield f"{indent}if {step.flag}"
                yield from _steps(program, step.then, indent + "  ")
                yield f"{indent}else"
                yield from _steps(program, step.other, indent + "  ")
        inside = indent if number in ends else inside


def _tensor(dtype: DType, shape: tuple[Int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
