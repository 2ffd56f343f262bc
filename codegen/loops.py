"""Loops as C++: counted loops, and vector loops as groups of lanes with a partial group at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from luminal.codegen.frame import Frame, Group, Value
from luminal.codegen.indices import Indices
from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.schedule.nest.ir import Loop
from luminal.core.symbolic import Int


class Loops:
    """Opens loops in a frame."""

    def __init__(self, frame: Frame, indices: Indices) -> None:
        self.frame = frame
        self.indices = indices

    @contextmanager
    def counted(
        self, loop: Loop, start: str, end: str, step: int, writes: frozenset[str], *, unroll: int | None = None
    ) -> Iterator[str]:
        """Opens ``for (axis = start; axis < end; axis += step)``; gives the name of the axis. ``unroll`` iterations are
        unrolled, and all of a loop of the kind ``unroll``."""
        name = self.frame.names.like(loop.axis.name)
        advance = f"++{name}" if step == 1 else f"{name} += {step}"
        head = f"for ({self.frame.integer} {name} = {start}; {name} < {end}; {advance}) {{"
        if loop.kind == "unroll" or unroll is not None:
            count = self._all(loop) if unroll is None else unroll
            head = f"{self.frame.dialect.unroll.format(count=count)}\n{head}"
        with self.frame.open(head, certain=sym.always(loop.extent - 1), writes=writes) as scope:
            self.frame.bind(loop.axis, Value(name))
            scope.names.append(name)
            scope.unrolled = loop.kind == "unroll"
            yield name

    def _all(self, loop: Loop) -> int:
        if not isinstance(loop.extent, int):
            raise SpecError(f"loop {loop.axis} is unrolled, but has {loop.extent} iterations")
        return loop.extent

    def groups(self, loop: Loop, writes: frozenset[str]) -> Iterator[Group]:
        """Opens the loop over full groups of lanes, then the block for the partial group at the end, if there may be
        one; yields each group. A single group, full or partial, needs no loop."""
        if sym.always(loop.extent - 1) and sym.always(loop.lanes - loop.extent):
            with self.frame.unbraced(writes=writes):
                self.frame.bind(loop.axis, Value("0"))
                count = None if loop.extent == loop.lanes else self.indices.name(loop.extent)
                yield Group(loop.axis, loop.lanes, count, only=True)
            return
        lanes, full = loop.lanes, self.full(loop.extent, loop.lanes)
        if full != "0":
            with self.counted(loop, "0", full, lanes, writes):
                yield Group(loop.axis, lanes)
        with self.partial(loop, full, writes) as group:
            if group is not None:
                yield group

    def full(self, extent: Int, step: int) -> str:
        """``extent`` rounded down to a multiple of ``step``, by name or as a number."""
        if isinstance(extent, int):
            return str(extent // step * step)
        if sym.mod(extent, step) == 0:
            return self.indices.text(extent)
        return self.indices.rounded(extent, step)

    @contextmanager
    def partial(self, loop: Loop, full: str, writes: frozenset[str]) -> Iterator[Group | None]:
        rest = sym.mod(loop.extent, loop.lanes)
        if rest == 0:
            yield None
            return
        head = "{" if isinstance(rest, int) else f"if ({full} < {self.indices.text(loop.extent)}) {{"
        end = self.indices.text(loop.extent)
        with self.frame.open(head, certain=sym.always(loop.extent - 1), writes=writes):
            name = self.frame.declare(loop.axis)
            self.frame.line(f"const {self.frame.integer} {name} = {full};")
            count = str(rest)
            if not isinstance(rest, int):
                count = self.frame.names.fresh("count")
                self.frame.line(f"const {self.frame.integer} {count} = {end} - {name};")
            yield Group(loop.axis, loop.lanes, count)
