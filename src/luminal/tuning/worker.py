"""The process that runs candidates: ``python -m luminal.tuning.worker``.

A candidate may crash or hang; then this process does, and no other. The connection, whose number it is given, brings
one ``Race`` after the other. It answers with the number of a contender whenever that is about to run, and last with the
samples of all and what they wrote. It ends with its parent.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core.schedule.program.ir import ALIGNMENT, aligned
from luminal.process import serve
from luminal.runtime import loader
from luminal.timing import race
from luminal.tuning import subject
from luminal.tuning.subject import Argument, Race, Subject, Work

SAMPLE = 200e-6  # seconds that one sample takes at least
SETS = 1024  # of arguments, at most


class Library:
    """A library of ``codegen.timed``, its threads started."""

    def __init__(self, path: str, threads: int) -> None:
        self._library = ctypes.CDLL(path)
        self._run = self._library.lm_timed_run
        self._run.restype = ctypes.c_int64
        count = ctypes.c_int64
        self._run.argtypes = [ctypes.c_int32, count, count, ctypes.c_void_p, count, count, count]
        if not self._library.lm_timed_start(threads):
            raise MemoryError(f"the system refuses {threads} threads")

    def run(self, of: Subject, sets: Sets, first: int = 0, runs: int = 1) -> float:
        """Seconds of ``runs`` runs together."""
        count = len(sets.pointers)
        return 1e-9 * float(self._run(of.number, of.tasks, of.grain, sets.table, count, first, runs))


class Sets:
    """Sets of arguments of a subject, which runs use in turn; they keep the arrays alive that they point to."""

    def __init__(self, of: Subject, arrays: Sequence[Sequence[NDArray[Any]]]) -> None:
        self._arrays = arrays
        self._status = np.zeros(16, np.int32)
        self._sizes = np.array([*of.sizes, 0], np.int64)
        last = [*([self._status.ctypes.data] if of.checked else []), self._sizes.ctypes.data]
        self.pointers = [
            (ctypes.c_void_p * (len(each) + len(last)))(*(a.ctypes.data for a in each), *last) for each in arrays
        ]
        self._addresses = (ctypes.c_void_p * len(arrays))(*map(ctypes.addressof, self.pointers))
        self.table = ctypes.addressof(self._addresses)


class Memory:
    """Arrays for timing: values are shared by all contenders, so that they lie in the caches as after the step before;
    weights lie in ``bytes`` of memory (of each type) which runs go through in turn, as a model does."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[tuple[Argument, int], NDArray[Any]] = {}
        self._weights: dict[str, NDArray[Any]] = {}

    def forget(self) -> None:
        """Drops the values, which the next contenders do not use."""
        self._values.clear()

    def sets(self, of: Subject) -> Sets:
        """Sets of arguments of ``of``, each with its own weights."""
        least = min((_step(a) * a.numpy.itemsize for a in of.arguments if a.weights), default=self._size)
        count = max(1, min(self._size // max(least, 1), SETS))
        return Sets(of, [of.arrays(partial(self._array, number)) for number in range(count)])

    def _array(self, number: int, argument: Argument, place: int) -> NDArray[Any]:
        if argument.weights:
            return self._part(argument, number)
        if (argument, place) not in self._values:
            self._values[argument, place] = drawn(argument, place)
        return self._values[argument, place]

    def _part(self, argument: Argument, number: int) -> NDArray[Any]:
        step = _step(argument)
        whole = self._weights.get(argument.dtype)
        if whole is None or whole.size < step:
            elements = max(self._size // argument.numpy.itemsize, step)
            whole = drawn(Argument(argument.dtype, elements, True, 0), 0)
            self._weights[argument.dtype] = whole
        first = number % (whole.size // step) * step
        return whole[first : first + argument.elements]


def _step(argument: Argument) -> int:
    """The stride in elements between copies of an array, each of which begins at a multiple of a cache line."""
    size = argument.numpy.itemsize
    return aligned(argument.elements * size) // size


def drawn(argument: Argument, place: int) -> NDArray[Any]:
    """Values for an argument, which begin at a multiple of a cache line."""
    values = subject.drawn(argument, place)
    raw = np.empty(values.nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    result = raw[start : start + values.nbytes].view(values.dtype)
    result[:] = values
    return result


@dataclass
class Contender:
    """Kernels that together are one candidate, each with how often a run of the model launches it. A sample is the mean
    of so many ``runs``."""

    kernels: list[tuple[Subject, Sets, int]]
    runs: int = 1

    def sample(self, library: Library, first: int) -> float:
        """Seconds of one run of all launches."""
        return sum(
            times * library.run(of, sets, first * self.runs, self.runs) / self.runs for of, sets, times in self.kernels
        )


def written(library: Library, work: Work) -> dict[int, NDArray[Any]]:
    """What one run writes to arrays, by place, at the positions that are to be compared."""
    arrays = work.of.arrays(drawn)
    library.run(work.of, Sets(work.of, [arrays]))
    return {place: arrays[place][at] for place, at in work.positions.items()}


def answer(
    asked: Race, libraries: dict[str, Library], memories: dict[int, Memory], tell: Callable[[object], None]
) -> None:
    """Runs a race, in one of the ``libraries`` and ``memories`` that earlier ones had, or in new ones."""
    if not asked.library:
        answer_on_device(asked, tell)
        return
    if asked.library not in libraries:
        libraries[asked.library] = Library(asked.library, asked.threads)
    library = libraries[asked.library]
    memory = memories.setdefault(asked.weights, Memory(asked.weights))
    memory.forget()
    contenders: list[Contender] = []
    found: list[list[dict[int, NDArray[Any]]]] = []
    for number, works in enumerate(asked.contenders):
        tell(number)
        found.append([written(library, work) for work in works])
        contender = Contender([(work.of, memory.sets(work.of), work.times) for work in works])
        once = statistics.median(contender.sample(library, run) for run in range(3))
        contender.runs = max(1, min(100, int(SAMPLE / max(once, 1e-9))))
        contenders.append(contender)

    def sample(place: int, number: int) -> float:
        tell(place)
        return contenders[place].sample(library, number)

    tell((race([partial(sample, place) for place in range(len(contenders))], asked.seconds), found))


def answer_on_device(asked: Race, tell: Callable[[object], None]) -> None:
    """Runs a race of kernels that are libraries of their own, for a GPU: a sample is the time of their steps there."""
    contenders: list[Sequence[tuple[Work, loader.Library, list[NDArray[Any]]]]] = []
    found: list[list[dict[int, NDArray[Any]]]] = []
    for number, works in enumerate(asked.contenders):
        tell(number)
        contender = []
        found.append([])
        for work in works:
            library, inputs = loader.load(work.folder, threads=asked.threads, profile=True), given(work)
            outputs, _ = library.profile(inputs)
            found[-1].append({k: np.asarray(y)[work.positions[k]] for k, y in zip(work.written, outputs, strict=True)})
            contender.append((work, library, inputs))
        contenders.append(contender)

    def sample(place: int, number: int) -> float:
        tell(place)
        return sum(
            work.times * sum(step.seconds for step in library.profile(inputs)[1])
            for work, library, inputs in contenders[place]
        )

    tell((race([partial(sample, place) for place in range(len(contenders))], asked.seconds), found))


def given(work: Work) -> list[NDArray[Any]]:
    """The inputs of the library of a kernel that is alone in it (``devices.alone``)."""
    arrays = work.of.arrays(subject.drawn)
    read = [k for k, argument in enumerate(work.of.arguments) if argument.same == k and k not in work.written]
    constants = set(work.constants)
    return [arrays[k] for k in read if k not in constants] + [np.zeros(size, np.uint8) for size in work.of.sizes]


def main() -> None:
    """Runs races until there are no more."""
    libraries: dict[str, Library] = {}
    memories: dict[int, Memory] = {}
    serve(lambda connection: answer(connection.recv(), libraries, memories, connection.send))


if __name__ == "__main__":
    main()
