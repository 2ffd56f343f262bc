"""Where the time of a model goes: its kernels, with the work that they do and the ceilings that bound them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from luminal.core import device
from luminal.core import symbolic as sym
from luminal.core.schedule.cost import traffic
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest import walk
from luminal.core.schedule.program.ir import Entry, Launch, Numbered, Phase, Program, numbered, together
from luminal.core.types import bf16
from luminal.peak import Peak
from luminal.runtime import loader
from luminal.timing import text


class Compiled(Protocol):
    """What is needed of a ``Module``, which is built on this file."""

    folder: Path
    program: Program | None
    interface: loader.Interface

    @property
    def entry(self) -> loader.EntrySpec: ...

    @property
    def manifest(self) -> dict[str, Any]: ...


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
    none = [""] * 3
    of_peak = f"{operations / peak.computing(kernel.unit):.0%} {kernel.unit}"
    part, bound = kernel.ceiling(peak)
    return (
        *(str(kernel.launches), str(kernel.threads or ""), text(kernel.seconds), f"{kernel.seconds / total:.1%}"),
        *((f"{kernel.operations / 1e9:.3g}", f"{operations / 1e9:.3g}", of_peak) if kernel.operations else none),
        *(
            (f"{kernel.bytes / 1e6:.3g}", f"{moved / 1e9:.3g}", f"{moved / peak.bytes:.0%}")
            if kernel.bytes
            else [""] * 3
        ),
        f"{part:.0%} {bound}" if kernel.bytes else "",
    )


def ceilings(total: float, peak: Peak, threads: int) -> str:
    """What the percentages of a table of kernels are of."""
    units = {"multiply-adds": peak.operations, "bf16 products": peak.bf16, "int8 products": peak.int8}
    reached = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {unit}" for unit, rate in units.items() if rate)
    return (
        f"{text(total)} in all; {threads} {'thread reaches' if threads == 1 else 'threads reach'} {reached}, "
        f"{peak.bytes / 1e9:.1f} GB/s from memory (what caches hold may be faster). Of ceiling: the part of its time "
        "that the machine would need for what bounds it"
    )


def profile(
    module: Compiled,
    inputs: Mapping[str, NDArray[Any]],
    runs: int = 21,
    threads: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> list[KernelTime]:
    """The kernels of a module that was compiled in this process, the one that takes the most time first.

    A launch's time is the median of ``runs``, threads woken and awaited included. ``watch`` is told how many runs of
    how many are done. Raises ValueError where ``inputs`` do not fit.
    """
    return merged(launches(module, inputs, runs, threads, watch), lambda launch: launch.name)


def merged(times: Iterable[KernelTime], key: Callable[[KernelTime], object]) -> list[KernelTime]:
    """``times`` with those of one ``key`` together, the longest first."""
    found: dict[object, list[KernelTime]] = {}
    for time in times:
        found.setdefault(key(time), []).append(time)
    together = (
        replace(
            alike[0],
            launches=sum(time.launches for time in alike),
            seconds=sum(time.seconds for time in alike),
            operations=sum(time.operations for time in alike),
            bytes=sum(time.bytes for time in alike),
        )
        for alike in found.values()
    )
    return sorted(together, key=lambda time: -time.seconds)


def launches(
    module: Compiled,
    inputs: Mapping[str, NDArray[Any]],
    runs: int = 21,
    threads: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> list[KernelTime]:
    """The launches of a run, in the order of the program, each with its own origins; see ``profile``."""
    program = module.program
    assert program is not None, "a module loaded from disk does not know its program"
    threads = threads or device.cpus()
    library = loader.load(module.folder, threads=threads, profile=True)
    selected = module.interface.entries.index(module.entry)
    entry = program.entries[selected]
    steps = tuple(numbered(entry.region))
    before = sum(len(tuple(numbered(e.region))) for e in program.entries[:selected])  # numbers go on over entries
    groups: dict[int, tuple[int, ...]] = {number: (number,) for number in range(len(steps))}
    phases: dict[tuple[int, ...], Phase] = {}
    for first, phase in together(entry.region):
        numbers = tuple(range(first, first + len(phase.tasks)))
        groups |= dict.fromkeys(numbers, numbers)
        phases[numbers] = phase
    seconds = _medians(library, inputs, entry.name, runs, lambda number: groups[number - before], watch)
    sizes = _sizes(program, entry, inputs)

    def time_of(numbers: tuple[int, ...]) -> KernelTime:
        kernels = tuple(_launches(steps, [numbers]))
        return KernelTime(
            " + ".join(_name(program, steps[n]) for n in numbers),
            1,
            seconds.get(numbers, 0.0),
            sum(int(sym.evaluate(s.operations, sizes)) for s in kernels),
            sum(bytes_of(program, s, sizes) for s in kernels),
            _unit(program, kernels),
            _busy(program, kernels, phases.get(numbers), sizes, threads) if kernels else 1,
            tuple(dict.fromkeys(chain.from_iterable(_origins(program, steps[n]) for n in numbers))),
        )

    return [time_of(numbers) for numbers in dict.fromkeys(groups.values())]


def launches_of_library(
    module: Compiled,
    inputs: Mapping[str, NDArray[Any]],
    runs: int = 21,
    threads: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> list[KernelTime]:
    """The same for any library, by its own description, which knows neither operations nor bytes: those are 0. So are
    the times of steps that were not run, as those of a branch that was not taken, or of another entry."""
    library = loader.load(module.folder, threads=threads or device.cpus(), profile=True)
    steps = library.metadata["steps"]
    seconds = _medians(library, inputs, module.entry.name, runs, lambda number: (number,), watch)
    return [
        KernelTime(" + ".join(row["kernels"]), 1, seconds.get((n,), 0.0), 0, 0, "FMA", 0, tuple(row["origins"]))
        for n, row in enumerate(steps)
        if row["kernels"]
    ]


def _medians(
    library: loader.Library,
    inputs: Mapping[str, NDArray[Any]],
    entry: str,
    runs: int,
    group: Callable[[int], tuple[int, ...]],
    watch: Callable[[int, int], None],
) -> dict[tuple[int, ...], float]:
    """The median seconds of each group of steps in a run."""
    seconds: dict[tuple[int, ...], list[float]] = {}
    for run in range(-2, runs):  # the first two bring weights and arena into memory
        _, times = library.profile(inputs, entry)
        spent: dict[tuple[int, ...], float] = {}  # in a loop, several times
        for number, time in times:
            spent[group(number)] = spent.get(group(number), 0.0) + time
        for numbers, time in spent.items() if run >= 0 else ():
            seconds.setdefault(numbers, []).append(time)
        watch(max(run + 1, 0), runs)
    return {numbers: statistics.median(times) for numbers, times in seconds.items()}


def _name(program: Program, step: Numbered) -> str:
    return program.kernels[step.kernel].name if isinstance(step, Launch) else step.called


def _origins(program: Program, step: Numbered) -> tuple[str, ...]:
    return step.origins or (program.kernels[step.kernel].origins if isinstance(step, Launch) else ())


def _launches(steps: Sequence[Numbered], numbers: Iterable[tuple[int, ...]]) -> Iterator[Launch]:
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


def _sizes(program: Program, entry: Entry, inputs: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The sizes of dimensions in ``inputs``; dimensions that are the size of no axis are at their lower bound."""
    sizes = {dim.name: dim.lo for dim in program.dims}
    for tensor in entry.inputs:
        for axis, size in zip(tensor.shape, inputs[tensor.name].shape, strict=True):
            dim = sym.as_var(axis)
            if dim is not None:
                sizes[dim.name] = size
    return sizes


def bytes_of(program: Program, step: Launch, sizes: Mapping[str, int]) -> int:
    """The bytes that a launch touches: of each argument its elements that it reads or writes, each once."""
    nest = program.kernels[step.kernel].nest
    touched = traffic.elements_touched(nest, sizes)
    total = 0
    for array, name in zip(nest.arrays, step.arguments, strict=True):
        buffer = program.buffer(name)
        elements = int(sym.evaluate(sym.product(buffer.shape), sizes))
        total += min(touched[array.name], elements) * buffer.dtype.itemsize
    return total
