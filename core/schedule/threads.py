"""The transforms that divide a task among threads: a block of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luminal.core import symbolic as sym
from luminal.core.errors import ScheduleError
from luminal.core.schedule import nest as ln
from luminal.core.schedule.lower import accesses, statements
from luminal.core.schedule.rewrite_nest import Body, inside, prefix, wrap
from luminal.core.schedule.transforms import expand, find


@dataclass(frozen=True)
class Divide:
    """::

    for a < E:  body(a)        =>      for a in t, t + threads, .. < E:  body(a)        (t: each of the threads)

    Everywhere that the axis is looped over. Iterations are independent there, or those of a reduction, of which the
    axis must be the innermost that is no vector.
    """

    axis: str
    threads: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        find(nest.body, self.axis)
        for statement in statements(nest.body):
            headers = statement.loops if isinstance(statement, ln.Reduction) else ()
            counted = [loop.axis.name for loop in headers if loop.kind != "vector"]
            if self.axis in counted[:-1]:
                raise ScheduleError(f"divide: {self.axis!r} is not the innermost loop of {statement}")
            if not isinstance(statement, ln.Loop) or statement.axis.name != self.axis:
                continue
            if statement.kind == "ordered":
                raise ScheduleError(f"divide: the iterations of {self.axis!r} must stay in order")
            if any(_is_divided(inner) for inner in statements(inside(statement))):
                raise ScheduleError(
                    f"divide: a loop inside the one over {self.axis!r} is divided among threads already"
                )
        return replace(nest, body=expand(nest.body, self.axis, self._divided))

    def _divided(self, loop: ln.Loop) -> list[ln.Loop]:
        return [replace(loop, kind="thread", lanes=self.threads, body=())]


def _is_divided(statement: ln.Statement) -> bool:
    loops = statement.loops if isinstance(statement, ln.Reduction) else (statement,)
    return any(isinstance(loop, ln.Loop) and loop.kind == "thread" for loop in loops)


@dataclass(frozen=True)
class Share:
    """Makes the rest of a nest right for ``threads``: arrays outside the loops that are divided become shared, and
    barriers stand between statements of which one writes what the other reads or writes.

    Legal where the shared arrays take at most ``memory`` bytes.
    """

    threads: int
    memory: int

    def __call__(self, nest: ln.LoopNest) -> ln.LoopNest:
        loops, body = prefix(nest.body)
        tasks = [loop for loop in loops if loop.kind == "parallel"]
        body = wrap(loops[len(tasks) :], body)
        if self.threads > 1:
            body = _sharing(body)
            shared = [s for s in statements(body) if isinstance(s, ln.Alloc) and s.space == "shared"]
            taken = sum(array.extent * array.dtype.itemsize for array in shared)
            if taken > self.memory:
                raise ScheduleError(f"share: {taken} bytes of shared arrays, {self.memory} are there")
            body = _Barriers().body(body)
        return replace(nest, body=wrap(tasks, body), threads=self.threads)


def _sharing(body: Body) -> Body:
    result: list[ln.Statement] = []
    for statement in body:
        if isinstance(statement, ln.Alloc) and statement.space == "local":
            statement = replace(statement, space="shared")
        elif isinstance(statement, ln.Loop) and statement.kind != "thread":
            statement = replace(statement, body=_sharing(statement.body))
        result.append(statement)
    return tuple(result)


class _Barriers:
    """Puts barriers into a body. ``read`` and ``written`` are the arrays touched since the last one."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.private: set[str] = set()  # arrays in registers

    def body(self, body: Body) -> Body:
        result: list[ln.Statement] = []
        for statement in body:
            if isinstance(statement, ln.Alloc) and statement.space == "registers":
                self.private.add(statement.name)
            if isinstance(statement, ln.Loop) and statement.kind != "thread":
                result.append(self._loop(statement))
                continue
            read, written = (names - self.private for names in _touched((statement,)))
            if read & self.written or written & (self.read | self.written):
                result.append(ln.Barrier())
                self.read, self.written = set(), set()
            self.read |= read
            self.written |= written
            result.append(statement)
        return tuple(result)

    def _loop(self, loop: ln.Loop) -> ln.Loop:
        """What the last iteration left is there when the next begins, and what was there before where there is none."""
        before = frozenset(self.read), frozenset(self.written)
        self.body(loop.body)
        self.read, self.written = self.read | before[0], self.written | before[1]
        result = replace(loop, body=self.body(loop.body))
        if not sym.always(loop.extent - 1):  # a barrier in it may never have been passed
            self.read, self.written = self.read | before[0], self.written | before[1]
        return result


def _touched(body: Body) -> tuple[set[str], set[str]]:
    """The arrays that ``body`` reads, and those that it writes."""
    read: set[str] = set()
    written: set[str] = set()
    for statement in statements(body):
        match statement:
            case ln.Store():
                written.add(statement.array)
                read |= {x.array for x in accesses(statement.value)}
            case ln.Sort():
                read.add(statement.array)
                written.add(statement.array)
            case ln.Keep():
                read |= {statement.array, *(x.array for x in accesses(statement.value))}
                written.add(statement.array)
            case ln.Define() | ln.Let() | ln.Reduction():
                read |= {x.array for x in accesses(statement.value)}
            case ln.Reductions():
                read |= {x.array for _, value in statement.terms for x in accesses(value)}
            case ln.Contract():
                read |= {statement.a, statement.b}
                written.add(statement.tile)
            case _:
                pass
    return read, written
