"""Weights on their way ahead: steps that compute bring the weights of later steps into the caches on the side.

A step whose weights come from memory more slowly than it multiplies them waits for memory: a product of one row, as of
a classifier, waits for all of them. A step before it that multiplies more than it reads leaves memory idle meanwhile.
So each of the loops over the terms of its tiles asks for a part of what the later step will read, at a pace that leaves
its own reading alone. Nothing changes but where bytes lie.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from luminal.core.program import Fetch, Launch, Program, Region
from luminal.core.schedule import cost
from luminal.core.schedule import nest as ln
from luminal.core.schedule.lower import statements
from luminal.core.schedule.tensorise import CACHE_LINE, loops_of_b
from luminal.core.schedule.tile import typical
from luminal.core.symbolic import product
from luminal.core.target import Target

PACE = 5  # bytes that memory gives in a cycle, to all cores together, beside what it could not foresee
KEPT = 0.75  # of the last cache: more than that, with what is read meanwhile, is lost before it is used


@dataclass
class _Wanted:
    """Bytes ``first .. end-1`` of a constant that a later step reads; ``room`` is what may still come into the caches
    before it does."""

    buffer: str
    end: int
    room: int


def with_fetches(program: Program, target: Target) -> Program:
    """``program``, its launches with what they fetch for later ones. On GPUs nothing: other blocks run meanwhile."""
    if target.grid is not None:
        return program
    entries = tuple(replace(e, region=_fetching(program, e.region, target)) for e in program.entries)
    used = {step.kernel for e in entries for step in e.launches if step.fetch is not None}
    kernels = tuple(replace(kernel, fetches=number in used) for number, kernel in enumerate(program.kernels))
    return replace(program, entries=entries, kernels=kernels)


def _fetching(program: Program, region: Region, target: Target) -> Region:
    """The region with fetches in its own launches; from the last to the first, so that each is as late as can be."""
    steps = list(region.steps)
    wanted: list[_Wanted] = []
    for number in reversed(range(len(steps))):
        step = steps[number]
        if not isinstance(step, Launch):
            continue
        nest = program.kernels[step.kernel].nest
        weights = {name: program.buffer(name).size for name in _weights(program, step, nest)}
        read = sum(weights.values())
        spare = int(cost.cycles(nest) / min(target.threads, _tasks(nest)) * PACE) - read
        for want in wanted:
            want.room -= read
        wanted = [want for want in wanted if want.room >= 0]
        if spare < 0:
            wanted += [_Wanted(name, size, int(target.l3 * KEPT) - size) for name, size in weights.items()]
        elif wanted and (terms := _terms_of_task(nest)):
            steps[number], left = _with_fetch(step, nest, terms, spare, wanted[-1])
            wanted[-1:] = left
    return replace(region, steps=tuple(steps))


def _with_fetch(
    step: Launch, nest: ln.LoopNest, terms: int, spare: int, wanted: _Wanted
) -> tuple[Launch, list[_Wanted]]:
    """The step with the last of what is ``wanted``, of which it fetches ``spare`` bytes at most; and what is left."""
    rounds = terms * _tasks(nest)
    stride = min(CACHE_LINE, spare // rounds, -(-wanted.end // rounds))
    if stride == 0:
        return step, [wanted]
    first = max(0, wanted.end - stride * rounds)
    fetch = Fetch(wanted.buffer, first, stride, stride * terms)
    return replace(step, fetch=fetch), [replace(wanted, end=first)] if first else []


def _weights(program: Program, step: Launch, nest: ln.LoopNest) -> Iterator[str]:
    """The constants that the step multiplies in tiles, each once."""
    multiplied = {s.b for s in statements(nest.body) if isinstance(s, ln.Contract)}
    for name in dict.fromkeys(n for n, a in zip(step.arguments, nest.arrays, strict=True) if a.name in multiplied):
        if program.buffer(name).space == "constant":
            yield name


def _terms_of_task(nest: ln.LoopNest) -> int:
    return _terms(nest.tasks[-1].body if nest.tasks else nest.body)


def _tasks(nest: ln.LoopNest) -> int:
    return max(1, typical(product(loop.extent for loop in nest.tasks)))


def _terms(body: Sequence[ln.Statement]) -> int:
    """How many terms the tiles of one run of ``body`` sum, or steps of a matrix unit: each is a fetch."""
    total = 0
    for statement in body:
        if isinstance(statement, ln.Contract):
            terms = math.prod(typical(loop.extent) for loop in loops_of_b(statement))
            total += terms // statement.depth
        elif isinstance(statement, ln.Loop):
            total += typical(statement.extent) * _terms(statement.body)
    return total
