"""What ``Module.profile`` gives: where the time of a model goes, as tables, JSON, a roofline and a trace."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from luminal import notebook, roofline
from luminal import profile as profiling
from luminal.core import device
from luminal.core import target as targets
from luminal.core.errors import InputError
from luminal.peak import Peak, Probe
from luminal.profile import Compiled, KernelTime
from luminal.runtime import loader
from luminal.timing import text

NO_PEAK = Peak(math.inf, math.inf)


@dataclass(frozen=True)
class Profile:
    """The launches of a run in its order, and the median time of a whole run that nobody watches, which took turns with
    those that were measured. ``peak`` is what the machine reached on ``threads`` threads; infinite where it was not
    measured."""

    title: str
    launches: tuple[KernelTime, ...]
    run_seconds: float
    threads: int
    peak: Peak = NO_PEAK

    @property
    def seconds(self) -> float:
        """The time of all launches."""
        return sum(launch.seconds for launch in self.launches)

    @property
    def kernels(self) -> list[KernelTime]:
        """The kernels, the one that takes the most time first."""
        return profiling.merged(self.launches, lambda launch: launch.name)

    @property
    def operators(self) -> list[KernelTime]:
        """The same by source operators. Those that one launch computes together are one: their time cannot be told
        apart."""
        return profiling.merged(self.launches, lambda launch: launch.origins)

    @property
    def measured_peak(self) -> bool:
        return self.peak != NO_PEAK

    def tables(self) -> Iterator[Table]:
        """By kernel, then by source operators."""
        title = (
            f"{self.title}: {text(self.run_seconds)} a run on {self.threads} threads, {text(self.seconds)} in kernels"
        )
        yield self._table(title, "kernel", self.kernels, lambda kernel: kernel.name)
        yield self._table("by source operators", "operators", self.operators, lambda row: "\n".join(row.origins))

    def _table(self, title: str, first: str, rows: list[KernelTime], name: Callable[[KernelTime], str]) -> Table:
        table = Table(title=title, title_justify="left", caption=self._ceilings(), caption_justify="left")
        of_peak = [heading.startswith("of ") for heading in profiling.HEADINGS]
        for heading in (first, *profiling.HEADINGS):
            justify: Literal["left", "right"] = "left" if heading == first else "right"
            if self.measured_peak or not heading.startswith("of "):
                table.add_column(heading, justify=justify, no_wrap=heading != first, overflow="fold")
        for row in rows:
            cells = profiling.cells(row, self.seconds, self.peak) if row.seconds else [""] * len(of_peak)
            kept = (cell for cell, of in zip(cells, of_peak, strict=True) if self.measured_peak or not of)
            table.add_row(escape(name(row)), *kept)
        return table

    def _ceilings(self) -> str:
        return profiling.ceilings(self.seconds, self.peak, self.threads) if self.measured_peak else ""

    def __str__(self) -> str:
        lines = [f"{self.title}: {text(self.run_seconds)} a run on {self.threads} threads"]
        lines += [f"{text(row.seconds):>10}  {row.name}  {'; '.join(row.origins)}" for row in self.kernels]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What notebooks show: the tables."""
        return notebook.html(*self.tables())

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs: times in seconds."""
        return {
            "title": self.title,
            "run_seconds": self.run_seconds,
            "threads": self.threads,
            "peak": asdict(self.peak) if self.measured_peak else None,
            **{key: [asdict(row) for row in getattr(self, key)] for key in ("launches", "kernels", "operators")},
        }

    def roofline(self) -> str:
        """A picture, as SVG, of how far each kernel is from what the machine can do. Raises InputError where the peak
        or the work of kernels is not known."""
        if not self.measured_peak:
            raise InputError("roofline: expected a profile with the machine's peak, which is measured on CPUs")
        if not any(kernel.operations for kernel in self.launches):
            raise InputError(
                "roofline: expected kernels whose operations are known; a library that is loaded from its folder does "
                "not know them, and a model without sums of products has none: profile the model itself"
            )
        return roofline.draw(self.title, self.kernels, self.peak)


def measure(
    module: Compiled,
    inputs: Mapping[str, NDArray[Any]],
    runs: int = 21,
    threads: int = 0,
    peak: bool = True,
    title: str = "",
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Profile:
    """The profile of a module on ``inputs`` by name. With ``peak``, what the machine can do is measured too, which
    takes some seconds; GPUs have none.

    Raises ValueError where ``inputs`` do not fit, BuildError where the peak needs a compiler and there is none.
    """
    threads = threads or device.cpus()
    probe = Probe(targets.parse(module.manifest["target"]["name"]), threads) if peak and not _on_gpu(module) else None
    ceiling = probe.measure() if probe else NO_PEAK
    whole = loader.load(module.folder, threads=threads)
    seconds: list[float] = []

    def between(done: int, total: int) -> None:
        started = time.perf_counter()
        whole.run(inputs, module.entry.name)
        seconds.append(time.perf_counter() - started)
        watch(done, total)

    count = profiling.launches if module.program is not None else profiling.launches_of_library
    launches = count(module, inputs, runs, threads, between)
    if probe:
        ceiling |= probe.measure()
    ran = statistics.median(seconds[2:])
    return Profile(title or module.interface.name, tuple(launches), ran, threads, ceiling)


def _on_gpu(module: Compiled) -> bool:
    return bool(module.manifest.get("device", "cpu") != "cpu")


def trace(module: Compiled, inputs: Mapping[str, NDArray[Any]], path: Path, runs: int = 3, threads: int = 0) -> int:
    """Write a trace of ``runs`` runs to ``path``, in the JSON that Perfetto and Chrome's about:tracing open, with the
    names of kernels; the first run brings weights into memory. Returns the number of events."""
    with tempfile.TemporaryDirectory(prefix="luminal-") as folder:
        written = Path(folder, "trace.json")
        library = loader.load(module.folder, threads=threads or device.cpus(), trace=written)
        steps = library.metadata["steps"]
        for _ in range(runs + 1):
            library.run(inputs, module.entry.name)
        del library  # which writes the trace
        found = json.loads(written.read_text(encoding="utf-8"))
    for event in found["traceEvents"]:
        if event["ph"] == "X":
            step = steps[event["args"]["step"]]
            event["name"] = " + ".join(step["kernels"]) or event["name"]
            event["args"]["operators"] = list(step["origins"])
    path.write_text(json.dumps(found), encoding="utf-8")
    return len(found["traceEvents"])
