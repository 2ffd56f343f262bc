"""Switches: every environment variable that luminal reads, in one table."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from luminal.core.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class Switch(Generic[T]):
    """One environment variable: ``read`` parses its text; ``default`` holds where it is unset or empty."""

    variable: str
    read: Callable[[str], T]
    default: T
    help: str

    @property
    def value(self) -> T:
        """The present setting. Raises InputError, naming the variable, where the text makes no sense."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        try:
            return self.read(text)
        except (ValueError, RuntimeError) as error:  # the latter: the system knows no such user's home
            raise InputError(f"{self.variable}={text!r}: {str(error).rstrip('.')}; {self.help}") from None


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("expected a positive number")
    return int(text)


def _seconds(text: str) -> float:
    if not 0 < float(text) < math.inf:
        raise ValueError("expected seconds, more than none")
    return float(text)


def _level(text: str) -> int:
    levels = {"debug": 10, "info": 20, "warning": 30, "error": 40}  # the numbers of Python's logging
    if text.lower() not in levels:
        raise ValueError(f"expected one of {', '.join(levels)}")
    return levels[text.lower()]


CXX = Switch("CXX", str, "", "the C++ compiler to use, by name or path, with leading arguments if it needs any")
NVCC = Switch("NVCC", str, "", "the CUDA compiler to use, by name or path")
CUDA_DRIVER = Switch(
    "LUMINAL_CUDA_DRIVER", str, "", "what compiled libraries open in place of the CUDA driver, for tests"
)
METAL_RUNTIME = Switch(
    "LUMINAL_METAL_RUNTIME", str, "", "what compiled libraries open in place of Objective-C and Metal, for tests"
)
CLANG = Switch("LUMINAL_CLANG", str, "", "the clang that compiles kernels for OpenCL, by name or path")
OPENCL_DRIVER = Switch(
    "LUMINAL_OPENCL_DRIVER", str, "", "what compiled libraries open in place of the OpenCL loader, for tests"
)
CACHE = Switch(
    "LUMINAL_CACHE",
    lambda text: Path(text).expanduser(),
    Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "luminal",
    "the folder that keeps compiled kernels from one run to the next",
)
CHECK_NAN = Switch("LUMINAL_CHECK_NAN", _flag, False, "1: a step of training whose loss is NaN says what made it")
NO_CACHE = Switch("LUMINAL_NO_CACHE", _flag, False, "1: compile everything anew, and keep nothing")
RECORDS = Switch(
    "LUMINAL_RECORDS",
    lambda text: Path(text).expanduser(),
    None,
    "the file of what tuning measured; unset: tuning.sqlite in the cache",
)
NO_RECORDS = Switch("LUMINAL_NO_RECORDS", _flag, False, "1: choose schedules by formula, whatever was measured")
CHECK = Switch("LUMINAL_CHECK", _flag, False, "1: hold the graph to its spec after every pass of the compiler")
MPI = Switch("LUMINAL_MPI", str, "", "the MPI library that libraries of a mesh open, or a shim for an older MPI")
MPI_OVERLAP = Switch(
    "LUMINAL_MPI_OVERLAP", _flag, True, "0: ranks of a mesh wait for each exchange as soon as it begins"
)
MPI_PIN = Switch(
    "LUMINAL_MPI_PIN", _flag, True, "0: ranks of a mesh that run on one machine do not divide its CPUs among themselves"
)
MPI_LIMIT = Switch("LUMINAL_MPI_LIMIT", _seconds, 300.0, "how many seconds a rank of a mesh waits for another")
DIFF_LIMIT = Switch(
    "LUMINAL_DIFF_LIMIT", _seconds, 600.0, "how many seconds diff waits for a run that it tries in another process"
)
JOBS = Switch("LUMINAL_JOBS", _count, 0, "how many compilers run at once; unset: one for each CPU")
LOG = Switch[int | None]("LUMINAL_LOG", _level, None, "what is logged to standard error: debug, info, warning or error")

TABLE: dict[str, Switch[object]] = {
    value.variable: value for value in list(globals().values()) if isinstance(value, Switch)
}


def check() -> None:
    """Raises InputError where a variable is set to what makes no sense: said before anything that takes long."""
    for switch in TABLE.values():
        _ = switch.value
