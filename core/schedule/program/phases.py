"""Phases: consecutive steps between which no thread has to wait for another.

The tasks of every step of a phase are divided into the same number of shares; a thread runs its shares of one step and
then, without waiting, the same shares of the next. This is right for any division among threads if no share of one step
touches what another share of another step writes. It is proved from offsets: share ``s`` of every such access lies in
``[base + s*stride, base + (s+1)*stride)`` elements of the buffer, with one ``base`` and one ``stride``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

from luminal.core import symbolic as sym
from luminal.core.schedule.cost.tasks import enough_shares, leaves_cache, suffice
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.footprint import Slab, slabs, task_counts
from luminal.core.schedule.nest.walk import arrays_touched
from luminal.core.schedule.program.ir import Phase
from luminal.core.sizes import typical
from luminal.core.symbolic import Int
from luminal.core.target import Target


@dataclass(frozen=True)
class NestLaunch:
    """A launch of ``nest``: ``buffers`` are those of its arrays, in order; only equal ones share memory."""

    nest: ln.LoopNest
    buffers: tuple[Hashable, ...]


def phases(steps: Sequence[NestLaunch], target: Target) -> tuple[Phase, ...]:
    """The phases of more than one step, in order, each as long as possible from its first step on."""
    found: list[Phase] = []
    first = 0
    while first < len(steps):
        last = first
        best: Phase | None = None
        while last + 1 < len(steps) and (longer := _phase(steps, first, last + 1, target)) is not None:
            best, last = longer, last + 1
        if best is not None:
            found.append(best)
        first = last + 1
    return tuple(found)


def _phase(steps: Sequence[NestLaunch], first: int, last: int, target: Target) -> Phase | None:
    inside = steps[first : last + 1]
    if sum(step.nest.checked for step in inside) > 1:
        return None  # a status of a phase has to come from its only step that can raise one
    counts = sorted(set(chain.from_iterable(task_counts(step.nest) for step in inside)), key=typical, reverse=True)
    for shares in counts:
        tasks = tuple(_quotient(step.nest.task_count, shares) for step in inside)
        even = typical(shares) >= enough_shares(target) or set(tasks) == {1}
        even = even or (suffice(shares, target) and leaves_cache(_bytes_between(inside, shares), target))
        if all(tasks) and even and _independent(inside, shares):
            return Phase(first, last, shares, tasks, _linked(inside))
    return None


def portion(steps: Sequence[NestLaunch], shares: Int, buffer: Hashable) -> tuple[int, int] | None:
    """``first`` and ``length`` of the portions of ``buffer`` that contain all that each of the ``shares`` touches; None
    where there are none, or where they depend on sizes that are not known."""
    options = _slabs_of(_uses(steps)[buffer], steps, shares)
    lengths = (length for length in _common_strides(options) if isinstance(length, int))
    return min(((max(o[n].first for o in options), n) for n in lengths), key=lambda found: found[1], default=None)


def _linked(steps: Sequence[NestLaunch]) -> bool:
    """Whether a step reads what an earlier one wrote."""
    written: set[Hashable] = set()
    for step in steps:
        buffers = {array.name: buffer for array, buffer in zip(step.nest.arrays, step.buffers, strict=True)}
        read, stored = arrays_touched(step.nest.body)
        if any(name in read and buffer in written for name, buffer in buffers.items()):
            return True
        written |= {buffer for name, buffer in buffers.items() if name in stored}
    return False


def _bytes_between(steps: Sequence[NestLaunch], shares: Int) -> int:
    """Bytes of the largest buffer that several steps use and one of them writes."""
    sizes = [0]
    for used in _uses(steps).values():
        if len({number for number, _ in used}) > 1 and any(array.written for _, array in used):
            strides = [stride for stride in _common_strides(_slabs_of(used, steps, shares)) if isinstance(stride, int)]
            sizes.append(min(strides, default=0) * typical(shares) * used[0][1].dtype.itemsize)
    return max(sizes)


def _independent(steps: Sequence[NestLaunch], shares: Int) -> bool:
    """Whether no share of one step touches what another share of another step writes."""
    return all(
        _common_strides(_slabs_of(used, steps, shares))
        for used in _uses(steps).values()
        if len({number for number, _ in used}) > 1 and any(array.written for _, array in used)
    )


def _uses(steps: Sequence[NestLaunch]) -> dict[Hashable, list[tuple[int, ln.Array]]]:
    """For each buffer, the number of every step that uses it, with the array that it is there."""
    users: dict[Hashable, list[tuple[int, ln.Array]]] = {}
    for number, step in enumerate(steps):
        for array, buffer in zip(step.nest.arrays, step.buffers, strict=True):
            users.setdefault(buffer, []).append((number, array))
    return users


def _slabs_of(used: Sequence[tuple[int, ln.Array]], steps: Sequence[NestLaunch], shares: Int) -> list[dict[Int, Slab]]:
    """For each use of a buffer, the slabs into which ``shares`` divide it, by their stride from share to share."""
    every = (slabs(steps[number].nest, array.name) for number, array in used)
    return [{k: slab for slab in use if (k := _stride(slab, shares)) is not None} for use in every]


def _common_strides(options: Sequence[dict[Int, Slab]]) -> list[Int]:
    """The strides at which all uses of a buffer have slabs in common, a slab for each share."""
    return [
        stride
        for stride in set(options[0]).intersection(*options[1:])
        if max(option[stride].first for option in options) <= min(option[stride].last for option in options)
    ]


def _stride(slab: Slab, shares: Int) -> Int | None:
    """The stride from share to share; None where a share is no whole number of parts."""
    times = _quotient(slab.parts, shares)
    return slab.stride * times if times else None


def _quotient(count: Int, of: Int) -> int:
    """``count // of``; 0 where it leaves a remainder."""
    quotient = sym.floordiv(count, of)
    return quotient if isinstance(quotient, int) and quotient * of == count else 0
