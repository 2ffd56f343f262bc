"""What watching a run costs, and how far a profile is from the run: ``python -m benchmarks.watching``.

The sum of a profile's kernels beside the time of runs that nobody watched, which took turns with those that were; runs
with a trace beside runs without, which take turns; and, counted by callgrind, the instructions of a run of the library
as it is and with the lines taken out of its sources that look whether somebody watches.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

import luminal
from benchmarks import zoo
from benchmarks.everywhere import build
from luminal import profiled
from luminal.comparison import inputs as drawing
from luminal.comparison.foreign import Foreign
from luminal.core import target as targets
from luminal.core.errors import ModelError
from luminal.core.ir import Graph
from luminal.module import Module
from luminal.runtime import loader
from luminal.timing import interleaved

SUM, TRACE, OFF = 0.05, 0.05, 1e-5  # the goals: parts of the time, of the time, and of the instructions
# Where generated code and the runtime look whether somebody watches: file, and the words that go.
LOOKS = (
    ("library_base.hpp", "if (observed_) observe(step);"),
    (
        "library.hpp",
        "if (elsewhere_ && tasks / grain > 1) {\n            share(tasks, grain, body, argument);\n        } else ",
    ),
)
MODELS: Mapping[str, Callable[[], zoo.Model]] = {
    "minilm": zoo.minilm,
    "mobilenet": lambda: zoo.mobilenet(repeats=False),
}


def main(
    model: Annotated[str, typer.Option(help=", ".join(MODELS))] = "minilm",
    runs: Annotated[int, typer.Option(min=3, help="runs of each profile and of each side")] = 31,
    profiles: Annotated[int, typer.Option(min=1, help="profiles, of which the median counts")] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Measure what watching costs."""
    if model not in MODELS:
        raise typer.BadParameter(f"expected {', '.join(MODELS)}, found {model!r}", param_hint="--model")
    made = MODELS[model]()
    graph = luminal.read(made.module, made.inputs, dims=made.dims, name=model)
    inputs = drawing.draw(graph, drawing.sizes(graph))
    compiled = luminal.compile(graph, threads=threads)
    assert isinstance(compiled, Module)
    parts = [part(compiled, inputs, runs, threads) for _ in range(profiles)]
    middle = statistics.median(parts)
    every = ", ".join(f"{value:.3f}" for value in parts)
    print(f"sum of a profile / time of a run: {middle:.3f} ({every}); goal: within {SUM:.0%}")
    traced = trace_ratio(compiled, inputs, runs, threads)
    print(f"time with a trace / without: {traced:.3f}; goal: at most {1 + TRACE:.2f}")
    wrong = abs(middle - 1) > SUM or traced > 1 + TRACE
    if shutil.which("valgrind") is None:
        print("instructions: not counted; install Debian's package valgrind")
    else:
        with_looks, without = instructions(graph, inputs)
        more = with_looks / without - 1
        print(f"instructions of a run that nobody watches: {with_looks}, and {without} without the lines that look "
              f"whether anybody does: {more:+.2e}; goal: at most {OFF:.0e}")  # fmt: skip
        wrong |= more > OFF
    raise typer.Exit(1 if wrong else 0)


def part(module: Module, inputs: Mapping[str, NDArray[Any]], runs: int, threads: int) -> float:
    """The sum of a profile by the time of a run that took turns with it."""
    found = profiled.measure(module, inputs, runs, threads, peak=False)
    return found.seconds / found.run_seconds


def trace_ratio(module: Module, inputs: Mapping[str, NDArray[Any]], runs: int, threads: int) -> float:
    """The median time of a run with a trace by that of one without; they take turns."""
    with tempfile.TemporaryDirectory(prefix="luminal-trace-") as folder:
        off = loader.load(module.folder, threads=threads)
        on = loader.load(module.folder, threads=threads, trace=Path(folder) / "trace.json")
        entry = module.entry.name
        sides = {"off": lambda: off.run(inputs, entry), "on": lambda: on.run(inputs, entry)}
        times = interleaved(sides, runs)
        return times["on"].median / times["off"].median


def instructions(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> tuple[int, int]:
    """The instructions of a run on one thread that nobody watches: of the library, and of one without the lines that
    look whether somebody does. Raises ModelError where callgrind cannot run it."""
    compiled = luminal.compile(graph, target="avx2", threads=1)
    assert isinstance(compiled, Module)
    counts = []
    for looks in (True, False):
        caller = Foreign(compiled, graph, targets.AVX2, "source")
        for file, words in () if looks else LOOKS:
            path = caller.folder / "include" / "luminal" / file
            text = path.read_text(encoding="utf-8")
            if words not in text:
                raise ModelError(f"{file}: expected {words!r}, which has changed: update benchmarks/watching.py")
            path.write_text(text.replace(words, ""), encoding="utf-8")
        build(caller.folder / f"{compiled.interface.name}.cpp", targets.AVX2)
        program = caller.program(inputs)
        (caller.folder / "in").write_bytes(
            b"".join(np.ascontiguousarray(inputs[node.attr.name]).tobytes() for node in graph.given)
        )
        counts.append(_counted(program, f"{compiled.interface.name}_run"))
    return counts[0], counts[1]


def _counted(program: Path, function: str) -> int:
    """The instructions that ``function`` takes in a run of ``program``, on one CPU."""
    out = program.parent / "callgrind.out"
    options = (f"--callgrind-out-file={out}", "--collect-atstart=no", f"--toggle-collect={function}")
    command = ("taskset", "-c", "0", "valgrind", "--tool=callgrind", *options, f"./{program.name}")
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False)
    found = re.search(r"^summary: (\d+)", out.read_text(), re.MULTILINE) if out.exists() else None
    if done.returncode or found is None or not int(found[1]):
        raise ModelError(f"callgrind: {done.stderr.strip()[-500:]}")
    return int(found[1])


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    sys.exit(app())
