"""Measuring candidates: kernels are compiled together, raced in another process, and compared with the interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from luminal.codegen import build, timed
from luminal.core.decisions import Candidate
from luminal.core.errors import BuildError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.program.ir import Kernel, Launch, Program
from luminal.core.target import Target
from luminal.timing import Timing
from luminal.tuning import subject
from luminal.tuning.expected import Expected, expected
from luminal.tuning.records import Measured
from luminal.tuning.subject import Race, Work

WEIGHTS = 512 << 20  # bytes of weights, at most, that runs go through in turn
HANG = 20.0  # seconds after which a contender that has begun is given up

Written = Sequence[Sequence[Mapping[int, NDArray[Any]]]]  # per contender and kernel: values written, by argument number


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
class Fault:
    """Which contender of a race ended the process that ran it, and how."""

    contender: int
    reason: str


class Bench:
    """Compiles and measures candidates for ``target``. Use it as a context manager: it has a process."""

    def __init__(self, target: Target, threads: int, hang: float = HANG) -> None:
        self.target, self.threads, self.hang = target, threads, hang
        self._worker: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._expected: dict[tuple[ln.LoopNest, tuple[Any, ...]], dict[int, Expected]] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

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

    def measure(self, compiled: Compiled, contenders: Sequence[Contender], seconds: float) -> list[Measured]:
        """Times the candidates of one question, the default first, for ``seconds`` in all.

        A candidate's ``fault`` says that it does not compile, crashes, hangs, or differs from the interpreter.
        """
        missing = [c.place for c in contenders if any(part.kernel.nest not in compiled.numbers for part in c.parts)]
        faults = dict.fromkeys(missing, "the compiler rejects it") | {c.place: c.fault for c in contenders if c.fault}
        racing = [c for c in contenders if c.place not in faults]
        samples: dict[int, list[float]] = {}
        while racing and not samples:
            entries = [[self._entry(c.program, part, compiled) for part in c.parts] for c in racing]
            works = [[work for work, _ in each] for each in entries]
            program = racing[0].program
            weights = min(WEIGHTS, sum(program.buffer(name).size for name in program.constants))
            found = self._race(Race(str(compiled.library), self.threads, weights, seconds, works))
            if isinstance(found, Fault):
                faults[racing.pop(found.contender).place] = found.reason
                continue
            for contender, each, sampled, written in zip(racing, entries, *found, strict=True):
                samples[contender.place] = sampled
                wrong = [
                    fault
                    for (_, wanted), arrays in zip(each, written, strict=True)
                    for place, values in wanted.items()
                    if (fault := values.fault(arrays[place]))
                ]
                faults |= {contender.place: f"it writes something else: {wrong[0]}"} if wrong else {}
        return [_measured(c, samples.get(c.place, ()), faults.get(c.place, "")) for c in contenders]

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

    # ---- the process -----------------------------------------------------------------------------------------------

    def _race(self, race: Race) -> tuple[list[list[float]], Written] | Fault:
        """The samples of each contender and the values that it wrote; or which of them ended the process."""
        begun, reason = 0, f"it was not done after {self.hang:g} seconds"
        try:
            connection = self._connected()
            connection.send(race)
            while connection.poll(self.hang):
                message = connection.recv()
                if not isinstance(message, int):
                    samples, written = message
                    return samples, written
                begun = message
            self._stop()
        except (EOFError, OSError):
            code = self._stop()
            reason = f"it ended its process: {signal.strsignal(-code) if code < 0 else f'exit code {code}'}"
        return Fault(begun, reason)

    def _connected(self) -> Connection:
        """The connection to the process that runs contenders, which is started where there is none."""
        if self._worker is None:
            here, there = Pipe()
            # In a session of its own, so that interrupts do not reach it; it ends with this process.
            process = subprocess.Popen(
                [sys.executable, "-m", "luminal.tuning.worker", str(there.fileno())], pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            there.close()
            self._worker = process, here
        return self._worker[1]

    def _stop(self) -> int:
        """Ends the process, if there is one; its exit code."""
        if self._worker is None:
            return 0
        (process, connection), self._worker = self._worker, None
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)  # where it is ending by itself, for the reason
        process.kill()
        connection.close()
        return process.wait()


def _measured(contender: Contender, samples: Sequence[float], fault: str) -> Measured:
    timing = Timing(tuple(samples) or (0.0,))
    return Measured(contender.place, str(contender.candidate), timing.best, timing.median, len(samples), fault)
