"""The machine that numbers were measured on, and how much memory a piece of work takes there."""

from __future__ import annotations

import datetime
import os
import platform
import re
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType

from luminal.core import target

PAGE = os.sysconf("SC_PAGE_SIZE")


def describe() -> str:
    """``name``, and the day."""
    return f"{name()}; {today()}"


def name() -> str:
    """Processor, processors that this process may use, memory, system and versions, on one line.

    Rented machines call processors of several generations by one name, so vendor, family and model stand beside it.
    """
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE
    packages = ", ".join(f"{name} {_version(name)}" for name in ("torch", "onnxruntime", "openvino", "numpy"))
    return (
        f"{model[1] if model else platform.machine()} ({target.processor()}), "
        f"{len(os.sched_getaffinity(0))} processors, {memory / 2**30:.0f} GiB, "
        f"{platform.system()}, Python {platform.python_version()}, {packages}"
    )


def today() -> str:
    return datetime.date.today().isoformat()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


class Peak:
    """The growth of resident memory inside the block, children included, in ``bytes``, looked at every 20 ms."""

    def __init__(self) -> None:
        self.bytes = 0
        self._before = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._before = _resident(os.getpid())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.bytes = max(self.bytes, _resident(os.getpid()) - self._before)


def _resident(process: int) -> int:
    """Bytes of ``process`` and its descendants; 0 for one that has ended.

    A child that has been forked and not yet run its program has its parent's pages, which are not counted again.
    """
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        started = [child for child in children if _command(child) != _command(process)]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * PAGE + sum(map(_resident, started))


def _command(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()
