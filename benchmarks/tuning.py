"""What tuning gains: each model by formula and as tuned, one beside the other. ``python -m benchmarks.tuning MODEL ..``

The records are those of a file of their own, which is made anew unless ``--records`` names one to go on with.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import luminal
from benchmarks.suite import DECODER_LAYERS, chosen
from luminal.core import config
from luminal.display import Display
from luminal.frontends.fx.export import export
from luminal.module import Module
from luminal.timing import interleaved, text


def main(
    models: Annotated[list[str] | None, typer.Argument(help="models of the suite; all without")] = None,
    threads: Annotated[int, typer.Option(min=1, help="of a run")] = 2,
    budget: Annotated[float, typer.Option(help="seconds to tune each model for; 0: take the records as they are")] = 60,
    runs: Annotated[int, typer.Option(min=3, help="timed runs of each")] = 31,
    records: Annotated[Path | None, typer.Option(help="the file of records to read and to add to")] = None,
) -> None:
    """Tune models of the suite, and time them by formula and as tuned, taking turns in one process."""
    table = Table(title=f"{threads} threads, {runs} runs")
    headings = ("default", "tuned", "default / tuned", "of fastest runs", "kernels changed", "seconds of tuning")
    for heading in ("model", *headings):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    with tempfile.TemporaryDirectory() as folder, Display(Console(stderr=True)) as display:
        os.environ[config.RECORDS.variable] = str(records or Path(folder, "records"))
        for case in chosen(models):
            model = case.build(DECODER_LAYERS)
            program = export(model.module, model.inputs, None)
            modules: dict[str, Module] = {}
            spent = 0.0
            for name in ("default", "tuned"):
                os.environ[config.NO_RECORDS.variable] = "1" if name == "default" else "0"
                if name == "tuned" and budget:
                    started = time.perf_counter()
                    luminal.tune(program, budget=budget, threads=threads, progress=display.report)
                    spent = time.perf_counter() - started
                module = luminal.compile(program, threads=threads, progress=display.report)
                assert isinstance(module, Module)
                modules[name] = module
            arrays = [np.ascontiguousarray(value.numpy()) for value in model.inputs]
            contenders = {name: partial(module.library.run, arrays) for name, module in modules.items()}
            times = interleaved(contenders, runs, watch=lambda done, total: display.report("time", done / total))
            default, tuned = times["default"], times["tuned"]
            table.add_row(
                case.name, text(default.median), text(tuned.median), f"{default.median / tuned.median:.3f}",
                f"{default.best / tuned.best:.3f}", _changed(modules), f"{spent:.0f}",
            )  # fmt: skip
    Console(width=120).print(table)


def _changed(modules: dict[str, Module]) -> str:
    programs = [module.program for module in modules.values()]
    before, after = ({k.nest for k in program.kernels} for program in programs if program is not None)
    return f"{len(after - before)} of {len(after)}"


if __name__ == "__main__":
    typer.run(main)
