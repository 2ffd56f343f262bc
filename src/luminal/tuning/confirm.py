"""Whether a model as a whole is as fast as its kernels promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from luminal import artifact
from luminal.comparison import inputs as drawing
from luminal.core.ir import Graph
from luminal.core.schedule.program.ir import Program
from luminal.core.target import Target
from luminal.module import Module
from luminal.progress import Stages
from luminal.timing import Timing, interleaved

RUNS = 21
SECONDS = 8.0  # for all runs together
LEAST_GAIN = 0.01  # of the time of a run: the shortest runs of one library, taking turns with itself, differ by as much


def timings(programs: Sequence[Program], graphs: Mapping[str, Graph], target: Target, threads: int) -> list[Timing]:
    """Runs of the first entry of each of ``programs``, which are made of the same ``graphs``, taking turns, on drawn
    inputs."""
    entry, graph = next(iter(graphs.items()))
    modules = [Module(artifact.build(program, target, Stages()), threads, graphs, None, target) for program in programs]
    inputs = drawing.draw(graph, drawing.sizes(graph))
    runs = {str(k): partial((m if len(graphs) == 1 else m[entry]).run, inputs) for k, m in enumerate(modules)}
    return list(interleaved(runs, RUNS, budget=SECONDS).values())
