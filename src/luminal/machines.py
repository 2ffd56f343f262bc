"""What machines there are targets for, and what a library for each can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from luminal.codegen import platform as platforms
from luminal.core import target as targets
from luminal.core.target import Target


@dataclass(frozen=True)
class Machine:
    """A target: the system that loads its libraries, how they are called, and whether this machine runs them."""

    name: str
    system: str
    architecture: str
    called_from: str
    here: str

    @property
    def line(self) -> str:
        return f"{self.name:<22} {self.system:<17} {self.architecture:<8} {self.called_from:<16} {self.here}"


def machines() -> Iterator[Machine]:
    """All targets."""
    for target in (targets.ALL | targets.ABROAD | targets.GPUS).values():
        obstacle = targets.obstacle(target)
        here = f"does not run here: {obstacle}" if obstacle else "runs here"
        yield Machine(target.name, platforms.ALL[target.system].name, target.architecture, called_from(target), here)


def called_from(target: Target) -> str:
    """The languages that a library for ``target`` can be called from: it has a Python module on some systems only."""
    system = platforms.ALL[target.system]
    if system is platforms.WASI:
        return "JavaScript"
    return "C, C++, Python" if system.python else "C, C++"


def lines(among: str = "") -> list[str]:
    """A table of the targets whose names contain ``among``, as text."""
    head = Machine("target", "system", "CPU", "called from", "this machine")
    return [head.line, *(machine.line for machine in machines() if among in machine.name)]
