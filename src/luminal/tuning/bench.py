"""Measuring candidates: kernels are compiled together, raced in another process, and compared with the interpreter."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.codegen import build, timed
from luminal.core.errors import BuildError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.program.ir import Kernel, Launch, Program
from luminal.core.target import Target
from luminal.tuning import subject
from luminal.tuning.expected import Expected, expected
from luminal.tuning.records import Measured
from luminal.tuning.subject import Subject

WEIGHTS = 512 << 20  # bytes of weights, at most, that runs go through in turn
HANG = 20.0  # seconds after which a contender that has begun is given up


@dataclass(frozen=True)
class Part:
    """A kernel of a candidate, the first of its launches, and how many there are in a run of the model."""

    kernel: Kernel
    launch: Launch
    times: int


@dataclass(frozen=True)
class Candidate:
    """An answer to a question: its place among the answers (0 is the default), its text, and what follows from it: the
    kernels of ``program`` that ask that question; or the ``fault`` for which there are none."""

    place: int
    text: str
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
    """Which contender ended the process that ran it, and how."""

    contender: int
    reason: str


class Bench:
    """Compiles and measures candidates for ``target``. Use it as a context manager: it has a folder and a process."""

    def __init__(self, target: Target, threads: int, hang: float = HANG) -> None:
        self.target, self.threads, self.hang = target, threads, hang
        self._process: subprocess.Popen[str] | None = None
        self._expected: dict[tuple[ln.LoopNest, tuple[Any, ...]], dict[int, Expected]] = {}

    def __enter__(self) -> Bench:
        self._temporary = tempfile.TemporaryDirectory(prefix="luminal-")
        self._folder = Path(self._temporary.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._temporary.cleanup()

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

    def measure(self, compiled: Compiled, candidates: Sequence[Candidate], seconds: float) -> list[Measured]:
        """Times the candidates of one question, the default first, for ``seconds`` in all.

        One that does not compile, crashes, hangs, or writes something else than the interpreter, has that as its fault.
        """
        faults: dict[int, str] = {}
        racing: list[Candidate] = []
        for candidate in candidates:
            compiles = all(part.kernel.nest in compiled.numbers for part in candidate.parts)
            fault = candidate.fault or ("" if compiles else "the compiler rejects it")
            if fault:
                faults[candidate.place] = fault
            else:
                racing.append(candidate)
        samples: dict[int, list[float]] = {}
        while racing and not samples:
            contenders = [self._contender(candidate, compiled) for candidate in racing]
            found = self._race(compiled, contenders, _weights(racing[0].program), seconds)
            if isinstance(found, Fault):
                faults[racing.pop(found.contender).place] = found.reason
                continue
            values, times = found
            for candidate, contender, sampled in zip(racing, contenders, times, strict=True):
                samples[candidate.place] = sampled
                wrong = [fault for entry in contender if (fault := entry.fault(values))]
                faults |= {candidate.place: wrong[0]} if wrong else {}
        return [_measured(c, samples.get(c.place, []), faults.get(c.place, "")) for c in candidates]

    def _contender(self, candidate: Candidate, compiled: Compiled) -> list[_Entry]:
        entries = []
        for part in candidate.parts:
            of = subject.of(candidate.program, part.kernel, part.launch, compiled.numbers[part.kernel.nest])
            serial = part.kernel.scheduled.serial
            assert serial is not None, part.kernel.name
            key = serial, (of.arguments, of.sizes)
            if key not in self._expected:
                self._expected[key] = expected(serial, of)
            entries.append(_Entry(of, part.times, self._expected[key]))
        return entries

    # ---- the process -----------------------------------------------------------------------------------------------

    def _race(
        self, compiled: Compiled, contenders: Sequence[Sequence[_Entry]], weights: int, seconds: float
    ) -> tuple[Mapping[str, NDArray[Any]], list[list[float]]] | Fault:
        """What each kernel wrote, and the samples of each contender; or which of them ended the process."""
        check, values = self._folder / "check.npz", self._folder / "values.npz"
        positions = {
            entry.name(place): wanted.positions
            for contender in contenders
            for entry in contender
            for place, wanted in entry.expected.items()
        }
        np.savez(check, **positions)  # type: ignore[arg-type]
        request = {
            "library": str(compiled.library), "threads": self.threads, "weights": weights, "seconds": seconds,
            "check": str(check), "values": str(values),
            "contenders": [[{"subject": e.of.described(), "times": e.times} for e in c] for c in contenders],
        }  # fmt: skip
        process = self._running()
        with _Watch(process, self.hang) as watch:
            begun, samples = _answer(process, request, watch)
        if samples is not None:
            with np.load(values) as found:
                return dict(found), samples
        self._stop()
        if watch.ended:
            return Fault(begun, f"it was not done after {self.hang:g} seconds")
        code = process.returncode
        return Fault(begun, f"it ended its process: {signal.strsignal(-code) if code < 0 else f'exit code {code}'}")

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            # Of a session of its own: an interrupt of this process is not for that one, which ends with it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "luminal.tuning.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)  # where it is ending by itself, for the reason
            self._process.kill()
            self._process.communicate()
            self._process = None


@dataclass(frozen=True)
class _Entry:
    """A kernel of a contender: how often it is launched, and what it has to write."""

    of: Subject
    times: int
    expected: Mapping[int, Expected]

    def name(self, place: int) -> str:
        return f"{self.of.number} {place}"

    def fault(self, values: Mapping[str, NDArray[Any]]) -> str:
        """What is wrong with what it wrote; empty where nothing is."""
        faults = [
            fault
            for place, wanted in self.expected.items()
            if (fault := wanted.fault(values[self.name(place)].view(wanted.values.dtype)))
        ]
        return f"it writes something else: {faults[0]}" if faults else ""


class _Watch:
    """Kills a process that has said nothing for ``seconds``; then ``ended`` is true."""

    def __init__(self, process: subprocess.Popen[str], seconds: float) -> None:
        self.ended = False
        self._process, self._seconds = process, seconds
        self._last = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *of: object) -> None:
        self._done.set()
        self._thread.join()

    def heard(self) -> None:
        """The process has said something."""
        self._last = time.monotonic()

    def _watch(self) -> None:
        while (left := self._last + self._seconds - time.monotonic()) > 0:
            if self._done.wait(left):
                return
        self.ended = True
        self._process.kill()


def _answer(
    process: subprocess.Popen[str], request: Mapping[str, Any], watch: _Watch
) -> tuple[int, list[list[float]] | None]:
    """The contender that began last, and the samples of all, where the process lived to give them."""
    assert process.stdin is not None and process.stdout is not None
    begun = 0
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    for line in process.stdout:
        watch.heard()
        message = json.loads(line)
        if "samples" in message:
            return begun, message["samples"]
        begun = message["begin"]
    return begun, None


def _weights(program: Program) -> int:
    """Bytes of weights that a run of the program goes through."""
    return min(WEIGHTS, sum(program.buffer(name).size for name in program.constants))


def _measured(candidate: Candidate, samples: Sequence[float], fault: str) -> Measured:
    best, median = (min(samples), statistics.median(samples)) if samples else (0.0, 0.0)
    return Measured(candidate.place, candidate.text, best, median, len(samples), fault)
