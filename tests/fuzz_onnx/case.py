"""One case: a model made and damaged by a seed and a number, and what luminal makes of it."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import luminal
from luminal.core import target as targets
from luminal.core.errors import DTypeError, InputError, ModelError, ShapeError, UnsupportedError
from luminal.core.pipeline import compile_graph
from tests.fuzz_onnx import damage, seeds

# What a user may be told about a model. Any other error, luminal's own of its stages among them, is a defect.
NAMED = (ModelError, InputError, UnsupportedError, ShapeError, DTypeError)
PROGRAM = "a program"
# Under this seed, cases of these numbers do what no model may do, so that the runner can be tested.
SELF_TEST, CRASHES, HANGS, WRITES = -1, -1, -2, -3
SECONDS = 10.0
MEMORY = 2 << 30  # bytes of address space that a case may take beyond what the process had


@dataclass(frozen=True)
class Outcome:
    """How a case ended: ``kind`` is the error's class or ``PROGRAM``; ``fault`` says what is wrong with that."""

    number: int
    kind: str
    message: str
    seconds: float
    fault: str = ""


class _TimeOut(BaseException):
    """Not an Exception: nothing on the way may take it for an error of its own."""


def make(seed: int, number: int, folder: Path) -> Path:
    """Write the model of a case, and what lies beside it, into ``folder``; the model's path."""
    random = np.random.default_rng([abs(seed), abs(number)])
    content = damage.pick(random, seeds.models())
    beside(folder)
    path = folder / "model.onnx"
    if damage.chance(random, 0.2):
        content = damage.pick(random, damage.BYTES)(random, content)
    else:
        model = onnx.ModelProto.FromString(content)
        for _ in range(damage.pick(random, [1, 1, 1, 2, 2, 3, 5])):
            damage.pick(random, damage.DAMAGES)(random, model, folder)
        content = model.SerializeToString()
        if damage.chance(random, 0.05):
            content = damage.pick(random, damage.BYTES)(random, content)
    path.write_bytes(content)
    return path


def beside(folder: Path) -> None:
    """Places that external data may name: links that leave the folder, a pipe that nobody writes, and so on."""
    (folder / "sub").mkdir()
    secret = folder.parent / "secret.bin"
    secret.write_bytes(b"secret" * 64)
    (folder / "link.bin").symlink_to(secret)
    (folder / "linked").symlink_to(folder.parent)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "empty.bin").touch()
    os.mkfifo(folder / "pipe")


def run(seed: int, number: int, folder: Path, seconds: float = SECONDS) -> Outcome:
    """Make a case in the empty ``folder``, and compile its model up to the program, in bounded time."""
    path = make(seed, number, folder)
    started = time.process_time()
    kind, message, fault = PROGRAM, "", ""
    try:
        with _limited(seconds), _watched(folder):
            if seed == SELF_TEST:
                _misbehave(number, folder)
            attempt(path, checked=number % 4 == 0)
    except NAMED as error:
        kind, message = type(error).__name__, str(error)
        if not message.strip():
            fault = "an error without a message"
    except _Escape as error:
        kind, fault = "file", f"touched a file: {error}\n{_place(error)}"
    except _TimeOut as error:
        kind, fault = "time", f"more than {seconds:.0f} s\n{_place(error)}"
    except Exception as error:  # noqa: BLE001 (whatever else it is, it is a fault, and is reported as one)
        kind, message = type(error).__name__, str(error)
        fault = f"{type(error).__name__}: {str(error)[:300]}\n{_place(error)}"
    return Outcome(number, kind, message, time.process_time() - started, fault)


def attempt(path: Path, checked: bool = False) -> None:
    """From a file to a program: all of a compilation but the C++ compiler. ``checked``: ``luminal check`` before."""
    if checked:
        luminal.check(path)
    compile_graph(luminal.read(path), targets.parse("avx2"))


def _misbehave(number: int, folder: Path) -> None:
    if number == CRASHES:
        os.abort()
    if number == WRITES:
        (folder.parent / "written").write_bytes(b"")
    while number == HANGS:
        pass


def _place(error: BaseException) -> str:
    """The last lines of the traceback that are luminal's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "fuzz_onnx" not in f.filename]
    own = [f for f in frames if "luminal" in f.filename] or frames
    return "\n".join(f"  {Path(f.filename).name}:{f.lineno} {f.name}: {f.line}" for f in own[-6:])


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _TimeOut

    # The processor's time: others may keep it busy.
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


# ---- files -----------------------------------------------------------------------------------------------------------

_CHANGES = frozenset(
    f"os.{name}" for name in ("chmod", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate", "utime")
) | {"subprocess.Popen", "os.system", "os.exec", "os.fork", "shutil.rmtree", "socket.connect"}  # fmt: skip
_folder: list[Path] = []


class _Escape(BaseException):
    """A model made luminal touch a file that is none of its own."""


def watch_files() -> None:
    """From now on, cases that change any file, or read one beside their folder, end in a fault. Cannot be undone."""
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _folder:
        return
    if event in _CHANGES:
        raise _Escape(f"{event} {arguments}")
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path, flags = Path(os.fsdecode(arguments[0])), arguments[2]
        resolved = Path(os.path.realpath(path))
        inside = resolved.is_relative_to(_folder[0])
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            raise _Escape(f"open {path} to write")
        if not inside and (resolved.is_relative_to(_folder[0].parent) or resolved.is_relative_to("/etc")):
            raise _Escape(f"open {path}, which is not in the model's folder")


@contextmanager
def _watched(folder: Path) -> Iterator[None]:
    _folder.append(folder.resolve())
    try:
        yield
    finally:
        _folder.clear()
