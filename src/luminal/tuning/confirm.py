"""Whether a model as a whole is as fast as its kernels promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from luminal import artifact
from luminal.comparison import inputs as drawing
from luminal.core.ir import Graph
from luminal.core.program import Program
from luminal.core.target import Target
from luminal.module import Module
from luminal.progress import Stages
from luminal.timing import interleaved

RUNS = 21
SECONDS = 8.0  # for all runs together


def medians(programs: Sequence[Program], graphs: Mapping[str, Graph], target: Target, threads: int) -> list[float]:
    """Seconds of a run of the first entry of each of ``programs``, which are made of the same ``graphs``: the medians
    of runs that take turns, on drawn inputs."""
    entry, graph = next(iter(graphs.items()))
    modules = [Module(artifact.build(program, target, Stages()), threads, graphs, None, target) for program in programs]
    inputs = drawing.draw(graph, drawing.sizes(graph))
    runs = {str(k): partial((m if len(graphs) == 1 else m[entry]).run, inputs) for k, m in enumerate(modules)}
    return [timing.median for timing in interleaved(runs, RUNS, budget=SECONDS).values()]
