"""Timing of several implementations side by side."""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

LEAST, MOST = 5, 60  # rounds of a race
EARLY = 2  # samples after which a contender slower than SLOW times the fastest is dropped
SLOW = 3.0  # see EARLY
BEHIND = 1.25  # after LEAST samples, a contender slower than this many times the fastest is dropped


@dataclass(frozen=True)
class Timing:
    """Seconds of each run."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)


def interleaved(
    implementations: Mapping[str, Callable[[], object]],
    runs: int = 21,
    warmup: int = 3,
    budget: float = 60.0,
    pause: float = 0.01,
    lasting: float = 0.0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Timing]:
    """Time each implementation ``runs`` times, taking turns, so that other load on the machine affects all alike.

    The order of a round is that of ``shuffled``. ``budget`` is in seconds: where the runs would take longer, there are
    fewer, at least 3; where they would take less than ``lasting`` seconds, there are more. Before each run come
    ``pause`` seconds, and more until all other threads of the process sleep: those that spin after the run before,
    waiting for more work, would take the processor from this one.
    ``watch`` is told how many rounds of how many are done.
    """
    watch(0, runs)
    order = list(implementations)
    for _ in range(warmup):
        for name in order:
            implementations[name]()
    seconds: dict[str, list[float]] = {name: [] for name in order}
    started = time.perf_counter()
    done, wanted = 0, runs
    while done < wanted:
        order = shuffled(order, done)
        for name in order:
            settle(pause)
            start = time.perf_counter()
            implementations[name]()
            seconds[name].append(time.perf_counter() - start)
        done += 1
        each = (time.perf_counter() - started) / done
        wanted = max(min(max(runs, int(lasting / each)), int(budget / each)), 3)
        watch(done, max(wanted, done))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def race(
    sample: Sequence[Callable[[int], float]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """The samples of each contender. Contenders take turns in ``shuffled`` rounds until ``seconds`` are over, at least
    ``LEAST`` times. Those far behind are dropped from further rounds; the first, which is the default, stays."""
    found: list[list[float]] = [[] for _ in sample]
    racing = list(range(len(sample)))
    end = clock() + seconds
    for number in range(MOST):
        if number >= LEAST and clock() >= end:
            break
        racing = shuffled(racing, number)
        for place in racing:
            found[place].append(sample[place](number))
        best = min(min(found[place]) for place in racing)
        limit = best * (BEHIND if number + 1 >= LEAST else SLOW if number + 1 >= EARLY else math.inf)
        racing = [place for place in racing if place == 0 or min(found[place]) <= limit]
    return found


def shuffled(order: Sequence[T], number: int) -> list[T]:
    """The order of round ``number``, after a round in ``order``: pseudorandom, the same in every run of the program.
    The last of a round is not first in the next, unless alone: it would find its weights still in the caches.
    """
    drawn = random.Random(number).sample(order, len(order))
    return drawn[1:] + drawn[:1] if drawn[0] == order[-1] else drawn


def settle(pause: float = 0.01, longest: float = 1.0) -> float:
    """Wait ``pause`` seconds, and on until no other thread of this process runs, but no more than ``longest``.

    Returns the seconds waited.
    """
    start = time.perf_counter()
    time.sleep(pause)
    while _others_run() and time.perf_counter() - start < longest:
        time.sleep(0.002)
    return time.perf_counter() - start


def _others_run() -> bool:
    """Whether another thread of this process is on a processor or waits for one."""
    own = str(threading.get_native_id())
    for stat in Path("/proc/self/task").glob("*/stat"):
        try:
            state = stat.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if state == "R" and stat.parent.name != own:
            return True
    return False


def text(seconds: float) -> str:
    """A time for reading."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def ratio(value: float) -> str:
    """How many times as fast something is, for reading."""
    return f"{value:.2f}x" if value >= 0.01 else "<0.01x"
