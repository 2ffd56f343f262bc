"""Which kernel of a program is wrong, and by which transform: each is compiled as its serial nest and as scheduled, and
both run on the same arrays; then so is what the first transforms make of it, for each number of them.

Kernels run in another process, which may crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core.errors import LuminalError, SpecError
from luminal.core.schedule.nest import interpreter
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import concatenated
from luminal.core.schedule.nest.walk import headers, inside
from luminal.core.schedule.program.ir import ALIGNMENT, Kernel, Launch, Program
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.sizes import typical
from luminal.core.target import Target
from luminal.core.types import from_numpy
from luminal.tuning import subject
from luminal.tuning.bench import Bench
from luminal.tuning.expected import Expected, expected, tolerance
from luminal.tuning.subject import Race, Subject, Work

# Scalars that a nest may compute in plain Python to tell a transform from the code made of its nest.
AFFORDABLE = 300_000

SECONDS = 300.0  # that one kernel may take, in a process that may have to wait for a busy machine

# The part of the integers that a kernel makes of floats which values beside a tie of rounding may move.
FEW = 0.01

Written = Mapping[int, NDArray[Any]]


@dataclass(frozen=True)
class Culprit:
    """A wrong kernel, a ``launch`` of it, and the ``transform`` that changed what its nest computes: None where code
    generation does. ``before`` and ``after`` are the value of an element, with its place."""

    kernel: Kernel
    launch: Launch
    transform: str | None
    number: int
    of: int
    before: str
    after: str


def prefixes(scheduled: Scheduled) -> list[tuple[str, ln.LoopNest]]:
    """The serial nest, and what the first transforms make of it, each with the last of these. Raises SpecError where
    the serial nest is not known."""
    if scheduled.serial is None:
        raise SpecError("the nest before the schedule is not known")
    found = [("", scheduled.serial)]
    for transform in scheduled.schedule:
        found.append((str(transform), transform(found[-1][1])))
    if scheduled.before is None:
        return found
    earlier = prefixes(scheduled.before)
    whole = [(name, concatenated(nest, found[0][1])) for name, nest in earlier]
    return whole + [(name, concatenated(earlier[-1][1], nest)) for name, nest in found[1:]]


def culprit(program: Program, target: Target, dims: Mapping[str, int]) -> Culprit | None:
    """The first kernel of ``program`` that computes something else than its serial nest, or than the interpreter of
    nests at some places; None where none does, or on a target whose kernels do not run alone."""
    if target.grid is not None:
        return None
    launches: dict[int, Launch] = {}
    for entry in program.entries:
        for launch in entry.launches:
            launches.setdefault(launch.kernel, launch)
    order = [k for k in launches if _runs_alone(program.kernels[k])]
    with Bench(target, 1, SECONDS) as bench:
        runs = _Runs(bench, program, dims)
        nests = {k: prefixes(program.kernels[k].scheduled) for k in order}
        wanted = [(k, nest) for k in order for nest in (nests[k][0][1], program.kernels[k].nest)]
        found = runs.written([(program.kernels[k], launches[k], nest) for k, nest in wanted])
        for place, k in enumerate(order):
            kernel, launch, serial = program.kernels[k], launches[k], nests[k][0][1]
            if _wrong(runs, kernel, launch, serial, *found[2 * place : 2 * place + 2]) is None:
                continue
            # All ran in one process, where a nest that writes beyond its arrays can change what others computed, or end
            # the process later.
            right, scheduled = (runs.written([(kernel, launch, nest)])[0] for nest in (serial, kernel.nest))
            wrong = _wrong(runs, kernel, launch, serial, right, scheduled)
            if isinstance(wrong, tuple):
                return Culprit(kernel, launch, None, 0, 0, *wrong)
            if wrong is not None:
                return _by_transform(runs, kernel, launch, nests[k], wrong)
    return None


def _wrong(
    runs: _Runs, kernel: Kernel, launch: Launch, serial: ln.LoopNest, right: Written | str | None,
    scheduled: Written | str | None,
) -> tuple[str, str] | Written | None:  # fmt: skip
    """What the serial nest computes, where a transform makes that wrong; an element, and its value, where the compiled
    serial nest is wrong already, which is no measure of transforms then; None where the kernel is right."""
    by_transform = isinstance(right, Mapping) and _fault(serial, right, scheduled) is not None
    held = right if by_transform else scheduled
    wrong = None if held is None else _by_interpreter(runs, kernel, launch, serial, held)
    return wrong or (right if by_transform and isinstance(right, Mapping) else None)


def _runs_alone(kernel: Kernel) -> bool:
    chain: Scheduled | None = kernel.scheduled
    while chain is not None:
        if chain.serial is None:
            return False
        chain = chain.before
    return not any(array.dtype.is_text for array in kernel.nest.arrays)


@dataclass
class _Runs:
    """Kernels of a program, compiled and run one by one at the sizes ``dims``."""

    bench: Bench
    program: Program
    dims: Mapping[str, int]

    def subject(self, kernel: Kernel, launch: Launch, number: int = 0) -> Subject:
        return subject.of(self.program, kernel, launch, number, self.dims)

    def written(self, wanted: Sequence[tuple[Kernel, Launch, ln.LoopNest]]) -> list[Written | str | None]:
        """The arrays that each nest writes, whole, in place of the kernel's; how it crashed, where it did; None where
        the compiler rejects the nest, or the machine was too slow."""
        kernels = {nest: replace(k, scheduled=Scheduled(nest)) for k, _, nest in wanted}
        compiled = self.bench.compile(list(kernels.values()))
        found: list[Written | str | None] = [None] * len(wanted)
        works: dict[int, Sequence[Work]] = {}
        for place, (_, launch, nest) in enumerate(wanted):
            if nest in compiled.numbers:
                of = self.subject(kernels[nest], launch, compiled.numbers[nest])
                arrays = {k: np.arange(of.arguments[k].elements) for k, a in enumerate(nest.arrays) if a.written}
                works[place] = [Work(of, 1, arrays)]
        weights = max((_bytes(work.of) for each in works.values() for work in each), default=1)
        ran = self.bench.racer.run(Race(str(compiled.library), 1, weights, 0.0, list(works.values())))
        for number, place in enumerate(works):
            fault = ran.faults.get(number)
            if fault is None:
                found[place] = ran.wrote[number][0]
            elif "ended its process" in fault:
                found[place] = fault
        return found


def _bytes(of: Subject) -> int:
    """The bytes of the weights of a call, each at a multiple of a cache line."""
    return sum(a.elements * a.numpy.itemsize + ALIGNMENT for a in of.arguments if a.weights) or 1


def _fault(serial: ln.LoopNest, right: Written, found: Written | str | None) -> tuple[str, str] | None:
    """The first element that differs more than another order of sums explains: the value expected, and the other."""
    if found is None:
        return None
    if isinstance(found, str):
        return "", found
    rounds = any(from_numpy(array.dtype.numpy).is_float for array in serial.arrays if not array.dtype.is_text)
    for place, values in right.items():
        away = _apart(values, found[place], tolerance(serial, values))
        if rounds and not from_numpy(values.dtype).is_float and away.mean() < FEW:
            continue
        if away.any():
            at = int(np.flatnonzero(away)[0])
            return f"element {at} of {serial.arrays[place].name}: {values[at]}", f"{found[place][at]}"
    return None


def _apart(a: NDArray[Any], b: NDArray[Any], allowed: float) -> NDArray[np.bool_]:
    if not from_numpy(a.dtype).is_float:
        return np.asarray(a != b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(~((np.abs(x - y) <= allowed) | (x == y) | (np.isnan(x) & np.isnan(y))))


def _by_transform(
    runs: _Runs, kernel: Kernel, launch: Launch, nests: Sequence[tuple[str, ln.LoopNest]], right: Written
) -> Culprit:
    """The first transform after which the compiled nest is wrong."""
    serial = nests[0][1]
    found = runs.written([(kernel, launch, nest) for _, nest in nests[1:]])
    for number, ((name, nest), values) in enumerate(zip(nests[1:], found, strict=True), 1):
        wrong = _fault(serial, right, values)
        if wrong is None or values is None:
            continue
        in_python = _right_in_python(runs, kernel, launch, nest, right, values)
        # The nests run in one process, where one that writes beyond its arrays can change what others computed.
        if in_python and _fault(serial, right, runs.written([(kernel, launch, nest)])[0]) is None:
            continue
        return Culprit(kernel, launch, None if in_python else name, number, len(nests) - 1, *wrong)
    return Culprit(kernel, launch, None, 0, 0, "", "")


def _right_in_python(
    runs: _Runs, kernel: Kernel, launch: Launch, nest: ln.LoopNest, right: Written, found: Written | str
) -> bool:
    """Whether the interpreter computes of ``nest`` what is right where the compiled one, which ``found`` is of, does
    not: of all tasks, or of the first so many as take a few seconds."""
    of = runs.subject(replace(kernel, scheduled=Scheduled(nest)), launch)
    sizes = {dim.name: size for dim, size in zip(nest.dims, of.sizes, strict=True)}
    names = [array.name for array in nest.arrays]
    given = of.arrays(subject.drawn)
    arrays = dict(zip(names, [array.copy() for array in given], strict=True))
    count = of.tasks if nest.tasks else 1
    affordable = min(count, AFFORDABLE // max(1, _work(nest.body) // count))
    if not affordable:
        return False  # not known: the transform is the likelier
    try:
        interpreter.run(nest, arrays, sizes, range(affordable) if nest.tasks and affordable < count else None)
    except (LuminalError, IndexError, KeyError):
        return False
    covered = isinstance(found, str)
    for place, values in right.items():
        after = arrays[names[place]]
        away = _apart(values, after, tolerance(nest, values))
        made = _apart(given[place], after, 0.0) if affordable < count else np.ones(after.shape, bool)
        if away[made].any():
            return False
        if not isinstance(found, str):
            covered |= bool(_apart(values, found[place], tolerance(nest, values))[made].any())
    return covered


def _work(body: Sequence[ln.Statement]) -> int:
    """About how many scalars ``body`` computes."""
    total = 0
    for statement in body:
        times = 1
        for loop in headers(statement):
            times *= max(1, typical(loop.extent))
        total += times * (1 + _work(inside(statement)))
    return total


def _by_interpreter(
    runs: _Runs, kernel: Kernel, launch: Launch, serial: ln.LoopNest, found: Written | str
) -> tuple[str, str] | None:
    """The first of some elements that differ from what the interpreter makes of the serial nest, and how."""
    if isinstance(found, str):
        return "", found
    of = runs.subject(replace(kernel, scheduled=Scheduled(serial)), launch)
    try:
        wanted: Mapping[int, Expected] = expected(serial, of)
    except (LuminalError, IndexError):  # drawn numbers are no indices of this kernel
        return None
    for place, values in wanted.items():
        held = found[place][values.positions]
        if values.fault(held):
            at = int(np.flatnonzero(_apart(values.values, held, values.tolerance))[0])
            name = serial.arrays[place].name
            return f"element {values.positions[at]} of {name}: {values.values[at]}", f"{held[at]}"
    return None
