"""Measures a machine's peak performance: the ceilings that kernels are compared with."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import cast

import numpy as np

from luminal import runtime
from luminal.codegen import toolchain
from luminal.core import target as targets
from luminal.core.errors import BuildError
from luminal.core.matrix import MatrixUnit
from luminal.core.target import Target
from luminal.core.types import DType, bf16, u8

SOURCE = Path(runtime.__file__).parent / "peak.cpp"
STREAM = 512 << 20  # bytes that all threads read together: more than caches hold
LEAST_BYTES_READ = 1 << 20  # the least bytes that they read together: with fewer, the start takes most of the time
ROUND_SECONDS = 0.01


@dataclass(frozen=True)
class Peak:
    """Ceilings of some threads together: float32 operations a second (a multiply-add is two) between registers, bytes a
    second read from memory in a stream, and operations a second of units that multiply bfloat16, and integers of 8
    bits; 0 where target or machine have none."""

    operations: float
    bytes: float
    bf16: float = 0.0
    int8: float = 0.0

    def __or__(self, other: Peak) -> Peak:
        """The higher of two measurements of each."""
        return Peak(*map(max, astuple(self), astuple(other)))

    def computing(self, unit: str) -> float:
        """Operations a second of ``unit``: ``bf16`` or ``int8`` products where the machine has such a unit, else
        multiply-adds of float32."""
        return {"bf16": self.bf16, "int8": self.int8}.get(unit, 0.0) or self.operations


class Probe:
    """The measuring code, compiled for ``target``, with the memory that it reads: ``stream`` bytes, ``STREAM`` where
    that is 0.

    Raises BuildError where there is no compiler.
    """

    def __init__(self, target: Target, threads: int, stream: int = 0) -> None:
        self._threads = threads
        self._stream = stream or STREAM
        self._library = _compile(target)
        self._units = targets.units_here(target)
        self._register = target.register_bytes
        room = self._stream // threads + self._register  # some for the alignment
        self._shares = [np.ones(room // 4, np.float32) for _ in range(threads)]

    def measure(self, runs: int = 7) -> Peak:
        """The best of some short runs of each."""
        units = (self.products(dtype, runs) for dtype in (bf16, u8))
        return Peak(self.multiply_adds(runs), self.read(self._stream, runs), *units)

    def multiply_adds(self, runs: int = 7) -> float:
        """float32 operations a second."""
        operations = self._number("lm_round_operations")
        return self._rate(lambda thread, rounds: self._library.lm_multiply_add(rounds, 0.5, 1.0), operations, runs)

    def products(self, dtype: DType, runs: int = 7) -> float:
        """Operations a second of the fastest unit that multiplies rows of ``dtype``; 0 where target or machine have
        none."""
        unit = next((unit for unit in self._units if unit.left == dtype), None)
        if unit is None:
            return 0.0
        operations = self._number("lm_products") * 2 * unit.rows * unit.columns * unit.depth
        return self._rate(lambda thread, rounds: products_of(self._library, unit)(rounds), operations, runs)

    def read(self, size: int, runs: int = 7) -> float:
        """Bytes a second, where all threads together read the same ``size`` bytes again and again: few come from a
        cache. ``size`` is clamped between ``LEAST_BYTES_READ`` and all the memory."""
        count = min(max(size, LEAST_BYTES_READ), self._stream) // self._threads // self._register
        starts = [share.ctypes.data + -share.ctypes.data % self._register for share in self._shares]
        return self._rate(
            lambda thread, rounds: self._library.lm_read(starts[thread], count, rounds), count * self._register, runs
        )

    def _rate(self, work: Callable[[int, int], object], amount: int, runs: int) -> float:
        """The total rate of all threads per second; ``work(thread, rounds)`` does ``amount`` in each round."""

        def seconds(rounds: int) -> float:
            return self._seconds(lambda thread: work(thread, rounds))

        rounds = 1
        while seconds(rounds) < ROUND_SECONDS:
            rounds *= 2
        best = min(seconds(rounds) for _ in range(runs))
        return self._threads * rounds * amount / best

    def _number(self, name: str) -> int:
        return ctypes.c_int64.in_dll(self._library, name).value

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
        library = ctypes.CDLL(str(path))
    library.lm_multiply_add.argtypes = [ctypes.c_int64, ctypes.c_float, ctypes.c_float]
    library.lm_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    for function in (library.lm_multiply_add, library.lm_read):
        function.restype = ctypes.c_float
    return library


def products_of(library: ctypes.CDLL, unit: MatrixUnit) -> Callable[[int], float]:
    """The function of ``peak.cpp`` that multiplies ones on ``unit`` in so many rounds."""
    function = getattr(library, f"lm_products_{unit.name}")
    function.argtypes, function.restype = [ctypes.c_int64], ctypes.c_float
    return cast(Callable[[int], float], function)
