"""Progress on a terminal, or as lines in a log."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from luminal.timing import text


class Display:
    """Shows the progress of stages: on a terminal a bar each, with the time spent and the time left; elsewhere a line
    each, which ends with the time spent. Use it as a context manager; ``report`` is a ``luminal`` progress."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()
        elif self._started:  # a stage that did not end
            self._console.print()

    def report(self, stage: str, fraction: float) -> None:
        """``fraction`` of ``stage`` is done: 0 begins it, 1 ends it; reports after the end are ignored."""
        if stage not in self._started:
            if fraction > 0:
                return
            self._started[stage] = time.perf_counter()
            self._begin(stage)
        if self._console.is_terminal:
            # Without a fraction in between there is no estimate: the bar moves to and fro.
            self._bars.update(self._tasks[stage], total=1.0 if fraction else None, completed=fraction)
        if fraction >= 1:
            seconds = time.perf_counter() - self._started.pop(stage)
            if not self._console.is_terminal:
                self._console.print(text(seconds), highlight=False)

    def _begin(self, stage: str) -> None:
        if self._console.is_terminal:
            self._tasks[stage] = self._bars.add_task(stage, total=None)
        else:
            self._console.print(f"{stage}: ", end="", highlight=False)
