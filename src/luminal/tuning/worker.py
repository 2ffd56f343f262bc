"""The process that runs candidates: ``python -m luminal.tuning.worker``.

A candidate may crash or hang; then this process does, and no other. It reads requests from standard input, a line of
JSON each, and answers on standard output: ``{"begin": number}`` whenever a contender is about to run, and last the
samples. It ends with its parent.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.core.schedule.program.ir import ALIGNMENT, aligned
from luminal.timing import shuffled
from luminal.tuning import subject
from luminal.tuning.subject import Argument, Subject

SAMPLE = 200e-6  # seconds that one sample takes at least
LEAST_ROUNDS, MOST_ROUNDS = 5, 60
EARLY = 2  # samples after which a contender is dropped that takes
SLOW = 3.0  # times the fastest; after LEAST_ROUNDS, one that takes
BEHIND = 1.25  # times the fastest
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
    """Sets of arguments of a subject, which runs take in turn; what the sets point to stays alive with them."""

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
        """Drops the values, which the next contenders do not share."""
        self._values.clear()

    def sets(self, of: Subject) -> Sets:
        """Every set has other weights."""
        least = min((_step(a) * a.numpy.itemsize for a in of.arguments if a.weights), default=self._size)
        count = max(1, min(self._size // max(least, 1), SETS))
        return Sets(of, [self._set(of, number) for number in range(count)])

    def _set(self, of: Subject, number: int) -> list[NDArray[Any]]:
        arrays: list[NDArray[Any]] = []
        for place, argument in enumerate(of.arguments):
            if argument.same != place:
                arrays.append(arrays[argument.same])
            elif argument.weights:
                arrays.append(self._part(argument, number))
            else:
                if (argument, place) not in self._values:
                    self._values[argument, place] = _at_line(subject.drawn(argument, place))
                arrays.append(self._values[argument, place])
        return arrays

    def _part(self, argument: Argument, number: int) -> NDArray[Any]:
        step = _step(argument)
        whole = self._weights.get(argument.dtype)
        if whole is None or whole.size < step:
            elements = max(self._size // argument.numpy.itemsize, step)
            whole = _at_line(subject.drawn(Argument(argument.dtype, elements, True, 0), 0))
            self._weights[argument.dtype] = whole
        first = number % (whole.size // step) * step
        return whole[first : first + argument.elements]


def _step(argument: Argument) -> int:
    """Elements from one copy of an array to the next, each of which begins at a multiple of a cache line."""
    size = argument.numpy.itemsize
    return aligned(argument.elements * size) // size


def _at_line(values: NDArray[Any]) -> NDArray[Any]:
    """A copy of ``values`` that begins at a multiple of a cache line."""
    raw = np.empty(values.nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    result = raw[start : start + values.nbytes].view(values.dtype)
    result[:] = values
    return result


@dataclass
class Contender:
    """Kernels that together are one candidate, each with how often a run of the model launches it."""

    kernels: list[tuple[Subject, Sets, int]]
    samples: list[float]
    runs: int = 1

    def sample(self, library: Library, first: int) -> float:
        """Seconds of one run of all launches."""
        return sum(
            times * library.run(of, sets, first * self.runs, self.runs) / self.runs for of, sets, times in self.kernels
        )


def race(
    sample: Sequence[Callable[[int], float]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """The samples of each contender, in ``shuffled`` rounds until ``seconds`` are over, and ``LEAST_ROUNDS`` at least.
    A contender far behind is left out of further rounds, but never the first, which is the default."""
    found: list[list[float]] = [[] for _ in sample]
    racing = list(range(len(sample)))
    end = clock() + seconds
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and clock() >= end:
            break
        racing = shuffled(racing, number)
        for place in racing:
            found[place].append(sample[place](number))
        best = min(min(found[place]) for place in racing)
        limit = best * (BEHIND if number + 1 >= LEAST_ROUNDS else SLOW if number + 1 >= EARLY else math.inf)
        racing = [place for place in racing if place == 0 or min(found[place]) <= limit]
    return found


def checked(library: Library, of: Subject, positions: Mapping[int, NDArray[np.int64]]) -> dict[int, NDArray[Any]]:
    """What one run writes to arrays, by place, at ``positions``."""
    arrays: list[NDArray[Any]] = []
    for place, argument in enumerate(of.arguments):
        own = argument.same == place
        arrays.append(_at_line(subject.drawn(argument, place)) if own else arrays[argument.same])
    library.run(of, Sets(of, [arrays]))
    return {place: arrays[place][at] for place, at in positions.items()}


def answer(
    request: Mapping[str, Any], libraries: dict[str, Library], memories: dict[int, Memory], tell: Callable[[Any], None]
) -> None:
    """Carries out one request: ``contenders``, each with its kernels (``subject`` and ``times``), of the ``library``,
    on ``threads``; what they write at the positions of ``check`` goes to the file ``values``."""
    path = request["library"]
    if path not in libraries:
        libraries[path] = Library(path, request["threads"])
    library = libraries[path]
    memory = memories.setdefault(request["weights"], Memory(request["weights"]))
    memory.forget()
    contenders: list[Contender] = []
    values: dict[str, NDArray[Any]] = {}
    with np.load(request["check"]) as check:
        for number, kernels in enumerate(request["contenders"]):
            tell({"begin": number})
            contender = Contender([], [])
            for kernel in kernels:
                of = subject.read(kernel["subject"])
                names = {int(name.partition(" ")[2]): name for name in check.files if name.startswith(f"{of.number} ")}
                found = checked(library, of, {place: check[name] for place, name in names.items()})
                values |= {names[place]: array.view(np.uint8) for place, array in found.items()}
                contender.kernels.append((of, memory.sets(of), kernel["times"]))
            once = statistics.median(contender.sample(library, run) for run in range(3))
            contender.runs = max(1, min(100, int(SAMPLE / max(once, 1e-9))))
            contenders.append(contender)
    np.savez(request["values"], **values)  # type: ignore[arg-type]

    def sample(place: int, number: int) -> float:
        tell({"begin": place})
        return contenders[place].sample(library, number)

    tell({"samples": race([partial(sample, place) for place in range(len(contenders))], request["seconds"])})


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def main() -> None:
    """Answers requests until there are no more."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    libraries: dict[str, Library] = {}
    memories: dict[int, Memory] = {}

    def tell(message: Any) -> None:
        print(json.dumps(message), flush=True)

    for line in sys.stdin:
        answer(json.loads(line), libraries, memories, tell)


if __name__ == "__main__":
    main()
