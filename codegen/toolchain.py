"""C++ compilers: where one is found, and how it is called."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from luminal.core import config
from luminal.core.errors import BuildError

# Searched after PATH, which may hold a virtual environment only.
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/opt/homebrew/bin", "/bin")
_NAMES = ("g++", "clang++", "c++")

_ADVICE = (
    "install g++ or clang++, or the clang of the package index (pip install ziglang), or set CXX to a compiler's path"
)


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler: the words that its command starts with, and what it says its version is."""

    command: tuple[str, ...]
    version: str

    def run(self, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Calls the compiler in ``folder``; its messages are in ``stderr``."""
        return subprocess.run(
            [*self.command, *arguments],
            cwd=folder, env=_environment(self.command), capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip


def find() -> Toolchain:
    """The compiler that ``CXX`` names; else the system's g++ or clang++; else clang from the package ``ziglang``.

    Raises BuildError where there is none, or where the one that ``CXX`` names does not start.
    """
    chosen = config.CXX.value
    if chosen:
        words = shlex.split(chosen)
        path = _which(words[0]) if words else None
        if path is None:
            raise BuildError(f"CXX names {chosen!r}, which does not exist: {_ADVICE}")
        return _start((path, *words[1:]))
    for name in _NAMES:
        path = _which(name)
        if path is not None:
            return _start((path,))
    if importlib.util.find_spec("ziglang") is not None:
        return _start((sys.executable, "-m", "ziglang", "c++"))
    raise BuildError(f"found no C++ compiler on PATH or in {', '.join(_FOLDERS)}: {_ADVICE}")


def _which(name: str) -> str | None:
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_FOLDERS))
    return os.path.abspath(found) if found else None


@cache
def _start(command: tuple[str, ...]) -> Toolchain:
    try:
        answer = subprocess.run(
            [*command, "--version"], env=_environment(command), capture_output=True, text=True, errors="replace",
            check=False,
        )  # fmt: skip
    except OSError as error:
        raise BuildError(f"{shlex.join(command)} does not start ({error.strerror}): {_ADVICE}") from None
    if answer.returncode != 0:
        raise BuildError(f"{shlex.join(command)} --version fails: {answer.stderr.strip() or 'no message'}; {_ADVICE}")
    return Toolchain(command, answer.stdout.strip())


def _environment(command: Sequence[str]) -> dict[str, str]:
    """The compiler finds its assembler and linker beside itself, and writes its messages in English."""
    path = os.pathsep.join(p for p in (os.environ.get("PATH", ""), str(Path(command[0]).parent)) if p)
    return {**os.environ, "PATH": path, "LC_ALL": "C"}
