"""Where the time of a model goes: its kernels, with the work that they do and the ceilings that bound them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from numpy.typing import NDArray

from luminal.core import device
from luminal.core import symbolic as sym
from luminal.core.schedule.cost import traffic
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.program.ir import HostCall, Launch, Phase, Program, numbered, together
from luminal.core.types import bf16
from luminal.module import Module
from luminal.peak import Peak
from luminal.runtime import loader
from luminal.timing import text


@dataclass(frozen=True)
class KernelTime:
    """One kernel in one run of a model, all its launches together; or the kernels of a phase, which are timed as one;
    or a function of the host.

    ``operations`` are those of its contractions (a multiply-add is two; what a mask makes unnecessary is counted,
    padding is not). ``bytes`` are those of its arrays that it touches, each counted once in a launch, wherever they
    lie. ``unit`` is what the operands of its contractions are multiplied as: ``FMA`` (float32, and what is computed
    like it), ``bf16`` or ``int8``. ``threads`` is how many work on its first launch: a small one is not worth waking
    others. ``origins`` are the source operators of its first launch.
    """

    name: str
    launches: int
    seconds: float
    operations: int
    bytes: int
    unit: str
    threads: int
    origins: tuple[str, ...]

    def ceiling(self, peak: Peak) -> tuple[float, str]:
        """What part of its time the machine needs at ``peak``, and for what: its operations, by their unit, or its
        bytes, as a stream from memory. It is above 1 where caches hold the bytes."""
        computing, reading = self.operations / peak.computing(self.unit), self.bytes / peak.bytes
        return (computing / self.seconds, self.unit) if computing >= reading else (reading / self.seconds, "stream")


HEADINGS = (
    "launches", "threads", "time", "share", "GFLOP", "GFLOP/s", "of peak", "MB", "GB/s", "of stream", "of ceiling",
)  # fmt: skip


def cells(kernel: KernelTime, total: float, peak: Peak) -> tuple[str, ...]:
    """The cells of a table under ``HEADINGS``, for a kernel of a model whose kernels take ``total`` seconds."""
    operations, moved = kernel.operations / kernel.seconds, kernel.bytes / kernel.seconds
    of_peak = f"{operations / peak.computing(kernel.unit):.0%} {kernel.unit}"
    part, bound = kernel.ceiling(peak)
    return (
        *(str(kernel.launches), str(kernel.threads), text(kernel.seconds), f"{kernel.seconds / total:.1%}"),
        *((f"{kernel.operations / 1e9:.3g}", f"{operations / 1e9:.3g}", of_peak) if kernel.operations else [""] * 3),
        *(f"{kernel.bytes / 1e6:.3g}", f"{moved / 1e9:.3g}", f"{moved / peak.bytes:.0%}"),
        f"{part:.0%} {bound}",
    )


def profile(
    module: Module,
    inputs: Mapping[str, NDArray[Any]],
    runs: int = 21,
    threads: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> list[KernelTime]:
    """The kernels of a module that was compiled in this process, the one that takes the most time first.

    A launch's time is the median of ``runs``, threads woken and awaited included. ``watch`` is told how many runs of
    how many are done. Raises ValueError where ``inputs`` do not fit.
    """
    program = module.program
    assert program is not None, "a module loaded from disk does not know its program"
    threads = threads or device.cpus()
    library = loader.load(module.folder, threads=threads, profile=True)
    entry = program.entries[0]
    steps = tuple(numbered(entry.region))
    launches: dict[int, tuple[int, ...]] = {number: (number,) for number in range(len(steps))}
    phases: dict[tuple[int, ...], Phase] = {}
    for first, phase in together(entry.region):
        numbers = tuple(range(first, first + len(phase.tasks)))
        launches |= dict.fromkeys(numbers, numbers)
        phases[numbers] = phase
    seconds: dict[tuple[int, ...], list[float]] = {numbers: [] for numbers in launches.values()}
    for run in range(-2, runs):  # the first two bring weights and arena into memory
        _, times = library.profile(inputs)
        spent: dict[tuple[int, ...], float] = dict.fromkeys(seconds, 0.0)  # in a loop, several times
        for number, time in times:
            spent[launches[number]] += time
        for numbers, time in spent.items() if run >= 0 else ():
            seconds[numbers].append(time)
        watch(max(run + 1, 0), runs)
    sizes = _sizes(program, inputs)

    def busy(numbers: tuple[int, ...]) -> int:
        first = tuple(_launches(steps, [numbers]))
        return _busy(program, first, phases.get(numbers), sizes, threads) if first else 1

    found: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for numbers in seconds:
        found.setdefault(tuple(_name(program, steps[n]) for n in numbers), []).append(numbers)
    times_of = [
        KernelTime(
            " + ".join(names),
            len(alike),
            sum(statistics.median(seconds[numbers]) for numbers in alike),
            sum(int(sym.evaluate(s.operations, sizes)) for s in _launches(steps, alike)),
            sum(_bytes(program, s, sizes) for s in _launches(steps, alike)),
            _unit(program, _launches(steps, alike)),
            busy(alike[0]),
            _origins(program, steps[alike[0][0]]),
        )
        for names, alike in found.items()
    ]
    return sorted(times_of, key=lambda kernel: -kernel.seconds)


def _name(program: Program, step: Launch | HostCall) -> str:
    return program.kernels[step.kernel].name if isinstance(step, Launch) else f"host {step.function}"


def _origins(program: Program, step: Launch | HostCall) -> tuple[str, ...]:
    return step.origins or (program.kernels[step.kernel].origins if isinstance(step, Launch) else ())


def _launches(steps: Sequence[Launch | HostCall], numbers: Iterable[tuple[int, ...]]) -> Iterator[Launch]:
    return (step for together in numbers for n in together if isinstance(step := steps[n], Launch))


def _unit(program: Program, launches: Iterable[Launch]) -> str:
    """The unit (see ``KernelTime``) of the first contraction of ``launches``."""
    bodies = (program.kernels[step.kernel].nest.body for step in launches if step.operations != 0)
    for statement in chain.from_iterable(map(walk.statements, bodies)):
        if isinstance(statement, ln.Contract):
            types = statement.a_type, statement.b_type
            whole = all(dtype.is_integer and dtype.bits <= 8 for dtype in types)
            return "bf16" if types == (bf16, bf16) else "int8" if whole else "FMA"
    return "FMA"


def _busy(
    program: Program, launches: Sequence[Launch], phase: Phase | None, sizes: Mapping[str, int], threads: int
) -> int:
    """How many of ``threads`` work on a launch, or on the launches of a phase."""
    if phase is None:
        tasks = math.prod(int(sym.evaluate(t.extent, sizes)) for t in program.kernels[launches[0].kernel].nest.tasks)
        grain = launches[0].grain
    else:
        tasks, grain = int(sym.evaluate(phase.shares, sizes)), phase.grain(launches)
    return max(1, min(threads, tasks, tasks // grain))


def _sizes(program: Program, inputs: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The sizes of dimensions in ``inputs``; dimensions that are the size of no axis are at their lower bound."""
    sizes = {dim.name: dim.lo for dim in program.dims}
    for tensor in program.entries[0].inputs:
        for axis, size in zip(tensor.shape, inputs[tensor.name].shape, strict=True):
            dim = sym.as_var(axis)
            if dim is not None:
                sizes[dim.name] = size
    return sizes


def _bytes(program: Program, step: Launch, sizes: Mapping[str, int]) -> int:
    nest = program.kernels[step.kernel].nest
    touched = traffic.elements_touched(nest, sizes)
    total = 0
    for array, name in zip(nest.arrays, step.arguments, strict=True):
        buffer = program.buffer(name)
        elements = int(sym.evaluate(sym.product(buffer.shape), sizes))
        total += min(touched[array.name], elements) * buffer.dtype.itemsize
    return total
