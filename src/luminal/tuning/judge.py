"""Judging candidates by their machine code, where no GPU measures them: what they issue and move, and what they spill.

Nothing runs, so nothing is compared with the interpreter: every candidate is a schedule whose transforms have checked
that they are legal, and ``emulate=True`` runs the model's kernels on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from luminal.codegen import dialects, toolchain
from luminal.codegen.emitter import emit
from luminal.core.errors import BuildError, LuminalError
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.target import Target
from luminal.machine_code import kernels, tools
from luminal.timing import Timing
from luminal.tuning import records, subject
from luminal.tuning.bench import Bench, Compiled, Contender
from luminal.tuning.records import Measured

DIALECT = "cuda"  # whose machine code can be read
JUDGED = 16  # candidates of a question, the first by estimate
HOW = (
    "without a GPU nothing ran: the times are least times by what each kernel's machine code issues and moves, and "
    "compilations take these choices only where there is no such GPU"
)


class Faulty(LuminalError):
    """A kernel that must not be taken, or that cannot be judged."""


class Unread(Faulty):
    """A kernel whose machine code cannot be judged, which says nothing of the kernel."""


def lacking(target: Target) -> str:
    """What this machine lacks to judge kernels for ``target``; empty where it lacks nothing."""
    if target.dialect != DIALECT:
        return f"machine code for {target.name} cannot be read"
    known = [f"sm_{number}" for number in kernels.PROCESSORS]
    if tools.newest(target) not in known:
        return f"expected one of {', '.join(known)} to judge by machine code, found {tools.newest(target)}"
    try:
        toolchain.find_nvcc()
        tools.find("nvdisasm")
    except BuildError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Judged:
    """A launch of a kernel: the estimate in seconds, and the bytes of registers that a thread spills."""

    seconds: float
    spilled: int


class Judge:
    """What kernels for ``target`` are judged by, each read once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._known: dict[tuple[ln.LoopNest, tuple[int, ...]], Judged | Faulty] = {}

    def judged(self, program: Program, kernel: Kernel) -> Judged:
        """The estimate for a launch of a kernel of ``program``, at the typical sizes of its dimensions. Raises Faulty
        where it does not compile or cannot be read."""
        at = subject.sizes(program.dims)
        key = kernel.nest, tuple(at.values())
        if key not in self._known:
            try:
                self._known[key] = self._read(program, kernel, at)
            except Faulty as fault:
                self._known[key] = fault
        found = self._known[key]
        if isinstance(found, Faulty):
            raise found
        return found

    def of(self, contender: Contender) -> float:
        """The estimate for all that a contender launches in a run of the model. Raises Faulty as ``judged`` does, and
        where another than the default spills."""
        total = 0.0
        for part in contender.parts:
            found = self.judged(contender.program, part.kernel)
            if found.spilled and contender.place:
                raise Faulty(f"it spills {found.spilled} bytes of the registers of a thread")
            total += part.times * found.seconds
        return total

    def _read(self, program: Program, kernel: Kernel, at: Mapping[str, int]) -> Judged:
        numbers = {dim.name: number for number, dim in enumerate(program.dims)}
        text = emit(kernel, numbers, dialects.ALL[self.target.dialect], self.target.costs.prefetch)
        try:
            (image,) = tools.images({kernel.name: text}, self.target).values()
        except BuildError as error:  # of the compiler, or of what reads machine code
            raise Unread(str(error).splitlines()[0]) from error
        launched = kernels.launched(text, image, self.target, at)
        try:
            found = kernels.counted(launched)
        except ValueError as error:  # an instruction that is not described, or no end
            raise Unread(f"its machine code cannot be followed: {error}") from error
        if not found["occupancy"]:
            raise Faulty("its blocks take more than a processor has")
        return Judged(kernels.seconds(found, launched.architecture), image.spilled)


class StaticBench(Bench):
    """Compiles candidates for a GPU that this machine lacks, and judges them by their machine code."""

    beam = JUDGED
    how = HOW

    def __init__(self, target: Target, threads: int) -> None:
        super().__init__(target, threads)
        self.judge = Judge(target)

    @property
    def machine(self) -> str:
        return records.machine(self.target, self.threads, records.STATIC)

    def check(self) -> None:
        """Nothing has to run here."""

    def compile(self, kernels: Sequence[Kernel]) -> Compiled:
        """Each kernel is compiled when it is judged: at which sizes it is launched is known then."""
        return Compiled(Path(), {kernel.nest: number for number, kernel in enumerate(kernels)})

    def measure(self, compiled: Compiled, contenders: Sequence[Contender], seconds: float) -> list[Measured]:
        """The candidates of a question, each with its estimate as its time."""
        return [self._judged(contender) for contender in contenders]

    def _judged(self, contender: Contender) -> Measured:
        found, fault = 0.0, contender.fault
        if not fault:
            try:
                found = self.judge.of(contender)
            except Faulty as error:
                fault = str(error)
        return Measured(contender.place, str(contender.candidate), found, found, int(not fault), fault)

    def whole(self, programs: Sequence[Program]) -> list[Timing] | None:
        return [Timing((sum(self._launches(program)),)) for program in programs]

    def _launches(self, program: Program) -> Iterator[float]:
        """The estimate for each launch of the first entry; none of kernels that cannot be judged, which are the same
        whatever is chosen, as no choice of theirs is."""
        for step in program.entries[0].launches:
            with suppress(Faulty):
                yield self.judge.judged(program, program.kernels[step.kernel]).seconds
