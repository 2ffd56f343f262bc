"""Work in processes of its own, of which one that crashes, hangs or eats memory is a loss and no more."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, Generic, NoReturn, TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")

STARTING = 300  # seconds that a process may take to import what it needs
_CONTEXT = multiprocessing.get_context("spawn")


class Lost(Exception):
    """A process that ended, or said nothing for too long, before its task was done; the text says which."""


class Worker(Generic[Task]):
    """A process that runs ``work`` on one task after the other; another takes its place where it is lost.

    ``work`` is a function of a module. It may be silent for ``silence`` seconds, while this process runs, and take
    ``memory`` bytes of address space.
    """

    def __init__(self, work: Callable[[Task], Iterator[Any]], silence: int, memory: int) -> None:
        self.work = work
        self.silence = silence
        self.memory = memory
        self.process: BaseProcess | None = None

    def items(self, task: Task) -> Iterator[Any]:
        """What ``work`` yields for the task. Raises Lost."""
        if self.process is None:
            self.connection, theirs = _CONTEXT.Pipe()
            self.process = _CONTEXT.Process(target=_serve, args=(self.work, self.memory, theirs), daemon=True)
            self.process.start()
            theirs.close()
            self._receive(STARTING)
        try:
            self.connection.send(task)
        except ConnectionError:  # it ended after the task before
            self._lost()
        while (item := self._receive(self.silence)) is not None:
            yield item

    def _receive(self, silence: int) -> Any:
        # In short waits: where all processes are stopped for a while, that is one of them.
        if not any(self.connection.poll(1) for _ in range(silence)):
            self.end()
            raise Lost(f"no result in {silence} s")
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self._lost()

    def _lost(self) -> NoReturn:
        assert self.process is not None
        self.process.join()
        code = self.process.exitcode or 0
        self.end()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        raise Lost(f"the process ended: {how}") from None

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


def _serve(work: Callable[[Any], Iterator[Any]], memory: int, connection: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    connection.send("ready")
    while True:
        try:
            task = connection.recv()
        except EOFError:  # the other side is done
            return
        for item in work(task):
            connection.send(item)
        connection.send(None)


def each(
    tasks: Sequence[Task], done: Callable[[Worker[Task], Task], Found], workers: Sequence[Worker[Task]]
) -> Iterator[tuple[Task, Found]]:
    """``done(worker, task)`` of every task, as they end, with as many at once as there are workers; ends these."""
    free: SimpleQueue[Worker[Task]] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def run(task: Task) -> Found:
        worker = free.get()
        try:
            return done(worker, task)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(len(workers))
    try:
        futures = {pool.submit(run, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            worker.end()


class Progress:
    """Says every ten seconds how much of ``total`` is done."""

    def __init__(self, total: int, what: str) -> None:
        self.total = total
        self.what = what
        self.done = 0
        self.start = self.said = time.monotonic()

    @property
    def minutes(self) -> float:
        """Since it began."""
        return (time.monotonic() - self.start) / 60

    def step(self, found: str) -> None:
        """One more is done, and what has been ``found`` in all."""
        self.done += 1
        now = time.monotonic()
        if self.done == self.total or now - self.said > 10:
            left = (now - self.start) / self.done * (self.total - self.done)
            print(f"{self.done} of {self.total} {self.what}, {found}, {left:.0f} s left", file=sys.stderr)
            self.said = now
