"""What all regions of a program share while it is put together: kernels, buffers, constants and states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from luminal.core import symbolic as sym
from luminal.core.errors import SpecError
from luminal.core.ir import Graph, Node
from luminal.core.ir import State as Kept
from luminal.core.schedule.choose.arrangement import Arrangement
from luminal.core.schedule.nest import walk
from luminal.core.schedule.nest.ir import LoopNest, names_axis
from luminal.core.schedule.prepare.graph import Prepared
from luminal.core.schedule.program.ir import Buffer, Kernel, aligned
from luminal.core.schedule.transform.loops import Scheduled
from luminal.core.symbolic import Int, Var
from luminal.core.target import Target


@dataclass(frozen=True)
class Source:
    """What an entry is made of: a graph, its form for kernels, and its arrangement."""

    entry: str
    graph: Graph
    prepared: Prepared
    arranged: Arrangement


@dataclass
class Tables:
    """What all regions share: kernels, buffers by name, and states, each with the entry that first names it."""

    target: Target
    memory: int | str | None = None
    fitted: list[dict[str, Any]] = field(default_factory=list)  # what was done so that entries fit into it
    kernels: dict[LoopNest, Kernel] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    constants: dict[tuple[Node, tuple[int, ...]], str] = field(default_factory=dict)
    states: dict[str, tuple[Kept, Source]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    loops: int = 0

    def buffer(self, name: str, node: Node, space: str, source: Source, order: tuple[int, ...] | None = None) -> str:
        """A new buffer for ``node``; its name, which is ``name`` if that is free."""
        wanted, number = name, 1
        while name in self.buffers:
            name, number = f"{wanted}.{number}", number + 1
        origins = tuple(map(str, source.graph.origins.get(node, ())))
        self.buffers[name] = Buffer(
            name, node.dtype, node.shape, order or tuple(range(node.rank)), space, 0, _bytes(node), origins
        )
        return name

    def part(self, whole: str, counter: Var, element: Node, source: Source) -> str:
        """A new buffer for the element of ``whole`` at the current round of a loop."""
        name = self.buffer(f"{whole}[{counter.name}]", element, "part", source)
        self.buffers[name] = replace(self.buffers[name], whole=whole, counter=counter)
        return name

    def constant(self, node: Node, order: tuple[int, ...], source: Source) -> str:
        """The buffer that holds a constant, its axes in that order."""
        if (node, order) not in self.constants:
            name = source.graph.names.get(node, "") or f"constant{len(self.constants)}"
            self.constants[node, order] = self.buffer(name, node, "constant", source, order)
        return self.constants[node, order]

    def state(self, state: Kept, source: Source) -> None:
        """A place for a state after those that have one. States of one name are one state."""
        if state.name not in self.states:
            end = max((self.buffers[name].offset + self.buffers[name].size for name in self.states), default=0)
            name = self.buffer(state.name, state.input, "state", source)
            self.buffers[name] = replace(self.buffers[name], offset=aligned(end))
            self.states[name] = state, source
            self.touched.add(name)

    def initial(self, state: Kept, source: Source) -> str | None:
        """The buffer of the constant that a state begins with; None for zeros."""
        if _is_zero(state.initial):
            return None
        name = self.constant(state.initial, tuple(range(state.initial.rank)), source)
        self.touched.add(name)
        return name

    def counter(self, rounds: Int | None) -> Var:
        self.loops += 1
        return Var(f"round{self.loops - 1}", 0, (1 << 62) if rounds is None else rounds - 1)

    def kernel(self, kind: str, chosen: Scheduled, origins: tuple[str, ...]) -> int:
        """The number of the kernel of a nest; equal nests are one kernel."""
        if chosen.nest not in self.kernels:
            _check_axes(chosen.nest)
            name = f"{kind}{len(self.kernels)}"
            self.kernels[chosen.nest] = Kernel(name, chosen, origins)
        return list(self.kernels).index(chosen.nest)

    def used(self) -> Iterator[Buffer]:
        return (buffer for name, buffer in self.buffers.items() if name in self.touched)


def _check_axes(nest: LoopNest) -> None:
    """Raises SpecError where an axis has a name that a dimension may have."""
    wrong = sorted(axis.name for axis in walk.variables_bound(nest.body) if not names_axis(axis.name))
    if wrong:
        raise SpecError(f"axes of a nest are called {', '.join(wrong)}, which are no names of axes: see names_axis")


def _is_zero(constant: Node) -> bool:
    """Whether every bit of a constant is zero."""
    return not np.ascontiguousarray(constant.attr.array).reshape(-1).view(np.uint8).any()


def _bytes(node: Node) -> int:
    """Bytes of a value at the upper bounds of its dimensions."""
    elements = sym.upper(node.size)
    assert elements is not None, node
    return max(elements, 0) * node.dtype.itemsize
