"""What search by algebra gains: ``python -m benchmarks.algebra --write docs/algebra.md``."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnxruntime
import torch
import typer
from rich.console import Console

import luminal
from benchmarks import apart, tables
from benchmarks.forms import FORMS
from benchmarks.progress import Work
from benchmarks.results import Results
from benchmarks.whole import MODELS
from luminal.display import Display
from luminal.module import Module
from luminal.timing import interleaved
from luminal.timing import text as seconds

PEERS = ("onnxruntime", "torch.compile")
CONTENDERS = ("written", "exact", "expert", *PEERS)
HEADINGS = ("layer", "written / expert", "bounded", "exact", "expert", *PEERS, "error")
OF_MODELS = ("model", "exact / bounded", "bounded", "exact", *PEERS, "error", "regions", "stage")
ABOUT = """# Search by algebra

`python -m benchmarks.algebra --write docs/algebra.md`: layers as people write them beside the same as an expert writes
them, in float32, on {threads} threads. All of a row take turns in one process; times are medians. `bounded` and `exact`
are the layer as written, through luminal with and without `algebra="bounded"`; `expert` is the expert's, through
luminal with it; onnxruntime and torch.compile are given the layer as written. `written / expert` is `bounded` by
`expert`. `error` is the largest distance from float64, relative to the largest magnitude: luminal's by PyTorch's."""
WHOLE = """## Whole models

With random weights, as people write them. `exact / bounded` is what the search gains in the whole model, `regions` how
many it changed, and `stage` the seconds that it took of compiling."""


@dataclass(frozen=True)
class Row:
    """Medians in seconds by contender, of which those that failed are missing; ``error`` and that of PyTorch; how many
    ``regions`` are in another form, and the ``seconds`` that the search took."""

    times: dict[str, float]
    error: float
    eager: float
    explained: str
    regions: int = 0
    seconds: float = 0.0


def measure(name: str, threads: int, runs: int, display: Display) -> Row:
    """Compile a layer in both forms, or a whole model, and time them beside other frameworks."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    expert: torch.nn.Module | None = None
    if name in FORMS:
        written, expert, inputs = FORMS[name].make()
    else:
        written, inputs = MODELS[name].make()
    written = written.eval()

    def compiled(module: torch.nn.Module, algebra: str) -> Module:
        found = luminal.compile(module, inputs, algebra=algebra, threads=threads, progress=display.report)
        assert isinstance(found, Module)
        return found

    ours = {"written": compiled(written, "bounded"), "exact": compiled(written, "exact")}
    if expert is not None:
        ours["expert"] = compiled(expert.eval(), "bounded")
    arrays = [x.numpy() for x in inputs]
    runners: dict[str, Callable[[], object]] = {
        key: partial(module.library.run, arrays) for key, module in ours.items()
    }
    with torch.no_grad():
        eager = written(*inputs)
        exact = written.double()(*(x.double() if x.is_floating_point() else x for x in inputs)).numpy()
        written.float()
        fast: Any = torch.compile(written)
        fast(*inputs)
        runners["torch.compile"] = lambda: fast(*inputs)
        runners["onnxruntime"] = _session(written, inputs, threads)
        result = np.asarray(ours["written"](*inputs))
        times = interleaved(runners, runs, lasting=0.5, budget=10.0)
    scale = float(np.abs(exact).max())
    errors = [float(np.abs(np.asarray(y, np.float64) - exact).max()) / scale for y in (result, eager.numpy())]
    medians = {key: timing.median for key, timing in times.items()}
    explained = ours["written"].explain()
    seconds = sum(s for stage, s in ours["written"].seconds.items() if stage.endswith(": algebra"))
    return Row(medians, errors[0], errors[1], explained, ours["written"].approximated("algebra"), seconds)


def _session(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], threads: int) -> Callable[[], object]:
    program = torch.onnx.export(module, inputs, dynamo=True, verbose=False)
    assert program is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only
    model = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feeds)


def cells(rows: dict[str, Row]) -> list[tuple[str, ...]]:
    """The cells of a table of layers, under ``HEADINGS``."""
    return [
        (
            FORMS[name].title,
            f"{row.times['written'] / row.times['expert']:.2f}",
            *(seconds(row.times[key]) for key in CONTENDERS),
            f"{row.error:.1e} / {row.eager:.1e}",
        )
        for name, row in rows.items()
        if name in FORMS
    ]


def cells_of_models(rows: dict[str, Row]) -> list[tuple[str, ...]]:
    """The cells of a table of whole models, under ``OF_MODELS``."""
    return [
        (
            MODELS[name].title,
            f"{row.times['exact'] / row.times['written']:.2f}",
            *(seconds(row.times[key]) for key in ("written", "exact", *PEERS)),
            f"{row.error:.1e} / {row.eager:.1e}",
            str(row.regions),
            f"{row.seconds:.1f} s",
        )
        for name, row in rows.items()
        if name in MODELS
    ]


def page(found: Results, threads: int) -> str:
    """The page for ``docs/``."""
    rows = {name: Row(**value) for name in (*FORMS, *MODELS) if (value := found.get(name)) is not None}
    lines = [
        ABOUT.format(threads=threads),
        "",
        *found.machines,
        "",
        *tables.markdown(HEADINGS, cells(rows), left=1),
        "",
        *([WHOLE, "", *tables.markdown(OF_MODELS, cells_of_models(rows), left=1), ""] if rows.keys() & MODELS else []),
        "## What was changed",
        "",
        "Of whole models, the first region of each kind.",
        "",
    ]
    for name, row in rows.items():
        title = FORMS[name].title if name in FORMS else MODELS[name].title
        lines.append(f"- {title}: {_kinds(row.explained) or 'nothing'}")
    return "\n".join(lines) + "\n"


def _kinds(explained: str) -> str:
    """The first line of those that differ in their numbers and in the names of operators alone, with how many there
    are."""
    found: dict[str, list[str]] = {}
    for line in explained.splitlines():
        what = line.rpartition(": ")[2]
        found.setdefault(re.sub(r"\d+", "", what), []).append(line)
    counts = {lines[0]: len(lines) for lines in found.values()}
    return "; ".join(f"{line}{f' (and {n - 1} more)' if n > 1 else ''}" for line, n in counts.items())


def main(
    only: Annotated[str, typer.Option(help=f"{', '.join((*FORMS, *MODELS))}, with commas between; default: all")] = "",
    threads: Annotated[int, typer.Option(min=1, help="threads of a run")] = 2,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 21,
    write: Annotated[Path | None, typer.Option(help="the page to write: docs/algebra.md")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="keep what this machine has measured, and go on from there")
    ] = False,
) -> None:
    """Time layers as they are written beside the expert's form of them, and whole models."""
    if resume and write is None:
        raise typer.BadParameter("there is nothing to go on from without --write", param_hint="--resume")
    names = tables.among(only, (*FORMS, *MODELS), "--only")
    found, console = Results(tables.measurements(write)), Console(width=170)
    if resume:
        names = [name for name in names if not found.get(name, here=True)]
    work = Work([None] * len(names))
    for name in names:
        work.begin(FORMS[name].title if name in FORMS else MODELS[name].title)
        found.put(name, apart.run("benchmarks.algebra", {"name": name, "threads": threads, "runs": runs}))
        work.end()
        if write is not None:
            write.write_text(page(found, threads), encoding="utf-8")
    rows = {name: Row(**found.get(name)) for name in names}
    console.print(tables.terminal(HEADINGS, cells(rows), left=1))
    console.print(tables.terminal(OF_MODELS, cells_of_models(rows), left=1))


def one() -> None:
    """Measures one layer: it is called by ``main`` alone, in a process of its own."""
    warnings.simplefilter("ignore")  # what PyTorch's exporters say of themselves
    with Display(Console(stderr=True)) as display:
        found = measure(**json.loads(sys.argv[1]), display=display)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        one()
    else:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(main)
        app()
