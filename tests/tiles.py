"""Targets with matrix units on machines that have none: Intel's are emulated, instruction by instruction."""

from __future__ import annotations

import ctypes
import platform
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from luminal.core import target as targets
from luminal.core.matrix import AMX_BF16
from luminal.core.target import Target
from tests import vector_support


def missing(target: Target) -> str:
    """Why code for ``target`` can run here neither by itself nor with emulated matrix units; empty where it can."""
    if targets.supported(target) or all(unit.in_vectors for unit in target.units):
        return targets.obstacle(target)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "instructions of x86-64 are emulated on Linux and x86-64 alone"
    forbidden = AMX_BF16.features[0] in Path("/proc/cpuinfo").read_text()
    return "this process may not use the matrix units that the machine has" if forbidden else ""


def runnable(target: Target) -> Target:
    """``target``, where this machine runs it, or can in no way; else the best that it does run, with the matrix units
    of ``target``, which are emulated from now on."""
    if targets.supported(target) or missing(target):
        return target
    emulate()
    host = targets.detect()
    matrices = (replace(unit, features=()) for unit in target.units if not unit.in_vectors)
    return replace(host, name=target.name, precision=target.precision, units=(*matrices, *host.units))


def emulate() -> None:
    """This process runs instructions of Intel's Advanced Matrix Extensions from now on."""
    _emulator().emulate_tiles()


@cache
def _emulator() -> ctypes.CDLL:
    """What lets this process run instructions of Intel's Advanced Matrix Extensions, which its processor has not."""
    with tempfile.TemporaryDirectory(prefix="luminal-") as folder:
        return vector_support.build("tiles.cpp", targets.detect(), Path(folder))
