"""Which stage of the compiler made a wrong value: each is run for itself and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.comparison.measure import at_most
from luminal.core import interp, ir, ops
from luminal.core.errors import SpecError
from luminal.core.ir import Graph
from luminal.core.pipeline import canonical, compile_graph
from luminal.core.precision import FP32
from luminal.core.schedule.program import interpreter
from luminal.core.target import Target

# Elements that a loop nest may compute in plain Python, a hundred thousand or so a second.
AFFORDABLE = 300_000

CHOSEN = "what was chosen"  # by the user: an approximation, which no stage made by itself

_GRAPHS = {"canonical": "simplification", "prepared": "preparation for kernels"}


def introduced(
    graph: Graph,
    inputs: Mapping[str, NDArray[Any]],
    target: Target,
    differs: Callable[[NDArray[Any]], bool],
) -> tuple[str, str]:
    """The first stage after which the output of ``graph`` differs, and how that is known.

    ``differs`` judges a value of the one output.
    """
    reached: dict[str, Any] = {}
    compile_graph(graph, target, reached.__setitem__)
    for stage, name in _GRAPHS.items():
        (value,) = interp.run(reached[stage], inputs).outputs
        if differs(value):
            if stage == "canonical" and _overflows(graph, inputs, target, value, differs):
                return CHOSEN, f"the value is right in float32, and numbers of {target.precision} do not reach so far"
            return name, f"the {stage} graph gives another value in the interpreter than the imported one"
    dims = interp.bind(graph.inputs, inputs, {})
    if work(reached["prepared"], dims) > AFFORDABLE:
        return "scheduling or code generation", "the graph is right, and too large to run its loop nests in Python"
    try:
        found = interpreter.run(reached["program"], inputs, dims)
        outputs = [found[name] for name, _ in graph.outputs]
    except SpecError as error:
        return "scheduling", f"a loop nest is malformed: {error}"
    if differs(outputs[0]):
        return "scheduling", "the loop nests give another value in Python than the graph"
    return "code generation", "the loop nests are right in Python, the compiled library is not"


def _overflows(
    graph: Graph,
    inputs: Mapping[str, NDArray[Any]],
    target: Target,
    value: NDArray[Any],
    differs: Callable[[NDArray[Any]], bool],
) -> bool:
    """Whether operands of the chosen precision are what made ``value`` infinite or NaN."""
    if target.precision == FP32 or np.isfinite(value).all():
        return False
    (exact,) = interp.run(canonical(graph, replace(target, precision=FP32)), inputs).outputs
    return bool(np.isfinite(exact).all()) and not differs(exact)


def work(graph: Graph, dims: Mapping[str, int]) -> int:
    """The number of elements that are computed, those of sums one by one."""
    sizes = (
        (node.inputs[0] if node.op.kind is ops.Kind.REDUCE else node).size
        for node in ir.topological(graph.results)
        if node.inputs and node.op is not ops.VIEW
    )
    return sum(at_most(size, dims) for size in sizes)
