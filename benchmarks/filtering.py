"""What minimal filtering gains: convolutional networks with ``winograd=`` and without, taking turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

import luminal
from benchmarks import errors, tables, zoo
from benchmarks.results import Results
from luminal.display import Display
from luminal.frontends.fx.export import export
from luminal.module import Module
from luminal.timing import interleaved, text

BUDGET = 1e-3

MODELS: dict[str, tuple[str, Callable[..., zoo.Model]]] = {
    "vgg16": ("VGG-16's convolutions, 224", zoo.vgg16),
    "resnet18": ("ResNet-18, 224", zoo.resnet18),
    "resnet50": ("ResNet-50, 224", zoo.resnet50),
}


@dataclass(frozen=True)
class Row:
    """What was measured of a model, without filtering and with it: medians in seconds, errors relative to the largest
    magnitude of an output in float64, bytes of weights; and how many of its convolutions were filtered."""

    model: str
    filtered: int
    convolutions: int
    seconds: tuple[float, float]
    errors: tuple[float, float]
    weights: tuple[int, int]


def measure(name: str, threads: int, runs: int, display: Display) -> Row:
    """Time a model of ``MODELS`` at one picture."""
    torch.set_num_threads(threads)
    title, make = MODELS[name]
    model = make(batch=1)
    program = export(model.module, model.inputs, None)
    modules: list[Module] = []
    for budget in (None, BUDGET):
        module = luminal.compile(program, winograd=budget, threads=threads, progress=display.report)
        assert isinstance(module, Module)
        modules.append(module)
    arrays = [np.ascontiguousarray(value.numpy()) for value in model.inputs]
    contenders = {str(place): partial(module.library.run, arrays) for place, module in enumerate(modules)}
    times = interleaved(contenders, runs, watch=lambda done, total: display.report("time", done / total))
    with torch.no_grad():
        exact = model.module.double()(*(value.double() for value in model.inputs)).numpy()
    direct, filtered = modules
    return Row(
        title,
        filtered.approximated("winograd"),
        sum(isinstance(layer, nn.Conv2d) for layer in model.module.modules()),
        seconds=(times["0"].median, times["1"].median),
        errors=(_error(direct, arrays, exact), _error(filtered, arrays, exact)),
        weights=(_bytes(direct), _bytes(filtered)),
    )


def _error(module: Module, arrays: list[np.ndarray], exact: np.ndarray) -> float:
    return errors.relative(module.library.run(arrays)[0], exact)


def _bytes(module: Module) -> int:
    return sum(constant["bytes"] for constant in module.library.metadata["constants"])


# ---- output ----------------------------------------------------------------------------------------------------------

PREFIX = "filtering/"
HEADINGS = (
    "model", "filtered", "direct / filtered", "direct", "filtered", "error", "error filtered", "weights",
    "weights filtered",
)  # fmt: skip
ABOUT = (
    f"`python -m benchmarks.winograd`: models compiled with `winograd={BUDGET:g}` and without, one picture each, "
    "taking turns; milliseconds, medians. `filtered` says how many of the convolutions are within the budget and "
    "faster so. Errors are the largest distance from float64, relative to the largest magnitude."
)


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The cells of a table under ``HEADINGS``."""
    return [
        (
            row.model,
            f"{row.filtered} of {row.convolutions}",
            f"{row.seconds[0] / row.seconds[1]:.2f}",
            *map(text, row.seconds),
            *(f"{error:.1e}" for error in row.errors),
            *(f"{size / 2**20:.0f} MiB" for size in row.weights),
        )
        for row in rows
    ]


def parts(found: Results) -> dict[int, list[Row]]:
    """What was measured, by threads."""
    return {int(number): [Row(**row) for row in rows] for number, rows in found.under(PREFIX).items()}


def section(found: Results) -> list[str]:
    """The section of the page."""
    measured = parts(found)
    lines = ["## Convolutions by minimal filtering", "", ABOUT, ""] if measured else []
    for threads, rows in measured.items():
        lines += [f"### {threads} thread{'s' if threads > 1 else ''}", ""]
        lines += [*tables.markdown(HEADINGS, cells(rows), left=1), ""]
    return lines
