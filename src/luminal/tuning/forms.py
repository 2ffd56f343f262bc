"""Questions about forms of regions: each candidate is a small model of its own, all of whose kernels are measured.

Its kernels are compared with the interpreter of loop nests as those of other candidates are, and its values with what
the region gives as the model spells it, within the bound of either's error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.comparison import inputs as drawing
from luminal.core import interp, ir, ops, traverse
from luminal.core.algebra import choice
from luminal.core.algebra.choice import Named
from luminal.core.algebra.cost import elements
from luminal.core.decisions import Asked, C, Candidate, Decisions, Kind, Question, Trial
from luminal.core.ir import Graph, Node
from luminal.core.pipeline import compile_graph
from luminal.core.schedule.program.ir import Launch, Program
from luminal.core.target import EXACT, Target
from luminal.tuning.bench import Contender, Part
from luminal.tuning.expected import FACTOR


class Listing(Trial):
    """The first candidate of every question about forms; ``times`` says how often each was asked."""

    def __init__(self, answers: Mapping[str, str], defaults: Mapping[str, str]) -> None:
        kinds: tuple[Kind, ...] = ("form",)
        super().__init__(kinds, 0, answers, defaults)
        self.times: Counter[str] = Counter()

    def answer(self, question: Question[C]) -> Asked:
        if question.kind in self.kinds:
            self.times[question.name] += 1
        return super().answer(question)


def contenders(
    candidates: Sequence[Candidate[Named]], times: int, target: Target, answers: Mapping[str, str]
) -> list[Contender]:
    """The contenders of one question, which the model asks so many ``times``; none where they cannot be run by
    themselves."""
    choices = [c.content.choice for c in candidates if c.content.choice is not None]
    graphs = choice.graphs([*choices, choice.spelled(choices[0].whole, ())])
    if graphs is None:
        return []
    *graphs, spelled = graphs
    exact = replace(target, algebra=EXACT, decisions=Decisions(answers))
    found: list[Contender] = []
    for place, (candidate, graph, fault) in enumerate(zip(candidates, graphs, faults(graphs, spelled), strict=True)):
        program = compile_graph(graph, exact)
        parts = _parts(program, times)
        if parts is None:
            return []
        found.append(Contender(place, candidate, program, () if fault else parts, fault))
    return found


def _parts(program: Program, times: int) -> tuple[Part, ...] | None:
    """The kernels of a program that runs so many ``times``, each with its launches; None if one cannot be measured."""
    launches: dict[int, list[Launch]] = {}
    (entry,) = program.entries
    for launch in entry.launches:
        launches.setdefault(launch.kernel, []).append(launch)
    kernels = {number: program.kernels[number] for number in launches}
    if any(kernel.scheduled.serial is None for kernel in kernels.values()):
        return None
    return tuple(Part(kernels[number], each[0], len(each) * times) for number, each in launches.items())


# ---- what they compute ---------------------------------------------------------------------------------------------


def faults(graphs: Sequence[Graph], spelled: Graph) -> list[str]:
    """What is wrong with the values of each of ``graphs``, which compute what ``spelled`` does; empty where nothing
    is."""
    inputs = drawing.draw(spelled, drawing.sizes(spelled))
    (wanted,) = interp.run(spelled, inputs, mode="float64").outputs
    magnitude = _magnitude(spelled, inputs)
    found = []
    for graph in graphs:
        (values,) = interp.run(graph, inputs).outputs
        found.append(_fault(values, wanted, _roundings([*graph.roots, *spelled.roots]) * magnitude))
    return found


def _fault(found: NDArray[Any], wanted: NDArray[Any], bound: NDArray[Any]) -> str:
    a, b = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return ""
    at = tuple(int(k) for k in np.argwhere(wrong)[0])
    return (
        f"it computes something else: element {list(at)} is {a[at]}, and as spelled {b[at]} "
        f"({np.count_nonzero(wrong)} of {wrong.size} differ)"
    )


def _magnitude(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """What ``graph`` gives with the absolute values of all floats; 0 where it computes integers, which are exact."""
    (root,) = graph.roots
    if not root.dtype.is_float:
        return np.zeros(())
    positive = {
        node: ir.constant(np.abs(np.asarray(node.attr.array)), node.dtype)
        for node in traverse.topological([root])
        if node.op is ops.CONSTANT and node.dtype.is_float
    }
    roots = traverse.substitute([root], positive)
    absolute = {name: np.abs(x) if x.dtype.kind not in "biu" else x for name, x in inputs.items()}
    return np.abs(interp.run(graph.computing(roots), absolute, mode="float64").outputs[0])


def _roundings(roots: Sequence[Node]) -> float:
    """Of the magnitude, how much roundings make: each sum as its terms in a random order do."""
    eps = max(node.dtype.eps for node in roots) if roots[0].dtype.is_float else 0.0
    total = 0.0
    for node in traverse.topological(roots):
        if node.op is ops.SUM_REDUCE:
            total += math.sqrt(elements(node.inputs[0]) / max(1.0, elements(node)))
        else:
            total += bool(node.inputs) and node.op not in (ops.VIEW, ops.GATHER)
    return FACTOR * eps * total
