"""What machines there are targets for, and what a library for each can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from luminal.codegen import platform as platforms
from luminal.comparison import foreign
from luminal.core import target as targets
from luminal.core.errors import InputError, TargetError
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
        system = platforms.ALL[target.system].name
        yield Machine(target.name, system, target.architecture, called_from(target), _here(target))


def _here(target: Target) -> str:
    obstacle = targets.obstacle(target)
    if not obstacle:
        return "runs here"
    if foreign.needed(target):
        with suppress(TargetError):
            return f"luminal diff runs it under {foreign.runner(target).name}"
    return f"does not run here: {obstacle}"


def called_from(target: Target) -> str:
    """The languages that a library for ``target`` can be called from: it has a Python module on some systems only."""
    system = platforms.ALL[target.system]
    if system is platforms.WASI:
        return "JavaScript"
    return "C, C++, Python" if system.python else "C, C++"


def lines(among: str = "") -> list[str]:
    """A table of the targets whose names contain ``among``, as text. Raises InputError where there are none."""
    head = Machine("target", "system", "CPU", "called from", "this machine")
    found = [machine.line for machine in machines() if among in machine.name]
    if not found:
        raise InputError(f"expected a part of a target's name, found {among!r}; luminal targets lists all")
    return [head.line, *found]
