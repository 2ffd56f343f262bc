"""Bisection of the passes over a graph: to the pass that changed a value, and to the application of a rule in it.

Applications of rules are numbered in the order made (``core.rewrite``); a replay makes the first so many alone, and the
interpreter runs the graph that the pass then gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from luminal.comparison.stages import Differs
from luminal.core import interp, rewrite
from luminal.core.errors import LuminalError
from luminal.core.ir import Graph
from luminal.core.pipeline import PASSES, compile_graph
from luminal.core.rewrite import Step
from luminal.core.target import Target

LAST = list(PASSES)[-1]


@dataclass(frozen=True)
class Changed:
    """The pass that changed the outputs, the graphs before and after it, and the rule by which it did so, where that is
    known: the ``number``-th application of one since the graph was given, of ``count``."""

    stage: str
    before: Graph
    after: Graph
    step: Step | None = None
    number: int = 0
    count: int = 0


class _Enough(Exception):
    """No later pass is of interest."""


def graphs(graph: Graph, target: Target, last: str = LAST, limit: int | None = None) -> dict[str, tuple[Graph, int]]:
    """The graph as given and after each pass up to ``last``, by the pass's name, with the number of rules applied so
    far: all, or the first ``limit``."""
    return _passed(graph, target, last, limit)[0]


def _passed(
    graph: Graph, target: Target, last: str, limit: int | None
) -> tuple[dict[str, tuple[Graph, int]], Step | None]:
    found: dict[str, tuple[Graph, int]] = {}
    with rewrite.replaying(limit) as replay:

        def watch(name: str, made: Any) -> None:
            found[name] = made, replay.made
            if name == last:
                raise _Enough

        with suppress(_Enough):
            compile_graph(graph, target, watch)
    return found, replay.last


def least(most: int, fails: Callable[[int], bool]) -> int:
    """The least number up to ``most`` that fails, by bisection: 0 does not, and ``most`` does."""
    right = 0
    while most - right > 1:
        middle = (right + most) // 2
        right, most = (right, middle) if fails(middle) else (middle, most)
    return most


def changed(graph: Graph, inputs: Mapping[str, NDArray[Any]], target: Target, differs: Differs) -> Changed | None:
    """The pass after which the outputs of ``graph`` differ; None where those of the graph that the last pass gives do
    not, or those of ``graph`` do itself. Raises the errors of the interpreter where that graph cannot be run."""
    every = graphs(graph, target)
    names = ["graph"]
    for name, (made, _) in every.items():
        if made.roots != every[names[-1]][0].roots:
            names.append(name)

    def fails(number: int) -> bool:
        return differs(interp.run(every[names[number]][0], inputs).outputs)

    if len(names) == 1 or not fails(len(names) - 1) or fails(0):
        return None
    place = least(len(names) - 1, fails)
    stage = names[place]
    known = list(every)
    start = every[known[known.index(stage) - 1]][1]
    found = Changed(stage, every[names[place - 1]][0], every[stage][0])
    return _by_rule(graph, inputs, target, differs, found, start, every[stage][1])


def _by_rule(
    graph: Graph, inputs: Mapping[str, NDArray[Any]], target: Target, differs: Differs, found: Changed,
    start: int, end: int,
) -> Changed:  # fmt: skip
    """``found`` with the first application of a rule, after number ``start``, with which the outputs differ."""

    def made(count: int) -> tuple[Graph, Step | None]:
        graphs_, last = _passed(graph, target, found.stage, start + count)
        return graphs_[found.stage][0], last

    def fails(count: int) -> bool:
        return differs(interp.run(made(count)[0], inputs).outputs)

    try:
        if end == start or fails(0):
            return found  # the pass does it without a rule
        number = least(end - start, fails)
    except LuminalError:  # a pass that needs what rules make of a graph
        return found
    return replace(found, step=made(number)[1], number=start + number, count=end)


def values(graph: Graph, inputs: Mapping[str, NDArray[Any]], step: Step) -> tuple[str, str] | None:
    """An element of the node before a rule and of the one after it, where they differ most; None where they cannot be
    run by themselves, as inside a loop."""
    try:
        both = replace(graph, outputs=(("before", step.before), ("after", step.after)), states=())
        before, after = interp.run(both, inputs).outputs
    except (LuminalError, IndexError, KeyError):
        return None
    at = furthest(before, after)
    return (f"element {list(at)}: {before[at]}", f"{after[at]}") if at is not None else None


def furthest(a: NDArray[Any], b: NDArray[Any]) -> tuple[int, ...] | None:
    """The place at which two arrays differ most; None where they have other shapes, or are equal."""
    if a.shape != b.shape or not a.size:
        return None
    if a.dtype.kind == "O" or b.dtype.kind == "O":
        apart = (a != b).astype(np.float64)
    else:
        kind = np.complex128 if "c" in (a.dtype.kind, b.dtype.kind) else np.float64
        with np.errstate(all="ignore"):
            x, y = a.astype(kind), b.astype(kind)
            apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))
    if not apart.any():
        return None
    return tuple(int(k) for k in np.unravel_index(int(np.argmax(apart)), a.shape))
