"""Prefetching of weights across steps: steps that compute bring the weights of later steps into the caches.

A step waits where its weights arrive from memory more slowly than it multiplies them: a product of one row, as in a
classifier, waits for all of them. An earlier step that multiplies more than it reads leaves memory idle. Each iteration
of its loops over terms therefore prefetches a part of what the later step reads, as much as memory can deliver besides
its own weights. No value changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.schedule.cost import kernel as cost
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.operands import loops_of_b
from luminal.core.schedule.nest.walk import statements
from luminal.core.schedule.program.ir import Fetch, Launch, Program, Region
from luminal.core.sizes import typical
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target


@dataclass(frozen=True)
class _Wanted:
    """The first ``end`` bytes of a constant that a later step reads; ``room`` are the bytes that caches may still take
    in before it."""

    buffer: str
    end: int
    room: int


def with_fetches(program: Program, target: Target) -> Program:
    """``program`` with the fetches of its launches. None on GPUs, where other blocks run while one waits."""
    if target.grid is not None:
        return program
    entries = tuple(replace(e, region=_with_fetches(program, e.region, target)) for e in program.entries)
    used = {step.kernel for e in entries for step in e.launches if step.fetch is not None}
    kernels = tuple(replace(kernel, fetches=number in used) for number, kernel in enumerate(program.kernels))
    return replace(program, entries=entries, kernels=kernels)


def _with_fetches(program: Program, region: Region, target: Target) -> Region:
    """The region with fetches in its launches, chosen from the last to the first, so that each is as late as
    possible."""
    ahead = target.costs.prefetch
    steps = list(region.steps)
    wanted: list[_Wanted] = []
    for number in reversed(range(len(steps))):
        step = steps[number]
        if not isinstance(step, Launch):
            wanted = []  # how much a loop reads is not known
            continue
        nest = program.kernels[step.kernel].nest
        weights = {name: program.buffer(name).size for name in _weights(program, step, nest)}
        read = sum(weights.values())
        cycles = cost.cycles(nest, target.costs) / min(target.threads, max(1, typical(nest.task_count)))
        spare = int(cycles * ahead.pace) - read
        # This step reads its own weights itself, and they take room.
        wanted = [replace(w, room=w.room - read) for w in wanted if w.room >= read and w.buffer not in weights]
        if spare < 0:
            wanted += [_Wanted(name, size, int(target.l3 * ahead.l3) - size) for name, size in weights.items()]
        elif wanted and (fetch := _fetch(nest, spare, wanted[-1], ahead.line)) is not None:
            steps[number] = replace(step, fetch=fetch)
            wanted[-1:] = [replace(wanted[-1], end=fetch.first)] if fetch.first else []
    return replace(region, steps=tuple(steps))


def _fetch(nest: ln.LoopNest, spare: int, wanted: _Wanted, line: int) -> Fetch | None:
    """The fetch of the last bytes that are ``wanted``, at most ``spare``, divided among all terms of all tasks, at most
    a ``line`` each; None where no byte is left for each."""
    terms = _term_count(nest.tasks[-1].body if nest.tasks else nest.body, frozenset(nest.dims))
    rounds = terms * nest.task_count
    if rounds == 0:
        return None
    size = min(wanted.end, spare, line * typical(rounds))
    # Rounded up where this fetches all that is left, lest a few bytes remain for another step.
    divided = sym.ceildiv if size == wanted.end and isinstance(rounds, int) else sym.floordiv
    stride = sym.minimum(line, divided(size, sym.maximum(1, rounds)))
    if stride == 0:
        return None
    fetched = stride * rounds if isinstance(stride, int) and isinstance(rounds, int) else size
    return Fetch(wanted.buffer, max(0, wanted.end - fetched), stride, stride * terms)


def _weights(program: Program, step: Launch, nest: ln.LoopNest) -> Iterator[str]:
    """The constants that the step multiplies in tiles, each once. Earlier steps have written its other operands."""
    multiplied = {array for s in statements(nest.body) if isinstance(s, ln.Contract) for array in (s.a, s.b)}
    for name in dict.fromkeys(n for n, a in zip(step.arguments, nest.arrays, strict=True) if a.name in multiplied):
        if program.buffer(name).space == "constant":
            yield name


def _term_count(body: Sequence[ln.Statement], dims: frozenset[Var]) -> Int:
    """The number of terms, or steps of a matrix unit, that the tiles of one run of ``body`` sum, by ``dims``; each can
    fetch. Where it differs between tasks, it is a typical number."""

    def count(extent: Int) -> Int:
        return extent if sym.variables(extent) <= dims else typical(extent)

    total: Int = 0
    for statement in body:
        if isinstance(statement, ln.Contract):
            *outer, last = (count(loop.extent) for loop in loops_of_b(statement) or statement.loops)
            total = total + sym.product(outer) * sym.floordiv(last, statement.depth)
        elif isinstance(statement, ln.Loop):
            total = total + count(statement.extent) * _term_count(statement.body, dims)
        elif isinstance(statement, ln.If):
            total = total + _term_count(statement.body, dims)
    return total
