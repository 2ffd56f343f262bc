"""Finds the stage of the compiler that made a wrong value: the output of each stage is run and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from luminal.comparison.measure import at_most
from luminal.core import interp, ops, traverse
from luminal.core.algebra import stage as algebra
from luminal.core.errors import SpecError
from luminal.core.ir import Graph
from luminal.core.pipeline import ALGEBRA, PASSES, ROUNDING, compile_graph
from luminal.core.schedule.program import interpreter
from luminal.core.target import Target
from luminal.core.types import from_numpy

# Elements that a loop nest may compute in plain Python, a hundred thousand or so a second.
AFFORDABLE = 300_000

CHOSEN = "what was chosen"  # by the user: an approximation, which no stage made by itself

Differs: TypeAlias = Callable[[Sequence[NDArray[Any]]], bool]  # judges the outputs of a graph


def introduced(graph: Graph, inputs: Mapping[str, NDArray[Any]], target: Target, differs: Differs) -> tuple[str, str]:
    """The first stage after which the outputs of ``graph`` differ, and the evidence, in words."""
    stages = reached(graph, target)
    found = by_pass(stages, inputs, target, differs)
    if found is not None:
        return found
    dims = interp.bind(graph.inputs, inputs, {})
    if work(stages["preparation for kernels"], dims) > AFFORDABLE:
        return "scheduling or code generation", "the graph is right, and too large to run its loop nests in Python"
    try:
        outputs = interpreter.run(stages["program"], inputs, dims)
    except SpecError as error:
        return "scheduling", f"a loop nest is malformed: {error}"
    if differs([outputs[name] for name, _ in graph.outputs]):
        return "scheduling", "the loop nests give another value in Python than the graph"
    return "code generation", "the loop nests are right in Python, the compiled library is not"


def reached(graph: Graph, target: Target) -> dict[str, Any]:
    """The output of each stage of the compiler for ``graph``, by the stage's name in ``core.pipeline``."""
    found: dict[str, Any] = {}
    compile_graph(graph, target, found.__setitem__)
    return found


def by_pass(
    stages: Mapping[str, Any], inputs: Mapping[str, NDArray[Any]], target: Target, differs: Differs
) -> tuple[str, str] | None:
    """The first pass in ``stages`` (see ``reached``) whose graph has outputs that differ, and the evidence, in words;
    None where all graphs are right."""
    before: Graph = stages["graph"]
    for name, what in PASSES.items():
        after: Graph = stages.get(name, before)  # passes that do not apply are not run
        if after.roots == before.roots:
            continue
        outputs = interp.run(after, inputs).outputs
        if differs(outputs):
            if name == ROUNDING and _finite(interp.run(before, inputs).outputs) and not _finite(outputs):
                return CHOSEN, f"the value is right in float32, and numbers of {target.precision} do not reach so far"
            where = f"here {what}; the graph is right before, and gives another value in the interpreter after it"
            derivation = _derivation(before, after, inputs, target, differs) if name == ALGEBRA else None
            return name, where if derivation is None else f"{where}: {derivation}"
        before = after
    return None


def _derivation(
    before: Graph, after: Graph, inputs: Mapping[str, NDArray[Any]], target: Target, differs: Differs
) -> str | None:
    """The first derivation of ``after`` from ``before`` with which the outputs differ, and where it was applied; None
    where they do not with these derivations alone."""
    made = [x for x in after.approximations if x not in before.approximations]
    forms = dict.fromkeys((x.region, x.form) for x in made)

    def fails(count: int) -> bool:
        """Whether the outputs differ with the first so many derivations."""
        chosen = replace(target, forms=dict(list(forms)[:count]))
        return differs(interp.run(algebra.improved(before, chosen), inputs).outputs)

    if not forms or not fails(len(forms)):
        return None
    least, most = 0, len(forms)
    while most - least > 1:  # right with the least, wrong with the most
        middle = (least + most) // 2
        least, most = (least, middle) if fails(middle) else (middle, most)
    region, form = list(forms)[most - 1]
    place = next(x for x in made if (x.region, x.form) == (region, form))
    return f"{'; '.join(map(str, place.origins))}: {place.what} (region {region})"


def _finite(values: Iterable[NDArray[Any]]) -> bool:
    return all(np.isfinite(value).all() for value in values if from_numpy(value.dtype).kind in "fc")


def work(graph: Graph, dims: Mapping[str, int]) -> int:
    """The number of elements that are computed; a reduction counts the elements that it reads."""
    sizes = (
        (node.inputs[0] if node.op.kind is ops.Kind.REDUCE else node).size
        for node in traverse.topological(graph.results)
        if node.inputs and node.op is not ops.VIEW
    )
    return sum(at_most(size, dims) for size in sizes)
