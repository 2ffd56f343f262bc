"""What a machine can do at most, measured: the ceilings that kernels are compared with."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from luminal import runtime
from luminal.codegen import toolchain
from luminal.core.errors import BuildError
from luminal.core.target import Target

SOURCE = Path(runtime.__file__).parent / "peak.cpp"
STREAM = 512 << 20  # bytes that all threads read together: more than caches hold
ROUND_SECONDS = 0.01


@dataclass(frozen=True)
class Peak:
    """Ceilings of some threads together: float32 operations a second (a multiply-add is two) between registers, and
    bytes a second read from memory in a stream."""

    operations: float
    bytes: float

    def __or__(self, other: Peak) -> Peak:
        """The higher of two measurements of each."""
        return Peak(max(self.operations, other.operations), max(self.bytes, other.bytes))


class Probe:
    """The measuring code, compiled for ``target``, with the memory that it reads.

    Raises BuildError where there is no compiler.
    """

    def __init__(self, target: Target, threads: int) -> None:
        self._threads = threads
        self._library = _compile(target)
        self._library.lm_multiply_add.restype = ctypes.c_float
        self._library.lm_multiply_add.argtypes = [ctypes.c_int64, ctypes.c_float, ctypes.c_float]
        self._library.lm_read.restype = ctypes.c_float
        self._library.lm_read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._register = target.register_bytes
        self._shares = [np.ones(STREAM // threads // 4, np.float32) for _ in range(threads)]

    def measure(self, runs: int = 7) -> Peak:
        """The best of some short runs."""
        operations = ctypes.c_int64.in_dll(self._library, "lm_round_operations").value
        rounds = 1000
        while self._compute(rounds) < ROUND_SECONDS:
            rounds *= 2
        computing = [self._compute(rounds) for _ in range(runs)]
        reading = [self._seconds(self._read) for _ in range(runs)]
        read = sum(share.nbytes for share in self._shares)
        return Peak(self._threads * rounds * operations / min(computing), read / min(reading))

    def _compute(self, rounds: int) -> float:
        return self._seconds(lambda thread: self._library.lm_multiply_add(rounds, 0.5, 1.0))

    def _read(self, thread: int) -> None:
        share = self._shares[thread]
        start = -share.ctypes.data % self._register
        self._library.lm_read(share.ctypes.data + start, (share.nbytes - start) // self._register)

    def _seconds(self, work: Callable[[int], object]) -> float:
        """The time that ``work`` takes on all threads at once, without the time that they take to start."""
        begins = [0.0] * self._threads
        ends = [0.0] * self._threads
        barrier = threading.Barrier(self._threads)

        def run(number: int) -> None:
            barrier.wait()
            begins[number] = time.perf_counter()
            work(number)
            ends[number] = time.perf_counter()

        others = [threading.Thread(target=run, args=(number,)) for number in range(1, self._threads)]
        for thread in others:
            thread.start()
        run(0)
        for thread in others:
            thread.join()
        return max(ends) - min(begins)


def _compile(target: Target) -> ctypes.CDLL:
    compiler = toolchain.find()
    flags = [*target.flags, "-ffp-contract=fast", f"-DLM_REGISTER_BYTES={target.register_bytes}", "-shared", "-fPIC"]
    with tempfile.TemporaryDirectory(prefix="luminal-") as folder:
        name = hashlib.sha256(" ".join(flags).encode()).hexdigest()[:8]
        path = Path(folder, f"peak_{name}.so")
        done = compiler.run([*flags, str(SOURCE), "-o", str(path)], Path(folder))
        if done.returncode != 0:
            raise BuildError(f"{SOURCE.name} did not compile:\n{done.stderr}")
        return ctypes.CDLL(str(path))
