"""Progress of a compilation: the current stage, its fraction done, and the seconds of each stage."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from luminal import log

Progress: TypeAlias = Callable[[str, float], None]  # the stage, and the fraction of it that is done

_LOG = logging.getLogger("luminal.compile")


class Stages:
    """Times stages and reports them; ``seconds`` holds what each took."""

    def __init__(self, report: Progress | None = None) -> None:
        log.configure()
        self.seconds: dict[str, float] = {}
        self._report = report

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.advance(stage, 0.0)
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start
        _LOG.info("%s: %.3f s", stage, self.seconds[stage])
        self.advance(stage, 1.0)

    def inside(self, stage: str) -> Callable[[str, object], None]:
        """A ``watch`` for the passes of ``stage`` (``core.pipeline``): adds up the seconds of each, as ``stage: pass``,
        from one call to the next."""
        last = time.perf_counter()

        def passed(by: str, value: object) -> None:
            nonlocal last
            name, before, last = f"{stage}: {by}", last, time.perf_counter()
            self.seconds[name] = self.seconds.get(name, 0.0) + last - before
            _LOG.debug("%s: %.3f s", name, last - before)

        return passed

    def advance(self, stage: str, fraction: float) -> None:
        """Tell the listener how far ``stage`` is."""
        if self._report is not None:
            self._report(stage, fraction)
