"""What commands measure or show: a model from its file or its folder, and inputs for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import luminal
from luminal import arguments, options, profiled
from luminal.comparison import inputs as drawing
from luminal.core import symbolic as sym
from luminal.core import target as targets
from luminal.core.errors import InputError
from luminal.display import Display
from luminal.module import Module
from luminal.tensors import from_file
from luminal.view.collect import collect
from luminal.view.page import page as page_of


def target(choices: Mapping[str, Any]) -> targets.Target:
    """The target of ``choices``."""
    return arguments.target(choices["target"], choices["precision"], 0, choices["algebra"])


def drawn(
    model: Path, size: list[str] | None, choices: Mapping[str, Any], display: Display
) -> tuple[Module, dict[str, NDArray[Any]], str]:
    """A model compiled by ``choices``, inputs of the sizes that are asked for, and these sizes in words."""
    choices = dict(choices)
    display.report("import", 0.0)
    graph = luminal.read(model, dims=choices.pop("dims"), constants=choices.pop("constants"))
    display.report("import", 1.0)
    sizes = drawing.sizes(graph) | options.sizes(size)
    unknown = sorted(set(sizes) - {d.name for d in graph.dims})
    if unknown:
        known = f"its symbolic sizes are {', '.join(d.name for d in graph.dims)}"
        known = known if graph.dims else "it has no symbolic sizes"
        raise InputError(f"--size: the model has no {', '.join(unknown)}; {known}")
    for d in graph.dims:
        upper = sym.upper(d.hi)
        if upper is None or not d.lo <= sizes[d.name] <= upper:
            raise InputError(
                f"--size {d.name}={sizes[d.name]}: expected {d.lo}..{upper}, the bounds of {d.name}; "
                f"--dim {d.name}=LOW:HIGH sets others"
            )
    module = luminal.compile(graph, **choices, progress=display.report)
    assert isinstance(module, Module)
    at = ", ".join(f"{name}={value}" for name, value in sizes.items())
    return module, drawing.draw(graph, sizes), f" at {at}" if at else ""


def for_folder(module: Module, given: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The inputs ``given`` for an exported model. Those that are missing are zeros, of the least sizes."""
    least = {dim.name: dim.lower for dim in module.interface.dims}
    values = {}
    for tensor in module.entry.inputs:
        shape = [axis if isinstance(axis, int) else least.get(axis) for axis in tensor.shape]
        if tensor.name in given:
            values[tensor.name] = from_file(given[tensor.name], tensor.dtype)
        elif None in shape or tensor.dtype == object:
            raise InputError(f"give the input {tensor.name!r} as --input {tensor.name}=FILE.npy")
        else:
            values[tensor.name] = np.zeros([int(axis or 0) for axis in shape], tensor.dtype)
    return values


def page(
    model: Path, given: dict[str, NDArray[Any]], size: list[str] | None, choices: Mapping[str, Any], time: bool,
    display: Display,
) -> str:  # fmt: skip
    """The page of a model or an exported folder, compiled by ``choices``. Times are measured with ``time``, on the
    inputs that are ``given``, where this machine can run the target."""
    threads = choices["threads"]
    if model.is_dir():
        module = luminal.load(model, threads=threads)
        values = for_folder(module, given) if time else {}
    else:
        module, values, _ = drawn(model, size, choices, display)
        values |= given
        time = time and targets.supported(target(choices))
    profile = None
    if time:
        try:
            profile = profiled.measure(module, values, _RUNS, threads, peak=False)
        except ValueError as error:  # what the library says of inputs that do not fit
            raise InputError(str(error)) from error
    return page_of(collect(module, profile))


_RUNS = 7
