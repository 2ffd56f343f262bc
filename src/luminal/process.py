"""A process beside this one that answers over a connection: what may crash or hang does so there.

``python -m MODULE NUMBER`` calls ``serve``; it ends with its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection


class Process:
    """Runs ``module``; it is started when its connection is first asked for, and again after it ended."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._running: tuple[subprocess.Popen[bytes], Connection] | None = None

    @property
    def connection(self) -> Connection:
        """The connection to the process, which is started where there is none."""
        if self._running is None:
            here, there = Pipe()
            # In a session of its own, so that interrupts do not reach it; it ends with this process.
            process = subprocess.Popen(
                [sys.executable, "-m", self.module, str(there.fileno())], pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            there.close()
            self._running = process, here
        return self._running[1]

    def stop(self) -> int:
        """Ends the process, if there is one; its exit code."""
        if self._running is None:
            return 0
        (process, connection), self._running = self._running, None
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)  # where it is ending by itself, for the reason
        process.kill()
        connection.close()
        return process.wait()

    def ended(self) -> str:
        """How the process ended, whose connection broke; it is stopped."""
        code = self.stop()
        return f"it ended its process: {signal.strsignal(-code) if code < 0 else f'exit code {code}'}"


def serve(answer: Callable[[Connection], None]) -> None:
    """Calls ``answer`` with the connection to the parent until that closes it, or ends."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, ConnectionError):
        while True:
            answer(connection)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
