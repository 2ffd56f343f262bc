"""Cases in processes of their own, so that one that crashes, hangs or eats memory is one fault and no more."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.fuzz_onnx import case
from tests.fuzz_onnx.case import Outcome

_SILENCE = 6 * case.SECONDS  # of a worker, which stops a case itself if it can; its first report takes imports too
_CONTEXT = multiprocessing.get_context("spawn")


def outcomes(seed: int, numbers: Sequence[int], jobs: int = 1, seconds: float = case.SECONDS) -> Iterator[Outcome]:
    """The outcome of each case, as they end, from ``jobs`` processes; each may take ``seconds`` of a processor."""
    with tempfile.TemporaryDirectory() as folder:
        running: dict[Connection, _Worker] = {}
        for k in range(jobs):
            worker = _Worker(seed, list(numbers[k::jobs]), folder, seconds)
            running[worker.connection] = worker
        while running:
            ready = wait(list(running), timeout=_SILENCE)
            for connection in ready or list(running):
                worker = running.pop(connection)
                yield worker.receive() if ready else worker.stop("no answer")
                if not worker.left:
                    worker.end()
                    continue
                if worker.ended:
                    worker = _Worker(seed, worker.left, folder, seconds)
                running[worker.connection] = worker


class _Worker:
    """A process and the cases that it has not answered."""

    def __init__(self, seed: int, numbers: list[int], folder: str, seconds: float) -> None:
        self.left = numbers
        self.ended = False
        self.connection, theirs = _CONTEXT.Pipe(duplex=False)
        arguments = (seed, numbers, folder, seconds, theirs)
        self.process: BaseProcess = _CONTEXT.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def receive(self) -> Outcome:
        try:
            outcome: Outcome = self.connection.recv()
        except EOFError:
            return self.stop("crash")
        self.left = self.left[1:]
        return outcome

    def stop(self, why: str) -> Outcome:
        """The process ended, or must, on its present case."""
        self.process.join(1)
        code = self.process.exitcode
        self.end()
        self.ended = True
        number, *self.left = self.left
        return Outcome(number, why, "", 0.0, f"{why}: the process ended with {code}")

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _work(seed: int, numbers: list[int], folder: str, seconds: float, connection: Connection) -> None:
    """Run cases one after the other in this process, with little memory beyond what its modules and models take."""
    warnings.simplefilter("ignore")
    case.seeds.models()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + case.MEMORY, used + case.MEMORY))
    case.watch_files()
    place = Path(folder) / str(os.getpid())
    place.mkdir()
    for number in numbers:
        inside = place / "case"
        inside.mkdir()
        connection.send(case.run(seed, number, inside, seconds))
        shutil.rmtree(inside)
