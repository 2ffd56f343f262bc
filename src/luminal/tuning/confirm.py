"""Measures whether the chosen candidates make the model as a whole faster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from luminal import artifact
from luminal.comparison import inputs as drawing
from luminal.core.decisions import Decisions
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graphs
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.progress import Stages
from luminal.timing import Timing
from luminal.tuning.bench import Bench
from luminal.tuning.outcome import NO_FASTER, UNCONFIRMED, Answer
from luminal.tuning.records import faster

LEAST_GAIN = 0.01  # of the time of a run: the shortest runs of one library, taking turns with itself, differ by as much


@dataclass(frozen=True)
class Model:
    """A model to tune: graphs by the names of their entries, a target, and a number of threads."""

    name: str
    graphs: Mapping[str, Graph]
    target: Target
    threads: int

    def compiled(self, decisions: Decisions) -> Program:
        """The model, compiled with ``decisions``."""
        return compile_graphs(self.name, self.graphs, replace(self.target, decisions=decisions))


def confirm(
    model: Model, standing: Mapping[str, str], chosen: Sequence[Answer], last: float, clock: Callable[[], float],
    bench: Bench,
) -> tuple[dict[str, str], tuple[float, float] | None]:  # fmt: skip
    """Compares the model with the default answers ``standing`` and with all that was ``chosen`` instead. Returns why
    each chosen answer is rejected (empty if not), by question, and the seconds of both runs, if the two differ.

    Where the model is no faster, each half of the answers is tried by itself, the one with the larger leads first, on
    top of the answers confirmed so far, and so on until those to blame are found. Answers for which there is no time
    before ``last``, or which change nothing without others, stay unconfirmed.
    """
    program = model.compiled(Decisions(standing))
    verdicts = dict.fromkeys((a.question for a in chosen), UNCONFIRMED)
    seconds, longest = None, 0.0
    groups = [sorted(chosen, key=lambda a: (-a.lead, a.question))]
    while groups and (seconds is None or clock() + longest <= last):
        started, group = clock(), groups.pop()
        together = {**standing, **{a.question: a.chosen.candidate for a in group}}
        other = model.compiled(Decisions(together))
        if [k.nest for k in other.kernels] == [k.nest for k in program.kernels]:
            continue
        without, found = timings([program, other], model, bench)
        seconds = seconds or (without.median, found.median)
        longest = max(longest, clock() - started)
        if faster(found, without, LEAST_GAIN):
            standing, program = together, other
            verdicts |= dict.fromkeys((a.question for a in group), "")
        elif len(group) > 1:
            half = (len(group) + 1) // 2
            groups += [group[half:], group[:half]]
        else:
            verdicts[group[0].question] = NO_FASTER
    return verdicts, seconds


def timings(programs: Sequence[Program], model: Model, bench: Bench) -> list[Timing]:
    """Runs of the first entry of each of ``programs``, which are all the same ``model``, taking turns, on drawn
    inputs, where the ``bench`` measures."""
    known = bench.whole(programs)
    if known is not None:
        return known
    entry, graph = next(iter(model.graphs.items()))
    folders = [artifact.build(program, model.target, Stages(), bench.emulate) for program in programs]
    return bench.runs(folders, entry, drawing.draw(graph, drawing.sizes(graph)))
