"""How far a long run is, and how long it will still take."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

USUAL = 45.0  # seconds of a piece of work that nothing is known of


class Work:
    """Pieces of work, one after the other, which are expected to take so many seconds; None where nothing is known.

    What has been done corrects the expectation of what has not.
    """

    def __init__(self, expected: Sequence[float | None]) -> None:
        known = [seconds for seconds in expected if seconds is not None]
        usual = sum(known) / len(known) if known else USUAL
        self._expected = [usual if seconds is None else seconds for seconds in expected]
        self._taken: list[float] = []
        self._since = 0.0

    @property
    def left(self) -> float:
        """Seconds that the rest will take."""
        done = sum(self._expected[: len(self._taken)])
        rest = sum(self._expected[len(self._taken) :])
        return rest * (sum(self._taken) / done) if done else rest

    def begin(self, what: str) -> None:
        """Say what comes now."""
        place = f"{len(self._taken) + 1} of {len(self._expected)}"
        print(f"\n[{place}, {_minutes(self.left)} left] {what}", file=sys.stderr)
        self._since = time.perf_counter()

    def end(self) -> float:
        """The piece that was begun is done; returns its seconds."""
        seconds = time.perf_counter() - self._since
        self._taken.append(seconds)
        return seconds


def _minutes(seconds: float) -> str:
    return "about a minute" if seconds < 90 else f"about {seconds / 60:.0f} minutes"
