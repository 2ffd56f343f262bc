"""The transforms that divide a task among the threads of a block of a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeGuard

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.grid import BlockLimits
from luminal.core.schedule.grid.legality import check, check_apart
from luminal.core.schedule.nest import ir as ln
from luminal.core.schedule.nest.rewrite import wrap
from luminal.core.schedule.nest.walk import Body, arrays_touched, headers, inside, perfect_loops, reads, statements
from luminal.core.schedule.transform.loops import expand, find_loop


@dataclass(frozen=True)
class DivideAmongThreads:
    """::

    for a < E:  body(a)        =>      for a in t, t + threads, .. < E:  body(a)        (t: each of the threads)

    Everywhere that the axis is looped over. Iterations are independent there, or those of a reduction, of which the
    axis must be the innermost that is no vector.
    """

    axis: str
    threads: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        find_loop(nest.body, self.axis)
        for statement in statements(nest.body):
            found = [loop for loop in headers(statement) if loop.kind != "vector"]
            names = [loop.axis.name for loop in found]
            if self.axis not in names:
                continue
            if self.axis != names[-1]:
                raise ScheduleError(f"divide among threads: {self.axis!r} is not the innermost loop of {statement}")
            if found[-1].kind == "ordered":
                raise ScheduleError(f"divide among threads: the iterations of {self.axis!r} must stay in order")
            check_apart(inside(statement), self.axis, "divide among threads")
        return replace(nest, body=expand(nest.body, self.axis, self._divided))

    def _divided(self, loop: ln.Loop) -> list[ln.Loop]:
        return [replace(loop, kind="thread", lanes=self.threads, body=())]


@dataclass(frozen=True)
class SynchroniseThreads:
    """Makes the rest of a nest right for ``threads``: local arrays outside divided loops become shared, and a barrier
    stands between two statements of which one writes what the other reads or writes. What all threads would load for a
    store to the same place is loaded by the thread that stores.

    Legal where ``limits`` allow a block so many threads, arrays and registers, and where no loop that threads divide
    contains a statement that all of them run together.
    """

    threads: int
    limits: BlockLimits

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, body = perfect_loops(nest.body)
        tasks = [loop for loop in loops if loop.kind == "parallel"]
        body = wrap(loops[len(tasks) :], body)
        if self.threads > 1:
            body = _Barriers(array.name for array in nest.arrays).body(_sharing(body, self.threads))
        result = replace(nest, body=wrap(tasks, body), threads=self.threads)
        check(result, self.limits)
        return result


def _sharing(body: Body, threads: int) -> Body:
    result: list[ln.Statement] = []
    for statement in body:
        if isinstance(statement, ln.Alloc) and statement.space == "local":
            statement = replace(statement, space="shared")
        elif isinstance(statement, ln.Store) and _updates(statement):
            statement = ln.Loop(sym.Var("t0_alone", 0, 0), 1, "thread", (statement,), threads)
        elif _is_joint(statement) and not (isinstance(statement, ln.Loop) and statement.kind == "vector"):
            statement = replace(statement, body=_sharing(statement.body, threads))
        result.append(statement)
    return tuple(result)


def _updates(store: ln.Store) -> bool:
    """Whether a store reads of its array only the element that it replaces."""
    offsets = [access.offset for access in reads(store) if access.array == store.array]
    return bool(offsets) and all(offset == store.offset for offset in offsets)


class _Barriers:
    """Puts barriers into a body. ``read`` and ``written`` are the arrays accessed since the last barrier that orders
    them: every barrier orders shared arrays, some also ``arguments``, the arrays of the kernel. ``copied`` are those
    that groups of copies write which barriers left under way, ``multiplied`` those that groups of products read."""

    def __init__(self, arguments: Iterable[str]) -> None:
        self.arguments = frozenset(arguments)
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.copied: list[frozenset[str]] = []
        self.copying: set[str] = set()  # since the last barrier
        self.multiplied: list[frozenset[str]] = []
        self.multiplying: set[str] = set()
        self.private: set[str] = set()  # arrays of which each thread has its own copy or a part

    def body(self, body: Body) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            if _is_joint(statement):
                result.append(self._joint(statement))
                continue
            if isinstance(statement, ln.Barrier):
                self._meet(statement)
                result.append(statement)
                continue
            arrays = (s for s in statements((statement,)) if isinstance(s, ln.Alloc))
            self.private |= {array.name for array in arrays if array.space != "shared"}
            read, written = (names - self.private for names in arrays_touched((statement,)))
            if isinstance(statement, ln.Store) and statement.array in read:
                raise ScheduleError(
                    f"synchronise threads: one thread stores into {statement.array} while others read it for that"
                )
            clash = read & self.written | written & (self.read | self.written)
            if clash:
                barrier = ln.Barrier(all_memory=bool(clash & self.arguments))
                result.append(barrier)
                self._meet(barrier)
            self.read = self.read | read
            self.written = self.written | written
            ahead = (s for s in statements((statement,)) if isinstance(s, ln.Store) and s.ahead)
            self.copying = self.copying | {store.array for store in ahead}
            later = (s for s in statements((statement,)) if isinstance(s, ln.Contract) and s.background)
            self.multiplying = self.multiplying | {array for contract in later for array in (contract.a, contract.b)}
            result.append(statement)
        return tuple(result)

    def _meet(self, barrier: ln.Barrier) -> None:
        """What is left to be ordered after ``barrier``."""
        self.copied, self.copying = _last(self.copied, self.copying, barrier.left), set()
        self.multiplied, self.multiplying = _last(self.multiplied, self.multiplying, barrier.products), set()
        left = frozenset() if barrier.all_memory else self.arguments
        self.read = (self.read & left).union(*self.multiplied)
        self.written = (self.written & left).union(*self.copied)

    def _joint(self, statement: ln.Loop | ln.If) -> ln.Statement:
        """A statement with barriers inside, right for its first iteration, for later ones, and for none at all."""
        before = copy(self)
        if isinstance(statement, ln.Loop):
            self.body(statement.body)
            self._join(before)
        result = replace(statement, body=self.body(statement.body))
        if isinstance(statement, ln.If) or not sym.always(statement.extent - 1):
            self._join(before)  # it may have run no iteration, and so no barrier
        return result

    def _join(self, other: _Barriers) -> None:
        """What may be left to be ordered here, or is in ``other``."""
        self.copied, self.copying = _either(self.copied, other.copied), self.copying | other.copying
        self.multiplied = _either(self.multiplied, other.multiplied)
        self.multiplying = self.multiplying | other.multiplying
        self.read, self.written = self.read | other.read, self.written | other.written


def _last(groups: list[frozenset[str]], new: set[str], count: int) -> list[frozenset[str]]:
    """The last ``count`` groups, ``new`` among them if it is one."""
    every = [*groups, frozenset(new)] if new else groups
    return every[max(0, len(every) - count) :]


def _either(groups: list[frozenset[str]], others: list[frozenset[str]]) -> list[frozenset[str]]:
    """What each group may be, the last ones the same."""
    none: frozenset[str] = frozenset()
    pairs = zip_longest(reversed(groups), reversed(others), fillvalue=none)
    return [a | b for a, b in pairs][::-1]


def _is_joint(statement: ln.Statement) -> TypeGuard[ln.Loop | ln.If]:
    """Whether all threads together run the statements inside ``statement``."""
    return isinstance(statement, ln.If) or (isinstance(statement, ln.Loop) and statement.kind != "thread")
