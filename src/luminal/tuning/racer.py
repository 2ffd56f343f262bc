"""The process that runs candidates, seen from outside: it may crash or hang, and another takes its place."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, TypeAlias

from numpy.typing import NDArray

from luminal.tuning.subject import Race

HANG = 20.0  # seconds after which a contender that has begun is given up

Written: TypeAlias = Sequence[Mapping[int, NDArray[Any]]]  # per kernel: values written, by argument number


@dataclass(frozen=True)
class Fault:
    """Which contender of a race ended the process that ran it, and how."""

    contender: int
    reason: str


@dataclass(frozen=True)
class Ran:
    """What became of the contenders of a race, by number: the ``faults`` of those that crashed or hung, and the
    ``samples`` of the others and what they ``wrote``."""

    faults: Mapping[int, str] = field(default_factory=dict)
    samples: Mapping[int, list[float]] = field(default_factory=dict)
    wrote: Mapping[int, Written] = field(default_factory=dict)


class Racer:
    """Runs races. Use it as a context manager: it has a process."""

    def __init__(self, hang: float = HANG) -> None:
        self.hang = hang
        self._worker: tuple[subprocess.Popen[bytes], Connection] | None = None

    def __enter__(self) -> Racer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, race: Race) -> Ran:
        """Runs a race, again without each contender that crashes or hangs."""
        racing = list(range(len(race.contenders)))
        faults: dict[int, str] = {}
        while racing:
            found = self._race(replace(race, contenders=[race.contenders[k] for k in racing]))
            if not isinstance(found, Fault):
                samples, wrote = found
                return Ran(faults, dict(zip(racing, samples, strict=True)), dict(zip(racing, wrote, strict=True)))
            faults[racing.pop(found.contender)] = found.reason
        return Ran(faults)

    def _race(self, race: Race) -> tuple[list[list[float]], Sequence[Written]] | Fault:
        """The samples of each contender and the values that it wrote; or which of them ended the process."""
        begun, reason = 0, f"it was not done after {self.hang:g} seconds"
        try:
            connection = self._connected()
            connection.send(race)
            while connection.poll(self.hang):
                message = connection.recv()
                if not isinstance(message, int):
                    samples, written = message
                    return samples, written
                begun = message
            self.stop()
        except (EOFError, OSError):
            code = self.stop()
            reason = f"it ended its process: {signal.strsignal(-code) if code < 0 else f'exit code {code}'}"
        return Fault(begun, reason)

    def _connected(self) -> Connection:
        """The connection to the process that runs contenders, which is started where there is none."""
        if self._worker is None:
            here, there = Pipe()
            # In a session of its own, so that interrupts do not reach it; it ends with this process.
            process = subprocess.Popen(
                [sys.executable, "-m", "luminal.tuning.worker", str(there.fileno())], pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            there.close()
            self._worker = process, here
        return self._worker[1]

    def stop(self) -> int:
        """Ends the process, if there is one; its exit code."""
        if self._worker is None:
            return 0
        (process, connection), self._worker = self._worker, None
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)  # where it is ending by itself, for the reason
        process.kill()
        connection.close()
        return process.wait()
