"""A mismatch on disk: the text of a graph that shows it, its inputs, the expected values and the wrong ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.comparison.report import Finding
from luminal.core import interp, printer
from luminal.core.ir import Graph
from luminal.tensors import to_file


def write(
    folder: Path, graph: Graph, inputs: Mapping[str, NDArray[Any]], found: Sequence[NDArray[Any]], finding: Finding
) -> None:
    """Fill ``folder``: ``graph.txt``, ``inputs.npz``, ``expected.npz`` (float64), ``found.npz``, ``finding.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, _ in graph.outputs]
    expected = interp.run(graph, inputs, "float64").outputs
    (folder / "graph.txt").write_text(printer.text(graph))
    np.savez(folder / "inputs.npz", **{k: to_file(v) for k, v in inputs.items()})  # type: ignore[arg-type]
    np.savez(folder / "expected.npz", **dict(zip(names, expected, strict=True)))  # type: ignore[arg-type]
    np.savez(folder / "found.npz", **dict(zip(names, map(to_file, found), strict=True)))  # type: ignore[arg-type]
    origin = f"first diverging operator: {finding.origin}\n" if finding.origin is not None else ""
    far = finding.distance
    (folder / "finding.txt").write_text(
        f"{origin}introduced by: {finding.stage} ({finding.explanation})\n"
        f"largest difference: {far.absolute:g}, {far.relative:g} of the scale {far.scale:g}\n"
    )
