"""Processes for work that may crash, hang or eat memory."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.workers import Lost, Worker


def squares(count: int) -> Iterator[int]:
    """Squares of numbers below ``count``, which may not reach 7."""
    for number in range(count):
        if number == 7:
            os.kill(os.getpid(), signal.SIGSEGV)
        yield number**2


def hang(task: str) -> Iterator[str]:
    yield "begun"
    time.sleep(60)


def eat(task: int) -> Iterator[int]:
    yield len(bytearray(task))


def test_a_lost_process_is_replaced() -> None:
    worker = Worker(squares, 60, 1 << 34)
    assert list(worker.items(4)) == [0, 1, 4, 9]
    with pytest.raises(Lost, match="SIGSEGV"):
        list(worker.items(8))
    assert list(worker.items(3)) == [0, 1, 4]
    worker.end()


def test_a_process_that_ends_between_tasks_is_lost() -> None:
    worker = Worker(squares, 60, 1 << 34)
    assert list(worker.items(2)) == [0, 1]
    assert worker.process is not None
    worker.process.kill()
    worker.process.join()
    with pytest.raises(Lost, match="SIGKILL"):
        list(worker.items(2))
    assert list(worker.items(2)) == [0, 1]
    worker.end()


def test_silence_and_hunger_are_losses() -> None:
    worker = Worker(hang, 2, 1 << 34)
    items = worker.items("")
    assert next(items) == "begun"
    with pytest.raises(Lost, match="no result in 2 s"):
        next(items)
    hungry = Worker(eat, 60, 1 << 32)
    with pytest.raises(Lost, match="exit status 1"):
        list(hungry.items(1 << 33))
    assert list(hungry.items(8)) == [8]
    hungry.end()
