"""The tables, the chart and the page that come of measurements."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import attention, machine
from benchmarks.chart import Bars
from benchmarks.chart import draw as draw_chart
from benchmarks.measure import FRONT_ENDS, Compiled, Sample
from benchmarks.peers import PEERS
from luminal.peak import Peak
from luminal.timing import text

HEADINGS = (
    "model", "luminal from", *(f"/ {peer}" for peer in PEERS), "symbolic / fixed", "luminal", *PEERS, "of ceiling",
    "compile", "memory",
)  # fmt: skip
HEADLINE = "PyTorch"  # the front end of the chart and of the mean


def sample(found: Mapping[str, Any]) -> Sample:
    """A sample from its JSON."""
    compiled = {key: Compiled(**value) for key, value in found["compiled"].items()}
    return Sample(found["times"], compiled, found["operations"], found["bytes"], Peak(**found["peak"]))


@dataclass(frozen=True)
class Result:
    """The samples of one model, a process each."""

    title: str
    samples: tuple[Sample, ...]

    def _median(self, value: Callable[[Sample], float]) -> float:
        return statistics.median(value(sample) for sample in self.samples)

    def seconds(self, contender: str) -> float:
        """A contender's time: the median over the processes."""
        return self._median(lambda s: s.times[contender])

    def ratio(self, one: str, other: str) -> float:
        """How many times the other's time one takes: the median over the processes."""
        return self._median(lambda s: s.times[one] / s.times[other])

    def ceiling(self, contender: str) -> tuple[float, str]:
        """What part of the time the machine would need at its peak, and which peak: operations or bytes."""
        by_operations = self._median(lambda s: s.operations / s.peak.operations / s.times[contender])
        by_bytes = self._median(lambda s: s.bytes / s.peak.bytes / s.times[contender])
        return (by_operations, "FMA") if by_operations >= by_bytes else (by_bytes, "memory")


def rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """The cells of the table under ``HEADINGS``, a row for each front end: ratios first."""
    found = []
    for result in results:
        for front_end in FRONT_ENDS:
            fixed, symbolic = f"luminal {front_end} fixed", f"luminal {front_end} symbolic"
            part, of = result.ceiling(fixed)
            compiled = result.samples[0].compiled[fixed]  # the first process starts with an empty cache
            found.append(
                (
                    *(result.title, front_end),
                    *(f"{result.ratio(fixed, peer):.2f}" for peer in PEERS),
                    f"{result.ratio(symbolic, fixed):.2f}",
                    *(text(result.seconds(contender)) for contender in (fixed, *PEERS)),
                    f"{part:.0%} {of}",
                    text(compiled.seconds),
                    f"{compiled.memory / 2**30:.2f} GiB",
                )
            )
    return found


def summary(results: Sequence[Result]) -> str:
    """The geometric means over the models of how many times faster luminal is than each peer."""
    means = []
    for peer in PEERS:
        ratios = [result.ratio(peer, f"luminal {HEADLINE} fixed") for result in results]
        means.append(f"{math.exp(statistics.fmean(map(math.log, ratios))):.2f}x {peer}")
    return f"Speed in the geometric mean of these models, from {HEADLINE}: {', '.join(means)}."


def chart(results: Sequence[Result]) -> str:
    """An SVG of speeds relative to onnxruntime's: luminal and the other peers, a group of bars for each model."""
    base = "onnxruntime"
    others = {"luminal": f"luminal {HEADLINE} fixed", **{peer: peer for peer in PEERS if peer != base}}
    groups = [Bars(r.title, {name: r.ratio(base, key) for name, key in others.items()}) for r in results]
    return draw_chart(f"Speed relative to {base} (longer is faster)", groups, base)


def page(
    results: Sequence[Result],
    heads: Sequence[attention.Result],
    chart_file: str,
    threads: int,
    processes: int,
    runs: int,
) -> str:
    """The page for ``docs/``."""
    lines = [
        "# Benchmarks",
        "",
        machine.describe() + ".",
        "",
        f"![speed of luminal, OpenVINO, torch.compile and PyTorch relative to onnxruntime]({chart_file})",
        "",
        summary(results),
        "",
        f"`python -m benchmarks`: float32, batch 1, {threads} threads for everybody, all taking turns in one process; "
        f"medians of {runs} runs, and of {processes} fresh process{'es' if processes > 1 else ''} for each model. "
        "`/ onnxruntime` and so on are how many times the other's time luminal takes: below 1 is faster. onnxruntime "
        "and OpenVINO (with `INFERENCE_PRECISION_HINT: f32`; it would use bfloat16 otherwise) read the ONNX file at "
        "fixed sizes, torch.compile has its weights frozen, torch is eager. Whatever spins after a run to wait for "
        "more work is left to fall asleep before another's turn. `symbolic / fixed` is what symbolic dimensions cost "
        "luminal. `of ceiling` is the least time that the machine would need for the model's contractions, or to read "
        "its weights, by the peak that it reached in the same processes, as a part of luminal's time. `compile` is "
        "from an ExportedProgram or an ONNX file to a callable with an empty cache, `memory` the growth of resident "
        "memory meanwhile, compilers included.",
        "",
        *_table(HEADINGS, rows(results)),
    ]
    if heads:
        lines += ["", "## Long attention", "", attention.ABOUT, "", *_table(attention.HEADINGS, attention.rows(heads))]
    return "\n".join(lines) + "\n"


def _table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * 2 + "---:|" * (len(headings) - 2),
        *("| " + " | ".join(row) + " |" for row in cells),
    ]
