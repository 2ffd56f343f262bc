"""What tests of the scheduler share: programs run in the interpreter of loop nests, the oracle between the graph and
the compiled library, and questions to their schedules and nests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from luminal.core import symbolic as sym
from luminal.core import types
from luminal.core.ir import Graph
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.nest import interpreter, walk
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.program import interpreter as programs
from luminal.core.schedule.program.ir import Kernel, Program
from luminal.core.target import Target

Array = np.ndarray[Any, Any]
T = TypeVar("T")


def with_costs(target: Target, **themes: Mapping[str, Any]) -> Target:
    """``target`` with other costs: ``with_costs(target, threads={"written": 1})``."""
    changed = {theme: replace(getattr(target.costs, theme), **numbers) for theme, numbers in themes.items()}
    return replace(target, costs=replace(target.costs, **changed))


def canonical(graph: Graph, target: Target) -> Graph:
    """``graph`` after all passes that come before the preparation for kernels."""
    reached: dict[str, Any] = {}
    compile_graph(graph, target, reached.__setitem__)
    found = reached["long reductions"]
    assert isinstance(found, Graph)
    return found


def check_outputs(graph: Graph, expected: Sequence[Array], found: Mapping[str, Array], depth: int) -> None:
    """The outputs of ``graph``: exact, or for floats as near as sums of ``depth`` terms are in any order."""
    for (output, node), value in zip(graph.outputs, expected, strict=True):
        assert found[output].shape == value.shape and found[output].dtype == value.dtype
        if not node.dtype.is_float:
            np.testing.assert_array_equal(found[output], value)
            continue
        # Both sum in float32, in different orders: the error of a sum of n terms grows as sqrt(n).
        eps = max(node.dtype.eps, types.f32.eps)
        scale = float(np.abs(value.astype(np.float64)).max(initial=1.0))
        difference = np.abs(found[output].astype(np.float64) - value.astype(np.float64))
        assert difference.max(initial=0.0) <= 4 * np.sqrt(depth) * eps * scale


def run_program(
    program: Program, inputs: dict[str, Array], seed: int = 0, run_kernel: Callable[..., bool] = interpreter.run
) -> dict[str, Array]:
    """The outputs of ``program`` at the sizes that ``inputs`` have."""
    (entry,) = program.entries
    sizes: dict[str, int] = {}
    for tensor in entry.inputs:
        for extent, size in zip(tensor.shape, inputs[tensor.name].shape, strict=True):
            variable = sym.as_var(extent)
            if variable is not None:
                sizes[variable.name] = size
    return programs.run(program, inputs, sizes, seed=seed, run_kernel=run_kernel)


# ---- schedules -------------------------------------------------------------------------------------------------------


def transforms(kernel: Kernel, kind: type[T]) -> list[T]:
    """The transforms of a kind in the schedule of ``kernel``, in their order."""
    return [transform for transform in kernel.scheduled.schedule if isinstance(transform, kind)]


def transformed(program: Program, kind: type[Any]) -> list[Kernel]:
    """The kernels whose schedule has a transform of a kind."""
    return [kernel for kernel in program.kernels if transforms(kernel, kind)]


def refusals(program: Program) -> dict[str, str]:
    """Why contractions are not tiled, by the names of their kernels."""
    return {kernel.name: kernel.scheduled.refusal for kernel in program.kernels if kernel.scheduled.refusal}


def schedule_text(program: Program) -> str:
    """The schedules of all kernels, for golden files."""
    lines = ((f"  {kernel.name}", *(f"    {line}" for line in kernel.scheduled.lines)) for kernel in program.kernels)
    return "\n".join(itertools.chain(*lines)) + "\n"


# ---- nests -----------------------------------------------------------------------------------------------------------


def changed(kernel: Kernel, **changes: Any) -> Kernel:
    """``kernel`` with other fields of its nest, which are not what its schedule makes."""
    return replace(kernel, scheduled=replace(kernel.scheduled, nest=replace(kernel.nest, **changes)))


def contracts(program: Program) -> list[ln.Contract]:
    """The tile operations of all kernels."""
    found = (statement for kernel in program.kernels for statement in walk.statements(kernel.nest.body))
    return [statement for statement in found if isinstance(statement, ln.Contract)]


def is_masked(nest: ln.LoopNest) -> bool:
    """Whether something is loaded, stored or done under a condition."""
    found = walk.statements(nest.body)
    loads = (access for s in found for value in walk.values(s) for access in walk.accesses(value))
    return any(x.valid for x in (*loads, *(s for s in found if isinstance(s, ln.Store | ln.If))))
