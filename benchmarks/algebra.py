"""What search by algebra gains: ``python -m benchmarks.algebra --write docs/algebra.md``."""

from __future__ import annotations

import json
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
from benchmarks.forms import FORMS, Form
from benchmarks.progress import Work
from benchmarks.results import Results
from luminal.display import Display
from luminal.module import Module
from luminal.timing import interleaved
from luminal.timing import text as seconds

CONTENDERS = ("written", "exact", "expert", "onnxruntime", "torch.compile")
HEADINGS = ("layer", "written / expert", "bounded", "exact", "expert", "onnxruntime", "torch.compile", "error")
ABOUT = """# Search by algebra

`python -m benchmarks.algebra --write docs/algebra.md`: layers as people write them beside the same as an expert writes
them, in float32, on {threads} threads. All of a row take turns in one process; times are medians. `bounded` and `exact`
are the layer as written, through luminal with and without `algebra="bounded"`; `expert` is the expert's, through
luminal with it; onnxruntime and torch.compile are given the layer as written. `written / expert` is `bounded` by
`expert`. `error` is the largest distance from float64, relative to the largest magnitude: luminal's by PyTorch's."""


@dataclass(frozen=True)
class Row:
    """Medians in seconds by contender, of which those that failed are missing; ``error`` and that of PyTorch."""

    times: dict[str, float]
    error: float
    eager: float
    explained: str


def measure(name: str, threads: int, runs: int, display: Display) -> Row:
    """Compile both forms of a layer, and time them beside other frameworks."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    form: Form = FORMS[name]
    written, expert, inputs = form.make()
    written, expert = written.eval(), expert.eval()

    def compiled(module: torch.nn.Module, algebra: str) -> Module:
        found = luminal.compile(module, inputs, algebra=algebra, threads=threads, progress=display.report)
        assert isinstance(found, Module)
        return found

    ours = {
        "written": compiled(written, "bounded"), "exact": compiled(written, "exact"),
        "expert": compiled(expert, "bounded"),
    }  # fmt: skip
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
    explained = ours["written"].explain()
    return Row({key: timing.median for key, timing in times.items()}, errors[0], errors[1], explained)


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
    """The cells of a table under ``HEADINGS``."""
    return [
        (
            FORMS[name].title,
            f"{row.times['written'] / row.times['expert']:.2f}",
            *(seconds(row.times[key]) for key in CONTENDERS),
            f"{row.error:.1e} / {row.eager:.1e}",
        )
        for name, row in rows.items()
    ]


def page(found: Results, threads: int) -> str:
    """The page for ``docs/``."""
    rows = {name: Row(**value) for name in FORMS if (value := found.get(name)) is not None}
    lines = [
        ABOUT.format(threads=threads),
        "",
        *found.machines,
        "",
        *tables.markdown(HEADINGS, cells(rows), left=1),
        "",
    ]
    lines += ["What was changed:", ""]
    lines += [f"- {FORMS[name].title}: {row.explained or 'nothing'}" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


def main(
    only: Annotated[str, typer.Option(help=f"{', '.join(FORMS)}, with commas between; default: all")] = "",
    threads: Annotated[int, typer.Option(min=1, help="threads of a run")] = 2,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 21,
    write: Annotated[Path | None, typer.Option(help="the page to write: docs/algebra.md")] = None,
) -> None:
    """Time layers as they are written beside the expert's form of them."""
    names = tables.among(only, FORMS, "--only")
    found, console = Results(tables.measurements(write)), Console(width=170)
    work = Work([None] * len(names))
    for name in names:
        work.begin(FORMS[name].title)
        found.put(name, apart.run("benchmarks.algebra", {"name": name, "threads": threads, "runs": runs}))
        work.end()
        if write is not None:
            write.write_text(page(found, threads), encoding="utf-8")
    rows = {name: Row(**found.get(name)) for name in names}
    console.print(tables.terminal(HEADINGS, cells(rows), left=1))


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
