"""The parts of a kernel some of whose warps only copy: what these run, and what the others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from luminal.core.schedule.nest.hand_over import HandOver
from luminal.core.schedule.nest.ir import Alloc, Assign, CopyBox, If, Loop, Statement

Body = tuple[Statement, ...]


def copying(body: Sequence[Statement]) -> Body:
    """What warps run that copy: boxes, each set of which they hand over, in the loops and conditions around them."""
    return _kept(body, lambda s: isinstance(s, CopyBox | Assign) or (isinstance(s, HandOver) and s.filled))


def computing(body: Sequence[Statement]) -> Body:
    """What the others run: all but the copies."""
    return _kept(body, lambda s: not isinstance(s, CopyBox))


def shared(body: Sequence[Statement]) -> Body:
    """The arrays that both use: those that are allocated first."""
    return tuple(s for s in body if isinstance(s, Alloc) and s.space == "shared")


def _kept(body: Sequence[Statement], keep: Callable[[Statement], bool]) -> Body:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Alloc) and statement.space == "shared":
            continue
        if isinstance(statement, If) or (isinstance(statement, Loop) and statement.kind != "thread"):
            inner = _kept(statement.body, keep)
            if any(not isinstance(s, Assign) for s in inner):
                result.append(replace(statement, body=inner))
        elif keep(statement):
            result.append(statement)
    return tuple(result)
