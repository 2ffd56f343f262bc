"""How ranks exchange data: the kinds of the primitive ``Exchange``, each with its shape, its meaning and its messages.

Data moves and nothing is computed: sums are taken by kernels, of what was moved, in the order of the ranks. So bits
depend on the number of ranks alone, under any transport. ``lockstep`` runs all ranks of a mesh at once, for the oracle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from luminal.core.errors import InputError, ShapeError
from luminal.core.ops import Passed
from luminal.core.symbolic import Int

Array: TypeAlias = np.ndarray[Any, Any]
Exchange: TypeAlias = Callable[[Any, Array], Array]  # the attribute of the node, what this rank gives -> what it gets
T = TypeVar("T")


@dataclass(frozen=True)
class Kind:
    """One kind of exchange. ``shape`` is that of the result, from the operand's and the number of ranks; ``meaning`` is
    what member ``me`` gets of what all members of the group give, in their order. ``sent`` is how many messages of
    which part of the operand a rank sends at the most: ``(messages, parts of the operand)``."""

    shape: Callable[[tuple[Int, ...], int], tuple[Int, ...]]
    meaning: Callable[[Sequence[Array], int, int], Array]
    sent: Callable[[int], tuple[int, int]]
    total: str


def _gathered(shape: tuple[Int, ...], size: int) -> tuple[Int, ...]:
    return (size, *shape)


def _same(shape: tuple[Int, ...], size: int) -> tuple[Int, ...]:
    return shape


def _by_rank(shape: tuple[Int, ...], size: int) -> tuple[Int, ...]:
    if not shape or shape[0] != size:
        raise ShapeError(f"Exchange: expected a first axis of {size} ranks, found {list(shape)}")
    return shape


def _own(shape: tuple[Int, ...], size: int) -> tuple[Int, ...]:
    return _by_rank(shape, size)[1:]


def _shifted(given: Sequence[Array], me: int, distance: int) -> Array:
    return given[me - distance] if 0 <= me - distance < len(given) else np.zeros_like(given[me])


EXCHANGES: dict[str, Kind] = {
    "gather": Kind(_gathered, lambda given, me, _: np.stack(given), lambda size: (size - 1, 1),
                   "along a new first axis, what each rank gives"),
    "transpose": Kind(_by_rank, lambda given, me, _: np.stack([x[me] for x in given]), lambda size: (size - 1, size),
                      "along the first axis, what each rank has for this one: all to all"),
    "part": Kind(_own, lambda given, me, _: given[me][me], lambda size: (0, 1),
                 "the part of this rank, along the first axis; nothing is sent"),
    "broadcast": Kind(_same, lambda given, me, root: given[root], lambda size: (size - 1, 1),
                      "what the rank of that number gives"),
    "shift": Kind(_same, _shifted, lambda size: (1, 1),
                  "what the rank so far before this one gives; zeros where there is none"),
}  # fmt: skip


class _Ranks:
    """The exchanges of as many threads as there are ranks, each of which waits for the others of its group."""

    def __init__(self, size: int) -> None:
        self.barriers: dict[tuple[int, int, int], threading.Barrier] = {}  # of groups, by first rank, size and stride
        self.given: list[Array] = [np.empty(0)] * size
        self.changed = threading.Condition()
        self.broken = False
        self.sent: dict[tuple[int, int, int], deque[Array]] = {}  # by sender, receiver and ticket

    def exchange(self, rank: int, attr: Any, array: Array) -> Array:
        group = attr.group
        me = rank // group.stride % group.size
        first = rank - me * group.stride
        if isinstance(attr, Passed):
            return self._pass(rank, first + attr.peer * group.stride, attr, array)
        self.given[rank] = array
        barrier = self._barrier(first, group.size, group.stride)
        barrier.wait()
        members = [self.given[first + k * group.stride] for k in range(group.size)]
        result = np.array(EXCHANGES[attr.kind].meaning(members, me, attr.number))
        barrier.wait()  # before a rank gives what it exchanges next
        return result

    def _barrier(self, first: int, size: int, stride: int) -> threading.Barrier:
        with self.changed:
            if self.broken:
                raise threading.BrokenBarrierError
            return self.barriers.setdefault((first, size, stride), threading.Barrier(size))

    def _pass(self, rank: int, other: int, attr: Passed, array: Array) -> Array:
        """``array``, which another rank is sent; or what comes from it, as soon as it does."""
        pair = (rank, other) if attr.sends else (other, rank)
        with self.changed:
            waiting = self.sent.setdefault((*pair, attr.ticket), deque())
            if attr.sends:
                waiting.append(array.copy())
                self.changed.notify_all()
                return array
            self.changed.wait_for(lambda: waiting or self.broken)
            if not waiting:
                raise threading.BrokenBarrierError
            return waiting.popleft()

    def abort(self) -> None:
        """Ends the waiting of all ranks."""
        with self.changed:
            self.broken = True
            for barrier in self.barriers.values():
                barrier.abort()
            self.changed.notify_all()


def lockstep(size: int, work: Callable[[int, Exchange], T]) -> list[T]:
    """What ``work(rank, exchange)`` returns for each of ``size`` ranks, which run at once and exchange arrays with each
    other. Raises what one of them raises."""
    ranks = _Ranks(size)

    def one(rank: int) -> T:
        try:
            return work(rank, lambda attr, array: ranks.exchange(rank, attr, array))
        except BaseException:
            ranks.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(one, rank) for rank in range(size)]
        failed = [error for future in futures if (error := future.exception()) is not None]
    first = [error for error in failed if not isinstance(error, threading.BrokenBarrierError)] or failed
    if first:
        raise first[0]
    return [future.result() for future in futures]


def alone(attr: Any, array: Array) -> Array:
    """The exchange of a run that is told of no other ranks. Raises InputError."""
    raise InputError(f"a rank exchanges data along {attr.group.axis!r}: run all of them, with core.exchange.lockstep")
