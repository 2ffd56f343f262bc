"""Where the time of a model goes: its kernels, with the work that they do and the ceilings that bound them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from luminal.core import symbolic as sym
from luminal.core.program import HostCall, Launch, Program, numbered, together
from luminal.core.schedule import traffic
from luminal.module import Module
from luminal.runtime import loader


@dataclass(frozen=True)
class KernelTime:
    """One kernel in one run of a model, all its launches together; or the kernels of a phase, which are timed as one;
    or a function of the host.

    ``operations`` are the floating-point operations of its contractions (a multiply-add is two; what a mask makes
    unnecessary is counted, padding is not). ``bytes`` are those of its arrays that it touches, each counted once in a
    launch, wherever they lie. ``origins`` are the source operators of its first launch.
    """

    name: str
    launches: int
    seconds: float
    operations: int
    bytes: int
    origins: tuple[str, ...]


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
    library = loader.load(module.folder, threads=threads, profile=True)
    entry = program.entries[0]
    steps = tuple(numbered(entry.region))
    launches: dict[int, tuple[int, ...]] = {number: (number,) for number in range(len(steps))}
    for first, phase in together(entry.region):
        numbers = tuple(range(first, first + len(phase.tasks)))
        launches |= dict.fromkeys(numbers, numbers)
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


def _sizes(program: Program, inputs: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The dimensions that ``inputs`` have; those that no axis is, which nothing reads, are at their lower bound."""
    sizes = {dim.name: dim.lo for dim in program.dims}
    for tensor in program.entries[0].inputs:
        for axis, size in zip(tensor.shape, inputs[tensor.name].shape, strict=True):
            dim = sym.as_var(axis)
            if dim is not None:
                sizes[dim.name] = size
    return sizes


def _bytes(program: Program, step: Launch, sizes: Mapping[str, int]) -> int:
    nest = program.kernels[step.kernel].nest
    touched = traffic.accesses(nest, sizes)
    total = 0
    for array, name in zip(nest.arrays, step.arguments, strict=True):
        buffer = program.buffer(name)
        elements = int(sym.evaluate(sym.product(buffer.shape), sizes))
        total += min(touched[array.name], elements) * buffer.dtype.itemsize
    return total
