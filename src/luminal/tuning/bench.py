"""Measuring candidates: kernels are compiled together, raced in another process, and compared with the interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from luminal.codegen import build, timed
from luminal.core.decisions import Candidate
from luminal.core.errors import BuildError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.program.ir import Kernel, Launch, Program
from luminal.core.target import Target, check_supported
from luminal.module import Module
from luminal.timing import Timing, interleaved
from luminal.tuning import records, subject
from luminal.tuning.expected import Expected, expected
from luminal.tuning.racer import HANG, Racer, Ran
from luminal.tuning.records import Measured
from luminal.tuning.subject import Race, Work

WEIGHTS = 512 << 20  # bytes of weights, at most, that runs go through in turn
RUNS = 21  # of a model as a whole
SECONDS = 8.0  # for all runs together


@dataclass(frozen=True)
class Part:
    """A kernel of a contender, its first launch, and the number of its launches in a run of the model."""

    kernel: Kernel
    launch: Launch
    times: int


@dataclass(frozen=True)
class Contender:
    """A candidate that is measured: its number among those of its question (0 is the default), and the kernels of
    ``program``, built with it, that the question decides; or the ``fault`` that prevented these."""

    place: int
    candidate: Candidate[Any]
    program: Program
    parts: tuple[Part, ...]
    fault: str = ""


@dataclass(frozen=True)
class Compiled:
    """A library of ``codegen.timed``, and the numbers of its kernels there."""

    library: Path
    numbers: Mapping[ln.LoopNest, int]


@dataclass(frozen=True)
class Prepared:
    """The ``race`` of those ``contenders`` of a question that are ``racing``, and what each of their kernels has to
    write; the ``faults`` of the others, by place."""

    contenders: Sequence[Contender]
    faults: Mapping[int, str]
    racing: Sequence[Contender]
    race: Race
    wanted: Sequence[Sequence[Mapping[int, Expected]]]


class Bench:
    """Compiles and measures candidates for ``target`` on this machine. Use it as a context manager: it has a process.

    What measures elsewhere overrides ``each``, ``runs``, ``machine``, ``check``, ``share`` and ``width``, the number of
    questions that are measured at once. ``beam`` candidates of a question are measured, the first by estimate.
    Libraries of whole models ``emulate`` a GPU where that is true. ``how`` says what is to be known of the times, where
    they are none.
    """

    width = 1
    beam = 4
    emulate = False
    how = ""

    def __init__(self, target: Target, threads: int, hang: float = HANG) -> None:
        self.target, self.threads = target, threads
        self.racer = Racer(hang)
        self._expected: dict[tuple[ln.LoopNest, tuple[Any, ...]], dict[int, Expected]] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.racer.stop()

    @property
    def machine(self) -> str:
        """What times depend on, as records have it."""
        return records.machine(self.target, self.threads)

    def check(self) -> None:
        """Raises TargetError where the machine cannot run code for the target."""
        check_supported(self.target)

    def measures(self, part: Part) -> bool:
        """Whether a kernel can be measured by itself."""
        return True

    def compile(self, kernels: Sequence[Kernel]) -> Compiled:
        """One library of ``kernels``, without those that the compiler rejects."""
        try:
            return self._compile(kernels)
        except BuildError:
            accepted: list[Kernel] = []
            for kernel in kernels:
                with suppress(BuildError):
                    self._compile([kernel])
                    accepted.append(kernel)
            return self._compile(accepted)

    def _compile(self, kernels: Sequence[Kernel]) -> Compiled:
        library = build.make(timed.product(kernels, self.target))
        return Compiled(library, {kernel.nest: number for number, kernel in enumerate(kernels)})

    def each(
        self, compiled: Compiled, questions: Mapping[str, Sequence[Contender]], seconds: float
    ) -> Iterator[tuple[str, list[Measured]]]:
        """Each of ``questions`` with what ``measure`` gives, as they are measured. A question that could not be is left
        out."""
        for question, contenders in questions.items():
            yield question, self.measure(compiled, contenders, seconds)

    def measure(self, compiled: Compiled, contenders: Sequence[Contender], seconds: float) -> list[Measured]:
        """Times the candidates of one question, the default first, for ``seconds`` in all.

        A candidate's ``fault`` says that it does not compile, crashes, hangs, or differs from the interpreter.
        """
        prepared = self.prepared(compiled, contenders, seconds)
        return self.judged(prepared, self.racer.run(prepared.race))

    def prepared(self, compiled: Compiled, contenders: Sequence[Contender], seconds: float) -> Prepared:
        """What is to be run for a question, and what that has to give."""
        missing = [c.place for c in contenders if any(part.kernel.nest not in compiled.numbers for part in c.parts)]
        faults = dict.fromkeys(missing, "the compiler rejects it") | {c.place: c.fault for c in contenders if c.fault}
        racing = [c for c in contenders if c.place not in faults]
        entries = [[self._entry(c.program, part, compiled) for part in c.parts] for c in racing]
        works = [[work for work, _ in each] for each in entries]
        sizes = [sum(c.program.buffer(name).size for name in c.program.constants) for c in racing[:1]]
        race = Race(str(compiled.library), self.threads, min(WEIGHTS, *sizes, WEIGHTS), seconds, works)
        return Prepared(contenders, faults, racing, race, [[wanted for _, wanted in each] for each in entries])

    def judged(self, prepared: Prepared, ran: Ran) -> list[Measured]:
        """The rows of a question, from what its race gave."""
        faults = {**prepared.faults, **{prepared.racing[k].place: reason for k, reason in ran.faults.items()}}
        samples: dict[int, list[float]] = {}
        for number, sampled in ran.samples.items():
            place = prepared.racing[number].place
            samples[place] = sampled
            wrong = [
                fault
                for wanted, arrays in zip(prepared.wanted[number], ran.wrote[number], strict=True)
                for k, values in wanted.items()
                if (fault := values.fault(arrays[k]))
            ]
            faults |= {place: f"it writes something else: {wrong[0]}"} if wrong else {}
        return [_measured(c, samples.get(c.place, ()), faults.get(c.place, "")) for c in prepared.contenders]

    def _entry(self, program: Program, part: Part, compiled: Compiled) -> tuple[Work, Mapping[int, Expected]]:
        """The message about a part to the worker, and the values that the part has to write."""
        of = subject.of(program, part.kernel, part.launch, compiled.numbers[part.kernel.nest])
        serial = part.kernel.scheduled.serial
        assert serial is not None, part.kernel.name
        key = serial, (of.arguments, of.sizes)
        if key not in self._expected:
            self._expected[key] = expected(serial, of)
        wanted = self._expected[key]
        return Work(of, part.times, {place: values.positions for place, values in wanted.items()}), wanted

    def runs(self, folders: Sequence[Path], entry: str, inputs: Mapping[str, NDArray[Any]]) -> list[Timing]:
        """Runs of an entry of each of the libraries in ``folders``, taking turns."""
        return runs(folders, entry, inputs, self.threads)

    def whole(self, programs: Sequence[Program]) -> list[Timing] | None:
        """The times of a run of each program where they are known without running it; None where it has to run."""
        return None

    def share(self, rows: Mapping[str, Sequence[Measured]]) -> None:
        """Hands the rows of all questions to the machines that measured: this one has them."""


def runs(folders: Sequence[Path], entry: str, inputs: Mapping[str, NDArray[Any]], threads: int) -> list[Timing]:
    """Runs of an entry of each of the libraries in ``folders``, on this machine, taking turns."""
    modules = [Module(folder, threads) for folder in folders]
    calls = {str(k): partial(module[entry].run, inputs) for k, module in enumerate(modules)}
    return list(interleaved(calls, RUNS, budget=SECONDS).values())


def _measured(contender: Contender, samples: Sequence[float], fault: str) -> Measured:
    timing = Timing(tuple(samples) or (0.0,))
    return Measured(contender.place, str(contender.candidate), timing.best, timing.median, len(samples), fault)
