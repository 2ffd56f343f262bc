"""Measuring candidates on a GPU: each kernel is a library of its own, of one step, which the device times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from luminal import artifact
from luminal.core import device, types
from luminal.core import symbolic as sym
from luminal.core.errors import BuildError, TargetError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.walk import arrays_touched
from luminal.core.schedule.program.ir import Buffer, Entry, Kernel, Launch, Program, Region, TensorSpec
from luminal.core.target import Target
from luminal.progress import Stages
from luminal.runtime import loader
from luminal.timing import Timing, shuffled
from luminal.tuning import judge, records, subject
from luminal.tuning.bench import RUNS, Bench, Compiled, Contender, Part, Prepared
from luminal.tuning.judge import JUDGED, Faulty, Judge, StaticBench, Unread
from luminal.tuning.outcome import BEHIND
from luminal.tuning.racer import HANG
from luminal.tuning.subject import Race, Subject, Work

BEAM = 8  # candidates of a question that are measured: there is less to tell them apart by estimate than on CPUs


def bench(target: Target, threads: int) -> Bench:
    """What measures on this machine for ``target``; what judges, where it lacks such a GPU, and can."""
    if target.grid is None:
        return Bench(target, threads)
    absent = device.missing(target.dialect, target.features)
    return StaticBench(target, threads) if absent and not judge.lacking(target) else DeviceBench(target, threads)


class DeviceBench(Bench):
    """Compiles and measures candidates for a GPU of this machine, or for one that is emulated where ``emulate``: then
    times say nothing. Where their machine code can be read, more are judged by it, and the best are measured."""

    beam = BEAM
    judge: Judge | None = None

    def __init__(self, target: Target, threads: int, hang: float = HANG, emulate: bool = False) -> None:
        super().__init__(target, threads, hang)
        self.emulate = emulate
        if not emulate and not judge.lacking(target):
            self.judge, self.beam = Judge(target), JUDGED
        self._folders: dict[tuple[ln.LoopNest, tuple[Any, ...]], Path] = {}

    @property
    def machine(self) -> str:
        return records.machine(self.target, self.threads)

    def check(self) -> None:
        """Raises TargetError where this machine has no such GPU."""
        missing = "" if self.emulate else device.missing(self.target.dialect, self.target.features)
        if missing:
            raise TargetError(
                f"schedules for {self.target.name} cannot be measured here: {missing}; tune on a machine with such a "
                f"GPU, or compile without: schedules are then chosen by estimate{_unjudged(self.target)}"
            )

    def measures(self, part: Part) -> bool:
        """Whether each array of the kernel is read, or written, but not both, and of a type that a library takes."""
        nest = part.kernel.nest
        buffers = dict(zip((array.name for array in nest.arrays), part.launch.arguments, strict=True))
        read, written = ({buffers[name] for name in names if name in buffers} for names in arrays_touched(nest.body))
        return not read & written and all(a.dtype.bits >= types.i8.bits and not a.dtype.is_text for a in nest.arrays)

    def compile(self, kernels: Sequence[Kernel]) -> Compiled:
        """Libraries are built when they are measured: what a kernel is given is known then."""
        return Compiled(Path(), {kernel.nest: number for number, kernel in enumerate(kernels)})

    def prepared(self, compiled: Compiled, contenders: Sequence[Contender], seconds: float) -> Prepared:
        faults = {c.place: c.fault for c in contenders if c.fault}
        faults |= self._behind([c for c in contenders if not c.fault])
        racing: list[Contender] = []
        works: list[list[Work]] = []
        wanted = []
        for contender in contenders:
            if contender.place in faults:
                continue
            try:
                entries = [self._entry(contender.program, part, compiled) for part in contender.parts]
            except BuildError:
                faults[contender.place] = "the compiler rejects it"
                continue
            racing.append(contender)
            works.append([work for work, _ in entries])
            wanted.append([values for _, values in entries])
        return Prepared(contenders, faults, racing, Race("", self.threads, 0, seconds, works), wanted)

    def _behind(self, contenders: Sequence[Contender]) -> dict[int, str]:
        """Why some of the candidates of a question are not measured, by place: what they spill, and that they are
        behind others, where there are more than are measured."""
        if self.judge is None:
            return {}
        faults: dict[int, str] = {}
        estimates: dict[int, float] = {}
        for contender in contenders:
            try:
                estimates[contender.place] = self.judge.of(contender)
            except Unread:  # measuring tells
                estimates[contender.place] = math.inf
            except Faulty as fault:
                faults[contender.place] = str(fault)
        faults.pop(0, None)  # the default is measured in any case
        others = sorted(estimates.keys() - {0}, key=lambda place: (estimates[place], place))
        return faults | dict.fromkeys(others[BEAM - 1 :], BEHIND)

    def _entry(self, program: Program, part: Part, compiled: Compiled) -> tuple[Work, Any]:
        work, wanted = super()._entry(program, part, compiled)
        key = part.kernel.nest, (work.of.arguments, work.of.sizes)
        if key not in self._folders:
            made = alone(program, part, work.of)
            self._folders[key] = artifact.build(made, self.target, Stages(), self.emulate)
        arrays = list(enumerate(part.kernel.nest.arrays))
        written = tuple(k for k, array in arrays if array.written)
        constants = tuple(k for k, array in arrays if array.finite and not array.written)
        return replace(work, folder=str(self._folders[key]), written=written, constants=constants), wanted

    def runs(self, folders: Sequence[Path], entry: str, inputs: Mapping[str, NDArray[Any]]) -> list[Timing]:
        """The time of the steps of a run, without what is copied to and from the device."""
        libraries = [loader.load(folder, threads=self.threads, profile=True) for folder in folders]
        seconds: list[list[float]] = [[] for _ in libraries]
        order = list(range(len(libraries)))
        for number in range(-2, 1 if self.emulate else RUNS):  # the first two bring weights to the device
            order = shuffled(order, number)
            for place in order:
                _, steps = libraries[place].profile(inputs, entry)
                if number >= 0:
                    seconds[place].append(sum(step.seconds for step in steps))
        return [Timing(tuple(each)) for each in seconds]


def _unjudged(target: Target) -> str:
    """Why schedules are not judged without a GPU either, where others are."""
    lacking = judge.lacking(target)
    return f". Nor can they be judged by machine code: {lacking}" if lacking and target.dialect == judge.DIALECT else ""


def alone(program: Program, part: Part, of: Subject) -> Program:
    """A program of one launch of a kernel of ``program``, described by ``of``. What the kernel reads are inputs ``aK``,
    what it writes outputs, each as it lies in memory; K is the number of the argument. Sizes are those of one more
    input for each dimension. Constants that have to be finite are constants here, too."""
    nest = part.kernel.nest
    names = [f"a{argument.same}" for argument in of.arguments]
    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    buffers: list[Buffer] = []
    constants: dict[str, NDArray[Any]] = {}
    for place, (name, argument) in enumerate(zip(names, of.arguments, strict=True)):
        if argument.same != place:
            continue
        buffer, array = program.buffer(part.launch.arguments[place]), nest.arrays[place]
        shape = (sym.product(buffer.shape),)
        space = "output" if array.written else "constant" if array.finite else "input"
        size = (sym.upper(shape[0]) or 0) * buffer.dtype.itemsize
        buffers.append(Buffer(name, buffer.dtype, shape, (0,), space, 0, size))
        if space == "constant":
            constants[name] = subject.drawn(argument, place)
        else:
            (outputs if array.written else inputs).append(TensorSpec(name, buffer.dtype, shape))
    for dim in nest.dims:
        spec = TensorSpec(f"size_{dim.name}", types.u8, (sym.expr(dim),))
        inputs.append(spec)
        buffers.append(Buffer(spec.name, spec.dtype, spec.shape, (0,), "input", 0, sym.upper(spec.shape[0]) or 0))
    launch = Launch(0, tuple(names), grain=part.launch.grain)
    kernel = replace(part.kernel, fetches=False)
    entry = Entry("main", tuple(inputs), tuple(outputs), Region((launch,)), 0)
    return Program("timed", tuple(nest.dims), (kernel,), tuple(buffers), (entry,), constants)
