"""Compilers for C++ and CUDA: where one is found, and how it is called."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from luminal.codegen import platform as platforms
from luminal.codegen.platform import Platform
from luminal.core import config
from luminal.core import target as targets
from luminal.core.errors import BuildError

_LOG = logging.getLogger("luminal.build")

# Searched after PATH, which may hold a virtual environment only.
_FOLDERS = ("/usr/local/bin", "/usr/bin", "/opt/homebrew/bin", "/bin")
_NAMES = ("g++", "clang++", "c++")

_ADVICE = (
    "install g++ or clang++, or the clang of the package index (pip install ziglang), or set CXX to a compiler's path"
)
_NVCC_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")
_NVCC_ADVICE = (
    "install the CUDA toolkit, or its compiler from the package index (pip install nvidia-cuda-nvcc), or set NVCC to "
    "its path"
)
_CLANGS = range(14, 23)  # versions that know C++ for OpenCL 2021
_CLANG_ADVICE = "install clang 14 or later (Debian: apt-get install clang), or set LUMINAL_CLANG to its path"
_ZIGLANG = {"-march=rv64gcv": "-march=baseline_rv64+v"}  # flags that ziglang's driver has other words for
_FOREIGN_ADVICE = "install the clang of the package index (pip install ziglang), or set CXX to a cross compiler's path"


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler: the first words of its command, those of the command that links without a C++ library, and the
    version that it reports."""

    command: tuple[str, ...]
    linker: tuple[str, ...]
    version: str

    @property
    def identity(self) -> tuple[str, ...]:
        """What decides its output besides its inputs and flags; part of the cache keys of its output."""
        return (*self.command, "link:", *self.linker, self.version)

    @property
    def precompiles(self) -> bool:
        """Whether it can precompile headers so that objects do not depend on it: GNU's can."""
        return "Free Software Foundation" in self.version

    def precompile(self, header: str, flags: Sequence[str], folder: Path) -> bool:
        """Precompiles a header of ``folder``, for units with the same ``flags`` that include it first; False where it
        does not compile by itself."""
        return self.run([*flags, "-x", "c++-header", header, "-o", f"{header}.gch"], folder).returncode == 0

    def run(self, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Calls the compiler in ``folder``; its messages are in ``stderr``."""
        if "ziglang" in self.command:
            arguments = [_ZIGLANG.get(argument, argument) for argument in arguments]
        return _run([*self.command, *arguments], folder)

    def archive(self, archive: Path, objects: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Puts objects into a static library; messages are in ``stderr``."""
        return _run([*self._archiver, "rcsD", str(archive), *objects], folder)

    @property
    def _archiver(self) -> tuple[str, ...]:
        """The program that comes with the compiler: ziglang's, or binutils' for the same machine."""
        if "ziglang" in self.command:
            return (*self.command[: self.command.index("ziglang") + 1], "ar")
        folder, name = os.path.split(self.command[0])
        prefix = name.removesuffix("g++") if name.endswith("-g++") else ""
        return (_which(f"{prefix}ar") or os.path.join(folder, f"{prefix}ar"),)

    def link(self, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Calls the linker in ``folder``; its messages are in ``stderr``."""
        return _run([*self.linker, *arguments], folder)


def find(architecture: str | None = None, platform: Platform | None = None) -> Toolchain:
    """The compiler that ``CXX`` names; else the system's g++ or clang++; else clang from the package ``ziglang``.

    Given another machine's ``architecture``, or another ``platform`` than this one, a compiler for that: the one that
    ``CXX`` names; else the system's cross compiler; else ziglang's clang.

    Raises BuildError where there is none, where the one that ``CXX`` names does not start, or is for other machines.
    """
    architecture = architecture or targets.architecture()
    platform = platform or platforms.here()
    foreign = architecture != targets.architecture() or platform != platforms.here()
    chosen = config.CXX.value
    if chosen:
        words = shlex.split(chosen)
        path = _which(words[0]) if words else None
        if path is None:
            raise BuildError(f"CXX names {chosen!r}, which does not exist: {_ADVICE}")
        found = _start((path, *words[1:]))
        if foreign:
            _check_machine(found, chosen, architecture, platform)
        return found
    for name in _cross_compilers(architecture, platform) if foreign else _NAMES:
        path = _which(name)
        if path is not None:
            return _start((path,))
    if importlib.util.find_spec("ziglang") is not None:
        machine = (f"--target={platform.triple_of(architecture)}",) if foreign else ()
        return _start((sys.executable, "-m", "ziglang", "c++", *machine))
    if foreign:
        raise BuildError(f"found no C++ compiler for {_machine(architecture, platform)}: {_FOREIGN_ADVICE}")
    raise BuildError(f"found no C++ compiler on PATH or in {', '.join(_FOLDERS)}: {_ADVICE}")


def find_nvcc() -> Toolchain:
    """NVIDIA's compiler: the one that ``NVCC`` names; else the system's; else that of the package ``nvidia-cuda-nvcc``.

    Raises BuildError where there is none, or where the one that ``NVCC`` names does not start.
    """
    chosen = config.NVCC.value
    if chosen:
        path = _which(chosen)
        if path is None:
            raise BuildError(f"NVCC names {chosen!r}, which does not exist: {_NVCC_ADVICE}")
    else:
        path = _which("nvcc") or shutil.which("nvcc", path=os.pathsep.join([*_NVCC_FOLDERS, *_package_folders()]))
    if path is None:
        raise BuildError(f"found no nvcc on PATH or in {', '.join(_NVCC_FOLDERS)}: {_NVCC_ADVICE}")
    # It works through a C++ compiler, which it would look for on PATH alone.
    host = next(filter(None, map(_which, _NAMES)), None)
    return _start((path, *(("-ccbin", host) if host else ())), advice=_NVCC_ADVICE)


def find_clang() -> Toolchain:
    """The clang that compiles OpenCL's kernels: the one that ``LUMINAL_CLANG`` names, else the oldest of the system's
    that is new enough, since drivers read the code of no later LLVM than their own.

    Raises BuildError where there is none, or where the one that is named does not start.
    """
    chosen = config.CLANG.value
    names = [chosen] if chosen else [*(f"clang-{version}" for version in _CLANGS), "clang"]
    path = next(filter(None, map(_which, names)), None)
    if path is None:
        raise BuildError(f"found no clang for OpenCL's kernels ({', '.join(names)}): {_CLANG_ADVICE}")
    return _start((path,), advice=_CLANG_ADVICE)


def find_translator() -> Toolchain | None:
    """What makes SPIR-V of the output of ``find_clang``, of the same version; None where it is not installed."""
    version = re.search(r"version (\d+)", find_clang().version)
    path = _which(f"llvm-spirv-{version[1]}") or _which("llvm-spirv") if version else None
    return _start((path,)) if path else None


# The compilers of kernels for GPUs, by the dialect of a target.
FOR_KERNELS: dict[str, Callable[[], Toolchain]] = {"cuda": find_nvcc, "opencl": find_clang}


def _package_folders() -> list[str]:
    """Folders in which Python packages install NVIDIA's programs: ``nvidia/cu13/bin`` beside other packages."""
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found is not None else None
    return [str(folder) for place in places or () for folder in sorted(Path(place).glob("*/bin"))]


def _cross_compilers(architecture: str, platform: Platform) -> list[str]:
    return [platform.compiler.format(architecture)] if platform.compiler else []


def _machine(architecture: str, platform: Platform) -> str:
    """The name of a machine in messages."""
    return architecture if platform == platforms.here() else f"{architecture} with {platform.name}"


def _check_machine(found: Toolchain, chosen: str, architecture: str, platform: Platform) -> None:
    machine = found.run(["-dumpmachine"], Path.cwd()).stdout.strip()
    if machine.partition("-")[0] != architecture or platform.machine not in machine:
        raise BuildError(
            f"CXX names {chosen!r}, which compiles for {machine or 'an unknown machine'}, not for "
            f"{_machine(architecture, platform)}: unset it and {_FOREIGN_ADVICE}"
        )


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    _LOG.debug("in %s: %s", folder, shlex.join(command))
    return subprocess.run(
        command, cwd=folder, env=_environment(command), capture_output=True, text=True, errors="replace", check=False
    )


def _which(name: str) -> str | None:
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_FOLDERS))
    return os.path.abspath(found) if found else None


@cache
def _start(command: tuple[str, ...], advice: str = _ADVICE) -> Toolchain:
    try:
        answer = subprocess.run(
            [*command, "--version"], env=_environment(command), capture_output=True, text=True, errors="replace",
            check=False,
        )  # fmt: skip
    except OSError as error:
        raise BuildError(f"{shlex.join(command)} does not start ({error.strerror}): {advice}") from None
    if answer.returncode != 0:
        raise BuildError(f"{shlex.join(command)} --version fails: {answer.stderr.strip() or 'no message'}; {advice}")
    return Toolchain(command, _linker(command), answer.stdout.strip())


def _linker(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that links what ``command`` compiled. On a new machine, ziglang's C++ driver would compile a C++
    library first, for minutes. Not told to optimise, each of its drivers would compile a sanitizer's runtime, which
    nothing here uses, and slow C libraries, beside the fast ones that other programs are linked to."""
    if "ziglang" not in command:
        return command
    driver = command.index("ziglang") + 1
    return (*command[:driver], "cc", *command[driver + 1 :], "-O2")


def _environment(command: Sequence[str]) -> dict[str, str]:
    """An environment in which the compiler finds assembler and linker beside itself, and writes English messages."""
    path = os.pathsep.join(p for p in (os.environ.get("PATH", ""), str(Path(command[0]).parent)) if p)
    return {**os.environ, "PATH": path, "LC_ALL": "C"}
