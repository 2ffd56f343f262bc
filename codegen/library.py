"""The values that the template of library.cpp iterates over: steps as calls, sizes as functions, tables as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from luminal.codegen import interface as public
from luminal.codegen.cpp import Names, ctype
from luminal.codegen.emitter import KernelText
from luminal.codegen.frame import Frame, Value
from luminal.codegen.indices import Indices
from luminal.codegen.interface import Interface, Tensor
from luminal.codegen.signature import AHEAD, AHEAD_STEP, BoxMap, Signature
from luminal.codegen.weights import WeightsPlan
from luminal.core import symbolic as sym
from luminal.core.ops import EVERY
from luminal.core.schedule.program.ir import (
    Branch,
    Buffer,
    Entry,
    Exchange,
    HostCall,
    Launch,
    Loop,
    Measure,
    Numbered,
    Phase,
    Program,
    Region,
    Stages,
    State,
    Transfer,
    Wait,
)
from luminal.core.sizes import Solution, solve
from luminal.core.symbolic import Int, Var, as_var, expr
from luminal.core.types import DType


@dataclass(frozen=True)
class Constant:
    """A constant's offset in the weights, and the identifier in library.cpp that holds it."""

    identifier: str
    offset: int
    text: str


@dataclass(frozen=True)
class FiniteRow:
    """A constant that must be finite: its name, the member of ``enum lm_dtype``, its identifier, its elements, and the
    stage of a pipeline that has it."""

    name: str
    c_dtype: str
    identifier: str
    count: int
    stage: int = 0


@dataclass(frozen=True)
class SizeFunction:
    """``int64_t identifier(const int64_t* dims)``; ``comment`` is the size as an expression of dims."""

    identifier: str
    lines: tuple[str, ...]
    comment: str


@dataclass(frozen=True)
class SolutionRow:
    """``function`` computes the dim, which is the size of no axis by itself, from the size of an axis of an input; dim,
    input and axis are numbers."""

    dim: int
    input: int
    axis: int
    function: str


@dataclass(frozen=True)
class Call:
    """A call of a kernel, or of a function of the host, and the source operators that it computes."""

    text: str
    origins: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """A launch, a call of the host, or a phase of several launches. ``how`` is the member of the context that runs it,
    ``number`` that of its step (in a phase, of the step that may raise a status). ``tasks`` is the text of the count of
    tasks or shares, and of how many are worth a thread; empty for the host."""

    how: str
    number: int
    tasks: str
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class LoopStep:
    """A loop. A carry is ``(now, next, place of now, place of next)``, the first two names of variables. ``rounds`` is
    empty where the loop goes on as long as the pointer ``flag`` holds true after the steps of ``test``."""

    counter: str
    rounds: str
    carries: tuple[tuple[str, str, str, str], ...]
    test: tuple[AnyStep, ...]
    flag: str
    steps: tuple[AnyStep, ...]
    how: str = "loop"


@dataclass(frozen=True)
class BranchStep:
    """A branch on the bool at the pointer ``flag``."""

    flag: str
    then: tuple[AnyStep, ...]
    other: tuple[AnyStep, ...]
    how: str = "branch"


@dataclass(frozen=True)
class StagesStep:
    """The steps of each place among ``size`` ranks, ``stride`` apart."""

    size: int
    stride: int
    places: tuple[tuple[AnyStep, ...], ...]
    how: str = "stages"


@dataclass(frozen=True)
class MeasureStep:
    """Sets the size of the dim number ``dim`` to the integer at the pointer ``count``."""

    dim: int
    name: str
    count: str
    how: str = "measure"


@dataclass(frozen=True)
class Runs:
    """What runs from when the step of this number is reported (``lm_options.on_step``) to the next report: kernels, and
    the source operators that they compute. Nothing for steps that run within others."""

    kernels: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


AnyStep: TypeAlias = Step | LoopStep | BranchStep | StagesStep | MeasureStep


@dataclass(frozen=True)
class Row:
    """A tensor in its table: ``axes`` is the text of its axes."""

    tensor: Tensor
    axes: str


@dataclass(frozen=True)
class TensorTable:
    """The inputs or outputs of an entry; ``text`` names the table where it is used."""

    identifier: str
    rows: tuple[Row, ...]

    @property
    def text(self) -> str:
        return self.identifier if self.rows else "{}"


@dataclass(frozen=True)
class StateRow:
    """A value that contexts keep: its public description, the text of its axes, its offset among the states, its size
    in bytes, the text of the offset of its initial value in the weights (-1: zeros), and the stage of a pipeline that
    has it (-1: all)."""

    tensor: Tensor
    axes: str
    offset: int
    size: int
    initial: str
    stage: int


@dataclass(frozen=True)
class AxesTable:
    """The table of axes that all tensors of one shape share."""

    identifier: str
    items: tuple[str, ...]


@dataclass(frozen=True)
class EntryText:
    """An entry point: its public description, its steps, the tables of its inputs and outputs, the dims to solve."""

    interface: public.Entry
    steps: tuple[AnyStep, ...]
    tensors: tuple[TensorTable, ...]
    solutions: tuple[SolutionRow, ...]


@dataclass(frozen=True)
class LibraryText:
    """Everything that library.cpp says about one program; ``solutions`` are functions of a size and the dims."""

    constants: tuple[Constant, ...]
    finite: tuple[FiniteRow, ...]
    sizes: tuple[SizeFunction, ...]
    solutions: tuple[SizeFunction, ...]
    axes_tables: tuple[AxesTable, ...]
    entries: tuple[EntryText, ...]
    steps: tuple[str, ...]
    states: tuple[StateRow, ...]
    texts: tuple[tuple[str, int], ...]  # C string literals, and their sizes in bytes
    runs: tuple[Runs, ...]


def interface_of(program: Program) -> Interface:
    """The public interface of ``program``."""
    states = public.tensors((b.name, b.dtype, b.shape) for b in (program.buffer(s.buffer) for s in program.states))
    methods = public.entries([entry.name for entry in program.entries], states)
    return Interface(
        program.name,
        public.dims(((dim.name, dim.lo, _bound(dim)) for dim in program.dims), {dim.name for dim in program.measured}),
        tuple(
            public.Entry(
                entry.name,
                identifier,
                public.tensors((t.name, t.dtype, t.shape) for t in entry.inputs),
                public.tensors((t.name, t.dtype, t.shape) for t in entry.outputs),
                entry.structure,
                entry.arena_size,
            )
            for entry, identifier in zip(program.entries, methods, strict=True)
        ),
        states,
        tuple(program.metadata.get("relations", ())),
    )


def _bound(dim: Var) -> int:
    assert isinstance(dim.hi, int), f"dimension {dim.name} has no constant bound"  # program.check
    return dim.hi


class Describer:
    """Describes the library of ``program``; ``kernels`` are its rendered kernels, ``plan`` the places of constants."""

    def __init__(
        self, program: Program, interface: Interface, kernels: Sequence[KernelText], plan: WeightsPlan
    ) -> None:
        self.program = program
        self.interface = interface
        self.kernels = kernels
        self.dims = {dim: number for number, dim in enumerate(program.dims)}
        self.constants = {
            name: Constant(f"weight{number}", offset, self._constant_text(program.buffer(name)))
            for number, (name, offset) in enumerate(plan.offsets.items())
        }
        self.sizes: dict[Int, SizeFunction] = {}
        self.solutions: dict[tuple[Var, Int, Int], SizeFunction] = {}
        self.axes: dict[tuple[Int, ...], AxesTable] = {}
        self.steps: list[str] = []
        self.runs: list[Runs] = []
        self.carries = 0

    def describe(self) -> LibraryText:
        entries = tuple(
            self._entry(entry, face)
            for entry, face in zip(self.program.entries, self.interface.entries, strict=True)
        )  # fmt: skip
        states = tuple(map(self._state, self.program.states, self.interface.states))
        return LibraryText(
            tuple(self.constants.values()),
            tuple(self._finite(name) for name in self.constants if name in self.program.finite),
            tuple(self.sizes.values()),
            tuple(self.solutions.values()),
            tuple(self.axes.values()),
            entries,
            tuple(self.steps),
            states,
            tuple((public.c_string(text), len(text.encode())) for text in self.program.texts),
            tuple(self.runs),
        )

    @staticmethod
    def _constant_text(buffer: Buffer) -> str:
        return f"{buffer.name}: {buffer.dtype} [{', '.join(map(str, buffer.shape))}]"

    def _finite(self, name: str) -> FiniteRow:
        buffer = self.program.buffer(name)
        size = buffer.size // buffer.dtype.itemsize
        stage = self.program.pipeline.homes[name] if self.program.pipeline else 0
        return FiniteRow(name, public.c_dtype(buffer.dtype), self.constants[name].identifier, size, stage)

    def _state(self, state: State, face: Tensor) -> StateRow:
        buffer = self.program.buffer(state.buffer)
        initial = "-1" if state.initial is None else self.constants[state.initial].identifier
        stage = self.program.pipeline.states[state.buffer] if self.program.pipeline else EVERY
        return StateRow(face, self._axes(face.shape), buffer.offset, buffer.size, initial, stage)

    # ---- steps -----------------------------------------------------------------------------------------------------

    def _entry(self, entry: Entry, face: public.Entry) -> EntryText:
        pointers = {
            tensor.buffer: self._tensor(space, number, tensor.dtype)
            for space, tensors in (("in", entry.inputs), ("out", entry.outputs))
            for number, tensor in enumerate(tensors)
        }
        steps = tuple(self._region(entry.region, pointers))
        tables = tuple(
            TensorTable(f"{face.identifier}_{which}", tuple(Row(t, self._axes(t.shape)) for t in tensors))
            for which, tensors in (("inputs", face.inputs), ("outputs", face.outputs))
        )
        return EntryText(face, steps, tables, tuple(self._solutions(entry)))

    def _region(self, region: Region, pointers: dict[str, str]) -> Iterator[AnyStep]:
        """``pointers`` are the texts of pointers to buffers without a fixed place; those of carries are added."""
        phases = {phase.first: phase for phase in region.phases}
        number = 0
        while number < len(region.steps):
            phase, step = phases.get(number), region.steps[number]
            match step:
                case Launch() if phase is not None:
                    launches = [s for s in region.steps[number : phase.last + 1] if isinstance(s, Launch)]
                    yield self._phase(launches, phase, pointers)
                case Launch():
                    yield self._step(step, pointers)
                case HostCall():
                    yield self._host(step, pointers)
                case Exchange():
                    yield self._exchange(step, pointers)
                case Transfer():
                    yield self._transfer(step, pointers)
                case Wait():
                    call = Call(f"context.wait({step.ticket})", step.origins)
                    yield Step("host", self._number(step), "", (call,))
                case Loop():
                    yield self._loop(step, pointers)
                case Measure():
                    count = self._pointer(self.program.buffer(step.count), pointers)
                    yield MeasureStep(self.dims[step.dim], step.dim.name, count)
                case Stages():
                    places = tuple(tuple(self._region(inner, dict(pointers))) for inner in step.regions)
                    yield StagesStep(step.group.size, step.group.stride, places)
                case Branch():
                    then, other = (tuple(self._region(inner, dict(pointers))) for inner in (step.then, step.other))
                    yield BranchStep(self._pointer(self.program.buffer(step.flag), pointers), then, other)
            number = phase.last + 1 if phase else number + 1

    def _loop(self, step: Loop, pointers: dict[str, str]) -> LoopStep:
        carries: list[tuple[str, str, str, str]] = []
        for first, second in step.carried:
            here, there = (self._pointer(self.program.buffer(name), pointers) for name in (first, second))
            now, following = f"now{self.carries}", f"next{self.carries}"
            self.carries += 1
            pointers |= {first: now, second: following}
            carries.append((now, following, here, there))
        flag = self._pointer(self.program.buffer(step.flag), pointers) if step.flag else ""
        rounds = "" if step.rounds is None else self._size(step.rounds)
        test, body = (tuple(self._region(inner, dict(pointers))) for inner in (step.test, step.body))
        return LoopStep(step.counter.name, rounds, tuple(carries), test, flag, body)

    def _step(self, step: Launch, pointers: dict[str, str]) -> Step:
        tasks = self.kernels[step.kernel].tasks
        number = self._number(step)
        call = self._call(step, 1, pointers)
        if tasks == 1:
            return Step("serial", number, "1", (call,))
        return Step("parallel", number, f"{self._size(tasks)}, {step.grain}", (call,))

    def _phase(self, steps: Sequence[Launch], phase: Phase, pointers: dict[str, str]) -> Step:
        numbers = [self._number(step) for step in steps]
        checked = (n for n, step in zip(numbers, steps, strict=True) if self.program.kernels[step.kernel].nest.checked)
        pointers = dict(pointers)
        for portion in phase.portions:
            first = f"{portion.first} + begin * {portion.length}" if portion.first else f"begin * {portion.length}"
            element = ctype(self.program.buffer(portion.buffer).dtype)
            pointers[portion.buffer] = f"portion<{element}>(own, {portion.offset}, {first})"
        calls = tuple(self._call(step, times, pointers) for step, times in zip(steps, phase.tasks, strict=True))
        how = "with_portions" if phase.portions else "by_share" if phase.linked else "parallel"
        tasks = f"{self._size(phase.shares)}, {phase.grain(steps)}"
        reported = next(checked, numbers[0])
        names, origins = zip(*((self.runs[n].kernels, self.runs[n].origins) for n in numbers), strict=True)
        for number in numbers:
            self.runs[number] = Runs()
        self.runs[reported] = Runs(tuple(chain(*names)), tuple(dict.fromkeys(chain(*origins))))
        return Step(how, reported, tasks, calls)

    def _host(self, step: HostCall, pointers: dict[str, str]) -> Step:
        arguments = ["context.texts()", "context.status()"]
        for buffer in map(self.program.buffer, step.arguments):
            size = self._size(sym.product(buffer.shape))
            arguments.append(f"{{{self._pointer(buffer, pointers)}, {size}}}")
        call = Call(f"host::{step.function}({', '.join(arguments)})", step.origins)
        return Step("host", self._number(step), "", (call,))

    def _exchange(self, step: Exchange, pointers: dict[str, str]) -> Step:
        operand, result = map(self.program.buffer, step.arguments)
        group = step.attr.group
        how = f"{{Exchange::{step.attr.kind}, {group.size}, {group.stride}, {step.attr.number}}}"
        size = self._size(sym.product(operand.shape) * operand.dtype.itemsize)
        text = f"context.start({step.ticket}, {how}, {self._pointer(operand, pointers)}, "
        call = Call(text + f"{self._pointer(result, pointers)}, {size})", step.origins)
        return Step("host", self._number(step), "", (call,))

    def _transfer(self, step: Transfer, pointers: dict[str, str]) -> Step:
        buffer, group = self.program.buffer(step.buffer), step.attr.group
        kind = "send" if step.attr.sends else "receive"
        how = f"{{Exchange::{kind}, {group.size}, {group.stride}, {step.attr.peer}}}"
        size = self._size(sym.product(buffer.shape) * buffer.dtype.itemsize)
        data = self._pointer(buffer, pointers)
        ends = f"{data}, {{}}" if step.attr.sends else f"{{}}, {data}"
        call = Call(f"context.start({step.ticket}, {how}, {ends}, {size})", step.origins)
        return Step("host", self._number(step), "", (call,))

    def _number(self, step: Numbered) -> int:
        name = self._called(step)
        said = f"{step.function}({', '.join(step.arguments)})" if isinstance(step, HostCall) else name
        self.steps.append("; ".join(step.origins) or said)
        self.runs.append(Runs((name,), step.origins))
        return len(self.steps) - 1

    def _called(self, step: Numbered) -> str:
        """What runs in a step: a kernel, or another call."""
        return self.kernels[step.kernel].kernel.name if isinstance(step, Launch) else step.called

    def _call(self, step: Launch, times: int, pointers: dict[str, str]) -> Call:
        signature = self.kernels[step.kernel].signature
        arguments = {"status": "context.status()", "dims": "dims"}
        arguments |= self._fetch(step, times)
        for pointer, name in zip(signature.pointers, step.arguments, strict=True):
            arguments[pointer.array] = self._pointer(self.program.buffer(name), pointers)
        return Call(signature.call(arguments, times), step.origins)

    def _fetch(self, step: Launch, times: int) -> dict[str, str]:
        """The prefetch for a later step as arguments of a call; where it has none, the first line of the weights."""
        if step.fetch is None:
            return {AHEAD: "context.weights<char>(0)", AHEAD_STEP: "0"}
        first = self.constants[step.fetch.buffer].identifier
        first += f" + {step.fetch.first}" if step.fetch.first else ""
        part, stride = self._size(step.fetch.part * times), self._size(step.fetch.stride)
        return {AHEAD: f"context.weights<char>({first}) + begin * {part}", AHEAD_STEP: stride}

    def _tensor(self, space: str, number: int, dtype: DType) -> str:
        """A pointer to the data of an input (``in``) or output (``out``)."""
        constant = "const " if space == "in" else ""
        kind = public.CPP_TYPES[dtype.name] if dtype.is_text else ctype(dtype)
        return f"static_cast<{constant}{kind}*>({space}[{number}])"

    def _pointer(self, buffer: Buffer, pointers: dict[str, str]) -> str:
        if buffer.name in pointers:
            return pointers[buffer.name]
        if buffer.space == "part":
            return self._element(buffer, 1, pointers)
        if buffer.space in ("arena", "state"):
            return f"context.{buffer.space}<{ctype(buffer.dtype)}>({buffer.offset})"
        if buffer.space == "constant":
            return f"context.weights<{ctype(buffer.dtype)}>({self.constants[buffer.name].identifier})"
        raise KeyError(buffer.name)

    def _element(self, part: Buffer, unit: int, pointers: dict[str, str]) -> str:
        """A pointer to ``part``, the slice of its whole at the counter; pointers move by ``unit`` per element."""
        assert part.counter is not None
        stride = self._size(sym.product(part.shape) * unit)
        number = part.counter if isinstance(part.counter, int) else part.counter.name
        return f"{self._pointer(self.program.buffer(part.whole), pointers)} + {number} * {stride}"

    # ---- sizes -----------------------------------------------------------------------------------------------------

    def _size(self, value: Int) -> str:
        """The text of a size inside a function that has ``dims``."""
        if isinstance(value, int):
            return str(value)
        dim = as_var(value)
        return f"dims[{self.dims[dim]}]" if dim else f"{self._function(value)}(dims)"

    def _function(self, value: Int) -> str:
        if value not in self.sizes:
            self.sizes[value] = SizeFunction(f"size{len(self.sizes)}", self._returning(value, {}), str(value))
        return self.sizes[value].identifier

    def _returning(self, value: Int, variables: dict[Var, Value]) -> tuple[str, ...]:
        """The body of a function that returns ``value``, in terms of ``dims`` and ``variables``."""
        frame = Frame(Names())
        with frame.open("") as scope:
            scope.variables.update({dim: Value(f"dims[{number}]") for dim, number in self.dims.items()})
            scope.variables.update(variables)
            frame.line(f"return {Indices(frame).expression(value)};")
        return tuple(scope.lines)

    def _solutions(self, entry: Entry) -> Iterator[SolutionRow]:
        """The dims that are the size of no axis by themselves. The runtime binds the others before."""
        axes = [(number, axis) for number, tensor in enumerate(entry.inputs) for axis in range(len(tensor.shape))]
        extents = [entry.inputs[number].shape[axis] for number, axis in axes]
        for solution in solve(extents):
            if as_var(extents[solution.axis]) is None:
                function = self._solution(solution, extents[solution.axis])
                yield SolutionRow(self.dims[solution.symbol], *axes[solution.axis], function)

    def _solution(self, solution: Solution, extent: Int) -> str:
        key = (solution.symbol, solution.slope, solution.rest)
        if key not in self.solutions:
            size = Var("size of the axis", 0, (1 << 63) - 1)
            comment = f"{solution.symbol.name}, where {extent} is the size"
            lines = self._returning(solution.value(expr(size)), {size: Value("size")})
            self.solutions[key] = SizeFunction(f"solution{len(self.solutions)}", lines, comment)
        return self.solutions[key].identifier

    def _axes(self, shape: tuple[Int, ...]) -> str:
        if not shape:
            return "{}"
        if shape not in self.axes:
            self.axes[shape] = AxesTable(f"axes{len(self.axes)}", tuple(map(self._axis, shape)))
        return self.axes[shape].identifier

    def _axis(self, size: Int) -> str:
        name = public.c_string(str(size))
        if isinstance(size, int):
            return f"fixed({name}, {size})"
        dim = as_var(size)
        return f"symbol({name}, {self.dims[dim]})" if dim else f"computed({name}, {self._function(size)})"


class LaunchDescriber(Describer):
    """Describes a library that launches its kernels on a GPU, one after the other, a block for each task: a call is
    ``context.launch(...)``, with the buffers of the context as arguments."""

    def _step(self, step: Launch, pointers: dict[str, str]) -> Step:
        number = self._number(step)
        tasks = self._size(self.kernels[step.kernel].tasks)
        return Step("launch", number, tasks, (self._launch(step, number, tasks, pointers),))

    def _launch(self, step: Launch, number: int, tasks: str, pointers: dict[str, str]) -> Call:
        signature = self.kernels[step.kernel].signature
        arguments = {"status": f"context.status({number})", "dims": "context.dims()"}
        for pointer, name in zip(signature.pointers, step.arguments, strict=True):
            arguments[pointer.array] = self._pointer(self.program.buffer(name), pointers)
        values = ", ".join(signature.values(arguments))
        boxed = ", ".join(self._boxed(signature, each) for each in signature.maps)
        more = f", {{{boxed}}}" if boxed else ""
        return Call(f"context.launch({number}, {signature.name}, {tasks}, {{{values}}}{more})", step.origins)

    def _boxed(self, signature: Signature, of: BoxMap) -> str:
        """An array from which the kernel copies boxes, as ``cuda::Boxed``."""
        parameter = [pointer.array for pointer in signature.pointers].index(of.array)
        sizes, strides = (
            ", ".join(f"static_cast<uint64_t>({self._size(x)})" for x in values)
            for values in (of.sizes, [x * of.itemsize for x in of.strides])
        )
        first = self._size(of.first * of.itemsize)
        return f"{{{parameter}, {first}, {len(of.sizes)}, {{{sizes}}}, {{{strides}}}, {of.lines}}}"

    def _tensor(self, space: str, number: int, dtype: DType) -> str:
        return f"context.{'input' if space == 'in' else 'output'}({number})"

    def _pointer(self, buffer: Buffer, pointers: dict[str, str]) -> str:
        if buffer.name in pointers:
            return pointers[buffer.name]
        if buffer.space == "part":
            return self._element(buffer, buffer.dtype.itemsize, pointers)
        if buffer.space in ("arena", "state"):
            return f"context.{buffer.space}({buffer.offset})"
        if buffer.space == "constant":
            return f"context.weights({self.constants[buffer.name].identifier})"
        raise KeyError(buffer.name)
