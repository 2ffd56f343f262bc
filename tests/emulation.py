"""Libraries for machines of another architecture, run under Debian's qemu-user with the C library of that machine."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from luminal.codegen import toolchain
from luminal.comparison import foreign
from luminal.core import target as targets
from luminal.core.errors import BuildError
from luminal.core.target import Target

Array = np.ndarray[Any, Any]

NATIVE = Path(__file__).parent / "native"
# Of an architecture's targets that are compiled with the same flags the first: the others differ in what the scheduler
# chooses.
_BY_FLAGS = {(target.architecture, target.flags): target for target in reversed(targets.ALL.values())}
INSTRUCTION_SETS = tuple(_BY_FLAGS.values())[::-1]
# This machine, and the others among them whose code it runs as well.
HOST = targets.detect()
OTHERS = [target for target in INSTRUCTION_SETS if target.flags != HOST.flags and targets.supported(target)]


def missing(target: Target) -> str:
    """Why code for ``target`` can run here neither by itself nor under an emulator; empty where it can."""
    if target.architecture == targets.architecture():
        return targets.obstacle(target)
    if shutil.which(f"qemu-{target.architecture}") is None:
        return f"needs qemu-{target.architecture}: install Debian's package qemu-user"
    if not _root(target).exists():
        return f"needs a C library at {_root(target)}: install Debian's package libc6-{_debian(target)}-cross"
    return missing_compiler(target)


def missing_compiler(target: Target) -> str:
    """Why code for ``target`` cannot be built here; empty where it can."""
    try:
        toolchain.find(target.architecture)
    except BuildError as reason:
        return str(reason)
    return ""


def each(*among: Target) -> list[Any]:
    """Parameters of a test, one for each target; those that this machine can in no way run are skipped."""
    marks = {target.name: pytest.mark.skipif(bool(missing(target)), reason=missing(target)) for target in among}
    return [pytest.param(target, id=target.name, marks=marks[target.name]) for target in among]


def emulated(target: Target) -> bool:
    return target.architecture != targets.architecture()


def command(target: Target) -> list[str]:
    """What a command line for a program of ``target`` starts with."""
    processor = foreign.PROCESSORS.get(target.architecture, ())
    return [f"qemu-{target.architecture}", *processor, "-L", str(_root(target))] if emulated(target) else []


def _debian(target: Target) -> str:
    return foreign.DEBIAN.get(target.architecture, target.architecture)


def _root(target: Target) -> Path:
    return Path(f"/usr/{target.architecture}-linux-gnu")


# ---- calling functions ----------------------------------------------------------------------------------------------


class Pointer(ctypes.c_void_p):
    """The address of a byte of an array, which functions may read and write."""

    def __init__(self, array: Array, offset: int = 0) -> None:
        assert array.flags.c_contiguous
        super().__init__(array.ctypes.data + offset)
        self.array = array
        self.offset = offset


def pointers(arrays: Sequence[Array]) -> ctypes.Array[Any]:
    """The address of an array of addresses."""
    found = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    found.arrays = arrays  # type: ignore[attr-defined]
    return found


def open_library(path: Path, target: Target) -> Any:
    """A ``ctypes.CDLL``, or what can be called in its way: with ctypes' integers, ``Pointer`` and ``pointers``."""
    return Emulated(path, target) if emulated(target) else ctypes.CDLL(str(path))


class Emulated:
    """A library whose functions run in an emulator, in a process of their own."""

    def __init__(self, path: Path, target: Target) -> None:
        server = path.with_name("call_server")
        flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-x", "c", str(NATIVE / "call_server.c"), "-ldl"]
        link_program(target, [*flags, "-o", str(server)])
        self._process = subprocess.Popen(
            [*command(target), str(server), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __getattr__(self, name: str) -> Callable[..., int]:
        return self[name]

    def __getitem__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: self._call(name, arguments)

    def __del__(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _call(self, name: str, arguments: Sequence[Any]) -> int:
        request = [_numbers(len(name)), name.encode(), _numbers(len(arguments))]
        arrays: list[Array] = []
        for argument in arguments:
            if isinstance(argument, Pointer):
                request += [_numbers(1), *_block(argument.array, argument.offset)]
                arrays.append(argument.array)
            elif isinstance(argument, ctypes.Array) and hasattr(argument, "arrays"):
                request.append(_numbers(2, len(argument.arrays)))
                request += [part for array in argument.arrays for part in _block(array)]
                arrays += argument.arrays
            elif isinstance(argument, ctypes.Array):  # numbers
                values = np.frombuffer(argument, np.uint8)
                request += [_numbers(1), *_block(values)]
                arrays.append(values)
            else:
                request.append(_numbers(0, int(getattr(argument, "value", argument))))
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None and sink is not None
        sink.write(b"".join(request))
        sink.flush()
        answer = source.read(8)
        assert len(answer) == 8, f"{name} crashed"
        for array in arrays:
            array.reshape(-1).view(np.uint8)[:] = np.frombuffer(source.read(array.nbytes), np.uint8)
        (result,) = struct.unpack("<q", answer)
        return int(result)


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def _block(array: Array, offset: int = 0) -> tuple[bytes, bytes]:
    return _numbers(array.nbytes, array.ctypes.data % mmap.PAGESIZE, offset), array.tobytes()


def link_program(target: Target, arguments: Sequence[str]) -> None:
    """Runs the C compiler for ``target``."""
    done = toolchain.find(target.architecture).link(arguments, Path.cwd())
    assert done.returncode == 0, done.stderr[:4000]
