"""The process that runs candidates, seen from outside: it may crash or hang, and another takes its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeAlias

from numpy.typing import NDArray

from luminal.process import Process
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
        self._process = Process("luminal.tuning.worker")

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
            connection = self._process.connection
            connection.send(race)
            while connection.poll(self.hang):
                message = connection.recv()
                if not isinstance(message, int):
                    samples, written = message
                    return samples, written
                begun = message
            self._process.stop()
        except (EOFError, OSError):
            reason = self._process.ended()
        return Fault(begun, reason)

    def stop(self) -> None:
        """Ends the process, if there is one."""
        self._process.stop()
