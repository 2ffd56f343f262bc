"""The two sides of a comparison: what computes each, and of which model.

A side is a model alone, the folder of an exported library, a name of what runs the other side's model (``onnxruntime``,
``torch``, ``interpreter``, ``luminal`` or a target), or both: ``FILE@NAME``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal import api
from luminal.comparison import foreign, survival
from luminal.comparison.references import Arrays, Reference
from luminal.comparison.sources import REFERENCES, Source, kind_of, open_source
from luminal.core import target as targets
from luminal.core.errors import InputError, ModelError
from luminal.core.ir import Graph
from luminal.core.target import Target
from luminal.module import Module, load
from luminal.runtime.loader import MANIFEST

FRAMEWORKS = ("onnxruntime", "torch", "interpreter")
NAMES = ("luminal", *FRAMEWORKS, "host", *targets.ALL, *targets.ABROAD, *targets.GPUS)


@dataclass(frozen=True)
class Side:
    """A ``model`` (None: the other side's), and ``by`` whom it is computed (empty: whom it is usual to ask)."""

    model: Any
    by: str

    @property
    def is_folder(self) -> bool:
        return is_folder(self.model)


def is_folder(model: Any) -> bool:
    """Whether ``model`` is the path of an exported library, or one that is loaded."""
    if isinstance(model, Module):
        return True
    return isinstance(model, str | Path) and (Path(model) / MANIFEST).is_file()


def has_name(model: Any) -> bool:
    """Whether ``model`` is a name of what computes a model, or ends with one."""
    text = str(model) if isinstance(model, str | Path) else ""
    return bool(text) and not Path(text).exists() and is_name(text.rpartition("@")[2])


def is_side(given: Any) -> bool:
    """Whether ``given`` stands for a side of a comparison, and not for inputs."""
    if isinstance(given, str | Path | bytes | Module | Graph):
        return True
    mro = {kind.__module__.partition(".")[0] + "." + kind.__name__ for kind in type(given).__mro__}
    return bool(mro & {"onnx.ModelProto", "torch.Module", "torch.ExportedProgram"}) or hasattr(given, "graph_module")


def parse(given: Any) -> Side:
    """The side that ``given`` names. Raises InputError for a name of neither a file nor an implementation."""
    if not isinstance(given, str | Path):
        return Side(given, "")
    text = str(given)
    if is_name(text):
        return Side(None, text)
    if Path(text).exists():
        path = Path(text)
        if path.is_dir() and not is_folder(path):
            raise InputError(f"{text!r}: expected a model or the folder of an exported one, found a folder without a "
                             f"{MANIFEST}; `luminal compile` writes such folders")  # fmt: skip
        return Side(path, "")
    file, at, by = text.rpartition("@")
    if at and is_name(by) and Path(file).exists():
        if is_folder(file):
            raise InputError(f"{text!r}: an exported library runs by itself; leave out {'@' + by!r}")
        return Side(Path(file), by)
    raise InputError(
        f"{text!r}: expected a file, the folder of an exported model, FILE@NAME or a NAME, of {', '.join(NAMES)}; "
        "there is no such file"
    )


def is_name(text: str) -> bool:
    """Whether ``text`` names what runs a model."""
    return text in NAMES or text in targets.ALIASES


class Compiled:
    """A model as luminal compiles it for a target, or a library that was exported."""

    def __init__(self, module: Module, name: str, graph: Graph | None, target: Target | None) -> None:
        self.module, self.name, self.graph, self.target = module, name, graph, target

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """The outputs by name, and what a run leaves of states. Raises ModelError where the library does not survive
        it."""
        fault, made_there = survival.run(self.module, inputs)
        if fault:
            raise ModelError(f"{self.name}: {fault}")
        states = () if self.graph is None else self.graph.states
        if made_there is not None and not states:
            return made_there
        if states:
            self.module.reset()
        found = dict(self.module.run(inputs))
        left = self.module.state if states else {}
        return found | {state.output: left[state.name] for state in states}

    def values(self, inputs: Mapping[str, NDArray[Any]], operators: Collection[str]) -> dict[str, list[NDArray[Any]]]:
        return {}


@dataclass(frozen=True)
class Opened:
    """What runs a side, and the source that it was opened from: None for an exported library."""

    runs: Reference
    source: Source | None

    @property
    def inputs(self) -> list[tuple[str, np.dtype[Any]]]:
        """Names and types of the inputs."""
        if self.source is not None:
            return [(node.attr.name, node.dtype.numpy) for node in self.source.graph.given]
        assert isinstance(self.runs, Compiled)
        return [(spec.name, np.dtype(spec.dtype)) for spec in self.runs.module.entry.inputs]

    @property
    def outputs(self) -> list[str]:
        if self.source is not None:
            return [name for name, _ in self.source.graph.outputs]
        assert isinstance(self.runs, Compiled)
        return list(self.runs.module.output_names)


def opened(side: Side, options: Mapping[str, Any], usual: str, target: Target, threads: int) -> Opened:
    """``side`` ready to run; ``usual`` runs a model of which the side says nothing more (empty: its framework).

    Raises the errors of ``luminal.compile`` and of ``open_source``, TargetError where this machine cannot run code for
    a target.
    """
    model = side.model
    if side.is_folder:
        module = model if isinstance(model, Module) else load(model, threads=threads)
        return Opened(Compiled(module, f"library {Path(module.folder).name}", None, None), None)
    by = side.by or usual or REFERENCES[kind_of(model)]
    reference = by if by in FRAMEWORKS else "interpreter"
    source = open_source(
        model, options.get("inputs"), reference, options.get("dims"), options.get("constants"), threads
    )
    if by in FRAMEWORKS:
        return Opened(source.reference, source)
    chosen = target if by == "luminal" else targets.parse(by, target.precision.name if by == "host" else None)
    emulate = targets.needs_emulation(chosen)
    abroad = foreign.needed(chosen)
    if abroad:
        foreign.check(chosen, source.graph)
    elif not emulate:
        targets.check_supported(chosen)
    compiled = api.compile(source.graph, target=chosen, threads=threads, emulate=emulate)
    assert isinstance(compiled, Module)
    name = "luminal" if by == "luminal" else f"luminal for {by}"
    if abroad:
        return Opened(foreign.Foreign(compiled, source.graph, chosen), source)
    return Opened(Compiled(compiled, f"{name}, emulated" if emulate else name, source.graph, chosen), source)
