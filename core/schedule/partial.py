"""Long reductions: of parts first, then of what these give.

Threads share the parts where there are few results; and sums are exact enough, of which the error of one accumulator
would grow with their length. Contractions are neither: their tiles are shared, and summed in blocks. Parts are the same
for any number of threads, and so are results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from luminal.core import ir, numerics, ops
from luminal.core import symbolic as sym
from luminal.core.ir import Graph, Node
from luminal.core.ops import Kind
from luminal.core.rewrite import remade
from luminal.core.schedule.contraction import roles
from luminal.core.schedule.tile import largest, typical
from luminal.core.symbolic import Int
from luminal.core.target import Target

Readers: TypeAlias = dict[Node, set[Node | None]]

PART = 1 << 14  # elements of a part, at most: a second reduction of it finds it in the cache
PARTS = 8  # that are worth it: waking a thread takes as long as reducing one or two
TASKS = 16  # that are enough for threads to have some each
COLUMNS = 64  # of a task where a row is not reduced along memory
TERMS = 2048  # that one accumulator sums well, of which there are
ACCUMULATORS = 64  # for a row along memory: one for each lane of some vectors


def in_parts(graph: Graph, target: Target) -> Graph:
    """``graph`` with its long reductions in parts, as ``target`` computes them.

    What a part gives is not rounded: it has the type in which the reduction computes.
    """
    readers = _readers(graph)

    def made(node: Node, operands: Sequence[Node]) -> Node:
        long = _Long.of(node, target) if node.op.kind is Kind.REDUCE and roles(node) is None else None
        if long is None or not (long.is_shared or long.is_inexact):
            return ir.rebuild(node, operands)
        (x,), axes = operands, node.attr.axes
        cut = _Cut.of(x.shape, axes, long.most)
        wide = node.dtype.compute
        outside = numerics.of_nothing(node.op, wide).tobytes()
        parts = cut.masked(ir.cast(cut.applied(node, x, readers), wide), outside)
        within = ir.reduce(node.op, parts, [k + 1 for k in axes if k >= cut.axis])
        return ir.cast(ir.reduce(node.op, within, [k for k in axes if k <= cut.axis]), node.dtype)

    origins: ir.Origins = dict(graph.origins)
    return graph.computing(remade(graph.roots, origins, made), origins=origins)


@dataclass(frozen=True)
class _Long:
    """What counts of a reduction: its ``terms``, how many results lie side by side in a task (``columns``), and how
    many tasks it has, of those that are ``enough``."""

    node: Node
    terms: int
    columns: int
    tasks: int
    enough: int

    @classmethod
    def of(cls, node: Node, target: Target) -> _Long:
        """The reduction ``node`` on ``target``."""
        shape, axes = node.inputs[0].shape, node.attr.axes
        grid = target.grid
        enough, widest = (TASKS, COLUMNS) if grid is None else (grid.processors, grid.threads)
        inner = max(1, math.prod(typical(size) for size in shape[axes[-1] + 1 :]))
        terms = math.prod(largest(shape[k]) for k in axes)
        return cls(node, terms, min(inner, widest), typical(node.size) // inner * -(-inner // widest), enough)

    @property
    def most(self) -> int:
        """Terms of a part, at most."""
        return PART if self.columns == 1 else min(PART // self.columns, TERMS)

    @property
    def is_shared(self) -> bool:
        """Whether more threads are to have a part in it than it has tasks."""
        return self.tasks < self.enough and self.terms * self.columns >= PART * PARTS

    @property
    def is_inexact(self) -> bool:
        """Whether one accumulator would sum too many terms."""
        most = TERMS if self.columns > 1 else TERMS * ACCUMULATORS
        return self.node.op is ops.SUM_REDUCE and self.node.dtype.is_float and self.terms > most


@dataclass(frozen=True)
class _Cut:
    """Values of ``before`` with the ``axis`` as two, the second of which has ``each`` positions: a part's. It, and as
    many axes after it as ``run``, are reduced."""

    before: ir.Shape
    axis: int
    each: int
    run: int

    @classmethod
    def of(cls, shape: ir.Shape, axes: tuple[int, ...], most: int) -> _Cut:
        """Where parts of a ``shape`` that is reduced over ``axes``, of so many terms at the ``most``, end."""
        inside = 1
        for axis in reversed(axes):
            extent = largest(shape[axis])
            if inside * extent > most:
                break
            inside *= extent
        run = next((k for k in range(len(shape) - axis - 1) if axis + 1 + k not in axes), len(shape) - axis - 1)
        return cls(shape, axis, _divisor(shape[axis], most // inside), run)

    @property
    def shape(self) -> ir.Shape:
        count = sym.ceildiv(self.before[self.axis], self.each)
        return (*self.before[: self.axis], count, self.each, *self.before[self.axis + 1 :])

    @property
    def place(self) -> Int:
        """The position along the axis as it was."""
        at = ir.axes(self.shape)
        return at[self.axis] * self.each + at[self.axis + 1]

    @property
    def inside(self) -> Int:
        """Not negative where there is such a position: counted over the whole run, which may become one loop."""
        at, end = self.place, self.before[self.axis]
        for k in range(self.axis + 1, self.axis + 1 + self.run):
            at, end = at * self.before[k] + ir.axes(self.shape)[k + 1], end * self.before[k]
        return end - 1 - at

    def _cut(self, x: Node) -> Node:
        """``x`` after the cut, and zeros."""
        at = ir.axes(self.shape)
        index = (*at[: self.axis], self.place, *at[self.axis + 2 :])
        return ir.view(x, self.shape, index, (self.inside,), bytes(x.dtype.itemsize))

    def masked(self, x: Node, outside: bytes) -> Node:
        """``x``, of the shape after the cut, and ``outside`` where there was nothing before."""
        return ir.view(x, x.shape, ir.axes(x.shape), (self.inside,), outside)

    def applied(self, node: Node, x: Node, readers: Readers) -> Node:
        """``x``, of which ``node`` is the reduction, after the cut, with anything where there was nothing before. What
        it alone is computed from is cut instead of it: that need not be stored to be read in parts."""
        (whole,) = node.inputs
        order, now, own = ir.topological([whole]), {whole: x}, {node}
        for part in reversed(order):
            if part.op.kind is Kind.ELEMENTWISE and part.op is not ops.CONTIGUOUS and readers[part] <= own:
                own.add(part)
                now |= zip(part.inputs, now[part].inputs, strict=True)
        cut: dict[Node, Node] = {}
        for part in order:
            if part in own:
                cut[part] = ir.elementwise(part.op, *(cut[y] for y in part.inputs), attr=part.attr)
            elif part in now:
                cut[part] = self._cut(now[part])
        return cut[whole]


def _readers(graph: Graph) -> Readers:
    """Who reads each node; None where it is the result of the graph, or of a loop or branch."""
    found: Readers = {}
    nodes = ir.everything(graph.roots)
    bodies = (body for node in nodes if node.op.kind is Kind.STRUCTURED for body in node.attr.bodies)
    for root in chain(graph.roots, *bodies):
        found.setdefault(root, set()).add(None)
    for node in nodes:
        for x in node.inputs:
            found.setdefault(x, set()).add(node)
    return found


def _divisor(extent: Int, most: int) -> int:
    """The largest divisor of an axis of ``extent`` up to ``most``; that itself, where there is none half as large."""
    if not isinstance(extent, int):
        return most
    return next((each for each in range(most, most // 2, -1) if extent % each == 0), most)
