"""What the tests of the PyTorch front end share: import a module, run it in the interpreter, compare with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.utils import _pytree as pytree

from luminal.core import interp
from luminal.core.ir import Graph
from luminal.frontends.fx import importer
from luminal.frontends.fx.dtypes import to_numpy

Family = dict[str, Callable[..., Any]]


def floats(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(low: int, high: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def together(family: Family) -> Callable[..., Any]:
    return lambda *inputs: {name: function(*inputs) for name, function in family.items()}


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def arrays(graph: Graph, inputs: Any) -> dict[str, np.ndarray]:
    """Example inputs as arrays under the names of the graph's inputs."""
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return {node.attr.name: to_numpy(t) for node, t in zip(graph.inputs, tensors, strict=True)}


def run(graph: Graph, inputs: Any) -> list[np.ndarray]:
    """The graph's outputs as the interpreter has them."""
    return interp.run(graph, arrays(graph, inputs)).outputs


def check(
    function: Callable[..., Any] | torch.nn.Module,
    *inputs: Any,
    dims: Mapping[str, Any] | None = None,
    others: Sequence[tuple[Any, ...]] = (),
    tolerance: float = 2e-6,
) -> Graph:
    """Import, and compare every output with PyTorch's on ``inputs`` and on each of ``others``.

    Floats agree within ``tolerance`` of each value plus that of the largest one (two units in the last place for
    narrow types), or to the smallest number of their type; everything else agrees exactly.
    """
    module = function if isinstance(function, torch.nn.Module) else Call(function)
    graph = importer.load(module.eval(), inputs, dims=dims)
    for arguments in (inputs, *others):
        with torch.no_grad():
            expected = module(*arguments)
        keyed = [(path, leaf) for path, leaf in pytree.tree_flatten_with_path(expected)[0] if leaf is not None]
        found = run(graph, arguments)
        assert len(found) == len(keyed)
        wrong = [
            f"{pytree.keystr(path)}: {problem}"
            for (path, leaf), value in zip(keyed, found, strict=True)
            if (problem := difference(value, to_numpy(torch.as_tensor(leaf)), tolerance))
        ]
        assert not wrong, "\n".join(wrong)
    return graph


def difference(found: np.ndarray, expected: np.ndarray, tolerance: float = 2e-6) -> str:
    """What is wrong with ``found``, or nothing."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"expected {expected.dtype}{expected.shape}, found {found.dtype}{found.shape}"
    if expected.dtype.kind in "biu":
        return "" if np.array_equal(found, expected) else f"expected {expected}, found {found}"
    if expected.size == 0:
        return ""
    if expected.dtype.itemsize < 4:
        tolerance = 2 * float(ml_dtypes.finfo(expected.dtype).eps)
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(np.isnan(a), np.isnan(b)) or not np.array_equal(a[np.isinf(b)], b[np.isinf(b)]):
        return f"NaN or infinities differ: expected {expected}, found {found}"
    scale = np.abs(b[finite]).max(initial=0)
    error = np.abs(a[finite] - b[finite])
    worst = (error - tolerance * np.abs(b[finite])).max(initial=0)
    if worst > max(tolerance * scale, float(ml_dtypes.finfo(expected.dtype).smallest_subnormal)):
        return f"off by {error.max():.3g} at scale {scale:.3g}"
    return ""
